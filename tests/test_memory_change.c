/*
 * Facts that are changed, on real models: what is answered, injected and found is what they say now, at once and after
 * they were encoded again; and facts by id, their history, and whose they are.
 *
 * Models: INFERSCALE_CHAT_MODEL and INFERSCALE_EMBEDDING_MODEL.
 */
#include "memory_fixture.h"

#define CAT 4 /* among the oldest: it stands in other facts' primer */
static const char MARBLE[] = "Nora's cat is called Marble and is two years old.";
static const char QUESTION[] = "What is the cat called?";

static is_options options(void)
{
    is_options o = plain_options();
    o.threads = 1;
    return o;
}

static is_memory *open_one(void)
{
    is_options o = options();
    return open_with(&o);
}

static is_memory *open_bare(void)
{
    is_options o = options();
    o.model = NULL;
    o.embedding_model = NULL;
    return open_with(&o);
}

static void add_all(is_memory *m, const char *const *texts, size_t n, int64_t *ids)
{
    is_error err = {0};
    is_fact facts[64];
    for (size_t i = 0; i < n; i++) facts[i] = (is_fact){.text = texts[i], .time = IS_TIME_NONE};
    check(is_add_facts(m, &NORA, facts, n, ids, &err), &err);
}

static void change(is_memory *m, int64_t id, const char *text)
{
    is_error err = {0};
    check(is_change_fact(m, &NORA, id, &(is_fact){.text = text, .time = IS_TIME_NONE}, &err), &err);
}

static size_t count_ready(is_memory *m)
{
    is_error err = {0};
    is_fact_list *list;
    size_t n = 0;
    check(is_list(m, &NORA, 0, 1000, &list, &err), &err);
    for (size_t i = 0; i < list->n; i++) n += list->facts[i].state == IS_FACT_READY;
    is_fact_list_free(list);
    return n;
}

static is_answer *ask(is_memory *m, is_mode mode)
{
    is_error err = {0};
    is_answer *answer;
    is_ask_options o = is_ask_options_default();
    o.k = N_TEXTS;
    o.mode = mode;
    o.max_tokens = 24;
    check(is_ask(m, &NORA, QUESTION, &o, &answer, &err), &err);
    return answer;
}

/* ------------------------------------------------------------ chunks */

/* What every chunk says that it was made of: the hash of its line and of all that stood in front of it. */
static void read_chunks(is_memory *m, const int64_t *ids, size_t n, is_chunk_info *out)
{
    is_error err = {0};
    is_pin *pins[64];
    int64_t scope;
    check(is_memory_scope(m, &NORA, false, &scope, &err), &err);
    check(is_store_pin(m->store, scope, ids, n, &m->key, pins, NULL, &err), &err);
    for (size_t i = 0; i < n; i++) {
        assert_non_null(pins[i]);
        out[i] = is_pin_chunk(pins[i])->info;
    }
    is_store_unpin(m->store, pins, n);
}

/* The chunks are those of a store in which the facts have said this from the beginning. */
static void assert_as_if_new(is_memory *m, const int64_t *ids, const char *const *texts, size_t n)
{
    is_chunk_info got[64], want[64];
    int64_t fresh_ids[64];
    read_chunks(m, ids, n, got);
    char path[sizeof folder + 8];
    is_options o = options();
    (void)snprintf(path, sizeof path, "%s/fresh", folder);
    o.store = path;
    is_memory *fresh = open_with(&o);
    add_all(fresh, texts, n, fresh_ids);
    encode(fresh);
    read_chunks(fresh, fresh_ids, n, want);
    is_close(fresh);
    for (size_t i = 0; i < n; i++) {
        assert_memory_equal(got[i].text, want[i].text, sizeof got[i].text);
        assert_memory_equal(got[i].context, want[i].context, sizeof got[i].context);
        assert_int_equal(got[i].p_ref, want[i].p_ref);
    }
}

static void test_the_new_text_is_answered_and_injected(void **state)
{
    (void)state;
    is_memory *m = open_one();
    int64_t ids[N_TEXTS];
    const char *now[N_TEXTS];
    memcpy(now, TEXTS, sizeof now);
    now[CAT] = MARBLE;
    add_all(m, TEXTS, N_TEXTS, ids);
    encode(m);
    is_answer *a = ask(m, IS_MODE_INJECT);
    assert_int_equal(a->facts_injected, N_TEXTS);
    assert_non_null(strstr(a->text, "Biscuit"));
    is_answer_free(a);
    change(m, ids[CAT], MARBLE);
    for (int encoded = 0; encoded < 2; encoded++) {
        if (encoded) encode(m);
        a = ask(m, IS_MODE_INJECT);
        is_answer *b = ask(m, IS_MODE_PREFILL);
        assert_true(encoded ? a->facts_injected == N_TEXTS : a->facts_injected < N_TEXTS);
        assert_int_equal(a->refused, 0);
        assert_int_equal(a->tokens_injected + a->tokens_prefilled, b->tokens_prefilled);
        assert_int_equal(a->facts->facts[0].id, ids[CAT]);
        assert_string_equal(a->facts->facts[0].text, MARBLE);
        assert_non_null(strstr(a->text, "Marble"));
        assert_null(strstr(a->text, "Biscuit"));
        assert_non_null(strstr(b->text, "Marble"));
        is_answer_free(a);
        is_answer_free(b);
    }
    assert_as_if_new(m, ids, now, N_TEXTS);
    is_close(m);
    m = open_one();
    a = ask(m, IS_MODE_INJECT);
    assert_int_equal(a->facts_injected, N_TEXTS);
    assert_non_null(strstr(a->text, "Marble"));
    is_answer_free(a);
    is_close(m);
}

static void test_a_time_and_a_source_count_too(void **state)
{
    (void)state;
    is_options o = options();
    o.recipe = "primed:8+window:1";
    is_memory *m = open_with(&o);
    is_error err = {0};
    const is_turn turns[] = {
        {.id = "T1", .session = "1", .speaker = "Nora", .text = "Hello.", .time = IS_TIME_NONE},
        {.id = "T2", .session = "2", .speaker = "Nora", .text = "My cat has a name at last.", .time = IS_TIME_NONE}};
    const is_fact facts[] = {{.text = TEXTS[CAT], .source = "T1", .time = IS_TIME_NONE},
                             {.text = TEXTS[0], .time = IS_TIME_NONE}};
    int64_t ids[2];
    is_chunk_info before[2], after[2];
    check(is_add_turns(m, &NORA, turns, 2, &err), &err);
    check(is_add_facts(m, &NORA, facts, 2, ids, &err), &err);
    encode(m);
    read_chunks(m, ids, 2, before);
    check(is_change_fact(m, &NORA, ids[0], &(is_fact){.source = "T2", .time = IS_TIME_NONE}, &err), &err);
    assert_int_equal(count_ready(m), 1);
    encode(m);
    read_chunks(m, ids, 2, after);
    assert_true(after[0].p_ref > before[0].p_ref); /* the turn in front of it is longer */
    assert_memory_equal(after[0].text, before[0].text, sizeof after[0].text);
    assert_memory_equal(after[1].context, before[1].context, sizeof after[1].context);
    check(is_change_fact(m, &NORA, ids[0], &(is_fact){.time = 1700000000}, &err), &err);
    assert_int_equal(count_ready(m), 0); /* the other one was made behind its line, which has a date now */
    encode(m);
    read_chunks(m, ids, 2, after);
    assert_memory_not_equal(after[0].text, before[0].text, sizeof after[0].text);
    assert_memory_not_equal(after[1].context, before[1].context, sizeof after[1].context);
    check(is_change_fact(m, &NORA, ids[0], &(is_fact){.time = IS_TIME_NONE, .metadata = "{\"a\": 1}"}, &err), &err);
    assert_int_equal(count_ready(m), 2);
    is_close(m);
}

/* ------------------------------------------------------------ changing while facts are encoded */

#define MANY 45 /* more than one job of the engine holds */

typedef struct meddler {
    is_memory *m;
    int64_t id;
    uint64_t at;
    bool done;
} meddler;

/* Between two jobs: the texts of the second were read before. */
static bool change_between(void *user, uint64_t done, uint64_t total)
{
    meddler *x = user;
    assert_int_equal(total, MANY);
    if (x->done || done < x->at) return true;
    x->done = true;
    change(x->m, x->id, MARBLE);
    return true;
}

static void test_changed_while_it_is_encoded(void **state)
{
    (void)state;
    is_memory *m = open_one();
    is_error err = {0};
    static char texts[MANY][64];
    const char *all[MANY];
    int64_t ids[MANY];
    for (size_t i = 0; i < MANY; i++) {
        (void)snprintf(texts[i], sizeof texts[i], "Nora has been to town %zu.", i);
        all[i] = texts[i];
    }
    add_all(m, all, MANY, ids);
    meddler x = {.m = m, .id = ids[1], .at = 1}; /* in one of two primers of 16, in front of those in the other */
    check(is_encode_pending(m, &NORA, change_between, &x, &err), &err);
    assert_true(x.done);
    /* its own chunk and those behind its old text were dropped, or refused when they came */
    assert_int_equal(count_ready(m), MANY - 1 - 16);
    is_answer *a = ask(m, IS_MODE_INJECT);
    assert_int_equal(a->refused, 0);
    assert_non_null(strstr(a->text, "Marble"));
    is_answer_free(a);
    encode(m);
    assert_int_equal(count_ready(m), MANY);
    all[1] = MARBLE;
    assert_as_if_new(m, ids, all, MANY);
    is_close(m);
}

typedef struct crowd {
    is_memory *m;
    const int64_t *ids;
    atomic_uint wrong;
} crowd;

#define CHANGES 12

static void *keep_changing(void *arg)
{
    crowd *c = arg;
    char text[80];
    for (int i = 0; i < CHANGES; i++) {
        is_fact_list *list = NULL;
        const int64_t id = c->ids[i % 3];
        (void)snprintf(text, sizeof text, "Nora's pet number %d is called Pebble%d.", i % 3, i);
        is_status status = is_change_fact(c->m, &NORA, id, &(is_fact){.text = text, .time = IS_TIME_NONE}, NULL);
        if (status == IS_OK) status = is_get(c->m, &NORA, &id, 1, &list, NULL);
        if (status != IS_OK || list->n != 1 || strcmp(list->facts[0].text, text) != 0) atomic_fetch_add(&c->wrong, 1);
        is_fact_list_free(list);
        const struct timespec moment = {.tv_nsec = 20000000};
        nanosleep(&moment, NULL);
    }
    return NULL;
}

static void *keep_asking(void *arg)
{
    crowd *c = arg;
    for (int i = 0; i < 4; i++) {
        is_answer *a = NULL;
        is_ask_options o = is_ask_options_default();
        o.k = N_TEXTS;
        o.max_tokens = 4;
        if (is_ask(c->m, &NORA, "What are the pets called?", &o, &a, NULL) != IS_OK) atomic_fetch_add(&c->wrong, 1);
        if (a != NULL && a->facts->n != N_TEXTS) atomic_fetch_add(&c->wrong, 1);
        is_answer_free(a);
    }
    return NULL;
}

static void wait_for_worker(is_memory *m)
{
    const struct timespec moment = {.tv_nsec = 50000000};
    for (int i = 0; i < 2400 && count_ready(m) < N_TEXTS; i++) nanosleep(&moment, NULL);
    assert_int_equal(count_ready(m), N_TEXTS);
}

/* The worker encodes, one thread asks and another one changes; in the end every chunk is of the last texts. */
static void test_changing_asking_encoding_at_once(void **state)
{
    (void)state;
    is_options o = options();
    o.background = true;
    is_memory *m = open_with(&o);
    is_error err = {0};
    int64_t ids[N_TEXTS];
    const char *now[N_TEXTS];
    char last[3][80];
    memcpy(now, TEXTS, sizeof now);
    add_all(m, TEXTS, N_TEXTS, ids);
    crowd c = {.m = m, .ids = ids};
    pthread_t threads[2];
    assert_int_equal(pthread_create(&threads[0], NULL, keep_changing, &c), 0);
    assert_int_equal(pthread_create(&threads[1], NULL, keep_asking, &c), 0);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    assert_int_equal(atomic_load(&c.wrong), 0);
    wait_for_worker(m);
    change(m, ids[3], MARBLE); /* while it has nothing to do */
    wait_for_worker(m);
    now[3] = MARBLE;
    for (int i = 0; i < 3; i++) {
        (void)snprintf(last[i], sizeof last[i], "Nora's pet number %d is called Pebble%d.", i, CHANGES - 3 + i);
        now[i] = last[i];
    }
    assert_as_if_new(m, ids, now, N_TEXTS);
    is_verify_report report;
    check(is_verify(m, false, NULL, NULL, &report, &err), &err);
    assert_int_equal(report.chunks_bad + report.files_missing + report.files_orphaned + report.database_bad, 0);
    is_close(m);
}

/* ------------------------------------------------------------ searching */

static int64_t best(is_memory *m, const char *query, const is_filter *filter)
{
    is_error err = {0};
    is_fact_list *list;
    check(is_search(m, &NORA, query, 1, filter, &list, &err), &err);
    int64_t id = list->n > 0 ? list->facts[0].id : 0;
    is_fact_list_free(list);
    return id;
}

/* The questions share no word with the texts: vectors alone find them, and those in memory must follow. */
static void test_the_new_meaning_is_found(void **state)
{
    (void)state;
    is_options o = options();
    o.model = NULL;
    is_memory *m = open_with(&o);
    is_error err = {0};
    int64_t ids[N_TEXTS];
    add_all(m, TEXTS, N_TEXTS, ids);
    assert_int_equal(best(m, "Which nuts must I avoid?", NULL), ids[2]);
    assert_int_not_equal(best(m, "Who collects postage from South America?", NULL), ids[2]);
    change(m, ids[2], "Nora has an album full of stamps of Brazil.");
    assert_int_equal(best(m, "Who collects postage from South America?", NULL), ids[2]);
    assert_int_not_equal(best(m, "Which nuts must I avoid?", NULL), ids[2]);
    const is_filter late = {100, IS_TIME_NONE, NULL};
    assert_int_equal(best(m, "postage", &late), 0);
    check(is_change_fact(m, &NORA, ids[2], &(is_fact){.time = 100}, &err), &err);
    assert_int_equal(best(m, "postage", &late), ids[2]);
    is_close(m);
    m = open_bare(); /* changed without an embedding model: it is embedded when there is one again */
    change(m, ids[2], "Nora must not eat nuts of any kind.");
    is_close(m);
    m = open_with(&o);
    assert_int_not_equal(best(m, "Who collects postage from South America?", NULL), ids[2]);
    assert_int_equal(best(m, "Almonds, pecans?", NULL), ids[2]);
    is_close(m);
}

/* ------------------------------------------------------------ by id, history, scopes */

static void test_by_id_and_history(void **state)
{
    (void)state;
    is_memory *m = open_bare();
    is_error err = {0};
    int64_t ids[N_TEXTS];
    is_fact_list *list = NULL;
    is_edition_list *history = NULL;
    assert_int_equal(is_get(m, &NORA, ids, 0, &list, &err), IS_ENOTFOUND); /* no such scope yet */
    add_all(m, TEXTS, N_TEXTS, ids);
    check(is_add_facts(m, &OMAR, &(is_fact){.text = "Omar is new here."}, 1, NULL, &err), &err);
    change(m, ids[CAT], MARBLE);
    const int64_t wanted[] = {ids[7], ids[CAT], 4711, ids[0], ids[CAT]};
    check(is_get(m, &NORA, wanted, 5, &list, &err), &err);
    assert_int_equal(list->n, 4);
    assert_null(list->scores);
    assert_string_equal(list->facts[0].text, TEXTS[7]);
    assert_string_equal(list->facts[1].text, MARBLE);
    assert_string_equal(list->facts[2].text, TEXTS[0]);
    assert_int_equal(list->facts[3].id, ids[CAT]);
    is_fact_list_free(list);
    check(is_get(m, &OMAR, wanted, 5, &list, &err), &err);
    assert_int_equal(list->n, 0);
    is_fact_list_free(list);
    check(is_history(m, &NORA, ids[CAT], &history, &err), &err);
    assert_int_equal(history->n, 2);
    assert_string_equal(history->editions[0].text, TEXTS[CAT]);
    assert_string_equal(history->editions[1].text, MARBLE);
    is_edition_list_free(history);
    const is_fact to = {.text = "Omar was here.", .time = IS_TIME_NONE};
    const is_fact empty = {.text = "", .time = IS_TIME_NONE};
    assert_int_equal(is_history(m, &OMAR, ids[CAT], &history, &err), IS_ENOTFOUND);
    assert_null(history);
    assert_int_equal(is_change_fact(m, &OMAR, ids[CAT], &to, &err), IS_ENOTFOUND);
    assert_int_equal(is_change_fact(m, &(is_scope){.user = "nobody"}, ids[CAT], &to, &err), IS_ENOTFOUND);
    assert_int_equal(is_change_fact(m, &NORA, 4711, &to, &err), IS_ENOTFOUND);
    assert_int_equal(is_change_fact(m, &NORA, ids[CAT], &empty, &err), IS_EINVAL);
    assert_int_equal(best(m, "cat", NULL), ids[CAT]);
    check(is_forget(m, &NORA, &ids[CAT], 1, NULL, &err), &err);
    assert_int_equal(is_history(m, &NORA, ids[CAT], &history, &err), IS_ENOTFOUND);
    assert_int_equal(is_change_fact(m, &NORA, ids[CAT], &to, &err), IS_ENOTFOUND);
    is_close(m);
}

static void test_states_by_id(void **state)
{
    (void)state;
    is_memory *m = open_one();
    is_error err = {0};
    int64_t ids[3];
    is_fact_list *list = NULL;
    add_all(m, TEXTS, 2, ids);
    encode(m);
    add_all(m, TEXTS + 2, 1, ids + 2);
    check(is_get(m, &NORA, (int64_t[]){ids[2], ids[0]}, 2, &list, &err), &err);
    assert_int_equal(list->facts[0].state, IS_FACT_PENDING);
    assert_int_equal(list->facts[1].state, IS_FACT_READY);
    is_fact_list_free(list);
    is_close(m);
}

static void test_scopes_of_tenants(void **state)
{
    (void)state;
    is_memory *m = open_bare();
    is_error err = {0};
    is_error other = {0};
    static const is_scope SCOPES[] = {{"acme", "ann", "cook", NULL},
                                      {"acme", "bob", NULL, "r1"},
                                      {"umbra", "ann", NULL, NULL},
                                      {NULL, "dan", NULL, NULL}};
    int64_t ids[4];
    is_scope_info *list = NULL;
    size_t n = 0;
    for (int i = 0; i < 4; i++) check(is_add_facts(m, &SCOPES[i], &(is_fact){.text = "a"}, 1, &ids[i], &err), &err);
    check(is_add_turns(m, &SCOPES[1], &(is_turn){.id = "T", .text = "hi"}, 1, &err), &err);
    check(is_list_scopes(m, "acme", 0, 1, &list, &n, &err), &err);
    assert_int_equal(n, 1);
    assert_string_equal(list[0].user, "ann");
    assert_string_equal(list[0].agent, "cook");
    assert_string_equal(list[0].run, "");
    int64_t after = list[0].number;
    is_scope_info_free(list, n);
    check(is_list_scopes(m, "acme", after, 10, &list, &n, &err), &err);
    assert_int_equal(n, 1);
    assert_string_equal(list[0].user, "bob");
    assert_int_equal(list[0].facts, 1);
    assert_int_equal(list[0].turns, 1);
    is_scope_info_free(list, n);
    check(is_list_scopes(m, NULL, 0, 10, &list, &n, &err), &err);
    assert_int_equal(n, 4);
    is_scope_info_free(list, n);
    check(is_scope_of(m, "acme", ids[1], &list, &err), &err);
    assert_string_equal(list->tenant, "acme");
    assert_string_equal(list->user, "bob");
    assert_string_equal(list->run, "r1");
    is_scope_info_free(list, 1);
    check(is_scope_of(m, NULL, ids[3], &list, &err), &err);
    is_scope_info_free(list, 1);
    assert_int_equal(is_scope_of(m, "acme", ids[2], &list, &err), IS_ENOTFOUND);
    assert_null(list);
    check(is_forget(m, &SCOPES[2], NULL, 0, NULL, &other), &other);
    assert_int_equal(is_scope_of(m, "acme", ids[2], &list, &other), IS_ENOTFOUND);
    assert_string_equal(err.text, other.text);
    check(is_list_scopes(m, "umbra", 0, 10, &list, &n, &err), &err);
    assert_int_equal(n, 0);
    is_close(m);
}

int main(void)
{
#define WITH_FOLDER(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        WITH_FOLDER(test_the_new_text_is_answered_and_injected),
        WITH_FOLDER(test_a_time_and_a_source_count_too),
        WITH_FOLDER(test_changed_while_it_is_encoded),
        WITH_FOLDER(test_changing_asking_encoding_at_once),
        WITH_FOLDER(test_the_new_meaning_is_found),
        WITH_FOLDER(test_by_id_and_history),
        WITH_FOLDER(test_states_by_id),
        WITH_FOLDER(test_scopes_of_tenants),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
