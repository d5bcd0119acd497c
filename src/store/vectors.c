/*
 * Embeddings: one vector a fact and embedding model, as f16 bytes.
 *
 * A vector tells much of the text that it was made from, so vectors are kept like texts: rows are appended, replaced
 * in place by one of the same size, or blanked (db.c says why).
 */
#include "store_internal.h"

#include <stdlib.h>
#include <string.h>

is_status is_embedder_id(is_store *store, const char *embedder, uint32_t dim, bool create, int64_t *id, is_error *err)
{
    bool found = false;
    is_status status = is_db_int(store, id, &found, err, "SELECT id FROM embedder WHERE name = ? AND dim = ?", "ti",
                                 embedder, (int64_t)dim);
    if (status != IS_OK || found || !create) return status;
    status = is_db_run(store, NULL, err, "INSERT INTO embedder(name, dim) VALUES(?, ?)", "ti", embedder, (int64_t)dim);
    *id = sqlite3_last_insert_rowid(store->db);
    return status;
}

is_status is_vector_put(is_store *store, int64_t scope, int64_t fact, int64_t embedder, const uint16_t *vector,
                        uint32_t dim, is_error *err)
{
    const void *bytes = vector;
    return is_db_run(store, NULL, err,
                     "INSERT INTO embedding(scope, fact, embedder, vector) VALUES(?, ?, ?, ?)"
                     " ON CONFLICT(scope, fact, embedder) WHERE scope IS NOT NULL"
                     " DO UPDATE SET vector = excluded.vector",
                     "iiib", scope, fact, embedder, bytes, (size_t)dim * sizeof *vector);
}

is_status is_vectors_blank(is_store *store, int64_t scope, int64_t fact, int64_t *blanked, is_error *err)
{
    int64_t vectors = 0;
    is_status status = is_db_run(store, &vectors, err,
                                 "UPDATE embedding SET scope = NULL, fact = NULL, embedder = NULL, vector = NULL"
                                 " WHERE scope = ? AND fact = ?",
                                 "ii", scope, fact);
    *blanked += vectors;
    return status;
}

/* Columns fact, vector.  Grows both arrays to the rows that there are. */
static is_status read_vectors(is_store *store, sqlite3_stmt *stmt, size_t n_rows, uint32_t dim, int64_t *ids,
                              uint16_t *vectors, size_t *n, is_error *err)
{
    size_t row_bytes = (size_t)dim * sizeof *vectors;
    bool row = true;
    for (*n = 0; *n < n_rows; (*n)++) {
        is_status status = is_db_step(store, stmt, &row, err);
        if (status != IS_OK || !row) return status;
        if ((size_t)sqlite3_column_bytes(stmt, 1) != row_bytes)
            return is_fail(err, IS_ECORRUPT, "fact %lld has an embedding of %d bytes in place of %zu; restore a backup",
                           (long long)sqlite3_column_int64(stmt, 0), sqlite3_column_bytes(stmt, 1), row_bytes);
        ids[*n] = sqlite3_column_int64(stmt, 0);
        memcpy(vectors + *n * dim, sqlite3_column_blob(stmt, 1), row_bytes);
    }
    return IS_OK;
}

is_status is_store_embeddings(is_store *store, int64_t scope, const char *embedder, uint32_t dim, int64_t since,
                              int64_t **ids, uint16_t **vectors, size_t *n, is_error *err)
{
    *ids = NULL;
    *vectors = NULL;
    *n = 0;
    if (dim == 0) return is_fail(err, IS_EINVAL, "embeddings of width 0 were asked for");
    int64_t model = 0;
    int64_t count = 0;
    sqlite3_stmt *stmt = NULL;
    is_db_lock(store);
    is_status status = is_embedder_id(store, embedder, dim, false, &model, err);
    if (status == IS_OK)
        status = is_db_int(store, &count, NULL, err,
                           "SELECT count(*) FROM embedding WHERE scope = ? AND fact > ? AND embedder = ?", "iii", scope,
                           since, model);
    size_t bytes = 0;
    if (status == IS_OK && !is_mul_size((size_t)count, (size_t)dim * sizeof **vectors, &bytes))
        status = is_fail(err, IS_ENOMEM, "%lld embeddings do not fit into memory", (long long)count);
    if (status == IS_OK && count > 0) {
        *ids = malloc((size_t)count * sizeof **ids);
        *vectors = aligned_alloc(64, is_align_up(bytes, 64));
        if (*ids == NULL || *vectors == NULL)
            status = is_fail(err, IS_ENOMEM, "out of memory for %lld embeddings", (long long)count);
    }
    if (status == IS_OK && count > 0)
        status = is_db_query(store, &stmt, err,
                             "SELECT fact, vector FROM embedding WHERE scope = ? AND fact > ? AND embedder = ?"
                             " ORDER BY fact",
                             "iii", scope, since, model);
    if (status == IS_OK && count > 0) {
        status = read_vectors(store, stmt, (size_t)count, dim, *ids, *vectors, n, err);
        is_db_end(stmt);
    }
    is_db_unlock(store);
    if (status == IS_OK) return IS_OK;
    free(*ids);
    free(*vectors);
    *ids = NULL;
    *vectors = NULL;
    *n = 0;
    return status;
}

is_status is_store_unembedded(is_store *store, int64_t scope, const char *embedder, size_t limit, is_fact_list **out,
                              is_error *err)
{
    *out = NULL;
    sqlite3_stmt *stmt = NULL;
    is_db_lock(store);
    is_status status = is_db_query(store, &stmt, err,
                                   "SELECT " IS_FACT_COLUMNS " FROM fact f" IS_FACT_EDITION
                                   " WHERE f.scope = ? AND NOT EXISTS(SELECT 1 FROM embedding v JOIN embedder m"
                                   " ON m.id = v.embedder WHERE v.scope = f.scope AND v.fact = f.id AND m.name = ?)"
                                   " ORDER BY f.id LIMIT ?",
                                   "iti", scope, embedder, limit > INT64_MAX ? INT64_MAX : (int64_t)limit);
    if (status == IS_OK) status = is_fact_list_read(store, stmt, out, err);
    is_db_unlock(store);
    return status;
}

typedef struct embedded {
    const int64_t *ids;       /* [n] */
    const is_fact_list *read; /* [n] the facts as they were read, or NULL: whatever they say now */
    const uint16_t *vectors;  /* [n][dim] */
    size_t n;
    uint32_t dim;
    const char *embedder;
} embedded;

/* scopes [n]: the facts' scopes, 0 where there is no such fact any more or it does not say the same any more. */
static is_status put_all(is_store *store, const embedded *in, int64_t *scopes, is_error *err)
{
    int64_t model = 0;
    is_status status = is_embedder_id(store, in->embedder, in->dim, true, &model, err);
    for (size_t i = 0; i < in->n && status == IS_OK; i++) {
        const char *text = in->read != NULL ? in->read->facts[i].text : NULL;
        status = is_db_int(store, &scopes[i], NULL, err,
                           "SELECT f.scope FROM fact f" IS_FACT_EDITION
                           " WHERE f.id = ?1 AND (?2 IS NULL OR " IS_SAYS("text") " = ?2)",
                           "it", in->ids[i], text);
        if (status == IS_OK && scopes[i] != 0)
            status = is_vector_put(store, scopes[i], in->ids[i], model, in->vectors + i * in->dim, in->dim, err);
    }
    return status;
}

static is_status put(is_store *store, const embedded *in, is_error *err)
{
    size_t n = in->n;
    if (in->embedder == NULL || in->dim == 0)
        return is_fail(err, IS_EINVAL, "embeddings were given without the name or width of their model");
    if (n == 0) return IS_OK;
    int64_t *scopes = calloc(n, sizeof *scopes);
    if (scopes == NULL) return is_fail(err, IS_ENOMEM, "out of memory for %zu embeddings", n);
    is_db_lock(store);
    is_status status = is_db_begin(store, err);
    if (status == IS_OK) {
        status = put_all(store, in, scopes, err);
        if (status == IS_OK) {
            status = is_db_commit(store, err);
        } else {
            is_db_rollback(store);
        }
    }
    is_db_unlock(store);
    for (size_t i = 0; i < n && status == IS_OK; i++)
        if (scopes[i] != 0 && (i == 0 || scopes[i] != scopes[i - 1])) is_generation_bump(store, scopes[i], false);
    free(scopes);
    return status;
}

is_status is_store_put_embeddings(is_store *store, const int64_t *fact_ids, const uint16_t *vectors, size_t n,
                                  uint32_t dim, const char *embedder, is_error *err)
{
    return put(store, &(embedded){fact_ids, NULL, vectors, n, dim, embedder}, err);
}

is_status is_store_put_embeddings_of(is_store *store, const is_fact_list *facts, const uint16_t *vectors, uint32_t dim,
                                     const char *embedder, is_error *err)
{
    int64_t *ids = malloc((facts->n + 1) * sizeof *ids);
    if (ids == NULL) return is_fail(err, IS_ENOMEM, "out of memory for %zu embeddings", facts->n);
    for (size_t i = 0; i < facts->n; i++) ids[i] = facts->facts[i].id;
    is_status status = put(store, &(embedded){ids, facts, vectors, facts->n, dim, embedder}, err);
    free(ids);
    return status;
}
