/*
 * Turns of conversations: context in which facts are encoded, never ranked.
 *
 * A turn is found by the hash of its id, and a session's turns by the hash of the session, in order of adding.
 */
#include "../kv/hash.h"
#include "store_internal.h"

#include <stdlib.h>
#include <string.h>

static void hash_text(const char *text, uint8_t out[16])
{
    is_hash128((is_span[]){{text, strlen(text)}}, 1, out);
}

void is_turn_list_free(is_turn_list *list)
{
    if (list == NULL) return;
    for (size_t i = 0; i < list->n; i++) {
        free((char *)(uintptr_t)list->turns[i].id);
        free((char *)(uintptr_t)list->turns[i].session);
        free((char *)(uintptr_t)list->turns[i].speaker);
        free((char *)(uintptr_t)list->turns[i].text);
    }
    free(list->turns);
    free(list);
}

/* ------------------------------------------------------------ adding */

static is_status check_turn(const is_turn *turn, is_error *err)
{
    if (turn->id == NULL || turn->id[0] == '\0')
        return is_fail(err, IS_EINVAL, "a turn has no id; give it one that is unique within the scope");
    if (turn->text == NULL) return is_fail(err, IS_EINVAL, "turn \"%s\" has no text", turn->id);
    is_status status = is_check_text("turn's id", turn->id, err);
    if (status == IS_OK) status = is_check_text("turn's session", turn->session, err);
    if (status == IS_OK) status = is_check_text("turn's speaker", turn->speaker, err);
    if (status == IS_OK) status = is_check_text("turn's text", turn->text, err);
    return status;
}

static is_status add_turn(is_store *store, int64_t scope, const is_turn *turn, int64_t *added, is_error *err)
{
    uint8_t key[16];
    uint8_t session_key[16];
    const char *session = turn->session != NULL ? turn->session : "";
    hash_text(turn->id, key);
    hash_text(session, session_key);
    int64_t changes = 0;
    is_status status =
        is_db_run(store, &changes, err,
                  "INSERT INTO turn(scope, key, session_key, id, session, speaker, text, time)"
                  " VALUES(?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT(scope, key) WHERE scope IS NOT NULL DO NOTHING",
                  "ibbttttm", scope, (const void *)key, sizeof key, (const void *)session_key, sizeof session_key,
                  turn->id, session, turn->speaker != NULL ? turn->speaker : "", turn->text, turn->time);
    *added += changes;
    return status;
}

static is_status add_all(is_store *store, int64_t scope, const is_turn *turns, size_t n, is_error *err)
{
    bool found = false;
    int64_t id = 0;
    int64_t added = 0;
    is_status status = is_db_int(store, &id, &found, err, "SELECT id FROM scope WHERE id = ?", "i", scope);
    if (status == IS_OK && !found)
        return is_fail(err, IS_ENOTFOUND, "there is no scope %lld in this store", (long long)scope);
    for (size_t i = 0; i < n && status == IS_OK; i++) status = add_turn(store, scope, &turns[i], &added, err);
    if (status != IS_OK) return status;
    return is_db_run(store, NULL, err, "UPDATE scope SET turns = turns + ? WHERE id = ?", "ii", added, scope);
}

is_status is_store_add_turns(is_store *store, int64_t scope, const is_turn *turns, size_t n, is_error *err)
{
    is_status status = IS_OK;
    for (size_t i = 0; i < n && status == IS_OK; i++) status = check_turn(&turns[i], err);
    if (status != IS_OK || n == 0) return status;
    is_db_lock(store);
    status = is_db_begin(store, err);
    if (status == IS_OK) {
        status = add_all(store, scope, turns, n, err);
        if (status == IS_OK) {
            status = is_db_commit(store, err);
        } else {
            is_db_rollback(store);
        }
    }
    is_db_unlock(store);
    return status;
}

/* ------------------------------------------------------------ windows */

static is_status read_turn(sqlite3_stmt *stmt, is_turn *turn, is_error *err)
{
    bool timed = sqlite3_column_type(stmt, 4) != SQLITE_NULL;
    *turn = (is_turn){.time = timed ? sqlite3_column_int64(stmt, 4) : IS_TIME_NONE};
    is_status status = is_column_text(stmt, 0, &turn->id, err);
    if (status == IS_OK) status = is_column_text(stmt, 1, &turn->session, err);
    if (status == IS_OK) status = is_column_text(stmt, 2, &turn->speaker, err);
    if (status == IS_OK) status = is_column_text(stmt, 3, &turn->text, err);
    return status;
}

/* Rows come newest first. */
static is_status read_window(is_store *store, sqlite3_stmt *stmt, is_turn_list *list, is_error *err)
{
    bool row = true;
    size_t capacity = 0;
    for (;;) {
        is_status status = is_db_step(store, stmt, &row, err);
        if (status != IS_OK || !row) return status;
        if (list->n == capacity) {
            capacity = capacity == 0 ? 8 : capacity * 2;
            is_turn *grown = realloc(list->turns, capacity * sizeof *grown);
            if (grown == NULL) return is_fail(err, IS_ENOMEM, "out of memory for a window of turns");
            list->turns = grown;
        }
        status = read_turn(stmt, &list->turns[list->n++], err);
        if (status != IS_OK) return status;
    }
}

static void reverse(is_turn_list *list)
{
    for (size_t i = 0; i < list->n / 2; i++) {
        is_turn turn = list->turns[i];
        list->turns[i] = list->turns[list->n - 1 - i];
        list->turns[list->n - 1 - i] = turn;
    }
}

is_status is_store_window(is_store *store, int64_t scope, const char *turn_id, uint32_t w, is_turn_list **out,
                          is_error *err)
{
    *out = NULL;
    is_turn_list *list = calloc(1, sizeof *list);
    if (list == NULL) return is_fail(err, IS_ENOMEM, "out of memory for a window of turns");
    uint8_t key[16];
    hash_text(turn_id != NULL ? turn_id : "", key);
    sqlite3_stmt *stmt = NULL;
    is_db_lock(store);
    is_status status = is_db_query(store, &stmt, err,
                                   "SELECT t.id, t.session, t.speaker, t.text, t.time FROM turn t, turn last"
                                   " WHERE last.scope = ?1 AND last.key = ?2 AND t.scope = ?1"
                                   " AND t.session_key = last.session_key AND t.seq <= last.seq"
                                   " ORDER BY t.seq DESC LIMIT ?3",
                                   "ibi", scope, (const void *)key, sizeof key, (int64_t)w);
    if (status == IS_OK) {
        status = read_window(store, stmt, list, err);
        is_db_end(stmt);
    }
    is_db_unlock(store);
    if (status != IS_OK) {
        is_turn_list_free(list);
        return status;
    }
    reverse(list);
    *out = list;
    return IS_OK;
}
