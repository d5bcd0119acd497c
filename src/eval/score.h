/*
 * Scores of answers as the LoCoMo benchmark gives them (Maharana et al., ACL 2024; task_eval/evaluation.py of
 * snap-research/locomo), and the interval of their mean.
 *
 * An answer is compared with the expected one, the gold, word by word.  Both are normalised first, and for F1 the words
 * are brought to their stems (stem.h).  precision = shared / words of the answer, recall = shared / words of the gold,
 * F1 = 2 * precision * recall / (precision + recall); a word counts as often as both have it.
 *
 * All of it is pure: no state, any thread.
 */
#ifndef IS_EVAL_SCORE_H
#define IS_EVAL_SCORE_H

#include "inferscale.h"

/* ------------------------------------------------------------ scores (score.c) */

/* LoCoMo's kinds of questions, by its own numbers. */
enum { IS_EVAL_MULTI_HOP = 1, IS_EVAL_TEMPORAL, IS_EVAL_OPEN_DOMAIN, IS_EVAL_SINGLE_HOP, IS_EVAL_ADVERSARIAL };

/*
 * The words of n bytes of text, with one blank between them: in small letters, without ASCII's punctuation, without a,
 * an, the and and.  A comma is deleted as all punctuation is, so "1,500" is one word and so is "red,blue".  What is no
 * UTF-8 counts as U+FFFD, and a NUL ends the text.  *out: free().  IS_ENOMEM.
 */
is_status is_eval_normalise(const char *text, size_t n, char **out, is_error *err);

/*
 * How good an answer is.  *f1, 0 to 1, by the question's category:
 *   multi-hop       gold and answer are lists with commas: the mean over the gold's items of the best F1 that an item
 * of the answer reaches temporal, single-hop  F1 open-domain     F1; what stands in the gold behind its first ";" is an
 * explanation and does not count adversarial     1 when the answer says "no information available" or "not mentioned",
 * in whatever case, else 0; gold is not looked at and may be NULL *exact: gold and answer have the same set of
 * normalised words, unstemmed (adversarial: f1 is 1).  Two texts without any word are equal, though their F1 is 0.
 * IS_EINVAL: no such category; IS_ENOMEM.  *f1 and *exact are then as they were.
 */
is_status is_eval_score(int category, const char *gold, const char *answer, double *f1, bool *exact, is_error *err);

/* ------------------------------------------------------------ intervals (interval.c) */

typedef struct is_eval_interval {
    double mean;
    double low, high; /* 95 % of the means of resamples lie between them */
} is_eval_interval;

/*
 * The mean of n values and its 95 % interval by the bootstrap's percentile method (Efron and Tibshirani, An
 * Introduction to the Bootstrap, 1993, chapter 13): 10,000 resamples, quantiles 0.025 and 0.975 of their means,
 * interpolated linearly. Always the same for the same values in the same order.  To compare two systems on the same
 * questions give it the differences of their scores: the difference is told from 0 where 0 lies outside.  n below 2^32,
 * finite values; n 0 or values whose sum is not finite: NANs.  IS_EINVAL: too many; IS_ENOMEM.
 */
is_status is_eval_mean_interval(const double *values, size_t n, is_eval_interval *out, is_error *err);

#endif
