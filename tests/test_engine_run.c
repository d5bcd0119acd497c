/*
 * One request on the llama.cpp engine: streaming, ends, cancelling, limits, chunks that do not fit, closing.
 */
#include <math.h>

#include "engine_fixture.h"

#define CONTEXT 1024

typedef struct world {
    is_engine *engine;
    scene scene;
} world;

static const char *const facts[] = {"- Ann has a dog called Rex.\n", "- Ann lives in Oslo.\n",
                                    "- Ann works as a nurse.\n", "- Ann plays the cello.\n",
                                    "- Ann drives a green car.\n"};

static int setup(void **state)
{
    world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->engine = fixture_open(CHAT_MODEL, CONTEXT, 2);
    scene_open(&w->scene, w->engine, facts, 5, "Write a long letter to me about my life.");
    *state = w;
    return 0;
}

static int teardown(void **state)
{
    world *w = *state;
    if (w == NULL) return 0;
    scene_close(&w->scene);
    is_engine_close(w->engine);
    free(w);
    return 0;
}

/* ------------------------------------------------------------ ends */

static void test_streams(void **state)
{
    world *w = *state;
    runner r;
    runner_init(&r, w->engine, scene_plan(&w->scene, true, 0), 24);
    runner_do(&r);
    const is_run_stats *stats = &r.result.stats;
    assert_string_equal(r.result.finish, "length");
    assert_string_equal(r.text, r.result.text);
    assert_true(r.calls > 12);
    assert_int_equal(stats->tokens_generated, 24);
    assert_int_equal(stats->tokens_injected, scene_memory(&w->scene));
    assert_int_equal(stats->tokens_prefilled, w->scene.parts.n_tail);
    assert_int_equal(stats->segments_injected, 6);
    assert_int_equal(stats->refused, 0);
    size_t row = is_layout_token_bytes(w->engine->ops->layout(w->engine));
    assert_true(stats->inject_bytes >= row * stats->tokens_injected);
    assert_true(stats->total_ms >= stats->ttft_ms && stats->ttft_ms >= stats->prefill_ms && stats->prefill_ms > 0);
    runner_free(&r);
}

static void test_few_tokens(void **state)
{
    world *w = *state;
    is_run_stats stats;
    char *none = fixture_answer(w->engine, scene_plan(&w->scene, true, 0), 0, &stats);
    assert_string_equal(none, "");
    assert_int_equal(stats.tokens_generated, 0);
    assert_int_equal(stats.tokens_prefilled, w->scene.parts.n_tail);
    char *one = fixture_answer(w->engine, scene_plan(&w->scene, true, 0), 1, &stats);
    assert_int_equal(stats.tokens_generated, 1);
    char *more = fixture_answer(w->engine, scene_plan(&w->scene, true, 0), 4, &stats);
    assert_true(strlen(one) > 0 && strlen(more) > strlen(one));
    assert_memory_equal(one, more, strlen(one));
    free(none);
    free(one);
    free(more);
}

static void test_sampling(void **state)
{
    world *w = *state;
    char *answers[3];
    for (size_t i = 0; i < 3; i++) {
        runner r;
        runner_init(&r, w->engine, scene_plan(&w->scene, true, 0), 16);
        r.run.sampling = (is_sampling){.temperature = 1.5f,
                                       .top_p = 0.95f,
                                       .min_p = 0.01f,
                                       .top_k = 200,
                                       .repeat_penalty = 1.1f,
                                       .frequency_penalty = 0.1f,
                                       .presence_penalty = 0.1f,
                                       .seed = i < 2 ? 11 : 12};
        runner_do(&r);
        answers[i] = strdup(r.result.text);
        runner_free(&r);
    }
    assert_string_equal(answers[0], answers[1]); /* the seed's */
    assert_string_not_equal(answers[0], answers[2]);
    for (size_t i = 0; i < 3; i++) free(answers[i]);
}

/* Stop strings from the greedy answer itself: one over the border of two tokens, one of several at once. */
static void test_stop_strings(void **state)
{
    world *w = *state;
    runner plain;
    runner_init(&plain, w->engine, scene_plan(&w->scene, true, 0), 24);
    runner_do(&plain);
    size_t border = 0;
    for (uint32_t i = 0; i < 5; i++) border += plain.pieces[i];
    assert_true(border > 4 && border + 3 < plain.n_text);
    char over[5];
    memcpy(over, plain.text + border - 2, 4);
    over[4] = '\0';
    const char *const stop[] = {"\x01never", over, "", "never\x01"};
    runner r;
    runner_init(&r, w->engine, scene_plan(&w->scene, true, 0), 24);
    r.run.stop = stop;
    r.run.n_stop = 4;
    runner_do(&r);
    size_t cut = (size_t)(strstr(plain.text, over) - plain.text);
    assert_string_equal(r.result.finish, "stop");
    assert_int_equal(strlen(r.result.text), cut);
    assert_memory_equal(r.result.text, plain.text, cut);
    assert_string_equal(r.text, r.result.text);
    assert_true(r.result.stats.tokens_generated < 24);
    runner_free(&r);
    /* Strings that do not come change nothing. */
    runner_init(&r, w->engine, scene_plan(&w->scene, true, 0), 24);
    r.run.stop = stop;
    r.run.n_stop = 1;
    runner_do(&r);
    assert_string_equal(r.result.text, plain.text);
    runner_free(&r);
    runner_free(&plain);
}

/* ------------------------------------------------------------ cancelling */

static void test_on_token_ends(void **state)
{
    world *w = *state;
    char *whole = fixture_answer(w->engine, scene_plan(&w->scene, true, 0), 24, NULL);
    runner r;
    runner_init(&r, w->engine, scene_plan(&w->scene, true, 0), 24);
    r.end_after = 3;
    runner_do(&r);
    assert_string_equal(r.result.finish, "canceled");
    assert_int_equal(r.calls, 3);
    assert_memory_equal(r.text, whole, r.n_text);
    runner_free(&r);
    /* The last character of the first piece is held back for a stop string: it must not come after the refusal. */
    char first[64];
    runner_init(&r, w->engine, scene_plan(&w->scene, true, 0), 1);
    runner_do(&r);
    assert_true(r.n_text > 1 && r.n_text < sizeof first);
    first[0] = r.text[r.n_text - 1];
    first[1] = '\x01';
    first[2] = '\0';
    runner_free(&r);
    const char *const stop[] = {first};
    runner_init(&r, w->engine, scene_plan(&w->scene, true, 0), 24);
    r.run.stop = stop;
    r.run.n_stop = 1;
    r.end_after = 1;
    runner_do(&r);
    assert_string_equal(r.result.finish, "canceled");
    assert_int_equal(r.calls, 1);
    assert_int_equal(r.calls_too_many, 0);
    runner_free(&r);
    free(whole);
}

static void raise_cancel(runner *r)
{
    if (r->calls == 2) atomic_store((atomic_bool *)r->user, true);
}

static void test_cancel_flag(void **state)
{
    world *w = *state;
    atomic_bool cancel = false;
    runner r;
    runner_init(&r, w->engine, scene_plan(&w->scene, true, 0), 200);
    r.cancel = &cancel;
    r.on_piece = raise_cancel;
    r.user = &cancel;
    runner_do(&r);
    assert_string_equal(r.result.finish, "canceled");
    assert_int_equal(r.calls, 2);
    assert_string_equal(r.result.text, r.text);
    runner_free(&r);
    /* Cancelled before it has a slot: nothing is done for it. */
    runner_init(&r, w->engine, scene_plan(&w->scene, true, 0), 200);
    r.cancel = &cancel;
    runner_do(&r);
    assert_string_equal(r.result.finish, "canceled");
    assert_string_equal(r.result.text, "");
    assert_int_equal(r.result.stats.tokens_injected + r.result.stats.tokens_prefilled, 0);
    runner_free(&r);
}

/* A prefill cancelled half-way leaves less than its plan said: the next one with this salt must not build on it. */
static void test_cancel_in_prefill(void **state)
{
    world *w = *state;
    int32_t *tokens = fixture_tokens(w->engine, 3, 600);
    is_segment segments[2] = {{tokens, 590, NULL}, {tokens + 590, 10, NULL}};
    is_plan plan = {.segments = segments, .n_segments = 2, .salt = 0};
    char *want = fixture_answer(w->engine, plan, 8, NULL);
    atomic_bool cancel = false;
    runner other, victim;
    runner_init(&other, w->engine, scene_plan(&w->scene, true, 0), 60);
    other.hold = true;
    other.on_piece = raise_cancel; /* at its second piece, when the victim has had one piece of its prompt */
    other.user = &cancel;
    runner_start(&other);
    (void)sem_wait(&other.first);
    plan.salt = 77;
    runner_init(&victim, w->engine, plan, 8);
    victim.cancel = &cancel;
    runner_start(&victim);
    fixture_settle();
    (void)sem_post(&other.go);
    runner_join(&victim);
    assert_int_equal(victim.status, IS_OK);
    assert_string_equal(victim.result.finish, "canceled");
    assert_true(victim.result.stats.tokens_prefilled < 600);
    runner_join(&other);
    assert_int_equal(other.status, IS_OK);
    is_run_stats stats;
    char *got = fixture_answer(w->engine, plan, 8, &stats);
    assert_int_equal(stats.tokens_resident, 0);
    assert_string_equal(got, want);
    char *again = fixture_answer(w->engine, plan, 8, &stats);
    assert_int_equal(stats.tokens_resident, 590);
    assert_string_equal(again, want);
    runner_free(&other);
    runner_free(&victim);
    free(want);
    free(got);
    free(again);
    free(tokens);
}

/* ------------------------------------------------------------ limits and mistakes */

static is_status try_plan(world *w, const is_segment *segments, size_t n, uint32_t max_tokens, is_run_result *result,
                          is_error *err)
{
    is_run run = {.plan = {.segments = segments, .n_segments = n, .inject = true},
                  .sampling = fixture_greedy,
                  .max_tokens = max_tokens};
    *err = (is_error){0};
    return w->engine->ops->run(w->engine, &run, result, err);
}

static void test_limits(void **state)
{
    world *w = *state;
    int32_t *tokens = fixture_tokens(w->engine, 4, CONTEXT + 1);
    is_run_result result;
    is_error err;
    is_segment whole = {tokens, CONTEXT + 1, NULL};
    assert_int_equal(try_plan(w, &whole, 1, 0, &result, &err), IS_ELIMIT);
    assert_non_null(strstr(err.text, "1025"));
    assert_non_null(strstr(err.text, "1024"));
    assert_null(result.text);
    whole.n_tokens = CONTEXT;
    assert_int_equal(try_plan(w, &whole, 1, 1, &result, &err), IS_ELIMIT); /* no room for an answer */
    assert_int_equal(try_plan(w, &whole, 1, 0, &result, &err), IS_OK);
    free(result.text);
    whole.n_tokens = CONTEXT - 1;
    assert_int_equal(try_plan(w, &whole, 1, 50, &result, &err), IS_OK);
    assert_true(result.stats.tokens_generated <= 2);
    free(result.text);
    whole.n_tokens = 0;
    assert_int_equal(try_plan(w, &whole, 1, 5, &result, &err), IS_EINVAL);
    assert_non_null(strstr(err.text, "tail"));
    assert_int_equal(try_plan(w, &whole, 0, 5, &result, &err), IS_EINVAL);
    is_segment empty_tail[2] = {{tokens, 5, NULL}, {NULL, 0, NULL}};
    assert_int_equal(try_plan(w, empty_tail, 2, 5, &result, &err), IS_EINVAL);
    is_segment empty_header[2] = {{NULL, 0, NULL}, {tokens, 5, NULL}};
    assert_int_equal(try_plan(w, empty_header, 2, 1, &result, &err), IS_OK);
    free(result.text);
    free(tokens);
}

/* A token that the model does not have fails its own request, not those beside it. */
static void test_no_token(void **state)
{
    world *w = *state;
    char *want = fixture_answer(w->engine, scene_plan(&w->scene, true, 0), 12, NULL);
    const int32_t wrong[2] = {-1, (int32_t)w->engine->ops->vocab(w->engine)};
    for (size_t i = 0; i < 2; i++) {
        int32_t tokens[3] = {400, wrong[i], 401};
        is_segment segment = {tokens, 3, NULL};
        runner beside;
        runner_init(&beside, w->engine, scene_plan(&w->scene, true, 0), 12);
        runner_start(&beside);
        (void)sem_wait(&beside.first);
        is_run_result result;
        is_error err;
        assert_int_equal(try_plan(w, &segment, 1, 5, &result, &err), IS_EINVAL);
        runner_join(&beside);
        assert_int_equal(beside.status, IS_OK);
        assert_string_equal(beside.result.text, want);
        runner_free(&beside);
    }
    free(want);
}

static void test_score_limits(void **state)
{
    world *w = *state;
    int32_t *tokens = fixture_tokens(w->engine, 5, 8);
    is_segment segments[2] = {{tokens, 5, NULL}, {tokens + 5, 3, NULL}};
    float *logits = malloc(3 * (size_t)w->engine->ops->vocab(w->engine) * sizeof *logits);
    assert_non_null(logits);
    const struct {
        uint32_t n_last;
        is_status want;
    } cases[] = {{0, IS_EINVAL}, {4, IS_EINVAL}, {3, IS_OK}, {1, IS_OK}};
    for (size_t i = 0; i < 4; i++) {
        is_score score = {.plan = {.segments = segments, .n_segments = 2}, .n_last = cases[i].n_last, .logits = logits};
        is_error err = {0};
        assert_int_equal(w->engine->ops->score(w->engine, &score, NULL, &err), cases[i].want);
    }
    free(logits);
    free(tokens);
}

/* A tail longer than a piece of prefill is scored row by row as a tail of one token behind the same tokens. */
static void test_score_pieces(void **state)
{
    world *w = *state;
    const uint32_t n = 300, n_last = 250;
    size_t vocab = w->engine->ops->vocab(w->engine);
    int32_t *tokens = fixture_tokens(w->engine, 9, n);
    is_segment whole = {tokens, n, NULL};
    is_run_stats stats;
    float *rows = fixture_score(w->engine, &(is_plan){.segments = &whole, .n_segments = 1}, n_last, &stats);
    assert_int_equal(stats.tokens_prefilled, n);
    for (uint32_t at = n - n_last; at < n; at += 83) {
        is_segment front = {tokens, at + 1, NULL};
        float *one = fixture_score(w->engine, &(is_plan){.segments = &front, .n_segments = 1}, 1, NULL);
        const float *row = rows + (at - (n - n_last)) * vocab;
        double worst = 0, size = 0;
        for (size_t i = 0; i < vocab; i++) {
            worst = fmax(worst, fabs((double)row[i] - (double)one[i]));
            size = fmax(size, fabs((double)one[i]));
        }
        if (!(worst < size * 0.02)) fail_msg("token %u: logits of %g are off by %g", at, size, worst);
        free(one);
    }
    free(rows);
    free(tokens);
}

static void test_encode_limits(void **state)
{
    world *w = *state;
    int32_t *tokens = fixture_tokens(w->engine, 6, CONTEXT + 1);
    is_error err;
    is_encode_target targets[2] = {{.tokens = tokens, .n_tokens = 4}, {.tokens = tokens, .n_tokens = 0}};
    is_encode_job job = {.prefix = tokens, .n_prefix = 10, .recipe = "isolated", .targets = targets, .n_targets = 2};
    assert_int_equal(w->engine->ops->encode(w->engine, &job, &err), IS_EINVAL);
    assert_null(targets[0].bytes);
    assert_null(targets[1].bytes);
    targets[1].n_tokens = CONTEXT - 9;
    assert_int_equal(w->engine->ops->encode(w->engine, &job, &err), IS_ELIMIT);
    assert_non_null(strstr(err.text, "1024"));
    assert_null(targets[0].bytes);
    job.n_targets = 0;
    assert_int_equal(w->engine->ops->encode(w->engine, &job, &err), IS_OK);
    /* A wrong token fails the job and leaves the encoder usable. */
    int32_t wrong[3] = {400, -5, 401};
    targets[0] = (is_encode_target){.tokens = wrong, .n_tokens = 3};
    job.n_targets = 1;
    assert_int_not_equal(w->engine->ops->encode(w->engine, &job, &err), IS_OK);
    assert_null(targets[0].bytes);
    targets[0] = (is_encode_target){.tokens = tokens, .n_tokens = CONTEXT - 10}; /* the longest that fits */
    fixture_encode(w->engine, tokens, 10, targets, 1);
    is_chunk chunk = fixture_chunk(&targets[0]);
    assert_int_equal(chunk.info.n_tokens, CONTEXT - 10);
    free(targets[0].bytes);
    free(tokens);
}

/* ------------------------------------------------------------ chunks that do not fit */

enum { WRONG_FINGERPRINT, WRONG_TOKENS, FEWER_TOKENS, WRONG_ORDER, WRONG_TYPE, FEWER_LAYERS, N_WRONG };

static is_chunk spoil(const is_chunk *chunk, int how, int32_t *tokens)
{
    is_chunk bad = *chunk;
    memcpy(tokens, chunk->tokens, chunk->info.n_tokens * sizeof *tokens);
    if (how == WRONG_FINGERPRINT) bad.info.fingerprint[15] ^= 1;
    if (how == WRONG_TOKENS) {
        tokens[chunk->info.n_tokens - 1] ^= 1;
        bad.tokens = tokens;
    }
    if (how == FEWER_TOKENS) bad.info.n_tokens--;
    if (how == WRONG_ORDER) bad.v_transposed = !bad.v_transposed;
    if (how == WRONG_TYPE) bad.dtype = IS_BF16;
    if (how == FEWER_LAYERS) bad.n_layers--;
    return bad;
}

/* What stands in front of the bad chunk is injected, the rest prefilled, and the answer is that of a missing chunk. */
static void test_refused(void **state)
{
    world *w = *state;
    const size_t at = 3;
    scene s = w->scene;
    s.segments[at].chunk = NULL;
    is_run_stats missing, stats;
    char *want = fixture_answer(w->engine, scene_plan(&s, true, 0), 10, &missing);
    uint32_t front = 0;
    for (size_t i = 0; i < at; i++) front += s.segments[i].n_tokens;
    assert_int_equal(missing.refused, 0);
    assert_int_equal(missing.segments_injected, at);
    assert_int_equal(missing.tokens_injected, front);
    for (int how = 0; how < N_WRONG; how++) {
        int32_t tokens[64];
        is_chunk bad = spoil(&w->scene.chunks[at], how, tokens);
        s.segments[at].chunk = &bad;
        char *got = fixture_answer(w->engine, scene_plan(&s, true, 0), 10, &stats);
        if (stats.refused != 1) fail_msg("case %d was refused %u times", how, stats.refused);
        assert_int_equal(stats.segments_injected, at);
        assert_int_equal(stats.tokens_injected, front);
        assert_int_equal(stats.tokens_prefilled, missing.tokens_prefilled);
        assert_string_equal(got, want);
        free(got);
        got = fixture_answer(w->engine, scene_plan(&s, false, 0), 10, &stats);
        assert_int_equal(stats.refused + stats.tokens_injected, 0);
        free(got);
    }
    free(want);
}

/* The first one being bad, everything is prefilled, with the answer of a plan that never had chunks. */
static void test_refused_header(void **state)
{
    world *w = *state;
    scene s = w->scene;
    int32_t tokens[64];
    is_chunk bad = spoil(&w->scene.chunks[0], WRONG_FINGERPRINT, tokens);
    s.segments[0].chunk = &bad;
    is_run_stats stats;
    char *got = fixture_answer(w->engine, scene_plan(&s, true, 0), 10, &stats);
    assert_int_equal(stats.refused, 1);
    assert_int_equal(stats.tokens_injected, 0);
    char *want = fixture_answer(w->engine, scene_plan(&w->scene, false, 0), 10, &stats);
    assert_string_equal(got, want);
    free(got);
    free(want);
}

/* ------------------------------------------------------------ closing */

typedef struct encoder {
    is_engine *engine;
    is_encode_job job;
    is_encode_target targets[2];
    is_status status;
    is_error err;
} encoder;

static void *encoder_main(void *arg)
{
    encoder *e = arg;
    e->status = e->engine->ops->encode(e->engine, &e->job, &e->err);
    return NULL;
}

/* A run that streams, one that waits for its slot and an encode job: all end as cancelled, and the engine goes. */
static void test_close_while_running(void **state)
{
    (void)state;
    is_engine *engine = fixture_open(CHAT_MODEL, 512, 1);
    int32_t *tokens = fixture_tokens(engine, 8, 300);
    uint32_t n_story;
    int32_t *story = fixture_tokenize(engine, "Once upon a time there was a", &n_story);
    is_segment segment = {story, n_story, NULL};
    is_plan plan = {.segments = &segment, .n_segments = 1};
    runner running, waiting[6];
    runner_init(&running, engine, plan, 480);
    running.hold = true;
    runner_start(&running);
    (void)sem_wait(&running.first);
    for (size_t i = 0; i < 6; i++) {
        runner_init(&waiting[i], engine, plan, 400);
        runner_start(&waiting[i]);
    }
    /* Beside a run a step takes one target, so the second one keeps the job open. */
    encoder e = {.engine = engine,
                 .targets = {{.tokens = tokens, .n_tokens = 150}, {.tokens = tokens + 150, .n_tokens = 150}}};
    e.job = (is_encode_job){.recipe = "isolated", .targets = e.targets, .n_targets = 2};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, encoder_main, &e), 0);
    fixture_settle();
    (void)sem_post(&running.go);
    is_engine_close(engine);
    runner_join(&running);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(running.status, IS_ECANCELED);
    assert_non_null(strstr(running.err.text, "closed"));
    assert_null(running.result.text);
    assert_int_equal(e.status, IS_ECANCELED);
    assert_null(e.targets[0].bytes);
    assert_null(e.targets[1].bytes);
    for (size_t i = 0; i < 6; i++) {
        runner_join(&waiting[i]);
        assert_int_equal(waiting[i].status, IS_ECANCELED);
        runner_free(&waiting[i]);
    }
    runner_free(&running);
    free(story);
    free(tokens);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_streams),
        cmocka_unit_test(test_few_tokens),
        cmocka_unit_test(test_sampling),
        cmocka_unit_test(test_stop_strings),
        cmocka_unit_test(test_on_token_ends),
        cmocka_unit_test(test_cancel_flag),
        cmocka_unit_test(test_cancel_in_prefill),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_no_token),
        cmocka_unit_test(test_score_limits),
        cmocka_unit_test(test_score_pieces),
        cmocka_unit_test(test_encode_limits),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_refused_header),
        cmocka_unit_test(test_close_while_running),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
