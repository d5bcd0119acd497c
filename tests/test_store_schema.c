/*
 * Databases of earlier versions: what they hold is there after they are opened, and can be changed and forgotten.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "store_fixture.h"

/* As it was, word by word. */
static const char VERSION_1[] =
    "CREATE TABLE setting(name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;"
    "CREATE TABLE scope(id INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL, user TEXT NOT NULL,"
    " agent TEXT NOT NULL, run TEXT NOT NULL, facts INTEGER NOT NULL DEFAULT 0, turns INTEGER NOT NULL DEFAULT 0,"
    " words INTEGER NOT NULL DEFAULT 0, UNIQUE(tenant, user, agent, run)) STRICT;"
    "CREATE TABLE fact(id INTEGER PRIMARY KEY AUTOINCREMENT, scope INTEGER REFERENCES scope(id), text TEXT,"
    " source TEXT, time INTEGER, metadata TEXT, created INTEGER, CHECK((scope IS NULL) = (text IS NULL))) STRICT;"
    "CREATE INDEX fact_of ON fact(scope) WHERE scope IS NOT NULL;"
    "CREATE TABLE turn(seq INTEGER PRIMARY KEY AUTOINCREMENT, scope INTEGER REFERENCES scope(id), key BLOB,"
    " session_key BLOB, id TEXT, session TEXT, speaker TEXT, text TEXT, time INTEGER,"
    " CHECK((scope IS NULL) = (text IS NULL))) STRICT;"
    "CREATE UNIQUE INDEX turn_of ON turn(scope, key) WHERE scope IS NOT NULL;"
    "CREATE INDEX turn_session ON turn(scope, session_key) WHERE scope IS NOT NULL;"
    "CREATE TABLE embedder(id INTEGER PRIMARY KEY, name TEXT NOT NULL, dim INTEGER NOT NULL, UNIQUE(name, dim)) STRICT;"
    "CREATE TABLE embedding(id INTEGER PRIMARY KEY AUTOINCREMENT, scope INTEGER REFERENCES scope(id), fact INTEGER,"
    " embedder INTEGER REFERENCES embedder(id), vector BLOB, CHECK((scope IS NULL) = (vector IS NULL))) STRICT;"
    "CREATE UNIQUE INDEX embedding_of ON embedding(scope, fact, embedder) WHERE scope IS NOT NULL;"
    "CREATE TABLE word(scope INTEGER NOT NULL, hash INTEGER NOT NULL, facts INTEGER NOT NULL,"
    " PRIMARY KEY(scope, hash)) STRICT, WITHOUT ROWID;"
    "CREATE TABLE posting(scope INTEGER NOT NULL, hash INTEGER NOT NULL, fact INTEGER NOT NULL, n INTEGER NOT NULL,"
    " n_text INTEGER NOT NULL, PRIMARY KEY(scope, hash, fact)) STRICT, WITHOUT ROWID;"
    "CREATE TABLE chunk(id INTEGER PRIMARY KEY AUTOINCREMENT, scope INTEGER NOT NULL, fact INTEGER NOT NULL UNIQUE,"
    " key BLOB NOT NULL, file INTEGER NOT NULL UNIQUE, bytes INTEGER NOT NULL, digest BLOB NOT NULL) STRICT;"
    "CREATE INDEX chunk_of ON chunk(scope, key, bytes, fact);"
    "CREATE TABLE chunk_fact(chunk INTEGER NOT NULL REFERENCES chunk(id) ON DELETE CASCADE,"
    " fact INTEGER NOT NULL REFERENCES fact(id), PRIMARY KEY(chunk, fact)) STRICT, WITHOUT ROWID;"
    "CREATE INDEX chunk_fact_of ON chunk_fact(fact);"
    "CREATE TABLE counter(name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;"
    "INSERT INTO counter VALUES('blank', 0);"
    "PRAGMA user_version = 1;";

/* Two users; ann's second fact is forgotten. */
static const char CONTENT[] =
    "INSERT INTO setting VALUES('recipe', 'primed:4');"
    "INSERT INTO scope(tenant, user, agent, run, facts, turns, words) VALUES('t', 'ann', '', '', 2, 1, 8),"
    " ('', 'bob', '', '', 1, 0, 3);"
    "INSERT INTO fact(scope, text, source, time, metadata, created) VALUES"
    " (1, 'Ann likes green tea', 'D1:1', 0, '{\"k\": 1}', 1600000000), (NULL, NULL, NULL, NULL, NULL, NULL),"
    " (1, 'Ann has a brother', NULL, 1, NULL, 1600000001), (2, 'Bob likes coffee', NULL, NULL, NULL, 1600000002);"
    "INSERT INTO turn(scope, key, session_key, id, session, speaker, text, time)"
    " VALUES(1, x'00112233445566778899aabbccddeeff', x'00', 'D1:1', '1', 'Ann', 'I like green tea.', NULL);"
    "INSERT INTO embedder(name, dim) VALUES('mini', 8);"
    "INSERT INTO embedding(scope, fact, embedder, vector) VALUES(1, 1, 1, x'0102030405060708090a0b0c0d0e0f10');"
    "UPDATE counter SET value = 1 WHERE name = 'blank';";

typedef struct world {
    char folder[FIXTURE_PATH];
    is_error err;
} world;

static sqlite3 *raw_open(const world *w)
{
    sqlite3 *db = NULL;
    char path[FIXTURE_PATH + 32];
    (void)snprintf(path, sizeof path, "%s/inferscale.db", w->folder);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    return db;
}

static void raw_sql(const world *w, const char *sql)
{
    sqlite3 *db = raw_open(w);
    char *why = NULL;
    if (sqlite3_exec(db, sql, NULL, NULL, &why) != SQLITE_OK) fail_msg("%s", why);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

static int64_t raw_int(const world *w, const char *sql)
{
    sqlite3 *db = raw_open(w);
    sqlite3_stmt *stmt = NULL;
    assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &stmt, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
    int64_t value = sqlite3_column_int64(stmt, 0);
    (void)sqlite3_finalize(stmt);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
    return value;
}

static int setup(void **state)
{
    world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    fixture_folder(w->folder);
    raw_sql(w, "PRAGMA journal_mode = WAL");
    raw_sql(w, VERSION_1);
    raw_sql(w, CONTENT);
    *state = w;
    return 0;
}

static int teardown(void **state)
{
    world *w = *state;
    fixture_remove(w->folder);
    free(w);
    return 0;
}

static void check(const world *w, is_status status)
{
    if (status != IS_OK) fail_msg("%s: %s", is_status_name(status), w->err.text);
}

static void assert_clean(world *w, is_store *store)
{
    is_verify_report report;
    check(w, is_store_verify(store, false, NULL, NULL, &report, &w->err));
    assert_int_equal(report.chunks_bad + report.files_missing + report.files_orphaned + report.database_bad, 0);
}

static void assert_facts(world *w, is_store *store, const char *first)
{
    is_fact_list *list = NULL;
    check(w, is_store_list(store, 1, 0, 10, &list, &w->err));
    assert_int_equal(list->n, 2);
    assert_int_equal(list->facts[0].id, 1);
    assert_string_equal(list->facts[0].text, first);
    assert_string_equal(list->facts[0].source, "D1:1");
    assert_string_equal(list->facts[0].metadata, "{\"k\": 1}");
    assert_true(list->facts[0].time == 0);
    assert_true(list->facts[0].created == 1600000000);
    assert_int_equal(list->facts[1].id, 3);
    assert_string_equal(list->facts[1].text, "Ann has a brother");
    assert_null(list->facts[1].source);
    is_fact_list_free(list);
}

static void test_a_store_of_version_1_is_brought_up_to_date(void **state)
{
    world *w = *state;
    static const char SCHEMA_OF_FACT[] = "SELECT count(*) FROM sqlite_schema WHERE sql LIKE 'CREATE TABLE fact(%created"
                                         " INTEGER, CHECK(%' AND name = 'fact'";
    is_store *store = fixture_open(w->folder, 0);
    assert_int_equal(raw_int(w, "PRAGMA user_version"), 2);
    assert_int_equal(raw_int(w, SCHEMA_OF_FACT), 1); /* no column was added: the rows are what they were */
    assert_facts(w, store, "Ann likes green tea");
    assert_clean(w, store);
    int64_t scope = 0;
    check(w, is_store_scope(store, &(is_scope){.tenant = "t", .user = "ann"}, false, &scope, &w->err));
    assert_int_equal(scope, 1);
    char *recipe = NULL;
    check(w, is_store_get_setting(store, "recipe", &recipe, &w->err));
    assert_string_equal(recipe, "primed:4");
    free(recipe);
    int64_t *ids = NULL;
    uint16_t *vectors = NULL;
    size_t n = 0;
    check(w, is_store_embeddings(store, 1, "mini", 8, 0, &ids, &vectors, &n, &w->err));
    assert_int_equal(n, 1);
    assert_int_equal(vectors[0], 0x0201);
    free(ids);
    free(vectors);
    is_store_close(store);
    store = fixture_open(w->folder, 0); /* and stays so */
    assert_facts(w, store, "Ann likes green tea");
    is_store_close(store);
}

static void test_old_facts_can_be_changed_and_forgotten(void **state)
{
    world *w = *state;
    is_store *store = fixture_open(w->folder, 0);
    const is_fact to = {.text = "Ann likes black tea", .time = IS_TIME_NONE};
    is_hit hit;
    size_t n = 0;
    check(w, is_store_change_fact(store, 1, 1, &to, NULL, 0, NULL, &w->err));
    assert_facts(w, store, "Ann likes black tea");
    check(w, is_store_match(store, 1, "black", 1, 100, &hit, &n, &w->err));
    assert_int_equal(n, 1);
    check(w, is_store_match(store, 1, "green", 1, 100, &hit, &n, &w->err));
    assert_int_equal(n, 0);
    const is_fact more = {.text = "Ann is new", .time = IS_TIME_NONE};
    int64_t id = 0;
    check(w, is_store_add_facts(store, 1, &more, 1, NULL, 0, NULL, &id, &w->err));
    assert_int_equal(id, 5);
    size_t forgotten = 0;
    check(w, is_store_forget(store, 1, (int64_t[]){1, 5}, 2, &forgotten, &w->err));
    assert_int_equal(forgotten, 2);
    assert_clean(w, store);
    is_store_close(store);
    assert_int_equal(raw_int(w, "SELECT count(*) FROM fact WHERE text IS NOT NULL"), 2);
    assert_int_equal(raw_int(w, "SELECT count(*) FROM edition WHERE text IS NOT NULL"), 0);
}

/* What cannot be brought up to date is left as it was. */
static void test_a_step_that_fails_changes_nothing(void **state)
{
    world *w = *state;
    raw_sql(w, "CREATE TABLE edition(id INTEGER PRIMARY KEY, of_somebody_else TEXT)");
    is_store *store = NULL;
    assert_int_equal(is_store_open(&(is_store_options){w->folder, 0}, &store, &w->err), IS_EIO);
    assert_null(store);
    assert_int_equal(raw_int(w, "PRAGMA user_version"), 1);
    raw_sql(w, "DROP TABLE edition");
    store = fixture_open(w->folder, 0);
    assert_facts(w, store, "Ann likes green tea");
    is_store_close(store);
}

int main(void)
{
#define TEST(NAME) cmocka_unit_test_setup_teardown(NAME, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_a_store_of_version_1_is_brought_up_to_date),
        TEST(test_old_facts_can_be_changed_and_forgotten),
        TEST(test_a_step_that_fails_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
