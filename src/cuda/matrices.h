/*
 * The embedding matrices of scopes in device memory: what the device's scan reads.
 *
 * A matrix follows its scope's view: rows that were appended are put behind those that are there, and where the view is
 * of another series it is uploaded anew.  Where the budget is reached, matrices that were asked longest ago go.  Device
 * memory is zeroed before rows come into it, and before it is freed.
 *
 * Everything is put into one stream, and it is one thread's at a time.
 */
#ifndef IS_CUDA_MATRICES_H
#define IS_CUDA_MATRICES_H

#include "../retrieve/vectors.h"
#include "runtime.h"

/* A matrix has room for a multiple of so many rows: products of whole, aligned tiles are faster. */
#define IS_MATRIX_ROWS 8

/* Memory that held what is somebody's: zeroed, behind what the stream still does with it, and freed.  NULL is fine. */
void is_device_wipe(void *memory, size_t size, is_cuda_stream *stream);

typedef struct is_matrices is_matrices;

typedef struct is_matrices_counts {
    uint64_t bytes;    /* of device memory that is held */
    uint64_t scopes;   /* that are there */
    uint64_t uploaded; /* rows, ever */
    uint64_t evicted;  /* scopes that went to make room, ever */
} is_matrices_counts;

/* budget: bytes of device memory.  The stream is not owned. */
is_status is_matrices_new(uint32_t dim, uint64_t budget, is_cuda_stream *stream, is_matrices **out, is_error *err);
void is_matrices_free(is_matrices *matrices);

/* Whether the device may ever hold the view's rows: IS_ENOMEM where the budget is too small, IS_EUNSUPPORTED where a
 * product is.  Any thread. */
is_status is_matrices_allow(const is_matrices *matrices, int64_t scope, const is_vectors_view *view, is_error *err);

/*
 * The scope's matrix, with the view's rows, at least, and up to a multiple of IS_MATRIX_ROWS: those behind are later
 * ones of the scope, or zeros.  The rows are there for what is put into the stream from now on, and stay until the next
 * get or drop; what was put into the stream by then may still read them.  The view, not empty and allowed by
 * is_matrices_allow, is read before this returns.  IS_ENOMEM: the device has no more memory.
 */
is_status is_matrices_get(is_matrices *matrices, int64_t scope, const is_vectors_view *view, const uint16_t **rows,
                          is_error *err);
/* To be called when the stream has been waited for.  well false: what came since the last time is given up, since
 * nobody knows what is there. */
void is_matrices_settle(is_matrices *matrices, bool well);
void is_matrices_drop(is_matrices *matrices, int64_t scope);

is_matrices_counts is_matrices_count(const is_matrices *matrices);

#endif
