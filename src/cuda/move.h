/*
 * Chunks in device memory into a paged cache there, and out of it: the arguments of two kernels.
 *
 * A chunk lies on the device byte for byte as it lies in its file, so its layer records say where its rows are.  Grid:
 * one block a piece and layer.  compose: K rows are rotated by the chunk's one rotation vector, in f32 with one
 * rounding, and V is copied; gather: both are copied as they are, from the cache into a begun chunk.
 *
 * All pointers are to device memory.  These structs are shared with nvcc's C++: plain members only.
 */
#ifndef IS_CUDA_MOVE_H
#define IS_CUDA_MOVE_H

#include <stdint.h>

/* How a cache keeps one element. */
typedef enum is_cell {
    IS_CELL_F16 = 1,
    IS_CELL_BF16 = 2,
    IS_CELL_E4M3 = 3 /* 8 bits, no infinities, largest 448; times the part's scale it is the value */
} is_cell;

/* K, or V, of one layer's cache. */
typedef struct is_move_part {
    uint8_t *base;         /* of block 0 */
    uint64_t block_stride; /* bytes from one block to the next */
    const uint32_t
        *at;        /* [block_tokens * dim] element of a block where head 0 has token t's element d; NULL: in rows */
    uint64_t first; /* element of a block where token 0 of head 0 begins, in rows */
    uint64_t row_stride;  /* elements from one token to the next, in rows */
    uint64_t head_stride; /* elements from one head to the next */
    float scale;          /* of IS_CELL_E4M3 */
} is_move_part;

typedef struct is_move_layer {
    is_move_part k, v;
    uint32_t heads, k_dim, v_dim; /* v_dim 0: no V */
    uint32_t style;               /* is_rope_style */
    uint32_t offset, width;       /* the rotary slice of a head; width 0: none */
    uint32_t angles;              /* where this layer's cos [width / 2] and then sin begin in a piece's angles */
    uint32_t vectors;             /* 1: every run of 8 elements that a thread takes is whole and aligned */
} is_move_layer;

/* A layer's record in a chunk, as chunk_format.h has it. */
typedef struct is_move_record {
    uint32_t unused[6];
    uint64_t k_offset, v_offset; /* bytes, from the payload on */
    uint64_t unused_too;
} is_move_record;

#define IS_MOVE_TOKENS 32 /* of a piece, at most */

/* Some tokens of one chunk in one sequence. */
typedef struct is_move_piece {
    uint8_t *payload;              /* of the chunk */
    const is_move_record *records; /* of the chunk, [n_layers] */
    const float *angles;           /* NULL: K is copied */
    const uint32_t *blocks;        /* of the sequence, the one of its token 0 first */
    uint32_t first;                /* token of the chunk that the piece begins with */
    uint32_t n;
    uint32_t position; /* of that token in the sequence */
    uint32_t unused;
} is_move_piece;

typedef struct is_move {
    const is_move_layer *layers; /* [at least layer_end] */
    const is_move_piece *pieces;
    uint32_t n_pieces;
    uint32_t layer_begin, layer_end;
    uint32_t block_tokens;
    uint32_t chunk_cell; /* is_cell of the chunks' elements, 16 bits wide */
    uint32_t cache_cell; /* is_cell of the cache's */
} is_move;

#endif
