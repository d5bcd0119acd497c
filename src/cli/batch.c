/*
 * Records on their way from an import file into the store.
 *
 * Facts are added by the hundred, since each transaction waits for the disk and each embedding call has its overhead.
 * A batch has one scope; its turns are added before its facts, so that a fact's source is there when it is encoded.
 */
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "common/common.h"

#define MAX_RECORDS 256

struct is_cli_batch {
    is_memory *memory;
    const is_fact_list *seen;
    is_cli_progress progress;
    char *scope[4]; /* tenant, user, agent, run */
    is_turn turns[MAX_RECORDS];
    is_fact facts[MAX_RECORDS];
    size_t n_turns, n_facts;
    uint64_t turns_added, facts_added;
    is_error error;
};

is_cli_batch *is_cli_batch_new(const is_cli *cli, is_memory *memory, const is_fact_list *seen)
{
    is_cli_batch *batch = calloc(1, sizeof *batch);
    if (batch == NULL) is_cli_no_memory();
    batch->memory = memory;
    batch->seen = seen;
    is_cli_progress_begin(&batch->progress, cli, "importing", "records");
    return batch;
}

/* The batch's own copy; NULL stays NULL. */
static char *copy(const char *text)
{
    char *out = text != NULL ? strdup(text) : NULL;
    if (text != NULL && out == NULL) is_cli_no_memory();
    return out;
}

static void drop(const char *text)
{
    free((void *)(uintptr_t)text);
}

static void empty(is_cli_batch *batch)
{
    for (size_t i = 0; i < batch->n_turns; i++) {
        drop(batch->turns[i].id);
        drop(batch->turns[i].session);
        drop(batch->turns[i].speaker);
        drop(batch->turns[i].text);
    }
    for (size_t i = 0; i < batch->n_facts; i++) {
        drop(batch->facts[i].text);
        drop(batch->facts[i].source);
        drop(batch->facts[i].metadata);
    }
    batch->n_turns = 0;
    batch->n_facts = 0;
}

static is_scope scope_of(const is_cli_batch *batch)
{
    return (is_scope){batch->scope[0], batch->scope[1], batch->scope[2], batch->scope[3]};
}

static bool flush(is_cli_batch *batch)
{
    is_scope scope = scope_of(batch);
    if (batch->error.status != IS_OK) return false;
    is_status status = IS_OK;
    if (batch->n_turns > 0) status = is_add_turns(batch->memory, &scope, batch->turns, batch->n_turns, &batch->error);
    if (status == IS_OK) batch->turns_added += batch->n_turns;
    if (status == IS_OK && batch->n_facts > 0)
        status = is_add_facts(batch->memory, &scope, batch->facts, batch->n_facts, NULL, &batch->error);
    if (status == IS_OK) batch->facts_added += batch->n_facts;
    empty(batch);
    bool go_on = is_cli_progress_step(&batch->progress, batch->turns_added + batch->facts_added, 0);
    if (status == IS_OK && !go_on) status = is_fail(&batch->error, IS_ECANCELED, "interrupted");
    return status == IS_OK;
}

static bool same_text(const char *a, const char *b)
{
    return strcmp(a != NULL ? a : "", b != NULL ? b : "") == 0;
}

/* Makes room for one record of this scope. */
static bool prepare(is_cli_batch *batch, const is_scope *scope)
{
    const char *const part[4] = {scope->tenant, scope->user, scope->agent, scope->run};
    bool same = true;
    for (int i = 0; i < 4; i++) same = same && same_text(part[i], batch->scope[i]);
    bool full = batch->n_turns + batch->n_facts == MAX_RECORDS;
    if ((!same || full || is_cli_interrupted()) && !flush(batch)) return false;
    for (int i = 0; i < 4 && !same; i++) {
        free(batch->scope[i]);
        batch->scope[i] = copy(part[i]);
    }
    return true;
}

bool is_cli_batch_turn(void *user, const is_scope *scope, const is_turn *turn)
{
    is_cli_batch *batch = user;
    if (!prepare(batch, scope)) return false;
    batch->turns[batch->n_turns++] = (is_turn){.id = copy(turn->id),
                                               .session = copy(turn->session),
                                               .speaker = copy(turn->speaker),
                                               .text = copy(turn->text),
                                               .time = turn->time};
    return true;
}

static bool was_seen(const is_cli_batch *batch, const is_fact *fact)
{
    for (size_t i = 0; batch->seen != NULL && i < batch->seen->n; i++) {
        const is_fact *have = &batch->seen->facts[i];
        if (have->time == fact->time && same_text(have->text, fact->text) && same_text(have->source, fact->source))
            return true;
    }
    return false;
}

bool is_cli_batch_fact(void *user, const is_scope *scope, const is_fact *fact)
{
    is_cli_batch *batch = user;
    if (was_seen(batch, fact)) return true;
    if (!prepare(batch, scope)) return false;
    batch->facts[batch->n_facts++] = (is_fact){
        .text = copy(fact->text), .source = copy(fact->source), .time = fact->time, .metadata = copy(fact->metadata)};
    return true;
}

is_status is_cli_batch_end(is_cli_batch *batch, is_error *err)
{
    (void)flush(batch);
    is_cli_progress_end(&batch->progress);
    if (batch->error.status != IS_OK && err != NULL) *err = batch->error;
    return batch->error.status;
}

void is_cli_batch_counts(const is_cli_batch *batch, uint64_t *turns, uint64_t *facts)
{
    *turns = batch->turns_added;
    *facts = batch->facts_added;
}

void is_cli_batch_free(is_cli_batch *batch)
{
    if (batch == NULL) return;
    empty(batch);
    for (int i = 0; i < 4; i++) free(batch->scope[i]);
    free(batch);
}
