/*
 * Chunks out of another engine's paged cache.
 *
 * A chunk may be the mean over several prefixes (kv/mean.h), each of which is a request of its own: a share.  A share
 * is kept as a file beside the part that it will belong to.  Whoever brings one looks for the others, and the one who
 * finds all of them makes the part: in the order of the shares, so that it is the same part whichever came last.  Two
 * who come last at once, on two servers over one folder, both find them and write the same bytes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../kv/hash.h"
#include "../kv/mean.h"
#include "internal.h"

/* Where a share lies until its part is made. */
static void share_name(const is_connector *c, const char *key, uint32_t share, char out[IS_PART_NAME])
{
    is_part_name(key, c->rank, c->world, out);
    size_t n = strlen(out);
    (void)snprintf(out + n, IS_PART_NAME - n, ".%u", share);
}

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

/* ------------------------------------------------------------ shares */

static bool has_all(const is_connector *c, const char *key, uint32_t shares)
{
    char name[IS_PART_NAME];
    for (uint32_t i = 0; i < shares; i++) {
        share_name(c, key, i, name);
        if (faccessat(c->folder_fd, name, R_OK, 0) != 0) return false;
    }
    return true;
}

static is_status add_share(const is_connector *c, const char *key, uint32_t share, is_mean **mean, is_error *err)
{
    char name[IS_PART_NAME];
    void *bytes;
    is_chunk chunk;
    share_name(c, key, share, name);
    is_status status = is_part_read(c, name, &bytes, &chunk, err);
    if (status == IS_OK) status = is_mean_add(mean, &c->layout, &chunk, err);
    /* So that the chunk is not made before the share has come again. */
    if (status == IS_ECORRUPT) (void)unlinkat(c->folder_fd, name, 0);
    free(bytes);
    return status;
}

/* The part, of shares that are all there. */
static is_status keep_mean(const is_connector *c, const char *key, uint32_t shares, is_error *err)
{
    is_mean *mean = NULL;
    void *bytes = NULL;
    size_t size;
    is_chunk chunk;
    is_status status = IS_OK;
    for (uint32_t i = 0; i < shares && status == IS_OK; i++) status = add_share(c, key, i, &mean, err);
    if (status == IS_ENOTFOUND) { /* another server has made the part meanwhile, or the chunk was forgotten */
        is_mean_free(mean);
        return IS_OK;
    }
    if (status == IS_OK) {
        status = is_mean_end(mean, &bytes, &size, err);
        mean = NULL;
    }
    if (status == IS_OK)
        status = is_chunk_open(&chunk, bytes, size, IS_CHUNK_CHECK_PAYLOAD, err); /* a sum may have become infinite */
    if (status == IS_OK) status = keep_part(c, key, &bytes, &chunk, err);
    for (uint32_t i = 0; i < shares && status == IS_OK; i++) {
        char name[IS_PART_NAME];
        share_name(c, key, i, name);
        (void)unlinkat(c->folder_fd, name, 0); /* one that stays goes with the folder */
    }
    is_mean_free(mean);
    free(bytes);
    return status;
}

static is_status keep_share(const is_connector *c, const char *key, uint32_t share, uint32_t shares, const void *bytes,
                            size_t size, is_error *err)
{
    char name[IS_PART_NAME];
    share_name(c, key, share, name);
    is_status status = is_part_write(c, name, bytes, size, err);
    if (status != IS_OK || !has_all(c, key, shares)) return status;
    return keep_mean(c, key, shares, err);
}

/* ------------------------------------------------------------ the interface */

static is_status check_wish(const is_connector *c, const char *key, const char *recipe, uint32_t share, uint32_t shares,
                            uint32_t begin, uint32_t n, is_error *err)
{
    if (!is_part_key(key) || is_chunk_bytes(&c->layout, n) == 0 || begin > INT32_MAX || strlen(recipe) >= IS_RECIPE_MAX)
        return is_fail(err, IS_EINVAL, "a chunk of %u tokens with key \"%.*s\" and recipe \"%.80s\" cannot be", n,
                       IS_CONNECTOR_KEY, key, recipe);
    if (shares < 1 || shares > IS_CONNECTOR_SHARES || share >= shares)
        return is_fail(err, IS_EINVAL,
                       "chunk %.*s cannot have share %u of %u: shares are 1 to %d, and are counted from 0",
                       IS_CONNECTOR_KEY, key, share, shares, IS_CONNECTOR_SHARES);
    return IS_OK;
}

int is_connector_store(is_connector *c, const char *key, const char *recipe, uint32_t share, uint32_t shares,
                       const int32_t *tokens, uint32_t begin, uint32_t n, const uint32_t *blocks, uint32_t n_blocks,
                       char *text)
{
    is_error err = {0};
    void *bytes = NULL;
    is_chunk chunk;
    is_status status = check_wish(c, key, recipe, share, shares, begin, n, &err);
    if (status == IS_OK) status = take_rows(c, recipe, tokens, begin, n, blocks, n_blocks, &bytes, &chunk, &err);
    if (status == IS_OK)
        status = shares == 1 ? keep_part(c, key, &bytes, &chunk, &err)
                             : keep_share(c, key, share, shares, bytes, chunk.size, &err);
    free(bytes);
    return is_connector_done(status, &err, text);
}
