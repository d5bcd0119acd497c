/*
 * The embedded engine with its cache written by the device's side, over a device that is none: the engine's own cache,
 * in host memory, stands for the device's.  What holds of injection without a device holds with it, and nothing of what
 * was forgotten stays there.
 */
#include "engine_fixture.h"

#include "cuda/fake.h"
#include "cuda/kernels.h"

#define BUDGET ((uint64_t)64 << 20)

static is_engine *open_engine(uint64_t budget, uint32_t slots)
{
    is_engine *engine;
    is_error err = {0};
    fake_begin(7);
    fake_adopt_all(true);
    fake_run_compose = run_compose;
    fake_run_gather = run_gather;
    is_llama_options o = {
        .model = fixture_path(CHAT_MODEL), .context = 1024, .slots = slots, .threads = 1, .device_budget = budget};
    if (is_llama_open(&o, &engine, &err) != IS_OK) fail_msg("%s", err.text);
    if (engine->ops->layout(engine) == NULL) fail_msg("injection is off: %s", engine->ops->why_not(engine));
    return engine;
}

static void close_engine(is_engine *engine)
{
    is_engine_close(engine);
    fake_adopt_all(false);
    assert_true(fake_end());
}

/* A member of what the engine says of itself. */
static bool describes(is_engine *engine, const char *member)
{
    char *json;
    assert_int_equal(engine->ops->describe(engine, &json, NULL), IS_OK);
    bool found = strstr(json, member) != NULL;
    free(json);
    return found;
}

typedef struct prompt {
    int32_t *tokens;
    is_encode_target targets[2];
    is_chunk chunks[2];
    is_segment segments[3];
    is_plan plan;
} prompt;

/* A header of 40 tokens, a fact of 30 that was made behind 100 others, and a tail of 9. */
static void make_prompt(is_engine *engine, prompt *p, uint64_t scope)
{
    p->tokens = fixture_tokens(engine, 7, 200);
    p->targets[0] = (is_encode_target){.tokens = p->tokens, .n_tokens = 40};
    p->targets[1] = (is_encode_target){.tokens = p->tokens + 40, .n_tokens = 30};
    fixture_encode(engine, NULL, 0, &p->targets[0], 1);
    fixture_encode(engine, p->tokens + 100, 100, &p->targets[1], 1);
    for (int i = 0; i < 2; i++) p->chunks[i] = fixture_chunk(&p->targets[i]);
    p->segments[0] = (is_segment){p->tokens, 40, &p->chunks[0]};
    p->segments[1] = (is_segment){p->tokens + 40, 30, &p->chunks[1]};
    p->segments[2] = (is_segment){p->tokens + 70, 9, NULL};
    p->plan = (is_plan){.segments = p->segments,
                        .n_segments = 3,
                        .inject = true,
                        .scope = scope,
                        .forgets = engine->ops->forgets(engine)};
}

static void free_prompt(prompt *p)
{
    for (int i = 0; i < 2; i++) free(p->targets[i].bytes);
    free(p->tokens);
}

/* Its rows, anywhere in device or pinned memory; the engine's cache is neither. */
static bool is_on_device(const prompt *p)
{
    bool found = false;
    for (int i = 0; i < 2; i++) found = found || fake_holds(is_chunk_layer(&p->chunks[i], 3).k, 64);
    return found;
}

static void assert_same(const float *a, const float *b, is_engine *engine)
{
    uint32_t n = engine->ops->vocab(engine);
    for (uint32_t i = 0; i < n; i++)
        if (a[i] != b[i]) fail_msg("logit %u: %g and %g", i, (double)a[i], (double)b[i]);
}

/* Bit for bit what the blob's way gives, which a budget of nothing leaves. */
static void as_without_a_device(void **state)
{
    (void)state;
    float *logits[2];
    for (int i = 0; i < 2; i++) {
        is_engine *engine = open_engine(i == 0 ? BUDGET : 4096, 2);
        assert_true(describes(engine, "\"in_place\": true"));
        assert_true(describes(engine, "\"v_transposed\": false"));
        prompt p;
        is_run_stats stats;
        make_prompt(engine, &p, 11);
        for (int again = 0; again < 3; again++) { /* also where the cells are used anew */
            logits[i] = fixture_score(engine, &p.plan, 1, &stats);
            assert_int_equal(stats.tokens_injected, 70);
            if (again < 2) free(logits[i]);
        }
        assert_true(describes(engine, i == 0 ? "\"device_chunks\": 2" : "\"device_chunks\": 0"));
        assert_true(is_on_device(&p) == (i == 0));
        free_prompt(&p);
        if (i == 1) assert_same(logits[0], logits[1], engine);
        close_engine(engine);
    }
    free(logits[0]);
    free(logits[1]);
}

static void what_is_forgotten_leaves_the_device(void **state)
{
    (void)state;
    is_engine *engine = open_engine(BUDGET, 1);
    prompt p;
    is_run_stats stats;
    make_prompt(engine, &p, 11);
    free(fixture_score(engine, &p.plan, 1, &stats));
    assert_true(is_on_device(&p));
    engine->ops->forget(engine, 12); /* somebody else's */
    assert_true(is_on_device(&p));
    engine->ops->forget(engine, 11);
    assert_false(is_on_device(&p));
    free(fixture_score(engine, &p.plan, 1, &stats)); /* chunks that were pinned before that */
    assert_int_equal(stats.tokens_injected, 70);
    assert_false(is_on_device(&p));
    p.plan.forgets = engine->ops->forgets(engine);
    free(fixture_score(engine, &p.plan, 1, &stats));
    assert_true(is_on_device(&p));
    free_prompt(&p);
    close_engine(engine);
}

static void what_the_device_cannot_do_is_said(void **state)
{
    (void)state;
    is_engine *engine = open_engine(BUDGET, 1);
    prompt p;
    is_run_stats stats;
    make_prompt(engine, &p, 11);
    is_error err = {0};
    float *logits = malloc(engine->ops->vocab(engine) * sizeof *logits);
    is_score score = {.plan = p.plan, .n_last = 1, .logits = logits};
    fake_fail_from(1);
    assert_int_not_equal(engine->ops->score(engine, &score, &stats, &err), IS_OK);
    assert_true(err.text[0] != '\0');
    fake_fail_at(0);
    assert_int_equal(engine->ops->score(engine, &score, &stats, &err), IS_OK);
    assert_int_equal(stats.tokens_injected, 70);
    free(logits);
    free_prompt(&p);
    close_engine(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_without_a_device),
        cmocka_unit_test(what_is_forgotten_leaves_the_device),
        cmocka_unit_test(what_the_device_cannot_do_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
