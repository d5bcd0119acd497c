/*
 * Reading and writing llama.cpp's sequence-state blob.  See state.h for what it looks like and why
 * nothing about it is hard-coded but the order of its parts.
 */
#include "state.h"

#include <string.h>

#define CELL_BYTES 12

typedef struct reader {
    const uint8_t *at;
    size_t left;
    bool short_read;
} reader;

static const uint8_t *take(reader *r, size_t n)
{
    if (r->short_read || n > r->left) {
        r->short_read = true;
        return NULL;
    }
    const uint8_t *p = r->at;
    r->at += n;
    r->left -= n;
    return p;
}

static uint32_t take_u32(reader *r)
{
    uint32_t v = 0;
    const uint8_t *p = take(r, sizeof v);
    if (p != NULL) memcpy(&v, p, sizeof v);
    return v;
}

static int32_t take_i32(reader *r)
{
    return (int32_t)take_u32(r);
}

static uint64_t take_u64(reader *r)
{
    uint64_t v = 0;
    const uint8_t *p = take(r, sizeof v);
    if (p != NULL) memcpy(&v, p, sizeof v);
    return v;
}

/* A run of `rows` rows of `row` bytes, with the product checked. */
static const uint8_t *take_rows(reader *r, uint64_t row, uint64_t rows)
{
    uint64_t n;
    if (__builtin_mul_overflow(row, rows, &n) || n > SIZE_MAX) {
        r->short_read = true;
        return NULL;
    }
    return take(r, (size_t)n);
}

static is_status bad(is_error *err, const char *what)
{
    return is_fail(err, IS_ECORRUPT,
                   "the engine's sequence state does not parse: %s; this build of llama.cpp is not one "
                   "that injection was written for",
                   what);
}

static is_status parse_keys(reader *r, is_state_shape *shape, is_state_view *view, const is_state_cache *cache,
                            uint32_t n_cells, is_error *err)
{
    for (uint32_t i = 0; i < cache->n_layers; i++) {
        uint32_t layer = cache->layer_begin + i;
        shape->layers[layer].k_type = take_i32(r);
        shape->layers[layer].k_row = take_u64(r);
        if (r->short_read || shape->layers[layer].k_row == 0) return bad(err, "a K row has no size");
        view->k[layer] = take_rows(r, shape->layers[layer].k_row, n_cells);
    }
    return r->short_read ? bad(err, "it ends inside K") : IS_OK;
}

static is_status parse_values(reader *r, is_state_shape *shape, is_state_view *view, const is_state_cache *cache,
                              uint32_t n_cells, is_error *err)
{
    for (uint32_t i = 0; i < cache->n_layers; i++) {
        is_state_layer *layer = &shape->layers[cache->layer_begin + i];
        layer->v_type = take_i32(r);
        if (shape->v_trans) {
            layer->v_el = take_u32(r);
            layer->v_width = take_u32(r);
            layer->v_row = (uint64_t)layer->v_el * layer->v_width;
        } else {
            layer->v_row = take_u64(r);
        }
        if (r->short_read || layer->v_row == 0) return bad(err, "a V row has no size");
        view->v[cache->layer_begin + i] = take_rows(r, layer->v_row, n_cells);
    }
    return r->short_read ? bad(err, "it ends inside V") : IS_OK;
}

static is_status parse_cache(reader *r, uint32_t index, is_state_shape *shape, is_state_view *view, is_error *err)
{
    is_state_cache *cache = &shape->caches[index];
    cache->n_stream = take_u32(r);
    if (r->short_read || cache->n_stream == 0 || cache->n_stream > 4096) return bad(err, "its number of streams");
    uint32_t full = UINT32_MAX;
    for (uint32_t s = 0; s < cache->n_stream; s++) {
        uint32_t n = take_u32(r);
        if (r->short_read) return bad(err, "it ends inside its streams");
        if (n == 0) continue;
        if (full != UINT32_MAX) return bad(err, "more than one stream holds cells");
        full = s;
        view->n_cells[index] = n;
        view->cells[index] = take_rows(r, CELL_BYTES, n);
        uint32_t v_trans = take_u32(r);
        cache->n_layers = take_u32(r);
        cache->layer_begin = shape->n_layers;
        if (r->short_read || v_trans > 1) return bad(err, "its cells");
        if (index > 0 && shape->v_trans != (v_trans == 1)) return bad(err, "its caches keep V in different orders");
        if (cache->n_layers == 0 || cache->n_layers > IS_MAX_LAYERS - shape->n_layers)
            return bad(err, "its number of layers");
        shape->v_trans = v_trans == 1;
        shape->n_layers += cache->n_layers;
        is_status status = parse_keys(r, shape, view, cache, n, err);
        if (status != IS_OK) return status;
        /* A latent cache ends behind K; only the counts of streams without cells may follow. */
        cache->has_v = r->left > 4 * (size_t)(cache->n_stream - 1 - s);
        if (cache->has_v) status = parse_values(r, shape, view, cache, n, err);
        if (status != IS_OK) return status;
    }
    return full == UINT32_MAX ? bad(err, "no stream holds cells") : IS_OK;
}

static is_status check_cells(const is_state_view *view, uint32_t index, is_error *err)
{
    int32_t sequence = 0;
    memcpy(&sequence, view->cells[index] + 8, sizeof sequence);
    for (uint32_t i = 0; i < view->n_cells[index]; i++) {
        const uint8_t *cell = view->cells[index] + (size_t)i * CELL_BYTES;
        int32_t position;
        uint32_t n_seq;
        int32_t seq;
        memcpy(&position, cell, sizeof position);
        memcpy(&n_seq, cell + 4, sizeof n_seq);
        memcpy(&seq, cell + 8, sizeof seq);
        if (position < 0 || n_seq != 1 || seq != sequence)
            return bad(err, "a cell's record (models with extended cells, such as M-RoPE, are not supported)");
    }
    return IS_OK;
}

is_status is_state_parse(const uint8_t *bytes, size_t size, is_state_shape *shape, is_state_view *view, is_error *err)
{
    reader r = {bytes, size, false};
    memset(shape, 0, sizeof *shape);
    memset(view, 0, sizeof *view);
    shape->magic = take_u32(&r);
    (void)take_i32(&r);
    if (r.short_read) return bad(err, "it is shorter than its head");
    while (r.left > 0) {
        if (shape->n_caches == IS_STATE_MAX_CACHES) return bad(err, "bytes are left behind its last cache");
        is_status status = parse_cache(&r, shape->n_caches, shape, view, err);
        if (status == IS_OK) status = check_cells(view, shape->n_caches, err);
        if (status == IS_OK && !shape->caches[shape->n_caches].has_v && r.left > 0)
            status = bad(err, "bytes are left behind a latent cache");
        if (status != IS_OK) return status;
        shape->n_caches++;
    }
    return shape->n_caches == 0 ? bad(err, "it has no cache") : IS_OK;
}

int32_t is_state_position(const is_state_view *view, uint32_t cache, uint32_t cell)
{
    int32_t position;
    memcpy(&position, view->cells[cache] + (size_t)cell * CELL_BYTES, sizeof position);
    return position;
}

uint32_t is_state_cache_of(const is_state_shape *shape, uint32_t layer)
{
    for (uint32_t c = shape->n_caches; c-- > 1;)
        if (layer >= shape->caches[c].layer_begin) return c;
    return 0;
}

size_t is_state_bytes(const is_state_shape *shape, const uint32_t *n_cells)
{
    size_t total = 8;
    for (uint32_t c = 0; c < shape->n_caches; c++) {
        const is_state_cache *cache = &shape->caches[c];
        size_t cell = CELL_BYTES;
        size_t fixed = 4 + (size_t)cache->n_stream * 4 + 8;
        for (uint32_t i = 0; i < cache->n_layers; i++) {
            const is_state_layer *layer = &shape->layers[cache->layer_begin + i];
            fixed += cache->has_v ? 24u : 12u;
            if (!is_add_size(cell, (size_t)layer->k_row, &cell)) return 0;
            if (cache->has_v && !is_add_size(cell, (size_t)layer->v_row, &cell)) return 0;
        }
        size_t rows;
        if (!is_mul_size(cell, n_cells[c], &rows) || !is_add_size(rows, fixed, &rows)) return 0;
        if (!is_add_size(total, rows, &total)) return 0;
    }
    return total;
}

static uint8_t *put(uint8_t *at, const void *value, size_t n)
{
    memcpy(at, value, n);
    return at + n;
}

static uint8_t *put_cells(uint8_t *at, uint32_t n_tokens, uint32_t n_cells)
{
    const uint32_t n_seq = 1;
    const int32_t sequence = 0; /* the engine takes the sequence from its own argument */
    for (uint32_t i = 0; i < n_cells; i++) {
        int32_t position = (int32_t)(n_tokens - n_cells + i);
        at = put(at, &position, sizeof position);
        at = put(at, &n_seq, sizeof n_seq);
        at = put(at, &sequence, sizeof sequence);
    }
    return at;
}

static uint8_t *begin_cache(const is_state_shape *shape, const is_state_cache *cache, uint8_t *at, uint32_t n_tokens,
                            uint32_t n, is_target *targets)
{
    at = put(at, &cache->n_stream, 4);
    at = put(at, &n, 4);
    at = put_cells(at, n_tokens, n);
    uint32_t v_trans = shape->v_trans ? 1 : 0;
    at = put(at, &v_trans, 4);
    at = put(at, &cache->n_layers, 4);
    for (uint32_t i = 0; i < cache->n_layers; i++) {
        const is_state_layer *layer = &shape->layers[cache->layer_begin + i];
        is_target *target = &targets[cache->layer_begin + i];
        at = put(at, &layer->k_type, 4);
        at = put(at, &layer->k_row, 8);
        *target = (is_target){.k = at, .k_stride = (size_t)layer->k_row, .first = n_tokens - n, .n = n};
        at += (size_t)layer->k_row * n;
    }
    for (uint32_t i = 0; cache->has_v && i < cache->n_layers; i++) {
        const is_state_layer *layer = &shape->layers[cache->layer_begin + i];
        is_target *target = &targets[cache->layer_begin + i];
        at = put(at, &layer->v_type, 4);
        if (shape->v_trans) {
            at = put(at, &layer->v_el, 4);
            at = put(at, &layer->v_width, 4);
            target->v_stride = (size_t)layer->v_el * n;
        } else {
            at = put(at, &layer->v_row, 8);
            target->v_stride = (size_t)layer->v_row;
        }
        target->v = at;
        at += (size_t)layer->v_row * n;
    }
    /* The empty streams that follow: the engine puts the one full stream where the sequence lives. */
    const uint32_t none = 0;
    for (uint32_t s = 1; s < cache->n_stream; s++) at = put(at, &none, 4);
    return at;
}

size_t is_state_begin(const is_state_shape *shape, uint8_t *bytes, uint32_t n_tokens, const uint32_t *n_cells,
                      is_target *targets)
{
    const int32_t sequence = 0;
    uint8_t *at = put(bytes, &shape->magic, 4);
    at = put(at, &sequence, 4);
    for (uint32_t c = 0; c < shape->n_caches; c++)
        at = begin_cache(shape, &shape->caches[c], at, n_tokens, n_cells[c], targets);
    return (size_t)(at - bytes);
}
