/*
 * What a run leaves in its sequence, as chunks: the prompt behind a given token, and the answer.
 *
 * Where the cache lies in host memory only the rows that are wanted are read, out of its tensors; otherwise the
 * sequence's whole state is, as for encoding.
 */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

/* One layer's rows of tokens [begin, begin + n). */
static void read_rows(const is_layout *layout, uint32_t layer, const is_target *from, uint32_t begin, void *chunk)
{
    uint8_t *k, *v;
    uint32_t first, n;
    is_chunk_rows_mut(chunk, layer, &k, &v, &first, &n);
    size_t k_row = is_layer_k_bytes(layout, layer);
    size_t v_row = is_layer_v_bytes(layout, layer);
    size_t el = is_dtype_size(layout->dtype);
    for (uint32_t i = 0; i < n; i++) memcpy(k + i * k_row, from->k + (size_t)(begin + i) * from->k_stride, k_row);
    if (v == NULL) return;
    if (layout->v_transposed) {
        for (size_t d = 0; d < v_row / el; d++)
            memcpy(v + d * n * el, from->v + d * from->v_stride + begin * el, n * el);
    } else {
        for (uint32_t i = 0; i < n; i++) memcpy(v + i * v_row, from->v + (size_t)(begin + i) * from->v_stride, v_row);
    }
}

static is_status read_in_place(is_llama *engine, int32_t sequence, uint32_t begin, const int32_t *tokens,
                               is_encode_target *target, is_error *err)
{
    is_target from[IS_MAX_LAYERS];
    void *chunk = is_chunk_new(engine, begin, tokens, "history", target, &target->size, err);
    if (chunk == NULL) return IS_ENOMEM;
    is_direct_targets(engine, sequence, begin + target->n_tokens, from);
    for (uint32_t l = 0; l < engine->layout.n_layers; l++) read_rows(&engine->layout, l, &from[l], begin, chunk);
    is_chunk_seal(chunk);
    target->bytes = chunk;
    return IS_OK;
}

static is_status read_state(is_llama *engine, int32_t sequence, uint32_t begin, const int32_t *tokens,
                            is_encode_target *target, is_error *err)
{
    size_t size = llama_state_seq_get_size(engine->context, sequence);
    if (size == 0) return is_fail(err, IS_EENGINE, "llama.cpp gives no state");
    is_status status = is_blob_reserve(engine, size, err);
    if (status != IS_OK) return status;
    if (llama_state_seq_get_data(engine->context, engine->blob, size, sequence) != size)
        return is_fail(err, IS_EENGINE, "llama.cpp does not give the sequence's state");
    return is_chunk_extract(engine, engine->blob, size, begin, tokens, "history", target, err);
}

is_status is_keep(is_llama *engine, int32_t sequence, const int32_t *tokens, uint32_t begin, uint32_t end, is_kept *out,
                  is_error *err)
{
    *out = (is_kept){NULL, 0};
    if (!engine->injectable || begin >= end) return IS_OK;
    is_encode_target target = {.tokens = tokens + begin, .n_tokens = end - begin};
    is_status status = engine->direct.ready && !engine->direct.on_device
                           ? read_in_place(engine, sequence, begin, tokens, &target, err)
                           : read_state(engine, sequence, begin, tokens, &target, err);
    if (status == IS_OK) *out = (is_kept){target.bytes, target.size};
    return status;
}
