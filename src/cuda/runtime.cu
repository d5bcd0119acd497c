/* runtime.h over CUDA's runtime: memory, streams, events and copies.  The kernels' launches stand beside the kernels.
 */
#include "runtime.h"

#include <cuda_runtime.h>

#include "cuda_status.h"

is_status is_cuda_said(cudaError_t error, const char *what, size_t size, is_error *err)
{
    if (error == cudaSuccess) return IS_OK;
    (void)cudaGetLastError(); /* so that the next call does not say it again, where CUDA itself gets over it */
    const char *name = cudaGetErrorName(error);
    const char *text = cudaGetErrorString(error);
    switch (error) {
    case cudaErrorMemoryAllocation:
        return is_fail(err, IS_ENOMEM,
                       "%s of %zu bytes: %s (%s); leave more memory to InferScale, or give its device tier less", what,
                       size, text, name);
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInvalidDevice:
    case cudaErrorNoKernelImageForDevice:
        return is_fail(err, IS_EUNSUPPORTED,
                       "%s: %s (%s); nvidia-smi shows devices and driver, and without them InferScale runs on the CPU",
                       what, text, name);
    default:
        return is_fail(err, IS_EENGINE,
                       "%s: %s (%s); an error inside a kernel or copy stays until the process is started anew", what,
                       text, name);
    }
}

static cudaStream_t of(is_cuda_stream *stream)
{
    return reinterpret_cast<cudaStream_t>(stream);
}

static cudaEvent_t of(is_cuda_event *event)
{
    return reinterpret_cast<cudaEvent_t>(event);
}

uint32_t is_cuda_devices(void)
{
    int n = 0;
    if (cudaGetDeviceCount(&n) == cudaSuccess && n > 0) return (uint32_t)n;
    (void)cudaGetLastError();
    return 0;
}

is_status is_cuda_use(uint32_t device, is_error *err)
{
    return is_cuda_said(cudaSetDevice((int)device), "choosing the CUDA device", 0, err);
}

bool is_cuda_owns(const void *address)
{
    cudaPointerAttributes about;
    int device = 0;
    if (cudaPointerGetAttributes(&about, address) != cudaSuccess || cudaGetDevice(&device) != cudaSuccess) {
        (void)cudaGetLastError();
        return false;
    }
    return about.type == cudaMemoryTypeDevice && about.device == device;
}

/* ------------------------------------------------------------ memory */

is_status is_cuda_malloc(size_t size, void **out, is_error *err)
{
    *out = nullptr;
    return is_cuda_said(cudaMalloc(out, size), "device memory", size, err);
}

void is_cuda_free(void *memory)
{
    if (memory == nullptr) return;
    (void)cudaDeviceSynchronize(); /* cudaFree does so today, but promises nothing */
    (void)cudaFree(memory);
}

is_status is_cuda_host_malloc(size_t size, void **out, is_error *err)
{
    *out = nullptr;
    return is_cuda_said(cudaHostAlloc(out, size, cudaHostAllocPortable), "pinned host memory", size, err);
}

void is_cuda_host_free(void *memory)
{
    if (memory != nullptr) (void)cudaFreeHost(memory);
}

/* ------------------------------------------------------------ streams and events */

is_status is_cuda_stream_new(is_cuda_stream **out, is_error *err)
{
    cudaStream_t stream = nullptr;
    *out = nullptr;
    is_status status =
        is_cuda_said(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a CUDA stream", 0, err);
    if (status == IS_OK) *out = reinterpret_cast<is_cuda_stream *>(stream);
    return status;
}

void is_cuda_stream_free(is_cuda_stream *stream)
{
    if (stream != nullptr) (void)cudaStreamDestroy(of(stream));
}

is_status is_cuda_stream_wait(is_cuda_stream *stream, is_error *err)
{
    return is_cuda_said(cudaStreamSynchronize(of(stream)), "waiting for a CUDA stream", 0, err);
}

is_status is_cuda_event_new(is_cuda_event **out, is_error *err)
{
    cudaEvent_t event = nullptr;
    *out = nullptr;
    is_status status =
        is_cuda_said(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making a CUDA event", 0, err);
    if (status == IS_OK) *out = reinterpret_cast<is_cuda_event *>(event);
    return status;
}

void is_cuda_event_free(is_cuda_event *event)
{
    if (event != nullptr) (void)cudaEventDestroy(of(event));
}

is_status is_cuda_event_record(is_cuda_event *event, is_cuda_stream *stream, is_error *err)
{
    return is_cuda_said(cudaEventRecord(of(event), of(stream)), "recording a CUDA event", 0, err);
}

is_status is_cuda_event_done(is_cuda_event *event, bool *done, is_error *err)
{
    cudaError_t error = cudaEventQuery(of(event));
    *done = error == cudaSuccess;
    if (error != cudaErrorNotReady) return is_cuda_said(error, "asking for a CUDA event", 0, err);
    (void)cudaGetLastError(); /* which the engine in this thread would take for its own kernel's */
    return IS_OK;
}

is_status is_cuda_event_wait(is_cuda_event *event, is_error *err)
{
    return is_cuda_said(cudaEventSynchronize(of(event)), "waiting for a CUDA event", 0, err);
}

is_status is_cuda_stream_after(is_cuda_stream *stream, is_cuda_event *event, is_error *err)
{
    return is_cuda_said(cudaStreamWaitEvent(of(stream), of(event), 0), "making a CUDA stream wait for an event", 0,
                        err);
}

/* ------------------------------------------------------------ copies */

is_status is_cuda_to_device(void *device, const void *host, size_t size, is_cuda_stream *stream, is_error *err)
{
    return is_cuda_said(cudaMemcpyAsync(device, host, size, cudaMemcpyHostToDevice, of(stream)), "a copy to the device",
                        size, err);
}

is_status is_cuda_to_host(void *host, const void *device, size_t size, is_cuda_stream *stream, is_error *err)
{
    return is_cuda_said(cudaMemcpyAsync(host, device, size, cudaMemcpyDeviceToHost, of(stream)),
                        "a copy from the device", size, err);
}

is_status is_cuda_zero(void *device, size_t size, is_cuda_stream *stream, is_error *err)
{
    return is_cuda_said(cudaMemsetAsync(device, 0, size, of(stream)), "zeroing device memory", size, err);
}
