/* The exact scan on the device: one large scope, and many of usual size at once; what it finds beside the host's. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "cuda/scan.h"
#include "kv/compose.h"
#include "retrieve/retrieve.h"

#define DIM    384
#define K      50
#define ROUNDS 21

typedef struct setup {
    uint32_t rows, scopes; /* rows of each scope */
    uint16_t *matrix;      /* [scopes * rows][DIM] */
    int64_t *ids;
    is_vectors_view *views;
    float *vectors; /* [scopes][DIM] */
    uint32_t *index;
    float *score;
    is_device_query *queries;
} setup;

static uint64_t state = 88172645463325252u;

static float chance(void) /* -1 to 1 */
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (float)(int32_t)(state >> 32) * 0x1p-31f;
}

static void unit(float *v)
{
    float sum = 0;
    for (uint32_t d = 0; d < DIM; d++) {
        v[d] = chance();
        sum += v[d] * v[d];
    }
    for (uint32_t d = 0; d < DIM; d++) v[d] /= sqrtf(sum);
}

static is_status open_setup(setup *s, uint32_t scopes, uint32_t rows, is_error *err)
{
    size_t n = (size_t)scopes * rows;
    *s = (setup){.rows = rows, .scopes = scopes};
    s->matrix = aligned_alloc(64, is_align_up(n * DIM * sizeof *s->matrix, 64));
    s->ids = malloc(rows * sizeof *s->ids);
    s->views = calloc(scopes, sizeof *s->views);
    s->vectors = malloc((size_t)scopes * DIM * sizeof *s->vectors);
    s->index = malloc((size_t)scopes * K * sizeof *s->index);
    s->score = malloc((size_t)scopes * K * sizeof *s->score);
    s->queries = calloc(scopes, sizeof *s->queries);
    if (s->matrix == NULL || s->ids == NULL || s->views == NULL || s->vectors == NULL || s->index == NULL ||
        s->score == NULL || s->queries == NULL)
        return is_fail(err, IS_ENOMEM, "no memory for %zu vectors", n);
    for (size_t i = 0; i < n; i++) {
        float row[DIM];
        unit(row);
        for (uint32_t d = 0; d < DIM; d++) s->matrix[i * DIM + d] = is_f32_to_f16(row[d]);
    }
    for (uint32_t i = 0; i < rows; i++) s->ids[i] = i;
    for (uint32_t i = 0; i < scopes; i++) {
        unit(s->vectors + (size_t)i * DIM);
        s->views[i] =
            (is_vectors_view){.ids = s->ids, .rows = s->matrix + (size_t)i * rows * DIM, .n = rows, .series = i + 1};
        s->queries[i] = (is_device_query){.scope = i + 1,
                                          .view = &s->views[i],
                                          .vector = s->vectors + (size_t)i * DIM,
                                          .k = K,
                                          .index = s->index + (size_t)i * K,
                                          .score = s->score + (size_t)i * K};
    }
    return IS_OK;
}

static void close_setup(setup *s)
{
    free(s->matrix);
    free(s->ids);
    free(s->views);
    free(s->vectors);
    free(s->index);
    free(s->score);
    free(s->queries);
}

/* Of the host's best, how many the device found; and the largest difference of scores at the same rank. */
static void compare(const setup *s, double *found, double *worst)
{
    float *scores = malloc(s->rows * sizeof *scores), best[K];
    uint32_t index[K];
    size_t same = 0, all = 0;
    *worst = 0;
    for (uint32_t i = 0; i < s->scopes && i < 32; i++) {
        is_scan_dot(is_isa_best(), s->queries[i].vector, s->views[i].rows, s->rows, DIM, scores);
        size_t n = is_scan_top(scores, s->rows, K, index, best);
        for (size_t a = 0; a < n; a++) {
            for (size_t b = 0; b < n; b++) same += s->queries[i].index[b] == index[a];
            *worst = fmax(*worst, fabs((double)best[a] - (double)s->queries[i].score[a]));
        }
        all += n;
    }
    *found = (double)same / (double)all;
    free(scores);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static is_status bench_one(uint32_t scopes, uint32_t rows, is_error *err)
{
    setup s;
    is_device_scan *scan = NULL;
    const is_device_scan_settings settings = {.dim = DIM, .budget = (uint64_t)8 << 30};
    double first = 0, times[ROUNDS], found = 0, worst = 0;
    is_status status = open_setup(&s, scopes, rows, err);
    if (status == IS_OK) status = is_device_scan_new(&settings, &scan, err);
    for (int i = -1; i < ROUNDS && status == IS_OK; i++) {
        double begin = is_now_ms();
        status = is_device_scan_ask(scan, s.queries, scopes, err);
        *(i < 0 ? &first : &times[i]) = is_now_ms() - begin;
    }
    if (status == IS_OK) {
        compare(&s, &found, &worst);
        qsort(times, ROUNDS, sizeof *times, by_value);
        printf("{\"scopes\": %u, \"rows\": %u, \"dim\": %d, \"k\": %d, \"first_ms\": %.3f, \"p50_ms\": %.4f, "
               "\"p95_ms\": %.4f, \"found\": %.4f, \"worst_score\": %.6f}",
               scopes, rows, DIM, K, first, times[ROUNDS / 2], times[ROUNDS * 95 / 100], found, worst);
    }
    if (status == IS_OK && found < 0.99)
        status = is_fail(err, IS_ECORRUPT, "the device finds only %.1f %% of what the host finds", 100 * found);
    is_device_scan_free(scan);
    close_setup(&s);
    return status;
}

is_status bench_retrieve(is_error *err)
{
    printf("\"retrieve\": [\n  ");
    is_status status = bench_one(1, bench_quick ? 10000 : 1000000, err);
    if (status == IS_OK) printf(",\n  ");
    if (status == IS_OK) status = bench_one(bench_quick ? 3 : 128, 1000, err);
    printf("]");
    return status;
}
