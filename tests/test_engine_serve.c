/*
 * Many requests at once on the llama.cpp engine: users do not mix, slots are reused, a long prompt does not hold up
 * short ones, and facts are encoded meanwhile.  This is the test that also runs under the thread sanitizer.
 *
 * Decoded beside others, a sequence's last bits may differ from decoding alone (other kernels for other batch sizes),
 * and where two tokens are nearly as likely a greedy answer may then turn another way.  So not every answer under load
 * has to be the answer alone, but most have, and no user's name may ever be in another's answer.
 */
#include "engine_fixture.h"

#define USERS  8
#define SLOTS  4
#define ROUNDS 4
#define TOKENS 10

/* Each user's secret is a name; the last two have the same facts. */
static const char *const names[USERS] = {"Zoltan", "Ingrid", "Kenji", "Fatima", "Pedro", "Olga", "Bruno", "Bruno"};

typedef struct world {
    is_engine *engine;
    scene users[USERS];
    char *alone[USERS][2]; /* answers: prefilled, injected */
} world;

static void open_user(world *w, size_t u)
{
    char line[3][96];
    const char *facts[3] = {line[0], line[1], line[2]};
    (void)snprintf(line[0], sizeof line[0], "- %s likes tea.\n", names[u]);
    (void)snprintf(line[1], sizeof line[1], "- The user is called %s.\n", names[u]);
    (void)snprintf(line[2], sizeof line[2], "- %s has %zu cats.\n", names[u], strlen(names[u]));
    scene_open(&w->users[u], w->engine, facts, 3, "What is my name?");
}

static int setup(void **state)
{
    world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->engine = fixture_open(CHAT_MODEL, 2048, SLOTS);
    for (size_t u = 0; u < USERS; u++) {
        open_user(w, u);
        for (int inject = 0; inject < 2; inject++)
            w->alone[u][inject] = fixture_answer(w->engine, scene_plan(&w->users[u], inject == 1, 0), TOKENS, NULL);
    }
    *state = w;
    return 0;
}

static int teardown(void **state)
{
    world *w = *state;
    if (w == NULL) return 0;
    for (size_t u = 0; u < USERS; u++) {
        free(w->alone[u][0]);
        free(w->alone[u][1]);
        scene_close(&w->users[u]);
    }
    is_engine_close(w->engine);
    free(w);
    return 0;
}

/* ------------------------------------------------------------ many users */

typedef struct user_thread {
    const world *w;
    size_t user;
    pthread_t thread;
    runner runs[ROUNDS];
} user_thread;

static bool injected_in(size_t user, size_t round)
{
    return (user + round / 2) % 2 == 1;
}

static void *user_main(void *arg)
{
    user_thread *t = arg;
    for (size_t i = 0; i < ROUNDS; i++) (void)runner_main(&t->runs[i]);
    return NULL;
}

/* Whether the answer is the one given alone; everything else about it must be right. */
static bool check_answer(const world *w, size_t user, size_t round, const runner *r)
{
    bool inject = injected_in(user, round);
    const scene *s = &w->users[user];
    if (r->status != IS_OK) fail_msg("user %zu, request %zu: %s", user, round, r->err.text);
    assert_string_equal(r->text, r->result.text);
    uint32_t memory = scene_memory(s);
    const is_run_stats *stats = &r->result.stats;
    assert_int_equal(stats->refused, 0);
    assert_int_equal(stats->tokens_injected + stats->tokens_prefilled + stats->tokens_resident,
                     memory + s->parts.n_tail);
    assert_true(stats->tokens_resident == 0 || (stats->tokens_resident == memory && stats->tokens_injected == 0));
    assert_int_equal(stats->tokens_injected, inject && stats->tokens_resident == 0 ? memory : 0);
    for (size_t other = 0; other < USERS; other++)
        if (strcmp(names[other], names[user]) != 0 && strstr(r->result.text, names[other]) != NULL)
            fail_msg("user %zu was told user %zu's name: %s", user, other, r->result.text);
    return strcmp(r->result.text, w->alone[user][inject]) == 0;
}

/* The next test can see what it is for: answers do say their users' names. */
static void test_answers_tell(void **state)
{
    const world *w = *state;
    size_t told = 0;
    for (size_t u = 0; u < USERS; u++)
        for (int inject = 0; inject < 2; inject++) told += strstr(w->alone[u][inject], names[u]) != NULL;
    assert_true(told >= USERS);
}

/* Every user asks several times, by turns injected and prefilled, with a salt of user and mode. */
static void test_many_users(void **state)
{
    const world *w = *state;
    user_thread *threads = calloc(USERS, sizeof *threads);
    assert_non_null(threads);
    for (size_t u = 0; u < USERS; u++) {
        threads[u] = (user_thread){.w = w, .user = u};
        for (size_t i = 0; i < ROUNDS; i++) {
            bool inject = injected_in(u, i);
            is_plan plan = scene_plan(&w->users[u], inject, 1000 + 2 * u + inject);
            runner_init(&threads[u].runs[i], w->engine, plan, TOKENS);
        }
    }
    for (size_t u = 0; u < USERS; u++)
        assert_int_equal(pthread_create(&threads[u].thread, NULL, user_main, &threads[u]), 0);
    for (size_t u = 0; u < USERS; u++) assert_int_equal(pthread_join(threads[u].thread, NULL), 0);
    size_t equal = 0;
    for (size_t u = 0; u < USERS; u++) {
        for (size_t i = 0; i < ROUNDS; i++) {
            equal += check_answer(w, u, i, &threads[u].runs[i]);
            runner_free(&threads[u].runs[i]);
        }
    }
    free(threads);
    /* Seen: 32 of 32, every time. */
    if (equal * 4 < USERS * ROUNDS * 3) fail_msg("only %zu of %d answers are those given alone", equal, USERS * ROUNDS);
}

/* ------------------------------------------------------------ salts */

static void ask(const world *w, size_t user, bool inject, uint64_t salt, uint32_t resident)
{
    is_run_stats stats;
    char *text = fixture_answer(w->engine, scene_plan(&w->users[user], inject, salt), TOKENS, &stats);
    assert_int_equal(stats.tokens_resident, resident);
    assert_string_equal(text, w->alone[user][inject]);
    free(text);
}

static void test_salts(void **state)
{
    const world *w = *state;
    uint32_t memory[3] = {scene_memory(&w->users[0]), scene_memory(&w->users[1]), scene_memory(&w->users[2])};
    ask(w, 0, true, 1, 0);
    ask(w, 0, true, 1, memory[0]); /* the same again */
    ask(w, 0, true, 2, 0);         /* another salt, another scope, whatever the tokens */
    ask(w, 0, false, 3, 0);
    ask(w, 0, false, 3, memory[0]);
    ask(w, 1, true, 1, 0); /* a salt whose tokens differ is no match */
    ask(w, 1, true, 1, memory[1]);
    ask(w, 0, true, 2, memory[0]); /* the other slots still hold theirs */
    ask(w, 0, true, 0, 0);         /* no salt, nothing is kept */
    ask(w, 0, true, 0, 0);
    /* A memory that is the beginning of the one that is held is no match either. */
    is_segment shorter[4];
    memcpy(shorter, w->users[1].segments, sizeof shorter);
    shorter[3] = w->users[1].segments[4];
    is_plan plan = {.segments = shorter, .n_segments = 4, .inject = true, .salt = 1};
    is_run_stats stats;
    char *text = fixture_answer(w->engine, plan, TOKENS, &stats);
    assert_int_equal(stats.tokens_resident, 0);
    free(text);
    for (size_t u = 0; u < 3; u++) ask(w, u, true, 100 + u, 0);
    for (size_t u = 0; u < 3; u++) ask(w, u, true, 100 + u, memory[u]);
}

/* ------------------------------------------------------------ long prompts */

typedef struct order {
    runner *first, *second;
    atomic_uint *ended; /* how many short ones have ended */
    unsigned at_first_token;
} order;

static void note_ended(runner *r)
{
    order *o = r->user;
    o->at_first_token = atomic_load(o->ended);
}

static void count_ended(runner *r)
{
    atomic_fetch_add((atomic_uint *)r->user, 1);
}

/* Short prompts that come behind a long one have their first token before it has. */
static void test_long_prompt(void **state)
{
    const world *w = *state;
    int32_t *tokens = fixture_tokens(w->engine, 51, 1600);
    is_segment long_prompt = {tokens, 1500, NULL};
    atomic_uint ended = 0;
    order o = {.ended = &ended, .at_first_token = UINT32_MAX};
    runner gate, slow, quick[2];
    runner_init(&gate, w->engine, scene_plan(&w->users[0], true, 0), 4);
    gate.hold = true;
    runner_start(&gate);
    (void)sem_wait(&gate.first);
    runner_init(&slow, w->engine, (is_plan){.segments = &long_prompt, .n_segments = 1}, 4);
    slow.on_piece = note_ended;
    slow.user = &o;
    runner_start(&slow);
    fixture_settle();
    for (size_t i = 0; i < 2; i++) {
        runner_init(&quick[i], w->engine, scene_plan(&w->users[i + 1], i == 0, 0), 1);
        quick[i].on_piece = count_ended;
        quick[i].user = &ended;
        runner_start(&quick[i]);
    }
    fixture_settle();
    (void)sem_post(&gate.go);
    runner_join(&gate);
    runner_join(&slow);
    for (size_t i = 0; i < 2; i++) runner_join(&quick[i]);
    assert_int_equal(slow.status, IS_OK);
    assert_int_equal(slow.result.stats.tokens_prefilled, 1500);
    if (slow.calls > 0) assert_int_equal(o.at_first_token, 2);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(quick[i].status, IS_OK);
        assert_int_equal(quick[i].calls, 1);
        assert_memory_equal(quick[i].text, w->alone[i + 1][i == 0], quick[i].n_text);
        runner_free(&quick[i]);
    }
    runner_free(&gate);
    runner_free(&slow);
    free(tokens);
}

/* ------------------------------------------------------------ encoding meanwhile */

typedef struct encoder {
    is_engine *engine;
    is_encode_job job;
    is_status status;
    is_error err;
    atomic_bool done;
    pthread_t thread;
} encoder;

static void *encoder_main(void *arg)
{
    encoder *e = arg;
    e->status = e->engine->ops->encode(e->engine, &e->job, &e->err);
    atomic_store(&e->done, true);
    return NULL;
}

/*
 * Requests that come and go make the encode steps that they find give way, to be gone on with later; still the job
 * ends, and its bytes are those of a quiet engine.  pause: microseconds between two requests, in which the engine is
 * idle and begins a step.
 */
static void encode_under_load(is_engine *engine, const is_plan *plan, uint32_t n_prefix, useconds_t pause)
{
    int32_t *prefix = fixture_tokens(engine, 61, n_prefix);
    int32_t *text = fixture_tokens(engine, 62, 40);
    is_encode_target quiet = {.tokens = text, .n_tokens = 40};
    is_encode_target busy = quiet;
    fixture_encode(engine, prefix, n_prefix, &quiet, 1);
    is_encode_target other = {.tokens = text, .n_tokens = 5};
    fixture_encode(engine, text, 3, &other, 1); /* so that the prefix has to be made anew */
    encoder e = {.engine = engine};
    e.job =
        (is_encode_job){.prefix = prefix, .n_prefix = n_prefix, .recipe = "isolated", .targets = &busy, .n_targets = 1};
    assert_int_equal(pthread_create(&e.thread, NULL, encoder_main, &e), 0);
    char *want = fixture_answer(engine, *plan, 1, NULL);
    unsigned most = pause > 50000 ? 400 : 4000; /* seen: 30 to 130 */
    for (unsigned asked = 0; !atomic_load(&e.done) && asked < most; asked++) {
        char *answer = fixture_answer(engine, *plan, 1, NULL);
        assert_string_equal(answer, want);
        free(answer);
        usleep(pause);
    }
    assert_true(atomic_load(&e.done)); /* else requests that come and go hold it up for ever */
    assert_int_equal(pthread_join(e.thread, NULL), 0);
    if (e.status != IS_OK) fail_msg("%s", e.err.text);
    assert_int_equal(busy.size, quiet.size);
    assert_memory_equal(busy.bytes, quiet.bytes, quiet.size);
    free(busy.bytes);
    free(quiet.bytes);
    free(want);
    free(other.bytes);
    free(prefix);
    free(text);
}

static void test_encode_under_load(void **state)
{
    const world *w = *state;
    is_plan plan = scene_plan(&w->users[0], true, 0);
    encode_under_load(w->engine, &plan, 700, 0);
    encode_under_load(w->engine, &plan, 700, 3000);
    encode_under_load(w->engine, &plan, 700, 150000);
}

static void test_encode_under_load_window(void **state)
{
    (void)state;
    is_engine *engine = fixture_open(WINDOW_MODEL, 1024, 1);
    int32_t *tokens = fixture_tokens(engine, 63, 20);
    is_segment segment = {tokens, 20, NULL};
    is_plan plan = {.segments = &segment, .n_segments = 1};
    encode_under_load(engine, &plan, 300, 0);
    encode_under_load(engine, &plan, 640, 3000); /* longer than the window */
    free(tokens);
    is_engine_close(engine);
}

/* Facts that were asked for and are no longer wanted: the job ends, and the next one is not harmed. */
static void test_encode_canceled(void **state)
{
    const world *w = *state;
    int32_t *prefix = fixture_tokens(w->engine, 64, 600);
    is_encode_target targets[20];
    for (size_t i = 0; i < 20; i++) targets[i] = (is_encode_target){.tokens = prefix, .n_tokens = 100};
    atomic_bool cancel = false;
    encoder e = {.engine = w->engine};
    e.job = (is_encode_job){.prefix = prefix,
                            .n_prefix = 600,
                            .recipe = "isolated",
                            .cancel = &cancel,
                            .targets = targets,
                            .n_targets = 20};
    assert_int_equal(pthread_create(&e.thread, NULL, encoder_main, &e), 0);
    fixture_settle();
    atomic_store(&cancel, true);
    assert_int_equal(pthread_join(e.thread, NULL), 0);
    assert_int_equal(e.status, IS_ECANCELED);
    for (size_t i = 0; i < 20; i++) assert_null(targets[i].bytes);
    is_encode_target again = targets[0];
    fixture_encode(w->engine, prefix, 600, &again, 1);
    free(again.bytes);
    free(prefix);
}

/* Two jobs at once behind different prefixes, and requests beside them. */
static void test_two_encoders(void **state)
{
    const world *w = *state;
    int32_t *prefix = fixture_tokens(w->engine, 71, 60);
    int32_t *text = fixture_tokens(w->engine, 72, 20);
    is_encode_target want[2], got[2];
    encoder e[2];
    for (size_t i = 0; i < 2; i++) {
        want[i] = got[i] = (is_encode_target){.tokens = text, .n_tokens = 20};
        fixture_encode(w->engine, prefix + i, 59, &want[i], 1);
    }
    for (size_t i = 0; i < 2; i++) {
        e[i] = (encoder){.engine = w->engine};
        e[i].job = (is_encode_job){
            .prefix = prefix + i, .n_prefix = 59, .recipe = "isolated", .targets = &got[i], .n_targets = 1};
        assert_int_equal(pthread_create(&e[i].thread, NULL, encoder_main, &e[i]), 0);
    }
    char *answer = fixture_answer(w->engine, scene_plan(&w->users[0], true, 0), TOKENS, NULL);
    assert_string_equal(answer, w->alone[0][1]);
    free(answer);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(e[i].thread, NULL), 0);
        assert_int_equal(e[i].status, IS_OK);
        assert_memory_equal(got[i].bytes, want[i].bytes, want[i].size);
    }
    assert_memory_not_equal(want[0].bytes, want[1].bytes, want[0].size);
    for (size_t i = 0; i < 2; i++) {
        free(want[i].bytes);
        free(got[i].bytes);
    }
    free(prefix);
    free(text);
}

/* ------------------------------------------------------------ threads */

/* Two threads compose and compute; the answers begin with the same token. */
static void test_two_threads(void **state)
{
    const world *w = *state;
    is_engine *engine;
    is_error err = {0};
    is_llama_options o = {.model = fixture_path(CHAT_MODEL), .context = 256, .slots = 2, .threads = 2};
    if (is_llama_open(&o, &engine, &err) != IS_OK) fail_msg("%s", err.text);
    assert_non_null(engine->ops->layout(engine));
    runner r[2];
    for (size_t u = 0; u < 2; u++) {
        runner_init(&r[u], engine, scene_plan(&w->users[u], true, 0), 1);
        runner_start(&r[u]);
    }
    for (size_t u = 0; u < 2; u++) {
        runner_join(&r[u]);
        if (r[u].status != IS_OK) fail_msg("%s", r[u].err.text);
        assert_int_equal(r[u].result.stats.tokens_injected, scene_memory(&w->users[u]));
        assert_true(r[u].n_text > 0);
        assert_memory_equal(r[u].text, w->alone[u][1], r[u].n_text);
        runner_free(&r[u]);
    }
    is_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_tell),
        cmocka_unit_test(test_many_users),
        cmocka_unit_test(test_salts),
        cmocka_unit_test(test_long_prompt),
        cmocka_unit_test(test_encode_under_load),
        cmocka_unit_test(test_encode_under_load_window),
        cmocka_unit_test(test_encode_canceled),
        cmocka_unit_test(test_two_encoders),
        cmocka_unit_test(test_two_threads),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
