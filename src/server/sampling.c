/* What the two ways of generating have in common: how tokens are chosen, and what is told of their probabilities. */
#include "generate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static bool read_stop(is_request *r, const json_t *o, is_ask_options *a, const char **stop)
{
    const json_t *v = json_object_get(o, "stop");
    if (v == NULL || json_is_null(v)) return true;
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    bool ok = n <= IS_MAX_STOP;
    for (size_t i = 0; ok && i < n; i++) {
        const json_t *one = json_is_array(v) ? json_array_get(v, i) : v;
        ok = json_is_string(one) && json_string_length(one) > 0 && json_string_length(one) <= 256;
        stop[i] = json_string_value(one);
    }
    if (!ok)
        is_reply_error(r, 400, "stop", "invalid_value", "stop must be a text or up to %d texts of 1 to 256 bytes",
                       IS_MAX_STOP);
    a->stop = stop;
    a->n_stop = n;
    return ok;
}

static bool read_bias(is_request *r, const json_t *o, is_ask_options *a, is_logit_bias *bias)
{
    const json_t *v = NULL;
    if (!is_field_object(r, o, "logit_bias", &v)) return false;
    const char *key;
    const json_t *value;
    size_t n = 0;
    json_object_foreach((json_t *)(uintptr_t)v, key, value)
    {
        char *end;
        long token = key[0] >= '0' && key[0] <= '9' ? strtol(key, &end, 10) : -1;
        double x = json_number_value(value);
        if (token < 0 || token > INT32_MAX || *end != '\0' || !json_is_number(value) || !(fabs(x) <= 100) ||
            n == IS_MAX_BIAS) {
            is_reply_error(r, 400, "logit_bias", "invalid_value",
                           "logit_bias must be an object of at most %d token ids with a number from -100 to 100",
                           IS_MAX_BIAS);
            return false;
        }
        /* In OpenAI's scale -100 is a ban. */
        bias[n++] = (is_logit_bias){(int32_t)token, x <= -100 ? -INFINITY : (float)x};
    }
    a->logit_bias = bias;
    a->n_logit_bias = n;
    return true;
}

bool is_read_sampling(is_request *r, const json_t *o, is_generation *g)
{
    is_ask_options *a = &g->options;
    is_sampling *s = &a->sampling;
    uint32_t top_k = 0, seed = 0;
    if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed) seed = 1;
    const json_t *given = json_object_get(o, "seed");
    if (json_is_integer(given)) /* any whole number is a seed */
        seed = (uint32_t)(uint64_t)json_integer_value(given);
    else if (given != NULL && !json_is_null(given)) {
        is_reply_error(r, 400, "seed", "invalid_value", "seed must be a whole number");
        return false;
    }
    *s = (is_sampling){.temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = seed};
    a->max_tokens = IS_NO_LIMIT;
    g->n = 1;
    const char *model = NULL; /* any name: there is one */
    bool ok = is_field_text(r, o, "model", SIZE_MAX, &model) &&
              is_field_real(r, o, "temperature", 0, 100, &s->temperature) &&
              is_field_real(r, o, "top_p", 0, 1, &s->top_p) && is_field_real(r, o, "min_p", 0, 1, &s->min_p) &&
              is_field_uint(r, o, "top_k", 0, INT32_MAX, &top_k) &&
              is_field_real(r, o, "presence_penalty", -2, 2, &s->presence_penalty) &&
              is_field_real(r, o, "frequency_penalty", -2, 2, &s->frequency_penalty) &&
              is_field_real(r, o, "repeat_penalty", 0, 10, &s->repeat_penalty) &&
              is_field_uint(r, o, "max_tokens", 0, IS_NO_LIMIT, &a->max_tokens) &&
              is_field_uint(r, o, "max_completion_tokens", 0, IS_NO_LIMIT, &a->max_tokens) &&
              is_field_uint(r, o, "n", 1, IS_MAX_CHOICES, &g->n) && is_field_bool(r, o, "stream", &g->stream) &&
              read_stop(r, o, a, g->stop) && read_bias(r, o, a, g->bias);
    s->top_k = (int32_t)top_k;
    const json_t *stream_options = NULL;
    return ok && is_field_object(r, o, "stream_options", &stream_options) &&
           is_field_bool(r, stream_options, "include_usage", &g->include_usage);
}

/* ------------------------------------------------------------ log-probabilities */

static json_t *token_json(const is_token_logprob *t)
{
    json_t *bytes = json_array();
    for (size_t i = 0; i < t->n_piece; i++) json_array_append_new(bytes, json_integer((unsigned char)t->piece[i]));
    /* JSON has no infinity: a token that cannot be has OpenAI's -9999. */
    return json_pack("{s:o, s:f, s:o}", "token", is_json_text(t->piece, t->n_piece), "logprob",
                     isfinite(t->logprob) ? (double)t->logprob : -9999.0, "bytes", bytes);
}

void is_on_logprob(void *user, const is_token_logprob *tokens, size_t n)
{
    is_generation *g = user;
    json_t *one = token_json(&tokens[0]);
    json_t *top = json_array();
    for (size_t i = 1; i < n; i++) json_array_append_new(top, token_json(&tokens[i]));
    json_object_set_new(one, "top_logprobs", top);
    if (g->logprobs == NULL) g->logprobs = json_array();
    json_array_append_new(g->logprobs, one);
}

json_t *is_take_logprobs(is_generation *g)
{
    json_t *taken = g->logprobs;
    g->logprobs = NULL;
    return taken == NULL ? json_null() : json_pack("{s:o}", "content", taken);
}

/* ------------------------------------------------------------ ends */

bool is_generation_canceled(void *user)
{
    return is_request_gone(((is_generation *)user)->request);
}

void is_generation_cut(is_generation *g)
{
    is_request *r = g->request;
    if (!atomic_load(&r->server->stopping)) {
        if (!g->begun) r->status = 499;
    } else if (g->begun) {
        (void)is_stream_event(r, is_error_json(503, NULL, "draining", "the server is going down"));
    } else {
        is_reply_draining(r);
    }
}

void is_note_token(is_generation *g)
{
    double now = is_now_ms();
    if (g->last_token_ms > 0) is_metrics_token(g->request->server->metrics, now - g->last_token_ms);
    g->last_token_ms = now;
}

void is_count_answer(is_generation *g, const is_answer *answer)
{
    const is_record record = {.tenant = g->request->tenant,
                              .user = g->scope.user,
                              .mode = g->options.mode,
                              .ttft_ms = answer->timing.ttft_ms,
                              .total_ms = answer->timing.total_ms,
                              .queue_ms = answer->timing.queue_ms,
                              .retrieval_ms = answer->timing.embed_ms + answer->timing.rank_ms,
                              .inject_ms = answer->timing.fetch_ms + answer->timing.inject_ms,
                              .prefill_ms = answer->timing.prefill_ms,
                              .tokens_injected = answer->tokens_injected,
                              .tokens_prefilled = answer->tokens_prefilled,
                              .tokens_generated = answer->tokens_generated,
                              .tokens_history = answer->tokens_history,
                              .refused = answer->refused,
                              .refused_damaged = answer->refused_damaged,
                              .status = strcmp(answer->finish, "canceled") == 0 ? 499 : 200};
    is_metrics_answer(g->request->server->metrics, &record);
    g->cached_tokens = answer->tokens_injected + answer->tokens_cached;
    g->prompt_tokens = g->cached_tokens + answer->tokens_prefilled;
    g->completion_tokens += answer->tokens_generated;
}

json_t *is_usage_json(const is_generation *g)
{
    return json_pack("{s:i, s:i, s:i, s:{s:i}}", "prompt_tokens", (int)g->prompt_tokens, "completion_tokens",
                     (int)g->completion_tokens, "total_tokens", (int)(g->prompt_tokens + g->completion_tokens),
                     "prompt_tokens_details", "cached_tokens", (int)g->cached_tokens);
}

json_t *is_memory_json(const is_generation *g, const is_answer *a)
{
    static const char *const modes[] = {
        [IS_MODE_INJECT] = "inject", [IS_MODE_PREFILL] = "prefill", [IS_MODE_OFF] = "off"};
    json_t *memories = json_array();
    size_t first_fresh = g->options.fresh;
    for (size_t i = 0; i < a->facts->n; i++) {
        const is_fact *fact = &a->facts->facts[i];
        bool injected = a->tokens_injected > 0 && fact->state == IS_FACT_READY && i >= first_fresh;
        json_array_append_new(memories, json_pack("{s:I, s:s, s:o, s:f, s:b}", "id", (json_int_t)fact->id, "text",
                                                  fact->text, "time", is_json_time(fact->time), "score",
                                                  a->facts->scores == NULL ? 0.0 : a->facts->scores[i], "injected",
                                                  (int)injected));
    }
    const is_timing *t = &a->timing;
    return json_pack("{s:s, s:o, s:i, s:i, s:i, s:i, s:i, s:I, s:{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}}", "mode",
                     modes[g->options.mode], "memories", memories, "dropped", (int)a->facts_dropped, "tokens_injected",
                     (int)a->tokens_injected, "tokens_history", (int)a->tokens_history, "tokens_prefilled",
                     (int)a->tokens_prefilled, "facts_injected", (int)a->facts_injected, "inject_bytes",
                     (json_int_t)a->inject_bytes, "timing", "embed_ms", t->embed_ms, "rank_ms", t->rank_ms, "fetch_ms",
                     t->fetch_ms, "inject_ms", t->inject_ms, "prefill_ms", t->prefill_ms, "queue_ms", t->queue_ms,
                     "ttft_ms", t->ttft_ms, "total_ms", t->total_ms);
}
