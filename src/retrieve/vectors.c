/*
 * The vectors of the scopes that are asked, in memory.
 *
 * Three things are kept apart.  A block is a piece of memory with rows; it counts who looks at it, and is wiped and
 * freed when the last one leaves.  An entry is one scope: the block that is current, and how far it follows the store;
 * its own mutex is held while it is brought up to date, so that others of the same scope wait and find it done.  The
 * cache's mutex guards only the table, the order of use and the number of users of each entry; it is never held while
 * the store is asked, rows are copied, scanned or wiped.
 *
 * Facts are added by rising id, so a matrix grows at its end, but a fact may get its embedding after a younger one
 * did.  An entry therefore knows up to which id every fact of the scope has a row (`solid`), and asks the store for
 * all rows behind that, which is the new ones alone whenever nothing is missing.
 */
#include "vectors.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define N_BUCKETS  4096 /* scope ids are consecutive numbers: their low bits spread evenly */
#define ALIGNMENT  64
#define LIST_LIMIT 4096 /* facts that are listed at once, to bound the memory for their texts */

typedef struct is_vectors_block {
    atomic_size_t refs;
    size_t capacity; /* rows */
    int64_t *ids;
    uint16_t *rows;
} block;

typedef struct is_vectors_entry {
    int64_t scope;
    struct is_vectors_entry *bucket_next;

    /* under the cache's mutex */
    struct is_vectors_entry *newer, *older; /* order of use */
    size_t users;                           /* above 0: not to be dropped */

    /* under sync */
    pthread_mutex_t sync;
    bool loaded;
    uint64_t any, removed; /* the store's generations that the rows are of */
    uint64_t series;       /* another one whenever rows are not just appended; 0: none yet */
    block *block;          /* NULL: no rows */
    size_t n;
    size_t n_solid; /* the first rows, up to the id solid: no fact up to it is without a row */
    int64_t solid;
} entry;

struct is_vectors {
    is_store *store;
    char *embedder;
    uint32_t dim;
    uint64_t limit;
    atomic_uint_fast64_t bytes;
    atomic_uint_fast64_t series; /* the last one that an entry got */
    pthread_mutex_t mutex;
    entry *buckets[N_BUCKETS];
    entry *newest, *oldest;
};

/* ------------------------------------------------------------ blocks */

static size_t row_size(const is_vectors *v)
{
    return v->dim * sizeof(uint16_t);
}
static uint64_t block_bytes(const is_vectors *v, size_t capacity)
{
    return (uint64_t)capacity * (row_size(v) + sizeof(int64_t));
}

static void free_rows(const is_vectors *v, int64_t *ids, uint16_t *rows, size_t n)
{
    if (rows) explicit_bzero(rows, n * row_size(v));
    free(rows);
    free(ids);
}

/* Owns ids and rows from then on, in any case. */
static block *block_of(is_vectors *v, int64_t *ids, uint16_t *rows, size_t capacity)
{
    block *b = malloc(sizeof *b);
    if (b == NULL) {
        free_rows(v, ids, rows, capacity);
        return NULL;
    }
    atomic_init(&b->refs, 1);
    b->capacity = capacity;
    b->ids = ids;
    b->rows = rows;
    atomic_fetch_add(&v->bytes, block_bytes(v, capacity));
    return b;
}

static block *block_new(is_vectors *v, size_t capacity)
{
    size_t size;
    if (!is_mul_size(capacity, row_size(v), &size) || size > SIZE_MAX - ALIGNMENT) return NULL;
    int64_t *ids = malloc(capacity * sizeof *ids);
    uint16_t *rows = aligned_alloc(ALIGNMENT, is_align_up(size, ALIGNMENT));
    if (ids == NULL || rows == NULL) {
        free(ids);
        free(rows);
        return NULL;
    }
    return block_of(v, ids, rows, capacity);
}

static void block_unref(is_vectors *v, block *b)
{
    if (b == NULL || atomic_fetch_sub(&b->refs, 1) > 1) return;
    atomic_fetch_sub(&v->bytes, block_bytes(v, b->capacity));
    free_rows(v, b->ids, b->rows, b->capacity);
    free(b);
}

static void block_copy(const is_vectors *v, block *to, size_t at, const int64_t *ids, const uint16_t *rows, size_t n)
{
    if (n == 0) return;
    memcpy(to->ids + at, ids, n * sizeof *ids);
    memcpy(to->rows + at * v->dim, rows, n * row_size(v));
}

/* ------------------------------------------------------------ entries: following the store */

/* The functions here run under the entry's sync. */

static void entry_clear(is_vectors *v, entry *e)
{
    block_unref(v, e->block);
    e->block = NULL;
    e->n = e->n_solid = 0;
    e->solid = 0;
    e->series = 0;
    e->loaded = false;
}

/* Replaces the rows behind the solid ones by these [m]. Owns ids and rows, in any case. */
static is_status entry_extend(is_vectors *v, entry *e, int64_t *ids, uint16_t *rows, size_t m, is_error *err)
{
    size_t keep = e->n_solid;
    size_t n = keep + m;
    block *to = NULL;
    if (n == 0) {
        free_rows(v, ids, rows, m);
    } else if (keep == 0) { /* what the store handed out becomes the block: no second copy of a whole scope */
        to = block_of(v, ids, rows, m);
    } else if (keep == e->n && n <= e->block->capacity) { /* behind what any view shows */
        to = e->block;
        atomic_fetch_add(&to->refs, 1);
        block_copy(v, to, keep, ids, rows, m);
        free_rows(v, ids, rows, m);
    } else {
        to = block_new(v, n + n / 4 + 16);
        if (to) {
            block_copy(v, to, 0, e->block->ids, e->block->rows, keep);
            block_copy(v, to, keep, ids, rows, m);
        }
        free_rows(v, ids, rows, m);
    }
    if (to == NULL && n > 0)
        return is_fail(err, IS_ENOMEM,
                       "no memory for %zu vectors of %u dimensions; forget facts or give the process more", n, v->dim);
    if (keep < e->n || e->series == 0) e->series = atomic_fetch_add(&v->series, 1) + 1;
    block_unref(v, e->block);
    e->block = to;
    e->n = n;
    return IS_OK;
}

/* Moves solid on over the new rows, up to the first fact that has none. */
static is_status entry_find_solid(is_vectors *v, entry *e, is_error *err)
{
    bool gap = false;
    while (e->n_solid < e->n && !gap) {
        size_t limit = e->n - e->n_solid < LIST_LIMIT ? e->n - e->n_solid : LIST_LIMIT;
        is_fact_list *facts = NULL;
        is_status status = is_store_list(v->store, e->scope, e->solid, limit, &facts, err);
        if (status != IS_OK) return status;
        gap = facts->n == 0;
        /* The analyser does not follow the count of the block's holders. */
        /* NOLINTBEGIN(clang-analyzer-unix.Malloc) */
        for (size_t i = 0; i < facts->n && !gap; i++) {
            gap = facts->facts[i].id != e->block->ids[e->n_solid];
            if (!gap) e->solid = e->block->ids[e->n_solid++];
        }
        /* NOLINTEND(clang-analyzer-unix.Malloc) */
        is_fact_list_free(facts);
    }
    return IS_OK;
}

static is_status entry_refresh(is_vectors *v, entry *e, is_error *err)
{
    /* Asked before the rows are read: a change in between is then seen again next time, and never missed. */
    uint64_t any;
    uint64_t removed;
    is_store_generation(v->store, e->scope, &any, &removed);
    if (!e->loaded || e->removed != removed) entry_clear(v, e); /* also what a load that failed left */
    if (e->loaded && e->any == any) return IS_OK;

    int64_t *ids = NULL;
    uint16_t *rows = NULL;
    size_t m = 0;
    is_status status = is_store_embeddings(v->store, e->scope, v->embedder, v->dim, e->solid, &ids, &rows, &m, err);
    if (status != IS_OK) return status;
    status = entry_extend(v, e, ids, rows, m, err);
    if (status != IS_OK) return status;
    status = entry_find_solid(v, e, err);
    if (status != IS_OK) return status;
    e->any = any;
    e->removed = removed;
    e->loaded = true;
    return IS_OK;
}

/* ------------------------------------------------------------ the table and the order of use */

/* The functions here run under the cache's mutex. */

static entry **slot_of(is_vectors *v, int64_t scope)
{
    entry **slot = &v->buckets[(uint64_t)scope % N_BUCKETS];
    while (*slot && (*slot)->scope != scope) slot = &(*slot)->bucket_next;
    return slot;
}

static void order_remove(is_vectors *v, entry *e)
{
    *(e->newer ? &e->newer->older : &v->newest) = e->older;
    *(e->older ? &e->older->newer : &v->oldest) = e->newer;
    e->newer = e->older = NULL;
}

static void order_add_newest(is_vectors *v, entry *e)
{
    e->newer = NULL;
    e->older = v->newest;
    *(v->newest ? &v->newest->newer : &v->oldest) = e;
    v->newest = e;
}

/* Takes entries that nobody uses out of the table, least recently used first, until the rest is within the limit.
 * The newest stays: the limit is no reason to load the one scope that is asked again and again.  Returns them as a
 * list over bucket_next. */
static entry *take_surplus(is_vectors *v)
{
    entry *surplus = NULL;
    uint64_t bytes = atomic_load(&v->bytes);
    for (entry *e = v->oldest, *newer; e && e != v->newest && bytes > v->limit; e = newer) {
        newer = e->newer;
        if (e->users > 0) continue;
        bytes -= sizeof *e + (e->block ? block_bytes(v, e->block->capacity) : 0);
        order_remove(v, e);
        *slot_of(v, e->scope) = e->bucket_next;
        e->bucket_next = surplus;
        surplus = e;
    }
    return surplus;
}

/* ------------------------------------------------------------ the cache */

static void entry_free(is_vectors *v, entry *e)
{
    entry_clear(v, e);
    pthread_mutex_destroy(&e->sync);
    free(e);
    atomic_fetch_sub(&v->bytes, sizeof *e);
}

/* The scope's entry, which stays until unpin; NULL: not there, or no memory. */
static entry *pin(is_vectors *v, int64_t scope, bool create)
{
    pthread_mutex_lock(&v->mutex);
    entry **slot = slot_of(v, scope);
    entry *e = *slot;
    if (e) {
        order_remove(v, e);
    } else if (create && (e = calloc(1, sizeof *e)) != NULL) {
        e->scope = scope;
        pthread_mutex_init(&e->sync, NULL);
        atomic_fetch_add(&v->bytes, sizeof *e);
        *slot = e;
    }
    if (e) {
        order_add_newest(v, e);
        e->users++;
    }
    pthread_mutex_unlock(&v->mutex);
    return e;
}

static void unpin(is_vectors *v, entry *e)
{
    pthread_mutex_lock(&v->mutex);
    e->users--;
    entry *surplus = take_surplus(v);
    pthread_mutex_unlock(&v->mutex);
    while (surplus) { /* wiping takes its time */
        entry *next = surplus->bucket_next;
        entry_free(v, surplus);
        surplus = next;
    }
}

is_status is_vectors_new(is_store *store, const char *embedder, uint32_t dim, uint64_t limit, is_vectors **out,
                         is_error *err)
{
    if (dim == 0 || dim % 8 != 0)
        return is_fail(err, IS_EUNSUPPORTED, "embeddings of %s have %u dimensions; the scan needs a multiple of 8",
                       embedder, dim);
    is_vectors *v = calloc(1, sizeof *v);
    char *name = strdup(embedder);
    if (v == NULL || name == NULL) {
        free(v);
        free(name);
        return is_fail(err, IS_ENOMEM, "no memory for the vector index");
    }
    v->store = store;
    v->embedder = name;
    v->dim = dim;
    v->limit = limit;
    pthread_mutex_init(&v->mutex, NULL);
    *out = v;
    return IS_OK;
}

void is_vectors_free(is_vectors *v)
{
    if (v == NULL) return;
    for (entry *e = v->oldest, *newer; e; e = newer) {
        newer = e->newer;
        entry_free(v, e);
    }
    pthread_mutex_destroy(&v->mutex);
    free(v->embedder);
    free(v);
}

is_status is_vectors_acquire(is_vectors *v, int64_t scope, is_vectors_view *view, is_error *err)
{
    entry *e = pin(v, scope, true);
    if (e == NULL) return is_fail(err, IS_ENOMEM, "no memory for the vectors of scope %lld", (long long)scope);
    pthread_mutex_lock(&e->sync);
    is_status status = entry_refresh(v, e, err);
    if (status == IS_OK) {
        if (e->block) atomic_fetch_add(&e->block->refs, 1);
        /* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): as in entry_find_solid */
        *view = (is_vectors_view){.ids = e->block ? e->block->ids : NULL,
                                  .rows = e->block ? e->block->rows : NULL,
                                  .n = e->n,
                                  .series = e->series,
                                  .entry = e,
                                  .block = e->block};
    }
    pthread_mutex_unlock(&e->sync);
    if (status != IS_OK) unpin(v, e);
    return status;
}

void is_vectors_release(is_vectors *v, is_vectors_view *view)
{
    block_unref(v, view->block);
    unpin(v, view->entry);
    *view = (is_vectors_view){0};
}

bool is_vectors_current(const is_vectors_view *view)
{
    entry *e = view->entry;
    pthread_mutex_lock(&e->sync);
    bool current = e->series == view->series;
    pthread_mutex_unlock(&e->sync);
    return current;
}

void is_vectors_drop(is_vectors *v, int64_t scope)
{
    entry *e = pin(v, scope, false);
    if (e == NULL) return;
    pthread_mutex_lock(&e->sync);
    entry_clear(v, e);
    pthread_mutex_unlock(&e->sync);
    unpin(v, e);
}

uint64_t is_vectors_bytes(is_vectors *v)
{
    return atomic_load(&v->bytes);
}
