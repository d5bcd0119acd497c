/*
 * Rows into and out of paged caches.  Everything is checked before the first byte is written.
 */
#include "paged.h"

#include "compose_isa.h"

#include <stdlib.h>
#include <string.h>

#define ELEMENT       2     /* bytes */
#define ROTATED_BYTES 32768 /* rotated at once on their way to a part that is not in rows */

/* ------------------------------------------------------------ the order */

static void describe_rows(is_paged_part *part, uint32_t block_tokens, uint32_t dim)
{
    size_t stride = block_tokens > 1 ? part->at[dim] - (size_t)part->at[0] : dim;
    part->row_stride = 0;
    if (block_tokens > 1 && part->at[dim] < part->at[0]) return;
    for (uint32_t t = 0; t < block_tokens; t++)
        for (uint32_t d = 0; d < dim; d++)
            if (part->at[t * dim + d] != part->at[0] + t * stride + d) return;
    part->row_stride = stride;
}

/* One part out of the places of all elements: place [block_tokens][heads][dim]. */
static is_status take_part(const uint32_t *place, uint32_t block_tokens, uint32_t heads, uint32_t dim,
                           is_paged_part *out, const char *name, is_error *err)
{
    if (dim == 0) return IS_OK;
    out->at = malloc((size_t)block_tokens * dim * sizeof *out->at);
    if (out->at == NULL) return is_fail(err, IS_ENOMEM, "no memory for the order of a block");
    if (heads > 1 && place[dim] < place[0])
        return is_fail(err, IS_EUNSUPPORTED, "the cache keeps the heads of %s from the last to the first", name);
    out->head_stride = heads > 1 ? place[dim] - (size_t)place[0] : 0;
    for (uint32_t t = 0; t < block_tokens; t++)
        for (uint32_t d = 0; d < dim; d++) {
            uint32_t first = place[(size_t)t * heads * dim + d];
            out->at[t * dim + d] = first;
            for (uint32_t h = 1; h < heads; h++)
                if (place[((size_t)t * heads + h) * dim + d] != first + h * out->head_stride)
                    return is_fail(err, IS_EUNSUPPORTED, "the cache keeps head %u of %s in another order than head 0",
                                   h, name);
        }
    describe_rows(out, block_tokens, dim);
    return IS_OK;
}

static is_status find_places(const uint16_t *low, const uint16_t *high, size_t block_elements, uint32_t *place,
                             size_t total, is_error *err)
{
    size_t found = 0;
    for (size_t i = 0; i < total; i++) place[i] = UINT32_MAX;
    for (size_t e = 0; e < block_elements; e++) {
        uint32_t number = low[e] | (uint32_t)high[e] << 16;
        if (number == 0 || number > total) continue; /* nothing of ours */
        if (place[number - 1] != UINT32_MAX)
            return is_fail(err, IS_EUNSUPPORTED, "element %u of a block of the cache is there twice", number);
        place[number - 1] = (uint32_t)e;
        found++;
    }
    if (found != total)
        return is_fail(err, IS_EUNSUPPORTED, "%zu of the %zu elements of a block are not found in the cache",
                       total - found, total);
    return IS_OK;
}

is_status is_paged_learn(const uint16_t *low, const uint16_t *high, size_t block_elements, uint32_t block_tokens,
                         uint32_t heads, uint32_t k_dim, uint32_t v_dim, is_paged_order *out, is_error *err)
{
    *out = (is_paged_order){
        .block_tokens = block_tokens, .heads = heads, .k_dim = k_dim, .v_dim = v_dim, .block_elements = block_elements};
    size_t k_total, v_total;
    if (block_tokens == 0 || heads == 0 || k_dim == 0 || !is_mul_size((size_t)block_tokens * heads, k_dim, &k_total) ||
        !is_mul_size((size_t)block_tokens * heads, v_dim, &v_total) || k_total + v_total > block_elements ||
        block_elements > UINT32_MAX / 2)
        return is_fail(err, IS_EINVAL,
                       "a block of %zu elements cannot hold %u tokens of %u heads with %u and %u elements",
                       block_elements, block_tokens, heads, k_dim, v_dim);
    uint32_t *place = malloc((k_total + v_total) * sizeof *place);
    if (place == NULL) return is_fail(err, IS_ENOMEM, "no memory for the order of a block");
    is_status status = find_places(low, high, block_elements, place, k_total + v_total, err);
    if (status == IS_OK) status = take_part(place, block_tokens, heads, k_dim, &out->k, "K", err);
    if (status == IS_OK) status = take_part(place + k_total, block_tokens, heads, v_dim, &out->v, "V", err);
    free(place);
    if (status != IS_OK) is_paged_order_free(out);
    return status;
}

void is_paged_order_free(is_paged_order *order)
{
    free(order->k.at);
    free(order->v.at);
    *order = (is_paged_order){0};
}

/* ------------------------------------------------------------ checks */

static is_status check_cache(const is_layout *layout, const is_paged_cache *cache, uint32_t layer, is_error *err)
{
    const is_layer *o = &layout->layers[layer];
    const is_paged_order *order = cache->order;
    if (is_dtype_size(layout->dtype) != ELEMENT || layout->v_transposed || o->window != 0)
        return is_fail(err, IS_EINVAL, "paged: layer %u has a window, or elements that are not 16 bits wide in rows",
                       layer);
    if ((size_t)o->k_dim * ELEMENT > ROTATED_BYTES)
        return is_fail(err, IS_EINVAL, "paged: layer %u has heads of %u elements, more than %d", layer, o->k_dim,
                       ROTATED_BYTES / ELEMENT);
    if (order == NULL || order->heads != o->heads || order->k_dim != o->k_dim || order->v_dim != o->v_dim ||
        cache->block_stride < order->block_elements * ELEMENT)
        return is_fail(err, IS_EINVAL, "paged: the cache of layer %u is not what the layout says", layer);
    return IS_OK;
}

static is_status check_blocks(const is_layout *layout, const is_paged_cache *caches, const uint32_t *blocks,
                              size_t n_blocks, uint32_t begin, uint32_t end, uint32_t layer_begin, uint32_t layer_end,
                              is_error *err)
{
    if (layer_begin > layer_end || layer_end > layout->n_layers || begin > end)
        return is_fail(err, IS_EINVAL, "paged: tokens %u to %u of layers %u to %u of %u", begin, end, layer_begin,
                       layer_end, layout->n_layers);
    for (uint32_t l = layer_begin; l < layer_end; l++) {
        is_status status = check_cache(layout, &caches[l], l, err);
        if (status != IS_OK) return status;
        uint32_t size = caches[l].order->block_tokens;
        if (end > (uint64_t)n_blocks * size)
            return is_fail(err, IS_EINVAL, "paged: %u tokens do not fit into %zu blocks of %u", end, n_blocks, size);
        for (uint32_t b = begin / size; (uint64_t)b * size < end; b++)
            if (blocks[b] >= caches[l].n_blocks)
                return is_fail(err, IS_EINVAL, "paged: block %u of a cache of %u", blocks[b], caches[l].n_blocks);
    }
    return IS_OK;
}

/* ------------------------------------------------------------ writing */

/* A few tokens of one chunk in one block. */
typedef struct span {
    uint8_t *block;
    uint32_t slot; /* of the first token in the block */
    uint32_t n;
} span;

static void scatter(const is_paged_part *part, uint32_t heads, uint32_t dim, span to, const uint8_t *rows,
                    size_t row_bytes)
{
    for (uint32_t h = 0; h < heads; h++) {
        uint8_t *out = to.block + h * part->head_stride * ELEMENT;
        for (uint32_t r = 0; r < to.n; r++) {
            const uint8_t *row = rows + r * row_bytes + (size_t)h * dim * ELEMENT;
            const uint32_t *at = part->at + (size_t)(to.slot + r) * dim;
            for (uint32_t d = 0; d < dim; d++)
                memcpy(out + (size_t)at[d] * ELEMENT, row + (size_t)d * ELEMENT, ELEMENT);
        }
    }
}

/* Where a part in rows has the first token of a span, in one head. */
static uint8_t *row_at(const is_paged_part *part, uint32_t head, span at)
{
    return at.block + (part->at[0] + head * part->head_stride + at.slot * part->row_stride) * ELEMENT;
}

static void write_rows(const is_paged_part *part, uint32_t heads, uint32_t dim, span to, const uint8_t *rows,
                       size_t row_bytes)
{
    if (part->row_stride == 0) {
        scatter(part, heads, dim, to, rows, row_bytes);
        return;
    }
    for (uint32_t h = 0; h < heads; h++)
        is_copy_runs(row_at(part, h, to), part->row_stride * ELEMENT, rows + (size_t)h * dim * ELEMENT, row_bytes,
                     (size_t)dim * ELEMENT, to.n);
}

/* K of a span, rotated on its way through a buffer: as many heads at once as that holds, then as many tokens. */
static void rotate_scatter(const is_layout *layout, const is_layer *o, const is_paged_part *part,
                           const is_rotation *rotation, span to, const uint8_t *rows, size_t row_bytes)
{
    _Alignas(64) uint8_t rotated[ROTATED_BYTES];
    size_t head_bytes = (size_t)o->k_dim * ELEMENT; /* at most the buffer, see check_cache */
    uint32_t at_once = (uint32_t)(sizeof rotated / head_bytes);
    for (uint32_t h = 0; h < o->heads; h += at_once) {
        uint32_t heads = o->heads - h < at_once ? o->heads - h : at_once;
        size_t bytes = heads * head_bytes;
        uint32_t most = (uint32_t)(sizeof rotated / bytes);
        for (uint32_t r = 0; r < to.n; r += most) {
            span some = {to.block + h * part->head_stride * ELEMENT, to.slot + r, to.n - r < most ? to.n - r : most};
            is_rotate_rows(is_isa_best(), layout->dtype, &layout->ropes[o->rope], rotation, heads, o->k_dim,
                           rows + r * row_bytes + h * head_bytes, row_bytes, rotated, bytes, some.n);
            scatter(part, heads, o->k_dim, some, rotated, bytes);
        }
    }
}

static void write_k(const is_layout *layout, uint32_t layer, const is_paged_order *order, const is_rotation *rotation,
                    span to, const uint8_t *rows, size_t row_bytes)
{
    const is_layer *o = &layout->layers[layer];
    const is_paged_part *part = &order->k;
    if (o->rope == IS_LAYER_NO_ROPE || rotation->identity) {
        write_rows(part, o->heads, o->k_dim, to, rows, row_bytes);
        return;
    }
    if (part->row_stride == 0) {
        rotate_scatter(layout, o, part, rotation, to, rows, row_bytes);
        return;
    }
    for (uint32_t h = 0; h < o->heads; h++)
        is_rotate_rows(is_isa_best(), layout->dtype, &layout->ropes[o->rope], rotation, 1, o->k_dim,
                       rows + (size_t)h * o->k_dim * ELEMENT, row_bytes, row_at(part, h, to),
                       part->row_stride * ELEMENT, to.n);
}

/* The part of a run that is in hand. */
typedef struct job {
    const is_layout *layout;
    const is_paged_cache *caches;
    const uint32_t *blocks;
    uint32_t begin, end;
} job;

/* One chunk's rows in one layer. */
static void write_chunk(const job *j, uint32_t layer, const is_placed *placed, const is_rotation *rotations)
{
    const is_paged_cache *cache = &j->caches[layer];
    const is_layer *o = &j->layout->layers[layer];
    is_chunk_rows rows = is_chunk_layer(placed->chunk, layer);
    uint32_t size = cache->order->block_tokens;
    uint32_t first = (uint32_t)placed->position;
    uint32_t last = first + placed->chunk->info.n_tokens;
    uint32_t t = first > j->begin ? first : j->begin;
    uint32_t end = last < j->end ? last : j->end;
    const is_rotation *rotation = o->rope == IS_LAYER_NO_ROPE ? NULL : &rotations[o->rope];
    while (t < end) {
        uint32_t slot = t % size;
        uint32_t n = end - t < size - slot ? end - t : size - slot;
        span to = {cache->base + (size_t)j->blocks[t / size] * cache->block_stride, slot, n};
        write_k(j->layout, layer, cache->order, rotation, to, rows.k + (t - first) * rows.k_row, rows.k_row);
        if (o->v_dim != 0)
            write_rows(&cache->order->v, o->heads, o->v_dim, to, rows.v + (t - first) * rows.v_row, rows.v_row);
        t += n;
    }
}

is_status is_paged_write(const is_layout *layout, const is_paged_cache *caches, const is_placed *chunks, size_t n,
                         const uint32_t *blocks, size_t n_blocks, uint32_t begin, uint32_t end, uint32_t layer_begin,
                         uint32_t layer_end, is_error *err)
{
    is_status status = check_blocks(layout, caches, blocks, n_blocks, begin, end, layer_begin, layer_end, err);
    uint64_t at = 0;
    for (size_t i = 0; i < n && status == IS_OK; i++) {
        if (chunks[i].position < 0 || (uint64_t)chunks[i].position != at)
            status = is_fail(err, IS_EINVAL, "paged: chunk %zu stands at position %d, the one before it ends at %llu",
                             i, chunks[i].position, (unsigned long long)at);
        else
            status = is_chunk_fits(chunks[i].chunk, layout, err);
        at += chunks[i].chunk->info.n_tokens;
    }
    if (status == IS_OK && end > at)
        status = is_fail(err, IS_EINVAL, "paged: %u tokens are wanted and the chunks have %llu", end,
                         (unsigned long long)at);
    if (status != IS_OK) return status;
    job j = {layout, caches, blocks, begin, end};
    for (size_t i = 0; i < n; i++) {
        is_rotation rotations[IS_MAX_ROPES];
        if ((uint64_t)chunks[i].position + chunks[i].chunk->info.n_tokens <= begin) continue;
        if ((uint64_t)chunks[i].position >= end) break;
        for (uint32_t r = 0; r < layout->n_ropes; r++)
            is_rotation_init(&rotations[r], &layout->ropes[r],
                             (int64_t)chunks[i].position - chunks[i].chunk->info.p_ref);
        for (uint32_t l = layer_begin; l < layer_end; l++) write_chunk(&j, l, &chunks[i], rotations);
    }
    return IS_OK;
}

/* ------------------------------------------------------------ reading */

static void read_rows(const is_paged_part *part, uint32_t heads, uint32_t dim, const uint8_t *block, uint32_t slot,
                      uint32_t n, uint8_t *rows)
{
    for (uint32_t r = 0; r < n; r++)
        for (uint32_t h = 0; h < heads; h++) {
            const uint32_t *at = part->at + (size_t)(slot + r) * dim;
            const uint8_t *from = block + h * part->head_stride * ELEMENT;
            uint8_t *to = rows + ((size_t)r * heads + h) * dim * ELEMENT;
            for (uint32_t d = 0; d < dim; d++)
                memcpy(to + (size_t)d * ELEMENT, from + (size_t)at[d] * ELEMENT, ELEMENT);
        }
}

is_status is_paged_read(const is_layout *layout, const is_paged_cache *caches, const uint32_t *blocks, size_t n_blocks,
                        uint32_t begin, uint32_t n_tokens, uint32_t layer_begin, uint32_t layer_end, void *chunk,
                        is_error *err)
{
    if (n_tokens > IS_CHUNK_MAX_TOKENS || begin > UINT32_MAX - n_tokens)
        return is_fail(err, IS_EINVAL, "paged: %u tokens from %u on", n_tokens, begin);
    is_status status =
        check_blocks(layout, caches, blocks, n_blocks, begin, begin + n_tokens, layer_begin, layer_end, err);
    if (status != IS_OK) return status;
    for (uint32_t l = layer_begin; l < layer_end; l++) {
        const is_paged_cache *cache = &caches[l];
        const is_layer *o = &layout->layers[l];
        uint32_t size = cache->order->block_tokens;
        uint8_t *k, *v;
        uint32_t first, rows;
        is_chunk_rows_mut(chunk, l, &k, &v, &first, &rows);
        for (uint32_t t = 0; t < n_tokens;) {
            uint32_t slot = (begin + t) % size;
            uint32_t n = n_tokens - t < size - slot ? n_tokens - t : size - slot;
            const uint8_t *block = cache->base + (size_t)blocks[(begin + t) / size] * cache->block_stride;
            read_rows(&cache->order->k, o->heads, o->k_dim, block, slot, n, k + t * is_layer_k_bytes(layout, l));
            if (o->v_dim != 0)
                read_rows(&cache->order->v, o->heads, o->v_dim, block, slot, n, v + t * is_layer_v_bytes(layout, l));
            t += n;
        }
    }
    return IS_OK;
}
