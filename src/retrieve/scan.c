/*
 * The exact scan: dot products of one query with all rows, and the best k of the scores.
 *
 * A scope of 100,000 facts is 77 MB of vectors, which memory delivers in a few milliseconds, so nothing approximate is
 * needed.  The selection keeps a heap of k whose root is the worst of the best so far: almost every score fails the one
 * comparison with the root and is passed over.
 */
#include "retrieve.h"

#include <math.h>

#include "scan_isa.h"

/* Eight partial sums, as a vector unit of eight lanes would keep them: the error then grows with dim / 8. */
static void dot_c(const float *query, const uint16_t *rows, size_t n, uint32_t dim, float *scores)
{
    for (size_t i = 0; i < n; i++) {
        const uint16_t *row = rows + i * dim;
        float sum[8] = {0};
        for (uint32_t j = 0; j < dim; j += 8)
            for (uint32_t lane = 0; lane < 8; lane++) sum[lane] += query[j + lane] * is_f16_to_f32(row[j + lane]);
        scores[i] = ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
    }
}

void is_scan_dot(is_isa isa, const float *query, const uint16_t *rows, size_t n, uint32_t dim, float *scores)
{
    switch (is_isa_supported(isa) ? isa : IS_ISA_C) {
#if defined(__x86_64__)
    case IS_ISA_AVX2: is_scan_dot_avx2(query, rows, n, dim, scores); return;
    case IS_ISA_AVX512: is_scan_dot_avx512(query, rows, n, dim, scores); return;
#elif defined(__aarch64__)
    case IS_ISA_NEON: is_scan_dot_neon(query, rows, n, dim, scores); return;
#endif
    default: dot_c(query, rows, n, dim, scores); return;
    }
}

/* ------------------------------------------------------------ the best k */

/* Whether row a with score x ranks behind row b with score y. */
static bool is_worse(float x, uint32_t a, float y, uint32_t b)
{
    if (x < y) return true;
    if (x > y) return false;
    if (isnan(x) != isnan(y)) return isnan(x);
    return a > b;
}

static void swap(uint32_t *index, float *score, size_t i, size_t j)
{
    uint32_t row = index[i];
    index[i] = index[j];
    index[j] = row;
    float s = score[i];
    score[i] = score[j];
    score[j] = s;
}

/* Puts the element at `at` where it belongs in a heap of n that is one but for it; the root is the worst. */
static void sift_down(uint32_t *index, float *score, size_t n, size_t at)
{
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= n) return;
        if (child + 1 < n && is_worse(score[child + 1], index[child + 1], score[child], index[child])) child++;
        if (!is_worse(score[child], index[child], score[at], index[at])) return;
        swap(index, score, child, at);
        at = child;
    }
}

size_t is_scan_top(const float *scores, size_t n, size_t k, uint32_t *index, float *score)
{
    if (k > n) k = n;
    if (k == 0) return 0;
    for (size_t i = 0; i < k; i++) {
        index[i] = (uint32_t)i;
        score[i] = scores[i];
    }
    for (size_t i = k / 2; i-- > 0;) sift_down(index, score, k, i);
    for (size_t i = k; i < n; i++) {
        /* Equal scores do not get in, for what is in the heap has the lower index. */
        if (!(scores[i] > score[0]) && !(isnan(score[0]) && !isnan(scores[i]))) continue;
        index[0] = (uint32_t)i;
        score[0] = scores[i];
        sift_down(index, score, k, 0);
    }
    for (size_t i = k; i-- > 1;) { /* the worst goes to the end, again and again: best first */
        swap(index, score, 0, i);
        sift_down(index, score, i, 0);
    }
    return k;
}
