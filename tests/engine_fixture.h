/*
 * What the tests of the llama.cpp engine share: opening models, encoding, scoring, and a scene, which is one user's
 * prompt with its header and facts as chunks.
 *
 * Models: INFERSCALE_CHAT_MODEL (adjacent pairs, one base), INFERSCALE_TEST_MODEL (half-split, two bases, sliding
 * window), INFERSCALE_EMBEDDING_MODEL.  A test fails where its variable is not set.
 */
#ifndef ENGINE_FIXTURE_H
#define ENGINE_FIXTURE_H

// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <ggml.h>
#include <gguf.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/llama/llama_engine.h"

#define CHAT_MODEL      "INFERSCALE_CHAT_MODEL"
#define WINDOW_MODEL    "INFERSCALE_TEST_MODEL"
#define EMBEDDING_MODEL "INFERSCALE_EMBEDDING_MODEL"

static const is_sampling fixture_greedy = {.top_p = 1, .repeat_penalty = 1};

static inline const char *fixture_path(const char *variable)
{
    const char *path = getenv(variable);
    if (path == NULL || path[0] == '\0') fail_msg("%s is not set; run `make test`", variable);
    return path;
}

static inline is_engine *fixture_open(const char *variable, uint32_t context, uint32_t slots)
{
    is_engine *engine;
    is_error err = {0};
    /* One thread: with more, another process on their cores makes every barrier between them wait for a time slice. */
    is_llama_options o = {.model = fixture_path(variable), .context = context, .slots = slots, .threads = 1};
    if (is_llama_open(&o, &engine, &err) != IS_OK) fail_msg("%s", err.text);
    if (engine->ops->layout(engine) == NULL) fail_msg("injection is off: %s", engine->ops->why_not(engine));
    return engine;
}

/* n tokens that depend on the seed alone; free(). */
static inline int32_t *fixture_tokens(is_engine *engine, uint32_t seed, size_t n)
{
    uint32_t vocab = engine->ops->vocab(engine);
    int32_t *out = malloc(n * sizeof *out);
    assert_non_null(out);
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        out[i] = (int32_t)(300 + (seed >> 8) % (vocab / 2));
    }
    return out;
}

/* A text's tokens; free(). */
static inline int32_t *fixture_tokenize(is_engine *engine, const char *text, uint32_t *n)
{
    int32_t *tokens;
    size_t count;
    is_error err = {0};
    if (engine->ops->tokenize(engine, text, false, &tokens, &count, &err) != IS_OK) fail_msg("%s", err.text);
    *n = (uint32_t)count;
    return tokens;
}

static inline void fixture_encode_shared(is_engine *engine, const int32_t *prefix, uint32_t n_prefix, uint32_t n_shared,
                                         is_encode_target *targets, size_t n)
{
    is_error err = {0};
    is_encode_job job = {.prefix = prefix,
                         .n_prefix = n_prefix,
                         .n_shared = n_shared,
                         .recipe = "isolated",
                         .targets = targets,
                         .n_targets = n};
    if (engine->ops->encode(engine, &job, &err) != IS_OK) fail_msg("%s", err.text);
}

static inline void fixture_encode(is_engine *engine, const int32_t *prefix, uint32_t n_prefix,
                                  is_encode_target *targets, size_t n)
{
    fixture_encode_shared(engine, prefix, n_prefix, n_prefix, targets, n);
}

static inline is_chunk fixture_chunk(const is_encode_target *target)
{
    is_chunk chunk;
    is_error err = {0};
    if (is_chunk_open(&chunk, target->bytes, target->size, IS_CHUNK_CHECK_PAYLOAD, &err) != IS_OK)
        fail_msg("%s", err.text);
    return chunk;
}

/* Logits [n_last][vocab] of a plan; free(). */
static inline float *fixture_score(is_engine *engine, const is_plan *plan, uint32_t n_last, is_run_stats *stats)
{
    float *logits = malloc((size_t)n_last * engine->ops->vocab(engine) * sizeof *logits);
    assert_non_null(logits);
    is_score score = {.plan = *plan, .n_last = n_last, .logits = logits};
    is_error err = {0};
    if (engine->ops->score(engine, &score, stats, &err) != IS_OK) fail_msg("%s", err.text);
    return logits;
}

/* A copy of a model file with another chat template; its path, to be removed and freed by the caller. */
static inline char *fixture_with_template(const char *variable, const char *text)
{
    struct ggml_context *tensors = NULL;
    const struct gguf_init_params params = {.no_alloc = false, .ctx = &tensors};
    struct gguf_context *from = gguf_init_from_file(fixture_path(variable), params);
    struct gguf_context *to = gguf_init_empty();
    char path[] = "/tmp/test-engine-XXXXXX";
    int fd = mkstemp(path);
    assert_non_null(from);
    assert_non_null(to);
    assert_true(fd >= 0);
    (void)close(fd);
    gguf_set_kv(to, from);
    gguf_set_val_str(to, "tokenizer.chat_template", text);
    for (struct ggml_tensor *t = ggml_get_first_tensor(tensors); t != NULL; t = ggml_get_next_tensor(tensors, t))
        if (gguf_find_tensor(from, t->name) >= 0) gguf_add_tensor(to, t);
    assert_true(gguf_write_to_file(to, path, false));
    gguf_free(to);
    gguf_free(from);
    ggml_free(tensors);
    char *out = strdup(path);
    assert_non_null(out);
    return out;
}

/* ------------------------------------------------------------ a scene */

#define SCENE_FACTS 8

/* Segments: header, facts, tail.  All but the tail have chunks, made behind the header. */
typedef struct scene {
    is_prompt_parts parts;
    is_encode_target header;
    is_encode_target facts[SCENE_FACTS];
    is_chunk chunks[SCENE_FACTS + 1];
    is_segment segments[SCENE_FACTS + 2];
    size_t n_facts;
} scene;

static inline void scene_open(scene *s, is_engine *engine, const char *const *facts, size_t n, const char *question)
{
    is_error err = {0};
    is_message message = {"user", question};
    memset(s, 0, sizeof *s);
    assert_true(n <= SCENE_FACTS);
    s->n_facts = n;
    if (engine->ops->render(engine, "You are an assistant. What you know about the user:\n", "Answer in few words.",
                            &message, 1, NULL, &s->parts, &err) != IS_OK)
        fail_msg("%s", err.text);
    s->header = (is_encode_target){.tokens = s->parts.header, .n_tokens = (uint32_t)s->parts.n_header};
    fixture_encode(engine, NULL, 0, &s->header, 1);
    for (size_t i = 0; i < n; i++) s->facts[i].tokens = fixture_tokenize(engine, facts[i], &s->facts[i].n_tokens);
    fixture_encode(engine, s->parts.header, (uint32_t)s->parts.n_header, s->facts, n);
    for (size_t i = 0; i <= n; i++) {
        const is_encode_target *t = i == 0 ? &s->header : &s->facts[i - 1];
        s->chunks[i] = fixture_chunk(t);
        s->segments[i] = (is_segment){t->tokens, t->n_tokens, &s->chunks[i]};
    }
    s->segments[n + 1] = (is_segment){s->parts.tail, (uint32_t)s->parts.n_tail, NULL};
}

static inline is_plan scene_plan(const scene *s, bool inject, uint64_t salt)
{
    return (is_plan){.segments = s->segments, .n_segments = s->n_facts + 2, .inject = inject, .salt = salt};
}

/* Tokens in front of the tail. */
static inline uint32_t scene_memory(const scene *s)
{
    uint32_t n = 0;
    for (size_t i = 0; i <= s->n_facts; i++) n += s->segments[i].n_tokens;
    return n;
}

static inline void scene_close(scene *s)
{
    free(s->header.bytes);
    for (size_t i = 0; i < s->n_facts; i++) {
        free((int32_t *)(uintptr_t)s->facts[i].tokens);
        free(s->facts[i].bytes);
    }
    free(s->parts.header);
    free(s->parts.tail);
}

/* ------------------------------------------------------------ runs */

/*
 * A run in a thread of its own.  Its first piece of text posts `first`; if `hold` is set, the engine's owner thread
 * then stands still until `go` is posted, so that a test can put requests in the queue in an order of its choice.
 */
typedef struct runner {
    is_engine *engine;
    is_run run;
    is_run_result result;
    is_error err;
    is_status status;
    pthread_t thread;
    sem_t first, go;
    bool hold;
    uint32_t calls;          /* of on_token */
    uint32_t end_after;      /* on_token answers false from this call on; 0: never */
    uint32_t calls_too_many; /* after it had answered false */
    char text[8192];         /* what came through on_token */
    size_t n_text;
    size_t pieces[256]; /* lengths of the pieces */
    void (*on_piece)(struct runner *r);
    void *user;
    const atomic_bool *cancel; /* or NULL */
} runner;

static inline bool runner_canceled(void *user)
{
    const runner *r = user;
    return r->cancel != NULL && atomic_load(r->cancel);
}

static inline bool runner_on_token(void *user, const char *piece, size_t n)
{
    runner *r = user;
    if (r->end_after != 0 && r->calls >= r->end_after) r->calls_too_many++;
    if (r->calls < 256) r->pieces[r->calls] = n;
    r->calls++;
    if (n < sizeof r->text - r->n_text) {
        memcpy(r->text + r->n_text, piece, n);
        r->n_text += n;
        r->text[r->n_text] = '\0';
    }
    if (r->calls == 1) {
        (void)sem_post(&r->first);
        if (r->hold) (void)sem_wait(&r->go);
    }
    if (r->on_piece != NULL) r->on_piece(r);
    return r->end_after == 0 || r->calls < r->end_after;
}

static inline void runner_init(runner *r, is_engine *engine, is_plan plan, uint32_t max_tokens)
{
    memset(r, 0, sizeof *r);
    r->engine = engine;
    r->run = (is_run){.plan = plan,
                      .sampling = fixture_greedy,
                      .max_tokens = max_tokens,
                      .on_token = runner_on_token,
                      .canceled = runner_canceled,
                      .user = r};
    assert_int_equal(sem_init(&r->first, 0, 0), 0);
    assert_int_equal(sem_init(&r->go, 0, 0), 0);
}

static inline void *runner_main(void *arg)
{
    runner *r = arg;
    r->status = r->engine->ops->run(r->engine, &r->run, &r->result, &r->err);
    (void)sem_post(&r->first); /* for runs that end without text */
    return NULL;
}

static inline void runner_start(runner *r)
{
    assert_int_equal(pthread_create(&r->thread, NULL, runner_main, r), 0);
}

static inline void runner_join(runner *r)
{
    assert_int_equal(pthread_join(r->thread, NULL), 0);
}

/* Runs in this thread and must succeed. */
static inline void runner_do(runner *r)
{
    (void)runner_main(r);
    if (r->status != IS_OK) fail_msg("%s", r->err.text);
}

static inline void runner_free(runner *r)
{
    free(r->result.text);
    (void)sem_destroy(&r->first);
    (void)sem_destroy(&r->go);
}

/* The answer of a plan, greedy; free(). */
static inline char *fixture_answer(is_engine *engine, is_plan plan, uint32_t max_tokens, is_run_stats *stats)
{
    static runner r; /* large, and tests run one after another */
    runner_init(&r, engine, plan, max_tokens);
    runner_do(&r);
    assert_string_equal(r.text, r.result.text);
    char *text = strdup(r.result.text);
    assert_non_null(text);
    if (stats != NULL) *stats = r.result.stats;
    runner_free(&r);
    return text;
}

/* Lets threads that were just started reach the engine's queue.  A slow one makes a test weaker, never wrong. */
static inline void fixture_settle(void)
{
    usleep(50000);
}

#endif
