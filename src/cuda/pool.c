/*
 * The device tier.  An entry is in the table, then gone, which is for good: its memory is zeroed and given back when
 * nobody holds or reads it any more; what is reserved for a kernel's use is gone from the start.  Released pins wait,
 * by event, in the list of readings; every call that may need room looks which of them are done.
 */
#include "pool.h"

#include "readings.h"
#include "upload.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define SLOT_BYTES ((size_t)1 << 20)
#define SLOTS      16

struct is_device_pool {
    pthread_mutex_t mutex;
    void *memory;
    size_t budget;
    is_arena *arena;
    is_upload *upload;
    is_entry_table table;
    is_entry_list idle; /* what can be evicted */
    is_entry *wipes;    /* gone and idle, to be zeroed and given back */
    size_t n_used;      /* entries with memory */
    is_readings readings;
    is_device_pool_pin *lost; /* pins whose reader's end cannot be known */
    is_device_pool_counts counts;
};

/* ------------------------------------------------------------ opening */

is_status is_device_pool_open(const is_device_pool_settings *settings, is_device_pool **out, is_error *err)
{
    *out = NULL;
    size_t budget = settings->budget & ~(size_t)(IS_ARENA_ALIGN - 1);
    if (budget == 0)
        return is_fail(err, IS_EINVAL, "a budget of %zu bytes of device memory holds no chunk; give it some megabytes",
                       settings->budget);
    is_device_pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL) return is_fail(err, IS_ENOMEM, "out of memory for the device tier");
    (void)pthread_mutex_init(&pool->mutex, NULL);
    pool->budget = budget;
    pool->arena = is_arena_new(budget);
    is_status status = IS_OK;
    if (pool->arena == NULL || !is_table_new(&pool->table))
        status = is_fail(err, IS_ENOMEM, "out of memory for the device tier");
    if (status == IS_OK) status = is_cuda_malloc(budget, &pool->memory, err);
    if (status == IS_OK)
        status = is_upload_open(settings->slot_bytes != 0 ? settings->slot_bytes : SLOT_BYTES,
                                settings->slots != 0 ? settings->slots : SLOTS, &pool->upload, err);
    if (status == IS_OK) status = is_upload_zero(pool->upload, pool->memory, budget, err);
    if (status != IS_OK) {
        is_device_pool_close(pool);
        return status;
    }
    *out = pool;
    return IS_OK;
}

void is_device_pool_close(is_device_pool *pool)
{
    if (pool == NULL) return;
    is_cuda_free(pool->memory); /* waits for all that reads or writes it, and so for the copies */
    is_upload_close(pool->upload);
    is_range *range = pool->arena != NULL ? is_arena_first(pool->arena) : NULL;
    for (; range != NULL; range = range->behind) free(range->owner);
    is_arena_free(pool->arena);
    is_readings_free(&pool->readings);
    is_pins_free(pool->lost);
    is_table_free(&pool->table);
    (void)pthread_mutex_destroy(&pool->mutex);
    free(pool);
}

/* ------------------------------------------------------------ leaving */

/* Zeroes and gives back what nobody reads any more; what cannot be zeroed now stays for the next call. */
static is_status wipe(is_device_pool *pool, is_error *err)
{
    while (pool->wipes != NULL) {
        is_entry *e = pool->wipes;
        if (!e->wiped) {
            is_status status = is_upload_zero(pool->upload, e->memory, e->size, err);
            if (status != IS_OK) return status;
        }
        pool->wipes = e->older;
        pool->n_used--;
        is_arena_give(pool->arena, e->range);
        free(e);
    }
    return IS_OK;
}

/* The entry has lost a pin or reader: where that was the last one, it can go now, or must. */
static void rest(is_device_pool *pool, is_entry *e)
{
    if (!is_entry_idle(e)) return;
    if (e->gone) {
        e->older = pool->wipes;
        pool->wipes = e;
    } else {
        is_list_in(&pool->idle, e);
    }
}

/* Not found any more; the entry is in the table. */
static void put_out(is_device_pool *pool, is_entry *e)
{
    is_table_remove(&pool->table, e);
    if (is_entry_idle(e)) is_list_out(&pool->idle, e);
    e->gone = true;
    rest(pool, e);
}

/* Zeroes what is gone and not held behind those that still read it; the copies to come wait for them too. */
static is_status wipe_behind(is_device_pool *pool, is_entry *e, is_error *err)
{
    if (!e->gone || e->held > 0 || e->reading == 0 || e->wiped || e->lost) return IS_OK;
    is_status status = IS_OK;
    for (const is_reading *r = pool->readings.first; r != NULL && status == IS_OK; r = r->next)
        if (is_reading_of(r, e)) status = is_upload_after(pool->upload, r->done, err);
    if (status == IS_OK) status = is_upload_zero(pool->upload, e->memory, e->size, err);
    e->wiped = status == IS_OK;
    return status;
}

static is_status drop(is_device_pool *pool, is_entry *e, is_error *err)
{
    bool idle = is_entry_idle(e);
    put_out(pool, e);
    return idle ? wipe(pool, err) : wipe_behind(pool, e, err);
}

/* ------------------------------------------------------------ readers */

static void end_pins(is_device_pool *pool, is_device_pool_pin *pins)
{
    while (pins != NULL) {
        is_device_pool_pin *next = pins->next;
        pins->entry->reading--;
        rest(pool, pins->entry);
        free(pins);
        pins = next;
    }
}

/* Looks which readers are done. */
static is_status look(is_device_pool *pool, is_error *err)
{
    is_device_pool_pin *pins = NULL;
    is_status status = is_readings_done(&pool->readings, &pins, err);
    end_pins(pool, pins);
    return status == IS_OK ? wipe(pool, err) : status;
}

/* From held to read: the pins as a list. */
static is_device_pool_pin *let_go(is_device_pool *pool, is_device_pool_pin *const *pins, size_t n, bool lost)
{
    is_device_pool_pin *list = NULL;
    is_device_pool_pin **end = &list;
    for (size_t i = 0; i < n; i++) {
        if (pins[i] == NULL) continue;
        is_entry *e = pins[i]->entry;
        e->held--;
        e->reading++;
        e->lost = e->lost || lost;
        *end = pins[i];
        end = &pins[i]->next;
    }
    *end = lost ? pool->lost : NULL;
    return list;
}

is_status is_device_pool_release(is_device_pool *pool, is_device_pool_pin *const *pins, size_t n,
                                 is_cuda_stream *stream, is_error *err)
{
    is_reading *r = NULL;
    (void)pthread_mutex_lock(&pool->mutex);
    is_status status = is_readings_mark(&pool->readings, stream, &r, err);
    /* Without an event it can still be waited for. */
    if (status != IS_OK && is_cuda_stream_wait(stream, NULL) == IS_OK) status = IS_OK;
    is_device_pool_pin *list = let_go(pool, pins, n, status != IS_OK);
    if (status != IS_OK) {
        pool->lost = list;
    } else if (r != NULL) {
        is_readings_add(&pool->readings, r, list);
        for (const is_device_pool_pin *pin = list; pin != NULL && status == IS_OK; pin = pin->next)
            status = wipe_behind(pool, pin->entry, err);
    } else {
        end_pins(pool, list);
        status = wipe(pool, err);
    }
    (void)pthread_mutex_unlock(&pool->mutex);
    return status;
}

/* ------------------------------------------------------------ room */

/* The longest run of neighbours that are free or could go is at least this long. */
static bool could_fit(const is_device_pool *pool, size_t size)
{
    size_t stuck = is_arena_used(pool->arena) - pool->idle.bytes;
    size_t n_stuck = pool->n_used - pool->idle.n;
    if ((pool->budget - stuck) / (n_stuck + 1) >= size) return true; /* n cuts make n + 1 runs at most */
    size_t run = 0;
    for (const is_range *range = is_arena_first(pool->arena); range != NULL && run < size; range = range->behind) {
        const is_entry *e = range->owner;
        run = e == NULL || (is_entry_idle(e) && !e->gone) ? run + range->size : 0;
    }
    return run >= size;
}

/* A range for the entry, for which the oldest go; none where all that is idle would not make room. */
static is_status find_room(is_device_pool *pool, is_entry *e, is_error *err)
{
    e->range = is_arena_take(pool->arena, e->size, e);
    if (e->range != NULL || !could_fit(pool, is_align_up(e->size, IS_ARENA_ALIGN))) return IS_OK;
    while (e->range == NULL && pool->idle.oldest != NULL) {
        pool->counts.evicted++;
        put_out(pool, pool->idle.oldest);
        is_status status = wipe(pool, err);
        if (status != IS_OK) return status;
        e->range = is_arena_take(pool->arena, e->size, e);
    }
    return IS_OK;
}

/* An entry with memory, in no list yet; *out NULL: there is no room. */
static is_status new_entry(is_device_pool *pool, int64_t number, const uint8_t key[IS_DEVICE_POOL_KEY], size_t size,
                           is_entry **out, is_error *err)
{
    *out = NULL;
    is_entry *e = NULL;
    is_status status = IS_OK;
    if (size > 0 && size <= pool->budget) {
        e = calloc(1, sizeof *e);
        if (e == NULL || !is_arena_ready(pool->arena)) {
            free(e);
            return is_fail(err, IS_ENOMEM, "out of memory for an entry of the device tier");
        }
        e->number = number;
        e->size = size;
        memcpy(e->key, key, IS_DEVICE_POOL_KEY);
        status = find_room(pool, e, err);
    }
    if (e == NULL || e->range == NULL) {
        if (status == IS_OK) pool->counts.refused++;
        free(e);
        return status;
    }
    e->memory = (uint8_t *)pool->memory + e->range->offset;
    pool->n_used++;
    *out = e;
    return IS_OK;
}

/* ------------------------------------------------------------ taking */

/* Of an entry that is idle in the table, held already, or new. */
static is_status hold(is_device_pool *pool, is_entry *e, bool fresh, is_device_pool_pin **out, is_error *err)
{
    is_device_pool_pin *pin = malloc(sizeof *pin);
    if (pin == NULL) return is_fail(err, IS_ENOMEM, "out of memory for a pin of the device tier");
    if (is_entry_idle(e) && !fresh) is_list_out(&pool->idle, e);
    e->held++;
    *pin = (is_device_pool_pin){.entry = e};
    *out = pin;
    return IS_OK;
}

static is_entry *find_want(const is_device_pool *pool, const is_device_pool_want *want)
{
    is_entry *e = is_table_find(&pool->table, want->number);
    return e != NULL && memcmp(e->key, want->key, IS_DEVICE_POOL_KEY) == 0 ? e : NULL;
}

/* The same chunk may be wanted twice, so it is looked for again. */
static is_status bring(is_device_pool *pool, is_device_pool_want *want, is_error *err)
{
    is_entry *e = find_want(pool, want);
    if (e != NULL) return hold(pool, e, false, &want->pin, err);
    /* What stands in the want's place is out of use; where it cannot be zeroed now, that is tried again. */
    is_entry *stale = is_table_find(&pool->table, want->number);
    if (stale != NULL) (void)drop(pool, stale, NULL);
    is_status status = new_entry(pool, want->number, want->key, want->size, &e, err);
    if (e == NULL) return status;
    e->mark = is_upload_next(pool->upload);
    status = is_upload_copy(pool->upload, e->memory, want->bytes, want->size, err);
    if (status == IS_OK) status = hold(pool, e, true, &want->pin, err);
    if (status == IS_OK) {
        is_table_add(&pool->table, e);
        pool->counts.copied_bytes += want->size;
    } else {
        e->gone = true;
        rest(pool, e);
    }
    return status;
}

/* Makes the stream wait for the chunks of these wants. */
static is_status follow(is_device_pool *pool, const is_device_pool_want *wants, size_t n, is_cuda_stream *stream,
                        is_error *err)
{
    uint64_t mark = 0;
    is_status status = IS_OK;
    for (size_t i = 0; i < n; i++)
        if (wants[i].pin != NULL && wants[i].pin->entry->mark > mark) mark = wants[i].pin->entry->mark;
    if (mark == is_upload_next(pool->upload)) status = is_upload_mark(pool->upload, err);
    return status == IS_OK ? is_upload_follow(pool->upload, mark, stream, err) : status;
}

/* A take that failed has no pins.  What it copied stays, and whoever takes it next marks it where that is still to do.
 */
static void undo(is_device_pool *pool, is_device_pool_want *wants, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (wants[i].pin == NULL) continue;
        is_entry *e = wants[i].pin->entry;
        free(wants[i].pin);
        wants[i].pin = NULL;
        e->held--;
        rest(pool, e);
    }
    (void)wipe(pool, NULL);
}

is_status is_device_pool_take(is_device_pool *pool, is_device_pool_want *wants, size_t n, is_cuda_stream *stream,
                              is_error *err)
{
    for (size_t i = 0; i < n; i++) wants[i].pin = NULL;
    (void)pthread_mutex_lock(&pool->mutex);
    is_status status = look(pool, err);
    /* First what is there, so that no want's chunk makes room for another one's. */
    for (size_t i = 0; i < n && status == IS_OK; i++) {
        is_entry *e = find_want(pool, &wants[i]);
        if (e != NULL) {
            status = hold(pool, e, false, &wants[i].pin, err);
            pool->counts.hits++;
        } else {
            pool->counts.misses++;
        }
    }
    for (size_t i = 0; i < n && status == IS_OK; i++)
        if (wants[i].pin == NULL && wants[i].bytes != NULL) status = bring(pool, &wants[i], err);
    if (status == IS_OK) status = follow(pool, wants, n, stream, err);
    if (status != IS_OK) undo(pool, wants, n);
    (void)pthread_mutex_unlock(&pool->mutex);
    return status;
}

/* ------------------------------------------------------------ room for a kernel */

is_status is_device_pool_reserve(is_device_pool *pool, size_t size, is_cuda_stream *stream, is_device_pool_pin **out,
                                 is_error *err)
{
    static const uint8_t no_key[IS_DEVICE_POOL_KEY];
    *out = NULL;
    is_entry *e = NULL;
    (void)pthread_mutex_lock(&pool->mutex);
    is_status status = look(pool, err);
    if (status == IS_OK) status = new_entry(pool, 0, no_key, size, &e, err);
    if (e != NULL) {
        e->gone = true;
        /* Behind the zeroing of what was there before. */
        uint64_t mark = is_upload_next(pool->upload);
        status = is_upload_mark(pool->upload, err);
        if (status == IS_OK) status = is_upload_follow(pool->upload, mark, stream, err);
        if (status == IS_OK) status = hold(pool, e, true, out, err);
        if (status != IS_OK) {
            rest(pool, e);
            (void)wipe(pool, NULL);
        }
    }
    (void)pthread_mutex_unlock(&pool->mutex);
    return status;
}

is_status is_device_pool_drop(is_device_pool *pool, int64_t number, is_error *err)
{
    (void)pthread_mutex_lock(&pool->mutex);
    is_entry *e = is_table_find(&pool->table, number);
    is_status status = e != NULL ? drop(pool, e, err) : IS_OK;
    is_status wiped = is_upload_wipe(pool->upload, status == IS_OK ? err : NULL); /* it may have come by them */
    (void)pthread_mutex_unlock(&pool->mutex);
    return status == IS_OK ? wiped : status;
}

/* ------------------------------------------------------------ looking */

uint8_t *is_device_pool_memory(const is_device_pool_pin *pin)
{
    return pin->entry->memory;
}

size_t is_device_pool_size(const is_device_pool_pin *pin)
{
    return pin->entry->size;
}

void is_device_pool_stats(is_device_pool *pool, is_device_pool_counts *out)
{
    (void)pthread_mutex_lock(&pool->mutex);
    *out = pool->counts;
    out->budget = pool->budget;
    out->used = is_arena_used(pool->arena);
    out->pinned = out->used - pool->idle.bytes;
    out->chunks = pool->table.n;
    (void)pthread_mutex_unlock(&pool->mutex);
}

is_status is_device_pool_list(is_device_pool *pool, is_device_pool_listed **out, size_t *n, is_error *err)
{
    (void)pthread_mutex_lock(&pool->mutex);
    *n = 0;
    *out = malloc((pool->table.n + 1) * sizeof **out);
    for (size_t i = 0; *out != NULL && i < pool->table.n_buckets; i++)
        for (const is_entry *e = pool->table.buckets[i]; e != NULL; e = e->chain) {
            (*out)[*n].number = e->number;
            memcpy((*out)[(*n)++].key, e->key, IS_DEVICE_POOL_KEY);
        }
    (void)pthread_mutex_unlock(&pool->mutex);
    return *out != NULL ? IS_OK : is_fail(err, IS_ENOMEM, "no memory for a list of the device tier");
}
