/*
 * Tokens and templates, through /tokenize.
 *
 * vLLM reads control tokens in every text, so what users write must never hold one whole. Texts are sent with a mark
 * in front of each and within each control token that they spell: the mark is a control token that nothing else
 * uses, so the tokenizer cuts there, and in the reply its id separates the texts. So one request serves all texts of a
 * prompt. A template is rendered the same way, with marks where texts go; what it wrote around them is kept, since it
 * does not depend on the texts.
 */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

typedef struct string {
    char *bytes;
    size_t n, capacity;
    bool no_memory;
} string;

static void append(string *s, const char *bytes, size_t n)
{
    if (s->no_memory) return;
    if (s->capacity - s->n < n + 1) {
        size_t capacity = (s->n + n + 1) * 2;
        char *grown = realloc(s->bytes, capacity);
        s->no_memory = grown == NULL;
        if (grown == NULL) return;
        s->bytes = grown;
        s->capacity = capacity;
    }
    memcpy(s->bytes + s->n, bytes, n);
    s->n += n;
    s->bytes[s->n] = '\0';
}

/* The control token that stands here, or NULL. */
static const is_control *control_at(const is_vllm *engine, const char *at)
{
    for (size_t i = 0; i < engine->n_controls; i++)
        if (at[0] == engine->controls[i].text[0] && strncmp(at, engine->controls[i].text, engine->controls[i].n) == 0)
            return &engine->controls[i];
    return NULL;
}

/* NULL has none. */
static bool has_control(const is_vllm *engine, const char *text)
{
    for (; text != NULL && *text != '\0'; text++)
        if (control_at(engine, text) != NULL) return true;
    return false;
}

static size_t character(const char *at)
{
    size_t n = 1;
    while (((unsigned char)at[n] & 0xC0) == 0x80) n++;
    return n;
}

/* A mark, then the text, with a mark behind the first character of each control token in it; how many marks. */
static size_t append_marked(const is_vllm *engine, const char *text, string *out)
{
    const is_control *mark = engine->mark_text;
    size_t marks = 1;
    append(out, mark->text, mark->n);
    for (const char *at = text; *at != '\0';) {
        size_t n = character(at);
        bool cut = control_at(engine, at) != NULL;
        append(out, at, n);
        if (cut) {
            append(out, mark->text, mark->n);
            marks++;
        }
        at += n;
    }
    return marks;
}

/* ------------------------------------------------------------ /tokenize */

static is_status read_tokens(json_t *reply, int32_t **tokens, size_t *n, is_error *err)
{
    const json_t *list = json_object_get(reply, "tokens"), *one;
    size_t i;
    *n = json_array_size(list);
    *tokens = malloc((*n + 1) * sizeof **tokens);
    is_status status = IS_OK;
    if (!json_is_array(list)) status = is_fail(err, IS_EENGINE, "what vLLM's /tokenize answers has no tokens");
    if (status == IS_OK && *tokens == NULL) status = is_fail(err, IS_ENOMEM, "no memory for %zu tokens", *n);
    if (status == IS_OK) json_array_foreach(list, i, one)(*tokens)[i] = (int32_t)json_integer_value(one);
    json_decref(reply);
    if (status == IS_OK) return IS_OK;
    free(*tokens);
    *tokens = NULL;
    *n = 0;
    return status;
}

static is_status post_tokenize(is_vllm *engine, const char *body, int32_t **tokens, size_t *n, is_error *err)
{
    json_t *reply = NULL;
    is_ask_upstream ask = {.path = "/tokenize", .body = body, .timeout_ms = IS_VLLM_ASK_MS};
    *tokens = NULL;
    *n = 0;
    is_status status = is_upstream_json(engine, &ask, &reply, err);
    return status == IS_OK ? read_tokens(reply, tokens, n, err) : status;
}

/* As the tokenizer sees it, control tokens and all. */
static is_status tokenize_raw(is_vllm *engine, const char *text, bool begin, int32_t **tokens, size_t *n, is_error *err)
{
    *tokens = NULL;
    *n = 0;
    json_t *body =
        json_pack("{s:s, s:s, s:b}", "model", engine->model, "prompt", text, "add_special_tokens", (int)begin);
    if (body == NULL) return is_fail(err, IS_EINVAL, "a text for the model is not UTF-8");
    char *dumped = json_dumps(body, JSON_COMPACT);
    json_decref(body);
    if (dumped == NULL) return is_fail(err, IS_ENOMEM, "no memory for a text of %zu bytes", strlen(text));
    is_status status = post_tokenize(engine, dumped, tokens, n, err);
    free(dumped);
    return status;
}

/* The tokens between two marks, and on to the next text's: those of one text with all its cuts. */
static is_status cut_out(const is_vllm *engine, const int32_t *all, size_t n_all, size_t *at, size_t marks,
                         int32_t **tokens, size_t *n, is_error *err)
{
    *n = 0;
    *tokens = malloc((n_all - *at + 1) * sizeof **tokens);
    if (*tokens == NULL) return is_fail(err, IS_ENOMEM, "no memory for %zu tokens", n_all);
    for (; marks > 0; marks--) {
        if (*at >= n_all || all[*at] != engine->mark_text->id)
            return is_fail(err, IS_EENGINE, "vLLM's tokenizer does not cut at the control token %s",
                           engine->mark_text->text);
        while (++*at < n_all && all[*at] != engine->mark_text->id) (*tokens)[(*n)++] = all[*at];
    }
    return IS_OK;
}

/* Users' texts, one by one: tokens[i] [n[i]], free() each; none is left on failure. */
static is_status tokenize_texts(is_vllm *engine, const char *const *texts, size_t n_texts, int32_t **tokens, size_t *n,
                                is_error *err)
{
    string joined = {NULL, 0, 0, false};
    int32_t *all = NULL;
    size_t n_all = 0, at = 0;
    size_t *marks = calloc(n_texts + 1, sizeof *marks);
    is_status status = marks == NULL ? is_fail(err, IS_ENOMEM, "no memory for %zu texts", n_texts) : IS_OK;
    for (size_t i = 0; i < n_texts; i++) tokens[i] = NULL;
    for (size_t i = 0; i < n_texts && status == IS_OK; i++) {
        if (!is_utf8_valid(texts[i], strlen(texts[i])))
            status = is_fail(err, IS_EINVAL, "a text for the model is not UTF-8");
        else
            marks[i] = append_marked(engine, texts[i], &joined);
    }
    if (status == IS_OK && joined.no_memory) status = is_fail(err, IS_ENOMEM, "no memory for %zu texts", n_texts);
    if (status == IS_OK) status = tokenize_raw(engine, joined.bytes, false, &all, &n_all, err);
    for (size_t i = 0; i < n_texts && status == IS_OK; i++)
        status = cut_out(engine, all, n_all, &at, marks[i], &tokens[i], &n[i], err);
    if (status == IS_OK && at != n_all)
        status = is_fail(err, IS_EENGINE, "vLLM's tokenizer sees control tokens where there are none");
    for (size_t i = 0; i < n_texts && status != IS_OK; i++) {
        free(tokens[i]);
        tokens[i] = NULL;
    }
    free(all);
    free(marks);
    free(joined.bytes);
    return status;
}

is_status is_vllm_tokenize(is_vllm *engine, const char *text, bool special, int32_t **tokens, size_t *n, is_error *err)
{
    *n = 0;
    if (special) return tokenize_raw(engine, text, false, tokens, n, err);
    return tokenize_texts(engine, &text, 1, tokens, n, err);
}

is_status is_vllm_tokenize_prompt(is_vllm *engine, const char *text, int32_t **tokens, size_t *n, is_error *err)
{
    if (text[0] != '\0') return tokenize_raw(engine, text, true, tokens, n, err);
    *n = 0;
    *tokens = malloc(sizeof **tokens);
    return *tokens == NULL ? is_fail(err, IS_ENOMEM, "no memory for a prompt") : IS_OK;
}

/* ------------------------------------------------------------ templates */

void is_vllm_templates_free(is_vllm *engine)
{
    for (size_t i = 0; i < IS_VLLM_TEMPLATES; i++) {
        free(engine->templates[i].request);
        free(engine->templates[i].tokens);
    }
}

/* A copy of a template's tokens that was rendered before; NULL: it was not. */
static int32_t *known_template(is_vllm *engine, const char *request, size_t *n)
{
    int32_t *copy = NULL;
    pthread_mutex_lock(&engine->template_lock);
    for (size_t i = 0; i < IS_VLLM_TEMPLATES; i++) {
        is_template *t = &engine->templates[i];
        if (t->request == NULL || strcmp(t->request, request) != 0) continue;
        t->used = ++engine->template_clock;
        copy = malloc((t->n + 1) * sizeof *copy);
        if (copy != NULL) memcpy(copy, t->tokens, t->n * sizeof *copy);
        *n = t->n;
        break;
    }
    pthread_mutex_unlock(&engine->template_lock);
    return copy;
}

static void keep_template(is_vllm *engine, const char *request, const int32_t *tokens, size_t n)
{
    char *name = strdup(request);
    int32_t *copy = malloc((n + 1) * sizeof *copy);
    if (name == NULL || copy == NULL) {
        free(name);
        free(copy);
        return;
    }
    memcpy(copy, tokens, n * sizeof *copy);
    pthread_mutex_lock(&engine->template_lock);
    is_template *oldest = &engine->templates[0];
    for (size_t i = 1; i < IS_VLLM_TEMPLATES; i++)
        if (engine->templates[i].used < oldest->used) oldest = &engine->templates[i];
    free(oldest->request);
    free(oldest->tokens);
    *oldest = (is_template){name, copy, n, ++engine->template_clock};
    pthread_mutex_unlock(&engine->template_lock);
}

static is_status render_template(is_vllm *engine, const char *request, int32_t **tokens, size_t *n, is_error *err)
{
    *tokens = known_template(engine, request, n);
    if (*tokens != NULL) return IS_OK;
    is_status status = post_tokenize(engine, request, tokens, n, err);
    if (status == IS_OK) keep_template(engine, request, *tokens, *n);
    return status;
}

static const char *role_of(const is_message *m)
{
    return strcmp(m->role, "developer") == 0 ? "system" : m->role;
}

/* The message with a mark for its text; what else it has must hold no control token. */
static is_status marked_message(const is_vllm *engine, const is_message *m, size_t number, json_t **out, is_error *err)
{
    json_error_t why;
    const char *role = role_of(m);
    if (has_control(engine, role) || has_control(engine, m->tool_calls) || has_control(engine, m->tool_call_id))
        return is_fail(err, IS_EINVAL, "message %zu has a control token of the model outside of its text", number);
    const char *text = m->content == NULL ? NULL : m->content[0] == '\0' ? "" : engine->mark_text->text;
    *out = json_pack("{s:s, s:s?}", "role", role, "content", text);
    json_t *calls = *out == NULL || m->tool_calls == NULL ? NULL : json_loads(m->tool_calls, 0, &why);
    if (*out == NULL) return is_fail(err, IS_ENOMEM, "no memory for a prompt");
    if (m->tool_calls != NULL && !json_is_array(calls)) {
        json_decref(calls);
        return is_fail(err, IS_EINVAL, "message %zu: tool_calls is no JSON array of calls", number);
    }
    if (calls != NULL) json_object_set_new(*out, "tool_calls", calls);
    if (m->tool_call_id != NULL) json_object_set_new(*out, "tool_call_id", json_string(m->tool_call_id));
    return IS_OK;
}

/* What /tokenize is asked: three marks in the system message, for head, facts and tail, and one for each text. */
static is_status template_request(is_vllm *engine, const is_message *messages, size_t n, const is_tools *tools,
                                  char **out, is_error *err)
{
    const char *mark = engine->mark_system->text;
    is_status status = IS_OK;
    json_t *list = json_array();
    json_t *root = json_pack("{s:s, s:o}", "model", engine->model, "messages", list);
    json_array_append_new(list, json_pack("{s:s, s:s++}", "role", "system", "content", mark, mark, mark));
    for (size_t i = 0; i < n && status == IS_OK; i++) {
        json_t *message = NULL;
        status = marked_message(engine, &messages[i], i + 1, &message, err);
        json_array_append_new(list, message == NULL ? json_null() : message);
    }
    if (status == IS_OK && tools != NULL && tools->functions != NULL) {
        json_error_t why;
        json_t *functions = json_loads(tools->functions, 0, &why);
        if (functions == NULL)
            status = is_fail(err, IS_EINVAL, "the tools are no JSON: %s", why.text);
        else if (has_control(engine, tools->functions))
            status = is_fail(err, IS_EINVAL, "a tool's description has a control token of the model in it");
        json_object_set_new(root, "tools", functions == NULL ? json_null() : functions);
    }
    *out = status == IS_OK ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    return status == IS_OK && *out == NULL ? is_fail(err, IS_ENOMEM, "no memory for a prompt") : status;
}

/* What stands where in a rendered template. */
typedef struct filling {
    const int32_t *template;
    size_t n_template, at;
    int32_t *out;
    size_t n;
} filling;

/* Copies the template up to the next mark; false: there is another one than this, or none where one must be. */
static bool fill_to(const is_vllm *engine, filling *f, const is_control *mark)
{
    for (; f->at < f->n_template; f->at++) {
        int32_t token = f->template[f->at];
        if (token == engine->mark_system->id || token == engine->mark_text->id) {
            f->at++;
            return mark != NULL && token == mark->id;
        }
        f->out[f->n++] = token;
    }
    return mark == NULL;
}

static void fill(filling *f, const int32_t *tokens, size_t n)
{
    memcpy(f->out + f->n, tokens, n * sizeof *tokens);
    f->n += n;
}

/*
 * texts: head, tail, then the messages' that are not empty, in their order.  The header is what stands in front of the
 * facts, and the facts must come before anything that changes from message to message.
 */
static is_status assemble(const is_vllm *engine, const int32_t *template, size_t n_template, int32_t *const *texts,
                          const size_t *n_texts, size_t n, is_prompt_parts *out, is_error *err)
{
    size_t room = n_template;
    for (size_t i = 0; i < n; i++) room += n_texts[i];
    filling head = {template, n_template, 0, malloc((room + 1) * sizeof(int32_t)), 0};
    filling tail = {template, n_template, 0, malloc((room + 1) * sizeof(int32_t)), 0};
    out->header = head.out;
    out->tail = tail.out;
    if (head.out == NULL || tail.out == NULL) return is_fail(err, IS_ENOMEM, "no memory for a prompt");
    bool well = fill_to(engine, &head, engine->mark_system);
    fill(&head, texts[0], n_texts[0]);
    well = well && fill_to(engine, &head, engine->mark_system);
    tail.at = head.at;
    well = well && fill_to(engine, &tail, engine->mark_system);
    fill(&tail, texts[1], n_texts[1]);
    for (size_t i = 2; i < n && well; i++) {
        well = fill_to(engine, &tail, engine->mark_text);
        fill(&tail, texts[i], n_texts[i]);
    }
    well = well && fill_to(engine, &tail, NULL);
    out->n_header = head.n;
    out->n_tail = tail.n;
    if (well) return IS_OK;
    return is_fail(err, IS_EUNSUPPORTED,
                   "the model's chat template does not write the system message first and then each message once; "
                   "start vLLM with another one (--chat-template)");
}

/* What the answer's side of the request has to say about tools, see run.c. */
static char *tool_format_of(const is_tools *tools)
{
    json_t *root = json_pack("{s:o, s:b}", "tools", json_loads(tools->functions, 0, NULL), "parallel_tool_calls",
                             (int)!tools->one_call);
    const char *choice = tools->choice != NULL ? tools->choice : "auto";
    bool is_word = strcmp(choice, "auto") == 0 || strcmp(choice, "none") == 0 || strcmp(choice, "required") == 0;
    if (root != NULL)
        json_object_set_new(root, "tool_choice",
                            is_word ? json_string(choice)
                                    : json_pack("{s:s, s:{s:s}}", "type", "function", "function", "name", choice));
    if (root != NULL && tools->json_schema != NULL)
        json_object_set_new(root, "schema", json_loads(tools->json_schema, 0, NULL));
    char *text = root == NULL ? NULL : json_dumps(root, JSON_COMPACT);
    json_decref(root);
    return text;
}

is_status is_vllm_render(is_vllm *engine, const char *head, const char *tail, const is_message *messages, size_t n,
                         const is_tools *tools, is_prompt_parts *out, is_error *err)
{
    char *request = NULL;
    int32_t *template = NULL;
    size_t n_template = 0, n_texts = 2;
    *out = (is_prompt_parts){0};
    const char **texts = calloc(n + 2, sizeof *texts);
    int32_t **tokens = calloc(n + 2, sizeof *tokens);
    size_t *counts = calloc(n + 2, sizeof *counts);
    bool memory = texts != NULL && tokens != NULL && counts != NULL;
    is_status status = memory ? IS_OK : is_fail(err, IS_ENOMEM, "no memory for a prompt");
    if (status == IS_OK) status = template_request(engine, messages, n, tools, &request, err);
    if (status == IS_OK) {
        texts[0] = head != NULL ? head : "";
        texts[1] = tail;
        for (size_t i = 0; i < n; i++)
            if (messages[i].content != NULL && messages[i].content[0] != '\0') texts[n_texts++] = messages[i].content;
        status = render_template(engine, request, &template, &n_template, err);
    }
    if (status == IS_OK) status = tokenize_texts(engine, texts, n_texts, tokens, counts, err);
    if (status == IS_OK) status = assemble(engine, template, n_template, tokens, counts, n_texts, out, err);
    if (status == IS_OK && tools != NULL && tools->functions != NULL) {
        out->tool_format = tool_format_of(tools);
        if (out->tool_format == NULL) status = is_fail(err, IS_ENOMEM, "no memory for tools");
    }
    if (status != IS_OK || head == NULL) {
        free(out->header);
        out->header = NULL;
        out->n_header = 0;
    }
    if (status != IS_OK) {
        free(out->tail);
        *out = (is_prompt_parts){0};
    }
    for (size_t i = 0; memory && i < n_texts; i++) free(tokens[i]);
    free(template);
    free(request);
    free(texts);
    free(tokens);
    free(counts);
    return status;
}
