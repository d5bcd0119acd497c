/*
 * What the files of the store share: the handle, the database helper, chunk files, the host tier.
 *
 * Locks, in the order in which they may be taken: files (shared by whoever makes or unlinks chunk files, exclusive
 * for the comparison of folder and index), db_mutex (the connection, its statements and the tokenizer), the tier's
 * own mutex, generation_mutex.  Functions named is_db_*, is_words_* and is_index_* expect db_mutex to be held.
 *
 * A tier entry never outlives its index row: whoever removes or replaces a row drops the entry before the commit
 * and while holding db_mutex, and whoever loads a chunk looks its row up under db_mutex after having announced the
 * load in the tier.  So a load either sees the new row or is told that what it read is void.
 */
#ifndef IS_STORE_INTERNAL_H
#define IS_STORE_INTERNAL_H

#include <pthread.h>
#include <sqlite3.h>

#include "store.h"

#define IS_KEY_BYTES 16

typedef struct is_statement is_statement;
typedef struct is_tokenizer is_tokenizer;
typedef struct is_tier is_tier;

typedef struct is_generation {
    uint64_t any, removed;
} is_generation;

struct is_store {
    char *folder;
    int lock_fd;
    int chunks_fd;
    pthread_rwlock_t files;
    pthread_mutex_t db_mutex;
    sqlite3 *db;
    is_statement *statements; /* prepared once, by text */
    size_t n_statements;
    is_tokenizer *tokenizer;
    is_tier *tier;
    pthread_mutex_t generation_mutex;
    is_generation *generations; /* [n_generations], by scope */
    size_t n_generations;
    uint64_t unplaced; /* changes of scopes that there was no memory to count for */
    int64_t *awaited;  /* keys whose chunks are being made, [n_awaited]; under db_mutex, as the next */
    size_t n_awaited;
    int64_t texts_read; /* the newest edition of any fact when is_store_pending was last asked; under db_mutex */
};

/* ------------------------------------------------------------ db.c: the connection */

is_status is_db_open(is_store *store, is_error *err);
void is_db_close(is_store *store);

/* What SQLite last complained of, as an error that names the database and the remedy. */
is_status is_db_fail(is_store *store, is_error *err);

/*
 * Takes the statement from the cache and binds it.  kinds has a letter for each parameter: i int64_t, m int64_t time
 * (IS_TIME_NONE is NULL), t text or NULL, b bytes and size_t.  What is bound must stay until is_db_end.
 */
is_status is_db_query(is_store *store, sqlite3_stmt **out, is_error *err, const char *sql, const char *kinds, ...);
/* The next row: *row says whether there was one. */
is_status is_db_step(is_store *store, sqlite3_stmt *stmt, bool *row, is_error *err);
void is_db_end(sqlite3_stmt *stmt); /* NULL: there was none */
/* A statement without rows; *changes may be NULL. */
is_status is_db_run(is_store *store, int64_t *changes, is_error *err, const char *sql, const char *kinds, ...);
/* The first column of the first row; *found may be NULL, and *value is 0 without a row or where it is NULL. */
is_status is_db_int(is_store *store, int64_t *value, bool *found, is_error *err, const char *sql, const char *kinds,
                    ...);

is_status is_db_begin(is_store *store, is_error *err);
is_status is_db_commit(is_store *store, is_error *err); /* rolls back when it fails */
void is_db_rollback(is_store *store);
/* Empties the WAL into the database, so that no page of either holds an old version. */
is_status is_db_truncate_wal(is_store *store, is_error *err);
/* The highest id that an edition has had, 0 for none. */
is_status is_db_newest_edition(is_store *store, int64_t *id, is_error *err);
/* Rebuilds the database when more rows of it are blank than used, see db.c. */
is_status is_db_compact(is_store *store, is_error *err);

static inline void is_db_lock(is_store *store)
{
    (void)pthread_mutex_lock(&store->db_mutex);
}
static inline void is_db_unlock(is_store *store)
{
    (void)pthread_mutex_unlock(&store->db_mutex);
}

/* ------------------------------------------------------------ store.c */

/* Facts of this scope were added or embedded; removed: forgotten, or their text or time was changed. */
void is_generation_bump(is_store *store, int64_t scope, bool removed);

/* ------------------------------------------------------------ facts.c */

#define IS_FACT_MAX_BYTES 4096

/*
 * What a fact says now: the columns of "FROM fact f" with this join behind it.  e is the newest edition of a fact that
 * was changed.
 */
#define IS_FACT_EDITION                                                                                                \
    " LEFT JOIN edition e ON e.id = (SELECT max(id) FROM edition WHERE scope = f.scope AND fact = f.id)"
#define IS_SAYS(COLUMN) "iif(e.id IS NULL, f." COLUMN ", e." COLUMN ")"
#define IS_FACT_COLUMNS                                                                                                \
    "f.id," IS_SAYS("text") "," IS_SAYS("source") "," IS_SAYS("time") "," IS_SAYS("metadata") ",f.created"

/* A list that grows; every string in it is allocated by itself. */
is_status is_fact_list_new(is_fact_list **out, is_error *err);
/* Appends the row's fact; its first columns are IS_FACT_COLUMNS. */
is_status is_fact_list_add_row(is_fact_list *list, sqlite3_stmt *stmt, is_error *err);
/* Every row of the statement, which is ended; on failure the list is freed. */
is_status is_fact_list_read(is_store *store, sqlite3_stmt *stmt, is_fact_list **out, is_error *err);
/* A copy of the column's text, NULL for NULL. */
is_status is_column_text(sqlite3_stmt *stmt, int column, const char **out, is_error *err);
/* IS_EINVAL when the text is no UTF-8; NULL is fine. */
is_status is_check_text(const char *what, const char *text, is_error *err);
/* Whether this can be stored as a fact; a change may have no text. */
is_status is_check_fact(const is_fact *fact, bool change, is_error *err);
/* The text of a fact that was checked, with blanks for line breaks. */
void is_one_line(const char *text, char line[IS_FACT_MAX_BYTES + 1]);

/* ------------------------------------------------------------ vectors.c */

/* The number of an embedding model and its width, made when it is new. */
is_status is_embedder_id(is_store *store, const char *embedder, uint32_t dim, bool create, int64_t *id, is_error *err);
is_status is_vector_put(is_store *store, int64_t scope, int64_t fact, int64_t embedder, const uint16_t *vector,
                        uint32_t dim, is_error *err);
/* Blanks the fact's vectors of every model and adds to *blanked how many those were. */
is_status is_vectors_blank(is_store *store, int64_t scope, int64_t fact, int64_t *blanked, is_error *err);

/* ------------------------------------------------------------ words.c: the word index */

/* Makes the tokenizer; rebuilds the index when another version of it made the one that is there. */
is_status is_words_open(is_store *store, is_error *err);
void is_words_close(is_store *store);

typedef struct is_word {
    int64_t hash;    /* of the stem */
    uint32_t n;      /* how often it stands in the text */
    uint32_t n_text; /* words of the whole text */
} is_word;

#define IS_WORDS_MAX 2048 /* a text of IS_FACT_MAX_BYTES has no more words than this */

/* The different words of a text by rising hash; words beyond IS_WORDS_MAX are left out. */
is_status is_words_split(is_store *store, const char *text, bool query, is_word words[IS_WORDS_MAX], size_t *n,
                         is_error *err);
is_status is_words_add(is_store *store, int64_t scope, int64_t fact, const char *text, is_error *err);
is_status is_words_remove(is_store *store, int64_t scope, int64_t fact, const char *text, is_error *err);
/* Compares the word index with the facts' texts: *bad counts facts and totals that do not agree. */
is_status is_words_check(is_store *store, uint64_t *bad, is_error *err);
is_status is_words_rebuild(is_store *store, is_error *err);

/* ------------------------------------------------------------ files.c: chunk files */

/* What the index says about one chunk. */
typedef struct is_chunk_row {
    int64_t id, fact, scope, file;
    int64_t bytes;
    uint8_t digest[16]; /* of the file's first bytes, which hold the chunk's own hashes */
} is_chunk_row;

typedef struct is_chunk_rows_list {
    is_chunk_row *rows;
    size_t n, capacity;
} is_chunk_rows_list;

is_status is_chunk_rows_add(is_chunk_rows_list *list, const is_chunk_row *row, is_error *err);

is_status is_files_open(is_store *store, is_error *err);
/* A file number that was never used before. */
is_status is_files_new(int64_t *file, is_error *err);
void is_files_digest(const void *bytes, size_t size, uint8_t out[16]);
/* Written, synced, renamed, the folder synced.  On failure nothing is left. */
is_status is_files_write(is_store *store, int64_t file, const void *bytes, size_t size, is_error *err);
/*
 * Reads and checks a chunk whole into new memory (free()).  IS_ENOTFOUND: no file; IS_ECORRUPT: not what was written;
 * anything else is the system's trouble and says nothing about the chunk.
 */
is_status is_files_load(is_store *store, const is_chunk_row *row, void **bytes, is_chunk *chunk, is_error *err);
/* The folder that workers write a chunk's parts into. */
is_status is_files_make_parts(is_store *store, int64_t file, is_error *err);
/*
 * Whether all parts of a stub are there; whole: and are what was written, by their own hashes, of the stub's tokens.
 * IS_ENOTFOUND, IS_ECORRUPT, or the system's trouble, as from is_files_load, which has looked for them.
 */
is_status is_files_check_parts(is_store *store, const is_chunk *stub, bool whole, is_error *err);
/* Unlinks the rows' files and parts and syncs the folders; what is not there is passed over. */
void is_files_unlink(is_store *store, const is_chunk_row *rows, size_t n);

/*
 * Compares folder and index, which must not change meanwhile.  files: [n] rising numbers of the index; seen[i] is set
 * where there is such a file.  A file of ours that the index has not, nor the awaited keys, is an orphan: counted,
 * told, and unlinked on `remove`.
 */
is_status is_files_sweep(is_store *store, const int64_t *files, size_t n, bool *seen, bool remove, uint64_t *orphans,
                         void (*on_problem)(void *user, const char *line), void *user, is_error *err);

/* ------------------------------------------------------------ chunks.c: the chunk index */

void is_key_hash(const is_chunk_key *key, uint8_t out[IS_KEY_BYTES]);
/* Columns id, fact, scope, file, bytes, digest. */
#define IS_CHUNK_COLUMNS "c.id, c.fact, c.scope, c.file, c.bytes, c.digest"
void is_index_read_row(sqlite3_stmt *stmt, is_chunk_row *row);
/* Appends every row of the statement, which is ended. */
is_status is_index_read(is_store *store, sqlite3_stmt *stmt, is_chunk_rows_list *list, is_error *err);
/* Deletes the rows in the transaction at hand and drops their tier entries. */
is_status is_index_delete(is_store *store, const is_chunk_row *rows, size_t n, is_error *err);
/* The same for the chunk of a fact and, behind true, for every chunk that was made behind it.  Appends the rows to the
 * list, for is_files_unlink after the commit. */
is_status is_index_delete_fact(is_store *store, int64_t fact, bool behind, is_chunk_rows_list *list, is_error *err);
/* Takes one chunk out of index, tier and folder.  *there false: it had been replaced or dropped before.  Takes the
 * locks itself. */
is_status is_chunks_drop(is_store *store, const is_chunk_row *row, bool *there, is_error *err);
/* Orphaned files against the index, rows against the folder (drop_missing).  Takes the locks itself. */
is_status is_chunks_reconcile(is_store *store, bool remove_orphans, bool drop_missing, uint64_t *orphans,
                              void (*on_problem)(void *user, const char *line), void *user, is_error *err);

/* ------------------------------------------------------------ tier.c: chunks in host memory */

is_status is_tier_open(uint64_t budget, is_tier **out, is_error *err);
void is_tier_close(is_tier *tier);

/* One chunk that a caller of is_tier_claim asks for. */
typedef struct is_want {
    int64_t fact, scope;
    is_pin *pin; /* done: pinned, or NULL for none; mine: the announced load */
    bool done;
    bool mine; /* to be loaded by the caller, and ended by is_tier_finish */
    bool found;
    is_chunk_row row;
} is_want;

/*
 * Pins what is in memory, and announces a load of what is not and nobody else loads.  Returns when the caller has
 * something to load or everything is done; until then it waits for the loads of others.
 */
is_status is_tier_claim(is_tier *tier, const uint8_t key[IS_KEY_BYTES], is_want *wants, size_t n, bool count,
                        is_error *err);
/* Makes room for an announced load, before it reads. */
void is_tier_reserve(is_tier *tier, is_pin *pin, size_t size);
/* Ends a load; bytes NULL: it failed.  True: pinned.  Otherwise bytes and pin are freed. */
bool is_tier_finish(is_tier *tier, is_pin *pin, void *bytes, const is_chunk *chunk);
void is_tier_unpin(is_tier *tier, is_pin *pin, bool cold); /* cold: the first to be evicted */
/* Keeps a chunk that was just stored, when it fits; takes the bytes over in any case. */
void is_tier_insert(is_tier *tier, int64_t scope, int64_t fact, const uint8_t key[IS_KEY_BYTES], void *bytes,
                    const is_chunk *chunk);
/* The chunk of this fact is out of use.  Its bytes are wiped when they go. */
void is_tier_drop(is_tier *tier, int64_t fact);

typedef struct is_listed {
    int64_t fact;
    uint8_t key[IS_KEY_BYTES];
} is_listed;

/* What is in memory; the caller frees it. */
is_status is_tier_list(is_tier *tier, is_listed **out, size_t *n, is_error *err);
bool is_tier_holds(is_tier *tier, int64_t scope, int64_t fact, const uint8_t key[IS_KEY_BYTES]);
/* Whether a chunk of this size fits without an eviction. */
bool is_tier_fits(is_tier *tier, size_t size);
void is_tier_stats(is_tier *tier, is_stats *out);

#endif
