/*
 * Reciprocal rank fusion (Cormack, Clarke, Buettcher, SIGIR 2009): what stands at rank r of a ranking, counted from 1,
 * gets 1 / (60 + r) from it, and the sums are ranked.  It needs no scales: BM25 and cosine are never compared.
 *
 * The rankings are a few hundred long at most, so an id's rank in the others is found by looking through them, and
 * nothing is allocated: two rankings of 400 take about 0.1 ms.
 */
#include "retrieve.h"

#define RRF_CONSTANT 60.0

/* The id's place in a ranking, from 0; n when it is not there. */
static size_t place_of(const is_hit *ranking, size_t n, int64_t id)
{
    size_t i = 0;
    while (i < n && ranking[i].id != id) i++;
    return i;
}

static bool ranks_before(const is_hit *a, const is_hit *b)
{
    return a->score > b->score || (a->score == b->score && a->id < b->id);
}

/* Puts hit into the sorted out [n], which holds at most k; returns the new n. */
static size_t insert(is_hit *out, size_t n, size_t k, const is_hit *hit)
{
    if (n == k) {
        if (!ranks_before(hit, &out[n - 1])) return n;
        n--;
    }
    size_t at = n;
    for (; at > 0 && ranks_before(hit, &out[at - 1]); at--) out[at] = out[at - 1];
    out[at] = *hit;
    return n + 1;
}

size_t is_fuse(const is_hit *const *rankings, const size_t *lengths, size_t n_rankings, size_t k, is_hit *out)
{
    size_t n = 0;
    if (k == 0) return 0;
    for (size_t r = 0; r < n_rankings; r++) {
        for (size_t i = 0; i < lengths[r]; i++) {
            is_hit hit = {.id = rankings[r][i].id, .score = 0};
            bool counted = false; /* with an earlier ranking */
            for (size_t other = 0; other < n_rankings && !counted; other++) {
                size_t place = other == r ? i : place_of(rankings[other], lengths[other], hit.id);
                if (place == lengths[other]) continue;
                counted = other < r;
                hit.score += 1.0 / (RRF_CONSTANT + (double)(place + 1));
            }
            if (!counted) n = insert(out, n, k, &hit);
        }
    }
    return n;
}
