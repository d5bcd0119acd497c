/*
 * The store: facts in SQLite, chunks as files, the host-memory tier in front of them.
 *
 *   FOLDER/inferscale.db   facts, turns, scopes, embeddings, word index, chunk index (WAL)
 *   FOLDER/chunks/ab/...   one file a chunk: written under a temporary name, synced, renamed, and
 *                          only then entered into the index, in a transaction
 *   FOLDER/lock            held (flock) by the one process that has the store open for writing
 *
 * The text is the truth.  Embeddings, index and chunks are derived and can be made again from it.
 *
 * Threads: every function may be called from any thread.  One mutex guards the database connection and
 * another the host tier; neither is held while chunk bytes are read from disk, hashed or copied.
 */
#ifndef IS_STORE_H
#define IS_STORE_H

#include <stdatomic.h>

#include "../kv/chunk.h"

typedef struct is_store is_store;

typedef struct is_store_options {
    const char *folder;   /* made when it is not there */
    uint64_t host_budget; /* bytes for chunks in memory; only what is pinned at the same time may exceed it */
} is_store_options;

/* IS_EIO with a clear text when the folder cannot be made, is locked by another process, or the database
 * is of a newer version; IS_ECORRUPT when it is no database.  A store whose last process was killed recovers here: the
 * WAL is emptied, chunk files without a row are unlinked, rows without a file are dropped. */
is_status is_store_open(const is_store_options *options, is_store **out, is_error *err);
void is_store_close(is_store *store);

/* ------------------------------------------------------------ settings of a store */

/* One text value by name, such as "recipe".  *out: free(); NULL when it was never set.  Names that begin with "store."
 * are the store's own: IS_EINVAL. */
is_status is_store_get_setting(is_store *store, const char *name, char **out, is_error *err);
is_status is_store_set_setting(is_store *store, const char *name, const char *value, is_error *err);

/* ------------------------------------------------------------ scopes, facts, turns */

/* The scope's number.  create false: IS_ENOTFOUND when it has never had a fact or turn. */
is_status is_store_scope(is_store *store, const is_scope *scope, bool create, int64_t *id, is_error *err);

typedef struct is_scope_name {
    int64_t id;
    char *tenant, *user, *agent, *run;
} is_scope_name;
/* All scopes by rising id.  Free with is_store_scopes_free. */
is_status is_store_scopes(is_store *store, is_scope_name **out, size_t *n, is_error *err);
void is_store_scopes_free(is_scope_name *scopes, size_t n);

/*
 * Adds n facts with their embeddings in one durable transaction (synchronous=FULL: when it returns they
 * are on disk).  embeddings: [n][dim] as f16, or NULL when there is no embedding model; embedder names
 * the model that made them.  ids: [n], out, may be NULL.  A text of 0 bytes, bad UTF-8 or metadata that is no JSON
 * object: IS_EINVAL; a text of more than 4096 bytes: IS_ELIMIT; no such scope: IS_ENOTFOUND; nothing is added then.
 * Line breaks in a text become blanks.
 */
is_status is_store_add_facts(is_store *store, int64_t scope, const is_fact *facts, size_t n, const uint16_t *embeddings,
                             uint32_t dim, const char *embedder, int64_t *ids, is_error *err);
/* In order, in one durable transaction.  A turn whose id the scope has already is left as it is. */
is_status is_store_add_turns(is_store *store, int64_t scope, const is_turn *turns, size_t n, is_error *err);

/* Facts of a scope by rising id: at most limit, ids > after.  The states are all IS_FACT_PENDING: what is ready
 * depends on the engine, see is_store_ready. */
is_status is_store_list(is_store *store, int64_t scope, int64_t after, size_t limit, is_fact_list **out, is_error *err);
is_status is_store_count_facts(is_store *store, int64_t scope, uint64_t *n, is_error *err);
/* The ids [n] of the scope's facts at these ranks, which rise, by rising id and counted from 0; 0 where there are not
 * so many. */
is_status is_store_at_ranks(is_store *store, int64_t scope, const uint64_t *ranks, size_t n, int64_t *ids,
                            is_error *err);
/* Where the scope's facts, by rising id, are dealt into groups of `most`: the ids of those that stand before this one
 * in its group, by rising id.  ids [most - 1], *n of them. */
is_status is_store_group_before(is_store *store, int64_t scope, int64_t id, size_t most, int64_t *ids, size_t *n,
                                is_error *err);
/* These facts, in this order; an id that is not there (forgotten meanwhile) is left out.  A changed fact says here, as
 * everywhere, what it says since its last change. */
is_status is_store_get(is_store *store, int64_t scope, const int64_t *ids, size_t n, is_fact_list **out, is_error *err);
/* Of the given ids those whose fact is there and passes the filter (time range; metadata members equal; NULL: all),
 * order kept.  A fact without a time passes only where both ends are open.  n_out <= n.  IS_EINVAL when the filter's
 * metadata is no JSON object. */
is_status is_store_filter(is_store *store, int64_t scope, const is_filter *filter, const int64_t *ids, size_t n,
                          int64_t *out, size_t *n_out, is_error *err);
/* As is_store_filter, over all facts of the scope; *out: free(). */
is_status is_store_filter_all(is_store *store, int64_t scope, const is_filter *filter, int64_t **out, size_t *n_out,
                              is_error *err);

/*
 * Changes a fact in one durable transaction: as is_change_fact.  embedding: [dim] of change->text as f16, or NULL; it
 * is kept only if the text becomes another one.  The vectors of another text are blanked, its words are replaced, and
 * its chunk and every chunk that was made behind it are deleted; so are the chunks of another time, and of another
 * source the fact's own.  A change that changes nothing leaves no edition.
 */
is_status is_store_change_fact(is_store *store, int64_t scope, int64_t id, const is_fact *change,
                               const uint16_t *embedding, uint32_t dim, const char *embedder, is_error *err);
/* As is_history. */
is_status is_store_history(is_store *store, int64_t scope, int64_t id, is_edition_list **out, is_error *err);
/* As is_list_scopes and is_scope_of. */
is_status is_store_list_scopes(is_store *store, const char *tenant, int64_t after, size_t limit, is_scope_info **out,
                               size_t *n, is_error *err);
is_status is_store_scope_of(is_store *store, const char *tenant, int64_t fact, is_scope_info **out, is_error *err);

typedef struct is_turn_list {
    size_t n;
    is_turn *turns;
} is_turn_list;
void is_turn_list_free(is_turn_list *list);
/* The w turns of the conversation that end with turn `id` (itself included), oldest first; they do not reach into an
 * earlier session.  Empty when the turn is not known. */
is_status is_store_window(is_store *store, int64_t scope, const char *turn_id, uint32_t w, is_turn_list **out,
                          is_error *err);

/*
 * Forgets facts (n 0: the whole scope, turns included; the scope's own names stay): texts and their earlier editions,
 * embeddings, words, chunks, files, memory; and every chunk that depended on one of them.  When it returns, no page of
 * database or WAL holds text or embedding any more (db.c says how).  A pinned chunk's memory goes when it is unpinned;
 * it is not found again.  ids that are not there are passed over.  *forgotten: facts that were removed, may be NULL.
 * IS_EIO after the removal when the WAL could not be emptied: forgetting anything, or opening the store again, ends it.
 */
is_status is_store_forget(is_store *store, int64_t scope, const int64_t *ids, size_t n, size_t *forgotten,
                          is_error *err);

/* ------------------------------------------------------------ what search needs */

/* All embeddings of a scope made by `embedder`: ids [n] rising, vectors [n][dim] f16 64-byte aligned.  Free both with
 * free(). since: only ids > since (the index in memory grows by what was added). */
is_status is_store_embeddings(is_store *store, int64_t scope, const char *embedder, uint32_t dim, int64_t since,
                              int64_t **ids, uint16_t **vectors, size_t *n, is_error *err);
/* Facts of a scope that have no embedding by this embedder, by rising id.  Free with is_fact_list_free. */
is_status is_store_unembedded(is_store *store, int64_t scope, const char *embedder, size_t limit, is_fact_list **out,
                              is_error *err);
/* Adds or replaces; facts that are not there (forgotten meanwhile) are passed over. */
is_status is_store_put_embeddings(is_store *store, const int64_t *fact_ids, const uint16_t *vectors, size_t n,
                                  uint32_t dim, const char *embedder, is_error *err);
/* As is_store_put_embeddings for facts as they were read, vectors [facts->n][dim]; facts whose text has been changed
 * since are passed over. */
is_status is_store_put_embeddings_of(is_store *store, const is_fact_list *facts, const uint16_t *vectors, uint32_t dim,
                                     const char *embedder, is_error *err);
/* A number that changes whenever facts of this scope are added, embedded, forgotten or get another text or time: the
 * memory index asks it before each search.  *removed changes only when what was made of a fact must not be used any
 * more: it was forgotten, or its text or time was changed.  Kept in memory; cheap. */
void is_store_generation(is_store *store, int64_t scope, uint64_t *any, uint64_t *removed);

typedef struct is_hit {
    int64_t id;
    double score;
} is_hit;

/*
 * The best `limit` facts of the scope for the query's words by BM25 (higher is better), best first, ties by lower id.
 * The query is free text: SQLite's FTS5 tokenizer (porter over unicode61) cuts it into words, there is no syntax.  The
 * rarest words are taken until their postings reach `max_postings`, so that common words cost nothing; when already
 * the rarest has more, its newest facts are scored.  Scores depend on this scope alone.  *n: hits written.
 */
is_status is_store_match(is_store *store, int64_t scope, const char *query, size_t limit, size_t max_postings,
                         is_hit *hits, size_t *n, is_error *err);

/* ------------------------------------------------------------ chunks */

/* What makes a chunk usable: all must be equal to what the engine wants now. */
typedef struct is_chunk_key {
    uint8_t fingerprint[16];
    const char *recipe;
    uint8_t header[16]; /* hash of the header's tokens */
} is_chunk_key;

/*
 * Stores a sealed chunk for a fact (fact_id 0: the scope-free header chunk, scope 0), durably, and keeps it
 * in the host tier.  The bytes are copied.  deps: ids of the facts of the same scope whose text stood in front when
 * it was made [n_deps].  An older chunk of the same fact is replaced and its file deleted.  IS_ENOTFOUND, and nothing
 * is stored, when the fact or a dep has been forgotten meanwhile, or changed since is_store_pending was last called (by
 * anyone: one encodes at a time), behind which the texts of a chunk are read.  IS_EINVAL: a fingerprint other than the
 * key's, or a header chunk with a scope or deps, since everybody shares it.  IS_ECORRUPT: not a sealed chunk.
 */
is_status is_store_put_chunk(is_store *store, int64_t scope, int64_t fact_id, const is_chunk_key *key,
                             const void *bytes, size_t size, const int64_t *deps, size_t n_deps, is_error *err);

/*
 * For a chunk whose rows the workers of another engine keep: a key, and FOLDER/chunks/ab/KEY.parts for them to write
 * into.  is_store_put_chunk takes the stub (is_chunk_stub) with that key once all parts are there, IS_EIO when they are
 * not; until then nobody takes the folder for a leftover.  is_store_drop_key gives up a key that was not put; of one
 * that was it changes nothing.
 */
is_status is_store_new_key(is_store *store, int64_t *key, is_error *err);
void is_store_drop_key(is_store *store, int64_t key);

/* A chunk held in memory: it stays where it is until is_store_unpin. */
typedef struct is_pin is_pin;
const is_chunk *is_pin_chunk(const is_pin *pin);

/*
 * Pins the chunks of n facts (fact id 0: the header): pins[i] is NULL where there is none with this key.
 * A chunk that is not in memory is read, checked whole (IS_CHUNK_CHECK_PAYLOAD) and kept there; one that is
 * damaged or gone is dropped from the index (it will be encoded again), counted in *refused (may be NULL), and NULL;
 * one that the system cannot read now (no memory, no file handle) is NULL and counted too, and stays.
 * A pin over the budget is still served, then leaves memory at unpin.  Several threads that want the same chunk
 * read it once.
 */
is_status is_store_pin(is_store *store, int64_t scope, const int64_t *fact_ids, size_t n, const is_chunk_key *key,
                       is_pin **pins, size_t *refused, is_error *err);
void is_store_unpin(is_store *store, is_pin **pins, size_t n); /* NULLs are passed over; sets them to NULL */
/* The chunks of these facts were not found to be what they must be by whoever used them: they are read and checked
 * again when they are pinned next. */
void is_store_doubt(is_store *store, const int64_t *fact_ids, size_t n);

/* ready[i]: whether fact i has a chunk with this key (index only, nothing is read). */
is_status is_store_ready(is_store *store, int64_t scope, const int64_t *fact_ids, size_t n, const is_chunk_key *key,
                         bool *ready, is_error *err);
/* Facts without a chunk of this key: at most limit, by rising id, ids > after; scope 0: any scope, and scopes[i] says
 * which.  Chunks of texts that are read from here on can be stored, see is_store_put_chunk.  *facts: is_fact_list_free;
 * *scopes: free(). */
is_status is_store_pending(is_store *store, int64_t scope, const is_chunk_key *key, int64_t after, size_t limit,
                           is_fact_list **facts, int64_t **scopes, is_error *err);
/* Facts whose chunk of this key was made behind no fact with this id or a greater one: at most limit, by rising id, ids
 * > after.  As with is_store_pending, chunks of their texts can be stored from here on. */
is_status is_store_outdated(is_store *store, int64_t scope, const is_chunk_key *key, int64_t dep, int64_t after,
                            size_t limit, is_fact_list **facts, is_error *err);
is_status is_store_count_pending(is_store *store, int64_t scope, const is_chunk_key *key, uint64_t *n, is_error *err);

/* Reads chunks of this key into memory, newest first, until the budget is full or *stop is true. */
is_status is_store_warm(is_store *store, const is_chunk_key *key, const atomic_bool *stop, is_error *err);
/* Deletes chunks that have another key than this (recipe, model or header changed). *n: how many. */
is_status is_store_drop_stale(is_store *store, const is_chunk_key *key, uint64_t *n, is_error *err);

/* key NULL: ready means a chunk of any key.  vector_bytes is left 0: the vectors in memory are the index's. */
is_status is_store_stats(is_store *store, const is_chunk_key *key, is_stats *out, is_error *err);
/* As is_verify.  The store goes on serving while chunks are read; the database's own check holds it up. */
is_status is_store_verify(is_store *store, bool repair, void (*on_problem)(void *user, const char *line), void *user,
                          is_verify_report *out, is_error *err);

#endif
