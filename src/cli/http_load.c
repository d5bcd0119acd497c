#include "http_load.h"

#include <curl/curl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

#define MAX_LINE    ((size_t)4 << 20) /* bytes of one event, or of a reply that is no stream */
#define MAX_TRIES   1000
#define POLL_MS     50
#define RETRY_AFTER 1 /* seconds, where a 429 does not say */

/* One user's connection and what it is about. */
typedef struct talker {
    CURL *easy;
    struct loader *loader;
    const char *const *bodies; /* [per_user] */
    is_load_answer *answers;   /* [per_user] */
    size_t turn;               /* which of them is in work */
    double begun;              /* the first try of this one */
    double last;               /* its last piece; 0: none came */
    double retry_at;           /* 0: it is on its way, or all is done */
    uint32_t tries;
    bool counted; /* the event with the counts came */
    bool failed;  /* an event said so */
    char *line;   /* bytes that are not a whole line yet, [n_line] */
    size_t n_line, room;
} talker;

typedef struct loader {
    const is_load *load;
    is_load_result *result;
    CURLM *multi;
    struct curl_slist *headers;
    talker *talkers; /* [n_users] */
    size_t answered;
} loader;

/* ------------------------------------------------------------ the stream */

static uint32_t count(const json_t *object, const char *name)
{
    json_int_t v = json_integer_value(json_object_get(object, name));
    return v > 0 && v <= UINT32_MAX ? (uint32_t)v : 0;
}

static void note_piece(talker *t)
{
    double now = is_now_ms();
    is_load_result *r = t->loader->result;
    if (t->last == 0) {
        t->answers[t->turn].ttft_ms = now - t->begun;
    } else {
        if (r->n_gaps == r->room_for_gaps) {
            size_t room = r->room_for_gaps * 2 + 1024;
            double *grown = realloc(r->gaps, room * sizeof *grown);
            if (grown == NULL) return; /* one gap less in the median */
            r->gaps = grown;
            r->room_for_gaps = room;
        }
        r->gaps[r->n_gaps++] = now - t->last;
    }
    t->last = now;
}

/* InferScale's last chunk: usage, and where the time went.  Its TTFT counts from the plan on. */
static void read_inferscale(is_load_answer *a, const json_t *usage, const json_t *memory)
{
    const json_t *timing = json_object_get(memory, "timing");
    double ttft = is_cli_number(timing, "ttft_ms");
    a->tokens = count(usage, "completion_tokens");
    a->prompt_tokens = count(usage, "prompt_tokens");
    a->prefilled = count(memory, "tokens_prefilled");
    a->search_ms = is_cli_number(timing, "embed_ms") + is_cli_number(timing, "rank_ms");
    a->inject_ms = is_cli_number(timing, "fetch_ms") + is_cli_number(timing, "inject_ms");
    a->prefill_ms = is_cli_number(timing, "prefill_ms");
    a->decode_ms = is_cli_number(timing, "total_ms") - ttft - a->search_ms;
    a->server_ttft_ms = a->search_ms + ttft;
}

static void read_llama(is_load_answer *a, const json_t *event, const json_t *timings)
{
    a->tokens = count(event, "tokens_predicted");
    a->prompt_tokens = count(event, "tokens_evaluated");
    a->prefilled = count(timings, "prompt_n");
    a->prefill_ms = is_cli_number(timings, "prompt_ms");
    a->decode_ms = is_cli_number(timings, "predicted_ms");
    a->server_ttft_ms = a->prefill_ms;
}

static void note_error(talker *t, const char *what)
{
    is_load_result *r = t->loader->result;
    t->failed = true;
    if (r->first_error[0] == '\0') (void)snprintf(r->first_error, sizeof r->first_error, "%s", what);
}

static void read_event(talker *t, const json_t *event)
{
    is_load_answer *a = &t->answers[t->turn];
    const json_t *choice = json_array_get(json_object_get(event, "choices"), 0);
    const json_t *text = choice == NULL ? json_object_get(event, "content")
                                        : json_object_get(json_object_get(choice, "delta"), "content");
    const json_t *memory = json_object_get(event, "inferscale");
    const json_t *timings = json_object_get(event, "timings");
    const json_t *error = json_object_get(event, "error");
    if (json_string_length(text) > 0) note_piece(t);
    if (memory != NULL) read_inferscale(a, json_object_get(event, "usage"), memory);
    if (memory == NULL && json_is_true(json_object_get(event, "stop"))) read_llama(a, event, timings);
    t->counted = t->counted || a->tokens > 0;
    if (error != NULL) {
        const char *message = json_string_value(json_object_get(error, "message"));
        note_error(t, message != NULL ? message : "the stream ended with an error");
    }
}

static void read_line(talker *t, const char *line, size_t n)
{
    static const char begin[] = "data: ";
    const size_t skip = sizeof begin - 1;
    if (n <= skip || memcmp(line, begin, skip) != 0 || line[skip] != '{') return; /* blank, or data: [DONE] */
    json_t *event = json_loadb(line + skip, n - skip, JSON_DISABLE_EOF_CHECK, NULL);
    if (event != NULL)
        read_event(t, event);
    else
        note_error(t, "an event is no JSON");
    json_decref(event);
}

static size_t on_bytes(char *bytes, size_t size, size_t n, void *user)
{
    talker *t = user;
    n *= size;
    if (t->n_line + n > MAX_LINE) return 0; /* curl ends the transfer */
    if (t->n_line + n > t->room) {
        size_t room = 2 * (t->n_line + n);
        char *grown = realloc(t->line, room);
        if (grown == NULL) return 0;
        t->line = grown;
        t->room = room;
    }
    memcpy(t->line + t->n_line, bytes, n);
    size_t begin = 0, end = t->n_line + n;
    for (size_t i = t->n_line; i < end; i++) {
        if (t->line[i] != '\n') continue;
        read_line(t, t->line + begin, i - begin);
        begin = i + 1;
    }
    memmove(t->line, t->line + begin, end - begin);
    t->n_line = end - begin;
    return n;
}

/* ------------------------------------------------------------ one request after another */

static bool send_request(talker *t)
{
    const char *body = t->bodies[t->turn];
    t->answers[t->turn] = (is_load_answer){0};
    t->last = 0;
    t->retry_at = 0;
    t->counted = t->failed = false;
    t->n_line = 0;
    t->tries++;
    return curl_easy_setopt(t->easy, CURLOPT_POSTFIELDS, body) == CURLE_OK &&
           curl_easy_setopt(t->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(body)) == CURLE_OK &&
           curl_multi_add_handle(t->loader->multi, t->easy) == CURLM_OK;
}

static bool begin_turn(talker *t)
{
    t->begun = is_now_ms();
    t->tries = 0;
    return send_request(t);
}

static bool retry_later(talker *t)
{
    curl_off_t seconds = 0;
    if (t->tries >= MAX_TRIES) return false;
    (void)curl_easy_getinfo(t->easy, CURLINFO_RETRY_AFTER, &seconds);
    t->retry_at = is_now_ms() + 1e3 * (double)(seconds > 0 ? seconds : RETRY_AFTER);
    t->loader->result->retries++;
    return true;
}

/* What went wrong with a reply that is not whole; what is left of a body that is no stream says most. */
static void describe_failure(talker *t, CURLcode code, long http)
{
    char what[256];
    if (code != CURLE_OK)
        (void)snprintf(what, sizeof what, "%s", curl_easy_strerror(code));
    else if (http != 200)
        (void)snprintf(what, sizeof what, "HTTP %ld: %.*s", http, t->n_line < 200 ? (int)t->n_line : 200,
                       t->n_line > 0 ? t->line : "");
    else
        (void)snprintf(what, sizeof what, "the stream ended before its last event");
    note_error(t, what);
}

/* A transfer has ended; false when the load cannot go on. */
static bool end_request(talker *t, CURLcode code)
{
    loader *l = t->loader;
    is_load_answer *a = &t->answers[t->turn];
    long http = 0;
    (void)curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &http);
    if (curl_multi_remove_handle(l->multi, t->easy) != CURLM_OK) return false;
    if (code == CURLE_OK && http == 429 && retry_later(t)) return true;
    a->total_ms = is_now_ms() - t->begun;
    if (!t->failed && (code != CURLE_OK || http != 200 || !t->counted || t->last == 0)) describe_failure(t, code, http);
    a->ok = !t->failed;
    l->result->errors += t->failed;
    l->answered++;
    return ++t->turn == l->load->per_user || begin_turn(t);
}

static bool end_requests(loader *l)
{
    CURLMsg *message;
    int left;
    while ((message = curl_multi_info_read(l->multi, &left)) != NULL) {
        char *own = NULL;
        if (message->msg != CURLMSG_DONE) continue;
        CURLcode code = message->data.result;
        if (curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &own) != CURLE_OK) return false;
        if (!end_request((talker *)(void *)own, code)) return false;
    }
    return true;
}

static bool send_retries(loader *l)
{
    double now = is_now_ms();
    for (size_t i = 0; i < l->load->n_users; i++) {
        talker *t = &l->talkers[i];
        if (t->retry_at > 0 && t->retry_at <= now && !send_request(t)) return false;
    }
    return true;
}

/* ------------------------------------------------------------ all of them */

static bool open_talker(loader *l, size_t i)
{
    talker *t = &l->talkers[i];
    const is_load *load = l->load;
    t->loader = l;
    t->bodies = load->bodies + i * load->per_user;
    t->answers = l->result->answers + i * load->per_user;
    CURL *e = t->easy = curl_easy_init();
    /* A proxy that the environment names is not for this machine's own servers. */
    return e != NULL && curl_easy_setopt(e, CURLOPT_URL, load->url) == CURLE_OK &&
           curl_easy_setopt(e, CURLOPT_POST, 1L) == CURLE_OK && curl_easy_setopt(e, CURLOPT_PROXY, "") == CURLE_OK &&
           curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L) == CURLE_OK &&
           curl_easy_setopt(e, CURLOPT_HTTPHEADER, l->headers) == CURLE_OK &&
           curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, on_bytes) == CURLE_OK &&
           curl_easy_setopt(e, CURLOPT_WRITEDATA, t) == CURLE_OK && curl_easy_setopt(e, CURLOPT_PRIVATE, t) == CURLE_OK;
}

static bool open_all(loader *l)
{
    l->multi = curl_multi_init();
    l->headers = curl_slist_append(NULL, "Content-Type: application/json");
    l->talkers = calloc(l->load->n_users, sizeof *l->talkers);
    if (l->multi == NULL || l->headers == NULL || l->talkers == NULL) return false;
    for (size_t i = 0; i < l->load->n_users; i++)
        if (!open_talker(l, i)) return false;
    return true;
}

static void close_all(loader *l)
{
    for (size_t i = 0; l->talkers != NULL && i < l->load->n_users; i++) {
        talker *t = &l->talkers[i];
        if (t->easy != NULL) (void)curl_multi_remove_handle(l->multi, t->easy);
        if (t->easy != NULL) curl_easy_cleanup(t->easy);
        free(t->line);
    }
    free(l->talkers);
    curl_slist_free_all(l->headers);
    if (l->multi != NULL) (void)curl_multi_cleanup(l->multi);
}

static is_status drive(loader *l, is_error *err)
{
    const is_load *load = l->load;
    bool ok = true;
    for (size_t i = 0; ok && i < load->n_users; i++) ok = begin_turn(&l->talkers[i]);
    while (ok && l->answered < l->result->n) {
        int running = 0;
        ok = curl_multi_perform(l->multi, &running) == CURLM_OK && end_requests(l) && send_retries(l);
        if (load->go_on != NULL && !load->go_on(load->user, l->answered))
            return is_fail(err, IS_ECANCELED, "interrupted");
        if (ok && l->answered < l->result->n) ok = curl_multi_poll(l->multi, NULL, 0, POLL_MS, NULL) == CURLM_OK;
    }
    return ok ? IS_OK : is_fail(err, IS_EIO, "libcurl cannot go on with %s", load->url);
}

is_status is_load_run(const is_load *load, is_load_result *out, is_error *err)
{
    *out = (is_load_result){.n = load->n_users * load->per_user};
    loader l = {.load = load, .result = out};
    out->answers = calloc(out->n, sizeof *out->answers);
    if (out->answers == NULL || !open_all(&l)) {
        close_all(&l);
        return is_fail(err, IS_ENOMEM, "no memory for %zu clients", load->n_users);
    }
    double begin = is_now_ms();
    is_status status = drive(&l, err);
    out->wall_ms = is_now_ms() - begin;
    close_all(&l);
    return status;
}

void is_load_result_free(is_load_result *r)
{
    free(r->answers);
    free(r->gaps);
    *r = (is_load_result){0};
}

/* ------------------------------------------------------------ a GET */

static size_t on_body(char *bytes, size_t size, size_t n, void *user)
{
    return fwrite(bytes, size, n, user) * size;
}

char *is_http_get(const char *url, uint32_t timeout_ms)
{
    char *body = NULL;
    size_t n = 0;
    long http = 0;
    FILE *out = open_memstream(&body, &n);
    CURL *e = curl_easy_init();
    bool ok = out != NULL && e != NULL && curl_easy_setopt(e, CURLOPT_URL, url) == CURLE_OK &&
              curl_easy_setopt(e, CURLOPT_PROXY, "") == CURLE_OK &&
              curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L) == CURLE_OK &&
              curl_easy_setopt(e, CURLOPT_TIMEOUT_MS, (long)timeout_ms) == CURLE_OK &&
              curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, on_body) == CURLE_OK &&
              curl_easy_setopt(e, CURLOPT_WRITEDATA, out) == CURLE_OK && curl_easy_perform(e) == CURLE_OK &&
              curl_easy_getinfo(e, CURLINFO_RESPONSE_CODE, &http) == CURLE_OK && http == 200;
    if (e != NULL) curl_easy_cleanup(e);
    if (out != NULL && fclose(out) != 0) ok = false;
    if (ok) return body;
    free(body);
    return NULL;
}
