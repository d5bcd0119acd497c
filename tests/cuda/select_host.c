/* The body as plain C.  Shared memory is full of garbage when a block begins, as on a device. */
#include "select_host.h"

#include "cuda/kernel.h"

#undef IS_STAGE
#define IS_STAGE(t)                                                                                                    \
    for (uint32_t run_ = 0; run_ < IS_THREADS; run_++) {                                                               \
        const uint32_t t = run_ ^ is_select_host_order;

#include "cuda/select_body.h"

uint32_t is_select_host_order;
uint32_t is_select_host_radix;

void is_select_host(const is_select *select)
{
    static is_select_shared shared;
    for (uint32_t block = 0; block < select->n_pieces; block++) {
        memset(&shared, 0xA5, sizeof shared);
        is_select_block(select->pieces, block, &shared);
        if (shared.n_kept[0] <= IS_SELECT_KEPT) continue;
        assert(shared.n_kept[1] == select->pieces[block].k);
        is_select_host_radix++;
    }
}
