/*
 * Fuzzes the reader of chunks.
 *
 * Random bytes never carry a right hash, so each input is tried three times: as it is, with right hashes put on, and
 * with the size field mended too.  So wrong lengths get past the hashes to the checks that have to hold without
 * them.  Whatever opens is read to its last byte, which the sanitizers watch.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "kv/chunk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint8_t sink;

static void read_all(const uint8_t *bytes, size_t n)
{
    uint8_t sum = 0;
    for (size_t i = 0; i < n; i++) sum ^= bytes[i];
    sink = sum;
}

static void walk(const is_chunk *chunk)
{
    read_all((const uint8_t *)chunk->tokens, chunk->info.n_tokens * sizeof *chunk->tokens);
    if (memchr(chunk->info.recipe, 0, sizeof chunk->info.recipe) == NULL || chunk->info.p_ref < 0) abort();
    for (uint32_t i = 0; i < chunk->n_layers; i++) {
        is_chunk_rows rows = is_chunk_layer(chunk, i);
        if (rows.first + rows.n != chunk->info.n_tokens) abort();
        read_all(rows.k, rows.n * rows.k_row);
        if (rows.v != NULL) read_all(rows.v, rows.n * rows.v_row);
    }
}

static void try_open(const uint8_t *bytes, size_t size)
{
    is_chunk chunk;
    is_error err;
    bool by_header = is_chunk_open(&chunk, bytes, size, IS_CHUNK_CHECK_HEADER, &err) == IS_OK;
    if (by_header) walk(&chunk);
    bool whole = is_chunk_open(&chunk, bytes, size, IS_CHUNK_CHECK_PAYLOAD, &err) == IS_OK;
    if (whole) walk(&chunk);
    if (whole && !by_header) abort();
}

static void put_hash(uint8_t *to, const uint8_t *bytes, uint64_t size)
{
    XXH128_canonical_t digest;
    XXH128_canonicalFromHash(&digest, XXH3_128bits(bytes, (size_t)size));
    memcpy(to, digest.digest, sizeof digest.digest);
}

/* Right hashes wherever the lengths allow one; offsets as in the format's table. */
static void reseal(uint8_t *bytes, size_t size)
{
    uint32_t n_layers, n_tokens;
    uint64_t payload;
    memcpy(&n_layers, bytes + 20, sizeof n_layers);
    memcpy(&n_tokens, bytes + 24, sizeof n_tokens);
    memcpy(&payload, bytes + 40, sizeof payload);
    uint8_t payload_hash[16] = {0};
    if (payload <= size) put_hash(payload_hash, bytes + payload, size - payload);
    memset(bytes + 144, 0, 32);
    uint64_t front = 256 + 48 * (uint64_t)n_layers + 4 * (uint64_t)n_tokens;
    if (front <= size) {
        uint8_t meta_hash[16];
        put_hash(meta_hash, bytes, front);
        memcpy(bytes + 144, meta_hash, sizeof meta_hash);
    }
    memcpy(bytes + 160, payload_hash, sizeof payload_hash);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *memory;
    if (posix_memalign((void **)&memory, 64, size == 0 ? 1 : size) != 0) return 0;
    if (size != 0) memcpy(memory, data, size);
    try_open(memory, size);
    if (size >= 256) {
        reseal(memory, size);
        try_open(memory, size);
        uint64_t whole = size;
        memcpy(memory + 32, &whole, sizeof whole);
        reseal(memory, size);
        try_open(memory, size);
    }
    free(memory);
    return 0;
}
