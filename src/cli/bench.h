/*
 * What the benchmarks share: a folder of their own with stores and notes, data, questions, medians.
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
    char *id;   /* "conv-26#0": scope and place in the file */
    char *user; /* the scope whose facts it is about */
    char *question;
    char *answer;           /* NULL: an adversarial one, which has none */
    int category;           /* LoCoMo's, 1 to 5; 0: none */
    const json_t *evidence; /* turns that the answer stands in, as the file has them; NULL: not told */
} is_bench_question;

typedef struct is_bench {
    is_cli cli;
    const char *data; /* what --data says, or NULL: the bundled sample */
    const char *questions_file;
    const char *work; /* --work: the folder stays, and a run that was cut short goes on there; NULL: a temporary one */
    uint32_t repeat;
    uint64_t salt;        /* of the last run whose memory stays in the engine */
    uint32_t n_questions; /* at most so many are used */
    bool adversarial;     /* questions without an answer, and only those */
    bool undated;         /* facts lose their times, and so the date in front of their lines */
    is_cli_list ks, recipes, fresh;
    char *folder;       /* of stores, notes and references */
    char *store;        /* the open store's */
    const char *recipe; /* of the open store; NULL: the default */
    is_memory *memory;
    json_t *file; /* questions_file or data, parsed */
    is_bench_question *questions;
    size_t n;
    json_t *journal; /* what was noted, by key */
    FILE *journal_file;
} is_bench;

/* Parses the options that all benchmarks have, and `own` ones; false: end with bench->cli.exit. */
bool is_bench_parse(is_bench *bench, const char *name, const char *about, const char *examples,
                    const is_cli_option *own, size_t n_own, int argc, char **argv);
/* One of them: keeping the folder. */
#define IS_BENCH_WORK(bench)                                                                                           \
    {                                                                                                                  \
        "work", 0, IS_CLI_TEXT, &(bench)->work, 0, 0, "FOLDER",                                                        \
            "where stores and results stay, so that a run that was cut short goes on (default: a temporary one)"       \
    }
#define IS_BENCH_UNDATED(bench)                                                                                        \
    {                                                                                                                  \
        "without-dates", 0, IS_CLI_FLAG, &(bench)->undated, 0, 0, NULL,                                                \
            "facts without the dates in front of their lines"                                                          \
    }
/* Closes all; prints the result (taken over) with --json, or what went wrong.  The exit code. */
int is_bench_end(is_bench *bench, json_t *result, is_status status, const is_error *err);

/* ------------------------------------------------------------ bench_questions.c */

/* Reads the questions of the data; at most n_questions, spread evenly over the file. */
is_status is_bench_questions(is_bench *bench, is_error *err);
void is_bench_free_questions(is_bench *bench);

/* The turns that a question's answer stands in, and which of them a list of facts, best first, was drawn from. */
typedef struct is_bench_evidence {
    uint32_t n, found; /* turns; of them, those that a fact was drawn from */
    uint32_t best;     /* place of the first such fact, from 1; 0: none */
} is_bench_evidence;
is_bench_evidence is_bench_find_evidence(const is_bench *bench, const is_bench_question *question,
                                         const is_fact_list *facts);

/* ------------------------------------------------------------ bench_work.c */

/* Makes or takes up the folder.  IS_EINVAL: it was begun with other data; IS_EIO: another run has it. */
is_status is_bench_begin(is_bench *bench, is_error *err);
void is_bench_close(is_bench *bench);
/* The key of one measurement: what it is of, the open engine, the prompt's form, how it was made, and the rest. free()
 */
char *is_bench_key(const is_bench *bench, const char *what, const char *way, const char *format_of_rest, ...)
    __attribute__((format(printf, 4, 5)));
/* What was noted under this key, now or by a run before; NULL: nothing. */
const json_t *is_bench_noted(const is_bench *bench, const char *key);
/* Notes a result (taken over); with --work it is on disk when this returns. */
is_status is_bench_note(is_bench *bench, const char *key, json_t *value, is_error *err);

/* Opens the folder's store of this recipe (NULL: the default), new or as an earlier run left it; closes the one before.
 */
is_status is_bench_open(is_bench *bench, const char *recipe, bool background, is_error *err);
/* Closes the store and opens it again as it is: a start with everything encoded. */
is_status is_bench_reopen(is_bench *bench, bool background, is_error *err);
/* Imports the data into the open store, if it was not yet; in a temporary folder only scopes that a question is about.
 */
is_status is_bench_import(is_bench *bench, is_error *err);

/* The logits of a full prefill of the plan, as is_score; computed once a folder. */
is_status is_bench_reference(is_bench *bench, const is_plan *plan, uint32_t n_last, float *logits, is_error *err);

/* ------------------------------------------------------------ comparing */

/* Sums over scored tokens. */
typedef struct is_bench_sums {
    double kl, top1, nll_full, nll_inject;
    uint64_t tokens;
} is_bench_sums;

/*
 * Adds the tokens of one answer: KL(full || injected) in nats, equal most likely tokens, and the answer's negative
 * log-likelihood under both.  full, injected: logits [n][n_vocab].
 */
void is_bench_compare(const float *full, const float *injected, size_t n_vocab, const int32_t *answer, size_t n,
                      is_bench_sums *out);

/* false: usage error was printed, since this benchmark needs the embedded engine and another was named. */
bool is_bench_embedded(is_bench *bench);
/* Before long work that cannot go by words alone.  IS_ENOTFOUND: there is no embedding model. */
is_status is_bench_need_embedding(const is_bench *bench, is_error *err);

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
int is_bench_answers(int argc, char **argv);
int is_bench_recall(int argc, char **argv);
int is_bench_locomo(int argc, char **argv);

#endif
