/*
 * inferscale bench fidelity: how close injected memory comes to a full prefill of the same tokens.
 *
 * The gold answer's tokens stand behind the prompt, and the distributions for each of them are compared:
 * KL(full || injected), whether the most likely token is the same, and the gold tokens' negative log-likelihood
 * under both.  Nothing is sampled, so nothing is random.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

#define MAX_ANSWER 48 /* tokens of a gold answer that are scored */
#define MAX_LIST   8

/* One question's prompt with the gold answer behind it: the tail and all answer tokens but the last. */
typedef struct scored {
    is_prompt prompt;
    is_segment *segments;
    int32_t *tail;
    int32_t *answer;
    size_t n_answer;
} scored;

static void scored_free(is_memory *m, scored *s)
{
    is_prompt_free(m, &s->prompt);
    free(s->segments);
    free(s->tail);
    free(s->answer);
    memset(s, 0, sizeof *s);
}

static is_status scored_build(is_memory *m, int64_t scope, const is_fact_list *facts, const is_bench_question *q,
                              uint32_t fresh, scored *s, is_error *err)
{
    const is_message message = {"user", q->question};
    const is_prompt_options options = {
        .mode = IS_MODE_INJECT, .fresh = fresh, .reserve = MAX_ANSWER, .messages = &message, .n_messages = 1};
    memset(s, 0, sizeof *s);
    is_status status = is_prompt_build(m, scope, facts, &options, &s->prompt, err);
    if (status == IS_OK) status = m->engine->ops->tokenize(m->engine, q->answer, false, &s->answer, &s->n_answer, err);
    if (status == IS_OK && s->n_answer == 0) status = is_fail(err, IS_EINVAL, "an answer has no tokens");
    if (status != IS_OK) {
        scored_free(m, s);
        return status;
    }
    if (s->n_answer > MAX_ANSWER) s->n_answer = MAX_ANSWER;
    size_t n = s->prompt.plan.n_segments;
    const is_segment *tail = &s->prompt.plan.segments[n - 1];
    s->segments = malloc(n * sizeof *s->segments);
    s->tail = malloc((tail->n_tokens + s->n_answer) * sizeof *s->tail);
    if (s->segments == NULL || s->tail == NULL) is_cli_no_memory();
    memcpy(s->segments, s->prompt.plan.segments, n * sizeof *s->segments);
    memcpy(s->tail, tail->tokens, tail->n_tokens * sizeof *s->tail);
    memcpy(s->tail + tail->n_tokens, s->answer, (s->n_answer - 1) * sizeof *s->tail);
    s->segments[n - 1] = (is_segment){s->tail, tail->n_tokens + (uint32_t)s->n_answer - 1, NULL};
    return IS_OK;
}

static is_status score(is_memory *m, const scored *s, bool inject, float *logits, is_error *err)
{
    is_score job = {.plan = {.segments = s->segments, .n_segments = s->prompt.plan.n_segments, .inject = inject},
                    .n_last = (uint32_t)s->n_answer,
                    .logits = logits};
    is_run_stats stats;
    return m->engine->ops->score(m->engine, &job, &stats, err);
}

/* The question under all values of fresh; the full prefill of the first serves for all that have its token order. */
static is_status measure_question(is_bench *b, const is_bench_question *q, uint32_t k, const uint32_t *fresh,
                                  size_t n_fresh, is_bench_sums *out, is_error *err)
{
    is_memory *m = b->memory;
    is_scope scope = b->cli.scope;
    scope.user = q->user;
    int64_t number;
    is_fact_list *facts = NULL;
    double embed_ms, rank_ms;
    size_t n_vocab = m->engine->ops->vocab(m->engine);
    float *full = malloc(MAX_ANSWER * n_vocab * sizeof *full), *injected = malloc(MAX_ANSWER * n_vocab * sizeof *full);
    if (full == NULL || injected == NULL) is_cli_no_memory();
    is_status status = is_memory_scope(m, &scope, false, &number, err);
    if (status == IS_OK) status = is_rank(m, number, q->question, k, NULL, &facts, &embed_ms, &rank_ms, err);
    for (size_t i = 0; status == IS_OK && i < n_fresh; i++) {
        scored s;
        status = scored_build(m, number, facts, q, fresh[i], &s, err);
        /* With every fact ready the order is the same whatever is fresh. */
        if (status == IS_OK && i == 0) status = score(m, &s, false, full, err);
        if (status == IS_OK) status = score(m, &s, true, injected, err);
        if (status == IS_OK) is_bench_compare(full, injected, n_vocab, s.answer, s.n_answer, &out[i]);
        scored_free(m, &s);
    }
    is_fact_list_free(facts);
    free(full);
    free(injected);
    return status;
}

static void report(const is_bench *b, const char *recipe, uint32_t k, uint32_t fresh, const is_bench_sums *s,
                   json_t *list)
{
    double n = (double)s->tokens;
    if (!b->cli.json)
        printf("%-24s %5u %5u %6llu %9.4f %7.1f%% %9.3f %9.3f\n", recipe, fresh, k, (unsigned long long)s->questions,
               s->kl / n, 100 * s->top1 / n, s->nll_full / n, s->nll_inject / n);
    json_t *o = json_object();
    is_cli_set(o, "recipe", json_string(recipe));
    is_cli_set(o, "fresh", json_integer(fresh));
    is_cli_set(o, "k", json_integer(k));
    is_cli_set(o, "questions", json_integer((json_int_t)s->questions));
    is_cli_set(o, "tokens", json_integer((json_int_t)s->tokens));
    is_cli_set(o, "kl", json_real(s->kl / n));
    is_cli_set(o, "kl_by_question", json_real(s->mean_kl_of_questions / (double)s->questions));
    is_cli_set(o, "top1", json_real(s->top1 / n));
    is_cli_set(o, "nll_full", json_real(s->nll_full / n));
    is_cli_set(o, "nll_inject", json_real(s->nll_inject / n));
    is_cli_append(list, o);
}

static is_status measure_recipe(is_bench *b, const char *recipe, uint32_t k, const uint32_t *fresh, size_t n_fresh,
                                json_t *list, is_error *err)
{
    is_bench_sums s[MAX_LIST] = {{0}};
    is_cli_progress progress;
    is_status status = is_bench_open(b, recipe, false, err);
    if (status == IS_OK) status = is_bench_import(b, err);
    if (status == IS_OK) status = is_cli_encode(&b->cli, b->memory, NULL, NULL, err);
    is_cli_progress_begin(&progress, &b->cli, "comparing", "questions");
    for (size_t i = 0; status == IS_OK && i < b->n; i++) {
        status = measure_question(b, &b->questions[i], k, fresh, n_fresh, s, err);
        if (!is_cli_progress_step(&progress, i + 1, b->n) && status == IS_OK)
            status = is_fail(err, IS_ECANCELED, "interrupted");
    }
    is_cli_progress_end(&progress);
    for (size_t i = 0; status == IS_OK && i < n_fresh; i++) report(b, b->memory->recipe_name, k, fresh[i], &s[i], list);
    return status;
}

int is_bench_fidelity(int argc, char **argv)
{
    static const char *const defaults[] = {"isolated", "window:5", "primed:8"};
    is_bench b = {.n_questions = 50};
    is_error err = {0};
    uint32_t k[1] = {0}, fresh[MAX_LIST] = {0};
    size_t n_k, n_fresh;
    if (!is_bench_parse(
            &b, "fidelity",
            "How close injected memory comes to a full prefill of the same tokens: KL divergence and equal top-1 of\n"
            "the next-token distributions over the gold answers, and the answers' negative log-likelihood.",
            "inferscale bench fidelity --data locomo10.json\n"
            "inferscale bench fidelity --with-recipe primed:8 --fresh 0 --fresh 5 --json",
            argc, argv))
        return b.cli.exit;
    if (!is_bench_numbers(&b, &b.ks, "50", k, &n_k, 1, IS_MAX_K) ||
        !is_bench_numbers(&b, &b.fresh, "0", fresh, &n_fresh, MAX_LIST, IS_MAX_K))
        return IS_EXIT_USAGE;
    is_cli_catch_interrupts();
    json_t *list = json_array();
    is_status status = is_bench_questions(&b, &err);
    if (!b.cli.json && status == IS_OK)
        printf("%-24s %5s %5s %6s %9s %8s %9s %9s\n", "recipe", "fresh", "k", "n", "KL", "top-1", "nll full",
               "injected");
    const char *const *recipes = b.recipes.n > 0 ? b.recipes.items : defaults;
    size_t n = b.recipes.n > 0 ? b.recipes.n : sizeof defaults / sizeof defaults[0];
    for (size_t i = 0; status == IS_OK && i < n; i++)
        status = measure_recipe(&b, recipes[i], k[0], fresh, n_fresh, list, &err);
    json_t *root = is_bench_context(&b);
    is_cli_set(root, "fidelity", list);
    return is_bench_end(&b, root, status, &err);
}
