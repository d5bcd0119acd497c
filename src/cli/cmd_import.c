/* inferscale import: turns and facts from a file, then their encoding. */
#include <errno.h>
#include <string.h>

#include "cli.h"
#include "common/common.h"
#include "memory/import.h"

#define MAX_SHOWN 20 /* records that were passed over and are named */

/* The user of the reader's callbacks. */
typedef struct import_run {
    const is_cli *cli;
    is_cli_batch *batch;
    json_t *skips; /* the first MAX_SHOWN */
    is_import_counts counts;
    uint64_t turns, facts; /* added */
    uint64_t encoded;
} import_run;

static bool on_turn(void *user, const is_scope *scope, const is_turn *turn)
{
    return is_cli_batch_turn(((import_run *)user)->batch, scope, turn);
}

static bool on_fact(void *user, const is_scope *scope, const is_fact *fact)
{
    return is_cli_batch_fact(((import_run *)user)->batch, scope, fact);
}

static void on_skipped(void *user, const char *where, const char *why)
{
    import_run *run = user;
    if (json_array_size(run->skips) == MAX_SHOWN) return;
    json_t *skip = json_object();
    is_cli_set(skip, "where", is_cli_json_text(where));
    is_cli_set(skip, "why", is_cli_json_text(why));
    is_cli_append(run->skips, skip);
    is_cli_note(run->cli, "skipped: %s: %s", where, why);
}

static is_status read_file(import_run *run, FILE *in, const is_import_options *options, is_error *err)
{
    is_import_callbacks callbacks = {.turn = on_turn, .fact = on_fact, .skipped = on_skipped, .user = run};
    is_error why_not_added = {0};
    is_status status = is_import_read(in, options, &callbacks, &run->counts, err);
    is_status added = is_cli_batch_end(run->batch, &why_not_added);
    is_cli_batch_counts(run->batch, &run->turns, &run->facts);
    if (run->counts.skipped > MAX_SHOWN)
        is_cli_note(run->cli, "skipped: %s more", is_cli_count(run->counts.skipped - json_array_size(run->skips)).s);
    if (added != IS_OK && err != NULL) *err = why_not_added; /* why the reader was told to end */
    return added != IS_OK ? added : status;
}

static is_status import(import_run *run, is_memory *memory, FILE *in, const is_import_options *options, bool encode,
                        is_error *err)
{
    run->batch = is_cli_batch_new(run->cli, memory, NULL);
    is_status status = read_file(run, in, options, err);
    is_cli_batch_free(run->batch);
    is_cli_note(run->cli, "imported %s facts and %s turns%s", is_cli_count(run->facts).s, is_cli_count(run->turns).s,
                status == IS_OK ? "" : "; they are kept, reading ended here");
    return status == IS_OK && encode ? is_cli_encode(run->cli, memory, NULL, &run->encoded, err) : status;
}

static void print_result(import_run *run)
{
    if (!run->cli->json) return;
    json_t *root = json_object();
    is_cli_set(root, "facts", json_integer((json_int_t)run->facts));
    is_cli_set(root, "turns", json_integer((json_int_t)run->turns));
    is_cli_set(root, "skipped", json_integer((json_int_t)run->counts.skipped));
    is_cli_set(root, "skips", json_incref(run->skips));
    is_cli_set(root, "encoded", json_integer((json_int_t)run->encoded));
    is_cli_print_json(root);
}

static int run_import(const is_cli *cli, FILE *in, const char *sample, bool encode)
{
    is_error err = {0};
    is_memory *memory;
    import_run run = {.cli = cli, .skips = json_array()};
    is_import_options options = {.scope = cli->scope, .sample = sample};
    is_cli_catch_interrupts();
    is_status status = is_cli_open(cli, IS_CLI_CREATE | IS_CLI_EMBED | (encode ? IS_CLI_CHAT : 0), &memory, &err);
    if (status == IS_OK) status = import(&run, memory, in, &options, encode, &err);
    is_close(memory);
    if (status == IS_OK) print_result(&run);
    json_decref(run.skips);
    return status == IS_OK ? IS_EXIT_OK : is_cli_fail(cli, &err);
}

int is_cmd_import(int argc, char **argv)
{
    bool no_encode = false;
    const char *sample = NULL;
    const is_cli_option options[] = {
        {"sample", 0, IS_CLI_TEXT, &sample, 0, 0, "NAME", "of a LoCoMo file only this sample"},
        {"no-encode", 0, IS_CLI_FLAG, &no_encode, 0, 0, NULL, "leave the encoding to a later command"},
    };
    const is_cli_spec spec = {
        .synopsis = "import [options] FILE\nimport [options] -",
        .about =
            "Adds the turns and facts of a file (- is stdin), then encodes whatever is pending in the store.\n"
            "The file is JSON Lines, an object a line:\n"
            "  {\"type\": \"turn\", \"id\": \"S1:1\", \"session\": \"S1\", \"speaker\": \"Ann\", \"text\": \"...\", "
            "\"time\": \"2024-05-01\"}\n"
            "  {\"type\": \"fact\", \"text\": \"...\", \"source\": \"S1:1\", \"time\": \"2024-05-01\", "
            "\"metadata\": {\"topic\": \"work\"}}\n"
            "or LoCoMo's own file, whose samples become users. Records may name their user, tenant, agent\n"
            "and run. What cannot be used is reported and skipped. A turn whose id is there is left as it\n"
            "is; a fact that is imported twice is there twice.",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .examples = "inferscale import data/sample/conversation.jsonl\n"
                    "inferscale import locomo10.json --sample conv-26 --no-encode",
    };
    is_cli cli;
    is_error err = {0};
    if (!is_cli_parse(&cli, &spec, argc, argv)) return cli.exit;
    if (cli.n_args != 1) return is_cli_usage(&cli, "one file is wanted, and there are %d", cli.n_args);
    const char *path = cli.args[0];
    FILE *in = strcmp(path, "-") == 0 ? stdin : fopen(path, "re");
    if (in == NULL) {
        (void)is_fail(&err, errno == ENOENT ? IS_ENOTFOUND : IS_EIO, "cannot read %s: %s", path, strerror(errno));
        return is_cli_fail(&cli, &err);
    }
    int code = run_import(&cli, in, sample, !no_encode);
    if (in != stdin) (void)fclose(in);
    return code;
}
