/*
 * Forgetting.
 *
 * One transaction blanks the texts, with all their editions, and the vectors (db.c says why rows are not deleted),
 * deletes the words, and deletes every chunk of the facts and every chunk that was made behind one of them.  Then the
 * WAL, which still has the pages as they were, is emptied into the database, and the files are unlinked.  When a
 * process dies in between, the next open empties the WAL and unlinks what has no row.
 */
#include "store_internal.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------ some facts */

/* The fact's text into buf; *there false when the scope has no such fact. */
static is_status text_of(is_store *store, int64_t scope, int64_t fact, char buf[IS_FACT_MAX_BYTES + 1], bool *there,
                         is_error *err)
{
    sqlite3_stmt *stmt = NULL;
    is_status status = is_db_query(
        store, &stmt, err, "SELECT " IS_SAYS("text") " FROM fact f" IS_FACT_EDITION " WHERE f.id = ? AND f.scope = ?",
        "ii", fact, scope);
    if (status != IS_OK) return status;
    status = is_db_step(store, stmt, there, err);
    if (*there) {
        size_t n = (size_t)sqlite3_column_bytes(stmt, 0);
        if (n > IS_FACT_MAX_BYTES) n = IS_FACT_MAX_BYTES;
        memcpy(buf, sqlite3_column_blob(stmt, 0), n);
        buf[n] = '\0';
    }
    is_db_end(stmt);
    return status;
}

static is_status blank_fact(is_store *store, int64_t scope, int64_t fact, int64_t *blanked, is_error *err)
{
    int64_t editions = 0;
    is_status status = is_vectors_blank(store, scope, fact, blanked, err);
    if (status == IS_OK)
        status = is_db_run(store, &editions, err,
                           "UPDATE edition SET scope = NULL, fact = NULL, text = NULL, source = NULL, time = NULL,"
                           " metadata = NULL, created = NULL WHERE scope = ? AND fact = ?",
                           "ii", scope, fact);
    if (status == IS_OK)
        status = is_db_run(store, NULL, err,
                           "UPDATE fact SET scope = NULL, text = NULL, source = NULL, time = NULL, metadata = NULL,"
                           " created = NULL WHERE id = ?",
                           "i", fact);
    *blanked += editions + 1;
    return status;
}

static is_status forget_facts(is_store *store, int64_t scope, const int64_t *ids, size_t n, size_t *forgotten,
                              int64_t *blanked, is_chunk_rows_list *chunks, is_error *err)
{
    char text[IS_FACT_MAX_BYTES + 1];
    is_status status = IS_OK;
    for (size_t i = 0; i < n && status == IS_OK; i++) {
        bool there = false;
        status = text_of(store, scope, ids[i], text, &there, err);
        if (status != IS_OK || !there) continue;
        status = is_words_remove(store, scope, ids[i], text, err);
        if (status == IS_OK) status = is_index_delete_fact(store, ids[i], true, chunks, err);
        if (status == IS_OK) status = blank_fact(store, scope, ids[i], blanked, err);
        (*forgotten)++;
    }
    if (status != IS_OK) return status;
    return is_db_run(store, NULL, err, "UPDATE scope SET facts = facts - ? WHERE id = ?", "ii", (int64_t)*forgotten,
                     scope);
}

/* ------------------------------------------------------------ a whole scope */

/* A scope's chunks depend on facts of the scope alone, so all that depends on them is among them. */
static is_status forget_scope(is_store *store, int64_t scope, size_t *forgotten, int64_t *blanked,
                              is_chunk_rows_list *chunks, is_error *err)
{
    static const char *const DELETE[] = {"DELETE FROM posting WHERE scope = ?", "DELETE FROM word WHERE scope = ?",
                                         "UPDATE scope SET facts = 0, turns = 0, words = 0 WHERE id = ?"};
    static const char *const BLANK[] = {
        "UPDATE embedding SET scope = NULL, fact = NULL, embedder = NULL, vector = NULL WHERE scope = ?",
        "UPDATE turn SET scope = NULL, key = NULL, session_key = NULL, id = NULL, session = NULL, speaker = NULL,"
        " text = NULL, time = NULL WHERE scope = ?",
        "UPDATE edition SET scope = NULL, fact = NULL, text = NULL, source = NULL, time = NULL, metadata = NULL,"
        " created = NULL WHERE scope = ?",
        "UPDATE fact SET scope = NULL, text = NULL, source = NULL, time = NULL, metadata = NULL, created = NULL"
        " WHERE scope = ?"};
    sqlite3_stmt *stmt = NULL;
    int64_t changes = 0;
    is_status status =
        is_db_query(store, &stmt, err, "SELECT " IS_CHUNK_COLUMNS " FROM chunk c WHERE c.scope = ?", "i", scope);
    if (status == IS_OK) status = is_index_read(store, stmt, chunks, err);
    if (status == IS_OK) status = is_index_delete(store, chunks->rows, chunks->n, err);
    for (size_t i = 0; i < sizeof DELETE / sizeof *DELETE && status == IS_OK; i++)
        status = is_db_run(store, NULL, err, DELETE[i], "i", scope);
    for (size_t i = 0; i < sizeof BLANK / sizeof *BLANK && status == IS_OK; i++) {
        status = is_db_run(store, &changes, err, BLANK[i], "i", scope);
        *blanked += changes;
    }
    *forgotten = (size_t)changes; /* the facts come last */
    return status;
}

/* ------------------------------------------------------------ both */

static is_status forget_rows(is_store *store, int64_t scope, const int64_t *ids, size_t n, size_t *forgotten,
                             is_chunk_rows_list *chunks, is_error *err)
{
    int64_t blanked = 0;
    is_status status = is_db_begin(store, err);
    if (status != IS_OK) return status;
    status = n == 0 ? forget_scope(store, scope, forgotten, &blanked, chunks, err)
                    : forget_facts(store, scope, ids, n, forgotten, &blanked, chunks, err);
    if (status == IS_OK)
        status = is_db_run(store, NULL, err, "UPDATE counter SET value = value + ? WHERE name = 'blank'", "i", blanked);
    if (status == IS_OK) return is_db_commit(store, err);
    is_db_rollback(store);
    return status;
}

is_status is_store_forget(is_store *store, int64_t scope, const int64_t *ids, size_t n, size_t *forgotten,
                          is_error *err)
{
    size_t n_forgotten = 0;
    is_chunk_rows_list chunks = {NULL, 0, 0};
    (void)pthread_rwlock_rdlock(&store->files);
    is_db_lock(store);
    is_status status = forget_rows(store, scope, ids, n, &n_forgotten, &chunks, err);
    bool committed = status == IS_OK;
    if (committed) {
        if (n_forgotten > 0) is_generation_bump(store, scope, true);
        status = is_db_truncate_wal(store, err);
    }
    is_db_unlock(store);
    if (committed) is_files_unlink(store, chunks.rows, chunks.n);
    (void)pthread_rwlock_unlock(&store->files);
    free(chunks.rows);
    if (forgotten != NULL) *forgotten = committed ? n_forgotten : 0;
    return status;
}
