/*
 * Retrieval: which k facts a question needs.
 *
 * The question's embedding is compared with every vector of the scope (exact scan, no approximation),
 * BM25 comes from the store's full-text index, and the two rankings are joined by reciprocal-rank
 * fusion (Cormack, Clarke, Buettcher, SIGIR 2009): score = sum over rankings of 1 / (60 + rank).
 *
 * The vectors of scopes that are asked lie in memory as f16 rows, 64-byte aligned, and grow with the store.
 */
#ifndef IS_RETRIEVE_H
#define IS_RETRIEVE_H

#include "../kv/compose.h"
#include "../store/store.h"

/* ------------------------------------------------------------ scan (scan.c) */

/* Dot products of one query with n rows: scores[i] = sum_j query[j] * row[i][j], accumulated in f32.  The plain C twin
 * and the SIMD paths agree within 1e-5 for unit vectors.  dim is a multiple of 8. */
void is_scan_dot(is_isa isa, const float *query, const uint16_t *rows, size_t n, uint32_t dim, float *scores);
/* The k rows with the highest scores, best first, ties by lower index; returns how many (min(k, n)).  NaN counts as
 * lowest. */
size_t is_scan_top(const float *scores, size_t n, size_t k, uint32_t *index, float *score);

/* ------------------------------------------------------------ fusion (fusion.c) */

/* Joins rankings (each best first, ids unique in it) by reciprocal rank; returns at most k, best first, ties by lower
 * id. */
size_t is_fuse(const is_hit *const *rankings, const size_t *lengths, size_t n_rankings, size_t k, is_hit *out);

/* ------------------------------------------------------------ the index of all scopes (index.c) */

typedef struct is_index is_index;

/* embedder names the embedding model (NULL: none, BM25 alone), dim its width, a multiple of 8; threads: helpers beside
 * the caller for the scan of a large scope, made when one is first scanned. The store is not owned. */
is_status is_index_open(is_store *store, const char *embedder, uint32_t dim, uint32_t threads, is_index **out,
                        is_error *err);
void is_index_close(is_index *index);
/*
 * Scans that have no filter are done on the first GPU from now on, with at most so many bytes of vectors in its memory;
 * what it cannot do is done here.  Called once, before the first search.  IS_EUNSUPPORTED: there is no GPU, or the
 * library was built without CUDA.
 */
is_status is_index_use_device(is_index *index, uint64_t budget, is_error *err);
/* Bytes of vectors in memory.  At most 512 MiB are kept, unless the scopes in use are larger; the scopes that were
 * asked longest ago are dropped first. */
uint64_t is_index_bytes(is_index *index);
/* Wipes a scope's vectors from memory; they are read again when the scope is next asked.  To be called after
 * is_store_forget: a search would not return what was forgotten, but only the next search would wipe it. */
void is_index_drop(is_index *index, int64_t scope);

/*
 * The k best facts of the scope, k 1..200.  query: the question's words, "" or NULL for none; vector: its embedding
 * [dim] f32 of unit length, or NULL (BM25 alone).  filter may be NULL; it bears on the rankings themselves, so whatever
 * it lets through and one of them can find is found.  hits [k], *n out; score is that of the fusion.
 * Any thread; the scope is brought up to date with the store first.
 */
is_status is_index_search(is_index *index, int64_t scope, const char *query, const float *vector, uint32_t k,
                          const is_filter *filter, is_hit *hits, size_t *n, is_error *err);

#endif
