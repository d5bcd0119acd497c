/*
 * The host tier: chunks in memory, found by fact, within a budget.
 *
 * A fact has at most one chunk, so entries are found by the fact's id and compared with the key and scope that are
 * asked for.  An entry begins as an announced load, which keeps others from reading the same file, and becomes ready
 * when its bytes have been read and checked.  Ready entries that nobody has pinned stand in a list by last use, and the
 * oldest go when room is needed.  Pinned entries are in no list: they are neither moved nor freed.  An entry that is
 * dropped leaves the table at once, so it is not found again, and its memory goes with the last pin, wiped: what is
 * dropped may have been forgotten.  What is evicted is not wiped, since that takes longer than all the rest of it.
 */
#include "store_internal.h"

#include <stdlib.h>
#include <string.h>

struct is_pin {
    int64_t fact, scope;
    uint8_t key[IS_KEY_BYTES];
    is_chunk chunk;
    void *bytes;
    size_t cost;   /* what it counts for in the budget */
    uint32_t pins; /* of a ready entry */
    bool loading;
    bool dropped; /* not in the table any more */
    bool wipe;
    is_pin *chain;
    is_pin *newer, *older; /* ready and unpinned */
};

struct is_tier {
    pthread_mutex_t mutex;
    pthread_cond_t loaded;
    uint64_t budget, used, hits, misses;
    size_t n_ready;
    size_t n_entries;
    size_t n_buckets; /* a power of two */
    is_pin **buckets;
    is_pin *newest, *oldest;
};

const is_chunk *is_pin_chunk(const is_pin *pin)
{
    return &pin->chunk;
}

/* Whole pages, and the entry itself. */
static size_t cost_of(size_t size)
{
    return is_align_up(size, IS_CHUNK_ALIGN) + sizeof(is_pin);
}

/* ------------------------------------------------------------ the table */

static size_t bucket_of(const is_tier *tier, int64_t fact)
{
    return (size_t)((uint64_t)fact * 0x9E3779B97F4A7C15u >> 32) & (tier->n_buckets - 1);
}

static is_pin *find(const is_tier *tier, int64_t fact)
{
    is_pin *e = tier->buckets[bucket_of(tier, fact)];
    while (e != NULL && e->fact != fact) e = e->chain;
    return e;
}

/* Chains may get longer where there is no memory for more buckets. */
static void grow(is_tier *tier)
{
    size_t n_old = tier->n_buckets;
    is_pin **old = tier->buckets;
    is_pin **buckets = calloc(n_old * 2, sizeof(is_pin *));
    if (buckets == NULL) return;
    tier->buckets = buckets;
    tier->n_buckets = n_old * 2;
    for (size_t i = 0; i < n_old; i++) {
        is_pin *e = old[i];
        while (e != NULL) {
            is_pin *next = e->chain;
            size_t at = bucket_of(tier, e->fact);
            e->chain = buckets[at];
            buckets[at] = e;
            e = next;
        }
    }
    free(old);
}

static is_pin *add(is_tier *tier, int64_t scope, int64_t fact, const uint8_t key[IS_KEY_BYTES])
{
    is_pin *e = calloc(1, sizeof *e);
    if (e == NULL) return NULL;
    if (tier->n_entries >= tier->n_buckets) grow(tier);
    size_t at = bucket_of(tier, fact);
    e->fact = fact;
    e->scope = scope;
    memcpy(e->key, key, IS_KEY_BYTES);
    e->chain = tier->buckets[at];
    tier->buckets[at] = e;
    tier->n_entries++;
    return e;
}

static void take_out(is_tier *tier, is_pin *e)
{
    is_pin **at = &tier->buckets[bucket_of(tier, e->fact)];
    while (*at != e) at = &(*at)->chain;
    *at = e->chain;
    tier->n_entries--;
    e->dropped = true;
}

/* ------------------------------------------------------------ last use */

static void list_in(is_tier *tier, is_pin *e, bool as_oldest)
{
    e->newer = as_oldest ? tier->oldest : NULL;
    e->older = as_oldest ? NULL : tier->newest;
    if (e->newer != NULL) e->newer->older = e;
    if (e->older != NULL) e->older->newer = e;
    if (e->newer == NULL) tier->newest = e;
    if (e->older == NULL) tier->oldest = e;
}

static void list_out(is_tier *tier, is_pin *e)
{
    if (e->newer != NULL) e->newer->older = e->older;
    if (e->older != NULL) e->older->newer = e->newer;
    if (tier->newest == e) tier->newest = e->older;
    if (tier->oldest == e) tier->oldest = e->newer;
}

/* The entry is in neither table nor list. */
static void release(is_tier *tier, is_pin *e)
{
    if (!e->loading) tier->n_ready--;
    tier->used -= e->cost;
    if (e->wipe && e->bytes != NULL) explicit_bzero(e->bytes, e->chunk.size);
    free(e->bytes);
    free(e);
}

/* Evicts until `more` bytes fit, as far as there are unpinned entries. */
static void make_room(is_tier *tier, uint64_t more)
{
    while (tier->used + more > tier->budget && tier->oldest != NULL) {
        is_pin *e = tier->oldest;
        list_out(tier, e);
        take_out(tier, e);
        release(tier, e);
    }
}

/* ------------------------------------------------------------ opening */

is_status is_tier_open(uint64_t budget, is_tier **out, is_error *err)
{
    is_tier *tier = calloc(1, sizeof *tier);
    if (tier != NULL) tier->buckets = calloc(64, sizeof(is_pin *));
    if (tier == NULL || tier->buckets == NULL) {
        free(tier);
        return is_fail(err, IS_ENOMEM, "out of memory for the host tier");
    }
    tier->n_buckets = 64;
    tier->budget = budget;
    (void)pthread_mutex_init(&tier->mutex, NULL);
    (void)pthread_cond_init(&tier->loaded, NULL);
    *out = tier;
    return IS_OK;
}

void is_tier_close(is_tier *tier)
{
    if (tier == NULL) return;
    for (size_t i = 0; i < tier->n_buckets; i++) {
        is_pin *e = tier->buckets[i];
        while (e != NULL) {
            is_pin *next = e->chain;
            free(e->bytes);
            free(e);
            e = next;
        }
    }
    free(tier->buckets);
    (void)pthread_cond_destroy(&tier->loaded);
    (void)pthread_mutex_destroy(&tier->mutex);
    free(tier);
}

/* ------------------------------------------------------------ pinning */

static bool is_for(const is_pin *e, int64_t scope, const uint8_t key[IS_KEY_BYTES])
{
    return e->scope == scope && memcmp(e->key, key, IS_KEY_BYTES) == 0;
}

/* A ready entry with another key means that the index has no row with this one: nothing to look for on disk. */
static is_status claim_one(is_tier *tier, const uint8_t key[IS_KEY_BYTES], is_want *want, bool count, bool *busy,
                           is_error *err)
{
    is_pin *e = find(tier, want->fact);
    if (e == NULL) {
        e = add(tier, want->scope, want->fact, key);
        if (e == NULL) return is_fail(err, IS_ENOMEM, "out of memory for an entry of the host tier");
        e->loading = true;
        want->pin = e;
        want->mine = true;
        if (count) tier->misses++;
    } else if (e->loading) {
        *busy = true;
    } else {
        want->done = true;
        if (!is_for(e, want->scope, key)) return IS_OK;
        if (e->pins++ == 0) list_out(tier, e);
        want->pin = e;
        if (count) tier->hits++;
    }
    return IS_OK;
}

is_status is_tier_claim(is_tier *tier, const uint8_t key[IS_KEY_BYTES], is_want *wants, size_t n, bool count,
                        is_error *err)
{
    is_status status = IS_OK;
    (void)pthread_mutex_lock(&tier->mutex);
    for (;;) {
        bool busy = false;
        bool mine = false;
        for (size_t i = 0; i < n && status == IS_OK; i++) {
            if (wants[i].done) continue;
            status = claim_one(tier, key, &wants[i], count, &busy, err);
            mine = mine || wants[i].mine;
        }
        /* Whoever has loads of its own announced must not wait for others, who may wait for it. */
        if (status != IS_OK || mine || !busy) break;
        (void)pthread_cond_wait(&tier->loaded, &tier->mutex);
    }
    (void)pthread_mutex_unlock(&tier->mutex);
    return status;
}

void is_tier_reserve(is_tier *tier, is_pin *pin, size_t size)
{
    (void)pthread_mutex_lock(&tier->mutex);
    pin->cost = cost_of(size);
    make_room(tier, pin->cost);
    tier->used += pin->cost;
    (void)pthread_mutex_unlock(&tier->mutex);
}

bool is_tier_finish(is_tier *tier, is_pin *pin, void *bytes, const is_chunk *chunk)
{
    (void)pthread_mutex_lock(&tier->mutex);
    bool usable = bytes != NULL && !pin->dropped;
    pin->bytes = bytes;
    if (bytes != NULL) pin->chunk = *chunk;
    if (usable) {
        pin->loading = false;
        pin->pins = 1;
        tier->n_ready++;
    } else {
        if (!pin->dropped) take_out(tier, pin);
        release(tier, pin);
    }
    (void)pthread_cond_broadcast(&tier->loaded);
    (void)pthread_mutex_unlock(&tier->mutex);
    return usable;
}

void is_tier_unpin(is_tier *tier, is_pin *pin, bool cold)
{
    (void)pthread_mutex_lock(&tier->mutex);
    if (--pin->pins == 0) {
        if (pin->dropped) {
            release(tier, pin);
        } else {
            list_in(tier, pin, cold);
            make_room(tier, 0); /* what was served over the budget goes now */
        }
    }
    (void)pthread_mutex_unlock(&tier->mutex);
}

/* ------------------------------------------------------------ changes of the index */

void is_tier_insert(is_tier *tier, int64_t scope, int64_t fact, const uint8_t key[IS_KEY_BYTES], void *bytes,
                    const is_chunk *chunk)
{
    size_t cost = cost_of(chunk->size);
    is_pin *e = NULL;
    (void)pthread_mutex_lock(&tier->mutex);
    /* Where a load has been announced meanwhile, the file will be read by it. */
    if (cost <= tier->budget && find(tier, fact) == NULL) {
        make_room(tier, cost);
        if (tier->used + cost <= tier->budget) e = add(tier, scope, fact, key);
    }
    if (e != NULL) {
        e->bytes = bytes;
        e->chunk = *chunk;
        e->cost = cost;
        tier->used += cost;
        tier->n_ready++;
        list_in(tier, e, false);
    }
    (void)pthread_mutex_unlock(&tier->mutex);
    if (e == NULL) free(bytes);
}

void is_tier_drop(is_tier *tier, int64_t fact)
{
    (void)pthread_mutex_lock(&tier->mutex);
    is_pin *e = find(tier, fact);
    if (e != NULL) {
        take_out(tier, e);
        e->wipe = true;
        if (!e->loading && e->pins == 0) {
            list_out(tier, e);
            release(tier, e);
        }
    }
    (void)pthread_mutex_unlock(&tier->mutex);
}

/* ------------------------------------------------------------ looking */

is_status is_tier_list(is_tier *tier, is_listed **out, size_t *n, is_error *err)
{
    *n = 0;
    (void)pthread_mutex_lock(&tier->mutex);
    *out = malloc((tier->n_ready + 1) * sizeof **out);
    for (size_t i = 0; i < tier->n_buckets && *out != NULL; i++)
        for (const is_pin *e = tier->buckets[i]; e != NULL; e = e->chain) {
            if (e->loading) continue;
            (*out)[*n].fact = e->fact;
            memcpy((*out)[(*n)++].key, e->key, IS_KEY_BYTES);
        }
    (void)pthread_mutex_unlock(&tier->mutex);
    return *out != NULL ? IS_OK : is_fail(err, IS_ENOMEM, "out of memory for a list of the host tier");
}

bool is_tier_holds(is_tier *tier, int64_t scope, int64_t fact, const uint8_t key[IS_KEY_BYTES])
{
    (void)pthread_mutex_lock(&tier->mutex);
    const is_pin *e = find(tier, fact);
    bool holds = e != NULL && !e->loading && is_for(e, scope, key);
    (void)pthread_mutex_unlock(&tier->mutex);
    return holds;
}

bool is_tier_fits(is_tier *tier, size_t size)
{
    (void)pthread_mutex_lock(&tier->mutex);
    bool fits = tier->used + cost_of(size) <= tier->budget;
    (void)pthread_mutex_unlock(&tier->mutex);
    return fits;
}

void is_tier_stats(is_tier *tier, is_stats *out)
{
    (void)pthread_mutex_lock(&tier->mutex);
    out->host_bytes = tier->used;
    out->host_budget = tier->budget;
    out->host_chunks = tier->n_ready;
    out->host_hits = tier->hits;
    out->host_misses = tier->misses;
    (void)pthread_mutex_unlock(&tier->mutex);
}
