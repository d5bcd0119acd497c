/*
 * Layouts: bounds, sizes and the hash that goes into a model's fingerprint.
 *
 * Everything behind a checked layout does its arithmetic without looking twice, so the check is
 * strict; also a rotary slice must lie inside the head of every layer that uses it.
 */
#include "layout.h"

#include "hash.h"

#include <math.h>
#include <string.h>

size_t is_dtype_size(is_dtype dtype)
{
    switch (dtype) {
    case IS_F16:
    case IS_BF16: return 2;
    case IS_F32: return 4;
    }
    return 0;
}

const char *is_dtype_name(is_dtype dtype)
{
    switch (dtype) {
    case IS_F16: return "f16";
    case IS_BF16: return "bf16";
    case IS_F32: return "f32";
    }
    return "unknown type";
}

static is_status check_rope(const is_rope *rope, uint32_t index, is_error *err)
{
    if (rope->style != IS_ROPE_PAIR && rope->style != IS_ROPE_HALF)
        return is_fail(err, IS_EINVAL, "layout: rope %u: style is %d, it must be IS_ROPE_PAIR or IS_ROPE_HALF", index,
                       (int)rope->style);
    if (rope->width < 2 || rope->width % 2 != 0 || rope->width > 2 * IS_ROPE_MAX_PAIRS)
        return is_fail(err, IS_EINVAL, "layout: rope %u: width is %u, it must be even and 2 to %d", index, rope->width,
                       2 * IS_ROPE_MAX_PAIRS);
    if (!isfinite(rope->attention_factor))
        return is_fail(err, IS_EINVAL, "layout: rope %u: attention_factor is not a finite number", index);
    for (uint32_t i = 0; i < rope->width / 2; i++)
        if (!isfinite(rope->inv_freq[i]))
            return is_fail(err, IS_EINVAL, "layout: rope %u: inv_freq[%u] is not a finite number", index, i);
    return IS_OK;
}

static is_status check_layer(const is_layout *layout, uint32_t index, is_error *err)
{
    const is_layer *layer = &layout->layers[index];
    if (layer->heads < 1) return is_fail(err, IS_EINVAL, "layout: layer %u: heads is 0, at least 1 is needed", index);
    if (layer->k_dim < 1) return is_fail(err, IS_EINVAL, "layout: layer %u: k_dim is 0, at least 1 is needed", index);
    if ((uint64_t)layer->heads * layer->k_dim > IS_MAX_ROW)
        return is_fail(err, IS_EINVAL, "layout: layer %u: heads * k_dim is %u * %u, at most %u elements are allowed",
                       index, layer->heads, layer->k_dim, IS_MAX_ROW);
    if ((uint64_t)layer->heads * layer->v_dim > IS_MAX_ROW)
        return is_fail(err, IS_EINVAL, "layout: layer %u: heads * v_dim is %u * %u, at most %u elements are allowed",
                       index, layer->heads, layer->v_dim, IS_MAX_ROW);
    if (layer->rope == IS_LAYER_NO_ROPE) return IS_OK;
    if (layer->rope >= layout->n_ropes)
        return is_fail(err, IS_EINVAL, "layout: layer %u: rope is %u, but there are %u ropes", index, layer->rope,
                       layout->n_ropes);
    const is_rope *rope = &layout->ropes[layer->rope];
    if ((uint64_t)rope->offset + rope->width > layer->k_dim)
        return is_fail(err, IS_EINVAL, "layout: layer %u: the rotary slice %u + %u of rope %u ends behind k_dim %u",
                       index, rope->offset, rope->width, layer->rope, layer->k_dim);
    return IS_OK;
}

is_status is_layout_check(const is_layout *layout, is_error *err)
{
    if (is_dtype_size(layout->dtype) == 0)
        return is_fail(err, IS_EINVAL, "layout: dtype is %d, it must be IS_F16, IS_BF16 or IS_F32", (int)layout->dtype);
    if (layout->n_layers < 1 || layout->n_layers > IS_MAX_LAYERS)
        return is_fail(err, IS_EINVAL, "layout: n_layers is %u, it must be 1 to %d", layout->n_layers, IS_MAX_LAYERS);
    if (layout->n_ropes > IS_MAX_ROPES)
        return is_fail(err, IS_EINVAL, "layout: n_ropes is %u, it must be 0 to %d", layout->n_ropes, IS_MAX_ROPES);
    for (uint32_t i = 0; i < layout->n_ropes; i++) {
        is_status status = check_rope(&layout->ropes[i], i, err);
        if (status != IS_OK) return status;
    }
    for (uint32_t i = 0; i < layout->n_layers; i++) {
        is_status status = check_layer(layout, i, err);
        if (status != IS_OK) return status;
    }
    return IS_OK;
}

size_t is_layout_token_bytes(const is_layout *layout)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < layout->n_layers; i++) bytes += is_layer_k_bytes(layout, i) + is_layer_v_bytes(layout, i);
    return bytes;
}

/* Little-endian fields, one behind the other: what is hashed must not depend on padding or byte order. */
typedef struct field_writer {
    uint8_t bytes[16 + IS_MAX_LAYERS * 20 + IS_MAX_ROPES * (16 + IS_ROPE_MAX_PAIRS * 8)];
    size_t size;
} field_writer;

static void put(field_writer *writer, uint64_t value, size_t size)
{
    for (size_t i = 0; i < size; i++) writer->bytes[writer->size++] = (uint8_t)(value >> (8 * i));
}

static void put_rope(field_writer *writer, const is_rope *rope)
{
    uint32_t factor;
    memcpy(&factor, &rope->attention_factor, sizeof factor);
    put(writer, (uint64_t)rope->style, 4);
    put(writer, rope->offset, 4);
    put(writer, rope->width, 4);
    put(writer, factor, 4);
    for (uint32_t i = 0; i < rope->width / 2; i++) {
        uint64_t frequency;
        memcpy(&frequency, &rope->inv_freq[i], sizeof frequency);
        put(writer, frequency, 8);
    }
}

void is_layout_hash(const is_layout *layout, uint8_t out[16])
{
    field_writer writer;
    writer.size = 0;
    put(&writer, (uint64_t)layout->dtype, 4);
    put(&writer, layout->v_transposed ? 1 : 0, 4);
    put(&writer, layout->n_layers, 4);
    put(&writer, layout->n_ropes, 4);
    for (uint32_t i = 0; i < layout->n_layers; i++) {
        const is_layer *layer = &layout->layers[i];
        put(&writer, layer->heads, 4);
        put(&writer, layer->k_dim, 4);
        put(&writer, layer->v_dim, 4);
        put(&writer, layer->window, 4);
        put(&writer, layer->rope, 4);
    }
    for (uint32_t i = 0; i < layout->n_ropes; i++) put_rope(&writer, &layout->ropes[i]);
    is_hash128(&(is_span){writer.bytes, writer.size}, 1, out);
}
