/*
 * Counts of what the store holds.  The vectors in memory are the index's: vector_bytes is left 0.
 */
#include "store_internal.h"

#include <stdio.h>
#include <sys/stat.h>

static is_status count(is_store *store, uint64_t *out, const char *sql, is_error *err)
{
    int64_t n = 0;
    is_status status = is_db_int(store, &n, NULL, err, sql, "");
    *out = (uint64_t)n;
    return status;
}

static is_status count_all(is_store *store, const is_chunk_key *key, is_stats *out, is_error *err)
{
    is_status status = count(store, &out->scopes, "SELECT count(*) FROM scope", err);
    if (status == IS_OK) status = count(store, &out->facts, "SELECT sum(facts) FROM scope", err);
    if (status == IS_OK) status = count(store, &out->turns, "SELECT sum(turns) FROM scope", err);
    if (status == IS_OK) status = count(store, &out->chunks, "SELECT count(*) FROM chunk", err);
    if (status == IS_OK) status = count(store, &out->chunk_bytes, "SELECT sum(bytes) FROM chunk", err);
    if (status != IS_OK) return status;
    if (key == NULL) return count(store, &out->facts_ready, "SELECT count(*) FROM chunk WHERE scope <> 0", err);
    uint8_t hash[IS_KEY_BYTES];
    is_key_hash(key, hash);
    int64_t ready = 0;
    status = is_db_int(store, &ready, NULL, err, "SELECT count(*) FROM chunk WHERE scope <> 0 AND key = ?", "b",
                       (const void *)hash, sizeof hash);
    out->facts_ready = (uint64_t)ready;
    return status;
}

static uint64_t file_bytes(const is_store *store, const char *name)
{
    char path[4096];
    struct stat about;
    int n = snprintf(path, sizeof path, "%s/%s", store->folder, name);
    return n > 0 && (size_t)n < sizeof path && stat(path, &about) == 0 ? (uint64_t)about.st_size : 0;
}

is_status is_store_stats(is_store *store, const is_chunk_key *key, is_stats *out, is_error *err)
{
    *out = (is_stats){0};
    is_db_lock(store);
    is_status status = count_all(store, key, out, err);
    is_db_unlock(store);
    if (status != IS_OK) return status;
    out->facts_pending = out->facts - out->facts_ready;
    out->database_bytes = file_bytes(store, "inferscale.db") + file_bytes(store, "inferscale.db-wal");
    is_tier_stats(store->tier, out);
    return IS_OK;
}
