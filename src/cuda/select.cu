/* The selection of the best as a kernel. */
#include "cuda_status.h"
#include "runtime.h"
#include "select_body.h"

static __global__ void __launch_bounds__(IS_THREADS) select_kernel(const is_select_piece *pieces)
{
    __shared__ is_select_shared shared;
    is_select_block(pieces, blockIdx.x, &shared);
}

is_status is_cuda_select(const is_select *select, is_cuda_stream *stream, is_error *err)
{
    if (select->n_pieces == 0) return IS_OK;
    select_kernel<<<select->n_pieces, IS_THREADS, 0, (cudaStream_t)stream>>>(select->pieces);
    return is_cuda_said(cudaGetLastError(), "launching the selection of the best scores", 0, err);
}
