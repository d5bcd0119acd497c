/*
 * What is used of llama.cpp's C++ library "common", behind a plain C interface: chat templates with tools, JSON schemas
 * as grammars, and the calls into grammar samplers, which may throw.  No exception leaves these functions.
 *
 * They may be called from any thread.
 */
#ifndef IS_CHAT_SHIM_H
#define IS_CHAT_SHIM_H

#include "inferscale.h"

#ifdef __cplusplus
extern "C" {
#endif

struct llama_model;
struct llama_sampler;
struct llama_token_data_array;
struct llama_vocab;

/* The chat templates of a model file, as they are written there (Jinja). */
typedef struct is_chat is_chat;

/* IS_EUNSUPPORTED: the model has no template, or one that cannot be read. */
is_status is_chat_open(const struct llama_model *model, is_chat **out, is_error *err);
/* The same for a template's text, without a model. */
is_status is_chat_open_text(const char *text, const char *bos, const char *eos, is_chat **out, is_error *err);
void is_chat_close(is_chat *chat);
bool is_chat_has_tools(const is_chat *chat);

typedef struct is_chat_message {
    const char *role;
    const char *content;
    const char *tool_calls;   /* JSON array; NULL: none */
    const char *tool_call_id; /* NULL: none */
    const char *tool_name;    /* of the function that a tool's message answers for; NULL: none */
} is_chat_message;

/* The prompt up to the assistant's opening.  *prompt: free(). */
is_status is_chat_render(const is_chat *chat, const is_chat_message *messages, size_t n, char **prompt, is_error *err);

/*
 * The same with tools.  *format, a JSON object, says how calls are
 * written and read: "grammar" (GBNF), "lazy" with "patterns" and "tokens" (the grammar holds from the first of them
 * on), "preserved" (control tokens that are part of the text), "stops", "opening" (of the prompt's end, what the
 * grammar begins with), "one_call", and what is_chat_parse needs.  *prompt, *format: free().
 */
typedef struct is_chat_tools {
    const char *functions;   /* JSON array as in OpenAI's API */
    const char *choice;      /* "auto", "none" or "required" */
    const char *json_schema; /* of an answer without calls; NULL: free */
    bool one_call;
} is_chat_tools;
is_status is_chat_render_tools(const is_chat *chat, const is_chat_message *messages, size_t n,
                               const is_chat_tools *tools, char **prompt, char **format, is_error *err);

/*
 * An answer in this format: *content, and *calls, a JSON array or NULL without calls; free() both.  cut: the answer is
 * not complete.  IS_EENGINE: it is not in this format.
 */
is_status is_chat_parse(const char *format, const char *text, bool cut, char **content, char **calls, is_error *err);

/* A JSON schema as GBNF; *gbnf: free(). */
is_status is_schema_grammar(const char *schema, char **gbnf, is_error *err);

/* Bans the tokens that the grammar does not take next. */
is_status is_grammar_apply(struct llama_sampler *grammar, struct llama_token_data_array *candidates, is_error *err);
/* Whether the grammar takes this token next. */
bool is_grammar_allows(struct llama_sampler *grammar, int32_t token);
/* Whether it is complete: it allows the token `end`, and `letter` not, as a lazy one does that has not begun. */
bool is_grammar_complete(struct llama_sampler *grammar, int32_t end, int32_t letter);
/* Takes the token; IS_EENGINE: it does not fit, and the grammar cannot be used any more. */
is_status is_grammar_accept(struct llama_sampler *grammar, int32_t token, is_error *err);
/* llama_sampler_init_grammar and, with patterns or tokens, its lazy form; NULL: the grammar is wrong. */
struct llama_sampler *is_grammar_open(const struct llama_vocab *vocab, const char *gbnf, const char **patterns,
                                      size_t n_patterns, const int32_t *tokens, size_t n_tokens);

#ifdef __cplusplus
}
#endif
#endif
