/*
 * Pinning: chunks brought into memory and held there while the engine reads them.
 *
 * What is in memory costs a look into the tier's table.  What is not is announced in the tier, looked up in the index,
 * and read and checked without any lock.  A chunk that was dropped or replaced while it was being read is asked for
 * again.
 */
#include "store_internal.h"

#include <stdlib.h>
#include <string.h>

/* The rows of the chunks that this call has to load. */
static is_status look_up(is_store *store, const uint8_t key[IS_KEY_BYTES], is_want *wants, size_t n, is_error *err)
{
    is_status status = IS_OK;
    is_db_lock(store);
    for (size_t i = 0; i < n && status == IS_OK; i++) {
        if (!wants[i].mine) continue;
        sqlite3_stmt *stmt = NULL;
        const void *bytes = key;
        status = is_db_query(store, &stmt, err,
                             "SELECT " IS_CHUNK_COLUMNS " FROM chunk c WHERE c.fact = ? AND c.scope = ? AND c.key = ?",
                             "iib", wants[i].fact, wants[i].scope, bytes, (size_t)IS_KEY_BYTES);
        if (status != IS_OK) break;
        status = is_db_step(store, stmt, &wants[i].found, err);
        if (wants[i].found) is_index_read_row(stmt, &wants[i].row);
        is_db_end(stmt);
    }
    is_db_unlock(store);
    return status;
}

/* Ends the announced load of one chunk, one way or the other. */
static is_status load(is_store *store, is_want *want, size_t *refused, is_error *err)
{
    is_pin *pin = want->pin;
    want->pin = NULL;
    want->mine = false;
    if (!want->found) {
        (void)is_tier_finish(store->tier, pin, NULL, NULL);
        want->done = true;
        return IS_OK;
    }
    void *bytes = NULL;
    is_chunk chunk;
    is_tier_reserve(store->tier, pin, (size_t)want->row.bytes);
    is_status status = is_files_load(store, &want->row, &bytes, &chunk, NULL);
    if (status == IS_OK) {
        want->done = is_tier_finish(store->tier, pin, bytes, &chunk);
        if (want->done) want->pin = pin;
        return IS_OK;
    }
    /* Out of memory or of files: nothing is wrong with the chunk, it is just not served this time. */
    bool there = true;
    bool bad = status == IS_ECORRUPT || status == IS_ENOTFOUND;
    status = bad ? is_chunks_drop(store, &want->row, &there, err) : IS_OK;
    (void)is_tier_finish(store->tier, pin, NULL, NULL);
    want->done = there;
    if (there) (*refused)++;
    return status;
}

/* Nothing stays pinned or announced after a failure. */
static void give_up(is_store *store, is_want *wants, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (wants[i].mine) {
            (void)is_tier_finish(store->tier, wants[i].pin, NULL, NULL);
        } else if (wants[i].pin != NULL) {
            is_tier_unpin(store->tier, wants[i].pin, false);
        }
    }
}

static is_status pin_wants(is_store *store, const uint8_t key[IS_KEY_BYTES], is_want *wants, size_t n, bool count,
                           size_t *refused, is_error *err)
{
    for (;;) {
        bool loading = false;
        is_status status = is_tier_claim(store->tier, key, wants, n, count, err);
        for (size_t i = 0; i < n; i++) loading = loading || wants[i].mine;
        if (status == IS_OK && !loading) return IS_OK;
        if (status == IS_OK) status = look_up(store, key, wants, n, err);
        for (size_t i = 0; i < n && status == IS_OK; i++)
            if (wants[i].mine) status = load(store, &wants[i], refused, err);
        if (status == IS_OK) continue;
        give_up(store, wants, n);
        return status;
    }
}

is_status is_store_pin(is_store *store, int64_t scope, const int64_t *fact_ids, size_t n, const is_chunk_key *key,
                       is_pin **pins, size_t *refused, is_error *err)
{
    size_t bad = 0;
    if (refused != NULL) *refused = 0;
    for (size_t i = 0; i < n; i++) pins[i] = NULL;
    if (n == 0) return IS_OK;
    uint8_t hash[IS_KEY_BYTES];
    is_key_hash(key, hash);
    is_want *wants = calloc(n, sizeof *wants);
    if (wants == NULL) return is_fail(err, IS_ENOMEM, "out of memory for %zu pins", n);
    for (size_t i = 0; i < n; i++) {
        wants[i].fact = fact_ids[i];
        wants[i].scope = fact_ids[i] == 0 ? 0 : scope;
    }
    is_status status = pin_wants(store, hash, wants, n, true, &bad, err);
    for (size_t i = 0; i < n && status == IS_OK; i++) pins[i] = wants[i].pin;
    if (refused != NULL) *refused = bad;
    free(wants);
    return status;
}

void is_store_unpin(is_store *store, is_pin **pins, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (pins[i] == NULL) continue;
        is_tier_unpin(store->tier, pins[i], false);
        pins[i] = NULL;
    }
}

void is_store_doubt(is_store *store, const int64_t *fact_ids, size_t n)
{
    for (size_t i = 0; i < n; i++) is_tier_drop(store->tier, fact_ids[i]);
}

/* ------------------------------------------------------------ warming */

/* The next rows below `before`; a page at a time, so that others get at the database in between. */
static is_status next_rows(is_store *store, const uint8_t key[IS_KEY_BYTES], int64_t before, is_chunk_rows_list *list,
                           is_error *err)
{
    sqlite3_stmt *stmt = NULL;
    const void *bytes = key;
    list->n = 0;
    is_db_lock(store);
    is_status status =
        is_db_query(store, &stmt, err,
                    "SELECT " IS_CHUNK_COLUMNS " FROM chunk c WHERE c.key = ? AND c.id < ? ORDER BY c.id DESC LIMIT 64",
                    "bi", bytes, (size_t)IS_KEY_BYTES, before);
    if (status == IS_OK) status = is_index_read(store, stmt, list, err);
    is_db_unlock(store);
    return status;
}

/* Each comes behind the ones before it in the order of eviction: the newest are kept longest. */
static is_status warm_one(is_store *store, const uint8_t key[IS_KEY_BYTES], const is_chunk_row *row, is_error *err)
{
    size_t refused = 0;
    is_want want = {.fact = row->fact, .scope = row->scope};
    is_status status = pin_wants(store, key, &want, 1, false, &refused, err);
    if (status == IS_OK && want.pin != NULL) is_tier_unpin(store->tier, want.pin, true);
    return status;
}

is_status is_store_warm(is_store *store, const is_chunk_key *key, const atomic_bool *stop, is_error *err)
{
    uint8_t hash[IS_KEY_BYTES];
    is_key_hash(key, hash);
    is_chunk_rows_list list = {NULL, 0, 0};
    is_status status = next_rows(store, hash, INT64_MAX, &list, err);
    bool full = false;
    while (status == IS_OK && list.n > 0 && !full) {
        for (size_t i = 0; i < list.n && status == IS_OK && !full; i++) {
            const is_chunk_row *row = &list.rows[i];
            if (is_tier_holds(store->tier, row->scope, row->fact, hash)) continue;
            full = (stop != NULL && *stop) || !is_tier_fits(store->tier, (size_t)row->bytes);
            if (!full) status = warm_one(store, hash, row, err);
        }
        if (status == IS_OK && !full) status = next_rows(store, hash, list.rows[list.n - 1].id, &list, err);
    }
    free(list.rows);
    return status;
}
