/*
 * The best k of a piece's scores: the body of a kernel (kernel.h says how it is written).
 *
 * Scores become keys that rank as unsigned numbers do, and a key with its position behind it is a pair; no two pairs
 * are equal, so what is best never depends on which thread came first.
 *
 * The k-th best of what the threads saw each as their best is not above the k-th best of all.  Only pairs from there on
 * are kept, which are few unless scores are equal or come in an unlucky order: of 8192 random ones some 60 for k = 50,
 * 380 for k = 200.  Where more are kept than there is room for, the k-th best itself is found by radix selection:
 * digit by digit, a histogram of the pairs that agree in the digits before says which digit it has.  Exactly k are kept
 * then.  A kept pair's place in the result is the number of those that are better.
 */
#ifndef IS_CUDA_SELECT_BODY_H
#define IS_CUDA_SELECT_BODY_H

#include <assert.h>
#include <math.h>
#include <string.h>

#include "kernel.h"
#include "select.h"

#define IS_SELECT_KEPT     1024
#define IS_SELECT_POSITION 16 /* bits of a pair, behind the key's 32 */
#define IS_SELECT_DIGIT    8
#define IS_SELECT_PASSES   6
#define IS_SELECT_GROUP    16 /* digits whose counts are summed up together */
#define IS_SELECT_LOADS    8  /* of a thread under way at once */

static_assert(IS_SELECT_MAX <= IS_SELECT_KEPT, "all winners have a place");
static_assert(IS_SELECT_SEGMENT <= 1 << IS_SELECT_POSITION, "a pair has all positions");
static_assert(IS_SELECT_PASSES * IS_SELECT_DIGIT == 32 + IS_SELECT_POSITION, "the digits are a whole pair");
static_assert(IS_THREADS == 1 << IS_SELECT_DIGIT, "a thread has one digit");
static_assert(IS_SELECT_SEGMENT % (IS_THREADS * IS_SELECT_LOADS) == 0, "a full piece is loaded without a rest");

typedef struct is_select_shared {
    uint64_t kept[IS_SELECT_KEPT]; /* pairs, in no order */
    uint32_t keys[IS_SELECT_SEGMENT];
    uint32_t counts[IS_THREADS]; /* first the best key that each thread saw, then of the digit that is looked at */
    uint32_t sums[IS_THREADS / IS_SELECT_GROUP];
    uint64_t floor;     /* a pair that the k-th best is not below */
    uint32_t n_kept[2]; /* with the floor, and after the radix selection */
    /* Before each pass, since what one pass reads the next may not write: */
    uint64_t prefix[IS_SELECT_PASSES + 1]; /* the k-th best's digits so far; zeros follow */
    uint32_t need[IS_SELECT_PASSES + 1];   /* of the pairs with these digits so many are among the best */
    uint32_t all[IS_SELECT_PASSES + 1];    /* 1: which is every one */
} is_select_shared;

/* As is_scan_top ranks. */
IS_DEVICE uint32_t is_select_key(float score)
{
    uint32_t bits;
    memcpy(&bits, &score, sizeof bits);
    if (score != score) return 0;
    if (bits << 1 == 0) return UINT32_C(1) << 31; /* 0 and -0 */
    return bits >> 31 ? ~bits : bits | UINT32_C(1) << 31;
}

/* The lower position is the better one of equal keys. */
IS_DEVICE uint64_t is_select_pair(uint32_t key, uint32_t position)
{
    return (uint64_t)key << IS_SELECT_POSITION | (((1U << IS_SELECT_POSITION) - 1) - position);
}

IS_DEVICE uint32_t is_select_position(uint64_t pair)
{
    const uint32_t mask = (1U << IS_SELECT_POSITION) - 1;
    return mask - ((uint32_t)pair & mask);
}

IS_DEVICE void is_select_load(is_select_shared *s, const float *scores, uint32_t n)
{
    IS_STAGE (t) {
        uint32_t best = 0;
        for (uint32_t from = t; from < n; from += IS_THREADS * IS_SELECT_LOADS) {
            float score[IS_SELECT_LOADS];
            IS_UNROLL
            for (uint32_t j = 0; j < IS_SELECT_LOADS; j++) {
                const uint32_t i = from + j * IS_THREADS;
                score[j] = i < n ? scores[i] : 0;
            }
            IS_UNROLL
            for (uint32_t j = 0; j < IS_SELECT_LOADS; j++) {
                const uint32_t i = from + j * IS_THREADS;
                const uint32_t key = is_select_key(score[j]);
                if (i >= n) continue;
                s->keys[i] = key;
                if (key > best) best = key;
            }
        }
        s->counts[t] = best;
        if (t == 0) {
            s->floor = 0; /* stays where k is above the number of threads */
            s->n_kept[0] = s->n_kept[1] = 0;
        }
    }
    IS_STAGE_END
}

IS_DEVICE void is_select_find_floor(is_select_shared *s, uint32_t k)
{
    IS_STAGE (t) {
        const uint32_t mine = s->counts[t];
        uint32_t better = 0; /* a lower thread's equal one is */
        for (uint32_t i = 0; i < t; i++) better += s->counts[i] >= mine;
        for (uint32_t i = t + 1; i < IS_THREADS; i++) better += s->counts[i] > mine;
        if (better == k - 1) s->floor = (uint64_t)mine << IS_SELECT_POSITION;
    }
    IS_STAGE_END
}

/* Keeps the pairs from the bar on, as far as there is room, and counts all of them. */
IS_DEVICE void is_select_keep(is_select_shared *s, uint32_t n, uint64_t bar, uint32_t *n_kept)
{
    IS_STAGE (t) {
        for (uint32_t from = t; from < n; from += IS_THREADS * IS_SELECT_LOADS) {
            uint32_t key[IS_SELECT_LOADS];
            IS_UNROLL
            for (uint32_t j = 0; j < IS_SELECT_LOADS; j++) {
                const uint32_t i = from + j * IS_THREADS;
                key[j] = i < n ? s->keys[i] : 0;
            }
            IS_UNROLL
            for (uint32_t j = 0; j < IS_SELECT_LOADS; j++) {
                const uint32_t i = from + j * IS_THREADS;
                const uint64_t pair = is_select_pair(key[j], i);
                if (i >= n || pair < bar) continue;
                const uint32_t at = IS_ADD(n_kept, 1);
                if (at < IS_SELECT_KEPT) s->kept[at] = pair;
            }
        }
    }
    IS_STAGE_END
}

/* Histogram of one digit of the pairs that have the digits before it.  Equal scores would make all threads add to one
 * counter, so a thread adds what follows one another with the same digit at once. */
IS_DEVICE void is_select_count(is_select_shared *s, uint32_t n, uint32_t pass, uint32_t shift)
{
    IS_STAGE (t) {
        const uint64_t prefix = s->prefix[pass];
        const uint64_t floor = s->floor;
        uint32_t digit = 0;
        uint32_t run = 0;
        for (uint32_t i = t; i < n; i += IS_THREADS) {
            const uint64_t pair = is_select_pair(s->keys[i], i);
            if (pair < floor || (pair ^ prefix) >> shift >> IS_SELECT_DIGIT != 0) continue;
            const uint32_t here = (uint32_t)(pair >> shift) % IS_THREADS;
            if (here != digit && run > 0) {
                (void)IS_ADD(&s->counts[digit], run);
                run = 0;
            }
            digit = here;
            run++;
        }
        if (run > 0) (void)IS_ADD(&s->counts[digit], run);
    }
    IS_STAGE_END
    IS_STAGE (t) {
        if (t < IS_THREADS / IS_SELECT_GROUP) {
            uint32_t sum = 0;
            for (uint32_t i = 0; i < IS_SELECT_GROUP; i++) sum += s->counts[t * IS_SELECT_GROUP + i];
            s->sums[t] = sum;
        }
    }
    IS_STAGE_END
}

/* The thread whose digit is the k-th best's says so. */
IS_DEVICE void is_select_choose(is_select_shared *s, uint32_t pass, uint32_t shift)
{
    IS_STAGE (t) {
        uint32_t above = 0;
        for (uint32_t i = t / IS_SELECT_GROUP + 1; i < IS_THREADS / IS_SELECT_GROUP; i++) above += s->sums[i];
        for (uint32_t i = t + 1; i % IS_SELECT_GROUP != 0; i++) above += s->counts[i];
        const uint32_t need = s->need[pass];
        const uint32_t count = s->counts[t];
        if (above < need && need <= above + count) {
            s->prefix[pass + 1] = s->prefix[pass] | (uint64_t)t << shift;
            s->need[pass + 1] = need - above;
            s->all[pass + 1] = need - above == count;
        }
    }
    IS_STAGE_END
}

/* A bar that exactly k of the n pairs reach; k <= n. */
IS_DEVICE uint64_t is_select_radix(is_select_shared *s, uint32_t n, uint32_t k)
{
    for (uint32_t pass = 0; pass < IS_SELECT_PASSES; pass++) {
        const uint32_t shift = IS_SELECT_DIGIT * (IS_SELECT_PASSES - 1 - pass);
        IS_STAGE (t) {
            s->counts[t] = 0;
            if (pass == 0 && t == 0) {
                s->prefix[0] = 0;
                s->need[0] = k;
            }
        }
        IS_STAGE_END
        is_select_count(s, n, pass, shift);
        is_select_choose(s, pass, shift);
        if (s->all[pass + 1]) return s->prefix[pass + 1];
    }
    return s->prefix[IS_SELECT_PASSES]; /* not reached: one pair alone has all digits */
}

IS_DEVICE void is_select_put(const is_select_shared *s, const is_select_piece *piece, uint32_t n_kept)
{
    IS_STAGE (t) {
        for (uint32_t i = t; i < n_kept; i += IS_THREADS) {
            const uint64_t mine = s->kept[i];
            uint32_t better = 0;
            for (uint32_t j = 0; j < n_kept; j++) better += s->kept[j] > mine;
            if (better >= piece->k) continue;
            const uint32_t at = is_select_position(mine);
            piece->out_scores[better] = piece->scores[at];
            piece->out_ids[better] = piece->ids ? piece->ids[at] : piece->first + at;
        }
        for (uint32_t i = n_kept + t; i < piece->k; i += IS_THREADS) {
            piece->out_scores[i] = -INFINITY;
            piece->out_ids[i] = UINT32_MAX;
        }
    }
    IS_STAGE_END
}

IS_DEVICE void is_select_block(const is_select_piece *pieces, uint32_t block, is_select_shared *s)
{
    const is_select_piece piece = pieces[block];
    is_select_load(s, piece.scores, piece.n);
    is_select_find_floor(s, piece.k);
    is_select_keep(s, piece.n, s->floor, &s->n_kept[0]);
    uint32_t n_kept = s->n_kept[0];
    if (n_kept > IS_SELECT_KEPT) { /* the same for all threads */
        is_select_keep(s, piece.n, is_select_radix(s, piece.n, piece.k), &s->n_kept[1]);
        n_kept = s->n_kept[1];
    }
    is_select_put(s, &piece, n_kept);
}

#endif
