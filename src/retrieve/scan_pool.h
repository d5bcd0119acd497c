/*
 * Helper threads for the scan of large scopes.
 *
 * A pool starts without threads; they are made when the first large scan asks and then wait, asleep, for the next.
 * Several searches may use one pool at the same time.
 */
#ifndef IS_RETRIEVE_SCAN_POOL_H
#define IS_RETRIEVE_SCAN_POOL_H

#include "retrieve.h"

/* Rows from which on a scan is split: below, one thread is done before a helper is awake. */
#define IS_SCAN_POOL_ROWS 20000

typedef struct is_scan_pool is_scan_pool;

/* threads: helpers beside the calling thread.  *out: is_scan_pool_free. */
is_status is_scan_pool_new(uint32_t threads, is_scan_pool **out, is_error *err);
/* No scan may be running. */
void is_scan_pool_free(is_scan_pool *pool);

/* is_scan_dot with the best instruction set, over several threads when n is above IS_SCAN_POOL_ROWS.  Always
 * completes: with fewer helpers, or none, where the system gives no more threads. */
void is_scan_pool_dot(is_scan_pool *pool, const float *query, const uint16_t *rows, size_t n, uint32_t dim,
                      float *scores);

#endif
