#include "bench_crowd.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "memory/import.h"

#define ADD_AT_ONCE 256

/* ------------------------------------------------------------ the data */

static char *copy(const char *text)
{
    char *out = strdup(text);
    if (out == NULL) is_cli_no_memory();
    return out;
}

static is_conversation_data *conversation_of(is_crowd *crowd, const char *user)
{
    for (size_t i = 0; i < crowd->n; i++)
        if (strcmp(crowd->conversations[i].user, user) == 0) return &crowd->conversations[i];
    is_conversation_data *grown = realloc(crowd->conversations, (crowd->n + 1) * sizeof *grown);
    if (grown == NULL) is_cli_no_memory();
    crowd->conversations = grown;
    grown[crowd->n] = (is_conversation_data){.user = copy(user)};
    return &grown[crowd->n++];
}

static bool on_turn(void *user, const is_scope *scope, const is_turn *turn)
{
    (void)user;
    (void)scope;
    (void)turn;
    return !is_cli_interrupted();
}

/* Without the turn that it comes from: turns are not imported. */
static bool on_fact(void *user, const is_scope *scope, const is_fact *fact)
{
    is_conversation_data *c = conversation_of(user, scope->user);
    is_fact *grown = realloc(c->facts, (c->n_facts + 1) * sizeof *grown);
    if (grown == NULL) is_cli_no_memory();
    c->facts = grown;
    c->facts[c->n_facts++] = (is_fact){.text = copy(fact->text), .time = fact->time};
    return !is_cli_interrupted();
}

static void add_questions(const is_bench *b, is_conversation_data *c)
{
    c->questions = calloc(b->n + 1, sizeof *c->questions);
    if (c->questions == NULL) is_cli_no_memory();
    for (size_t i = 0; i < b->n; i++)
        if (strcmp(b->questions[i].user, c->user) == 0) c->questions[c->n_questions++] = b->questions[i].question;
}

static void free_conversation(is_conversation_data *c)
{
    for (size_t i = 0; i < c->n_facts; i++) free((char *)(uintptr_t)c->facts[i].text);
    free(c->facts);
    free(c->questions);
    free(c->user);
}

void is_crowd_free(is_crowd *crowd)
{
    for (size_t i = 0; i < crowd->n; i++) free_conversation(&crowd->conversations[i]);
    free(crowd->conversations);
    *crowd = (is_crowd){0};
}

is_status is_crowd_read(const is_bench *b, is_crowd *crowd, is_error *err)
{
    const char *data = b->data != NULL ? b->data : IS_BENCH_SAMPLE;
    FILE *in = fopen(data, "re");
    if (in == NULL) return is_fail(err, IS_ENOTFOUND, "cannot open %s: %s; give --data FILE", data, strerror(errno));
    is_import_options options = {.scope = b->cli.scope};
    is_import_callbacks callbacks = {on_turn, on_fact, NULL, crowd};
    is_import_counts counts;
    is_status status = is_import_read(in, &options, &callbacks, &counts, err);
    (void)fclose(in);
    size_t kept = 0;
    for (size_t i = 0; i < crowd->n; i++) {
        is_conversation_data *c = &crowd->conversations[i];
        add_questions(b, c);
        if (c->n_questions > 0)
            crowd->conversations[kept++] = *c;
        else
            free_conversation(c);
    }
    crowd->n = kept;
    if (status == IS_OK && kept == 0)
        return is_fail(err, IS_EINVAL, "%s holds no user with both facts and questions; give --data and --questions",
                       data);
    return status;
}

/* ------------------------------------------------------------ users */

is_crowd_name is_crowd_user(size_t user)
{
    is_crowd_name name;
    (void)snprintf(name.s, sizeof name.s, "throughput-%03zu", user);
    return name;
}

static const is_conversation_data *data_of(const is_crowd *crowd, size_t user)
{
    return &crowd->conversations[user % crowd->n];
}

const char *is_crowd_question(const is_crowd *crowd, size_t user, size_t nth)
{
    const is_conversation_data *c = data_of(crowd, user);
    return c->questions[(user / crowd->n + nth) % c->n_questions];
}

/*
 * Where the user's window begins.  Steps of the golden section leave the starts of any number of users far from one
 * another, and a user's facts stay the same whatever the number of users.
 */
static size_t first_fact(const is_crowd *crowd, size_t user)
{
    const is_conversation_data *c = data_of(crowd, user);
    size_t nth = user / crowd->n; /* of those who share the conversation */
    double part = 0.61803398874989 * (double)nth;
    part -= (double)(size_t)part;
    return (size_t)(part * (double)c->n_facts) % c->n_facts;
}

static size_t facts_of(const is_crowd *crowd, size_t user, is_fact *out)
{
    const is_conversation_data *c = data_of(crowd, user);
    size_t first = first_fact(crowd, user), n = crowd->facts < c->n_facts ? crowd->facts : c->n_facts;
    for (size_t i = 0; i < n; i++) out[i] = c->facts[(first + i) % c->n_facts];
    return n;
}

/* Whether the user has just these facts; others, of a run with other data, are forgotten. */
static is_status has_facts(is_memory *memory, const is_scope *scope, const is_fact *facts, size_t n, bool *has,
                           is_error *err)
{
    is_fact_list *list = NULL;
    is_error why = {0};
    *has = false;
    is_status status = is_list(memory, scope, 0, n + 1, &list, &why);
    if (status == IS_ENOTFOUND || (status == IS_OK && list->n == 0)) {
        is_fact_list_free(list);
        return IS_OK;
    }
    if (status == IS_OK) {
        *has = list->n == n;
        for (size_t i = 0; i < n && *has; i++)
            *has = strcmp(list->facts[i].text, facts[i].text) == 0 && list->facts[i].time == facts[i].time;
        is_fact_list_free(list);
        if (!*has) status = is_forget(memory, scope, NULL, 0, NULL, &why);
    }
    if (status != IS_OK && err != NULL) *err = why;
    return status;
}

static is_status give_facts(const is_crowd *crowd, is_memory *memory, size_t user, is_fact *room, is_error *err)
{
    is_crowd_name name = is_crowd_user(user);
    const is_scope scope = {.user = name.s};
    size_t n = facts_of(crowd, user, room);
    bool has;
    is_status status = has_facts(memory, &scope, room, n, &has, err);
    for (size_t i = 0; status == IS_OK && !has && i < n; i += ADD_AT_ONCE)
        status = is_add_facts(memory, &scope, room + i, n - i < ADD_AT_ONCE ? n - i : ADD_AT_ONCE, NULL, err);
    return status;
}

is_status is_crowd_store(const is_crowd *crowd, const is_cli *cli, is_memory *memory, size_t n_users, is_error *err)
{
    is_cli_progress progress;
    is_fact *room = calloc(crowd->facts, sizeof *room);
    if (room == NULL) is_cli_no_memory();
    is_status status = IS_OK;
    is_cli_progress_begin(&progress, cli, "importing", "users");
    for (size_t i = 0; status == IS_OK && i < n_users; i++) {
        status = give_facts(crowd, memory, i, room, err);
        if (!is_cli_progress_step(&progress, i + 1, n_users) && status == IS_OK)
            status = is_fail(err, IS_ECANCELED, "interrupted");
    }
    is_cli_progress_end(&progress);
    free(room);
    return status;
}

/* ------------------------------------------------------------ prompts */

static is_status flatten(const is_plan *plan, int32_t **tokens, size_t *n, is_error *err)
{
    size_t total = 0;
    for (size_t i = 0; i < plan->n_segments; i++) total += plan->segments[i].n_tokens;
    int32_t *at = *tokens = malloc((total + 1) * sizeof *at);
    if (at == NULL) return is_fail(err, IS_ENOMEM, "no memory for a prompt");
    for (size_t i = 0; i < plan->n_segments; i++) {
        memcpy(at, plan->segments[i].tokens, plan->segments[i].n_tokens * sizeof *at);
        at += plan->segments[i].n_tokens;
    }
    *n = total;
    return IS_OK;
}

is_status is_crowd_prompt(is_memory *m, size_t user, const char *question, uint32_t k, uint32_t reserve,
                          int32_t **tokens, size_t *n, is_error *err)
{
    is_crowd_name name = is_crowd_user(user);
    const is_scope scope = {.user = name.s};
    const is_message message = {.role = "user", .content = question};
    const is_prompt_options options = {
        .mode = IS_MODE_PREFILL, .reserve = reserve, .messages = &message, .n_messages = 1};
    int64_t id;
    is_fact_list *facts = NULL;
    double embed_ms, rank_ms;
    is_prompt prompt;
    *tokens = NULL;
    is_status status = is_memory_scope(m, &scope, false, &id, err);
    if (status == IS_OK) status = is_rank(m, id, question, k, NULL, &facts, &embed_ms, &rank_ms, err);
    if (status == IS_OK) status = is_prompt_build(m, id, facts, &options, &prompt, err);
    if (status == IS_OK) {
        status = flatten(&prompt.plan, tokens, n, err);
        is_prompt_free(m, &prompt);
    }
    is_fact_list_free(facts);
    return status;
}
