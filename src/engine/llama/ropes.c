/*
 * The rotations that a model file may mean.
 *
 * Metadata tells base, width and scaling, but which layer has which rotation (two bases, layers without any)
 * often stands only in the engine's code.  So this lists what can be meant, and the probe finds out by
 * measurement which one each layer has.
 */
#include "internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A one-dimensional f32 tensor of the file, for frequency factors; NULL when there is none.  free(). */
static float *load_factors(const char *path, const struct gguf_context *gguf, const char *name, size_t n)
{
    int64_t id = gguf_find_tensor(gguf, name);
    if (id < 0 || gguf_get_tensor_type(gguf, id) != GGML_TYPE_F32 ||
        gguf_get_tensor_size(gguf, id) != n * sizeof(float))
        return NULL;
    FILE *f = fopen(path, "rb");
    float *factors = malloc(n * sizeof *factors);
    long offset = (long)(gguf_get_data_offset(gguf) + gguf_get_tensor_offset(gguf, id));
    bool ok =
        f != NULL && factors != NULL && fseek(f, offset, SEEK_SET) == 0 && fread(factors, sizeof *factors, n, f) == n;
    if (f != NULL) fclose(f);
    if (ok) return factors;
    free(factors);
    return NULL;
}

typedef struct rope_list {
    is_rope_candidate *out;
    size_t n;
} rope_list;

/* Adds a candidate unless it is there already; parameters that make no rotation are no candidates. */
static void add(rope_list *list, const is_rope_params *params, const char *name)
{
    if (list->n == IS_MAX_ROPE_CANDIDATES) return;
    is_rope_candidate *c = &list->out[list->n];
    if (is_rope_init(&c->rope, params, NULL) != IS_OK) return;
    for (size_t i = 0; i < list->n; i++)
        if (list->out[i].rope.offset == params->offset &&
            memcmp(list->out[i].rope.inv_freq, c->rope.inv_freq, (params->width / 2) * sizeof(double)) == 0)
            return;
    (void)snprintf(c->name, sizeof c->name, "%s, base %g", name, params->base);
    list->n++;
}

static is_rope_scaling scaling_of(const is_model *model, double factor)
{
    char type[32];
    if (!is_model_text(model, "rope.scaling.type", type, sizeof type))
        (void)strcpy(type, "linear"); /* what llama.cpp assumes when a factor stands alone */
    if (strcmp(type, "yarn") == 0) return IS_SCALING_YARN;
    if (strcmp(type, "longrope") == 0) return IS_SCALING_LONGROPE;
    if (strcmp(type, "linear") == 0) return factor > 1 ? IS_SCALING_LINEAR : IS_SCALING_NONE;
    if (strcmp(type, "none") == 0) return IS_SCALING_NONE;
    return IS_SCALING_DYNAMIC;
}

size_t is_rope_candidates(const is_model *model, const char *path, uint32_t k_dim, uint32_t context,
                          is_rope_candidate *out, is_error *err)
{
    enum llama_rope_type type = llama_model_rope_type(model->llama);
    if (type == LLAMA_ROPE_TYPE_NONE) return 0;
    if (type != LLAMA_ROPE_TYPE_NORM && type != LLAMA_ROPE_TYPE_NEOX) {
        (void)is_fail(err, IS_EUNSUPPORTED, "the model's rotary embedding has several position axes (M-RoPE)");
        return 0;
    }
    uint32_t width = (uint32_t)is_model_number(model, "rope.dimension_count", k_dim);
    if (width == 0 || width > k_dim || width % 2 != 0) width = k_dim;
    double factor = is_model_number(model, "rope.scaling.factor", is_model_number(model, "rope.scale_linear", 1.0));
    is_rope_params p = {
        .style = type == LLAMA_ROPE_TYPE_NORM ? IS_ROPE_PAIR : IS_ROPE_HALF,
        .width = width,
        .base = is_model_number(model, "rope.freq_base", 10000.0),
        .scaling = scaling_of(model, factor),
        .factor = factor,
        .context = context,
        .original_context = (uint32_t)is_model_number(model, "rope.scaling.original_context_length",
                                                      llama_model_n_ctx_train(model->llama)),
        .beta_fast = is_model_number(model, "rope.scaling.yarn_beta_fast", 32),
        .beta_slow = is_model_number(model, "rope.scaling.yarn_beta_slow", 1),
        .extrapolation = is_model_number(model, "rope.scaling.yarn_ext_factor", 1),
    };
    struct gguf_init_params init = {.no_alloc = true, .ctx = NULL};
    struct gguf_context *gguf = gguf_init_from_file(path, init);
    float *factors = NULL, *long_factors = NULL, *short_factors = NULL;
    if (gguf != NULL) {
        factors = load_factors(path, gguf, "rope_freqs.weight", width / 2);
        long_factors = load_factors(path, gguf, "rope_factors_long.weight", width / 2);
        short_factors = load_factors(path, gguf, "rope_factors_short.weight", width / 2);
        gguf_free(gguf);
    }
    rope_list list = {out, 0};
    if (p.scaling == IS_SCALING_DYNAMIC) {
        (void)is_fail(err, IS_EUNSUPPORTED, "the model's RoPE scaling depends on the prompt's length");
        goto end;
    }
    p.factors = factors;
    p.long_factors = long_factors;
    p.short_factors = short_factors;
    if (long_factors != NULL && short_factors != NULL) p.scaling = IS_SCALING_LONGROPE;
    add(&list, &p, "as the file says");
    /* Window layers: their own base if the file has one, else the main one or 10000, without scaling. */
    is_rope_params plain = p;
    plain.scaling = IS_SCALING_NONE;
    plain.factors = NULL;
    double bases[3] = {is_model_number(model, "rope.freq_base_swa", p.base), p.base, 10000.0};
    for (size_t i = 0; i < 3; i++) {
        plain.base = bases[i];
        plain.offset = 0;
        add(&list, &plain, "unscaled");
        /* Latent attention keeps the rotary slice at the end of its row. */
        plain.offset = k_dim - width;
        if (plain.offset != 0) add(&list, &plain, "unscaled, slice at the end");
    }
    p.offset = k_dim - width;
    if (p.offset != 0) add(&list, &p, "slice at the end");
end:
    free(factors);
    free(long_factors);
    free(short_factors);
    return list.n;
}
