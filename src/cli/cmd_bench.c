/* inferscale bench: which benchmark, and what they share. */
#include <errno.h>
#include <ftw.h>
#include <libgen.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "memory/import.h"

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

bool is_bench_parse(is_bench *b, const char *name, const char *about, const char *examples, int argc, char **argv)
{
    char synopsis[64];
    (void)snprintf(synopsis, sizeof synopsis, "bench %s [options]", name);
    const is_cli_option options[] = {
        {"data", 0, IS_CLI_TEXT, &b->data, 0, 0, "FILE", "JSON Lines or LoCoMo's file; default " IS_BENCH_SAMPLE},
        {"questions", 0, IS_CLI_TEXT, &b->questions_file, 0, 0, "FILE", "questions; default: in or beside the data"},
        {"limit", 0, IS_CLI_UINT, &b->n_questions, 1, 100000, "N", "questions used, spread over the file"},
        {"repeat", 0, IS_CLI_UINT, &b->repeat, 1, 1000, "N", "measurements of each figure"},
        {"k", 'k', IS_CLI_LIST, &b->ks, 0, 0, "K", "facts in the prompt; may be repeated"},
        {"with-recipe", 0, IS_CLI_LIST, &b->recipes, 0, 0, "RECIPE", "recipe to measure; may be repeated"},
        {"fresh", 0, IS_CLI_LIST, &b->fresh, 0, 0, "M", "best facts prefilled behind the rest; may be repeated"},
    };
    const is_cli_spec spec = {.synopsis = synopsis,
                              .about = about,
                              .options = options,
                              .n_options = sizeof options / sizeof options[0],
                              .examples = examples};
    if (!is_cli_parse(&b->cli, &spec, argc, argv)) return false;
    if (b->cli.n_args > 0) {
        b->cli.exit = is_cli_usage(&b->cli, "\"%s\" is too much", b->cli.args[0]);
        return false;
    }
    return true;
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
        is_cli_set(root, "model", json_incref(json_object_get(engine, "model")));
        is_cli_set(root, "fingerprint", json_incref(json_object_get(engine, "fingerprint")));
        is_cli_set(root, "llama_cpp", json_incref(json_object_get(engine, "llama_cpp")));
        is_cli_set(root, "threads", json_incref(json_object_get(engine, "threads")));
        json_decref(system);
        free(text);
    }
    return root;
}

/* ------------------------------------------------------------ questions */

static char *text_of(const json_t *value)
{
    char *out = NULL;
    if (json_is_string(value)) return strdup(json_string_value(value));
    if (json_is_integer(value) && asprintf(&out, "%lld", (long long)json_integer_value(value)) >= 0) return out;
    return NULL;
}

static void add_question(is_bench *b, const char *user, const json_t *item)
{
    is_bench_question q = {strdup(user), text_of(json_object_get(item, "question")),
                           text_of(json_object_get(item, "answer"))};
    if (q.user == NULL || q.question == NULL || q.answer == NULL || q.answer[0] == '\0') { /* LoCoMo's category 5 */
        free(q.user);
        free(q.question);
        free(q.answer);
        return;
    }
    is_bench_question *grown = realloc(b->questions, (b->n + 1) * sizeof *grown);
    if (grown == NULL) is_cli_no_memory();
    b->questions = grown;
    b->questions[b->n++] = q;
}

/* Keeps n_questions of them, at even distances. */
static void thin(is_bench *b)
{
    if (b->n_questions == 0 || b->n <= b->n_questions) return;
    size_t kept = 0;
    for (size_t i = 0; i < b->n; i++) {
        is_bench_question *q = &b->questions[i];
        if (kept < b->n_questions && i == kept * b->n / b->n_questions) {
            b->questions[kept++] = *q;
            continue;
        }
        free(q->user);
        free(q->question);
        free(q->answer);
    }
    b->n = kept;
}

is_status is_bench_questions(is_bench *b, is_error *err)
{
    char path[4096];
    const char *data = b->data != NULL ? b->data : IS_BENCH_SAMPLE;
    json_error_t why;
    json_t *root = b->questions_file == NULL ? json_load_file(data, 0, &why) : NULL; /* LoCoMo's file has its own */
    if (root == NULL) {
        char *copy = strdup(data);
        if (copy == NULL) return is_fail(err, IS_ENOMEM, "no memory for the questions");
        (void)snprintf(path, sizeof path, "%s/questions.json", dirname(copy));
        free(copy);
        const char *file = b->questions_file != NULL ? b->questions_file : path;
        root = json_load_file(file, 0, &why);
        if (root == NULL)
            return is_fail(err, IS_EINVAL, "no questions in %s: %s; give --data and --questions", file, why.text);
    }
    size_t i, j;
    json_t *item, *qa;
    json_array_foreach(root, i, item)
    {
        const json_t *list = json_object_get(item, "qa");
        const char *user = json_string_value(json_object_get(item, "sample_id"));
        if (list == NULL) add_question(b, b->cli.scope.user, item);
        json_array_foreach(list, j, qa)
        {
            if (user != NULL) add_question(b, user, qa);
        }
    }
    json_decref(root);
    if (b->n == 0) return is_fail(err, IS_EINVAL, "%s holds no questions with answers", data);
    thin(b);
    return IS_OK;
}

/* ------------------------------------------------------------ the store */

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    (void)kind;
    (void)ftw;
    return remove(path);
}

static void close_store(is_bench *b)
{
    is_close(b->memory);
    b->memory = NULL;
    if (b->folder != NULL) (void)nftw(b->folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(b->folder);
    b->folder = NULL;
}

static is_status open_folder(is_bench *b, const char *recipe, bool background, is_error *err)
{
    char *model = is_cli_model_path(&b->cli);
    char *embedding = is_cli_embedding_path(&b->cli);
    is_options o = is_options_default();
    o.store = b->folder;
    o.model = model;
    o.embedding_model = embedding;
    o.recipe = recipe;
    o.context = b->cli.context;
    o.threads = b->cli.threads;
    o.background = background;
    if (b->cli.slots != 0) o.slots = b->cli.slots;
    if (b->cli.host_budget != 0) o.host_budget = b->cli.host_budget;
    is_status status = is_open(&o, &b->memory, err);
    free(model);
    free(embedding);
    return status;
}

is_status is_bench_open(is_bench *b, const char *recipe, bool background, is_error *err)
{
    close_store(b);
    const char *tmp = getenv("TMPDIR");
    if (asprintf(&b->folder, "%s/inferscale-bench-XXXXXX", tmp != NULL && tmp[0] != '\0' ? tmp : "/tmp") < 0)
        is_cli_no_memory();
    if (mkdtemp(b->folder) == NULL) return is_fail(err, IS_EIO, "cannot make %s: %s", b->folder, strerror(errno));
    return open_folder(b, recipe != NULL ? recipe : b->cli.recipe, background, err);
}

is_status is_bench_reopen(is_bench *b, bool background, is_error *err)
{
    is_close(b->memory);
    b->memory = NULL;
    return open_folder(b, NULL, background, err);
}

static void close_all(is_bench *b)
{
    close_store(b);
    for (size_t i = 0; i < b->n; i++) {
        free(b->questions[i].user);
        free(b->questions[i].question);
        free(b->questions[i].answer);
    }
    free(b->questions);
    free(b->ks.items);
    free(b->recipes.items);
    free(b->fresh.items);
}

int is_bench_end(is_bench *b, json_t *result, is_status status, const is_error *err)
{
    close_all(b);
    if (status == IS_OK && b->cli.json)
        is_cli_print_json(result);
    else
        json_decref(result);
    return status == IS_OK ? is_cli_end_output(IS_EXIT_OK) : is_cli_fail(&b->cli, err);
}

typedef struct importer {
    is_bench *bench;
    is_cli_batch *batch;
} importer;

static bool wanted(const is_bench *b, const is_scope *scope)
{
    for (size_t i = 0; i < b->n; i++)
        if (scope->user != NULL && strcmp(b->questions[i].user, scope->user) == 0) return true;
    return false;
}

static bool on_turn(void *user, const is_scope *scope, const is_turn *turn)
{
    importer *i = user;
    return !wanted(i->bench, scope) || is_cli_batch_turn(i->batch, scope, turn);
}

static bool on_fact(void *user, const is_scope *scope, const is_fact *fact)
{
    importer *i = user;
    return !wanted(i->bench, scope) || is_cli_batch_fact(i->batch, scope, fact);
}

is_status is_bench_import(is_bench *b, is_error *err)
{
    const char *data = b->data != NULL ? b->data : IS_BENCH_SAMPLE;
    FILE *in = fopen(data, "re");
    if (in == NULL) return is_fail(err, IS_ENOTFOUND, "cannot open %s: %s; give --data FILE", data, strerror(errno));
    importer i = {b, is_cli_batch_new(&b->cli, b->memory, NULL)};
    is_import_options options = {.scope = b->cli.scope};
    is_import_callbacks callbacks = {on_turn, on_fact, NULL, &i};
    is_import_counts counts;
    is_status status = is_import_read(in, &options, &callbacks, &counts, err);
    is_error why = {0};
    is_status ended = is_cli_batch_end(i.batch, &why); /* says why a callback ended the reading */
    if (ended != IS_OK) {
        status = ended;
        if (err != NULL) *err = why;
    }
    is_cli_batch_free(i.batch);
    (void)fclose(in);
    return status;
}
