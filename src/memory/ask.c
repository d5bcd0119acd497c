/* A question, from the search to the last token of its answer. */
#include "memory.h"

#include <stdlib.h>
#include <string.h>

is_ask_options is_ask_options_default(void)
{
    return (is_ask_options){
        .k = 50,
        .sampling = {.top_p = 1.0f, .repeat_penalty = 1.0f},
        .max_tokens = 128,
    };
}

void is_answer_free(is_answer *answer)
{
    if (answer == NULL) return;
    free(answer->text);
    free(answer->reasoning);
    free(answer->tool_calls);
    is_fact_list_free(answer->facts);
    free(answer);
}

static is_status check(const is_memory *memory, const char *question, const is_ask_options *o, is_error *err)
{
    if (memory->engine == NULL)
        return is_fail(err, IS_EUNSUPPORTED, "the memory was opened without a model; open it with one to ask");
    if (question == NULL || question[0] == '\0') return is_fail(err, IS_EINVAL, "the question is empty");
    if (o->k > IS_MAX_K) return is_fail(err, IS_EINVAL, "k is %u; it must be 0 to %d", o->k, IS_MAX_K);
    if (o->question_in_history && o->n_history == 0)
        return is_fail(err, IS_EINVAL, "the question is to stand in the history, which is empty");
    if (o->tools != NULL && o->grammar != NULL)
        return is_fail(err, IS_EINVAL, "a grammar and tools exclude each other; give one of them");
    if (o->grammar != NULL && o->json_schema != NULL)
        return is_fail(err, IS_EINVAL, "a grammar and a JSON schema exclude each other; give one of them");
    for (size_t i = 0; i < o->n_history; i++) {
        const char *role = o->history[i].role;
        if (strcmp(role, "user") == 0 || strcmp(role, "assistant") == 0) continue;
        if (strcmp(role, "tool") == 0 && o->tools != NULL) continue;
        return is_fail(err, IS_EINVAL, "message %zu has the role \"%.40s\"; it must be user or assistant%s", i + 1,
                       role, o->tools != NULL ? " or tool" : ", or tool where tools are given");
    }
    return IS_OK;
}

/* The facts for the question; a scope that has none yet is asked without memory. */
static is_status find_facts(is_memory *memory, const is_scope *scope, const char *question, const is_ask_options *o,
                            is_made *made, is_answer *answer, is_error *err)
{
    is_error why = {0};
    uint64_t any;
    *made = (is_made){.store = memory->store};
    is_status status =
        o->mode == IS_MODE_OFF ? IS_ENOTFOUND : is_memory_scope(memory, scope, false, &made->number, &why);
    if (status == IS_OK) is_store_generation(memory->store, made->number, &any, &made->removed);
    if (status == IS_ENOTFOUND) {
        answer->facts = calloc(1, sizeof *answer->facts);
        return answer->facts == NULL ? is_fail(err, IS_ENOMEM, "no memory for an answer") : IS_OK;
    }
    if (status != IS_OK) {
        if (err != NULL) *err = why;
        return status;
    }
    return is_rank(memory, made->number, question, o->k, o->filter, &answer->facts, &answer->timing.embed_ms,
                   &answer->timing.rank_ms, err);
}

/* What did not fit is cut off the list; the states say which facts have a chunk. */
static void report_facts(is_answer *answer, const is_prompt *prompt)
{
    is_fact_list *list = answer->facts;
    for (size_t i = prompt->n_facts; i < list->n; i++) {
        free((char *)(uintptr_t)list->facts[i].text);
        free((char *)(uintptr_t)list->facts[i].source);
        free((char *)(uintptr_t)list->facts[i].metadata);
    }
    list->n = prompt->n_facts;
    for (size_t i = 0; i < list->n; i++)
        list->facts[i].state = prompt->pins != NULL && prompt->pins[i + 1] != NULL ? IS_FACT_READY : IS_FACT_PENDING;
    answer->facts_dropped = prompt->dropped;
}

/* Who asks: the caller's callbacks, and the memory that may be closed meanwhile. */
typedef struct asked_by {
    const is_memory *memory;
    const is_ask_options *options;
} asked_by;

static bool on_token(void *user, const char *piece, size_t n)
{
    const is_ask_options *o = ((const asked_by *)user)->options;
    return o->on_token(o->user, piece, n);
}

static bool on_reasoning(void *user, const char *piece, size_t n)
{
    const is_ask_options *o = ((const asked_by *)user)->options;
    return o->on_reasoning(o->user, piece, n);
}

static void on_logprob(void *user, const is_token_logprob *tokens, size_t n)
{
    const is_ask_options *o = ((const asked_by *)user)->options;
    o->on_logprob(o->user, tokens, n);
}

static bool canceled(void *user)
{
    const asked_by *by = user;
    return atomic_load(&by->memory->closing) ||
           (by->options->canceled != NULL && by->options->canceled(by->options->user));
}

static uint32_t tokens_before_tail(const is_plan *plan)
{
    uint32_t n = 0;
    for (size_t i = 0; i + 1 < plan->n_segments; i++) n += plan->segments[i].n_tokens;
    return n;
}

/* Has the engine run a plan as the options say; `answer` gets what came of it. */
/* kept: [2], or NULL when nothing is to be kept; see is_run.  free() its bytes. */
static is_status run_plan(is_memory *memory, const is_plan *plan, const char *tool_format, const is_ask_options *o,
                          is_kept *kept, is_answer *answer, is_error *err)
{
    asked_by asked = {memory, o};
    is_run request = {.plan = *plan,
                      .sampling = o->sampling,
                      .logit_bias = o->logit_bias,
                      .n_logit_bias = o->n_logit_bias,
                      .grammar = o->grammar,
                      .json_schema = tool_format == NULL ? o->json_schema : NULL,
                      .tool_format = tool_format,
                      .keep = kept != NULL,
                      .keep_from = kept != NULL ? tokens_before_tail(plan) : 0,
                      .max_tokens = o->max_tokens,
                      .stop = o->stop,
                      .n_stop = o->n_stop,
                      .n_logprobs = o->n_logprobs,
                      .on_logprob = o->on_logprob != NULL ? on_logprob : NULL,
                      .on_token = o->on_token != NULL ? on_token : NULL,
                      .on_reasoning = o->on_reasoning != NULL ? on_reasoning : NULL,
                      .canceled = canceled,
                      .user = &asked};
    is_run_result result;
    is_status status = memory->engine->ops->run(memory->engine, &request, &result, err);
    if (status != IS_OK) return status;
    if (kept != NULL) memcpy(kept, result.kept, sizeof result.kept);
    answer->text = result.text;
    answer->reasoning = result.reasoning;
    answer->tool_calls = result.tool_calls;
    answer->finish = result.finish;
    answer->facts_injected = result.stats.segments_injected > 0 ? result.stats.segments_injected - 1 : 0;
    answer->tokens_injected = result.stats.tokens_injected;
    answer->tokens_cached = result.stats.tokens_resident;
    answer->tokens_prefilled = result.stats.tokens_prefilled;
    answer->tokens_generated = result.stats.tokens_generated;
    answer->inject_bytes = result.stats.inject_bytes;
    answer->refused = result.stats.refused;
    answer->timing.queue_ms = result.stats.queue_ms;
    answer->timing.inject_ms = result.stats.inject_ms;
    answer->timing.prefill_ms = result.stats.prefill_ms;
    answer->timing.ttft_ms = result.stats.ttft_ms;
    if (atomic_load(&memory->closing)) return is_fail(err, IS_ECANCELED, "the memory is being closed");
    return IS_OK;
}

/* Tokens of the run's injected segments that are turns of the conversation. */
static void count_history(const is_prompt *prompt, is_answer *answer)
{
    const is_plan *plan = &prompt->plan;
    size_t first = plan->n_segments - 1 - prompt->history.n;
    size_t injected = answer->facts_injected + (answer->tokens_injected > 0 ? 1 : 0); /* with the header */
    for (size_t i = first; i < injected; i++) {
        answer->tokens_history += plan->segments[i].n_tokens;
        answer->facts_injected--;
    }
}

/* The workers had not all that they were named: it is looked for, and made anew where it is lost. */
static void doubt_chunks(is_memory *memory, int64_t scope, const is_fact_list *facts)
{
    int64_t ids[IS_MAX_K + 1] = {0}; /* the header, then the facts */
    is_pin *pins[IS_MAX_K + 1];
    size_t n = facts->n + 1, lost = 0;
    for (size_t i = 1; i < n; i++) ids[i] = facts->facts[i - 1].id;
    is_store_doubt(memory->store, ids, n);
    if (is_store_pin(memory->store, scope, ids, n, &memory->key, pins, &lost, NULL) == IS_OK)
        is_store_unpin(memory->store, pins, n);
    if (lost > 0) is_worker_notify(memory);
}

static is_status run(is_memory *memory, const is_made *made, uint64_t key, const is_message *messages, size_t n,
                     const is_ask_options *o, is_answer *answer, is_error *err)
{
    double begin = is_now_ms();
    uint32_t context = memory->engine->ops->context(memory->engine);
    bool goes_on = memory->conversations != NULL && o->mode == IS_MODE_INJECT && !o->recompute_history;
    is_kept kept[2] = {{NULL, 0}, {NULL, 0}};
    is_prompt prompt;
    const is_tools tools = {
        .functions = o->tools, .choice = o->tool_choice, .json_schema = o->json_schema, .one_call = o->one_tool_call};
    is_prompt_options plan = {.mode = o->mode,
                              .fresh = o->fresh,
                              .reserve = o->max_tokens < context / 4 ? o->max_tokens : context / 4,
                              .messages = messages,
                              .n_messages = n,
                              .system = o->system,
                              .tools = o->tools != NULL ? &tools : NULL,
                              .history = goes_on ? &key : NULL};
    is_status status = is_prompt_build(memory, made->number, answer->facts, &plan, &prompt, err);
    if (status != IS_OK) return status;
    prompt.plan.scope = made->number != 0 ? (uint64_t)made->number : key;
    double built = is_now_ms();
    status = run_plan(memory, &prompt.plan, prompt.tool_format, o, goes_on ? kept : NULL, answer, err);
    if (status == IS_OK) {
        if (kept[0].bytes == NULL) { /* an answer alone has nothing to stand behind */
            free(kept[1].bytes);
            kept[1].bytes = NULL;
        }
        uint64_t hash = prompt.history.n > 0 ? prompt.history.hash : IS_CONVERSATION_START;
        for (int i = 0; i < 2; i++)
            is_conversation_keep(memory->conversations, key, made, &hash, kept[i].bytes, kept[i].size);
        count_history(&prompt, answer);
        if (answer->refused > 0 && memory->engine->ops->remote) doubt_chunks(memory, made->number, answer->facts);
        answer->refused += (uint32_t)prompt.refused;
        answer->refused_damaged = (uint32_t)prompt.refused;
        answer->timing.fetch_ms = built - begin;
        answer->timing.ttft_ms += built - begin;
        report_facts(answer, &prompt);
    } else {
        free(kept[0].bytes);
        free(kept[1].bytes);
    }
    if (prompt.refused > 0) is_worker_notify(memory); /* damaged chunks were dropped and are made anew */
    is_prompt_free(memory, &prompt);
    return status;
}

static is_status ask_inside(is_memory *memory, const is_scope *scope, const char *question,
                            const is_ask_options *options, is_answer **out, is_error *err)
{
    const is_ask_options defaults = is_ask_options_default();
    const is_ask_options *o = options != NULL ? options : &defaults;
    double begin = is_now_ms();
    static const is_scope nobody;
    is_made made;
    is_status status = check(memory, question, o, err);
    if (status != IS_OK) return status;
    is_answer *answer = calloc(1, sizeof *answer);
    is_message *messages = calloc(o->n_history + 1, sizeof *messages);
    if (answer == NULL || messages == NULL) status = is_fail(err, IS_ENOMEM, "no memory for an answer");
    if (status == IS_OK) {
        if (o->n_history > 0) memcpy(messages, o->history, o->n_history * sizeof *messages);
        messages[o->n_history] = (is_message){.role = "user", .content = question};
        status = find_facts(memory, scope, question, o, &made, answer, err);
    }
    if (status == IS_OK)
        status = run(memory, &made, is_scope_key(scope != NULL ? scope : &nobody), messages,
                     o->n_history + (o->question_in_history ? 0 : 1), o, answer, err);
    free(messages);
    if (status != IS_OK) {
        is_answer_free(answer);
        return status;
    }
    answer->timing.total_ms = is_now_ms() - begin;
    *out = answer;
    return IS_OK;
}

is_status is_ask(is_memory *memory, const is_scope *scope, const char *question, const is_ask_options *options,
                 is_answer **out, is_error *err)
{
    *out = NULL;
    is_status status = is_memory_enter(memory, err);
    if (status != IS_OK) return status;
    status = ask_inside(memory, scope, question, options, out, err);
    is_memory_leave(memory);
    return status;
}

/* ------------------------------------------------------------ without memory */

static is_status complete_inside(is_memory *memory, const char *prompt, const int32_t *tokens, size_t n,
                                 const is_ask_options *o, is_answer **out, is_error *err)
{
    double begin = is_now_ms();
    int32_t *own = NULL;
    is_status status = IS_OK;
    if (memory->engine == NULL) return is_fail(err, IS_EUNSUPPORTED, "the memory was opened without a model");
    if (prompt != NULL) {
        status = memory->engine->ops->tokenize_prompt(memory->engine, prompt, &own, &n, err);
        if (status != IS_OK) return status;
        tokens = own;
    }
    is_answer *answer = calloc(1, sizeof *answer);
    if (answer != NULL) answer->facts = calloc(1, sizeof *answer->facts);
    if (answer == NULL || answer->facts == NULL) status = is_fail(err, IS_ENOMEM, "no memory for an answer");
    if (status == IS_OK && n == 0) status = is_fail(err, IS_EINVAL, "the prompt is empty");
    if (status == IS_OK && n > UINT32_MAX) status = is_fail(err, IS_ELIMIT, "the prompt has %zu tokens", n);
    const is_segment all = {tokens, (uint32_t)n, NULL};
    const is_plan plan = {.segments = &all, .n_segments = 1};
    if (status == IS_OK) status = run_plan(memory, &plan, NULL, o, NULL, answer, err);
    free(own);
    if (status != IS_OK) {
        is_answer_free(answer);
        return status;
    }
    answer->timing.total_ms = is_now_ms() - begin;
    *out = answer;
    return IS_OK;
}

is_status is_complete(is_memory *memory, const char *prompt, const int32_t *tokens, size_t n_tokens,
                      const is_ask_options *options, is_answer **out, is_error *err)
{
    const is_ask_options defaults = is_ask_options_default();
    *out = NULL;
    is_status status = is_memory_enter(memory, err);
    if (status != IS_OK) return status;
    status = complete_inside(memory, prompt, tokens, n_tokens, options != NULL ? options : &defaults, out, err);
    is_memory_leave(memory);
    return status;
}

#define EMBED_AT_ONCE 32 /* texts, so that a question's embedding has not to wait for thousands */

static is_status embed_inside(is_memory *memory, const char *const *texts, size_t n, float **out, uint32_t *dim,
                              uint64_t *tokens, is_error *err)
{
    if (memory->embedder == NULL)
        return is_fail(err, IS_EUNSUPPORTED, "the memory was opened without an embedding model; open it with one");
    *dim = is_embedder_dim(memory->embedder);
    *tokens = 0;
    size_t bytes;
    if (!is_mul_size(n, *dim * sizeof(float), &bytes)) return is_fail(err, IS_ELIMIT, "%zu texts are too many", n);
    float *vectors = malloc(bytes + 1);
    is_status status = vectors == NULL ? is_fail(err, IS_ENOMEM, "no memory for %zu embeddings", n) : IS_OK;
    for (size_t i = 0; status == IS_OK && i < n; i += EMBED_AT_ONCE) {
        size_t step = n - i < EMBED_AT_ONCE ? n - i : EMBED_AT_ONCE;
        status = is_embed(memory->embedder, texts + i, step, vectors + i * *dim, err);
        if (status == IS_OK && atomic_load(&memory->closing))
            status = is_fail(err, IS_ECANCELED, "the memory is being closed");
    }
    for (size_t i = 0; status == IS_OK && i < n; i++) {
        uint32_t count = 0;
        status = is_embed_count(memory->embedder, texts[i], &count, err);
        *tokens += count;
    }
    if (status == IS_OK)
        *out = vectors;
    else
        free(vectors);
    return status;
}

is_status is_embed_texts(is_memory *memory, const char *const *texts, size_t n, float **out, uint32_t *dim,
                         uint64_t *tokens, is_error *err)
{
    *out = NULL;
    is_status status = is_memory_enter(memory, err);
    if (status != IS_OK) return status;
    status = embed_inside(memory, texts, n, out, dim, tokens, err);
    is_memory_leave(memory);
    return status;
}
