/*
 * What a kernel's body is written in, so that one source is compiled twice: by nvcc for the device, and as plain C,
 * where a grid is a loop over its blocks and a block's threads are a loop in every stage.
 *
 * A body is a function of a block's number and what the block shares.  It consists of stages, in each of which every
 * thread does its part without looking at what another one does in the same stage:
 *
 *     IS_STAGE(t)
 *     {
 *         ... t is the thread, 0 .. IS_THREADS - 1 ...
 *     }
 *     IS_STAGE_END
 *
 * Between stages the block's threads wait for one another.  What lives from one stage to the next lies in the block's
 * shared memory, never in a variable of one thread.
 */
#ifndef IS_CUDA_KERNEL_H
#define IS_CUDA_KERNEL_H

#include <stddef.h>
#include <stdint.h>

#define IS_THREADS 256 /* of a block, in every kernel */

#ifdef __CUDACC__

#define IS_DEVICE static __device__ __forceinline__
#define IS_STAGE(t)                                                                                                    \
    {                                                                                                                  \
        const uint32_t t = threadIdx.x;
#define IS_STAGE_END                                                                                                   \
    }                                                                                                                  \
    __syncthreads();
#define IS_ADD(at, n) atomicAdd((at), (n)) /* returns what was there before */
#define IS_UNROLL     _Pragma("unroll")

#else

#define IS_DEVICE     static inline __attribute__((always_inline))
#define IS_STAGE(t)   for (uint32_t t = 0; t < IS_THREADS; t++) {
#define IS_STAGE_END  }
#define IS_ADD(at, n) ((*(at) += (n)) - (n))
#define IS_UNROLL

#endif

#endif
