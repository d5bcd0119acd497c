/*
 * The embedding matrices of scopes in device memory: a table by scope, a list by last use, and the way of rows into
 * them.
 *
 * Rows lie in ordinary host memory, from where copies would hold up the host; so they go through two pinned buffers,
 * one of which is filled while the other is on its way.
 */
#include "matrices.h"

#include <stdlib.h>
#include <string.h>

#define N_BUCKETS 4096              /* scope ids are consecutive numbers: their low bits spread evenly */
#define STAGING   ((size_t)2 << 20) /* bytes of a buffer */

typedef struct matrix {
    int64_t scope;
    uint64_t series;      /* of the view that the rows are of */
    uint16_t *rows;       /* in device memory, [capacity][dim], the first n in use */
    size_t n, capacity;   /* capacity a multiple of IS_MATRIX_ROWS */
    bool fresh;           /* rows came since the last settle */
    struct matrix *chain; /* of the bucket */
    struct matrix *newer, *older;
} matrix;

typedef struct staging {
    uint8_t *memory; /* pinned, [STAGING] */
    size_t used;
    size_t dirty; /* bytes that hold rows, or did */
    is_cuda_event *sent;
} staging;

struct is_matrices {
    uint32_t dim;
    uint64_t budget;
    is_cuda_stream *stream;
    staging staging[2];
    size_t filling; /* which of them */
    matrix *buckets[N_BUCKETS];
    matrix *newest, *oldest;
    size_t n_fresh;
    is_matrices_counts counts;
};

static size_t row_size(const is_matrices *m)
{
    return m->dim * sizeof(uint16_t);
}

void is_device_wipe(void *memory, size_t size, is_cuda_stream *stream)
{
    if (memory == NULL) return;
    /* Where the device fails there is nothing more that could be done. */
    (void)is_cuda_zero(memory, size, stream, NULL);
    (void)is_cuda_stream_wait(stream, NULL);
    is_cuda_free(memory);
}

/* ------------------------------------------------------------ the table and the order of use */

static matrix **slot_of(is_matrices *m, int64_t scope)
{
    matrix **slot = &m->buckets[(uint64_t)scope % N_BUCKETS];
    while (*slot && (*slot)->scope != scope) slot = &(*slot)->chain;
    return slot;
}

static void order_remove(is_matrices *m, matrix *x)
{
    *(x->newer ? &x->newer->older : &m->newest) = x->older;
    *(x->older ? &x->older->newer : &m->oldest) = x->newer;
    x->newer = x->older = NULL;
}

static void order_add_newest(is_matrices *m, matrix *x)
{
    x->newer = NULL;
    x->older = m->newest;
    *(m->newest ? &m->newest->newer : &m->oldest) = x;
    m->newest = x;
}

static void give_up(is_matrices *m, matrix *x)
{
    *slot_of(m, x->scope) = x->chain;
    order_remove(m, x);
    is_device_wipe(x->rows, x->capacity * row_size(m), m->stream);
    m->counts.bytes -= x->capacity * row_size(m);
    m->counts.scopes--;
    if (x->fresh) m->n_fresh--;
    free(x);
}

static bool evict(is_matrices *m)
{
    if (m->oldest == NULL) return false;
    give_up(m, m->oldest);
    m->counts.evicted++;
    return true;
}

/* ------------------------------------------------------------ rows into device memory */

static is_status next_staging(is_matrices *m, is_error *err)
{
    staging *full = &m->staging[m->filling];
    is_status status = is_cuda_event_record(full->sent, m->stream, err);
    if (status != IS_OK) return status;
    m->filling ^= 1;
    staging *next = &m->staging[m->filling];
    status = is_cuda_event_wait(next->sent, err);
    if (status == IS_OK) next->used = 0;
    return status;
}

static is_status copy_in(is_matrices *m, uint8_t *to, const uint8_t *from, size_t size, is_error *err)
{
    while (size > 0) {
        staging *s = &m->staging[m->filling];
        if (s->used == STAGING) {
            is_status status = next_staging(m, err);
            if (status != IS_OK) return status;
            s = &m->staging[m->filling];
        }
        size_t part = size < STAGING - s->used ? size : STAGING - s->used;
        memcpy(s->memory + s->used, from, part);
        is_status status = is_cuda_to_device(to, s->memory + s->used, part, m->stream, err);
        s->used += part;
        if (s->dirty < s->used) s->dirty = s->used;
        if (status != IS_OK) return status;
        to += part;
        from += part;
        size -= part;
    }
    return IS_OK;
}

static void set_fresh(is_matrices *m, matrix *x)
{
    if (!x->fresh) m->n_fresh++;
    x->fresh = true;
}

static is_status append(is_matrices *m, matrix *x, const is_vectors_view *view, is_error *err)
{
    set_fresh(m, x);
    is_status status = copy_in(m, (uint8_t *)(x->rows + x->n * m->dim), (const uint8_t *)(view->rows + x->n * m->dim),
                               (view->n - x->n) * row_size(m), err);
    if (status != IS_OK) return status;
    m->counts.uploaded += view->n - x->n;
    x->n = view->n;
    return IS_OK;
}

/* ------------------------------------------------------------ matrices */

is_status is_matrices_allow(const is_matrices *m, int64_t scope, const is_vectors_view *view, is_error *err)
{
    size_t size;
    if (view->n > INT32_MAX - IS_MATRIX_ROWS)
        return is_fail(err, IS_EUNSUPPORTED, "scope %lld has %zu vectors, too many for one product on the device",
                       (long long)scope, view->n);
    if (!is_mul_size(is_align_up(view->n, IS_MATRIX_ROWS), row_size(m), &size) || size > m->budget)
        return is_fail(err, IS_ENOMEM,
                       "the %zu vectors of scope %lld do not fit into the device's budget for them, %llu bytes; scan "
                       "them on the host, or raise the budget",
                       view->n, (long long)scope, (unsigned long long)m->budget);
    return IS_OK;
}

/* Room within the budget, and zeros in it.  others: matrices that were asked longest ago go for it. */
static is_status get_memory(is_matrices *m, size_t size, bool others, void **out, is_error *err)
{
    is_status status;
    do {
        if (size <= m->budget - m->counts.bytes)
            status = is_cuda_malloc(size, out, err);
        else
            status = is_fail(err, IS_ENOMEM, "the budget is spent");
    } while (status == IS_ENOMEM && others && evict(m));
    if (status != IS_OK) return status;
    status = is_cuda_zero(*out, size, m->stream, err);
    if (status != IS_OK) is_cuda_free(*out);
    return status;
}

static is_status create(is_matrices *m, int64_t scope, size_t rows, bool others, matrix **out, is_error *err)
{
    matrix *x = calloc(1, sizeof *x);
    if (x == NULL) return is_fail(err, IS_ENOMEM, "no memory for the matrix of scope %lld", (long long)scope);
    x->scope = scope;
    x->capacity = is_align_up(rows, IS_MATRIX_ROWS);
    is_error why = {0};
    void *memory = NULL;
    is_status status = get_memory(m, x->capacity * row_size(m), others, &memory, &why);
    if (status != IS_OK) {
        free(x);
        return is_fail(err, status,
                       "the %zu vectors of scope %lld do not get into device memory: %.800s; scan them on the host, or "
                       "lower the device's budgets",
                       rows, (long long)scope, why.text);
    }
    x->rows = memory;
    m->counts.bytes += x->capacity * row_size(m);
    m->counts.scopes++;
    *slot_of(m, scope) = x;
    order_add_newest(m, x);
    *out = x;
    return IS_OK;
}

/* A matrix with room for the view's rows, empty or with the first ones of them. */
static is_status fit(is_matrices *m, int64_t scope, const is_vectors_view *view, matrix **out, is_error *err)
{
    matrix *x = *slot_of(m, scope);
    bool same = x && x->series == view->series;
    if (x == NULL || view->n > x->capacity) {
        size_t capacity = x ? x->capacity : 0;
        if (x) give_up(m, x);
        is_status status = IS_ENOMEM;
        /* A scope that grows goes on to grow: twice the room, where that costs no other scope its own. */
        if (same && view->n < 2 * capacity) status = create(m, scope, 2 * capacity, false, out, err);
        if (status == IS_ENOMEM) status = create(m, scope, view->n, true, out, err);
        return status;
    }
    if (!same) {
        set_fresh(m, x);
        is_status status = is_cuda_zero(x->rows, x->n * row_size(m), m->stream, err);
        if (status != IS_OK) return status;
        x->n = 0;
    }
    order_remove(m, x);
    order_add_newest(m, x);
    *out = x;
    return IS_OK;
}

is_status is_matrices_get(is_matrices *m, int64_t scope, const is_vectors_view *view, const uint16_t **rows,
                          is_error *err)
{
    matrix *x = NULL;
    is_status status = fit(m, scope, view, &x, err);
    if (status != IS_OK) return status;
    x->series = view->series;
    if (x->n < view->n) status = append(m, x, view, err);
    *rows = x->rows;
    return status;
}

void is_matrices_settle(is_matrices *m, bool well)
{
    for (matrix *x = m->newest, *older; m->n_fresh > 0; x = older) { /* the fresh ones are among the newest */
        older = x->older;
        if (!x->fresh) continue;
        if (!well) {
            give_up(m, x);
            continue;
        }
        x->fresh = false;
        m->n_fresh--;
    }
    for (int i = 0; i < 2; i++) { /* all copies are done; rows of facts that are forgotten later must not stay here */
        explicit_bzero(m->staging[i].memory, m->staging[i].dirty);
        m->staging[i].used = m->staging[i].dirty = 0;
    }
}

void is_matrices_drop(is_matrices *m, int64_t scope)
{
    matrix *x = *slot_of(m, scope);
    if (x) give_up(m, x);
}

is_matrices_counts is_matrices_count(const is_matrices *m)
{
    return m->counts;
}

is_status is_matrices_new(uint32_t dim, uint64_t budget, is_cuda_stream *stream, is_matrices **out, is_error *err)
{
    is_matrices *m = calloc(1, sizeof *m);
    if (m == NULL) return is_fail(err, IS_ENOMEM, "no memory for the table of matrices");
    m->dim = dim;
    m->budget = budget;
    m->stream = stream;
    is_status status = IS_OK;
    for (int i = 0; i < 2 && status == IS_OK; i++) {
        void *memory = NULL;
        status = is_cuda_host_malloc(STAGING, &memory, err);
        m->staging[i].memory = memory;
        if (status == IS_OK) status = is_cuda_event_new(&m->staging[i].sent, err);
    }
    if (status != IS_OK) {
        is_matrices_free(m);
        return status;
    }
    *out = m;
    return IS_OK;
}

void is_matrices_free(is_matrices *m)
{
    if (m == NULL) return;
    for (matrix *x = m->oldest, *newer; x; x = newer) {
        newer = x->newer;
        give_up(m, x);
    }
    for (int i = 0; i < 2; i++) {
        if (m->staging[i].memory) explicit_bzero(m->staging[i].memory, m->staging[i].dirty);
        is_cuda_host_free(m->staging[i].memory);
        is_cuda_event_free(m->staging[i].sent);
    }
    free(m);
}
