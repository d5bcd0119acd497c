/*
 * Fuzzes the reader of sequence-state blobs: whatever parses is read to its last byte, which the sanitizers watch,
 * and a blob of the same shape is written and must parse again.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/llama/state.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint8_t sink;

static void read_all(const uint8_t *bytes, uint64_t n)
{
    uint8_t sum = 0;
    for (uint64_t i = 0; i < n; i++) sum ^= bytes[i];
    sink = sum;
}

static void walk(const is_state_shape *shape, const is_state_view *view)
{
    uint32_t layers = 0;
    for (uint32_t c = 0; c < shape->n_caches; c++) {
        const is_state_cache *cache = &shape->caches[c];
        if (view->n_cells[c] == 0 || cache->layer_begin != layers) abort();
        layers += cache->n_layers;
        for (uint32_t i = 0; i < view->n_cells[c]; i++)
            if (is_state_position(view, c, i) < 0) abort();
        for (uint32_t l = cache->layer_begin; l < layers; l++) {
            if (is_state_cache_of(shape, l) != c || cache->has_v != (view->v[l] != NULL)) abort();
            read_all(view->k[l], shape->layers[l].k_row * view->n_cells[c]);
            if (view->v[l] != NULL) read_all(view->v[l], shape->layers[l].v_row * view->n_cells[c]);
        }
    }
    if (layers != shape->n_layers || layers > IS_MAX_LAYERS) abort();
}

/* The shape again, with two cells in each cache. */
static void rewrite(const is_state_shape *shape)
{
    static is_target targets[IS_MAX_LAYERS];
    static is_state_shape seen;
    static is_state_view view;
    const uint32_t cells[IS_STATE_MAX_CACHES] = {2, 2};
    size_t size = is_state_bytes(shape, cells);
    if (size == 0) abort(); /* it came out of memory, so twice a row fits into it */
    uint8_t *bytes = calloc(1, size);
    if (bytes == NULL) return;
    if (is_state_begin(shape, bytes, 2, cells, targets) != size) abort();
    if (is_state_parse(bytes, size, &seen, &view, NULL) != IS_OK) abort();
    if (seen.n_layers != shape->n_layers || seen.n_caches != shape->n_caches) abort();
    for (uint32_t l = 0; l < shape->n_layers; l++)
        if (seen.layers[l].k_row != shape->layers[l].k_row || seen.layers[l].v_row != shape->layers[l].v_row) abort();
    walk(&seen, &view);
    free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static is_state_shape shape;
    static is_state_view view;
    is_error err;
    uint8_t *copy = malloc(size == 0 ? 1 : size); /* of exactly this size, and on no alignment that the caller gave */
    if (copy == NULL) return 0;
    if (size != 0) memcpy(copy, data, size);
    if (is_state_parse(copy, size, &shape, &view, &err) == IS_OK) {
        walk(&shape, &view);
        rewrite(&shape);
    }
    free(copy);
    return 0;
}
