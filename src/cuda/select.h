/*
 * The k best of many scores, exactly: the arguments of a kernel.
 *
 * Better is the higher score, and of equal ones (0 and -0 are equal) the lower index; NaN is worst.  Scores are cut
 * into pieces, one block finds the best of each, in order, and the winners of several pieces are the scores of another
 * launch until one piece is left.  levels.h makes the pieces of long lists.
 *
 * A launch takes pieces and not lists, so that lists of any lengths share it without a block that has nothing to do.
 * All pointers are to device memory.  These structs are shared with nvcc's C++: plain members only.
 */
#ifndef IS_CUDA_SELECT_H
#define IS_CUDA_SELECT_H

#include <stdint.h>

#define IS_SELECT_MAX     512  /* k, at most; up to the threads of a block, 256, it is fastest */
#define IS_SELECT_SEGMENT 8192 /* scores of a piece, at most */

typedef struct is_select_piece {
    const float *scores; /* [n] */
    const uint32_t *ids; /* [n] what the scores are called, rising among equal scores; NULL: first .. first + n - 1 */
    float *out_scores;   /* [k] best first; where n < k, -infinity and UINT32_MAX follow */
    uint32_t *out_ids;   /* [k] */
    uint32_t first;
    uint32_t n; /* 0 .. IS_SELECT_SEGMENT */
    uint32_t k; /* 1 .. IS_SELECT_MAX */
    uint32_t unused;
} is_select_piece;

typedef struct is_select {
    const is_select_piece *pieces; /* [n_pieces], a block each */
    uint32_t n_pieces;
} is_select;

#endif
