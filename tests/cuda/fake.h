/*
 * runtime.h over host memory, for tests: a device that is as late, and as deaf to the host, as a real one may be.
 *
 * Device memory can be touched only while an operation of a stream runs; anything else that touches it crashes, also
 * after it was freed.  What is put into streams runs when something waits for it, and by chance when an event is asked
 * for; operations of different streams run in any order that is_cuda_stream_after allows.  Copies read and write host
 * memory when they run, and only pinned memory.  What the caller must not do ends the program with a line that says it.
 *
 * May be used from several threads; operations run under one lock, so they call nothing of runtime.h or of this.
 */
#ifndef IS_TESTS_CUDA_FAKE_H
#define IS_TESTS_CUDA_FAKE_H

#include "cuda/runtime.h"

/* One device, with nothing on it.  seed: of the order in which things run. */
void fake_begin(uint64_t seed);
/* False, with a line on stderr for each kind, if memory, streams or events have not been freed.  Ends the device. */
bool fake_end(void);

/* Memory of the host that stands for the device's: an engine's cache. */
void fake_adopt_all(bool adopt);

/* While it is held, operations run only where something waits for them, and no others. */
void fake_hold(bool held);
/* Runs all that there is. */
void fake_finish(void);

/* Puts a function into the stream; args are copied. */
void fake_put(is_cuda_stream *stream, void (*run)(void *args), const void *args, size_t size);
/* Whether all device memory is zero, when all operations have run. */
bool fake_is_zero(void);
/* Whether these bytes stand anywhere in device or pinned memory, when all operations have run. */
bool fake_holds(const void *bytes, size_t size);

/* The n-th call from now on that can fail does so, 1 the next one, and nothing happens in it; 0: none. */
void fake_fail_at(uint64_t n);
/* That one and all that follow. */
void fake_fail_from(uint64_t n);
/* Calls that can fail, since fake_begin; calls that were made to. */
uint64_t fake_calls(void);
uint64_t fake_failures(void);

/* What kernels do, when they run.  The arguments are the launch's own copy; what they point to is device memory. */
extern void (*fake_run_compose)(const is_move *move);
extern void (*fake_run_gather)(const is_move *move);
extern void (*fake_run_select)(const is_select *select);

#endif
