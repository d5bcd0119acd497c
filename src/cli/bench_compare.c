/* How far one run's next-token distributions are from another's. */
#include <math.h>

#include "bench.h"

/* log of the sum of exponentials, in double. */
static double log_sum(const float *x, size_t n)
{
    double most = -INFINITY, sum = 0;
    for (size_t i = 0; i < n; i++)
        if ((double)x[i] > most) most = (double)x[i];
    for (size_t i = 0; i < n; i++) sum += exp((double)x[i] - most);
    return most + log(sum);
}

static size_t most_likely(const float *x, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

void is_bench_compare(const float *full, const float *injected, size_t n_vocab, const int32_t *answer, size_t n,
                      is_bench_sums *out)
{
    double kl_sum = 0;
    for (size_t t = 0; t < n; t++) {
        const float *p = full + t * n_vocab, *q = injected + t * n_vocab;
        double zp = log_sum(p, n_vocab), zq = log_sum(q, n_vocab), kl = 0;
        for (size_t i = 0; i < n_vocab; i++) {
            double lp = (double)p[i] - zp;
            kl += exp(lp) * (lp - ((double)q[i] - zq));
        }
        kl_sum += kl;
        out->top1 += most_likely(p, n_vocab) == most_likely(q, n_vocab);
        out->nll_full += zp - (double)p[answer[t]];
        out->nll_inject += zq - (double)q[answer[t]];
    }
    out->kl += kl_sum;
    out->tokens += n;
}
