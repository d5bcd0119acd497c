/*
 * inferscale bench throughput: requests a second and times of answers when many users ask at once, over HTTP.
 *
 * Three systems in turn, with the same prompts: `inferscale serve` with memory injected, the same process with the same
 * memory prefilled, and llama.cpp's own server with its prompt cache.  The servers are processes of their own.  Nobody
 * asks the same thing twice, so what a cache can save is what different questions of different users have in common.
 *
 * The two that prefill take so long for a request that they are measured with few users: a server that is never idle
 * answers as many requests a second however many wait.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench_crowd.h"
#include "bench_figures.h"
#include "child.h"
#include "engine/llama/internal.h"
#include "http_load.h"
#include "line.h"

#define MAX_ROWS          16
#define MAX_USERS         4096
#define DEFAULT_SLOTS     16
#define DEFAULT_CONTEXT   4096
#define OVERHEAD_REQUESTS 40
#define TIER_POLL_MS      250
#define CHAT              "/v1/chat/completions"

typedef struct bench {
    is_bench b;
    is_cli preparing; /* the options for this program's own store: one slot is enough */
    is_crowd crowd;
    is_cli_list users, peer_args;
    uint32_t k, tokens, per_user, limit_prefill;
    const char *peer; /* llama-server; NULL: none */
    is_throughput_row rows[MAX_ROWS];
    size_t n_rows;
    char **prompts[MAX_ROWS]; /* the peer's requests, [rows' slow users * per_user]; NULL: none of its own */
    size_t n_prompts[MAX_ROWS];
    json_t *bias;       /* bans tokens that would end an answer */
    uint64_t kv_budget; /* bytes of host memory for all chunks */
    uint32_t threads, context;
    is_child server, peer_server;
    is_cli_progress progress;
    double overhead_ms;
    char *peer_command;
} bench;

static uint32_t slow_users(const bench *t, size_t row)
{
    uint32_t users = t->rows[row].users;
    return users < t->limit_prefill ? users : t->limit_prefill;
}

/* The row whose measurement of the slow systems serves this one too. */
static size_t slow_row(const bench *t, size_t row)
{
    size_t i = 0;
    while (slow_users(t, i) != slow_users(t, row)) i++;
    return i;
}

static uint32_t most_users(const bench *t)
{
    uint32_t most = 1;
    for (size_t i = 0; i < t->n_rows; i++)
        if (t->rows[i].users > most) most = t->rows[i].users;
    return most;
}

/* Every row has questions of its own. */
static const char *question(const bench *t, size_t row, size_t user, size_t turn)
{
    return is_crowd_question(&t->crowd, user, row * t->per_user + turn);
}

/* ------------------------------------------------------------ requests */

static char *dump(json_t *value)
{
    char *text = json_dumps(value, JSON_COMPACT);
    json_decref(value);
    if (text == NULL) is_cli_no_memory();
    return text;
}

static char *chat_request(const bench *t, size_t user, const char *text, uint32_t tokens, is_system system)
{
    is_crowd_name name = is_crowd_user(user);
    json_t *o = json_pack("{s:s, s:[{s:s, s:s}], s:i, s:i, s:b, s:{s:b}, s:O, s:{s:i, s:s}}", "user", name.s,
                          "messages", "role", "user", "content", text, "max_tokens", (int)tokens, "temperature", 0,
                          "stream", 1, "stream_options", "include_usage", 1, "logit_bias", t->bias, "inferscale", "k",
                          (int)t->k, "mode", is_system_name(system));
    if (o == NULL) is_cli_no_memory();
    return dump(o);
}

/* Greedy in the fewest steps that llama.cpp's server has for it. */
static char *peer_request(const bench *t, const int32_t *tokens, size_t n)
{
    json_t *prompt = json_array();
    for (size_t i = 0; i < n; i++) is_cli_append(prompt, json_integer(tokens[i]));
    json_t *o =
        json_pack("{s:o, s:i, s:b, s:b, s:b, s:[s], s:i, s:i}", "prompt", prompt, "n_predict", (int)t->tokens,
                  "ignore_eos", 1, "cache_prompt", 1, "stream", 1, "samplers", "top_k", "top_k", 1, "temperature", 0);
    if (o == NULL) is_cli_no_memory();
    return dump(o);
}

/* Answers shall all have the same length, so whatever ends one is banned. */
static is_status ban_ends(bench *t, is_error *err)
{
    is_engine *engine = t->b.memory->engine;
    int32_t *tokens = NULL;
    size_t n = 0;
    is_status status = engine->ops->end_tokens(engine, &tokens, &n, err);
    t->bias = json_object();
    for (size_t i = 0; status == IS_OK && i < n; i++) {
        char token[16];
        (void)snprintf(token, sizeof token, "%d", tokens[i]);
        is_cli_set(t->bias, token, json_integer(-100));
    }
    free(tokens);
    return status;
}

/* ------------------------------------------------------------ what is there before the servers start */

static is_status make_prompts(bench *t, size_t row, is_error *err)
{
    size_t n = (size_t)slow_users(t, row) * t->per_user;
    is_memory *m = t->b.memory;
    uint32_t reserve = t->tokens < t->context / 4 ? t->tokens : t->context / 4; /* as an answer's */
    is_status status = IS_OK;
    if (t->peer == NULL || slow_row(t, row) != row) return IS_OK;
    t->prompts[row] = calloc(n, sizeof *t->prompts[row]);
    if (t->prompts[row] == NULL) is_cli_no_memory();
    t->n_prompts[row] = n;
    for (size_t i = 0; status == IS_OK && i < n; i++) {
        int32_t *tokens;
        size_t n_tokens, user = i / t->per_user;
        const char *text = question(t, row, user, i % t->per_user);
        status = is_crowd_prompt(m, user, text, t->k, reserve, &tokens, &n_tokens, err);
        if (status == IS_OK) t->prompts[row][i] = peer_request(t, tokens, n_tokens);
        free(tokens);
        if (status == IS_OK && is_cli_interrupted()) status = is_fail(err, IS_ECANCELED, "interrupted");
    }
    return status;
}

static is_status open_store(bench *t, is_error *err)
{
    is_cli *cli = &t->b.cli;
    if (cli->store == NULL) { /* never the user's own one */
        is_status status = is_bench_begin(&t->b, err);
        if (status != IS_OK) return status;
        if (asprintf(&t->b.store, "%s/store of a crowd", t->b.folder) < 0) is_cli_no_memory();
        cli->store = t->b.store;
    }
    t->preparing = *cli;
    t->preparing.slots = 1;
    return is_cli_open(&t->preparing, IS_CLI_CREATE | IS_CLI_EMBED | IS_CLI_CHAT, &t->b.memory, err);
}

/* All chunks in host memory, if half of the machine's holds them. */
static uint64_t budget(const is_cli *cli, const is_stats *stats)
{
    if (cli->host_budget > 0) return cli->host_budget;
    uint64_t half = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE) / 2;
    uint64_t wanted = stats->chunk_bytes + stats->chunk_bytes / 16 + ((uint64_t)64 << 20);
    uint64_t least = is_options_default().host_budget;
    if (wanted < least) wanted = least;
    return wanted < half ? wanted : half;
}

/* Facts into the store and chunks made; then the store is closed, for one process has it open at a time. */
static is_status prepare(bench *t, json_t **context, is_error *err)
{
    is_stats stats = {0};
    is_status status = is_crowd_read(&t->b, &t->crowd, err);
    if (status == IS_OK) status = open_store(t, err);
    if (status == IS_OK) status = is_crowd_store(&t->crowd, &t->b.cli, t->b.memory, most_users(t), err);
    if (status == IS_OK) status = is_cli_encode(&t->b.cli, t->b.memory, NULL, NULL, err);
    if (status == IS_OK) status = is_get_stats(t->b.memory, &stats, err);
    if (status != IS_OK) return status;
    t->context = t->b.memory->engine->ops->context(t->b.memory->engine);
    t->kv_budget = budget(&t->b.cli, &stats);
    status = ban_ends(t, err);
    for (size_t i = 0; status == IS_OK && i < t->n_rows; i++) status = make_prompts(t, i, err);
    *context = is_bench_context(&t->b);
    is_close(t->b.memory);
    t->b.memory = NULL;
    return status;
}

/* ------------------------------------------------------------ servers */

static bool not_interrupted(void)
{
    return !is_cli_interrupted();
}

static is_status start(is_line *words, is_child *child, const char *ready, is_error *err)
{
    is_status status = is_child_start((const char *const *)words->list, child, err);
    is_line_free(words);
    return status == IS_OK ? is_child_wait(child, ready, not_interrupted, err) : status;
}

static is_status start_server(bench *t, is_error *err)
{
    const is_cli *cli = &t->b.cli;
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n < 0) return is_fail(err, IS_EIO, "cannot find this program under /proc/self/exe");
    self[n] = '\0';
    char *model = is_cli_model_path(cli), *embedding = is_cli_embedding_path(cli);
    is_line w = {0};
    is_line_add(&w, self);
    is_line_add(&w, "serve");
    is_line_option(&w, "--host", "127.0.0.1");
    is_line_option(&w, "--drain", "1");
    is_line_option(&w, "--store", cli->store);
    is_line_option(&w, "--model", model);
    is_line_number(&w, "--slots", cli->slots);
    is_line_number(&w, "--context", t->context);
    is_line_number(&w, "--threads", t->threads);
    is_line_number(&w, "--memory", t->kv_budget);
    is_line_option(&w, "--queue", "1048576");
    /* Without an embedding model the server goes by words alone, as this program did. */
    is_line_option(&w, "--embedding-model", access(embedding, R_OK) == 0 ? embedding : NULL);
    is_line_option(&w, "--engine", cli->engine);
    is_line_option(&w, "--upstream", cli->upstreams);
    is_line_option(&w, "--upstream-model", cli->upstream_model);
    is_line_number(&w, "--device-chunks", cli->device_chunks);
    is_line_number(&w, "--device-vectors", cli->device_vectors);
    if (cli->upstream_key != NULL) (void)setenv(IS_CLI_UPSTREAM_KEY, cli->upstream_key, 1);
    free(model);
    free(embedding);
    return start(&w, &t->server, "/readyz", err);
}

/* Waits until the server has read what it can of its chunks into memory: until that grows no more. */
static is_status wait_for_tier(bench *t, is_error *err)
{
    char url[128];
    json_int_t before = -1;
    (void)snprintf(url, sizeof url, "%s/v1/status", t->server.url);
    for (int same = 0; same < 4;) {
        char *body = is_http_get(url, 10000);
        json_t *status = body != NULL ? json_loads(body, 0, NULL) : NULL;
        json_int_t bytes = json_integer_value(json_object_get(json_object_get(status, "stats"), "host_bytes"));
        json_decref(status);
        free(body);
        same = bytes == before ? same + 1 : 0;
        before = bytes;
        if (is_cli_interrupted()) return is_fail(err, IS_ECANCELED, "interrupted");
        is_status alive = is_child_check(&t->server, err);
        if (alive != IS_OK) return alive;
        (void)usleep(TIER_POLL_MS * 1000);
    }
    return IS_OK;
}

/*
 * The peer as the engine in this program is set up: the same model, sequences, context, threads and step.  Its prompt
 * cache is on, as it is by itself.  These settings are its fastest, too: SmolLM2-135M Q4_0, a prompt of 2,500 tokens,
 * time of one AVX-512 core: 5.8 s for the prompt and 13 ms for a token of the answer; with flash attention and its own
 * step of 512, 6.7 s and 16 ms.
 */
static is_status start_peer(bench *t, is_error *err)
{
    const is_cli *cli = &t->b.cli;
    if (t->peer == NULL) return IS_OK;
    char *model = is_cli_model_path(cli);
    size_t used = 0;
    is_line w = {0};
    is_line_add(&w, t->peer);
    is_line_option(&w, "--host", "127.0.0.1");
    is_line_option(&w, "-m", model);
    is_line_number(&w, "-np", cli->slots);
    is_line_number(&w, "-c", (uint64_t)t->context * cli->slots);
    is_line_add(&w, "-no-kvu");
    is_line_number(&w, "-t", t->threads);
    is_line_number(&w, "-tb", t->threads);
    is_line_option(&w, "-fa", "off");
    is_line_number(&w, "-ub", IS_LLAMA_PIECE);
    for (size_t i = 0; i < t->peer_args.n; i++) is_line_add(&w, t->peer_args.items[i]);
    FILE *out = open_memstream(&t->peer_command, &used);
    if (out == NULL) is_cli_no_memory();
    for (size_t i = 0; i < w.n; i++) is_line_show(out, w.list[i]);
    (void)fclose(out);
    free(model);
    return start(&w, &t->peer_server, "/health", err);
}

/* ------------------------------------------------------------ measuring */

typedef struct step {
    bench *bench;
    size_t n;
    is_child *child;
    double looked;
    is_error err; /* why it does not go on */
} step;

static bool go_on(void *user, size_t answered)
{
    step *s = user;
    double now = is_now_ms();
    if (!is_cli_progress_step(&s->bench->progress, answered, s->n))
        return is_fail(&s->err, IS_ECANCELED, "interrupted") == IS_OK;
    if (now - s->looked < 1000) return true;
    s->looked = now;
    return is_child_check(s->child, &s->err) == IS_OK;
}

/* Requests to one server. */
typedef struct job {
    is_child *child;
    const char *path, *name;
    char *const *bodies; /* [users][per_user] */
    size_t users, per_user;
} job;

static is_status load(bench *t, const job *j, is_load_result *out, is_error *err)
{
    char url[128], doing[64];
    step s = {.bench = t, .n = j->users * j->per_user, .child = j->child};
    (void)snprintf(url, sizeof url, "%s%s", j->child->url, j->path);
    (void)snprintf(doing, sizeof doing, "%s, %zu user%s", j->name, j->users, j->users == 1 ? "" : "s");
    is_cli_progress_begin(&t->progress, &t->b.cli, doing, "requests");
    const is_load what = {url, (const char *const *)j->bodies, j->users, j->per_user, go_on, &s};
    is_status status = is_load_run(&what, out, err);
    is_cli_progress_end(&t->progress);
    if (status == IS_OK) return is_child_check(j->child, err); /* else its errors are those of a server that is gone */
    if (s.err.status != IS_OK && err != NULL) *err = s.err;
    return s.err.status != IS_OK ? s.err.status : status;
}

static void free_bodies(char **bodies, size_t n)
{
    for (size_t i = 0; bodies != NULL && i < n; i++) free(bodies[i]);
    free(bodies);
}

static is_status ask_server(bench *t, size_t row, uint32_t users, is_system system, is_load_result *out, is_error *err)
{
    size_t n = (size_t)users * t->per_user;
    char **bodies = calloc(n, sizeof *bodies);
    if (bodies == NULL) is_cli_no_memory();
    for (size_t i = 0; i < n; i++) {
        size_t user = i / t->per_user;
        bodies[i] = chat_request(t, user, question(t, row, user, i % t->per_user), t->tokens, system);
    }
    const job all = {&t->server, CHAT, is_system_name(system), bodies, users, t->per_user};
    is_status status = load(t, &all, out, err);
    free_bodies(bodies, n);
    return status;
}

static is_status measure(bench *t, size_t row, is_system system, is_error *err)
{
    is_throughput_row *r = &t->rows[row];
    is_load_result result = {0};
    uint32_t users = system == IS_SYSTEM_INJECT ? r->users : slow_users(t, row);
    if (system == IS_SYSTEM_PEER && t->peer == NULL) return IS_OK;
    if (system != IS_SYSTEM_INJECT && slow_row(t, row) != row) {
        r->of[system] = t->rows[slow_row(t, row)].of[system];
        return IS_OK;
    }
    const job peer = {&t->peer_server, "/completion", is_system_name(system), t->prompts[row], users, t->per_user};
    is_status status =
        system == IS_SYSTEM_PEER ? load(t, &peer, &result, err) : ask_server(t, row, users, system, &result, err);
    if (status == IS_OK) r->of[system] = is_figures_of(&result, users);
    is_load_result_free(&result);
    return status;
}

/*
 * With one user there is nobody to wait for: what the client waits longer than the server says is HTTP.  Answers of one
 * token, as the client shares the server's cores here, and would wait for them while the next tokens are decoded; the
 * first half warms up.
 */
static is_status measure_overhead(bench *t, is_error *err)
{
    char *bodies[OVERHEAD_REQUESTS];
    double over[OVERHEAD_REQUESTS];
    size_t n = 0;
    is_load_result result = {0};
    for (size_t i = 0; i < OVERHEAD_REQUESTS; i++)
        bodies[i] = chat_request(t, 0, is_crowd_question(&t->crowd, 0, i), 1, IS_SYSTEM_INJECT);
    const job alone = {&t->server, CHAT, "one by one", bodies, 1, OVERHEAD_REQUESTS};
    is_status status = load(t, &alone, &result, err);
    for (size_t i = OVERHEAD_REQUESTS / 2; status == IS_OK && i < result.n; i++)
        if (result.answers[i].ok) over[n++] = result.answers[i].ttft_ms - result.answers[i].server_ttft_ms;
    if (status == IS_OK && n == 0)
        status = is_fail(err, IS_EENGINE, "the server answered no request: %s", result.first_error);
    t->overhead_ms = is_median(over, n);
    for (size_t i = 0; i < OVERHEAD_REQUESTS; i++) free(bodies[i]);
    is_load_result_free(&result);
    return status;
}

static is_status measure_all(bench *t, is_error *err)
{
    is_status status = start_server(t, err);
    if (status == IS_OK) status = start_peer(t, err);
    if (status == IS_OK) status = wait_for_tier(t, err);
    if (status == IS_OK) status = measure_overhead(t, err); /* and the first requests of a process, which are slower */
    for (size_t i = 0; status == IS_OK && i < t->n_rows; i++)
        for (is_system s = 0; status == IS_OK && s < IS_N_SYSTEMS; s++) status = measure(t, i, s, err);
    is_child_stop(&t->server);
    is_child_stop(&t->peer_server);
    return status;
}

/* ------------------------------------------------------------ the command */

static void set_result(const bench *t, json_t *root)
{
    is_cli_set(root, "slots", json_integer(t->b.cli.slots));
    is_cli_set(root, "context", json_integer(t->context));
    is_cli_set(root, "k", json_integer(t->k));
    is_cli_set(root, "facts_per_user", json_integer(t->crowd.facts));
    is_cli_set(root, "questions_per_user", json_integer(t->per_user));
    is_cli_set(root, "output_tokens", json_integer(t->tokens));
    is_cli_set(root, "host_budget", json_integer((json_int_t)t->kv_budget));
    is_cli_set(root, "peer", t->peer_command != NULL ? is_cli_json_text(t->peer_command + 1) : json_null());
    is_cli_set(root, "http_overhead_ms", isfinite(t->overhead_ms) ? json_real(t->overhead_ms) : json_null());
    is_cli_set(root, "throughput", is_throughput_json(t->rows, t->n_rows));
    is_cli_set(root, "ratios", is_throughput_ratios(t->rows, t->n_rows));
}

static void print(const bench *t)
{
    is_throughput_print(t->rows, t->n_rows);
    printf("\n%u slots of %u tokens, %u threads; each user asks %u questions with %u facts and gets %u tokens.\n"
           "With one user HTTP adds %.2f ms to the server's own time to the first token (median of %d).\n",
           t->b.cli.slots, t->context, t->threads, t->per_user, t->k, t->tokens, t->overhead_ms, OVERHEAD_REQUESTS / 2);
}

static bool parse(bench *t, int argc, char **argv)
{
    is_bench *b = &t->b;
    const is_cli_option options[] = {
        {"users", 'u', IS_CLI_LIST, &t->users, 0, 0, "N", "ask at once; may be repeated (default: 10 25 50 75 100)"},
        {"questions-per-user", 0, IS_CLI_UINT, &t->per_user, 1, 100, "N", "one after the other (default: 2)"},
        {"k", 'k', IS_CLI_UINT, &t->k, 1, IS_MAX_K, "K", "facts in the prompt (default: 50)"},
        {"tokens", 0, IS_CLI_UINT, &t->tokens, 1, 4096, "N", "of each answer, which does not end before (default: 50)"},
        {"facts", 0, IS_CLI_UINT, &t->crowd.facts, 1, 10000, "N",
         "that each user has, at least as many as the prompt (default: 60)"},
        {"limit-prefill", 0, IS_CLI_UINT, &t->limit_prefill, 1, MAX_USERS, "N",
         "users at most for the systems that prefill; their rate stands for more, so it should not be below --slots "
         "(default: 20)"},
        {"peer", 0, IS_CLI_TEXT, &t->peer, 0, 0, "PROGRAM",
         "llama.cpp's llama-server, as `scripts/setup.sh --peer` builds it (default: $INFERSCALE_PEER, else none)"},
        {"peer-arg", 0, IS_CLI_LIST, &t->peer_args, 0, 0, "WORD",
         "one more word of its command line, such as --peer-arg=-fa; may be repeated"},
        {"data", 0, IS_CLI_TEXT, &b->data, 0, 0, "FILE", "JSON Lines or LoCoMo's file; default " IS_BENCH_SAMPLE},
        {"questions", 0, IS_CLI_TEXT, &b->questions_file, 0, 0, "FILE", "questions; default: in or beside the data"},
    };
    const is_cli_spec spec = {
        .synopsis = "bench throughput [options]",
        .about =
            "Requests a second and times to the first token under load over HTTP: many users at once ask a server\n"
            "that injects their memory, the same server prefilling it, and llama.cpp's own server.\n"
            "The users' facts are encoded first; with --store the next run finds them there.",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .examples = "inferscale bench throughput --data locomo10.json --store /tmp/crowd --peer PATH/llama-server\n"
                    "inferscale bench throughput -u 4 --questions-per-user 1 -k 10 --facts 12 --tokens 16 --json",
    };
    if (!is_cli_parse(&b->cli, &spec, argc, argv)) return false;
    if (b->cli.n_args > 0) {
        b->cli.exit = is_cli_usage(&b->cli, "\"%s\" is too much", b->cli.args[0]);
    } else if (b->cli.upstreams != NULL && b->cli.store == NULL) {
        b->cli.exit = is_cli_usage(&b->cli, "--engine vllm needs --store, the folder whose chunks the servers have");
    } else if (t->crowd.facts < t->k) {
        b->cli.exit = is_cli_usage(&b->cli, "each user has %u facts (--facts), too few for a prompt of %u (-k)",
                                   t->crowd.facts, t->k);
    } else {
        return true;
    }
    return false;
}

static bool read_users(bench *t)
{
    uint32_t users[MAX_ROWS];
    if (!is_bench_numbers(&t->b, &t->users, "10,25,50,75,100", users, &t->n_rows, MAX_ROWS, MAX_USERS)) return false;
    for (size_t i = 0; i < t->n_rows; i++) {
        t->rows[i].users = users[i];
        if (users[i] > 0) continue;
        (void)is_cli_usage(&t->b.cli, "--users must be at least 1");
        return false;
    }
    return true;
}

static void set_defaults(bench *t)
{
    is_cli *cli = &t->b.cli;
    if (cli->slots == 0) cli->slots = DEFAULT_SLOTS;
    if (cli->context == 0) cli->context = DEFAULT_CONTEXT;
    t->threads = cli->threads > 0 ? cli->threads : is_usable_cores();
    if (t->peer == NULL && cli->upstreams == NULL) t->peer = getenv("INFERSCALE_PEER");
    if (t->peer != NULL && t->peer[0] == '\0') t->peer = NULL;
}

/* Said before the long work begins. */
static is_status check_peer(const bench *t, is_error *err)
{
    if (t->b.cli.upstreams != NULL)
        return t->peer == NULL ? IS_OK
                               : is_fail(err, IS_EINVAL,
                                         "--peer is llama.cpp's server, which vLLM is not compared with; "
                                         "leave it out");
    if (t->peer == NULL)
        is_cli_note(&t->b.cli,
                    "no llama-server to compare with: `scripts/setup.sh --peer` builds one, --peer names it");
    else if (access(t->peer, X_OK) != 0)
        return is_fail(err, IS_ENOTFOUND, "cannot run %s: %s; `scripts/setup.sh --peer` builds a llama-server", t->peer,
                       strerror(errno));
    return IS_OK;
}

int is_bench_throughput(int argc, char **argv)
{
    bench *t = calloc(1, sizeof *t);
    is_error err = {0};
    if (t == NULL) is_cli_no_memory();
    t->k = t->tokens = 50;
    t->per_user = 2;
    t->crowd.facts = 60;
    t->limit_prefill = 20;
    t->overhead_ms = NAN;
    int code = IS_EXIT_USAGE;
    if (!parse(t, argc, argv)) {
        code = t->b.cli.exit;
    } else if (read_users(t)) {
        json_t *root = NULL;
        set_defaults(t);
        is_cli_catch_interrupts();
        is_status status = check_peer(t, &err);
        if (status == IS_OK) status = is_bench_questions(&t->b, &err);
        if (status == IS_OK) status = prepare(t, &root, &err);
        if (status == IS_OK) status = measure_all(t, &err);
        if (status == IS_OK) set_result(t, root);
        if (status == IS_OK && !t->b.cli.json) print(t);
        code = is_bench_end(&t->b, root, status, &err);
    }
    for (size_t i = 0; i < MAX_ROWS; i++) free_bodies(t->prompts[i], t->n_prompts[i]);
    json_decref(t->bias);
    is_crowd_free(&t->crowd);
    free(t->users.items);
    free(t->peer_args.items);
    free(t->peer_command);
    free(t);
    return code;
}
