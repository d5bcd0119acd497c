/* Launches of the device's kernels, as the fake of CUDA's runtime runs them. */
#ifndef IS_TESTS_CUDA_KERNELS_H
#define IS_TESTS_CUDA_KERNELS_H

#include "cuda/move.h"

void run_compose(const is_move *move);
void run_gather(const is_move *move);

#endif
