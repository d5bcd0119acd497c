/*
 * /v1/memories/import: the body is what `inferscale import` reads.  Everything is committed first, then the answer
 * tells line by line how far the encoding is.
 */
#include <stdlib.h>
#include <string.h>

#include "../memory/import.h"
#include "internal.h"

#define MAX_TOLD 20 /* records that were passed over and are named */
#define BATCH    64

/* Records on their way into the store: those of one scope and kind, in order. */
typedef struct importing {
    is_request *request;
    is_scope scope; /* of what waits; strings are copies */
    char *names[4];
    is_fact facts[BATCH];
    size_t n_facts;
    is_turn turns[BATCH];
    size_t n_turns;
    uint64_t added_facts, added_turns;
    json_t *why;
    is_error err;
} importing;

static char *copy(const char *text)
{
    return text == NULL ? NULL : strdup(text);
}

static void clear(importing *w)
{
    for (size_t i = 0; i < w->n_facts; i++) {
        free((char *)(uintptr_t)w->facts[i].text);
        free((char *)(uintptr_t)w->facts[i].source);
        free((char *)(uintptr_t)w->facts[i].metadata);
    }
    for (size_t i = 0; i < w->n_turns; i++) {
        free((char *)(uintptr_t)w->turns[i].id);
        free((char *)(uintptr_t)w->turns[i].session);
        free((char *)(uintptr_t)w->turns[i].speaker);
        free((char *)(uintptr_t)w->turns[i].text);
    }
    w->n_facts = w->n_turns = 0;
    for (int i = 0; i < 4; i++) free(w->names[i]);
    memset(w->names, 0, sizeof w->names);
}

static bool flush(importing *w)
{
    is_memory *m = w->request->server->memory;
    is_status status = is_add_turns(m, &w->scope, w->turns, w->n_turns, &w->err);
    if (status == IS_OK) status = is_add_facts(m, &w->scope, w->facts, w->n_facts, NULL, &w->err);
    if (status == IS_OK) {
        w->added_facts += w->n_facts;
        w->added_turns += w->n_turns;
    }
    clear(w);
    return status == IS_OK;
}

static bool equal(const char *a, const char *b)
{
    return strcmp(a == NULL ? "" : a, b == NULL ? "" : b) == 0;
}

/* Makes room for one record of this scope.  A key's tenant is not the file's to choose. */
static bool prepare(importing *w, const is_scope *scope)
{
    bool same =
        equal(w->scope.user, scope->user) && equal(w->scope.agent, scope->agent) && equal(w->scope.run, scope->run);
    bool full = w->n_facts == BATCH || w->n_turns == BATCH;
    if ((full || !same) && w->n_facts + w->n_turns > 0 && !flush(w)) return false;
    if (w->n_facts + w->n_turns > 0) return true;
    clear(w);
    w->names[0] = copy(scope->user);
    w->names[1] = copy(scope->agent);
    w->names[2] = copy(scope->run);
    w->scope = (is_scope){w->request->tenant, w->names[0], w->names[1], w->names[2]};
    return true;
}

static bool on_fact(void *user, const is_scope *scope, const is_fact *fact)
{
    importing *w = user;
    if (!prepare(w, scope)) return false;
    is_fact *f = &w->facts[w->n_facts++];
    *f = *fact;
    f->text = copy(fact->text);
    f->source = copy(fact->source);
    f->metadata = copy(fact->metadata);
    return f->text != NULL;
}

static bool on_turn(void *user, const is_scope *scope, const is_turn *turn)
{
    importing *w = user;
    if (!prepare(w, scope)) return false;
    is_turn *t = &w->turns[w->n_turns++];
    *t = *turn;
    t->id = copy(turn->id);
    t->session = copy(turn->session);
    t->speaker = copy(turn->speaker);
    t->text = copy(turn->text);
    return t->text != NULL;
}

static void on_skipped(void *user, const char *where, const char *why)
{
    importing *w = user;
    if (json_array_size(w->why) < MAX_TOLD)
        json_array_append_new(w->why, json_pack("{s:o, s:o}", "where", is_json_text(where, strlen(where)), "why",
                                                is_json_text(why, strlen(why))));
}

static bool on_progress(void *user, uint64_t done, uint64_t total)
{
    is_request *r = user;
    return is_stream_line(r, json_pack("{s:I, s:I}", "done", (json_int_t)done, "total", (json_int_t)total)) &&
           !is_request_gone(r);
}

static is_status read_body(importing *w, is_scope scope, is_import_counts *counts)
{
    is_request *r = w->request;
    const is_import_options options = {.scope = scope};
    const is_import_callbacks callbacks = {.turn = on_turn, .fact = on_fact, .skipped = on_skipped, .user = w};
    is_error err = {0};
    FILE *in = fmemopen(r->body, r->n_body, "r");
    if (in == NULL) return is_fail(&w->err, IS_ENOMEM, "no memory to read the body");
    is_status status = is_import_read(in, &options, &callbacks, counts, &err);
    (void)fclose(in);
    if (w->err.status == IS_OK && status != IS_OK) w->err = err;
    bool kept = flush(w); /* what stood before a break is kept */
    return status == IS_OK && !kept ? w->err.status : status;
}

void is_handle_import(is_request *r)
{
    is_scope scope;
    is_import_counts counts = {0};
    if (!is_field_scope(r, NULL, &scope)) return;
    if (r->n_body == 0) {
        is_reply_error(r, 400, NULL, "body_missing", "the body is empty; send JSON Lines of turns and facts");
        return;
    }
    /* JSON Lines are read line by line; the other form is one value. */
    if (r->body[strspn(r->body, " \t\r\n")] == '[' && !is_route_check_json(r)) return;
    if (!is_wait_begin(r)) return;
    importing *w = calloc(1, sizeof *w);
    if (w == NULL) {
        is_wait_end(r);
        is_reply_error(r, 503, NULL, "no_memory", "no memory for the import");
        return;
    }
    w->request = r;
    w->why = json_array();
    is_status status = read_body(w, scope, &counts);
    if (status != IS_OK) {
        is_reply_failure(r, &w->err);
    } else {
        is_stream_begin(r, "application/x-ndjson");
        is_error err = {0};
        status = is_encode_pending(r->server->memory, NULL, on_progress, r, &err);
        /* A client that leaves stops the report; the worker in the background goes on encoding. */
        json_t *last = json_pack("{s:I, s:I, s:I, s:O}", "facts", (json_int_t)w->added_facts, "turns",
                                 (json_int_t)w->added_turns, "skipped", (json_int_t)counts.skipped, "why", w->why);
        const char *code;
        unsigned number = is_status_code(&err, &code);
        if (status != IS_OK) json_object_update_new(last, is_error_json(number, NULL, code, err.text));
        (void)is_stream_line(r, last);
    }
    clear(w);
    json_decref(w->why);
    free(w);
    is_wait_end(r);
}
