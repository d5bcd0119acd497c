/* Times of what a device does. */
#ifndef IS_BENCH_GPU_TIME_H
#define IS_BENCH_GPU_TIME_H

#include "cuda/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What the first device is called, and its L2 cache's bytes. */
is_status bench_device(char name[256], size_t *l2_bytes, is_error *err);

/* Copies within the device's memory. */
is_status bench_copy(void *to, const void *from, size_t size, is_cuda_stream *stream, is_error *err);

/*
 * Milliseconds of one run, by events in the stream: the median of `rounds`, each of `repeat` runs in a row, after one
 * round that does not count.
 */
is_status bench_time(is_status (*run)(void *arg, is_error *err), void *arg, int rounds, int repeat,
                     is_cuda_stream *stream, double *ms, is_error *err);

#ifdef __cplusplus
}
#endif

#endif
