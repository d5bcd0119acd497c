/* One request that generates text: what it asked for, and what has come of it. */
#ifndef IS_SERVER_GENERATE_H
#define IS_SERVER_GENERATE_H

#include "internal.h"

#define IS_MAX_STOP    16
#define IS_MAX_BIAS    1024
#define IS_MAX_CHOICES 8
#define IS_NO_LIMIT    ((uint32_t)1 << 24) /* the context ends it */

typedef struct is_generation {
    is_request *request;
    is_scope scope;
    is_ask_options options;
    is_filter filter;
    char *metadata, *json_schema, *tools; /* free() */
    char *system;                         /* free() */
    const char *stop[IS_MAX_STOP];
    is_logit_bias bias[IS_MAX_BIAS];
    uint32_t n; /* choices */
    bool stream, include_usage, begun;
    uint32_t index; /* of the choice in hand */
    char id[48];
    int64_t created;
    json_t *logprobs; /* of tokens whose text has not been sent */
    double last_token_ms;
    uint32_t prompt_tokens, cached_tokens, completion_tokens;
} is_generation;

/* Everything of sampling, streaming, stop and n; false when it has answered 400. */
bool is_read_sampling(is_request *r, const json_t *o, is_generation *g);
void is_on_logprob(void *user, const is_token_logprob *tokens, size_t n);
/* {"content": [...]} of what was collected, or null. */
json_t *is_take_logprobs(is_generation *g);
bool is_generation_canceled(void *user);
/* Says so when it was: to a client that is still there, since the server stops. */
void is_generation_cut(is_generation *g);
/* A token came: for the time between tokens. */
void is_note_token(is_generation *g);
void is_count_answer(is_generation *g, const is_answer *answer);
json_t *is_usage_json(const is_generation *g);
/* The reply's "inferscale". */
json_t *is_memory_json(const is_generation *g, const is_answer *a);
/* A new id, such as "chatcmpl-...", and the time. */
void is_generation_name(is_generation *g, const char *prefix);

#endif
