/*
 * inferscale bench retrieve: search in one scope of many facts, the question's embedding included.
 *
 * The facts are made here: texts of the data's words drawn by Zipf's law, so that BM25 has common and rare words as in
 * real text, and random unit vectors, since an exact scan costs the same whatever the vectors are.
 */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

#define FACTS     100000
#define STEP      1000
#define MAX_WORDS 8000
#define QUESTIONS 200

static uint64_t next_random(uint64_t *x) /* xorshift64*, Vigna 2016 */
{
    *x ^= *x >> 12;
    *x ^= *x << 25;
    *x ^= *x >> 27;
    return *x * 2685821657736338717u;
}

static double unit(uint64_t *x)
{
    return (double)(next_random(x) >> 11) * 0x1p-53;
}

/* The words that texts are made of: those of the data, each once, in the order in which they first stand there. */
typedef struct vocabulary {
    char (*words)[24];
    size_t n;
} vocabulary;

static bool has_word(const vocabulary *v, const char *word)
{
    for (size_t i = 0; i < v->n; i++)
        if (strcmp(v->words[i], word) == 0) return true;
    return false;
}

static is_status read_vocabulary(const char *path, vocabulary *v, is_error *err)
{
    FILE *in = fopen(path, "re");
    if (in == NULL) return is_fail(err, IS_ENOTFOUND, "cannot open %s; give --data FILE", path);
    v->words = calloc(MAX_WORDS, sizeof *v->words);
    if (v->words == NULL) is_cli_no_memory();
    char word[24];
    size_t n = 0;
    for (int c = 0; c != EOF && v->n < MAX_WORDS;) {
        c = fgetc(in);
        if (c != EOF && isalpha(c) && n + 1 < sizeof word) {
            word[n++] = (char)tolower(c);
            continue;
        }
        word[n] = '\0';
        if (n >= 2 && !has_word(v, word)) memcpy(v->words[v->n++], word, sizeof word);
        n = 0;
    }
    (void)fclose(in);
    return v->n < 200 ? is_fail(err, IS_EINVAL, "%s has only %zu different words, 200 are needed", path, v->n) : IS_OK;
}

static void make_text(char *out, size_t size, uint32_t words, const vocabulary *v, uint64_t *x)
{
    size_t at = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < words && at + 26 < size; i++) {
        size_t rank = (size_t)pow((double)v->n, unit(x)) - 1; /* P(rank) ~ 1 / rank */
        at += (size_t)snprintf(out + at, size - at, "%s%s", i == 0 ? "" : " ", v->words[rank]);
    }
}

static void make_vector(uint16_t *out, uint32_t dim, uint64_t *x)
{
    float v[4096];
    double norm = 0;
    for (uint32_t d = 0; d < dim; d++) {
        v[d] = (float)(unit(x) + unit(x) + unit(x) - 1.5);
        norm += (double)v[d] * (double)v[d];
    }
    float scale = (float)(1 / sqrt(norm));
    for (uint32_t d = 0; d < dim; d++) out[d] = is_f32_to_f16(v[d] * scale);
}

static is_status fill(is_bench *b, int64_t scope, const vocabulary *v, is_error *err)
{
    is_memory *m = b->memory;
    uint32_t dim = is_embedder_dim(m->embedder);
    uint64_t x = 42;
    is_fact *facts = calloc(STEP, sizeof *facts);
    char(*texts)[160] = calloc(STEP, sizeof *texts);
    uint16_t *vectors = malloc((size_t)STEP * dim * sizeof *vectors);
    is_status status = IS_OK;
    is_cli_progress progress;
    if (facts == NULL || texts == NULL || vectors == NULL) is_cli_no_memory();
    is_cli_progress_begin(&progress, &b->cli, "filling", "facts");
    for (uint32_t at = 0; status == IS_OK && at < FACTS; at += STEP) {
        for (uint32_t i = 0; i < STEP; i++) {
            make_text(texts[i], sizeof texts[i], 12, v, &x);
            make_vector(vectors + (size_t)i * dim, dim, &x);
            facts[i] = (is_fact){.text = texts[i], .time = IS_TIME_NONE};
        }
        status =
            is_store_add_facts(m->store, scope, facts, STEP, vectors, dim, is_embedder_name(m->embedder), NULL, err);
        if (!is_cli_progress_step(&progress, at + STEP, FACTS) && status == IS_OK)
            status = is_fail(err, IS_ECANCELED, "interrupted");
    }
    is_cli_progress_end(&progress);
    free(facts);
    free(texts);
    free(vectors);
    return status;
}

static is_status search(is_bench *b, int64_t scope, const vocabulary *v, uint32_t k, double *embed, double *rank,
                        double *total, is_error *err)
{
    uint64_t x = 7;
    is_status status = IS_OK;
    for (size_t i = 0; status == IS_OK && i < QUESTIONS + 1; i++) {
        char text[160];
        is_fact_list *list = NULL;
        double e = 0, r = 0;
        make_text(text, sizeof text, 10, v, &x);
        status = is_rank(b->memory, scope, text, k, NULL, &list, &e, &r, err);
        is_fact_list_free(list);
        if (i == 0) continue; /* it loads the scope's vectors */
        embed[i - 1] = e;
        rank[i - 1] = r;
        total[i - 1] = e + r;
    }
    return status;
}

int is_bench_retrieve(int argc, char **argv)
{
    is_bench b = {.repeat = 1};
    is_error err = {0};
    double *ms[3]; /* embed, rank, total */
    vocabulary words = {NULL, 0};
    int64_t scope = 0;
    uint32_t k[1];
    size_t n_k;
    if (!is_bench_parse(&b, "retrieve",
                        "Search in one scope of 100,000 made-up facts, the question's embedding included.",
                        "inferscale bench retrieve\ninferscale bench retrieve -k 10 --json", NULL, 0, argc, argv))
        return b.cli.exit;
    if (!is_bench_numbers(&b, &b.ks, "50", k, &n_k, 1, IS_MAX_K)) return IS_EXIT_USAGE;
    for (int i = 0; i < 3; i++)
        if ((ms[i] = malloc(QUESTIONS * sizeof(double))) == NULL) is_cli_no_memory();
    is_cli_catch_interrupts();
    is_status status = read_vocabulary(b.data != NULL ? b.data : IS_BENCH_SAMPLE, &words, &err);
    if (status == IS_OK) status = is_bench_begin(&b, &err);
    if (status == IS_OK) status = is_bench_need_embedding(&b, &err);
    if (status == IS_OK) status = is_bench_open(&b, NULL, false, &err);
    if (status == IS_OK) status = is_memory_scope(b.memory, &b.cli.scope, true, &scope, &err);
    if (status == IS_OK) status = fill(&b, scope, &words, &err);
    if (status == IS_OK) status = search(&b, scope, &words, k[0], ms[0], ms[1], ms[2], &err);
    json_t *root = is_bench_context(&b);
    if (status == IS_OK) {
        static const char *const names[] = {"embed", "rank", "total"};
        is_cli_set(root, "facts", json_integer(FACTS));
        is_cli_set(root, "k", json_integer(k[0]));
        if (!b.cli.json)
            printf("%u facts in one scope, k=%u, %d questions\n%-8s %10s %10s\n", FACTS, k[0], QUESTIONS, "ms", "p50",
                   "p95");
        for (int i = 0; i < 3; i++) {
            double p50 = is_median(ms[i], QUESTIONS), p95 = is_percentile(ms[i], QUESTIONS, 0.95);
            is_cli_set(root, names[i], json_pack("{s:f, s:f}", "p50_ms", p50, "p95_ms", p95));
            if (!b.cli.json) printf("%-8s %10.2f %10.2f\n", names[i], p50, p95);
        }
    }
    free(words.words);
    for (int i = 0; i < 3; i++) free(ms[i]);
    return is_bench_end(&b, root, status, &err);
}
