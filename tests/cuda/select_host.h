/* The selection's kernel, run on the host: for tests, and for a device that is none. */
#ifndef IS_TESTS_CUDA_SELECT_HOST_H
#define IS_TESTS_CUDA_SELECT_HOST_H

#include "cuda/select.h"

/* Blocks' threads run in the order t ^ this, 0 .. IS_THREADS - 1, in every stage: the result must be the same for all.
 */
extern uint32_t is_select_host_order;

/* Pieces that took the radix selection, ever: a test says by it that it went that way. */
extern uint32_t is_select_host_radix;

void is_select_host(const is_select *select);

#endif
