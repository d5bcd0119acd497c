/*
 * Checking the whole store: every chunk, the folder against the index, the word index against the texts, and the
 * database by its own check.  Chunks are read page by page without a lock, so the store goes on serving.
 */
#include "store_internal.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct check {
    is_store *store;
    bool repair;
    void (*on_problem)(void *user, const char *line);
    void *user;
    is_verify_report *report;
} check;

static void tell(const check *c, const char *line)
{
    if (c->on_problem != NULL) c->on_problem(c->user, line);
}

/* ------------------------------------------------------------ chunks */

static is_status still_there(is_store *store, const is_chunk_row *row, bool *there, is_error *err)
{
    int64_t id = 0;
    is_db_lock(store);
    is_status status = is_db_int(store, &id, there, err, "SELECT id FROM chunk WHERE id = ?", "i", row->id);
    is_db_unlock(store);
    return status;
}

static is_status check_chunk(const check *c, const is_chunk_row *row, is_error *err)
{
    void *bytes = NULL;
    is_chunk chunk;
    is_error why = {0};
    is_status status = is_files_load(c->store, row, &bytes, &chunk, &why);
    if (status == IS_OK) status = is_files_check_parts(c->store, &chunk, true, &why);
    free(bytes);
    bool bad = status == IS_ECORRUPT || status == IS_ENOTFOUND;
    if (status != IS_OK && !bad) return is_fail(err, status, "%s", why.text);
    c->report->chunks_checked++;
    if (!bad) return IS_OK;
    bool missing = status == IS_ENOTFOUND;
    bool there = false; /* it may have been replaced or forgotten while it was read */
    status = c->repair ? is_chunks_drop(c->store, row, &there, err) : still_there(c->store, row, &there, err);
    if (status != IS_OK || !there) return status;
    if (missing) {
        c->report->files_missing++;
    } else {
        c->report->chunks_bad++;
    }
    char line[sizeof why.text + 64];
    (void)snprintf(line, sizeof line, "fact %lld: %s", (long long)row->fact, why.text);
    tell(c, line);
    return IS_OK;
}

static is_status check_chunks(const check *c, is_error *err)
{
    is_chunk_rows_list page = {NULL, 0, 0};
    int64_t after = 0;
    is_status status = IS_OK;
    do {
        sqlite3_stmt *stmt = NULL;
        page.n = 0;
        is_db_lock(c->store);
        status =
            is_db_query(c->store, &stmt, err,
                        "SELECT " IS_CHUNK_COLUMNS " FROM chunk c WHERE c.id > ? ORDER BY c.id LIMIT 64", "i", after);
        if (status == IS_OK) status = is_index_read(c->store, stmt, &page, err);
        is_db_unlock(c->store);
        for (size_t i = 0; i < page.n && status == IS_OK; i++) status = check_chunk(c, &page.rows[i], err);
        if (page.n > 0) after = page.rows[page.n - 1].id;
    } while (status == IS_OK && page.n > 0);
    free(page.rows);
    return status;
}

/* ------------------------------------------------------------ database */

/* Lines of a check whose first column is text; "ok" is none. */
static is_status check_lines(const check *c, const char *sql, const char *what, is_error *err)
{
    sqlite3_stmt *stmt = NULL;
    bool row = true;
    is_status status = is_db_query(c->store, &stmt, err, sql, "");
    if (status != IS_OK) return status;
    for (;;) {
        status = is_db_step(c->store, stmt, &row, err);
        if (status != IS_OK || !row) break;
        const char *text = (const char *)sqlite3_column_text(stmt, 0);
        if (text != NULL && sqlite3_stricmp(text, "ok") == 0) continue;
        char line[512];
        (void)snprintf(line, sizeof line, "%s: %s", what, text != NULL ? text : "");
        c->report->database_bad++;
        tell(c, line);
    }
    is_db_end(stmt);
    return status;
}

static is_status check_words(const check *c, is_error *err)
{
    uint64_t bad = 0;
    is_status status = is_words_check(c->store, &bad, err);
    if (status != IS_OK || bad == 0) return status;
    char line[128];
    (void)snprintf(line, sizeof line, "word index and counts: %llu entries do not agree with the facts' texts",
                   (unsigned long long)bad);
    c->report->database_bad += bad;
    tell(c, line);
    return c->repair ? is_words_rebuild(c->store, err) : IS_OK;
}

static is_status check_database(const check *c, is_error *err)
{
    is_db_lock(c->store);
    is_status status = check_lines(c, "PRAGMA integrity_check", "database", err);
    if (status == IS_OK) status = check_lines(c, "PRAGMA foreign_key_check", "row without its owner in table", err);
    if (status == IS_OK) status = check_words(c, err);
    is_db_unlock(c->store);
    return status;
}

is_status is_store_verify(is_store *store, bool repair, void (*on_problem)(void *user, const char *line), void *user,
                          is_verify_report *out, is_error *err)
{
    *out = (is_verify_report){0};
    check c = {store, repair, on_problem, user, out};
    is_status status = check_chunks(&c, err);
    if (status == IS_OK)
        status = is_chunks_reconcile(store, repair, false, &out->files_orphaned, on_problem, user, err);
    return status == IS_OK ? check_database(&c, err) : status;
}
