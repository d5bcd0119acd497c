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
    is_fact_list_free(answer->facts);
    free(answer);
}

static is_status check(const is_memory *memory, const char *question, const is_ask_options *o, is_error *err)
{
    if (memory->engine == NULL)
        return is_fail(err, IS_EUNSUPPORTED, "the memory was opened without a model; open it with one to ask");
    if (question == NULL || question[0] == '\0') return is_fail(err, IS_EINVAL, "the question is empty");
    if (o->k > IS_MAX_K) return is_fail(err, IS_EINVAL, "k is %u; it must be 0 to %d", o->k, IS_MAX_K);
    for (size_t i = 0; i < o->n_history; i++)
        if (strcmp(o->history[i].role, "user") != 0 && strcmp(o->history[i].role, "assistant") != 0)
            return is_fail(err, IS_EINVAL, "message %zu has the role \"%s\"; it must be user or assistant", i + 1,
                           o->history[i].role);
    return IS_OK;
}

/* The facts for the question; a scope that has none yet is asked without memory. */
static is_status find_facts(is_memory *memory, const is_scope *scope, const char *question, const is_ask_options *o,
                            int64_t *number, is_answer *answer, is_error *err)
{
    is_error why = {0};
    *number = 0;
    is_status status = o->mode == IS_MODE_OFF ? IS_ENOTFOUND : is_memory_scope(memory, scope, false, number, &why);
    if (status == IS_ENOTFOUND) {
        answer->facts = calloc(1, sizeof *answer->facts);
        return answer->facts == NULL ? is_fail(err, IS_ENOMEM, "no memory for an answer") : IS_OK;
    }
    if (status != IS_OK) {
        if (err != NULL) *err = why;
        return status;
    }
    return is_rank(memory, *number, question, o->k, o->filter, &answer->facts, &answer->timing.embed_ms,
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

static is_status run(is_memory *memory, int64_t scope, const is_message *messages, size_t n, const is_ask_options *o,
                     is_answer *answer, is_error *err)
{
    double begin = is_now_ms();
    uint32_t context = memory->engine->ops->context(memory->engine);
    is_prompt prompt;
    is_prompt_options plan = {.mode = o->mode,
                              .fresh = o->fresh,
                              .reserve = o->max_tokens < context / 4 ? o->max_tokens : context / 4,
                              .messages = messages,
                              .n_messages = n};
    is_status status = is_prompt_build(memory, scope, answer->facts, &plan, &prompt, err);
    if (status != IS_OK) return status;
    double built = is_now_ms();
    is_run request = {.plan = prompt.plan,
                      .sampling = o->sampling,
                      .max_tokens = o->max_tokens,
                      .stop = o->stop,
                      .n_stop = o->n_stop,
                      .on_token = o->on_token,
                      .user = o->user,
                      .cancel = &memory->closing};
    is_run_result result;
    status = memory->engine->ops->run(memory->engine, &request, &result, err);
    if (status == IS_OK) {
        answer->text = result.text;
        answer->finish = result.finish;
        answer->facts_injected = result.stats.segments_injected > 0 ? result.stats.segments_injected - 1 : 0;
        answer->tokens_injected = result.stats.tokens_injected;
        answer->tokens_prefilled = result.stats.tokens_prefilled;
        answer->tokens_generated = result.stats.tokens_generated;
        answer->inject_bytes = result.stats.inject_bytes;
        answer->refused = result.stats.refused + (uint32_t)prompt.refused;
        answer->timing.fetch_ms = built - begin;
        answer->timing.queue_ms = result.stats.queue_ms;
        answer->timing.inject_ms = result.stats.inject_ms;
        answer->timing.prefill_ms = result.stats.prefill_ms;
        answer->timing.ttft_ms = built - begin + result.stats.ttft_ms;
        report_facts(answer, &prompt);
    }
    if (prompt.refused > 0) is_worker_notify(memory); /* damaged chunks were dropped and are made anew */
    is_prompt_free(memory, &prompt);
    if (status == IS_OK && atomic_load(&memory->closing))
        return is_fail(err, IS_ECANCELED, "the memory is being closed");
    return status;
}

static is_status ask_inside(is_memory *memory, const is_scope *scope, const char *question,
                            const is_ask_options *options, is_answer **out, is_error *err)
{
    const is_ask_options defaults = is_ask_options_default();
    const is_ask_options *o = options != NULL ? options : &defaults;
    double begin = is_now_ms();
    int64_t number;
    is_status status = check(memory, question, o, err);
    if (status != IS_OK) return status;
    is_answer *answer = calloc(1, sizeof *answer);
    is_message *messages = calloc(o->n_history + 1, sizeof *messages);
    if (answer == NULL || messages == NULL) status = is_fail(err, IS_ENOMEM, "no memory for an answer");
    if (status == IS_OK) {
        if (o->n_history > 0) memcpy(messages, o->history, o->n_history * sizeof *messages);
        messages[o->n_history] = (is_message){"user", question};
        status = find_facts(memory, scope, question, o, &number, answer, err);
    }
    if (status == IS_OK) status = run(memory, number, messages, o->n_history + 1, o, answer, err);
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
