/* inferscale verify: every stored byte against its checksum. */
#include "cli.h"

typedef struct problems {
    bool json;
    json_t *lines;
} problems;

static void on_problem(void *user, const char *line)
{
    problems *found = user;
    if (!found->json) printf("%s\n", line);
    is_cli_append(found->lines, is_cli_json_text(line));
}

static void print_json(const is_verify_report *report, json_t *lines, bool repaired)
{
    json_t *root = json_object();
    is_cli_set(root, "chunks_checked", json_integer((json_int_t)report->chunks_checked));
    is_cli_set(root, "chunks_bad", json_integer((json_int_t)report->chunks_bad));
    is_cli_set(root, "files_orphaned", json_integer((json_int_t)report->files_orphaned));
    is_cli_set(root, "files_missing", json_integer((json_int_t)report->files_missing));
    is_cli_set(root, "database_bad", json_integer((json_int_t)report->database_bad));
    is_cli_set(root, "repaired", json_boolean(repaired));
    is_cli_set(root, "problems", json_incref(lines));
    is_cli_print_json(root);
}

static int verify(const is_cli *cli, bool repair)
{
    is_error err = {0};
    is_memory *memory;
    is_verify_report report = {0};
    problems found = {.json = cli->json, .lines = json_array()};
    is_status status = is_cli_open(cli, 0, &memory, &err);
    if (status == IS_OK) status = is_verify(memory, repair, on_problem, &found, &report, &err);
    is_close(memory);
    uint64_t chunks = report.chunks_bad + report.files_orphaned + report.files_missing;
    bool repaired = repair && chunks > 0;
    if (status == IS_OK && cli->json) print_json(&report, found.lines, repaired);
    json_decref(found.lines);
    if (status != IS_OK) return is_cli_fail(cli, &err);
    if (!cli->json)
        printf("%s chunks checked: %s damaged, %s missing, %s files without an entry; database: %s\n",
               is_cli_count(report.chunks_checked).s, is_cli_count(report.chunks_bad).s,
               is_cli_count(report.files_missing).s, is_cli_count(report.files_orphaned).s,
               report.database_bad == 0 ? "ok" : "damaged");
    if (repaired) is_cli_note(cli, "repaired; `inferscale add` without a text encodes what is missing now");
    if (chunks > 0 && !repair) is_cli_note(cli, "`inferscale verify --repair` mends the chunks");
    return report.database_bad > 0 || (chunks > 0 && !repair) ? IS_EXIT_FAILED : IS_EXIT_OK;
}

int is_cmd_verify(int argc, char **argv)
{
    bool repair = false;
    const is_cli_option options[] = {
        {"repair", 0, IS_CLI_FLAG, &repair, 0, 0, NULL,
         "drop damaged and missing chunks, which are then encoded again, and delete files without an entry"},
    };
    const is_cli_spec spec = {
        .synopsis = "verify [options]",
        .about = "Reads every chunk of the store and checks it, compares the files with their entries, and runs\n"
                 "the database's own check. Each problem is one line. The exit code is 1 when something is wrong\n"
                 "and was not repaired.",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .examples = "inferscale verify\ninferscale verify --repair --store build/demo-store",
    };
    is_cli cli;
    if (!is_cli_parse(&cli, &spec, argc, argv)) return cli.exit;
    if (cli.n_args > 0) return is_cli_usage(&cli, "\"%s\" is too much", cli.args[0]);
    return verify(&cli, repair);
}
