/*
 * Facts, turns, settings, embeddings, search by words, and forgetting, on a real database.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <sqlite3.h>
#include <sys/wait.h>

#include "store_fixture.h"

typedef struct world {
    char folder[FIXTURE_PATH];
    is_store *store;
    int64_t scope;
    is_error err;
} world;

static int setup(void **state)
{
    world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    fixture_folder(w->folder);
    w->store = fixture_open(w->folder, 1 << 20);
    assert_int_equal(is_store_scope(w->store, &(is_scope){.user = "ann"}, true, &w->scope, &w->err), IS_OK);
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

static int64_t add(world *w, int64_t scope, const char *text)
{
    int64_t id = 0;
    is_fact fact = {.text = text, .time = IS_TIME_NONE};
    is_status status = is_store_add_facts(w->store, scope, &fact, 1, NULL, 0, NULL, &id, &w->err);
    if (status != IS_OK) fail_msg("%s", w->err.text);
    return id;
}

static int64_t other_scope(world *w, const char *user)
{
    int64_t id = 0;
    assert_int_equal(is_store_scope(w->store, &(is_scope){.user = user}, true, &id, &w->err), IS_OK);
    return id;
}

static size_t match(world *w, int64_t scope, const char *query, size_t max_postings, is_hit hits[64])
{
    size_t n = 99;
    is_status status = is_store_match(w->store, scope, query, 64, max_postings, hits, &n, &w->err);
    if (status != IS_OK) fail_msg("%s", w->err.text);
    return n;
}

static void assert_clean(world *w)
{
    is_verify_report report;
    assert_int_equal(is_store_verify(w->store, false, NULL, NULL, &report, &w->err), IS_OK);
    assert_int_equal(report.chunks_bad + report.files_missing + report.files_orphaned + report.database_bad, 0);
}

/* ------------------------------------------------------------ facts */

static void test_facts_round_trip(void **state)
{
    world *w = *state;
    is_fact facts[3] = {
        {.text = "Ann likes tea", .time = IS_TIME_NONE},
        {.text = "\xC3\x84nne \xE2\x98\x95 \xF0\x9F\x8D\xB5", .source = "D1:3", .time = -5, .metadata = "{\"a\": [1]}"},
        {.text = "two\r\nlines", .time = 0},
    };
    int64_t ids[3];
    assert_int_equal(is_store_add_facts(w->store, w->scope, facts, 3, NULL, 0, NULL, ids, &w->err), IS_OK);
    assert_true(ids[0] < ids[1] && ids[1] < ids[2]);
    reopen(w);
    is_fact_list *list = NULL;
    assert_int_equal(is_store_list(w->store, w->scope, 0, 10, &list, &w->err), IS_OK);
    assert_int_equal(list->n, 3);
    assert_null(list->scores);
    assert_string_equal(list->facts[0].text, facts[0].text);
    assert_null(list->facts[0].source);
    assert_null(list->facts[0].metadata);
    assert_true(list->facts[0].time == IS_TIME_NONE);
    assert_true(list->facts[0].created > 1500000000);
    assert_int_equal(list->facts[0].state, IS_FACT_PENDING);
    assert_string_equal(list->facts[1].text, facts[1].text);
    assert_string_equal(list->facts[1].source, "D1:3");
    assert_string_equal(list->facts[1].metadata, "{\"a\": [1]}");
    assert_true(list->facts[1].time == -5);
    assert_string_equal(list->facts[2].text, "two  lines");
    assert_true(list->facts[2].time == 0);
    is_fact_list_free(list);
}

static void test_paging_and_get(void **state)
{
    world *w = *state;
    int64_t ids[25];
    char text[32];
    int64_t other = other_scope(w, "bob");
    for (int i = 0; i < 25; i++) {
        (void)snprintf(text, sizeof text, "fact number %d", i);
        ids[i] = add(w, w->scope, text);
        (void)add(w, other, text);
    }
    int64_t after = 0;
    size_t seen = 0;
    for (;;) {
        is_fact_list *page = NULL;
        assert_int_equal(is_store_list(w->store, w->scope, after, 10, &page, &w->err), IS_OK);
        size_t n = page->n;
        for (size_t i = 0; i < n; i++) assert_int_equal(page->facts[i].id, ids[seen++]);
        if (n > 0) after = page->facts[n - 1].id;
        is_fact_list_free(page);
        if (n == 0) break;
    }
    assert_int_equal(seen, 25);
    is_fact_list *list = NULL;
    int64_t wanted[4] = {ids[7], ids[7] + 1, ids[2], 999999}; /* the second is bob's */
    assert_int_equal(is_store_get(w->store, w->scope, wanted, 4, &list, &w->err), IS_OK);
    assert_int_equal(list->n, 2);
    assert_string_equal(list->facts[0].text, "fact number 7");
    assert_string_equal(list->facts[1].text, "fact number 2");
    is_fact_list_free(list);
}

static is_status add_status(world *w, is_fact fact)
{
    /* The one in front is well: a refused fact must take it along. */
    is_fact facts[2] = {{.text = "well", .time = IS_TIME_NONE}, fact};
    int64_t ids[2];
    w->err.text[0] = '\0';
    return is_store_add_facts(w->store, w->scope, facts, 2, NULL, 0, NULL, ids, &w->err);
}

static void test_limits(void **state)
{
    world *w = *state;
    char text[4098];
    memset(text, 'x', sizeof text);
    text[4097] = '\0';
    assert_int_equal(add_status(w, (is_fact){.text = text}), IS_ELIMIT);
    assert_non_null(strstr(w->err.text, "4097"));
    assert_int_equal(add_status(w, (is_fact){.text = ""}), IS_EINVAL);
    assert_int_equal(add_status(w, (is_fact){.text = NULL}), IS_EINVAL);
    assert_int_equal(add_status(w, (is_fact){.text = "a\xC3"}), IS_EINVAL);
    assert_int_equal(add_status(w, (is_fact){.text = "a", .source = "\xFF"}), IS_EINVAL);
    assert_int_equal(add_status(w, (is_fact){.text = "a", .metadata = "[1]"}), IS_EINVAL);
    assert_int_equal(add_status(w, (is_fact){.text = "a", .metadata = "{"}), IS_EINVAL);
    assert_true(w->err.text[0] != '\0');
    int64_t id = 0;
    is_fact fact = {.text = "a"};
    assert_int_equal(is_store_add_facts(w->store, w->scope + 77, &fact, 1, NULL, 0, NULL, &id, &w->err), IS_ENOTFOUND);
    is_fact_list *list = NULL;
    assert_int_equal(is_store_list(w->store, w->scope, 0, 10, &list, &w->err), IS_OK);
    assert_int_equal(list->n, 0);
    is_fact_list_free(list);
    text[4096] = '\0';
    assert_int_equal(add_status(w, (is_fact){.text = text}), IS_OK);
    for (int i = 0; i < 4096; i += 2) text[i] = ' '; /* as many words as fit */
    assert_int_equal(add_status(w, (is_fact){.text = text}), IS_OK);
    assert_clean(w);
}

static void test_filters(void **state)
{
    world *w = *state;
    is_fact facts[5] = {
        {.text = "a", .time = 100, .metadata = "{\"topic\": \"food\", \"n\": 1}"},
        {.text = "b", .time = 200, .metadata = "{\"topic\": \"food\"}"},
        {.text = "c", .time = 300, .metadata = "{\"topic\": {\"deep\": [1, 2]}}"},
        {.text = "d", .time = IS_TIME_NONE, .metadata = "{\"topic\": \"food\"}"},
        {.text = "e", .time = 200},
    };
    int64_t id[5];
    assert_int_equal(is_store_add_facts(w->store, w->scope, facts, 5, NULL, 0, NULL, id, &w->err), IS_OK);
    static const struct {
        is_filter filter;
        const char *want; /* letters of the facts that pass */
    } CASES[] = {
        {{IS_TIME_NONE, IS_TIME_NONE, NULL}, "abcde"},
        {{200, IS_TIME_NONE, NULL}, "bce"},
        {{IS_TIME_NONE, 200, NULL}, "a"},
        {{100, 300, NULL}, "abe"},
        {{IS_TIME_NONE, IS_TIME_NONE, "{\"topic\": \"food\"}"}, "abd"},
        {{IS_TIME_NONE, IS_TIME_NONE, "{\"topic\": \"food\", \"n\": 1}"}, "a"},
        {{IS_TIME_NONE, IS_TIME_NONE, "{\"topic\": {\"deep\": [1, 2]}}"}, "c"},
        {{IS_TIME_NONE, IS_TIME_NONE, "{\"topic\": null}"}, ""},
        {{IS_TIME_NONE, IS_TIME_NONE, "{}"}, "abcde"},
        {{150, IS_TIME_NONE, "{\"topic\": \"food\"}"}, "b"},
    };
    for (size_t c = 0; c < sizeof CASES / sizeof *CASES; c++) {
        int64_t order[6] = {id[4], id[3], 12345, id[2], id[1], id[0]};
        int64_t some[6];
        int64_t *all = NULL;
        size_t n_some = 0;
        size_t n_all = 0;
        size_t want = strlen(CASES[c].want);
        assert_int_equal(is_store_filter(w->store, w->scope, &CASES[c].filter, order, 6, some, &n_some, &w->err),
                         IS_OK);
        assert_int_equal(is_store_filter_all(w->store, w->scope, &CASES[c].filter, &all, &n_all, &w->err), IS_OK);
        assert_int_equal(n_some, want);
        assert_int_equal(n_all, want);
        for (size_t i = 0; i < want; i++) {
            assert_int_equal(all[i], id[CASES[c].want[i] - 'a']);
            assert_int_equal(some[want - 1 - i], all[i]);
        }
        free(all);
    }
    is_filter bad = {IS_TIME_NONE, IS_TIME_NONE, "[]"};
    int64_t *all = NULL;
    size_t n = 0;
    assert_int_equal(is_store_filter_all(w->store, w->scope, &bad, &all, &n, &w->err), IS_EINVAL);
    assert_int_equal(is_store_filter_all(w->store, other_scope(w, "bob"), NULL, &all, &n, &w->err), IS_OK);
    assert_int_equal(n, 0);
}

/* ------------------------------------------------------------ turns, settings, scopes */

static void assert_window(world *w, int64_t scope, const char *id, uint32_t n, const char *want)
{
    is_turn_list *list = NULL;
    char got[256] = "";
    assert_int_equal(is_store_window(w->store, scope, id, n, &list, &w->err), IS_OK);
    for (size_t i = 0; i < list->n; i++) {
        assert_string_equal(list->turns[i].speaker, "Ann");
        (void)strcat(strcat(got, list->turns[i].id), " ");
    }
    assert_string_equal(got, want);
    is_turn_list_free(list);
}

static void test_windows(void **state)
{
    world *w = *state;
    is_turn turns[6];
    static const char *const IDS[6] = {"D1:1", "D1:2", "D2:1", "D1:3", "D2:2", "D1:1"};
    for (int i = 0; i < 6; i++)
        turns[i] = (is_turn){.id = IDS[i],
                             .session = IDS[i][1] == '1' ? "one" : "two",
                             .speaker = "Ann",
                             .text = i == 5 ? "not this one" : "hello",
                             .time = i == 2 ? IS_TIME_NONE : i};
    assert_int_equal(is_store_add_turns(w->store, w->scope, turns, 6, &w->err), IS_OK);
    assert_int_equal(is_store_add_turns(w->store, w->scope, turns, 2, &w->err), IS_OK);
    int64_t other = other_scope(w, "bob");
    assert_int_equal(is_store_add_turns(w->store, other, turns, 1, &w->err), IS_OK);
    assert_window(w, w->scope, "D1:3", 5, "D1:1 D1:2 D1:3 ");
    assert_window(w, w->scope, "D1:3", 2, "D1:2 D1:3 ");
    assert_window(w, w->scope, "D1:1", 5, "D1:1 ");
    assert_window(w, w->scope, "D2:2", 5, "D2:1 D2:2 ");
    assert_window(w, w->scope, "D2:2", 0, "");
    assert_window(w, w->scope, "none", 5, "");
    assert_window(w, other, "D1:3", 5, "");
    is_turn_list *list = NULL;
    assert_int_equal(is_store_window(w->store, w->scope, "D2:1", 1, &list, &w->err), IS_OK);
    assert_string_equal(list->turns[0].text, "hello");
    assert_true(list->turns[0].time == IS_TIME_NONE);
    is_turn_list_free(list);
    assert_int_equal(is_store_window(w->store, w->scope, "D1:1", 1, &list, &w->err), IS_OK);
    assert_string_equal(list->turns[0].text, "hello");
    is_turn_list_free(list);
    is_turn bad = {.id = "", .text = "x"};
    assert_int_equal(is_store_add_turns(w->store, w->scope, &bad, 1, &w->err), IS_EINVAL);
    is_stats stats;
    assert_int_equal(is_store_stats(w->store, NULL, &stats, &w->err), IS_OK);
    assert_int_equal(stats.turns, 6);
    assert_int_equal(stats.scopes, 2);
}

static void test_settings(void **state)
{
    world *w = *state;
    char *value = (char *)1;
    assert_int_equal(is_store_get_setting(w->store, "recipe", &value, &w->err), IS_OK);
    assert_null(value);
    assert_int_equal(is_store_set_setting(w->store, "recipe", "isolated", &w->err), IS_OK);
    assert_int_equal(is_store_set_setting(w->store, "recipe", "primed:8", &w->err), IS_OK);
    reopen(w);
    assert_int_equal(is_store_get_setting(w->store, "recipe", &value, &w->err), IS_OK);
    assert_string_equal(value, "primed:8");
    free(value);
    assert_int_equal(is_store_set_setting(w->store, "store.words", "x", &w->err), IS_EINVAL);
}

static void test_scopes(void **state)
{
    world *w = *state;
    int64_t a = 0;
    int64_t b = 0;
    assert_int_equal(is_store_scope(w->store, &(is_scope){NULL, NULL, "", NULL}, true, &a, &w->err), IS_EINVAL);
    assert_int_equal(is_store_scope(w->store, &(is_scope){.user = "new"}, false, &a, &w->err), IS_ENOTFOUND);
    assert_int_equal(is_store_scope(w->store, &(is_scope){"t", "new", "", NULL}, true, &a, &w->err), IS_OK);
    assert_int_equal(is_store_scope(w->store, &(is_scope){"t", "new", NULL, ""}, false, &b, &w->err), IS_OK);
    assert_int_equal(a, b);
    /* a field's text is not another field's */
    assert_int_equal(is_store_scope(w->store, &(is_scope){"new", "t", NULL, NULL}, true, &b, &w->err), IS_OK);
    assert_int_not_equal(a, b);
    is_scope_name *names = NULL;
    size_t n = 0;
    assert_int_equal(is_store_scopes(w->store, &names, &n, &w->err), IS_OK);
    assert_int_equal(n, 3);
    assert_string_equal(names[0].user, "ann");
    assert_string_equal(names[1].tenant, "t");
    assert_string_equal(names[1].agent, "");
    assert_int_equal(names[2].id, b);
    is_store_scopes_free(names, n);
}

/* ------------------------------------------------------------ search by words */

/* BM25 by its definition, over words in lower case without endings: the texts below have nothing to stem. */
static double bm25(const char *const *texts, size_t n_texts, size_t which, const char *const *query, size_t n_query)
{
    double words = 0;
    double total = 0;
    double score = 0;
    char padded[128];
    for (size_t i = 0; i < n_texts; i++) {
        double n = 1;
        for (const char *c = texts[i]; *c != '\0'; c++) n += *c == ' ';
        total += n;
        if (i == which) words = n;
    }
    for (size_t q = 0; q < n_query; q++) {
        double df = 0;
        double tf = 0;
        char word[32];
        (void)snprintf(word, sizeof word, " %s ", query[q]);
        for (size_t i = 0; i < n_texts; i++) {
            (void)snprintf(padded, sizeof padded, " %s ", texts[i]);
            double n = 0;
            for (const char *at = strstr(padded, word); at != NULL; at = strstr(at + 1, word)) n++;
            df += n > 0;
            if (i == which) tf = n;
        }
        double idf = log(1 + ((double)n_texts - df + 0.5) / (df + 0.5));
        score += idf * tf * 2.2 / (tf + 1.2 * (0.25 + 0.75 * words * (double)n_texts / total));
    }
    return score;
}

static void test_bm25(void **state)
{
    world *w = *state;
    static const char *const TEXTS[6] = {"red cat sat",     "blue dog ran far",
                                         "red dog red hat", "cat and dog",
                                         "old hat",         "a very long text about a cat in a red hat"};
    static const char *const QUERY[3] = {"red", "cat", "hat"};
    int64_t ids[6];
    int64_t other = other_scope(w, "bob");
    for (int i = 0; i < 6; i++) {
        ids[i] = add(w, w->scope, TEXTS[i]);
        /* another user's words change neither hits nor scores */
        for (int j = 0; j < 3; j++) (void)add(w, other, TEXTS[i]);
    }
    is_hit hits[64];
    assert_int_equal(match(w, w->scope, "Red, CAT! (hats)? zebra red", 1000, hits), 5);
    for (int i = 0; i < 5; i++) {
        size_t which = 0;
        while (ids[which] != hits[i].id) assert_true(++which < 6);
        assert_true(fabs(hits[i].score - bm25(TEXTS, 6, which, QUERY, 3)) < 1e-9);
        if (i > 0) assert_true(hits[i - 1].score >= hits[i].score);
    }
    size_t n = 0;
    assert_int_equal(is_store_match(w->store, w->scope, "red cat hat", 2, 1000, hits, &n, &w->err), IS_OK);
    assert_int_equal(n, 2);
}

static void test_scopes_do_not_see_each_other(void **state)
{
    world *w = *state;
    int64_t bob = other_scope(w, "bob");
    is_hit hits[64];
    int64_t a = add(w, w->scope, "the key is under the mat");
    int64_t b = add(w, bob, "the key is under the mat");
    int64_t c = add(w, bob, "swordfish");
    assert_int_equal(match(w, w->scope, "key mat swordfish", 1000, hits), 1);
    assert_int_equal(hits[0].id, a);
    assert_int_equal(match(w, bob, "key", 1000, hits), 1);
    assert_int_equal(hits[0].id, b);
    assert_int_equal(match(w, w->scope, "swordfish", 1000, hits), 0);
    /* numbers of the own and of other scopes are words like any other */
    char query[64];
    (void)snprintf(query, sizeof query, "%lld s%lld scope:%lld", (long long)bob, (long long)bob, (long long)bob);
    assert_int_equal(match(w, w->scope, query, 1000, hits), 0);
    size_t forgotten = 0;
    assert_int_equal(is_store_forget(w->store, w->scope, &c, 1, &forgotten, &w->err), IS_OK);
    assert_int_equal(forgotten, 0);
    assert_int_equal(match(w, bob, "swordfish", 1000, hits), 1);
}

static void test_query_syntax_is_text(void **state)
{
    world *w = *state;
    is_hit hits[64];
    int64_t id = add(w, w->scope, "caf\xC3\xA9 at noon");
    static const char *const QUERIES[] = {
        "\"noon",    "noon*",       "noon AND",    "NOT noon",  "NEAR(noon",
        "text:noon", "^noon",       "noon OR ) (", "{noon}: -", "'; DROP TABLE fact; -- noon",
        "CAFE",      "cafe\xCC\x81"};
    for (size_t i = 0; i < sizeof QUERIES / sizeof *QUERIES; i++) {
        assert_int_equal(match(w, w->scope, QUERIES[i], 1000, hits), 1);
        assert_int_equal(hits[0].id, id);
    }
    assert_int_equal(match(w, w->scope, "", 1000, hits), 0);
    assert_int_equal(match(w, w->scope, "\"'*():^ - + \xFF\xFE", 1000, hits), 0);
    assert_int_equal(match(w, w->scope, "noo*", 1000, hits), 0);
}

static void test_rare_words_first(void **state)
{
    world *w = *state;
    is_hit hits[64];
    int64_t newest = 0;
    for (int i = 0; i < 40; i++) newest = add(w, w->scope, i % 4 == 0 ? "common seldom" : "common thing");
    int64_t rare = add(w, w->scope, "rare bird");
    assert_int_equal(match(w, w->scope, "common seldom rare", 51, hits), 41);
    assert_int_equal(match(w, w->scope, "common seldom rare", 50, hits), 11); /* common has no room left */
    assert_int_equal(match(w, w->scope, "common seldom rare", 10, hits), 1);
    assert_int_equal(hits[0].id, rare);
    /* even the rarest is too common: its newest facts */
    assert_int_equal(match(w, w->scope, "common", 5, hits), 5);
    for (int i = 0; i < 5; i++) assert_true(hits[i].id > newest - 5 && hits[i].id <= newest);
    assert_int_equal(match(w, w->scope, "common", 0, hits), 0);
}

static void raw_sql(world *w, const char *sql)
{
    sqlite3 *db = NULL;
    char path[FIXTURE_PATH + 32];
    (void)snprintf(path, sizeof path, "%s/inferscale.db", w->folder);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    (void)sqlite3_close(db);
}

/* By rank in the scope, whatever other scopes have between. */
static void test_ranks_and_groups(void **state)
{
    world *w = *state;
    int64_t ids[11], got[4];
    size_t n;
    const uint64_t ranks[4] = {0, 4, 10, 11};
    int64_t other = other_scope(w, "bob");
    for (int i = 0; i < 11; i++) {
        ids[i] = add(w, w->scope, "a fact");
        (void)add(w, other, "another");
    }
    assert_int_equal(is_store_at_ranks(w->store, w->scope, ranks, 4, got, &w->err), IS_OK);
    const int64_t want[4] = {ids[0], ids[4], ids[10], 0};
    assert_memory_equal(got, want, sizeof want);
    for (size_t i = 0; i < 11; i++) {
        assert_int_equal(is_store_group_before(w->store, w->scope, ids[i], 4, got, &n, &w->err), IS_OK);
        assert_int_equal(n, i % 4);
        assert_memory_equal(got, &ids[i - n], n * sizeof *got);
    }
    /* A database that another program has damaged is complained of. */
    reopen(w);
    raw_sql(w, "PRAGMA foreign_keys = off; ALTER TABLE fact RENAME TO gone");
    assert_int_not_equal(is_store_at_ranks(w->store, w->scope, ranks, 4, got, &w->err), IS_OK);
    assert_int_not_equal(is_store_group_before(w->store, w->scope, ids[9], 4, got, &n, &w->err), IS_OK);
    assert_int_equal(n, 0);
}

static void count_line(void *user, const char *line)
{
    assert_true(line[0] != '\0');
    (*(int *)user)++;
}

static void test_word_index_is_checked(void **state)
{
    world *w = *state;
    is_hit hits[64];
    (void)add(w, w->scope, "alpha beta");
    (void)add(w, w->scope, "beta gamma");
    assert_clean(w);
    static const char *const DAMAGE[] = {
        "DELETE FROM posting WHERE fact = 1", "UPDATE word SET facts = facts + 1",
        "UPDATE posting SET n_text = 7",      "INSERT INTO posting VALUES(1, 77, 1, 1, 1)",
        "UPDATE scope SET words = words + 1", "UPDATE scope SET facts = 7",
        "UPDATE scope SET turns = 7"};
    for (size_t i = 0; i < sizeof DAMAGE / sizeof *DAMAGE; i++) {
        is_store_close(w->store);
        raw_sql(w, DAMAGE[i]);
        w->store = fixture_open(w->folder, 0);
        int lines = 0;
        is_verify_report report;
        assert_int_equal(is_store_verify(w->store, true, count_line, &lines, &report, &w->err), IS_OK);
        assert_true(report.database_bad > 0);
        assert_int_equal(lines, 1);
        assert_clean(w);
        assert_int_equal(match(w, w->scope, "alpha", 10, hits), 1);
        assert_int_equal(match(w, w->scope, "beta", 10, hits), 2);
    }
}

/* ------------------------------------------------------------ embeddings */

static void test_embeddings(void **state)
{
    world *w = *state;
    is_fact facts[3] = {{.text = "a"}, {.text = "b"}, {.text = "c"}};
    uint16_t vectors[3 * 8];
    int64_t ids[3];
    int64_t *got_ids = NULL;
    uint16_t *got = NULL;
    size_t n = 0;
    for (int i = 0; i < 24; i++) vectors[i] = (uint16_t)(1000 + i);
    assert_int_equal(is_store_add_facts(w->store, w->scope, facts, 3, vectors, 8, "mini", ids, &w->err), IS_OK);
    int64_t bare = add(w, w->scope, "no vector");
    assert_int_equal(is_store_embeddings(w->store, w->scope, "mini", 8, 0, &got_ids, &got, &n, &w->err), IS_OK);
    assert_int_equal(n, 3);
    assert_memory_equal(got_ids, ids, sizeof ids);
    assert_memory_equal(got, vectors, sizeof vectors);
    assert_int_equal((uintptr_t)got % 64, 0);
    free(got_ids);
    free(got);
    assert_int_equal(is_store_embeddings(w->store, w->scope, "mini", 8, ids[1], &got_ids, &got, &n, &w->err), IS_OK);
    assert_int_equal(n, 1);
    assert_int_equal(got_ids[0], ids[2]);
    assert_memory_equal(got, vectors + 16, 16);
    free(got_ids);
    free(got);
    assert_int_equal(is_store_embeddings(w->store, w->scope, "other", 8, 0, &got_ids, &got, &n, &w->err), IS_OK);
    assert_int_equal(n, 0);
    is_fact_list *list = NULL;
    assert_int_equal(is_store_unembedded(w->store, w->scope, "mini", 10, &list, &w->err), IS_OK);
    assert_int_equal(list->n, 1);
    assert_int_equal(list->facts[0].id, bare);
    is_fact_list_free(list);
    assert_int_equal(is_store_unembedded(w->store, w->scope, "other", 2, &list, &w->err), IS_OK);
    assert_int_equal(list->n, 2);
    is_fact_list_free(list);
    int64_t put[3] = {bare, ids[0], 4711}; /* new, replaced, not there */
    assert_int_equal(is_store_put_embeddings(w->store, put, vectors, 3, 8, "mini", &w->err), IS_OK);
    assert_int_equal(is_store_embeddings(w->store, w->scope, "mini", 8, 0, &got_ids, &got, &n, &w->err), IS_OK);
    assert_int_equal(n, 4);
    assert_memory_equal(got, vectors + 8, 16);
    assert_int_equal(got_ids[3], bare);
    assert_memory_equal(got + 24, vectors, 16);
    free(got_ids);
    free(got);
    assert_clean(w);
}

static void test_generations(void **state)
{
    world *w = *state;
    uint64_t any[6];
    uint64_t removed[6];
    uint16_t vector[8] = {0};
    int64_t bob = other_scope(w, "bob");
    is_store_generation(w->store, w->scope, &any[0], &removed[0]);
    int64_t id = add(w, w->scope, "a");
    is_store_generation(w->store, w->scope, &any[1], &removed[1]);
    assert_true(any[1] != any[0] && removed[1] == removed[0]);
    assert_int_equal(is_store_put_embeddings(w->store, &id, vector, 1, 8, "mini", &w->err), IS_OK);
    is_store_generation(w->store, w->scope, &any[2], &removed[2]);
    assert_true(any[2] != any[1] && removed[2] == removed[0]);
    (void)add(w, bob, "b");
    assert_int_equal(is_store_forget(w->store, bob, NULL, 0, NULL, &w->err), IS_OK);
    is_store_generation(w->store, w->scope, &any[3], &removed[3]);
    assert_true(any[3] == any[2] && removed[3] == removed[0]);
    assert_int_equal(is_store_forget(w->store, w->scope, &id, 1, NULL, &w->err), IS_OK);
    is_store_generation(w->store, w->scope, &any[4], &removed[4]);
    assert_true(any[4] != any[3] && removed[4] != removed[0]);
}

/* ------------------------------------------------------------ forgetting */

/* Whether the bytes stand anywhere in the database or its WAL. */
static bool on_disk(world *w, const void *bytes, size_t n)
{
    static const char *const NAMES[] = {"inferscale.db", "inferscale.db-wal", "inferscale.db-shm"};
    bool found = false;
    for (int i = 0; i < 3; i++) {
        char path[FIXTURE_PATH + 32];
        (void)snprintf(path, sizeof path, "%s/%s", w->folder, NAMES[i]);
        FILE *file = fopen(path, "rb");
        if (file == NULL) continue;
        assert_int_equal(fseek(file, 0, SEEK_END), 0);
        size_t size = (size_t)ftell(file);
        rewind(file);
        char *all = malloc(size + 1);
        assert_non_null(all);
        assert_int_equal(fread(all, 1, size, file), size);
        (void)fclose(file);
        found = found || memmem(all, size, bytes, n) != NULL;
        free(all);
    }
    return found;
}

static uint32_t next_random(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

typedef struct kept {
    int64_t id;
    char word[16];
    uint16_t vector[8];
} kept;

static kept add_marked(world *w, uint32_t n, uint32_t *seed)
{
    kept fact = {0};
    char text[1400];
    char source[32];
    char metadata[64];
    (void)snprintf(fact.word, sizeof fact.word, "Zq%06uqz", n);
    /* some texts are long enough for overflow pages */
    size_t more = next_random(seed) % 100 < 10 ? next_random(seed) % 1200 : next_random(seed) % 120;
    int at = snprintf(text, sizeof text, "about %s and ", fact.word);
    memset(text + at, 'x', more);
    text[(size_t)at + more] = '\0';
    (void)snprintf(source, sizeof source, "src-%s", fact.word);
    (void)snprintf(metadata, sizeof metadata, "{\"m\": \"%s\"}", fact.word);
    for (int i = 0; i < 8; i++) fact.vector[i] = (uint16_t)next_random(seed);
    is_fact in = {.text = text, .source = source, .time = 1, .metadata = metadata};
    assert_int_equal(is_store_add_facts(w->store, w->scope, &in, 1, fact.vector, 8, "mini", &fact.id, &w->err), IS_OK);
    return fact;
}

/* Rows come and go for a while; each forgotten text, source, metadata and vector must be in no byte of the files. */
static void test_forget_leaves_no_bytes(void **state)
{
    world *w = *state;
    kept *facts = calloc(600, sizeof *facts);
    assert_non_null(facts);
    uint32_t seed = 12345;
    size_t n = 0;
    uint32_t made = 0;
    for (int round = 0; round < 25; round++) {
        for (int i = 0; i < 20; i++) facts[n++] = add_marked(w, made++, &seed);
        assert_true(on_disk(w, facts[n - 1].word, strlen(facts[n - 1].word)));
        assert_true(on_disk(w, facts[n - 1].vector, sizeof facts[n - 1].vector));
        int64_t ids[15];
        kept gone[15];
        for (int i = 0; i < 15; i++) {
            size_t at = next_random(&seed) % n;
            gone[i] = facts[at];
            ids[i] = facts[at].id;
            facts[at] = facts[--n];
        }
        size_t forgotten = 0;
        assert_int_equal(is_store_forget(w->store, w->scope, ids, 15, &forgotten, &w->err), IS_OK);
        assert_int_equal(forgotten, 15);
        is_hit hits[64];
        for (int i = 0; i < 15; i++) {
            assert_false(on_disk(w, gone[i].word, strlen(gone[i].word)));
            assert_false(on_disk(w, gone[i].vector, sizeof gone[i].vector));
            assert_int_equal(match(w, w->scope, gone[i].word, 100, hits), 0);
        }
        assert_int_equal(match(w, w->scope, facts[0].word, 100, hits), 1);
    }
    assert_clean(w);
    is_fact_list *list = NULL;
    assert_int_equal(is_store_list(w->store, w->scope, 0, 1000, &list, &w->err), IS_OK);
    assert_int_equal(list->n, n);
    is_fact_list_free(list);
    size_t forgotten = 0;
    assert_int_equal(is_store_forget(w->store, w->scope, &facts[0].id, 1, &forgotten, &w->err), IS_OK);
    assert_int_equal(is_store_forget(w->store, w->scope, &facts[0].id, 1, &forgotten, &w->err), IS_OK);
    assert_int_equal(forgotten, 0);
    free(facts);
}

static void test_forget_a_scope(void **state)
{
    world *w = *state;
    uint32_t seed = 7;
    kept facts[40];
    for (uint32_t i = 0; i < 40; i++) facts[i] = add_marked(w, i, &seed);
    is_turn turn = {
        .id = "turn-secretid", .session = "session-secret", .speaker = "Quentin", .text = "xylophonist says hi"};
    assert_int_equal(is_store_add_turns(w->store, w->scope, &turn, 1, &w->err), IS_OK);
    int64_t bob = other_scope(w, "bob");
    int64_t kept_id = add(w, bob, "bob stays");
    assert_int_equal(is_store_add_turns(w->store, bob, &(is_turn){.id = "bt", .text = "bobs turn"}, 1, &w->err), IS_OK);
    assert_true(on_disk(w, "xylophonist", 11));
    size_t forgotten = 0;
    assert_int_equal(is_store_forget(w->store, w->scope, NULL, 0, &forgotten, &w->err), IS_OK);
    assert_int_equal(forgotten, 40);
    for (int i = 0; i < 40; i++) assert_false(on_disk(w, facts[i].word, strlen(facts[i].word)));
    assert_false(on_disk(w, facts[3].vector, sizeof facts[3].vector));
    assert_false(on_disk(w, "xylophonist", 11));
    assert_false(on_disk(w, "secretid", 8));
    assert_false(on_disk(w, "session-secret", 14));
    assert_false(on_disk(w, "Quentin", 7));
    assert_window(w, w->scope, "turn-secretid", 3, "");
    assert_clean(w);
    is_fact_list *list = NULL;
    assert_int_equal(is_store_get(w->store, bob, &kept_id, 1, &list, &w->err), IS_OK);
    assert_int_equal(list->n, 1);
    is_fact_list_free(list);
    is_hit hits[64];
    assert_int_equal(match(w, bob, "bob", 100, hits), 1);
    /* the scope can be used again, and an id is never used twice */
    assert_true(add(w, w->scope, "back again") > kept_id);
    assert_int_equal(match(w, w->scope, "about", 100, hits), 0);
    assert_int_equal(match(w, w->scope, "again", 100, hits), 1);
}

static uint64_t database_bytes(world *w)
{
    is_stats stats;
    assert_int_equal(is_store_stats(w->store, NULL, &stats, &w->err), IS_OK);
    return stats.database_bytes;
}

static void test_blank_rows_are_cleared_away(void **state)
{
    world *w = *state;
    enum { N = 1000, BATCHES = 21 };
    is_fact *facts = calloc(N, sizeof *facts);
    int64_t *ids = calloc(N, sizeof *ids);
    assert_true(facts != NULL && ids != NULL);
    for (int i = 0; i < N; i++) facts[i] = (is_fact){.text = "the same few words again and again", .time = 1};
    for (int i = 0; i < BATCHES; i++)
        assert_int_equal(is_store_add_facts(w->store, w->scope, facts, N, NULL, 0, NULL, ids, &w->err), IS_OK);
    int64_t bob = other_scope(w, "bob");
    int64_t before = add(w, bob, "bob stays");
    assert_int_equal(is_store_forget(w->store, w->scope, NULL, 0, NULL, &w->err), IS_OK);
    uint64_t full = database_bytes(w);
    reopen(w);
    assert_true(database_bytes(w) < full / 4);
    assert_clean(w);
    is_hit hits[64];
    assert_int_equal(match(w, bob, "stays", 10, hits), 1);
    assert_int_equal(hits[0].id, before);
    assert_int_equal(add(w, bob, "next"), before + 1);
    uint64_t small = database_bytes(w);
    reopen(w); /* not again */
    assert_true(database_bytes(w) <= small);
    free(ids);
    free(facts);
}

/* ------------------------------------------------------------ opening */

static void test_one_process_at_a_time(void **state)
{
    world *w = *state;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        is_store *second = NULL;
        is_error err = {0};
        is_status status = is_store_open(&(is_store_options){w->folder, 0}, &second, &err);
        _exit(status == IS_EIO && second == NULL && strstr(err.text, "another process") != NULL ? 0 : 1);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    reopen(w); /* the lock goes with the handle */
}

static void test_newer_schema_is_refused(void **state)
{
    world *w = *state;
    is_store_close(w->store);
    raw_sql(w, "PRAGMA user_version = 99");
    is_store *store = NULL;
    assert_int_equal(is_store_open(&(is_store_options){w->folder, 0}, &store, &w->err), IS_EIO);
    assert_null(store);
    assert_non_null(strstr(w->err.text, "newer"));
    raw_sql(w, "PRAGMA user_version = 1");
    w->store = fixture_open(w->folder, 0);
}

static void test_bad_folders(void **state)
{
    world *w = *state;
    is_store *store = NULL;
    char path[FIXTURE_PATH + 64];
    assert_int_equal(is_store_open(&(is_store_options){"", 0}, &store, &w->err), IS_EINVAL);
    (void)snprintf(path, sizeof path, "%s/lock/sub", w->folder); /* below a file */
    assert_int_equal(is_store_open(&(is_store_options){path, 0}, &store, &w->err), IS_EIO);
    assert_non_null(strstr(w->err.text, "lock"));
    (void)snprintf(path, sizeof path, "%s/made/deep/", w->folder);
    assert_int_equal(is_store_open(&(is_store_options){path, 0}, &store, &w->err), IS_OK);
    is_store_close(store);
    (void)snprintf(path, sizeof path, "%s/other", w->folder);
    assert_int_equal(mkdir(path, 0700), 0);
    (void)snprintf(path, sizeof path, "%s/other/inferscale.db", w->folder);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    for (int i = 0; i < 5000; i++) (void)fputc('j', file);
    (void)fclose(file);
    (void)snprintf(path, sizeof path, "%s/other", w->folder);
    assert_int_equal(is_store_open(&(is_store_options){path, 0}, &store, &w->err), IS_ECORRUPT);
}

int main(void)
{
#define TEST(NAME) cmocka_unit_test_setup_teardown(NAME, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_facts_round_trip),
        TEST(test_paging_and_get),
        TEST(test_ranks_and_groups),
        TEST(test_limits),
        TEST(test_filters),
        TEST(test_windows),
        TEST(test_settings),
        TEST(test_scopes),
        TEST(test_bm25),
        TEST(test_scopes_do_not_see_each_other),
        TEST(test_query_syntax_is_text),
        TEST(test_rare_words_first),
        TEST(test_word_index_is_checked),
        TEST(test_embeddings),
        TEST(test_generations),
        TEST(test_forget_leaves_no_bytes),
        TEST(test_forget_a_scope),
        TEST(test_blank_rows_are_cleared_away),
        TEST(test_one_process_at_a_time),
        TEST(test_newer_schema_is_refused),
        TEST(test_bad_folders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
