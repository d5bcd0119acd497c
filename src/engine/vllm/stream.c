/*
 * An answer while it comes: server-sent events, each a chat completion's chunk.
 *
 * Text, thoughts and calls are vLLM's own parsers' work; here they are told apart, handed on and put together.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define MAX_LINE ((size_t)64 << 20)

void is_vllm_stream_open(is_vllm_stream *s, const is_run *run)
{
    *s = (is_vllm_stream){.run = run, .finish = "stop", .begin_ms = is_now_ms()};
}

void is_vllm_stream_close(is_vllm_stream *s)
{
    free(s->line);
    free(s->text);
    free(s->reasoning);
    json_decref(s->calls);
}

static bool fail(is_vllm_stream *s, is_status status, const char *why)
{
    s->failed = true;
    (void)is_fail(&s->err, status, "%.900s", why);
    return false;
}

static bool grow(char **text, size_t *n, const char *more, size_t n_more)
{
    char *grown = realloc(*text, *n + n_more + 1);
    if (grown == NULL) return false;
    *text = grown;
    memcpy(grown + *n, more, n_more);
    *n += n_more;
    grown[*n] = '\0';
    return true;
}

static void came(is_vllm_stream *s)
{
    if (s->first_ms == 0) s->first_ms = is_now_ms();
}

/* ------------------------------------------------------------ log-probabilities */

#define PIECE_BYTES 256

/*
 * One of the reply's entries.  It has no token id: asked for with return_tokens_as_token_ids, vLLM 0.32 gives the id's
 * digits as the bytes of the alternatives.
 */
static bool read_logprob(const json_t *entry, char piece[PIECE_BYTES], is_token_logprob *out)
{
    const json_t *token = json_object_get(entry, "token"), *bytes = json_object_get(entry, "bytes"), *byte;
    size_t i, n = json_string_length(token) < PIECE_BYTES ? json_string_length(token) : PIECE_BYTES;
    if (!json_is_string(token)) return false;
    memcpy(piece, json_string_value(token), n);
    json_array_foreach(bytes, i, byte) if (i < PIECE_BYTES)
    {
        piece[i] = (char)json_integer_value(byte);
        n = i + 1;
    }
    *out = (is_token_logprob){
        .id = -1, .logprob = (float)json_number_value(json_object_get(entry, "logprob")), .piece = piece, .n_piece = n};
    return true;
}

static void tell_logprobs(is_vllm_stream *s, const json_t *entries)
{
    is_token_logprob tokens[IS_MAX_LOGPROBS + 1];
    char pieces[IS_MAX_LOGPROBS + 1][PIECE_BYTES];
    const json_t *entry, *other;
    size_t i, j;
    if (s->run->on_logprob == NULL) return;
    json_array_foreach(entries, i, entry)
    {
        size_t n = 1;
        if (!read_logprob(entry, pieces[0], &tokens[0])) continue;
        json_array_foreach(json_object_get(entry, "top_logprobs"), j,
                           other) if (n <= s->run->n_logprobs && read_logprob(other, pieces[n], &tokens[n])) n++;
        s->run->on_logprob(s->run->user, tokens, n);
    }
}

/* ------------------------------------------------------------ calls */

/* Adds what has come of a member of a call to what was there. */
static bool extend(json_t *object, const char *name, const char *more)
{
    const char *had = json_string_value(json_object_get(object, name));
    if (more == NULL) return true;
    json_t *both = json_pack("s++", had != NULL ? had : "", more, "");
    return both != NULL && json_object_set_new(object, name, both) == 0;
}

static bool take_call(is_vllm_stream *s, const json_t *delta)
{
    json_int_t index = json_integer_value(json_object_get(delta, "index"));
    if (s->calls == NULL) s->calls = json_array();
    if (index < 0 || (size_t)index > json_array_size(s->calls)) return false;
    if ((size_t)index == json_array_size(s->calls) &&
        json_array_append_new(s->calls, json_pack("{s:s, s:s, s:{s:s, s:s}}", "id", "", "type", "function", "function",
                                                  "name", "", "arguments", "")) != 0)
        return false;
    json_t *call = json_array_get(s->calls, (size_t)index);
    json_t *function = json_object_get(call, "function");
    const json_t *said = json_object_get(delta, "function");
    return extend(call, "id", json_string_value(json_object_get(delta, "id"))) &&
           extend(function, "name", json_string_value(json_object_get(said, "name"))) &&
           extend(function, "arguments", json_string_value(json_object_get(said, "arguments")));
}

/* ------------------------------------------------------------ events */

static const char *finish_of(const char *said)
{
    static const char *const known[] = {"stop", "length", "tool_calls"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(said, known[i]) == 0) return known[i];
    return "stop";
}

static bool take_delta(is_vllm_stream *s, const json_t *delta)
{
    const is_run *run = s->run;
    const json_t *content = json_object_get(delta, "content"), *reasoning = json_object_get(delta, "reasoning"), *call;
    size_t i, n = json_string_length(reasoning);
    if (n > 0) {
        came(s);
        if (!grow(&s->reasoning, &s->n_reasoning, json_string_value(reasoning), n))
            return fail(s, IS_ENOMEM, "no memory for an answer");
        if (run->on_reasoning != NULL && !run->on_reasoning(run->user, json_string_value(reasoning), n)) return false;
    }
    n = json_string_length(content);
    if (n > 0) {
        came(s);
        if (!grow(&s->text, &s->n_text, json_string_value(content), n))
            return fail(s, IS_ENOMEM, "no memory for an answer");
        if (run->on_token != NULL && !run->on_token(run->user, json_string_value(content), n)) return false;
    }
    json_array_foreach(json_object_get(delta, "tool_calls"), i, call)
    {
        came(s);
        if (!take_call(s, call)) return fail(s, IS_EENGINE, "vLLM's tool calls do not follow one another");
    }
    return true;
}

static uint32_t number(const json_t *object, const char *name)
{
    json_int_t n = json_integer_value(json_object_get(object, name));
    return n > 0 && n < UINT32_MAX ? (uint32_t)n : 0;
}

static bool take_event(is_vllm_stream *s, const json_t *event)
{
    const json_t *error = json_object_get(event, "error"), *usage = json_object_get(event, "usage");
    if (error != NULL) {
        const char *said = json_string_value(json_object_get(error, "message"));
        json_int_t code = json_integer_value(json_object_get(error, "code"));
        return fail(s, code >= 400 && code < 500 ? IS_EINVAL : IS_EENGINE,
                    said != NULL ? said : "vLLM's stream ends with an error");
    }
    if (json_is_object(usage)) {
        s->prompt_tokens = number(usage, "prompt_tokens");
        s->generated = number(usage, "completion_tokens");
        s->has_details = json_is_object(json_object_get(usage, "prompt_tokens_details"));
        s->cached_tokens = number(json_object_get(usage, "prompt_tokens_details"), "cached_tokens");
    }
    if (s->run->max_tokens == 0) return true; /* vLLM makes at least one */
    const json_t *choice = json_array_get(json_object_get(event, "choices"), 0);
    tell_logprobs(s, json_object_get(json_object_get(choice, "logprobs"), "content"));
    const char *finish = json_string_value(json_object_get(choice, "finish_reason"));
    if (finish != NULL) s->finish = finish_of(finish);
    return take_delta(s, json_object_get(choice, "delta"));
}

static bool take_line(is_vllm_stream *s, const char *line, size_t n)
{
    static const char DATA[] = "data:";
    json_error_t why;
    if (n > 0 && line[n - 1] == '\r') n--;
    if (n < sizeof DATA - 1 || memcmp(line, DATA, sizeof DATA - 1) != 0) return true; /* nothing, or a comment */
    line += sizeof DATA - 1;
    n -= sizeof DATA - 1;
    while (n > 0 && line[0] == ' ') {
        line++;
        n--;
    }
    if (n == 6 && memcmp(line, "[DONE]", 6) == 0) {
        s->done = true;
        return true;
    }
    json_t *event = json_loadb(line, n, 0, &why);
    if (event == NULL) return fail(s, IS_EENGINE, "vLLM's stream has an event that is no JSON");
    bool ok = take_event(s, event);
    json_decref(event);
    if (!ok && !s->failed) s->canceled = true;
    return ok;
}

bool is_vllm_stream_take(is_vllm_stream *s, const char *bytes, size_t n)
{
    while (n > 0) {
        const char *end = memchr(bytes, '\n', n);
        size_t part = end != NULL ? (size_t)(end - bytes) : n;
        if (part > MAX_LINE - s->n_line) return fail(s, IS_EENGINE, "vLLM's stream has an event without an end");
        if (end != NULL && s->n_line == 0) {
            if (!take_line(s, bytes, part)) return false;
        } else {
            if (!grow(&s->line, &s->n_line, bytes, part)) return fail(s, IS_ENOMEM, "no memory for an answer");
            size_t whole = s->n_line;
            if (end != NULL) {
                s->n_line = 0;
                if (!take_line(s, s->line, whole)) return false;
            }
        }
        part += end != NULL;
        bytes += part;
        n -= part;
    }
    return true;
}
