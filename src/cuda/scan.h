/*
 * Retrieval's exact scan on the device: questions against the embedding matrices of their scopes, many at once.
 *
 * Matrices stay in device memory from one question to the next, within a budget of bytes (matrices.h).  Questions of
 * one scope are one matrix product, the best of all scopes' scores are found by the same launches (levels.h), and one
 * copy brings them back.
 *
 * A question's vector is rounded to f16 here, as the rows are, and products are summed in another order than on the
 * host: scores of unit vectors differ from the host's by up to 1e-3.  Ranking is the host's, is_scan_top's.
 */
#ifndef IS_CUDA_SCAN_H
#define IS_CUDA_SCAN_H

#include "matrices.h"

typedef struct is_device_scan is_device_scan;

typedef struct is_device_query {
    int64_t scope;
    const is_vectors_view *view; /* the scope as it is asked, held until the call returns */
    const float *vector;         /* [dim] */
    uint32_t k;                  /* 1 .. IS_SELECT_MAX */
    uint32_t n;                  /* out: min(k, view->n) */
    uint32_t *index;             /* out [k], best first: rows of the view, so that view->ids[index[i]] is the fact */
    float *score;                /* out [k] */
} is_device_query;

typedef struct is_device_scan_settings {
    uint32_t device;
    uint32_t dim;    /* of the vectors, a multiple of 8 */
    uint64_t budget; /* bytes of device memory for matrices */
    size_t round;    /* scores that are in memory at once, 4 bytes each; 0: 16 Mi */
} is_device_scan_settings;

/*
 * Views are all of one is_vectors.  Beside the budget, working memory grows to what the largest batch took: a round's
 * scores, or those of one question if they are more, up to an eighth of that for the selection, queries and results.
 * IS_EUNSUPPORTED: there is no such device, or dim.
 */
is_status is_device_scan_new(const is_device_scan_settings *settings, is_device_scan **out, is_error *err);
/* Waits for the device. */
void is_device_scan_free(is_device_scan *scan);

/*
 * Answers n questions, of any scopes, and waits for the answers.  Scopes that are not there yet are uploaded.  Any
 * thread; calls wait for one another.  On failure no question is answered, and is to be asked on the host:
 * IS_ENOMEM: a scope does not fit into the budget, or the device has no more memory; IS_EINVAL: k; else the device
 * failed.  The scan goes on in any case, unless the device does not.
 */
is_status is_device_scan_ask(is_device_scan *scan, is_device_query *queries, size_t n, is_error *err);

/*
 * The scope's matrix is gone from device memory when this returns.  A question that was asked with an older view may
 * bring it back; who asks therefore drops the scope again if is_vectors_current no longer holds for his view.
 */
void is_device_scan_drop(is_device_scan *scan, int64_t scope);

is_matrices_counts is_device_scan_counts(is_device_scan *scan);

#endif
