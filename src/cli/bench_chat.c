/*
 * inferscale bench chat: a conversation that goes on, the facts changing with every question.
 *
 * Each turn is asked three ways with the same tokens: everything prefilled; facts injected and the earlier turns
 * prefilled; both injected, which gives the answer that the conversation goes on with.  Over that answer's tokens the
 * next-token distributions of the last two are compared with the first's.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

#define MAX_TURNS  200
#define MAX_ANSWER 40 /* tokens */

typedef struct turn {
    uint32_t prompt, history; /* tokens of the prompt; of them from earlier turns' chunks */
    double prefill_ms, recompute_ms, inject_ms;
    is_bench_sums recompute, inject;
} turn;

typedef struct chat {
    is_bench *b;
    is_scope scope;
    is_message messages[2 * MAX_TURNS];
    size_t n;
    char *answers[MAX_TURNS];
    float *full, *other; /* logits [MAX_ANSWER][n_vocab] */
} chat;

/* Asks with everything said so far as history. */
static is_status ask(const chat *c, const char *question, uint32_t k, is_mode mode, bool recompute, uint32_t most,
                     is_answer **out, is_error *err)
{
    is_ask_options o = is_ask_options_default();
    o.k = k;
    o.mode = mode;
    o.recompute_history = recompute;
    o.history = c->messages;
    o.n_history = c->n;
    o.max_tokens = most;
    return is_ask(c->b->memory, &c->scope, question, &o, out, err);
}

static is_status time_to_first(const chat *c, const char *question, uint32_t k, is_mode mode, double *ms, is_error *err)
{
    is_answer *answer = NULL;
    is_status status = ask(c, question, k, mode, true, 1, &answer, err);
    if (status == IS_OK) *ms = answer->timing.ttft_ms;
    is_answer_free(answer);
    return status;
}

/* ------------------------------------------------------------ fidelity */

/* The logits over an answer that stands behind the prompt. */
static is_status score(const chat *c, is_prompt *prompt, bool inject, const int32_t *answer, size_t n, float *logits,
                       is_error *err)
{
    is_memory *m = c->b->memory;
    size_t last = prompt->plan.n_segments - 1;
    is_segment *segments = malloc((last + 1) * sizeof *segments);
    const is_segment *tail = &prompt->plan.segments[last];
    int32_t *tokens = malloc((tail->n_tokens + n) * sizeof *tokens);
    if (segments == NULL || tokens == NULL) is_cli_no_memory();
    memcpy(segments, prompt->plan.segments, last * sizeof *segments);
    memcpy(tokens, tail->tokens, tail->n_tokens * sizeof *tokens);
    memcpy(tokens + tail->n_tokens, answer, (n - 1) * sizeof *tokens);
    segments[last] = (is_segment){tokens, tail->n_tokens + (uint32_t)n - 1, NULL};
    is_score job = {.plan = {.segments = segments, .n_segments = last + 1, .inject = inject},
                    .n_last = (uint32_t)n,
                    .logits = logits};
    is_run_stats stats;
    is_status status = m->engine->ops->score(m->engine, &job, &stats, err);
    free(segments);
    free(tokens);
    return status;
}

static is_status compare(const chat *c, const char *question, const is_fact_list *facts, int64_t number,
                         const char *text, turn *t, is_error *err)
{
    is_memory *m = c->b->memory;
    const uint64_t key = is_scope_key(&c->scope);
    size_t n = 0;
    int32_t *answer = NULL;
    is_message *messages = malloc((c->n + 1) * sizeof *messages);
    if (messages == NULL) is_cli_no_memory();
    memcpy(messages, c->messages, c->n * sizeof *messages);
    messages[c->n] = (is_message){"user", question, NULL, NULL};
    is_status status = m->engine->ops->tokenize(m->engine, text, false, &answer, &n, err);
    if (n > MAX_ANSWER) n = MAX_ANSWER;
    for (int with_history = 0; status == IS_OK && n > 0 && with_history < 2; with_history++) {
        is_prompt prompt;
        const is_prompt_options options = {.mode = IS_MODE_INJECT,
                                           .reserve = MAX_ANSWER,
                                           .messages = messages,
                                           .n_messages = c->n + 1,
                                           .history = with_history ? &key : NULL};
        status = is_prompt_build(m, number, facts, &options, &prompt, err);
        if (status != IS_OK) break;
        if (!with_history) status = score(c, &prompt, false, answer, n, c->full, err);
        if (status == IS_OK) status = score(c, &prompt, true, answer, n, c->other, err);
        if (status == IS_OK)
            is_bench_compare(c->full, c->other, m->engine->ops->vocab(m->engine), answer, n,
                             with_history ? &t->inject : &t->recompute);
        is_prompt_free(m, &prompt);
    }
    free(messages);
    free(answer);
    return status;
}

/* ------------------------------------------------------------ turns */

static is_status take_turn(chat *c, const char *question, uint32_t k, turn *t, is_error *err)
{
    is_answer *answer = NULL;
    int64_t number = 0;
    is_fact_list *facts = NULL;
    double embed_ms, rank_ms;
    is_status status = is_memory_scope(c->b->memory, &c->scope, false, &number, err);
    if (status == IS_OK) status = is_rank(c->b->memory, number, question, k, NULL, &facts, &embed_ms, &rank_ms, err);
    if (status == IS_OK) status = time_to_first(c, question, k, IS_MODE_PREFILL, &t->prefill_ms, err);
    if (status == IS_OK) status = time_to_first(c, question, k, IS_MODE_INJECT, &t->recompute_ms, err);
    if (status == IS_OK) status = ask(c, question, k, IS_MODE_INJECT, false, MAX_ANSWER, &answer, err);
    if (status == IS_OK) {
        t->prompt = answer->tokens_injected + answer->tokens_prefilled;
        t->history = answer->tokens_history;
        t->inject_ms = answer->timing.ttft_ms;
        status = compare(c, question, facts, number, answer->text, t, err);
    }
    if (status == IS_OK) {
        c->answers[c->n / 2] = strdup(answer->text);
        if (c->answers[c->n / 2] == NULL) is_cli_no_memory();
        c->messages[c->n] = (is_message){"user", question, NULL, NULL};
        c->messages[c->n + 1] = (is_message){"assistant", c->answers[c->n / 2], NULL, NULL};
        c->n += 2;
    }
    is_answer_free(answer);
    is_fact_list_free(facts);
    return status;
}

static double mean_kl(const is_bench_sums *s)
{
    return s->tokens == 0 ? NAN : s->kl / (double)s->tokens;
}

static void report(const is_bench *b, uint32_t i, const turn *t, json_t *list)
{
    if (!b->cli.json)
        printf("%5u %8u %8u %11.1f %11.1f %10.1f %12.4f %10.4f\n", i + 1, t->prompt, t->history, t->prefill_ms,
               t->recompute_ms, t->inject_ms, mean_kl(&t->recompute), mean_kl(&t->inject));
    json_t *o = json_object();
    is_cli_set(o, "turn", json_integer(i + 1));
    is_cli_set(o, "prompt_tokens", json_integer(t->prompt));
    is_cli_set(o, "history_tokens", json_integer(t->history));
    is_cli_set(o, "prefill_ttft_ms", json_real(t->prefill_ms));
    is_cli_set(o, "recompute_ttft_ms", json_real(t->recompute_ms));
    is_cli_set(o, "inject_ttft_ms", json_real(t->inject_ms));
    is_cli_set(o, "recompute_kl", is_cli_json_number(mean_kl(&t->recompute)));
    is_cli_set(o, "inject_kl", is_cli_json_number(mean_kl(&t->inject)));
    is_cli_append(list, o);
}

static is_status run(is_bench *b, uint32_t k, json_t *list, is_error *err)
{
    chat *c = calloc(1, sizeof *c);
    if (c == NULL) is_cli_no_memory();
    size_t n_vocab = b->memory->engine->ops->vocab(b->memory->engine);
    c->b = b;
    c->scope = b->cli.scope;
    c->scope.user = b->questions[0].user;
    c->full = malloc(MAX_ANSWER * n_vocab * sizeof *c->full);
    c->other = malloc(MAX_ANSWER * n_vocab * sizeof *c->other);
    if (c->full == NULL || c->other == NULL) is_cli_no_memory();
    is_status status = IS_OK;
    is_bench_sums recompute = {0}, inject = {0};
    if (!b->cli.json)
        printf("%5s %8s %8s %11s %11s %10s %12s %10s\n%5s %8s %8s %11s %11s %10s %12s %10s\n", "turn", "prompt",
               "history", "prefilled", "history", "injected", "KL, history", "KL", "", "tokens", "injected", "ms",
               "prefilled", "ms", "prefilled", "injected");
    for (uint32_t i = 0, asked = 0; status == IS_OK && i < b->repeat && i < MAX_TURNS; i++) {
        const is_bench_question *q = &b->questions[asked];
        do asked = (asked + 1) % (uint32_t)b->n;
        while (strcmp(b->questions[asked].user, c->scope.user) != 0);
        turn t = {0};
        status = take_turn(c, q->question, k, &t, err);
        if (status == IS_OK) report(b, i, &t, list);
        (void)fflush(stdout);
        recompute.kl += t.recompute.kl;
        recompute.tokens += t.recompute.tokens;
        inject.kl += t.inject.kl;
        inject.tokens += t.inject.tokens;
        if (status == IS_OK && is_cli_interrupted()) status = is_fail(err, IS_ECANCELED, "interrupted");
    }
    if (!b->cli.json && status == IS_OK)
        printf("\nMean KL over the answers' tokens: %.4f with the earlier turns prefilled, %.4f with them injected.\n",
               mean_kl(&recompute), mean_kl(&inject));
    for (size_t i = 0; i < MAX_TURNS; i++) free(c->answers[i]);
    free(c->full);
    free(c->other);
    free(c);
    return status;
}

int is_bench_chat(int argc, char **argv)
{
    is_bench b = {.n_questions = MAX_TURNS, .repeat = 20};
    is_error err = {0};
    const is_cli_option work = IS_BENCH_WORK(&b);
    uint32_t k[1] = {0};
    size_t n_k;
    if (!is_bench_parse(&b, "chat",
                        "A conversation of --repeat turns (default: 20) in which every question brings other facts:\n"
                        "time to first token with all prefilled, with the facts injected and the earlier turns\n"
                        "prefilled, and with both injected; and how far the injected ones are from a full prefill.",
                        "inferscale bench chat\ninferscale bench chat --data locomo10.json --repeat 10 --json", &work,
                        1, argc, argv))
        return b.cli.exit;
    if (!is_bench_numbers(&b, &b.ks, "50", k, &n_k, 1, IS_MAX_K)) return IS_EXIT_USAGE;
    is_cli_catch_interrupts();
    json_t *list = json_array();
    is_status status = is_bench_questions(&b, &err);
    if (status == IS_OK) status = is_bench_begin(&b, &err);
    if (status == IS_OK) status = is_bench_open(&b, NULL, false, &err);
    if (status == IS_OK) status = is_bench_import(&b, &err);
    if (status == IS_OK) status = is_cli_encode(&b.cli, b.memory, NULL, NULL, &err);
    if (status == IS_OK) status = run(&b, k[0], list, &err);
    json_t *root = is_bench_context(&b);
    is_cli_set(root, "chat", list);
    return is_bench_end(&b, root, status, &err);
}
