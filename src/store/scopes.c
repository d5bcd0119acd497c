/*
 * Which scopes there are: of one tenant or of all, and whose a fact is.
 */
#include "store_internal.h"

#include <stdlib.h>

#define SCOPE_COLUMNS "s.id, s.tenant, s.user, s.agent, s.run, s.facts, s.turns"

void is_scope_info_free(is_scope_info *scopes, size_t n)
{
    for (size_t i = 0; scopes != NULL && i < n; i++) {
        free(scopes[i].tenant);
        free(scopes[i].user);
        free(scopes[i].agent);
        free(scopes[i].run);
    }
    free(scopes);
}

static is_status read_scope(sqlite3_stmt *stmt, is_scope_info *out, is_error *err)
{
    const char *part[4] = {NULL, NULL, NULL, NULL};
    is_status status = IS_OK;
    for (int i = 0; i < 4 && status == IS_OK; i++) status = is_column_text(stmt, i + 1, &part[i], err);
    *out = (is_scope_info){.number = sqlite3_column_int64(stmt, 0),
                           .tenant = (char *)(uintptr_t)part[0],
                           .user = (char *)(uintptr_t)part[1],
                           .agent = (char *)(uintptr_t)part[2],
                           .run = (char *)(uintptr_t)part[3],
                           .facts = (uint64_t)sqlite3_column_int64(stmt, 5),
                           .turns = (uint64_t)sqlite3_column_int64(stmt, 6)};
    return status;
}

/* Every row of the statement, which is ended. */
static is_status read_scopes(is_store *store, sqlite3_stmt *stmt, is_scope_info **out, size_t *n, is_error *err)
{
    is_scope_info *scopes = NULL;
    size_t used = 0;
    bool row = true;
    is_status status = IS_OK;
    while (status == IS_OK) {
        status = is_db_step(store, stmt, &row, err);
        if (status != IS_OK || !row) break;
        if ((used & (used - 1)) == 0) { /* capacity is the next power of two */
            is_scope_info *grown = realloc(scopes, (used == 0 ? 1 : used * 2) * sizeof *grown);
            if (grown == NULL) {
                status = is_fail(err, IS_ENOMEM, "out of memory for the list of scopes");
                break;
            }
            scopes = grown;
        }
        status = read_scope(stmt, &scopes[used++], err);
    }
    is_db_end(stmt);
    if (status == IS_OK) {
        *out = scopes;
        *n = used;
    } else {
        is_scope_info_free(scopes, used);
    }
    return status;
}

is_status is_store_list_scopes(is_store *store, const char *tenant, int64_t after, size_t limit, is_scope_info **out,
                               size_t *n, is_error *err)
{
#define PAGE(WHOSE)                                                                                                    \
    "SELECT " SCOPE_COLUMNS " FROM scope s WHERE " WHOSE "s.id > ?1 AND (s.facts > 0 OR s.turns > 0)"                  \
    " ORDER BY s.id LIMIT ?2"
    *out = NULL;
    *n = 0;
    sqlite3_stmt *stmt = NULL;
    int64_t at_most = limit > INT64_MAX ? INT64_MAX : (int64_t)limit;
    is_db_lock(store);
    is_status status = tenant == NULL
                           ? is_db_query(store, &stmt, err, PAGE(""), "ii", after, at_most)
                           : is_db_query(store, &stmt, err, PAGE("s.tenant = ?3 AND "), "iit", after, at_most, tenant);
    if (status == IS_OK) status = read_scopes(store, stmt, out, n, err);
    is_db_unlock(store);
    return status;
#undef PAGE
}

is_status is_store_scope_of(is_store *store, const char *tenant, int64_t fact, is_scope_info **out, is_error *err)
{
    *out = NULL;
    size_t n = 0;
    sqlite3_stmt *stmt = NULL;
    if (tenant == NULL) tenant = "";
    is_db_lock(store);
    is_status status = is_db_query(store, &stmt, err,
                                   "SELECT " SCOPE_COLUMNS " FROM fact f JOIN scope s ON s.id = f.scope"
                                   " WHERE f.id = ? AND s.tenant = ?",
                                   "it", fact, tenant);
    if (status == IS_OK) status = read_scopes(store, stmt, out, &n, err);
    is_db_unlock(store);
    if (status != IS_OK || n == 1) return status;
    return is_fail(err, IS_ENOTFOUND, "there is no fact %lld of tenant \"%s\"", (long long)fact, tenant);
}
