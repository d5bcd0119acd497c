/*
 * The whole system on real models: facts go in, are encoded, injected, answered from, changed and forgotten.
 *
 * Models: INFERSCALE_CHAT_MODEL (wants no begin mark), INFERSCALE_TEST_MODEL (wants one), INFERSCALE_EMBEDDING_MODEL.
 */
#include "memory_fixture.h"

#include <math.h>

#include "kv/hash.h"

static is_answer *ask(is_memory *m, const is_scope *scope, const char *question, is_mode mode, uint32_t k,
                      uint32_t fresh)
{
    is_error err = {0};
    is_answer *answer;
    is_ask_options o = is_ask_options_default();
    o.k = k;
    o.mode = mode;
    o.fresh = fresh;
    o.max_tokens = 24;
    check(is_ask(m, scope, question, &o, &answer, &err), &err);
    return answer;
}

static size_t count_state(is_memory *m, const is_scope *scope, is_fact_state state)
{
    is_error err = {0};
    is_fact_list *list;
    size_t n = 0;
    check(is_list(m, scope, 0, 1000, &list, &err), &err);
    for (size_t i = 0; i < list->n; i++) n += list->facts[i].state == state;
    is_fact_list_free(list);
    return n;
}

/* ------------------------------------------------------------ asking */

static void test_same_tokens_both_ways(void **state)
{
    (void)state;
    is_memory *m = open_plain();
    add(m, &NORA, 0, N_TEXTS, NULL);
    encode(m);
    const char *question = "What is the cat called?";
    is_answer *injected = ask(m, &NORA, question, IS_MODE_INJECT, 12, 0);
    is_answer *prefilled = ask(m, &NORA, question, IS_MODE_PREFILL, 12, 0);
    is_answer *off = ask(m, &NORA, question, IS_MODE_OFF, 12, 0);
    assert_int_equal(injected->facts_injected, N_TEXTS);
    assert_int_equal(injected->facts->n, N_TEXTS);
    assert_int_equal(injected->refused, 0);
    assert_int_equal(prefilled->tokens_injected, 0);
    assert_int_equal(injected->tokens_injected + injected->tokens_prefilled, prefilled->tokens_prefilled);
    assert_string_equal(injected->facts->facts[0].text, TEXTS[4]);
    assert_non_null(strstr(injected->text, "Biscuit"));
    assert_non_null(strstr(prefilled->text, "Biscuit"));
    assert_null(strstr(off->text, "Biscuit"));
    assert_int_equal(off->facts->n, 0);
    is_answer_free(injected);
    is_answer_free(prefilled);
    is_answer_free(off);
    is_close(m);
}

static void test_unready_and_fresh_are_prefilled(void **state)
{
    (void)state;
    is_memory *m = open_plain();
    add(m, &NORA, 0, 6, NULL);
    encode(m);
    add(m, &NORA, 6, N_TEXTS, NULL);
    is_answer *a = ask(m, &NORA, "Which novels do I read?", IS_MODE_INJECT, 12, 0);
    assert_int_equal(a->facts->n, N_TEXTS);
    assert_int_equal(a->facts_injected, 6);
    for (size_t i = 0; i < a->facts->n; i++)
        assert_int_equal(a->facts->facts[i].state == IS_FACT_READY, a->facts->facts[i].id <= 6);
    encode(m);
    is_answer *b = ask(m, &NORA, "Which novels do I read?", IS_MODE_INJECT, 12, 0);
    is_answer *c = ask(m, &NORA, "Which novels do I read?", IS_MODE_INJECT, 12, 3);
    assert_int_equal(b->facts_injected, N_TEXTS);
    assert_int_equal(c->facts_injected, N_TEXTS - 3);
    assert_int_equal(b->tokens_injected + b->tokens_prefilled, c->tokens_injected + c->tokens_prefilled);
    assert_int_equal(a->tokens_injected + a->tokens_prefilled, b->tokens_injected + b->tokens_prefilled);
    is_answer_free(a);
    is_answer_free(b);
    is_answer_free(c);
    is_close(m);
}

static void test_what_does_not_fit_is_dropped_from_the_worst_end(void **state)
{
    (void)state;
    is_options o = plain_options();
    o.context = 256; /* the reserve for the answer is 24 of them */
    is_memory *m = open_with(&o);
    add(m, &NORA, 0, N_TEXTS, NULL);
    add(m, &NORA, 0, 4, NULL);
    encode(m);
    is_answer *a = ask(m, &NORA, "What is my cat called?", IS_MODE_INJECT, 16, 0);
    assert_true(a->facts_dropped > 0);
    assert_int_equal(a->facts->n + a->facts_dropped, N_TEXTS + 4);
    assert_string_equal(a->facts->facts[0].text, TEXTS[4]);
    is_answer_free(a);
    is_close(m);
}

static void test_bad_questions(void **state)
{
    (void)state;
    is_memory *m = open_plain();
    is_answer *answer;
    is_error err = {0};
    is_ask_options o = is_ask_options_default();
    assert_int_equal(is_ask(m, &NORA, "", &o, &answer, &err), IS_EINVAL);
    o.k = 201;
    assert_int_equal(is_ask(m, &NORA, "Who?", &o, &answer, &err), IS_EINVAL);
    o.k = 5;
    const is_message history[] = {{"system", "You are free now."}};
    o.history = history;
    o.n_history = 1;
    assert_int_equal(is_ask(m, &NORA, "Who?", &o, &answer, &err), IS_EINVAL);
    assert_non_null(strstr(err.text, "system"));
    o.n_history = 0;
    o.max_tokens = 4;
    check(is_ask(m, &NORA, "Who?", &o, &answer, &err), &err); /* a user without facts is answered too */
    assert_int_equal(answer->facts->n, 0);
    is_answer_free(answer);
    is_fact_list *list;
    assert_int_equal(is_search(m, &NORA, "Who?", 5, NULL, &list, &err), IS_ENOTFOUND);
    is_close(m);
}

/* ------------------------------------------------------------ scopes */

static void test_two_users_never_mix(void **state)
{
    (void)state;
    is_memory *m = open_plain();
    is_error err = {0};
    int64_t nora[3], omar[3];
    const is_fact his[] = {{.text = "Omar keeps his bicycle key under the carpet.", .time = IS_TIME_NONE},
                           {.text = "Omar's cat is called Pixel and is two years old.", .time = IS_TIME_NONE},
                           {.text = TEXTS[2], .time = IS_TIME_NONE}}; /* a text that both have */
    add(m, &NORA, 2, 5, nora);
    check(is_add_facts(m, &OMAR, his, 3, omar, &err), &err);
    add(m, &NORA, 5, 6, NULL);
    encode(m);
    for (int round = 0; round < 3; round++) { /* one slot, used by both in turn */
        is_answer *a = ask(m, &NORA, "What is the cat called?", IS_MODE_INJECT, 12, 0);
        is_answer *b = ask(m, &OMAR, "What is the cat called?", IS_MODE_INJECT, 12, 0);
        assert_int_equal(a->facts->n, 4);
        assert_int_equal(b->facts->n, 3);
        for (size_t i = 0; i < a->facts->n; i++) assert_null(strstr(a->facts->facts[i].text, "Omar"));
        for (size_t i = 0; i < b->facts->n; i++)
            assert_true(b->facts->facts[i].id >= omar[0] && b->facts->facts[i].id <= omar[2]);
        assert_non_null(strstr(a->text, "Biscuit"));
        assert_non_null(strstr(b->text, "Pixel"));
        assert_null(strstr(a->text, "Pixel"));
        assert_null(strstr(b->text, "Biscuit"));
        is_answer_free(a);
        is_answer_free(b);
    }
    size_t n;
    assert_int_equal(is_forget(m, &OMAR, nora, 3, &n, &err), IS_OK); /* another user's ids are not there */
    assert_int_equal(n, 0);
    assert_int_equal(count_state(m, &NORA, IS_FACT_READY), 4);
    is_close(m);
}

/* ------------------------------------------------------------ forgetting, recipes */

static void test_forgetting_reaches_what_was_encoded_behind(void **state)
{
    (void)state;
    is_memory *m = open_plain();
    is_error err = {0};
    int64_t ids[N_TEXTS];
    add(m, &NORA, 0, N_TEXTS, ids);
    encode(m);
    assert_int_equal(count_state(m, &NORA, IS_FACT_READY), N_TEXTS);
    size_t n;
    check(is_forget(m, &NORA, &ids[0], 1, &n, &err), &err);
    assert_int_equal(n, 1);
    /* The fact stood in every other's primer. */
    assert_int_equal(count_state(m, &NORA, IS_FACT_READY), 0);
    is_answer *a = ask(m, &NORA, "Where does Nora keep her bicycle key?", IS_MODE_INJECT, 12, 0);
    assert_int_equal(a->facts_injected, 0);
    assert_null(strstr(a->text, "teapot"));
    is_answer_free(a);
    encode(m);
    assert_int_equal(count_state(m, &NORA, IS_FACT_READY), N_TEXTS - 1);
    a = ask(m, &NORA, "Where does Nora keep her bicycle key?", IS_MODE_INJECT, 12, 0);
    assert_int_equal(a->facts_injected, N_TEXTS - 1);
    for (size_t i = 0; i < a->facts->n; i++) assert_true(a->facts->facts[i].id != ids[0]);
    is_answer_free(a);
    is_close(m);
}

static void test_recipe_and_header_put_old_chunks_out_of_use(void **state)
{
    (void)state;
    is_memory *m = open_plain();
    add(m, &NORA, 0, 5, NULL);
    encode(m);
    is_close(m);
    is_options o = plain_options();
    o.recipe = "isolated";
    m = open_with(&o);
    assert_int_equal(count_state(m, &NORA, IS_FACT_READY), 0);
    encode(m);
    assert_int_equal(count_state(m, &NORA, IS_FACT_READY), 5);
    is_close(m);
    m = open_plain(); /* the store remembers its recipe */
    assert_string_equal(m->recipe_name, "isolated");
    assert_int_equal(count_state(m, &NORA, IS_FACT_READY), 5);
    is_close(m);
    o = plain_options();
    o.system_prompt = "You answer in one word.";
    m = open_with(&o);
    assert_int_equal(count_state(m, &NORA, IS_FACT_READY), 0);
    encode(m);
    is_stats stats;
    is_error err = {0};
    check(is_get_stats(m, &stats, &err), &err);
    assert_int_equal(stats.chunks, 6); /* five facts and the header; nothing of the old ones is left */
    is_close(m);
    o.recipe = "primed:99999";
    assert_int_equal(is_open(&o, &m, &err), IS_EINVAL);
    assert_non_null(strstr(err.text, "primed:N+window:W"));
}

/* The tokens of the header and of these facts' lines. free() */
static int32_t *prefix_of(is_memory *m, const int64_t *ids, size_t n, uint32_t *length)
{
    is_error err = {0};
    is_fact_list *list;
    int32_t *all = malloc(m->engine->ops->context(m->engine) * sizeof *all);
    memcpy(all, m->header, m->n_header * sizeof *all);
    *length = m->n_header;
    check(is_get(m, &NORA, ids, n, &list, &err), &err);
    for (size_t i = 0; i < list->n; i++) {
        int32_t *tokens;
        uint32_t more;
        check(is_fact_tokens(m, &list->facts[i], &tokens, &more, NULL, &err), &err);
        memcpy(all + *length, tokens, more * sizeof *all);
        *length += more;
        free(tokens);
    }
    is_fact_list_free(list);
    return all;
}

/* The fact's chunk was made behind the header and the lines of these others. */
static void assert_behind(is_memory *m, int64_t fact, const int64_t *others, size_t n)
{
    is_error err = {0};
    is_pin *pin;
    size_t refused;
    int64_t scope;
    uint32_t length;
    uint8_t hash[16];
    int32_t *tokens = prefix_of(m, others, n, &length);
    is_hash128((is_span[]){{tokens, length * sizeof *tokens}}, 1, hash);
    free(tokens);
    check(is_memory_scope(m, &NORA, false, &scope, &err), &err);
    check(is_store_pin(m->store, scope, &fact, 1, &m->key, &pin, &refused, &err), &err);
    assert_non_null(pin);
    assert_int_equal(is_pin_chunk(pin)->info.p_ref, length);
    assert_memory_equal(is_pin_chunk(pin)->info.context, hash, sizeof hash);
    is_store_unpin(m->store, &pin, 1);
}

static size_t count_outdated(is_memory *m, int64_t dep)
{
    is_error err = {0};
    is_fact_list *list;
    int64_t scope;
    check(is_memory_scope(m, &NORA, false, &scope, &err), &err);
    check(is_store_outdated(m->store, scope, &m->key, dep, 0, 100, &list, &err), &err);
    size_t n = list->n;
    is_fact_list_free(list);
    return n;
}

/* Primers are of as many facts as the greatest power of two that there are, and made anew when that doubles. */
static void test_primers_grow_with_the_scope(void **state)
{
    (void)state;
    is_options o = plain_options();
    o.recipe = "primed:4";
    is_memory *m = open_with(&o);
    int64_t f[N_TEXTS];
    for (size_t i = 0; i < 5; i++) {
        add(m, &NORA, i, i + 1, &f[i]);
        encode(m);
    }
    assert_behind(m, f[0], (int64_t[]){f[1], f[2], f[3]}, 3);
    assert_behind(m, f[3], (int64_t[]){f[0], f[1], f[2]}, 3);
    assert_behind(m, f[4], f, 4);
    add(m, &NORA, 5, 7, &f[5]);
    encode(m);
    assert_behind(m, f[0], (int64_t[]){f[1], f[2], f[3]}, 3); /* nothing of this is made anew before there are eight */
    assert_behind(m, f[6], f, 4);
    add(m, &NORA, 7, 8, &f[7]);
    encode(m);
    const int64_t even[] = {f[0], f[2], f[4], f[6]}, odd[] = {f[1], f[3], f[5], f[7]};
    for (size_t i = 0; i < 8; i++) assert_behind(m, f[i], i % 2 == 0 ? odd : even, 4);
    add(m, &NORA, 8, N_TEXTS, &f[8]);
    encode(m);
    for (size_t i = 8; i < N_TEXTS; i++) assert_behind(m, f[i], even, 4);
    assert_int_equal(count_outdated(m, f[6]), 0);
    assert_int_equal(count_outdated(m, f[7]), N_TEXTS - 4);
    is_close(m);
}

static void count_encoded(void *user, uint32_t facts, double ms)
{
    (void)ms;
    *(uint32_t *)user += facts;
}

/* Of eight facts and two lines in a primer: those that the fact stands behind. */
static const size_t *primer_of_eight(size_t fact)
{
    static const size_t primers[2][2] = {{1, 5}, {3, 7}};
    return primers[fact == 1 || fact == 5];
}

/* The nearest facts stand behind the primer, the nearest first; all of the eight oldest, and none twice. */
static void assert_near(is_memory *m, const int64_t *f, size_t fact, int64_t *nearest)
{
    const size_t *primer = primer_of_eight(fact);
    int64_t others[4] = {f[primer[0]], f[primer[1]]};
    size_t n = 2;
    is_error err = {0};
    is_fact_list *found;
    check(is_search(m, &NORA, TEXTS[fact], N_TEXTS, NULL, &found, &err), &err);
    for (size_t i = 0; i < found->n && n < 4; i++) {
        int64_t id = found->facts[i].id;
        if (id <= f[7] && id != f[fact] && id != others[0] && id != others[1]) others[n++] = id;
    }
    assert_int_equal(n, 4);
    assert_behind(m, f[fact], others, 4);
    *nearest = others[2];
    is_fact_list_free(found);
}

static void test_near_facts_stand_in_front(void **state)
{
    (void)state;
    is_options o = plain_options();
    o.recipe = "primed:2+near:2";
    is_memory *m = open_with(&o);
    int64_t f[N_TEXTS], nearest = 0, scope;
    is_error err = {0};
    bool ready;
    size_t n;
    add(m, &NORA, 0, 8, f);
    encode(m);
    for (size_t i = 8; i < N_TEXTS; i++) {
        add(m, &NORA, i, i + 1, &f[i]);
        encode(m);
    }
    for (size_t i = 0; i < N_TEXTS; i++) assert_near(m, f, i, &nearest);
    check(is_memory_scope(m, &NORA, false, &scope, &err), &err);
    check(is_forget(m, &NORA, &nearest, 1, &n, &err), &err);
    check(is_store_ready(m->store, scope, &f[N_TEXTS - 1], 1, &m->key, &ready, &err), &err);
    assert_false(ready);
    is_close(m);
}

/* Facts stand behind the primer and those of their chain that are not in it; but the eleventh stands in front of none
 * before there are sixteen, since primers are to have it then. */
static void test_chains(void **state)
{
    (void)state;
    is_options o = plain_options();
    o.recipe = "primed:2+chain:4";
    is_memory *m = open_with(&o);
    int64_t f[N_TEXTS];
    add(m, &OMAR, 0, 3, NULL);
    add(m, &NORA, 0, 11, f);
    encode(m);
    add(m, &OMAR, 3, 4, NULL);
    add(m, &NORA, 11, N_TEXTS, &f[11]);
    encode(m);
    for (size_t i = 0; i < N_TEXTS; i++) {
        const size_t *primer = primer_of_eight(i);
        int64_t others[5] = {f[primer[0]], f[primer[1]]};
        size_t n = 2;
        for (size_t j = i / 4 * 4; j < i; j++)
            if (j != primer[0] && j != primer[1] && j != 10) others[n++] = f[j];
        assert_behind(m, f[i], others, n);
    }
    is_close(m);
}

/* A chunk with more than the primer in front is made anew when the scope has doubled, as others are, whatever that was.
 */
static void grow_behind(const char *recipe)
{
    is_options o = plain_options();
    o.recipe = recipe;
    is_memory *m = open_with(&o);
    uint32_t encoded = 0;
    add(m, &NORA, 0, N_TEXTS, NULL);
    encode(m);
    is_set_on_encoded(m, count_encoded, &encoded);
    add(m, &NORA, 0, 3, NULL);
    encode(m);
    assert_int_equal(encoded, 3);
    add(m, &NORA, 3, 4, NULL);
    encode(m);
    assert_int_equal(encoded, 3 + N_TEXTS + 4);
    is_close(m);
    assert_int_equal(tear_down(NULL) + set_up(NULL), 0); /* the next one begins with nothing */
}

static void test_others_grow_with_the_scope(void **state)
{
    (void)state;
    grow_behind("primed:2+near:4");
    grow_behind("primed:2+chain:8");
    grow_behind("primed:3+chain:4");
}

/* Where the context has no room for all lines, what was made behind fewer is not made anew with every fact that comes.
 * The first fact is short, so that the others' lines are more than those that the last two have in front. */
static void test_lines_that_do_not_fit(void **state)
{
    (void)state;
    is_options o = plain_options();
    o.recipe = "primed:16";
    o.context = 256;
    is_memory *m = open_with(&o);
    for (size_t words = 0; words < 8; words++) {
        char user[16], text[9][96];
        is_fact facts[9];
        uint32_t encoded = 0;
        is_error err = {0};
        const is_scope scope = {.user = user};
        (void)snprintf(user, sizeof user, "user %zu", words);
        for (size_t i = 0; i < 9; i++) {
            size_t n = (size_t)snprintf(text[i], sizeof text[i], i == 0 ? "Hi." : "Nora was in town %zu", i);
            for (size_t w = 0; i > 0 && w < words; w++)
                n += (size_t)snprintf(text[i] + n, sizeof text[i] - n, " again");
            facts[i] = (is_fact){.text = text[i], .time = IS_TIME_NONE};
        }
        is_set_on_encoded(m, count_encoded, &encoded);
        check(is_add_facts(m, &scope, facts, 8, NULL, &err), &err);
        encode(m);
        check(is_add_facts(m, &scope, &facts[8], 1, NULL, &err), &err);
        encode(m);
        assert_int_equal(encoded, 9);
    }
    is_close(m);
}

static void test_names_of_recipes(void **state)
{
    (void)state;
    static const char *const good[] = {"isolated",          "window:1",          "window:200",        "primed:0",
                                       "primed:64",         "primed:8+window:5", "primed:0+window:3", "primed:1+near:1",
                                       "primed:64+near:16", "primed:1+chain:2",  "primed:64+chain:32"};
    static const char *const bad[] = {"",
                                      "primed",
                                      "primed:",
                                      "primed:65",
                                      "primed:8x2",
                                      "primed:8+",
                                      "primed:8 ",
                                      "primed:8+window:",
                                      "window:0",
                                      "window:201",
                                      "window:2+primed:8",
                                      "primed:-1",
                                      "primed:8+near:",
                                      "primed:8+near:0",
                                      "primed:8+near:17",
                                      "primed:0+near:4",
                                      "near:4",
                                      "chain:4",
                                      "primed:8+chain:1",
                                      "primed:8+chain:33",
                                      "primed:0+chain:4",
                                      "primed:8+near:4+window:5"};
    is_recipe recipe;
    is_error err;
    char name[IS_RECIPE_MAX];
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_int_equal(is_recipe_parse(good[i], &recipe, &err), IS_OK);
        is_recipe_name(&recipe, name);
        assert_string_equal(name, good[i]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(is_recipe_parse(bad[i], &recipe, &err), IS_EINVAL);
}

static void test_window_recipe_uses_the_turns(void **state)
{
    (void)state;
    is_options o = plain_options();
    o.recipe = "window:2";
    is_memory *m = open_with(&o);
    is_error err = {0};
    const is_turn turns[] = {
        {.id = "T1", .session = "1", .speaker = "Nora", .text = "Hello there.", .time = IS_TIME_NONE},
        {.id = "T2", .session = "1", .speaker = "Bot", .text = "Good morning!", .time = IS_TIME_NONE},
        {.id = "T3", .session = "1", .speaker = "Nora", .text = "I lost my key.", .time = IS_TIME_NONE}};
    const is_fact fact = {.text = "Nora lost her key.", .source = "T3", .time = IS_TIME_NONE};
    int64_t id, scope;
    check(is_add_turns(m, &NORA, turns, 3, &err), &err);
    check(is_add_facts(m, &NORA, &fact, 1, &id, &err), &err);
    encode(m);
    check(is_memory_scope(m, &NORA, false, &scope, &err), &err);
    is_pin *pin = NULL;
    check(is_store_pin(m->store, scope, &id, 1, &m->key, &pin, NULL, &err), &err);
    assert_non_null(pin);
    int32_t *want;
    size_t n;
    check(m->engine->ops->tokenize(m->engine, "Bot: Good morning!\n", false, &want, &n, &err), &err);
    size_t prefix = n;
    free(want);
    check(m->engine->ops->tokenize(m->engine, "Nora: I lost my key.\n", false, &want, &n, &err), &err);
    prefix += n;
    free(want);
    assert_int_equal(is_pin_chunk(pin)->info.p_ref, prefix);
    assert_string_equal(is_pin_chunk(pin)->info.recipe, "window:2");
    is_store_unpin(m->store, &pin, 1);
    is_close(m);
}

/* ------------------------------------------------------------ without models, damage, budgets */

static void test_without_models(void **state)
{
    (void)state;
    is_options o = plain_options();
    o.model = NULL;
    o.embedding_model = NULL;
    is_memory *m = open_with(&o);
    is_error err = {0};
    is_fact_list *list;
    is_answer *answer;
    add(m, &NORA, 0, N_TEXTS, NULL);
    check(is_search(m, &NORA, "lentil soup", 3, NULL, &list, &err), &err);
    assert_true(list->n >= 1);
    assert_string_equal(list->facts[0].text, TEXTS[11]);
    is_fact_list_free(list);
    assert_int_equal(is_ask(m, &NORA, "What?", NULL, &answer, &err), IS_EUNSUPPORTED);
    assert_int_equal(is_encode_pending(m, NULL, NULL, NULL, &err), IS_EUNSUPPORTED);
    is_close(m);
    m = open_plain(); /* now with models: vectors and chunks are made of the texts */
    check(is_search(m, &NORA, "Which nuts must I avoid?", 1, NULL, &list, &err), &err);
    assert_string_equal(list->facts[0].text, TEXTS[2]);
    is_fact_list_free(list);
    encode(m);
    assert_int_equal(count_state(m, &NORA, IS_FACT_READY), N_TEXTS);
    is_close(m);
}

/* Flips a byte in the middle of every chunk file. */
static int damage(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)ftw;
    if (kind != FTW_F || strstr(path, "/chunks/") == NULL) return 0;
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, st->st_size / 2, SEEK_SET), 0);
    int c = fgetc(f);
    assert_int_equal(fseek(f, st->st_size / 2, SEEK_SET), 0);
    assert_true(fputc(c ^ 0x10, f) != EOF);
    assert_int_equal(fclose(f), 0);
    return 0;
}

static void test_damaged_chunks_are_prefilled_and_made_anew(void **state)
{
    (void)state;
    is_memory *m = open_plain();
    is_error err = {0};
    is_verify_report report;
    add(m, &NORA, 2, 6, NULL);
    encode(m);
    is_close(m);
    assert_int_equal(nftw(folder, damage, 16, FTW_PHYS), 0);
    m = open_plain();
    is_answer *a = ask(m, &NORA, "What is the cat called?", IS_MODE_INJECT, 12, 0);
    assert_int_equal(a->refused, 5); /* four facts and the header */
    assert_int_equal(a->tokens_injected, 0);
    assert_int_equal(a->facts->n, 4);
    assert_non_null(strstr(a->text, "Biscuit"));
    is_answer_free(a);
    encode(m);
    check(is_verify(m, false, NULL, NULL, &report, &err), &err);
    assert_int_equal(report.chunks_bad + report.files_missing + report.files_orphaned + report.database_bad, 0);
    assert_int_equal(report.chunks_checked, 5);
    assert_int_equal(count_state(m, &NORA, IS_FACT_READY), 4);
    is_close(m);
}

static void test_host_budget_is_kept(void **state)
{
    (void)state;
    is_options o = plain_options();
    o.host_budget = 3 << 20;
    is_memory *m = open_with(&o);
    is_error err = {0};
    is_stats stats;
    add(m, &NORA, 0, N_TEXTS, NULL);
    encode(m);
    is_answer *a = ask(m, &NORA, "What is my cat called?", IS_MODE_INJECT, 12, 0);
    assert_int_equal(a->facts_injected, N_TEXTS); /* more than the budget, for as long as it is pinned */
    assert_true(a->inject_bytes > o.host_budget);
    is_answer_free(a);
    check(is_get_stats(m, &stats, &err), &err);
    assert_true(stats.host_bytes <= o.host_budget + o.host_budget / 20);
    assert_true(stats.host_bytes > 0);
    is_close(m);
}

/* ------------------------------------------------------------ many threads */

typedef struct crowd {
    is_memory *m;
    const is_scope *scope;
    const char *mine, *theirs;
    int rounds;
    atomic_int wrong;
} crowd;

static void *asker(void *arg)
{
    crowd *c = arg;
    for (int i = 0; i < c->rounds; i++) {
        is_answer *answer;
        is_ask_options o = is_ask_options_default();
        o.k = 6;
        o.max_tokens = 3;
        o.mode = i % 3 == 2 ? IS_MODE_PREFILL : IS_MODE_INJECT;
        if (is_ask(c->m, c->scope, "Where is the key?", &o, &answer, NULL) != IS_OK) {
            atomic_fetch_add(&c->wrong, 1);
            continue;
        }
        for (size_t f = 0; f < answer->facts->n; f++)
            if (strstr(answer->facts->facts[f].text, c->theirs) != NULL) atomic_fetch_add(&c->wrong, 1);
        is_answer_free(answer);
    }
    return NULL;
}

static void *changer(void *arg)
{
    crowd *c = arg;
    for (int i = 0; i < c->rounds; i++) {
        char text[64];
        int64_t id;
        size_t n;
        (void)snprintf(text, sizeof text, "%s has plan number %d for the summer.", c->mine, i);
        const is_fact fact = {.text = text, .time = IS_TIME_NONE};
        if (is_add_facts(c->m, c->scope, &fact, 1, &id, NULL) != IS_OK) atomic_fetch_add(&c->wrong, 1);
        if (i % 2 == 0 && (is_forget(c->m, c->scope, &id, 1, &n, NULL) != IS_OK || n != 1))
            atomic_fetch_add(&c->wrong, 1);
    }
    return NULL;
}

static void test_asking_adding_forgetting_at_once(void **state)
{
    (void)state;
    is_options o = plain_options();
    o.background = true;
    o.slots = 2;
    o.recipe = "primed:2";
    is_memory *m = open_with(&o);
    is_error err = {0};
    const is_fact hers = {.text = TEXTS[0], .time = IS_TIME_NONE};
    const is_fact his = {.text = "Omar keeps his key under the carpet.", .time = IS_TIME_NONE};
    check(is_add_facts(m, &NORA, &hers, 1, NULL, &err), &err);
    check(is_add_facts(m, &OMAR, &his, 1, NULL, &err), &err);
    crowd nora = {.m = m, .scope = &NORA, .mine = "Nora", .theirs = "Omar", .rounds = 8};
    crowd omar = {.m = m, .scope = &OMAR, .mine = "Omar", .theirs = "Nora", .rounds = 8};
    pthread_t threads[4];
    assert_int_equal(pthread_create(&threads[0], NULL, asker, &nora), 0);
    assert_int_equal(pthread_create(&threads[1], NULL, asker, &omar), 0);
    assert_int_equal(pthread_create(&threads[2], NULL, changer, &nora), 0);
    assert_int_equal(pthread_create(&threads[3], NULL, changer, &omar), 0);
    for (size_t i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    assert_int_equal(atomic_load(&nora.wrong) + atomic_load(&omar.wrong), 0);
    encode(m); /* whatever the worker has not done yet */
    assert_int_equal(count_state(m, &NORA, IS_FACT_READY), 5);
    assert_int_equal(count_state(m, &OMAR, IS_FACT_READY), 5);
    is_verify_report report;
    check(is_verify(m, false, NULL, NULL, &report, &err), &err);
    assert_int_equal(report.chunks_bad + report.files_missing + report.files_orphaned + report.database_bad, 0);
    is_close(m);
}

/* ------------------------------------------------------------ bare prompts */

static is_answer *complete(is_memory *m, const char *text, const int32_t *tokens, size_t n)
{
    is_error err = {0};
    is_answer *answer = NULL;
    is_ask_options o = is_ask_options_default();
    o.max_tokens = 8;
    check(is_complete(m, text, tokens, n, &o, &answer, &err), &err);
    return answer;
}

/* mark: the model's begin mark, or NULL when it wants none. */
static void begins(is_memory *m, const char *mark)
{
    const char *const story = "Once upon a time there was";
    is_error err = {0};
    int32_t *words, *one, *line;
    int32_t prompt[64];
    size_t n, n_marks = 0;
    uint32_t n_line;
    check(m->engine->ops->tokenize(m->engine, story, true, &words, &n, &err), &err);
    assert_in_range(n, 1, 63);
    if (mark != NULL) {
        char marked[64];
        check(m->engine->ops->tokenize(m->engine, mark, true, &one, &n_marks, &err), &err);
        assert_int_equal(n_marks, 1);
        prompt[0] = one[0];
        free(one);
        (void)snprintf(marked, sizeof marked, "%s%s", mark, story);
        is_answer *once = complete(m, marked, NULL, 0);
        assert_int_equal(once->tokens_prefilled, n + 1);
        is_answer_free(once);
        const is_fact fact = {.text = TEXTS[0], .time = IS_TIME_NONE};
        check(is_fact_tokens(m, &fact, &line, &n_line, NULL, &err), &err);
        for (uint32_t i = 0; i < n_line; i++) assert_int_not_equal(line[i], prompt[0]);
        for (uint32_t i = 0; i < m->n_header; i++) assert_int_equal(m->header[i] == prompt[0], i == 0);
        free(line);
    }
    memcpy(prompt + n_marks, words, n * sizeof *words);
    is_answer *text = complete(m, story, NULL, 0);
    is_answer *tokens = complete(m, NULL, prompt, n + n_marks);
    is_answer *as_they_are = complete(m, NULL, words, n);
    assert_int_equal(text->tokens_prefilled, n + n_marks);
    assert_int_equal(tokens->tokens_prefilled, n + n_marks);
    assert_int_equal(as_they_are->tokens_prefilled, n);
    assert_string_equal(text->text, tokens->text);
    is_answer *none = NULL;
    assert_int_equal(is_complete(m, "", NULL, 0, NULL, &none, &err), IS_EINVAL);
    assert_null(none);
    is_answer_free(text);
    is_answer_free(tokens);
    is_answer_free(as_they_are);
    free(words);
}

/* A text gets the begin mark where the model wants one and the text has none; token ids and facts get none. */
static void test_bare_prompts_begin_as_the_model_wants(void **state)
{
    (void)state;
    is_options o = plain_options();
    o.embedding_model = NULL;
    o.threads = 1;
    is_memory *m = open_with(&o);
    begins(m, NULL);
    is_close(m);
    o.model = model("INFERSCALE_TEST_MODEL");
    m = open_with(&o);
    begins(m, "<bos>");
    is_close(m);
}

typedef struct closing {
    is_memory *m;
    atomic_bool begun;
    is_status status;
} closing;

static bool on_first_token(void *user, const char *piece, size_t n)
{
    (void)piece;
    (void)n;
    atomic_store(&((closing *)user)->begun, true);
    return true;
}

static void *long_answer(void *arg)
{
    closing *c = arg;
    is_answer *answer;
    is_ask_options o = is_ask_options_default();
    o.max_tokens = 900;
    o.on_token = on_first_token;
    o.user = c;
    o.sampling.temperature = 5; /* it hardly ends by itself */
    c->status = is_ask(c->m, &NORA, "Tell me everything.", &o, &answer, NULL);
    if (c->status == IS_OK) is_answer_free(answer);
    return NULL;
}

static bool count_and_cancel(void *user)
{
    return ++*(uint32_t *)user > 2;
}

static bool no_token(void *user, const char *piece, size_t n)
{
    (void)user;
    (void)piece;
    (void)n;
    fail_msg("a piece of text came through");
    return true;
}

/* Asked between the pieces of the prompt, so that a question ends before its first token. */
static void test_canceled_before_the_first_token(void **state)
{
    (void)state;
    is_error err = {0};
    is_answer *answer;
    uint32_t asked = 0;
    is_memory *m = open_plain();
    add(m, &NORA, 0, N_TEXTS, NULL);
    is_ask_options o = is_ask_options_default();
    char *question = malloc(2001);
    memset(question, 0, 2001);
    for (int i = 0; i < 500; i++) memcpy(question + 4 * i, "why ", 4);
    o.mode = IS_MODE_PREFILL;
    o.k = 12;
    o.on_token = no_token;
    o.canceled = count_and_cancel;
    o.user = &asked;
    check(is_ask(m, &NORA, question, &o, &answer, &err), &err);
    assert_string_equal(answer->finish, "canceled");
    assert_string_equal(answer->text, "");
    assert_int_equal(asked, 3);
    assert_true(answer->tokens_prefilled > 0 && answer->tokens_prefilled < 500);
    is_answer_free(answer);
    free(question);
    is_close(m);
}

static void test_closing_ends_what_runs(void **state)
{
    (void)state;
    closing c = {.m = open_plain()};
    pthread_t thread;
    add(c.m, &NORA, 0, 3, NULL);
    assert_int_equal(pthread_create(&thread, NULL, long_answer, &c), 0);
    const struct timespec moment = {.tv_nsec = 1000000};
    while (!atomic_load(&c.begun)) nanosleep(&moment, NULL);
    is_close(c.m);
    pthread_join(thread, NULL);
    assert_int_equal(c.status, IS_ECANCELED);
}

int main(void)
{
#define WITH_FOLDER(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        WITH_FOLDER(test_same_tokens_both_ways),
        WITH_FOLDER(test_unready_and_fresh_are_prefilled),
        WITH_FOLDER(test_what_does_not_fit_is_dropped_from_the_worst_end),
        WITH_FOLDER(test_bad_questions),
        WITH_FOLDER(test_two_users_never_mix),
        WITH_FOLDER(test_forgetting_reaches_what_was_encoded_behind),
        WITH_FOLDER(test_recipe_and_header_put_old_chunks_out_of_use),
        WITH_FOLDER(test_primers_grow_with_the_scope),
        WITH_FOLDER(test_near_facts_stand_in_front),
        WITH_FOLDER(test_others_grow_with_the_scope),
        WITH_FOLDER(test_chains),
        WITH_FOLDER(test_lines_that_do_not_fit),
        cmocka_unit_test(test_names_of_recipes),
        WITH_FOLDER(test_window_recipe_uses_the_turns),
        WITH_FOLDER(test_without_models),
        WITH_FOLDER(test_damaged_chunks_are_prefilled_and_made_anew),
        WITH_FOLDER(test_host_budget_is_kept),
        WITH_FOLDER(test_asking_adding_forgetting_at_once),
        WITH_FOLDER(test_canceled_before_the_first_token),
        WITH_FOLDER(test_bare_prompts_begin_as_the_model_wants),
        WITH_FOLDER(test_closing_ends_what_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
