/*
 * The server's parts that need no connection: its table of routes and its own description of them, keys, the rate
 * limit, fields of a body, the workers' queue.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "server/internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

/* ------------------------------------------------------------ routes and their description */

extern const char is_asset_openapi[], is_asset_openapi_end[];

static json_t *description(void)
{
    json_error_t why;
    json_t *root =
        json_loadb(is_asset_openapi, (size_t)(is_asset_openapi_end - is_asset_openapi), JSON_REJECT_DUPLICATES, &why);
    if (root == NULL) fail_msg("openapi.json, line %d: %s", why.line, why.text);
    return root;
}

static const json_t *operation_of(const json_t *root, const is_route *route)
{
    char method[16];
    size_t n = strlen(route->method);
    for (size_t i = 0; i <= n; i++) method[i] = (char)(route->method[i] | (route->method[i] == '\0' ? 0 : 0x20));
    return json_object_get(json_object_get(json_object_get(root, "paths"), route->path), method);
}

static void test_every_route_is_described(void **state)
{
    (void)state;
    json_t *root = description();
    size_t described = 0;
    const char *path, *method;
    json_t *item, *operation;
    json_object_foreach(json_object_get(root, "paths"), path, item)
    {
        json_object_foreach(item, method, operation)
        {
            bool found = false;
            for (size_t i = 0; i < IS_N_ROUTES && !found; i++)
                found = strcmp(IS_ROUTES[i].path, path) == 0 && strcasecmp(IS_ROUTES[i].method, method) == 0;
            if (!found) fail_msg("openapi.json has %s %s, and the server has not", method, path);
            described++;
        }
    }
    for (size_t i = 0; i < IS_N_ROUTES; i++)
        if (operation_of(root, &IS_ROUTES[i]) == NULL)
            fail_msg("the server has %s %s, and openapi.json has not", IS_ROUTES[i].method, IS_ROUTES[i].path);
    assert_int_equal(described, IS_N_ROUTES);
    json_decref(root);
}

/* What is checked before a handler is called is in the description too. */
static void test_what_is_checked_is_described(void **state)
{
    (void)state;
    json_t *root = description();
    for (size_t i = 0; i < IS_N_ROUTES; i++) {
        const is_route *route = &IS_ROUTES[i];
        const json_t *operation = operation_of(root, route);
        const json_t *replies = json_object_get(operation, "responses");
        const json_t *security = json_object_get(operation, "security");
        assert_int_equal(json_is_array(security) && json_array_size(security) == 0, route->open);
        assert_int_equal(json_object_get(replies, "401") != NULL, !route->open);
        assert_int_equal(json_object_get(replies, "429") != NULL, !route->open);
        assert_int_equal(json_object_get(replies, "415") != NULL, route->body != IS_NO_BODY);
        assert_int_equal(json_object_get(operation, "requestBody") != NULL, route->body != IS_NO_BODY);
        assert_non_null(json_object_get(replies, "413"));
        assert_non_null(json_object_get(operation, "operationId"));
        assert_non_null(json_object_get(operation, "summary"));
    }
    json_decref(root);
}

/* Every "$ref" leads somewhere. */
static void check_references(const json_t *root, const json_t *value)
{
    const char *key;
    const json_t *member;
    size_t i;
    const char *to = json_string_value(json_object_get(value, "$ref"));
    if (to != NULL) {
        char kind[64], name[64];
        if (sscanf(to, "#/components/%63[^/]/%63s", kind, name) != 2 ||
            json_object_get(json_object_get(json_object_get(root, "components"), kind), name) == NULL)
            fail_msg("%s leads nowhere", to);
    }
    if (json_is_object(value)) {
        json_object_foreach((json_t *)(uintptr_t)value, key, member) check_references(root, member);
    } else if (json_is_array(value)) {
        json_array_foreach((json_t *)(uintptr_t)value, i, member) check_references(root, member);
    }
}

static void test_references(void **state)
{
    (void)state;
    json_t *root = description();
    check_references(root, root);
    json_decref(root);
}

/* ------------------------------------------------------------ a request without a connection */

static is_server no_server;

static is_request *request(void)
{
    is_request *r = calloc(1, sizeof *r);
    assert_non_null(r);
    r->server = &no_server;
    r->socket = -1;
    pthread_mutex_init(&r->lock, NULL);
    atomic_store(&r->owners, 1);
    return r;
}

/* The member `name` of the reply's error. */
static const char *told(const is_request *r, const char *name)
{
    static char value[1300];
    json_t *root = json_loadb(r->reply, r->n_reply, 0, NULL);
    const char *text = json_string_value(json_object_get(json_object_get(root, "error"), name));
    value[0] = '\0';
    if (text != NULL) (void)snprintf(value, sizeof value, "%s", text);
    json_decref(root);
    return value;
}

static void check_route(const char *method, const char *path, const char *found, unsigned status, const char *allow)
{
    is_request *r = request();
    is_route_find(r, method, path);
    assert_int_equal(r->status, status);
    if (found != NULL) assert_string_equal(r->route->path, found);
    if (allow != NULL) assert_string_equal(r->allow, allow);
    is_request_release(r);
}

static void test_finding_routes(void **state)
{
    (void)state;
    check_route("GET", "/v1/memories", "/v1/memories", 0, "");
    check_route("HEAD", "/v1/memories", "/v1/memories", 0, "");
    check_route("GET", "/v1/memories/17", "/v1/memories/{id}", 0, NULL);
    check_route("GET", "/v1/memories/17/history", "/v1/memories/{id}/history", 0, NULL);
    check_route("GET", "/v1/models/a/b", "/v1/models/{name}", 0, NULL);
    check_route("POST", "/v1/memories/search", "/v1/memories/search", 0, NULL);
    check_route("GET", "/v1/memories/search", NULL, 405, "POST");
    check_route("PUT", "/v1/memories/17", NULL, 405, "GET, PATCH, DELETE");
    check_route("get", "/v1/memories", NULL, 405, "POST, GET, DELETE");
    check_route("GET", "/v1/memories/", NULL, 404, "");
    check_route("GET", "/v1/memories/17/", NULL, 404, "");
    check_route("GET", "/v1/memories/1e3", NULL, 404, "");
    check_route("GET", "/v1/memories/9999999999999999999", NULL, 404, "");
    check_route("GET", "/v1/models/", NULL, 404, "");
    check_route("GET", "/v1/models/\xff", NULL, 404, "");
    check_route("GET", "", NULL, 404, "");
    char path[1000] = "/v1/models/";
    memset(path + 11, 'a', 900);
    check_route("GET", path, NULL, 404, "");
}

static void test_parts_of_a_path(void **state)
{
    (void)state;
    is_request *r = request();
    is_route_find(r, "GET", "/v1/memories/999999999999999999");
    assert_int_equal(r->id, 999999999999999999);
    is_request_release(r);
    r = request();
    is_route_find(r, "GET", "/v1/models/maker/model:1");
    assert_string_equal(r->name, "maker/model:1");
    is_request_release(r);
}

/* ------------------------------------------------------------ keys */

static is_keys *keys_of(const char *format, ...) __attribute__((format(printf, 1, 2)));
static is_keys *keys_of(const char *format, ...)
{
    char text[2000];
    is_keys *keys = NULL;
    is_error err = {0};
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (is_keys_open(text, &keys, &err) != IS_OK) fail_msg("%s: %s", text, err.text);
    return keys;
}

static void test_hash_of_a_key(void **state)
{
    (void)state;
    char hash[65];
    is_server_key_hash("abc", hash); /* FIPS 180-2's example */
    assert_string_equal(hash, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

static void test_keys_and_tenants(void **state)
{
    (void)state;
    char red[65], blue[65], again[65];
    is_server_key_hash("is-red", red);
    is_server_key_hash("is-blue", blue);
    is_server_key_hash("is-again", again);
    is_keys *keys = keys_of("# made today\r\n\n  red \t %s  \r\nblue %s\nred %s", red, blue, again);
    assert_string_equal(is_keys_tenant(keys, "is-red"), "red");
    assert_string_equal(is_keys_tenant(keys, "is-blue"), "blue");
    assert_string_equal(is_keys_tenant(keys, "is-again"), "red"); /* a tenant may have several */
    const char *wrong[] = {"", "is-re", "is-redd", "IS-RED", red, "red", "is-red "};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) assert_null(is_keys_tenant(keys, wrong[i]));
    is_keys_close(keys);

    keys = keys_of("red %s;blue %s", red, blue); /* in one line, as of an environment variable */
    assert_string_equal(is_keys_tenant(keys, "is-red"), "red");
    assert_string_equal(is_keys_tenant(keys, "is-blue"), "blue");
    is_keys_close(keys);

    keys = keys_of(";;# red is gone %s;\xC3\xBCn\xC3\xAF %s;", red, blue);
    assert_null(is_keys_tenant(keys, "is-red"));
    assert_string_equal(is_keys_tenant(keys, "is-blue"), "\xC3\xBCn\xC3\xAF");
    is_keys_close(keys);
    is_keys_close(NULL);
}

static void check_bad_keys(const char *text, const char *words)
{
    is_keys *keys = (is_keys *)&keys;
    is_error err = {0};
    assert_int_equal(is_keys_open(text, &keys, &err), IS_EINVAL);
    assert_null(keys);
    if (strstr(err.text, words) == NULL) fail_msg("\"%s\" says: %s", text, err.text);
}

static void test_bad_keys(void **state)
{
    (void)state;
#define HASH "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
    is_keys_close(keys_of("red " HASH));
    check_bad_keys("", "no entry");
    check_bad_keys("# nobody\n \n;", "no entry");
    check_bad_keys("red", "line 1");
    check_bad_keys("red ", "line 1");
    check_bad_keys(HASH, "line 1");
    check_bad_keys("red " HASH "\nblue", "line 2");
    check_bad_keys("red " HASH ";blue;", "line 2");
    check_bad_keys("red " HASH "0", "line 1");
    check_bad_keys("red 0123456789abcdef", "line 1");
    check_bad_keys("red " HASH " more", "line 1");
    check_bad_keys("red 0123456789ABCDEF0123456789abcdef0123456789abcdef0123456789abcdef", "line 1");
    check_bad_keys("r\xff " HASH, "line 1");
    char text[600];
    memset(text, 'r', 256);
    (void)snprintf(text + 256, sizeof text - 256, " " HASH);
    check_bad_keys(text, "line 1");
    memmove(text, text + 1, strlen(text)); /* 255 bytes are a name */
    is_keys_close(keys_of("%s", text));
}

/* ------------------------------------------------------------ the rate limit */

static void test_rate(void **state)
{
    (void)state;
    is_rate *rate = NULL;
    assert_int_equal(is_rate_open(1, &rate, NULL), IS_OK);
    for (uint64_t who = 0; who < 3; who++) {
        if (who == 1) continue; /* 0 is as good as 1 */
        assert_int_equal(is_rate_take(rate, who), 0);
        uint32_t wait = is_rate_take(rate, who);
        assert_in_range(wait, 1, 60);
        assert_true(is_rate_take(rate, who) <= wait); /* asking again costs nothing */
    }
    is_rate_close(rate);

    assert_int_equal(is_rate_open(6000, &rate, NULL), IS_OK); /* a hundred a second */
    uint32_t taken = 0;
    while (is_rate_take(rate, 7) == 0) taken++;
    assert_true(taken >= 6000);
    const struct timespec moment = {.tv_nsec = 50000000};
    (void)nanosleep(&moment, NULL);
    assert_int_equal(is_rate_take(rate, 7), 0); /* the bucket fills again */
    is_rate_close(rate);
    is_rate_close(NULL);
}

/* More who ask than there are buckets: each new one is let in. */
static void test_rate_with_many(void **state)
{
    (void)state;
    is_rate *rate = NULL;
    assert_int_equal(is_rate_open(1, &rate, NULL), IS_OK);
    for (uint64_t who = 1; who < 20000; who++) assert_int_equal(is_rate_take(rate, who * 0x9E3779B97F4A7C15u), 0);
    is_rate_close(rate);
}

/* ------------------------------------------------------------ fields */

static json_t *object(const char *text)
{
    json_error_t why;
    json_t *value = json_loads(text, 0, &why);
    if (value == NULL) fail_msg("%s: %s", text, why.text);
    return value;
}

/* Reads the member "x" of {"x": text} with READ, and whether it was taken; a refusal names it. */
#define CHECK(text, taken, READ)                                                                                       \
    do {                                                                                                               \
        is_request *r = request();                                                                                     \
        json_t *o = object("{\"x\": " text "}");                                                                       \
        bool ok = READ;                                                                                                \
        if (ok != (taken)) fail_msg("%s: %s was %s", #READ, text, ok ? "taken" : "refused");                           \
        assert_int_equal(r->status, ok ? 0 : 400);                                                                     \
        if (!ok) assert_string_equal(told(r, "param"), "x");                                                           \
        if (!ok) assert_string_equal(told(r, "type"), "invalid_request_error");                                        \
        json_decref(o);                                                                                                \
        is_request_release(r);                                                                                         \
    } while (0)

static void test_whole_numbers(void **state)
{
    (void)state;
    uint32_t x = 5;
    CHECK("null", true, is_field_uint(r, o, "x", 1, 10, &x));
    CHECK("1", true, is_field_uint(r, o, "y", 1, 10, &x));
    assert_int_equal(x, 5); /* missing and null leave it */
    CHECK("10", true, is_field_uint(r, o, "x", 1, 10, &x));
    assert_int_equal(x, 10);
    CHECK("0", false, is_field_uint(r, o, "x", 1, 10, &x));
    CHECK("11", false, is_field_uint(r, o, "x", 1, 10, &x));
    CHECK("-1", false, is_field_uint(r, o, "x", 0, UINT32_MAX, &x));
    CHECK("4294967296", false, is_field_uint(r, o, "x", 0, UINT32_MAX, &x));
    CHECK("9223372036854775807", false, is_field_uint(r, o, "x", 0, UINT32_MAX, &x));
    CHECK("1.0", false, is_field_uint(r, o, "x", 0, 10, &x));
    CHECK("\"1\"", false, is_field_uint(r, o, "x", 0, 10, &x));
    CHECK("true", false, is_field_uint(r, o, "x", 0, 10, &x));
    assert_int_equal(x, 10);
}

static void test_real_numbers(void **state)
{
    (void)state;
    float x = 5;
    CHECK("null", true, is_field_real(r, o, "x", 0, 2, &x));
    assert_true(x == 5);
    CHECK("2", true, is_field_real(r, o, "x", 0, 2, &x));
    CHECK("1e-300", true, is_field_real(r, o, "x", 0, 2, &x));
    assert_true(x == 0);
    CHECK("2.0000001", false, is_field_real(r, o, "x", 0, 2, &x));
    CHECK("-1e300", false, is_field_real(r, o, "x", 0, 2, &x));
    CHECK("\"1\"", false, is_field_real(r, o, "x", 0, 2, &x));
    CHECK("false", false, is_field_real(r, o, "x", 0, 2, &x));
}

static void test_texts_and_truths(void **state)
{
    (void)state;
    const char *text = "as it was";
    bool truth = true;
    CHECK("null", true, is_field_text(r, o, "x", 3, &text));
    assert_string_equal(text, "as it was");
    CHECK("\"abc\"", true, is_field_text(r, o, "x", 3, &text));
    CHECK("\"abcd\"", false, is_field_text(r, o, "x", 3, &text));
    CHECK("\"\xC3\xBC\xC3\xBC\"", false, is_field_text(r, o, "x", 3, &text)); /* bytes count */
    CHECK("1", false, is_field_text(r, o, "x", 3, &text));
    CHECK("null", true, is_field_bool(r, o, "x", &truth));
    assert_true(truth);
    CHECK("false", true, is_field_bool(r, o, "x", &truth));
    assert_false(truth);
    CHECK("0", false, is_field_bool(r, o, "x", &truth));
    CHECK("\"true\"", false, is_field_bool(r, o, "x", &truth));
}

static void test_arrays_and_objects(void **state)
{
    (void)state;
    const json_t *x = NULL;
    char *text = NULL;
    CHECK("null", true, is_field_array(r, o, "x", 2, &x));
    CHECK("[1, 2]", true, is_field_array(r, o, "x", 2, &x));
    CHECK("[1, 2, 3]", false, is_field_array(r, o, "x", 2, &x));
    CHECK("{}", false, is_field_array(r, o, "x", 2, &x));
    CHECK("{}", true, is_field_object(r, o, "x", &x));
    CHECK("[]", false, is_field_object(r, o, "x", &x));
    CHECK("null", true, is_field_object_text(r, o, "x", &text));
    assert_null(text);
    CHECK("{\"a\": [1, \"\xC3\xBC\"]}", true, is_field_object_text(r, o, "x", &text));
    assert_string_equal(text, "{\"a\":[1,\"\xC3\xBC\"]}");
    free(text);
    CHECK("\"{}\"", false, is_field_object_text(r, o, "x", &text));
}

static void test_times(void **state)
{
    (void)state;
    int64_t x = IS_TIME_NONE;
    CHECK("null", true, is_field_time(r, o, "x", &x));
    assert_true(x == IS_TIME_NONE);
    CHECK("\"2024-03-04T18:20:00Z\"", true, is_field_time(r, o, "x", &x));
    assert_int_equal(x, 1709576400);
    json_t *back = is_json_time(x);
    assert_string_equal(json_string_value(back), "2024-03-04T18:20:00Z");
    json_decref(back);
    CHECK("1709576401", true, is_field_time(r, o, "x", &x));
    assert_int_equal(x, 1709576401);
    CHECK("-62135596800", true, is_field_time(r, o, "x", &x));
    back = is_json_time(x);
    assert_string_equal(json_string_value(back), "0001-01-01T00:00:00Z");
    json_decref(back);
    back = is_json_time(-1);
    assert_string_equal(json_string_value(back), "1969-12-31T23:59:59Z");
    json_decref(back);
    CHECK("253402300799", true, is_field_time(r, o, "x", &x));
    CHECK("253402300800", false, is_field_time(r, o, "x", &x));
    CHECK("-62135596801", false, is_field_time(r, o, "x", &x));
    CHECK("1.5", false, is_field_time(r, o, "x", &x));
    CHECK("\"tomorrow\"", false, is_field_time(r, o, "x", &x));
    CHECK("true", false, is_field_time(r, o, "x", &x));
    assert_int_equal(x, 253402300799);
    json_t *none = is_json_time(IS_TIME_NONE);
    assert_true(json_is_null(none));
    json_decref(none);
}

static void test_filters(void **state)
{
    (void)state;
    is_filter filter = {.time_from = IS_TIME_NONE, .time_to = IS_TIME_NONE};
    char *metadata = NULL;
    CHECK("null", true, is_field_filter(r, o, "x", &filter, &metadata));
    assert_true(filter.time_from == IS_TIME_NONE && filter.metadata == NULL);
    CHECK("{\"from\": 1, \"to\": \"1970-01-01T00:00:02Z\", \"metadata\": {\"a\": 1}}", true,
          is_field_filter(r, o, "x", &filter, &metadata));
    assert_true(filter.time_from == 1 && filter.time_to == 2);
    assert_string_equal(filter.metadata, "{\"a\":1}");
    free(metadata);
    CHECK("[]", false, is_field_filter(r, o, "x", &filter, &metadata));
}

static void check_scope(const char *body, const char *header, const char *user, const char *param)
{
    is_request *r = request();
    json_t *o = object(body);
    is_scope scope;
    (void)snprintf(r->tenant, sizeof r->tenant, "red");
    (void)snprintf(r->user_header, sizeof r->user_header, "%s", header);
    bool ok = is_field_scope(r, o, &scope);
    assert_int_equal(ok, param == NULL);
    if (param != NULL) assert_string_equal(told(r, "param"), param);
    if (ok) assert_string_equal(scope.user, user);
    if (ok) assert_string_equal(scope.tenant, "red");
    json_decref(o);
    is_request_release(r);
}

static void test_whose_memory(void **state)
{
    (void)state;
    check_scope("{}", "", "default", NULL);
    check_scope("{\"user\": null}", "", "default", NULL);
    check_scope("{\"user\": \"\"}", "", "default", NULL);
    check_scope("{}", "ann", "ann", NULL);
    check_scope("{\"user\": \"bob\", \"tenant\": \"blue\"}", "ann", "bob", NULL);
    check_scope("{\"user\": 5}", "ann", NULL, "user");
    check_scope("{\"agent\": []}", "", NULL, "agent");
    check_scope("{\"run\": false}", "", NULL, "run");
    char body[400] = "{\"run\": \"";
    memset(body + 9, 'r', 256);
    memcpy(body + 265, "\"}", 3);
    check_scope(body, "", NULL, "run");
}

static void test_text_that_is_none(void **state)
{
    (void)state;
    json_t *value = is_json_text("a\xff\xC3\xBC", 4);
    assert_string_equal(json_string_value(value), "a???");
    json_decref(value);
    value = is_json_text("a\0b", 3);
    assert_int_equal(json_string_length(value), 3);
    json_decref(value);
}

/* ------------------------------------------------------------ errors */

static void test_errors(void **state)
{
    (void)state;
    static const struct {
        is_status status;
        unsigned reply;
        const char *type;
    } cases[] = {
        {IS_EINVAL, 400, "invalid_request_error"},
        {IS_EUNSUPPORTED, 400, "invalid_request_error"},
        {IS_ELIMIT, 400, "invalid_request_error"},
        {IS_ENOTFOUND, 404, "not_found_error"},
        {IS_EIO, 500, "server_error"},
        {IS_ECORRUPT, 500, "server_error"},
        {IS_EENGINE, 500, "server_error"},
        {IS_ENOMEM, 503, "server_error"},
        {IS_ECANCELED, 503, "server_error"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        is_request *r = request();
        is_error err = {.status = cases[i].status, .text = "why \"it\" is so \xff"};
        r->route = &IS_ROUTES[0];
        is_reply_failure(r, &err);
        assert_int_equal(r->status, cases[i].reply);
        assert_string_equal(r->type, "application/json");
        assert_string_equal(told(r, "type"), cases[i].type);
        assert_string_equal(told(r, "code"), is_status_name(cases[i].status));
        assert_string_equal(told(r, "message"), "why \"it\" is so ?");
        assert_int_equal(r->retry_after > 0, cases[i].reply == 503);
        is_reply_error(r, 418, NULL, NULL, "the first one counts");
        assert_int_equal(r->status, cases[i].reply);
        is_request_release(r);
    }
}

/* ------------------------------------------------------------ the workers' queue */

#define MOST_LOGGED 64

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t log_wake = PTHREAD_COND_INITIALIZER;
static int64_t logged[MOST_LOGGED];
static size_t n_logged;
static bool gate_is_open;

static void log_done(int64_t id)
{
    pthread_mutex_lock(&log_lock);
    logged[n_logged++] = id;
    pthread_cond_broadcast(&log_wake);
    pthread_mutex_unlock(&log_lock);
}

static void wait_logged(size_t n)
{
    pthread_mutex_lock(&log_lock);
    while (n_logged < n) pthread_cond_wait(&log_wake, &log_lock);
    pthread_mutex_unlock(&log_lock);
}

/* A request with id 0 or less keeps its worker until the gate opens. */
static void handle(is_request *r)
{
    log_done(r->id);
    pthread_mutex_lock(&log_lock);
    while (r->id <= 0 && !gate_is_open) pthread_cond_wait(&log_wake, &log_lock);
    pthread_mutex_unlock(&log_lock);
    is_reply_error(r, 400, NULL, NULL, "done");
}

static void open_gate(void)
{
    pthread_mutex_lock(&log_lock);
    gate_is_open = true;
    pthread_cond_broadcast(&log_wake);
    pthread_mutex_unlock(&log_lock);
}

static const is_route test_route = {"GET", "/test", handle, IS_BY_ASKER, IS_NO_BODY, false};

static bool submit(is_pool *pool, int64_t id, uint64_t who)
{
    is_request *r = request();
    r->route = &test_route;
    r->id = id;
    r->fair = who;
    atomic_fetch_add(&no_server.in_work, 1);
    if (is_pool_submit(pool, r)) return true;
    atomic_fetch_sub(&no_server.in_work, 1);
    is_request_release(r);
    return false;
}

static is_pool *pool_of(uint32_t threads, uint32_t queue)
{
    is_pool *pool = NULL;
    is_error err = {0};
    n_logged = 0;
    gate_is_open = false;
    if (is_pool_open(threads, queue, &pool, &err) != IS_OK) fail_msg("%s", err.text);
    return pool;
}

static void check_order(const int64_t *wanted, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (logged[i] != wanted[i])
            fail_msg("request %zu in work was number %lld and not %lld", i, (long long)logged[i], (long long)wanted[i]);
}

static void test_one_worker_takes_the_oldest(void **state)
{
    (void)state;
    is_pool *pool = pool_of(1, 16);
    assert_true(submit(pool, 0, 1));
    wait_logged(1);
    for (int64_t i = 1; i <= 4; i++) assert_true(submit(pool, i, 3));
    open_gate();
    wait_logged(5);
    check_order((const int64_t[]){0, 1, 2, 3, 4}, 5);
    is_pool_close(pool);
    assert_int_equal(atomic_load(&no_server.in_work), 0);
}

/* Exactly one of two workers is free, and 1 keeps the other: the order is then settled. */
static void test_fairness_beside_a_busy_worker(void **state)
{
    (void)state;
    is_pool *pool = pool_of(2, 16);
    assert_true(submit(pool, 0, 1)); /* keeps its worker to the end */
    wait_logged(1);
    pthread_mutex_lock(&log_lock);
    assert_true(submit(pool, 11, 5)); /* is taken, and stands at the lock until all the others wait */
    uint32_t running = 0, queued = 1;
    while (queued > 0 || running < 2) is_pool_load(pool, &running, &queued);
    for (int64_t i = 1; i <= 3; i++) assert_true(submit(pool, i, 1));
    assert_true(submit(pool, 12, 7));
    assert_true(submit(pool, 13, 9));
    pthread_mutex_unlock(&log_lock);
    wait_logged(7);
    check_order((const int64_t[]){0, 11, 12, 13, 1, 2, 3}, 7);
    open_gate();
    is_pool_close(pool);
}

static void test_full_queue(void **state)
{
    (void)state;
    is_pool *pool = pool_of(1, 2);
    assert_true(submit(pool, 0, 1));
    wait_logged(1);
    assert_true(submit(pool, 1, 1));
    assert_true(submit(pool, 2, 1));
    assert_false(submit(pool, 3, 1));
    open_gate();
    wait_logged(3);
    is_pool_close(pool);
}

static void test_who_has_left_is_not_worked_for(void **state)
{
    (void)state;
    is_pool *pool = pool_of(1, 16);
    assert_true(submit(pool, 0, 1));
    wait_logged(1);
    is_request *r = request();
    r->route = &test_route;
    r->id = 1;
    r->fair = 1;
    atomic_store(&r->gone, true);
    atomic_store(&r->owners, 2);
    atomic_fetch_add(&no_server.in_work, 1);
    assert_true(is_pool_submit(pool, r));
    assert_true(submit(pool, 2, 1));
    open_gate();
    wait_logged(2);
    check_order((const int64_t[]){0, 2}, 2);
    is_pool_close(pool);
    assert_int_equal(r->status, 0);
    is_request_release(r);
}

/* When the server stops, what waits is told so. */
static void test_stopping(void **state)
{
    (void)state;
    is_pool *pool = pool_of(1, 16);
    assert_true(submit(pool, 0, 1));
    wait_logged(1);
    is_request *r = request();
    r->route = &test_route;
    r->id = 1;
    atomic_store(&r->owners, 2);
    atomic_fetch_add(&no_server.in_work, 1);
    assert_true(is_pool_submit(pool, r));
    atomic_store(&no_server.stopping, true);
    open_gate();
    is_pool_close(pool);
    atomic_store(&no_server.stopping, false);
    assert_int_equal(n_logged, 1);
    assert_int_equal(r->status, 503);
    assert_string_equal(told(r, "code"), "draining");
    is_request_release(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_route_is_described),
        cmocka_unit_test(test_what_is_checked_is_described),
        cmocka_unit_test(test_references),
        cmocka_unit_test(test_finding_routes),
        cmocka_unit_test(test_parts_of_a_path),
        cmocka_unit_test(test_hash_of_a_key),
        cmocka_unit_test(test_keys_and_tenants),
        cmocka_unit_test(test_bad_keys),
        cmocka_unit_test(test_rate),
        cmocka_unit_test(test_rate_with_many),
        cmocka_unit_test(test_whole_numbers),
        cmocka_unit_test(test_real_numbers),
        cmocka_unit_test(test_texts_and_truths),
        cmocka_unit_test(test_arrays_and_objects),
        cmocka_unit_test(test_times),
        cmocka_unit_test(test_filters),
        cmocka_unit_test(test_whose_memory),
        cmocka_unit_test(test_text_that_is_none),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_one_worker_takes_the_oldest),
        cmocka_unit_test(test_fairness_beside_a_busy_worker),
        cmocka_unit_test(test_full_queue),
        cmocka_unit_test(test_who_has_left_is_not_worked_for),
        cmocka_unit_test(test_stopping),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
