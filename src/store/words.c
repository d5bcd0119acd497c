/*
 * The word index: which facts of a scope have a word, how often, and how many words they have.
 *
 * The words come from SQLite's FTS5 tokenizer (porter over unicode61: letters and digits of any script, lower case,
 * without accents, English endings cut), called through its C interface.  The index itself is two plain tables and not
 * an FTS5 table, for three reasons:
 *  - a scope is the first part of the key, so one user's words neither reach another nor make them look common; in a
 *    shared FTS5 index every word's postings grow with the number of users;
 *  - how many facts have a word is kept and not counted, so a query knows at once which words are rare (FTS5's bm25()
 *    walks through all postings of every word of the query, the scope's included);
 *  - forgetting a fact deletes its few postings; FTS5 of 3.40 keeps deleted words until the whole index is merged.
 * Tables hold hashes of stems and no words, since their rows do move between pages (db.c).
 */
#include "store_internal.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

struct is_tokenizer {
    fts5_tokenizer calls;
    Fts5Tokenizer *instance;
};

/* is_store_set_setting keeps names that begin with "store." for the store itself. */
#define INDEX_SETTING "store.words"
#define INDEX_VERSION "1 porter unicode61 " /* and SQLite's version */

/* ------------------------------------------------------------ splitting */

typedef struct split {
    is_word *words;
    size_t n;
} split;

static int take_word(void *context, int flags, const char *token, int n, int start, int end)
{
    (void)flags;
    (void)start;
    (void)end;
    split *s = context;
    if (s->n == IS_WORDS_MAX) return SQLITE_DONE;
    s->words[s->n++] = (is_word){(int64_t)XXH3_64bits(token, (size_t)n), 1, 0};
    return SQLITE_OK;
}

static int by_hash(const void *a, const void *b)
{
    int64_t x = ((const is_word *)a)->hash;
    int64_t y = ((const is_word *)b)->hash;
    return (x > y) - (x < y);
}

is_status is_words_split(is_store *store, const char *text, bool query, is_word words[IS_WORDS_MAX], size_t *n,
                         is_error *err)
{
    is_tokenizer *t = store->tokenizer;
    split s = {words, 0};
    size_t n_bytes = strlen(text);
    if (n_bytes > INT32_MAX) return is_fail(err, IS_ELIMIT, "a text of %zu bytes is too long to be indexed", n_bytes);
    int flags = query ? FTS5_TOKENIZE_QUERY : FTS5_TOKENIZE_DOCUMENT;
    int rc = t->calls.xTokenize(t->instance, &s, flags, text, (int)n_bytes, take_word);
    if (rc != SQLITE_OK && rc != SQLITE_DONE)
        return is_fail(err, IS_ENOMEM, "a text could not be cut into words: %s", sqlite3_errstr(rc));
    if (s.n > 1) qsort(words, s.n, sizeof *words, by_hash);
    size_t kept = 0;
    for (size_t i = 0; i < s.n; i++) {
        if (kept > 0 && words[kept - 1].hash == words[i].hash) {
            words[kept - 1].n++;
        } else {
            words[kept++] = words[i];
        }
    }
    for (size_t i = 0; i < kept; i++) words[i].n_text = (uint32_t)s.n;
    *n = kept;
    return IS_OK;
}

/* ------------------------------------------------------------ one fact */

is_status is_words_add(is_store *store, int64_t scope, int64_t fact, const char *text, is_error *err)
{
    is_word words[IS_WORDS_MAX];
    size_t n = 0;
    is_status status = is_words_split(store, text, false, words, &n, err);
    for (size_t i = 0; i < n && status == IS_OK; i++) {
        status = is_db_run(store, NULL, err,
                           "INSERT INTO word(scope, hash, facts) VALUES(?, ?, 1)"
                           " ON CONFLICT(scope, hash) DO UPDATE SET facts = facts + 1",
                           "ii", scope, words[i].hash);
        if (status == IS_OK)
            status =
                is_db_run(store, NULL, err, "INSERT INTO posting(scope, hash, fact, n, n_text) VALUES(?, ?, ?, ?, ?)",
                          "iiiii", scope, words[i].hash, fact, (int64_t)words[i].n, (int64_t)words[i].n_text);
    }
    if (status != IS_OK || n == 0) return status;
    return is_db_run(store, NULL, err, "UPDATE scope SET words = words + ? WHERE id = ?", "ii",
                     (int64_t)words[0].n_text, scope);
}

is_status is_words_remove(is_store *store, int64_t scope, int64_t fact, const char *text, is_error *err)
{
    is_word words[IS_WORDS_MAX];
    size_t n = 0;
    is_status status = is_words_split(store, text, false, words, &n, err);
    for (size_t i = 0; i < n && status == IS_OK; i++) {
        status = is_db_run(store, NULL, err, "DELETE FROM posting WHERE scope = ? AND hash = ? AND fact = ?", "iii",
                           scope, words[i].hash, fact);
        if (status == IS_OK)
            status = is_db_run(store, NULL, err, "UPDATE word SET facts = facts - 1 WHERE scope = ? AND hash = ?", "ii",
                               scope, words[i].hash);
        if (status == IS_OK)
            status = is_db_run(store, NULL, err, "DELETE FROM word WHERE scope = ? AND hash = ? AND facts <= 0", "ii",
                               scope, words[i].hash);
    }
    if (status != IS_OK || n == 0) return status;
    return is_db_run(store, NULL, err, "UPDATE scope SET words = words - ? WHERE id = ?", "ii",
                     (int64_t)words[0].n_text, scope);
}

/* ------------------------------------------------------------ the whole index */

static is_status rebuild_rows(is_store *store, is_error *err)
{
    is_status status = is_db_run(store, NULL, err, "DELETE FROM posting", "");
    if (status == IS_OK) status = is_db_run(store, NULL, err, "DELETE FROM word", "");
    if (status == IS_OK)
        status = is_db_run(store, NULL, err,
                           "UPDATE scope SET words = 0, facts = (SELECT count(*) FROM fact WHERE scope = scope.id),"
                           " turns = (SELECT count(*) FROM turn WHERE scope = scope.id)",
                           "");
    sqlite3_stmt *stmt = NULL;
    bool row = true;
    if (status == IS_OK)
        status = is_db_query(store, &stmt, err,
                             "SELECT f.id, f.scope, " IS_SAYS("text") " FROM fact f" IS_FACT_EDITION
                                                                      " WHERE f.scope IS NOT NULL ORDER BY f.id",
                             "");
    if (status != IS_OK) return status;
    for (;;) {
        status = is_db_step(store, stmt, &row, err);
        if (status != IS_OK || !row) break;
        status = is_words_add(store, sqlite3_column_int64(stmt, 1), sqlite3_column_int64(stmt, 0),
                              (const char *)sqlite3_column_text(stmt, 2), err);
        if (status != IS_OK) break;
    }
    is_db_end(stmt);
    return status;
}

static void version_name(char out[64])
{
    (void)sqlite3_snprintf(64, out, "%s%s", INDEX_VERSION, sqlite3_libversion());
}

is_status is_words_rebuild(is_store *store, is_error *err)
{
    char version[64];
    version_name(version);
    is_status status = is_db_begin(store, err);
    if (status != IS_OK) return status;
    status = rebuild_rows(store, err);
    if (status == IS_OK)
        status = is_db_run(store, NULL, err,
                           "INSERT INTO setting VALUES(?, ?) ON CONFLICT(name) DO UPDATE SET value = excluded.value",
                           "tt", INDEX_SETTING, version);
    if (status == IS_OK) return is_db_commit(store, err);
    is_db_rollback(store);
    return status;
}

/* Facts whose postings are not what their text says. */
static is_status check_fact(is_store *store, int64_t scope, int64_t fact, const char *text, int64_t *n_words,
                            uint64_t *bad, is_error *err)
{
    is_word words[IS_WORDS_MAX];
    size_t n = 0;
    size_t right = 0;
    is_status status = is_words_split(store, text, false, words, &n, err);
    for (size_t i = 0; i < n && status == IS_OK; i++) {
        int64_t there = 0;
        status = is_db_int(store, &there, NULL, err,
                           "SELECT count(*) FROM posting WHERE scope = ? AND hash = ? AND fact = ? AND n = ? AND"
                           " n_text = ?",
                           "iiiii", scope, words[i].hash, fact, (int64_t)words[i].n, (int64_t)words[i].n_text);
        if (there == 1) right++;
    }
    if (right != n) (*bad)++;
    *n_words += (int64_t)n;
    return status;
}

/* What is counted beside the rows themselves. */
static is_status check_totals(is_store *store, int64_t n_words, uint64_t *bad, is_error *err)
{
    static const char WORDS[] = "SELECT count(*) FROM (SELECT scope, hash, count(*) AS n FROM posting GROUP BY scope,"
                                " hash) p FULL JOIN word w ON w.scope = p.scope AND w.hash = p.hash WHERE"
                                " w.facts IS NOT p.n";
    static const char SCOPES[] = "SELECT count(*) FROM scope s WHERE"
                                 " s.facts <> (SELECT count(*) FROM fact WHERE scope = s.id)"
                                 " OR s.turns <> (SELECT count(*) FROM turn WHERE scope = s.id)"
                                 " OR s.words <> (SELECT ifnull(sum(n), 0) FROM posting WHERE scope = s.id)";
    int64_t postings = 0;
    int64_t words = 0;
    int64_t scopes = 0;
    is_status status = is_db_int(store, &postings, NULL, err, "SELECT count(*) FROM posting", "");
    if (status == IS_OK) status = is_db_int(store, &words, NULL, err, WORDS, "");
    if (status == IS_OK) status = is_db_int(store, &scopes, NULL, err, SCOPES, "");
    *bad += (uint64_t)(words + scopes) + (postings != n_words);
    return status;
}

is_status is_words_check(is_store *store, uint64_t *bad, is_error *err)
{
    *bad = 0;
    int64_t n_words = 0;
    sqlite3_stmt *stmt = NULL;
    bool row = true;
    is_status status =
        is_db_query(store, &stmt, err,
                    "SELECT f.id, f.scope, " IS_SAYS("text") " FROM fact f" IS_FACT_EDITION
                                                             " WHERE f.scope IS NOT NULL ORDER BY f.scope, f.id",
                    "");
    if (status != IS_OK) return status;
    for (;;) {
        status = is_db_step(store, stmt, &row, err);
        if (status != IS_OK || !row) break;
        status = check_fact(store, sqlite3_column_int64(stmt, 1), sqlite3_column_int64(stmt, 0),
                            (const char *)sqlite3_column_text(stmt, 2), &n_words, bad, err);
        if (status != IS_OK) break;
    }
    is_db_end(stmt);
    return status == IS_OK ? check_totals(store, n_words, bad, err) : status;
}

/* ------------------------------------------------------------ opening */

static is_status make_tokenizer(is_store *store, is_error *err)
{
    fts5_api *api = NULL;
    sqlite3_stmt *stmt = NULL;
    if (sqlite3_prepare_v2(store->db, "SELECT fts5(?1)", -1, &stmt, NULL) == SQLITE_OK &&
        sqlite3_bind_pointer(stmt, 1, (void *)&api, "fts5_api_ptr", NULL) == SQLITE_OK)
        (void)sqlite3_step(stmt);
    (void)sqlite3_finalize(stmt);
    if (api == NULL)
        return is_fail(err, IS_EUNSUPPORTED, "SQLite %s was built without FTS5; install one that has it",
                       sqlite3_libversion());
    void *user = NULL;
    const char *base = "unicode61";
    if (api->xFindTokenizer(api, "porter", &user, &store->tokenizer->calls) != SQLITE_OK ||
        store->tokenizer->calls.xCreate(user, &base, 1, &store->tokenizer->instance) != SQLITE_OK)
        return is_fail(err, IS_EUNSUPPORTED, "SQLite %s has no porter tokenizer; install another build of it",
                       sqlite3_libversion());
    return IS_OK;
}

is_status is_words_open(is_store *store, is_error *err)
{
    store->tokenizer = calloc(1, sizeof *store->tokenizer);
    if (store->tokenizer == NULL) return is_fail(err, IS_ENOMEM, "out of memory for the tokenizer");
    is_status status = make_tokenizer(store, err);
    if (status != IS_OK) return status;
    char version[64];
    version_name(version);
    int64_t current = 0;
    status = is_db_int(store, &current, NULL, err, "SELECT count(*) FROM setting WHERE name = ? AND value = ?", "tt",
                       INDEX_SETTING, version);
    if (status != IS_OK || current == 1) return status;
    return is_words_rebuild(store, err);
}

void is_words_close(is_store *store)
{
    if (store->tokenizer == NULL) return;
    if (store->tokenizer->instance != NULL) store->tokenizer->calls.xDelete(store->tokenizer->instance);
    free(store->tokenizer);
    store->tokenizer = NULL;
}
