/*
 * Chunks into a sequence of the serving context.
 *
 * Where the cache can be written in place (direct.c) the chunks are composed into it.  Otherwise
 * they are composed into a state blob, layers divided among the threads, and the blob is
 * handed to the engine: two passes over the bytes, both at memory speed.  The blob's memory is kept and its
 * pages are touched when the engine opens, since the first touch of a page costs several times the copy.
 */
#include "internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* What one compose is, for the helpers. */
typedef struct compose_work {
    const is_layout *layout;
    const is_placed *chunks;
    size_t n;
    const is_target *targets;
} compose_work;

typedef struct is_helpers {
    pthread_mutex_t lock;
    pthread_cond_t start, finished;
    uint32_t n;
    uint32_t round;     /* counts composes; a helper works once a round */
    uint32_t remaining; /* helpers that have not finished this round     */
    bool closing;
    compose_work work;
    is_status status; /* of the first helper that failed */
    pthread_t threads[64];
    uint32_t n_started;
} is_helpers;

typedef struct helper_arg {
    is_helpers *helpers;
    uint32_t index;
} helper_arg;

/* Share `index` of `parts` of the layers: begin and end. */
static is_status compose_share(const compose_work *w, uint32_t index, uint32_t parts, is_error *err)
{
    uint32_t n = w->layout->n_layers;
    uint32_t begin = (uint32_t)((uint64_t)n * index / parts);
    uint32_t end = (uint32_t)((uint64_t)n * (index + 1) / parts);
    return is_compose(w->layout, w->chunks, w->n, w->targets, begin, end, err);
}

static void *helper_main(void *arg)
{
    helper_arg a = *(helper_arg *)arg;
    free(arg);
    is_helpers *h = a.helpers;
    uint32_t seen = 0;
    pthread_mutex_lock(&h->lock);
    for (;;) {
        while (h->round == seen && !h->closing) pthread_cond_wait(&h->start, &h->lock);
        if (h->closing) break;
        seen = h->round;
        compose_work work = h->work;
        pthread_mutex_unlock(&h->lock);
        is_status status = compose_share(&work, a.index, h->n + 1, NULL);
        pthread_mutex_lock(&h->lock);
        if (status != IS_OK) h->status = status;
        if (--h->remaining == 0) pthread_cond_signal(&h->finished);
    }
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

is_status is_helpers_open(uint32_t n, is_helpers **out, is_error *err)
{
    is_helpers *h = calloc(1, sizeof *h);
    *out = h;
    if (h == NULL) return is_fail(err, IS_ENOMEM, "no memory for compose helpers");
    h->n = n < 64 ? n : 63;
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->start, NULL);
    pthread_cond_init(&h->finished, NULL);
    for (uint32_t i = 0; i < h->n; i++) {
        helper_arg *arg = malloc(sizeof *arg);
        if (arg != NULL) *arg = (helper_arg){h, i + 1};
        if (arg == NULL || pthread_create(&h->threads[i], NULL, helper_main, arg) != 0) {
            free(arg);
            is_helpers_close(h);
            *out = NULL;
            return is_fail(err, IS_ENOMEM, "the system gives no thread to help with composing");
        }
        h->n_started++;
    }
    return IS_OK;
}

void is_helpers_close(is_helpers *h)
{
    if (h == NULL) return;
    pthread_mutex_lock(&h->lock);
    h->closing = true;
    pthread_cond_broadcast(&h->start);
    pthread_mutex_unlock(&h->lock);
    for (uint32_t i = 0; i < h->n_started; i++) pthread_join(h->threads[i], NULL);
    pthread_mutex_destroy(&h->lock);
    pthread_cond_destroy(&h->start);
    pthread_cond_destroy(&h->finished);
    free(h);
}

static is_status compose_all(is_helpers *h, const compose_work *work, is_error *err)
{
    if (h->n == 0) return compose_share(work, 0, 1, err);
    pthread_mutex_lock(&h->lock);
    h->work = *work;
    h->status = IS_OK;
    h->remaining = h->n;
    h->round++;
    pthread_cond_broadcast(&h->start);
    pthread_mutex_unlock(&h->lock);
    is_status status = compose_share(work, 0, h->n + 1, err);
    pthread_mutex_lock(&h->lock);
    while (h->remaining > 0) pthread_cond_wait(&h->finished, &h->lock);
    if (status == IS_OK && h->status != IS_OK) status = is_fail(err, h->status, "the chunks do not fill their rows");
    pthread_mutex_unlock(&h->lock);
    return status;
}

bool is_chunk_usable(const is_llama *engine, const is_segment *segment)
{
    const is_chunk *chunk = segment->chunk;
    return memcmp(chunk->info.fingerprint, engine->fingerprint, sizeof engine->fingerprint) == 0 &&
           chunk->info.n_tokens == segment->n_tokens &&
           memcmp(chunk->tokens, segment->tokens, segment->n_tokens * sizeof *segment->tokens) == 0 &&
           is_chunk_fits(chunk, &engine->layout, NULL) == IS_OK;
}

is_status is_context_renew(is_llama *engine, is_error *err)
{
    llama_free(engine->context);
    engine->direct = (is_direct){.watching = false}; /* the tensors are gone with the context */
    engine->context = is_context_open(&engine->model, engine->n_context, engine->n_slots, false,
                                      IS_LLAMA_PIECE + IS_MAX_SLOTS, NULL, err);
    for (uint32_t i = 0; i < engine->n_slots; i++) engine->slots[i].resident_salt = 0;
    return engine->context == NULL ? IS_EENGINE : IS_OK;
}

/* Room for the blob; grown in whole huge pages and touched once. */
static is_status reserve_blob(is_llama *engine, size_t size, is_error *err)
{
    if (size <= engine->blob_size) return IS_OK;
    size_t want = is_align_up(size, (size_t)2 << 20);
    void *p = mmap(NULL, want, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return is_fail(err, IS_ENOMEM, "no memory for %zu bytes of injected state", want);
    (void)madvise(p, want, MADV_HUGEPAGE);
    memset(p, 0, want);
    if (engine->blob != NULL) munmap(engine->blob, engine->blob_size);
    engine->blob = p;
    engine->blob_size = want;
    return IS_OK;
}

is_status is_blob_open(is_llama *engine, uint32_t n_tokens, is_error *err)
{
    uint32_t cells[IS_STATE_MAX_CACHES] = {n_tokens, n_tokens};
    size_t size = is_state_bytes(&engine->shape, cells);
    if (size == 0) return is_fail(err, IS_ELIMIT, "a state of %u tokens is larger than memory can be", n_tokens);
    return reserve_blob(engine, size, err);
}

void is_blob_close(is_llama *engine)
{
    if (engine->blob != NULL) munmap(engine->blob, engine->blob_size);
    engine->blob = NULL;
}

is_status is_inject(is_llama *engine, int32_t sequence, const is_placed *chunks, size_t n, uint32_t n_tokens,
                    uint64_t *bytes, is_error *err)
{
    const is_state_shape *shape = &engine->shape;
    is_target targets[IS_MAX_LAYERS];
    uint32_t cells[IS_STATE_MAX_CACHES] = {0};
    compose_work work = {&engine->layout, chunks, n, targets};
    if (n_tokens > engine->most_tokens) engine->most_tokens = n_tokens;
    if (is_direct_cut(engine, sequence, n_tokens)) {
        is_direct_targets(engine, sequence, n_tokens, targets);
        *bytes = (uint64_t)n_tokens * is_layout_token_bytes(&engine->layout);
        return compose_all(engine->helpers, &work, err);
    }
    llama_memory_seq_rm(llama_get_memory(engine->context), sequence, -1, -1);
    for (uint32_t c = 0; c < shape->n_caches; c++) {
        const is_layer *layer = &engine->layout.layers[shape->caches[c].layer_begin];
        cells[c] = n_tokens - is_layer_first(layer, n_tokens);
    }
    size_t size = is_state_bytes(shape, cells);
    is_status status = reserve_blob(engine, size, err);
    if (status != IS_OK) return status;
    size_t used = is_state_begin(shape, engine->blob, n_tokens, cells, targets);
    status = compose_all(engine->helpers, &work, err);
    if (status != IS_OK) return status;
    *bytes = used;
    is_llama_quiet();
    if (llama_state_seq_set_data(engine->context, engine->blob, used, sequence) != used) {
        /* A restore that failed half-way leaves rows behind that later sequences may see. */
        (void)is_fail(err, IS_EENGINE, "the engine refused the injected state: %s", is_llama_last_error());
        (void)is_context_renew(engine, NULL);
        return IS_EENGINE;
    }
    return IS_OK;
}

bool is_fill_cells(is_llama *engine, int32_t sequence)
{
    llama_memory_t memory = llama_get_memory(engine->context);
    if (!engine->direct.ready || llama_memory_seq_pos_max(memory, sequence) + 1 >= (llama_pos)engine->most_tokens)
        return false;
    is_target targets[IS_MAX_LAYERS];
    uint32_t cells[IS_STATE_MAX_CACHES] = {engine->most_tokens};
    size_t size = is_state_bytes(&engine->shape, cells);
    if (size == 0 || reserve_blob(engine, size, NULL) != IS_OK) return false;
    memset(engine->blob, 0, size);
    size_t used = is_state_begin(&engine->shape, engine->blob, engine->most_tokens, cells, targets);
    is_llama_quiet();
    if (llama_state_seq_set_data(engine->context, engine->blob, used, sequence) == used) return true;
    (void)is_context_renew(engine, NULL);
    return false;
}
