/*
 * Chunks out of another engine's paged cache.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../kv/hash.h"
#include "internal.h"

/* The rows as a sealed chunk: *bytes, free(), also when this fails. */
static is_status take_rows(is_connector *c, const char *recipe, const int32_t *tokens, uint32_t begin, uint32_t n,
                           const uint32_t *blocks, uint32_t n_blocks, void **bytes, is_chunk *chunk, is_error *err)
{
    size_t size = is_chunk_bytes(&c->layout, n);
    is_chunk_info info = {.p_ref = (int32_t)begin, .n_tokens = n};
    memcpy(info.fingerprint, c->fingerprint, 16);
    is_hash128((is_span[]){{tokens, begin * sizeof *tokens}}, 1, info.context);
    (void)snprintf(info.recipe, sizeof info.recipe, "%s", recipe);
    *bytes = is_chunk_memory(size);
    if (*bytes == NULL) return is_fail(err, IS_ENOMEM, "no memory for a chunk of %zu bytes", size);
    is_status status = is_chunk_begin(*bytes, size, &c->layout, &info, tokens + begin, err);
    if (status == IS_OK)
        status = c->dev != NULL ? is_read_from_device(c, blocks, n_blocks, begin, *bytes, size, err)
                                : is_paged_read(&c->layout, c->caches, blocks, n_blocks, begin, n, 0,
                                                c->layout.n_layers, *bytes, err);
    if (status == IS_OK) is_chunk_seal(*bytes);
    if (status == IS_OK) status = is_chunk_open(chunk, *bytes, size, IS_CHUNK_CHECK_PAYLOAD, err); /* NaN or infinite */
    return status;
}

/* Writes the part; *bytes then belong to the tier. */
static is_status keep_part(const is_connector *c, const char *key, void **bytes, const is_chunk *chunk, is_error *err)
{
    char name[IS_PART_NAME];
    uint8_t bytes_of_key[IS_KEY_BYTES];
    int64_t number = is_part_number(key, bytes_of_key);
    is_part_name(key, c->rank, c->world, name);
    is_status status = is_part_write(c, name, *bytes, chunk->size, err);
    if (status != IS_OK) return status;
    is_dev *locked = is_part_lock(c);
    is_part_drop(c, number); /* made anew */
    is_tier_insert(c->tier, 0, number, bytes_of_key, *bytes, chunk);
    is_part_unlock(locked);
    *bytes = NULL;
    return IS_OK;
}

int is_connector_store(is_connector *c, const char *key, const char *recipe, const int32_t *tokens, uint32_t begin,
                       uint32_t n, const uint32_t *blocks, uint32_t n_blocks, char *text)
{
    is_error err = {0};
    void *bytes = NULL;
    is_chunk chunk;
    is_status status = IS_OK;
    if (!is_part_key(key) || is_chunk_bytes(&c->layout, n) == 0 || begin > INT32_MAX || strlen(recipe) >= IS_RECIPE_MAX)
        status = is_fail(&err, IS_EINVAL, "a chunk of %u tokens with key \"%.*s\" and recipe \"%.80s\" cannot be", n,
                         IS_CONNECTOR_KEY, key, recipe);
    if (status == IS_OK) status = take_rows(c, recipe, tokens, begin, n, blocks, n_blocks, &bytes, &chunk, &err);
    if (status == IS_OK) status = keep_part(c, key, &bytes, &chunk, &err);
    free(bytes);
    return is_connector_done(status, &err, text);
}
