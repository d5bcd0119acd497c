/*
 * Scores by cuBLAS.
 *
 * Making a handle takes long and device memory, so handles are kept, one for each device and stream: a handle's working
 * memory is then never that of two products at once, and equal questions have equal scores, bit for bit.
 */
#include "runtime.h"

#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <pthread.h>

#define N_HANDLES 16 /* more streams than that which ask for scores: the handle that was made first is made anew */

typedef struct handle {
    cublasHandle_t blas; /* NULL: none */
    int device;
    is_cuda_stream *stream;
} handle;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static handle handles[N_HANDLES]; /* under the mutex, which is held while a product is put into its stream */
static size_t next_handle;

static is_status blas_fail(is_error *err, const char *what, cublasStatus_t status)
{
    is_status code = IS_EENGINE;
    if (status == CUBLAS_STATUS_ALLOC_FAILED) code = IS_ENOMEM;
    if (status == CUBLAS_STATUS_ARCH_MISMATCH || status == CUBLAS_STATUS_NOT_SUPPORTED) code = IS_EUNSUPPORTED;
    return is_fail(err, code, "cuBLAS could not %s: %s", what, cublasGetStatusString(status));
}

/* The calling thread's device is current. */
static is_status find_handle(is_cuda_stream *stream, cublasHandle_t *out, is_error *err)
{
    int device = 0;
    const cudaError_t error = cudaGetDevice(&device);
    if (error != cudaSuccess)
        return is_fail(err, IS_EUNSUPPORTED, "no device for scores: %s", cudaGetErrorString(error));
    for (size_t i = 0; i < N_HANDLES; i++) {
        if (handles[i].blas == NULL || handles[i].device != device || handles[i].stream != stream) continue;
        *out = handles[i].blas;
        return IS_OK;
    }
    handle *h = &handles[next_handle];
    if (h->blas) (void)cublasDestroy(h->blas);
    h->blas = NULL;
    cublasStatus_t status = cublasCreate(&h->blas);
    if (status != CUBLAS_STATUS_SUCCESS) {
        h->blas = NULL;
        return blas_fail(err, "start", status);
    }
    status = cublasSetStream(h->blas, (cudaStream_t)stream);
    if (status != CUBLAS_STATUS_SUCCESS) {
        (void)cublasDestroy(h->blas);
        h->blas = NULL;
        return blas_fail(err, "use the stream", status);
    }
    h->device = device;
    h->stream = stream;
    next_handle = (next_handle + 1) % N_HANDLES;
    *out = h->blas;
    return IS_OK;
}

/* cuBLAS counts by columns: rows are then [dim] x n, wanted transposed, queries [dim] x n_queries, scores [n] x
 * n_queries. */
is_status is_cuda_scores(const uint16_t *rows, uint32_t n, const uint16_t *queries, uint32_t n_queries, uint32_t dim,
                         float *scores, is_cuda_stream *stream, is_error *err)
{
    const float one = 1;
    const float zero = 0;
    cublasHandle_t blas = NULL;
    if (n == 0 || n_queries == 0) return IS_OK;
    if (n > INT32_MAX || n_queries > INT32_MAX || dim > INT32_MAX || dim == 0)
        return is_fail(err, IS_EINVAL, "scores of %u rows of %u dimensions for %u queries cannot be asked at once", n,
                       dim, n_queries);
    pthread_mutex_lock(&mutex);
    is_status result = find_handle(stream, &blas, err);
    if (result == IS_OK) {
        const cublasStatus_t status = cublasGemmEx(
            blas, CUBLAS_OP_T, CUBLAS_OP_N, (int)n, (int)n_queries, (int)dim, &one, rows, CUDA_R_16F, (int)dim, queries,
            CUDA_R_16F, (int)dim, &zero, scores, CUDA_R_32F, (int)n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
        if (status != CUBLAS_STATUS_SUCCESS) result = blas_fail(err, "multiply", status);
    }
    pthread_mutex_unlock(&mutex);
    return result;
}
