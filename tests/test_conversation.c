/*
 * Conversations that go on: earlier turns come from chunks, whatever facts stand in front of them; not another user's,
 * not what was changed, not what was encoded behind a fact that is forgotten; and the budget is kept.
 */
#include "memory_fixture.h"

static is_answer *say(is_memory *m, const is_scope *scope, const is_message *history, size_t n, const char *question,
                      bool recompute)
{
    is_error err = {0};
    is_answer *answer = NULL;
    is_ask_options o = is_ask_options_default();
    o.k = 6;
    o.history = history;
    o.n_history = n;
    o.recompute_history = recompute;
    o.max_tokens = 16;
    check(is_ask(m, scope, question, &o, &answer, &err), &err);
    return answer;
}

/* Two turns; what the second one took from chunks. */
static uint32_t second_turn(is_memory *m, const is_scope *first, const is_scope *second, bool recompute)
{
    is_answer *a = say(m, first, NULL, 0, "What is the cat called?", false);
    const is_message history[] = {{"user", "What is the cat called?", NULL, NULL}, {"assistant", a->text, NULL, NULL}};
    is_answer *b = say(m, second, history, 2, "And where do I live?", recompute);
    uint32_t tokens = b->tokens_history;
    assert_true(tokens <= b->tokens_injected);
    is_answer_free(a);
    is_answer_free(b);
    return tokens;
}

/* The chunks are the very tokens of the rendered history, so with and without them the prompt has the same length. */
static void test_turns_are_injected(void **state)
{
    (void)state;
    is_memory *m = open_plain();
    add(m, &NORA, 0, N_TEXTS, NULL);
    encode(m);
    is_answer *a = say(m, &NORA, NULL, 0, "What is the cat called?", false);
    assert_int_equal(a->tokens_history, 0);
    const is_message history[] = {{"user", "What is the cat called?", NULL, NULL}, {"assistant", a->text, NULL, NULL}};
    is_answer *with = say(m, &NORA, history, 2, "And where do I live?", false);
    is_answer *without = say(m, &NORA, history, 2, "And where do I live?", true);
    /* The question and the opening of the answer, and the answer but perhaps its last token. */
    assert_true(with->tokens_history >= a->tokens_prefilled + a->tokens_generated - 1);
    assert_int_equal(without->tokens_history, 0);
    assert_int_equal(with->tokens_injected + with->tokens_prefilled,
                     without->tokens_injected + without->tokens_prefilled);
    assert_int_equal(with->tokens_injected, without->tokens_injected + with->tokens_history);
    assert_int_equal(with->facts_injected, without->facts_injected);
    is_answer_free(a);
    is_answer_free(with);
    is_answer_free(without);
    is_close(m);
}

static void test_recompute_takes_none(void **state)
{
    (void)state;
    is_memory *m = open_plain();
    add(m, &NORA, 0, N_TEXTS, NULL);
    encode(m);
    assert_true(second_turn(m, &NORA, &NORA, false) > 0);
    assert_int_equal(second_turn(m, &NORA, &NORA, true), 0);
    is_close(m);
}

static void test_users_do_not_share(void **state)
{
    (void)state;
    is_memory *m = open_plain();
    add(m, &NORA, 0, N_TEXTS, NULL);
    add(m, &OMAR, 0, N_TEXTS, NULL); /* the same facts, so the same tokens */
    encode(m);
    assert_int_equal(second_turn(m, &NORA, &OMAR, false), 0);
    assert_true(second_turn(m, &NORA, &NORA, false) > 0);
    /* Users without any fact are told apart too. */
    const is_scope one = {.user = "one"}, two = {.user = "two"};
    assert_int_equal(second_turn(m, &one, &two, false), 0);
    assert_true(second_turn(m, &one, &one, false) > 0);
    is_close(m);
}

static void test_another_history_takes_what_is_equal(void **state)
{
    (void)state;
    is_memory *m = open_plain();
    add(m, &NORA, 0, N_TEXTS, NULL);
    encode(m);
    is_answer *a = say(m, &NORA, NULL, 0, "What is the cat called?", false);
    const is_message same[] = {{"user", "What is the cat called?", NULL, NULL}, {"assistant", a->text, NULL, NULL}};
    const is_message edited[] = {{"user", "What is the cat called?", NULL, NULL},
                                 {"assistant", "Ask me later.", NULL, NULL}};
    const is_message other[] = {{"user", "What is the dog called?", NULL, NULL}, {"assistant", a->text, NULL, NULL}};
    is_answer *all = say(m, &NORA, same, 2, "And where do I live?", false);
    is_answer *question = say(m, &NORA, edited, 2, "And where do I live?", false);
    is_answer *nothing = say(m, &NORA, other, 2, "And where do I live?", false);
    assert_int_equal(question->tokens_history, a->tokens_prefilled);
    assert_true(all->tokens_history > question->tokens_history);
    assert_int_equal(nothing->tokens_history, 0);
    is_answer_free(a);
    is_answer_free(all);
    is_answer_free(question);
    is_answer_free(nothing);
    is_close(m);
}

static void test_forgetting_and_changing_end_them(void **state)
{
    (void)state;
    is_error err = {0};
    is_memory *m = open_plain();
    int64_t ids[N_TEXTS];
    add(m, &NORA, 0, N_TEXTS, ids);
    encode(m);
    is_answer *a = say(m, &NORA, NULL, 0, "What is the cat called?", false);
    const is_message history[] = {{"user", "What is the cat called?", NULL, NULL}, {"assistant", a->text, NULL, NULL}};
    assert_true(is_conversations_bytes(m->conversations) > 0);
    check(is_forget(m, &NORA, &ids[4], 1, NULL, &err), &err);
    assert_int_equal(is_conversations_bytes(m->conversations), 0);
    is_answer *b = say(m, &NORA, history, 2, "And where do I live?", false);
    assert_int_equal(b->tokens_history, 0);
    is_answer_free(b);
    const is_fact change = {.text = "Nora's dog is called Bramble.", .time = IS_TIME_NONE};
    check(is_change_fact(m, &NORA, ids[0], &change, &err), &err);
    assert_int_equal(is_conversations_bytes(m->conversations), 0);
    is_answer_free(a);
    is_close(m);
}

/* An answer that was under way while a fact was forgotten leaves nothing. */
typedef struct forgetter {
    is_memory *m;
    int64_t id;
    bool done;
} forgetter;

static void *forget_it(void *arg)
{
    forgetter *f = arg;
    (void)is_forget(f->m, &NORA, &f->id, 1, NULL, NULL);
    return NULL;
}

static bool forget_meanwhile(void *user, const char *piece, size_t n)
{
    forgetter *f = user;
    pthread_t thread;
    (void)piece;
    (void)n;
    if (f->done) return true;
    f->done = true;
    assert_int_equal(pthread_create(&thread, NULL, forget_it, f), 0);
    pthread_join(thread, NULL);
    return true;
}

static void test_forgetting_meanwhile(void **state)
{
    (void)state;
    is_error err = {0};
    is_memory *m = open_plain();
    int64_t ids[N_TEXTS];
    add(m, &NORA, 0, N_TEXTS, ids);
    encode(m);
    forgetter f = {m, ids[4], false};
    is_answer *a = NULL;
    is_ask_options o = is_ask_options_default();
    o.k = 6;
    o.max_tokens = 8;
    o.on_token = forget_meanwhile;
    o.user = &f;
    check(is_ask(m, &NORA, "What is the cat called?", &o, &a, &err), &err);
    assert_true(f.done);
    assert_int_equal(is_conversations_bytes(m->conversations), 0);
    is_answer_free(a);
    is_close(m);
}

static void test_budget_is_kept(void **state)
{
    (void)state;
    is_error err = {0};
    is_memory *m = NULL;
    is_options options = plain_options();
    options.conversation_budget = 3 << 20; /* some hundred tokens */
    check(is_open(&options, &m, &err), &err);
    char question[64];
    for (int i = 0; i < 8; i++) {
        (void)snprintf(question, sizeof question, "What do you know about number %d?", i);
        is_answer_free(say(m, &NORA, NULL, 0, question, false));
        assert_true(is_conversations_bytes(m->conversations) <= options.conversation_budget);
    }
    assert_true(is_conversations_bytes(m->conversations) > options.conversation_budget / 2);
    is_close(m);
}

int main(void)
{
#define WITH_FOLDER(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        WITH_FOLDER(test_turns_are_injected),
        WITH_FOLDER(test_recompute_takes_none),
        WITH_FOLDER(test_users_do_not_share),
        WITH_FOLDER(test_another_history_takes_what_is_equal),
        WITH_FOLDER(test_forgetting_and_changing_end_them),
        WITH_FOLDER(test_forgetting_meanwhile),
        WITH_FOLDER(test_budget_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
