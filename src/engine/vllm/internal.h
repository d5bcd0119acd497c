/*
 * What the files of the remote engine share.
 *
 *   engine.c     opening, closing, the table of operations
 *   upstream.c   the servers: what they say of themselves, which are up, which one gets a request
 *   text.c       tokens and templates, through /tokenize
 *   run.c        a plan, through /v1/chat/completions
 *   stream.c     what comes back, event by event
 *   encode.c     chunks, through /v1/completions
 */
#ifndef IS_VLLM_INTERNAL_H
#define IS_VLLM_INTERNAL_H

#include <jansson.h>
#include <pthread.h>

#include "../../common/http.h"
#include "vllm_engine.h"

#define IS_VLLM_UPSTREAMS 64
#define IS_VLLM_TEMPLATES 64
#define IS_VLLM_ASK_MS    30000 /* for a reply that nothing is generated for */

typedef struct is_upstream {
    char *url;
    uint64_t hash;      /* of url */
    uint32_t in_flight; /* under is_vllm.lock, like all below */
    bool up;
    is_status status; /* when it was last asked what it serves */
    char why[256];    /* it is not up, or what it last failed with */
    double next_ms;
    double wait_ms; /* until the next look, when it is down */
} is_upstream;

typedef struct is_control {
    char *text;
    size_t n;
    int32_t id;
} is_control;

/* A template as it was rendered: the tokens around the marks. */
typedef struct is_template {
    char *request; /* what was asked */
    int32_t *tokens;
    size_t n;
    uint64_t used;
} is_template;

typedef struct is_vllm {
    is_engine base;
    is_http *http;
    char *key;
    is_log_fn log;
    void *log_user;

    /* What the first upstream said; it does not change. */
    char *model;
    uint8_t fingerprint[16]; /* with the number of ranks in it */
    uint8_t identity[16];    /* of all that must be the same everywhere */
    uint32_t context, ranks, block;
    char why_not[256];
    is_control *controls; /* [n_controls], the longest first */
    size_t n_controls;
    const is_control *mark_system, *mark_text; /* control tokens that stand where a text goes */

    pthread_mutex_t lock;
    pthread_cond_t wake;
    is_upstream upstreams[IS_VLLM_UPSTREAMS];
    uint32_t n_upstreams;
    pthread_t keeper;
    bool keeper_started, closing;

    pthread_mutex_t template_lock;
    is_template templates[IS_VLLM_TEMPLATES];
    uint64_t template_clock;
} is_vllm;

/* ------------------------------------------------------------ upstream.c */

is_status is_upstreams_open(is_vllm *engine, const char *urls, const char *model, is_error *err);
/* Ends the thread that looks after them. */
void is_upstreams_close(is_vllm *engine);
json_t *is_upstreams_describe(is_vllm *engine);

/* One request, wherever it may go. */
typedef struct is_ask_upstream {
    const char *path;
    const char *body; /* NULL: GET */
    uint64_t scope;   /* goes where its others went; 0: to whoever has least to do */
    uint32_t timeout_ms;
    bool (*on_bytes)(void *user, const char *bytes, size_t n); /* see is_http_call */
    bool (*canceled)(void *user);
    bool (*begun)(void *user); /* something has been made of the reply, so it cannot be asked elsewhere; may be NULL */
    void *user;
    char *text; /* out: the reply, where there is no on_bytes; free() */
} is_ask_upstream;

/*
 * Asks one upstream after another until one answers.  IS_EUNAVAILABLE: none does, and the error says of each why.
 * IS_EINVAL: it finds fault with the request; the error has its words.  Others as is_http_run.
 */
is_status is_upstream_ask(is_vllm *engine, is_ask_upstream *ask, is_error *err);
/* The same with the reply as JSON; json_decref. */
is_status is_upstream_json(is_vllm *engine, is_ask_upstream *ask, json_t **reply, is_error *err);

/* ------------------------------------------------------------ text.c */

is_status is_vllm_tokenize(is_vllm *engine, const char *text, bool special, int32_t **tokens, size_t *n, is_error *err);
is_status is_vllm_tokenize_prompt(is_vllm *engine, const char *text, int32_t **tokens, size_t *n, is_error *err);
is_status is_vllm_render(is_vllm *engine, const char *head, const char *tail, const is_message *messages, size_t n,
                         const is_tools *tools, is_prompt_parts *out, is_error *err);
void is_vllm_templates_free(is_vllm *engine);

/* ------------------------------------------------------------ run.c, stream.c, encode.c */

is_status is_vllm_run(is_vllm *engine, const is_run *run, is_run_result *out, is_error *err);
is_status is_vllm_encode(is_vllm *engine, is_encode_job *job, is_error *err);

/* [1, 2, 3], appended to an array. */
void is_json_tokens(json_t *array, const int32_t *tokens, size_t n);

/* An answer while it comes. */
typedef struct is_vllm_stream {
    const is_run *run;
    char *line; /* [n_line] of an event that is not whole */
    size_t n_line;
    char *text, *reasoning; /* what came so far; free() */
    size_t n_text, n_reasoning;
    json_t *calls;
    const char *finish;
    bool done, canceled, failed;
    bool has_details; /* the usage says what came from the cache */
    is_error err;     /* when it failed */
    double begin_ms, first_ms;
    uint32_t prompt_tokens, cached_tokens, generated;
} is_vllm_stream;

void is_vllm_stream_open(is_vllm_stream *stream, const is_run *run);
/* More of the reply's body; false ends the call. */
bool is_vllm_stream_take(is_vllm_stream *stream, const char *bytes, size_t n);
void is_vllm_stream_close(is_vllm_stream *stream);

#endif
