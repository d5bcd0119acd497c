/*
 * Chunks out of another engine's paged cache.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../kv/hash.h"
#include "internal.h"

int is_connector_store(is_connector *c, const char *key, const char *recipe, const int32_t *tokens, uint32_t begin,
                       uint32_t n, const uint32_t *blocks, uint32_t n_blocks, char *text)
{
    is_error err = {0};
    size_t size = is_chunk_bytes(&c->layout, n);
    if (!is_part_key(key) || size == 0 || begin > INT32_MAX || strlen(recipe) >= IS_RECIPE_MAX)
        return is_connector_done(is_fail(&err, IS_EINVAL,
                                         "a chunk of %u tokens with key \"%.*s\" and recipe \"%.80s\" cannot be", n,
                                         IS_CONNECTOR_KEY, key, recipe),
                                 &err, text);
    void *bytes = is_chunk_memory(size);
    if (bytes == NULL)
        return is_connector_done(is_fail(&err, IS_ENOMEM, "no memory for a chunk of %zu bytes", size), &err, text);
    is_chunk_info info = {.p_ref = (int32_t)begin, .n_tokens = n};
    memcpy(info.fingerprint, c->fingerprint, 16);
    is_hash128((is_span[]){{tokens, begin * sizeof *tokens}}, 1, info.context);
    (void)snprintf(info.recipe, sizeof info.recipe, "%s", recipe);
    is_chunk chunk;
    char name[IS_PART_NAME];
    is_part_name(key, c->rank, c->world, name);
    is_status status = is_chunk_begin(bytes, size, &c->layout, &info, tokens + begin, &err);
    if (status == IS_OK)
        status = is_paged_read(&c->layout, c->caches, blocks, n_blocks, begin, n, 0, c->layout.n_layers, bytes, &err);
    if (status == IS_OK) is_chunk_seal(bytes);
    if (status == IS_OK)
        status = is_chunk_open(&chunk, bytes, size, IS_CHUNK_CHECK_PAYLOAD, &err); /* NaN or infinite */
    if (status == IS_OK) status = is_part_write(c, name, bytes, size, &err);
    if (status == IS_OK) {
        uint8_t bytes_of_key[IS_KEY_BYTES];
        int64_t number = is_part_number(key, bytes_of_key);
        is_tier_drop(c->tier, number); /* made anew */
        is_tier_insert(c->tier, 0, number, bytes_of_key, bytes, &chunk);
    } else {
        free(bytes);
    }
    return is_connector_done(status, &err, text);
}
