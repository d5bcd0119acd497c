/*
 * The embedding model: texts become unit vectors, in a context of their own, so that a
 * question is embedded while the chat model decodes.
 */
#include "internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EMBED_TOKENS    512 /* of one batch; a longer text is cut */
#define EMBED_SEQUENCES 32

struct is_embedder {
    is_model model;
    struct llama_context *context;
    struct llama_batch batch;
    uint32_t dim;
    uint32_t n_max; /* tokens of one text */
    char name[33];
    pthread_mutex_t lock;
};

static is_status open_context(is_embedder *e, const char *path, is_error *err)
{
    struct llama_context_params p = llama_context_default_params();
    p.n_ctx = EMBED_TOKENS;
    p.n_batch = EMBED_TOKENS;
    p.n_ubatch = EMBED_TOKENS;
    p.n_seq_max = EMBED_SEQUENCES;
    p.kv_unified = true;
    p.embeddings = true;
    p.n_threads = p.n_threads_batch = (int32_t)e->model.threads;
    p.no_perf = true;
    e->context = llama_init_from_model(e->model.llama, p);
    if (e->context == NULL)
        return is_fail(err, IS_EENGINE, "llama.cpp cannot open an embedding context for %s: %s", path,
                       is_llama_last_error());
    if (llama_pooling_type(e->context) == LLAMA_POOLING_TYPE_NONE ||
        llama_pooling_type(e->context) == LLAMA_POOLING_TYPE_RANK)
        return is_fail(err, IS_EUNSUPPORTED,
                       "%s is no embedding model: it has no pooling of its tokens into one vector", path);
    llama_attach_threadpool(e->context, e->model.pool, NULL);
    e->batch = llama_batch_init(EMBED_TOKENS, 0, 1);
    e->dim = (uint32_t)llama_model_n_embd_out(e->model.llama);
    int32_t trained = llama_model_n_ctx_train(e->model.llama);
    e->n_max = trained > 0 && trained < EMBED_TOKENS ? (uint32_t)trained : EMBED_TOKENS;
    return IS_OK;
}

is_status is_embedder_open(const char *model, uint32_t threads, is_embedder **out, is_error *err)
{
    is_embedder *e = calloc(1, sizeof *e);
    *out = NULL;
    if (e == NULL) return is_fail(err, IS_ENOMEM, "no memory for the embedder");
    pthread_mutex_init(&e->lock, NULL);
    is_status status = is_model_open(model, threads, &e->model, err);
    if (status == IS_OK) status = open_context(e, model, err);
    if (status != IS_OK) {
        is_embedder_close(e);
        return status;
    }
    for (int i = 0; i < 16; i++) (void)snprintf(e->name + 2 * i, 3, "%02x", e->model.file_hash[i]);
    *out = e;
    return IS_OK;
}

void is_embedder_close(is_embedder *e)
{
    if (e == NULL) return;
    if (e->context != NULL) llama_free(e->context);
    if (e->batch.token != NULL) llama_batch_free(e->batch);
    is_model_close(&e->model);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

uint32_t is_embedder_dim(const is_embedder *e)
{
    return e->dim;
}

const char *is_embedder_name(const is_embedder *e)
{
    return e->name;
}

/* Tokens of a text with the model's own begin and end, cut to n_max: the last token (the end mark) is kept. */
static is_status tokenize(const is_embedder *e, const char *text, int32_t *tokens, int32_t *n, is_error *err)
{
    size_t length = strlen(text);
    /* llama.cpp's tokenizer ends the process over bytes that are no UTF-8. */
    if (!is_utf8_valid(text, length)) return is_fail(err, IS_EINVAL, "a text to embed is not UTF-8");
    if (length > INT32_MAX / 2) return is_fail(err, IS_ELIMIT, "a text of %zu bytes is too long to embed", length);
    int32_t got = llama_tokenize(e->model.vocab, text, (int32_t)length, tokens, (int32_t)e->n_max, true, false);
    if (got >= 0) {
        *n = got;
        return IS_OK;
    }
    if (got == INT32_MIN) return is_fail(err, IS_EENGINE, "the embedding model's tokenizer refused a text");
    int32_t *all = malloc((size_t)-got * sizeof *all);
    if (all == NULL) return is_fail(err, IS_ENOMEM, "no memory for %d tokens", -got);
    got = llama_tokenize(e->model.vocab, text, (int32_t)length, all, -got, true, false);
    if (got >= (int32_t)e->n_max) {
        memcpy(tokens, all, e->n_max * sizeof *tokens);
        tokens[e->n_max - 1] = all[got - 1];
    }
    free(all);
    *n = (int32_t)e->n_max;
    return got < (int32_t)e->n_max ? is_fail(err, IS_EENGINE, "the embedding model's tokenizer refused a text") : IS_OK;
}

static is_status run_batch(is_embedder *e, size_t n, float *out, is_error *err)
{
    is_llama_quiet();
    int32_t rc = llama_encode(e->context, e->batch);
    if (rc != 0) return is_fail(err, IS_EENGINE, "llama.cpp cannot embed (code %d): %s", rc, is_llama_last_error());
    for (size_t i = 0; i < n; i++) {
        const float *v = llama_get_embeddings_seq(e->context, (llama_seq_id)i);
        double norm = 0;
        if (v == NULL) return is_fail(err, IS_EENGINE, "the embedding model gives no vector for a text");
        for (uint32_t d = 0; d < e->dim; d++) norm += (double)v[d] * (double)v[d];
        if (!(norm > 0)) return is_fail(err, IS_EENGINE, "the embedding model gives a vector of no length for a text");
        float scale = (float)(1.0 / sqrt(norm));
        for (uint32_t d = 0; d < e->dim; d++) out[i * e->dim + d] = v[d] * scale;
    }
    return IS_OK;
}

static is_status embed_all(is_embedder *e, const char *const *texts, size_t n, float *out, is_error *err)
{
    int32_t tokens[EMBED_TOKENS];
    size_t begin = 0; /* first text of the batch in hand */
    e->batch.n_tokens = 0;
    for (size_t t = 0; t < n; t++) {
        int32_t got = 0;
        is_status status = tokenize(e, texts[t], tokens, &got, err);
        if (status != IS_OK) return status;
        if (t - begin == EMBED_SEQUENCES || e->batch.n_tokens + got > EMBED_TOKENS) {
            status = run_batch(e, t - begin, out + begin * e->dim, err);
            if (status != IS_OK) return status;
            begin = t;
            e->batch.n_tokens = 0;
        }
        for (int32_t i = 0; i < got; i++) is_batch_add(&e->batch, tokens[i], i, (int32_t)(t - begin), true);
    }
    return begin < n ? run_batch(e, n - begin, out + begin * e->dim, err) : IS_OK;
}

is_status is_embed_count(is_embedder *e, const char *text, uint32_t *n, is_error *err)
{
    int32_t tokens[EMBED_TOKENS];
    int32_t got = 0;
    is_status status = tokenize(e, text, tokens, &got, err);
    *n = (uint32_t)got;
    return status;
}

is_status is_embed(is_embedder *e, const char *const *texts, size_t n, float *out, is_error *err)
{
    pthread_mutex_lock(&e->lock);
    is_status status = embed_all(e, texts, n, out, err);
    pthread_mutex_unlock(&e->lock);
    return status;
}
