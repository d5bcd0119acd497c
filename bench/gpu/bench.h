/* The parts of the device's benchmark: each prints its member of one JSON object. */
#ifndef IS_BENCH_GPU_BENCH_H
#define IS_BENCH_GPU_BENCH_H

#include "common/common.h"

/* Small sizes and few rounds: to see that everything works. */
extern bool bench_quick;

is_status bench_compose(is_error *err);
is_status bench_retrieve(is_error *err);

#endif
