/* What `bench throughput` makes of the answers that it got: figures, tables, JSON. */
#ifndef IS_CLI_BENCH_FIGURES_H
#define IS_CLI_BENCH_FIGURES_H

#include "bench.h"
#include "http_load.h"

/* What is compared: the server with memory injected, the same with it prefilled, and llama.cpp's own server. */
typedef enum is_system { IS_SYSTEM_INJECT, IS_SYSTEM_PREFILL, IS_SYSTEM_PEER, IS_N_SYSTEMS } is_system;

const char *is_system_name(is_system system);

/* Of one system under one number of users. */
typedef struct is_figures {
    uint32_t users_measured; /* 0: nothing was measured */
    uint32_t requests, errors, retries;
    char first_error[256];
    double requests_per_s, tokens_per_s;
    double ttft_p50, ttft_p95, ttft_p99, end_p50, between_p50; /* ms, as the client sees it */
    double tokens, prompt_tokens, prefilled;                   /* means of a request */
    double waiting_ms, search_ms, inject_ms, prefill_ms,
        decode_ms;  /* means of a request, by the server's own account */
    double step_ms; /* of decoding: the mean time between two tokens of one answer */
    double batch;   /* answers decoding at the same time, the mean over the whole time */
} is_figures;

is_figures is_figures_of(const is_load_result *result, uint32_t users);

typedef struct is_throughput_row {
    uint32_t users;
    is_figures of[IS_N_SYSTEMS];
} is_throughput_row;

json_t *is_throughput_json(const is_throughput_row *rows, size_t n);
json_t *is_throughput_ratios(const is_throughput_row *rows, size_t n);
void is_throughput_print(const is_throughput_row *rows, size_t n);

#endif
