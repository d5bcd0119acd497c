/* Times of what a device does, by CUDA's events. */
#include "time.h"

#include <algorithm>
#include <vector>

#include "cuda/cuda_status.h"

is_status bench_device(char name[256], size_t *l2_bytes, is_error *err)
{
    cudaDeviceProp properties;
    is_status status = is_cuda_said(cudaGetDeviceProperties(&properties, 0), "asking for the device's name", 0, err);
    if (status != IS_OK) return status;
    std::copy(properties.name, properties.name + 256, name);
    *l2_bytes = (size_t)properties.l2CacheSize;
    return IS_OK;
}

is_status bench_copy(void *to, const void *from, size_t size, is_cuda_stream *stream, is_error *err)
{
    return is_cuda_said(cudaMemcpyAsync(to, from, size, cudaMemcpyDeviceToDevice, (cudaStream_t)stream),
                        "copying within the device", 0, err);
}

static is_status time_round(is_status (*run)(void *arg, is_error *err), void *arg, int repeat, cudaEvent_t begin,
                            cudaEvent_t end, cudaStream_t stream, float *ms, is_error *err)
{
    is_status status = is_cuda_said(cudaEventRecord(begin, stream), "recording an event", 0, err);
    for (int i = 0; i < repeat && status == IS_OK; i++) status = run(arg, err);
    if (status == IS_OK) status = is_cuda_said(cudaEventRecord(end, stream), "recording an event", 0, err);
    if (status == IS_OK) status = is_cuda_said(cudaEventSynchronize(end), "waiting for the device", 0, err);
    if (status == IS_OK) status = is_cuda_said(cudaEventElapsedTime(ms, begin, end), "reading a time", 0, err);
    return status;
}

is_status bench_time(is_status (*run)(void *arg, is_error *err), void *arg, int rounds, int repeat,
                     is_cuda_stream *stream, double *ms, is_error *err)
{
    cudaEvent_t begin, end;
    std::vector<float> times;
    is_status status = is_cuda_said(cudaEventCreate(&begin), "making an event", 0, err);
    if (status != IS_OK) return status;
    status = is_cuda_said(cudaEventCreate(&end), "making an event", 0, err);
    for (int i = 0; i <= rounds && status == IS_OK; i++) {
        float taken = 0;
        status = time_round(run, arg, repeat, begin, end, (cudaStream_t)stream, &taken, err);
        if (i > 0) times.push_back(taken / (float)repeat);
    }
    if (status == IS_OK) {
        std::sort(times.begin(), times.end());
        *ms = times[times.size() / 2];
    }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    return status;
}
