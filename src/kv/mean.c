#include "mean.h"

#include <stdlib.h>
#include <string.h>

#include "compose.h"

struct is_mean {
    const is_layout *layout;
    is_chunk_info info; /* of the first chunk */
    int32_t *tokens;
    uint32_t n;  /* chunks so far */
    float *sums; /* of each layer its rows of K, then of V, as they lie in a chunk */
    float *row;  /* one layer's K of one chunk */
};

/* Elements of a layer that a chunk of n tokens keeps. */
static size_t k_elements(const is_layer *o, uint32_t n)
{
    return (size_t)(n - is_layer_first(o, n)) * o->heads * o->k_dim;
}

static size_t v_elements(const is_layer *o, uint32_t n)
{
    return (size_t)(n - is_layer_first(o, n)) * o->heads * o->v_dim;
}

void is_mean_free(is_mean *mean)
{
    if (mean == NULL) return;
    free(mean->tokens);
    free(mean->sums);
    free(mean->row);
    free(mean);
}

static is_status begin(const is_layout *layout, const is_chunk *chunk, is_mean **out, is_error *err)
{
    size_t elements = 0, most = 1;
    const uint32_t n = chunk->info.n_tokens;
    for (uint32_t l = 0; l < layout->n_layers; l++) {
        size_t k = k_elements(&layout->layers[l], n);
        elements += k + v_elements(&layout->layers[l], n);
        if (k > most) most = k;
    }
    is_mean *mean = calloc(1, sizeof *mean);
    if (mean != NULL) {
        *mean = (is_mean){.layout = layout,
                          .info = chunk->info,
                          .tokens = malloc(n * sizeof *mean->tokens),
                          .sums = calloc(elements + 1, sizeof *mean->sums),
                          .row = malloc(most * sizeof *mean->row)};
        if (mean->tokens != NULL && mean->sums != NULL && mean->row != NULL) {
            memcpy(mean->tokens, chunk->tokens, n * sizeof *mean->tokens);
            *out = mean;
            return IS_OK;
        }
    }
    is_mean_free(mean);
    return is_fail(err, IS_ENOMEM, "no memory for the mean of chunks of %u tokens", n);
}

/* A chunk has no infinity and no NaN, so this needs no cases, and compilers make vectors of it. */
static float from_f16(uint16_t h)
{
    uint32_t bits = (uint32_t)(h & 0x7fffu) << 13, sign = (uint32_t)(h & 0x8000u) << 16;
    float magnitude;
    memcpy(&magnitude, &bits, sizeof magnitude);
    magnitude *= 0x1p112f; /* the exponent's bias is 127 instead of 15; subnormals come out right too */
    memcpy(&bits, &magnitude, sizeof bits);
    bits |= sign;
    memcpy(&magnitude, &bits, sizeof magnitude);
    return magnitude;
}

static float from_bf16(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static void to_f32(is_dtype dtype, const uint8_t *from, size_t n, float *out)
{
    const uint16_t *h = (const void *)from;
    if (dtype == IS_F16)
        for (size_t i = 0; i < n; i++) out[i] = from_f16(h[i]);
    else if (dtype == IS_BF16)
        for (size_t i = 0; i < n; i++) out[i] = from_bf16(h[i]);
    else
        memcpy(out, from, n * sizeof *out);
}

static void add(is_dtype dtype, const uint8_t *from, size_t n, float *sums)
{
    const uint16_t *h = (const void *)from;
    const float *f = (const void *)from;
    if (dtype == IS_F16)
        for (size_t i = 0; i < n; i++) sums[i] += from_f16(h[i]);
    else if (dtype == IS_BF16)
        for (size_t i = 0; i < n; i++) sums[i] += from_bf16(h[i]);
    else
        for (size_t i = 0; i < n; i++) sums[i] += f[i];
}

static void from_f32(is_dtype dtype, const float *from, size_t n, float scale, uint8_t *out)
{
    uint16_t *h = (void *)out;
    float *f = (void *)out;
    for (size_t i = 0; i < n; i++) {
        if (dtype == IS_F16)
            h[i] = is_f32_to_f16(from[i] * scale);
        else if (dtype == IS_BF16)
            h[i] = is_f32_to_bf16(from[i] * scale);
        else
            f[i] = from[i] * scale;
    }
}

static void add_k(is_mean *mean, const is_layer *o, const is_chunk_rows *rows, int64_t shift, float *sums)
{
    const is_layout *layout = mean->layout;
    size_t n = (size_t)rows->n * o->heads * o->k_dim, row = (size_t)o->heads * o->k_dim * sizeof(float);
    if (shift == 0 || o->rope == IS_LAYER_NO_ROPE) {
        add(layout->dtype, rows->k, n, sums);
        return;
    }
    is_rotation rotation;
    is_rotation_init(&rotation, &layout->ropes[o->rope], shift);
    to_f32(layout->dtype, rows->k, n, mean->row);
    is_rotate_rows(is_isa_best(), IS_F32, &layout->ropes[o->rope], &rotation, o->heads, o->k_dim, (uint8_t *)mean->row,
                   row, (uint8_t *)mean->row, row, rows->n);
    add(IS_F32, (const uint8_t *)mean->row, n, sums);
}

is_status is_mean_add(is_mean **mean, const is_layout *layout, const is_chunk *chunk, is_error *err)
{
    is_status status = is_chunk_fits(chunk, layout, err);
    if (status == IS_OK && *mean == NULL) status = begin(layout, chunk, mean, err);
    if (status != IS_OK) return status;
    is_mean *m = *mean;
    const uint32_t n = m->info.n_tokens;
    if (chunk->info.n_tokens != n || memcmp(chunk->tokens, m->tokens, n * sizeof *m->tokens) != 0)
        return is_fail(err, IS_EINVAL, "chunks of different tokens have no mean");
    float *sums = m->sums;
    for (uint32_t l = 0; l < layout->n_layers; l++) {
        const is_layer *o = &layout->layers[l];
        is_chunk_rows rows = is_chunk_layer(chunk, l);
        add_k(m, o, &rows, (int64_t)m->info.p_ref - chunk->info.p_ref, sums);
        sums += k_elements(o, n);
        if (o->v_dim > 0) add(layout->dtype, rows.v, v_elements(o, n), sums);
        sums += v_elements(o, n);
    }
    m->n++;
    return IS_OK;
}

is_status is_mean_end(is_mean *mean, void **bytes, size_t *size, is_error *err)
{
    const is_layout *layout = mean->layout;
    const uint32_t n = mean->info.n_tokens;
    const float scale = 1.0f / (float)mean->n, *sums = mean->sums;
    *size = is_chunk_bytes(layout, n);
    *bytes = is_chunk_memory(*size);
    is_status status = *bytes == NULL ? is_fail(err, IS_ENOMEM, "no memory for a chunk of %u tokens", n)
                                      : is_chunk_begin(*bytes, *size, layout, &mean->info, mean->tokens, err);
    for (uint32_t l = 0; status == IS_OK && l < layout->n_layers; l++) {
        const is_layer *o = &layout->layers[l];
        uint8_t *k, *v;
        uint32_t first, rows;
        is_chunk_rows_mut(*bytes, l, &k, &v, &first, &rows);
        from_f32(layout->dtype, sums, k_elements(o, n), scale, k);
        sums += k_elements(o, n);
        if (v != NULL) from_f32(layout->dtype, sums, v_elements(o, n), scale, v);
        sums += v_elements(o, n);
    }
    if (status == IS_OK) {
        is_chunk_seal(*bytes);
    } else {
        free(*bytes);
        *bytes = NULL;
    }
    is_mean_free(mean);
    return status;
}
