/*
 * Prefixes of encode jobs that are kept as states, so that facts that come one by one, now of this user and now of that
 * one, each behind several primers, do not have the same primers computed again and again.
 */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define MOST_BYTES ((size_t)512 << 20)

static void drop(is_prefix_cache *cache, is_kept_prefix *p)
{
    if (p->state == NULL) return;
    explicit_bzero(p->state, p->size); /* it says what a user said */
    explicit_bzero(p->tokens, p->n * sizeof *p->tokens);
    cache->bytes -= p->size;
    free(p->state);
    free(p->tokens);
    *p = (is_kept_prefix){0};
}

/* A free place, after what was used longest ago has made room. */
static is_kept_prefix *make_room(is_prefix_cache *cache, size_t size)
{
    for (;;) {
        is_kept_prefix *empty = NULL, *last = NULL;
        for (size_t i = 0; i < IS_KEPT_PREFIXES; i++) {
            is_kept_prefix *p = &cache->kept[i];
            if (p->state == NULL)
                empty = p;
            else if (last == NULL || p->used < last->used)
                last = p;
        }
        if (empty != NULL && cache->bytes + size <= MOST_BYTES) return empty;
        if (last == NULL) return NULL;
        drop(cache, last);
    }
}

bool is_prefix_restore(is_llama *engine, const is_encode_job *job)
{
    is_prefix_cache *cache = &engine->prefixes;
    llama_memory_t memory = llama_get_memory(engine->encoder);
    bool restored = false;
    pthread_mutex_lock(&cache->lock);
    for (size_t i = 0; i < IS_KEPT_PREFIXES && !restored; i++) {
        is_kept_prefix *p = &cache->kept[i];
        if (p->state == NULL || p->n != job->n_shared || p->scope != job->scope ||
            memcmp(p->tokens, job->prefix, p->n * sizeof *p->tokens) != 0)
            continue;
        llama_memory_clear(memory, false);
        restored = llama_state_seq_set_data(engine->encoder, p->state, p->size, 0) == p->size;
        if (!restored) llama_memory_clear(memory, true);
        p->used = ++cache->clock;
    }
    pthread_mutex_unlock(&cache->lock);
    return restored;
}

void is_prefix_keep(is_llama *engine, const is_encode_job *job)
{
    is_prefix_cache *cache = &engine->prefixes;
    size_t size = llama_state_seq_get_size(engine->encoder, 0);
    if (size == 0 || size > MOST_BYTES / 2) return; /* where not even two fit, keeping them is only work */
    pthread_mutex_lock(&cache->lock);
    is_kept_prefix *p = make_room(cache, size);
    if (p != NULL) {
        *p = (is_kept_prefix){.state = malloc(size),
                              .size = size,
                              .tokens = malloc(job->n_shared * sizeof *p->tokens),
                              .n = job->n_shared,
                              .scope = job->scope,
                              .used = ++cache->clock};
        if (p->state != NULL && p->tokens != NULL &&
            llama_state_seq_get_data(engine->encoder, p->state, size, 0) == size) {
            memcpy(p->tokens, job->prefix, p->n * sizeof *p->tokens);
            cache->bytes += size;
        } else { /* it is computed again */
            free(p->state);
            free(p->tokens);
            *p = (is_kept_prefix){0};
        }
    }
    pthread_mutex_unlock(&cache->lock);
}

size_t is_prefixes_bytes(is_prefix_cache *cache)
{
    pthread_mutex_lock(&cache->lock);
    size_t bytes = cache->bytes;
    pthread_mutex_unlock(&cache->lock);
    return bytes;
}

void is_prefixes_forget(is_prefix_cache *cache, uint64_t scope)
{
    pthread_mutex_lock(&cache->lock);
    for (size_t i = 0; i < IS_KEPT_PREFIXES; i++)
        if (scope == 0 || cache->kept[i].scope == scope) drop(cache, &cache->kept[i]);
    pthread_mutex_unlock(&cache->lock);
}
