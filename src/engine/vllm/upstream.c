/*
 * The servers behind this engine.
 *
 * What one serves is asked once, by the connector's own request (describe), and must be the same everywhere: the
 * model, its KV, how its tokenizer writes control tokens.  A thread looks after them: those that are up are asked for
 * their health, the others again for what they serve, each time after a longer wait.  A request that finds one gone
 * takes it down at once and goes on to the next.
 *
 * Where a request goes: the user's requests go to the same server while it is up, where the user's chunks are in
 * memory, unless that has clearly more to do than another (rendezvous hashing, with a bound on the load).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

#include "../../kv/hash.h"
#include "internal.h"

#define PROTOCOL      3      /* VERSION of python/inferscale_vllm/describe.py */
#define LOOK_MS       5000.0 /* between two looks at one that is up */
#define FIRST_WAIT_MS 500.0
#define MOST_WAIT_MS  15000.0
#define MORE_TO_DO    16 /* requests in work more than another has, so that a user moves over */

static void say(const is_vllm *engine, int level, const char *format, ...) __attribute__((format(printf, 3, 4)));

static void say(const is_vllm *engine, int level, const char *format, ...)
{
    char line[700];
    va_list args;
    if (engine->log == NULL) return;
    va_start(args, format);
    (void)vsnprintf(line, sizeof line, format, args);
    va_end(args);
    engine->log(engine->log_user, level, line);
}

/* ------------------------------------------------------------ one request to one of them */

/* What a reply that is no 200 says, as vLLM or whatever stands in front of it writes it. */
static void words_of(const is_http_call *call, char out[400])
{
    json_t *root = call->text == NULL ? NULL : json_loadb(call->text, call->n, 0, NULL);
    const json_t *error = json_object_get(root, "error");
    const char *said = json_string_value(json_object_get(error, "message"));
    if (said == NULL) said = json_string_value(json_object_get(root, "message"));
    if (said == NULL) said = json_string_value(error);
    if (said == NULL) said = call->text != NULL ? call->text : "";
    (void)snprintf(out, 400, "%s", said);
    json_decref(root);
}

/* *gone: so may all others that are sent there. */
static is_status judge(const char *url, const is_http_call *call, bool *gone, is_error *err)
{
    char words[400];
    *gone = call->code == 502 || call->code == 503 || call->code == 504;
    if (call->code == 200) return IS_OK;
    words_of(call, words);
    if (call->code == 401 || call->code == 403)
        return is_fail(err, IS_EENGINE,
                       "%s refuses the key: %ld: %s; give the one it was started with as --upstream-key", url,
                       call->code, words);
    if (call->code >= 500 || call->code == 429)
        return is_fail(err, IS_EUNAVAILABLE, "%s answers %ld: %s", url, call->code, words);
    return is_fail(err, IS_EINVAL, "%s answers %ld: %s", url, call->code, words);
}

static is_status ask_one(const is_vllm *engine, const char *url, is_ask_upstream *ask, bool *gone, is_error *err)
{
    char *whole = NULL;
    *gone = false;
    if (asprintf(&whole, "%s%s", url, ask->path) < 0) return is_fail(err, IS_ENOMEM, "no memory for a request");
    is_http_call call = {.url = whole,
                         .body = ask->body,
                         .key = engine->key,
                         .on_bytes = ask->on_bytes,
                         .canceled = ask->canceled,
                         .user = ask->user,
                         .timeout_ms = ask->timeout_ms};
    is_status status = is_http_run(engine->http, &call, err);
    *gone = status == IS_EUNAVAILABLE || status == IS_EENGINE;
    if (status == IS_OK) status = judge(url, &call, gone, err);
    free(whole);
    if (status == IS_OK)
        ask->text = call.text;
    else
        free(call.text);
    return status;
}

static is_status json_of(is_ask_upstream *ask, const char *who, json_t **reply, is_error *err)
{
    json_error_t why;
    *reply = json_loads(ask->text == NULL ? "" : ask->text, 0, &why);
    free(ask->text);
    ask->text = NULL;
    if (*reply != NULL) return IS_OK;
    return is_fail(err, IS_EENGINE, "what %s answers is no JSON: %s", who, why.text);
}

static is_status ask_one_json(const is_vllm *engine, const char *url, const char *path, const char *body,
                              json_t **reply, is_error *err)
{
    is_ask_upstream ask = {.path = path, .body = body, .timeout_ms = IS_VLLM_ASK_MS};
    bool gone;
    is_status status = ask_one(engine, url, &ask, &gone, err);
    return status == IS_OK ? json_of(&ask, url, reply, err) : status;
}

/* ------------------------------------------------------------ what they serve */

typedef struct about {
    char *model;
    json_t *described;
    uint32_t context, ranks, block;
    const char *fingerprint, *why_not; /* in described */
    uint8_t identity[16];
} about;

static void about_free(about *a)
{
    free(a->model);
    json_decref(a->described);
}

static is_status read_models(const char *url, const json_t *reply, const char *wanted, about *a, is_error *err)
{
    size_t i;
    const json_t *one;
    json_array_foreach(json_object_get(reply, "data"), i, one)
    {
        const char *id = json_string_value(json_object_get(one, "id"));
        json_int_t length = json_integer_value(json_object_get(one, "max_model_len"));
        if (id == NULL || (wanted != NULL && strcmp(id, wanted) != 0)) continue;
        a->model = strdup(id);
        a->context = length > 0 && length <= UINT32_MAX ? (uint32_t)length : 0;
        break;
    }
    if (a->model != NULL && a->context > 0) return IS_OK;
    return is_fail(err, IS_EINVAL, "%s serves no model %s%s", url, wanted != NULL ? "called " : "with a length",
                   wanted != NULL ? wanted : "");
}

static is_status read_described(const char *url, const json_t *reply, about *a, is_error *err)
{
    int version = 0, ranks = 0, block = 0;
    json_t *said = json_object_get(json_object_get(reply, "kv_transfer_params"), "inferscale");
    if (!json_is_object(said))
        return is_fail(err, IS_EINVAL,
                       "%s has no InferScale connector; start vLLM with --kv-transfer-config as docs/vllm.md says",
                       url);
    a->described = json_incref(said);
    if (json_unpack(said, "{s:i, s:s, s:i, s:i, s:s, s:o, s:o}", "version", &version, "fingerprint", &a->fingerprint,
                    "ranks", &ranks, "block_size", &block, "why_not", &a->why_not, "control_tokens", &(json_t *){NULL},
                    "marks", &(json_t *){NULL}) != 0 ||
        version != PROTOCOL || ranks < 1 || block < 1 || strlen(a->fingerprint) != 32)
        return is_fail(err, IS_EINVAL, "%s has a connector of another version; install the one of this program", url);
    a->ranks = (uint32_t)ranks;
    a->block = (uint32_t)block;
    return IS_OK;
}

static is_status hash_identity(about *a, is_error *err)
{
    char *tokens = json_dumps(a->described, JSON_COMPACT | JSON_SORT_KEYS);
    if (tokens == NULL) return is_fail(err, IS_ENOMEM, "no memory for an upstream");
    is_hash128((is_span[]){{tokens, strlen(tokens)}, {a->model, strlen(a->model)}, {&a->context, sizeof a->context}}, 3,
               a->identity);
    free(tokens);
    return IS_OK;
}

static is_status learn(const is_vllm *engine, const char *url, const char *wanted, about *a, is_error *err)
{
    json_t *models = NULL, *described = NULL;
    is_status status = ask_one_json(engine, url, "/v1/models", NULL, &models, err);
    if (status == IS_OK) status = read_models(url, models, wanted, a, err);
    json_t *body = status != IS_OK ? NULL
                                   : json_pack("{s:s, s:s, s:i, s:{s:{s:b}}}", "model", a->model, "prompt", ".",
                                               "max_tokens", 1, "kv_transfer_params", "inferscale", "describe", 1);
    char *text = body == NULL ? NULL : json_dumps(body, JSON_COMPACT);
    if (status == IS_OK && text == NULL) status = is_fail(err, IS_ENOMEM, "no memory for a request");
    if (status == IS_OK) status = ask_one_json(engine, url, "/v1/completions", text, &described, err);
    if (status == IS_OK) status = read_described(url, described, a, err);
    if (status == IS_OK) status = hash_identity(a, err);
    free(text);
    json_decref(body);
    json_decref(models);
    json_decref(described);
    return status;
}

static int longer_first(const void *a, const void *b)
{
    size_t x = ((const is_control *)a)->n, y = ((const is_control *)b)->n;
    return (x < y) - (x > y);
}

static const is_control *control_of(const is_vllm *engine, const json_t *id)
{
    for (size_t i = 0; i < engine->n_controls; i++)
        if (json_is_integer(id) && engine->controls[i].id == json_integer_value(id)) return &engine->controls[i];
    return NULL;
}

static void free_controls(is_vllm *engine)
{
    for (size_t i = 0; i < engine->n_controls; i++) free(engine->controls[i].text);
    free(engine->controls);
    engine->controls = NULL;
    engine->n_controls = 0;
}

static is_status adopt_controls(is_vllm *engine, const about *a, is_error *err)
{
    json_t *controls = json_object_get(a->described, "control_tokens"), *id;
    const json_t *marks = json_object_get(a->described, "marks");
    const char *text;
    engine->controls = calloc(json_object_size(controls) + 1, sizeof *engine->controls);
    if (engine->controls == NULL) return is_fail(err, IS_ENOMEM, "no memory for control tokens");
    json_object_foreach(controls, text, id)
    {
        is_control *c = &engine->controls[engine->n_controls];
        *c = (is_control){strdup(text), strlen(text), (int32_t)json_integer_value(id)};
        if (c->text == NULL) return is_fail(err, IS_ENOMEM, "no memory for control tokens");
        if (c->n > 0)
            engine->n_controls++;
        else
            free(c->text);
    }
    qsort(engine->controls, engine->n_controls, sizeof *engine->controls, longer_first);
    engine->mark_system = control_of(engine, json_array_get(marks, 0));
    engine->mark_text = json_array_size(marks) > 1 ? control_of(engine, json_array_get(marks, 1)) : engine->mark_system;
    if (engine->mark_system != NULL && engine->mark_text != NULL) return IS_OK;
    return is_fail(err, IS_EUNSUPPORTED,
                   "the model's tokenizer has no control token that its chat template leaves unused; one is needed to "
                   "see where the texts of a prompt go");
}

/* What the first one says is what all must say.  Nothing of one that cannot be used stays. */
static is_status adopt(is_vllm *engine, about *a, is_error *err)
{
    is_status status = adopt_controls(engine, a, err);
    if (status != IS_OK) {
        free_controls(engine);
        return status;
    }
    is_hash128((is_span[]){{"vllm", 4}, {a->fingerprint, strlen(a->fingerprint)}, {&a->ranks, sizeof a->ranks}}, 3,
               engine->fingerprint);
    engine->model = a->model;
    a->model = NULL;
    engine->context = a->context;
    engine->ranks = a->ranks;
    engine->block = a->block;
    memcpy(engine->identity, a->identity, sizeof engine->identity);
    (void)snprintf(engine->why_not, sizeof engine->why_not, "%s", a->why_not);
    return IS_OK;
}

/* ------------------------------------------------------------ up and down */

/* The lock is held. */
static void take_down(is_vllm *engine, is_upstream *u, const char *why)
{
    if (u->up) say(engine, 1, "%s does not answer: %s", u->url, why);
    u->up = false;
    u->wait_ms = FIRST_WAIT_MS;
    u->next_ms = is_now_ms() + u->wait_ms;
    (void)snprintf(u->why, sizeof u->why, "%s", why);
    pthread_cond_signal(&engine->wake);
}

/* Asks one that is down what it serves.  The first that answers is adopted. */
static void try_again(is_vllm *engine, is_upstream *u, const char *model)
{
    about a = {0};
    is_error err = {0};
    is_status status = learn(engine, u->url, model, &a, &err);
    if (status == IS_OK && engine->model == NULL) status = adopt(engine, &a, &err);
    if (status == IS_OK && memcmp(a.identity, engine->identity, sizeof a.identity) != 0)
        status = is_fail(&err, IS_EINVAL, "%s serves another model, or the same with other settings, than the others",
                         u->url);
    about_free(&a);
    pthread_mutex_lock(&engine->lock);
    u->up = status == IS_OK;
    u->status = status;
    if (u->up) {
        if (u->why[0] != '\0') say(engine, 2, "%s answers", u->url);
        u->why[0] = '\0';
        u->next_ms = is_now_ms() + LOOK_MS;
    } else {
        if (status != IS_EUNAVAILABLE && strcmp(u->why, err.text) != 0) say(engine, 1, "%.600s", err.text);
        (void)snprintf(u->why, sizeof u->why, "%.250s", err.text);
        u->wait_ms = u->wait_ms * 2 < MOST_WAIT_MS ? u->wait_ms * 2 : MOST_WAIT_MS;
        u->next_ms = is_now_ms() + u->wait_ms;
    }
    pthread_mutex_unlock(&engine->lock);
}

static void look_at(is_vllm *engine, is_upstream *u)
{
    is_error err = {0};
    is_ask_upstream ask = {.path = "/health", .timeout_ms = IS_VLLM_ASK_MS};
    bool gone;
    (void)ask_one(engine, u->url, &ask, &gone, &err);
    free(ask.text);
    pthread_mutex_lock(&engine->lock);
    u->next_ms = is_now_ms() + LOOK_MS;
    if (gone && u->up) take_down(engine, u, err.text);
    pthread_mutex_unlock(&engine->lock);
}

static void *keep(void *arg)
{
    is_vllm *engine = arg;
    pthread_mutex_lock(&engine->lock);
    while (!engine->closing) {
        double now = is_now_ms(), next = now + LOOK_MS;
        is_upstream *due = NULL;
        for (uint32_t i = 0; i < engine->n_upstreams; i++) {
            is_upstream *u = &engine->upstreams[i];
            if (u->next_ms < next) {
                next = u->next_ms;
                due = u;
            }
        }
        if (due != NULL && next <= now) {
            bool up = due->up;
            pthread_mutex_unlock(&engine->lock);
            if (up)
                look_at(engine, due);
            else
                try_again(engine, due, engine->model);
            pthread_mutex_lock(&engine->lock);
            continue;
        }
        struct timespec until;
        (void)clock_gettime(CLOCK_MONOTONIC, &until);
        int64_t ns = until.tv_nsec + (int64_t)((next - now) * 1e6);
        until.tv_sec += ns / 1000000000;
        until.tv_nsec = ns % 1000000000;
        (void)pthread_cond_timedwait(&engine->wake, &engine->lock, &until);
    }
    pthread_mutex_unlock(&engine->lock);
    return NULL;
}

/* ------------------------------------------------------------ opening */

static is_status read_urls(is_vllm *engine, const char *urls, is_error *err)
{
    for (const char *at = urls; *at != '\0';) {
        size_t n = strcspn(at, ", ");
        const char *next = at + n + strspn(at + n, ", ");
        while (n > 0 && at[n - 1] == '/') n--;
        if (n == 0) return is_fail(err, IS_EINVAL, "\"%s\" is no list of addresses with commas between them", urls);
        if (engine->n_upstreams == IS_VLLM_UPSTREAMS)
            return is_fail(err, IS_ELIMIT, "more than %d upstreams", IS_VLLM_UPSTREAMS);
        if (strncmp(at, "http://", 7) != 0 && strncmp(at, "https://", 8) != 0)
            return is_fail(err, IS_EINVAL, "upstream %.*s: it must begin with http:// or https://", (int)n, at);
        is_upstream *u = &engine->upstreams[engine->n_upstreams++];
        u->url = strndup(at, n);
        if (u->url == NULL) return is_fail(err, IS_ENOMEM, "no memory for an upstream");
        u->hash = XXH3_64bits(u->url, n);
        u->wait_ms = FIRST_WAIT_MS / 2;
        at = next;
    }
    if (engine->n_upstreams > 0) return IS_OK;
    return is_fail(err, IS_EINVAL, "no upstream is named; give one as http://HOST:PORT");
}

/* All that are down, and why; the lock is held. */
static is_status none_is_up(const is_vllm *engine, is_status status, is_error *err)
{
    char whys[900];
    size_t at = 0;
    whys[0] = '\0';
    for (uint32_t i = 0; i < engine->n_upstreams && at < sizeof whys; i++)
        at += (size_t)snprintf(whys + at, sizeof whys - at, "%s%s", i > 0 ? "; " : "", engine->upstreams[i].why);
    return is_fail(err, status, "no vLLM server can be used: %s", whys);
}

is_status is_upstreams_open(is_vllm *engine, const char *urls, const char *model, is_error *err)
{
    bool up = false;
    is_status worst = IS_EUNAVAILABLE;
    is_status status = read_urls(engine, urls, err);
    if (status != IS_OK) return status;
    for (uint32_t i = 0; i < engine->n_upstreams; i++) {
        try_again(engine, &engine->upstreams[i], engine->model != NULL ? engine->model : model);
        up = up || engine->upstreams[i].up;
        if (engine->upstreams[i].status != IS_EUNAVAILABLE) worst = engine->upstreams[i].status;
    }
    pthread_mutex_lock(&engine->lock);
    status = up ? IS_OK : none_is_up(engine, worst, err);
    pthread_mutex_unlock(&engine->lock);
    if (status != IS_OK) return status;
    if (pthread_create(&engine->keeper, NULL, keep, engine) != 0)
        return is_fail(err, IS_ENOMEM, "the system gives no thread for upstreams");
    engine->keeper_started = true;
    return IS_OK;
}

void is_upstreams_close(is_vllm *engine)
{
    pthread_mutex_lock(&engine->lock);
    engine->closing = true;
    pthread_cond_broadcast(&engine->wake);
    pthread_mutex_unlock(&engine->lock);
    if (engine->keeper_started) pthread_join(engine->keeper, NULL);
    for (uint32_t i = 0; i < engine->n_upstreams; i++) free(engine->upstreams[i].url);
    free_controls(engine);
}

json_t *is_upstreams_describe(is_vllm *engine)
{
    json_t *list = json_array();
    pthread_mutex_lock(&engine->lock);
    for (uint32_t i = 0; i < engine->n_upstreams; i++) {
        const is_upstream *u = &engine->upstreams[i];
        json_array_append_new(list, json_pack("{s:s, s:b, s:s, s:i}", "url", u->url, "up", (int)u->up, "why_not",
                                              u->why, "in_work", (int)u->in_flight));
    }
    pthread_mutex_unlock(&engine->lock);
    return list;
}

/* ------------------------------------------------------------ asking */

/* The next one for this scope; NULL: no other is up.  It counts one request more. */
static is_upstream *choose(is_vllm *engine, uint64_t scope, uint64_t tried)
{
    is_upstream *best = NULL, *least = NULL;
    uint64_t best_score = 0;
    for (uint32_t i = 0; i < engine->n_upstreams; i++) {
        is_upstream *u = &engine->upstreams[i];
        if (!u->up || (tried >> i & 1) != 0) continue;
        uint64_t score = XXH3_64bits_withSeed(&scope, sizeof scope, u->hash);
        if (best == NULL || score > best_score) {
            best = u;
            best_score = score;
        }
        if (least == NULL || u->in_flight < least->in_flight) least = u;
    }
    if (best != NULL && (scope == 0 || best->in_flight > least->in_flight + MORE_TO_DO)) best = least;
    if (best != NULL) best->in_flight++;
    return best;
}

is_status is_upstream_ask(is_vllm *engine, is_ask_upstream *ask, is_error *err)
{
    uint64_t tried = 0;
    uint32_t broken = 0; /* of those that broke off: a request that ends a server should not end all of them */
    ask->text = NULL;
    for (;;) {
        is_error why = {0};
        bool gone;
        pthread_mutex_lock(&engine->lock);
        is_upstream *u = choose(engine, ask->scope, tried);
        if (u == NULL) (void)none_is_up(engine, IS_EUNAVAILABLE, err);
        pthread_mutex_unlock(&engine->lock);
        if (u == NULL) return IS_EUNAVAILABLE;
        tried |= (uint64_t)1 << (u - engine->upstreams);
        is_status status = ask_one(engine, u->url, ask, &gone, &why);
        bool broke = gone && status == IS_EENGINE;
        bool again =
            (status == IS_EUNAVAILABLE || (broke && broken++ == 0)) && (ask->begun == NULL || !ask->begun(ask->user));
        pthread_mutex_lock(&engine->lock);
        u->in_flight--;
        if (gone)
            take_down(engine, u, why.text);
        else if (status == IS_EUNAVAILABLE)
            (void)snprintf(u->why, sizeof u->why, "%.250s", why.text);
        pthread_mutex_unlock(&engine->lock);
        if (again) continue;
        if (status != IS_OK && err != NULL) *err = why;
        return status;
    }
}

is_status is_upstream_json(is_vllm *engine, is_ask_upstream *ask, json_t **reply, is_error *err)
{
    is_status status = is_upstream_ask(engine, ask, err);
    return status == IS_OK ? json_of(ask, "the vLLM server", reply, err) : status;
}
