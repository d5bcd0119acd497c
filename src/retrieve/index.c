/*
 * The index of all scopes: two rankings of a scope's facts, by vector and by words, made one.
 *
 * Each ranking gives more candidates than are wanted, so that a fact which both put in the middle can overtake one that
 * a single ranking put high.  A filter is not laid over the result, where it might leave too few: the store says first
 * which facts pass, and both rankings are made of those alone.
 */
#include "retrieve.h"

#include <stdlib.h>
#include <string.h>

#include "../cuda/scan.h"
#include "scan_pool.h"
#include "vectors.h"

#define VECTOR_LIMIT   ((uint64_t)512 << 20) /* bytes */
#define MAX_K          200
#define MIN_CANDIDATES 50
#define MAX_CANDIDATES 400

/*
 * Postings that a query's words may have together, rarest first: what is more common tells little and costs most.
 * Beside a vector ranking few are enough: in a scope of 100,000 facts 4,000 take 0.5 ms, 20,000 take 2.5 ms.  Where
 * words are all that there is, or a filter leaves only some facts, more are looked at.
 */
#define FEW_POSTINGS  4000
#define MANY_POSTINGS 20000

struct is_index {
    is_store *store;
    is_vectors *vectors; /* NULL without an embedding model */
    is_scan_pool *pool;
    is_device_scan *device; /* NULL: scans are done here */
    uint32_t dim;
};

/* A library that was built without CUDA has none of these. */
#pragma weak is_device_scan_new
#pragma weak is_device_scan_free
#pragma weak is_device_scan_ask
#pragma weak is_device_scan_drop

/* The facts that pass the filter. */
typedef struct allowed {
    bool all;
    int64_t *ids; /* [n] rising */
    size_t n;
} allowed;

is_status is_index_open(is_store *store, const char *embedder, uint32_t dim, uint32_t threads, is_index **out,
                        is_error *err)
{
    is_index *index = calloc(1, sizeof *index);
    if (index == NULL) return is_fail(err, IS_ENOMEM, "no memory for the index");
    index->store = store;
    index->dim = dim;
    is_status status = is_scan_pool_new(threads, &index->pool, err);
    if (status == IS_OK && embedder) status = is_vectors_new(store, embedder, dim, VECTOR_LIMIT, &index->vectors, err);
    if (status != IS_OK) {
        is_index_close(index);
        return status;
    }
    *out = index;
    return IS_OK;
}

is_status is_index_use_device(is_index *index, uint64_t budget, is_error *err)
{
    if (is_device_scan_new == NULL)
        return is_fail(err, IS_EUNSUPPORTED, "this program was built without CUDA; `make cuda` builds one with it");
    if (index->vectors == NULL) return is_fail(err, IS_EINVAL, "without an embedding model a GPU has nothing to scan");
    const is_device_scan_settings settings = {.dim = index->dim, .budget = budget};
    return is_device_scan_new(&settings, &index->device, err);
}

void is_index_close(is_index *index)
{
    if (index == NULL) return;
    if (index->device) is_device_scan_free(index->device);
    is_vectors_free(index->vectors);
    is_scan_pool_free(index->pool);
    free(index);
}

uint64_t is_index_bytes(is_index *index)
{
    return index->vectors ? is_vectors_bytes(index->vectors) : 0;
}

void is_index_drop(is_index *index, int64_t scope)
{
    if (index->vectors) is_vectors_drop(index->vectors, scope);
    if (index->device) is_device_scan_drop(index->device, scope);
}

/* ------------------------------------------------------------ the filter */

static int compare_ids(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a;
    int64_t y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static bool is_open_filter(const is_filter *filter)
{
    return filter == NULL ||
           (filter->time_from == IS_TIME_NONE && filter->time_to == IS_TIME_NONE && filter->metadata == NULL);
}

static is_status find_allowed(is_index *index, int64_t scope, const is_filter *filter, allowed *out, is_error *err)
{
    *out = (allowed){.all = is_open_filter(filter)};
    if (out->all) return IS_OK;
    is_status status = is_store_filter_all(index->store, scope, filter, &out->ids, &out->n, err);
    if (status == IS_OK && out->n > 0) qsort(out->ids, out->n, sizeof *out->ids, compare_ids);
    return status;
}

static bool is_allowed(const allowed *pass, int64_t id)
{
    return pass->all || (pass->n > 0 && bsearch(&id, pass->ids, pass->n, sizeof id, compare_ids) != NULL);
}

/* ------------------------------------------------------------ by vector */

/* Moves the scores of the rows that pass together, in order; rows[i] says whose score stands at i.  Both ids and
 * pass->ids rise, so one walk over them is enough.  Returns how many. */
static size_t keep_allowed(const allowed *pass, const int64_t *ids, size_t n, float *scores, uint32_t *rows)
{
    size_t kept = 0;
    size_t a = 0;
    for (size_t i = 0; i < n; i++) {
        while (a < pass->n && pass->ids[a] < ids[i]) a++;
        if (a == pass->n) break;
        if (pass->ids[a] != ids[i]) continue;
        scores[kept] = scores[i];
        rows[kept++] = (uint32_t)i;
    }
    return kept;
}

/* The view's best rows by the device; false: it could not, whatever the reason, and the host is to do it. */
static bool rank_on_device(is_index *index, int64_t scope, const float *vector, const is_vectors_view *view,
                           size_t want, uint32_t *best, float *best_score, size_t *n)
{
    is_device_query query = {
        .scope = scope, .view = view, .vector = vector, .k = (uint32_t)want, .index = best, .score = best_score};
    if (index->device == NULL) return false;
    bool answered = is_device_scan_ask(index->device, &query, 1, NULL) == IS_OK;
    /* Rows that were wiped here meanwhile must not stay there. */
    if (!is_vectors_current(view)) is_device_scan_drop(index->device, scope);
    *n = query.n;
    return answered;
}

/* The same by the host.  rows: NULL where all pass, else [view->n], and best then counts what passes. */
static is_status rank_on_host(is_index *index, const float *vector, const is_vectors_view *view, const allowed *pass,
                              size_t want, uint32_t *rows, uint32_t *best, float *best_score, size_t *n, is_error *err)
{
    float *scores = malloc(view->n * sizeof *scores);
    if (scores == NULL) return is_fail(err, IS_ENOMEM, "no memory for the scores of %zu facts", view->n);
    is_scan_pool_dot(index->pool, vector, view->rows, view->n, index->dim, scores);
    size_t n_scores = pass->all ? view->n : keep_allowed(pass, view->ids, view->n, scores, rows);
    *n = is_scan_top(scores, n_scores, want, best, best_score);
    free(scores);
    return IS_OK;
}

/* hits: [want]. */
static is_status rank_vectors(is_index *index, int64_t scope, const float *vector, const allowed *pass, size_t want,
                              is_hit *hits, size_t *n, is_error *err)
{
    uint32_t best[MAX_CANDIDATES];
    float best_score[MAX_CANDIDATES];
    uint32_t *rows = NULL;
    is_vectors_view view;
    *n = 0;
    is_status status = is_vectors_acquire(index->vectors, scope, &view, err);
    if (status != IS_OK) return status;
    if (view.n == 0) {
        is_vectors_release(index->vectors, &view);
        return IS_OK;
    }
    if (!pass->all) rows = malloc(view.n * sizeof *rows);
    if (!pass->all && rows == NULL)
        status = is_fail(err, IS_ENOMEM, "no memory for the scores of %zu facts", view.n);
    else if (!pass->all || !rank_on_device(index, scope, vector, &view, want, best, best_score, n))
        status = rank_on_host(index, vector, &view, pass, want, rows, best, best_score, n, err);
    for (size_t i = 0; status == IS_OK && i < *n; i++)
        hits[i] = (is_hit){.id = view.ids[rows ? rows[best[i]] : best[i]], .score = (double)best_score[i]};
    free(rows);
    is_vectors_release(index->vectors, &view);
    return status;
}

/* ------------------------------------------------------------ by words */

static size_t keep_allowed_hits(const allowed *pass, const is_hit *found, size_t n_found, size_t want, is_hit *hits)
{
    size_t n = 0;
    for (size_t i = 0; i < n_found && n < want; i++)
        if (is_allowed(pass, found[i].id)) hits[n++] = found[i];
    return n;
}

/* hits: [want].  With a filter the store is asked for more and more, until enough pass or there are no more. */
static is_status rank_words(is_index *index, int64_t scope, const char *query, const allowed *pass, bool beside_vectors,
                            size_t want, is_hit *hits, size_t *n, is_error *err)
{
    *n = 0;
    if (pass->all)
        return is_store_match(index->store, scope, query, want, beside_vectors ? FEW_POSTINGS : MANY_POSTINGS, hits, n,
                              err);
    for (size_t limit = want * 8;; limit *= 8) {
        is_hit *found = malloc(limit * sizeof *found);
        if (found == NULL) return is_fail(err, IS_ENOMEM, "no memory for %zu hits of a text search", limit);
        size_t n_found = 0;
        is_status status = is_store_match(index->store, scope, query, limit, MANY_POSTINGS, found, &n_found, err);
        if (status == IS_OK) *n = keep_allowed_hits(pass, found, n_found, want, hits);
        free(found);
        if (status != IS_OK || *n == want || n_found < limit) return status;
    }
}

/* ------------------------------------------------------------ both */

is_status is_index_search(is_index *index, int64_t scope, const char *query, const float *vector, uint32_t k,
                          const is_filter *filter, is_hit *hits, size_t *n, is_error *err)
{
    is_hit by_vector[MAX_CANDIDATES];
    is_hit by_words[MAX_CANDIDATES];
    const is_hit *rankings[] = {by_vector, by_words};
    size_t lengths[] = {0, 0};
    *n = 0;
    if (k == 0 || k > MAX_K)
        return is_fail(err, IS_EINVAL, "%u facts were asked for; a search gives 1 to %d", k, MAX_K);
    if (vector && index->vectors == NULL)
        return is_fail(err, IS_EINVAL,
                       "the question has an embedding, but the index was opened without an embedding model");
    size_t want = 4 * (size_t)k;
    if (want < MIN_CANDIDATES) want = MIN_CANDIDATES;
    if (want > MAX_CANDIDATES) want = MAX_CANDIDATES;

    allowed pass;
    is_status status = find_allowed(index, scope, filter, &pass, err);
    if (status == IS_OK && (pass.all || pass.n > 0)) {
        if (vector) status = rank_vectors(index, scope, vector, &pass, want, by_vector, &lengths[0], err);
        if (status == IS_OK && query && *query)
            status = rank_words(index, scope, query, &pass, vector != NULL, want, by_words, &lengths[1], err);
        if (status == IS_OK) *n = is_fuse(rankings, lengths, 2, k, hits);
    }
    free(pass.ids);
    return status;
}
