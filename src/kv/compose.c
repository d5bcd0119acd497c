/*
 * Compose: which rows go where.
 *
 * K is done chunk by chunk, so that a chunk's angles are computed once and serve all of its layers;
 * while one piece is rotated, the next one is prefetched.  V in rows is a plain copy.
 *
 * A transposed V is many short runs, 80 bytes for a fact of 40 tokens, at any alignment.  Written one
 * by one into the cache they would touch the line at each end twice, and a page each.  So a few
 * dimensions of many chunks are put together in a small buffer, which stays in the first-level cache,
 * and go out as long runs.
 *
 * A run that is larger than the caches is written past them: rows are rotated in a small buffer too and go out as
 * whole lines that need not be read first.  Measured on Zen 5, where memory is the limit and one core reaches it, with
 * 50 chunks of 48 tokens (55 MB): 2.4 ms on two cores, 3.9 ms on one,
 * 5.6 ms through the caches; a memcpy of the same bytes takes 2.8 ms.
 *
 * Everything is checked before the first byte is written.
 */
#include "compose_isa.h"

#include <string.h>

/* ---------------------------------------------------------------- checks */

static is_status check_run(const is_placed *chunks, size_t n, uint64_t *end, is_error *err)
{
    *end = 0;
    for (size_t i = 0; i < n; i++) {
        if (chunks[i].position < 0 || (uint64_t)chunks[i].position != *end)
            return is_fail(err, IS_EINVAL, "compose: chunk %zu stands at position %d, the one before it ends at %llu",
                           i, chunks[i].position, (unsigned long long)*end);
        *end += chunks[i].chunk->info.n_tokens;
    }
    return IS_OK;
}

static is_status check_memory(const is_layout *layout, uint32_t layer, const is_target *target, is_error *err)
{
    size_t k_row = is_layer_k_bytes(layout, layer);
    size_t v_row = is_layer_v_bytes(layout, layer);
    if (target->k == NULL || target->k_stride < k_row)
        return is_fail(err, IS_EINVAL, "compose: layer %u: no room for K, rows of %zu bytes with a stride of %zu",
                       layer, k_row, target->k_stride);
    size_t v_run = layout->v_transposed ? target->n * is_dtype_size(layout->dtype) : v_row;
    if (v_row != 0 && (target->v == NULL || target->v_stride < v_run))
        return is_fail(err, IS_EINVAL, "compose: layer %u: no room for V, runs of %zu bytes with a stride of %zu",
                       layer, v_run, target->v_stride);
    return IS_OK;
}

/* Rows of a chunk that a target wants: n of them, from the chunk's kept row `from` to the target's row `to`. */
typedef struct cut {
    size_t from, to, n;
} cut;

static cut cut_rows(const is_placed *placed, const is_chunk_rows *rows, const is_target *target)
{
    uint64_t begin = (uint64_t)placed->position + rows->first;
    uint64_t end = begin + rows->n;
    uint64_t low = begin > target->first ? begin : target->first;
    uint64_t wanted_end = (uint64_t)target->first + target->n;
    uint64_t high = end < wanted_end ? end : wanted_end;
    if (low >= high) return (cut){0, 0, 0};
    return (cut){(size_t)(low - begin), (size_t)(low - target->first), (size_t)(high - low)};
}

static is_status check_layer(const is_layout *layout, const is_placed *chunks, size_t n, uint64_t end, uint32_t layer,
                             const is_target *target, is_error *err)
{
    if (target->n == 0) return IS_OK;
    is_status status = check_memory(layout, layer, target, err);
    if (status != IS_OK) return status;
    uint64_t wanted_end = (uint64_t)target->first + target->n;
    if (wanted_end > end)
        return is_fail(err, IS_EINVAL, "compose: layer %u: rows up to %llu are wanted, the chunks end at %llu", layer,
                       (unsigned long long)wanted_end, (unsigned long long)end);
    for (size_t i = 0; i < n; i++) {
        uint64_t begin = (uint64_t)chunks[i].position;
        uint64_t kept = begin + is_chunk_layer(chunks[i].chunk, layer).first;
        uint64_t missing = begin > target->first ? begin : target->first;
        if (missing < kept && missing < wanted_end)
            return is_fail(err, IS_EINVAL, "compose: layer %u: row %llu is wanted, chunk %zu keeps rows from %llu on",
                           layer, (unsigned long long)missing, i, (unsigned long long)kept);
    }
    return IS_OK;
}

/* --------------------------------------------------------------------- K */

/* What is_compose was called with. */
typedef struct run {
    is_isa isa;
    const is_layout *layout;
    const is_placed *chunks;
    size_t n;
    const is_target *targets;
    uint32_t layer_begin, layer_end;
    bool stream; /* past the caches */
} run;

/* From this size on. */
#define STREAM_BYTES ((size_t)8 << 20)

static void copy_out(const run *r, uint8_t *dst, size_t dst_stride, const uint8_t *src, size_t src_stride, size_t bytes,
                     size_t n)
{
    if (r->stream)
        is_stream_runs(dst, dst_stride, src, src_stride, bytes, n);
    else
        is_copy_runs(dst, dst_stride, src, src_stride, bytes, n);
}

/* The angles of one chunk, each rope's computed when the first layer asks for it. */
typedef struct rotations {
    bool ready[IS_MAX_ROPES];
    is_rotation of[IS_MAX_ROPES];
} rotations;

static const is_rotation *rotation_of(rotations *all, const is_layout *layout, uint32_t rope, const is_placed *placed)
{
    if (!all->ready[rope]) {
        is_rotation_init(&all->of[rope], &layout->ropes[rope], (int64_t)placed->position - placed->chunk->info.p_ref);
        all->ready[rope] = true;
    }
    return &all->of[rope];
}

/* One chunk's K rows in one layer, and where they go. */
typedef struct piece {
    const uint8_t *src;
    uint8_t *dst;
    size_t row, dst_stride, n;
} piece;

static piece k_piece(const run *r, size_t chunk, uint32_t layer)
{
    const is_target *target = &r->targets[layer];
    is_chunk_rows rows = is_chunk_layer(r->chunks[chunk].chunk, layer);
    cut c = cut_rows(&r->chunks[chunk], &rows, target);
    if (c.n == 0) return (piece){0};
    return (piece){rows.k + c.from * rows.k_row, target->k + c.to * target->k_stride, rows.k_row, target->k_stride,
                   c.n};
}

/*
 * A long piece is done in blocks, so that what is prefetched is still there when its turn comes.  Measured on Zen 5
 * with 50 chunks of 40 tokens (pieces of 15 KB): whole pieces 2.6 ms, blocks of 8 KB 2.8, of 4 KB 2.9, of 2 KB 3.4.
 */
#define K_BLOCK 16384

static size_t block_rows(const piece *p)
{
    size_t rows = p->row < K_BLOCK ? K_BLOCK / p->row : 1;
    return rows < p->n ? rows : p->n;
}

static void plan_prefetch(is_rotate_job *job, const piece *next, bool stream)
{
    if (next->n == 0) return;
    job->next_src = next->src;
    job->next_dst = !stream && next->dst_stride == next->row ? next->dst : NULL;
    job->next_bytes = block_rows(next) * next->row;
    job->next_share = is_align_up((job->next_bytes + job->n - 1) / job->n, 64);
}

static void rotate_piece(const run *r, const is_rotation *rotation, uint32_t layer, piece now, const piece *next)
{
    const is_layer *o = &r->layout->layers[layer];
    _Alignas(64) uint8_t rotated[K_BLOCK];
    bool stream = r->stream && now.row <= K_BLOCK;
    while (now.n != 0) {
        is_rotate_job job = {.heads = o->heads,
                             .k_dim = o->k_dim,
                             .src = now.src,
                             .dst = stream ? rotated : now.dst,
                             .src_stride = now.row,
                             .dst_stride = stream ? now.row : now.dst_stride,
                             .n = block_rows(&now)};
        uint8_t *dst = now.dst;
        now.src += job.n * now.row;
        now.dst += job.n * now.dst_stride;
        now.n -= job.n;
        plan_prefetch(&job, now.n != 0 ? &now : next, stream);
        is_rotate_run(r->isa, r->layout->dtype, &r->layout->ropes[o->rope], rotation, job);
        if (stream) is_stream_runs(dst, now.dst_stride, rotated, now.row, now.row, job.n);
    }
}

static void write_k(const run *r, size_t chunk)
{
    rotations all;
    memset(all.ready, 0, sizeof all.ready);
    piece now = k_piece(r, chunk, r->layer_begin);
    for (uint32_t i = r->layer_begin; i < r->layer_end; i++) {
        piece next = {0};
        if (i + 1 < r->layer_end)
            next = k_piece(r, chunk, i + 1);
        else if (chunk + 1 < r->n)
            next = k_piece(r, chunk + 1, r->layer_begin);
        uint32_t rope = r->layout->layers[i].rope;
        if (rope == IS_LAYER_NO_ROPE && now.n != 0)
            copy_out(r, now.dst, now.dst_stride, now.src, now.row, now.row, now.n);
        else if (now.n != 0)
            rotate_piece(r, rotation_of(&all, r->layout, rope, &r->chunks[chunk]), i, now, &next);
        now = next;
    }
}

/* --------------------------------------------------------------------- V */

static void write_v_rows(const run *r, uint32_t layer)
{
    const is_target *target = &r->targets[layer];
    for (size_t i = 0; i < r->n; i++) {
        is_chunk_rows rows = is_chunk_layer(r->chunks[i].chunk, layer);
        cut c = cut_rows(&r->chunks[i], &rows, target);
        if (c.n != 0)
            copy_out(r, target->v + c.to * target->v_stride, target->v_stride, rows.v + c.from * rows.v_row, rows.v_row,
                     rows.v_row, c.n);
    }
}

/* Measured as above: 4, 8 and 12 dimensions take 2.9, 2.7 and 2.8 ms.  V alone: 1.1, run by run into the cache 3.1. */
#define V_DIMS  8    /* dimensions put together at a time                       */
#define V_BYTES 4096 /* of one dimension's run; with V_DIMS, what level 1 holds */
#define V_PARTS 64   /* chunks in one run                                       */

/* One chunk's part in the runs that are put together. */
typedef struct part {
    const uint8_t *src; /* of dimension 0 */
    size_t stride;      /* of the chunk's dimensions, bytes */
    size_t at, bytes;   /* in the run */
} part;

typedef struct parts {
    part of[V_PARTS];
    size_t n;
    size_t bytes; /* of a whole run */
} parts;

/*
 * Collects the parts of the target's rows from `row` on, until a run is full.  *chunk is the first chunk that may have
 * one, and is moved to the last that had.
 */
static void collect(parts *out, const run *r, uint32_t layer, uint32_t row, size_t *chunk)
{
    size_t element = is_dtype_size(r->layout->dtype);
    is_target want = r->targets[layer];
    uint32_t room = (uint32_t)(V_BYTES / element);
    want.first += row;
    want.n = want.n - row < room ? want.n - row : room;
    out->n = 0;
    out->bytes = 0;
    for (size_t i = *chunk; i < r->n && out->n < V_PARTS && out->bytes < want.n * element; i++) {
        is_chunk_rows rows = is_chunk_layer(r->chunks[i].chunk, layer);
        cut c = cut_rows(&r->chunks[i], &rows, &want);
        if (c.n == 0) continue;
        *chunk = i;
        out->of[out->n++] = (part){rows.v + c.from * element, rows.n * element, c.to * element, c.n * element};
        out->bytes += c.n * element;
    }
}

/*
 * A part that is the chunk's whole run lies in one piece with that of the next dimensions, which come next.
 * Always inlined: gcc takes a function that only prefetches for one without effect, and drops calls of it.
 */
static inline __attribute__((always_inline)) void prefetch_dims(const part *p, size_t dim, size_t n_dims)
{
    if (p->bytes != p->stride) return;
    const uint8_t *from = p->src + dim * p->stride;
    for (size_t at = 0; at < n_dims * p->stride; at += 64) __builtin_prefetch(from + at, 0);
}

static void write_v_runs(const run *r, const parts *all, uint8_t *dst, size_t dst_stride, size_t dims)
{
    _Alignas(64) uint8_t together[V_DIMS * V_BYTES];
    for (size_t dim = 0; dim < dims; dim += V_DIMS) {
        size_t n = dims - dim < V_DIMS ? dims - dim : V_DIMS;
        size_t n_next = dims - dim - n < V_DIMS ? dims - dim - n : V_DIMS;
        for (size_t i = 0; i < all->n; i++) {
            const part *p = &all->of[i];
            prefetch_dims(p, dim + n, n_next);
            is_copy_runs(together + p->at, all->bytes, p->src + dim * p->stride, p->stride, p->bytes, n);
        }
        copy_out(r, dst + dim * dst_stride, dst_stride, together, all->bytes, all->bytes, n);
    }
}

static void write_v_transposed(const run *r, uint32_t layer)
{
    const is_target *target = &r->targets[layer];
    size_t element = is_dtype_size(r->layout->dtype);
    size_t dims = (size_t)r->layout->layers[layer].heads * r->layout->layers[layer].v_dim;
    size_t chunk = 0;
    parts all;
    for (uint32_t row = 0; row < target->n; row += (uint32_t)(all.bytes / element)) {
        collect(&all, r, layer, row, &chunk);
        write_v_runs(r, &all, target->v + row * element, target->v_stride, dims);
    }
}

/* ------------------------------------------------------------------- all */

is_status is_compose_isa(is_isa isa, const is_layout *layout, const is_placed *chunks, size_t n,
                         const is_target *targets, uint32_t layer_begin, uint32_t layer_end, is_error *err)
{
    if (layer_begin > layer_end || layer_end > layout->n_layers)
        return is_fail(err, IS_EINVAL, "compose: layers %u to %u, the model has %u", layer_begin, layer_end,
                       layout->n_layers);
    uint64_t end;
    is_status status = check_run(chunks, n, &end, err);
    for (uint32_t i = layer_begin; i < layer_end && status == IS_OK; i++)
        status = check_layer(layout, chunks, n, end, i, &targets[i], err);
    if (status != IS_OK) return status;
    run r = {isa, layout, chunks, n, targets, layer_begin, layer_end, false};
    size_t bytes = 0;
    for (uint32_t i = layer_begin; i < layer_end; i++)
        bytes += targets[i].n * (is_layer_k_bytes(layout, i) + is_layer_v_bytes(layout, i));
    r.stream = bytes >= STREAM_BYTES;
    for (size_t i = 0; i < n; i++) write_k(&r, i);
    for (uint32_t i = layer_begin; i < layer_end; i++) {
        if (layout->layers[i].v_dim == 0 || targets[i].n == 0) continue;
        if (layout->v_transposed)
            write_v_transposed(&r, i);
        else
            write_v_rows(&r, i);
    }
    if (r.stream) is_stream_end();
    return IS_OK;
}

is_status is_compose(const is_layout *layout, const is_placed *chunks, size_t n, const is_target *targets,
                     uint32_t layer_begin, uint32_t layer_end, is_error *err)
{
    return is_compose_isa(is_isa_best(), layout, chunks, n, targets, layer_begin, layer_end, err);
}
