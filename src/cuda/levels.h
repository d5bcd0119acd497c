/*
 * Launches that find the best of lists of any length.
 *
 * A list is cut into pieces, one after another; of the last one alone may come fewer than k winners.  The winners are
 * then the list of the next level: they stand by rising index where scores are equal, since the pieces do and every
 * piece's winners do.  A million scores take three levels for k = 200, and two levels up to 327,680.
 *
 * This only computes addresses in device memory; the caller launches.
 */
#ifndef IS_CUDA_LEVELS_H
#define IS_CUDA_LEVELS_H

#include <stdbool.h>
#include <stddef.h>

#include "select.h"

#define IS_SELECT_LEVELS 6 /* no list of 2^32 - 1 scores has more */

typedef struct is_select_list {
    const float *scores; /* [n] */
    uint32_t n;
    uint32_t k;          /* 1 .. IS_SELECT_MAX */
    float *out_scores;   /* [k] best first; where n < k, -infinity and UINT32_MAX follow */
    uint32_t *out_ids;   /* [k] indices of the scores */
    const uint32_t *ids; /* of the level before; NULL at first, as is: */
    bool done;
} is_select_list;

/* Where winners stand between two levels: device memory, moved on as it is used. */
typedef struct is_select_slots {
    float *scores;
    uint32_t *ids;
} is_select_slots;

/* Adds what a list of n takes, over all levels. */
void is_select_measure(uint32_t n, uint32_t k, size_t *n_pieces, size_t *n_slots);

/*
 * Writes the pieces of the next level of all lists, and returns how many; 0: all lists are done.  A level's pieces are
 * one launch, behind that of the level before.
 */
size_t is_select_level(is_select_list *lists, size_t n_lists, is_select_slots *slots, is_select_piece *pieces);

#endif
