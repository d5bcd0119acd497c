/* The selection of the best scores on the device, run as plain C, against a sort. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/levels.h"
#include "cuda/select_host.h"
#include "rank_reference.h"

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

static void *must(void *memory)
{
    if (memory == NULL) fail_msg("out of memory");
    return memory;
}

static uint32_t *sorted_rows(const float *scores, uint32_t n)
{
    uint32_t *sorted = must(malloc((n + 1) * sizeof *sorted));
    for (uint32_t i = 0; i < n; i++) sorted[i] = i;
    sort_scores = scores;
    qsort(sorted, n, sizeof *sorted, compare_rows);
    return sorted;
}

/* Runs all levels, with memory of exactly the size that was measured; returns how many there were. */
static size_t run_levels(is_select_list *lists, size_t n_lists)
{
    size_t n_pieces = 0;
    size_t n_slots = 0;
    size_t used = 0;
    size_t levels = 0;
    for (size_t i = 0; i < n_lists; i++) is_select_measure(lists[i].n, lists[i].k, &n_pieces, &n_slots);
    is_select_piece *pieces = must(malloc(n_pieces * sizeof *pieces));
    float *scores = must(malloc(n_slots * sizeof *scores + 1));
    uint32_t *ids = must(malloc(n_slots * sizeof *ids + 1));
    is_select_slots slots = {.scores = scores, .ids = ids};
    for (size_t n; (n = is_select_level(lists, n_lists, &slots, pieces + used)) > 0; levels++) {
        is_select_host_order = levels % 2 == 0 ? random_u32() % 256 : 255;
        is_select_host(&(is_select){.pieces = pieces + used, .n_pieces = (uint32_t)n});
        used += n;
    }
    assert_int_equal(used, n_pieces);
    assert_int_equal(slots.scores - scores, n_slots);
    assert_true(levels <= IS_SELECT_LEVELS);
    free(pieces);
    free(scores);
    free(ids);
    return levels;
}

static void check_result(const float *scores, const uint32_t *sorted, uint32_t n, uint32_t k, const float *score,
                         const uint32_t *index)
{
    for (uint32_t i = 0; i < k; i++) {
        if (i >= n) {
            assert_true(isinf(score[i]) && score[i] < 0);
            assert_int_equal(index[i], UINT32_MAX);
        } else if (index[i] != sorted[i] || memcmp(&score[i], &scores[sorted[i]], sizeof *score) != 0) {
            fail_msg("n %u, k %u: at %u is row %u with %.9g, not %u with %.9g", n, k, i, index[i], (double)score[i],
                     sorted[i], (double)scores[sorted[i]]);
        }
    }
}

/* Returns the number of levels. */
static size_t check_one(const float *scores, const uint32_t *sorted, uint32_t n, uint32_t k)
{
    float *score = must(malloc(k * sizeof *score));
    uint32_t *index = must(malloc(k * sizeof *index));
    is_select_list list = {.scores = scores, .n = n, .k = k, .out_scores = score, .out_ids = index};
    size_t levels = run_levels(&list, 1);
    check_result(scores, sorted, n, k, score, index);
    free(score);
    free(index);
    return levels;
}

typedef enum score_kind {
    RANDOM,
    EQUAL,
    FEW,     /* values: most winners are ties */
    FEWER,   /* two values: the threshold stands among ties */
    SPECIAL, /* NaN, infinities, zeros of both signs */
    NANS,
    ZEROS, /* of both signs */
    RISING,
    FALLING,
    NARROW,  /* neighbouring numbers: all digits count */
    UNLUCKY, /* a quarter of the threads see all that is good */
    TINY,    /* subnormal numbers of both signs */
    KINDS
} score_kind;

static float score_of(score_kind kind, uint32_t i)
{
    static const float special[] = {NAN, -INFINITY, INFINITY, 0, -0.0F, 1, -1, NAN};
    switch (kind) {
    case EQUAL: return 0.25F;
    case FEW: return floorf(random_float() * 40);
    case FEWER: return random_u32() % 16 == 0 ? 0.5F : 0.25F;
    case SPECIAL: return special[random_u32() % 8];
    case NANS: return random_u32() % 2000 == 0 ? -INFINITY : NAN;
    case ZEROS: return random_u32() % 2 ? 0.0F : -0.0F;
    case RISING: return (float)i;
    case FALLING: return -(float)i;
    case NARROW: return 0.5F + (float)(random_u32() % 100000) / 16777216.0F;
    case UNLUCKY: return random_float() + (i % 256 < 64 ? 2 : 0);
    case TINY: return random_float() * 1e-40F;
    default: return random_float();
    }
}

static float *scores_of(score_kind kind, uint32_t n)
{
    float *scores = must(malloc(n * sizeof *scores + 1));
    for (uint32_t i = 0; i < n; i++) scores[i] = score_of(kind, i);
    return scores;
}

static void test_sizes(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {0,    1,    2,    255,  256,  257,   511,   512,   513,   1023,  1024,
                                     1025, 2047, 8191, 8192, 8193, 16383, 16384, 16385, 24575, 24577, 70001};
    static const uint32_t ks[] = {1, 2, 3, 31, 200, 255, 256, 257, 400, 511, 512};
    for (score_kind kind = 0; kind < KINDS; kind++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            float *scores = scores_of(kind, sizes[s]);
            uint32_t *sorted = sorted_rows(scores, sizes[s]);
            for (size_t k = 0; k < sizeof ks / sizeof *ks; k++) (void)check_one(scores, sorted, sizes[s], ks[k]);
            free(scores);
            free(sorted);
        }
}

static void test_every_k(void **state)
{
    (void)state;
    static const score_kind kinds[] = {RANDOM, FEWER, SPECIAL, UNLUCKY};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const uint32_t n = IS_SELECT_SEGMENT + 300;
        float *scores = scores_of(kinds[i], n);
        uint32_t *sorted = sorted_rows(scores, n);
        for (uint32_t k = 1; k <= IS_SELECT_MAX; k++) (void)check_one(scores, sorted, n, k);
        free(scores);
        free(sorted);
    }
}

static void test_levels(void **state)
{
    (void)state;
    static const struct {
        score_kind kind;
        uint32_t n, k;
        size_t levels;
    } cases[] = {
        {RANDOM, 8192, 512, 1},  {RANDOM, 16384, 512, 2},   {RANDOM, 327680, 200, 2},  {RANDOM, 330000, 200, 3},
        {FEW, 139265, 512, 3},   {EQUAL, 1000000, 200, 3},  {SPECIAL, 1000000, 50, 2}, {RANDOM, 1000000, 200, 3},
        {RISING, 1000000, 1, 2}, {FALLING, 999999, 512, 3}, {FEWER, 2300000, 512, 4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float *scores = scores_of(cases[i].kind, cases[i].n);
        uint32_t *sorted = sorted_rows(scores, cases[i].n);
        assert_int_equal(check_one(scores, sorted, cases[i].n, cases[i].k), cases[i].levels);
        free(scores);
        free(sorted);
    }
    size_t n_pieces = 0;
    size_t n_slots = 0;
    is_select_measure(UINT32_MAX, IS_SELECT_MAX, &n_pieces, &n_slots);
    assert_int_equal(n_slots % IS_SELECT_MAX, 0);
    assert_int_equal(n_pieces, n_slots / IS_SELECT_MAX + 1);
}

#define N_LISTS 40

/* Lists of many lengths share the launches. */
static void test_lists_together(void **state)
{
    (void)state;
    is_select_list lists[N_LISTS];
    float *scores[N_LISTS];
    uint32_t n[N_LISTS];
    for (int i = 0; i < N_LISTS; i++) {
        n[i] = i % 4 == 0 ? random_u32() % 200000 : random_u32() % 9000;
        uint32_t k = 1 + random_u32() % IS_SELECT_MAX;
        if (i == 7) {
            n[i] = 200000;
            k = IS_SELECT_MAX;
        }
        scores[i] = scores_of((score_kind)(random_u32() % KINDS), n[i]);
        lists[i] = (is_select_list){.scores = scores[i],
                                    .n = n[i],
                                    .k = k,
                                    .out_scores = must(malloc(k * sizeof(float))),
                                    .out_ids = must(malloc(k * sizeof(uint32_t)))};
    }
    assert_int_equal(run_levels(lists, N_LISTS), 3);
    for (int i = 0; i < N_LISTS; i++) {
        uint32_t *sorted = sorted_rows(scores[i], n[i]);
        check_result(scores[i], sorted, n[i], lists[i].k, lists[i].out_scores, lists[i].out_ids);
        free(sorted);
        free(scores[i]);
        free(lists[i].out_scores);
        free(lists[i].out_ids);
    }
}

/* The radix selection is there for what is equal or unlucky; usual scores do without. */
static void test_ways(void **state)
{
    (void)state;
    static const struct {
        score_kind kind;
        uint32_t k, radix;
    } cases[] = {{RANDOM, 10, 0},   {RANDOM, 200, 0}, {RANDOM, 400, 1}, {EQUAL, 10, 1},
                 {FALLING, 200, 0}, {FEWER, 200, 0},  {ZEROS, 1, 1},    {UNLUCKY, 100, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float *scores = scores_of(cases[i].kind, IS_SELECT_SEGMENT);
        uint32_t *sorted = sorted_rows(scores, IS_SELECT_SEGMENT);
        uint32_t before = is_select_host_radix;
        (void)check_one(scores, sorted, IS_SELECT_SEGMENT, cases[i].k);
        assert_int_equal(is_select_host_radix - before, cases[i].radix);
        free(scores);
        free(sorted);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),          cmocka_unit_test(test_every_k), cmocka_unit_test(test_levels),
        cmocka_unit_test(test_lists_together), cmocka_unit_test(test_ways),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
