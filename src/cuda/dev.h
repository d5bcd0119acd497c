/*
 * Chunks through the device tier into an engine's cache in a GPU's memory: what the connector in vLLM and the embedded
 * engine have in common.  A program that is built without CUDA has none of it: is_dev_open is NULL there, and without
 * what it opens nothing else is called.
 *
 * Prompts are added one by one, their chunks promoted to the device tier; then all of them are written at once, layer
 * by layer, on a stream of its own.
 */
#ifndef IS_CUDA_DEV_H
#define IS_CUDA_DEV_H

#include "cache.h"
#include "pool.h"

typedef struct is_dev is_dev;

#pragma GCC visibility push(hidden)
#pragma weak is_dev_open
#pragma weak is_dev_close
#pragma weak is_dev_cache
#pragma weak is_device_layer_of
#pragma weak is_dev_add
#pragma weak is_dev_start
#pragma weak is_dev_wait
#pragma weak is_dev_read
#pragma weak is_dev_lock
#pragma weak is_dev_unlock
#pragma weak is_dev_drop
#pragma weak is_dev_list
#pragma weak is_dev_owns
#pragma weak is_dev_finish
#pragma weak is_dev_drop_scope
#pragma weak is_dev_count

/* Takes back a pin that came with a prompt, is_dev_prompt.pins.  On the thread that calls. */
typedef void (*is_unpin_fn)(void *user, void *pin);

/* budget: bytes of chunks in device memory.  IS_EUNSUPPORTED: there is no such device. */
is_status is_dev_open(uint32_t device, uint64_t budget, is_unpin_fn unpin, void *user, is_dev **out, is_error *err);
void is_dev_close(is_dev *dev);

/*
 * Says where the cache is, see is_device_cache_new: layers [layout->n_layers], read before this returns; n_blocks
 * blocks of block_tokens tokens in every layer.  Called again, it replaces what was said before.
 */
is_status is_dev_cache(is_dev *dev, const is_layout *layout, const is_device_layer *layers, is_cell cell,
                       uint32_t block_tokens, uint32_t n_blocks, is_error *err);

/*
 * One prompt: n chunks, with their keys [n][IS_DEVICE_POOL_KEY], which say all that makes a chunk another one, and
 * their numbers [n], not negative, of which each has one chunk at a time.  pins: [n] what holds their bytes in host
 * memory, given back when they are written; NULL: the caller holds them until then.
 */
typedef struct is_dev_prompt {
    const is_placed *placed;
    void *const *pins;
    const int64_t *numbers;
    const uint8_t (*keys)[IS_DEVICE_POOL_KEY];
    uint32_t n;
    const uint32_t *blocks;
    uint32_t n_blocks, begin, end;
} is_dev_prompt;

/*
 * Adds a prompt to those that are started next.  Where its chunks find no room beside those of the others, these are
 * started now, and waited for.  *reach: up to where its chunks found room on the device alone, at most end.  Owns the
 * pins from then on, also when it fails.  stream: as for is_dev_start.
 */
is_status is_dev_add(is_dev *dev, const is_dev_prompt *prompt, uint32_t *reach, void *stream, is_error *err);
/* Writes what was added, behind all that is in the engine's stream now.  On failure the blocks hold anything. */
is_status is_dev_start(is_dev *dev, void *stream, is_error *err);
/* What is put into the engine's stream from now on waits for this layer of what was started. */
is_status is_dev_wait(is_dev *dev, uint32_t layer, void *stream, is_error *err);

/* Waits until what was started is written. */
is_status is_dev_finish(is_dev *dev, is_error *err);
/* Whether the device can reach this memory. */
bool is_dev_owns(const is_dev *dev, const void *address);

/* As is_paged_read, behind all that is in the engine's stream; waits. */
is_status is_dev_read(is_dev *dev, const uint32_t *blocks, size_t n_blocks, uint32_t begin, void *chunk, size_t size,
                      void *stream, is_error *err);

/* Held while chunks are looked up and added, so that what is dropped meanwhile does not come back. */
void is_dev_lock(is_dev *dev);
void is_dev_unlock(is_dev *dev);
/* Between the two: the chunk is forgotten. */
void is_dev_drop(is_dev *dev, int64_t number);
/* The same for all chunks of a scope, whose numbers is_dev_number made. */
void is_dev_drop_scope(is_dev *dev, uint64_t scope);
/* A number for a chunk of a scope, where chunks are known by a key alone. */
static inline int64_t is_dev_number(uint64_t scope, const uint8_t key[IS_DEVICE_POOL_KEY])
{
    uint32_t low = (uint32_t)key[0] | (uint32_t)key[1] << 8 | (uint32_t)key[2] << 16 | (uint32_t)(key[3] & 0x7f) << 24;
    return (int64_t)((uint64_t)(uint32_t)(scope ^ scope >> 32) << 31 | low);
}
/* How many chunks are on the device. */
uint64_t is_dev_count(is_dev *dev);
/* Chunks on the device: *out [n], free(). */
is_status is_dev_list(is_dev *dev, is_device_pool_listed **out, size_t *n, is_error *err);

#pragma GCC visibility pop

#endif
