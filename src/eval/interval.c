/* The bootstrap: how far a mean could have come out otherwise, told by drawing from the values themselves. */
#include <math.h>
#include <stdlib.h>

#include "../common/common.h"
#include "score.h"

#define RESAMPLES 10000
#define SEED      UINT64_C(0x9E3779B97F4A7C15)

static uint64_t next_random(uint64_t *x) /* xorshift64*, Vigna 2016 */
{
    *x ^= *x >> 12;
    *x ^= *x << 25;
    *x ^= *x >> 27;
    return *x * UINT64_C(0x2545F4914F6CDD1D);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of sorted values, between the two that are next to it. */
static double quantile(const double *sorted, size_t n, double q)
{
    double at = q * (double)(n - 1);
    size_t i = (size_t)at;
    return i + 1 < n ? sorted[i] + (at - (double)i) * (sorted[i + 1] - sorted[i]) : sorted[n - 1];
}

is_status is_eval_mean_interval(const double *values, size_t n, is_eval_interval *out, is_error *err)
{
    *out = (is_eval_interval){NAN, NAN, NAN};
    if (n > UINT32_MAX) return is_fail(err, IS_EINVAL, "%zu values are more than a bootstrap takes (2^32 - 1)", n);
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += values[i];
    if (n == 0 || !isfinite(sum)) return IS_OK;

    double *means = malloc(RESAMPLES * sizeof *means);
    if (means == NULL) return is_fail(err, IS_ENOMEM, "no memory for the means of %d resamples", RESAMPLES);
    uint64_t x = SEED;
    for (size_t r = 0; r < RESAMPLES; r++) {
        double drawn = 0;
        for (size_t i = 0; i < n; i++) drawn += values[(next_random(&x) >> 32) * n >> 32];
        means[r] = drawn / (double)n;
    }
    qsort(means, RESAMPLES, sizeof *means, compare);
    out->mean = sum / (double)n;
    out->low = quantile(means, RESAMPLES, 0.025);
    out->high = quantile(means, RESAMPLES, 0.975);
    free(means);
    return IS_OK;
}
