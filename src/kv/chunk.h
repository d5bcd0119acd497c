/*
 * The chunk: KV of one run of tokens, as bytes that can be mapped and used in place.
 *
 * File format, version 1, all numbers little-endian:
 *   header   256 bytes, fixed fields (chunk_format.h has the table)
 *   layers   one record of 48 bytes a layer: rows kept, row sizes, offsets into the payload
 *   tokens   int32 token ids
 *   padding  to IS_CHUNK_ALIGN
 *   payload  a layer's K rows, then its V, then the next layer; each part starts on 64 bytes
 * An XXH3-128 over header (with the two hash fields zero), layer records and tokens, and one over the payload stand
 * in the header.  Every length is checked against the size of the bytes before it is used.
 *
 * A chunk without layers is a stub: its rows are kept by the workers of another engine, under its key.
 *
 * A layer with a sliding window keeps only the rows that anything behind the chunk can still see:
 * the last `window` tokens.  first[layer] is the first token whose row is kept.
 */
#ifndef IS_KV_CHUNK_H
#define IS_KV_CHUNK_H

#include "layout.h"

#define IS_CHUNK_VERSION    1
#define IS_CHUNK_ALIGN      4096
#define IS_CHUNK_MAX_TOKENS (1u << 20)
#define IS_RECIPE_MAX       64 /* bytes of a recipe's name with its NUL */

/* What a chunk says of itself. */
typedef struct is_chunk_info {
    uint8_t fingerprint[16]; /* of weights, layout, tokenizer, template */
    uint8_t context[16];     /* hash of the tokens that stood in front when it was made */
    uint8_t text[16]; /* hash of the text that the tokens are of; whoever makes chunks of texts sets it, else 0 */
    char recipe[IS_RECIPE_MAX];
    int32_t p_ref; /* position of its first token when it was made */
    uint32_t n_tokens;
    uint32_t parts; /* 0: its rows are in it.  Else it is a stub: another engine's workers keep the rows in so many
                       parts, and it has no layers */
    int64_t key;    /* of a stub, what the workers know the rows by, above 0; else 0 */
} is_chunk_info;

/* A chunk in memory: a view of bytes that somebody else owns and keeps while it is used. */
typedef struct is_chunk {
    is_chunk_info info;
    is_dtype dtype;
    bool v_transposed;
    uint32_t n_layers;
    const int32_t *tokens; /* [n_tokens] */
    const uint8_t *bytes;  /* the whole chunk */
    size_t size;
    const uint8_t *records; /* [n_layers] records of 48 bytes; read them with is_chunk_layer */
} is_chunk;

typedef struct is_chunk_rows {
    uint32_t first;   /* first token with a row; rows are first .. n_tokens - 1     */
    uint32_t n;       /* rows kept                                                  */
    const uint8_t *k; /* [n][heads * k_dim]                                         */
    const uint8_t *v; /* [n][heads * v_dim], transposed: [heads * v_dim][n]; NULL without V */
    size_t k_row;     /* bytes of one K row */
    size_t v_row;     /* bytes of one V row */
} is_chunk_rows;

/* Page-aligned memory for a chunk of this size, free(); NULL without memory. */
void *is_chunk_memory(size_t size);

/* Bytes that a chunk of n tokens takes; 0 when it does not fit in size_t or n is out of range. */
size_t is_chunk_bytes(const is_layout *layout, uint32_t n_tokens);

/*
 * Starts a chunk in `bytes` (size is_chunk_bytes, aligned to 64): writes header, records and tokens and
 * zeroes the padding.  The rows are then written through is_chunk_rows_mut, and is_chunk_seal ends it.
 */
is_status is_chunk_begin(void *bytes, size_t size, const is_layout *layout, const is_chunk_info *info,
                         const int32_t *tokens, is_error *err);
/* Where a layer's K and V of a begun chunk go: same shapes as is_chunk_rows. */
void is_chunk_rows_mut(void *bytes, uint32_t layer, uint8_t **k, uint8_t **v, uint32_t *first, uint32_t *n);
/* Writes both hashes.  After this the bytes are a chunk. */
void is_chunk_seal(void *bytes);

#define IS_CHUNK_MAX_PARTS 4096

/* Bytes of a stub of n tokens; 0 when n is out of range. */
size_t is_chunk_stub_bytes(uint32_t n_tokens);
/* Writes a stub, whole and sealed; info->parts and key say where its rows are. */
is_status is_chunk_stub(void *bytes, size_t size, const is_chunk_info *info, const int32_t *tokens, is_error *err);

typedef enum is_chunk_check {
    IS_CHUNK_CHECK_HEADER = 0, /* structure and header hash: enough for bytes checked before          */
    IS_CHUNK_CHECK_PAYLOAD = 1 /* also the payload's hash and that no K or V element is NaN or infinite */
} is_chunk_check;

/*
 * Reads a chunk.  IS_ECORRUPT: not a chunk, cut short, a length that does not fit, a wrong hash, or an
 * element that is not finite.  IS_EUNSUPPORTED: another version.  The bytes must be aligned to 64.
 */
is_status is_chunk_open(is_chunk *out, const void *bytes, size_t size, is_chunk_check check, is_error *err);

/* What no other chunk has: a hash of both of its hashes. */
void is_chunk_identity(const is_chunk *chunk, uint8_t out[16]);

/* The layer's rows; layer < n_layers. */
is_chunk_rows is_chunk_layer(const is_chunk *chunk, uint32_t layer);

/* IS_EINVAL unless the chunk has exactly this layout's layers, sizes, type and order. */
is_status is_chunk_fits(const is_chunk *chunk, const is_layout *layout, is_error *err);

#endif
