/* inferscale list: a user's facts by rising id, page by page so that any number of them fits into memory. */
#include "cli.h"

#define PAGE 1000

int is_cmd_list(int argc, char **argv)
{
    int64_t after = 0;
    uint32_t limit = UINT32_MAX;
    const is_cli_option options[] = {
        {"after", 0, IS_CLI_ID, &after, 0, 0, "ID", "begin behind this id"},
        {"limit", 0, IS_CLI_UINT, &limit, 1, UINT32_MAX, "N", "at most so many facts"},
    };
    const is_cli_spec spec = {
        .synopsis = "list [options]",
        .about = "Lists the facts of a user by rising id. Each line is id, date, text.",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .examples = "inferscale list --user nadia\ninferscale list --after 100 --limit 20 --json",
    };
    is_cli cli;
    is_error err = {0};
    is_memory *memory;
    if (!is_cli_parse(&cli, &spec, argc, argv)) return cli.exit;
    if (cli.n_args > 0) return is_cli_usage(&cli, "\"%s\" is too much", cli.args[0]);
    json_t *all = json_array();
    is_status status = is_cli_open(&cli, 0, &memory, &err);
    for (size_t wanted = PAGE, got = PAGE; status == IS_OK && limit > 0 && got == wanted;) {
        is_fact_list *list = NULL;
        wanted = limit < PAGE ? limit : PAGE;
        status = is_list(memory, &cli.scope, after, wanted, &list, &err);
        if (status != IS_OK) break;
        got = list->n;
        limit -= (uint32_t)got;
        if (got > 0) after = list->facts[got - 1].id;
        json_t *page = cli.json ? is_cli_json_facts(list, false) : NULL;
        if (!cli.json) is_cli_print_facts(list);
        if (page != NULL && json_array_extend(all, page) != 0) is_cli_no_memory();
        json_decref(page);
        is_fact_list_free(list);
        if (ferror(stdout)) break;
    }
    is_close(memory);
    json_t *root = json_object();
    is_cli_set(root, "facts", all);
    if (status == IS_OK && cli.json)
        is_cli_print_json(root);
    else
        json_decref(root);
    return status == IS_OK ? IS_EXIT_OK : is_cli_fail(&cli, &err);
}
