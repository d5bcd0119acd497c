/*
 * inferscale serve: the HTTP server, until a signal ends it.
 *
 * Settings come from the command line, else from the environment (INFERSCALE_PORT for --port), else from a file: all
 * of them become words of one command line, the weakest first, so there is one reader and one set of checks.
 */
#include <ctype.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli.h"
#include "common/common.h"
#include "server/server.h"

#define DEFAULT_SLOTS   16
#define UPSTREAM_SLOTS  128 /* vLLM has its own limit; these are threads that wait */
#define AGAIN_S         2   /* between two looks for an upstream when the server starts */
#define DEFAULT_CONTEXT 4096
#define MAX_FILE        ((size_t)1 << 20)

/* Options that the environment may set. */
static const char *const SETTINGS[] = {
    "host",           "port",         "keys",           "tls-cert",      "tls-key",         "queue",   "rate",
    "max-body",       "connections",  "idle",           "drain",         "slots",           "context", "threads",
    "memory",         "recipe",       "store",          "model",         "embedding-model", "engine",  "upstream",
    "upstream-model", "upstream-key", "device-vectors", "device-chunks",
};

typedef struct words {
    char **argv;
    int argc;
} words;

static void add_word(words *w, char *word)
{
    char **grown = realloc(w->argv, ((size_t)w->argc + 2) * sizeof *grown);
    if (grown == NULL || word == NULL) is_cli_no_memory();
    w->argv = grown;
    w->argv[w->argc++] = word;
    w->argv[w->argc] = NULL;
}

static char *option_word(const char *name, const char *value)
{
    char *word = NULL;
    if (asprintf(&word, "--%s=%s", name, value) < 0) is_cli_no_memory();
    return word;
}

/* ------------------------------------------------------------ file and environment */

static char *read_file(const char *path, is_error *err)
{
    FILE *in = fopen(path, "re");
    char *text = in == NULL ? NULL : calloc(1, MAX_FILE + 1);
    if (in == NULL) {
        (void)is_fail(err, errno == ENOENT ? IS_ENOTFOUND : IS_EIO, "cannot read %s: %s", path, strerror(errno));
        return NULL;
    }
    if (text == NULL) is_cli_no_memory();
    size_t n = fread(text, 1, MAX_FILE, in);
    bool whole = !ferror(in) && fgetc(in) == EOF;
    (void)fclose(in);
    if (whole && strlen(text) == n) return text;
    free(text);
    (void)is_fail(err, IS_EINVAL, "%s is no text file of at most 1 MiB", path);
    return NULL;
}

static bool add_setting(words *w, const char *path, const char *name, const json_t *value, is_error *err)
{
    char number[32];
    (void)snprintf(number, sizeof number, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    if (json_is_string(value)) {
        add_word(w, option_word(name, json_string_value(value)));
    } else if (json_is_integer(value)) {
        add_word(w, option_word(name, number));
    } else if (json_is_true(value)) {
        char *word = NULL;
        if (asprintf(&word, "--%s", name) < 0) is_cli_no_memory();
        add_word(w, word);
    } else if (!json_is_false(value)) {
        (void)is_fail(err, IS_EINVAL, "%s: \"%s\" must be a text, a whole number, true or false", path, name);
        return false;
    }
    return true;
}

static bool add_file(words *w, const char *path, is_error *err)
{
    json_error_t error;
    char *text = read_file(path, err);
    if (text == NULL) return false;
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    free(text);
    if (!json_is_object(root)) {
        (void)is_fail(err, IS_EINVAL, "%s is no JSON object: line %d: %s", path, error.line, error.text);
        json_decref(root);
        return false;
    }
    const char *name;
    json_t *value;
    bool ok = true;
    json_object_foreach(root, name, value) ok = ok && add_setting(w, path, name, value, err);
    json_decref(root);
    return ok;
}

static void add_environment(words *w)
{
    for (size_t i = 0; i < sizeof SETTINGS / sizeof SETTINGS[0]; i++) {
        char name[64] = "INFERSCALE_";
        size_t n = strlen(name);
        for (const char *c = SETTINGS[i]; *c != '\0' && n + 1 < sizeof name; c++)
            name[n++] = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
        name[n] = '\0';
        const char *value = getenv(name);
        if (value != NULL && value[0] != '\0') add_word(w, option_word(SETTINGS[i], value));
    }
}

/* The file that the line or the environment names. */
static const char *config_of(int argc, char **argv)
{
    const char *path = getenv("INFERSCALE_CONFIG");
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--config") == 0 && i + 1 < argc) path = argv[i + 1];
        if (strncmp(argv[i], "--config=", 9) == 0) path = argv[i] + 9;
    }
    return path != NULL && path[0] != '\0' ? path : NULL;
}

/* ------------------------------------------------------------ serving */

typedef struct serving {
    is_server_options server;
    const char *config, *keys, *cert, *key;
    uint32_t port, drain;
} serving;

static void on_log(void *user, int level, const char *line)
{
    const is_cli *cli = user;
    if (level <= 1)
        fprintf(stderr, "inferscale: %s%s\n", level == 1 ? "warning: " : "", line);
    else
        is_cli_note(cli, "inferscale: %s", line);
}

static void announce(const is_cli *cli, const is_server *server, const serving *s)
{
    const char *scheme = s->cert != NULL ? "https" : "http";
    bool six = strchr(s->server.host, ':') != NULL;
    char url[300];
    (void)snprintf(url, sizeof url, "%s://%s%s%s:%u", scheme, six ? "[" : "", s->server.host, six ? "]" : "",
                   is_server_port(server));
    if (cli->json) {
        json_t *root = json_object();
        is_cli_set(root, "url", is_cli_json_text(url));
        is_cli_set(root, "model", is_cli_json_text(is_server_model(server)));
        is_cli_print_json(root);
    } else {
        printf("Serving %s at %s\nThe dashboard is there, OpenAI's interface under %s/v1. Ctrl-C ends it.\n",
               is_server_model(server), url, url);
    }
    (void)fflush(stdout);
}

/* vLLM takes minutes to load a model, and is often started together with this server: it is waited for. */
static is_status open_memory(const is_cli *cli, const sigset_t *signals, is_memory **memory, is_error *err)
{
    bool told = false;
    for (;;) {
        is_status status =
            is_cli_open(cli, IS_CLI_CREATE | IS_CLI_EMBED | IS_CLI_CHAT | IS_CLI_BACKGROUND, memory, err);
        if (status != IS_EUNAVAILABLE) return status;
        if (!told) is_cli_note(cli, "inferscale: waiting for upstreams: %s", err->text);
        told = true;
        const struct timespec moment = {.tv_sec = AGAIN_S};
        if (sigtimedwait(signals, NULL, &moment) > 0) return status;
    }
}

static is_status serve(const is_cli *cli, serving *s, const sigset_t *signals, is_error *err)
{
    is_memory *memory = NULL;
    is_server *server = NULL;
    int signal_number = 0;
    is_status status = open_memory(cli, signals, &memory, err);
    if (status == IS_OK) status = is_server_start(memory, &s->server, &server, err);
    if (status == IS_OK) {
        announce(cli, server, s);
        (void)sigwait(signals, &signal_number);
        /* timeout(1) and shells send one to the process and one to its group: that is not yet another signal. */
        const struct timespec twice = {.tv_nsec = 200000000};
        while (sigtimedwait(signals, NULL, &twice) > 0) {
        }
        is_cli_note(cli, "inferscale: going down; requests in work have %u s to end, another signal ends them now",
                    s->drain);
        (void)pthread_sigmask(SIG_UNBLOCK, signals, NULL);
        if (!is_server_drain(server, s->drain * 1000.0)) is_cli_note(cli, "inferscale: some requests were cut off");
    }
    is_server_stop(server);
    is_close(memory);
    return status;
}

static is_status read_files(serving *s, char **texts, is_error *err)
{
    const char *const paths[] = {s->keys, s->cert, s->key};
    for (int i = 0; i < 3; i++) {
        if (paths[i] == NULL) continue;
        texts[i] = read_file(paths[i], err);
        if (texts[i] == NULL) return err->status;
    }
    s->server.keys = texts[0] != NULL ? texts[0] : getenv("INFERSCALE_API_KEYS");
    s->server.tls_cert = texts[1];
    s->server.tls_key = texts[2];
    return IS_OK;
}

static char *base_name(char *path)
{
    char *slash = strrchr(path, '/');
    char *dot = strrchr(path, '.');
    if (dot != NULL && (slash == NULL || dot > slash)) *dot = '\0';
    return slash != NULL ? slash + 1 : path;
}

static int run(is_cli *cli, serving *s)
{
    is_error err = {0};
    char *texts[3] = {NULL};
    sigset_t signals;
    (void)sigemptyset(&signals);
    (void)sigaddset(&signals, SIGTERM);
    (void)sigaddset(&signals, SIGINT);
    (void)pthread_sigmask(SIG_BLOCK, &signals, NULL); /* threads that begin now leave them to this one */
    char *model = is_cli_model_path(cli), *embedder = is_cli_embedding_path(cli);
    if (cli->slots == 0) cli->slots = cli->upstreams != NULL ? UPSTREAM_SLOTS : DEFAULT_SLOTS;
    if (cli->context == 0) cli->context = DEFAULT_CONTEXT;
    s->server.port = (uint16_t)s->port;
    s->server.workers = cli->slots + 2; /* the next ones are looked up while all slots are busy */
    if (cli->upstreams == NULL) s->server.model = base_name(model);
    s->server.embedder = base_name(embedder);
    s->server.log = on_log;
    s->server.log_user = cli;
    is_status status = read_files(s, texts, &err);
    if (status == IS_OK) status = serve(cli, s, &signals, &err);
    for (int i = 0; i < 3; i++) free(texts[i]);
    free(model);
    free(embedder);
    return status == IS_OK ? IS_EXIT_OK : is_cli_fail(cli, &err);
}

static int parse_and_run(words *w)
{
    serving s = {.server = is_server_options_default(), .port = 8080, .drain = 30};
    const is_cli_option options[] = {
        {"host", 0, IS_CLI_TEXT, &s.server.host, 0, 0, "ADDRESS",
         "where to listen (default: 127.0.0.1); what other machines can reach needs --keys"},
        {"port", 'p', IS_CLI_UINT, &s.port, 0, 65535, "N", "default: 8080; 0: any free one"},
        {"config", 0, IS_CLI_TEXT, &s.config, 0, 0, "FILE",
         "a JSON object of these options, such as {\"port\": 9000, \"slots\": 8}; INFERSCALE_PORT and so on come "
         "before "
         "it, and the command line before both"},
        {"keys", 0, IS_CLI_TEXT, &s.keys, 0, 0, "FILE",
         "API keys, one line each as `inferscale key` writes it (or in $INFERSCALE_API_KEYS); each sees its tenant "
         "only"},
        {"tls-cert", 0, IS_CLI_TEXT, &s.cert, 0, 0, "FILE", "certificate chain (PEM), for https"},
        {"tls-key", 0, IS_CLI_TEXT, &s.key, 0, 0, "FILE", "its private key (PEM)"},
        {"queue", 0, IS_CLI_UINT, &s.server.queue, 1, 1 << 20, "N",
         "requests that may wait; one more gets 429 (default: 256)"},
        {"rate", 0, IS_CLI_UINT, &s.server.rate, 0, 1 << 20, "N",
         "requests a minute of each tenant, or each address without keys (default: 0, any)"},
        {"max-body", 0, IS_CLI_BYTES, &s.server.max_body, 0, 0, "BYTES", "largest request (default: 16M)"},
        {"connections", 0, IS_CLI_UINT, &s.server.connections, 1, 1 << 20, "N",
         "open at the same time (default: 4096)"},
        {"idle", 0, IS_CLI_UINT, &s.server.idle_s, 1, 86400, "SECONDS",
         "a connection on which nothing moves is closed (default: 60)"},
        {"drain", 0, IS_CLI_UINT, &s.drain, 0, 86400, "SECONDS",
         "what requests in work get to end when a signal ends the server (default: 30)"},
    };
    const is_cli_spec spec = {
        .synopsis = "serve [options]",
        .about = "Serves OpenAI's interface with memory, the memory interface and a dashboard over HTTP, from one\n"
                 "store, until SIGTERM or Ctrl-C. It answers up to --slots requests at the same time (default: 16)\n"
                 "of up to --context tokens each (default: 4096); new facts are encoded while it serves. With\n"
                 "--engine vllm it stands in front of vLLM servers that have this store's chunks as their folder.",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .examples = "inferscale serve\n"
                    "inferscale serve --port 9000 --slots 8 --store ./memory\n"
                    "inferscale serve --engine vllm --upstream http://gpu1:8000,http://gpu2:8000\n"
                    "inferscale key acme --keys keys.txt && inferscale serve --host 0.0.0.0 --keys keys.txt",
    };
    is_cli cli;
    if (!is_cli_parse(&cli, &spec, w->argc, w->argv)) return cli.exit;
    if (cli.n_args != 0) return is_cli_usage(&cli, "nothing stands behind the options, and \"%s\" does", cli.args[0]);
    return run(&cli, &s);
}

int is_cmd_serve(int argc, char **argv)
{
    words w = {NULL, 0};
    is_error err = {0};
    const char *config = config_of(argc, argv);
    add_word(&w, argv[0]);
    bool ok = config == NULL || add_file(&w, config, &err);
    if (ok) add_environment(&w);
    for (int i = 1; i < argc; i++) add_word(&w, argv[i]);
    int code;
    if (ok) {
        code = parse_and_run(&w);
    } else {
        const is_cli cli = {.command = "serve"};
        code = is_cli_fail(&cli, &err);
    }
    /* getopt has moved the words about: what is not argv's is to be freed. */
    for (int i = 0; i < w.argc; i++) {
        bool from_argv = false;
        for (int j = 0; j < argc; j++) from_argv = from_argv || w.argv[i] == argv[j];
        if (!from_argv) free(w.argv[i]);
    }
    free(w.argv);
    return code;
}
