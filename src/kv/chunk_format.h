/*
 * The bytes of a chunk, version 1: what chunk.c writes and chunk_open.c reads.  Private to the two.
 *
 * Numbers are little-endian and every field lies on its own alignment, so on a little-endian machine
 * the structs below are the table of the format, and mapped bytes are used in place.
 */
#ifndef IS_KV_CHUNK_FORMAT_H
#define IS_KV_CHUNK_FORMAT_H

#include "chunk.h"
#include "hash.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "chunks are mapped in place, which needs little-endian");

#define CHUNK_MAGIC      "ISKVCHNK"
#define CHUNK_PART_ALIGN 64 /* of K and V in the payload, and of the whole chunk in memory */

typedef struct chunk_header {
    uint8_t magic[8];
    uint32_t version;
    uint32_t dtype;
    uint32_t v_transposed; /* 0 or 1 */
    uint32_t n_layers;
    uint32_t n_tokens;
    int32_t p_ref;
    uint64_t size;           /* bytes of the whole chunk                    */
    uint64_t payload_offset; /* from the chunk's start, on IS_CHUNK_ALIGN   */
    uint8_t fingerprint[16];
    uint8_t context[16];
    char recipe[IS_RECIPE_MAX]; /* NUL-terminated */
    uint8_t meta_hash[16];      /* of header, records and tokens, with both hashes zero */
    uint8_t payload_hash[16];
    uint8_t text[16];
    int64_t key;
    uint32_t parts;
    uint8_t zero[52];
} chunk_header;

typedef struct chunk_record {
    uint32_t first; /* first token with a row */
    uint32_t n;     /* rows kept              */
    uint32_t heads;
    uint32_t k_dim;
    uint32_t v_dim; /* 0: no V */
    uint32_t zero;
    uint64_t k_offset; /* from the payload's start, on CHUNK_PART_ALIGN */
    uint64_t v_offset; /* without V: where it would stand               */
    uint64_t zero_too;
} chunk_record;

_Static_assert(sizeof(chunk_header) == 256 && offsetof(chunk_header, zero) == 204, "the header has no padding");
_Static_assert(sizeof(chunk_record) == 48 && offsetof(chunk_record, k_offset) == 24, "a record has no padding");

/* Ends of the parts in front of the payload; n_layers and n_tokens are in range, so nothing overflows. */
static inline size_t chunk_tokens_offset(uint32_t n_layers)
{
    return sizeof(chunk_header) + n_layers * sizeof(chunk_record);
}
static inline size_t chunk_tokens_end(uint32_t n_layers, uint32_t n_tokens)
{
    return chunk_tokens_offset(n_layers) + n_tokens * sizeof(int32_t);
}

/* Bytes of a layer's K and V; is_layout_check's bounds or the reader's keep the products inside 64 bits. */
static inline uint64_t chunk_k_bytes(const chunk_record *record, size_t element)
{
    return (uint64_t)record->n * record->heads * record->k_dim * element;
}
static inline uint64_t chunk_v_bytes(const chunk_record *record, size_t element)
{
    return (uint64_t)record->n * record->heads * record->v_dim * element;
}

/* The hash over header, records and tokens, as if the hash fields were zero. */
static inline void chunk_meta_hash(const uint8_t *bytes, uint8_t out[16])
{
    chunk_header header;
    memcpy(&header, bytes, sizeof header);
    memset(header.meta_hash, 0, sizeof header.meta_hash);
    memset(header.payload_hash, 0, sizeof header.payload_hash);
    size_t rest = chunk_tokens_end(header.n_layers, header.n_tokens) - sizeof header;
    is_hash128((is_span[]){{&header, sizeof header}, {bytes + sizeof header, rest}}, 2, out);
}

#endif
