/*
 * One request on its connection.
 *
 * libmicrohttpd calls is_http_handle again and again: first with the header, then with pieces of the body, then with
 * nothing, when the request is whole.  Then it is answered at once or goes to a worker; its connection is suspended
 * before the worker can see it, so a resume never comes too early.  A stream's bytes wait in the request until the
 * connection takes them; when there are none, the connection is suspended again, under the lock that the worker
 * takes to resume it.
 */
#include "internal.h"

#include <malloc.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/common.h"

#define LARGE_BODY ((size_t)1 << 20)

/* ------------------------------------------------------------ a request's life */

static is_request *open_request(is_server *server, struct MHD_Connection *connection)
{
    is_request *r = calloc(1, sizeof *r);
    if (r == NULL) return NULL;
    r->server = server;
    r->connection = connection;
    r->arrived_ms = is_now_ms();
    r->socket = -1;
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (info != NULL) r->socket = info->connect_fd;
    pthread_mutex_init(&r->lock, NULL);
    atomic_store(&r->owners, 1);
    atomic_fetch_add(&server->open, 1);
    return r;
}

void is_request_release(is_request *r)
{
    if (atomic_fetch_sub(&r->owners, 1) != 1) return;
    json_decref(r->json);
    free(r->body);
    if (!r->reply_static) free(r->reply);
    free(r->out);
    pthread_mutex_destroy(&r->lock);
    bool large = r->body_large;
    free(r);
    if (large) (void)malloc_trim(0); /* what a large body and its JSON took goes back to the system */
}

void is_http_completed(void *server, struct MHD_Connection *connection, void **state,
                       enum MHD_RequestTerminationCode code)
{
    (void)server;
    (void)connection;
    (void)code;
    is_request *r = *state;
    *state = NULL;
    if (r == NULL) return;
    atomic_store(&r->gone, true);
    atomic_fetch_sub(&r->server->open, 1);
    pthread_mutex_lock(&r->lock);
    r->connection = NULL;
    r->suspended = false;
    pthread_mutex_unlock(&r->lock);
    is_request_release(r);
}

bool is_request_gone(const is_request *r)
{
    if (atomic_load(&r->gone) || atomic_load(&r->server->stopping)) return true;
    struct pollfd fd = {.fd = r->socket, .events = POLLRDHUP};
    return r->socket >= 0 && poll(&fd, 1, 0) > 0 && (fd.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

/* The lock is held. */
static void resume(is_request *r)
{
    if (!r->suspended) return;
    r->suspended = false;
    MHD_resume_connection(r->connection);
}

void is_request_end(is_request *r)
{
    pthread_mutex_lock(&r->lock);
    r->ended = true;
    resume(r);
    pthread_mutex_unlock(&r->lock);
    atomic_fetch_sub(&r->server->in_work, 1);
    is_request_release(r);
}

/* ------------------------------------------------------------ replies */

void is_reply(is_request *r, unsigned status, const char *type, char *reply, size_t n)
{
    if (r->status != 0) { /* the first one counts */
        free(reply);
        return;
    }
    r->status = status;
    r->type = type;
    r->reply = reply;
    r->n_reply = n;
}

void is_reply_static(is_request *r, const char *type, const void *reply, size_t n)
{
    if (r->status != 0) return;
    r->reply_static = true;
    is_reply(r, MHD_HTTP_OK, type, (char *)(uintptr_t)reply, n);
}

void is_reply_json(is_request *r, unsigned status, json_t *value)
{
    static const char last[] = "{\"error\": {\"message\": \"no memory for the reply\", \"type\": \"server_error\"}}";
    char *text = value == NULL ? NULL : json_dumps(value, JSON_COMPACT);
    json_decref(value);
    if (text != NULL) {
        is_reply(r, status, "application/json", text, strlen(text));
    } else if (r->status == 0) {
        is_reply_static(r, "application/json", last, sizeof last - 1);
        r->status = MHD_HTTP_INTERNAL_SERVER_ERROR;
    }
}

json_t *is_error_json(unsigned status, const char *param, const char *code, const char *message)
{
    const char *type = status == 401                   ? "authentication_error"
                       : status == 403                 ? "permission_error"
                       : status == 404                 ? "not_found_error"
                       : status == 429                 ? "rate_limit_error"
                       : status >= 400 && status < 500 ? "invalid_request_error"
                                                       : "server_error";
    return json_pack("{s:{s:o, s:s, s:s?, s:s?}}", "error", "message", is_json_text(message, strlen(message)), "type",
                     type, "param", param, "code", code);
}

void is_reply_error(is_request *r, unsigned status, const char *param, const char *code, const char *format, ...)
{
    char message[1200];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(message, sizeof message, format, args);
    va_end(args);
    is_reply_json(r, status, is_error_json(status, param, code, message));
}

void is_reply_draining(is_request *r)
{
    r->retry_after = 5;
    is_reply_error(r, MHD_HTTP_SERVICE_UNAVAILABLE, NULL, "draining",
                   "the server is going down; ask again in a moment");
}

unsigned is_status_code(const is_error *err, const char **code)
{
    *code = is_status_name(err->status);
    switch (err->status) {
    case IS_EINVAL:
    case IS_EUNSUPPORTED:
    case IS_ELIMIT: return MHD_HTTP_BAD_REQUEST;
    case IS_ENOTFOUND: return MHD_HTTP_NOT_FOUND;
    case IS_ECANCELED:
    case IS_EUNAVAILABLE:
    case IS_ENOMEM: return MHD_HTTP_SERVICE_UNAVAILABLE;
    default: return MHD_HTTP_INTERNAL_SERVER_ERROR;
    }
}

void is_reply_failure(is_request *r, const is_error *err)
{
    const char *code;
    unsigned status = is_status_code(err, &code);
    if (status == MHD_HTTP_SERVICE_UNAVAILABLE) r->retry_after = 1;
    if (status >= 500 && err->status != IS_ECANCELED)
        is_server_log(r->server, 0, "%s %s: %s", r->route->method, r->route->path, err->text);
    is_reply_error(r, status, NULL, code, "%s", err->text);
}

/* ------------------------------------------------------------ streams */

void is_stream_begin(is_request *r, const char *type)
{
    pthread_mutex_lock(&r->lock);
    r->status = MHD_HTTP_OK;
    r->type = type;
    r->streaming = true;
    resume(r);
    pthread_mutex_unlock(&r->lock);
}

static bool make_room(is_request *r, size_t n)
{
    if (r->out_capacity - r->n_out >= n) return true;
    memmove(r->out, r->out + r->sent, r->n_out - r->sent);
    r->n_out -= r->sent;
    r->sent = 0;
    if (r->out_capacity - r->n_out >= n) return true;
    size_t capacity = (r->n_out + n) * 2;
    char *grown = realloc(r->out, capacity);
    if (grown == NULL) return false;
    r->out = grown;
    r->out_capacity = capacity;
    return true;
}

bool is_stream_write(is_request *r, const char *bytes, size_t n)
{
    if (atomic_load(&r->gone)) return false;
    pthread_mutex_lock(&r->lock);
    if (r->out == NULL) { /* memmove wants a pointer */
        r->out = malloc(4096);
        r->out_capacity = r->out == NULL ? 0 : 4096;
    }
    bool room = r->out != NULL && make_room(r, n);
    if (room) {
        memcpy(r->out + r->n_out, bytes, n);
        r->n_out += n;
        resume(r);
    }
    pthread_mutex_unlock(&r->lock);
    return room;
}

static bool write_json(is_request *r, const char *before, json_t *value, const char *after)
{
    char *text = value == NULL ? NULL : json_dumps(value, JSON_COMPACT);
    json_decref(value);
    if (text == NULL) return false;
    char *whole = NULL;
    int n = asprintf(&whole, "%s%s%s", before, text, after);
    free(text);
    if (n < 0) return false;
    bool ok = is_stream_write(r, whole, (size_t)n);
    free(whole);
    return ok;
}

bool is_stream_line(is_request *r, json_t *value)
{
    return write_json(r, "", value, "\n");
}

bool is_stream_event(is_request *r, json_t *value)
{
    return write_json(r, "data: ", value, "\n\n");
}

static ssize_t read_stream(void *state, uint64_t position, char *to, size_t max)
{
    (void)position;
    is_request *r = state;
    pthread_mutex_lock(&r->lock);
    size_t n = r->n_out - r->sent;
    ssize_t result = 0;
    if (n > 0) {
        if (n > max) n = max;
        memcpy(to, r->out + r->sent, n);
        r->sent += n;
        result = (ssize_t)n;
    } else if (r->ended) {
        result = MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        r->suspended = true;
        MHD_suspend_connection(r->connection);
    }
    pthread_mutex_unlock(&r->lock);
    return result;
}

/* ------------------------------------------------------------ the connection's side */

static void add_headers(const is_request *r, struct MHD_Response *response)
{
    char seconds[16];
    (void)MHD_add_response_header(response, "Content-Type", r->type);
    (void)MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    (void)MHD_add_response_header(response, "Cache-Control", "no-store");
    if (strncmp(r->type, "text/html", 9) == 0)
        (void)MHD_add_response_header(response, "Content-Security-Policy",
                                      "default-src 'self'; frame-ancestors 'none'; base-uri 'none'");
    if (r->allow[0] != '\0') (void)MHD_add_response_header(response, "Allow", r->allow);
    if (r->status == MHD_HTTP_UNAUTHORIZED) (void)MHD_add_response_header(response, "WWW-Authenticate", "Bearer");
    if (r->retry_after == 0) return;
    (void)snprintf(seconds, sizeof seconds, "%u", r->retry_after);
    (void)MHD_add_response_header(response, "Retry-After", seconds);
}

static enum MHD_Result send_reply(is_request *r)
{
    struct MHD_Response *response;
    if (r->type == NULL) { /* the client left before there was a reply; nobody reads this one */
        r->status = 499;
        r->type = "text/plain";
    }
    pthread_mutex_lock(&r->lock); /* of a stream the worker may still be writing */
    if (r->streaming)
        response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16384, read_stream, r, NULL);
    else
        response = MHD_create_response_from_buffer(r->n_reply, r->reply, MHD_RESPMEM_PERSISTENT);
    pthread_mutex_unlock(&r->lock);
    if (response == NULL) return MHD_NO;
    add_headers(r, response);
    enum MHD_Result result = MHD_queue_response(r->connection, r->status, response);
    MHD_destroy_response(response);
    is_metrics_reply(r->server->metrics, r->route, r->status);
    return result;
}

/* What a worker has to do; the connection waits.  It counts as in work already. */
static enum MHD_Result hand_over(is_request *r)
{
    is_server *s = r->server;
    atomic_fetch_add(&r->owners, 1);
    r->suspended = true;
    MHD_suspend_connection(r->connection);
    if (is_pool_submit(r->route->where == IS_BY_ASKER ? s->askers : s->keepers, r)) return MHD_YES;
    r->retry_after = 1;
    is_reply_error(r, MHD_HTTP_TOO_MANY_REQUESTS, NULL, "queue_full",
                   "%u requests wait already; try again in a moment, or start the server with a longer --queue",
                   s->options.queue);
    is_request_end(r);
    return MHD_YES;
}

static enum MHD_Result dispatch(is_request *r)
{
    r->dispatched = true;
    if (r->status == 0 && r->body_too_large)
        is_reply_error(r, MHD_HTTP_CONTENT_TOO_LARGE, NULL, "body_too_large",
                       "the body is larger than %llu bytes; send less at a time, or raise --max-body",
                       (unsigned long long)r->server->options.max_body);
    if (r->status != 0) return send_reply(r);
    /* Before draining is looked at: who stops the server waits for all that it may still let in. */
    atomic_fetch_add(&r->server->in_work, 1);
    bool admitted = is_route_admit(r);
    if (admitted && r->route->where != IS_AT_ONCE) return hand_over(r);
    atomic_fetch_sub(&r->server->in_work, 1);
    if (admitted) r->route->handler(r);
    return send_reply(r);
}

static void take_body(is_request *r, const char *data, size_t n)
{
    if (r->status != 0 || r->body_too_large || r->route->body == IS_NO_BODY) return;
    if (n > r->server->options.max_body || r->n_body > r->server->options.max_body - n) {
        r->body_too_large = true;
        free(r->body);
        r->body = NULL;
        r->n_body = r->body_capacity = 0;
        return;
    }
    if (r->body_capacity - r->n_body <= n) {
        size_t capacity = (r->n_body + n + 1) * 2;
        char *grown = realloc(r->body, capacity);
        if (grown == NULL) {
            is_reply_error(r, MHD_HTTP_SERVICE_UNAVAILABLE, NULL, "no_memory", "no memory for the request's body");
            return;
        }
        r->body = grown;
        r->body_capacity = capacity;
        r->body_large = r->body_large || capacity > LARGE_BODY;
    }
    memcpy(r->body + r->n_body, data, n);
    r->n_body += n;
    r->body[r->n_body] = '\0';
}

/* A length that is too large already is answered before the body comes; the connection is closed then. */
static bool announces_too_much(const is_request *r)
{
    const char *length = MHD_lookup_connection_value(r->connection, MHD_HEADER_KIND, "Content-Length");
    return length != NULL && strtoull(length, NULL, 10) > r->server->options.max_body;
}

enum MHD_Result is_http_handle(void *server, struct MHD_Connection *connection, const char *url, const char *method,
                               const char *version, const char *data, size_t *n_data, void **state)
{
    (void)version;
    is_request *r = *state;
    if (r == NULL) {
        r = open_request(server, connection);
        *state = r;
        if (r == NULL) return MHD_NO;
        is_route_find(r, method, url);
        if (!announces_too_much(r)) return MHD_YES;
        r->body_too_large = true;
        return dispatch(r);
    }
    if (*n_data > 0) {
        take_body(r, data, *n_data);
        *n_data = 0;
        return MHD_YES;
    }
    return r->dispatched ? send_reply(r) : dispatch(r);
}

const char *is_query(const is_request *r, const char *name)
{
    const char *value = NULL;
    size_t n = 0;
    if (r->connection == NULL ||
        MHD_lookup_connection_value_n(r->connection, MHD_GET_ARGUMENT_KIND, name, strlen(name), &value, &n) != MHD_YES)
        return NULL;
    return value != NULL && strlen(value) != n ? "\xff" : value; /* a NUL in it (%00): no text, as this is none */
}
