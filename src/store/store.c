/*
 * Opening and closing a store, its settings and scopes, and the counters that tell an index in memory when it is
 * out of date.
 *
 * One process has a store open.  It holds an advisory lock (flock) on FOLDER/lock, which the system lets go of when
 * the process ends, however it ends.
 */
#include "store_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* ------------------------------------------------------------ opening */

/* Makes the folder and those above it. */
static is_status make_folder(const char *folder, is_error *err)
{
    char *path = strdup(folder);
    if (path == NULL) return is_fail(err, IS_ENOMEM, "out of memory for the store's path");
    is_status status = IS_OK;
    for (char *end = path + 1; status == IS_OK && path[0] != '\0'; end++) {
        if (*end != '/' && *end != '\0') continue;
        char was = *end;
        *end = '\0';
        if (mkdir(path, 0700) != 0 && errno != EEXIST)
            status = is_fail(err, IS_EIO, "cannot make the store's folder %s: %s; check the path and its permissions",
                             path, strerror(errno));
        *end = was;
        if (was == '\0') break;
    }
    free(path);
    return status;
}

static is_status take_lock(is_store *store, is_error *err)
{
    int folder = open(store->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder >= 0) store->lock_fd = openat(folder, "lock", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    int error = errno;
    if (folder >= 0) (void)close(folder);
    if (store->lock_fd < 0)
        return is_fail(err, IS_EIO, "cannot open %s/lock: %s; check the folder and its permissions", store->folder,
                       strerror(error));
    if (flock(store->lock_fd, LOCK_EX | LOCK_NB) == 0) return IS_OK;
    if (errno == EWOULDBLOCK)
        return is_fail(err, IS_EIO, "another process has the store %s open; end it, or use another folder",
                       store->folder);
    return is_fail(err, IS_EIO, "cannot lock %s/lock: %s; put the store on a file system that has locks", store->folder,
                   strerror(errno));
}

static is_status open_parts(is_store *store, uint64_t host_budget, is_error *err)
{
    is_status status = make_folder(store->folder, err);
    if (status == IS_OK) status = take_lock(store, err);
    if (status == IS_OK) status = is_tier_open(host_budget, &store->tier, err);
    if (status == IS_OK) status = is_db_open(store, err);
    if (status == IS_OK) status = is_db_compact(store, err);
    if (status == IS_OK) status = is_words_open(store, err);
    if (status == IS_OK) status = is_files_open(store, err);
    /* What a killed process left behind, and what was taken away while nobody looked. */
    uint64_t orphans = 0;
    if (status == IS_OK) status = is_chunks_reconcile(store, true, true, &orphans, NULL, NULL, err);
    return status;
}

is_status is_store_open(const is_store_options *options, is_store **out, is_error *err)
{
    *out = NULL;
    if (options->folder == NULL || options->folder[0] == '\0')
        return is_fail(err, IS_EINVAL, "the store's folder is missing; name one");
    is_store *store = calloc(1, sizeof *store);
    if (store == NULL) return is_fail(err, IS_ENOMEM, "out of memory for the store");
    store->lock_fd = -1;
    store->chunks_fd = -1;
    (void)pthread_rwlock_init(&store->files, NULL);
    (void)pthread_mutex_init(&store->db_mutex, NULL);
    (void)pthread_mutex_init(&store->generation_mutex, NULL);
    store->folder = strdup(options->folder);
    is_status status = store->folder == NULL ? is_fail(err, IS_ENOMEM, "out of memory for the store's path")
                                             : open_parts(store, options->host_budget, err);
    if (status != IS_OK) {
        is_store_close(store);
        return status;
    }
    *out = store;
    return IS_OK;
}

void is_store_close(is_store *store)
{
    if (store == NULL) return;
    is_words_close(store);
    is_db_close(store);
    is_tier_close(store->tier);
    if (store->chunks_fd >= 0) (void)close(store->chunks_fd);
    if (store->lock_fd >= 0) (void)close(store->lock_fd);
    (void)pthread_mutex_destroy(&store->generation_mutex);
    (void)pthread_mutex_destroy(&store->db_mutex);
    (void)pthread_rwlock_destroy(&store->files);
    free(store->generations);
    free(store->awaited);
    free(store->folder);
    free(store);
}

/* ------------------------------------------------------------ settings */

is_status is_store_get_setting(is_store *store, const char *name, char **out, is_error *err)
{
    *out = NULL;
    sqlite3_stmt *stmt = NULL;
    bool row = false;
    const char *value = NULL;
    is_db_lock(store);
    is_status status = is_db_query(store, &stmt, err, "SELECT value FROM setting WHERE name = ?", "t", name);
    if (status == IS_OK) {
        status = is_db_step(store, stmt, &row, err);
        if (status == IS_OK && row) status = is_column_text(stmt, 0, &value, err);
        is_db_end(stmt);
    }
    is_db_unlock(store);
    *out = (char *)(uintptr_t)value;
    return status;
}

is_status is_store_set_setting(is_store *store, const char *name, const char *value, is_error *err)
{
    if (name == NULL || value == NULL) return is_fail(err, IS_EINVAL, "a setting needs a name and a value");
    if (strncmp(name, "store.", 6) == 0)
        return is_fail(err, IS_EINVAL, "setting %s: names that begin with \"store.\" are the store's own", name);
    is_status status = is_check_text("setting", value, err);
    if (status != IS_OK) return status;
    is_db_lock(store);
    status = is_db_run(store, NULL, err,
                       "INSERT INTO setting VALUES(?, ?) ON CONFLICT(name) DO UPDATE SET value = excluded.value", "tt",
                       name, value);
    is_db_unlock(store);
    return status;
}

/* ------------------------------------------------------------ scopes */

static is_status check_scope(const is_scope *scope, const char *part[4], is_error *err)
{
    static const char *const NAMES[4] = {"tenant", "user", "agent", "run"};
    const char *given[4] = {scope->tenant, scope->user, scope->agent, scope->run};
    bool any = false;
    for (int i = 0; i < 4; i++) {
        part[i] = given[i] != NULL ? given[i] : "";
        any = any || part[i][0] != '\0';
        is_status status = is_check_text(NAMES[i], part[i], err);
        if (status != IS_OK) return status;
    }
    if (any) return IS_OK;
    return is_fail(err, IS_EINVAL, "the scope is empty; give at least one of tenant, user, agent and run");
}

is_status is_store_scope(is_store *store, const is_scope *scope, bool create, int64_t *id, is_error *err)
{
    static const char FIND[] = "SELECT id FROM scope WHERE tenant = ? AND user = ? AND agent = ? AND run = ?";
    const char *p[4];
    is_status status = check_scope(scope, p, err);
    if (status != IS_OK) return status;
    bool found = false;
    is_db_lock(store);
    status = is_db_int(store, id, &found, err, FIND, "tttt", p[0], p[1], p[2], p[3]);
    if (status == IS_OK && !found && create) {
        status = is_db_run(store, NULL, err, "INSERT INTO scope(tenant, user, agent, run) VALUES(?, ?, ?, ?)", "tttt",
                           p[0], p[1], p[2], p[3]);
        *id = sqlite3_last_insert_rowid(store->db);
    }
    is_db_unlock(store);
    if (status != IS_OK || found || create) return status;
    return is_fail(err, IS_ENOTFOUND, "no facts are kept for tenant \"%s\", user \"%s\", agent \"%s\", run \"%s\"",
                   p[0], p[1], p[2], p[3]);
}

static is_status read_scope(sqlite3_stmt *stmt, is_scope_name *out, is_error *err)
{
    const char *part[4] = {NULL, NULL, NULL, NULL};
    is_status status = IS_OK;
    for (int i = 0; i < 4 && status == IS_OK; i++) status = is_column_text(stmt, i + 1, &part[i], err);
    *out = (is_scope_name){sqlite3_column_int64(stmt, 0), (char *)(uintptr_t)part[0], (char *)(uintptr_t)part[1],
                           (char *)(uintptr_t)part[2], (char *)(uintptr_t)part[3]};
    return status;
}

is_status is_store_scopes(is_store *store, is_scope_name **out, size_t *n, is_error *err)
{
    *out = NULL;
    *n = 0;
    is_scope_name *scopes = NULL;
    size_t used = 0;
    size_t capacity = 0;
    sqlite3_stmt *stmt = NULL;
    bool row = true;
    is_db_lock(store);
    is_status status = is_db_query(store, &stmt, err, "SELECT id, tenant, user, agent, run FROM scope ORDER BY id", "");
    bool open = status == IS_OK;
    while (status == IS_OK) {
        status = is_db_step(store, stmt, &row, err);
        if (status != IS_OK || !row) break;
        if (used == capacity) {
            capacity = capacity == 0 ? 16 : capacity * 2;
            is_scope_name *grown = realloc(scopes, capacity * sizeof *grown);
            if (grown == NULL) {
                status = is_fail(err, IS_ENOMEM, "out of memory for the list of scopes");
                break;
            }
            scopes = grown;
        }
        status = read_scope(stmt, &scopes[used++], err);
    }
    if (open) is_db_end(stmt);
    is_db_unlock(store);
    if (status != IS_OK) {
        is_store_scopes_free(scopes, used);
        return status;
    }
    *out = scopes;
    *n = used;
    return IS_OK;
}

void is_store_scopes_free(is_scope_name *scopes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        free(scopes[i].tenant);
        free(scopes[i].user);
        free(scopes[i].agent);
        free(scopes[i].run);
    }
    free(scopes);
}

/* ------------------------------------------------------------ generations */

/* Counters start at 1, so that 0 may mean "never asked".  Scope numbers are small and dense: an array serves. */
void is_generation_bump(is_store *store, int64_t scope, bool removed)
{
    size_t at = (size_t)scope;
    (void)pthread_mutex_lock(&store->generation_mutex);
    if (at >= store->n_generations) {
        size_t n = at + 64;
        is_generation *grown = realloc(store->generations, n * sizeof *grown);
        if (grown != NULL) {
            for (size_t i = store->n_generations; i < n; i++) grown[i] = (is_generation){1, 1};
            store->generations = grown;
            store->n_generations = n;
        }
    }
    if (at < store->n_generations) {
        store->generations[at].any++;
        if (removed) store->generations[at].removed++;
    } else {
        store->unplaced++; /* no memory: every scope counts as changed, which is safe */
    }
    (void)pthread_mutex_unlock(&store->generation_mutex);
}

void is_store_generation(is_store *store, int64_t scope, uint64_t *any, uint64_t *removed)
{
    is_generation found = {1, 1};
    (void)pthread_mutex_lock(&store->generation_mutex);
    if (scope >= 0 && (size_t)scope < store->n_generations) found = store->generations[scope];
    *any = found.any + store->unplaced;
    *removed = found.removed + store->unplaced;
    (void)pthread_mutex_unlock(&store->generation_mutex);
}
