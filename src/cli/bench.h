/*
 * What the benchmarks share: a store of their own, data, questions, medians.
 *
 * Every figure that is compared is measured in the same run on the same machine, turn by turn, and stated as a
 * ratio too.  Benchmarks look inside the system (plans, the engine), which no other command does.
 */
#ifndef IS_CLI_BENCH_H
#define IS_CLI_BENCH_H

#include "cli.h"
#include "memory/memory.h"

#define IS_BENCH_SAMPLE "data/sample/conversation.jsonl"

typedef struct is_bench_question {
    char *user; /* the scope whose facts it is about */
    char *question;
    char *answer;
} is_bench_question;

typedef struct is_bench {
    is_cli cli;
    const char *data; /* what --data says, or NULL: the bundled sample */
    const char *questions_file;
    uint32_t repeat;
    uint64_t salt;        /* of the last run whose memory stays in the engine */
    uint32_t n_questions; /* at most so many are used */
    is_cli_list ks, recipes, fresh;
    char *folder; /* the temporary store */
    is_memory *memory;
    is_bench_question *questions;
    size_t n;
} is_bench;

/* Parses the options that all benchmarks have; false: end with bench->cli.exit. */
bool is_bench_parse(is_bench *bench, const char *name, const char *about, const char *examples, int argc, char **argv);
/* Reads the questions of the data; at most n_questions, spread evenly over the file. */
is_status is_bench_questions(is_bench *bench, is_error *err);
/* Opens a new temporary store with the recipe (NULL: the default); closes the one before. */
is_status is_bench_open(is_bench *bench, const char *recipe, bool background, is_error *err);
/* Closes the store and opens it again as it is: a start with everything encoded. */
is_status is_bench_reopen(is_bench *bench, bool background, is_error *err);
/* Imports the data into the open store; only scopes that a question is about. */
is_status is_bench_import(is_bench *bench, is_error *err);
/* Closes all; prints the result (taken over) with --json, or what went wrong.  The exit code. */
int is_bench_end(is_bench *bench, json_t *result, is_status status, const is_error *err);

/* Sums over scored tokens. */
typedef struct is_bench_sums {
    double kl, top1, nll_full, nll_inject, mean_kl_of_questions;
    uint64_t tokens, questions;
} is_bench_sums;

/*
 * Adds the tokens of one answer: KL(full || injected) in nats, equal most likely tokens, and the answer's negative
 * log-likelihood under both.  full, injected: logits [n][n_vocab].
 */
void is_bench_compare(const float *full, const float *injected, size_t n_vocab, const int32_t *answer, size_t n,
                      is_bench_sums *out);

double is_median(double *values, size_t n);               /* sorts them; NAN for none */
double is_percentile(double *values, size_t n, double p); /* 0..1; sorts them */
/* A whole number of each of the list's items, or the defaults. false: usage error was printed. */
bool is_bench_numbers(const is_bench *bench, const is_cli_list *list, const char *defaults, uint32_t *out, size_t *n,
                      size_t most, uint32_t max);
/* The machine, versions, model and recipe: what stands in every result. */
json_t *is_bench_context(const is_bench *bench);

int is_bench_ttft(int argc, char **argv);
int is_bench_encode(int argc, char **argv);
int is_bench_retrieve(int argc, char **argv);
int is_bench_fidelity(int argc, char **argv);
int is_bench_throughput(int argc, char **argv);
int is_bench_chat(int argc, char **argv);

#endif
