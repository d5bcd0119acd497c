/*
 * Helper threads for the scan.
 *
 * A scan is a job on the caller's stack, cut into slices that are taken by counting up one atomic number.  The caller
 * works on its own job too, so it never waits for a helper to begin, only for those in the middle of their last slice.
 * A job leaves the list when its slices are gone, and the caller leaves when no helper looks at the job any more.
 */
#include "scan_pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

/* 2,048 rows of 384 are 1.5 MB: long enough that the counter costs nothing, short enough that the threads end
 * together. */
#define SLICE_ROWS 2048

typedef struct job {
    const float *query;
    const uint16_t *rows;
    size_t n;
    uint32_t dim;
    float *scores;
    atomic_size_t next; /* first row that nobody has taken */
    size_t helpers;     /* at work on it; under the pool's mutex, as are the two below */
    bool listed;
    struct job *previous_listed, *next_listed;
    pthread_cond_t left; /* the last helper has gone */
} job;

struct is_scan_pool {
    pthread_mutex_t mutex;
    pthread_cond_t work;
    job *jobs;
    pthread_t *threads;
    uint32_t wanted, started;
    bool tried; /* to start them */
    bool stop;
};

static void run_slices(job *j)
{
    for (;;) {
        size_t first = atomic_fetch_add(&j->next, SLICE_ROWS);
        if (first >= j->n) return;
        size_t n = j->n - first < SLICE_ROWS ? j->n - first : SLICE_ROWS;
        is_scan_dot(is_isa_best(), j->query, j->rows + first * j->dim, n, j->dim, j->scores + first);
    }
}

/* Under the mutex. */
static void unlist(is_scan_pool *pool, job *j)
{
    if (!j->listed) return;
    if (j->previous_listed)
        j->previous_listed->next_listed = j->next_listed;
    else
        pool->jobs = j->next_listed;
    if (j->next_listed) j->next_listed->previous_listed = j->previous_listed;
    j->listed = false;
}

static void *helper(void *arg)
{
    is_scan_pool *pool = arg;
    pthread_mutex_lock(&pool->mutex);
    while (!pool->stop) {
        job *j = pool->jobs;
        if (j == NULL) {
            pthread_cond_wait(&pool->work, &pool->mutex);
            continue;
        }
        j->helpers++;
        pthread_mutex_unlock(&pool->mutex);
        run_slices(j);
        pthread_mutex_lock(&pool->mutex);
        unlist(pool, j);
        if (--j->helpers == 0) pthread_cond_signal(&j->left);
    }
    pthread_mutex_unlock(&pool->mutex);
    return NULL;
}

is_status is_scan_pool_new(uint32_t threads, is_scan_pool **out, is_error *err)
{
    is_scan_pool *pool = calloc(1, sizeof *pool);
    pthread_t *ids = calloc(threads ? threads : 1, sizeof *ids);
    if (pool == NULL || ids == NULL) {
        free(pool);
        free(ids);
        return is_fail(err, IS_ENOMEM, "no memory for the scan's %u helper threads", threads);
    }
    pool->threads = ids;
    pool->wanted = threads;
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->work, NULL);
    *out = pool;
    return IS_OK;
}

void is_scan_pool_free(is_scan_pool *pool)
{
    if (pool == NULL) return;
    pthread_mutex_lock(&pool->mutex);
    pool->stop = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->mutex);
    for (uint32_t i = 0; i < pool->started; i++) pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->mutex);
    free(pool->threads);
    free(pool);
}

/* Under the mutex.  A thread that cannot be made is done without. */
static void start_helpers(is_scan_pool *pool)
{
    if (pool->tried) return;
    pool->tried = true;
    while (pool->started < pool->wanted && pthread_create(&pool->threads[pool->started], NULL, helper, pool) == 0)
        pool->started++;
}

void is_scan_pool_dot(is_scan_pool *pool, const float *query, const uint16_t *rows, size_t n, uint32_t dim,
                      float *scores)
{
    if (n <= IS_SCAN_POOL_ROWS || pool->wanted == 0) {
        is_scan_dot(is_isa_best(), query, rows, n, dim, scores);
        return;
    }
    job j = {.query = query, .rows = rows, .n = n, .dim = dim, .scores = scores, .listed = true};
    atomic_init(&j.next, 0);
    pthread_cond_init(&j.left, NULL);

    pthread_mutex_lock(&pool->mutex);
    start_helpers(pool);
    j.next_listed = pool->jobs;
    if (pool->jobs) pool->jobs->previous_listed = &j;
    pool->jobs = &j;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->mutex);

    run_slices(&j);

    pthread_mutex_lock(&pool->mutex);
    unlist(pool, &j);
    while (j.helpers > 0) pthread_cond_wait(&j.left, &pool->mutex);
    pthread_mutex_unlock(&pool->mutex);
    pthread_cond_destroy(&j.left);
}
