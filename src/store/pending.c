/*
 * What is ready and what is still to be encoded: questions to the chunk index, no file is read.
 */
#include "store_internal.h"

#include <stdlib.h>

/* The header's chunk stands under no scope. */
static int64_t scope_of(int64_t scope, int64_t fact)
{
    return fact == 0 ? 0 : scope;
}

is_status is_store_ready(is_store *store, int64_t scope, const int64_t *fact_ids, size_t n, const is_chunk_key *key,
                         bool *ready, is_error *err)
{
    uint8_t hash[IS_KEY_BYTES];
    is_key_hash(key, hash);
    is_status status = IS_OK;
    for (size_t i = 0; i < n && status == IS_OK; i++) {
        int64_t id = 0;
        int64_t owner = scope_of(scope, fact_ids[i]);
        ready[i] = is_tier_holds(store->tier, owner, fact_ids[i], hash);
        if (ready[i]) continue;
        is_db_lock(store);
        status = is_db_int(store, &id, &ready[i], err, "SELECT id FROM chunk WHERE fact = ? AND scope = ? AND key = ?",
                           "iib", fact_ids[i], owner, (const void *)hash, sizeof hash);
        is_db_unlock(store);
    }
    return status;
}

/* The row's fact, whose scope is the column behind IS_FACT_COLUMNS. */
static is_status read_pending(is_store *store, sqlite3_stmt *stmt, is_fact_list *list, int64_t **scopes, is_error *err)
{
    size_t capacity = 0;
    bool row = true;
    for (;;) {
        is_status status = is_db_step(store, stmt, &row, err);
        if (status != IS_OK || !row) return status;
        if (*scopes == NULL || list->n == capacity) {
            capacity = capacity == 0 ? 64 : capacity * 2;
            int64_t *grown = realloc(*scopes, capacity * sizeof *grown);
            if (grown == NULL) return is_fail(err, IS_ENOMEM, "out of memory for a list of facts");
            *scopes = grown;
        }
        (*scopes)[list->n] = sqlite3_column_int64(stmt, 6);
        status = is_fact_list_add_row(list, stmt, err);
        if (status != IS_OK) return status;
    }
}

is_status is_store_pending(is_store *store, int64_t scope, const is_chunk_key *key, int64_t after, size_t limit,
                           is_fact_list **facts, int64_t **scopes, is_error *err)
{
#define PENDING(WHOSE)                                                                                                 \
    "SELECT " IS_FACT_COLUMNS                                                                                          \
    ", f.scope FROM fact f LEFT JOIN chunk c ON c.fact = f.id AND c.key = ?1" IS_FACT_EDITION " WHERE f.scope " WHOSE  \
    " AND f.id > ?2 AND c.id IS NULL ORDER BY f.id LIMIT ?3"
    uint8_t hash[IS_KEY_BYTES];
    is_key_hash(key, hash);
    int64_t at_most = limit > INT64_MAX ? INT64_MAX : (int64_t)limit;
    sqlite3_stmt *stmt = NULL;
    *scopes = NULL;
    *facts = NULL;
    is_fact_list *list = NULL;
    is_status status = is_fact_list_new(&list, err);
    if (status != IS_OK) return status;
    is_db_lock(store);
    status = is_db_newest_edition(store, &store->texts_read, err);
    if (status == IS_OK && scope == 0) {
        status = is_db_query(store, &stmt, err, PENDING("IS NOT NULL"), "bii", (const void *)hash, sizeof hash, after,
                             at_most);
    } else if (status == IS_OK) {
        status = is_db_query(store, &stmt, err, PENDING("= ?4"), "biii", (const void *)hash, sizeof hash, after,
                             at_most, scope);
    }
    if (status == IS_OK) {
        status = read_pending(store, stmt, list, scopes, err);
        is_db_end(stmt);
    }
    is_db_unlock(store);
    if (status == IS_OK) {
        *facts = list;
        return IS_OK;
    }
    is_fact_list_free(list);
    free(*scopes);
    *scopes = NULL;
    return status;
#undef PENDING
}

is_status is_store_count_pending(is_store *store, int64_t scope, const is_chunk_key *key, uint64_t *n, is_error *err)
{
    uint8_t hash[IS_KEY_BYTES];
    is_key_hash(key, hash);
    int64_t facts = 0;
    int64_t ready = 0;
    *n = 0;
    is_db_lock(store);
    is_status status =
        is_db_int(store, &facts, NULL, err, "SELECT sum(facts) FROM scope WHERE ?1 = 0 OR id = ?1", "i", scope);
    if (status == IS_OK && scope != 0)
        status = is_db_int(store, &ready, NULL, err, "SELECT count(*) FROM chunk WHERE scope = ? AND key = ?", "ib",
                           scope, (const void *)hash, sizeof hash);
    if (status == IS_OK && scope == 0)
        status = is_db_int(store, &ready, NULL, err, "SELECT count(*) FROM chunk WHERE scope <> 0 AND key = ?", "b",
                           (const void *)hash, sizeof hash);
    is_db_unlock(store);
    if (status == IS_OK) *n = (uint64_t)(facts - ready);
    return status;
}

is_status is_store_outdated(is_store *store, int64_t scope, const is_chunk_key *key, int64_t dep, int64_t after,
                            size_t limit, is_fact_list **facts, is_error *err)
{
    uint8_t hash[IS_KEY_BYTES];
    is_key_hash(key, hash);
    sqlite3_stmt *stmt = NULL;
    *facts = NULL;
    is_db_lock(store);
    is_status status = is_db_newest_edition(store, &store->texts_read, err);
    if (status == IS_OK)
        status = is_db_query(store, &stmt, err,
                             "SELECT " IS_FACT_COLUMNS " FROM chunk c JOIN fact f ON f.id = c.fact" IS_FACT_EDITION
                             " WHERE c.scope = ? AND c.key = ? AND c.fact > ? AND NOT EXISTS"
                             " (SELECT 1 FROM chunk_fact d WHERE d.chunk = c.id AND d.fact >= ?)"
                             " ORDER BY c.fact LIMIT ?",
                             "ibiii", scope, (const void *)hash, sizeof hash, after, dep, (int64_t)limit);
    if (status == IS_OK) status = is_fact_list_read(store, stmt, facts, err);
    is_db_unlock(store);
    return status;
}
