/* inferscale ask: one question, answered with a user's facts. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"

/* Streams the answer.  Runs on the engine's thread, while this one waits. */
static bool on_token(void *user, const char *piece, size_t n)
{
    const is_cli *cli = user;
    if (!cli->json) {
        is_cli_put_text(piece, n);
        (void)fflush(stdout);
    }
    return !is_cli_interrupted() && !ferror(stdout);
}

static void print_json(const is_answer *answer, const char *mode)
{
    json_t *root = is_cli_json_answer(answer);
    is_cli_set(root, "mode", is_cli_json_text(mode));
    is_cli_set(root, "facts", is_cli_json_facts(answer->facts, true));
    is_cli_print_json(root);
}

static void print_summary(const is_cli *cli, const is_ask_options *options, const is_answer *answer)
{
    is_cli_note(cli, "TTFT %s; %s tokens injected, %s prefilled; %zu facts, %u of them from chunks",
                is_cli_duration(answer->timing.ttft_ms).s, is_cli_count(answer->tokens_injected).s,
                is_cli_count(answer->tokens_prefilled).s, answer->facts->n, answer->facts_injected);
    if (answer->facts->n == 0 && options->mode != IS_MODE_OFF && options->k > 0) {
        char name[512];
        is_cli_scope_name(&cli->scope, name, sizeof name);
        is_cli_note(cli, "no fact of %s fits; it was answered without memory", name);
    }
    if (answer->facts_dropped > 0)
        is_cli_note(cli, "%u facts did not fit into the context; --context makes it longer", answer->facts_dropped);
    if (answer->refused > 0)
        is_cli_note(cli, "%u chunks were not usable; `inferscale verify` says why", answer->refused);
}

static int ask(const is_cli *cli, const is_ask_options *options, const char *mode, bool show_facts)
{
    is_error err = {0};
    is_memory *memory;
    is_answer *answer = NULL;
    is_cli_catch_interrupts();
    is_status status = is_cli_open(cli, IS_CLI_EMBED | IS_CLI_CHAT, &memory, &err);
    if (status == IS_OK && !is_cli_interrupted())
        (void)is_ask(memory, &cli->scope, cli->args[0], options, &answer, &err);
    is_close(memory);
    if (answer == NULL) return is_cli_fail(cli, &err);
    if (cli->json) {
        print_json(answer, mode);
    } else {
        putchar('\n');
        if (show_facts) is_cli_print_facts(answer->facts);
        (void)fflush(stdout);
        print_summary(cli, options, answer);
    }
    is_answer_free(answer);
    return is_cli_interrupted() ? IS_EXIT_INTERRUPTED : IS_EXIT_OK;
}

static bool read_mode(const char *text, is_mode *out)
{
    static const char *const names[] = {
        [IS_MODE_INJECT] = "inject", [IS_MODE_PREFILL] = "prefill", [IS_MODE_OFF] = "off"};
    for (int i = 0; i < 3; i++) {
        if (strcmp(text, names[i]) != 0) continue;
        *out = (is_mode)i;
        return true;
    }
    return false;
}

int is_cmd_ask(int argc, char **argv)
{
    bool show_facts = false;
    const char *mode = "inject";
    uint32_t top_k = 0;
    is_cli_list stop = {0};
    is_filter filter = {.time_from = IS_TIME_NONE, .time_to = IS_TIME_NONE};
    is_ask_options ask_options = is_ask_options_default();
    is_sampling *sampling = &ask_options.sampling;
    const is_cli_option options[] = {
        {NULL, 'k', IS_CLI_UINT, &ask_options.k, 0, 200, "N", "facts in the prompt, 0 to 200 (default: 50)"},
        {"mode", 0, IS_CLI_TEXT, &mode, 0, 0, "MODE",
         "inject (default): the facts' KV state is put into the cache; prefill: their text is prefilled; off: no "
         "facts"},
        {"fresh", 0, IS_CLI_UINT, &ask_options.fresh, 0, 200, "M",
         "prefill the best M facts behind the injected others (default: 0)"},
        {"from", 0, IS_CLI_TIME, &filter.time_from, 0, 0, "DATE", "only facts of this time or later"},
        {"to", 0, IS_CLI_TIME, &filter.time_to, 0, 0, "DATE", "only facts before this time"},
        {"where", 0, IS_CLI_OBJECT, &filter.metadata, 0, 0, "JSON", "only facts whose metadata has these members"},
        {"max-tokens", 0, IS_CLI_UINT, &ask_options.max_tokens, 1, 1 << 20, "N", "longest answer (default: 128)"},
        {"temperature", 0, IS_CLI_REAL, &sampling->temperature, 0, 100, "T", "0, the default, is greedy"},
        {"top-p", 0, IS_CLI_REAL, &sampling->top_p, 0, 1, "P", "default: 1, off"},
        {"top-k", 0, IS_CLI_UINT, &top_k, 0, INT32_MAX, "N", "default: 0, off"},
        {"min-p", 0, IS_CLI_REAL, &sampling->min_p, 0, 1, "P", "default: 0, off"},
        {"seed", 0, IS_CLI_UINT, &sampling->seed, 0, UINT32_MAX, "N", "of the sampling (default: 0)"},
        {"repeat-penalty", 0, IS_CLI_REAL, &sampling->repeat_penalty, 0, 100, "X", "default: 1, off"},
        {"stop", 0, IS_CLI_LIST, &stop, 0, 0, "TEXT", "end the answer before this text; may be repeated"},
        {"facts", 0, IS_CLI_FLAG, &show_facts, 0, 0, NULL, "list the facts that were in the prompt, best first"},
    };
    const is_cli_spec spec = {
        .synopsis = "ask [options] QUESTION",
        .about = "Answers a question with the user's facts. The answer streams to stdout; then one line on stderr\n"
                 "says how long the first token took and where the prompt's tokens came from. With --json the\n"
                 "answer, the facts and all timings come as one object at the end.",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .examples = "inferscale ask \"Where do I keep my spare reading glasses?\"\n"
                    "inferscale ask \"What should I cook tonight?\" -k 20 --temperature 0.7 --top-p 0.9 --facts",
    };
    is_cli cli;
    int code;
    if (!is_cli_parse(&cli, &spec, argc, argv)) {
        code = cli.exit;
    } else if (cli.n_args != 1 || cli.args[0][0] == '\0') {
        code = is_cli_usage(&cli, "one question is wanted; put it into quotes");
    } else if (!read_mode(mode, &ask_options.mode)) {
        code = is_cli_usage(&cli, "--mode must be inject, prefill or off, and is \"%s\"", mode);
    } else {
        sampling->top_k = (int32_t)top_k;
        ask_options.filter = &filter;
        ask_options.stop = stop.items;
        ask_options.n_stop = stop.n;
        ask_options.on_token = on_token;
        ask_options.user = &cli;
        code = ask(&cli, &ask_options, mode, show_facts);
    }
    free(stop.items);
    return code;
}
