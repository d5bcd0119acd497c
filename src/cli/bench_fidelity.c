/*
 * inferscale bench fidelity: how close injected memory comes to a full prefill of the same tokens.
 *
 * The gold answer's tokens stand behind the prompt, and the distributions for each of them are compared:
 * KL(full || injected), whether the most likely token is the same, and the gold tokens' negative log-likelihood
 * under both.  Nothing is sampled, so nothing is random.
 */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "eval/score.h"

#define MAX_ANSWER 48 /* tokens of a gold answer that are scored */
#define MAX_LIST   8

/* Where the evidence stands: the best fact that was drawn from it is among the best 5, 20 or all, or in none. */
static const struct {
    const char *name;
    uint32_t most;
} places[] = {{"1 to 5", 5}, {"6 to 20", 20}, {"later", UINT32_MAX}, {"not there", 0}};
#define PLACES (sizeof places / sizeof places[0])

static const char *const orders[] = {"best-last", "best-first", "age"}; /* by is_order */

/* One question's prompt with the gold answer behind it: the tail and all answer tokens but the last. */
typedef struct scored {
    is_prompt prompt;
    is_segment *segments;
    int32_t *tail;
    int32_t *answer;
    size_t n_answer;
} scored;

typedef struct measurement {
    is_bench *b;
    uint32_t k;
    is_order order;
    const uint32_t *fresh; /* [n_fresh] */
    size_t n_fresh;
    float *full, *injected; /* logits [MAX_ANSWER][n_vocab] */
} measurement;

static void scored_free(is_memory *m, scored *s)
{
    is_prompt_free(m, &s->prompt);
    free(s->segments);
    free(s->tail);
    free(s->answer);
    memset(s, 0, sizeof *s);
}

static is_status scored_build(const measurement *t, int64_t scope, const is_fact_list *facts,
                              const is_bench_question *q, uint32_t fresh, scored *s, is_error *err)
{
    is_memory *m = t->b->memory;
    const is_message message = {.role = "user", .content = q->question};
    const is_prompt_options options = {.mode = IS_MODE_INJECT,
                                       .fresh = fresh,
                                       .order = t->order,
                                       .reserve = MAX_ANSWER,
                                       .messages = &message,
                                       .n_messages = 1};
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

static is_status compare(measurement *t, const scored *s, is_bench_sums *out, is_error *err)
{
    is_engine *engine = t->b->memory->engine;
    const is_plan plan = {.segments = s->segments, .n_segments = s->prompt.plan.n_segments, .inject = true};
    is_score job = {.plan = plan, .n_last = (uint32_t)s->n_answer, .logits = t->injected};
    is_run_stats stats;
    is_status status = is_bench_reference(t->b, &plan, job.n_last, t->full, err);
    if (status == IS_OK) status = engine->ops->score(engine, &job, &stats, err);
    if (status == IS_OK)
        is_bench_compare(t->full, t->injected, engine->ops->vocab(engine), s->answer, s->n_answer, out);
    return status;
}

static char *key_of(const measurement *t, const is_bench_question *q, uint32_t fresh)
{
    return is_bench_key(t->b, "fidelity", t->b->memory->recipe_name, "k=%u fresh=%u %s %s", t->k, fresh,
                        orders[t->order], q->id);
}

/* One question under one value of fresh, which is noted. */
static is_status measure_one(measurement *t, const is_bench_question *q, int64_t scope, const is_fact_list *facts,
                             uint32_t fresh, is_error *err)
{
    scored s;
    is_bench_sums sums = {0};
    is_memory *m = t->b->memory;
    is_status status = scored_build(t, scope, facts, q, fresh, &s, err);
    if (status != IS_OK) return status;
    status = compare(t, &s, &sums, err);
    scored_free(m, &s);
    if (status != IS_OK) return status;
    is_bench_evidence evidence = is_bench_find_evidence(t->b, q, facts);
    char *key = key_of(t, q, fresh);
    status = is_bench_note(t->b, key,
                           json_pack("{s:I, s:f, s:f, s:f, s:f, s:i, s:i}", "tokens", (json_int_t)sums.tokens, "kl",
                                     sums.kl, "top1", sums.top1, "nll_full", sums.nll_full, "nll_inject",
                                     sums.nll_inject, "evidence", (int)evidence.n, "place", (int)evidence.best),
                           err);
    free(key);
    return status;
}

static is_status measure_question(measurement *t, const is_bench_question *q, is_error *err)
{
    is_scope scope = t->b->cli.scope;
    scope.user = q->user;
    int64_t number = 0;
    is_fact_list *facts = NULL;
    double embed_ms, rank_ms;
    is_status status = IS_OK;
    for (size_t i = 0; status == IS_OK && i < t->n_fresh; i++) {
        char *key = key_of(t, q, t->fresh[i]);
        bool known = is_bench_noted(t->b, key) != NULL;
        free(key);
        if (known) continue;
        if (facts == NULL) {
            status = is_memory_scope(t->b->memory, &scope, false, &number, err);
            if (status == IS_OK)
                status = is_rank(t->b->memory, number, q->question, t->k, NULL, &facts, &embed_ms, &rank_ms, err);
        }
        if (status == IS_OK) status = measure_one(t, q, number, facts, t->fresh[i], err);
    }
    is_fact_list_free(facts);
    return status;
}

/* ------------------------------------------------------------ results */

static bool in_place(const json_t *note, size_t place)
{
    if (is_cli_number(note, "evidence") <= 0) return false; /* the data does not tell */
    uint32_t best = (uint32_t)is_cli_number(note, "place");
    if (best == 0) return places[place].most == 0;
    return best <= places[place].most && (place == 0 || best > places[place - 1].most);
}

/* Of the questions whose evidence stands in this place; of all for PLACES. */
static json_t *summary(const measurement *t, uint32_t fresh, size_t place)
{
    is_bench_sums s = {0};
    size_t n = 0;
    double *kl = calloc(t->b->n + 1, sizeof *kl);
    is_eval_interval mean;
    if (kl == NULL) is_cli_no_memory();
    for (size_t i = 0; i < t->b->n; i++) {
        char *key = key_of(t, &t->b->questions[i], fresh);
        const json_t *note = is_bench_noted(t->b, key);
        free(key);
        if (note == NULL || (place < PLACES && !in_place(note, place))) continue;
        kl[n++] = is_cli_number(note, "kl") / is_cli_number(note, "tokens");
        s.kl += is_cli_number(note, "kl");
        s.top1 += is_cli_number(note, "top1");
        s.nll_full += is_cli_number(note, "nll_full");
        s.nll_inject += is_cli_number(note, "nll_inject");
        s.tokens += (uint64_t)is_cli_number(note, "tokens");
    }
    if (is_eval_mean_interval(kl, n, &mean, NULL) != IS_OK) is_cli_no_memory();
    free(kl);
    double tokens = (double)s.tokens;
    return n == 0 ? NULL
                  : json_pack("{s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "questions", (json_int_t)n, "tokens",
                              (json_int_t)s.tokens, "kl", s.kl / tokens, "kl_by_question", mean.mean, "kl_low",
                              mean.low, "kl_high", mean.high, "top1", s.top1 / tokens, "nll_full", s.nll_full / tokens,
                              "nll_inject", s.nll_inject / tokens);
}

static void report(const measurement *t, uint32_t fresh, json_t *list)
{
    json_t *o = summary(t, fresh, PLACES), *by = json_array();
    if (!t->b->cli.json)
        printf("%-24s %5u %5u %6.0f %9.4f %7.1f%% %9.3f %9.3f %9.4f  (%.4f to %.4f)\n", t->b->memory->recipe_name,
               fresh, t->k, is_cli_number(o, "questions"), is_cli_number(o, "kl"), 100 * is_cli_number(o, "top1"),
               is_cli_number(o, "nll_full"), is_cli_number(o, "nll_inject"), is_cli_number(o, "kl_by_question"),
               is_cli_number(o, "kl_low"), is_cli_number(o, "kl_high"));
    (void)fflush(stdout);
    is_cli_set(o, "recipe", json_string(t->b->memory->recipe_name));
    is_cli_set(o, "fresh", json_integer(fresh));
    is_cli_set(o, "k", json_integer(t->k));
    for (size_t i = 0; i < PLACES; i++) {
        json_t *part = summary(t, fresh, i);
        if (part == NULL) continue;
        is_cli_set(part, "place", json_string(places[i].name));
        is_cli_append(by, part);
    }
    is_cli_set(o, "by_place_of_evidence", by);
    is_cli_append(list, o);
}

/* A recipe that was measured whole needs no chunks any more. */
static bool all_noted(const measurement *t)
{
    for (size_t i = 0; i < t->b->n; i++)
        for (size_t j = 0; j < t->n_fresh; j++) {
            char *key = key_of(t, &t->b->questions[i], t->fresh[j]);
            bool noted = is_bench_noted(t->b, key) != NULL;
            free(key);
            if (!noted) return false;
        }
    return true;
}

static is_status measure_recipe(measurement *t, const char *recipe, json_t *list, is_error *err)
{
    is_bench *b = t->b;
    is_cli_progress progress;
    is_status status = is_bench_open(b, recipe, false, err);
    bool done = status == IS_OK && all_noted(t);
    if (status == IS_OK && !done) status = is_bench_import(b, err);
    if (status == IS_OK && !done) status = is_cli_encode(&b->cli, b->memory, NULL, NULL, err);
    if (status != IS_OK) return status;
    size_t n_vocab = b->memory->engine->ops->vocab(b->memory->engine);
    t->full = malloc(MAX_ANSWER * n_vocab * sizeof *t->full);
    t->injected = malloc(MAX_ANSWER * n_vocab * sizeof *t->injected);
    if (t->full == NULL || t->injected == NULL) is_cli_no_memory();
    is_cli_progress_begin(&progress, &b->cli, "comparing", "questions");
    for (size_t i = 0; status == IS_OK && i < b->n; i++) {
        status = measure_question(t, &b->questions[i], err);
        if (!is_cli_progress_step(&progress, i + 1, b->n) && status == IS_OK)
            status = is_fail(err, IS_ECANCELED, "interrupted");
    }
    is_cli_progress_end(&progress);
    for (size_t i = 0; status == IS_OK && i < t->n_fresh; i++) report(t, t->fresh[i], list);
    free(t->full);
    free(t->injected);
    return status;
}

static bool take_order(is_bench *b, const char *name, is_order *out)
{
    const size_t n = sizeof orders / sizeof orders[0];
    size_t i = 0;
    while (i < n && strcmp(orders[i], name) != 0) i++;
    *out = (is_order)i;
    if (i == n) (void)is_cli_usage(&b->cli, "--order %s: there are best-last, best-first and age", name);
    return i < n;
}

int is_bench_fidelity(int argc, char **argv)
{
    static const char *const defaults[] = {"isolated", "window:5", IS_RECIPE_DEFAULT};
    is_bench b = {.n_questions = 50};
    is_error err = {0};
    uint32_t k[1] = {0}, fresh[MAX_LIST] = {0};
    size_t n_k, n_fresh;
    measurement t = {.b = &b};
    const char *order = orders[IS_ORDER_BEST_LAST];
    const is_cli_option own[] = {
        IS_BENCH_WORK(&b),
        IS_BENCH_UNDATED(&b),
        {"order", 0, IS_CLI_TEXT, &order, 0, 0, "ORDER",
         "of the facts: best-last, as everywhere, best-first, or age, the oldest first"},
    };
    if (!is_bench_parse(
            &b, "fidelity",
            "How close injected memory comes to a full prefill of the same tokens: KL divergence and equal top-1 of\n"
            "the next-token distributions over the gold answers, and the answers' negative log-likelihood.  The KL\n"
            "by question has a 95 % interval behind it.",
            "inferscale bench fidelity --data locomo10.json\n"
            "inferscale bench fidelity --with-recipe primed:8 --fresh 0 --fresh 5 --json",
            own, sizeof own / sizeof own[0], argc, argv))
        return b.cli.exit;
    if (!is_bench_numbers(&b, &b.ks, "50", k, &n_k, 1, IS_MAX_K) ||
        !is_bench_numbers(&b, &b.fresh, "0", fresh, &n_fresh, MAX_LIST, IS_MAX_K))
        return IS_EXIT_USAGE;
    if (!take_order(&b, order, &t.order)) return IS_EXIT_USAGE;
    is_cli_catch_interrupts();
    json_t *list = json_array();
    t.k = k[0];
    t.fresh = fresh;
    t.n_fresh = n_fresh;
    is_status status = is_bench_questions(&b, &err);
    if (status == IS_OK) status = is_bench_begin(&b, &err);
    if (!b.cli.json && status == IS_OK)
        printf("%-24s %5s %5s %6s %9s %8s %9s %9s %9s\n", "recipe", "fresh", "k", "n", "KL", "top-1", "nll full",
               "injected", "KL by question");
    const char *const *recipes = b.recipes.n > 0 ? b.recipes.items : defaults;
    size_t n = b.recipes.n > 0 ? b.recipes.n : sizeof defaults / sizeof defaults[0];
    for (size_t i = 0; status == IS_OK && i < n; i++) status = measure_recipe(&t, recipes[i], list, &err);
    json_t *root = is_bench_context(&b);
    is_cli_set(root, "order", json_string(orders[t.order]));
    is_cli_set(root, "dates", json_boolean(!b.undated));
    is_cli_set(root, "fidelity", list);
    return is_bench_end(&b, root, status, &err);
}
