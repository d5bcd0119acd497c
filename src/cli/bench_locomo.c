/*
 * inferscale bench locomo: the whole evaluation, step by step, each a benchmark of its own that is run as a process of
 * its own, and one report of all of them.
 *
 *   OUT/steps/NAME.json   what a step measured, with the command that did; a step that is there by the same command is
 *                         not run again
 *   OUT/work/             stores and single results, so that a step that was cut short goes on where it was
 *   OUT/report.json, report.html, NAME.csv
 */
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"
#include "bench_report.h"
#include "line.h"

#define MAX_RECIPES 24 /* in place of a step's own */

typedef struct step {
    const char *name;
    const char *words; /* of `inferscale bench`, with blanks between them */
    bool has_work;     /* takes --work */
    bool locomo;       /* only where the data says which turns answers stand in */
} step;

#define RECIPE(name) " --with-recipe " name
#define PAPERS       RECIPE("isolated") RECIPE("window:5") RECIPE("window:20") RECIPE("window:50") /* w = 0, 5, 20 and 50 */
#define OURS         RECIPE(IS_RECIPE_DEFAULT)

/* In minutes, to see that all of it works and about where it stands. */
static const step brief[] = {
    {"ttft", "ttft -k 5 -k 10 -k 20 -k 50 --limit 2 --repeat 1 --history", true, false},
    {"throughput", "throughput -u 10 -u 25 --facts 55 --limit-prefill 2 --slots 8", false, false},
    {"recall", "recall", true, true},
    {"fidelity", "fidelity --limit 12 --fresh 0 --fresh 5" RECIPE("isolated") RECIPE("primed:8") OURS, true, false},
    {"answers", "answers --limit 20" RECIPE("isolated") OURS, true, false},
    {"encode", "encode --repeat 1" RECIPE("isolated") OURS, false, false},
};

/* In hours, what docs/evaluation.md stands on. */
static const step full[] = {
    {"ttft", "ttft -k 5 -k 10 -k 20 -k 50 --limit 10 --repeat 3 --history", true, false},
    {"throughput", "throughput", false, false},
    {"recall", "recall", true, true},
    {"fidelity",
     "fidelity --limit 100 --fresh 0 --fresh 5" PAPERS RECIPE("primed:0") RECIPE("primed:8") RECIPE("primed:16")
         RECIPE("primed:8+window:5") RECIPE("primed:32+chain:16") RECIPE("primed:32+near:4") OURS,
     true, false},
    {"fidelity, 10 facts", "fidelity --limit 100 -k 10" RECIPE("isolated") OURS, true, false},
    {"fidelity, 20 facts", "fidelity --limit 100 -k 20" RECIPE("isolated") OURS, true, false},
    {"fidelity, best first", "fidelity --limit 100 --order best-first" OURS, true, false},
    {"fidelity, by age", "fidelity --limit 100 --order age" OURS, true, false},
    {"fidelity, no dates", "fidelity --limit 100 --without-dates" OURS, true, false},
    {"answers", "answers --limit 1540 --without --fresh 0 --fresh 5" PAPERS RECIPE("primed:8") OURS, true, false},
    {"adversarial", "answers --limit 446 --adversarial" RECIPE("isolated") OURS, true, true},
    {"encode", "encode" RECIPE("isolated") RECIPE("window:5") RECIPE("primed:8") OURS, false, false},
};

typedef struct locomo {
    is_bench b;
    const char *out;
    const char *judge[3]; /* URL, model, prompt */
    const char *peer;
    bool full;
} locomo;

/* Whether the step compares recipes, so that --with-recipe says which. */
static bool compares(const step *s)
{
    const char *first = strstr(s->words, RECIPE(""));
    return first != NULL && strstr(first + 1, RECIPE("")) != NULL;
}

/* A step's words, with fewer questions or other recipes where the command says so. */
static void add_step(const locomo *l, const step *s, is_line *w)
{
    const is_bench *b = &l->b;
    bool other = b->recipes.n > 0 && compares(s), recipe = false;
    for (const char *at = s->words; *at != '\0';) {
        size_t length = strcspn(at, " ");
        char word[256];
        (void)snprintf(word, sizeof word, "%.*s", (int)length, at);
        at += length + strspn(at + length, " ");
        bool value = recipe;
        recipe = !value && strcmp(word, "--with-recipe") == 0;
        if (other && (recipe || value)) continue;
        if (b->n_questions > 0 && strcmp(w->list[w->n - 1], "--limit") == 0 && strtoul(word, NULL, 10) > b->n_questions)
            (void)snprintf(word, sizeof word, "%u", b->n_questions);
        is_line_add(w, word);
    }
    for (size_t i = 0; other && i < b->recipes.n; i++) is_line_option(w, "--with-recipe", b->recipes.items[i]);
}

/* The models of the environment too, or another model's figures would pass for a step's. */
static void make_words(const locomo *l, const step *s, is_line *w)
{
    char program[4096], work[4096];
    const is_cli *cli = &l->b.cli;
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    program[n > 0 ? n : 0] = '\0';
    is_line_add(w, program);
    is_line_add(w, "bench");
    add_step(l, s, w);
    (void)snprintf(work, sizeof work, "%s/work", l->out);
    is_line_option(w, "--work", s->has_work ? work : NULL);
    is_line_option(w, "--data", l->b.data);
    is_line_option(w, "--questions", l->b.questions_file);
    is_line_option(w, "--model", is_cli_given(cli->model, "INFERSCALE_MODEL"));
    is_line_option(w, "--embedding-model", is_cli_given(cli->embedding_model, "INFERSCALE_EMBEDDING_MODEL"));
    is_line_number(w, "--threads", cli->threads);
    is_line_number(w, "--context", cli->context);
    is_line_number(w, "--memory", cli->host_budget);
    is_line_number(w, "--device-chunks", cli->device_chunks);
    is_line_number(w, "--device-vectors", cli->device_vectors);
    if (strncmp(s->name, "answers", 7) == 0) {
        is_line_option(w, "--judge", l->judge[0]);
        is_line_option(w, "--judge-model", l->judge[1]);
        is_line_option(w, "--judge-prompt", l->judge[2]);
    }
    if (strcmp(s->name, "throughput") == 0) is_line_option(w, "--peer", l->peer);
    if (cli->quiet) is_line_add(w, "--quiet");
    is_line_add(w, "--json");
}

static json_t *command_text(const is_line *w)
{
    char *text = NULL;
    size_t size = 0;
    FILE *to = open_memstream(&text, &size);
    if (to == NULL) is_cli_no_memory();
    (void)fputs("inferscale", to);
    for (size_t i = 1; i < w->n; i++) {
        const char *word = w->list[i];
        if (strcmp(word, "--work") == 0 || strcmp(w->list[i - 1], "--work") == 0) continue;
        if (strcmp(word, "--json") == 0 || strcmp(word, "--quiet") == 0) continue;
        is_line_show(to, word);
    }
    if (fclose(to) != 0) is_cli_no_memory();
    json_t *out = is_cli_json_text(text);
    free(text);
    return out;
}

/* Runs the words with stdout into this file; *code: the exit code. */
static is_status run_process(const is_line *w, const char *file, int *code, is_error *err)
{
    posix_spawn_file_actions_t actions;
    pid_t pid;
    int state;
    if (posix_spawn_file_actions_init(&actions) != 0 ||
        posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, file, O_WRONLY | O_CREAT | O_TRUNC, 0666) != 0)
        is_cli_no_memory();
    int failed = posix_spawn(&pid, w->list[0], &actions, NULL, w->list, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed != 0) return is_fail(err, IS_EIO, "cannot run %s: %s", w->list[0], strerror(failed));
    while (waitpid(pid, &state, 0) < 0) /* Ctrl-C reaches the step too, which ends by it */
        if (errno != EINTR) return is_fail(err, IS_EIO, "lost sight of a step: %s", strerror(errno));
    *code = WIFEXITED(state) ? WEXITSTATUS(state) : IS_EXIT_FAILED;
    return IS_OK;
}

/* Why a step failed, as it said itself. */
static is_status failure(const step *s, int code, const char *file, is_error *err)
{
    json_t *said = json_load_file(file, 0, NULL);
    const char *text = json_string_value(json_object_get(json_object_get(said, "error"), "text"));
    is_status status = code == IS_EXIT_INTERRUPTED
                           ? is_fail(err, IS_ECANCELED, "interrupted; the same command goes on from here")
                           : is_fail(err, IS_EENGINE, "step %s failed: %.900s", s->name,
                                     text != NULL ? text : "see above; the same command goes on from here");
    json_decref(said);
    return status;
}

/* Whether this file is what the command measured, not another one of the same name: with fewer questions, say. */
static bool measured_by(const char *file, const json_t *command)
{
    json_t *kept = json_load_file(file, 0, NULL);
    bool is = json_equal(json_object_get(kept, "command"), command);
    json_decref(kept);
    return is;
}

/* Puts what the step printed into `part`, and that into the step's file. */
static is_status keep_result(const step *s, const char *part, const char *file, json_t *command, double seconds,
                             is_error *err)
{
    json_t *result = json_load_file(part, 0, NULL);
    json_t *o = json_object();
    is_cli_set(o, "name", json_string(s->name));
    is_cli_set(o, "command", json_incref(command));
    is_cli_set(o, "seconds", json_real(seconds));
    is_cli_set(o, "result", result != NULL ? result : json_null());
    bool kept = result != NULL && json_dump_file(o, part, JSON_INDENT(1)) == 0 && rename(part, file) == 0;
    json_decref(o);
    return kept ? IS_OK : is_fail(err, IS_EIO, "cannot keep the result of step %s in %s", s->name, file);
}

static is_status run_step(const locomo *l, const step *s, is_error *err)
{
    char file[4096], part[4096];
    is_line w = {0};
    is_status status = IS_OK;
    (void)snprintf(file, sizeof file, "%s/steps/%s.json", l->out, s->name);
    (void)snprintf(part, sizeof part, "%s/steps/%s.part", l->out, s->name);
    make_words(l, s, &w);
    json_t *command = command_text(&w);
    if (!measured_by(file, command)) {
        int code = IS_EXIT_FAILED;
        double begin = is_now_ms();
        status = run_process(&w, part, &code, err);
        if (status == IS_OK && code != IS_EXIT_OK) status = failure(s, code, part, err);
        if (status == IS_OK) status = keep_result(s, part, file, command, (is_now_ms() - begin) / 1e3, err);
    }
    json_decref(command);
    is_line_free(&w);
    return status;
}

static bool make_folder(const char *path)
{
    return mkdir(path, 0777) == 0 || errno == EEXIST;
}

static is_status make_folders(const locomo *l, is_error *err)
{
    char steps[4096];
    (void)snprintf(steps, sizeof steps, "%s/steps", l->out);
    if (make_folder(l->out) && make_folder(steps)) return IS_OK;
    return is_fail(err, IS_EIO, "cannot make %s: %s; name another with --out", steps, strerror(errno));
}

static is_status run_steps(locomo *l, const step *steps, size_t n, is_error *err)
{
    is_status status = is_bench_questions(&l->b, err);
    if (status == IS_OK) status = make_folders(l, err);
    bool evidence = l->b.n > 0 && l->b.questions[0].evidence != NULL;
    for (size_t i = 0; status == IS_OK && i < n; i++) {
        if (steps[i].locomo && !evidence) continue;
        is_cli_note(&l->b.cli, "step %zu of %zu: %s", i + 1, n, steps[i].name);
        status = run_step(l, &steps[i], err);
        if (status == IS_OK && is_cli_interrupted())
            status = is_fail(err, IS_ECANCELED, "interrupted; the same command goes on from here");
    }
    return status;
}

int is_bench_locomo(int argc, char **argv)
{
    locomo l = {.out = "build/evaluation", .peer = getenv("INFERSCALE_PEER")};
    is_bench *b = &l.b;
    is_error err = {0};
    const is_cli_option options[] = {
        {"data", 0, IS_CLI_TEXT, &b->data, 0, 0, "FILE", "LoCoMo's file, or JSON Lines; default " IS_BENCH_SAMPLE},
        {"questions", 0, IS_CLI_TEXT, &b->questions_file, 0, 0, "FILE", "questions; default: in or beside the data"},
        {"out", 0, IS_CLI_TEXT, &l.out, 0, 0, "FOLDER", "for results and report (default: build/evaluation)"},
        {"full", 0, IS_CLI_FLAG, &l.full, 0, 0, NULL, "more questions and recipes, in hours rather than minutes"},
        {"limit", 0, IS_CLI_UINT, &b->n_questions, 1, 100000, "N",
         "questions that a step asks the model, at most; spread over the file"},
        {"with-recipe", 0, IS_CLI_LIST, &b->recipes, 0, 0, "RECIPE",
         "in place of those that steps compare, some of which cost hours; may be repeated"},
        {"peer", 0, IS_CLI_TEXT, &l.peer, 0, 0, "PROGRAM", "llama-server, see `inferscale bench throughput --help`"},
        {"judge", 0, IS_CLI_TEXT, &l.judge[0], 0, 0, "URL", "see `inferscale bench answers --help`"},
        {"judge-model", 0, IS_CLI_TEXT, &l.judge[1], 0, 0, "NAME", "the same"},
        {"judge-prompt", 0, IS_CLI_TEXT, &l.judge[2], 0, 0, "FILE", "the same"},
    };
    const is_cli_spec spec = {
        .synopsis = "bench locomo [options]",
        .about = "The whole evaluation: time to first token, throughput, retrieval, fidelity, answers and cost of\n"
                 "encoding, and one report of it as a page, as JSON and as CSV.  A run that was cut short goes on.",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .examples =
            "inferscale bench locomo\ninferscale bench locomo --data locomo10.json --full --out /tmp/evaluation\n"
            "inferscale bench locomo --data locomo10.json --full --limit 200 --out /tmp/evaluation",
    };
    if (!is_cli_parse(&b->cli, &spec, argc, argv)) return b->cli.exit;
    if (b->cli.n_args > 0) return is_cli_usage(&b->cli, "\"%s\" is too much", b->cli.args[0]);
    if (!is_bench_embedded(b)) return b->cli.exit;
    if (b->recipes.n > MAX_RECIPES) return is_cli_usage(&b->cli, "more than %d recipes", MAX_RECIPES);
    is_cli_catch_interrupts();
    const step *steps = l.full ? full : brief;
    size_t n = l.full ? sizeof full / sizeof full[0] : sizeof brief / sizeof brief[0];
    json_t *report = NULL;
    is_status status = is_bench_need_embedding(b, &err);
    if (status == IS_OK) status = run_steps(&l, steps, n, &err);
    if (status == IS_OK) {
        const char *names[16];
        for (size_t i = 0; i < n; i++) names[i] = steps[i].name;
        status = is_bench_report(l.out, names, n, &report, &err);
    }
    if (status == IS_OK && !b->cli.json) printf("%s/report.html\n", l.out);
    return is_bench_end(b, report, status, &err);
}
