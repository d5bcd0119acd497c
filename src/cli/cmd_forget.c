/* inferscale forget: facts by id, or all that a scope has.  It cannot be undone, so the latter asks first. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "common/common.h"

static bool confirm(const is_cli *cli)
{
    char name[512];
    char answer[16] = "";
    is_cli_scope_name(&cli->scope, name, sizeof name);
    fprintf(stderr, "Forget everything of %s, for good? [y/N] ", name);
    (void)fflush(stderr);
    if (fgets(answer, sizeof answer, stdin) == NULL) fputc('\n', stderr);
    return strcmp(answer, "y\n") == 0 || strcmp(answer, "yes\n") == 0;
}

static int forget(const is_cli *cli, const int64_t *ids, size_t n)
{
    is_error err = {0};
    is_memory *memory;
    size_t forgotten = 0;
    is_status status = is_cli_open(cli, 0, &memory, &err);
    if (status == IS_OK) status = is_forget(memory, &cli->scope, ids, n, &forgotten, &err);
    is_close(memory);
    if (status == IS_OK && forgotten < n) {
        char name[512];
        is_cli_scope_name(&cli->scope, name, sizeof name);
        status = is_fail(&err, IS_ENOTFOUND, "%zu of %zu facts were forgotten, the others are none of %s", forgotten, n,
                         name);
    }
    if (status != IS_OK) return is_cli_fail(cli, &err);
    if (cli->json) {
        json_t *root = json_object();
        is_cli_set(root, "forgotten", json_integer((json_int_t)forgotten));
        is_cli_print_json(root);
    } else {
        is_cli_note(cli, "forgot %s facts; what was encoded behind them is encoded again by the next `inferscale add`",
                    is_cli_count(forgotten).s);
    }
    return IS_EXIT_OK;
}

static int compare_ids(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a;
    int64_t y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* Without repeats, so that what was forgotten can be counted against them. */
static size_t sort_ids(int64_t *ids, size_t n)
{
    size_t kept = 0;
    qsort(ids, n, sizeof *ids, compare_ids);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || ids[i] != ids[i - 1]) ids[kept++] = ids[i];
    return kept;
}

static int forget_ids(const is_cli *cli)
{
    size_t n = (size_t)cli->n_args;
    int64_t *ids = calloc(n, sizeof *ids);
    if (ids == NULL) is_cli_no_memory();
    int code = IS_EXIT_OK;
    for (size_t i = 0; i < n && code == IS_EXIT_OK; i++)
        if (!is_cli_read_id(cli->args[i], &ids[i]))
            code = is_cli_usage(cli, "\"%s\" is no fact's id; `inferscale list` shows them", cli->args[i]);
    if (code == IS_EXIT_OK) code = forget(cli, ids, sort_ids(ids, n));
    free(ids);
    return code;
}

int is_cmd_forget(int argc, char **argv)
{
    bool all = false;
    bool yes = false;
    const is_cli_option options[] = {
        {"all", 0, IS_CLI_FLAG, &all, 0, 0, NULL, "everything of this user: facts and turns"},
        {"yes", 'y', IS_CLI_FLAG, &yes, 0, 0, NULL, "with --all: do not ask"},
    };
    const is_cli_spec spec = {
        .synopsis = "forget [options] ID...\nforget [options] --all",
        .about = "Forgets facts for good: text, embedding, index, KV state, and the KV state of other facts that\n"
                 "was made behind them. The exit code is 3 when one of the ids was not there.",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .examples = "inferscale forget 17 21\ninferscale forget --all --user nadia --yes",
    };
    is_cli cli;
    if (!is_cli_parse(&cli, &spec, argc, argv)) return cli.exit;
    if (all && cli.n_args > 0) return is_cli_usage(&cli, "either ids or --all, not both");
    if (!all && cli.n_args == 0) return is_cli_usage(&cli, "ids are missing");
    if (!all) return forget_ids(&cli);
    if (!yes && isatty(STDIN_FILENO) != 1)
        return is_cli_usage(&cli, "nobody can be asked here; --yes forgets everything without asking");
    if (yes || confirm(&cli)) return forget(&cli, NULL, 0);
    fprintf(stderr, "nothing was forgotten\n");
    return IS_EXIT_FAILED;
}
