/*
 * What the server counts: Prometheus' text for /metrics, and the dashboard's /v1/status.
 *
 * Prefill's cost by token is learnt from the requests that prefilled a memory (mode prefill, or facts without chunks);
 * it serves to say what an injected request would have cost without injection.
 */
#include "metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* With keys, what is counted of all tenants together is for this one only: whoever runs the server gives it a key. */
#define METRICS_TENANT "monitoring"

is_status is_metrics_open(is_metrics **out, is_error *err)
{
    is_metrics *m = *out = calloc(1, sizeof *m);
    if (m == NULL) return is_fail(err, IS_ENOMEM, "no memory for metrics");
    pthread_mutex_init(&m->lock, NULL);
    return IS_OK;
}

void is_metrics_close(is_metrics *m)
{
    if (m == NULL) return;
    pthread_mutex_destroy(&m->lock);
    free(m);
}

const double IS_BUCKETS_MS[IS_N_BUCKETS] = {0.5, 1,   2,   5,    10,   20,   50,    75,    100,
                                            150, 250, 500, 1000, 2500, 5000, 10000, 30000, 60000};

static void observe(is_histogram *h, double ms)
{
    size_t i = 0;
    while (i < IS_N_BUCKETS && ms > IS_BUCKETS_MS[i]) i++;
    h->counts[i]++;
    h->n++;
    h->sum_ms += ms;
}

/* A prefill of few tokens is mostly the cost of a step, so it says little about the cost of many. */
#define ENOUGH_TOKENS 200

void is_metrics_answer(is_metrics *m, const is_record *r)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    pthread_mutex_lock(&m->lock);
    observe(&m->ttft[r->mode], r->ttft_ms);
    if (r->mode != IS_MODE_OFF) observe(&m->retrieval, r->retrieval_ms);
    if (r->tokens_injected > 0) observe(&m->injection, r->inject_ms);
    m->injected += r->tokens_injected;
    m->prefilled += r->tokens_prefilled;
    m->generated += r->tokens_generated;
    m->refused += r->refused;
    m->refused_damaged += r->refused_damaged;
    m->history += r->tokens_history;
    if (r->tokens_injected == 0 && r->tokens_prefilled >= ENOUGH_TOKENS) {
        double one = r->prefill_ms / r->tokens_prefilled;
        m->prefill_ms_per_token = m->prefill_ms_per_token == 0 ? one : 0.8 * m->prefill_ms_per_token + 0.2 * one;
    }
    is_recent *slot = &m->recent[m->n_recent++ % IS_RECENT];
    *slot = (is_recent){.id = m->n_recent,
                        .time = (double)now.tv_sec + (double)now.tv_nsec * 1e-9,
                        .mode = r->mode,
                        .ttft_ms = r->ttft_ms,
                        .total_ms = r->total_ms,
                        .injected = r->tokens_injected,
                        .prefilled = r->tokens_prefilled,
                        .generated = r->tokens_generated,
                        .status = r->status};
    (void)snprintf(slot->user, sizeof slot->user, "%s", r->user == NULL ? "" : r->user);
    (void)snprintf(slot->tenant, sizeof slot->tenant, "%s", r->tenant);
    pthread_mutex_unlock(&m->lock);
}

void is_metrics_token(is_metrics *m, double since_last_ms)
{
    pthread_mutex_lock(&m->lock);
    observe(&m->inter_token, since_last_ms);
    pthread_mutex_unlock(&m->lock);
}

void is_metrics_encoded(is_metrics *m, uint32_t facts, double ms)
{
    pthread_mutex_lock(&m->lock);
    for (uint32_t i = 0; i < facts; i++) observe(&m->encode, ms / facts);
    pthread_mutex_unlock(&m->lock);
}

void is_metrics_prefill_cost(is_metrics *m, double ms_per_token)
{
    pthread_mutex_lock(&m->lock);
    if (m->prefill_ms_per_token == 0) m->prefill_ms_per_token = ms_per_token;
    pthread_mutex_unlock(&m->lock);
}

static size_t code_class(unsigned status)
{
    return status / 100 < IS_N_CLASSES ? status / 100 : 0;
}

void is_metrics_reply(is_metrics *m, const is_route *route, unsigned status)
{
    size_t i = (size_t)(route - IS_ROUTES);
    if (route < IS_ROUTES || i >= IS_N_ROUTES || i >= IS_MAX_ROUTES) i = IS_MAX_ROUTES - 1;
    pthread_mutex_lock(&m->lock);
    m->replies[i][code_class(status)]++;
    if (status == 429) m->too_many++;
    pthread_mutex_unlock(&m->lock);
}

/* ------------------------------------------------------------ Prometheus */

static void print_histogram(FILE *out, const char *name, const char *label, const is_histogram *h)
{
    uint64_t below = 0;
    const char *comma = label[0] != '\0' ? "," : "";
    for (size_t i = 0; i < IS_N_BUCKETS; i++) {
        below += h->counts[i];
        (void)fprintf(out, "%s_bucket{%s%sle=\"%g\"} %llu\n", name, label, comma, IS_BUCKETS_MS[i] * 1e-3,
                      (unsigned long long)below);
    }
    (void)fprintf(out, "%s_bucket{%s%sle=\"+Inf\"} %llu\n", name, label, comma, (unsigned long long)h->n);
    const char *open = label[0] != '\0' ? "{" : "", *close = label[0] != '\0' ? "}" : "";
    (void)fprintf(out, "%s_sum%s%s%s %.6f\n%s_count%s%s%s %llu\n", name, open, label, close, h->sum_ms * 1e-3, name,
                  open, label, close, (unsigned long long)h->n);
}

static void head(FILE *out, const char *name, const char *type, const char *help)
{
    (void)fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void print_times(FILE *out, const is_metrics *m)
{
    head(out, "inferscale_ttft_seconds", "histogram", "From the plan to the first token, waiting for a slot included.");
    print_histogram(out, "inferscale_ttft_seconds", "mode=\"inject\"", &m->ttft[IS_MODE_INJECT]);
    print_histogram(out, "inferscale_ttft_seconds", "mode=\"prefill\"", &m->ttft[IS_MODE_PREFILL]);
    print_histogram(out, "inferscale_ttft_seconds", "mode=\"off\"", &m->ttft[IS_MODE_OFF]);
    head(out, "inferscale_inter_token_seconds", "histogram", "Between two pieces of an answer.");
    print_histogram(out, "inferscale_inter_token_seconds", "", &m->inter_token);
    head(out, "inferscale_retrieval_seconds", "histogram", "The question's embedding and the ranking of facts.");
    print_histogram(out, "inferscale_retrieval_seconds", "", &m->retrieval);
    head(out, "inferscale_injection_seconds", "histogram", "Chunks fetched, rotated and written into the cache.");
    print_histogram(out, "inferscale_injection_seconds", "", &m->injection);
    head(out, "inferscale_encode_seconds", "histogram", "One fact made into a chunk.");
    print_histogram(out, "inferscale_encode_seconds", "", &m->encode);
}

static void counter(FILE *out, const char *name, const char *label, uint64_t value)
{
    (void)fprintf(out, "%s%s %llu\n", name, label, (unsigned long long)value);
}

static void print_counters(FILE *out, const is_metrics *m)
{
    head(out, "inferscale_tokens_total", "counter",
         "Tokens, by what was done with them; history are injected ones of earlier turns.");
    counter(out, "inferscale_tokens_total", "{kind=\"injected\"}", m->injected);
    counter(out, "inferscale_tokens_total", "{kind=\"history\"}", m->history);
    counter(out, "inferscale_tokens_total", "{kind=\"prefilled\"}", m->prefilled);
    counter(out, "inferscale_tokens_total", "{kind=\"generated\"}", m->generated);
    head(out, "inferscale_tokens_saved_total", "counter", "Tokens of prompts that had not to be prefilled.");
    counter(out, "inferscale_tokens_saved_total", "", m->injected);
    head(out, "inferscale_injections_refused_total", "counter", "Chunks that were not used, by reason.");
    counter(out, "inferscale_injections_refused_total", "{reason=\"damaged\"}", m->refused_damaged);
    counter(out, "inferscale_injections_refused_total", "{reason=\"mismatch\"}", m->refused - m->refused_damaged);
    head(out, "inferscale_replies_total", "counter", "Replies, by route and class of status.");
    for (size_t i = 0; i < IS_MAX_ROUTES; i++)
        for (size_t c = 1; c < IS_N_CLASSES; c++) {
            if (m->replies[i][c] == 0) continue;
            const is_route *route = i < IS_N_ROUTES ? &IS_ROUTES[i] : NULL;
            (void)fprintf(out, "inferscale_replies_total{method=\"%s\",route=\"%s\",status=\"%zuxx\"} %llu\n",
                          route == NULL ? "" : route->method, route == NULL ? "other" : route->path, c,
                          (unsigned long long)m->replies[i][c]);
        }
}

static void print_gauges(FILE *out, const is_server *s, const is_stats *st)
{
    uint32_t running[2], queued[2];
    is_pool_load(s->askers, &running[0], &queued[0]);
    is_pool_load(s->keepers, &running[1], &queued[1]);
    head(out, "inferscale_requests_running", "gauge", "Requests in work.");
    counter(out, "inferscale_requests_running", "{queue=\"ask\"}", running[0]);
    counter(out, "inferscale_requests_running", "{queue=\"store\"}", running[1]);
    head(out, "inferscale_requests_queued", "gauge", "Requests that wait.");
    counter(out, "inferscale_requests_queued", "{queue=\"ask\"}", queued[0]);
    counter(out, "inferscale_requests_queued", "{queue=\"store\"}", queued[1]);
    head(out, "inferscale_facts", "gauge", "Facts, by whether their chunk is there.");
    counter(out, "inferscale_facts", "{state=\"ready\"}", st->facts_ready);
    counter(out, "inferscale_facts", "{state=\"pending\"}", st->facts_pending);
    head(out, "inferscale_tier_bytes", "gauge", "KV state, by where it lies.");
    counter(out, "inferscale_tier_bytes", "{tier=\"host\"}", st->host_bytes);
    counter(out, "inferscale_tier_bytes", "{tier=\"disk\"}", st->chunk_bytes);
    head(out, "inferscale_tier_budget_bytes", "gauge", "What a tier may take.");
    counter(out, "inferscale_tier_budget_bytes", "{tier=\"host\"}", st->host_budget);
    head(out, "inferscale_tier_lookups_total", "counter", "Chunks looked for in host memory.");
    counter(out, "inferscale_tier_lookups_total", "{tier=\"host\",result=\"hit\"}", st->host_hits);
    counter(out, "inferscale_tier_lookups_total", "{tier=\"host\",result=\"miss\"}", st->host_misses);
    head(out, "inferscale_database_bytes", "gauge", "The database of facts.");
    counter(out, "inferscale_database_bytes", "", st->database_bytes);
    head(out, "inferscale_vector_bytes", "gauge", "Embeddings in memory.");
    counter(out, "inferscale_vector_bytes", "", st->vector_bytes);
}

void is_handle_metrics(is_request *r)
{
    is_metrics *m = r->server->metrics;
    is_error err = {0};
    is_stats stats;
    char *text = NULL;
    size_t n = 0;
    if (r->server->keys != NULL && strcmp(r->tenant, METRICS_TENANT) != 0) {
        is_reply_error(r, 403, NULL, "wrong_tenant",
                       "the metrics are of all tenants together and only for the tenant " METRICS_TENANT
                       "; `inferscale key " METRICS_TENANT "` makes a key for it");
        return;
    }
    if (is_get_stats(r->server->memory, &stats, &err) != IS_OK) {
        is_reply_failure(r, &err);
        return;
    }
    FILE *out = open_memstream(&text, &n);
    if (out == NULL) {
        is_reply_error(r, 503, NULL, "no_memory", "no memory for the metrics");
        return;
    }
    pthread_mutex_lock(&m->lock);
    print_times(out, m);
    print_counters(out, m);
    pthread_mutex_unlock(&m->lock);
    print_gauges(out, r->server, &stats);
    if (fclose(out) == 0)
        is_reply(r, 200, "text/plain; version=0.0.4; charset=utf-8", text, n);
    else
        free(text);
}

/* ------------------------------------------------------------ the dashboard */

static json_t *stats_json(const is_stats *s)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "scopes",
                     (json_int_t)s->scopes, "facts", (json_int_t)s->facts, "facts_ready", (json_int_t)s->facts_ready,
                     "facts_pending", (json_int_t)s->facts_pending, "turns", (json_int_t)s->turns, "chunks",
                     (json_int_t)s->chunks, "chunk_bytes", (json_int_t)s->chunk_bytes, "host_bytes",
                     (json_int_t)s->host_bytes, "host_budget", (json_int_t)s->host_budget, "host_chunks",
                     (json_int_t)s->host_chunks, "host_hits", (json_int_t)s->host_hits, "host_misses",
                     (json_int_t)s->host_misses, "database_bytes", (json_int_t)s->database_bytes, "vector_bytes",
                     (json_int_t)s->vector_bytes);
}

static json_t *recent_json(const is_metrics *m, const is_recent *x)
{
    static const char *const modes[] = {
        [IS_MODE_INJECT] = "inject", [IS_MODE_PREFILL] = "prefill", [IS_MODE_OFF] = "off"};
    /* What was injected would have been prefilled; the rest was, and took what it took. */
    double prefill = x->ttft_ms + x->injected * m->prefill_ms_per_token;
    return json_pack("{s:I, s:f, s:o, s:s, s:f, s:o, s:i, s:i, s:i, s:f, s:i}", "id", (json_int_t)x->id, "time",
                     x->time, "user", is_json_text(x->user, strlen(x->user)), "mode", modes[x->mode], "ttft_ms",
                     x->ttft_ms, "prefill_estimate_ms", m->prefill_ms_per_token > 0 ? json_real(prefill) : json_null(),
                     "tokens_injected", (int)x->injected, "tokens_prefilled", (int)x->prefilled, "tokens_generated",
                     (int)x->generated, "total_ms", x->total_ms, "status", (int)x->status);
}

#define RATE_SECONDS 60

static json_t *activity_json(is_request *r, json_t **rates, json_t **requests)
{
    is_metrics *m = r->server->metrics;
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    uint64_t errors = 0, total = 0, tokens = 0, n = 0;
    uint32_t running, queued;
    is_pool_load(r->server->askers, &running, &queued);
    json_t *list = json_array();
    pthread_mutex_lock(&m->lock);
    uint64_t first = m->n_recent > IS_RECENT ? m->n_recent - IS_RECENT : 0;
    for (uint64_t i = first; i < m->n_recent; i++) {
        const is_recent *x = &m->recent[i % IS_RECENT];
        if (strcmp(x->tenant, r->tenant) != 0) continue;
        json_array_append_new(list, recent_json(m, x));
        if ((double)now.tv_sec - x->time > RATE_SECONDS) continue;
        n++;
        tokens += x->generated;
    }
    for (size_t i = 0; i < IS_MAX_ROUTES; i++) {
        for (size_t c = 0; c < IS_N_CLASSES; c++) total += m->replies[i][c];
        errors += m->replies[i][4] + m->replies[i][5];
    }
    uint64_t too_many = m->too_many;
    pthread_mutex_unlock(&m->lock);
    double seconds = (is_now_ms() - r->server->started_ms) * 1e-3;
    if (seconds > RATE_SECONDS) seconds = RATE_SECONDS;
    *rates = json_pack("{s:f, s:f}", "requests_per_s", (double)n / seconds, "tokens_per_s", (double)tokens / seconds);
    *requests = json_pack("{s:i, s:i, s:I, s:I, s:I}", "running", (int)running, "queued", (int)queued, "total",
                          (json_int_t)total, "errors", (json_int_t)errors, "refused", (json_int_t)too_many);
    return list;
}

void is_handle_status(is_request *r)
{
    is_error err = {0};
    is_stats stats;
    char *about = NULL; /* version, recipe, engine, embedder; of an engine elsewhere, which servers are up */
    json_t *rates = NULL, *requests = NULL;
    if (is_get_stats(r->server->memory, &stats, &err) != IS_OK ||
        is_describe(r->server->memory, &about, &err) != IS_OK) {
        is_reply_failure(r, &err);
        return;
    }
    json_t *root = json_loads(about, 0, NULL);
    free(about);
    json_t *recent = activity_json(r, &rates, &requests);
    if (root == NULL) root = json_object();
    json_object_set_new(root, "uptime_s", json_real((is_now_ms() - r->server->started_ms) * 1e-3));
    json_object_set_new(root, "stats", stats_json(&stats));
    json_object_set_new(root, "requests", requests);
    json_object_set_new(root, "rates", rates);
    json_object_set_new(root, "recent", recent);
    is_reply_json(r, 200, root);
}

void is_handle_health(is_request *r)
{
    is_reply_json(r, 200, json_pack("{s:s}", "status", "ok"));
}

void is_handle_ready(is_request *r)
{
    bool draining = atomic_load(&r->server->draining);
    is_reply_json(r, draining ? 503 : 200, json_pack("{s:s}", "status", draining ? "draining" : "ready"));
}
