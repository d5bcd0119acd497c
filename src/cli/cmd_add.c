/*
 * inferscale add: facts from the command line or from stdin.  Their ids are printed as soon as they are durable, which
 * is before they are encoded.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "common/common.h"

typedef struct texts {
    const char **items; /* [n] */
    size_t n;
    char *bytes; /* stdin's lines, or NULL */
} texts;

static void append(texts *out, const char *text)
{
    const char **items = realloc(out->items, (out->n + 1) * sizeof *items);
    if (items == NULL) is_cli_no_memory();
    out->items = items;
    out->items[out->n++] = text;
}

static is_status read_stdin(char **out, is_error *err)
{
    size_t room = 1 << 16;
    size_t n = 0;
    char *bytes = malloc(room);
    size_t got = bytes != NULL ? fread(bytes, 1, room - 1, stdin) : 0;
    while (bytes != NULL && got > 0) {
        n += got;
        if (room - n < 2) {
            room *= 2;
            char *grown = realloc(bytes, room);
            if (grown == NULL) free(bytes);
            bytes = grown;
        }
        got = bytes != NULL ? fread(bytes + n, 1, room - 1 - n, stdin) : 0;
    }
    if (bytes == NULL) is_cli_no_memory();
    *out = bytes;
    bytes[n] = '\0';
    if (ferror(stdin)) return is_fail(err, IS_EIO, "cannot read from stdin: %s", strerror(errno));
    if (strlen(bytes) < n) return is_fail(err, IS_EINVAL, "stdin holds a zero byte; facts are text, one a line");
    return IS_OK;
}

/* Each line that is not blank. */
static void split_lines(texts *out)
{
    for (char *line = out->bytes; *line != '\0';) {
        size_t n = strcspn(line, "\n");
        bool last = line[n] == '\0';
        line[n] = '\0';
        if (line[strspn(line, " \t\r\v\f")] != '\0') append(out, line);
        line += n + (last ? 0 : 1);
    }
}

static is_status add(const is_cli *cli, is_memory *memory, const texts *from, const is_fact *like, json_t *ids,
                     is_error *err)
{
    is_fact *facts = calloc(from->n + 1, sizeof *facts);
    int64_t *new_ids = calloc(from->n + 1, sizeof *new_ids);
    if (facts == NULL || new_ids == NULL) is_cli_no_memory();
    for (size_t i = 0; i < from->n; i++) {
        facts[i] = *like;
        facts[i].text = from->items[i];
    }
    is_status status = is_add_facts(memory, &cli->scope, facts, from->n, new_ids, err);
    for (size_t i = 0; status == IS_OK && i < from->n; i++) {
        is_cli_append(ids, json_integer(new_ids[i]));
        if (!cli->json) printf("%lld\n", (long long)new_ids[i]);
    }
    (void)fflush(stdout);
    free(facts);
    free(new_ids);
    return status;
}

static int run(const is_cli *cli, const texts *from, const is_fact *like, bool wait)
{
    is_error err = {0};
    is_memory *memory;
    uint64_t encoded = 0;
    json_t *ids = json_array();
    is_cli_catch_interrupts();
    is_status status = is_cli_open(cli, IS_CLI_CREATE | IS_CLI_EMBED | (wait ? IS_CLI_CHAT : 0), &memory, &err);
    if (status == IS_OK && from->n > 0) status = add(cli, memory, from, like, ids, &err);
    if (status == IS_OK && wait) status = is_cli_encode(cli, memory, from->n > 0 ? &cli->scope : NULL, &encoded, &err);
    is_close(memory);
    if (status != IS_OK) {
        json_decref(ids);
        return is_cli_fail(cli, &err);
    }
    json_t *root = json_object();
    is_cli_set(root, "ids", ids);
    is_cli_set(root, "encoded", json_integer((json_int_t)encoded));
    if (cli->json)
        is_cli_print_json(root);
    else
        json_decref(root);
    return IS_EXIT_OK;
}

int is_cmd_add(int argc, char **argv)
{
    bool no_wait = false;
    is_fact like = {.time = IS_TIME_NONE};
    const is_cli_option options[] = {
        {"time", 0, IS_CLI_TIME, &like.time, 0, 0, "DATE", "when it was said, such as 2024-05-01 or 2024-05-01T13:56Z"},
        {"source", 0, IS_CLI_TEXT, &like.source, 0, 0, "ID", "the turn that it comes from"},
        {"metadata", 0, IS_CLI_OBJECT, &like.metadata, 0, 0, "JSON", "an object, to filter by with --where"},
        {"no-wait", 0, IS_CLI_FLAG, &no_wait, 0, 0, NULL, "add, and leave the encoding to a later command"},
    };
    const is_cli_spec spec = {
        .synopsis = "add [options] TEXT...\nadd [options] -\nadd [options]",
        .about = "Adds facts about a user and prints their ids, one a line; they are on disk then. After that it\n"
                 "encodes what that user has pending. With - the facts come from stdin, one a line. Without a\n"
                 "text it encodes whatever is pending in the store, of everybody.",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .examples = "inferscale add \"Nadia's dentist is called Dr. Moreau.\" --time 2024-05-01\n"
                    "printf 'Nadia likes rye bread.\\nNadia is allergic to nuts.\\n' | inferscale add - --user nadia",
    };
    is_cli cli;
    texts from = {0};
    is_error err = {0};
    if (!is_cli_parse(&cli, &spec, argc, argv)) return cli.exit;
    if (cli.n_args == 0 && no_wait) return is_cli_usage(&cli, "a text is missing");
    bool from_stdin = cli.n_args == 1 && strcmp(cli.args[0], "-") == 0;
    is_status status = from_stdin ? read_stdin(&from.bytes, &err) : IS_OK;
    if (from_stdin && status == IS_OK) split_lines(&from);
    for (int i = 0; !from_stdin && i < cli.n_args; i++) append(&from, cli.args[i]);
    int code;
    if (status != IS_OK)
        code = is_cli_fail(&cli, &err);
    else if (from_stdin && from.n == 0)
        code = is_cli_usage(&cli, "stdin holds no text");
    else
        code = run(&cli, &from, &like, !no_wait);
    free(from.items);
    free(from.bytes);
    return code;
}
