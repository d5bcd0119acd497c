/*
 * Paged caches: rows in blocks that lie anywhere, in an order of the engine's own.
 *
 * vLLM keeps KV in blocks of some tokens (PagedAttention, arXiv 2309.06180, section 4.2), and how the elements of a
 * block are ordered is the attention kernel's business: rows, or transposed, or packed for an instruction set.  So
 * the order is learnt: the engine's own writer is given numbers instead of K and V, and where they are found
 * afterwards is the order, whatever it is.  A part that turns out to lie in rows is rotated straight into the
 * cache; any other goes through a small buffer and is written element by element.
 *
 * Elements are 16 bits wide.  Layers with a sliding window, and V transposed in chunks, are not for paged caches.
 */
#ifndef IS_KV_PAGED_H
#define IS_KV_PAGED_H

#include "compose.h"

/* Where the elements of K, or of V, lie in a block. */
typedef struct is_paged_part {
    size_t head_stride; /* elements from one head to the next */
    size_t row_stride;  /* elements from one token to the next, where a token's elements follow one another; else 0 */
    uint32_t *at;       /* [block_tokens * dim]: element of a block where head 0 has token t's element d; owned */
} is_paged_part;

typedef struct is_paged_order {
    uint32_t block_tokens;
    uint32_t heads, k_dim, v_dim;
    size_t block_elements; /* a block's size; what lies between the elements is left alone */
    is_paged_part k, v;
} is_paged_order;

/*
 * Number of an element, as it is written into the cache to learn its order: K [token][head][k_dim], then V
 * [token][head][v_dim], counted from 1 (0 is what nobody wrote).  Its low 16 bits are written first, then its high
 * ones.
 *
 * low, high: [block_elements] the block after each writing.  The caller frees *out with is_paged_order_free.
 * IS_EUNSUPPORTED: elements are missing or double, or the heads' orders differ.
 */
is_status is_paged_learn(const uint16_t *low, const uint16_t *high, size_t block_elements, uint32_t block_tokens,
                         uint32_t heads, uint32_t k_dim, uint32_t v_dim, is_paged_order *out, is_error *err);
void is_paged_order_free(is_paged_order *order);

/* One layer's cache. */
typedef struct is_paged_cache {
    uint8_t *base;       /* of block 0 */
    size_t block_stride; /* bytes from one block to the next */
    uint32_t n_blocks;
    const is_paged_order *order;
} is_paged_cache;

/*
 * Writes tokens [begin, end) of the run into the cache, for layers [layer_begin, layer_end): K rotated to its place, V
 * copied.  The chunks follow one another from position 0, as for is_compose.
 * caches: [layout->n_layers].  blocks: [n_blocks] the run's blocks, the one of token 0 first.
 * IS_EINVAL: the chunks or blocks do not reach that far, a block is outside the cache, or the cache and the layout
 * differ; nothing is written then.  Different layers may be written by different threads at once.
 */
is_status is_paged_write(const is_layout *layout, const is_paged_cache *caches, const is_placed *chunks, size_t n,
                         const uint32_t *blocks, size_t n_blocks, uint32_t begin, uint32_t end, uint32_t layer_begin,
                         uint32_t layer_end, is_error *err);

/*
 * Reads tokens [begin, begin + n_tokens) of a sequence out of the cache into a begun chunk of n_tokens
 * (is_chunk_begin). Errors as above.
 */
is_status is_paged_read(const is_layout *layout, const is_paged_cache *caches, const uint32_t *blocks, size_t n_blocks,
                        uint32_t begin, uint32_t n_tokens, uint32_t layer_begin, uint32_t layer_end, void *chunk,
                        is_error *err);

#endif
