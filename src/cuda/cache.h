/*
 * An engine's paged cache in device memory: chunks of the device tier go into it, and sequences come out of it as
 * chunks.  The same as kv/paged.h does in host memory, for many prompts at once, in one launch.
 *
 * One thread at a time.  What was put into a stream runs in its order, and nothing here waits for it but where the
 * arguments of earlier launches still stand in the way, four launches behind.
 */
#ifndef IS_CUDA_CACHE_H
#define IS_CUDA_CACHE_H

#include "../kv/paged.h"
#include "runtime.h"

/* K, or V, of one layer, for a cache whose order is known: what is_move_part says, with `at` in host memory. */
typedef struct is_device_layer {
    is_move_part k, v;
} is_device_layer;

/* Out of an order that was learnt; base: of block 0 on the device.  `at` stays the order's. */
is_device_layer is_device_layer_of(const is_paged_order *order, void *base, uint64_t block_stride);

typedef struct is_device_cache is_device_cache;

/*
 * layout: [n_layers] with neither windows nor V transposed, elements of 16 bits, which are the chunks'.  layers:
 * [n_layers].  cell: the cache's.  n_blocks: of every layer.
 * IS_EINVAL: the layout and the cache differ, or a layer is not for paged caches.  The caller frees *out with
 * is_device_cache_free, which waits for what was launched.
 */
is_status is_device_cache_new(const is_layout *layout, const is_device_layer *layers, is_cell cell,
                              uint32_t block_tokens, uint32_t n_blocks, is_device_cache **out, is_error *err);
void is_device_cache_free(is_device_cache *cache);

/* A chunk on the device: chunk is a view of the same bytes in host memory, of which only the header is looked at. */
typedef struct is_device_placed {
    const is_chunk *chunk;
    void *bytes;      /* on the device */
    int32_t position; /* of its first token in the prompt */
} is_device_placed;

/* One prompt: its chunks follow one another from position 0, and tokens [begin, end) are wanted. */
typedef struct is_device_prompt {
    const is_device_placed *chunks;
    size_t n;
    const uint32_t *blocks; /* [n_blocks], host memory */
    size_t n_blocks;
    uint32_t begin, end;
} is_device_prompt;

/*
 * Begins a batch: computes the chunks' angles and puts the arguments on their way to the device, in this stream.  The
 * batch is then written by is_device_compose, whole or some layers at a time, in the same stream.
 * IS_EINVAL as is_paged_write; nothing is written then.
 */
is_status is_device_begin(is_device_cache *cache, const is_device_prompt *prompts, size_t n, is_cuda_stream *stream,
                          is_error *err);
is_status is_device_compose(is_device_cache *cache, uint32_t layer_begin, uint32_t layer_end, is_cuda_stream *stream,
                            is_error *err);

/*
 * Reads tokens from `begin` on into a chunk on the device, whose header and records are there already.  begun: the same
 * chunk in host memory, as is_chunk_begin left it.
 */
is_status is_device_gather(is_device_cache *cache, const void *begun, void *bytes, const uint32_t *blocks,
                           size_t n_blocks, uint32_t begin, is_cuda_stream *stream, is_error *err);

#endif
