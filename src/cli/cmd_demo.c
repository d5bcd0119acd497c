/*
 * inferscale demo: the whole idea in one run.  The sample conversation's facts are imported and encoded once; then
 * each question is asked twice of a running server, over HTTP, with the same facts in the same order: once their text
 * is prefilled, once their KV state is injected.  A second run finds everything encoded.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/common.h"
#include "demo.h"
#include "http.h"
#include "memory/import.h"
#include "server/server.h"

#define MAX_SEEN 1000000 /* facts of the store that the sample's are compared with */

typedef struct demo_options {
    const char *folder, *out;
} demo_options;

static char *join(const char *folder, const char *file)
{
    char *path = NULL;
    if (asprintf(&path, "%s/%s", folder, file) < 0) is_cli_no_memory();
    return path;
}

/* A step of the demo, for people. */
static void say(const is_demo *demo, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void say(const is_demo *demo, const char *format, ...)
{
    if (demo->cli->json) return;
    va_list args;
    va_start(args, format);
    (void)vprintf(format, args);
    va_end(args);
    putchar('\n');
    (void)fflush(stdout);
}

/* ------------------------------------------------------------ the sample */

static is_status read_questions(is_demo *demo, const char *folder, is_error *err)
{
    json_error_t why;
    char *path = join(folder, "questions.json");
    demo->questions = json_load_file(path, 0, &why);
    for (size_t i = 0; i < json_array_size(demo->questions) && demo->n_asked < IS_DEMO_QUESTIONS; i++) {
        const json_t *entry = json_array_get(demo->questions, i);
        is_demo_question *question = &demo->asked[demo->n_asked];
        question->question = json_string_value(json_object_get(entry, "question"));
        question->expected = json_string_value(json_object_get(entry, "answer"));
        if (question->question != NULL) demo->n_asked++;
    }
    is_status status = IS_OK;
    if (demo->questions == NULL)
        status = is_fail(err, IS_EIO, "cannot read %s: %s; run the demo where data/sample is, or name it with --folder",
                         path, why.text);
    else if (demo->n_asked == 0)
        status = is_fail(err, IS_EINVAL, "%s is no array of objects with a \"question\"", path);
    free(path);
    return status;
}

static is_status read_conversation(is_demo *demo, is_memory *memory, const char *path, const is_fact_list *seen,
                                   is_error *err)
{
    FILE *in = fopen(path, "re");
    if (in == NULL)
        return is_fail(err, IS_EIO, "cannot read %s: %s; name its folder with --folder", path, strerror(errno));
    is_cli_batch *batch = is_cli_batch_new(demo->cli, memory, seen);
    is_import_options options = {.scope = demo->cli->scope};
    is_import_callbacks callbacks = {.turn = is_cli_batch_turn, .fact = is_cli_batch_fact, .user = batch};
    is_import_counts counts;
    uint64_t turns;
    is_status status = is_import_read(in, &options, &callbacks, &counts, err);
    is_status added = is_cli_batch_end(batch, status == IS_OK || status == IS_ECANCELED ? err : NULL);
    is_cli_batch_counts(batch, &turns, &demo->imported);
    is_cli_batch_free(batch);
    (void)fclose(in);
    return status == IS_OK || status == IS_ECANCELED ? added : status;
}

/* Adds what the store does not have; so a run that was cut short is completed by the next one. */
static is_status import_sample(is_demo *demo, is_memory *memory, const char *folder, is_error *err)
{
    is_fact_list *seen = NULL;
    char *path = join(folder, "conversation.jsonl");
    is_status status = is_list(memory, &demo->cli->scope, 0, MAX_SEEN, &seen, err);
    if (status == IS_ENOTFOUND) status = IS_OK; /* a new store */
    if (status == IS_OK) status = read_conversation(demo, memory, path, seen, err);
    demo->facts = (seen != NULL ? seen->n : 0) + demo->imported;
    if (status == IS_OK && demo->imported > 0)
        say(demo, "1. Imported %s facts from %s into %s", is_cli_count(demo->imported).s, path, demo->store);
    else if (status == IS_OK)
        say(demo, "1. The facts of %s are in %s already: %s", path, demo->store, is_cli_count(demo->facts).s);
    is_fact_list_free(seen);
    free(path);
    return status;
}

static is_status encode(is_demo *demo, is_memory *memory, is_error *err)
{
    say(demo, "2. Encoding: each fact's KV state is computed once and kept");
    double begun = is_now_ms();
    is_status status = is_cli_encode(demo->cli, memory, &demo->cli->scope, &demo->encoded, err);
    demo->encode_ms = is_now_ms() - begun;
    if (status == IS_OK && demo->encoded == 0) say(demo, "   nothing to do, everything is encoded");
    return status;
}

/* ------------------------------------------------------------ asking */

static uint32_t count(const json_t *object, const char *name)
{
    return (uint32_t)json_integer_value(json_object_get(object, name));
}

/* What the server's reply says, in the form that the report shows. */
static is_answer *read_reply(const json_t *reply)
{
    const json_t *choice = json_array_get(json_object_get(reply, "choices"), 0);
    const json_t *memory = json_object_get(reply, "inferscale");
    const json_t *timing = json_object_get(memory, "timing");
    const char *text = json_string_value(json_object_get(json_object_get(choice, "message"), "content"));
    const char *finish = json_string_value(json_object_get(choice, "finish_reason"));
    is_answer *answer = calloc(1, sizeof *answer);
    if (answer == NULL) is_cli_no_memory();
    answer->text = strdup(text == NULL ? "" : text);
    answer->facts = calloc(1, sizeof *answer->facts);
    if (answer->text == NULL || answer->facts == NULL) is_cli_no_memory();
    answer->finish = finish != NULL && strcmp(finish, "length") == 0 ? "length" : "stop";
    answer->facts_dropped = count(memory, "dropped");
    answer->facts_injected = count(memory, "facts_injected");
    answer->tokens_injected = count(memory, "tokens_injected");
    answer->tokens_prefilled = count(memory, "tokens_prefilled");
    answer->tokens_generated = count(json_object_get(reply, "usage"), "completion_tokens");
    answer->inject_bytes = (uint64_t)json_integer_value(json_object_get(memory, "inject_bytes"));
    answer->timing = (is_timing){.embed_ms = is_cli_number(timing, "embed_ms"),
                                 .rank_ms = is_cli_number(timing, "rank_ms"),
                                 .fetch_ms = is_cli_number(timing, "fetch_ms"),
                                 .inject_ms = is_cli_number(timing, "inject_ms"),
                                 .prefill_ms = is_cli_number(timing, "prefill_ms"),
                                 .queue_ms = is_cli_number(timing, "queue_ms"),
                                 .ttft_ms = is_cli_number(timing, "ttft_ms"),
                                 .total_ms = is_cli_number(timing, "total_ms")};
    return answer;
}

static is_status ask(const is_demo *demo, const char *question, const char *mode, uint32_t k, uint32_t max_tokens,
                     is_answer **out, is_error *err)
{
    json_t *reply = NULL;
    json_t *body =
        json_pack("{s:s, s:s, s:i, s:i, s:[{s:s, s:s}], s:{s:s, s:i, s:s}}", "model", "inferscale", "user",
                  demo->cli->scope.user, "temperature", 0, "max_tokens", (int)max_tokens, "messages", "role", "user",
                  "content", question, "inferscale", "mode", mode, "k", (int)k, "history", "recompute");
    *out = NULL;
    is_status status = is_cli_post(demo->url, body, &reply, err);
    json_decref(body);
    if (status == IS_OK) *out = read_reply(reply);
    json_decref(reply);
    if (status == IS_OK && is_cli_interrupted()) status = is_fail(err, IS_ECANCELED, "interrupted");
    return status;
}

/*
 * One question that is not measured, so that no question pays for what happens once in a process: chunks read from
 * disk (all of them: k is as large as it may be) and memory touched for the first time.  The server has prefilled
 * some text already when it starts.
 */
static is_status warm_up(const is_demo *demo, is_error *err)
{
    is_answer *answer = NULL;
    is_status status = ask(demo, "What do you remember about me?", "inject", 200, 2, &answer, err);
    is_answer_free(answer);
    return status;
}

static is_status ask_each(is_demo *demo, is_error *err)
{
    is_status status = warm_up(demo, err);
    for (size_t i = 0; i < demo->n_asked && status == IS_OK; i++) {
        is_demo_question *q = &demo->asked[i];
        status = ask(demo, q->question, "prefill", IS_DEMO_K, IS_DEMO_MAX_TOKENS, &q->prefill, err);
        if (status == IS_OK) status = ask(demo, q->question, "inject", IS_DEMO_K, IS_DEMO_MAX_TOKENS, &q->inject, err);
        if (status == IS_OK && !demo->cli->json) is_demo_print_question(q, i + 1);
    }
    return status;
}

static is_status ask_all(is_demo *demo, is_memory *memory, is_error *err)
{
    is_server *server = NULL;
    is_server_options options = is_server_options_default();
    options.port = 0; /* any free one */
    options.workers = 2;
    is_status status = is_server_start(memory, &options, &server, err);
    if (status != IS_OK) return status;
    (void)snprintf(demo->url, sizeof demo->url, "http://127.0.0.1:%u/v1/chat/completions", is_server_port(server));
    say(demo,
        "3. Asking a server at %s: each question twice, with the same\n"
        "   %d facts. Prefilled is how memory is served today: the facts' text is put into the prompt and read by\n"
        "   the model each time. Injected is InferScale: their KV state is put into the model's cache, and only\n"
        "   the question is read",
        demo->url, IS_DEMO_K);
    status = ask_each(demo, err);
    is_server_stop(server);
    return status;
}

/* ------------------------------------------------------------ all of it */

static is_status describe(is_demo *demo, is_memory *memory, is_error *err)
{
    char *text = NULL;
    is_status status = is_describe(memory, &text, err);
    demo->system = status == IS_OK ? json_loads(text, 0, NULL) : NULL;
    if (demo->system == NULL) demo->system = json_null();
    free(text);
    return status;
}

static is_status write_json(const is_demo *demo, const char *path, is_error *err)
{
    json_t *all = is_demo_json(demo);
    FILE *out = fopen(path, "we");
    bool well =
        out != NULL && json_dumpf(all, out, JSON_INDENT(2) | JSON_REAL_PRECISION(7)) == 0 && fputc('\n', out) != EOF;
    int error = errno;
    if (out != NULL && fclose(out) != 0 && well) {
        well = false;
        error = errno;
    }
    if (well && demo->cli->json)
        is_cli_print_json(all);
    else
        json_decref(all);
    if (well) return IS_OK;
    return is_fail(err, IS_EIO, "cannot write %s: %s; name another file with --out", path, strerror(error));
}

static is_status run(is_demo *demo, const demo_options *options, is_memory *memory, double begun, is_error *err)
{
    is_status status = describe(demo, memory, err);
    if (status == IS_OK) status = import_sample(demo, memory, options->folder, err);
    if (status == IS_OK) status = encode(demo, memory, err);
    if (status == IS_OK) status = ask_all(demo, memory, err);
    demo->total_ms = is_now_ms() - begun;
    if (status == IS_OK) status = write_json(demo, options->out, err);
    if (status != IS_OK || demo->cli->json) return status;
    is_demo_print_end(demo);
    printf("\nAll of this as JSON: %s\n", options->out);
    return IS_OK;
}

static void demo_close(is_demo *demo)
{
    for (size_t i = 0; i < demo->n_asked; i++) {
        is_answer_free(demo->asked[i].prefill);
        is_answer_free(demo->asked[i].inject);
    }
    free(demo->store);
    free(demo->model);
    free(demo->embedding_model);
    json_decref(demo->machine);
    json_decref(demo->system);
    json_decref(demo->questions);
}

int is_cmd_demo(int argc, char **argv)
{
    demo_options files = {"data/sample", "build/demo.json"};
    const is_cli_option options[] = {
        {"folder", 0, IS_CLI_TEXT, &files.folder, 0, 0, "FOLDER", "the sample conversation (default: data/sample)"},
        {"out", 0, IS_CLI_TEXT, &files.out, 0, 0, "FILE", "what was measured, as JSON (default: build/demo.json)"},
    };
    const is_cli_spec spec = {
        .synopsis = "demo [options]",
        .about = "Imports the sample conversation, encodes its facts, and asks three questions, each once with\n"
                 "prefilled and once with injected memory. The store is build/demo-store unless --store names\n"
                 "another; a second run finds everything there.",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .examples = "inferscale demo\ninferscale demo --store /tmp/demo-store --out /tmp/demo.json --json",
    };
    is_cli cli;
    is_error err = {0};
    is_memory *memory = NULL;
    double begun = is_now_ms();
    if (!is_cli_parse(&cli, &spec, argc, argv)) return cli.exit;
    if (cli.n_args > 0) return is_cli_usage(&cli, "\"%s\" is too much", cli.args[0]);
    if (cli.store == NULL) cli.store = "build/demo-store"; /* not the user's own */
    is_cli_catch_interrupts();
    is_demo demo = {.cli = &cli,
                    .store = is_cli_store_path(&cli),
                    .model = is_cli_model_path(&cli),
                    .embedding_model = is_cli_embedding_path(&cli),
                    .machine = is_cli_machine()};
    is_status status = read_questions(&demo, files.folder, &err);
    if (status == IS_OK) status = is_cli_open(&cli, IS_CLI_CREATE | IS_CLI_EMBED | IS_CLI_CHAT, &memory, &err);
    if (status == IS_OK) status = run(&demo, &files, memory, begun, &err);
    is_close(memory);
    demo_close(&demo);
    return status == IS_OK ? IS_EXIT_OK : is_cli_fail(&cli, &err);
}
