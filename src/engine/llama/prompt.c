/*
 * The chat template and the tokenizer.
 *
 * The template is rendered once with marks where texts go; then what the template wrote is tokenized with
 * control tokens recognised, and the texts without, so that no user or fact can write a control token.
 * The header ends at the mark of the facts, and each fact is tokenized by itself: the token sequence is the
 * same whether it is injected or prefilled.
 */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MARK '\x1A' /* a mark is MARK, a number, MARK */

enum { MARK_HEAD, MARK_FACTS, MARK_TAIL, MARK_MESSAGES };

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
    return IS_OK;
}

static char *mark(unsigned number)
{
    char text[16];
    (void)snprintf(text, sizeof text, "%c%u%c", MARK, number, MARK);
    return strdup(text);
}

/* Renders by a plain form, for models that say no template or one that llama.cpp does not know. */
static char *render_plain(const struct llama_chat_message *messages, size_t n)
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

static char *render_template(const char *tmpl, const struct llama_chat_message *messages, size_t n)
{
    if (tmpl == NULL) return render_plain(messages, n);
    int32_t size = llama_chat_apply_template(tmpl, messages, n, true, NULL, 0);
    if (size < 0) return render_plain(messages, n);
    char *out = malloc((size_t)size + 1);
    if (out == NULL) return NULL;
    if (llama_chat_apply_template(tmpl, messages, n, true, out, size + 1) < 0) {
        free(out);
        return NULL;
    }
    out[size] = '\0';
    return out;
}

/* The whole prompt with marks for texts.  free(); NULL without memory. */
static char *render_marks(const is_model *model, const is_message *messages, size_t n)
{
    struct llama_chat_message *chat = calloc(n + 1, sizeof *chat);
    char *rendered = NULL;
    char facts[16];
    char system[64];
    (void)snprintf(facts, sizeof facts, "%c%d%c", MARK, MARK_FACTS, MARK);
    (void)snprintf(system, sizeof system, "%c%d%c%s%c%d%c", MARK, MARK_HEAD, MARK, facts, MARK, MARK_TAIL, MARK);
    if (chat == NULL) return NULL;
    chat[0] = (struct llama_chat_message){"system", system};
    bool ok = true;
    for (size_t i = 0; i < n; i++) {
        chat[i + 1] = (struct llama_chat_message){messages[i].role, mark(MARK_MESSAGES + (unsigned)i)};
        ok = ok && chat[i + 1].content != NULL;
    }
    const char *tmpl = llama_model_chat_template(model->llama, NULL);
    if (ok) rendered = render_template(tmpl, chat, n + 1);
    if (rendered != NULL && strstr(rendered, facts) == NULL && n > 0) {
        /* The template drops system messages: the system text goes in front of the first message. */
        free(rendered);
        char first[128];
        (void)snprintf(first, sizeof first, "%s\n\n%s", system, chat[1].content);
        struct llama_chat_message kept = chat[1];
        chat[1].content = first;
        rendered = render_template(tmpl, chat + 1, n);
        chat[1] = kept;
    }
    for (size_t i = 0; i < n; i++) free((char *)(uintptr_t)chat[i + 1].content);
    free(chat);
    return rendered;
}

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

/* The template writes roles among its control tokens, so a role must not be able to be one. */
static is_status check_roles(const is_message *messages, size_t n, is_error *err)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(messages[i].role, "user") != 0 && strcmp(messages[i].role, "assistant") != 0 &&
            strcmp(messages[i].role, "system") != 0)
            return is_fail(err, IS_EINVAL, "message %zu has the role \"%.40s\"; give \"user\" or \"assistant\"", i,
                           messages[i].role);
    return IS_OK;
}

is_status is_prompt_render(const is_model *model, const char *system_head, const char *system_tail,
                           const is_message *messages, size_t n_messages, is_prompt_parts *out, is_error *err)
{
    token_list parts[2] = {{NULL, 0}, {NULL, 0}}; /* header, tail */
    memset(out, 0, sizeof *out);
    is_status status = check_roles(messages, n_messages, err);
    if (status != IS_OK) return status;
    char *rendered = render_marks(model, messages, n_messages);
    if (rendered == NULL) return is_fail(err, IS_ENOMEM, "no memory to render the chat template");
    status = append(model, &parts[0], "", false, true, err);
    size_t part = 0;
    char *at = rendered;
    while (status == IS_OK && *at != '\0') {
        char *begin = strchr(at, MARK);
        if (begin != NULL) *begin = '\0';
        if (*at != '\0') status = append(model, &parts[part], at, true, false, err);
        if (begin == NULL || status != IS_OK) break;
        char *end;
        unsigned long number = strtoul(begin + 1, &end, 10);
        at = *end == MARK ? end + 1 : end;
        if (number == MARK_FACTS) part = 1;
        const char *text = number == MARK_HEAD   ? system_head
                           : number == MARK_TAIL ? system_tail
                           : number - MARK_MESSAGES < n_messages && number >= MARK_MESSAGES
                               ? messages[number - MARK_MESSAGES].content
                               : "";
        if (text[0] != '\0') status = append(model, &parts[part], text, false, false, err);
    }
    free(rendered);
    if (status == IS_OK && part == 0)
        status = is_fail(err, IS_EUNSUPPORTED,
                         "the model's chat template has no place for a system message and no message "
                         "was given to put it in front of");
    if (status != IS_OK) {
        free(parts[0].tokens);
        free(parts[1].tokens);
        return status;
    }
    *out = (is_prompt_parts){parts[0].tokens, parts[0].n, parts[1].tokens, parts[1].n};
    return IS_OK;
}
