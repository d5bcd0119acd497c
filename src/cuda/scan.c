/*
 * A batch of questions, on the device.
 *
 * The questions are sorted by scope, so that those of one scope follow one another, and cut into rounds whose scores
 * fit into the working memory.  Everything that the device has to read, queries and the selection's pieces of all
 * rounds, is written into pinned memory and copied at once; then every round is put into the stream, products first,
 * and the answers of all rounds are copied back together.  The rounds use the same working memory: what one stream does
 * is done one after another.
 */
#include "scan.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "../kv/compose.h"
#include "levels.h"

/* Scores of a round: these are 2,000 pieces, enough for every multiprocessor several times over. */
#define ROUND       ((size_t)16 << 20)
#define ALIGNMENT   256
#define MEMORY_STEP ((size_t)1 << 20) /* bytes: areas grow by so much, so that few do */

typedef struct area {
    void *memory;
    size_t size;
} area;

struct is_device_scan {
    uint32_t device, dim;
    size_t round;
    pthread_mutex_t mutex; /* everything below is under it */
    is_cuda_stream *stream;
    bool unknown; /* a wait failed: the stream may not be done with what memory it was given */
    is_matrices *matrices;
    area in, host_in;   /* queries f16 [n][dim], pieces */
    area work;          /* scores f32, slots' scores f32, slots' ids u32 */
    area out, host_out; /* scores f32 [n_results], indices u32 [n_results] */
};

typedef struct round {
    size_t from, to; /* questions */
    size_t launches[IS_SELECT_LEVELS];
} round;

typedef struct batch {
    is_device_query **asked; /* [n] sorted; none whose view is empty */
    is_select_list *lists;   /* [n] */
    round *rounds;           /* [n_rounds], n at most */
    size_t n, n_rounds;
    size_t n_results, n_pieces; /* of all rounds */
    size_t n_scores, n_slots;   /* of the round that has most */
} batch;

/* ------------------------------------------------------------ the batch */

/* Questions of one matrix, largest view first: what it is uploaded for holds the others. */
static int compare_asked(const void *a, const void *b)
{
    const is_device_query *x = *(const is_device_query *const *)a;
    const is_device_query *y = *(const is_device_query *const *)b;
    if (x->scope != y->scope) return x->scope < y->scope ? -1 : 1;
    if (x->view->series != y->view->series) return x->view->series < y->view->series ? -1 : 1;
    return (x->view->n < y->view->n) - (x->view->n > y->view->n);
}

static bool is_same_matrix(const is_device_query *x, const is_device_query *y)
{
    return x->scope == y->scope && x->view->series == y->view->series;
}

/* The end of those from `from` on that are asked of the same matrix. */
static size_t group_end(const batch *b, size_t from, size_t end)
{
    size_t to = from + 1;
    while (to < end && is_same_matrix(b->asked[from], b->asked[to])) to++;
    return to;
}

/* Rows that a question's product is made with, when `first` is the first question of its group. */
static size_t rows_of(const batch *b, size_t first)
{
    return is_align_up(b->asked[first]->view->n, IS_MATRIX_ROWS);
}

/* Cuts off the next round, of so many scores at most, or one question's. */
static size_t measure_round(batch *b, size_t from, size_t most)
{
    size_t group = from;
    size_t n_scores = 0;
    size_t n_slots = 0;
    size_t i = from;
    for (; i < b->n; i++) {
        if (!is_same_matrix(b->asked[group], b->asked[i])) group = i;
        size_t rows = rows_of(b, group);
        if (i > from && n_scores + rows > most) break;
        n_scores += rows;
        is_select_measure((uint32_t)b->asked[i]->view->n, b->lists[i].k, &b->n_pieces, &n_slots);
    }
    if (b->n_scores < n_scores) b->n_scores = n_scores;
    if (b->n_slots < n_slots) b->n_slots = n_slots;
    b->rounds[b->n_rounds++] = (round){.from = from, .to = i};
    return i;
}

static void batch_free(batch *b)
{
    free(b->asked);
    free(b->lists);
    free(b->rounds);
}

static is_status batch_new(const is_device_scan *scan, batch *b, is_device_query *queries, size_t n, is_error *err)
{
    for (size_t i = 0; i < n; i++) {
        if (queries[i].k == 0 || queries[i].k > IS_SELECT_MAX)
            return is_fail(err, IS_EINVAL, "%u facts were asked for; the device's scan gives 1 to %d", queries[i].k,
                           IS_SELECT_MAX);
        is_status status = is_matrices_allow(scan->matrices, queries[i].scope, queries[i].view, err);
        if (status != IS_OK) return status;
    }
    b->asked = calloc(n, sizeof(is_device_query *));
    b->lists = calloc(n, sizeof *b->lists);
    b->rounds = calloc(n, sizeof *b->rounds);
    if (b->asked == NULL || b->lists == NULL || b->rounds == NULL)
        return is_fail(err, IS_ENOMEM, "no memory for %zu questions to the device", n);
    for (size_t i = 0; i < n; i++)
        if (queries[i].view->n > 0) b->asked[b->n++] = &queries[i];
    qsort(b->asked, b->n, sizeof(is_device_query *), compare_asked);
    for (size_t i = 0; i < b->n; i++) {
        const is_device_query *query = b->asked[i];
        b->lists[i].n = (uint32_t)query->view->n;
        b->lists[i].k = query->k < b->lists[i].n ? query->k : b->lists[i].n;
        b->n_results += b->lists[i].k;
    }
    for (size_t from = 0; from < b->n;) from = measure_round(b, from, scan->round);
    return IS_OK;
}

/* ------------------------------------------------------------ memory */

static is_status reserve(is_device_scan *scan, area *a, size_t size, is_error *err)
{
    if (size <= a->size) return IS_OK;
    is_device_wipe(a->memory, a->size, scan->stream);
    *a = (area){0};
    size = is_align_up(size, MEMORY_STEP);
    is_error why = {0};
    is_status status = is_cuda_malloc(size, &a->memory, &why);
    if (status != IS_OK)
        return is_fail(err, status,
                       "no %zu bytes of device memory for a scan: %.800s; scan on the host, or lower the "
                       "device's budgets",
                       size, why.text);
    a->size = size;
    return IS_OK;
}

static void free_host(area *a)
{
    if (a->memory) explicit_bzero(a->memory, a->size);
    is_cuda_host_free(a->memory);
    *a = (area){0};
}

static is_status reserve_host(area *a, size_t size, is_error *err)
{
    if (size <= a->size) return IS_OK;
    free_host(a);
    size = is_align_up(size, MEMORY_STEP);
    is_status status = is_cuda_host_malloc(size, &a->memory, err);
    if (status == IS_OK) a->size = size;
    return status;
}

static size_t queries_size(const is_device_scan *scan, const batch *b)
{
    return is_align_up(b->n * scan->dim * sizeof(uint16_t), ALIGNMENT);
}

static size_t in_size(const is_device_scan *scan, const batch *b)
{
    return queries_size(scan, b) + b->n_pieces * sizeof(is_select_piece);
}

static size_t out_size(const batch *b)
{
    return b->n_results * (sizeof(float) + sizeof(uint32_t));
}

static size_t scores_size(const batch *b)
{
    return is_align_up(b->n_scores * sizeof(float), ALIGNMENT);
}

static is_status reserve_all(is_device_scan *scan, const batch *b, is_error *err)
{
    size_t work = scores_size(b) + b->n_slots * (sizeof(float) + sizeof(uint32_t));
    is_status status = reserve(scan, &scan->in, in_size(scan, b), err);
    if (status == IS_OK) status = reserve_host(&scan->host_in, in_size(scan, b), err);
    if (status == IS_OK) status = reserve(scan, &scan->work, work, err);
    if (status == IS_OK) status = reserve(scan, &scan->out, out_size(b), err);
    if (status == IS_OK) status = reserve_host(&scan->host_out, out_size(b), err);
    return status;
}

/* ------------------------------------------------------------ what the device reads */

static void write_queries(is_device_scan *scan, const batch *b)
{
    uint16_t *to = scan->host_in.memory;
    for (size_t i = 0; i < b->n; i++)
        for (uint32_t j = 0; j < scan->dim; j++) *to++ = is_f32_to_f16(b->asked[i]->vector[j]);
}

/* The lists of a round, each over its question's scores. */
static void place_lists(is_device_scan *scan, batch *b, const round *r)
{
    float *scores = scan->work.memory;
    size_t group = r->from;
    for (size_t i = r->from; i < r->to; i++) {
        if (!is_same_matrix(b->asked[group], b->asked[i])) group = i;
        b->lists[i].scores = scores;
        scores += rows_of(b, group);
    }
}

static void write_pieces(is_device_scan *scan, batch *b)
{
    is_select_piece *pieces = (is_select_piece *)((uint8_t *)scan->host_in.memory + queries_size(scan, b));
    float *scores = scan->out.memory;
    uint32_t *ids = (uint32_t *)(scores + b->n_results);
    for (size_t i = 0; i < b->n; i++) {
        b->lists[i].out_scores = scores;
        b->lists[i].out_ids = ids;
        scores += b->lists[i].k;
        ids += b->lists[i].k;
    }
    for (size_t i = 0; i < b->n_rounds; i++) {
        round *r = &b->rounds[i];
        is_select_slots slots = {.scores = (float *)((uint8_t *)scan->work.memory + scores_size(b))};
        slots.ids = (uint32_t *)(slots.scores + b->n_slots);
        place_lists(scan, b, r);
        for (size_t level = 0; level < IS_SELECT_LEVELS; level++) {
            r->launches[level] = is_select_level(&b->lists[r->from], r->to - r->from, &slots, pieces);
            pieces += r->launches[level];
        }
    }
}

/* ------------------------------------------------------------ what the device does */

static is_status put_products(is_device_scan *scan, const batch *b, const round *r, is_error *err)
{
    float *scores = scan->work.memory;
    for (size_t from = r->from, to; from < r->to; from = to) {
        to = group_end(b, from, r->to);
        const is_device_query *query = b->asked[from];
        const uint16_t *rows = NULL;
        is_status status = is_matrices_get(scan->matrices, query->scope, query->view, &rows, err);
        if (status == IS_OK)
            status = is_cuda_scores(rows, (uint32_t)rows_of(b, from), (uint16_t *)scan->in.memory + from * scan->dim,
                                    (uint32_t)(to - from), scan->dim, scores, scan->stream, err);
        if (status != IS_OK) return status;
        scores += rows_of(b, from) * (to - from);
    }
    return IS_OK;
}

static is_status put_batch(is_device_scan *scan, const batch *b, is_error *err)
{
    const is_select_piece *pieces = (is_select_piece *)((uint8_t *)scan->in.memory + queries_size(scan, b));
    is_status status = is_cuda_to_device(scan->in.memory, scan->host_in.memory, in_size(scan, b), scan->stream, err);
    for (size_t i = 0; i < b->n_rounds && status == IS_OK; i++) {
        const round *r = &b->rounds[i];
        status = put_products(scan, b, r, err);
        for (size_t level = 0; level < IS_SELECT_LEVELS && r->launches[level] > 0 && status == IS_OK; level++) {
            is_select select = {.pieces = pieces, .n_pieces = (uint32_t)r->launches[level]};
            status = is_cuda_select(&select, scan->stream, err);
            pieces += r->launches[level];
        }
    }
    if (status != IS_OK) return status;
    return is_cuda_to_host(scan->host_out.memory, scan->out.memory, out_size(b), scan->stream, err);
}

static void hand_out(const is_device_scan *scan, const batch *b)
{
    const float *scores = scan->host_out.memory;
    const uint32_t *ids = (const uint32_t *)(scores + b->n_results);
    for (size_t i = 0; i < b->n; i++) {
        is_device_query *query = b->asked[i];
        query->n = b->lists[i].k;
        memcpy(query->score, scores, query->n * sizeof *scores);
        memcpy(query->index, ids, query->n * sizeof *ids);
        scores += query->n;
        ids += query->n;
    }
}

/* Waits for the stream; well: what was put into it was all put there. */
static is_status finish(is_device_scan *scan, bool well, is_error *err)
{
    is_status status = is_cuda_stream_wait(scan->stream, err);
    scan->unknown = status != IS_OK;
    if (!scan->unknown) is_matrices_settle(scan->matrices, well);
    return status;
}

static is_status answer(is_device_scan *scan, batch *b, is_error *err)
{
    is_status status = is_cuda_use(scan->device, err);
    if (status == IS_OK && scan->unknown) status = finish(scan, false, err);
    if (status == IS_OK) status = reserve_all(scan, b, err);
    if (status != IS_OK) return status;
    write_queries(scan, b);
    write_pieces(scan, b);
    status = put_batch(scan, b, err);
    if (status != IS_OK) {
        (void)finish(scan, false, NULL);
        return status;
    }
    status = finish(scan, true, err);
    if (status == IS_OK) hand_out(scan, b);
    return status;
}

is_status is_device_scan_ask(is_device_scan *scan, is_device_query *queries, size_t n, is_error *err)
{
    batch b = {0};
    for (size_t i = 0; i < n; i++) queries[i].n = 0;
    if (n == 0) return IS_OK;
    is_status status = batch_new(scan, &b, queries, n, err);
    if (status == IS_OK && b.n > 0) {
        pthread_mutex_lock(&scan->mutex);
        status = answer(scan, &b, err);
        pthread_mutex_unlock(&scan->mutex);
    }
    batch_free(&b);
    return status;
}

/* ------------------------------------------------------------ the scan */

is_status is_device_scan_new(const is_device_scan_settings *settings, is_device_scan **out, is_error *err)
{
    uint32_t n_devices = is_cuda_devices();
    if (settings->dim == 0 || settings->dim % 8 != 0)
        return is_fail(err, IS_EUNSUPPORTED, "vectors have %u dimensions; the device's scan needs a multiple of 8",
                       settings->dim);
    if (settings->device >= n_devices)
        return is_fail(err, IS_EUNSUPPORTED, "there is no device %u; %u can be used, counted from 0", settings->device,
                       n_devices);
    is_device_scan *scan = calloc(1, sizeof *scan);
    if (scan == NULL) return is_fail(err, IS_ENOMEM, "no memory for the device's scan");
    scan->device = settings->device;
    scan->dim = settings->dim;
    scan->round = settings->round ? settings->round : ROUND;
    pthread_mutex_init(&scan->mutex, NULL);
    is_status status = is_cuda_use(scan->device, err);
    if (status == IS_OK) status = is_cuda_ready(err);
    if (status == IS_OK) status = is_cuda_stream_new(&scan->stream, err);
    if (status == IS_OK) status = is_matrices_new(scan->dim, settings->budget, scan->stream, &scan->matrices, err);
    if (status != IS_OK) {
        is_device_scan_free(scan);
        return status;
    }
    *out = scan;
    return IS_OK;
}

void is_device_scan_free(is_device_scan *scan)
{
    if (scan == NULL) return;
    (void)is_cuda_use(scan->device, NULL);
    is_matrices_free(scan->matrices);
    is_device_wipe(scan->in.memory, scan->in.size, scan->stream);
    is_device_wipe(scan->work.memory, scan->work.size, scan->stream);
    is_device_wipe(scan->out.memory, scan->out.size, scan->stream);
    free_host(&scan->host_in);
    free_host(&scan->host_out);
    if (scan->stream) is_cuda_stream_free(scan->stream);
    pthread_mutex_destroy(&scan->mutex);
    free(scan);
}

void is_device_scan_drop(is_device_scan *scan, int64_t scope)
{
    pthread_mutex_lock(&scan->mutex);
    if (is_cuda_use(scan->device, NULL) == IS_OK) is_matrices_drop(scan->matrices, scope);
    pthread_mutex_unlock(&scan->mutex);
}

is_matrices_counts is_device_scan_counts(is_device_scan *scan)
{
    pthread_mutex_lock(&scan->mutex);
    is_matrices_counts counts = is_matrices_count(scan->matrices);
    pthread_mutex_unlock(&scan->mutex);
    return counts;
}
