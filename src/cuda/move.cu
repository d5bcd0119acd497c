/* compose and gather for the device: one block a piece and layer, see move.h. */
#include "cuda_status.h"
#include "move_body.h"
#include "runtime.h"

template <uint32_t chunk, uint32_t cache>
static __global__ void __launch_bounds__(IS_THREADS) is_compose_kernel(const __grid_constant__ is_move move)
{
    is_move_block(&move, chunk, cache, 0, blockIdx.x, move.layer_begin + blockIdx.y);
}

template <uint32_t chunk, uint32_t cache>
static __global__ void __launch_bounds__(IS_THREADS) is_gather_kernel(const __grid_constant__ is_move move)
{
    is_move_block(&move, chunk, cache, 1, blockIdx.x, move.layer_begin + blockIdx.y);
}

typedef void (*move_kernel)(is_move move);

static move_kernel compose_of(const is_move *move)
{
    bool f16 = move->chunk_cell == IS_CELL_F16;
    if (move->cache_cell == IS_CELL_E4M3)
        return f16 ? is_compose_kernel<IS_CELL_F16, IS_CELL_E4M3> : is_compose_kernel<IS_CELL_BF16, IS_CELL_E4M3>;
    return f16 ? is_compose_kernel<IS_CELL_F16, IS_CELL_F16> : is_compose_kernel<IS_CELL_BF16, IS_CELL_BF16>;
}

/* What is not scaled is moved bit for bit, whatever it means. */
static move_kernel gather_of(const is_move *move)
{
    if (move->cache_cell != IS_CELL_E4M3) return is_gather_kernel<IS_CELL_F16, IS_CELL_F16>;
    return move->chunk_cell == IS_CELL_F16 ? is_gather_kernel<IS_CELL_F16, IS_CELL_E4M3>
                                           : is_gather_kernel<IS_CELL_BF16, IS_CELL_E4M3>;
}

static is_status launch(move_kernel kernel, const is_move *move, is_cuda_stream *stream, const char *name,
                        is_error *err)
{
    dim3 grid(move->n_pieces, move->layer_end - move->layer_begin);
    kernel<<<grid, IS_THREADS, 0, (cudaStream_t)stream>>>(*move);
    return is_cuda_said(cudaGetLastError(), name, 0, err);
}

is_status is_cuda_compose(const is_move *move, is_cuda_stream *stream, is_error *err)
{
    return launch(compose_of(move), move, stream, "launching compose", err);
}

is_status is_cuda_gather(const is_move *move, is_cuda_stream *stream, is_error *err)
{
    return launch(gather_of(move), move, stream, "launching gather", err);
}

is_status is_cuda_ready(is_error *err)
{
    cudaFuncAttributes attributes;
    return is_cuda_said(cudaFuncGetAttributes(&attributes, is_gather_kernel<IS_CELL_F16, IS_CELL_F16>),
                        "looking for kernels of this device", 0, err);
}
