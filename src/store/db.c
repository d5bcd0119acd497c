/*
 * The database connection: schema, settings, statements and transactions.
 *
 * SQLite promises that deleted bytes are overwritten (secure_delete), but not that no other copy of them is left:
 * when it balances a b-tree it moves rows between pages, and the place where a row stood before may keep its bytes
 * in the unused part of the page.  A row that is deleted later leaves that copy behind.  (Measured with 3.40: 30 of
 * 7,457 deleted texts were still in the file.)  So every table with a user's words is only ever appended to, which
 * never moves a row, and forgetting blanks a row in place (scope and words NULL) instead of deleting it: a row that
 * gets smaller moves nothing.  Indexes over such tables hold numbers and hashes, never words.  Blank rows are
 * cleared away by rebuilding the file when they outnumber the others.
 *
 * For the same reason a fact that is changed keeps its row, which might have to grow: what it says from then on is
 * appended as a row of the table edition.
 */
#include "store_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUSY_TIMEOUT_MS 5000

struct is_statement {
    const char *sql;
    sqlite3_stmt *stmt;
};

static const char FIRST[] =
    "CREATE TABLE setting(name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;"
    /* facts, turns, words: how many the scope has, words counted over all its facts */
    "CREATE TABLE scope(id INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL, user TEXT NOT NULL,"
    " agent TEXT NOT NULL, run TEXT NOT NULL, facts INTEGER NOT NULL DEFAULT 0, turns INTEGER NOT NULL DEFAULT 0,"
    " words INTEGER NOT NULL DEFAULT 0, UNIQUE(tenant, user, agent, run)) STRICT;"
    "CREATE TABLE fact(id INTEGER PRIMARY KEY AUTOINCREMENT, scope INTEGER REFERENCES scope(id), text TEXT,"
    " source TEXT, time INTEGER, metadata TEXT, created INTEGER, CHECK((scope IS NULL) = (text IS NULL))) STRICT;"
    "CREATE INDEX fact_of ON fact(scope) WHERE scope IS NOT NULL;"
    /* key and session_key: hashes of id and session, for the indexes */
    "CREATE TABLE turn(seq INTEGER PRIMARY KEY AUTOINCREMENT, scope INTEGER REFERENCES scope(id), key BLOB,"
    " session_key BLOB, id TEXT, session TEXT, speaker TEXT, text TEXT, time INTEGER,"
    " CHECK((scope IS NULL) = (text IS NULL))) STRICT;"
    "CREATE UNIQUE INDEX turn_of ON turn(scope, key) WHERE scope IS NOT NULL;"
    "CREATE INDEX turn_session ON turn(scope, session_key) WHERE scope IS NOT NULL;"
    "CREATE TABLE embedder(id INTEGER PRIMARY KEY, name TEXT NOT NULL, dim INTEGER NOT NULL, UNIQUE(name, dim)) STRICT;"
    "CREATE TABLE embedding(id INTEGER PRIMARY KEY AUTOINCREMENT, scope INTEGER REFERENCES scope(id), fact INTEGER,"
    " embedder INTEGER REFERENCES embedder(id), vector BLOB, CHECK((scope IS NULL) = (vector IS NULL))) STRICT;"
    "CREATE UNIQUE INDEX embedding_of ON embedding(scope, fact, embedder) WHERE scope IS NOT NULL;"
    /* facts: how many facts of the scope have the word; n: how often it stands in this fact; n_text: words of it */
    "CREATE TABLE word(scope INTEGER NOT NULL, hash INTEGER NOT NULL, facts INTEGER NOT NULL,"
    " PRIMARY KEY(scope, hash)) STRICT, WITHOUT ROWID;"
    "CREATE TABLE posting(scope INTEGER NOT NULL, hash INTEGER NOT NULL, fact INTEGER NOT NULL, n INTEGER NOT NULL,"
    " n_text INTEGER NOT NULL, PRIMARY KEY(scope, hash, fact)) STRICT, WITHOUT ROWID;"
    /* fact 0, scope 0: the header */
    "CREATE TABLE chunk(id INTEGER PRIMARY KEY AUTOINCREMENT, scope INTEGER NOT NULL, fact INTEGER NOT NULL UNIQUE,"
    " key BLOB NOT NULL, file INTEGER NOT NULL UNIQUE, bytes INTEGER NOT NULL, digest BLOB NOT NULL) STRICT;"
    "CREATE INDEX chunk_of ON chunk(scope, key, bytes, fact);"
    "CREATE TABLE chunk_fact(chunk INTEGER NOT NULL REFERENCES chunk(id) ON DELETE CASCADE,"
    " fact INTEGER NOT NULL REFERENCES fact(id), PRIMARY KEY(chunk, fact)) STRICT, WITHOUT ROWID;"
    "CREATE INDEX chunk_fact_of ON chunk_fact(fact);"
    /* blank: rows that were blanked since the file was last rebuilt */
    "CREATE TABLE counter(name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;"
    "INSERT INTO counter VALUES('blank', 0);"
    "PRAGMA user_version = 1;";

/* No row of an older table is touched: a row grows when it is written again behind an ADD COLUMN. */
static const char EDITIONS[] =
    /* what a fact says since it was changed, whole; the newest of its editions counts */
    "CREATE TABLE IF NOT EXISTS edition(id INTEGER PRIMARY KEY AUTOINCREMENT, scope INTEGER REFERENCES scope(id),"
    " fact INTEGER, text TEXT, source TEXT, time INTEGER, metadata TEXT, created INTEGER,"
    " CHECK((scope IS NULL) = (text IS NULL))) STRICT;"
    "CREATE INDEX IF NOT EXISTS edition_of ON edition(scope, fact) WHERE scope IS NOT NULL;"
    "CREATE INDEX IF NOT EXISTS scope_tenant ON scope(tenant);"
    "PRAGMA user_version = 2;";

/* STEPS[v] brings a database of version v to version v + 1. */
static const char *const STEPS[] = {FIRST, EDITIONS};
#define SCHEMA_VERSION ((int)(sizeof STEPS / sizeof *STEPS))

is_status is_db_fail(is_store *store, is_error *err)
{
    int rc = sqlite3_errcode(store->db);
    const char *what = sqlite3_errmsg(store->db);
    switch (rc) {
    case SQLITE_NOMEM: return is_fail(err, IS_ENOMEM, "database %s/inferscale.db: out of memory", store->folder);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        return is_fail(err, IS_ECORRUPT, "database %s/inferscale.db is damaged (%s); restore it from a backup",
                       store->folder, what);
    case SQLITE_FULL:
        return is_fail(err, IS_EIO, "database %s/inferscale.db: %s; free some disk space", store->folder, what);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return is_fail(err, IS_EIO, "database %s/inferscale.db is in use by another program (%s); close it",
                       store->folder, what);
    default:
        return is_fail(err, IS_EIO, "database %s/inferscale.db: %s; check the folder, its permissions and the disk",
                       store->folder, what);
    }
}

static is_status exec(is_store *store, const char *sql, is_error *err)
{
    return sqlite3_exec(store->db, sql, NULL, NULL, NULL) == SQLITE_OK ? IS_OK : is_db_fail(store, err);
}

/* ------------------------------------------------------------ statements */

static is_status cached(is_store *store, const char *sql, sqlite3_stmt **out, is_error *err)
{
    for (size_t i = 0; i < store->n_statements; i++) {
        if (store->statements[i].sql != sql) continue;
        *out = store->statements[i].stmt;
        return IS_OK;
    }
    is_statement *grown = realloc(store->statements, (store->n_statements + 1) * sizeof *grown);
    if (grown == NULL) return is_fail(err, IS_ENOMEM, "out of memory for a database statement");
    store->statements = grown;
    if (sqlite3_prepare_v3(store->db, sql, -1, SQLITE_PREPARE_PERSISTENT, out, NULL) != SQLITE_OK)
        return is_db_fail(store, err);
    grown[store->n_statements++] = (is_statement){sql, *out};
    return IS_OK;
}

static int bind_text(sqlite3_stmt *stmt, int i, const char *text)
{
    if (text == NULL) return sqlite3_bind_null(stmt, i);
    return sqlite3_bind_text64(stmt, i, text, strlen(text), SQLITE_STATIC, SQLITE_UTF8);
}

static int bind_all(sqlite3_stmt *stmt, const char *kinds, va_list args)
{
    int rc = SQLITE_OK;
    for (int i = 0; kinds[i] != '\0' && rc == SQLITE_OK; i++) {
        if (kinds[i] == 'b') {
            const void *bytes = va_arg(args, const void *);
            rc = sqlite3_bind_blob64(stmt, i + 1, bytes, va_arg(args, size_t), SQLITE_STATIC);
        } else if (kinds[i] == 't') {
            rc = bind_text(stmt, i + 1, va_arg(args, const char *));
        } else {
            int64_t value = va_arg(args, int64_t);
            bool null = kinds[i] == 'm' && value == IS_TIME_NONE;
            rc = null ? sqlite3_bind_null(stmt, i + 1) : sqlite3_bind_int64(stmt, i + 1, value);
        }
    }
    return rc;
}

static is_status query_v(is_store *store, sqlite3_stmt **out, is_error *err, const char *sql, const char *kinds,
                         va_list args)
{
    is_status status = cached(store, sql, out, err);
    if (status != IS_OK) return status;
    if (bind_all(*out, kinds, args) == SQLITE_OK) return IS_OK;
    status = is_db_fail(store, err);
    is_db_end(*out);
    return status;
}

is_status is_db_query(is_store *store, sqlite3_stmt **out, is_error *err, const char *sql, const char *kinds, ...)
{
    va_list args;
    va_start(args, kinds);
    is_status status = query_v(store, out, err, sql, kinds, args);
    va_end(args);
    return status;
}

is_status is_db_step(is_store *store, sqlite3_stmt *stmt, bool *row, is_error *err)
{
    int rc = sqlite3_step(stmt);
    *row = rc == SQLITE_ROW;
    return rc == SQLITE_ROW || rc == SQLITE_DONE ? IS_OK : is_db_fail(store, err);
}

void is_db_end(sqlite3_stmt *stmt)
{
    if (stmt == NULL) return;
    (void)sqlite3_reset(stmt);
    (void)sqlite3_clear_bindings(stmt);
}

is_status is_db_run(is_store *store, int64_t *changes, is_error *err, const char *sql, const char *kinds, ...)
{
    va_list args;
    sqlite3_stmt *stmt = NULL;
    va_start(args, kinds);
    is_status status = query_v(store, &stmt, err, sql, kinds, args);
    va_end(args);
    if (status != IS_OK) return status;
    bool row = false;
    status = is_db_step(store, stmt, &row, err);
    if (changes != NULL) *changes = sqlite3_changes64(store->db);
    is_db_end(stmt);
    return status;
}

is_status is_db_int(is_store *store, int64_t *value, bool *found, is_error *err, const char *sql, const char *kinds,
                    ...)
{
    va_list args;
    sqlite3_stmt *stmt = NULL;
    va_start(args, kinds);
    is_status status = query_v(store, &stmt, err, sql, kinds, args);
    va_end(args);
    if (status != IS_OK) return status;
    bool row = false;
    status = is_db_step(store, stmt, &row, err);
    *value = row ? sqlite3_column_int64(stmt, 0) : 0;
    if (found != NULL) *found = row;
    is_db_end(stmt);
    return status;
}

/* ------------------------------------------------------------ transactions */

is_status is_db_begin(is_store *store, is_error *err)
{
    return is_db_run(store, NULL, err, "BEGIN IMMEDIATE", "");
}

void is_db_rollback(is_store *store)
{
    if (!sqlite3_get_autocommit(store->db)) (void)is_db_run(store, NULL, NULL, "ROLLBACK", "");
}

is_status is_db_commit(is_store *store, is_error *err)
{
    is_status status = is_db_run(store, NULL, err, "COMMIT", "");
    if (status != IS_OK) is_db_rollback(store);
    return status;
}

is_status is_db_truncate_wal(is_store *store, is_error *err)
{
    int rc = sqlite3_wal_checkpoint_v2(store->db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL);
    return rc == SQLITE_OK ? IS_OK : is_db_fail(store, err);
}

/* ------------------------------------------------------------ opening */

static is_status check_version(is_store *store, is_error *err)
{
    int64_t version = 0;
    is_status status = is_db_int(store, &version, NULL, err, "PRAGMA user_version", "");
    if (status != IS_OK) return status;
    if (version > SCHEMA_VERSION || version < 0)
        return is_fail(err, IS_EIO,
                       "database %s/inferscale.db has schema %lld and this program knows schema %d: it was written by "
                       "a newer InferScale; open it with that one",
                       store->folder, (long long)version, SCHEMA_VERSION);
    status = exec(store,
                  "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA secure_delete = ON;"
                  "PRAGMA foreign_keys = ON; PRAGMA temp_store = MEMORY; PRAGMA cache_size = -32768;",
                  err);
    if (status != IS_OK || version == SCHEMA_VERSION) return status;
    status = is_db_begin(store, err);
    for (; version < SCHEMA_VERSION && status == IS_OK; version++) status = exec(store, STEPS[version], err);
    if (status == IS_OK) return is_db_commit(store, err);
    is_db_rollback(store);
    return status;
}

is_status is_db_open(is_store *store, is_error *err)
{
    size_t n = strlen(store->folder) + sizeof "/inferscale.db";
    char *path = malloc(n);
    if (path == NULL) return is_fail(err, IS_ENOMEM, "out of memory for the database's path");
    (void)snprintf(path, n, "%s/inferscale.db", store->folder);
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
    int rc = sqlite3_open_v2(path, &store->db, flags, NULL);
    free(path);
    if (store->db == NULL) return is_fail(err, IS_ENOMEM, "out of memory for the database connection");
    if (rc != SQLITE_OK) return is_db_fail(store, err);
    (void)sqlite3_busy_timeout(store->db, BUSY_TIMEOUT_MS);
    is_status status = check_version(store, err);
    if (status == IS_OK) status = is_db_newest_edition(store, &store->texts_read, err);
    /* What a killed process left in the WAL may hold a text that was being forgotten. */
    if (status == IS_OK) status = is_db_truncate_wal(store, err);
    return status;
}

is_status is_db_newest_edition(is_store *store, int64_t *id, is_error *err)
{
    return is_db_int(store, id, NULL, err, "SELECT max(id) FROM edition", "");
}

void is_db_close(is_store *store)
{
    for (size_t i = 0; i < store->n_statements; i++) (void)sqlite3_finalize(store->statements[i].stmt);
    free(store->statements);
    (void)sqlite3_close(store->db);
}

/* ------------------------------------------------------------ blank rows */

#define COMPACT_MIN_BLANK 20000

is_status is_db_compact(is_store *store, is_error *err)
{
    int64_t blank = 0;
    int64_t used = 0;
    is_status status = is_db_int(store, &blank, NULL, err, "SELECT value FROM counter WHERE name = 'blank'", "");
    if (status != IS_OK || blank < COMPACT_MIN_BLANK) return status;
    status = is_db_int(store, &used, NULL, err,
                       "SELECT sum(facts) * 2 + sum(turns) + (SELECT count(*) FROM edition WHERE scope IS NOT NULL)"
                       " FROM scope",
                       "");
    if (status != IS_OK || blank < used) return status;
    /* The counter is reset last: a crash in between, when deleting has moved rows about, begins anew at next open. */
    status = exec(store,
                  "BEGIN IMMEDIATE; DELETE FROM fact WHERE scope IS NULL; DELETE FROM turn WHERE scope IS NULL;"
                  "DELETE FROM edition WHERE scope IS NULL; DELETE FROM embedding WHERE scope IS NULL; COMMIT;",
                  err);
    if (status != IS_OK) {
        is_db_rollback(store);
        return status;
    }
    status = exec(store,
                  "PRAGMA temp_store = FILE; VACUUM; PRAGMA temp_store = MEMORY;"
                  "UPDATE counter SET value = 0 WHERE name = 'blank';",
                  err);
    return status == IS_OK ? is_db_truncate_wal(store, err) : status;
}
