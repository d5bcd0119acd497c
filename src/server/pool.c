/*
 * Worker threads and their queue.
 *
 * The queue is fair between those who ask: the next request is the oldest of whoever has the fewest in work, so that
 * one who sends fifty at once does not make the others wait behind all of them.
 */
#include "internal.h"

#include <stdlib.h>

#define MAX_THREADS 512
#define STACK_BYTES ((size_t)1 << 20)

struct is_pool {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    is_request *head, *tail;
    uint32_t queued, most;
    uint32_t running;
    uint64_t in_work[MAX_THREADS]; /* who asks, by thread; 0: idle */
    bool closing;
    pthread_t threads[MAX_THREADS];
    uint32_t n_threads;
};

typedef struct worker {
    is_pool *pool;
    uint32_t index;
} worker;

static uint32_t works_for(const is_pool *pool, uint64_t who)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < pool->n_threads; i++) n += pool->in_work[i] == who;
    return n;
}

static is_request *take(is_pool *pool)
{
    is_request *best_before = NULL, *before = NULL;
    uint32_t fewest = UINT32_MAX;
    for (is_request *r = pool->head; r != NULL; before = r, r = r->next) {
        uint32_t n = works_for(pool, r->fair);
        if (n >= fewest) continue;
        fewest = n;
        best_before = before;
        if (n == 0) break;
    }
    is_request *best = best_before == NULL ? pool->head : best_before->next;
    if (best_before == NULL)
        pool->head = best->next;
    else
        best_before->next = best->next;
    if (pool->tail == best) pool->tail = best_before;
    pool->queued--;
    return best;
}

static void *work(void *arg)
{
    worker w = *(worker *)arg;
    free(arg);
    is_pool *pool = w.pool;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (pool->head == NULL && !pool->closing) pthread_cond_wait(&pool->wake, &pool->lock);
        if (pool->head == NULL) break;
        is_request *r = take(pool);
        pool->in_work[w.index] = r->fair;
        pool->running++;
        pthread_mutex_unlock(&pool->lock);
        if (atomic_load(&r->server->stopping))
            is_reply_draining(r);
        else if (!is_request_gone(r))
            is_route_work(r);
        is_request_end(r);
        pthread_mutex_lock(&pool->lock);
        pool->in_work[w.index] = 0;
        pool->running--;
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

is_status is_pool_open(uint32_t threads, uint32_t queue, is_pool **out, is_error *err)
{
    is_pool *pool = *out = calloc(1, sizeof *pool);
    if (pool == NULL) return is_fail(err, IS_ENOMEM, "no memory for worker threads");
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pool->most = queue;
    if (threads > MAX_THREADS) threads = MAX_THREADS;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    (void)pthread_attr_setstacksize(&attributes, STACK_BYTES);
    is_status status = IS_OK;
    while (status == IS_OK && pool->n_threads < threads) {
        worker *w = malloc(sizeof *w);
        if (w != NULL) *w = (worker){pool, pool->n_threads};
        pthread_mutex_lock(&pool->lock); /* a worker that began reads n_threads */
        if (w == NULL || pthread_create(&pool->threads[pool->n_threads], &attributes, work, w) != 0) {
            free(w);
            status = is_fail(err, IS_ENOMEM, "the system gives no thread for requests");
        } else {
            pool->n_threads++;
        }
        pthread_mutex_unlock(&pool->lock);
    }
    pthread_attr_destroy(&attributes);
    return status;
}

bool is_pool_submit(is_pool *pool, is_request *r)
{
    pthread_mutex_lock(&pool->lock);
    bool room = pool->queued < pool->most;
    if (room) {
        r->next = NULL;
        if (pool->tail != NULL)
            pool->tail->next = r;
        else
            pool->head = r;
        pool->tail = r;
        pool->queued++;
        pthread_cond_signal(&pool->wake);
    }
    pthread_mutex_unlock(&pool->lock);
    return room;
}

void is_pool_load(is_pool *pool, uint32_t *running, uint32_t *queued)
{
    pthread_mutex_lock(&pool->lock);
    *running = pool->running;
    *queued = pool->queued;
    pthread_mutex_unlock(&pool->lock);
}

void is_pool_close(is_pool *pool)
{
    if (pool == NULL) return;
    pthread_mutex_lock(&pool->lock);
    pool->closing = true;
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    for (uint32_t i = 0; i < pool->n_threads; i++) pthread_join(pool->threads[i], NULL);
    pthread_mutex_destroy(&pool->lock);
    pthread_cond_destroy(&pool->wake);
    free(pool);
}
