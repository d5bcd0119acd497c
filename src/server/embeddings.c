/* /v1/embeddings and /v1/models. */
#include <stdlib.h>
#include <string.h>

#include <gnutls/gnutls.h>

#include "internal.h"

#define MAX_TEXTS 2048

static json_t *model_json(const char *id, const is_server *s)
{
    return json_pack("{s:s, s:s, s:I, s:s}", "id", id, "object", "model", "created", (json_int_t)s->started, "owned_by",
                     "inferscale");
}

void is_handle_models(is_request *r)
{
    const is_server *s = r->server;
    json_t *list = json_pack("[o]", model_json(s->model, s));
    if (s->embedder[0] != '\0') json_array_append_new(list, model_json(s->embedder, s));
    is_reply_json(r, 200, json_pack("{s:s, s:o}", "object", "list", "data", list));
}

void is_handle_model(is_request *r)
{
    const is_server *s = r->server;
    if (strcmp(r->name, s->model) == 0 || (s->embedder[0] != '\0' && strcmp(r->name, s->embedder) == 0)) {
        is_reply_json(r, 200, model_json(r->name, s));
        return;
    }
    is_reply_error(r, 404, "model", "model_not_found", "there is no model \"%s\" here; GET /v1/models lists them",
                   r->name);
}

/* Base64 of the vector's little-endian floats, as OpenAI's client asks for. */
static json_t *base64_json(const float *vector, uint32_t dim)
{
    const gnutls_datum_t raw = {(unsigned char *)(uintptr_t)vector, dim * (unsigned)sizeof *vector};
    gnutls_datum_t text = {NULL, 0};
    if (gnutls_base64_encode2(&raw, &text) < 0) return NULL;
    json_t *value = json_stringn((const char *)text.data, text.size);
    gnutls_free(text.data);
    return value;
}

static json_t *vector_json(const float *vector, uint32_t dim, bool base64)
{
    if (base64) return base64_json(vector, dim);
    json_t *list = json_array();
    for (uint32_t i = 0; i < dim; i++) json_array_append_new(list, json_real((double)vector[i]));
    return list;
}

static void embed(is_request *r, const char *const *texts, size_t n, bool base64)
{
    float *vectors = NULL;
    uint32_t dim = 0;
    uint64_t tokens = 0;
    is_error err = {0};
    if (is_embed_texts(r->server->memory, texts, n, &vectors, &dim, &tokens, &err) != IS_OK) {
        is_reply_failure(r, &err);
        return;
    }
    json_t *data = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(data, json_pack("{s:s, s:i, s:o}", "object", "embedding", "index", (int)i, "embedding",
                                              vector_json(vectors + i * dim, dim, base64)));
    free(vectors);
    is_reply_json(r, 200,
                  json_pack("{s:s, s:s, s:o, s:{s:I, s:I}}", "object", "list", "model", r->server->embedder, "data",
                            data, "usage", "prompt_tokens", (json_int_t)tokens, "total_tokens", (json_int_t)tokens));
}

void is_handle_embeddings(is_request *r)
{
    const json_t *input = json_object_get(r->json, "input");
    const char *format = "float", *model = NULL; /* any name: there is one */
    uint32_t dimensions = 0;
    if (!is_field_text(r, r->json, "model", SIZE_MAX, &model) ||
        !is_field_text(r, r->json, "encoding_format", 16, &format) ||
        !is_field_uint(r, r->json, "dimensions", 1, 1 << 16, &dimensions))
        return;
    bool base64 = strcmp(format, "base64") == 0;
    if (!base64 && strcmp(format, "float") != 0) {
        is_reply_error(r, 400, "encoding_format", "invalid_value", "encoding_format must be float or base64");
        return;
    }
    if (dimensions != 0) {
        is_reply_error(r, 400, "dimensions", "unsupported", "this model's vectors cannot be cut; leave dimensions out");
        return;
    }
    size_t n = json_is_array(input) ? json_array_size(input) : 1;
    const char **texts = n == 0 || n > MAX_TEXTS ? NULL : calloc(n, sizeof *texts);
    bool ok = texts != NULL;
    for (size_t i = 0; ok && i < n; i++) {
        texts[i] = json_string_value(json_is_array(input) ? json_array_get(input, i) : input);
        ok = texts[i] != NULL && texts[i][0] != '\0';
    }
    if (ok)
        embed(r, texts, n, base64);
    else
        is_reply_error(r, 400, "input", "invalid_value", "input must be a text or 1 to %d texts, none empty",
                       MAX_TEXTS);
    free(texts);
}
