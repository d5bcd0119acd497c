/*
 * /v1/chat/completions.
 *
 * The last user message finds the facts.  System messages stand behind them, at the end of the system message, so that
 * the header and the facts in front of them are the same whatever the application says.  A stream begins with the
 * first token: until then an error is a status, behind it an event.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "generate.h"

/* What the messages of a request become. */
typedef struct conversation {
    is_message *messages; /* [n]: user, assistant, tool */
    size_t n;
    char **texts; /* to free, [n_texts]: contents that came in parts, tool calls */
    size_t n_texts;
    const char *question;
} conversation;

static void conversation_free(conversation *c)
{
    for (size_t i = 0; i < c->n_texts; i++) free(c->texts[i]);
    free(c->texts);
    free(c->messages);
}

static const char *keep(conversation *c, char *text)
{
    if (text != NULL) c->texts[c->n_texts++] = text;
    return text;
}

/* ------------------------------------------------------------ messages */

/* The texts of an array of parts, one after another. */
static char *join_parts(is_request *r, const json_t *parts)
{
    size_t size = 1;
    size_t i;
    const json_t *part;
    json_array_foreach(parts, i, part)
    {
        const char *type = json_string_value(json_object_get(part, "type"));
        const json_t *text = json_object_get(part, "text");
        if (type == NULL || strcmp(type, "text") != 0 || !json_is_string(text)) {
            is_reply_error(r, 400, "messages", "unsupported_content",
                           "a part of a message has the type \"%.40s\"; this server reads parts of the type \"text\"",
                           type == NULL ? "" : type);
            return NULL;
        }
        size += json_string_length(text);
    }
    char *all = calloc(size, 1);
    if (all == NULL) is_reply_error(r, 503, NULL, "no_memory", "no memory for a message");
    size_t at = 0;
    if (all != NULL) json_array_foreach(parts, i, part)
        {
            const json_t *text = json_object_get(part, "text");
            memcpy(all + at, json_string_value(text), json_string_length(text));
            at += json_string_length(text);
        }
    return all;
}

/* NULL: it has answered.  "" where there is no content. */
static const char *content_of(is_request *r, const json_t *message, conversation *c)
{
    const json_t *content = json_object_get(message, "content");
    if (json_is_string(content)) return json_string_value(content);
    if (json_is_array(content)) return keep(c, join_parts(r, content));
    if (content == NULL || json_is_null(content)) return "";
    is_reply_error(r, 400, "messages", "invalid_value", "a message's content must be a text or an array of parts");
    return NULL;
}

static bool add_system(is_request *r, is_generation *g, const char *text)
{
    size_t before = g->system == NULL ? 0 : strlen(g->system);
    char *grown = realloc(g->system, before + strlen(text) + 3);
    if (grown == NULL) {
        is_reply_error(r, 503, NULL, "no_memory", "no memory for the system message");
        return false;
    }
    (void)sprintf(grown + before, "%s%s", before > 0 ? "\n\n" : "", text);
    g->system = grown;
    return true;
}

static bool read_message(is_request *r, is_generation *g, const json_t *message, conversation *c)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    const char *text = role == NULL ? NULL : content_of(r, message, c);
    if (role == NULL) is_reply_error(r, 400, "messages", "invalid_value", "a message must be an object with a role");
    const json_t *calls = NULL;
    const char *call_id = NULL;
    if (text == NULL || !is_field_array(r, message, "tool_calls", IS_MAX_TOOLS, &calls) ||
        !is_field_text(r, message, "tool_call_id", SIZE_MAX, &call_id))
        return false;
    if (json_array_size(calls) > 0 && strcmp(role, "assistant") != 0) {
        is_reply_error(r, 400, "messages", "invalid_value", "only an assistant's message has tool_calls");
        return false;
    }
    if (strcmp(role, "system") == 0 || strcmp(role, "developer") == 0) return add_system(r, g, text);
    is_message *m = &c->messages[c->n++];
    *m = (is_message){.role = role, .content = text};
    if (strcmp(role, "user") == 0) {
        c->question = text;
        return true;
    }
    if (strcmp(role, "tool") == 0) {
        m->tool_call_id = call_id;
        return true;
    }
    if (strcmp(role, "assistant") != 0) {
        is_reply_error(r, 400, "messages", "invalid_value",
                       "a message has the role \"%.40s\"; it must be system, developer, user, assistant or tool", role);
        return false;
    }
    if (json_array_size(calls) > 0) m->tool_calls = keep(c, json_dumps(calls, JSON_COMPACT));
    return true;
}

static bool read_messages(is_request *r, is_generation *g, conversation *c)
{
    const json_t *list = NULL;
    if (!is_field_array(r, r->json, "messages", IS_MAX_MESSAGES, &list)) return false;
    size_t n = json_array_size(list);
    if (n == 0) {
        is_reply_error(r, 400, "messages", "missing", "messages must be an array with at least one message");
        return false;
    }
    c->messages = calloc(n, sizeof *c->messages);
    c->texts = calloc(2 * n, sizeof *c->texts);
    if (c->messages == NULL || c->texts == NULL) {
        is_reply_error(r, 503, NULL, "no_memory", "no memory for %zu messages", n);
        return false;
    }
    size_t i;
    const json_t *message;
    json_array_foreach(list, i, message) if (!read_message(r, g, message, c)) return false;
    if (c->question == NULL || c->question[0] == '\0') {
        is_reply_error(r, 400, "messages", "missing", "messages must have a user message with some text");
        return false;
    }
    bool last = strcmp(c->messages[c->n - 1].role, "user") == 0;
    g->options.history = c->messages;
    g->options.n_history = last ? c->n - 1 : c->n;
    g->options.question_in_history = !last;
    g->options.system = g->system;
    return true;
}

/* ------------------------------------------------------------ options */

static bool read_mode(is_request *r, const json_t *o, is_mode *out)
{
    const char *mode = "inject";
    if (!is_field_text(r, o, "mode", 16, &mode)) return false;
    *out = strcmp(mode, "prefill") == 0 ? IS_MODE_PREFILL : strcmp(mode, "off") == 0 ? IS_MODE_OFF : IS_MODE_INJECT;
    if (*out != IS_MODE_INJECT || strcmp(mode, "inject") == 0) return true;
    is_reply_error(r, 400, "mode", "invalid_value", "inferscale.mode must be inject, prefill or off");
    return false;
}

/* Whether earlier turns may come from chunks. */
static bool read_history(is_request *r, const json_t *o, is_ask_options *a)
{
    const char *history = "inject";
    if (!is_field_text(r, o, "history", 16, &history)) return false;
    a->recompute_history = strcmp(history, "recompute") == 0;
    if (a->recompute_history || strcmp(history, "inject") == 0) return true;
    is_reply_error(r, 400, "history", "invalid_value", "inferscale.history must be inject or recompute");
    return false;
}

static bool read_memory(is_request *r, is_generation *g)
{
    const json_t *o = NULL;
    is_ask_options *a = &g->options;
    if (!is_field_object(r, r->json, "inferscale", &o) || !is_field_scope(r, r->json, &g->scope)) return false;
    a->filter = &g->filter;
    return is_field_uint(r, o, "k", 0, 200, &a->k) && is_field_uint(r, o, "fresh", 0, 200, &a->fresh) &&
           read_mode(r, o, &a->mode) && read_history(r, o, a) &&
           is_field_filter(r, o, "filters", &g->filter, &g->metadata) &&
           is_field_text(r, o, "agent", IS_MAX_NAME - 1, &g->scope.agent) &&
           is_field_text(r, o, "run", IS_MAX_NAME - 1, &g->scope.run);
}

static bool read_format(is_request *r, is_generation *g)
{
    const json_t *format = NULL, *holder = NULL;
    const char *type = "text";
    if (!is_field_object(r, r->json, "response_format", &format)) return false;
    if (!is_field_text(r, format, "type", 32, &type) || !is_field_object(r, format, "json_schema", &holder) ||
        !is_field_object_text(r, holder, "schema", &g->json_schema))
        return false;
    if (strcmp(type, "text") == 0) return true;
    if (strcmp(type, "json_object") == 0) {
        g->options.json_schema = "{\"type\": \"object\"}";
        return true;
    }
    if (strcmp(type, "json_schema") != 0) {
        is_reply_error(r, 400, "response_format", "invalid_value",
                       "response_format.type must be text, json_object or json_schema");
        return false;
    }
    if (g->json_schema == NULL)
        is_reply_error(r, 400, "response_format", "missing", "response_format.json_schema.schema is missing");
    g->options.json_schema = g->json_schema;
    return g->json_schema != NULL;
}

static bool read_tool_choice(is_request *r, const char **out)
{
    const json_t *choice = json_object_get(r->json, "tool_choice");
    if (choice == NULL || json_is_null(choice)) return true;
    if (json_is_object(choice)) choice = json_object_get(json_object_get(choice, "function"), "name");
    *out = json_string_value(choice);
    if (*out == NULL)
        is_reply_error(r, 400, "tool_choice", "invalid_value",
                       "tool_choice must be auto, none, required, or an object with a function's name");
    return *out != NULL;
}

static bool read_tools(is_request *r, is_generation *g)
{
    const json_t *tools = NULL;
    const char *choice = NULL;
    bool parallel = true;
    if (!is_field_array(r, r->json, "tools", IS_MAX_TOOLS, &tools) || !read_tool_choice(r, &choice) ||
        !is_field_bool(r, r->json, "parallel_tool_calls", &parallel))
        return false;
    if (json_array_size(tools) == 0) {
        if (choice == NULL || strcmp(choice, "auto") == 0 || strcmp(choice, "none") == 0) return true;
        is_reply_error(r, 400, "tool_choice", "invalid_value", "tool_choice asks for a call and there are no tools");
        return false;
    }
    g->tools = json_dumps(tools, JSON_COMPACT);
    g->options.tools = g->tools;
    g->options.tool_choice = choice;
    g->options.one_tool_call = !parallel;
    return true;
}

static bool read_logprobs(is_request *r, is_generation *g)
{
    bool wanted = false;
    if (!is_field_bool(r, r->json, "logprobs", &wanted) ||
        !is_field_uint(r, r->json, "top_logprobs", 0, 20, &g->options.n_logprobs))
        return false;
    if (wanted) g->options.on_logprob = is_on_logprob;
    if (wanted || g->options.n_logprobs == 0) return true;
    is_reply_error(r, 400, "top_logprobs", "invalid_value", "top_logprobs needs logprobs: true");
    return false;
}

/* ------------------------------------------------------------ out */

static json_t *chunk(const is_generation *g, json_t *choices)
{
    return json_pack("{s:s, s:s, s:I, s:s, s:o}", "id", g->id, "object", "chat.completion.chunk", "created",
                     (json_int_t)g->created, "model", g->request->server->model, "choices", choices);
}

static json_t *delta(const is_generation *g, json_t *content, json_t *logprobs, const char *finish)
{
    return json_pack("[{s:i, s:o, s:o, s:s?}]", "index", (int)g->index, "delta", content, "logprobs", logprobs,
                     "finish_reason", finish);
}

/* The first piece opens the stream, and each choice says once whose words these are. */
static bool begin_choice(is_generation *g)
{
    if (!g->begun) is_stream_begin(g->request, "text/event-stream");
    g->begun = true;
    return is_stream_event(
        g->request, chunk(g, delta(g, json_pack("{s:s, s:s}", "role", "assistant", "content", ""), json_null(), NULL)));
}

static bool send_piece(is_generation *g, const char *name, const char *piece, size_t n)
{
    bool first = g->last_token_ms == 0;
    is_note_token(g);
    if (!g->stream) return true;
    if (first && !begin_choice(g)) return false;
    json_t *content = json_pack("{s:o}", name, is_json_text(piece, n));
    return is_stream_event(g->request, chunk(g, delta(g, content, is_take_logprobs(g), NULL)));
}

static bool on_token(void *user, const char *piece, size_t n)
{
    return send_piece(user, "content", piece, n);
}

static bool on_reasoning(void *user, const char *piece, size_t n)
{
    return send_piece(user, "reasoning", piece, n);
}

static json_t *calls_json(const is_answer *answer)
{
    return answer->tool_calls == NULL ? NULL : json_loads(answer->tool_calls, 0, NULL);
}

/* The last chunks of a choice: tool calls and why it ended. */
static void stream_end(is_generation *g, const is_answer *answer)
{
    if (g->last_token_ms == 0) (void)begin_choice(g);
    json_t *calls = calls_json(answer);
    json_t *last = json_object();
    if (calls != NULL) {
        size_t i;
        json_t *call;
        json_array_foreach(calls, i, call) json_object_set_new(call, "index", json_integer((json_int_t)i));
        json_object_set_new(last, "tool_calls", calls);
    }
    json_t *event = chunk(g, delta(g, last, is_take_logprobs(g), answer->finish));
    if (!g->include_usage && g->index + 1 == g->n) json_object_set_new(event, "inferscale", is_memory_json(g, answer));
    (void)is_stream_event(g->request, event);
    if (g->index + 1 < g->n) return;
    if (g->include_usage) {
        event = chunk(g, json_array());
        json_object_set_new(event, "usage", is_usage_json(g));
        json_object_set_new(event, "inferscale", is_memory_json(g, answer));
        (void)is_stream_event(g->request, event);
    }
    (void)is_stream_write(g->request, "data: [DONE]\n\n", 14);
}

static json_t *choice_json(is_generation *g, const is_answer *answer)
{
    json_t *message =
        json_pack("{s:s, s:o}", "role", "assistant", "content", is_json_text(answer->text, strlen(answer->text)));
    json_t *calls = calls_json(answer);
    if (answer->reasoning != NULL)
        json_object_set_new(message, "reasoning", is_json_text(answer->reasoning, strlen(answer->reasoning)));
    if (calls != NULL) {
        if (answer->text[0] == '\0') json_object_set_new(message, "content", json_null());
        json_object_set_new(message, "tool_calls", calls);
    }
    return json_pack("{s:i, s:o, s:o, s:s}", "index", (int)g->index, "message", message, "logprobs",
                     is_take_logprobs(g), "finish_reason", answer->finish);
}

/* ------------------------------------------------------------ all */

static void failed(is_generation *g, const is_error *err)
{
    const char *code;
    if (!g->begun) {
        is_reply_failure(g->request, err);
        return;
    }
    unsigned status = is_status_code(err, &code);
    (void)is_stream_event(g->request, is_error_json(status, NULL, code, err->text));
    (void)is_stream_write(g->request, "data: [DONE]\n\n", 14);
}

static void answer_choices(is_generation *g, const conversation *c)
{
    json_t *choices = json_array();
    json_t *memory = NULL;
    is_error err = {0};
    is_status status = IS_OK;
    bool left = false;
    uint32_t seed = g->options.sampling.seed;
    for (g->index = 0; g->index < g->n && status == IS_OK && !left; g->index++) {
        is_answer *answer = NULL;
        g->last_token_ms = 0;
        g->options.sampling.seed = seed + g->index;
        status = is_ask(g->request->server->memory, &g->scope, c->question, &g->options, &answer, &err);
        if (status != IS_OK) break;
        is_count_answer(g, answer);
        left = strcmp(answer->finish, "canceled") == 0;
        if (g->stream && !left) stream_end(g, answer);
        if (!g->stream) json_array_append_new(choices, choice_json(g, answer));
        if (!g->stream && memory == NULL) memory = is_memory_json(g, answer);
        is_answer_free(answer);
    }
    if (status != IS_OK) {
        failed(g, &err);
    } else if (left) {
        is_generation_cut(g);
    } else if (!g->stream) {
        is_reply_json(g->request, 200,
                      json_pack("{s:s, s:s, s:I, s:s, s:O, s:o, s:O}", "id", g->id, "object", "chat.completion",
                                "created", (json_int_t)g->created, "model", g->request->server->model, "choices",
                                choices, "usage", is_usage_json(g), "inferscale", memory));
    }
    json_decref(choices);
    json_decref(memory);
}

void is_generation_name(is_generation *g, const char *prefix)
{
    uint64_t random[2] = {0};
    (void)getrandom(random, sizeof random, 0);
    (void)snprintf(g->id, sizeof g->id, "%s-%016llx%08llx", prefix, (unsigned long long)random[0],
                   (unsigned long long)(random[1] & 0xffffffff));
    g->created = (int64_t)time(NULL);
}

void is_handle_chat(is_request *r)
{
    is_generation *g = calloc(1, sizeof *g);
    conversation c = {0};
    if (g == NULL) {
        is_reply_error(r, 503, NULL, "no_memory", "no memory for the request");
        return;
    }
    g->request = r;
    g->options = is_ask_options_default();
    g->filter = (is_filter){.time_from = IS_TIME_NONE, .time_to = IS_TIME_NONE};
    g->options.on_token = on_token;
    g->options.on_reasoning = on_reasoning;
    g->options.canceled = is_generation_canceled;
    g->options.user = g;
    is_generation_name(g, "chatcmpl");
    if (is_read_sampling(r, r->json, g) && read_memory(r, g) && read_messages(r, g, &c) && read_format(r, g) &&
        read_tools(r, g) && read_logprobs(r, g))
        answer_choices(g, &c);
    conversation_free(&c);
    json_decref(g->logprobs);
    free(g->metadata);
    free(g->json_schema);
    free(g->tools);
    free(g->system);
    free(g);
}
