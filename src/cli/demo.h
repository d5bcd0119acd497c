/* The demo's two halves: cmd_demo.c asks, demo_report.c shows. */
#ifndef IS_DEMO_H
#define IS_DEMO_H

#include "cli.h"

#define IS_DEMO_QUESTIONS  3
#define IS_DEMO_K          50
#define IS_DEMO_MAX_TOKENS 24

typedef struct is_demo_question {
    const char *question;
    const char *expected;        /* as the sample has it, or NULL */
    is_answer *prefill, *inject; /* is_answer_free */
} is_demo_question;

typedef struct is_demo {
    const is_cli *cli;
    char url[96];                          /* of the server's chat completions */
    char *store, *model, *embedding_model; /* paths; free() */
    json_t *machine;
    json_t *system;    /* is_describe */
    json_t *questions; /* questions.json, which owns the texts below */
    uint64_t facts;    /* in the store */
    uint64_t imported; /* by this run */
    uint64_t encoded;
    double encode_ms, total_ms;
    is_demo_question asked[IS_DEMO_QUESTIONS];
    size_t n_asked;
} is_demo;

/* How much sooner the injected run had its first token. */
double is_demo_speedup(const is_demo_question *question);
double is_demo_median_speedup(const is_demo *demo);

/* For people, on stdout: one question, and the end of it all. */
void is_demo_print_question(const is_demo_question *question, size_t number);
void is_demo_print_end(const is_demo *demo);
/* All of it, for programs. */
json_t *is_demo_json(const is_demo *demo);

#endif
