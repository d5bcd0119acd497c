/* inferscale stats: what the store holds. */
#include "cli.h"

/* One table for both outputs: the member's name and, for people, what it is. */
static void print(const is_cli *cli, const is_stats *stats)
{
    const struct {
        const char *name, *label;
        uint64_t value;
        bool bytes;
    } rows[] = {
        {"scopes", "scopes", stats->scopes, false},
        {"facts", "facts", stats->facts, false},
        {"facts_ready", "  encoded", stats->facts_ready, false},
        {"facts_pending", "  pending", stats->facts_pending, false},
        {"turns", "turns", stats->turns, false},
        {"chunks", "chunks", stats->chunks, false},
        {"chunk_bytes", "  on disk", stats->chunk_bytes, true},
        {"database_bytes", "database", stats->database_bytes, true},
        {"host_budget", "host memory budget", stats->host_budget, true},
    };
    json_t *root = json_object();
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        is_cli_text text = rows[i].bytes ? is_cli_bytes(rows[i].value) : is_cli_count(rows[i].value);
        if (!cli->json) printf("%-20s %12s\n", rows[i].label, text.s);
        is_cli_set(root, rows[i].name, json_integer((json_int_t)rows[i].value));
    }
    if (cli->json)
        is_cli_print_json(root);
    else
        json_decref(root);
}

int is_cmd_stats(int argc, char **argv)
{
    const is_cli_spec spec = {
        .synopsis = "stats [options]",
        .about = "Shows what the store holds, of all users together. A fact counts as encoded when it has a chunk\n"
                 "of any model; `inferscale doctor` counts those of the chosen one.",
        .examples = "inferscale stats\ninferscale stats --store build/demo-store --json",
    };
    is_cli cli;
    is_error err = {0};
    is_memory *memory;
    is_stats stats;
    if (!is_cli_parse(&cli, &spec, argc, argv)) return cli.exit;
    if (cli.n_args > 0) return is_cli_usage(&cli, "\"%s\" is too much", cli.args[0]);
    is_status status = is_cli_open(&cli, 0, &memory, &err);
    if (status == IS_OK) status = is_get_stats(memory, &stats, &err);
    is_close(memory);
    if (status != IS_OK) return is_cli_fail(&cli, &err);
    print(&cli, &stats);
    return IS_EXIT_OK;
}
