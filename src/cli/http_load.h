/*
 * A load of streamed answers over HTTP, as clients on a network make it: many users at once, each of whom asks the next
 * thing when the last one is answered.  One thread (libcurl's multi interface) and no lock that a server could share.
 *
 * It reads two kinds of streams: OpenAI's chat chunks with InferScale's timing in the last one, and what llama.cpp's
 * server sends for /completion.
 */
#ifndef IS_CLI_HTTP_LOAD_H
#define IS_CLI_HTTP_LOAD_H

#include "common/common.h"

typedef struct is_load_answer {
    bool ok;         /* came whole, with its counts */
    double ttft_ms;  /* from the first try to the first piece of text; a try that got 429 and its wait are in it */
    double total_ms; /* to the end of the reply */
    uint32_t tokens, prompt_tokens;
    uint32_t prefilled; /* tokens of the prompt that were neither injected nor cached */
    /* What the server says about its own time; none of it is waiting for a turn. */
    double search_ms, inject_ms, prefill_ms, decode_ms;
    double server_ttft_ms; /* InferScale: search, waiting in the engine, injection, prefill */
} is_load_answer;

typedef struct is_load {
    const char *url;
    const char *const *bodies; /* JSON, [n_users][per_user] */
    size_t n_users, per_user;
    /* Called between steps, some ten times a second or more; false ends the load with IS_ECANCELED. */
    bool (*go_on)(void *user, size_t answered);
    void *user;
} is_load;

typedef struct is_load_result {
    is_load_answer *answers; /* [n]: as the bodies */
    size_t n;
    double wall_ms;
    double *gaps; /* ms between two pieces of one answer, [n_gaps] */
    size_t n_gaps, room_for_gaps;
    uint32_t errors;       /* requests without a whole answer */
    uint32_t retries;      /* tries that got 429 and were made again after Retry-After */
    char first_error[256]; /* what the first of the errors was */
} is_load_result;

/* Errors of single requests are counted; the load fails only when it cannot go on.  out: is_load_result_free. */
is_status is_load_run(const is_load *load, is_load_result *out, is_error *err);
void is_load_result_free(is_load_result *result);

/* The body of a GET, free(); NULL unless the answer is 200. */
char *is_http_get(const char *url, uint32_t timeout_ms);

#endif
