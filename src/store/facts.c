/*
 * Facts: added in one transaction with their words and embeddings, read in pages, filtered.
 *
 * What a changed fact says stands in its newest edition (change.c); IS_FACT_EDITION joins it to the fact's own row.
 * Where many facts are read, the two tables are walked side by side instead.
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

is_status is_check_fact(const is_fact *fact, bool change, is_error *err)
{
    size_t n = fact->text != NULL ? strlen(fact->text) : 0;
    if (n == 0 && !(change && fact->text == NULL))
        return is_fail(err, IS_EINVAL, "a fact has no text; give it 1 to %d bytes", IS_FACT_MAX_BYTES);
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

void is_one_line(const char *text, char line[IS_FACT_MAX_BYTES + 1])
{
    size_t n = strlen(text);
    for (size_t i = 0; i <= n; i++) line[i] = text[i] == '\n' || text[i] == '\r' ? ' ' : text[i];
}

static is_status add_fact(is_store *store, int64_t scope, const is_fact *fact, int64_t now, int64_t *id, is_error *err)
{
    char line[IS_FACT_MAX_BYTES + 1];
    is_one_line(fact->text, line);
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
    for (size_t i = 0; i < n && status == IS_OK; i++) status = is_check_fact(&facts[i], false, err);
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

/* ------------------------------------------------------------ walking over a scope */

/*
 * A scope's facts as they were added and the newest editions of those that were changed, both by rising id of the fact.
 * One walk over them is enough, and a fact that was never changed costs nothing more than its own row.
 */
typedef struct walk {
    sqlite3_stmt *facts, *editions; /* the same columns, the fact's id first */
    int64_t changed;                /* the fact whose edition is at hand, INT64_MAX behind the last */
} walk;

#define NEWEST                                                                                                         \
    " FROM edition e WHERE e.scope = ?1 AND e.fact > ?2 AND NOT EXISTS(SELECT 1 FROM edition n"                        \
    " WHERE n.scope = e.scope AND n.fact = e.fact AND n.id > e.id) ORDER BY e.fact"

static is_status next_edition(is_store *store, walk *w, is_error *err)
{
    bool row = false;
    is_status status = is_db_step(store, w->editions, &row, err);
    w->changed = row ? sqlite3_column_int64(w->editions, 0) : INT64_MAX;
    return status;
}

static void walk_end(walk *w)
{
    if (w->editions != NULL) is_db_end(w->editions);
    if (w->facts != NULL) is_db_end(w->facts);
}

/* facts: ?1 scope, ?2 after, ?3 limit; editions: ?1 and ?2.  On failure there is nothing to end. */
static is_status walk_begin(is_store *store, const char *facts, const char *editions, int64_t scope, int64_t after,
                            int64_t limit, walk *w, is_error *err)
{
    *w = (walk){NULL, NULL, 0};
    is_status status = is_db_query(store, &w->facts, err, facts, "iii", scope, after, limit);
    if (status != IS_OK) return status;
    status = is_db_query(store, &w->editions, err, editions, "ii", scope, after);
    if (status == IS_OK) status = next_edition(store, w, err);
    if (status != IS_OK) walk_end(w);
    return status;
}

/* *row: the statement that stands on what the next fact says now, NULL behind the last one. */
static is_status walk_next(is_store *store, walk *w, sqlite3_stmt **row, is_error *err)
{
    bool more = false;
    *row = NULL;
    is_status status = is_db_step(store, w->facts, &more, err);
    if (status != IS_OK || !more) return status;
    int64_t id = sqlite3_column_int64(w->facts, 0);
    while (status == IS_OK && w->changed < id) status = next_edition(store, w, err);
    *row = w->changed == id ? w->editions : w->facts;
    return status;
}

/* ------------------------------------------------------------ reading */

static is_status list_rows(is_store *store, walk *w, is_fact_list *list, is_error *err)
{
    sqlite3_stmt *row = NULL;
    for (;;) {
        is_status status = walk_next(store, w, &row, err);
        if (status != IS_OK || row == NULL) return status;
        status = is_fact_list_add_row(list, row, err);
        if (status != IS_OK) return status;
    }
}

is_status is_store_count_facts(is_store *store, int64_t scope, uint64_t *n, is_error *err)
{
    int64_t facts = 0;
    is_db_lock(store);
    is_status status = is_db_int(store, &facts, NULL, err, "SELECT facts FROM scope WHERE id = ?", "i", scope);
    is_db_unlock(store);
    *n = (uint64_t)facts;
    return status;
}

is_status is_store_at_ranks(is_store *store, int64_t scope, const uint64_t *ranks, size_t n, int64_t *ids,
                            is_error *err)
{
    sqlite3_stmt *stmt = NULL;
    size_t found = 0;
    bool row = true;
    memset(ids, 0, n * sizeof *ids);
    is_db_lock(store);
    is_status status = is_db_query(store, &stmt, err, "SELECT id FROM fact WHERE scope = ? ORDER BY id", "i", scope);
    for (uint64_t at = 0; status == IS_OK && row && found < n; at++) {
        status = is_db_step(store, stmt, &row, err);
        while (status == IS_OK && row && found < n && ranks[found] == at) ids[found++] = sqlite3_column_int64(stmt, 0);
    }
    is_db_end(stmt);
    is_db_unlock(store);
    return status;
}

is_status is_store_group_before(is_store *store, int64_t scope, int64_t id, size_t most, int64_t *ids, size_t *n,
                                is_error *err)
{
    sqlite3_stmt *stmt = NULL;
    size_t found = 0;
    bool row = true;
    is_db_lock(store);
    is_status status = is_db_query(store, &stmt, err,
                                   "SELECT id FROM (SELECT id FROM fact WHERE scope = ?1 AND id < ?2 ORDER BY id DESC"
                                   " LIMIT (SELECT count(*) FROM fact WHERE scope = ?1 AND id < ?2) % ?3) ORDER BY id",
                                   "iii", scope, id, (int64_t)most);
    while (status == IS_OK && row) {
        status = is_db_step(store, stmt, &row, err);
        if (status == IS_OK && row) ids[found++] = sqlite3_column_int64(stmt, 0);
    }
    is_db_end(stmt);
    is_db_unlock(store);
    *n = status == IS_OK ? found : 0;
    return status;
}

is_status is_store_list(is_store *store, int64_t scope, int64_t after, size_t limit, is_fact_list **out, is_error *err)
{
    static const char FACTS[] = "SELECT id, text, source, time, metadata, created FROM fact"
                                " WHERE scope = ?1 AND id > ?2 ORDER BY id LIMIT ?3";
    static const char EDITIONS[] = "SELECT e.fact, e.text, e.source, e.time, e.metadata,"
                                   " (SELECT created FROM fact WHERE id = e.fact)" NEWEST;
    *out = NULL;
    is_fact_list *list = NULL;
    is_status status = is_fact_list_new(&list, err);
    if (status != IS_OK) return status;
    walk w;
    is_db_lock(store);
    status = walk_begin(store, FACTS, EDITIONS, scope, after, limit > INT64_MAX ? INT64_MAX : (int64_t)limit, &w, err);
    if (status == IS_OK) {
        status = list_rows(store, &w, list, err);
        walk_end(&w);
    }
    is_db_unlock(store);
    if (status == IS_OK) {
        *out = list;
    } else {
        is_fact_list_free(list);
    }
    return status;
}

/* Whether a fact of the scope was ever changed; where none was, no fact's editions need to be looked for. */
static is_status has_editions(is_store *store, int64_t scope, bool *any, is_error *err)
{
    int64_t one = 0;
    return is_db_int(store, &one, any, err, "SELECT 1 FROM edition WHERE scope = ? LIMIT 1", "i", scope);
}

#define OF_SCOPE " WHERE f.id = ? AND f.scope = ?"

is_status is_store_get(is_store *store, int64_t scope, const int64_t *ids, size_t n, is_fact_list **out, is_error *err)
{
    static const char FIRST[] = "SELECT f.id, f.text, f.source, f.time, f.metadata, f.created FROM fact f" OF_SCOPE;
    static const char NOW[] = "SELECT " IS_FACT_COLUMNS " FROM fact f" IS_FACT_EDITION OF_SCOPE;
    *out = NULL;
    bool edited = false;
    is_fact_list *list = NULL;
    is_status status = is_fact_list_new(&list, err);
    if (status != IS_OK) return status;
    is_db_lock(store);
    status = has_editions(store, scope, &edited, err);
    for (size_t i = 0; i < n && status == IS_OK; i++) {
        sqlite3_stmt *stmt = NULL;
        bool row = false;
        status = is_db_query(store, &stmt, err, edited ? NOW : FIRST, "ii", ids[i], scope);
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
    static const char FIRST[] = "SELECT f.id, f.time, f.metadata FROM fact f" OF_SCOPE;
    static const char NOW[] =
        "SELECT f.id, " IS_SAYS("time") ", " IS_SAYS("metadata") " FROM fact f" IS_FACT_EDITION OF_SCOPE;
    *n_out = 0;
    is_filter all;
    json_t *wanted = NULL;
    bool edited = false;
    is_status status = open_filter(filter, &all, &wanted, err);
    if (status != IS_OK) return status;
    is_db_lock(store);
    status = has_editions(store, scope, &edited, err);
    for (size_t i = 0; i < n && status == IS_OK; i++) {
        sqlite3_stmt *stmt = NULL;
        bool row = false;
        status = is_db_query(store, &stmt, err, edited ? NOW : FIRST, "ii", ids[i], scope);
        if (status != IS_OK) break;
        status = is_db_step(store, stmt, &row, err);
        if (status == IS_OK && row && passes(&all, wanted, stmt)) out[(*n_out)++] = ids[i];
        is_db_end(stmt);
    }
    is_db_unlock(store);
    json_decref(wanted);
    return status;
}

static is_status filter_rows(is_store *store, walk *w, const is_filter *filter, const json_t *wanted, int64_t **ids,
                             size_t *n, is_error *err)
{
    sqlite3_stmt *row = NULL;
    for (;;) {
        is_status status = walk_next(store, w, &row, err);
        if (status != IS_OK || row == NULL) return status;
        if (!passes(filter, wanted, row)) continue;
        if ((*n & (*n - 1)) == 0) { /* capacity is the next power of two */
            int64_t *grown = realloc(*ids, (*n == 0 ? 1 : *n * 2) * sizeof *grown);
            if (grown == NULL) return is_fail(err, IS_ENOMEM, "out of memory for a list of facts");
            *ids = grown;
        }
        (*ids)[(*n)++] = sqlite3_column_int64(row, 0);
    }
}

is_status is_store_filter_all(is_store *store, int64_t scope, const is_filter *filter, int64_t **out, size_t *n_out,
                              is_error *err)
{
    static const char FACTS[] = "SELECT id, time, metadata FROM fact WHERE scope = ?1 AND id > ?2 ORDER BY id LIMIT ?3";
    static const char EDITIONS[] = "SELECT e.fact, e.time, e.metadata" NEWEST;
    *out = NULL;
    *n_out = 0;
    is_filter all;
    json_t *wanted = NULL;
    is_status status = open_filter(filter, &all, &wanted, err);
    if (status != IS_OK) return status;
    int64_t *ids = NULL;
    size_t n = 0;
    walk w;
    is_db_lock(store);
    status = walk_begin(store, FACTS, EDITIONS, scope, 0, INT64_MAX, &w, err);
    if (status == IS_OK) {
        status = filter_rows(store, &w, &all, wanted, &ids, &n, err);
        walk_end(&w);
    }
    is_db_unlock(store);
    json_decref(wanted);
    if (status == IS_OK) {
        *out = ids;
        *n_out = n;
    } else {
        free(ids);
    }
    return status;
}
