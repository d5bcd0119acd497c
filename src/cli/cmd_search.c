/* inferscale search: the facts that fit a query. */
#include "cli.h"

static int search(const is_cli *cli, uint32_t k, const is_filter *filter)
{
    is_error err = {0};
    is_memory *memory;
    is_fact_list *list = NULL;
    is_status status = is_cli_open(cli, IS_CLI_EMBED, &memory, &err);
    if (status == IS_OK) status = is_search(memory, &cli->scope, cli->args[0], k, filter, &list, &err);
    is_close(memory);
    if (status != IS_OK) return is_cli_fail(cli, &err);
    if (cli->json) {
        json_t *root = json_object();
        is_cli_set(root, "facts", is_cli_json_facts(list, false));
        is_cli_print_json(root);
    } else {
        is_cli_print_facts(list);
        if (list->n == 0) is_cli_note(cli, "no fact fits");
    }
    is_fact_list_free(list);
    return IS_EXIT_OK;
}

int is_cmd_search(int argc, char **argv)
{
    uint32_t k = 10;
    is_filter filter = {.time_from = IS_TIME_NONE, .time_to = IS_TIME_NONE};
    const is_cli_option options[] = {
        {NULL, 'k', IS_CLI_UINT, &k, 1, 200, "N", "at most so many facts, 1 to 200 (default: 10)"},
        {"from", 0, IS_CLI_TIME, &filter.time_from, 0, 0, "DATE", "only facts of this time or later"},
        {"to", 0, IS_CLI_TIME, &filter.time_to, 0, 0, "DATE", "only facts before this time"},
        {"where", 0, IS_CLI_OBJECT, &filter.metadata, 0, 0, "JSON", "only facts whose metadata has these members"},
    };
    const is_cli_spec spec = {
        .synopsis = "search [options] QUERY",
        .about = "Finds the facts of a user that fit a query best, by meaning and by words, best first. Each line\n"
                 "is score, id, date, text.",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .examples = "inferscale search \"where are my reading glasses\" -k 5\n"
                    "inferscale search \"the new kitchen\" --from 2024-06-01 --where '{\"topic\": \"home\"}'",
    };
    is_cli cli;
    if (!is_cli_parse(&cli, &spec, argc, argv)) return cli.exit;
    if (cli.n_args != 1 || cli.args[0][0] == '\0') return is_cli_usage(&cli, "one query is wanted; put it into quotes");
    return search(&cli, k, &filter);
}
