/* The kernels' bodies as plain C: a grid is a loop over its blocks. */
#include "kernels.h"

#include "cuda/move_body.h"

void run_compose(const is_move *move)
{
    for (uint32_t layer = move->layer_begin; layer < move->layer_end; layer++)
        for (uint32_t piece = 0; piece < move->n_pieces; piece++)
            is_compose_block(move, move->chunk_cell, move->cache_cell, piece, layer);
}

void run_gather(const is_move *move)
{
    for (uint32_t layer = move->layer_begin; layer < move->layer_end; layer++)
        for (uint32_t piece = 0; piece < move->n_pieces; piece++)
            is_gather_block(move, move->chunk_cell, move->cache_cell, piece, layer);
}
