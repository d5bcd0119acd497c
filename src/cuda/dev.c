/*
 * Chunks into an engine's cache on a GPU, dev.h.
 *
 * Two streams: the engine's, which each call names, and one of this part's own, on which chunks are written.  What
 * is written waits for the engine's stream as it was when the writing began, since the blocks may have had another use
 * before; and the engine's stream waits for each layer before it reads it.
 */
#include "dev.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* A prompt that was added, with what it holds until it is written. */
typedef struct added {
    is_device_placed *placed;       /* [n] */
    is_device_pool_pin **on_device; /* [n] */
    void **pins;                    /* [n_pins] */
    uint32_t *blocks;
    size_t n_blocks;
    uint32_t n, n_pins, begin, end;
    uint32_t n_whole; /* of the n, the first that are there whole */
} added;

struct is_dev {
    uint32_t device;
    is_unpin_fn unpin;
    void *user;
    is_device_pool *pool;
    is_layout layout;
    is_device_cache *cache;
    is_cuda_stream *stream;
    is_cuda_event *before;                 /* the engine's stream, when writing begins */
    is_cuda_event *written[IS_MAX_LAYERS]; /* each layer of what was started last */
    added *prompts;
    size_t n, room;
    uint8_t *pinned; /* for chunks that come back */
    size_t n_pinned;
    pthread_mutex_t lock;
};

/* ------------------------------------------------------------ opening */

is_status is_dev_open(uint32_t device, uint64_t budget, is_unpin_fn unpin, void *user, is_dev **out, is_error *err)
{
    *out = NULL;
    if (device >= is_cuda_devices())
        return is_fail(err, IS_EUNSUPPORTED, "there is no CUDA device %u, or its driver is missing", device);
    is_dev *d = calloc(1, sizeof *d);
    if (d == NULL) return is_fail(err, IS_ENOMEM, "no memory for the way to the device");
    d->device = device;
    d->unpin = unpin;
    d->user = user;
    (void)pthread_mutex_init(&d->lock, NULL);
    is_device_pool_settings settings = {.budget = budget};
    is_status status = is_cuda_use(device, err);
    if (status == IS_OK) status = is_cuda_ready(err);
    if (status == IS_OK) status = is_device_pool_open(&settings, &d->pool, err);
    if (status == IS_OK) status = is_cuda_stream_new(&d->stream, err);
    if (status == IS_OK) status = is_cuda_event_new(&d->before, err);
    if (status != IS_OK)
        is_dev_close(d);
    else
        *out = d;
    return status;
}

static void forget_prompts(is_dev *d);

static void close_events(is_dev *d)
{
    for (uint32_t l = 0; l < IS_MAX_LAYERS; l++) {
        is_cuda_event_free(d->written[l]);
        d->written[l] = NULL;
    }
}

void is_dev_close(is_dev *d)
{
    if (d == NULL) return;
    (void)is_cuda_use(d->device, NULL);
    forget_prompts(d);
    if (d->stream != NULL) (void)is_cuda_stream_wait(d->stream, NULL);
    is_device_cache_free(d->cache);
    is_device_pool_close(d->pool);
    close_events(d);
    is_cuda_event_free(d->before);
    is_cuda_stream_free(d->stream);
    is_cuda_host_free(d->pinned);
    (void)pthread_mutex_destroy(&d->lock);
    free(d->prompts);
    free(d);
}

is_status is_dev_cache(is_dev *d, const is_layout *layout, const is_device_layer *layers, is_cell cell,
                       uint32_t block_tokens, uint32_t n_blocks, is_error *err)
{
    is_device_cache_free(d->cache);
    d->cache = NULL;
    close_events(d);
    d->layout = *layout;
    is_status status = is_cuda_use(d->device, err);
    if (status == IS_OK) status = is_device_cache_new(layout, layers, cell, block_tokens, n_blocks, &d->cache, err);
    for (uint32_t l = 0; status == IS_OK && l < layout->n_layers; l++) status = is_cuda_event_new(&d->written[l], err);
    return status;
}

static is_status no_cache(is_error *err)
{
    return is_fail(err, IS_EINVAL, "the engine's cache on the device is not known yet");
}

/* ------------------------------------------------------------ prompts */

/* What a prompt holds goes: the device's chunks once the stream has done with them, the host's at once. */
static is_status let_go(is_dev *d, added *a, is_error *err)
{
    is_status status = a->n > 0 ? is_cuda_use(d->device, err) : IS_OK; /* it may not have been reached before */
    if (a->n > 0) { /* in any case: what cannot be said to be done with is out of use, but no longer held */
        is_status released =
            is_device_pool_release(d->pool, a->on_device, a->n, d->stream, status == IS_OK ? err : NULL);
        if (status == IS_OK) status = released;
    }
    for (uint32_t i = 0; i < a->n_pins; i++) d->unpin(d->user, a->pins[i]);
    free(a->placed);
    free(a->on_device);
    free(a->pins);
    free(a->blocks);
    *a = (added){0};
    return status;
}

static void forget_prompts(is_dev *d)
{
    for (size_t i = 0; i < d->n; i++) (void)let_go(d, &d->prompts[i], NULL);
    d->n = 0;
}

/* Copies what the caller has, so that it can go on; false: no memory.  The pins are the prompt's now in any case. */
static bool copy_prompt(const is_dev_prompt *p, added *a)
{
    *a = (added){.n_blocks = p->n_blocks, .begin = p->begin};
    a->pins = calloc(p->n + 1, sizeof(void *));
    a->placed = calloc(p->n + 1, sizeof *a->placed);
    a->on_device = calloc(p->n + 1, sizeof(is_device_pool_pin *));
    a->blocks = malloc((p->n_blocks + 1) * sizeof *a->blocks);
    if (a->pins == NULL || a->placed == NULL || a->on_device == NULL || a->blocks == NULL) return false;
    memcpy(a->blocks, p->blocks, p->n_blocks * sizeof *a->blocks);
    a->n_pins = p->pins != NULL ? p->n : 0;
    for (uint32_t i = 0; i < a->n_pins; i++) a->pins[i] = p->pins[i];
    return true;
}

/* The first chunk that has tokens behind p->begin: those before it are there already. */
static uint32_t first_wanted(const is_dev_prompt *p)
{
    uint32_t i = 0;
    while (i < p->n && (uint32_t)p->placed[i].position + p->placed[i].chunk->info.n_tokens <= p->begin) i++;
    return i;
}

/* Onto the device, in order, up to the first chunk that there is no room for. */
static is_status promote(is_dev *d, const is_dev_prompt *p, added *a, uint32_t *reach, is_error *err)
{
    uint32_t first = first_wanted(p);
    is_device_pool_want *wants = calloc(p->n + 1, sizeof *wants);
    if (wants == NULL) return is_fail(err, IS_ENOMEM, "no memory for %u chunks", p->n);
    for (uint32_t i = first; i < p->n; i++) {
        const is_chunk *chunk = p->placed[i].chunk;
        wants[i] = (is_device_pool_want){.number = p->numbers[i], .bytes = chunk->bytes, .size = chunk->size};
        memcpy(wants[i].key, p->keys[i], sizeof wants[i].key);
    }
    is_status status = is_device_pool_take(d->pool, wants + first, p->n - first, d->stream, err);
    *reach = p->begin;
    a->n = status == IS_OK ? p->n : 0;
    a->n_whole = first;
    for (uint32_t i = 0; i < a->n; i++) {
        a->on_device[i] = wants[i].pin;
        a->placed[i] = (is_device_placed){.chunk = p->placed[i].chunk, .position = p->placed[i].position};
        if (wants[i].pin == NULL || a->n_whole != i) continue;
        a->placed[i].bytes = is_device_pool_memory(wants[i].pin);
        a->n_whole = i + 1;
        *reach = (uint32_t)p->placed[i].position + p->placed[i].chunk->info.n_tokens;
    }
    free(wants);
    return status;
}

static bool grow_prompts(is_dev *d)
{
    if (d->n < d->room) return true;
    added *grown = realloc(d->prompts, (2 * d->room + 8) * sizeof *grown);
    if (grown == NULL) return false;
    d->prompts = grown;
    d->room = 2 * d->room + 8;
    return true;
}

/* Once more, when those that were added before are written and their chunks can go. */
static is_status promote_alone(is_dev *d, const is_dev_prompt *p, added *a, uint32_t *reach, void *stream,
                               is_error *err)
{
    is_status status = is_device_pool_release(d->pool, a->on_device, a->n, d->stream, err);
    a->n = 0;
    if (status == IS_OK) status = is_dev_start(d, stream, err);
    if (status == IS_OK) status = is_cuda_stream_wait(d->stream, err);
    return status == IS_OK ? promote(d, p, a, reach, err) : status;
}

is_status is_dev_add(is_dev *d, const is_dev_prompt *p, uint32_t *reach, void *stream, is_error *err)
{
    added a = {0};
    is_status status = IS_OK;
    *reach = 0;
    if (!copy_prompt(p, &a)) {
        for (uint32_t i = 0; p->pins != NULL && i < p->n; i++) d->unpin(d->user, p->pins[i]);
        (void)let_go(d, &a, NULL);
        return is_fail(err, IS_ENOMEM, "no memory for a prompt of %u chunks", p->n);
    }
    if (d->cache == NULL) status = no_cache(err);
    if (status == IS_OK && !grow_prompts(d)) status = is_fail(err, IS_ENOMEM, "no memory for one more prompt");
    if (status == IS_OK) status = is_cuda_use(d->device, err);
    if (status == IS_OK) status = promote(d, p, &a, reach, err);
    if (status == IS_OK && *reach < p->end && d->n > 0) status = promote_alone(d, p, &a, reach, stream, err);
    if (*reach > p->end) *reach = p->end;
    a.end = *reach;
    if (status != IS_OK || a.end <= a.begin) {
        is_status gone = let_go(d, &a, status == IS_OK ? err : NULL);
        return status == IS_OK ? gone : status;
    }
    d->prompts[d->n++] = a;
    return IS_OK;
}

/* ------------------------------------------------------------ writing */

static is_status write_layers(is_dev *d, const is_device_prompt *prompts, void *engine, is_error *err)
{
    is_status status = is_cuda_event_record(d->before, engine, err);
    if (status == IS_OK) status = is_cuda_stream_after(d->stream, d->before, err);
    if (status == IS_OK) status = is_device_begin(d->cache, prompts, d->n, d->stream, err);
    for (uint32_t l = 0; status == IS_OK && l < d->layout.n_layers; l++) {
        status = is_device_compose(d->cache, l, l + 1, d->stream, err);
        if (status == IS_OK) status = is_cuda_event_record(d->written[l], d->stream, err);
    }
    return status;
}

is_status is_dev_start(is_dev *d, void *stream, is_error *err)
{
    if (d->n == 0) return IS_OK;
    is_device_prompt *prompts = calloc(d->n, sizeof *prompts);
    is_status status =
        prompts != NULL ? is_cuda_use(d->device, err) : is_fail(err, IS_ENOMEM, "no memory for %zu prompts", d->n);
    for (size_t i = 0; prompts != NULL && i < d->n; i++) {
        const added *a = &d->prompts[i];
        prompts[i] = (is_device_prompt){a->placed, a->n_whole, a->blocks, a->n_blocks, a->begin, a->end};
    }
    if (status == IS_OK) status = write_layers(d, prompts, stream, err);
    free(prompts);
    for (size_t i = 0; i < d->n; i++) {
        is_status gone = let_go(d, &d->prompts[i], status == IS_OK ? err : NULL);
        if (status == IS_OK) status = gone;
    }
    d->n = 0;
    /* The engine now computes into these blocks itself: nothing may come behind. */
    if (status != IS_OK && is_cuda_use(d->device, NULL) == IS_OK) (void)is_cuda_stream_wait(d->stream, NULL);
    return status;
}

is_status is_dev_wait(is_dev *d, uint32_t layer, void *stream, is_error *err)
{
    if (layer >= d->layout.n_layers) return is_fail(err, IS_EINVAL, "layer %u of %u", layer, d->layout.n_layers);
    is_status status = is_cuda_use(d->device, err);
    if (status != IS_OK) return status;
    status = is_cuda_stream_after(stream, d->written[layer], err);
    /* Else the host waits, which is as good. */
    return status == IS_OK || is_cuda_stream_wait(d->stream, NULL) != IS_OK ? status : IS_OK;
}

is_status is_dev_finish(is_dev *d, is_error *err)
{
    is_status status = is_cuda_use(d->device, err);
    return status == IS_OK ? is_cuda_stream_wait(d->stream, err) : status;
}

bool is_dev_owns(const is_dev *d, const void *address)
{
    return is_cuda_use(d->device, NULL) == IS_OK && is_cuda_owns(address);
}

/* ------------------------------------------------------------ reading */

static is_status reserve_pinned(is_dev *d, size_t size, is_error *err)
{
    void *pinned;
    if (size <= d->n_pinned) return IS_OK;
    is_cuda_host_free(d->pinned);
    d->pinned = NULL;
    d->n_pinned = 0;
    is_status status = is_cuda_host_malloc(size, &pinned, err);
    if (status != IS_OK) return status;
    d->pinned = pinned;
    d->n_pinned = size;
    return IS_OK;
}

/* Bytes of a begun chunk in front of its rows. */
static size_t front_of(void *chunk)
{
    uint8_t *k, *v;
    uint32_t first, n;
    is_chunk_rows_mut(chunk, 0, &k, &v, &first, &n);
    return (size_t)(k - (uint8_t *)chunk);
}

is_status is_dev_read(is_dev *d, const uint32_t *blocks, size_t n_blocks, uint32_t begin, void *chunk, size_t size,
                      void *stream, is_error *err)
{
    is_device_pool_pin *pin = NULL;
    if (d->cache == NULL) return no_cache(err);
    is_status status = is_cuda_use(d->device, err);
    if (status == IS_OK) status = reserve_pinned(d, size, err);
    if (status == IS_OK) status = is_device_pool_reserve(d->pool, size, stream, &pin, err);
    if (status != IS_OK) return status;
    if (pin == NULL)
        return is_fail(err, IS_ENOMEM, "the device has no room for a chunk of %zu bytes; give it a larger budget",
                       size);
    uint8_t *memory = is_device_pool_memory(pin);
    size_t front = front_of(chunk); /* its header and records; the rows are the device's to bring */
    memcpy(d->pinned, chunk, front);
    status = is_cuda_to_device(memory, d->pinned, front, stream, err);
    if (status == IS_OK) status = is_device_gather(d->cache, chunk, memory, blocks, n_blocks, begin, stream, err);
    if (status == IS_OK) status = is_cuda_to_host(d->pinned, memory, size, stream, err);
    is_status gone = is_device_pool_release(d->pool, &pin, 1, stream, status == IS_OK ? err : NULL);
    if (status == IS_OK) status = gone;
    is_status ended = is_cuda_stream_wait(stream, status == IS_OK ? err : NULL);
    if (status == IS_OK) status = ended;
    if (status == IS_OK) memcpy(chunk, d->pinned, size);
    if (ended == IS_OK) explicit_bzero(d->pinned, size); /* it may be forgotten as soon as it is stored */
    return status;
}

/* ------------------------------------------------------------ what was forgotten */

void is_dev_lock(is_dev *d)
{
    (void)pthread_mutex_lock(&d->lock);
}

void is_dev_unlock(is_dev *d)
{
    (void)pthread_mutex_unlock(&d->lock);
}

void is_dev_drop(is_dev *d, int64_t number)
{
    if (is_cuda_use(d->device, NULL) == IS_OK) (void)is_device_pool_drop(d->pool, number, NULL);
}

void is_dev_drop_scope(is_dev *d, uint64_t scope)
{
    static const uint8_t no_key[IS_DEVICE_POOL_KEY];
    is_device_pool_listed *listed;
    size_t n;
    int64_t mark = is_dev_number(scope, no_key) >> 31;
    if (is_device_pool_list(d->pool, &listed, &n, NULL) != IS_OK) return;
    for (size_t i = 0; i < n; i++)
        if (listed[i].number >> 31 == mark) is_dev_drop(d, listed[i].number);
    free(listed);
}

uint64_t is_dev_count(is_dev *d)
{
    is_device_pool_counts counts;
    is_device_pool_stats(d->pool, &counts);
    return counts.chunks;
}

is_status is_dev_list(is_dev *d, is_device_pool_listed **out, size_t *n, is_error *err)
{
    return is_device_pool_list(d->pool, out, n, err);
}
