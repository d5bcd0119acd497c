/*
 * The device tier: chunks in device memory, found by number, within a budget that is taken when it is opened.
 *
 * A chunk comes in by is_device_pool_take, which copies it from host memory on a stream of the pool's own; room for a
 * chunk that a kernel makes comes from is_device_pool_reserve.  What a caller got stands still until it gives it back
 * by is_device_pool_release, which names the stream that reads it: an event in that stream says when the reader is
 * done, and only then can the memory be another chunk's.  Chunks that nobody holds or reads go, the least recently used
 * first, when room is needed.  A chunk that finds no room is not taken, and nothing waits for room: the caller prefills
 * it, or composes it on the host.
 *
 * What leaves the pool, evicted or dropped, is zeroed behind its last reader, so that free device memory holds nothing
 * of anybody, what is reserved is all zeros, and a dropped chunk is gone from the device as soon as its readers are
 * done.
 *
 * What the caller guarantees:
 *  - the thread has called is_cuda_use, and uses the stream that it hands over alone while the call lasts;
 *  - a pin is used only by what is put into one stream: behind the take or reserve that gave the pin, before the
 *    release that takes it back.  Only what was reserved is written to;
 *  - the key says all that makes a chunk another one: fingerprint, recipe, scope.  A number has one chunk at a time;
 *  - where a chunk is dropped while another thread takes it with bytes from the host, that take may bring it back.  So
 *    it is first put out of use on the host, and dropped here when no take holds bytes of it any more.
 *
 * All functions but close may be called from several threads at once.  One mutex is held while they run, also while a
 * take copies to the staging buffers.
 *
 * A call that fails has given no pin and the pool goes on; the error is the runtime's own.  A
 * chunk whose copy failed is not found.  An error that a device keeps, as after a kernel's fault, fails all that
 * follows.
 */
#ifndef IS_CUDA_POOL_H
#define IS_CUDA_POOL_H

#include "runtime.h"

#define IS_DEVICE_POOL_KEY 16 /* bytes */

typedef struct is_device_pool is_device_pool;
/* A chunk that a caller holds: one pin for every time that it was given. */
typedef struct is_device_pool_pin is_device_pool_pin;

typedef struct is_device_pool_settings {
    size_t budget;     /* bytes of device memory */
    size_t slot_bytes; /* of a staging buffer in pinned host memory; 0: 1 MiB */
    uint32_t slots;    /* staging buffers; 0: 16.  Neither default has been tuned yet. */
} is_device_pool_settings;

/* IS_EINVAL: a budget below 256 bytes.  Otherwise fails as the runtime does. */
is_status is_device_pool_open(const is_device_pool_settings *settings, is_device_pool **out, is_error *err);
/* Waits for the device.  No pin is held any more; NULL is fine. */
void is_device_pool_close(is_device_pool *pool);

typedef struct is_device_pool_want {
    int64_t number;
    uint8_t key[IS_DEVICE_POOL_KEY];
    const void
        *bytes;  /* the chunk in host memory, read before is_device_pool_take returns; NULL: only if it is there */
    size_t size; /* of bytes */
    is_device_pool_pin *pin; /* out; NULL: not taken */
} is_device_pool_want;

/*
 * Pins what is there, then copies the others in, as far as there is room, in the order given.  The stream waits for the
 * copies, the host only for a free staging buffer.  A chunk of another key under a want's number is out of use when the
 * want has bytes.  On failure no want has a pin.
 */
is_status is_device_pool_take(is_device_pool *pool, is_device_pool_want *wants, size_t n, is_cuda_stream *stream,
                              is_error *err);

/* Room of `size` bytes, all zeros, for kernels on the stream; nobody finds it.  *out NULL: there is no room. */
is_status is_device_pool_reserve(is_device_pool *pool, size_t size, is_cuda_stream *stream, is_device_pool_pin **out,
                                 is_error *err);

/*
 * Gives n pins back, NULL ones among them, when the stream is done with all that is in it now.  What was reserved is
 * gone then.  The pins are given back even on failure: where the runtime does not say when the stream is done, by event
 * or by waiting, these chunks stay where they are until the pool is closed.
 */
is_status is_device_pool_release(is_device_pool *pool, is_device_pool_pin *const *pins, size_t n,
                                 is_cuda_stream *stream, is_error *err);

/*
 * The number's chunk is out of use: not found from now on, and zeroed behind its last reader, and so are the staging
 * buffers, for which this waits until copies under way are done.  On failure it is not found either, and later calls
 * try again to zero it.
 */
is_status is_device_pool_drop(is_device_pool *pool, int64_t number, is_error *err);

/* Of the pinned chunk, in device memory. */
uint8_t *is_device_pool_memory(const is_device_pool_pin *pin);
size_t is_device_pool_size(const is_device_pool_pin *pin);

typedef struct is_device_pool_listed {
    int64_t number;
    uint8_t key[IS_DEVICE_POOL_KEY];
} is_device_pool_listed;

/* The chunks that can be found, in no order: *out [n], free(). */
is_status is_device_pool_list(is_device_pool *pool, is_device_pool_listed **out, size_t *n, is_error *err);

typedef struct is_device_pool_counts {
    uint64_t budget, used; /* bytes */
    uint64_t pinned;       /* bytes of `used` that could not go when last looked: held, read, or to be zeroed */
    uint64_t chunks;       /* that can be found */
    uint64_t hits, misses; /* wants by whether their chunk was there */
    uint64_t refused;      /* chunks that there was no room for */
    uint64_t copied_bytes; /* from host memory */
    uint64_t evicted;      /* chunks */
} is_device_pool_counts;

void is_device_pool_stats(is_device_pool *pool, is_device_pool_counts *out);

#endif
