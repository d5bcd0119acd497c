/*
 * What the device's host side asks of CUDA, and all of it: memory, copies, streams, events and the launches of this
 * project's kernels.  runtime.cu has it over CUDA's runtime; tests/cuda/fake.c has it over host memory, with streams
 * that run late and calls that can fail.
 *
 * Functions that return is_status fail with IS_ENOMEM where memory is not there, IS_EUNSUPPORTED where there is no
 * device, and IS_EENGINE for whatever else the runtime says, with its own words.  All but the copies and launches may
 * be called from any thread; what goes into one stream comes from one thread at a time.  A stream is an engine's own,
 * or one that was made here; NULL is the default stream.
 */
#ifndef IS_CUDA_RUNTIME_H
#define IS_CUDA_RUNTIME_H

#include "../common/common.h"
#include "move.h"
#include "select.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct is_cuda_stream is_cuda_stream; /* cudaStream_t */
typedef struct is_cuda_event is_cuda_event;   /* cudaEvent_t, without timing */

/* Devices that can be used; 0: none, or no driver. */
uint32_t is_cuda_devices(void);
/* Makes this device the calling thread's; every thread that calls the functions below does it first. */
is_status is_cuda_use(uint32_t device, is_error *err);

/* IS_EUNSUPPORTED: the kernels were not compiled for the calling thread's device. */
is_status is_cuda_ready(is_error *err);

/* Whether this address is in the memory of the calling thread's device. */
bool is_cuda_owns(const void *address);

/* Device memory, aligned to 256 bytes.  Free waits for the device. */
is_status is_cuda_malloc(size_t size, void **out, is_error *err);
void is_cuda_free(void *memory);
/* Pinned host memory, which copies can go to and from while the host goes on. */
is_status is_cuda_host_malloc(size_t size, void **out, is_error *err);
void is_cuda_host_free(void *memory);

is_status is_cuda_stream_new(is_cuda_stream **out, is_error *err);
void is_cuda_stream_free(is_cuda_stream *stream);
/* Waits until all that is in the stream is done; says what went wrong in it. */
is_status is_cuda_stream_wait(is_cuda_stream *stream, is_error *err);

is_status is_cuda_event_new(is_cuda_event **out, is_error *err);
void is_cuda_event_free(is_cuda_event *event);
/* The event happens when all that is in the stream now is done. */
is_status is_cuda_event_record(is_cuda_event *event, is_cuda_stream *stream, is_error *err);
/* Whether it has happened; an event that was never recorded has. */
is_status is_cuda_event_done(is_cuda_event *event, bool *done, is_error *err);
is_status is_cuda_event_wait(is_cuda_event *event, is_error *err);
/* What is put into the stream from now on waits for the event. */
is_status is_cuda_stream_after(is_cuda_stream *stream, is_cuda_event *event, is_error *err);

/* Copies that the stream does; host memory is pinned and stays until they are done. */
is_status is_cuda_to_device(void *device, const void *host, size_t size, is_cuda_stream *stream, is_error *err);
is_status is_cuda_to_host(void *host, const void *device, size_t size, is_cuda_stream *stream, is_error *err);
is_status is_cuda_zero(void *device, size_t size, is_cuda_stream *stream, is_error *err);

/* The kernels; what they do stands with their arguments.  The arguments are copied before the calls return. */
is_status is_cuda_compose(const is_move *move, is_cuda_stream *stream, is_error *err);
is_status is_cuda_gather(const is_move *move, is_cuda_stream *stream, is_error *err);
is_status is_cuda_select(const is_select *select, is_cuda_stream *stream, is_error *err);

/*
 * Scores of queries against a matrix of f16: scores[q][n] f32 = rows [n][dim] . queries[q][dim].  All in device memory,
 * row-major, products summed in f32.
 */
is_status is_cuda_scores(const uint16_t *rows, uint32_t n, const uint16_t *queries, uint32_t n_queries, uint32_t dim,
                         float *scores, is_cuda_stream *stream, is_error *err);

#ifdef __cplusplus
}
#endif

#endif
