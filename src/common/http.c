/*
 * HTTP from the client's side.
 *
 * A connection belongs to a curl handle within a multi handle, which can be waited for with a deadline, so that a call
 * can be given up while nothing comes.  Such pairs are kept when their call is done, with the connection in them.
 */
#include "http.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define POLL_MS    50
#define CONNECT_MS 3000L

typedef struct line line;
struct line {
    CURL *easy;
    CURLM *multi;
    line *next;
};

struct is_http {
    pthread_mutex_t lock;
    line *idle;
};

static void init(void)
{
    (void)curl_global_init(CURL_GLOBAL_DEFAULT);
}

is_status is_http_open(is_http **out, is_error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, init);
    is_http *http = *out = calloc(1, sizeof *http);
    if (http == NULL) return is_fail(err, IS_ENOMEM, "no memory for connections");
    (void)pthread_mutex_init(&http->lock, NULL);
    return IS_OK;
}

static void line_close(line *l)
{
    if (l->easy != NULL) curl_easy_cleanup(l->easy);
    if (l->multi != NULL) (void)curl_multi_cleanup(l->multi);
    free(l);
}

void is_http_close(is_http *http)
{
    if (http == NULL) return;
    for (line *l = http->idle, *next; l != NULL; l = next) {
        next = l->next;
        line_close(l);
    }
    (void)pthread_mutex_destroy(&http->lock);
    free(http);
}

static line *line_take(is_http *http)
{
    (void)pthread_mutex_lock(&http->lock);
    line *l = http->idle;
    if (l != NULL) http->idle = l->next;
    (void)pthread_mutex_unlock(&http->lock);
    if (l != NULL) return l;
    l = calloc(1, sizeof *l);
    if (l == NULL) return NULL;
    l->easy = curl_easy_init();
    l->multi = curl_multi_init();
    if (l->easy != NULL && l->multi != NULL) return l;
    line_close(l);
    return NULL;
}

static void line_give(is_http *http, line *l)
{
    (void)pthread_mutex_lock(&http->lock);
    l->next = http->idle;
    http->idle = l;
    (void)pthread_mutex_unlock(&http->lock);
}

/* ------------------------------------------------------------ one call */

typedef struct taking {
    is_http_call *call;
    CURL *easy;
    bool ended; /* by on_bytes */
    bool no_memory;
} taking;

static size_t take(char *bytes, size_t size, size_t n, void *user)
{
    taking *t = user;
    is_http_call *call = t->call;
    n *= size;
    (void)curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &call->code);
    if (call->code == 200 && call->on_bytes != NULL) {
        t->ended = !call->on_bytes(call->user, bytes, n);
        return t->ended ? 0 : n;
    }
    char *grown = realloc(call->text, call->n + n + 1);
    t->no_memory = grown == NULL;
    if (grown == NULL) return 0;
    call->text = grown;
    memcpy(grown + call->n, bytes, n);
    call->n += n;
    grown[call->n] = '\0';
    return n;
}

static struct curl_slist *headers_of(const is_http_call *call)
{
    struct curl_slist *headers = curl_slist_append(NULL, "Expect:");
    if (call->body != NULL) headers = curl_slist_append(headers, "Content-Type: application/json");
    return headers;
}

static void set_up(CURL *easy, taking *t, struct curl_slist *headers, char *why)
{
    const is_http_call *call = t->call;
    curl_easy_reset(easy);
    (void)curl_easy_setopt(easy, CURLOPT_URL, call->url);
    (void)curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
    (void)curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    (void)curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    (void)curl_easy_setopt(easy, CURLOPT_PROXY, ""); /* what the environment names is for the world outside */
    (void)curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    (void)curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, CONNECT_MS);
    (void)curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)call->timeout_ms);
    (void)curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take);
    (void)curl_easy_setopt(easy, CURLOPT_WRITEDATA, t);
    (void)curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, why);
    if (call->body != NULL) (void)curl_easy_setopt(easy, CURLOPT_POSTFIELDS, call->body);
    if (call->key != NULL) {
        (void)curl_easy_setopt(easy, CURLOPT_HTTPAUTH, CURLAUTH_BEARER);
        (void)curl_easy_setopt(easy, CURLOPT_XOAUTH2_BEARER, call->key);
    }
}

static CURLcode drive(const line *l, const is_http_call *call, bool *canceled)
{
    int running = 1, left;
    CURLMcode code = curl_multi_add_handle(l->multi, l->easy);
    while (code == CURLM_OK && !*canceled) {
        code = curl_multi_perform(l->multi, &running);
        if (code != CURLM_OK || running == 0) break;
        code = curl_multi_poll(l->multi, NULL, 0, POLL_MS, NULL);
        *canceled = call->canceled != NULL && call->canceled(call->user);
    }
    CURLcode result = code == CURLM_OK ? CURLE_OK : CURLE_FAILED_INIT;
    const CURLMsg *message;
    while ((message = curl_multi_info_read(l->multi, &left)) != NULL)
        if (message->msg == CURLMSG_DONE) result = message->data.result;
    (void)curl_multi_remove_handle(l->multi, l->easy);
    return result;
}

is_status is_http_run(is_http *http, is_http_call *call, is_error *err)
{
    char why[CURL_ERROR_SIZE] = "";
    bool canceled = false;
    call->code = 0;
    call->text = NULL;
    call->n = 0;
    line *l = line_take(http);
    struct curl_slist *headers = headers_of(call);
    if (l == NULL || headers == NULL) {
        if (l != NULL) line_give(http, l);
        curl_slist_free_all(headers);
        return is_fail(err, IS_ENOMEM, "no memory for a request to %s", call->url);
    }
    taking t = {.call = call, .easy = l->easy};
    set_up(l->easy, &t, headers, why);
    CURLcode code = drive(l, call, &canceled);
    (void)curl_easy_getinfo(l->easy, CURLINFO_RESPONSE_CODE, &call->code);
    (void)curl_easy_setopt(l->easy, CURLOPT_ERRORBUFFER, NULL);
    line_give(http, l);
    curl_slist_free_all(headers);
    if (canceled || t.ended) return is_fail(err, IS_ECANCELED, "the request to %s was given up", call->url);
    if (t.no_memory) return is_fail(err, IS_ENOMEM, "no memory for what %s answers", call->url);
    if (code == CURLE_OK) return IS_OK;
    const char *reason = why[0] != '\0' ? why : curl_easy_strerror(code);
    if (call->code == 0) return is_fail(err, IS_EUNAVAILABLE, "no answer from %s: %s", call->url, reason);
    return is_fail(err, IS_EENGINE, "%s broke off in its answer: %s", call->url, reason);
}
