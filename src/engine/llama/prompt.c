/*
 * The chat template and the tokenizer.
 *
 * The template is rendered once with marks where texts go; then what the template wrote is tokenized with
 * control tokens recognised, and the texts without, so that no user or fact can write a control token.
 * The header ends at the mark of the facts, and each fact is tokenized by itself: the token sequence is the
 * same whether it is injected or prefilled.
 *
 * The templates that llama.cpp knows by their shape are rendered by llama_chat_apply_template, which leaves out what
 * changes from day to day; others, and all with tools, as they are written in the model file (chat_shim.h).
 */
#include "internal.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * A mark is MARK_BEGIN, the number of its text, a quote, MARK_END.  Where the template writes JSON the quote comes out
 * escaped, once for every JSON in a JSON, and then its text must be too.
 */
#define MARK_BEGIN "~|^"
#define MARK_END   "^|~"

enum { MARK_HEAD, MARK_FACTS, MARK_TAIL };

bool is_has_mark(const char *text)
{
    return strstr(text, MARK_BEGIN) != NULL;
}

is_status is_prompt_tokenize(const is_model *model, const char *text, bool special, bool bos, int32_t **tokens,
                             size_t *n, is_error *err)
{
    size_t length = strlen(text);
    *tokens = NULL;
    *n = 0;
    /* llama.cpp's tokenizer ends the process over bytes that are no UTF-8. */
    if (!is_utf8_valid(text, length)) return is_fail(err, IS_EINVAL, "a text for the model is not UTF-8");
    if (length > INT32_MAX / 2)
        return is_fail(err, IS_ELIMIT, "a text of %zu bytes is too long for the tokenizer", length);
    int32_t capacity = (int32_t)length + 2;
    int32_t *out = malloc((size_t)capacity * sizeof *out);
    if (out == NULL) return is_fail(err, IS_ENOMEM, "no memory for %d tokens", capacity);
    int32_t got = 0;
    if (bos && llama_vocab_get_add_bos(model->vocab)) out[got++] = llama_vocab_bos(model->vocab);
    int32_t more = llama_tokenize(model->vocab, text, (int32_t)length, out + got, capacity - got, false, special);
    if (more < 0 && more != INT32_MIN) {
        int32_t *grown = realloc(out, (size_t)(got - more) * sizeof *out);
        if (grown == NULL) {
            free(out);
            return is_fail(err, IS_ENOMEM, "no memory for %d tokens", got - more);
        }
        out = grown;
        more = llama_tokenize(model->vocab, text, (int32_t)length, out + got, -more, false, special);
    }
    if (more < 0) {
        free(out);
        return is_fail(err, IS_EENGINE, "the tokenizer refused a text of %zu bytes", length);
    }
    *tokens = out;
    *n = (size_t)got + (size_t)more;
    if (got > 0 && more > 0 && out[1] == out[0]) memmove(out, out + 1, --*n * sizeof *out); /* the text has its own */
    return IS_OK;
}

/* ------------------------------------------------------------ marks in place of texts */

/* The messages, the system's in front, with marks for their texts. */
typedef struct conversation {
    is_chat_message *messages;
    size_t n;
    char **texts; /* behind the marks, [n_texts]; those of head, facts and tail are the caller's */
    size_t n_texts;
    char **owned; /* [n_owned], texts of the messages */
    size_t n_owned;
    json_t **calls; /* of each message, NULL: none */
} conversation;

static void free_conversation(conversation *c)
{
    for (size_t i = MARK_TAIL + 1; i < c->n_texts; i++) free(c->texts[i]);
    for (size_t i = 0; i < c->n_owned; i++) free(c->owned[i]);
    for (size_t i = 0; c->calls != NULL && i < c->n; i++) json_decref(c->calls[i]);
    free(c->texts);
    free(c->owned);
    free(c->calls);
    free(c->messages);
}

static is_status no_memory(is_error *err)
{
    return is_fail(err, IS_ENOMEM, "no memory to render the chat template");
}

/* Keeps a string until the end; takes it over in any case, NULL too. */
static const char *own(conversation *c, char *text)
{
    char **grown = text == NULL ? NULL : realloc(c->owned, (c->n_owned + 1) * sizeof *grown);
    if (grown == NULL) {
        free(text);
        return NULL;
    }
    c->owned = grown;
    return c->owned[c->n_owned++] = text;
}

/* The mark for a copy of this text; "" for an empty one, so that a template can see that.  NULL without memory. */
static const char *mark(conversation *c, const char *text)
{
    if (text == NULL || text[0] == '\0') return "";
    char **grown = realloc(c->texts, (c->n_texts + 1) * sizeof *grown);
    if (grown == NULL) return NULL;
    c->texts = grown;
    c->texts[c->n_texts] = strdup(text);
    if (c->texts[c->n_texts] == NULL) return NULL;
    char mark_text[32];
    (void)snprintf(mark_text, sizeof mark_text, MARK_BEGIN "%zu\"" MARK_END, c->n_texts++);
    return own(c, strdup(mark_text));
}

/* A copy of a JSON value with marks for its strings and its objects' keys; NULL without memory. */
static json_t *mark_json(conversation *c, json_t *value)
{
    const char *key;
    json_t *item;
    size_t i;
    if (json_is_string(value)) {
        const char *text = mark(c, json_string_value(value));
        return text == NULL ? NULL : json_string(text);
    }
    if (json_is_array(value)) {
        json_t *array = json_array();
        json_array_foreach(value, i, item) if (json_array_append_new(array, mark_json(c, item)) != 0)
        {
            json_decref(array);
            return NULL;
        }
        return array;
    }
    if (!json_is_object(value)) return json_incref(value);
    json_t *object = json_object();
    json_object_foreach(value, key, item)
    {
        const char *text = mark(c, key);
        if (text == NULL || json_object_set_new(object, text, mark_json(c, item)) != 0) {
            json_decref(object);
            return NULL;
        }
    }
    return object;
}

/* The arguments of a call, a JSON object or the text of one, as a text with marks. */
static is_status mark_arguments(conversation *c, const json_t *given, const char *name, char **out, is_error *err)
{
    char what[96];
    json_t *arguments = NULL;
    (void)snprintf(what, sizeof what, "what %.64s was called with", name);
    if (json_is_string(given)) {
        is_status status = is_read_json(json_string_value(given), what, &arguments, err);
        if (status != IS_OK) return status;
    } else {
        arguments = json_deep_copy(given);
    }
    if (!json_is_object(arguments)) {
        json_decref(arguments);
        return is_fail(err, IS_EINVAL, "%s is no JSON object", what);
    }
    json_t *marked = mark_json(c, arguments);
    *out = marked == NULL ? NULL : json_dumps(marked, 0);
    json_decref(arguments);
    json_decref(marked);
    return *out == NULL ? no_memory(err) : IS_OK;
}

/* A message's calls, with marks in their arguments. */
static is_status mark_calls(conversation *c, size_t i, const char *given, is_error *err)
{
    json_t *call, *marked = json_array();
    size_t n;
    is_status status = is_read_json(given, "tool_calls", &c->calls[i], err);
    if (status == IS_OK && (!json_is_array(c->calls[i]) || json_array_size(c->calls[i]) == 0))
        status = is_fail(err, IS_EINVAL, "tool_calls is no JSON array of calls");
    json_array_foreach(c->calls[i], n, call)
    {
        if (status != IS_OK) break;
        const json_t *function = json_object_get(call, "function");
        const char *name = json_string_value(json_object_get(function, "name"));
        const char *id = json_string_value(json_object_get(call, "id"));
        char *arguments = NULL;
        if (!is_plain_name(name) || (id != NULL && !is_plain_name(id)))
            status = is_fail(err, IS_EINVAL,
                             "call %zu of tool_calls needs {\"id\": ..., \"function\": {\"name\": ..., "
                             "\"arguments\": ...}}, its id and name of letters, digits, \"_\", \"-\" or \".\"",
                             n + 1);
        if (status == IS_OK) status = mark_arguments(c, json_object_get(function, "arguments"), name, &arguments, err);
        if (status == IS_OK &&
            json_array_append_new(marked, json_pack("{s:s, s:s, s:{s:s, s:s}}", "id", id == NULL ? "" : id, "type",
                                                    "function", "function", "name", name, "arguments", arguments)) != 0)
            status = no_memory(err);
        free(arguments);
    }
    if (status == IS_OK) {
        c->messages[i].tool_calls = own(c, json_dumps(marked, 0));
        if (c->messages[i].tool_calls == NULL) status = no_memory(err);
    }
    json_decref(marked);
    return status;
}

/* The name of the function that was called with this id before; NULL: none. */
static const char *called_name(const conversation *c, size_t before, const char *id)
{
    for (size_t i = before; id != NULL && i-- > 0;) {
        json_t *call;
        size_t n;
        json_array_foreach(c->calls[i], n, call)
        {
            const char *its = json_string_value(json_object_get(call, "id"));
            if (its != NULL && strcmp(its, id) == 0)
                return json_string_value(json_object_get(json_object_get(call, "function"), "name"));
        }
    }
    return NULL;
}

/* The template writes roles, names and ids among its control tokens, so they must not be able to be any. */
static is_status check_message(const is_message *m, size_t i, bool tools, is_error *err)
{
    const char *role = m->role;
    bool tool = strcmp(role, "tool") == 0;
    if (strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0 && strcmp(role, "system") != 0 &&
        strcmp(role, "developer") != 0 && !tool)
        return is_fail(err, IS_EINVAL, "message %zu has the role \"%.40s\"; give \"user\" or \"assistant\"", i, role);
    if ((tool || m->tool_calls != NULL) && !tools)
        return is_fail(err, IS_EINVAL, "message %zu is of a tool that was called; give the tools with it", i);
    if (m->tool_calls != NULL && strcmp(role, "assistant") != 0)
        return is_fail(err, IS_EINVAL, "message %zu has tool_calls and is not the assistant's", i);
    if (m->tool_call_id != NULL && !is_plain_name(m->tool_call_id))
        return is_fail(err, IS_EINVAL,
                       "message %zu has a tool_call_id that is not of letters, digits, \"_\", \"-\" or \".\"", i);
    if (m->content == NULL && m->tool_calls == NULL) return is_fail(err, IS_EINVAL, "message %zu has no content", i);
    return IS_OK;
}

static is_status mark_message(conversation *c, size_t i, const is_message *m, is_error *err)
{
    is_chat_message *to = &c->messages[i];
    to->role = strcmp(m->role, "developer") == 0 ? "system" : m->role;
    to->content = mark(c, m->content);
    if (to->content == NULL) return no_memory(err);
    to->tool_call_id = m->tool_call_id;
    to->tool_name = called_name(c, i, m->tool_call_id);
    return m->tool_calls == NULL ? IS_OK : mark_calls(c, i, m->tool_calls, err);
}

static is_status mark_messages(conversation *c, const char *head, const char *tail, const is_message *messages,
                               size_t n, bool tools, is_error *err)
{
    char system[64];
    c->n = n + 1;
    c->n_texts = MARK_TAIL + 1;
    c->messages = calloc(c->n, sizeof *c->messages);
    c->calls = calloc(c->n, sizeof(json_t *));
    c->texts = calloc(c->n_texts, sizeof *c->texts);
    if (c->messages == NULL || c->calls == NULL || c->texts == NULL) return no_memory(err);
    c->texts[MARK_HEAD] = (char *)(uintptr_t)(head != NULL ? head : "");
    c->texts[MARK_FACTS] = (char *)(uintptr_t) "";
    c->texts[MARK_TAIL] = (char *)(uintptr_t)tail;
    (void)snprintf(system, sizeof system, "%s%d\"%s%s%d\"%s%s%d\"%s", MARK_BEGIN, MARK_HEAD, MARK_END, MARK_BEGIN,
                   MARK_FACTS, MARK_END, MARK_BEGIN, MARK_TAIL, MARK_END);
    c->messages[0] = (is_chat_message){.role = "system", .content = own(c, strdup(system))};
    if (c->messages[0].content == NULL) return no_memory(err);
    for (size_t i = 0; i < n; i++) {
        is_status status = check_message(&messages[i], i, tools, err);
        if (status == IS_OK) status = mark_message(c, i + 1, &messages[i], err);
        if (status != IS_OK) return status;
    }
    return IS_OK;
}

/* What stands at a MARK_BEGIN: the mark's number and how often its text is to be escaped; its end, or NULL. */
static char *read_mark(char *at, size_t *number, unsigned *escapes)
{
    char *digits = at + sizeof MARK_BEGIN - 1;
    char *end;
    if (*digits < '0' || *digits > '9') return NULL;
    *number = strtoul(digits, &end, 10);
    size_t slashes = strspn(end, "\\");
    *escapes = 0;
    while (((size_t)1 << *escapes) - 1 < slashes) ++*escapes;
    end += slashes + 1;
    return end[-1] == '"' && strncmp(end, MARK_END, sizeof MARK_END - 1) == 0 ? end + sizeof MARK_END - 1 : NULL;
}

/* A text as it stands within a JSON string; free(). */
static char *escape(const char *text, unsigned times)
{
    char *out = strdup(text);
    for (; out != NULL && times > 0; times--) {
        json_t *string = json_string(out);
        char *quoted = string == NULL ? NULL : json_dumps(string, JSON_ENCODE_ANY);
        json_decref(string);
        free(out);
        out = quoted == NULL ? NULL : strndup(quoted + 1, strlen(quoted) - 2);
        free(quoted);
    }
    return out;
}

/* ------------------------------------------------------------ rendering */

/* Renders by a plain form, for models without a template. */
static char *render_plain(const is_chat_message *messages, size_t n)
{
    size_t size = 64;
    for (size_t i = 0; i < n; i++) size += strlen(messages[i].role) + strlen(messages[i].content) + 8;
    char *out = malloc(size);
    if (out == NULL) return NULL;
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        const char *role = messages[i].role;
        const char *name = strcmp(role, "system") == 0 ? "" : strcmp(role, "user") == 0 ? "User: " : "Assistant: ";
        at += (size_t)snprintf(out + at, size - at, "%s%s\n\n", name, messages[i].content);
    }
    (void)snprintf(out + at, size - at, "Assistant:");
    return out;
}

/* By the shape of the template; NULL: llama.cpp does not know it, or without memory. */
static char *render_shape(const char *tmpl, const is_chat_message *messages, size_t n)
{
    struct llama_chat_message *chat = calloc(n + 1, sizeof *chat);
    if (chat == NULL) return NULL;
    for (size_t i = 0; i < n; i++) chat[i] = (struct llama_chat_message){messages[i].role, messages[i].content};
    int32_t size = llama_chat_apply_template(tmpl, chat, n, true, NULL, 0);
    char *out = size < 0 ? NULL : malloc((size_t)size + 1);
    if (out != NULL && llama_chat_apply_template(tmpl, chat, n, true, out, size + 1) < 0) {
        free(out);
        out = NULL;
    }
    if (out != NULL) out[size] = '\0';
    free(chat);
    return out;
}

static is_status render_messages(const is_model *model, const is_chat_message *messages, size_t n,
                                 const is_chat_tools *tools, char **prompt, char **format, is_error *err)
{
    is_error why = {0};
    is_status status = IS_OK;
    if (tools != NULL)
        status = is_chat_render_tools(model->chat, messages, n, tools, prompt, format, &why);
    else if (model->form == IS_PROMPT_TEMPLATE)
        status = is_chat_render(model->chat, messages, n, prompt, &why);
    else
        *prompt = model->form == IS_PROMPT_SHAPE
                      ? render_shape(llama_model_chat_template(model->llama, NULL), messages, n)
                      : render_plain(messages, n);
    if (status != IS_OK)
        return is_fail(err, IS_EINVAL, "the model's chat template refuses these messages: %.600s", why.text);
    return *prompt == NULL ? no_memory(err) : IS_OK;
}

/* The whole prompt with marks for texts.  *prompt, *format: free(). */
static is_status render_marks(const is_model *model, const conversation *c, const is_chat_tools *tools, char **prompt,
                              char **format, is_error *err)
{
    char facts[16];
    (void)snprintf(facts, sizeof facts, "%s%d\"%s", MARK_BEGIN, MARK_FACTS, MARK_END);
    *prompt = *format = NULL;
    is_status status = render_messages(model, c->messages, c->n, tools, prompt, format, err);
    if ((status == IS_OK && strstr(*prompt, facts) != NULL) || status == IS_ENOMEM || c->n < 2) return status;
    /* The template drops or refuses system messages: the system text goes in front of the first message. */
    char *first = malloc(strlen(c->messages[0].content) + strlen(c->messages[1].content) + 3);
    is_chat_message *rest = malloc((c->n - 1) * sizeof *rest);
    char *merged = NULL, *merged_format = NULL;
    if (first == NULL || rest == NULL) {
        free(first);
        free(rest);
        return no_memory(err);
    }
    (void)sprintf(first, "%s\n\n%s", c->messages[0].content, c->messages[1].content);
    memcpy(rest, c->messages + 1, (c->n - 1) * sizeof *rest);
    rest[0].content = first;
    if (render_messages(model, rest, c->n - 1, tools, &merged, &merged_format, NULL) == IS_OK) {
        free(*prompt);
        free(*format);
        *prompt = merged;
        *format = merged_format;
        status = IS_OK;
    }
    free(first);
    free(rest);
    return status;
}

is_status is_prompt_open(is_model *model, is_error *err)
{
    const char *tmpl = llama_model_chat_template(model->llama, NULL);
    is_error why = {0};
    is_status status = is_chat_open(model->llama, &model->chat, &why);
    if (status == IS_ENOMEM) return is_fail(err, IS_ENOMEM, "no memory for the chat template");
    const is_chat_message probe[2] = {{.role = "system", .content = "x"}, {.role = "user", .content = "x"}};
    char *text = tmpl == NULL ? NULL : render_shape(tmpl, probe, 2);
    model->form = text != NULL ? IS_PROMPT_SHAPE : IS_PROMPT_PLAIN;
    if (text == NULL && model->chat != NULL &&
        (is_chat_render(model->chat, probe, 2, &text, &why) == IS_OK ||
         is_chat_render(model->chat, probe + 1, 1, &text, &why) == IS_OK))
        model->form = IS_PROMPT_TEMPLATE;
    free(text);
    return IS_OK;
}

/* ------------------------------------------------------------ tokens */

typedef struct token_list {
    int32_t *tokens;
    size_t n;
} token_list;

static is_status append(const is_model *model, token_list *list, const char *text, bool special, bool bos,
                        is_error *err)
{
    int32_t *more;
    size_t n;
    is_status status = is_prompt_tokenize(model, text, special, bos, &more, &n, err);
    if (status != IS_OK) return status;
    int32_t *grown = realloc(list->tokens, (list->n + n + 1) * sizeof *grown);
    if (grown == NULL) {
        free(more);
        return is_fail(err, IS_ENOMEM, "no memory for the prompt's tokens");
    }
    memcpy(grown + list->n, more, n * sizeof *more);
    list->tokens = grown;
    list->n += n;
    free(more);
    return IS_OK;
}

/* The text behind a mark, as the template wanted it written. */
static is_status append_text(const is_model *model, token_list *list, const char *text, unsigned escapes, is_error *err)
{
    if (escapes == 0) return append(model, list, text, false, false, err);
    char *escaped = is_utf8_valid(text, strlen(text)) ? escape(text, escapes) : strdup(text);
    if (escaped == NULL) return no_memory(err);
    is_status status = append(model, list, escaped, false, false, err);
    free(escaped);
    return status;
}

/* What was rendered becomes tokens, header and tail; without `header` only the tail is made. */
static is_status tokenize_marks(const is_model *model, const conversation *c, char *rendered, bool header,
                                token_list parts[2], is_error *err)
{
    size_t part = 0, number = 0;
    unsigned escapes = 0;
    bool wanted = header; /* the part in hand */
    is_status status = header ? append(model, &parts[0], "", false, true, err) : IS_OK;
    char *from = rendered; /* what the template wrote, up to the next mark */
    for (char *at = rendered; status == IS_OK;) {
        char *begin = strstr(at, MARK_BEGIN);
        char *end = begin == NULL ? NULL : read_mark(begin, &number, &escapes);
        if (begin != NULL && (end == NULL || number >= c->n_texts)) {
            at = begin + 1;
            continue;
        }
        if (begin != NULL) *begin = '\0';
        if (*from != '\0' && wanted) status = append(model, &parts[part], from, true, false, err);
        if (begin == NULL || status != IS_OK) break;
        at = from = end;
        if (number == MARK_FACTS) {
            part = 1;
            wanted = true;
        }
        const char *text = c->texts[number];
        if (wanted && text[0] != '\0') status = append_text(model, &parts[part], text, escapes, err);
    }
    if (status == IS_OK && part == 0)
        status = is_fail(err, IS_EUNSUPPORTED,
                         "the model's chat template has no place for a system message and no message "
                         "was given to put it in front of");
    return status;
}

is_status is_prompt_render(const is_model *model, const char *system_head, const char *system_tail,
                           const is_message *messages, size_t n_messages, const is_tools *tools, is_prompt_parts *out,
                           is_error *err)
{
    token_list parts[2] = {{NULL, 0}, {NULL, 0}}; /* header, tail */
    conversation c = {0};
    is_chat_tools called;
    char *functions = NULL, *rendered = NULL, *format = NULL;
    memset(out, 0, sizeof *out);
    is_status status = tools == NULL ? IS_OK : is_tools_read(model, tools, &called, &functions, err);
    if (status == IS_OK) status = mark_messages(&c, system_head, system_tail, messages, n_messages, tools != NULL, err);
    if (status == IS_OK) status = render_marks(model, &c, tools == NULL ? NULL : &called, &rendered, &format, err);
    if (status == IS_OK) status = tokenize_marks(model, &c, rendered, system_head != NULL, parts, err);
    free_conversation(&c);
    free(functions);
    free(rendered);
    if (status != IS_OK) {
        free(format);
        free(parts[0].tokens);
        free(parts[1].tokens);
        return status;
    }
    *out = (is_prompt_parts){parts[0].tokens, parts[0].n, parts[1].tokens, parts[1].n, format};
    return IS_OK;
}
