/*
 * Chunks, through /v1/completions.
 *
 * vLLM reads prefix and target and makes one token; the connector takes the target's rows out of its cache and writes
 * them where the target's key says.  What comes back from here is a stub that names the key.  The prefix of a job is
 * the same for all its targets, so the first one goes alone and leaves it in vLLM's prefix cache; then some go at once.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../kv/hash.h"
#include "internal.h"

#define AT_ONCE 4 /* of one job; more would hold up those who ask */

static is_status make_stub(const is_vllm *engine, const is_encode_job *job, is_encode_target *t, is_error *err)
{
    is_chunk_info info = {
        .p_ref = (int32_t)job->n_prefix, .n_tokens = t->n_tokens, .parts = engine->ranks, .key = t->key};
    memcpy(info.fingerprint, engine->fingerprint, sizeof info.fingerprint);
    memcpy(info.text, t->text, sizeof info.text);
    is_hash128((is_span[]){{job->prefix, job->n_prefix * sizeof *job->prefix}}, 1, info.context);
    (void)snprintf(info.recipe, sizeof info.recipe, "%s", job->recipe);
    size_t size = is_chunk_stub_bytes(t->n_tokens);
    void *bytes = size == 0 ? NULL : is_chunk_memory(size);
    if (bytes == NULL) return is_fail(err, IS_ENOMEM, "no memory for a chunk of %u tokens", t->n_tokens);
    is_status status = is_chunk_stub(bytes, size, &info, t->tokens, err);
    if (status != IS_OK) {
        free(bytes);
        return status;
    }
    t->bytes = bytes;
    t->size = size;
    return IS_OK;
}

static char *body_of(const is_vllm *engine, const is_encode_job *job, const is_encode_target *t)
{
    char key[17], salt[32];
    (void)snprintf(key, sizeof key, "%016llx", (unsigned long long)t->key);
    (void)snprintf(salt, sizeof salt, "encode %llx", (unsigned long long)job->scope);
    json_t *ids = json_array();
    is_json_tokens(ids, job->prefix, job->n_prefix);
    is_json_tokens(ids, t->tokens, t->n_tokens);
    json_t *body =
        json_pack("{s:s, s:o, s:i, s:i, s:s, s:{s:{s:{s:s, s:i, s:i, s:s}}}}", "model", engine->model, "prompt", ids,
                  "max_tokens", 1, "temperature", 0, "cache_salt", salt, "kv_transfer_params", "inferscale", "encode",
                  "key", key, "begin", (int)job->n_prefix, "tokens", (int)t->n_tokens, "recipe", job->recipe);
    char *text = body == NULL ? NULL : json_dumps(body, JSON_COMPACT);
    json_decref(body);
    return text;
}

static bool canceled(void *user)
{
    const is_encode_job *job = user;
    return job->cancel != NULL && atomic_load(job->cancel);
}

static is_status encode_one(is_vllm *engine, is_encode_job *job, is_encode_target *t, is_error *err)
{
    char *body = body_of(engine, job, t);
    is_ask_upstream ask = {
        .path = "/v1/completions", .body = body, .scope = job->scope, .canceled = canceled, .user = job};
    is_status status =
        body == NULL ? is_fail(err, IS_ENOMEM, "no memory for a request") : is_upstream_ask(engine, &ask, err);
    free(ask.text);
    free(body);
    return status == IS_OK ? make_stub(engine, job, t, err) : status;
}

/* ------------------------------------------------------------ several at once */

typedef struct work {
    is_vllm *engine;
    is_encode_job *job;
    pthread_mutex_t lock;
    size_t next;
    is_status status; /* the first failure */
    is_error err;
} work;

static void *encode_some(void *arg)
{
    work *w = arg;
    pthread_mutex_lock(&w->lock);
    while (w->next < w->job->n_targets && w->status == IS_OK) {
        is_encode_target *t = &w->job->targets[w->next++];
        is_error err = {0};
        pthread_mutex_unlock(&w->lock);
        is_status status = encode_one(w->engine, w->job, t, &err);
        pthread_mutex_lock(&w->lock);
        if (status != IS_OK && w->status == IS_OK) {
            w->status = status;
            w->err = err;
        }
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

is_status is_vllm_encode(is_vllm *engine, is_encode_job *job, is_error *err)
{
    work w = {.engine = engine, .job = job, .status = IS_OK};
    pthread_t threads[AT_ONCE];
    size_t n = 0;
    if (engine->why_not[0] != '\0') return is_fail(err, IS_EUNSUPPORTED, "%s", engine->why_not);
    for (size_t i = 0; i < job->n_targets; i++) job->targets[i].bytes = NULL;
    (void)pthread_mutex_init(&w.lock, NULL);
    if (job->n_targets > 0) {
        w.next = 1;
        w.status = encode_one(engine, job, &job->targets[0], &w.err);
    }
    while (n < AT_ONCE && n + 2 < job->n_targets && w.status == IS_OK &&
           pthread_create(&threads[n], NULL, encode_some, &w) == 0)
        n++;
    (void)encode_some(&w);
    for (size_t i = 0; i < n; i++) (void)pthread_join(threads[i], NULL);
    (void)pthread_mutex_destroy(&w.lock);
    if (w.status == IS_OK) return IS_OK;
    for (size_t i = 0; i < job->n_targets; i++) {
        free(job->targets[i].bytes);
        job->targets[i].bytes = NULL;
    }
    return is_fail(err, w.status, "%s", w.err.text);
}
