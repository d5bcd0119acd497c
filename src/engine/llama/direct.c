/*
 * Rows straight into the engine's cache: one pass over the bytes instead of two.
 *
 * The public way into the cache is a state blob, which the engine copies once more.  Where the cache lies in host
 * memory its tensors can be written in place.  They are learnt through the evaluation callback of the context: it
 * sees every node of a graph, and the cache's tensors are what some of them are views of.
 *
 * A cell must exist before its row is written, and only the engine makes cells.  So a sequence keeps the cells that
 * it has: they stand at positions 0 to m - 1 in order, since a stream of its own is only appended to and cut.  A run of
 * n <= m tokens cuts the sequence to n cells and overwrites their rows.  When nothing else is to be done, free
 * sequences are filled up with empty rows, so that m is seldom too small; when it is, the blob's way serves.
 *
 * A cache in a GPU's memory is written by the device's side (cuda/dev.h), as a paged cache whose blocks are whole
 * sequences.  Without it, that is in a program built without CUDA, it takes the blob's way.
 *
 * The probe compares what is written so with the engine's own state before it is used.  Models with a sliding
 * window, whose cells do not stay in order, take the blob's way always.
 */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The tensor that this one is a view of, if it is one of the cache's. */
static void note(is_direct *d, const struct ggml_tensor *t)
{
    if (t == NULL) return;
    while (t->view_src != NULL) t = t->view_src;
    uint32_t layer;
    char kind;
    if (sscanf(t->name, "cache_%c_l%u", &kind, &layer) != 2 || layer >= IS_MAX_LAYERS) return;
    if (kind == 'k') d->k[layer] = t;
    if (kind == 'v') d->v[layer] = t;
}

bool is_direct_watch(struct ggml_tensor *t, bool ask, void *user)
{
    (void)ask;
    is_direct *d = user;
    if (d->watching) {
        note(d, t);
        for (int i = 0; i < GGML_MAX_SRC; i++) note(d, t->src[i]);
    }
    return false; /* no node is waited for, so the graph runs as a whole */
}

/* Whether the tensor is rows of `row` bytes for every cell of every sequence, in memory that can be written. */
static bool fits(const is_llama *engine, const struct ggml_tensor *t, uint64_t row)
{
    if (t->data == NULL || t->buffer == NULL) return false;
    bool reached = engine->dev != NULL ? is_dev_owns(engine->dev, t->data) : ggml_backend_buffer_is_host(t->buffer);
    return reached && ggml_is_contiguous(t) && t->nb[1] == row && t->ne[1] == (int64_t)engine->n_context &&
           t->ne[2] == (int64_t)engine->n_slots;
}

/* The cache keeps its layers in the order of their numbers; the layout has the same order. */
static bool learn(is_llama *engine)
{
    is_direct *d = &engine->direct;
    const is_state_shape *shape = &engine->shape;
    uint32_t layer = 0;
    for (uint32_t il = 0; il < IS_MAX_LAYERS; il++) {
        if (d->k[il] == NULL) continue;
        if (layer == shape->n_layers || !fits(engine, d->k[il], shape->layers[layer].k_row)) return false;
        if (shape->layers[layer].v_row != 0 &&
            (d->v[il] == NULL || !fits(engine, d->v[il], shape->layers[layer].v_row)))
            return false;
        d->k[layer] = d->k[il];
        d->v[layer] = shape->layers[layer].v_row != 0 ? d->v[il] : NULL;
        layer++;
    }
    return layer == shape->n_layers;
}

void is_direct_targets(const is_llama *engine, int32_t sequence, uint32_t n_tokens, is_target *targets)
{
    for (uint32_t l = 0; l < engine->shape.n_layers; l++) {
        const struct ggml_tensor *k = engine->direct.k[l];
        const struct ggml_tensor *v = engine->direct.v[l];
        is_target *t = &targets[l];
        *t = (is_target){.k = (uint8_t *)k->data + (size_t)sequence * k->nb[2], .k_stride = k->nb[1], .n = n_tokens};
        if (v == NULL) continue;
        t->v = (uint8_t *)v->data + (size_t)sequence * v->nb[2];
        t->v_stride = engine->shape.v_trans ? engine->n_context * is_dtype_size(engine->layout.dtype) : v->nb[1];
    }
}

bool is_direct_cut(const is_llama *engine, int32_t sequence, uint32_t n_tokens)
{
    if (!engine->direct.ready || n_tokens == 0) return false;
    llama_memory_t memory = llama_get_memory(engine->context);
    if (llama_memory_seq_pos_min(memory, sequence) != 0 ||
        llama_memory_seq_pos_max(memory, sequence) + 1 < (llama_pos)n_tokens)
        return false;
    return llama_memory_seq_rm(memory, sequence, (llama_pos)n_tokens, -1);
}

/* Whether n runs of bytes, `stride` apart from `at` on in the tensor's memory, are these. */
static bool same_runs(const struct ggml_tensor *t, const uint8_t *at, size_t stride, const uint8_t *want, size_t bytes,
                      size_t n)
{
    uint8_t *run = malloc(bytes);
    bool same = run != NULL;
    for (size_t i = 0; i < n && same; i++) {
        ggml_backend_tensor_get(t, run, (size_t)(at - (const uint8_t *)t->data) + i * stride, bytes);
        same = memcmp(run, want + i * bytes, bytes) == 0;
    }
    free(run);
    return same;
}

/* Whether the engine's state of the sequence is, row for row, what lies in the tensors. */
static bool same_rows(const is_llama *engine, int32_t sequence, const is_state_view *view)
{
    is_target targets[IS_MAX_LAYERS];
    uint32_t n = view->n_cells[0];
    is_direct_targets(engine, sequence, n, targets);
    for (uint32_t l = 0; l < engine->shape.n_layers; l++) {
        const is_state_layer *layer = &engine->shape.layers[l];
        const is_target *t = &targets[l];
        if (!same_runs(engine->direct.k[l], t->k, t->k_stride, view->k[l], layer->k_row, n)) return false;
        if (layer->v_row == 0 || t->v == NULL) continue;
        size_t runs = engine->shape.v_trans ? layer->v_width : n;
        size_t bytes = engine->shape.v_trans ? (size_t)layer->v_el * n : (size_t)layer->v_row;
        if (!same_runs(engine->direct.v[l], t->v, t->v_stride, view->v[l], bytes, runs)) return false;
    }
    for (uint32_t i = 0; i < n; i++)
        if (is_state_position(view, 0, i) != (int32_t)i) return false;
    return true;
}

static is_move_part part_of(const struct ggml_tensor *t, uint32_t dim)
{
    return (is_move_part){
        .base = t->data, .block_stride = t->nb[2], .row_stride = t->nb[1] / 2, .head_stride = dim, .scale = 1};
}

bool is_direct_tell_device(is_llama *engine)
{
    const is_layout *layout = &engine->layout;
    is_device_layer *layers = calloc(layout->n_layers, sizeof *layers);
    if (layers == NULL || layout->v_transposed || is_dtype_size(layout->dtype) != 2) {
        free(layers);
        return false;
    }
    for (uint32_t l = 0; l < layout->n_layers; l++) {
        layers[l].k = part_of(engine->direct.k[l], layout->layers[l].k_dim);
        if (engine->direct.v[l] != NULL) layers[l].v = part_of(engine->direct.v[l], layout->layers[l].v_dim);
    }
    bool told = is_dev_cache(engine->dev, layout, layers, (is_cell)layout->dtype, engine->n_context, engine->n_slots,
                             NULL) == IS_OK;
    free(layers);
    return told;
}

bool is_direct_prove(is_llama *engine, int32_t sequence, const is_state_view *view)
{
    engine->direct.watching = false;
    if (engine->shape.n_caches != 1 || !learn(engine) || !same_rows(engine, sequence, view)) return false;
    engine->direct.on_device = engine->dev != NULL;
    return engine->dev == NULL || is_direct_tell_device(engine);
}
