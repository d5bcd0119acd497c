/*
 * What the files of the command line share.
 *
 * A command is one function in a file of its own.  It describes its options in a table, is_cli_parse reads them and
 * writes the help from the same table, is_cli_open opens the store with the models that the command needs.  What was
 * asked for goes to stdout, everything else (progress, notes, errors) to stderr.
 */
#ifndef IS_CLI_H
#define IS_CLI_H

#include <jansson.h>
#include <stdio.h>

#include "inferscale.h"

typedef enum is_cli_exit {
    IS_EXIT_OK = 0,
    IS_EXIT_FAILED = 1,
    IS_EXIT_USAGE = 2,
    IS_EXIT_NOT_FOUND = 3,
    IS_EXIT_INTERRUPTED = 130
} is_cli_exit;

#define IS_CLI_EXIT_CODES "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 130 interrupted (Ctrl-C).\n"

/* ------------------------------------------------------------ options.c: the command's line */

/* What all commands have in common. */
typedef struct is_cli {
    char command[32];  /* for messages, such as "bench ttft" */
    const char *store; /* NULL: the default, see open.c; so for both models */
    const char *model;
    const char *embedding_model;
    const char *recipe;
    const char *engine;                                    /* "llama" or "vllm"; NULL: llama */
    const char *upstreams, *upstream_model, *upstream_key; /* in place of model, with vllm and only then; or NULL */
    uint32_t context, slots, threads;                      /* 0: the library's default */
    uint64_t host_budget;                                  /* bytes; 0: the library's default */
    uint64_t device_chunks;                                /* bytes; 0: none */
    uint64_t device_vectors;                               /* bytes; 0: none */
    is_scope scope;
    bool json, quiet;
    char **args; /* what is no option */
    int n_args;
    int exit; /* of the program, when is_cli_parse returned false */
} is_cli;

typedef struct is_cli_list {
    const char **items; /* free() */
    size_t n;
} is_cli_list;

typedef enum is_cli_kind {                /* and what is_cli_option.target points to */
                           IS_CLI_FLAG,   /* bool */
                           IS_CLI_TEXT,   /* const char * */
                           IS_CLI_OBJECT, /* const char *, a JSON object */
                           IS_CLI_UINT,   /* uint32_t */
                           IS_CLI_ID,     /* int64_t, not negative */
                           IS_CLI_REAL,   /* float */
                           IS_CLI_BYTES,  /* uint64_t; K, M and G are powers of 1024 */
                           IS_CLI_TIME,   /* int64_t, Unix seconds */
                           IS_CLI_LIST    /* is_cli_list: the option may be repeated */
} is_cli_kind;

typedef struct is_cli_option {
    const char *name; /* long name, or NULL */
    char letter;      /* or 0 */
    is_cli_kind kind;
    void *target;      /* keeps what it holds when the option is not given */
    double min, max;   /* of UINT and REAL, both inclusive */
    const char *value; /* its name in the help */
    const char *help;
} is_cli_option;

typedef struct is_cli_spec {
    const char *synopsis; /* one line a form, without "inferscale": "add [options] TEXT..." */
    const char *about;
    const is_cli_option *options;
    size_t n_options;
    const char *examples; /* one a line, as they are typed */
} is_cli_spec;

/* false: the program ends with cli->exit; help or what is wrong has been printed.  cli points into argv. */
bool is_cli_parse(is_cli *cli, const is_cli_spec *spec, int argc, char **argv);
/* A whole number of 0 to INT64_MAX and nothing else. */
bool is_cli_read_id(const char *text, int64_t *out);

/* ------------------------------------------------------------ open.c: the store and its models */

#define IS_CLI_CREATE     1u /* the store may be new */
#define IS_CLI_EMBED      2u /* search needs the embedding model; when setup has not made one, words must do */
#define IS_CLI_CHAT       4u /* the chat model is needed */
#define IS_CLI_BACKGROUND 8u /* facts are encoded beside what else is done */

#define IS_CLI_UPSTREAM_KEY "INFERSCALE_UPSTREAM_KEY" /* the variable for what --upstream-key says */

/* Opens the store as the options say.  *out: is_close. */
is_status is_cli_open(const is_cli *cli, unsigned needs, is_memory **out, is_error *err);

/* What an option says, else a variable of the environment that is not empty; NULL: neither. */
const char *is_cli_given(const char *option, const char *variable);
/* Where things lie with these options.  free() */
char *is_cli_store_path(const is_cli *cli);
char *is_cli_model_path(const is_cli *cli);
char *is_cli_embedding_path(const is_cli *cli);
/* *out: this path of is_cli_embedding_path, or NULL where setup has not made one and words alone must do, which is
 * noted. IS_ENOTFOUND, IS_EIO: one was named and cannot be read. */
is_status is_cli_choose_embedding(const is_cli *cli, const char *path, const char **out, is_error *err);

/* ------------------------------------------------------------ output.c */

/* Prints what went wrong ({"error": ...} with --json) and returns the exit code that goes with it. */
int is_cli_fail(const is_cli *cli, const is_error *err);
int is_cli_usage(const is_cli *cli, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A remark on stderr; nothing with --quiet. */
void is_cli_note(const is_cli *cli, const char *format, ...) __attribute__((format(printf, 2, 3)));
_Noreturn void is_cli_no_memory(void);

/* Flushes stdout.  The exit code: `code`, or IS_EXIT_FAILED when not all could be written. */
int is_cli_end_output(int code);

char *is_cli_format(const char *text, ...) __attribute__((format(printf, 1, 2))); /* free() */

json_t *is_cli_json_number(double v);                         /* null for what is not finite */
double is_cli_number(const json_t *object, const char *name); /* of a member; 0 for what is none */
json_t *is_cli_json_text(const char *text);                   /* null for NULL; bytes that are not UTF-8 become '?' */
/* state: whether the list's states mean anything, that is, whether the store was opened with its chat model. */
json_t *is_cli_json_facts(const is_fact_list *list, bool state);
json_t *is_cli_json_answer(const is_answer *answer);              /* all but the facts */
void is_cli_set(json_t *object, const char *name, json_t *value); /* takes value */
void is_cli_append(json_t *array, json_t *value);                 /* takes value */
void is_cli_print_json(json_t *value);                            /* takes value */

/* One line a fact: score, id, date, text. */
void is_cli_print_facts(const is_fact_list *list);
/* Text from outside; control characters do not reach a terminal. */
void is_cli_put_text(const char *text, size_t n);

typedef struct is_cli_text {
    char s[48];
} is_cli_text;
is_cli_text is_cli_count(uint64_t n);                                  /* 12,345 */
is_cli_text is_cli_bytes(uint64_t n);                                  /* 43.9 MiB */
is_cli_text is_cli_duration(double ms);                                /* 84 ms, 3.41 s, 2 min 05 s */
void is_cli_scope_name(const is_scope *scope, char *out, size_t size); /* user "default" */

/* ------------------------------------------------------------ machine.c */

/* What this machine is: {"cpu": "...", "cores": 2, "memory_bytes": ..., "features": ["avx2", ...]}. */
json_t *is_cli_machine(void);

/* ------------------------------------------------------------ progress.c */

typedef struct is_cli_progress {
    const char *doing; /* "encoding" */
    const char *what;  /* "facts" */
    bool quiet, terminal;
    double begun, shown; /* is_now_ms */
    uint64_t done, total;
} is_cli_progress;

void is_cli_progress_begin(is_cli_progress *progress, const is_cli *cli, const char *doing, const char *what);
/* An is_progress_fn; progress is its user.  total 0: not known.  false after Ctrl-C. */
bool is_cli_progress_step(void *progress, uint64_t done, uint64_t total);
/* Takes the bar away. */
void is_cli_progress_end(is_cli_progress *progress);

/* is_encode_pending with a progress bar, and what it did as a note.  *encoded: facts, may be NULL. */
is_status is_cli_encode(const is_cli *cli, is_memory *memory, const is_scope *scope, uint64_t *encoded, is_error *err);

/* ------------------------------------------------------------ interrupt.c */

/* From now on the first Ctrl-C only sets a flag; the second one ends the process. */
void is_cli_catch_interrupts(void);
bool is_cli_interrupted(void);

/* ------------------------------------------------------------ batch.c: records on their way into the store */

typedef struct is_cli_batch is_cli_batch;

/* seen: facts that the scope has already, which are passed over; or NULL. */
is_cli_batch *is_cli_batch_new(const is_cli *cli, is_memory *memory, const is_fact_list *seen);
/* Callbacks for is_import_read, whose user is the batch. */
bool is_cli_batch_turn(void *batch, const is_scope *scope, const is_turn *turn);
bool is_cli_batch_fact(void *batch, const is_scope *scope, const is_fact *fact);
/* Adds what is left.  An error of an earlier batch is reported here too. */
is_status is_cli_batch_end(is_cli_batch *batch, is_error *err);
void is_cli_batch_counts(const is_cli_batch *batch, uint64_t *turns, uint64_t *facts); /* what was added */
void is_cli_batch_free(is_cli_batch *batch);

/* ------------------------------------------------------------ commands */

/* argv[0] is the command's name; the result is the program's exit code. */
int is_cmd_add(int argc, char **argv);
int is_cmd_import(int argc, char **argv);
int is_cmd_search(int argc, char **argv);
int is_cmd_ask(int argc, char **argv);
int is_cmd_list(int argc, char **argv);
int is_cmd_forget(int argc, char **argv);
int is_cmd_stats(int argc, char **argv);
int is_cmd_verify(int argc, char **argv);
int is_cmd_doctor(int argc, char **argv);
int is_cmd_demo(int argc, char **argv);
int is_cmd_bench(int argc, char **argv);
int is_cmd_serve(int argc, char **argv);
int is_cmd_key(int argc, char **argv);

#endif
