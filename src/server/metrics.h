/* The numbers behind metrics.c. */
#ifndef IS_SERVER_METRICS_H
#define IS_SERVER_METRICS_H

#include "internal.h"

#define IS_N_BUCKETS  18
#define IS_N_CLASSES  6 /* 1xx to 5xx; 0: others */
#define IS_MAX_ROUTES 48
#define IS_RECENT     200 /* answers that are remembered */

extern const double IS_BUCKETS_MS[IS_N_BUCKETS];

typedef struct is_histogram {
    uint64_t counts[IS_N_BUCKETS + 1];
    uint64_t n;
    double sum_ms;
} is_histogram;

typedef struct is_recent {
    uint64_t id;
    double time; /* Unix seconds */
    char tenant[IS_MAX_NAME], user[IS_MAX_NAME];
    is_mode mode;
    double ttft_ms, total_ms;
    uint32_t injected, prefilled, generated;
    unsigned status;
} is_recent;

struct is_metrics {
    pthread_mutex_t lock;
    is_histogram ttft[3]; /* by is_mode */
    is_histogram inter_token, retrieval, injection, encode;
    uint64_t injected, prefilled, generated, history, refused, refused_damaged, too_many;
    uint64_t replies[IS_MAX_ROUTES][IS_N_CLASSES];
    double prefill_ms_per_token; /* 0: not known yet */
    is_recent recent[IS_RECENT];
    uint64_t n_recent;
};

#endif
