/*
 * Changing a fact, and its history.
 *
 * What a fact said is never written over.  A change appends an edition, which holds all that the fact says from then
 * on; the newest one counts (IS_FACT_EDITION).  The row in the table fact stays as it was: it is the first edition, and
 * a row with words must not grow (db.c).
 *
 * What was derived from the old text goes in the same transaction: its words, its vectors, its chunk and every chunk
 * that was made behind it.  Whoever is just making a chunk of the old text cannot store it any more (chunks.c).
 */
#include "store_internal.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ------------------------------------------------------------ changing */

typedef struct edition {
    is_fact says;
    bool text, source, time, metadata; /* whether these are others than before */
} edition;

static bool differs(const char *to, const char *from)
{
    return to != NULL && (from == NULL || strcmp(to, from) != 0);
}

/* What the fact says after the change.  text: the change's on one line, or NULL. */
static edition edition_of(const is_fact *now, const is_fact *change, const char *text)
{
    edition e = {.says = *now,
                 .text = differs(text, now->text),
                 .source = differs(change->source, now->source),
                 .time = change->time != IS_TIME_NONE && change->time != now->time,
                 .metadata = differs(change->metadata, now->metadata)};
    if (e.text) e.says.text = text;
    if (e.source) e.says.source = change->source;
    if (e.time) e.says.time = change->time;
    if (e.metadata) e.says.metadata = change->metadata;
    return e;
}

static is_status read_fact(is_store *store, int64_t scope, int64_t id, is_fact_list **out, is_error *err)
{
    sqlite3_stmt *stmt = NULL;
    is_status status = is_db_query(
        store, &stmt, err, "SELECT " IS_FACT_COLUMNS " FROM fact f" IS_FACT_EDITION " WHERE f.id = ? AND f.scope = ?",
        "ii", id, scope);
    if (status == IS_OK) status = is_fact_list_read(store, stmt, out, err);
    if (status != IS_OK || (*out)->n == 1) return status;
    return is_fail(err, IS_ENOTFOUND, "there is no fact %lld in this scope", (long long)id);
}

/* The words and vectors of another text.  embedding may be NULL. */
static is_status derive(is_store *store, int64_t scope, const is_fact *from, const is_fact *to,
                        const uint16_t *embedding, uint32_t dim, const char *embedder, is_error *err)
{
    int64_t blanked = 0;
    int64_t model = 0;
    is_status status = is_words_remove(store, scope, from->id, from->text, err);
    if (status == IS_OK) status = is_words_add(store, scope, to->id, to->text, err);
    if (status == IS_OK) status = is_vectors_blank(store, scope, to->id, &blanked, err);
    if (status == IS_OK)
        status = is_db_run(store, NULL, err, "UPDATE counter SET value = value + ? WHERE name = 'blank'", "i", blanked);
    if (status == IS_OK && embedding != NULL) {
        status = is_embedder_id(store, embedder, dim, true, &model, err);
        if (status == IS_OK) status = is_vector_put(store, scope, to->id, model, embedding, dim, err);
    }
    return status;
}

/* A fact's line in a prompt is its text and its time; its source says behind which turns its own chunk is made. */
static is_status drop_chunks(is_store *store, const edition *e, is_chunk_rows_list *chunks, is_error *err)
{
    if (e->text || e->time) return is_index_delete_fact(store, e->says.id, true, chunks, err);
    return e->source ? is_index_delete_fact(store, e->says.id, false, chunks, err) : IS_OK;
}

typedef struct request {
    int64_t scope, id;
    const is_fact *change;
    const uint16_t *embedding; /* [dim], or NULL */
    uint32_t dim;
    const char *embedder;
} request;

/* In a transaction.  *line: whether the fact's line in a prompt is another one now. */
static is_status change_rows(is_store *store, const request *r, bool *line, is_chunk_rows_list *chunks, is_error *err)
{
    char text[IS_FACT_MAX_BYTES + 1];
    is_fact_list *list = NULL;
    if (r->change->text != NULL) is_one_line(r->change->text, text);
    is_status status = read_fact(store, r->scope, r->id, &list, err);
    if (status == IS_OK) {
        edition e = edition_of(&list->facts[0], r->change, r->change->text != NULL ? text : NULL);
        *line = e.text || e.time;
        if (e.text) status = derive(store, r->scope, &list->facts[0], &e.says, r->embedding, r->dim, r->embedder, err);
        if (status == IS_OK) status = drop_chunks(store, &e, chunks, err);
        if (status == IS_OK && (e.text || e.source || e.time || e.metadata))
            status = is_db_run(store, NULL, err,
                               "INSERT INTO edition(scope, fact, text, source, time, metadata, created)"
                               " VALUES(?, ?, ?, ?, ?, ?, ?)",
                               "iittmti", r->scope, r->id, e.says.text, e.says.source, e.says.time, e.says.metadata,
                               (int64_t)time(NULL));
    }
    is_fact_list_free(list);
    return status;
}

is_status is_store_change_fact(is_store *store, int64_t scope, int64_t id, const is_fact *change,
                               const uint16_t *embedding, uint32_t dim, const char *embedder, is_error *err)
{
    if (embedding != NULL && (embedder == NULL || dim == 0))
        return is_fail(err, IS_EINVAL, "an embedding was given without the name or width of its model");
    is_status status = is_check_fact(change, true, err);
    if (status != IS_OK) return status;
    const request r = {scope, id, change, embedding, dim, embedder};
    is_chunk_rows_list chunks = {NULL, 0, 0};
    bool line = false;
    (void)pthread_rwlock_rdlock(&store->files);
    is_db_lock(store);
    status = is_db_begin(store, err);
    if (status == IS_OK) {
        status = change_rows(store, &r, &line, &chunks, err);
        if (status == IS_OK) {
            status = is_db_commit(store, err);
        } else {
            is_db_rollback(store);
        }
    }
    if (status == IS_OK && line) is_generation_bump(store, scope, true);
    is_db_unlock(store);
    if (status == IS_OK) is_files_unlink(store, chunks.rows, chunks.n);
    (void)pthread_rwlock_unlock(&store->files);
    free(chunks.rows);
    return status;
}

/* ------------------------------------------------------------ history */

void is_edition_list_free(is_edition_list *list)
{
    if (list == NULL) return;
    for (size_t i = 0; i < list->n; i++) {
        free((char *)(uintptr_t)list->editions[i].text);
        free((char *)(uintptr_t)list->editions[i].source);
        free((char *)(uintptr_t)list->editions[i].metadata);
    }
    free(list->editions);
    free(list);
}

/* Columns text, source, time, metadata, created. */
static is_status add_edition(is_edition_list *list, sqlite3_stmt *stmt, is_error *err)
{
    if ((list->n & (list->n - 1)) == 0) { /* capacity is the next power of two */
        is_edition *grown = realloc(list->editions, (list->n == 0 ? 1 : list->n * 2) * sizeof *grown);
        if (grown == NULL) return is_fail(err, IS_ENOMEM, "out of memory for a fact's history");
        list->editions = grown;
    }
    bool timed = sqlite3_column_type(stmt, 2) != SQLITE_NULL;
    is_edition *e = &list->editions[list->n++];
    *e = (is_edition){.id = (int64_t)list->n,
                      .time = timed ? sqlite3_column_int64(stmt, 2) : IS_TIME_NONE,
                      .changed = sqlite3_column_int64(stmt, 4)};
    is_status status = is_column_text(stmt, 0, &e->text, err);
    if (status == IS_OK) status = is_column_text(stmt, 1, &e->source, err);
    if (status == IS_OK) status = is_column_text(stmt, 3, &e->metadata, err);
    return status;
}

static is_status read_editions(is_store *store, sqlite3_stmt *stmt, is_edition_list *list, is_error *err)
{
    bool row = true;
    for (;;) {
        is_status status = is_db_step(store, stmt, &row, err);
        if (status != IS_OK || !row) return status;
        status = add_edition(list, stmt, err);
        if (status != IS_OK) return status;
    }
}

is_status is_store_history(is_store *store, int64_t scope, int64_t id, is_edition_list **out, is_error *err)
{
    *out = NULL;
    is_edition_list *list = calloc(1, sizeof *list);
    if (list == NULL) return is_fail(err, IS_ENOMEM, "out of memory for a fact's history");
    sqlite3_stmt *stmt = NULL;
    is_db_lock(store);
    is_status status =
        is_db_query(store, &stmt, err,
                    "SELECT text, source, time, metadata, created, 0 AS at FROM fact WHERE id = ?1 AND scope = ?2"
                    " UNION ALL SELECT text, source, time, metadata, created, id FROM edition WHERE scope = ?2"
                    " AND fact = ?1 ORDER BY at",
                    "ii", id, scope);
    if (status == IS_OK) {
        status = read_editions(store, stmt, list, err);
        is_db_end(stmt);
    }
    is_db_unlock(store);
    if (status == IS_OK && list->n == 0)
        status = is_fail(err, IS_ENOTFOUND, "there is no fact %lld in this scope", (long long)id);
    if (status == IS_OK) {
        *out = list;
    } else {
        is_edition_list_free(list);
    }
    return status;
}
