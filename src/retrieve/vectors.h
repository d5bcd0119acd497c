/*
 * The vectors of the scopes that are asked, in memory: f16 rows by rising fact id.
 *
 * A scope's matrix is loaded when it is first acquired, brought up to date at every acquire, and dropped when others
 * were used since and the limit is reached.  A view shows a matrix as it was when it was acquired: rows are appended
 * beside it or in another place, never under it.  Memory that held a vector is wiped before it is given back.
 *
 * Every function may be called from any thread.
 */
#ifndef IS_RETRIEVE_VECTORS_H
#define IS_RETRIEVE_VECTORS_H

#include "../store/store.h"

typedef struct is_vectors is_vectors;

typedef struct is_vectors_view {
    const int64_t *ids;   /* [n] rising */
    const uint16_t *rows; /* [n][dim] f16, 64-byte aligned */
    size_t n;
    uint64_t series; /* of two views with the same one, the smaller shows the first rows of the larger; never 0 */
    struct is_vectors_entry *entry;
    struct is_vectors_block *block;
} is_vectors_view;

/* limit: bytes; kept but for the scopes that are in use. The store is not owned.  *out: is_vectors_free. */
is_status is_vectors_new(is_store *store, const char *embedder, uint32_t dim, uint64_t limit, is_vectors **out,
                         is_error *err);
/* No view may be held. */
void is_vectors_free(is_vectors *vectors);

/* The scope as the store has it now.  *view: is_vectors_release. */
is_status is_vectors_acquire(is_vectors *vectors, int64_t scope, is_vectors_view *view, is_error *err);
void is_vectors_release(is_vectors *vectors, is_vectors_view *view);

/* Whether the cache still goes on from this view, which is held: no fact of it was seen to be gone or changed. */
bool is_vectors_current(const is_vectors_view *view);

/* Gives the scope's matrix up, as soon as nobody has a view of it. */
void is_vectors_drop(is_vectors *vectors, int64_t scope);

/* Bytes held now. */
uint64_t is_vectors_bytes(is_vectors *vectors);

#endif
