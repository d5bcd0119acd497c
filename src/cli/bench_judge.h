/* A language model that says whether an answer is right, behind any endpoint with OpenAI's interface. */
#ifndef IS_CLI_BENCH_JUDGE_H
#define IS_CLI_BENCH_JUDGE_H

#include "common/http.h"

typedef struct is_judge {
    const char *url;    /* http://HOST:PORT, what stands before /v1/chat/completions; NULL: no judge */
    const char *model;  /* its name there */
    const char *key;    /* API key; NULL: none */
    const char *prompt; /* file with {question}, {gold} and {answer} in it */
    char *text;         /* of that file */
    is_http *http;
} is_judge;

#define IS_JUDGE_PROMPT "bench/judge.txt"

/* Reads the prompt; nothing without a url.  is_judge_close in any case. */
is_status is_judge_open(is_judge *judge, is_error *err);
void is_judge_close(is_judge *judge);
/*
 * Asks for one verdict.  IS_EENGINE: the reply is none, or says neither CORRECT nor WRONG; IS_EUNAVAILABLE: nobody
 * answers.
 */
is_status is_judge_ask(is_judge *judge, const char *question, const char *gold, const char *answer, bool *correct,
                       is_error *err);

#endif
