/*
 * Facts: added in one transaction with their words and embeddings, read in pages, filtered.
 *
 * A row of the table fact whose scope is NULL is a forgotten fact (db.c says why it is still a row); every query here
 * asks for a scope, so it never sees one.
 */
#include "store_internal.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ------------------------------------------------------------ lists */

void is_fact_list_free(is_fact_list *list)
{
    if (list == NULL) return;
    for (size_t i = 0; i < list->n; i++) {
        free((char *)(uintptr_t)list->facts[i].text);
        free((char *)(uintptr_t)list->facts[i].source);
        free((char *)(uintptr_t)list->facts[i].metadata);
    }
    free(list->facts);
    free(list->scores);
    free(list);
}

is_status is_fact_list_new(is_fact_list **out, is_error *err)
{
    *out = calloc(1, sizeof **out);
    return *out != NULL ? IS_OK : is_fail(err, IS_ENOMEM, "out of memory for a list of facts");
}

is_status is_column_text(sqlite3_stmt *stmt, int column, const char **out, is_error *err)
{
    *out = NULL;
    const unsigned char *text = sqlite3_column_text(stmt, column);
    if (text == NULL) return IS_OK;
    *out = strdup((const char *)text);
    return *out != NULL ? IS_OK : is_fail(err, IS_ENOMEM, "out of memory for a stored text");
}

is_status is_fact_list_add_row(is_fact_list *list, sqlite3_stmt *stmt, is_error *err)
{
    if ((list->n & (list->n - 1)) == 0) { /* capacity is the next power of two */
        is_fact *grown = realloc(list->facts, (list->n == 0 ? 1 : list->n * 2) * sizeof *grown);
        if (grown == NULL) return is_fail(err, IS_ENOMEM, "out of memory for a list of facts");
        list->facts = grown;
    }
    is_fact *fact = &list->facts[list->n++];
    bool timed = sqlite3_column_type(stmt, 3) != SQLITE_NULL;
    *fact = (is_fact){.id = sqlite3_column_int64(stmt, 0),
                      .time = timed ? sqlite3_column_int64(stmt, 3) : IS_TIME_NONE,
                      .created = sqlite3_column_int64(stmt, 5),
                      .state = IS_FACT_PENDING};
    is_status status = is_column_text(stmt, 1, &fact->text, err);
    if (status == IS_OK) status = is_column_text(stmt, 2, &fact->source, err);
    if (status == IS_OK) status = is_column_text(stmt, 4, &fact->metadata, err);
    return status;
}

is_status is_fact_list_read(is_store *store, sqlite3_stmt *stmt, is_fact_list **out, is_error *err)
{
    is_fact_list *list = NULL;
    is_status status = is_fact_list_new(&list, err);
    bool row = true;
    while (status == IS_OK) {
        status = is_db_step(store, stmt, &row, err);
        if (status != IS_OK || !row) break;
        status = is_fact_list_add_row(list, stmt, err);
    }
    is_db_end(stmt);
    if (status == IS_OK) {
        *out = list;
    } else {
        is_fact_list_free(list);
    }
    return status;
}

/* ------------------------------------------------------------ adding */

is_status is_check_text(const char *what, const char *text, is_error *err)
{
    if (text == NULL || is_utf8_valid(text, strlen(text))) return IS_OK;
    return is_fail(err, IS_EINVAL, "the %s is not valid UTF-8; convert it first", what);
}

/* A JSON object; free it with json_decref. */
static is_status parse_object(const char *what, const char *text, json_t **out, is_error *err)
{
    json_error_t why;
    *out = json_loads(text, 0, &why);
    if (*out == NULL) return is_fail(err, IS_EINVAL, "the %s is not JSON: %s; give a JSON object", what, why.text);
    if (json_is_object(*out)) return IS_OK;
    json_decref(*out);
    *out = NULL;
    return is_fail(err, IS_EINVAL, "the %s is JSON but not an object; give one like {\"topic\": \"food\"}", what);
}

static is_status check_fact(const is_fact *fact, is_error *err)
{
    size_t n = fact->text != NULL ? strlen(fact->text) : 0;
    if (n == 0) return is_fail(err, IS_EINVAL, "a fact has no text; give it 1 to %d bytes", IS_FACT_MAX_BYTES);
    if (n > IS_FACT_MAX_BYTES)
        return is_fail(err, IS_ELIMIT, "a fact's text has %zu bytes and may have %d; split it into single statements",
                       n, IS_FACT_MAX_BYTES);
    is_status status = is_check_text("fact's text", fact->text, err);
    if (status == IS_OK) status = is_check_text("fact's source", fact->source, err);
    if (status != IS_OK || fact->metadata == NULL) return status;
    json_t *object = NULL;
    status = parse_object("fact's metadata", fact->metadata, &object, err);
    json_decref(object);
    return status;
}

static is_status add_fact(is_store *store, int64_t scope, const is_fact *fact, int64_t now, int64_t *id, is_error *err)
{
    char line[IS_FACT_MAX_BYTES + 1];
    size_t n = strlen(fact->text);
    for (size_t i = 0; i <= n; i++) line[i] = fact->text[i] == '\n' || fact->text[i] == '\r' ? ' ' : fact->text[i];
    is_status status = is_db_run(
        store, NULL, err, "INSERT INTO fact(scope, text, source, time, metadata, created) VALUES(?, ?, ?, ?, ?, ?)",
        "ittmti", scope, line, fact->source, fact->time, fact->metadata, now);
    *id = sqlite3_last_insert_rowid(store->db);
    if (status == IS_OK) status = is_words_add(store, scope, *id, line, err);
    return status;
}

static is_status add_all(is_store *store, int64_t scope, const is_fact *facts, size_t n, const uint16_t *embeddings,
                         uint32_t dim, const char *embedder, int64_t *ids, is_error *err)
{
    bool found = false;
    int64_t model = 0;
    is_status status = is_db_int(store, &model, &found, err, "SELECT id FROM scope WHERE id = ?", "i", scope);
    if (status != IS_OK) return status;
    if (!found) return is_fail(err, IS_ENOTFOUND, "there is no scope %lld in this store", (long long)scope);
    if (embeddings != NULL) status = is_embedder_id(store, embedder, dim, true, &model, err);
    int64_t now = (int64_t)time(NULL);
    for (size_t i = 0; i < n && status == IS_OK; i++) {
        int64_t id = 0;
        status = add_fact(store, scope, &facts[i], now, &id, err);
        if (status == IS_OK && embeddings != NULL)
            status = is_vector_put(store, scope, id, model, embeddings + i * dim, dim, err);
        if (ids != NULL) ids[i] = id;
    }
    if (status != IS_OK) return status;
    return is_db_run(store, NULL, err, "UPDATE scope SET facts = facts + ? WHERE id = ?", "ii", (int64_t)n, scope);
}

is_status is_store_add_facts(is_store *store, int64_t scope, const is_fact *facts, size_t n, const uint16_t *embeddings,
                             uint32_t dim, const char *embedder, int64_t *ids, is_error *err)
{
    if (embeddings != NULL && (embedder == NULL || dim == 0))
        return is_fail(err, IS_EINVAL, "embeddings were given without the name or width of their model");
    is_status status = IS_OK;
    for (size_t i = 0; i < n && status == IS_OK; i++) status = check_fact(&facts[i], err);
    if (status != IS_OK || n == 0) return status;
    is_db_lock(store);
    status = is_db_begin(store, err);
    if (status == IS_OK) {
        status = add_all(store, scope, facts, n, embeddings, dim, embedder, ids, err);
        if (status == IS_OK) {
            status = is_db_commit(store, err);
        } else {
            is_db_rollback(store);
        }
    }
    is_db_unlock(store);
    if (status == IS_OK) is_generation_bump(store, scope, false);
    return status;
}

/* ------------------------------------------------------------ reading */

is_status is_store_list(is_store *store, int64_t scope, int64_t after, size_t limit, is_fact_list **out, is_error *err)
{
    *out = NULL;
    sqlite3_stmt *stmt = NULL;
    int64_t at_most = limit > INT64_MAX ? INT64_MAX : (int64_t)limit;
    is_db_lock(store);
    is_status status =
        is_db_query(store, &stmt, err,
                    "SELECT " IS_FACT_COLUMNS " FROM fact f WHERE f.scope = ? AND f.id > ? ORDER BY f.id LIMIT ?",
                    "iii", scope, after, at_most);
    if (status == IS_OK) status = is_fact_list_read(store, stmt, out, err);
    is_db_unlock(store);
    return status;
}

is_status is_store_get(is_store *store, int64_t scope, const int64_t *ids, size_t n, is_fact_list **out, is_error *err)
{
    *out = NULL;
    is_fact_list *list = NULL;
    is_status status = is_fact_list_new(&list, err);
    if (status != IS_OK) return status;
    is_db_lock(store);
    for (size_t i = 0; i < n && status == IS_OK; i++) {
        sqlite3_stmt *stmt = NULL;
        bool row = false;
        status = is_db_query(store, &stmt, err, "SELECT " IS_FACT_COLUMNS " FROM fact f WHERE f.id = ? AND f.scope = ?",
                             "ii", ids[i], scope);
        if (status != IS_OK) break;
        status = is_db_step(store, stmt, &row, err);
        if (status == IS_OK && row) status = is_fact_list_add_row(list, stmt, err);
        is_db_end(stmt);
    }
    is_db_unlock(store);
    if (status == IS_OK) {
        *out = list;
    } else {
        is_fact_list_free(list);
    }
    return status;
}

/* ------------------------------------------------------------ filters */

/* Columns id, time, metadata. */
static bool passes(const is_filter *filter, const json_t *wanted, sqlite3_stmt *stmt)
{
    bool timed = sqlite3_column_type(stmt, 1) != SQLITE_NULL;
    int64_t time = sqlite3_column_int64(stmt, 1);
    if (filter->time_from != IS_TIME_NONE && (!timed || time < filter->time_from)) return false;
    if (filter->time_to != IS_TIME_NONE && (!timed || time >= filter->time_to)) return false;
    if (wanted == NULL || json_object_size(wanted) == 0) return true;
    const unsigned char *text = sqlite3_column_text(stmt, 2);
    if (text == NULL) return false;
    json_t *metadata = json_loads((const char *)text, 0, NULL);
    bool equal = metadata != NULL;
    const char *name = NULL;
    json_t *value = NULL;
    json_object_foreach((json_t *)(uintptr_t)wanted, name, value)
    {
        if (!json_equal(value, json_object_get(metadata, name))) equal = false;
    }
    json_decref(metadata);
    return equal;
}

static is_status open_filter(const is_filter *filter, is_filter *all, json_t **wanted, is_error *err)
{
    *wanted = NULL;
    *all = filter != NULL ? *filter : (is_filter){IS_TIME_NONE, IS_TIME_NONE, NULL};
    return all->metadata != NULL ? parse_object("filter's metadata", all->metadata, wanted, err) : IS_OK;
}

is_status is_store_filter(is_store *store, int64_t scope, const is_filter *filter, const int64_t *ids, size_t n,
                          int64_t *out, size_t *n_out, is_error *err)
{
    *n_out = 0;
    is_filter all;
    json_t *wanted = NULL;
    is_status status = open_filter(filter, &all, &wanted, err);
    if (status != IS_OK) return status;
    is_db_lock(store);
    for (size_t i = 0; i < n && status == IS_OK; i++) {
        sqlite3_stmt *stmt = NULL;
        bool row = false;
        status = is_db_query(store, &stmt, err, "SELECT id, time, metadata FROM fact WHERE id = ? AND scope = ?", "ii",
                             ids[i], scope);
        if (status != IS_OK) break;
        status = is_db_step(store, stmt, &row, err);
        if (status == IS_OK && row && passes(&all, wanted, stmt)) out[(*n_out)++] = ids[i];
        is_db_end(stmt);
    }
    is_db_unlock(store);
    json_decref(wanted);
    return status;
}

static is_status filter_rows(is_store *store, sqlite3_stmt *stmt, const is_filter *filter, const json_t *wanted,
                             int64_t **out, size_t *n_out, is_error *err)
{
    int64_t *ids = NULL;
    size_t used = 0;
    size_t capacity = 0;
    is_status status = IS_OK;
    bool row = true;
    for (;;) {
        status = is_db_step(store, stmt, &row, err);
        if (status != IS_OK || !row) break;
        if (!passes(filter, wanted, stmt)) continue;
        if (used == capacity) {
            capacity = capacity == 0 ? 64 : capacity * 2;
            int64_t *grown = realloc(ids, capacity * sizeof *grown);
            if (grown == NULL) {
                status = is_fail(err, IS_ENOMEM, "out of memory for a list of facts");
                break;
            }
            ids = grown;
        }
        ids[used++] = sqlite3_column_int64(stmt, 0);
    }
    if (status != IS_OK) {
        free(ids);
        return status;
    }
    *out = ids;
    *n_out = used;
    return IS_OK;
}

is_status is_store_filter_all(is_store *store, int64_t scope, const is_filter *filter, int64_t **out, size_t *n_out,
                              is_error *err)
{
    *out = NULL;
    *n_out = 0;
    is_filter all;
    json_t *wanted = NULL;
    is_status status = open_filter(filter, &all, &wanted, err);
    if (status != IS_OK) return status;
    sqlite3_stmt *stmt = NULL;
    is_db_lock(store);
    status =
        is_db_query(store, &stmt, err, "SELECT id, time, metadata FROM fact WHERE scope = ? ORDER BY id", "i", scope);
    if (status == IS_OK) {
        status = filter_rows(store, stmt, &all, wanted, out, n_out, err);
        is_db_end(stmt);
    }
    is_db_unlock(store);
    json_decref(wanted);
    return status;
}
