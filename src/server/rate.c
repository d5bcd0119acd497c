/*
 * Requests a minute, as a bucket for each who asks: it holds a minute's worth and fills steadily.  The table has a
 * fixed size; when it is full, the bucket that was touched longest ago makes room, which only ever forgives.
 */
#include "internal.h"

#include <math.h>
#include <stdlib.h>

#define BUCKETS 4096
#define PROBES  8

typedef struct bucket {
    uint64_t who; /* 0: free */
    double level; /* requests that may come now */
    double at_ms;
} bucket;

struct is_rate {
    pthread_mutex_t lock;
    double per_minute;
    bucket buckets[BUCKETS];
};

is_status is_rate_open(uint32_t per_minute, is_rate **out, is_error *err)
{
    is_rate *rate = *out = calloc(1, sizeof *rate);
    if (rate == NULL) return is_fail(err, IS_ENOMEM, "no memory for the rate limit");
    pthread_mutex_init(&rate->lock, NULL);
    rate->per_minute = per_minute;
    return IS_OK;
}

static bucket *find(is_rate *rate, uint64_t who, double now)
{
    bucket *oldest = NULL;
    for (uint64_t i = 0; i < PROBES; i++) {
        bucket *b = &rate->buckets[(who + i) % BUCKETS];
        if (b->who == who) return b;
        if (oldest == NULL || b->at_ms < oldest->at_ms) oldest = b;
    }
    *oldest = (bucket){who, rate->per_minute, now};
    return oldest;
}

uint32_t is_rate_take(is_rate *rate, uint64_t who)
{
    double now = is_now_ms();
    double wait = 0;
    pthread_mutex_lock(&rate->lock);
    bucket *b = find(rate, who == 0 ? 1 : who, now);
    b->level = fmin(rate->per_minute, b->level + (now - b->at_ms) * rate->per_minute / 60000);
    b->at_ms = now;
    if (b->level >= 1)
        b->level -= 1;
    else
        wait = (1 - b->level) * 60 / rate->per_minute;
    pthread_mutex_unlock(&rate->lock);
    return (uint32_t)ceil(wait);
}

void is_rate_close(is_rate *rate)
{
    if (rate == NULL) return;
    pthread_mutex_destroy(&rate->lock);
    free(rate);
}
