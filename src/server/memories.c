/*
 * The memory interface: facts added, searched, listed, changed and forgotten over HTTP.
 *
 * A fact is found by its id in the key's tenant alone; of another tenant's fact nothing is said but that it is not
 * there.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "internal.h"

#define MAX_FACTS 1000
#define MAX_TEXT  4096
#define PAGE      100
#define MAX_PAGE  1000

/* ------------------------------------------------------------ adding */

/* What a request adds; strings point into its JSON, but for those that are freed. */
typedef struct addition {
    is_scope scope;
    is_fact facts[MAX_FACTS];
    char *metadata[MAX_FACTS]; /* free() */
    size_t n;
    is_turn turns[MAX_FACTS];
    char ids[MAX_FACTS][40]; /* of the turns */
    size_t n_turns;
    int64_t numbers[MAX_FACTS]; /* the facts' ids */
} addition;

static bool read_fact(is_request *r, const json_t *v, addition *a)
{
    is_fact *fact = &a->facts[a->n];
    *fact = (is_fact){.time = IS_TIME_NONE};
    char **metadata = &a->metadata[a->n++];
    if (json_is_string(v)) {
        fact->text = json_string_value(v);
        if (json_string_length(v) > MAX_TEXT) {
            is_reply_error(r, 400, "facts", "too_long", "a fact has %zu bytes and must have at most %d",
                           json_string_length(v), MAX_TEXT);
            return false;
        }
    } else if (json_is_object(v)) {
        if (!is_field_text(r, v, "text", MAX_TEXT, &fact->text) ||
            !is_field_text(r, v, "source", IS_MAX_NAME, &fact->source) || !is_field_time(r, v, "time", &fact->time) ||
            !is_field_object_text(r, v, "metadata", metadata))
            return false;
        fact->metadata = *metadata;
    }
    if (fact->text != NULL && fact->text[0] != '\0') return true;
    is_reply_error(r, 400, "facts", "invalid_value", "a fact must be a text, or an object with a text");
    return false;
}

/* A message is a turn; the user's are facts too. */
static bool read_message(is_request *r, const json_t *v, addition *a)
{
    const char *role = NULL, *text = NULL, *name = NULL;
    int64_t now = (int64_t)time(NULL);
    if (!is_field_text(r, v, "role", 32, &role) || !is_field_text(r, v, "content", MAX_TEXT, &text) ||
        !is_field_text(r, v, "name", IS_MAX_NAME - 1, &name) || !is_field_time(r, v, "time", &now))
        return false;
    if (role == NULL || text == NULL || text[0] == '\0') {
        is_reply_error(r, 400, "messages", "invalid_value", "a message must have a role and a content, both texts");
        return false;
    }
    uint64_t random = 0;
    (void)getrandom(&random, sizeof random, 0);
    char *id = a->ids[a->n_turns];
    (void)snprintf(id, sizeof a->ids[0], "m%016llx", (unsigned long long)random);
    a->turns[a->n_turns++] = (is_turn){.id = id,
                                       .session = a->scope.run == NULL ? "" : a->scope.run,
                                       .speaker = name == NULL ? role : name,
                                       .text = text,
                                       .time = now};
    if (strcmp(role, "user") == 0) a->facts[a->n++] = (is_fact){.text = text, .source = id, .time = now};
    return true;
}

static bool read_addition(is_request *r, addition *a)
{
    const json_t *facts = NULL, *messages = NULL;
    if (!is_field_scope(r, r->json, &a->scope) || !is_field_array(r, r->json, "facts", MAX_FACTS, &facts) ||
        !is_field_array(r, r->json, "messages", MAX_FACTS, &messages))
        return false;
    if (json_array_size(facts) + json_array_size(messages) == 0 ||
        (json_array_size(facts) > 0 && json_array_size(messages) > 0)) {
        is_reply_error(r, 400, "facts", "missing", "give facts or messages, an array that is not empty");
        return false;
    }
    size_t i;
    const json_t *v;
    json_array_foreach(facts, i, v) if (!read_fact(r, v, a)) return false;
    json_array_foreach(messages, i, v) if (!read_message(r, v, a)) return false;
    return true;
}

/* So that a few who wait for long do not keep the others from the store. */
bool is_wait_begin(is_request *r)
{
    if (atomic_fetch_add(&r->server->waiting, 1) < IS_MAX_WAITING) return true;
    is_wait_end(r);
    r->retry_after = 5;
    is_reply_error(r, 429, NULL, "too_many_wait",
                   "%d requests wait for facts to be encoded already; try again in a moment, or add without wait",
                   IS_MAX_WAITING);
    return false;
}

void is_wait_end(is_request *r)
{
    atomic_fetch_sub(&r->server->waiting, 1);
}

/* Whoever waits for the chunks and has left is not waited for. */
static bool on_progress(void *user, uint64_t done, uint64_t total)
{
    (void)done;
    (void)total;
    return !is_request_gone(user);
}

static is_status add(is_request *r, addition *a, bool wait, is_error *err)
{
    is_memory *m = r->server->memory;
    is_status status = is_add_turns(m, &a->scope, a->turns, a->n_turns, err);
    if (status == IS_OK) status = is_add_facts(m, &a->scope, a->facts, a->n, a->numbers, err);
    if (status == IS_OK && wait) status = is_encode_pending(m, &a->scope, on_progress, r, err);
    return status;
}

static void reply_added(is_request *r, const addition *a)
{
    is_error err = {0};
    is_fact_list *list = NULL;
    json_t *all = json_array();
    is_status status = a->n == 0 ? IS_OK : is_get(r->server->memory, &a->scope, a->numbers, a->n, &list, &err);
    for (size_t i = 0; status == IS_OK && list != NULL && i < list->n; i++)
        json_array_append_new(all, is_json_fact(&list->facts[i], NAN));
    is_fact_list_free(list);
    if (status == IS_OK)
        is_reply_json(r, 201, json_pack("{s:o}", "memories", all));
    else {
        json_decref(all);
        is_reply_failure(r, &err);
    }
}

void is_handle_add(is_request *r)
{
    addition *a = calloc(1, sizeof *a);
    bool wait = false;
    is_error err = {0};
    if (a == NULL) {
        is_reply_error(r, 503, NULL, "no_memory", "no memory for the request");
        return;
    }
    if (is_field_bool(r, r->json, "wait", &wait) && read_addition(r, a) && (!wait || is_wait_begin(r))) {
        if (add(r, a, wait, &err) == IS_OK)
            reply_added(r, a);
        else
            is_reply_failure(r, &err);
        if (wait) is_wait_end(r);
    }
    for (size_t i = 0; i < a->n; i++) free(a->metadata[i]);
    free(a);
}

/* ------------------------------------------------------------ searching, listing */

static json_t *facts_json(const is_fact_list *list)
{
    json_t *all = json_array();
    for (size_t i = 0; i < list->n; i++)
        json_array_append_new(all, is_json_fact(&list->facts[i], list->scores == NULL ? NAN : list->scores[i]));
    return all;
}

void is_handle_search(is_request *r)
{
    is_scope scope;
    is_filter filter = {.time_from = IS_TIME_NONE, .time_to = IS_TIME_NONE};
    char *metadata = NULL;
    const char *query = NULL;
    uint32_t k = 10;
    is_error err = {0};
    is_fact_list *list = NULL;
    if (!is_field_scope(r, r->json, &scope) || !is_field_text(r, r->json, "query", MAX_TEXT, &query) ||
        !is_field_uint(r, r->json, "k", 1, 200, &k))
        return;
    if (is_field_filter(r, r->json, "filters", &filter, &metadata)) {
        double begin = is_now_ms();
        if (query == NULL || query[0] == '\0')
            is_reply_error(r, 400, "query", "missing", "query is missing: the text to search for");
        else if (is_search(r->server->memory, &scope, query, k, &filter, &list, &err) != IS_OK)
            is_reply_failure(r, &err);
        else
            is_reply_json(
                r, 200,
                json_pack("{s:o, s:{s:f}}", "memories", facts_json(list), "timing", "total_ms", is_now_ms() - begin));
    }
    is_fact_list_free(list);
    free(metadata);
}

void is_handle_list(is_request *r)
{
    is_scope scope;
    int64_t after = 0, limit = PAGE;
    is_error err = {0};
    is_fact_list *list = NULL;
    if (!is_field_scope(r, NULL, &scope) || !is_query_uint(r, "after", 0, INT64_MAX, &after) ||
        !is_query_uint(r, "limit", 1, MAX_PAGE, &limit))
        return;
    /* One more than asked tells whether there is a next page. */
    if (is_list(r->server->memory, &scope, after, (size_t)limit + 1, &list, &err) != IS_OK) {
        if (err.status == IS_ENOTFOUND)
            is_reply_json(r, 200, json_pack("{s:[], s:n}", "memories", "next"));
        else
            is_reply_failure(r, &err);
        return;
    }
    json_t *all = json_array();
    for (size_t i = 0; i < list->n && i < (size_t)limit; i++)
        json_array_append_new(all, is_json_fact(&list->facts[i], NAN));
    json_t *next = list->n > (size_t)limit ? json_integer(list->facts[limit - 1].id) : json_null();
    is_reply_json(r, 200, json_pack("{s:o, s:o}", "memories", all, "next", next));
    is_fact_list_free(list);
}

void is_handle_users(is_request *r)
{
    int64_t after = 0, limit = PAGE;
    is_error err = {0};
    is_scope_info *scopes = NULL;
    size_t n = 0;
    if (!is_query_uint(r, "after", 0, INT64_MAX, &after) || !is_query_uint(r, "limit", 1, MAX_PAGE, &limit)) return;
    if (is_list_scopes(r->server->memory, r->tenant, after, (size_t)limit + 1, &scopes, &n, &err) != IS_OK) {
        is_reply_failure(r, &err);
        return;
    }
    json_t *all = json_array();
    for (size_t i = 0; i < n && i < (size_t)limit; i++)
        json_array_append_new(all, json_pack("{s:s, s:s, s:s, s:I, s:I}", "user", scopes[i].user, "agent",
                                             scopes[i].agent, "run", scopes[i].run, "facts",
                                             (json_int_t)scopes[i].facts, "turns", (json_int_t)scopes[i].turns));
    json_t *next = n > (size_t)limit ? json_integer(scopes[limit - 1].number) : json_null();
    is_scope_info_free(scopes, n);
    is_reply_json(r, 200, json_pack("{s:o, s:o}", "users", all, "next", next));
}

/* ------------------------------------------------------------ one fact */

/* The scope of the fact in the path; NULL: it has answered. */
static is_scope_info *find_scope(is_request *r, is_scope *scope)
{
    is_scope_info *info = NULL;
    is_error err = {0};
    is_status status = is_scope_of(r->server->memory, r->tenant, r->id, &info, &err);
    if (status == IS_ENOTFOUND)
        is_reply_error(r, 404, "id", "no_memory_with_id", "there is no memory %lld", (long long)r->id);
    else if (status != IS_OK)
        is_reply_failure(r, &err);
    if (status != IS_OK) return NULL;
    *scope = (is_scope){info->tenant, info->user, info->agent, info->run};
    return info;
}

static void reply_fact(is_request *r, const is_scope *scope)
{
    is_error err = {0};
    is_fact_list *list = NULL;
    if (is_get(r->server->memory, scope, &r->id, 1, &list, &err) != IS_OK) {
        is_reply_failure(r, &err);
        return;
    }
    if (list->n == 1) {
        json_t *fact = is_json_fact(&list->facts[0], NAN);
        json_object_set_new(
            fact, "scope", json_pack("{s:s, s:s, s:s}", "user", scope->user, "agent", scope->agent, "run", scope->run));
        is_reply_json(r, 200, fact);
    } else { /* forgotten in this moment */
        is_reply_error(r, 404, "id", "no_memory_with_id", "there is no memory %lld", (long long)r->id);
    }
    is_fact_list_free(list);
}

void is_handle_get(is_request *r)
{
    is_scope scope;
    is_scope_info *info = find_scope(r, &scope);
    if (info == NULL) return;
    reply_fact(r, &scope);
    is_scope_info_free(info, 1);
}

void is_handle_change(is_request *r)
{
    is_scope scope;
    is_fact change = {.time = IS_TIME_NONE};
    char *metadata = NULL;
    is_error err = {0};
    bool ok = is_field_text(r, r->json, "text", MAX_TEXT, &change.text) &&
              is_field_text(r, r->json, "source", IS_MAX_NAME, &change.source) &&
              is_field_time(r, r->json, "time", &change.time) &&
              is_field_object_text(r, r->json, "metadata", &metadata);
    change.metadata = metadata;
    if (ok && change.text == NULL && change.source == NULL && change.time == IS_TIME_NONE && metadata == NULL) {
        is_reply_error(r, 400, NULL, "missing", "nothing is to be changed; give text, time, metadata or source");
        ok = false;
    }
    is_scope_info *info = ok ? find_scope(r, &scope) : NULL;
    if (info != NULL) {
        if (is_change_fact(r->server->memory, &scope, r->id, &change, &err) == IS_OK)
            reply_fact(r, &scope);
        else
            is_reply_failure(r, &err);
    }
    is_scope_info_free(info, 1);
    free(metadata);
}

void is_handle_history(is_request *r)
{
    is_scope scope;
    is_error err = {0};
    is_edition_list *list = NULL;
    is_scope_info *info = find_scope(r, &scope);
    if (info == NULL) return;
    if (is_history(r->server->memory, &scope, r->id, &list, &err) != IS_OK) {
        is_reply_failure(r, &err);
    } else {
        json_t *all = json_array();
        for (size_t i = 0; i < list->n; i++) {
            const is_edition *e = &list->editions[i];
            json_array_append_new(all, json_pack("{s:s, s:s?, s:o, s:o, s:o}", "text", e->text, "source", e->source,
                                                 "time", is_json_time(e->time), "metadata",
                                                 e->metadata == NULL ? json_null() : json_loads(e->metadata, 0, NULL),
                                                 "changed", is_json_time(e->changed)));
        }
        is_reply_json(r, 200, json_pack("{s:I, s:o}", "id", (json_int_t)r->id, "editions", all));
    }
    is_edition_list_free(list);
    is_scope_info_free(info, 1);
}

/* ------------------------------------------------------------ forgetting */

static void forget(is_request *r, const is_scope *scope, const int64_t *ids, size_t n)
{
    is_error err = {0};
    size_t forgotten = 0;
    is_status status = is_forget(r->server->memory, scope, ids, n, &forgotten, &err);
    if (status == IS_OK || (status == IS_ENOTFOUND && n == 0))
        is_reply_json(r, 200, json_pack("{s:I}", "deleted", (json_int_t)forgotten));
    else
        is_reply_failure(r, &err);
}

void is_handle_forget(is_request *r)
{
    is_scope scope;
    is_scope_info *info = find_scope(r, &scope);
    if (info == NULL) return;
    forget(r, &scope, &r->id, 1);
    is_scope_info_free(info, 1);
}

/* The user's scopes, whatever their agent and run. */
static void forget_user(is_request *r, const char *user)
{
    is_memory *m = r->server->memory;
    is_error err = {0};
    is_status status = IS_OK;
    json_int_t all = 0;
    int64_t after = 0;
    for (size_t n = MAX_PAGE; status == IS_OK && n == MAX_PAGE;) {
        is_scope_info *scopes = NULL;
        status = is_list_scopes(m, r->tenant, after, MAX_PAGE, &scopes, &n, &err);
        for (size_t i = 0; status == IS_OK && i < n; i++) {
            const is_scope scope = {scopes[i].tenant, scopes[i].user, scopes[i].agent, scopes[i].run};
            size_t forgotten = 0;
            after = scopes[i].number;
            if (strcmp(scope.user, user) != 0) continue;
            status = is_forget(m, &scope, NULL, 0, &forgotten, &err);
            if (status == IS_ENOTFOUND) status = IS_OK; /* somebody else was faster */
            all += (json_int_t)forgotten;
        }
        is_scope_info_free(scopes, n);
    }
    if (status == IS_OK)
        is_reply_json(r, 200, json_pack("{s:I}", "deleted", all));
    else
        is_reply_failure(r, &err);
}

void is_handle_forget_all(is_request *r)
{
    is_scope scope;
    const char *named = is_query(r, "user");
    if (!is_field_scope(r, NULL, &scope)) return;
    if ((named == NULL || named[0] == '\0') && r->user_header[0] == '\0')
        is_reply_error(r, 400, "user", "missing", "name the user whose memories are all to be deleted: ?user=NAME");
    else if (scope.agent == NULL && scope.run == NULL)
        forget_user(r, scope.user);
    else
        forget(r, &scope, NULL, 0);
}

/* ------------------------------------------------------------ the queue */

void is_handle_encode(is_request *r)
{
    is_error err = {0};
    is_stats stats;
    if (is_get_stats(r->server->memory, &stats, &err) != IS_OK)
        is_reply_failure(r, &err);
    else
        is_reply_json(r, 200,
                      json_pack("{s:I, s:I, s:I, s:I}", "pending", (json_int_t)stats.facts_pending, "ready",
                                (json_int_t)stats.facts_ready, "chunks", (json_int_t)stats.chunks, "chunk_bytes",
                                (json_int_t)stats.chunk_bytes));
}
