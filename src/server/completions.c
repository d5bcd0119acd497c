/* /v1/completions: a bare prompt is continued; several prompts and choices are numbered in order. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "generate.h"

#define MAX_PROMPTS 64

/* One prompt: a text, or token ids. */
typedef struct prompt {
    const char *text;
    int32_t *tokens; /* free() */
    size_t n;
} prompt;

typedef struct completions {
    is_generation g;
    prompt prompts[MAX_PROMPTS];
    size_t n_prompts;
    size_t offset; /* characters' bytes of the choice's text that have log-probabilities */
} completions;

/* ------------------------------------------------------------ prompts */

static bool read_tokens(is_request *r, const json_t *list, prompt *p)
{
    p->n = json_array_size(list);
    p->tokens = malloc((p->n + 1) * sizeof *p->tokens);
    for (size_t i = 0; p->tokens != NULL && i < p->n; i++) {
        const json_t *id = json_array_get(list, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX) {
            is_reply_error(r, 400, "prompt", "invalid_value", "a prompt of tokens must hold whole numbers only");
            return false;
        }
        p->tokens[i] = (int32_t)json_integer_value(id);
    }
    if (p->tokens == NULL) is_reply_error(r, 503, NULL, "no_memory", "no memory for the prompt");
    return p->tokens != NULL;
}

static bool read_prompt(is_request *r, const json_t *v, completions *c)
{
    if (c->n_prompts == MAX_PROMPTS) {
        is_reply_error(r, 400, "prompt", "too_many", "at most %d prompts go into one request", MAX_PROMPTS);
        return false;
    }
    prompt *p = &c->prompts[c->n_prompts++];
    if (json_is_string(v)) {
        p->text = json_string_value(v);
        return true;
    }
    if (json_is_array(v) && json_is_integer(json_array_get(v, 0))) return read_tokens(r, v, p);
    is_reply_error(r, 400, "prompt", "invalid_value",
                   "prompt must be a text, an array of token ids, or an array of such");
    return false;
}

static bool read_prompts(is_request *r, completions *c)
{
    const json_t *v = json_object_get(r->json, "prompt");
    if (!json_is_array(v) || json_is_integer(json_array_get(v, 0))) return read_prompt(r, v, c);
    size_t i;
    const json_t *one;
    json_array_foreach(v, i, one) if (!read_prompt(r, one, c)) return false;
    if (c->n_prompts == 0) is_reply_error(r, 400, "prompt", "missing", "prompt is empty");
    return c->n_prompts > 0;
}

/* ------------------------------------------------------------ out */

/* The older form of log-probabilities: arrays side by side. */
static json_t *take_logprobs(completions *c)
{
    json_t *all = c->g.logprobs;
    c->g.logprobs = NULL;
    if (all == NULL) return json_null();
    json_t *tokens = json_array(), *values = json_array(), *tops = json_array(), *offsets = json_array();
    size_t i;
    json_t *one;
    json_array_foreach(all, i, one)
    {
        const json_t *top = json_object_get(one, "top_logprobs");
        json_t *best = json_object();
        size_t j;
        json_t *other;
        json_array_foreach((json_t *)(uintptr_t)top, j, other) json_object_set(
            best, json_string_value(json_object_get(other, "token")), json_object_get(other, "logprob"));
        json_array_append(tokens, json_object_get(one, "token"));
        json_array_append(values, json_object_get(one, "logprob"));
        json_array_append_new(tops, best);
        json_array_append_new(offsets, json_integer((json_int_t)c->offset));
        c->offset += json_string_length(json_object_get(one, "token"));
    }
    json_decref(all);
    return json_pack("{s:o, s:o, s:o, s:o}", "tokens", tokens, "token_logprobs", values, "top_logprobs", tops,
                     "text_offset", offsets);
}

static json_t *choice_json(completions *c, const char *text, size_t n, const char *finish)
{
    return json_pack("{s:i, s:o, s:o, s:s?}", "index", (int)c->g.index, "text", is_json_text(text, n), "logprobs",
                     take_logprobs(c), "finish_reason", finish);
}

static json_t *reply_json(const completions *c, json_t *choices)
{
    return json_pack("{s:s, s:s, s:I, s:s, s:o}", "id", c->g.id, "object", "text_completion", "created",
                     (json_int_t)c->g.created, "model", c->g.request->server->model, "choices", choices);
}

static bool stream_piece(completions *c, const char *text, size_t n, const char *finish)
{
    if (!c->g.begun) is_stream_begin(c->g.request, "text/event-stream");
    c->g.begun = true;
    return is_stream_event(c->g.request, reply_json(c, json_pack("[o]", choice_json(c, text, n, finish))));
}

static bool on_token(void *user, const char *piece, size_t n)
{
    completions *c = user; /* its first member is the generation */
    is_note_token(&c->g);
    return !c->g.stream || stream_piece(c, piece, n, NULL);
}

/* ------------------------------------------------------------ all */

static is_status complete(completions *c, const prompt *p, json_t *choices, is_error *err)
{
    is_answer *answer = NULL;
    c->g.last_token_ms = 0;
    c->offset = 0;
    is_status status = is_complete(c->g.request->server->memory, p->text, p->tokens, p->n, &c->g.options, &answer, err);
    if (status != IS_OK) return status;
    uint32_t before = c->g.prompt_tokens;
    is_count_answer(&c->g, answer);
    c->g.prompt_tokens += before; /* of all prompts */
    bool left = strcmp(answer->finish, "canceled") == 0;
    if (!c->g.stream)
        json_array_append_new(choices, choice_json(c, answer->text, strlen(answer->text), answer->finish));
    else if (!left)
        (void)stream_piece(c, "", 0, answer->finish);
    is_answer_free(answer);
    c->g.index++;
    return left ? is_fail(err, IS_ECANCELED, "the client has left") : IS_OK;
}

static void finish(completions *c, is_status status, json_t *choices, const is_error *err)
{
    is_request *r = c->g.request;
    const char *code;
    if (status == IS_ECANCELED) {
        is_generation_cut(&c->g);
    } else if (status != IS_OK && !c->g.begun) {
        is_reply_failure(r, err);
    } else if (status != IS_OK) {
        unsigned number = is_status_code(err, &code);
        (void)is_stream_event(r, is_error_json(number, NULL, code, err->text));
    } else if (c->g.stream) {
        if (c->g.include_usage) {
            json_t *event = reply_json(c, json_array());
            json_object_set_new(event, "usage", is_usage_json(&c->g));
            (void)is_stream_event(r, event);
        }
        (void)is_stream_write(r, "data: [DONE]\n\n", 14);
    } else {
        json_t *reply = reply_json(c, json_incref(choices));
        json_object_set_new(reply, "usage", is_usage_json(&c->g));
        is_reply_json(r, 200, reply);
    }
}

/* What is possible elsewhere and would change the answer is refused, not passed over. */
static bool refuse_rest(is_request *r, const completions *c)
{
    bool echo = false;
    const char *suffix = "";
    uint32_t best_of = c->g.n;
    if (!is_field_bool(r, r->json, "echo", &echo) || !is_field_text(r, r->json, "suffix", SIZE_MAX, &suffix) ||
        !is_field_uint(r, r->json, "best_of", 1, IS_MAX_CHOICES, &best_of))
        return false;
    const char *what = echo ? "echo" : suffix[0] != '\0' ? "suffix" : best_of != c->g.n ? "best_of" : NULL;
    if (what != NULL)
        is_reply_error(r, 400, what, "unsupported", "this server has no %s for a completion; leave it out", what);
    return what == NULL;
}

static bool read_rest(is_request *r, completions *c)
{
    const json_t *memory = NULL;
    uint32_t logprobs = 0, k = 0;
    const json_t *wanted = json_object_get(r->json, "logprobs");
    if (!is_field_uint(r, r->json, "logprobs", 0, 20, &logprobs) ||
        !is_field_object(r, r->json, "inferscale", &memory) || !is_field_uint(r, memory, "k", 0, 200, &k) ||
        !is_field_scope(r, r->json, &c->g.scope))
        return false;
    if (json_is_integer(wanted)) c->g.options.on_logprob = is_on_logprob;
    c->g.options.n_logprobs = logprobs;
    if (k == 0) return true;
    is_reply_error(r, 400, "inferscale", "unsupported",
                   "a bare prompt has no place for memories; use /v1/chat/completions, or leave inferscale.k out");
    return false;
}

void is_handle_completions(is_request *r)
{
    completions *c = calloc(1, sizeof *c);
    json_t *choices = json_array();
    is_error err = {0};
    if (c == NULL) {
        is_reply_error(r, 503, NULL, "no_memory", "no memory for the request");
        json_decref(choices);
        return;
    }
    c->g.request = r;
    c->g.options = is_ask_options_default();
    c->g.options.mode = IS_MODE_OFF;
    c->g.options.on_token = on_token;
    c->g.options.canceled = is_generation_canceled;
    c->g.options.user = c;
    is_generation_name(&c->g, "cmpl");
    if (is_read_sampling(r, r->json, &c->g) && refuse_rest(r, c) && read_rest(r, c) && read_prompts(r, c)) {
        if (c->g.options.max_tokens == IS_NO_LIMIT) c->g.options.max_tokens = 16; /* OpenAI's default here */
        is_status status = IS_OK;
        uint32_t seed = c->g.options.sampling.seed;
        for (size_t i = 0; status == IS_OK && i < c->n_prompts; i++)
            for (uint32_t j = 0; status == IS_OK && j < c->g.n; j++) {
                c->g.options.sampling.seed = seed + j;
                status = complete(c, &c->prompts[i], choices, &err);
            }
        finish(c, status, choices, &err);
    }
    json_decref(choices);
    json_decref(c->g.logprobs);
    for (size_t i = 0; i < c->n_prompts; i++) free(c->prompts[i].tokens);
    free(c);
}
