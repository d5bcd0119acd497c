/* The order of scores that every scan keeps, for qsort. */
#ifndef IS_TESTS_RANK_REFERENCE_H
#define IS_TESTS_RANK_REFERENCE_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

static const float *sort_scores;

/* By the words of is_scan_top: highest first, ties by lower index, NaN lowest. */
static inline int compare_rows(const void *a, const void *b)
{
    uint32_t i = *(const uint32_t *)a;
    uint32_t j = *(const uint32_t *)b;
    bool nan_i = isnan(sort_scores[i]);
    bool nan_j = isnan(sort_scores[j]);
    if (nan_i != nan_j) return nan_i ? 1 : -1;
    if (!nan_i && sort_scores[i] != sort_scores[j]) return sort_scores[i] > sort_scores[j] ? -1 : 1;
    return i < j ? -1 : 1;
}

#endif
