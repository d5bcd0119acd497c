/*
 * What the files of the server share.
 *
 *   server.c     start, drain, stop
 *   http.c       one request on its connection: body, suspension, reply, stream
 *   route.c      the table of routes; keys, limits and JSON before a handler is called
 *   pool.c       worker threads and their fair queue
 *   keys.c       API keys and their tenants
 *   rate.c       requests a minute
 *   fields.c     typed members of a JSON body, with errors that name them
 *   sampling.c   what requests that generate have in common (generate.h)
 *   chat.c, completions.c, embeddings.c   OpenAI's interface
 *   memories.c   the memory interface
 *   import.c     bulk import
 *   metrics.c    Prometheus' text and the dashboard's numbers
 *   assets.c     files that are part of the program
 *
 * Threads: one thread of libmicrohttpd owns all connections.  It reads requests whole, answers what takes no time, and
 * suspends the connection of anything else while a worker does it; the worker resumes it when there is something to
 * send.  So a slow client costs memory, never a thread.
 */
#ifndef IS_SERVER_INTERNAL_H
#define IS_SERVER_INTERNAL_H

#include <jansson.h>
#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

#include "server.h"

#define IS_MAX_DEPTH    64        /* nested arrays and objects of a body */
#define IS_MAX_VALUES   (1 << 19) /* of a body's JSON */
#define IS_MAX_OBJECTS  (1 << 16)
#define IS_MAX_MESSAGES 2048
#define IS_MAX_TOOLS    128
#define IS_MAX_WAITING  24  /* requests that wait for the encoding of facts */
#define IS_MAX_NAME     256 /* bytes of a user, agent or run */

typedef struct is_request is_request;
typedef struct is_pool is_pool;
typedef struct is_keys is_keys;
typedef struct is_rate is_rate;
typedef struct is_metrics is_metrics;

/* ---- route.c */

typedef void (*is_handler_fn)(is_request *request);

typedef enum is_where {
    IS_AT_ONCE,  /* on the connections' thread */
    IS_BY_ASKER, /* by a worker that may wait for the engine */
    IS_BY_KEEPER /* by a worker for the store */
} is_where;

typedef enum is_body { IS_NO_BODY, IS_JSON_BODY, IS_LINES_BODY } is_body;

typedef struct is_route {
    const char *method;
    const char *path; /* "{id}" stands for a number, "{name}" for any text */
    is_handler_fn handler;
    is_where where;
    is_body body;
    bool open; /* needs no key, is not limited, answers while draining */
} is_route;

extern const is_route IS_ROUTES[];
extern const size_t IS_N_ROUTES;

/* Finds the request's route, or answers 404 or 405. */
void is_route_find(is_request *request, const char *method, const char *path);
/* Key, rate and draining; false when it has answered. */
bool is_route_admit(is_request *request);
/* Whether the body's JSON can be read within bounds of memory; false when it has answered 400. */
bool is_route_check_json(is_request *request);
/* Reads the body and calls the handler: what a worker does. */
void is_route_work(is_request *request);

/* ---- http.c */

struct is_request {
    is_server *server;
    struct MHD_Connection *connection; /* NULL once it is closed */
    int socket;
    const is_route *route;
    int64_t id;             /* {id} */
    char name[IS_MAX_NAME]; /* {name} */
    char tenant[IS_MAX_NAME];
    char user_header[IS_MAX_NAME];
    char asked[3][IS_MAX_NAME]; /* user, agent, run of the query, which goes with the connection */
    uint64_t fair;              /* hash of who asks, for the queue */
    double arrived_ms;
    bool dispatched;

    char *body; /* NUL-terminated */
    size_t n_body, body_capacity;
    bool body_too_large, body_large;
    json_t *json; /* IS_JSON_BODY: an object */

    pthread_mutex_t lock; /* over all below but the atomics */
    unsigned status;      /* 0: no reply yet */
    char *reply;
    size_t n_reply;
    const char *type;
    bool reply_static;    /* reply is not to be freed */
    char allow[64];       /* for 405 */
    uint32_t retry_after; /* seconds, for 429 and 503 */
    bool streaming, ended, suspended;
    char *out; /* of a stream: bytes that the connection has not taken yet are [sent, n_out) */
    size_t n_out, sent, out_capacity;
    atomic_bool gone;  /* the client has left */
    atomic_int owners; /* connection, worker */
    is_request *next;  /* in a queue */
};

/* One whole reply; reply is taken over (malloc). */
void is_reply(is_request *request, unsigned status, const char *type, char *reply, size_t n);
void is_reply_static(is_request *request, const char *type, const void *reply, size_t n);
void is_reply_json(is_request *request, unsigned status, json_t *value); /* takes value */
/* An error in OpenAI's shape; param and code may be NULL. */
void is_reply_error(is_request *request, unsigned status, const char *param, const char *code, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
void is_reply_draining(is_request *request);
/* What a library's error means for a client. */
void is_reply_failure(is_request *request, const is_error *err);
json_t *is_error_json(unsigned status, const char *param, const char *code, const char *message);
unsigned is_status_code(const is_error *err, const char **code);

/* A reply of unknown length, status 200; then pieces, from the worker's thread.  false: the client has left. */
void is_stream_begin(is_request *request, const char *type);
bool is_stream_write(is_request *request, const char *bytes, size_t n);
/* {json}\n, or "data: {json}\n\n"; take value. */
bool is_stream_line(is_request *request, json_t *value);
bool is_stream_event(is_request *request, json_t *value);
/* Whether the client has left; asks the socket, since a suspended connection is not watched. */
bool is_request_gone(const is_request *request);
/* A parameter of the query; NULL when it is not there. */
const char *is_query(const is_request *request, const char *name);

enum MHD_Result is_http_handle(void *server, struct MHD_Connection *connection, const char *url, const char *method,
                               const char *version, const char *data, size_t *n_data, void **state);
void is_http_completed(void *server, struct MHD_Connection *connection, void **state,
                       enum MHD_RequestTerminationCode code);
void is_request_release(is_request *request);
/* The worker is done with it. */
void is_request_end(is_request *request);

/* ---- pool.c */

is_status is_pool_open(uint32_t threads, uint32_t queue, is_pool **out, is_error *err);
/* false: the queue is full. */
bool is_pool_submit(is_pool *pool, is_request *request);
void is_pool_load(is_pool *pool, uint32_t *running, uint32_t *queued);
void is_pool_close(is_pool *pool); /* when nothing runs any more */

/* ---- keys.c */

is_status is_keys_open(const char *text, is_keys **out, is_error *err);
/* The key's tenant, or NULL. */
const char *is_keys_tenant(const is_keys *keys, const char *key);
void is_keys_close(is_keys *keys);

/* ---- rate.c */

is_status is_rate_open(uint32_t per_minute, is_rate **out, is_error *err);
/* 0: go on; else seconds to wait. */
uint32_t is_rate_take(is_rate *rate, uint64_t who);
void is_rate_close(is_rate *rate);

/* ---- fields.c: a member that is missing or null leaves *out as it is; false when it has answered 400 */

bool is_field_text(is_request *r, const json_t *o, const char *name, size_t max, const char **out);
bool is_field_bool(is_request *r, const json_t *o, const char *name, bool *out);
bool is_field_uint(is_request *r, const json_t *o, const char *name, uint32_t min, uint32_t max, uint32_t *out);
bool is_field_real(is_request *r, const json_t *o, const char *name, double min, double max, float *out);
bool is_field_object(is_request *r, const json_t *o, const char *name, const json_t **out);
bool is_field_array(is_request *r, const json_t *o, const char *name, size_t max, const json_t **out);
bool is_field_time(is_request *r, const json_t *o, const char *name, int64_t *out); /* text or Unix seconds */
/* Whole text of a JSON object, or NULL when there is none; *out: free(). */
bool is_field_object_text(is_request *r, const json_t *o, const char *name, char **out);
/* {"from", "to", "metadata"}; *metadata: free(), filter points to it. */
bool is_field_filter(is_request *r, const json_t *o, const char *name, is_filter *filter, char **metadata);
/* The scope: body's or query's user, agent, run; the header's user; the key's tenant.  Points into the request. */
bool is_field_scope(is_request *r, const json_t *o, is_scope *scope);
bool is_query_uint(is_request *r, const char *name, int64_t min, int64_t max, int64_t *out);
/* "2024-03-04T18:20:00Z", or null. */
json_t *is_json_time(int64_t time);
/* A text of which it is not known to be UTF-8. */
json_t *is_json_text(const char *text, size_t n);
json_t *is_json_fact(const is_fact *fact, double score); /* score NAN: none */

/* ---- memories.c: before and after a wait for the encoding; false when it has answered 429, as too many wait */

bool is_wait_begin(is_request *r);
void is_wait_end(is_request *r);

/* ---- metrics.c */

typedef struct is_record {
    const char *tenant, *user;
    is_mode mode;
    double ttft_ms, total_ms, queue_ms, retrieval_ms, inject_ms;
    uint32_t tokens_injected, tokens_prefilled, tokens_generated;
    double prefill_ms;
    uint32_t tokens_history, refused, refused_damaged;
    unsigned status;
} is_record;

is_status is_metrics_open(is_metrics **out, is_error *err);
void is_metrics_close(is_metrics *metrics);
void is_metrics_answer(is_metrics *metrics, const is_record *record);
void is_metrics_token(is_metrics *metrics, double since_last_ms);
void is_metrics_encoded(is_metrics *metrics, uint32_t facts, double ms);
/* Until one is measured: from the start. */
void is_metrics_prefill_cost(is_metrics *metrics, double ms_per_token);
void is_metrics_reply(is_metrics *metrics, const is_route *route, unsigned status);

/* ---- handlers */

void is_handle_models(is_request *r);
void is_handle_model(is_request *r);
void is_handle_chat(is_request *r);
void is_handle_completions(is_request *r);
void is_handle_embeddings(is_request *r);
void is_handle_add(is_request *r);
void is_handle_search(is_request *r);
void is_handle_list(is_request *r);
void is_handle_get(is_request *r);
void is_handle_change(is_request *r);
void is_handle_history(is_request *r);
void is_handle_forget(is_request *r);
void is_handle_forget_all(is_request *r);
void is_handle_users(is_request *r);
void is_handle_import(is_request *r);
void is_handle_encode(is_request *r);
void is_handle_health(is_request *r);
void is_handle_ready(is_request *r);
void is_handle_metrics(is_request *r);
void is_handle_status(is_request *r);
void is_handle_openapi(is_request *r);
void is_handle_asset(is_request *r);
void is_handle_icon(is_request *r);

/* ---- server.c */

struct is_server {
    is_memory *memory;
    is_server_options options;
    struct MHD_Daemon *daemon;
    uint16_t port;
    bool loopback;
    is_keys *keys; /* NULL: none needed */
    is_rate *rate; /* NULL: any */
    is_pool *askers, *keepers;
    is_metrics *metrics;
    atomic_bool listening, draining, stopping;
    atomic_uint in_work; /* requests handed to workers */
    atomic_uint waiting; /* of those, for the encoding of facts */
    atomic_uint open;    /* requests that are not answered to the last byte */
    double started_ms;
    int64_t started;                                /* Unix seconds */
    char model[IS_MAX_NAME], embedder[IS_MAX_NAME]; /* ids in /v1/models */
};

void is_server_log(const is_server *server, int level, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
