/* Starting, draining and stopping the server. */
#include <arpa/inet.h>
#include <errno.h>
#include <malloc.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

/* Over 32 KiB libmicrohttpd maps a connection's memory by itself, so that it goes back to the system when it closes. */
#define CONNECTION_BYTES (64 << 10)

#define MAPPED_BYTES (128 << 10)

#define LAST_WORDS_MS 500 /* for replies that are on their way when the server stops */
#define KEEPERS       32  /* threads for the store: more than the IS_MAX_WAITING that may wait for the engine there */

is_server_options is_server_options_default(void)
{
    return (is_server_options){
        .host = "127.0.0.1",
        .port = 8080,
        .workers = 16,
        .queue = 256,
        .max_body = (uint64_t)16 << 20,
        .connections = 4096,
        .idle_s = 60,
    };
}

void is_server_log(const is_server *server, int level, const char *format, ...)
{
    char line[1400];
    va_list args;
    if (server->options.log == NULL) return;
    va_start(args, format);
    (void)vsnprintf(line, sizeof line, format, args);
    va_end(args);
    server->options.log(server->options.log_user, level, line);
}

/* Why it does not start is worth a line; what clients send later is not: a log must not be theirs to fill. */
static void on_http_log(void *state, const char *format, va_list args)
{
    const is_server *s = state;
    char line[600];
    if (atomic_load(&s->listening)) return;
    (void)vsnprintf(line, sizeof line, format, args);
    size_t n = strlen(line);
    if (n > 0 && line[n - 1] == '\n') line[n - 1] = '\0';
    is_server_log(s, 2, "http: %s", line);
}

/* ------------------------------------------------------------ starting */

static is_status resolve(const is_server_options *o, struct sockaddr_storage *address, bool *loopback, is_error *err)
{
    char port[8];
    struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    (void)snprintf(port, sizeof port, "%u", o->port);
    int rc = getaddrinfo(o->host, port, &hints, &found);
    if (rc != 0)
        return is_fail(err, IS_EINVAL, "%s is no address to listen on: %s; give one of this machine's", o->host,
                       gai_strerror(rc));
    memcpy(address, found->ai_addr, found->ai_addrlen);
    if (found->ai_family == AF_INET6) {
        *loopback = IN6_IS_ADDR_LOOPBACK(&((struct sockaddr_in6 *)(void *)address)->sin6_addr);
    } else {
        uint32_t ip = ntohl(((struct sockaddr_in *)(void *)address)->sin_addr.s_addr);
        *loopback = ip >> 24 == 127;
    }
    freeaddrinfo(found);
    return IS_OK;
}

#define SAMPLE_WORDS 100

/* What a token of prefill costs here, for the dashboard's comparison; a request that prefills will say it better. */
static void measure_prefill(is_server *s)
{
    is_answer *answer = NULL;
    is_ask_options options = is_ask_options_default();
    const size_t n = SAMPLE_WORDS * 5;
    char *prompt = calloc(n + 1, 1);
    options.max_tokens = 0;
    for (size_t i = 0; prompt != NULL && i < n; i++) prompt[i] = " word"[i % 5];
    if (prompt != NULL && is_complete(s->memory, prompt, NULL, 0, &options, &answer, NULL) == IS_OK &&
        answer->tokens_prefilled > 0)
        is_metrics_prefill_cost(s->metrics, answer->timing.prefill_ms / answer->tokens_prefilled);
    is_answer_free(answer);
    free(prompt);
}

static is_status listen_on(is_server *s, is_error *err)
{
    const is_server_options *o = &s->options;
    struct sockaddr_storage address;
    is_status status = resolve(o, &address, &s->loopback, err);
    if (status != IS_OK) return status;
    if (!s->loopback && s->keys == NULL)
        return is_fail(err, IS_EINVAL,
                       "%s can be reached from other machines, so keys are needed: make one with `inferscale key "
                       "TENANT --keys FILE` and start with --keys FILE",
                       o->host);
    if ((o->tls_cert == NULL) != (o->tls_key == NULL))
        return is_fail(err, IS_EINVAL, "TLS needs a certificate and a key, and only one of them is given");
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG;
    if (address.ss_family == AF_INET6) flags |= MHD_USE_IPv6;
    if (o->tls_cert != NULL) flags |= MHD_USE_TLS;
    struct MHD_OptionItem items[] = {
        {MHD_OPTION_SOCK_ADDR, 0, &address},
        {MHD_OPTION_CONNECTION_LIMIT, (intptr_t)o->connections, NULL},
        {MHD_OPTION_CONNECTION_MEMORY_LIMIT, CONNECTION_BYTES, NULL},
        {MHD_OPTION_CONNECTION_TIMEOUT, (intptr_t)o->idle_s, NULL},
        {o->tls_cert != NULL ? MHD_OPTION_HTTPS_MEM_CERT : MHD_OPTION_END, 0, (void *)(uintptr_t)o->tls_cert},
        {MHD_OPTION_HTTPS_MEM_KEY, 0, (void *)(uintptr_t)o->tls_key},
        {MHD_OPTION_END, 0, NULL},
    };
    s->daemon =
        MHD_start_daemon(flags, o->port, NULL, NULL, is_http_handle, s, MHD_OPTION_EXTERNAL_LOGGER, on_http_log, s,
                         MHD_OPTION_NOTIFY_COMPLETED, is_http_completed, NULL, MHD_OPTION_ARRAY, items, MHD_OPTION_END);
    if (s->daemon == NULL)
        return is_fail(err, IS_EIO,
                       "cannot listen on %s port %u: %s; another program may use it, choose another with --port",
                       o->host, o->port, errno != 0 ? strerror(errno) : "refused");
    atomic_store(&s->listening, true);
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_BIND_PORT);
    s->port = info != NULL ? info->port : o->port;
    return IS_OK;
}

static void on_encoded(void *user, uint32_t facts, double ms)
{
    is_metrics_encoded(((is_server *)user)->metrics, facts, ms);
}

/* As it was told, or as the engine says. */
static is_status name_model(is_server *s, is_error *err)
{
    char *text = NULL;
    is_status status = is_describe(s->memory, &text, err);
    if (status != IS_OK) return status;
    json_t *about = json_loads(text, 0, NULL);
    const char *name = s->options.model;
    if (name == NULL) name = json_string_value(json_object_get(json_object_get(about, "engine"), "model"));
    (void)snprintf(s->model, sizeof s->model, "%s", name == NULL ? "inferscale" : name);
    json_decref(about);
    free(text);
    return IS_OK;
}

static is_status start(is_server *s, is_error *err)
{
    const is_server_options *o = &s->options;
    is_status status = name_model(s, err);
    (void)snprintf(s->embedder, sizeof s->embedder, "%s", o->embedder == NULL ? "" : o->embedder);
    if (status == IS_OK && o->keys != NULL) status = is_keys_open(o->keys, &s->keys, err);
    if (status == IS_OK && o->rate > 0) status = is_rate_open(o->rate, &s->rate, err);
    if (status == IS_OK) status = is_metrics_open(&s->metrics, err);
    if (status == IS_OK) status = is_pool_open(o->workers, o->queue, &s->askers, err);
    if (status == IS_OK) status = is_pool_open(KEEPERS, o->queue, &s->keepers, err);
    if (status == IS_OK) {
        is_set_on_encoded(s->memory, on_encoded, s);
        measure_prefill(s);
    }
    return status == IS_OK ? listen_on(s, err) : status;
}

is_status is_server_start(is_memory *memory, const is_server_options *options, is_server **out, is_error *err)
{
    *out = NULL;
    is_server *s = calloc(1, sizeof *s);
    if (s == NULL) return is_fail(err, IS_ENOMEM, "no memory for the server");
    /* A fixed bound, where malloc's own rises with what is freed: what is larger goes back to the system at once. */
    (void)mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES);
    s->memory = memory;
    s->options = *options;
    s->started_ms = is_now_ms();
    s->started = (int64_t)time(NULL);
    is_status status = start(s, err);
    if (status != IS_OK) {
        is_server_stop(s);
        return status;
    }
    *out = s;
    return IS_OK;
}

const char *is_server_model(const is_server *server)
{
    return server->model;
}

uint16_t is_server_port(const is_server *server)
{
    return server->port;
}

/* ------------------------------------------------------------ ending */

static bool wait_for(atomic_uint *count, double until_ms)
{
    const struct timespec moment = {.tv_nsec = 5000000};
    while (atomic_load(count) > 0) {
        if (is_now_ms() > until_ms) return false;
        (void)nanosleep(&moment, NULL);
    }
    return true;
}

bool is_server_drain(is_server *s, double wait_ms)
{
    atomic_store(&s->draining, true);
    return wait_for(&s->open, is_now_ms() + wait_ms);
}

void is_server_stop(is_server *s)
{
    if (s == NULL) return;
    atomic_store(&s->draining, true);
    atomic_store(&s->stopping, true); /* every request counts as left */
    if (s->daemon != NULL) {
        /* No connection may be suspended when the daemon stops, so all work ends first. */
        (void)wait_for(&s->in_work, 1e300);
        (void)wait_for(&s->open, is_now_ms() + LAST_WORDS_MS);
        MHD_stop_daemon(s->daemon);
    }
    is_set_on_encoded(s->memory, NULL, NULL);
    is_pool_close(s->askers);
    is_pool_close(s->keepers);
    is_keys_close(s->keys);
    is_rate_close(s->rate);
    is_metrics_close(s->metrics);
    free(s);
}
