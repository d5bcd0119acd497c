/* What CUDA says, as a status. */
#ifndef IS_CUDA_STATUS_H
#define IS_CUDA_STATUS_H

#include <cuda_runtime_api.h>

#include "../common/common.h"

/* What CUDA said, with a text: `what` was tried, with so many bytes where they matter. */
is_status is_cuda_said(cudaError_t error, const char *what, size_t size, is_error *err);

#endif
