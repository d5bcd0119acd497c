/*
 * Facts that are changed: what they say now is found, what they said is history, and forgetting takes all of it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "store_fixture.h"

#define DIM 8

typedef struct world {
    char folder[FIXTURE_PATH];
    is_store *store;
    int64_t scope;
    is_chunk_key key;
    is_error err;
} world;

static int64_t scope_named(world *w, is_scope scope)
{
    int64_t id = 0;
    assert_int_equal(is_store_scope(w->store, &scope, true, &id, &w->err), IS_OK);
    return id;
}

static int setup(void **state)
{
    world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    fixture_folder(w->folder);
    w->store = fixture_open(w->folder, 1 << 20);
    w->key = fixture_key(1);
    w->scope = scope_named(w, (is_scope){.user = "ann"});
    *state = w;
    return 0;
}

static int teardown(void **state)
{
    world *w = *state;
    is_store_close(w->store);
    fixture_remove(w->folder);
    free(w);
    return 0;
}

static void reopen(world *w)
{
    is_store_close(w->store);
    w->store = fixture_open(w->folder, 1 << 20);
}

static void check(const world *w, is_status status)
{
    if (status != IS_OK) fail_msg("%s: %s", is_status_name(status), w->err.text);
}

static int64_t add(world *w, int64_t scope, is_fact fact)
{
    int64_t id = 0;
    check(w, is_store_add_facts(w->store, scope, &fact, 1, NULL, 0, NULL, &id, &w->err));
    return id;
}

static is_status change(world *w, int64_t id, is_fact to)
{
    return is_store_change_fact(w->store, w->scope, id, &to, NULL, 0, NULL, &w->err);
}

static void change_text(world *w, int64_t id, const char *text)
{
    check(w, change(w, id, (is_fact){.text = text, .time = IS_TIME_NONE}));
}

static bool matches(world *w, int64_t scope, const char *query, int64_t id)
{
    is_hit hits[8];
    size_t n = 0;
    bool found = false;
    check(w, is_store_match(w->store, scope, query, 8, 1000, hits, &n, &w->err));
    for (size_t i = 0; i < n; i++) found = found || hits[i].id == id;
    return found;
}

static void assert_clean(world *w)
{
    is_verify_report report;
    check(w, is_store_verify(w->store, false, NULL, NULL, &report, &w->err));
    assert_int_equal(report.chunks_bad + report.files_missing + report.files_orphaned + report.database_bad, 0);
}

static sqlite3 *raw_open(const char *folder)
{
    sqlite3 *db = NULL;
    char path[FIXTURE_PATH + 32];
    (void)snprintf(path, sizeof path, "%s/inferscale.db", folder);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    return db;
}

static void raw_sql(const char *folder, const char *sql)
{
    sqlite3 *db = raw_open(folder);
    char *why = NULL;
    if (sqlite3_exec(db, sql, NULL, NULL, &why) != SQLITE_OK) fail_msg("%s", why);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

/* The first column of the first row, read beside the open store. */
static int64_t raw_int(const char *folder, const char *sql)
{
    sqlite3 *db = raw_open(folder);
    sqlite3_stmt *stmt = NULL;
    assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &stmt, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
    int64_t value = sqlite3_column_int64(stmt, 0);
    (void)sqlite3_finalize(stmt);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
    return value;
}

/* ------------------------------------------------------------ what a fact says now */

static void test_words_follow_the_text(void **state)
{
    world *w = *state;
    int64_t id = add(w, w->scope, (is_fact){.text = "Ann keeps a parrot in the kitchen", .time = 5});
    int64_t other = add(w, w->scope, (is_fact){.text = "Ann keeps bees in the garden", .time = 5});
    change_text(w, id, "Ann keeps a tortoise\r\nin the bathroom, a tortoise");
    assert_true(matches(w, w->scope, "tortoise", id));
    assert_true(matches(w, w->scope, "bathroom", id));
    assert_true(matches(w, w->scope, "keeps", id));
    assert_false(matches(w, w->scope, "parrot", id));
    assert_false(matches(w, w->scope, "kitchen", id));
    assert_true(matches(w, w->scope, "garden bees", other));
    assert_clean(w); /* every count is right */
    change_text(w, id, "Ann keeps a parrot in the kitchen");
    assert_true(matches(w, w->scope, "parrot", id));
    assert_false(matches(w, w->scope, "tortoise", id));
    change_text(w, id, "Ann whistles");
    is_store_close(w->store);
    raw_sql(w->folder, "UPDATE setting SET value = 'of another version' WHERE name = 'store.words'");
    w->store = fixture_open(w->folder, 0); /* the word index is made anew */
    assert_true(matches(w, w->scope, "whistles", id));
    assert_false(matches(w, w->scope, "parrot", id));
    assert_clean(w);
}

static void assert_says(const is_fact *fact, const char *text, const char *source, int64_t time, const char *metadata)
{
    assert_string_equal(fact->text, text);
    assert_true((fact->source == NULL) == (source == NULL) && (fact->metadata == NULL) == (metadata == NULL));
    if (source != NULL) assert_string_equal(fact->source, source);
    if (metadata != NULL) assert_string_equal(fact->metadata, metadata);
    assert_true(fact->time == time);
}

/* The same fact by every way that hands one out. */
static void assert_everywhere(world *w, int64_t id, const char *text, const char *source, int64_t time,
                              const char *metadata)
{
    is_fact_list *lists[5] = {NULL};
    int64_t *scopes[2] = {NULL};
    check(w, is_store_list(w->store, w->scope, id - 1, 1, &lists[0], &w->err));
    check(w, is_store_get(w->store, w->scope, &id, 1, &lists[1], &w->err));
    check(w, is_store_unembedded(w->store, w->scope, "mini", 1, &lists[2], &w->err));
    check(w, is_store_pending(w->store, w->scope, &w->key, id - 1, 1, &lists[3], &scopes[0], &w->err));
    check(w, is_store_pending(w->store, 0, &w->key, id - 1, 1, &lists[4], &scopes[1], &w->err));
    for (int i = 0; i < 5; i++) {
        assert_int_equal(lists[i]->n, 1);
        assert_int_equal(lists[i]->facts[0].id, id);
        assert_true(lists[i]->facts[0].created > 1500000000);
        assert_says(&lists[i]->facts[0], text, source, time, metadata);
        is_fact_list_free(lists[i]);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(scopes[i][0], w->scope);
        free(scopes[i]);
    }
}

static void test_what_is_not_given_stays(void **state)
{
    world *w = *state;
    int64_t id = add(w, w->scope, (is_fact){.text = "one", .time = IS_TIME_NONE});
    assert_everywhere(w, id, "one", NULL, IS_TIME_NONE, NULL);
    check(w, change(w, id, (is_fact){.time = 0}));
    assert_everywhere(w, id, "one", NULL, 0, NULL);
    check(w, change(w, id, (is_fact){.metadata = "{\"a\": 1}", .time = IS_TIME_NONE}));
    assert_everywhere(w, id, "one", NULL, 0, "{\"a\": 1}");
    check(w, change(w, id, (is_fact){.text = "two", .source = "D1:2", .time = IS_TIME_NONE}));
    assert_everywhere(w, id, "two", "D1:2", 0, "{\"a\": 1}");
    check(w, change(w, id, (is_fact){.text = "three", .source = "D1:3", .time = -9, .metadata = "{}"}));
    assert_everywhere(w, id, "three", "D1:3", -9, "{}");
    reopen(w);
    assert_everywhere(w, id, "three", "D1:3", -9, "{}");
}

static void assert_passes(world *w, const is_filter *filter, const int64_t ids[6], const char *want)
{
    int64_t some[6];
    int64_t *all = NULL;
    size_t n_some = 0;
    size_t n_all = 0;
    check(w, is_store_filter(w->store, w->scope, filter, ids, 6, some, &n_some, &w->err));
    check(w, is_store_filter_all(w->store, w->scope, filter, &all, &n_all, &w->err));
    assert_int_equal(n_some, strlen(want));
    assert_int_equal(n_all, strlen(want));
    for (size_t i = 0; i < n_all; i++) {
        assert_int_equal(some[i], ids[want[i] - '0']);
        assert_int_equal(all[i], ids[want[i] - '0']);
    }
    free(all);
}

/* The first, the last and some in between are changed, some twice; another scope's stand between them. */
static void test_filters_see_the_newest(void **state)
{
    world *w = *state;
    int64_t bob = scope_named(w, (is_scope){.user = "bob"});
    int64_t ids[6];
    for (int i = 0; i < 6; i++) {
        ids[i] = add(w, w->scope, (is_fact){.text = "x", .time = 100, .metadata = "{\"k\": \"old\"}"});
        int64_t his = add(w, bob, (is_fact){.text = "x", .time = 100});
        is_fact to = {.time = 500, .metadata = "{\"k\": \"new\"}"};
        check(w, is_store_change_fact(w->store, bob, his, &to, NULL, 0, NULL, &w->err));
    }
    const is_filter late = {200, IS_TIME_NONE, NULL};
    const is_filter fresh = {IS_TIME_NONE, IS_TIME_NONE, "{\"k\": \"new\"}"};
    assert_passes(w, &late, ids, "");
    check(w, change(w, ids[5], (is_fact){.time = 300}));
    check(w, change(w, ids[0], (is_fact){.time = 150}));
    check(w, change(w, ids[0], (is_fact){.time = 300}));
    check(w, change(w, ids[3], (is_fact){.time = 300}));
    check(w, change(w, ids[3], (is_fact){.time = 150, .metadata = "{\"k\": \"new\"}"}));
    check(w, change(w, ids[2], (is_fact){.time = IS_TIME_NONE, .metadata = "{\"k\": \"new\"}"}));
    assert_passes(w, &late, ids, "05");
    assert_passes(w, &fresh, ids, "23");
    assert_passes(w, &(is_filter){IS_TIME_NONE, 200, "{\"k\": \"old\"}"}, ids, "14");
    assert_passes(w, NULL, ids, "012345");
    check(w, is_store_forget(w->store, w->scope, &ids[0], 1, NULL, &w->err));
    assert_passes(w, &late, ids, "5");
}

static void test_history(void **state)
{
    world *w = *state;
    int64_t id = add(w, w->scope, (is_fact){.text = "first", .source = "S", .time = 1});
    int64_t other = add(w, w->scope, (is_fact){.text = "between", .time = 1});
    change_text(w, id, "second");
    change_text(w, other, "not of this one");
    change_text(w, id, "second"); /* changes nothing */
    check(w, change(w, id, (is_fact){.text = "second", .source = "S", .time = 1}));
    check(w, change(w, id, (is_fact){.time = IS_TIME_NONE}));
    check(w, change(w, id, (is_fact){.time = 2, .metadata = "{\"b\": 2}"}));
    change_text(w, id, "third\nline");
    change_text(w, id, "third line"); /* the same on one line */
    reopen(w);
    static const is_edition WANT[] = {{1, "first", "S", 1, NULL, 0},
                                      {2, "second", "S", 1, NULL, 0},
                                      {3, "second", "S", 2, "{\"b\": 2}", 0},
                                      {4, "third line", "S", 2, "{\"b\": 2}", 0}};
    is_edition_list *list = NULL;
    check(w, is_store_history(w->store, w->scope, id, &list, &w->err));
    assert_int_equal(list->n, 4);
    for (size_t i = 0; i < 4; i++) {
        const is_edition *e = &list->editions[i];
        const is_fact fact = {.text = e->text, .source = e->source, .time = e->time, .metadata = e->metadata};
        assert_int_equal(e->id, WANT[i].id);
        assert_says(&fact, WANT[i].text, WANT[i].source, WANT[i].time, WANT[i].metadata);
        assert_true(e->changed > 1500000000 && (i == 0 || e->changed >= list->editions[i - 1].changed));
    }
    is_edition_list_free(list);
    /* its own row was not written again, so it cannot have grown */
    assert_int_equal(raw_int(w->folder, "SELECT count(*) FROM fact WHERE text IN ('first', 'between')"), 2);
    int64_t never = add(w, w->scope, (is_fact){.text = "never changed", .time = IS_TIME_NONE});
    check(w, is_store_history(w->store, w->scope, never, &list, &w->err));
    assert_int_equal(list->n, 1);
    assert_true(list->editions[0].time == IS_TIME_NONE);
    is_edition_list_free(list);
    int64_t bob = scope_named(w, (is_scope){.user = "bob"});
    list = (is_edition_list *)1;
    assert_int_equal(is_store_history(w->store, bob, id, &list, &w->err), IS_ENOTFOUND);
    assert_null(list);
    check(w, is_store_forget(w->store, w->scope, &id, 1, NULL, &w->err));
    assert_int_equal(is_store_history(w->store, w->scope, id, &list, &w->err), IS_ENOTFOUND);
    is_edition_list_free(NULL);
}

static void test_bad_changes_change_nothing(void **state)
{
    world *w = *state;
    static char big[4098];
    memset(big, 'x', sizeof big - 1);
    const uint16_t vector[DIM] = {0};
    int64_t bob = scope_named(w, (is_scope){.user = "bob"});
    int64_t id = add(w, w->scope, (is_fact){.text = "Ann likes tea", .time = 1});
    const is_fact good = {.text = "good", .time = 3};
    static const struct {
        is_fact to;
        is_status want;
    } CASES[] = {
        {{.text = "", .time = 2}, IS_EINVAL},
        {{.text = big, .time = 2}, IS_ELIMIT},
        {{.text = "a\xC3", .time = 2}, IS_EINVAL},
        {{.text = "a", .source = "\xFF", .time = 2}, IS_EINVAL},
        {{.text = "a", .time = 2, .metadata = "[1]"}, IS_EINVAL},
        {{.time = 2, .metadata = "{"}, IS_EINVAL},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        w->err.text[0] = '\0';
        assert_int_equal(change(w, id, CASES[i].to), CASES[i].want);
        assert_true(w->err.text[0] != '\0');
    }
    assert_int_equal(is_store_change_fact(w->store, w->scope, id, &good, vector, DIM, NULL, &w->err), IS_EINVAL);
    assert_int_equal(is_store_change_fact(w->store, w->scope, id, &good, vector, 0, "mini", &w->err), IS_EINVAL);
    assert_int_equal(is_store_change_fact(w->store, bob, id, &good, NULL, 0, NULL, &w->err), IS_ENOTFOUND);
    assert_int_equal(is_store_change_fact(w->store, 4711, id, &good, NULL, 0, NULL, &w->err), IS_ENOTFOUND);
    assert_int_equal(change(w, id + 1, good), IS_ENOTFOUND);
    assert_int_equal(change(w, 0, good), IS_ENOTFOUND);
    assert_everywhere(w, id, "Ann likes tea", NULL, 1, NULL);
    assert_int_equal(raw_int(w->folder, "SELECT count(*) FROM edition"), 0);
    assert_true(matches(w, w->scope, "tea", id));
    assert_false(matches(w, w->scope, "good", id));
    check(w, is_store_forget(w->store, w->scope, &id, 1, NULL, &w->err));
    assert_int_equal(change(w, id, good), IS_ENOTFOUND);
    assert_clean(w);
}

/* ------------------------------------------------------------ what was derived from the old text */

static void random_vector(uint16_t out[DIM], uint32_t *seed)
{
    for (int i = 0; i < DIM; i++) {
        *seed = *seed * 1664525u + 1013904223u;
        out[i] = (uint16_t)(*seed >> 8);
    }
}

/* Whether the fact has this very vector; NULL: none at all. */
static bool has_vector(world *w, int64_t id, const char *embedder, const uint16_t *want)
{
    int64_t *ids = NULL;
    uint16_t *vectors = NULL;
    size_t n = 0;
    bool same = want == NULL;
    check(w, is_store_embeddings(w->store, w->scope, embedder, DIM, 0, &ids, &vectors, &n, &w->err));
    for (size_t i = 0; i < n; i++)
        if (ids[i] == id) same = want != NULL && memcmp(vectors + i * DIM, want, DIM * sizeof *want) == 0;
    free(ids);
    free(vectors);
    return same;
}

static void test_vectors_of_the_old_text_go(void **state)
{
    world *w = *state;
    uint32_t seed = 3;
    uint16_t old[DIM], now[DIM], late[DIM];
    uint64_t any[4], removed[4];
    random_vector(old, &seed);
    random_vector(now, &seed);
    random_vector(late, &seed);
    int64_t id = add(w, w->scope, (is_fact){.text = "old", .time = 1});
    check(w, is_store_put_embeddings(w->store, &id, old, 1, DIM, "mini", &w->err));
    check(w, is_store_put_embeddings(w->store, &id, old, 1, DIM, "maxi", &w->err));
    is_store_generation(w->store, w->scope, &any[0], &removed[0]);
    const is_fact same = {.text = "old", .time = IS_TIME_NONE, .metadata = "{}"};
    check(w, is_store_change_fact(w->store, w->scope, id, &same, now, DIM, "mini", &w->err));
    is_store_generation(w->store, w->scope, &any[1], &removed[1]);
    assert_true(any[1] == any[0] && removed[1] == removed[0]); /* nothing is made of metadata */
    check(w, change(w, id, (is_fact){.time = 2}));
    is_store_generation(w->store, w->scope, &any[2], &removed[2]);
    assert_true(any[2] != any[1] && removed[2] != removed[1]);
    assert_true(has_vector(w, id, "mini", old) && has_vector(w, id, "maxi", old)); /* the text is the same */
    is_fact_list *read = NULL;
    check(w, is_store_get(w->store, w->scope, &id, 1, &read, &w->err));
    const is_fact to = {.text = "new", .time = IS_TIME_NONE};
    check(w, is_store_change_fact(w->store, w->scope, id, &to, now, DIM, "mini", &w->err));
    assert_true(has_vector(w, id, "mini", now) && has_vector(w, id, "maxi", NULL));
    is_store_generation(w->store, w->scope, &any[3], &removed[3]);
    assert_true(any[3] != any[2] && removed[3] != removed[2]); /* an index in memory begins anew */
    assert_int_equal(raw_int(w->folder, "SELECT count(*) FROM embedding WHERE scope IS NULL AND vector IS NULL"), 2);
    assert_int_equal(raw_int(w->folder, "SELECT value FROM counter WHERE name = 'blank'"), 2);
    /* a vector of what the fact said when it was read comes too late */
    check(w, is_store_put_embeddings_of(w->store, read, late, DIM, "mini", &w->err));
    check(w, is_store_put_embeddings_of(w->store, read, late, DIM, "maxi", &w->err));
    assert_true(has_vector(w, id, "mini", now) && has_vector(w, id, "maxi", NULL));
    is_fact_list_free(read);
    check(w, is_store_unembedded(w->store, w->scope, "maxi", 10, &read, &w->err));
    assert_int_equal(read->n, 1);
    check(w, is_store_put_embeddings_of(w->store, read, late, DIM, "maxi", &w->err));
    assert_true(has_vector(w, id, "maxi", late));
    is_fact_list_free(read);
    change_text(w, id, "without a vector");
    assert_true(has_vector(w, id, "mini", NULL) && has_vector(w, id, "maxi", NULL));
    assert_clean(w);
}

/* As whoever encodes: is_store_pending first. */
static is_status put_chunk(world *w, int64_t fact, const int64_t *deps, size_t n_deps, bool ask_first)
{
    size_t size = 0;
    is_fact_list *list = NULL;
    int64_t *scopes = NULL;
    if (ask_first) check(w, is_store_pending(w->store, 0, &w->key, 0, 0, &list, &scopes, &w->err));
    is_fact_list_free(list);
    free(scopes);
    void *bytes = fixture_chunk(fact, 40, (uint8_t)fact, &w->key, &size);
    is_status status = is_store_put_chunk(w->store, w->scope, fact, &w->key, bytes, size, deps, n_deps, &w->err);
    free(bytes);
    return status;
}

/* Which of four facts have a chunk, as letters; by the index and by what can be pinned. */
static void assert_chunks(world *w, const int64_t ids[4], const char *want)
{
    bool ready[4];
    is_pin *pins[4];
    char got[2][5] = {"", ""};
    size_t refused = 0;
    check(w, is_store_ready(w->store, w->scope, ids, 4, &w->key, ready, &w->err));
    check(w, is_store_pin(w->store, w->scope, ids, 4, &w->key, pins, &refused, &w->err));
    for (int i = 0; i < 4; i++) {
        got[0][i] = ready[i] ? (char)('a' + i) : '-';
        got[1][i] = pins[i] != NULL ? (char)('a' + i) : '-';
    }
    is_store_unpin(w->store, pins, 4);
    assert_string_equal(got[0], want);
    assert_string_equal(got[1], want);
    assert_int_equal(refused, 0);
}

static void put_four(world *w, const int64_t ids[4])
{
    /* b behind a, c behind a and b, d behind c */
    assert_int_equal(put_chunk(w, ids[0], NULL, 0, true), IS_OK);
    assert_int_equal(put_chunk(w, ids[1], ids, 1, true), IS_OK);
    assert_int_equal(put_chunk(w, ids[2], ids, 2, true), IS_OK);
    assert_int_equal(put_chunk(w, ids[3], ids + 2, 1, true), IS_OK);
    assert_chunks(w, ids, "abcd");
}

static void test_chunks_of_the_old_text_go(void **state)
{
    world *w = *state;
    int64_t ids[4];
    for (int i = 0; i < 4; i++) ids[i] = add(w, w->scope, (is_fact){.text = "a fact", .source = "T1", .time = 1});
    put_four(w, ids);
    check(w, change(w, ids[0], (is_fact){.time = IS_TIME_NONE, .metadata = "{\"a\": 1}"}));
    assert_chunks(w, ids, "abcd");
    check(w, change(w, ids[1], (is_fact){.time = IS_TIME_NONE, .source = "T2"}));
    assert_chunks(w, ids, "a-cd"); /* the turns behind which it is made are others; its line is the same */
    put_four(w, ids);
    check(w, change(w, ids[0], (is_fact){.time = 2}));
    assert_chunks(w, ids, "---d");
    put_four(w, ids);
    is_pin *pin = NULL;
    check(w, is_store_pin(w->store, w->scope, &ids[2], 1, &w->key, &pin, NULL, &w->err));
    change_text(w, ids[1], "another");
    assert_int_equal(is_pin_chunk(pin)->tokens[0], ids[2]); /* it stays for whoever holds it */
    assert_chunks(w, ids, "a--d");
    is_store_unpin(w->store, &pin, 1);
    is_stats stats;
    check(w, is_store_stats(w->store, &w->key, &stats, &w->err));
    assert_int_equal(stats.chunks, 2);
    assert_int_equal(stats.facts_pending, 2);
    is_verify_report report;
    check(w, is_store_verify(w->store, false, NULL, NULL, &report, &w->err));
    assert_int_equal(report.files_orphaned, 0); /* the files went too */
    reopen(w);
    assert_chunks(w, ids, "a--d");
    assert_clean(w);
}

/* A chunk in the making when one of its texts is changed. */
static void test_a_chunk_of_an_old_text_is_not_taken(void **state)
{
    world *w = *state;
    int64_t ids[4];
    for (int i = 0; i < 4; i++) ids[i] = add(w, w->scope, (is_fact){.text = "a fact", .time = 1});
    assert_int_equal(put_chunk(w, ids[3], NULL, 0, true), IS_OK);
    change_text(w, ids[0], "another");
    assert_int_equal(put_chunk(w, ids[0], NULL, 0, false), IS_ENOTFOUND);
    assert_non_null(strstr(w->err.text, "changed"));
    assert_int_equal(put_chunk(w, ids[1], ids, 1, false), IS_ENOTFOUND);
    assert_int_equal(put_chunk(w, ids[2], ids + 1, 1, false), IS_OK);
    assert_chunks(w, ids, "--cd");
    assert_int_equal(put_chunk(w, ids[1], ids, 1, true), IS_OK);
    assert_int_equal(put_chunk(w, ids[0], NULL, 0, false), IS_OK);
    assert_chunks(w, ids, "abcd");
    change_text(w, ids[3], "another");
    reopen(w); /* nobody encodes any more */
    assert_int_equal(put_chunk(w, ids[3], ids, 3, false), IS_OK);
    assert_clean(w);
}

/* ------------------------------------------------------------ forgetting */

static bool in_file(const char *folder, const char *name, const void *bytes, size_t n)
{
    char path[FIXTURE_PATH + 32];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    if (file == NULL) return false;
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    size_t size = (size_t)ftell(file);
    rewind(file);
    char *all = malloc(size + 1);
    assert_non_null(all);
    assert_int_equal(fread(all, 1, size, file), size);
    (void)fclose(file);
    bool found = memmem(all, size, bytes, n) != NULL;
    free(all);
    return found;
}

/* Whether the bytes stand anywhere in the database or its WAL. */
static bool on_disk(world *w, const void *bytes, size_t n)
{
    return in_file(w->folder, "inferscale.db", bytes, n) || in_file(w->folder, "inferscale.db-wal", bytes, n) ||
           in_file(w->folder, "inferscale.db-shm", bytes, n);
}

typedef struct marked {
    int64_t id;
    uint32_t n_words;
    char words[6][16]; /* one of each edition; in its text, source and metadata */
    uint16_t vectors[6][DIM];
} marked;

/* Another edition of the fact, sometimes long enough for overflow pages; the first one adds it. */
static void say(world *w, marked *m, uint32_t *number, uint32_t *seed)
{
    char text[1500], source[32], metadata[64];
    char *word = m->words[m->n_words];
    uint16_t *vector = m->vectors[m->n_words++];
    (void)snprintf(word, 16, "Zq%06uqz", (*number)++);
    random_vector(vector, seed);
    size_t more = *seed >> 8 & 7 ? *seed >> 12 & 127 : *seed >> 12 & 1023;
    int at = snprintf(text, sizeof text, "about %s and ", word);
    memset(text + at, 'x', more);
    text[(size_t)at + more] = '\0';
    (void)snprintf(source, sizeof source, "src-%s", word);
    (void)snprintf(metadata, sizeof metadata, "{\"m\": \"%s\"}", word);
    const is_fact fact = {.text = text, .source = source, .time = (int64_t)*number, .metadata = metadata};
    if (m->n_words == 1) {
        check(w, is_store_add_facts(w->store, w->scope, &fact, 1, vector, DIM, "mini", &m->id, &w->err));
    } else {
        check(w, is_store_change_fact(w->store, w->scope, m->id, &fact, vector, DIM, "mini", &w->err));
    }
}

static void assert_gone(world *w, const marked *m)
{
    for (uint32_t i = 0; i < m->n_words; i++) {
        assert_false(on_disk(w, m->words[i], strlen(m->words[i])));
        assert_false(on_disk(w, m->vectors[i], sizeof m->vectors[i]));
        assert_false(matches(w, w->scope, m->words[i], m->id));
    }
}

static void assert_stays(world *w, const marked *m)
{
    is_edition_list *list = NULL;
    check(w, is_store_history(w->store, w->scope, m->id, &list, &w->err));
    assert_int_equal(list->n, m->n_words);
    for (uint32_t i = 0; i < m->n_words; i++) {
        assert_non_null(strstr(list->editions[i].text, m->words[i]));
        assert_true(matches(w, w->scope, m->words[i], m->id) == (i + 1 == m->n_words));
    }
    assert_true(has_vector(w, m->id, "mini", m->vectors[m->n_words - 1]));
    is_edition_list_free(list);
}

/* Facts come, change and go for a while; nothing that a forgotten one ever said may be in any byte of the files. */
static void test_forgetting_takes_every_edition(void **state)
{
    world *w = *state;
    static marked facts[200];
    uint32_t number = 0;
    uint32_t seed = 99;
    size_t n = 0;
    for (int round = 0; round < 12; round++) {
        for (int i = 0; i < 15; i++) {
            facts[n] = (marked){.id = 0};
            say(w, &facts[n++], &number, &seed);
        }
        for (int i = 0; i < 25; i++) {
            marked *m = &facts[(seed >> 8) % n];
            if (m->n_words < 6) say(w, m, &number, &seed);
        }
        marked gone[8];
        int64_t ids[8];
        for (int i = 0; i < 8; i++) {
            uint16_t skipped[DIM];
            random_vector(skipped, &seed);
            size_t at = (seed >> 8) % n;
            gone[i] = facts[at];
            ids[i] = facts[at].id;
            facts[at] = facts[--n];
        }
        size_t forgotten = 0;
        check(w, is_store_forget(w->store, w->scope, ids, 8, &forgotten, &w->err));
        assert_int_equal(forgotten, 8);
        for (int i = 0; i < 8; i++) assert_gone(w, &gone[i]);
        for (size_t i = 0; i < n; i += 5) assert_stays(w, &facts[i]);
    }
    assert_clean(w);
    int64_t bob = scope_named(w, (is_scope){.user = "bob"});
    int64_t his = add(w, bob, (is_fact){.text = "bob was here", .time = 1});
    const is_fact to = {.text = "bob is there", .time = 1};
    check(w, is_store_change_fact(w->store, bob, his, &to, NULL, 0, NULL, &w->err));
    check(w, is_store_forget(w->store, w->scope, NULL, 0, NULL, &w->err));
    for (size_t i = 0; i < n; i++) assert_gone(w, &facts[i]);
    assert_true(on_disk(w, "bob was here", 12) && matches(w, bob, "there", his));
    assert_clean(w);
}

/* Blank editions and vectors count for the rebuilding of the file, and what is left means the same after it. */
static void test_blank_editions_are_cleared_away(void **state)
{
    world *w = *state;
    static marked facts[3];
    uint32_t number = 0;
    uint32_t seed = 5;
    memset(facts, 0, sizeof facts);
    for (int i = 0; i < 3; i++)
        for (int e = 0; e < 4; e++) say(w, &facts[i], &number, &seed);
    static const char COUNT[] = "SELECT value FROM counter WHERE name = 'blank'";
    static const char BLANK[] = "SELECT count(*) FROM edition WHERE scope IS NULL";
    assert_int_equal(raw_int(w->folder, COUNT), 9); /* three vectors of each */
    check(w, is_store_forget(w->store, w->scope, &facts[1].id, 1, NULL, &w->err));
    assert_int_equal(raw_int(w->folder, COUNT), 9 + 1 + 3 + 1); /* the fact, its editions, the last vector */
    assert_int_equal(raw_int(w->folder, BLANK), 3);
    is_store_close(w->store);
    raw_sql(w->folder, "UPDATE counter SET value = 20000 WHERE name = 'blank'");
    w->store = fixture_open(w->folder, 0);
    assert_int_equal(raw_int(w->folder, COUNT), 0);
    assert_int_equal(raw_int(w->folder, BLANK), 0);
    assert_stays(w, &facts[0]);
    assert_stays(w, &facts[2]);
    say(w, &facts[0], &number, &seed);
    assert_stays(w, &facts[0]);
    assert_clean(w);
}

int main(void)
{
#define TEST(NAME) cmocka_unit_test_setup_teardown(NAME, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_words_follow_the_text),          TEST(test_what_is_not_given_stays),
        TEST(test_filters_see_the_newest),         TEST(test_history),
        TEST(test_bad_changes_change_nothing),     TEST(test_vectors_of_the_old_text_go),
        TEST(test_chunks_of_the_old_text_go),      TEST(test_a_chunk_of_an_old_text_is_not_taken),
        TEST(test_forgetting_takes_every_edition), TEST(test_blank_editions_are_cleared_away),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
