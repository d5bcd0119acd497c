/* The scan, the selection of the best, the fusion of rankings and the helper threads, against naive computations. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "rank_reference.h"
#include "retrieve/retrieve.h"
#include "retrieve/scan_pool.h"

static uint64_t random_state = 1;

static uint32_t random_u32(void)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(random_state >> 32);
}

static float random_float(void)
{
    return (float)random_u32() / 4294967296.0F - 0.5F;
}

/* Memory that ends where the next page may not be read. */
typedef struct guarded {
    void *map;
    size_t map_size;
    void *bytes;
} guarded;

static guarded guarded_new(size_t size)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    guarded g = {.map_size = is_align_up(size, page) + page};
    g.map = mmap(NULL, g.map_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(g.map != MAP_FAILED);
    assert_int_equal(mprotect((char *)g.map + g.map_size - page, page, PROT_NONE), 0);
    g.bytes = (char *)g.map + g.map_size - page - size;
    return g;
}

static void guarded_free(guarded *g)
{
    munmap(g->map, g->map_size);
}

static void fill_unit(float *v, uint32_t dim)
{
    double sum = 0;
    for (uint32_t i = 0; i < dim; i++) {
        v[i] = random_float();
        sum += (double)v[i] * (double)v[i];
    }
    for (uint32_t i = 0; i < dim; i++) v[i] = (float)((double)v[i] / sqrt(sum));
}

/* The value of an f16, from its definition. */
static double f16_value(uint16_t h)
{
    int exponent = (h >> 10) & 31;
    double fraction = h & 1023;
    double value = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    return h & 0x8000 ? -value : value;
}

static void check_dot(is_isa isa, uint32_t dim, size_t n)
{
    guarded query = guarded_new(dim * sizeof(float));
    guarded rows = guarded_new(n * dim * sizeof(uint16_t));
    guarded scores = guarded_new(n * sizeof(float));
    float *row = malloc(dim * sizeof *row);
    float *q = query.bytes;
    uint16_t *r = rows.bytes;
    float *s = scores.bytes;
    assert_non_null(row);
    fill_unit(q, dim);
    for (size_t i = 0; i < n; i++) {
        fill_unit(row, dim);
        for (uint32_t j = 0; j < dim; j++) r[i * dim + j] = is_f32_to_f16(row[j]);
    }
    is_scan_dot(isa, q, r, n, dim, s);
    for (size_t i = 0; i < n; i++) {
        double expected = 0;
        for (uint32_t j = 0; j < dim; j++) expected += (double)q[j] * f16_value(r[i * dim + j]);
        if (fabs((double)s[i] - expected) > 1e-6)
            fail_msg("%s, dim %u, row %zu of %zu: %.9g, not %.9g", is_isa_name(isa), dim, i, n, (double)s[i], expected);
    }
    free(row);
    guarded_free(&query);
    guarded_free(&rows);
    guarded_free(&scores);
}

static void test_dot(void **state)
{
    (void)state;
    static const is_isa isas[] = {IS_ISA_C, IS_ISA_AVX2, IS_ISA_AVX512, IS_ISA_NEON};
    static const uint32_t dims[] = {8, 16, 24, 40, 384, 392, 1024};
    static const size_t rows[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 301};
    int checked = 0;
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
        if (!is_isa_supported(isas[i])) continue;
        checked++;
        for (size_t d = 0; d < sizeof dims / sizeof *dims; d++)
            for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) check_dot(isas[i], dims[d], rows[n]);
    }
    assert_true(checked >= 1);
    assert_true(is_isa_supported(IS_ISA_C));
}

/* Subnormal halves count, and what is no number stays none, on every path. */
static void test_dot_of_special_values(void **state)
{
    (void)state;
    static const is_isa isas[] = {IS_ISA_C, IS_ISA_AVX2, IS_ISA_AVX512, IS_ISA_NEON};
    float query[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    uint16_t rows[5][8] = {{1, 0x8003}, {0x7C00}, {0xFC00}, {0x7C00, 0xFC00}, {0x3C00, 0x7E00}};
    for (size_t i = 0; i < 4; i++) {
        if (!is_isa_supported(isas[i])) continue;
        float scores[5];
        is_scan_dot(isas[i], query, rows[0], 5, 8, scores);
        assert_true((double)scores[0] == -2 * ldexp(1, -24));
        assert_true(isinf(scores[1]) && scores[1] > 0);
        assert_true(isinf(scores[2]) && scores[2] < 0);
        assert_true(isnan(scores[3]) && isnan(scores[4]));
    }
}

/* ------------------------------------------------------------ the best k */

static void check_top(const float *scores, size_t n, size_t k)
{
    uint32_t *sorted = malloc((n + 1) * sizeof *sorted);
    uint32_t *index = malloc((k + 1) * sizeof *index);
    float *score = malloc((k + 1) * sizeof *score);
    assert_true(sorted && index && score);
    for (size_t i = 0; i < n; i++) sorted[i] = (uint32_t)i;
    sort_scores = scores;
    qsort(sorted, n, sizeof *sorted, compare_rows);
    size_t got = is_scan_top(scores, n, k, index, score);
    assert_int_equal(got, k < n ? k : n);
    for (size_t i = 0; i < got; i++) {
        assert_int_equal(index[i], sorted[i]);
        assert_memory_equal(&score[i], &scores[sorted[i]], sizeof *score);
    }
    free(sorted);
    free(index);
    free(score);
}

static void test_top(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 2, 3, 10, 199, 200, 201, 5000};
    static const size_t ks[] = {0, 1, 2, 7, 50, 200, 6000};
    float scores[5000];
    /* 0: all different; then values from ever fewer, so that ties are many; 3: rising; 4: falling */
    for (int kind = 0; kind < 6; kind++) {
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            size_t n = sizes[s];
            for (size_t i = 0; i < n; i++) {
                scores[i] = random_float();
                if (kind == 1) scores[i] = floorf(scores[i] * 100);
                if (kind == 2) scores[i] = floorf(scores[i] * 4);
                if (kind == 3) scores[i] = (float)i;
                if (kind == 4) scores[i] = -(float)i;
                if (kind == 5) {
                    static const float values[] = {NAN, -INFINITY, INFINITY, 0, -0.0F, 1, NAN};
                    scores[i] = values[random_u32() % 7];
                }
            }
            for (size_t k = 0; k < sizeof ks / sizeof *ks; k++) check_top(scores, n, ks[k]);
        }
    }
    for (size_t i = 0; i < 100; i++) scores[i] = NAN;
    scores[60] = -INFINITY;
    check_top(scores, 100, 3);
}

/* ------------------------------------------------------------ fusion */

/* 1/61 = 0.016393442623, 1/62 = 0.016129032258, 1/63 = 0.015873015873, 1/64 = 0.015625. */
static void test_fusion_by_hand(void **state)
{
    (void)state;
    static const is_hit vectors[] = {{10, 0.9}, {20, 0.8}, {30, 0.7}, {50, 0.6}};
    static const is_hit words[] = {{30, 12}, {40, 7}, {10, 3}};
    const is_hit *rankings[] = {vectors, words};
    const size_t lengths[] = {4, 3};
    static const is_hit expected[] = {
        {10, 0.032266458496},                       /* 1/61 + 1/63, as has 30: the lower id first */
        {30, 0.032266458496}, {20, 0.016129032258}, /* 1/62, as has 40 */
        {40, 0.016129032258}, {50, 0.015625},
    };
    for (size_t k = 0; k <= 6; k++) {
        is_hit out[6];
        size_t n = is_fuse(rankings, lengths, 2, k, out);
        assert_int_equal(n, k < 5 ? k : 5);
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(out[i].id, expected[i].id);
            assert_true(fabs(out[i].score - expected[i].score) < 1e-11);
        }
    }
    const size_t none[] = {0, 0};
    const size_t one[] = {0, 3};
    is_hit out[6];
    assert_int_equal(is_fuse(rankings, none, 2, 6, out), 0);
    assert_int_equal(is_fuse(rankings, one, 2, 6, out), 3);
    assert_int_equal(out[0].id, 30);
    assert_int_equal(out[2].id, 10);
    assert_int_equal(is_fuse(NULL, NULL, 0, 6, out), 0);
}

#define N_IDS 300

/* Three random rankings over ids that are their own index, against sums in a table. */
static void test_fusion_at_random(void **state)
{
    (void)state;
    for (int round = 0; round < 50; round++) {
        is_hit ranking[3][N_IDS];
        const is_hit *rankings[3] = {ranking[0], ranking[1], ranking[2]};
        size_t lengths[3];
        double sums[N_IDS] = {0};
        for (size_t r = 0; r < 3; r++) {
            lengths[r] = random_u32() % N_IDS;
            for (size_t i = 0; i < N_IDS; i++) /* Fisher and Yates's shuffle, from inside out */
            {
                size_t j = random_u32() % (i + 1);
                ranking[r][i] = ranking[r][j];
                ranking[r][j] = (is_hit){.id = (int64_t)i};
            }
            for (size_t i = 0; i < lengths[r]; i++) sums[ranking[r][i].id] += 1.0 / (61.0 + (double)i);
        }
        size_t k = random_u32() % (N_IDS + 1);
        is_hit out[N_IDS];
        size_t n = is_fuse(rankings, lengths, 3, k, out);
        size_t possible = 0;
        for (size_t i = 0; i < N_IDS; i++) possible += sums[i] > 0;
        assert_int_equal(n, k < possible ? k : possible);
        for (size_t i = 0; i < n; i++) {
            size_t best = 0;
            for (size_t id = 1; id < N_IDS; id++)
                if (sums[id] > sums[best]) best = id;
            assert_int_equal(out[i].id, best);
            assert_true(out[i].score == sums[best]);
            sums[best] = 0;
        }
    }
}

/* ------------------------------------------------------------ helper threads */

#define POOL_ROWS 70001
#define POOL_DIM  16

static uint16_t *pool_rows;

typedef struct searcher {
    is_scan_pool *pool;
    float query[POOL_DIM];
    bool equal;
} searcher;

static void *search(void *arg)
{
    searcher *s = arg;
    float *expected = malloc(POOL_ROWS * sizeof *expected);
    float *scores = malloc(POOL_ROWS * sizeof *scores);
    s->equal = expected && scores;
    if (s->equal) is_scan_dot(is_isa_best(), s->query, pool_rows, POOL_ROWS, POOL_DIM, expected);
    static const size_t sizes[] = {1, IS_SCAN_POOL_ROWS, IS_SCAN_POOL_ROWS + 1, POOL_ROWS};
    for (int round = 0; round < 20 && s->equal; round++) {
        size_t n = sizes[round % 4];
        memset(scores, 0xFF, POOL_ROWS * sizeof *scores);
        is_scan_pool_dot(s->pool, s->query, pool_rows, n, POOL_DIM, scores);
        s->equal = memcmp(scores, expected, n * sizeof *scores) == 0;
        for (size_t i = n; i < POOL_ROWS && s->equal; i++) s->equal = isnan(scores[i]); /* not a row too many */
    }
    free(expected);
    free(scores);
    return NULL;
}

static void test_pool(void **state)
{
    (void)state;
    pool_rows = malloc(POOL_ROWS * POOL_DIM * sizeof *pool_rows);
    assert_non_null(pool_rows);
    for (size_t i = 0; i < POOL_ROWS * POOL_DIM; i++) pool_rows[i] = is_f32_to_f16(random_float());
    for (uint32_t threads = 0; threads <= 3; threads++) {
        searcher searchers[3];
        pthread_t ids[3];
        is_scan_pool *pool = NULL;
        assert_int_equal(is_scan_pool_new(threads, &pool, NULL), IS_OK);
        for (int i = 0; i < 3; i++) {
            searchers[i].pool = pool;
            fill_unit(searchers[i].query, POOL_DIM);
            assert_int_equal(pthread_create(&ids[i], NULL, search, &searchers[i]), 0);
        }
        for (int i = 0; i < 3; i++) {
            pthread_join(ids[i], NULL);
            assert_true(searchers[i].equal);
        }
        is_scan_pool_free(pool);
    }
    is_scan_pool_free(NULL);
    free(pool_rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dot),
        cmocka_unit_test(test_dot_of_special_values),
        cmocka_unit_test(test_top),
        cmocka_unit_test(test_fusion_by_hand),
        cmocka_unit_test(test_fusion_at_random),
        cmocka_unit_test(test_pool),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
