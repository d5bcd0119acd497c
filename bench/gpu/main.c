/*
 * What src/cuda does on the GPU at hand: whether it is right, and how fast.  One JSON object on stdout; 1 where
 * something is wrong, with a line on stderr.  bench/gpu.sh builds and runs it.
 *
 *     gpu-bench            a minute or two
 *     gpu-bench --quick    small sizes and one round, to see that everything works
 */
#include <stdio.h>
#include <string.h>

#include "bench.h"
#include "time.h"

bool bench_quick;

int main(int argc, char **argv)
{
    is_error err = {0};
    char name[256] = "";
    size_t l2 = 0;
    bench_quick = argc == 2 && strcmp(argv[1], "--quick") == 0;
    if (argc > 1 && !bench_quick) {
        (void)fputs("usage: gpu-bench [--quick]\n", stderr);
        return 2;
    }
    if (is_cuda_devices() == 0) {
        (void)fputs("there is no GPU that CUDA can use; nvidia-smi shows devices and driver\n", stderr);
        return 1;
    }
    is_status status = is_cuda_use(0, &err);
    if (status == IS_OK) status = bench_device(name, &l2, &err);
    printf("{\"device\": \"%s\", \"l2_bytes\": %zu,\n", name, l2);
    if (status == IS_OK) status = bench_compose(&err);
    if (status == IS_OK) printf(",\n");
    if (status == IS_OK) status = bench_retrieve(&err);
    printf("}\n");
    if (status != IS_OK) (void)fprintf(stderr, "%s\n", err.text);
    return status == IS_OK ? 0 : 1;
}
