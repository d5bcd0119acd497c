/*
 * The table of routes, and what is checked before a handler is called: the method, the key, the rate, the body.
 */
#include "internal.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <xxhash.h>

#include "../common/common.h"

#define PARSE_AT_ONCE ((size_t)64 << 10) /* bytes of JSON that the connections' thread reads itself, some 0.2 ms */

const is_route IS_ROUTES[] = {
    {"GET", "/v1/models", is_handle_models, IS_AT_ONCE, IS_NO_BODY, false},
    {"GET", "/v1/models/{name}", is_handle_model, IS_AT_ONCE, IS_NO_BODY, false},
    {"POST", "/v1/chat/completions", is_handle_chat, IS_BY_ASKER, IS_JSON_BODY, false},
    {"POST", "/v1/completions", is_handle_completions, IS_BY_ASKER, IS_JSON_BODY, false},
    {"POST", "/v1/embeddings", is_handle_embeddings, IS_BY_KEEPER, IS_JSON_BODY, false},
    {"POST", "/v1/memories", is_handle_add, IS_BY_KEEPER, IS_JSON_BODY, false},
    {"GET", "/v1/memories", is_handle_list, IS_BY_KEEPER, IS_NO_BODY, false},
    {"DELETE", "/v1/memories", is_handle_forget_all, IS_BY_KEEPER, IS_NO_BODY, false},
    {"POST", "/v1/memories/search", is_handle_search, IS_BY_KEEPER, IS_JSON_BODY, false},
    {"POST", "/v1/memories/import", is_handle_import, IS_BY_KEEPER, IS_LINES_BODY, false},
    {"GET", "/v1/memories/{id}", is_handle_get, IS_BY_KEEPER, IS_NO_BODY, false},
    {"PATCH", "/v1/memories/{id}", is_handle_change, IS_BY_KEEPER, IS_JSON_BODY, false},
    {"DELETE", "/v1/memories/{id}", is_handle_forget, IS_BY_KEEPER, IS_NO_BODY, false},
    {"GET", "/v1/memories/{id}/history", is_handle_history, IS_BY_KEEPER, IS_NO_BODY, false},
    {"GET", "/v1/users", is_handle_users, IS_BY_KEEPER, IS_NO_BODY, false},
    {"GET", "/v1/encode", is_handle_encode, IS_BY_KEEPER, IS_NO_BODY, false},
    {"GET", "/v1/status", is_handle_status, IS_BY_KEEPER, IS_NO_BODY, false},
    {"GET", "/metrics", is_handle_metrics, IS_BY_KEEPER, IS_NO_BODY, false},
    {"GET", "/healthz", is_handle_health, IS_AT_ONCE, IS_NO_BODY, true},
    {"GET", "/readyz", is_handle_ready, IS_AT_ONCE, IS_NO_BODY, true},
    {"GET", "/openapi.json", is_handle_openapi, IS_AT_ONCE, IS_NO_BODY, true},
    {"GET", "/", is_handle_asset, IS_AT_ONCE, IS_NO_BODY, true},
    {"GET", "/favicon.ico", is_handle_icon, IS_AT_ONCE, IS_NO_BODY, true},
    {"GET", "/app.js", is_handle_asset, IS_AT_ONCE, IS_NO_BODY, true},
    {"GET", "/style.css", is_handle_asset, IS_AT_ONCE, IS_NO_BODY, true},
    {"GET", "/chart.js", is_handle_asset, IS_AT_ONCE, IS_NO_BODY, true},
};
const size_t IS_N_ROUTES = sizeof IS_ROUTES / sizeof IS_ROUTES[0];

/* Stands for the route of a request that has none. */
static const is_route NO_ROUTE = {"", "other", NULL, IS_AT_ONCE, IS_NO_BODY, true};

/* ------------------------------------------------------------ finding */

static bool read_id(const char *text, size_t n, int64_t *out)
{
    int64_t id = 0;
    if (n == 0 || n > 18) return false;
    for (size_t i = 0; i < n; i++) {
        if (text[i] < '0' || text[i] > '9') return false;
        id = id * 10 + (text[i] - '0');
    }
    *out = id;
    return true;
}

/* Whether the path has the pattern's form; fills in its parameters. */
static bool matches(is_request *r, const char *pattern, const char *path)
{
    while (*pattern != '\0' && *path != '\0') {
        if (*pattern != '{') {
            if (*pattern++ != *path++) return false;
            continue;
        }
        bool number = strncmp(pattern, "{id}", 4) == 0;
        size_t n = number ? strcspn(path, "/") : strlen(path); /* a model's name may have slashes */
        if (number ? !read_id(path, n, &r->id) : n == 0 || n >= sizeof r->name || !is_utf8_valid(path, n)) return false;
        if (!number) {
            memcpy(r->name, path, n);
            r->name[n] = '\0';
        }
        path += n;
        pattern += strcspn(pattern, "}") + 1;
    }
    return *pattern == '\0' && *path == '\0';
}

void is_route_find(is_request *r, const char *method, const char *path)
{
    const char *asked = strcmp(method, "HEAD") == 0 ? "GET" : method; /* the library leaves the body out */
    r->route = &NO_ROUTE;
    for (size_t i = 0; i < IS_N_ROUTES; i++) {
        if (!matches(r, IS_ROUTES[i].path, path)) continue;
        if (strcmp(asked, IS_ROUTES[i].method) == 0) {
            r->route = &IS_ROUTES[i];
            r->allow[0] = '\0';
            return;
        }
        size_t n = strlen(r->allow);
        (void)snprintf(r->allow + n, sizeof r->allow - n, "%s%s", n > 0 ? ", " : "", IS_ROUTES[i].method);
    }
    if (r->allow[0] != '\0')
        is_reply_error(r, 405, NULL, "method_not_allowed", "%.16s is not possible here; use %s", method, r->allow);
    else
        is_reply_error(r, 404, NULL, "no_route", "there is nothing at this path; /openapi.json lists what there is");
}

/* ------------------------------------------------------------ who asks */

static const char *header(const is_request *r, const char *name)
{
    return MHD_lookup_connection_value(r->connection, MHD_HEADER_KIND, name);
}

/* Without keys a web page must not reach this server under another name (DNS rebinding). */
static bool is_local_name(const char *host)
{
    static const char *const names[] = {"localhost", "127.0.0.1", "[::1]"};
    if (host == NULL) return true;
    for (size_t i = 0; i < 3; i++) {
        size_t n = strlen(names[i]);
        if (strncasecmp(host, names[i], n) == 0 && (host[n] == '\0' || host[n] == ':')) return true;
    }
    return strncmp(host, "127.", 4) == 0 && strspn(host, "0123456789.:") == strlen(host);
}

static bool check_key(is_request *r)
{
    const is_server *s = r->server;
    if (s->keys == NULL) {
        if (is_local_name(header(r, "Host"))) return true;
        is_reply_error(r, 403, NULL, "wrong_host",
                       "without keys this server answers to localhost only; start it with --keys for other names");
        return false;
    }
    const char *value = header(r, "Authorization");
    const char *tenant = NULL;
    if (value != NULL && strncasecmp(value, "Bearer ", 7) == 0) tenant = is_keys_tenant(s->keys, value + 7);
    if (tenant == NULL) {
        is_reply_error(r, 401, NULL, value == NULL ? "key_missing" : "key_invalid",
                       value == NULL ? "an API key is needed, as the header Authorization: Bearer KEY"
                                     : "this API key is not known here; ask whoever runs the server for one");
        return false;
    }
    (void)snprintf(r->tenant, sizeof r->tenant, "%s", tenant);
    return true;
}

static uint64_t address_hash(const is_request *r)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(r->connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    if (info == NULL || info->client_addr == NULL) return 1;
    const struct sockaddr *address = info->client_addr;
    if (address->sa_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)address;
        return XXH3_64bits(&v4->sin_addr, sizeof v4->sin_addr);
    }
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)address;
    return XXH3_64bits(&v6->sin6_addr, 8); /* who has one IPv6 address has 2^64 of them */
}

/* ------------------------------------------------------------ the body */

/*
 * What the JSON would cost is bounded before it is built, by what stands outside of strings: an empty object is two
 * bytes here and some 300 in memory.
 */
bool is_route_check_json(is_request *r)
{
    int depth = 0;
    size_t values = 0, objects = 0;
    bool quoted = false;
    for (size_t i = 0; i < r->n_body; i++) {
        char c = r->body[i];
        if (quoted) {
            if (c == '\\')
                i++;
            else if (c == '"')
                quoted = false;
        } else if (c == '"') {
            quoted = true;
        } else if (c == '[' || c == '{') {
            objects += c == '{';
            if (++depth <= IS_MAX_DEPTH) continue;
            is_reply_error(r, 400, NULL, "too_deep", "the JSON is nested more than %d levels deep", IS_MAX_DEPTH);
            return false;
        } else if (c == ']' || c == '}') {
            depth--;
        } else if (c == ',') {
            values++;
        }
    }
    if (values <= IS_MAX_VALUES && objects <= IS_MAX_OBJECTS) return true;
    is_reply_error(r, 400, NULL, "too_many_values",
                   "the JSON has %zu values and %zu objects, and at most %d and %d are read; send less at a time",
                   values, objects, IS_MAX_VALUES, IS_MAX_OBJECTS);
    return false;
}

static bool parse(is_request *r)
{
    json_error_t error;
    if (r->json != NULL) return true;
    if (r->n_body == 0) {
        is_reply_error(r, 400, NULL, "body_missing", "the request has no body; send a JSON object");
        return false;
    }
    if (!is_route_check_json(r)) return false;
    r->json = json_loadb(r->body, r->n_body, JSON_REJECT_DUPLICATES, &error);
    if (r->json == NULL) {
        is_reply_error(r, 400, NULL, "invalid_json", "the body is not JSON: line %d, column %d: %s", error.line,
                       error.column, error.text);
        return false;
    }
    if (json_is_object(r->json)) return true;
    is_reply_error(r, 400, NULL, "invalid_json", "the body must be a JSON object");
    return false;
}

/* A type that a web form cannot send, so that no foreign page can make a browser write here. */
static bool check_type(is_request *r)
{
    const char *type = header(r, "Content-Type");
    if (r->route->body == IS_NO_BODY) return true;
    bool json = type != NULL && strncasecmp(type, "application/json", 16) == 0;
    bool lines = type != NULL && (strncasecmp(type, "application/x-ndjson", 20) == 0 ||
                                  strncasecmp(type, "application/jsonl", 17) == 0);
    if (json || (lines && r->route->body == IS_LINES_BODY)) return true;
    is_reply_error(r, 415, NULL, "wrong_type", "the body's Content-Type must be application/json%s",
                   r->route->body == IS_LINES_BODY ? " or application/x-ndjson" : "");
    return false;
}

bool is_route_admit(is_request *r)
{
    if (r->route->open) return true;
    if (!check_key(r)) return false;
    if (atomic_load(&r->server->draining)) {
        is_reply_draining(r);
        return false;
    }
    uint64_t who = r->server->keys == NULL ? address_hash(r) : XXH3_64bits(r->tenant, strlen(r->tenant));
    if (r->server->rate != NULL && (r->retry_after = is_rate_take(r->server->rate, who)) > 0) {
        is_reply_error(r, 429, NULL, "rate_limit_exceeded", "more than %u requests a minute; wait %u seconds",
                       r->server->options.rate, r->retry_after);
        return false;
    }
    const char *user = header(r, "X-User-Id");
    if (user != NULL && (strlen(user) >= sizeof r->user_header || !is_utf8_valid(user, strlen(user)))) {
        is_reply_error(r, 400, "X-User-Id", "invalid_value", "X-User-Id must be UTF-8 of at most %d bytes",
                       IS_MAX_NAME - 1);
        return false;
    }
    if (user != NULL) (void)snprintf(r->user_header, sizeof r->user_header, "%s", user);
    if (!check_type(r)) return false;
    if (r->route->body == IS_JSON_BODY && r->n_body <= PARSE_AT_ONCE && !parse(r)) return false;
    const char *named = json_string_value(json_object_get(r->json, "user"));
    if (named == NULL) named = r->user_header;
    r->fair = XXH3_64bits_withSeed(named, strlen(named), who) | 1;
    return true;
}

void is_route_work(is_request *r)
{
    if (r->route->body == IS_JSON_BODY && !parse(r)) return;
    r->route->handler(r);
    if (r->status == 0) is_reply_error(r, 500, NULL, "no_reply", "the server has no reply to this");
}
