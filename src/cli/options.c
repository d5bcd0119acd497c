/*
 * Options: one table gives both what is read and what --help shows.  getopt_long does the splitting; here are the
 * tables' meaning, the values' checks and the help.
 */
#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "common/time.h"

#define MAX_OPTIONS 64
#define FIRST_LONG  256 /* what getopt_long returns for option i is FIRST_LONG + i; below are letters */
#define HELP_COLUMN 26
#define HELP_WIDTH  100

typedef struct table {
    is_cli_option options[MAX_OPTIONS]; /* the command's own, then the common ones */
    size_t n, n_own;
    bool help;
} table;

static void make_table(table *all, is_cli *cli, const is_cli_spec *spec)
{
    const is_cli_option common[] = {
        {"store", 0, IS_CLI_TEXT, &cli->store, 0, 0, "FOLDER",
         "where the memory is kept (default: $INFERSCALE_STORE, else ~/.local/share/inferscale)"},
        {"model", 0, IS_CLI_TEXT, &cli->model, 0, 0, "GGUF",
         "the chat model (default: $INFERSCALE_MODEL, else the one that `make setup` made)"},
        {"embedding-model", 0, IS_CLI_TEXT, &cli->embedding_model, 0, 0, "GGUF",
         "the embedding model (default: $INFERSCALE_EMBEDDING_MODEL, else the one that `make setup` made)"},
        {"engine", 0, IS_CLI_TEXT, &cli->engine, 0, 0, "NAME",
         "llama, which is built in, or vllm, servers that run elsewhere (default: llama)"},
        {"upstream", 0, IS_CLI_TEXT, &cli->upstreams, 0, 0, "URLS",
         "vLLM servers with InferScale's connector, with commas between them"},
        {"upstream-model", 0, IS_CLI_TEXT, &cli->upstream_model, 0, 0, "NAME",
         "a model that they serve (default: the first)"},
        {"upstream-key", 0, IS_CLI_TEXT, &cli->upstream_key, 0, 0, "KEY",
         "their API key; better in $INFERSCALE_UPSTREAM_KEY"},
        {"recipe", 0, IS_CLI_TEXT, &cli->recipe, 0, 0, "RECIPE",
         "what stands before a fact when it is encoded: isolated, primed:N, window:W, primed:N+chain:M, "
         "primed:N+near:M or primed:N+window:W (default: the store's own)"},
        {"context", 0, IS_CLI_UINT, &cli->context, 1, 1 << 24, "TOKENS", "longest prompt with its answer"},
        {"slots", 0, IS_CLI_UINT, &cli->slots, 1, 256, "N", "requests answered at the same time"},
        {"threads", 0, IS_CLI_UINT, &cli->threads, 1, 1024, "N", "default: one for each core"},
        {"memory", 0, IS_CLI_BYTES, &cli->host_budget, 0, 0, "BYTES",
         "budget for KV state in host memory, such as 512M or 2G"},
        {"device-chunks", 0, IS_CLI_BYTES, &cli->device_chunks, 0, 0, "BYTES",
         "chunks in the first GPU's memory, where llama.cpp has the model; a program that `make cuda` built"},
        {"device-vectors", 0, IS_CLI_BYTES, &cli->device_vectors, 0, 0, "BYTES",
         "embeddings in the first GPU's memory, which then searches them; a program that `make cuda` built"},
        {"user", 0, IS_CLI_TEXT, &cli->scope.user, 0, 0, "NAME", "whose facts (default: default)"},
        {"tenant", 0, IS_CLI_TEXT, &cli->scope.tenant, 0, 0, "NAME", "which tenant's user; part of the scope"},
        {"agent", 0, IS_CLI_TEXT, &cli->scope.agent, 0, 0, "NAME", "which agent's memory; part of the scope"},
        {"run", 0, IS_CLI_TEXT, &cli->scope.run, 0, 0, "NAME", "which run's memory; part of the scope"},
        {"json", 0, IS_CLI_FLAG, &cli->json, 0, 0, NULL, "print one JSON object"},
        {"quiet", 'q', IS_CLI_FLAG, &cli->quiet, 0, 0, NULL, "no progress, no remarks"},
        {"help", 'h', IS_CLI_FLAG, &all->help, 0, 0, NULL, "this text"},
    };
    all->help = false;
    all->n = 0;
    for (size_t i = 0; i < spec->n_options && all->n < MAX_OPTIONS; i++) all->options[all->n++] = spec->options[i];
    all->n_own = all->n;
    for (size_t i = 0; i < sizeof common / sizeof common[0] && all->n < MAX_OPTIONS; i++)
        all->options[all->n++] = common[i];
}

/* ------------------------------------------------------------ values */

bool is_cli_read_id(const char *text, int64_t *out)
{
    char *end;
    errno = 0;
    if (!isdigit((unsigned char)text[0])) return false; /* strtoll would take blanks and signs */
    long long value = strtoll(text, &end, 10);
    if (errno != 0 || *end != '\0') return false;
    *out = value;
    return true;
}

static bool read_real(const char *text, double min, double max, double *out)
{
    char *end;
    errno = 0;
    if (text[0] == '\0' || isspace((unsigned char)text[0])) return false;
    *out = strtod(text, &end);
    return errno == 0 && *end == '\0' && isfinite(*out) && *out >= min && *out <= max;
}

static bool read_bytes(const char *text, uint64_t *out)
{
    static const char units[] = "KMG";
    char digits[24];
    size_t n = strspn(text, "0123456789");
    const char *unit = text[n] != '\0' ? strchr(units, toupper((unsigned char)text[n])) : NULL;
    if (n == 0 || n >= sizeof digits || (text[n] != '\0' && (unit == NULL || text[n + 1] != '\0'))) return false;
    memcpy(digits, text, n);
    digits[n] = '\0';
    int64_t value;
    if (!is_cli_read_id(digits, &value) || value == 0) return false;
    uint64_t factor = unit == NULL ? 1 : UINT64_C(1) << (10 * (unit - units + 1));
    return !__builtin_mul_overflow((uint64_t)value, factor, out);
}

static bool is_json_object(const char *text)
{
    json_t *json = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    bool well = json_is_object(json);
    json_decref(json);
    return well;
}

static void add_to_list(is_cli_list *list, const char *value)
{
    const char **items = realloc(list->items, (list->n + 1) * sizeof *items);
    if (items == NULL) is_cli_no_memory();
    list->items = items;
    list->items[list->n++] = value;
}

/* NULL, or what the value must be. */
static const char *set_value(const is_cli_option *option, const char *value)
{
    int64_t number;
    double real;
    switch (option->kind) {
    case IS_CLI_FLAG: *(bool *)option->target = true; return NULL;
    case IS_CLI_TEXT: *(const char **)option->target = value; return NULL;
    case IS_CLI_LIST: add_to_list(option->target, value); return NULL;
    case IS_CLI_OBJECT:
        if (!is_json_object(value)) return "a JSON object, such as '{\"topic\": \"work\"}'";
        *(const char **)option->target = value;
        return NULL;
    case IS_CLI_UINT:
        if (!is_cli_read_id(value, &number) || (double)number < option->min || (double)number > option->max)
            return "a whole number";
        *(uint32_t *)option->target = (uint32_t)number;
        return NULL;
    case IS_CLI_ID: return is_cli_read_id(value, option->target) ? NULL : "a fact's id, a whole number";
    case IS_CLI_REAL:
        if (!read_real(value, option->min, option->max, &real)) return "a number";
        *(float *)option->target = (float)real;
        return NULL;
    case IS_CLI_BYTES: return read_bytes(value, option->target) ? NULL : "a size such as 512M or 2G";
    case IS_CLI_TIME:
        return is_time_parse(value, option->target) == IS_OK ? NULL : "a date such as 2024-05-01 or 2024-05-01T13:56Z";
    }
    return NULL;
}

static void option_name(const is_cli_option *option, char *out, size_t size)
{
    if (option->name != NULL)
        (void)snprintf(out, size, "--%s", option->name);
    else
        (void)snprintf(out, size, "-%c", option->letter);
}

static bool take(is_cli *cli, const is_cli_option *option, const char *value)
{
    const char *wanted = set_value(option, value);
    if (wanted == NULL) return true;
    char name[64];
    char range[64] = "";
    option_name(option, name, sizeof name);
    if (option->kind == IS_CLI_UINT || option->kind == IS_CLI_REAL)
        (void)snprintf(range, sizeof range, " from %.10g to %.10g", option->min, option->max);
    cli->exit = is_cli_usage(cli, "%s must be %s%s, and is \"%s\"", name, wanted, range, value);
    return false;
}

/* ------------------------------------------------------------ help */

/* Breaks text into lines that stand at HELP_COLUMN; the first one stands where the cursor is. */
static void print_wrapped(const char *text)
{
    const size_t width = HELP_WIDTH - HELP_COLUMN;
    while (strlen(text) > width) {
        size_t n = width;
        while (n > 0 && text[n] != ' ') n--;
        if (n == 0) break;
        printf("%.*s\n%*s", (int)n, text, HELP_COLUMN, "");
        text += n + 1;
    }
    puts(text);
}

static void print_options(const is_cli_option *options, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const is_cli_option *option = &options[i];
        char left[80];
        char letter[8] = "";
        if (option->letter != 0) (void)snprintf(letter, sizeof letter, "-%c", option->letter);
        (void)snprintf(left, sizeof left, "  %s%s%s%s%s%s", letter, letter[0] && option->name ? ", " : "",
                       option->name ? "--" : "", option->name ? option->name : "", option->value ? " " : "",
                       option->value ? option->value : "");
        if (strlen(left) + 2 > HELP_COLUMN)
            printf("%s\n%*s", left, HELP_COLUMN, "");
        else
            printf("%-*s", HELP_COLUMN, left);
        print_wrapped(option->help);
    }
}

/* Every line of text behind `before`. */
static void print_lines(const char *before, const char *text)
{
    while (*text != '\0') {
        size_t n = strcspn(text, "\n");
        printf("%s%.*s\n", before, (int)n, text);
        text += n + (text[n] == '\n');
    }
}

static void print_help(const is_cli_spec *spec, const table *all)
{
    print_lines("Usage: inferscale ", spec->synopsis);
    printf("\n%s\n", spec->about);
    if (all->n_own > 0) printf("\nOptions:\n");
    print_options(all->options, all->n_own);
    printf("\nCommon options:\n");
    print_options(all->options + all->n_own, all->n - all->n_own);
    printf("\nExamples:\n");
    print_lines("  ", spec->examples);
    printf("\n" IS_CLI_EXIT_CODES);
}

/* ------------------------------------------------------------ the line */

/* An error in the line is wanted as JSON also when it stands before --json. */
static bool asks_for_json(int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--json") == 0) return true;
    return false;
}

static void fill_getopt(const table *all, struct option *longs, char *letters)
{
    size_t n_longs = 0;
    *letters++ = ':'; /* a missing value is told apart from an unknown option */
    for (size_t i = 0; i < all->n; i++) {
        const is_cli_option *option = &all->options[i];
        bool has_value = option->kind != IS_CLI_FLAG;
        if (option->name != NULL)
            longs[n_longs++] =
                (struct option){option->name, has_value ? required_argument : no_argument, NULL, FIRST_LONG + (int)i};
        if (option->letter != 0) *letters++ = option->letter;
        if (option->letter != 0 && has_value) *letters++ = ':';
    }
    longs[n_longs] = (struct option){0};
    *letters = '\0';
}

static const is_cli_option *find_option(const table *all, int c)
{
    if (c >= FIRST_LONG) return &all->options[c - FIRST_LONG];
    for (size_t i = 0; i < all->n; i++)
        if (all->options[i].letter != 0 && all->options[i].letter == c) return &all->options[i];
    return NULL;
}

static int complain(is_cli *cli, const table *all, int c, char **argv)
{
    const is_cli_option *option = find_option(all, optopt);
    if (c == ':') return is_cli_usage(cli, "%s needs a value", argv[optind - 1]);
    if (option != NULL && option->kind == IS_CLI_FLAG && optopt >= FIRST_LONG)
        return is_cli_usage(cli, "--%s takes no value", option->name);
    if (optopt > 0 && optopt < FIRST_LONG) return is_cli_usage(cli, "unknown option -%c", optopt);
    return is_cli_usage(cli, "unknown option %s", argv[optind - 1]);
}

static bool check_engine(is_cli *cli)
{
    bool vllm = cli->engine != NULL && strcmp(cli->engine, "vllm") == 0;
    if (cli->engine != NULL && !vllm && strcmp(cli->engine, "llama") != 0)
        cli->exit = is_cli_usage(cli, "--engine is llama or vllm, not \"%s\"", cli->engine);
    else if (vllm != (cli->upstreams != NULL))
        cli->exit = is_cli_usage(cli, "--engine vllm and --upstream go together: give both, or none");
    else if (!vllm && cli->upstream_model != NULL)
        cli->exit = is_cli_usage(cli, "--upstream-model is for --engine vllm");
    else if (vllm && cli->device_chunks > 0)
        cli->exit = is_cli_usage(cli, "vLLM keeps chunks on its GPU itself: leave out --device-chunks, and give its "
                                      "connector a device_budget");
    else
        return true;
    return false;
}

bool is_cli_parse(is_cli *cli, const is_cli_spec *spec, int argc, char **argv)
{
    table all;
    struct option longs[MAX_OPTIONS + 1];
    char letters[2 * MAX_OPTIONS + 2];
    *cli = (is_cli){.scope = {.user = "default"}, .json = asks_for_json(argc, argv)};
    const char *end = strstr(spec->synopsis, " [options]");
    (void)snprintf(cli->command, sizeof cli->command, "%.*s",
                   (int)(end != NULL ? (size_t)(end - spec->synopsis) : strlen(spec->synopsis)), spec->synopsis);
    make_table(&all, cli, spec);
    fill_getopt(&all, longs, letters);
    optind = 0; /* begin anew, as glibc wants it */
    opterr = 0;
    int c;
    while ((c = getopt_long(argc, argv, letters, longs, NULL)) != -1) {
        const is_cli_option *option = c == '?' || c == ':' ? NULL : find_option(&all, c);
        if (option == NULL) {
            cli->exit = complain(cli, &all, c, argv);
            return false;
        }
        if (!take(cli, option, optarg)) return false;
    }
    cli->args = argv + optind;
    cli->n_args = argc - optind;
    if (all.help) print_help(spec, &all);
    return !all.help && check_engine(cli);
}
