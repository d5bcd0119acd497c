/*
 * Reading a chunk that may be anything: cut short, flipped, made by somebody hostile.
 *
 * The order of the checks is the argument for their safety.  The header's counts are bounded first, so
 * the size of what stands before the payload is known and compared with the bytes there are; only then
 * is it hashed.  A right hash does not make a number trustworthy, so each record is still held against
 * the one place where it may lie: parts follow one another without a gap, and the last ends where the
 * chunk does.
 */
#include "chunk_format.h"
#include "chunk_scan.h"
#include "compose.h"

/* n zero bytes are one zero byte, and every byte equal to the one before; memcmp does that at full speed. */
static bool all_zero(const uint8_t *bytes, size_t n)
{
    return n == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, n - 1) == 0);
}

static is_status check_header(const chunk_header *header, size_t size, is_error *err)
{
    if (is_dtype_size((is_dtype)header->dtype) == 0)
        return is_fail(err, IS_ECORRUPT, "chunk: unknown element type %u", header->dtype);
    if (header->v_transposed > 1)
        return is_fail(err, IS_ECORRUPT, "chunk: v_transposed is %u, neither 0 nor 1", header->v_transposed);
    if (header->parts > IS_CHUNK_MAX_PARTS || (header->parts > 0) != (header->key > 0) || header->key < 0)
        return is_fail(err, IS_ECORRUPT, "chunk: %u parts under the key %lld cannot be", header->parts,
                       (long long)header->key);
    uint32_t fewest = header->parts > 0 ? 0 : 1, most = header->parts > 0 ? 0 : IS_MAX_LAYERS;
    if (header->n_layers < fewest || header->n_layers > most)
        return is_fail(err, IS_ECORRUPT, "chunk: %u layers, it must be %u to %u", header->n_layers, fewest, most);
    if (header->n_tokens < 1 || header->n_tokens > IS_CHUNK_MAX_TOKENS)
        return is_fail(err, IS_ECORRUPT, "chunk: %u tokens, it must be 1 to %u", header->n_tokens, IS_CHUNK_MAX_TOKENS);
    if (header->p_ref < 0) return is_fail(err, IS_ECORRUPT, "chunk: p_ref is %d, it is never negative", header->p_ref);
    if (memchr(header->recipe, 0, sizeof header->recipe) == NULL)
        return is_fail(err, IS_ECORRUPT, "chunk: the recipe's name has no end");
    size_t front = is_align_up(chunk_tokens_end(header->n_layers, header->n_tokens), IS_CHUNK_ALIGN);
    if (header->size != size)
        return is_fail(err, IS_ECORRUPT, "chunk: %zu bytes are there, it says %llu; it was cut short or mixed up", size,
                       (unsigned long long)header->size);
    if (header->payload_offset != front || front > size)
        return is_fail(err, IS_ECORRUPT, "chunk: the payload starts at %llu, not at %zu of %zu",
                       (unsigned long long)header->payload_offset, front, size);
    if (!all_zero(header->zero, sizeof header->zero))
        return is_fail(err, IS_ECORRUPT, "chunk: unused bytes of the header are not zero");
    return IS_OK;
}

static is_status check_front_hash(const chunk_header *header, const uint8_t *bytes, is_error *err)
{
    uint8_t hash[16];
    chunk_meta_hash(bytes, hash);
    if (memcmp(hash, header->meta_hash, sizeof hash) != 0)
        return is_fail(err, IS_ECORRUPT, "chunk: header, records or tokens are not what was written (wrong hash)");
    size_t end = chunk_tokens_end(header->n_layers, header->n_tokens);
    if (!all_zero(bytes + end, (size_t)header->payload_offset - end))
        return is_fail(err, IS_ECORRUPT, "chunk: the bytes between tokens and payload are not zero");
    return IS_OK;
}

static is_status check_record(const chunk_record *record, const chunk_header *header, uint32_t layer, uint64_t *cursor,
                              is_error *err)
{
    if (record->first >= header->n_tokens || record->n != header->n_tokens - record->first)
        return is_fail(err, IS_ECORRUPT, "chunk: layer %u: rows %u + %u do not end at token %u", layer, record->first,
                       record->n, header->n_tokens);
    if (record->heads < 1 || record->k_dim < 1 || (uint64_t)record->heads * record->k_dim > IS_MAX_ROW ||
        (uint64_t)record->heads * record->v_dim > IS_MAX_ROW)
        return is_fail(err, IS_ECORRUPT, "chunk: layer %u: %u heads of K %u and V %u cannot be", layer, record->heads,
                       record->k_dim, record->v_dim);
    size_t element = is_dtype_size((is_dtype)header->dtype);
    uint64_t v_offset = is_align_up(*cursor + chunk_k_bytes(record, element), CHUNK_PART_ALIGN);
    if (record->k_offset != *cursor || record->v_offset != v_offset)
        return is_fail(err, IS_ECORRUPT, "chunk: layer %u: K and V at %llu and %llu, they belong at %llu and %llu",
                       layer, (unsigned long long)record->k_offset, (unsigned long long)record->v_offset,
                       (unsigned long long)*cursor, (unsigned long long)v_offset);
    if (record->zero != 0 || record->zero_too != 0)
        return is_fail(err, IS_ECORRUPT, "chunk: layer %u: unused bytes of the record are not zero", layer);
    *cursor = is_align_up(v_offset + chunk_v_bytes(record, element), CHUNK_PART_ALIGN);
    return IS_OK;
}

static is_status check_records(const chunk_header *header, const uint8_t *bytes, is_error *err)
{
    uint64_t cursor = 0;
    for (uint32_t i = 0; i < header->n_layers; i++) {
        chunk_record record;
        memcpy(&record, bytes + sizeof *header + i * sizeof record, sizeof record);
        is_status status = check_record(&record, header, i, &cursor, err);
        if (status != IS_OK) return status;
    }
    if (cursor != header->size - header->payload_offset)
        return is_fail(err, IS_ECORRUPT, "chunk: the layers take %llu bytes, the payload has %llu",
                       (unsigned long long)cursor, (unsigned long long)(header->size - header->payload_offset));
    return IS_OK;
}

static bool scan(const uint8_t *bytes, size_t n, is_dtype dtype, uint8_t hash[16])
{
#ifdef __x86_64__
    if (is_isa_supported(IS_ISA_AVX2)) return is_chunk_scan_avx2(bytes, n, dtype, hash);
#endif
    return is_chunk_scan(bytes, n, dtype, hash);
}

static is_status check_payload(const chunk_header *header, const uint8_t *bytes, is_error *err)
{
    size_t size = (size_t)(header->size - header->payload_offset);
    uint8_t hash[16];
    bool finite = scan(bytes + header->payload_offset, size, (is_dtype)header->dtype, hash);
    if (memcmp(hash, header->payload_hash, sizeof hash) != 0)
        return is_fail(err, IS_ECORRUPT, "chunk: K or V is not what was written (wrong hash)");
    if (!finite) return is_fail(err, IS_ECORRUPT, "chunk: K or V holds NaN or infinity; it must not reach a cache");
    return IS_OK;
}

static void fill_view(is_chunk *out, const chunk_header *header, const uint8_t *bytes)
{
    *out = (is_chunk){
        .info = {.p_ref = header->p_ref, .n_tokens = header->n_tokens, .parts = header->parts, .key = header->key},
        .dtype = (is_dtype)header->dtype,
        .v_transposed = header->v_transposed != 0,
        .n_layers = header->n_layers,
        .tokens = (const int32_t *)(const void *)(bytes + chunk_tokens_offset(header->n_layers)),
        .bytes = bytes,
        .size = (size_t)header->size,
        .records = bytes + sizeof *header,
    };
    memcpy(out->info.fingerprint, header->fingerprint, sizeof header->fingerprint);
    memcpy(out->info.context, header->context, sizeof header->context);
    memcpy(out->info.text, header->text, sizeof header->text);
    memcpy(out->info.recipe, header->recipe, sizeof header->recipe);
}

is_status is_chunk_open(is_chunk *out, const void *bytes, size_t size, is_chunk_check check, is_error *err)
{
    if ((uintptr_t)bytes % CHUNK_PART_ALIGN != 0)
        return is_fail(err, IS_EINVAL, "chunk: memory at %p, it must be aligned to %d bytes", bytes, CHUNK_PART_ALIGN);
    chunk_header header;
    if (size < sizeof header) return is_fail(err, IS_ECORRUPT, "chunk: %zu bytes are too few for a header", size);
    memcpy(&header, bytes, sizeof header);
    if (memcmp(header.magic, CHUNK_MAGIC, sizeof header.magic) != 0)
        return is_fail(err, IS_ECORRUPT, "chunk: these bytes are not a chunk (no %s in front)", CHUNK_MAGIC);
    if (header.version != IS_CHUNK_VERSION)
        return is_fail(err, IS_EUNSUPPORTED, "chunk: format version %u, this build reads %d; encode it again",
                       header.version, IS_CHUNK_VERSION);
    is_status status = check_header(&header, size, err);
    if (status == IS_OK) status = check_front_hash(&header, bytes, err);
    if (status == IS_OK) status = check_records(&header, bytes, err);
    if (status == IS_OK && check == IS_CHUNK_CHECK_PAYLOAD) status = check_payload(&header, bytes, err);
    if (status == IS_OK) fill_view(out, &header, bytes);
    return status;
}

void is_chunk_identity(const is_chunk *chunk, uint8_t out[16])
{
    chunk_header header;
    memcpy(&header, chunk->bytes, sizeof header);
    is_hash128(
        (is_span[]){{header.meta_hash, sizeof header.meta_hash}, {header.payload_hash, sizeof header.payload_hash}}, 2,
        out);
}
