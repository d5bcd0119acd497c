/* The kernels' bodies as plain C: a grid is a loop over its blocks. */
#include "kernels.h"

#include "cuda/move_body.h"

static void run(const is_move *move, int out)
{
    for (uint32_t layer = move->layer_begin; layer < move->layer_end; layer++)
        for (uint32_t piece = 0; piece < move->n_pieces; piece++)
            is_move_block(move, move->chunk_cell, move->cache_cell, out, piece, layer);
}

void run_compose(const is_move *move)
{
    run(move, 0);
}

void run_gather(const is_move *move)
{
    run(move, 1);
}
