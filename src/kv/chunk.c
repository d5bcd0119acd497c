/*
 * Chunks: sizes, writing one, and looking at one that chunk_open.c has accepted.
 *
 * Everything about a chunk's shape follows from the layout and the number of tokens.  plan_record() says
 * it once, for is_chunk_bytes and is_chunk_begin: a layer's K, then its V, then the next layer, each on
 * CHUNK_PART_ALIGN.  The reader checks the same without a layout.
 */
#include "chunk_format.h"

#include <stdlib.h>

static const chunk_record *record_at(const uint8_t *records, uint32_t layer)
{
    return (const chunk_record *)(const void *)(records + layer * sizeof(chunk_record));
}

/* The layer's record; *cursor is where the payload's next part starts and moves on behind it. */
static chunk_record plan_record(const is_layout *layout, uint32_t layer, uint32_t n_tokens, uint64_t *cursor)
{
    const is_layer *o = &layout->layers[layer];
    uint32_t first = is_layer_first(o, n_tokens);
    chunk_record record = {
        .first = first, .n = n_tokens - first, .heads = o->heads, .k_dim = o->k_dim, .v_dim = o->v_dim};
    size_t element = is_dtype_size(layout->dtype);
    record.k_offset = *cursor;
    record.v_offset = is_align_up(record.k_offset + chunk_k_bytes(&record, element), CHUNK_PART_ALIGN);
    *cursor = is_align_up(record.v_offset + chunk_v_bytes(&record, element), CHUNK_PART_ALIGN);
    return record;
}

void *is_chunk_memory(size_t size)
{
    return aligned_alloc(IS_CHUNK_ALIGN, is_align_up(size > 0 ? size : 1, IS_CHUNK_ALIGN));
}

size_t is_chunk_bytes(const is_layout *layout, uint32_t n_tokens)
{
    if (is_layout_check(layout, NULL) != IS_OK || n_tokens < 1 || n_tokens > IS_CHUNK_MAX_TOKENS) return 0;
    uint64_t payload = 0;
    for (uint32_t i = 0; i < layout->n_layers; i++) (void)plan_record(layout, i, n_tokens, &payload);
    size_t front = is_align_up(chunk_tokens_end(layout->n_layers, n_tokens), IS_CHUNK_ALIGN);
    size_t size;
    if (payload > SIZE_MAX || !is_add_size(front, (size_t)payload, &size)) return 0;
    return size;
}

/* --------------------------------------------------------------- writing */

static is_status check_info(const void *bytes, const is_chunk_info *info, is_error *err)
{
    if (info->n_tokens < 1 || info->n_tokens > IS_CHUNK_MAX_TOKENS)
        return is_fail(err, IS_EINVAL, "chunk: %u tokens, it must be 1 to %u", info->n_tokens, IS_CHUNK_MAX_TOKENS);
    if (info->p_ref < 0) return is_fail(err, IS_EINVAL, "chunk: p_ref is %d, it must not be negative", info->p_ref);
    if (memchr(info->recipe, 0, sizeof info->recipe) == NULL)
        return is_fail(err, IS_EINVAL, "chunk: the recipe's name takes more than %d bytes", IS_RECIPE_MAX - 1);
    if ((uintptr_t)bytes % CHUNK_PART_ALIGN != 0)
        return is_fail(err, IS_EINVAL, "chunk: memory at %p, it must be aligned to %d bytes", bytes, CHUNK_PART_ALIGN);
    return IS_OK;
}

static is_status check_begin(const void *bytes, size_t size, const is_layout *layout, const is_chunk_info *info,
                             is_error *err)
{
    is_status status = is_layout_check(layout, err);
    if (status == IS_OK) status = check_info(bytes, info, err);
    if (status != IS_OK) return status;
    if (info->parts != 0 || info->key != 0)
        return is_fail(err, IS_EINVAL, "chunk: with rows in it it is no stub, and has no parts and no key");
    size_t needed = is_chunk_bytes(layout, info->n_tokens);
    if (needed == 0 || size != needed)
        return is_fail(err, IS_EINVAL, "chunk: %zu bytes given for %u tokens, is_chunk_bytes says %zu", size,
                       info->n_tokens, needed);
    return IS_OK;
}

static void write_header(chunk_header *header, size_t size, is_dtype dtype, bool v_transposed, uint32_t n_layers,
                         const is_chunk_info *info)
{
    *header = (chunk_header){
        .version = IS_CHUNK_VERSION,
        .dtype = (uint32_t)dtype,
        .v_transposed = v_transposed ? 1 : 0,
        .n_layers = n_layers,
        .n_tokens = info->n_tokens,
        .p_ref = info->p_ref,
        .size = size,
        .payload_offset = is_align_up(chunk_tokens_end(n_layers, info->n_tokens), IS_CHUNK_ALIGN),
        .key = info->key,
        .parts = info->parts,
    };
    memcpy(header->magic, CHUNK_MAGIC, sizeof header->magic);
    memcpy(header->fingerprint, info->fingerprint, sizeof header->fingerprint);
    memcpy(header->context, info->context, sizeof header->context);
    memcpy(header->text, info->text, sizeof header->text);
    memcpy(header->recipe, info->recipe, strlen(info->recipe));
}

/* Bytes between the parts of the payload are hashed with it, so they have to be something. */
static void zero_gaps(uint8_t *payload, const chunk_record *record, size_t element, uint64_t next)
{
    uint64_t k_end = record->k_offset + chunk_k_bytes(record, element);
    uint64_t v_end = record->v_offset + chunk_v_bytes(record, element);
    memset(payload + k_end, 0, (size_t)(record->v_offset - k_end));
    memset(payload + v_end, 0, (size_t)(next - v_end));
}

/* And zeroes behind them, up to the payload. */
static void write_tokens(uint8_t *out, const chunk_header *header, const int32_t *tokens)
{
    size_t end = chunk_tokens_end(header->n_layers, header->n_tokens);
    memcpy(out + chunk_tokens_offset(header->n_layers), tokens, header->n_tokens * sizeof *tokens);
    memset(out + end, 0, (size_t)header->payload_offset - end);
}

is_status is_chunk_begin(void *bytes, size_t size, const is_layout *layout, const is_chunk_info *info,
                         const int32_t *tokens, is_error *err)
{
    is_status status = check_begin(bytes, size, layout, info, err);
    if (status != IS_OK) return status;
    uint8_t *out = bytes;
    chunk_header header;
    write_header(&header, size, layout->dtype, layout->v_transposed, layout->n_layers, info);
    memcpy(out, &header, sizeof header);
    uint8_t *payload = out + header.payload_offset;
    uint64_t cursor = 0;
    for (uint32_t i = 0; i < layout->n_layers; i++) {
        chunk_record record = plan_record(layout, i, info->n_tokens, &cursor);
        memcpy(out + sizeof header + i * sizeof record, &record, sizeof record);
        zero_gaps(payload, &record, is_dtype_size(layout->dtype), cursor);
    }
    write_tokens(out, &header, tokens);
    return IS_OK;
}

void is_chunk_rows_mut(void *bytes, uint32_t layer, uint8_t **k, uint8_t **v, uint32_t *first, uint32_t *n)
{
    uint8_t *out = bytes;
    const chunk_header *header = bytes;
    const chunk_record *record = record_at(out + sizeof *header, layer);
    uint8_t *payload = out + header->payload_offset;
    *k = payload + record->k_offset;
    *v = record->v_dim != 0 ? payload + record->v_offset : NULL;
    *first = record->first;
    *n = record->n;
}

void is_chunk_seal(void *bytes)
{
    uint8_t *out = bytes;
    chunk_header *header = bytes;
    is_span payload = {out + header->payload_offset, (size_t)(header->size - header->payload_offset)};
    is_hash128(&payload, 1, header->payload_hash);
    chunk_meta_hash(out, header->meta_hash);
}

size_t is_chunk_stub_bytes(uint32_t n_tokens)
{
    if (n_tokens < 1 || n_tokens > IS_CHUNK_MAX_TOKENS) return 0;
    return is_align_up(chunk_tokens_end(0, n_tokens), IS_CHUNK_ALIGN);
}

is_status is_chunk_stub(void *bytes, size_t size, const is_chunk_info *info, const int32_t *tokens, is_error *err)
{
    is_status status = check_info(bytes, info, err);
    if (status != IS_OK) return status;
    if (info->parts < 1 || info->parts > IS_CHUNK_MAX_PARTS || info->key <= 0)
        return is_fail(err, IS_EINVAL, "chunk: a stub needs 1 to %d parts and a key above 0, and has %u and %lld",
                       IS_CHUNK_MAX_PARTS, info->parts, (long long)info->key);
    if (size != is_chunk_stub_bytes(info->n_tokens))
        return is_fail(err, IS_EINVAL, "chunk: %zu bytes given for a stub of %u tokens, is_chunk_stub_bytes says %zu",
                       size, info->n_tokens, is_chunk_stub_bytes(info->n_tokens));
    chunk_header header;
    write_header(&header, size, IS_F16, false, 0, info);
    memcpy(bytes, &header, sizeof header);
    write_tokens(bytes, &header, tokens);
    is_chunk_seal(bytes);
    return IS_OK;
}

/* --------------------------------------------------------------- reading */

is_chunk_rows is_chunk_layer(const is_chunk *chunk, uint32_t layer)
{
    const chunk_header *header = (const chunk_header *)(const void *)chunk->bytes;
    const chunk_record *record = record_at(chunk->records, layer);
    const uint8_t *payload = chunk->bytes + header->payload_offset;
    size_t element = is_dtype_size(chunk->dtype);
    return (is_chunk_rows){
        .first = record->first,
        .n = record->n,
        .k = payload + record->k_offset,
        .v = record->v_dim != 0 ? payload + record->v_offset : NULL,
        .k_row = (size_t)record->heads * record->k_dim * element,
        .v_row = (size_t)record->heads * record->v_dim * element,
    };
}

static is_status layer_fits(const is_chunk *chunk, const is_layout *layout, uint32_t index, is_error *err)
{
    const chunk_record *record = record_at(chunk->records, index);
    const is_layer *layer = &layout->layers[index];
    if (record->heads != layer->heads || record->k_dim != layer->k_dim || record->v_dim != layer->v_dim)
        return is_fail(err, IS_EINVAL,
                       "chunk: layer %u has %u heads of K %u, V %u, the model has %u of K %u, V %u; encode it again",
                       index, record->heads, record->k_dim, record->v_dim, layer->heads, layer->k_dim, layer->v_dim);
    if (record->first != is_layer_first(layer, chunk->info.n_tokens))
        return is_fail(err, IS_EINVAL,
                       "chunk: layer %u starts at token %u, the model's window asks for %u; encode it again", index,
                       record->first, is_layer_first(layer, chunk->info.n_tokens));
    return IS_OK;
}

is_status is_chunk_fits(const is_chunk *chunk, const is_layout *layout, is_error *err)
{
    if (chunk->dtype != layout->dtype)
        return is_fail(err, IS_EINVAL, "chunk: it holds %s and the model's cache %s; encode it again",
                       is_dtype_name(chunk->dtype), is_dtype_name(layout->dtype));
    if (chunk->v_transposed != layout->v_transposed)
        return is_fail(err, IS_EINVAL, "chunk: its V is %s and the cache's is %s; encode it again",
                       chunk->v_transposed ? "transposed" : "in rows", layout->v_transposed ? "transposed" : "in rows");
    if (chunk->n_layers != layout->n_layers)
        return is_fail(err, IS_EINVAL, "chunk: it has %u layers and the model %u; encode it again", chunk->n_layers,
                       layout->n_layers);
    for (uint32_t i = 0; i < chunk->n_layers; i++) {
        is_status status = layer_fits(chunk, layout, i, err);
        if (status != IS_OK) return status;
    }
    return IS_OK;
}
