/*
 * inferscale bench ttft: the time to the first token over k, several ways in turn on one engine and the same tokens,
 * and with the whole conversation in place of the facts.  Beside them a plain memcpy of the bytes that are injected.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "memory/import.h"

#define MAX_KS      16
#define MAX_SAMPLES 4096
#define PAIRS       10 /* injected and resident, for each prefill */

/* Prefilled; the header already in the cache and the facts prefilled, which is what an engine's own prefix cache has of
 * a prompt whose facts were chosen for another question; injected; and the floor: all of the memory in the cache. */
typedef enum way { WAY_PREFILL, WAY_PREFIX, WAY_INJECT, WAY_RESIDENT, WAYS } way;

typedef struct samples {
    double v[MAX_SAMPLES];
    size_t n;
} samples;

typedef struct row {
    uint32_t k;
    double memory_tokens, tail_tokens, inject_bytes;
    double ttft[WAYS], ttft_p95[WAYS];
    double query[WAYS], query_p95[WAYS]; /* the search as well */
    double embed_rank, fetch, inject, copy;
} row;

static void put(samples *s, double v)
{
    if (s->n < MAX_SAMPLES) s->v[s->n++] = v;
}

/* What one k collects. */
typedef struct collected {
    samples ttft[WAYS], query[WAYS], embed_rank, fetch, inject, copy, memory_tokens, tail_tokens, bytes;
} collected;

/*
 * Runs the prompt to its first token; a sequence that holds the memory from a run with the same salt is used as it is
 * (0: none is).  *build_ms: laying the plan and pinning its chunks.
 */
static is_status run_once(is_memory *m, int64_t scope, const is_fact_list *facts, const char *question, way how,
                          uint64_t salt, is_run_stats *stats, double *build_ms, is_error *err)
{
    const is_message message = {.role = "user", .content = question};
    const is_prompt_options options = {.mode = how == WAY_PREFILL ? IS_MODE_PREFILL : IS_MODE_INJECT,
                                       .fresh = how == WAY_PREFIX ? IS_MAX_K : 0,
                                       .reserve = 64,
                                       .messages = &message,
                                       .n_messages = 1};
    is_prompt prompt;
    double begin = is_now_ms();
    is_status status = is_prompt_build(m, scope, facts, &options, &prompt, err);
    if (status != IS_OK) return status;
    *build_ms = is_now_ms() - begin;
    is_run run = {.plan = prompt.plan, .sampling = is_ask_options_default().sampling, .max_tokens = 1};
    run.plan.salt = salt;
    is_run_result result = {0};
    status = m->engine->ops->run(m->engine, &run, &result, err);
    if (status == IS_OK) *stats = result.stats;
    free(result.text);
    is_prompt_free(m, &prompt);
    return status;
}

/* A memcpy of n bytes between touched buffers, in ms. */
static double time_copy(uint8_t *to, const uint8_t *from, size_t n)
{
    double begin = is_now_ms();
    memcpy(to, from, n);
    double ms = is_now_ms() - begin;
    return to[n / 2] == from[n / 2] ? ms : NAN; /* the copy is used, so it is made */
}

static is_status measure_copy(uint64_t bytes, uint32_t repeat, samples *out, is_error *err)
{
    if (bytes == 0) return IS_OK;
    uint8_t *from = malloc(bytes), *to = malloc(bytes);
    is_status status = from == NULL || to == NULL ? is_fail(err, IS_ENOMEM, "no memory for a copy") : IS_OK;
    if (status == IS_OK) {
        memset(from, 1, bytes);
        memset(to, 2, bytes);
        for (uint32_t i = 0; i < repeat; i++) put(out, time_copy(to, from, bytes));
    }
    free(from);
    free(to);
    return status;
}

static void put_times(collected *c, way how, double ttft_ms, double search_ms)
{
    put(&c->ttft[how], ttft_ms);
    put(&c->query[how], ttft_ms + search_ms);
}

static is_status measure_question(is_bench *b, const is_bench_question *q, uint32_t k, collected *c, is_error *err)
{
    is_memory *m = b->memory;
    is_scope scope = b->cli.scope;
    scope.user = q->user;
    int64_t number;
    is_fact_list *facts = NULL;
    double embed_ms = 0, rank_ms = 0, build_ms;
    is_run_stats stats = {0};
    is_status status = is_memory_scope(m, &scope, false, &number, err);
    if (status == IS_OK) status = is_rank(m, number, q->question, k, NULL, &facts, &embed_ms, &rank_ms, err);
    for (uint32_t r = 0; status == IS_OK && r < b->repeat; r++) { /* retrieval with everything warm */
        is_fact_list *again = NULL;
        status = is_rank(m, number, q->question, k, NULL, &again, &embed_ms, &rank_ms, err);
        put(&c->embed_rank, embed_ms + rank_ms);
        is_fact_list_free(again);
    }
    double search_ms = embed_ms + rank_ms;
    for (uint32_t r = 0; status == IS_OK && r < b->repeat; r++) {
        for (way how = WAY_PREFILL; status == IS_OK && how <= WAY_PREFIX; how++) {
            status = run_once(m, number, facts, q->question, how, 0, &stats, &build_ms, err);
            if (status == IS_OK) put_times(c, how, build_ms + stats.ttft_ms, search_ms);
        }
        /* By turns, so that both find the processor's caches as the other left them. */
        for (uint32_t i = 0; status == IS_OK && i < PAIRS; i++) {
            uint64_t salt = ++b->salt;
            status = run_once(m, number, facts, q->question, WAY_INJECT, salt, &stats, &build_ms, err);
            if (status != IS_OK) break;
            put_times(c, WAY_INJECT, build_ms + stats.ttft_ms, search_ms);
            put(&c->fetch, build_ms);
            put(&c->inject, stats.inject_ms);
            put(&c->memory_tokens, stats.tokens_injected);
            put(&c->tail_tokens, stats.tokens_prefilled);
            put(&c->bytes, (double)stats.inject_bytes);
            status = run_once(m, number, facts, q->question, WAY_RESIDENT, salt, &stats, &build_ms, err);
            if (status == IS_OK && stats.tokens_resident > 0) put_times(c, WAY_RESIDENT, stats.ttft_ms, search_ms);
        }
        if (status == IS_OK) status = measure_copy((uint64_t)c->bytes.v[c->bytes.n - 1], PAIRS, &c->copy, err);
        if (status == IS_OK && is_cli_interrupted()) status = is_fail(err, IS_ECANCELED, "interrupted");
    }
    is_fact_list_free(facts);
    return status;
}

static is_status measure(is_bench *b, uint32_t k, row *out, is_cli_progress *progress, uint64_t *done, uint64_t total,
                         is_error *err)
{
    collected *c = calloc(1, sizeof *c);
    if (c == NULL) is_cli_no_memory();
    is_status status = IS_OK;
    for (size_t i = 0; status == IS_OK && i < b->n; i++) {
        status = measure_question(b, &b->questions[i], k, c, err);
        (void)is_cli_progress_step(progress, ++*done, total);
    }
    *out = (row){.k = k,
                 .memory_tokens = is_median(c->memory_tokens.v, c->memory_tokens.n),
                 .tail_tokens = is_median(c->tail_tokens.v, c->tail_tokens.n),
                 .inject_bytes = is_median(c->bytes.v, c->bytes.n),
                 .embed_rank = is_median(c->embed_rank.v, c->embed_rank.n),
                 .fetch = is_median(c->fetch.v, c->fetch.n),
                 .inject = is_median(c->inject.v, c->inject.n),
                 .copy = is_median(c->copy.v, c->copy.n)};
    for (int w = 0; w < WAYS; w++) {
        out->ttft[w] = is_median(c->ttft[w].v, c->ttft[w].n);
        out->ttft_p95[w] = is_percentile(c->ttft[w].v, c->ttft[w].n, 0.95);
        out->query[w] = is_median(c->query[w].v, c->query[w].n);
        out->query_p95[w] = is_percentile(c->query[w].v, c->query[w].n, 0.95);
    }
    free(c);
    return status;
}

/* The first injected request after a start, and the median of the others. */
static is_status measure_first(is_bench *b, uint32_t k, double *first_ms, is_error *err)
{
    is_status status = is_bench_reopen(b, true, err);
    is_scope scope = b->cli.scope;
    scope.user = b->questions[0].user;
    int64_t number;
    is_fact_list *facts = NULL;
    double embed_ms, rank_ms, build_ms = 0;
    is_run_stats stats = {0};
    if (status == IS_OK) status = is_memory_scope(b->memory, &scope, false, &number, err);
    if (status == IS_OK)
        status = is_rank(b->memory, number, b->questions[0].question, k, NULL, &facts, &embed_ms, &rank_ms, err);
    if (status == IS_OK)
        status = run_once(b->memory, number, facts, b->questions[0].question, WAY_INJECT, 0, &stats, &build_ms, err);
    *first_ms = build_ms + stats.ttft_ms;
    is_fact_list_free(facts);
    return status;
}

static void set_times(json_t *o, const char *name_of_way, const char *what, double p50, double p95)
{
    char name[64];
    (void)snprintf(name, sizeof name, "%s_%s_ms", name_of_way, what);
    is_cli_set(o, name, is_cli_json_number(p50));
    (void)snprintf(name, sizeof name, "%s_%s_p95_ms", name_of_way, what);
    is_cli_set(o, name, is_cli_json_number(p95));
}

static json_t *row_json(const row *r)
{
    static const char *const names[WAYS] = {"prefill", "prefix", "inject", "resident"};
    json_t *o = json_object();
    is_cli_set(o, "k", json_integer(r->k));
    is_cli_set(o, "memory_tokens", is_cli_json_number(r->memory_tokens));
    is_cli_set(o, "tail_tokens", is_cli_json_number(r->tail_tokens));
    for (int w = 0; w < WAYS; w++) set_times(o, names[w], "ttft", r->ttft[w], r->ttft_p95[w]);
    for (int w = 0; w < WAYS; w++) set_times(o, names[w], "query", r->query[w], r->query_p95[w]);
    is_cli_set(o, "speedup", is_cli_json_number(r->ttft[WAY_PREFILL] / r->ttft[WAY_INJECT]));
    is_cli_set(o, "overhead", is_cli_json_number(r->ttft[WAY_INJECT] / r->ttft[WAY_RESIDENT] - 1));
    is_cli_set(o, "retrieval_ms", is_cli_json_number(r->embed_rank));
    is_cli_set(o, "fetch_ms", is_cli_json_number(r->fetch));
    is_cli_set(o, "inject_ms", is_cli_json_number(r->inject));
    is_cli_set(o, "inject_bytes", is_cli_json_number(r->inject_bytes));
    is_cli_set(o, "inject_gb_s", is_cli_json_number(r->inject_bytes / (r->fetch + r->inject) * 1e-6));
    is_cli_set(o, "memcpy_gb_s", is_cli_json_number(r->inject_bytes / r->copy * 1e-6));
    is_cli_set(o, "inject_over_memcpy", is_cli_json_number((r->fetch + r->inject) / r->copy));
    return o;
}

/* ------------------------------------------------------------ the whole conversation */

typedef struct history {
    const char *user;
    char *text;
    size_t size;
    FILE *to;
} history;

static bool on_turn(void *user, const is_scope *scope, const is_turn *turn)
{
    history *h = user;
    if (scope->user == NULL || strcmp(scope->user, h->user) == 0)
        (void)fprintf(h->to, "%s: %s\n", turn->speaker, turn->text);
    return !is_cli_interrupted();
}

static bool on_fact(void *user, const is_scope *scope, const is_fact *fact)
{
    (void)user;
    (void)scope;
    (void)fact;
    return !is_cli_interrupted();
}

static is_status read_history(const is_bench *b, history *h, is_error *err)
{
    FILE *in = fopen(b->data != NULL ? b->data : IS_BENCH_SAMPLE, "re");
    h->to = open_memstream(&h->text, &h->size);
    if (h->to == NULL) is_cli_no_memory();
    const is_import_options options = {.scope = {.user = h->user}};
    const is_import_callbacks callbacks = {on_turn, on_fact, NULL, h};
    is_import_counts counts;
    is_status status = in == NULL ? is_fail(err, IS_EIO, "cannot read the data again")
                                  : is_import_read(in, &options, &callbacks, &counts, err);
    if (in != NULL) (void)fclose(in);
    if (fclose(h->to) != 0) is_cli_no_memory();
    return status;
}

/* The first question behind all that was said, as far back as the context has room for it. */
static is_status measure_history(is_bench *b, json_t *root, is_error *err)
{
    is_engine *engine = b->memory->engine;
    history h = {.user = b->questions[0].user};
    int32_t *tokens = NULL, *question = NULL;
    size_t n = 0, n_question = 0, room;
    is_run_result result = {0};
    is_status status = read_history(b, &h, err);
    if (status == IS_OK) status = engine->ops->tokenize(engine, h.text, false, &tokens, &n, err);
    if (status == IS_OK)
        status = engine->ops->tokenize(engine, b->questions[0].question, false, &question, &n_question, err);
    if (status == IS_OK) {
        room = engine->ops->context(engine) - n_question - 64;
        const is_segment segments[] = {{n > room ? tokens + (n - room) : tokens, (uint32_t)(n > room ? room : n), NULL},
                                       {question, (uint32_t)n_question, NULL}};
        const is_run run = {.plan = {.segments = segments, .n_segments = 2},
                            .sampling = is_ask_options_default().sampling,
                            .max_tokens = 1};
        status = engine->ops->run(engine, &run, &result, err);
        is_cli_set(root, "history",
                   json_pack("{s:I, s:I, s:f}", "conversation_tokens", (json_int_t)n, "prompt_tokens",
                             (json_int_t)result.stats.tokens_prefilled, "ttft_ms", result.stats.ttft_ms));
        if (status == IS_OK && !b->cli.json)
            printf("With the conversation in place of the facts (%u of its %zu tokens fit): %s.\n",
                   result.stats.tokens_prefilled, n, is_cli_duration(result.stats.ttft_ms).s);
    }
    free(result.text);
    free(tokens);
    free(question);
    free(h.text);
    return status;
}

static void print_rows(const row *rows, size_t n, double first_ms)
{
    printf("%5s %7s %5s %11s %11s %10s %10s %8s %9s %9s %10s\n", "k", "memory", "tail", "prefilled", "prefix hit",
           "injected", "resident", "speedup", "overhead", "inject", "/ memcpy");
    printf("%5s %7s %5s %11s %11s %10s %10s %8s %9s %9s %10s\n", "", "tokens", "", "ms", "ms", "ms", "ms", "", "", "ms",
           "");
    for (size_t i = 0; i < n; i++) {
        const row *r = &rows[i];
        printf("%5u %7.0f %5.0f %11.1f %11.1f %10.1f %10.1f %7.1fx %8.1f%% %9.2f %9.2fx\n", r->k, r->memory_tokens,
               r->tail_tokens, r->ttft[WAY_PREFILL], r->ttft[WAY_PREFIX], r->ttft[WAY_INJECT], r->ttft[WAY_RESIDENT],
               r->ttft[WAY_PREFILL] / r->ttft[WAY_INJECT], 100 * (r->ttft[WAY_INJECT] / r->ttft[WAY_RESIDENT] - 1),
               r->fetch + r->inject, (r->fetch + r->inject) / r->copy);
    }
    printf("\nFirst injected request after a start: %.1f ms.\n", first_ms);
    if (n > 1) {
        const row *a = &rows[0], *z = &rows[n - 1];
        double facts = (double)z->k - a->k;
        printf("Each fact adds %.3f ms to the injected TTFT: %.3f ms of it injection, the rest the engine's attention\n"
               "over the memory; to the prefilled TTFT it adds %.1f ms.\n",
               (z->ttft[WAY_INJECT] - a->ttft[WAY_INJECT]) / facts,
               (z->fetch + z->inject - a->fetch - a->inject) / facts,
               (z->ttft[WAY_PREFILL] - a->ttft[WAY_PREFILL]) / facts);
    }
}

int is_bench_ttft(int argc, char **argv)
{
    is_bench b = {.repeat = 3, .n_questions = 3};
    is_error err = {0};
    uint32_t ks[MAX_KS];
    row rows[MAX_KS];
    size_t n_ks, n = 0;
    double first_ms = NAN;
    bool whole = false;
    const is_cli_option own[] = {
        IS_BENCH_WORK(&b),
        {"history", 0, IS_CLI_FLAG, &whole, 0, 0, NULL, "also with the whole conversation in place of the facts"},
    };
    if (!is_bench_parse(
            &b, "ttft",
            "Time to first token: the same prompt prefilled, injected, and with its memory already in the cache.",
            "inferscale bench ttft\ninferscale bench ttft --data locomo10.json -k 50 --json", own,
            sizeof own / sizeof own[0], argc, argv))
        return b.cli.exit;
    if (!is_bench_numbers(&b, &b.ks, "0,5,10,20,50,100", ks, &n_ks, MAX_KS, IS_MAX_K)) return IS_EXIT_USAGE;
    is_cli_catch_interrupts();
    is_status status = is_bench_questions(&b, &err);
    if (status == IS_OK) status = is_bench_begin(&b, &err);
    if (status == IS_OK) status = is_bench_open(&b, NULL, false, &err);
    if (status == IS_OK) status = is_bench_import(&b, &err);
    if (status == IS_OK) status = is_cli_encode(&b.cli, b.memory, NULL, NULL, &err);
    if (status == IS_OK) status = measure_first(&b, ks[n_ks - 1] > 50 ? 50 : ks[n_ks - 1], &first_ms, &err);
    is_cli_progress progress;
    is_cli_progress_begin(&progress, &b.cli, "measuring", "questions");
    uint64_t done = 0;
    for (; status == IS_OK && n < n_ks; n++)
        status = measure(&b, ks[n], &rows[n], &progress, &done, (uint64_t)n_ks * b.n, &err);
    is_cli_progress_end(&progress);
    json_t *root = is_bench_context(&b);
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) is_cli_append(list, row_json(&rows[i]));
    is_cli_set(root, "ttft", list);
    is_cli_set(root, "first_inject_ttft_ms", is_cli_json_number(first_ms));
    if (status == IS_OK && !b.cli.json) print_rows(rows, n, first_ms);
    if (status == IS_OK && whole) status = measure_history(&b, root, &err);
    return is_bench_end(&b, root, status, &err);
}
