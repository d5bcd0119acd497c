/*
 * The HTTP server: OpenAI's interface and a memory interface over one is_memory (docs/http.md).
 *
 * Start it, wait for whatever ends the program, drain it, stop it.  It prints nothing; the log function gets what is
 * worth a line.
 */
#ifndef IS_SERVER_H
#define IS_SERVER_H

#include "../common/common.h"

typedef struct is_server is_server;

typedef struct is_server_options {
    const char *host;     /* an address, "127.0.0.1"; any that is not loopback needs keys */
    uint16_t port;        /* 0: any free one, see is_server_port */
    const char *keys;     /* lines "TENANT SHA256", # comments; NULL: no key is needed */
    const char *tls_cert; /* PEM texts; both or neither */
    const char *tls_key;
    const char *model; /* names of the models in /v1/models; NULL: as the engine says; embedder "" or NULL: none */
    const char *embedder;
    uint32_t workers;     /* questions in work at the same time: the memory's slots */
    uint32_t queue;       /* requests that wait; one more is refused with 429 */
    uint32_t rate;        /* requests a minute for each tenant, or each address without keys; 0: any */
    uint64_t max_body;    /* bytes */
    uint32_t connections; /* open at the same time */
    uint32_t idle_s;      /* a connection on which nothing moves is closed */
    is_log_fn log;        /* may be NULL; any thread */
    void *log_user;
} is_server_options;

is_server_options is_server_options_default(void);

/* memory is the caller's and must outlive the server.  *out: is_server_stop. */
is_status is_server_start(is_memory *memory, const is_server_options *options, is_server **out, is_error *err);
uint16_t is_server_port(const is_server *server);
/* The name under which it offers its model. */
const char *is_server_model(const is_server *server);
/* Takes no new connection or request, and waits for those in work, at most so long; true when all are done. */
bool is_server_drain(is_server *server, double wait_ms);
/* Cancels what still runs, waits for it, frees. */
void is_server_stop(is_server *server);

/* SHA-256 of a key, as 64 hex digits: what a file of keys holds. */
void is_server_key_hash(const char *key, char out[65]);

#endif
