/*
 * The chunk index: which fact has which chunk, made under which key, and behind which other facts.
 *
 * A key is kept as one hash over fingerprint, header and recipe.  A chunk's file is on disk before its row, and is
 * unlinked after its row has gone: whatever is cut short in between leaves a file without a row, never a row without
 * its file.
 */
#include "../kv/hash.h"
#include "store_internal.h"

#include <stdlib.h>
#include <string.h>

void is_key_hash(const is_chunk_key *key, uint8_t out[IS_KEY_BYTES])
{
    const char *recipe = key->recipe != NULL ? key->recipe : "";
    is_hash128((is_span[]){{key->fingerprint, 16}, {key->header, 16}, {recipe, strlen(recipe)}}, 3, out);
}

/* ------------------------------------------------------------ rows */

is_status is_chunk_rows_add(is_chunk_rows_list *list, const is_chunk_row *row, is_error *err)
{
    if (list->n == list->capacity) {
        size_t capacity = list->capacity == 0 ? 16 : list->capacity * 2;
        is_chunk_row *grown = realloc(list->rows, capacity * sizeof *grown);
        if (grown == NULL) return is_fail(err, IS_ENOMEM, "out of memory for a list of chunks");
        list->rows = grown;
        list->capacity = capacity;
    }
    list->rows[list->n++] = *row;
    return IS_OK;
}

void is_index_read_row(sqlite3_stmt *stmt, is_chunk_row *row)
{
    *row = (is_chunk_row){.id = sqlite3_column_int64(stmt, 0),
                          .fact = sqlite3_column_int64(stmt, 1),
                          .scope = sqlite3_column_int64(stmt, 2),
                          .file = sqlite3_column_int64(stmt, 3),
                          .bytes = sqlite3_column_int64(stmt, 4)};
    const void *digest = sqlite3_column_blob(stmt, 5);
    if (digest != NULL && sqlite3_column_bytes(stmt, 5) == 16) memcpy(row->digest, digest, 16);
}

is_status is_index_read(is_store *store, sqlite3_stmt *stmt, is_chunk_rows_list *list, is_error *err)
{
    is_status status = IS_OK;
    bool more = true;
    for (;;) {
        status = is_db_step(store, stmt, &more, err);
        if (status != IS_OK || !more) break;
        is_chunk_row row;
        is_index_read_row(stmt, &row);
        status = is_chunk_rows_add(list, &row, err);
        if (status != IS_OK) break;
    }
    is_db_end(stmt);
    return status;
}

is_status is_index_delete(is_store *store, const is_chunk_row *rows, size_t n, is_error *err)
{
    is_status status = IS_OK;
    for (size_t i = 0; i < n && status == IS_OK; i++) {
        status = is_db_run(store, NULL, err, "DELETE FROM chunk WHERE id = ?", "i", rows[i].id);
        is_tier_drop(store->tier, rows[i].fact);
    }
    return status;
}

/* Deleted at once, so that the next fact does not list them again. */
is_status is_index_delete_fact(is_store *store, int64_t fact, bool behind, is_chunk_rows_list *list, is_error *err)
{
    size_t before = list->n;
    sqlite3_stmt *stmt = NULL;
    is_status status = is_db_query(store, &stmt, err,
                                   "SELECT " IS_CHUNK_COLUMNS " FROM chunk c WHERE c.fact = ?1"
                                   " OR (?2 AND c.id IN (SELECT chunk FROM chunk_fact WHERE fact = ?1))",
                                   "ii", fact, (int64_t)behind);
    if (status == IS_OK) status = is_index_read(store, stmt, list, err);
    if (status == IS_OK) status = is_index_delete(store, list->rows + before, list->n - before, err);
    return status;
}

/* ------------------------------------------------------------ putting */

/* A sealed chunk, copied to where it can stay, and checked. */
typedef struct parcel {
    int64_t scope, fact;
    uint8_t key[IS_KEY_BYTES];
    const int64_t *deps;
    size_t n_deps;
    void *bytes;
    is_chunk chunk;
    is_chunk_row row;
} parcel;

static is_status pack(parcel *p, const is_chunk_key *key, const void *bytes, size_t size, is_error *err)
{
    if (p->fact == 0 && (p->scope != 0 || p->n_deps != 0))
        return is_fail(err, IS_EINVAL, "the header's chunk belongs to no scope and depends on no fact");
    p->bytes = is_chunk_memory(size);
    if (p->bytes == NULL) return is_fail(err, IS_ENOMEM, "out of memory for a chunk of %zu bytes", size);
    memcpy(p->bytes, bytes, size);
    is_status status = is_chunk_open(&p->chunk, p->bytes, size, IS_CHUNK_CHECK_PAYLOAD, err);
    if (status != IS_OK) return status;
    if (memcmp(p->chunk.info.fingerprint, key->fingerprint, sizeof key->fingerprint) != 0)
        return is_fail(err, IS_EINVAL, "fact %lld: the chunk was made by another model than the one it is stored for",
                       (long long)p->fact);
    is_key_hash(key, p->key);
    p->row = (is_chunk_row){.fact = p->fact, .scope = p->scope, .bytes = (int64_t)size, .file = p->chunk.info.key};
    is_files_digest(p->bytes, size, p->row.digest);
    return p->chunk.info.parts > 0 ? IS_OK : is_files_new(&p->row.file, err);
}

/* Whether the workers have written what a stub stands for. */
static is_status check_parts(is_store *store, const parcel *p, is_error *err)
{
    is_error why = {0};
    if (p->chunk.info.parts == 0 || is_files_check_parts(store, &p->chunk, false, &why) == IS_OK) return IS_OK;
    return is_fail(err, IS_EIO, "fact %lld: the workers have made no chunk: %.800s", (long long)p->fact, why.text);
}

/* A fact whose text the chunk was made of or behind. */
static is_status require_fact(is_store *store, int64_t scope, int64_t fact, is_error *err)
{
    int64_t edition = 0;
    bool found = false;
    is_status status = is_db_int(store, &edition, &found, err,
                                 "SELECT (SELECT max(id) FROM edition WHERE scope = f.scope AND fact = f.id)"
                                 " FROM fact f WHERE f.id = ? AND f.scope = ?",
                                 "ii", fact, scope);
    if (status != IS_OK || (found && edition <= store->texts_read)) return status;
    if (found)
        return is_fail(err, IS_ENOTFOUND, "fact %lld has been changed since its text was read; the chunk is not kept",
                       (long long)fact);
    return is_fail(err, IS_ENOTFOUND, "fact %lld is not in scope %lld any more; its chunk is not kept", (long long)fact,
                   (long long)scope);
}

/* In a transaction.  old: the row that is replaced, if any. */
static is_status enter(is_store *store, const parcel *p, is_chunk_rows_list *old, is_error *err)
{
    sqlite3_stmt *stmt = NULL;
    is_status status = p->fact != 0 ? require_fact(store, p->scope, p->fact, err) : IS_OK;
    for (size_t i = 0; i < p->n_deps && status == IS_OK; i++) status = require_fact(store, p->scope, p->deps[i], err);
    if (status == IS_OK)
        status =
            is_db_query(store, &stmt, err, "SELECT " IS_CHUNK_COLUMNS " FROM chunk c WHERE c.fact = ?", "i", p->fact);
    if (status == IS_OK) status = is_index_read(store, stmt, old, err);
    if (status == IS_OK) status = is_index_delete(store, old->rows, old->n, err);
    if (status == IS_OK)
        status = is_db_run(store, NULL, err,
                           "INSERT INTO chunk(scope, fact, key, file, bytes, digest) VALUES(?, ?, ?, ?, ?, ?)",
                           "iibiib", p->scope, p->fact, (const void *)p->key, sizeof p->key, p->row.file, p->row.bytes,
                           (const void *)p->row.digest, sizeof p->row.digest);
    int64_t id = sqlite3_last_insert_rowid(store->db);
    for (size_t i = 0; i < p->n_deps && status == IS_OK; i++)
        status = is_db_run(store, NULL, err, "INSERT OR IGNORE INTO chunk_fact(chunk, fact) VALUES(?, ?)", "ii", id,
                           p->deps[i]);
    return status;
}

/* The key is put, or given up; false: it was before.  db_mutex is held. */
static bool await_no_more(is_store *store, int64_t key)
{
    for (size_t i = 0; i < store->n_awaited; i++) {
        if (store->awaited[i] != key) continue;
        store->awaited[i] = store->awaited[--store->n_awaited];
        return true;
    }
    return false;
}

/* The row, and with it the memory: p->bytes belong to the tier when this is well. */
static is_status enter_and_keep(is_store *store, parcel *p, is_chunk_rows_list *old, is_error *err)
{
    is_db_lock(store);
    is_status status = is_db_begin(store, err);
    if (status == IS_OK) {
        status = enter(store, p, old, err);
        if (status == IS_OK) {
            status = is_db_commit(store, err);
        } else {
            is_db_rollback(store);
        }
    }
    if (status == IS_OK) {
        (void)await_no_more(store, p->chunk.info.key);
        is_tier_insert(store->tier, p->scope, p->fact, p->key, p->bytes, &p->chunk);
        p->bytes = NULL;
    }
    is_db_unlock(store);
    return status;
}

is_status is_store_put_chunk(is_store *store, int64_t scope, int64_t fact_id, const is_chunk_key *key,
                             const void *bytes, size_t size, const int64_t *deps, size_t n_deps, is_error *err)
{
    parcel p = {.scope = scope, .fact = fact_id, .deps = deps, .n_deps = n_deps};
    is_chunk_rows_list old = {NULL, 0, 0};
    is_status status = pack(&p, key, bytes, size, err);
    if (status == IS_OK) {
        (void)pthread_rwlock_rdlock(&store->files);
        status = check_parts(store, &p, err);
        if (status == IS_OK) status = is_files_write(store, p.row.file, p.bytes, size, err);
        if (status == IS_OK) {
            status = enter_and_keep(store, &p, &old, err);
            if (status == IS_OK) {
                is_files_unlink(store, old.rows, old.n);
            } else {
                is_files_unlink(store, &p.row, 1);
            }
        }
        (void)pthread_rwlock_unlock(&store->files);
    }
    free(old.rows);
    free(p.bytes);
    return status;
}

/* ------------------------------------------------------------ keys */

is_status is_store_new_key(is_store *store, int64_t *key, is_error *err)
{
    is_status status = is_files_new(key, err);
    if (status != IS_OK) return status;
    is_db_lock(store);
    int64_t *grown = realloc(store->awaited, (store->n_awaited + 1) * sizeof *grown);
    if (grown != NULL) {
        store->awaited = grown;
        store->awaited[store->n_awaited++] = *key;
    }
    is_db_unlock(store);
    if (grown == NULL) return is_fail(err, IS_ENOMEM, "out of memory for a chunk's key");
    status = is_files_make_parts(store, *key, err);
    if (status != IS_OK) is_store_drop_key(store, *key);
    return status;
}

void is_store_drop_key(is_store *store, int64_t key)
{
    const is_chunk_row row = {.file = key};
    is_db_lock(store);
    bool awaited = await_no_more(store, key);
    is_db_unlock(store);
    if (awaited) is_files_unlink(store, &row, 1);
}

/* ------------------------------------------------------------ dropping */

/* One transaction over the rows, then their files. */
static is_status drop_rows(is_store *store, const is_chunk_row *rows, size_t n, bool *there, is_error *err)
{
    int64_t before = 0;
    int64_t after = 0;
    (void)pthread_rwlock_rdlock(&store->files);
    is_db_lock(store);
    is_status status = is_db_begin(store, err);
    if (status == IS_OK) {
        before = sqlite3_total_changes64(store->db);
        status = is_index_delete(store, rows, n, err);
        after = sqlite3_total_changes64(store->db);
        if (status == IS_OK) {
            status = is_db_commit(store, err);
        } else {
            is_db_rollback(store);
        }
    }
    is_db_unlock(store);
    if (status == IS_OK) is_files_unlink(store, rows, n);
    (void)pthread_rwlock_unlock(&store->files);
    *there = after > before;
    return status;
}

is_status is_chunks_drop(is_store *store, const is_chunk_row *row, bool *there, is_error *err)
{
    return drop_rows(store, row, 1, there, err);
}

is_status is_store_drop_stale(is_store *store, const is_chunk_key *key, uint64_t *n, is_error *err)
{
    uint8_t hash[IS_KEY_BYTES];
    is_key_hash(key, hash);
    *n = 0;
    for (;;) {
        is_chunk_rows_list list = {NULL, 0, 0};
        sqlite3_stmt *stmt = NULL;
        bool there = false;
        is_db_lock(store);
        is_status status =
            is_db_query(store, &stmt, err, "SELECT " IS_CHUNK_COLUMNS " FROM chunk c WHERE c.key <> ? LIMIT 1000", "b",
                        (const void *)hash, sizeof hash);
        if (status == IS_OK) status = is_index_read(store, stmt, &list, err);
        is_db_unlock(store);
        if (status == IS_OK && list.n > 0) status = drop_rows(store, list.rows, list.n, &there, err);
        size_t dropped = list.n;
        free(list.rows);
        if (status != IS_OK || dropped == 0) return status;
        *n += dropped;
    }
}

/* ------------------------------------------------------------ index against folder */

static int by_file(const void *a, const void *b)
{
    int64_t x = ((const is_chunk_row *)a)->file;
    int64_t y = ((const is_chunk_row *)b)->file;
    return (x > y) - (x < y);
}

static is_status all_rows(is_store *store, is_chunk_rows_list *list, is_error *err)
{
    sqlite3_stmt *stmt = NULL;
    is_db_lock(store);
    is_status status = is_db_query(store, &stmt, err, "SELECT " IS_CHUNK_COLUMNS " FROM chunk c", "");
    if (status == IS_OK) status = is_index_read(store, stmt, list, err);
    is_db_unlock(store);
    if (list->n > 1) qsort(list->rows, list->n, sizeof *list->rows, by_file);
    return status;
}

is_status is_chunks_reconcile(is_store *store, bool remove_orphans, bool drop_missing, uint64_t *orphans,
                              void (*on_problem)(void *user, const char *line), void *user, is_error *err)
{
    is_chunk_rows_list list = {NULL, 0, 0};
    int64_t *files = NULL;
    bool *seen = NULL;
    *orphans = 0;
    (void)pthread_rwlock_wrlock(&store->files);
    is_status status = all_rows(store, &list, err);
    if (status == IS_OK) {
        files = calloc(list.n + 1, sizeof *files);
        seen = calloc(list.n + 1, sizeof *seen);
        if (files == NULL || seen == NULL) status = is_fail(err, IS_ENOMEM, "out of memory for a list of chunk files");
    }
    for (size_t i = 0; i < list.n && status == IS_OK; i++) files[i] = list.rows[i].file;
    if (status == IS_OK)
        status = is_files_sweep(store, files, list.n, seen, remove_orphans, orphans, on_problem, user, err);
    (void)pthread_rwlock_unlock(&store->files);
    if (status == IS_OK && drop_missing) {
        size_t missing = 0;
        for (size_t i = 0; i < list.n; i++)
            if (!seen[i]) list.rows[missing++] = list.rows[i];
        bool there = false;
        if (missing > 0) status = drop_rows(store, list.rows, missing, &there, err);
    }
    free(seen);
    free(files);
    free(list.rows);
    return status;
}
