/*
 * The sequence-state blob: llama.cpp's public way into its KV cache.
 *
 * llama_state_seq_get_data writes, all little-endian:
 *   u32 magic, i32 sequence
 *   for each cache (one; two when the model has sliding-window layers: full layers, then window layers):
 *     u32 n_stream; for each stream u32 cell_count; for the one stream that is not empty:
 *       for each cell: i32 position, u32 n_seq (1), i32 sequence
 *       u32 v_trans, u32 n_layer
 *       for each layer: i32 type, u64 row bytes, the K rows
 *       for each layer: i32 type, u64 row bytes, the V rows
 *                  or, v_trans 1: i32 type, u32 element bytes, u32 width, then width runs of cells
 * Nothing of this is assumed: the magic and the shape are read from a blob that the engine wrote at
 * start, and a blob that does not parse to its last byte turns injection off.
 *
 * These are pure functions on memory.
 */
#ifndef IS_LLAMA_STATE_H
#define IS_LLAMA_STATE_H

#include "../../kv/compose.h"

#define IS_STATE_MAX_CACHES 2

typedef struct is_state_layer {
    int32_t k_type;
    uint64_t k_row; /* bytes of one K row */
    int32_t v_type;
    uint64_t v_row;   /* bytes of one V row; 0 without V */
    uint32_t v_width; /* elements of one V row, v_trans only */
    uint32_t v_el;    /* bytes of one V element, v_trans only */
} is_state_layer;

typedef struct is_state_cache {
    uint32_t n_stream;
    uint32_t n_layers;
    uint32_t layer_begin; /* index of its first layer in is_state_shape.layers */
    bool has_v;
} is_state_cache;

/* What stays the same from blob to blob of one context. */
typedef struct is_state_shape {
    uint32_t magic;
    bool v_trans;
    uint32_t n_caches;
    uint32_t n_layers;
    is_state_cache caches[IS_STATE_MAX_CACHES];
    is_state_layer layers[IS_MAX_LAYERS];
} is_state_shape;

/* Where one blob keeps the rows: per cache the cells, per layer K and V. */
typedef struct is_state_view {
    uint32_t n_cells[IS_STATE_MAX_CACHES];
    const uint8_t *cells[IS_STATE_MAX_CACHES]; /* [n_cells] records of 12 bytes */
    const uint8_t *k[IS_MAX_LAYERS];
    const uint8_t *v[IS_MAX_LAYERS]; /* NULL without V */
} is_state_view;

/* Reads a blob of one sequence.  IS_ECORRUPT says what does not parse. */
is_status is_state_parse(const uint8_t *bytes, size_t size, is_state_shape *shape, is_state_view *view, is_error *err);

/* Position of a cell. */
int32_t is_state_position(const is_state_view *view, uint32_t cache, uint32_t cell);

/* Bytes of a blob with these numbers of cells; 0 when it does not fit in size_t. */
size_t is_state_bytes(const is_state_shape *shape, const uint32_t *n_cells);

/*
 * Writes everything but the rows for a sequence whose cache c holds the positions
 * n_tokens - n_cells[c] .. n_tokens - 1 in order, and says where each layer's rows go.
 * targets: [shape->n_layers].  Returns the bytes used.
 */
size_t is_state_begin(const is_state_shape *shape, uint8_t *bytes, uint32_t n_tokens, const uint32_t *n_cells,
                      is_target *targets);

/* The cache that a layer lies in. */
uint32_t is_state_cache_of(const is_state_shape *shape, uint32_t layer);

#endif
