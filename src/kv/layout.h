/*
 * How one model keeps KV.
 *
 * A layout lists the layers in the order in which the engine's cache holds them.  Each layer has its
 * KV heads, the width of K and V in elements a head, its rotary slice and, where it has one, its
 * sliding window.  Latent attention (MLA) is a layout too: one head, v_dim 0, the rotary slice at the
 * end of the latent row.
 *
 * A row is what one token leaves in one layer: K is [head][k_dim], V is [head][v_dim].
 */
#ifndef IS_KV_LAYOUT_H
#define IS_KV_LAYOUT_H

#include "../common/common.h"

typedef enum is_dtype { IS_F16 = 1, IS_BF16 = 2, IS_F32 = 3 } is_dtype;

/* Bytes of one element; 0 for a value that is no is_dtype. */
size_t is_dtype_size(is_dtype dtype);
const char *is_dtype_name(is_dtype dtype);

typedef enum is_rope_style {
    IS_ROPE_PAIR = 1, /* element 2i is rotated with 2i+1 (llama, GPT-J)          */
    IS_ROPE_HALF = 2  /* element i is rotated with i + width/2 (NeoX, Qwen, Gemma) */
} is_rope_style;

#define IS_ROPE_MAX_PAIRS 256

/* One rotation: token at position p turns pair i of the slice by p * inv_freq[i] radians. */
typedef struct is_rope {
    is_rope_style style;
    uint32_t offset;                    /* first rotated element of a head                        */
    uint32_t width;                     /* rotated elements, even, 2 .. 2 * IS_ROPE_MAX_PAIRS     */
    float attention_factor;             /* the engine scales rotated K by it; unchanged by a move */
    double inv_freq[IS_ROPE_MAX_PAIRS]; /* [width / 2] */
} is_rope;

#define IS_LAYER_NO_ROPE UINT32_MAX

typedef struct is_layer {
    uint32_t heads;  /* KV heads, at least 1                              */
    uint32_t k_dim;  /* elements of K a head, at least 1                  */
    uint32_t v_dim;  /* elements of V a head; 0: the layer has no V       */
    uint32_t window; /* tokens that a query sees, itself included; 0: all */
    uint32_t rope;   /* index into ropes, or IS_LAYER_NO_ROPE             */
} is_layer;

#define IS_MAX_LAYERS 512
#define IS_MAX_ROPES  8
#define IS_MAX_ROW    (1u << 24) /* heads * k_dim and heads * v_dim: products with tokens stay inside 64 bits */

typedef struct is_layout {
    is_dtype dtype;    /* of K and V                                                           */
    bool v_transposed; /* V lies [head * v_dim][token] in cache and chunk, else [token][head * v_dim] */
    uint32_t n_layers; /* 1 .. IS_MAX_LAYERS */
    uint32_t n_ropes;  /* 0 .. IS_MAX_ROPES  */
    is_layer layers[IS_MAX_LAYERS];
    is_rope ropes[IS_MAX_ROPES];
} is_layout;

/* Checks every bound above; IS_EINVAL says which field of which layer is out of it. */
is_status is_layout_check(const is_layout *layout, is_error *err);

static inline size_t is_layer_k_bytes(const is_layout *o, uint32_t layer) /* one K row */
{
    return (size_t)o->layers[layer].heads * o->layers[layer].k_dim * is_dtype_size(o->dtype);
}
static inline size_t is_layer_v_bytes(const is_layout *o, uint32_t layer) /* one V row */
{
    return (size_t)o->layers[layer].heads * o->layers[layer].v_dim * is_dtype_size(o->dtype);
}

/* Bytes that one token's KV takes over all layers, windows not counted. */
size_t is_layout_token_bytes(const is_layout *layout);

/* First of n tokens that a layer's window still shows to whatever follows them: 0 without a window. */
static inline uint32_t is_layer_first(const is_layer *layer, uint32_t n)
{
    return layer->window != 0 && n > layer->window ? n - layer->window : 0;
}

/* A 128-bit hash (XXH3) over every field, for the fingerprint. */
void is_layout_hash(const is_layout *layout, uint8_t out[16]);

#endif
