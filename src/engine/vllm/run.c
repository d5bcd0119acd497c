/*
 * A plan, through /v1/chat/completions.
 *
 * The prompt goes there as token ids, so vLLM renders nothing; what its chat endpoint adds is the answer's side:
 * parsers for tools and thoughts, formats, log-probabilities.  The leading chunks of the plan are named in
 * kv_transfer_params for the connector to inject.  The cache_salt tells vLLM's prefix cache apart whose blocks these
 * are and of which chunks, so that injected blocks are found by the next question over the same facts and by nothing
 * else.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>

#include "internal.h"

void is_json_tokens(json_t *array, const int32_t *tokens, size_t n)
{
    for (size_t i = 0; i < n; i++) json_array_append_new(array, json_integer(tokens[i]));
}

static bool usable(const is_vllm *engine, const is_segment *s)
{
    return s->chunk->info.parts == engine->ranks && s->chunk->info.n_tokens == s->n_tokens &&
           memcmp(s->chunk->info.fingerprint, engine->fingerprint, sizeof engine->fingerprint) == 0 &&
           memcmp(s->chunk->tokens, s->tokens, s->n_tokens * sizeof *s->tokens) == 0;
}

/* The leading segments that are injected; *refused: of those with a chunk, the ones whose chunk does not fit. */
static size_t count_injected(const is_vllm *engine, const is_plan *plan, uint32_t *refused)
{
    size_t n = 0;
    bool leading = plan->inject && engine->why_not[0] == '\0';
    *refused = 0;
    for (size_t i = 0; plan->inject && i + 1 < plan->n_segments; i++) {
        const is_segment *s = &plan->segments[i];
        bool fits = s->chunk != NULL && usable(engine, s);
        if (s->chunk != NULL && !fits) ++*refused;
        leading = leading && fits;
        n += leading;
    }
    return n;
}

static void salt_of(const is_plan *plan, size_t n_injected, char out[33])
{
    uint64_t random[2];
    XXH128_hash_t hash = XXH3_128bits(&plan->scope, sizeof plan->scope);
    for (size_t i = 0; i < n_injected; i++) {
        int64_t key = plan->segments[i].chunk->info.key;
        hash = XXH3_128bits_withSeed(&key, sizeof key, hash.low64 ^ (hash.high64 * 3));
    }
    /* Nobody's prompts share nothing. */
    if (plan->scope == 0 && getrandom(random, sizeof random, 0) == (ssize_t)sizeof random)
        hash = (XXH128_hash_t){random[0], random[1]};
    (void)snprintf(out, 33, "%016llx%016llx", (unsigned long long)hash.high64, (unsigned long long)hash.low64);
}

/* kv_transfer_params: the prompt, and what of it is injected. */
static json_t *transfer_of(const is_plan *plan, size_t n_injected)
{
    json_t *ids = json_array(), *lengths = json_array();
    char *keys = malloc(n_injected * 16 + 1);
    for (size_t i = 0; i < plan->n_segments; i++)
        is_json_tokens(ids, plan->segments[i].tokens, plan->segments[i].n_tokens);
    json_t *params = keys == NULL ? NULL : json_pack("{s:O}", "prompt_token_ids", ids);
    for (size_t i = 0; keys != NULL && i < n_injected; i++) {
        (void)snprintf(keys + 16 * i, 17, "%016llx", (unsigned long long)plan->segments[i].chunk->info.key);
        json_array_append_new(lengths, json_integer(plan->segments[i].n_tokens));
    }
    if (params != NULL && n_injected > 0)
        json_object_set_new(params, "inferscale",
                            json_pack("{s:{s:s, s:O}}", "inject", "keys", keys, "lengths", lengths));
    json_decref(ids);
    json_decref(lengths);
    free(keys);
    return params;
}

static void set(json_t *body, const char *name, json_t *value)
{
    (void)json_object_set_new(body, name, value);
}

static void add_sampling(json_t *body, const is_run *run)
{
    const is_sampling *s = &run->sampling;
    set(body, "temperature", json_real((double)s->temperature));
    set(body, "top_p", json_real(s->top_p > 0 ? (double)s->top_p : 1));
    set(body, "min_p", json_real((double)s->min_p));
    set(body, "top_k", json_integer(s->top_k));
    set(body, "repetition_penalty", json_real(s->repeat_penalty > 0 ? (double)s->repeat_penalty : 1));
    set(body, "presence_penalty", json_real((double)s->presence_penalty));
    set(body, "frequency_penalty", json_real((double)s->frequency_penalty));
    set(body, "seed", json_integer(s->seed));
    if (run->n_logit_bias == 0) return;
    json_t *bias = json_object();
    for (size_t i = 0; i < run->n_logit_bias; i++) {
        char id[16];
        (void)snprintf(id, sizeof id, "%d", run->logit_bias[i].token);
        set(bias, id, json_real(isfinite(run->logit_bias[i].bias) ? (double)run->logit_bias[i].bias : -100));
    }
    set(body, "logit_bias", bias);
}

/* A JSON schema as a response_format. */
static json_t *format_of(json_t *schema)
{
    if (schema == NULL) return NULL;
    return json_pack("{s:s, s:{s:s, s:o}}", "type", "json_schema", "json_schema", "name", "answer", "schema", schema);
}

static is_status add_format(json_t *body, const is_run *run, is_error *err)
{
    if (run->grammar != NULL) set(body, "structured_outputs", json_pack("{s:s}", "grammar", run->grammar));
    if (run->json_schema != NULL) {
        json_t *format = format_of(json_loads(run->json_schema, 0, NULL));
        if (format == NULL) return is_fail(err, IS_EINVAL, "the JSON schema is no JSON");
        set(body, "response_format", format);
    }
    if (run->tool_format == NULL) return IS_OK;
    json_t *tools = json_loads(run->tool_format, 0, NULL); /* text.c made it */
    json_t *schema = json_incref(json_object_get(tools, "schema"));
    (void)json_object_del(tools, "schema");
    if (schema != NULL) set(body, "response_format", format_of(schema));
    (void)json_object_update(body, tools);
    json_decref(tools);
    return IS_OK;
}

static uint32_t tokens_of(const is_plan *plan)
{
    uint32_t n = 0;
    for (size_t i = 0; i < plan->n_segments; i++) n += plan->segments[i].n_tokens;
    return n;
}

static is_status body_of(const is_vllm *engine, const is_run *run, size_t n_injected, char **out, is_error *err)
{
    char salt[33];
    uint32_t prompt = tokens_of(&run->plan);
    if (prompt == 0) return is_fail(err, IS_EINVAL, "the prompt is empty");
    if (prompt >= engine->context)
        return is_fail(err, IS_ELIMIT, "the prompt has %u tokens, and the model's context %u", prompt, engine->context);
    uint32_t room = engine->context - prompt, most = run->max_tokens < room ? run->max_tokens : room;
    salt_of(&run->plan, n_injected, salt);
    json_t *body = json_pack("{s:s, s:[{s:s, s:s}], s:b, s:{s:b}, s:i, s:s, s:o}", "model", engine->model, "messages",
                             "role", "user", "content", ".", "stream", 1, "stream_options", "include_usage", 1,
                             "max_completion_tokens", (int)(most > 0 ? most : 1), "cache_salt", salt,
                             "kv_transfer_params", transfer_of(&run->plan, n_injected));
    is_status status = body == NULL ? is_fail(err, IS_ENOMEM, "no memory for a request") : IS_OK;
    if (status == IS_OK) {
        add_sampling(body, run);
        status = add_format(body, run, err);
    }
    if (status == IS_OK && run->on_logprob != NULL) {
        set(body, "logprobs", json_true());
        set(body, "top_logprobs", json_integer(run->n_logprobs));
    }
    if (status == IS_OK && run->n_stop > 0) {
        json_t *stop = json_array();
        for (size_t i = 0; i < run->n_stop; i++) json_array_append_new(stop, json_string(run->stop[i]));
        set(body, "stop", stop);
    }
    if (status == IS_OK) *out = json_dumps(body, JSON_COMPACT);
    json_decref(body);
    return status == IS_OK && *out == NULL ? is_fail(err, IS_ENOMEM, "no memory for a request") : status;
}

/* ------------------------------------------------------------ the reply */

static bool on_bytes(void *user, const char *bytes, size_t n)
{
    return is_vllm_stream_take(user, bytes, n);
}

static bool is_canceled(void *user)
{
    is_vllm_stream *s = user;
    if (s->run->canceled != NULL && s->run->canceled(s->run->user)) s->canceled = true;
    return s->canceled;
}

static bool has_begun(void *user)
{
    return ((const is_vllm_stream *)user)->first_ms > 0;
}

/* What of the prompt must come out of the cache when all chunks are there: whole blocks, and not its last token. */
static uint32_t to_be_injected(const is_vllm *engine, const is_plan *plan, size_t n_injected)
{
    uint32_t n = 0, most = tokens_of(plan) - 1;
    for (size_t i = 0; i < n_injected; i++) n += plan->segments[i].n_tokens;
    return (n < most ? n : most) / engine->block * engine->block;
}

/* Leading segments of which something came from the cache, and tokens that did not. */
static void count(const is_vllm *engine, const is_vllm_stream *s, const is_run *run, size_t n_injected,
                  is_run_stats *stats)
{
    double now = is_now_ms();
    uint32_t begin = 0;
    /* Without usage the answer was not waited for; without details vLLM was not told to give them. */
    if (s->prompt_tokens > 0 && s->has_details && s->cached_tokens < to_be_injected(engine, &run->plan, n_injected))
        stats->refused++;
    stats->tokens_injected = n_injected > 0 ? s->cached_tokens : 0;
    stats->tokens_resident = n_injected > 0 ? 0 : s->cached_tokens;
    stats->tokens_prefilled = s->prompt_tokens - s->cached_tokens;
    stats->tokens_generated = s->generated;
    for (size_t i = 0; i < n_injected && begin < s->cached_tokens; begin += run->plan.segments[i++].n_tokens)
        stats->segments_injected++;
    stats->ttft_ms = (s->first_ms > 0 ? s->first_ms : now) - s->begin_ms;
    stats->prefill_ms = stats->ttft_ms;
    stats->total_ms = now - s->begin_ms;
}

static is_status take_result(const is_vllm *engine, is_vllm_stream *s, const is_run *run, size_t n_injected,
                             is_run_result *out, is_error *err)
{
    count(engine, s, run, n_injected, &out->stats);
    out->text = s->text != NULL ? s->text : strdup("");
    out->reasoning = s->reasoning;
    s->text = s->reasoning = NULL;
    out->finish = s->canceled ? "canceled" : s->finish;
    if (s->calls != NULL && !s->canceled) out->tool_calls = json_dumps(s->calls, JSON_COMPACT);
    if (run->max_tokens == 0) out->stats.tokens_generated = 0;
    if (out->text != NULL && (s->calls == NULL || s->canceled || out->tool_calls != NULL)) return IS_OK;
    free(out->text);
    free(out->reasoning);
    free(out->tool_calls);
    return is_fail(err, IS_ENOMEM, "no memory for an answer");
}

is_status is_vllm_run(is_vllm *engine, const is_run *run, is_run_result *out, is_error *err)
{
    char *body = NULL;
    is_vllm_stream stream;
    *out = (is_run_result){.finish = "stop"};
    size_t n_injected = count_injected(engine, &run->plan, &out->stats.refused);
    is_status status = body_of(engine, run, n_injected, &body, err);
    if (status != IS_OK) return status;
    is_vllm_stream_open(&stream, run);
    is_ask_upstream ask = {.path = "/v1/chat/completions",
                           .body = body,
                           .scope = run->plan.scope,
                           .on_bytes = on_bytes,
                           .canceled = is_canceled,
                           .begun = has_begun,
                           .user = &stream};
    status = is_upstream_ask(engine, &ask, err);
    free(ask.text);
    free(body);
    if (stream.failed) {
        status = stream.err.status;
        if (err != NULL) *err = stream.err;
    } else if (stream.canceled) {
        status = IS_OK;
    } else if (status == IS_OK && !stream.done) {
        status = is_fail(err, IS_EENGINE, "the vLLM server ended its answer in the middle; ask again");
    }
    if (status == IS_OK) status = take_result(engine, &stream, run, n_injected, out, err);
    is_vllm_stream_close(&stream);
    return status;
}
