/* inferscale bench: which benchmark, and what they share. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

#define MAX_OWN 16 /* options of one benchmark alone */

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *about;
} benches[] = {
    {"ttft", is_bench_ttft,
     "time to first token over k: prefilled, injected, and with the memory already in the cache"},
    {"encode", is_bench_encode, "what encoding costs, by recipe"},
    {"retrieve", is_bench_retrieve, "search in one scope of 100,000 facts"},
    {"chat", is_bench_chat, "a conversation that goes on: time to first token and fidelity by turn"},
    {"fidelity", is_bench_fidelity, "how close injected memory comes to a full prefill, by recipe"},
    {"recall", is_bench_recall, "how much of what a question needs is among its best k facts"},
    {"answers", is_bench_answers, "how right answers are with injected memory and with the same memory as text"},
    {"locomo", is_bench_locomo, "all of it, with a report as a page"},
    {"throughput", is_bench_throughput, "requests a second over HTTP under load, beside llama.cpp's own server"},
};

static void print_help(FILE *out)
{
    (void)fprintf(out, "Usage: inferscale bench BENCHMARK [options]\n\nMeasures this system on this machine.\n\n");
    for (size_t i = 0; i < sizeof benches / sizeof benches[0]; i++)
        (void)fprintf(out, "  %-10s %s\n", benches[i].name, benches[i].about);
    (void)fprintf(out, "\nEach has its own --help.\n\nExamples:\n  inferscale bench ttft\n"
                       "  inferscale bench fidelity --data locomo10.json --json\n\n" IS_CLI_EXIT_CODES);
}

int is_cmd_bench(int argc, char **argv)
{
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_help(argc < 2 ? stderr : stdout);
        return argc < 2 ? IS_EXIT_USAGE : IS_EXIT_OK;
    }
    for (size_t i = 0; i < sizeof benches / sizeof benches[0]; i++)
        if (strcmp(argv[1], benches[i].name) == 0) return benches[i].run(argc - 1, argv + 1);
    (void)fprintf(stderr, "inferscale: there is no benchmark \"%s\"; `inferscale bench --help` lists them\n", argv[1]);
    return IS_EXIT_USAGE;
}

bool is_bench_embedded(is_bench *b)
{
    if (b->cli.upstreams == NULL) return true;
    b->cli.exit =
        is_cli_usage(&b->cli, "this benchmark looks into the engine, so it needs the embedded one; throughput "
                              "takes --engine vllm, and bench/vllm_ttft.py measures what ttft does");
    return false;
}

is_status is_bench_need_embedding(const is_bench *b, is_error *err)
{
    const char *found = NULL;
    char *path = is_cli_embedding_path(&b->cli);
    is_status status = is_cli_choose_embedding(&b->cli, path, &found, err);
    if (status == IS_OK && found == NULL)
        status =
            is_fail(err, IS_ENOTFOUND,
                    "there is no embedding model at %s; run `make setup`, or name one with --embedding-model", path);
    free(path);
    return status;
}

bool is_bench_parse(is_bench *b, const char *name, const char *about, const char *examples, const is_cli_option *own,
                    size_t n_own, int argc, char **argv)
{
    char synopsis[64];
    (void)snprintf(synopsis, sizeof synopsis, "bench %s [options]", name);
    const is_cli_option common[] = {
        {"data", 0, IS_CLI_TEXT, &b->data, 0, 0, "FILE", "JSON Lines or LoCoMo's file; default " IS_BENCH_SAMPLE},
        {"questions", 0, IS_CLI_TEXT, &b->questions_file, 0, 0, "FILE", "questions; default: in or beside the data"},
        {"limit", 0, IS_CLI_UINT, &b->n_questions, 1, 100000, "N", "questions used, spread over the file"},
        {"repeat", 0, IS_CLI_UINT, &b->repeat, 1, 1000, "N", "measurements of each figure"},
        {"k", 'k', IS_CLI_LIST, &b->ks, 0, 0, "K", "facts in the prompt; may be repeated"},
        {"with-recipe", 0, IS_CLI_LIST, &b->recipes, 0, 0, "RECIPE", "recipe to measure; may be repeated"},
        {"fresh", 0, IS_CLI_LIST, &b->fresh, 0, 0, "M", "best facts prefilled behind the rest; may be repeated"},
    };
    is_cli_option options[sizeof common / sizeof common[0] + MAX_OWN];
    size_t n = sizeof common / sizeof common[0];
    memcpy(options, common, sizeof common);
    for (size_t i = 0; i < n_own && i < MAX_OWN; i++) options[n++] = own[i];
    const is_cli_spec spec = {
        .synopsis = synopsis, .about = about, .options = options, .n_options = n, .examples = examples};
    if (!is_cli_parse(&b->cli, &spec, argc, argv)) return false;
    if (b->cli.n_args == 0) return is_bench_embedded(b);
    b->cli.exit = is_cli_usage(&b->cli, "\"%s\" is too much", b->cli.args[0]);
    return false;
}

bool is_bench_numbers(const is_bench *b, const is_cli_list *list, const char *defaults, uint32_t *out, size_t *n,
                      size_t most, uint32_t max)
{
    *n = 0;
    if (list->n == 0) {
        for (const char *at = defaults; *at != '\0' && *n < most;) {
            char *end;
            out[(*n)++] = (uint32_t)strtoul(at, &end, 10);
            at = *end == ',' ? end + 1 : end;
        }
        return true;
    }
    for (size_t i = 0; i < list->n && *n < most; i++) {
        int64_t v;
        if (!is_cli_read_id(list->items[i], &v) || v > max) {
            (void)is_cli_usage(&b->cli, "\"%s\" is no number from 0 to %u", list->items[i], max);
            return false;
        }
        out[(*n)++] = (uint32_t)v;
    }
    return true;
}

/* ------------------------------------------------------------ numbers */

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double is_percentile(double *values, size_t n, double p)
{
    if (n == 0) return NAN;
    qsort(values, n, sizeof *values, compare);
    double at = p * (double)(n - 1);
    size_t low = (size_t)at;
    if (low + 1 >= n) return values[n - 1];
    double part = at - (double)low;
    return values[low] * (1 - part) + values[low + 1] * part;
}

double is_median(double *values, size_t n)
{
    return is_percentile(values, n, 0.5);
}

json_t *is_bench_context(const is_bench *b)
{
    json_t *root = json_object();
    char *text = NULL;
    is_cli_set(root, "version", json_string(IS_VERSION));
    is_cli_set(root, "machine", is_cli_machine());
    if (b->memory != NULL && is_describe(b->memory, &text, NULL) == IS_OK) {
        json_t *system = json_loads(text, 0, NULL);
        json_t *engine = json_object_get(system, "engine");
        static const char *const names[] = {"model", "fingerprint", "llama_cpp", "threads"};
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
            json_t *value = json_object_get(engine, names[i]); /* not every engine has all of them */
            is_cli_set(root, names[i], value != NULL ? json_incref(value) : json_null());
        }
        json_decref(system);
        free(text);
    }
    return root;
}

/* ------------------------------------------------------------ the end */

int is_bench_end(is_bench *b, json_t *result, is_status status, const is_error *err)
{
    is_bench_close(b);
    is_bench_free_questions(b);
    free(b->ks.items);
    free(b->recipes.items);
    free(b->fresh.items);
    if (status == IS_OK && b->cli.json)
        is_cli_print_json(result);
    else
        json_decref(result);
    return status == IS_OK ? is_cli_end_output(IS_EXIT_OK) : is_cli_fail(&b->cli, err);
}
