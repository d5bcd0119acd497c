/*
 * inferscale doctor: whether this machine, these models and this store work together.  It goes on where it can, so
 * that one run names all that is wrong; each problem comes with its remedy.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"

#define NAME_COLUMN 20

/* ------------------------------------------------------------ any JSON, for people */

static void print_tree(const json_t *value, int indent);

/* A number with the unit that its name ends in. */
static void print_number(const char *name, const json_t *value)
{
    size_t n = strlen(name);
    if (n > 6 && strcmp(name + n - 6, "_bytes") == 0)
        printf("%s", is_cli_bytes((uint64_t)json_number_value(value)).s);
    else if (n > 3 && strcmp(name + n - 3, "_ms") == 0)
        printf("%s", is_cli_duration(json_number_value(value)).s);
    else
        printf("%.6g", json_number_value(value));
}

static void print_scalar(const char *name, const json_t *value)
{
    if (json_is_string(value))
        is_cli_put_text(json_string_value(value), json_string_length(value));
    else if (json_is_number(value))
        print_number(name, value);
    else
        printf("%s", json_is_true(value) ? "yes" : json_is_false(value) ? "no" : "-");
}

/* "a, b" of an array, "name a, name b" of an object. */
static void print_line(const char *name, const json_t *value)
{
    size_t i;
    const char *member_name;
    json_t *member; /* jansson's loops take no const */
    const char *comma = "";
    if (json_is_array(value)) {
        json_array_foreach((json_t *)(uintptr_t)value, i, member)
        {
            printf("%s", comma);
            print_line(name, member);
            comma = ", ";
        }
    } else if (json_is_object(value)) {
        json_object_foreach((json_t *)(uintptr_t)value, member_name, member)
        {
            printf("%s%s ", comma, member_name);
            print_line(member_name, member);
            comma = ", ";
        }
    } else {
        print_scalar(name, value);
    }
}

/* "memory_bytes" is shown as "memory", its unit stands behind the number. */
static void print_name(const char *name, int indent, bool alone)
{
    size_t n = strlen(name);
    if (n > 6 && strcmp(name + n - 6, "_bytes") == 0) n -= 6;
    if (n > 3 && strcmp(name + n - 3, "_ms") == 0) n -= 3;
    printf("%*s", indent, "");
    for (size_t i = 0; i < n; i++) putchar(name[i] == '_' ? ' ' : name[i]);
    int column = NAME_COLUMN - indent - (int)n;
    if (alone)
        putchar('\n');
    else
        printf("%*s", column > 1 ? column : 1, "");
}

static void print_tree(const json_t *value, int indent)
{
    const char *name;
    json_t *member;
    json_object_foreach((json_t *)(uintptr_t)value, name, member)
    {
        bool lines = json_is_array(member) && json_is_object(json_array_get(member, 0));
        bool tree = json_is_object(member);
        print_name(name, indent, lines || tree);
        if (!lines && !tree) {
            print_line(name, member);
            putchar('\n');
        }
        if (tree) print_tree(member, indent + 2);
        for (size_t i = 0; lines && i < json_array_size(member); i++) {
            printf("%*s", indent + 2, "");
            print_line(name, json_array_get(member, i));
            putchar('\n');
        }
    }
}

/* ------------------------------------------------------------ looking */

typedef struct findings {
    json_t *facts;    /* what was found, section by section */
    json_t *problems; /* texts */
} findings;

static void problem(findings *found, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void problem(findings *found, const char *format, ...)
{
    char text[1400];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    is_cli_append(found->problems, is_cli_json_text(text));
}

/* Whether the file can be read. */
static bool look_at_file(json_t *section, const char *name, const char *path)
{
    struct stat info;
    json_t *file = json_object();
    is_cli_set(file, "path", is_cli_json_text(path));
    bool readable = stat(path, &info) == 0 && access(path, R_OK) == 0;
    is_cli_set(file, "readable", json_boolean(readable));
    if (readable) is_cli_set(file, "size_bytes", json_integer(info.st_size));
    is_cli_set(section, name, file);
    return readable;
}

/* Which models can be opened; is_cli_open's needs. */
static unsigned look_at_models(const is_cli *cli, findings *found)
{
    json_t *models = json_object();
    unsigned needs = IS_CLI_CREATE;
    char *chat = is_cli_model_path(cli);
    char *embedding = is_cli_embedding_path(cli);
    if (cli->upstreams != NULL || look_at_file(models, "chat", chat))
        needs |= IS_CLI_CHAT;
    else
        problem(found,
                "there is no chat model at %s, so nothing can be asked or encoded: run `make setup`, or name "
                "one with --model",
                chat);
    if (look_at_file(models, "embedding", embedding))
        needs |= IS_CLI_EMBED;
    else
        problem(found,
                "there is no embedding model at %s, so search goes by words alone: run `make setup`, or name "
                "one with --embedding-model",
                embedding);
    is_cli_set(found->facts, "models", models);
    free(chat);
    free(embedding);
    return needs;
}

static void look_at_store(const is_cli *cli, is_memory *memory, findings *found)
{
    is_stats stats;
    is_error err = {0};
    if (is_get_stats(memory, &stats, &err) != IS_OK) {
        problem(found, "the store cannot be counted: %s", err.text);
        return;
    }
    json_t *store = json_object();
    char *path = is_cli_store_path(cli);
    is_cli_set(store, "path", is_cli_json_text(path));
    is_cli_set(store, "scopes", json_integer((json_int_t)stats.scopes));
    is_cli_set(store, "facts", json_integer((json_int_t)stats.facts));
    is_cli_set(store, "facts_ready", json_integer((json_int_t)stats.facts_ready));
    is_cli_set(store, "facts_pending", json_integer((json_int_t)stats.facts_pending));
    is_cli_set(store, "turns", json_integer((json_int_t)stats.turns));
    is_cli_set(store, "database_bytes", json_integer((json_int_t)stats.database_bytes));
    is_cli_set(found->facts, "store", store);
    json_t *tiers = json_object();
    is_cli_set(tiers, "disk_chunks", json_integer((json_int_t)stats.chunks));
    is_cli_set(tiers, "disk_bytes", json_integer((json_int_t)stats.chunk_bytes));
    is_cli_set(tiers, "host_chunks", json_integer((json_int_t)stats.host_chunks));
    is_cli_set(tiers, "host_bytes", json_integer((json_int_t)stats.host_bytes));
    is_cli_set(tiers, "host_budget_bytes", json_integer((json_int_t)stats.host_budget));
    is_cli_set(found->facts, "tiers", tiers);
    free(path);
}

/* Whether the probe at start found that injection is exact. */
static void look_at_engine(is_memory *memory, findings *found)
{
    char *text = NULL;
    is_error err = {0};
    json_t *description = NULL;
    if (is_describe(memory, &text, &err) == IS_OK) description = json_loads(text, 0, NULL);
    free(text);
    if (description == NULL) {
        problem(found, "the engine cannot be described: %s", err.text);
        return;
    }
    const json_t *engine = json_object_get(description, "engine");
    const char *why_not = json_string_value(json_object_get(engine, "why_not"));
    if (engine != NULL && !json_is_true(json_object_get(engine, "injection")))
        problem(found,
                "KV state cannot be injected into this model: %s. Questions are answered all the same, with the facts "
                "prefilled; for speed choose another model",
                why_not != NULL && why_not[0] != '\0' ? why_not : "the engine gives no reason");
    is_cli_set(found->facts, "system", description);
}

static void look(const is_cli *cli, findings *found)
{
    is_error err = {0};
    is_memory *memory = NULL;
    is_cli_set(found->facts, "program", json_string("inferscale " IS_VERSION));
    is_cli_set(found->facts, "machine", is_cli_machine());
    unsigned needs = look_at_models(cli, found);
    if (is_cli_open(cli, needs, &memory, &err) != IS_OK) {
        problem(found, "%s", err.text);
        return;
    }
    look_at_store(cli, memory, found);
    look_at_engine(memory, found);
    is_close(memory);
}

static void print_for_people(const findings *found)
{
    const json_t *engine = json_object_get(json_object_get(found->facts, "system"), "engine");
    print_tree(found->facts, 0);
    printf("\ninjection: %s\n", json_is_true(json_object_get(engine, "injection")) ? "yes" : "no");
    for (size_t i = 0; i < json_array_size(found->problems); i++)
        printf("problem: %s\n", json_string_value(json_array_get(found->problems, i)));
    if (json_array_size(found->problems) == 0) printf("everything works\n");
}

int is_cmd_doctor(int argc, char **argv)
{
    const is_cli_spec spec = {
        .synopsis = "doctor [options]",
        .about = "Loads the models and the store (a new one, when there is none), proves that KV state can be\n"
                 "injected, and shows what it found: machine, models, layers, probe, tiers, counts. The exit code\n"
                 "is 1 when something is wrong; each problem is one line with its remedy.",
        .examples = "inferscale doctor\ninferscale doctor --model model.gguf --json",
    };
    is_cli cli;
    if (!is_cli_parse(&cli, &spec, argc, argv)) return cli.exit;
    if (cli.n_args > 0) return is_cli_usage(&cli, "\"%s\" is too much", cli.args[0]);
    cli.quiet = true; /* what is_cli_open would remark is found here */
    findings found = {.facts = json_object(), .problems = json_array()};
    look(&cli, &found);
    bool well = json_array_size(found.problems) == 0;
    if (!cli.json) print_for_people(&found);
    is_cli_set(found.facts, "ok", json_boolean(well));
    is_cli_set(found.facts, "problems", found.problems);
    if (cli.json)
        is_cli_print_json(found.facts);
    else
        json_decref(found.facts);
    return well ? IS_EXIT_OK : IS_EXIT_FAILED;
}
