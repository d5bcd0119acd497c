/*
 * inferscale bench recall: how much of what a question needs is among its best k facts, found by vectors, by words and
 * by both.  The data must say which turns an answer stands in and which a fact was drawn from, as LoCoMo's file and the
 * sample do.
 * the sample do.
 */
#include <stdlib.h>

#include "bench.h"

#define MAX_KS 16
#define WAYS   3

static const char *const ways[WAYS] = {"vectors", "words", "both"};

/* Sums over questions. */
typedef struct sums {
    double found; /* share of a question's turns */
    uint64_t all; /* questions with all of them */
    uint64_t n;
} sums;

typedef struct recall {
    is_bench b;
    uint32_t ks[MAX_KS];
    size_t n_ks;
    float *vector; /* the question's, [dim] */
    sums sums[WAYS][MAX_KS];
} recall;

static void add(recall *r, const is_bench_question *q, int way, const is_fact_list *facts)
{
    for (size_t i = 0; i < r->n_ks; i++) {
        const is_fact_list best = {.n = facts->n < r->ks[i] ? facts->n : r->ks[i], .facts = facts->facts};
        is_bench_evidence evidence = is_bench_find_evidence(&r->b, q, &best);
        if (evidence.n == 0) continue;
        sums *s = &r->sums[way][i];
        s->found += (double)evidence.found / evidence.n;
        s->all += evidence.found == evidence.n;
        s->n++;
    }
}

static is_status search(recall *r, const is_bench_question *q, int way, const is_scope *scope, int64_t number,
                        is_error *err)
{
    is_memory *m = r->b.memory;
    is_hit hits[IS_MAX_K];
    int64_t ids[IS_MAX_K];
    size_t n = 0;
    uint32_t most = 0;
    is_fact_list *facts = NULL;
    for (size_t i = 0; i < r->n_ks; i++)
        if (r->ks[i] > most) most = r->ks[i];
    is_status status = is_index_search(m->index, number, way == 0 ? NULL : q->question, way == 1 ? NULL : r->vector,
                                       most, NULL, hits, &n, err);
    for (size_t i = 0; i < n; i++) ids[i] = hits[i].id;
    if (status == IS_OK) status = is_get(m, scope, ids, n, &facts, err);
    if (status == IS_OK) add(r, q, way, facts);
    is_fact_list_free(facts);
    return status;
}

static is_status ask(recall *r, const is_bench_question *q, is_error *err)
{
    is_memory *m = r->b.memory;
    is_scope scope = r->b.cli.scope;
    scope.user = q->user;
    int64_t number;
    const char *text = q->question;
    is_status status = is_memory_scope(m, &scope, false, &number, err);
    if (status == IS_OK) status = is_embed_missing(m, number, err);
    if (status == IS_OK) status = is_embed(m->embedder, &text, 1, r->vector, err);
    for (int way = 0; status == IS_OK && way < WAYS; way++) status = search(r, q, way, &scope, number, err);
    return status;
}

static is_status ask_all(recall *r, is_error *err)
{
    is_bench *b = &r->b;
    is_cli_progress progress;
    is_status status = is_bench_need_embedding(b, err);
    if (status == IS_OK) status = is_bench_open(b, NULL, false, err);
    if (status == IS_OK) status = is_bench_import(b, err);
    if (status != IS_OK) return status;
    r->vector = malloc(is_embedder_dim(b->memory->embedder) * sizeof *r->vector);
    if (r->vector == NULL) is_cli_no_memory();
    is_cli_progress_begin(&progress, &b->cli, "searching", "questions");
    for (size_t i = 0; status == IS_OK && i < b->n; i++) {
        status = ask(r, &b->questions[i], err);
        if (!is_cli_progress_step(&progress, i + 1, b->n) && status == IS_OK)
            status = is_fail(err, IS_ECANCELED, "interrupted");
    }
    is_cli_progress_end(&progress);
    if (status == IS_OK && r->sums[0][0].n == 0)
        status = is_fail(err, IS_EINVAL, "the data does not say which turns the answers stand in; LoCoMo's file does");
    return status;
}

static json_t *report(const recall *r)
{
    json_t *list = json_array();
    if (!r->b.cli.json) printf("%-10s %5s %8s %14s %14s\n", "found by", "k", "n", "turns found", "all of them");
    for (int way = 0; way < WAYS; way++)
        for (size_t i = 0; i < r->n_ks; i++) {
            const sums *s = &r->sums[way][i];
            double found = s->found / (double)s->n, all = (double)s->all / (double)s->n;
            if (!r->b.cli.json)
                printf("%-10s %5u %8llu %12.1f %% %12.1f %%\n", ways[way], r->ks[i], (unsigned long long)s->n,
                       100 * found, 100 * all);
            is_cli_append(list, json_pack("{s:s, s:i, s:I, s:f, s:f}", "by", ways[way], "k", (int)r->ks[i], "questions",
                                          (json_int_t)s->n, "turns_found", found, "all_found", all));
        }
    return list;
}

int is_bench_recall(int argc, char **argv)
{
    recall r = {.b = {.n_questions = 100000}};
    is_error err = {0};
    const is_cli_option work = IS_BENCH_WORK(&r.b);
    if (!is_bench_parse(
            &r.b, "recall",
            "How much of what a question needs is among its best k facts: the turns that its answer stands\n"
            "in, found by vectors, by words and by both.",
            "inferscale bench recall --data locomo10.json\n"
            "inferscale bench recall --data locomo10.json -k 10 -k 50 --json",
            &work, 1, argc, argv))
        return r.b.cli.exit;
    if (!is_bench_numbers(&r.b, &r.b.ks, "5,10,20,50", r.ks, &r.n_ks, MAX_KS, IS_MAX_K)) return IS_EXIT_USAGE;
    is_cli_catch_interrupts();
    is_status status = is_bench_questions(&r.b, &err);
    if (status == IS_OK) status = is_bench_begin(&r.b, &err);
    if (status == IS_OK) status = ask_all(&r, &err);
    json_t *root = is_bench_context(&r.b);
    if (status == IS_OK) is_cli_set(root, "recall", report(&r));
    free(r.vector);
    return is_bench_end(&r.b, root, status, &err);
}
