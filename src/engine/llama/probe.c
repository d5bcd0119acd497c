/*
 * The probe at start: the layout and the rotation are proved, not assumed.
 *
 * Canary tokens are run through the engine, each alone in its sequence, at several positions.  A token that
 * sees only itself has the same hidden state wherever it stands, so its K rows differ by the rotation and one
 * rounding, in every layer.  What the cache holds gives the layout; the rows at position 0, moved by every
 * rotation that the file can mean, are held against the rows that the engine itself wrote elsewhere, and each
 * layer gets the rotation that fits.  Then a run of canaries is made a chunk and injected at its own place,
 * and the next token's logits must be the prefilled ones bit for bit.
 * Whatever does not fit turns injection off, with the reason; prefill serves all the same.
 */
#include "internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define CANARIES 32 /* of the injected run */
#define ALONE    3  /* canaries that are run alone */
#define OFFSETS  3

#define FIRST_CELLS 4096 /* tokens of memory that the first requests are ready for */

/*
 * Relative difference of a row that is called a match.  One rounding to f16 is 0.0003, and the engine's angles
 * are f32 products, off by some 0.001 rad at position 8,000.  A wrong rotation is off by 0.1 and more.
 */
#define MOVE_TOLERANCE 0.005

typedef struct capture {
    uint8_t *bytes;
    size_t size;
    is_state_shape shape;
    is_state_view view;
} capture;

static void choose_canaries(const is_model *model, int32_t *tokens)
{
    uint32_t n_vocab = (uint32_t)llama_vocab_n_tokens(model->vocab);
    uint64_t x = 88172645463325252u; /* xorshift64, Marsaglia 2003 */
    for (size_t i = 0; i < CANARIES;) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        int32_t token = (int32_t)(x % n_vocab);
        if (llama_vocab_is_control(model->vocab, token) || llama_vocab_is_eog(model->vocab, token)) continue;
        tokens[i++] = token;
    }
}

static is_status decode_at(is_llama *engine, const int32_t *tokens, uint32_t n, int32_t position, is_error *err)
{
    engine->batch.n_tokens = 0;
    for (uint32_t i = 0; i < n; i++) is_batch_add(&engine->batch, tokens[i], position + (int32_t)i, 0, i + 1 == n);
    is_llama_quiet();
    int32_t rc = llama_decode(engine->context, engine->batch);
    if (rc != 0)
        return is_fail(err, IS_EENGINE, "llama.cpp cannot run %u tokens (code %d): %s", n, rc, is_llama_last_error());
    return IS_OK;
}

static is_status capture_state(is_llama *engine, capture *c, is_error *err)
{
    c->size = llama_state_seq_get_size(engine->context, 0);
    free(c->bytes);
    c->bytes = malloc(c->size + 1);
    if (c->bytes == NULL) return is_fail(err, IS_ENOMEM, "no memory for %zu bytes of state", c->size);
    if (c->size == 0 || llama_state_seq_get_data(engine->context, c->bytes, c->size, 0) != c->size)
        return is_fail(err, IS_EENGINE, "llama.cpp does not give a sequence's state: %s", is_llama_last_error());
    /* c owns the bytes; NOLINTNEXTLINE(clang-analyzer-unix.Malloc) */
    return is_state_parse(c->bytes, c->size, &c->shape, &c->view, err);
}

/* The state of one canary alone at a position. */
static is_status alone_at(is_llama *engine, int32_t token, int32_t position, capture *c, is_error *err)
{
    llama_memory_seq_rm(llama_get_memory(engine->context), 0, -1, -1);
    is_status status = decode_at(engine, &token, 1, position, err);
    if (status == IS_OK) status = capture_state(engine, c, err);
    for (uint32_t i = 0; status == IS_OK && i < c->shape.n_caches; i++)
        if (c->view.n_cells[i] != 1 || is_state_position(&c->view, i, 0) != position)
            status =
                is_fail(err, IS_EUNSUPPORTED, "the cache does not keep one row for one token at position %d", position);
    return status;
}

static bool dtype_of(int32_t type, is_dtype *out)
{
    switch (type) {
    case GGML_TYPE_F16: *out = IS_F16; return true;
    case GGML_TYPE_BF16: *out = IS_BF16; return true;
    case GGML_TYPE_F32: *out = IS_F32; return true;
    default: return false;
    }
}

static uint32_t k_dim_of(const is_model *model, uint32_t cache)
{
    double heads = llama_model_n_head(model->llama);
    double plain = heads > 0 ? llama_model_n_embd(model->llama) / heads : 0;
    double dim = is_model_number(model, "attention.key_length", plain);
    if (cache == 1) dim = is_model_number(model, "attention.key_length_swa", dim);
    return dim >= 1 && dim <= 65536 ? (uint32_t)dim : 0;
}

/* Layers, widths and types as the cache shows them; rotations come later. */
static is_status read_layout(is_llama *engine, const capture *c, is_error *err)
{
    is_layout *layout = &engine->layout;
    const is_state_shape *shape = &c->shape;
    engine->shape = *shape;
    layout->n_layers = shape->n_layers;
    layout->v_transposed = shape->v_trans;
    if (!dtype_of(shape->layers[0].k_type, &layout->dtype))
        return is_fail(err, IS_EUNSUPPORTED,
                       "the cache keeps K as ggml type %d; only f16, bf16 and f32 can be injected",
                       shape->layers[0].k_type);
    size_t el = is_dtype_size(layout->dtype);
    uint32_t window = (uint32_t)llama_model_n_swa(engine->model.llama);
    if (shape->n_caches == 2 && (window == 0 || strcmp(engine->model.arch, "llama4") == 0))
        return is_fail(err, IS_EUNSUPPORTED, "the model has a second cache that is no sliding window");
    for (uint32_t l = 0; l < shape->n_layers; l++) {
        const is_state_layer *s = &shape->layers[l];
        uint32_t cache = is_state_cache_of(shape, l);
        uint32_t k_dim = k_dim_of(&engine->model, cache);
        is_dtype k_type, v_type;
        bool has_v = s->v_row != 0;
        if (!dtype_of(s->k_type, &k_type) || k_type != layout->dtype ||
            (has_v && (!dtype_of(s->v_type, &v_type) || v_type != layout->dtype)))
            return is_fail(err, IS_EUNSUPPORTED, "layer %u of the cache has another number type than the first", l);
        if (k_dim == 0 || s->k_row % (k_dim * el) != 0)
            return is_fail(err, IS_EUNSUPPORTED,
                           "a K row of layer %u has %llu bytes, which is no number of heads of %u", l,
                           (unsigned long long)s->k_row, k_dim);
        uint32_t heads = (uint32_t)(s->k_row / (k_dim * el));
        if (has_v && s->v_row % (heads * el) != 0)
            return is_fail(err, IS_EUNSUPPORTED, "a V row of layer %u does not divide into %u heads", l, heads);
        layout->layers[l] = (is_layer){.heads = heads,
                                       .k_dim = k_dim,
                                       .v_dim = has_v ? (uint32_t)(s->v_row / (heads * el)) : 0,
                                       .window = cache == 1 ? window : 0,
                                       .rope = IS_LAYER_NO_ROPE};
    }
    return IS_OK;
}

static double element(is_dtype dtype, const uint8_t *p)
{
    uint16_t h;
    float f;
    if (dtype == IS_F32) {
        memcpy(&f, p, sizeof f);
        return f;
    }
    memcpy(&h, p, sizeof h);
    return dtype == IS_F16 ? is_f16_to_f32(h) : is_bf16_to_f32(h);
}

static double relative_difference(is_dtype dtype, const uint8_t *a, const uint8_t *b, size_t bytes)
{
    double diff = 0, norm = 0;
    size_t el = is_dtype_size(dtype);
    for (size_t i = 0; i < bytes; i += el) {
        double x = element(dtype, a + i);
        double y = element(dtype, b + i);
        diff += (x - y) * (x - y);
        norm += y * y;
    }
    return norm > 0 ? sqrt(diff / norm) : diff > 0 ? 1 : 0;
}

/* How far the layer's row at 0, moved by the rotation (NULL: none), is from the engine's row at `offset`. */
static double move_error(const is_layout *layout, uint32_t layer, const is_rope *rope, const capture *at0,
                         const capture *moved, int32_t offset, uint8_t *scratch)
{
    size_t row = is_layer_k_bytes(layout, layer);
    if (rope == NULL) {
        memcpy(scratch, at0->view.k[layer], row);
    } else {
        is_rotation rotation;
        is_rotation_init(&rotation, rope, offset);
        is_rotate_rows(is_isa_best(), layout->dtype, rope, &rotation, layout->layers[layer].heads,
                       layout->layers[layer].k_dim, at0->view.k[layer], row, scratch, row, 1);
    }
    return relative_difference(layout->dtype, scratch, moved->view.k[layer], row);
}

/* The candidate's place in the layout's list of rotations; it is added when it is new. */
static uint32_t rope_index(is_llama *engine, const is_rope_candidate *c)
{
    is_layout *layout = &engine->layout;
    for (uint32_t i = 0; i < layout->n_ropes; i++)
        if (strcmp(engine->probe.rope_names[i], c->name) == 0) return i;
    if (layout->n_ropes == IS_MAX_ROPES) return IS_LAYER_NO_ROPE;
    memcpy(engine->probe.rope_names[layout->n_ropes], c->name, sizeof c->name);
    layout->ropes[layout->n_ropes] = c->rope;
    return layout->n_ropes++;
}

/* What find_ropes works with: candidates a cache (their head widths may differ), worst errors a layer and candidate. */
typedef struct rope_search {
    is_rope_candidate candidates[IS_STATE_MAX_CACHES][IS_MAX_ROPE_CANDIDATES];
    size_t n[IS_STATE_MAX_CACHES];
    double worst[IS_MAX_LAYERS][IS_MAX_ROPE_CANDIDATES + 1]; /* behind the candidates of its cache: no rotation */
    uint8_t *scratch;
} rope_search;

static is_status list_candidates(is_llama *engine, const char *path, rope_search *search, is_error *err)
{
    size_t most = 0;
    for (uint32_t l = 0; l < engine->layout.n_layers; l++)
        if (is_layer_k_bytes(&engine->layout, l) > most) most = is_layer_k_bytes(&engine->layout, l);
    search->scratch = malloc(most + 1);
    if (search->scratch == NULL) return is_fail(err, IS_ENOMEM, "no memory for the probe");
    for (uint32_t c = 0; c < engine->shape.n_caches; c++) {
        is_error why = {.status = IS_OK};
        uint32_t k_dim = engine->layout.layers[engine->shape.caches[c].layer_begin].k_dim;
        search->n[c] = is_rope_candidates(&engine->model, path, k_dim, engine->n_context, search->candidates[c], &why);
        if (why.status != IS_OK) return is_fail(err, why.status, "%s", why.text);
    }
    return IS_OK;
}

/* Holds every candidate against one canary at one offset. */
static void try_candidates(const is_llama *engine, rope_search *search, const capture *at0, const capture *moved,
                           int32_t offset)
{
    for (uint32_t l = 0; l < engine->layout.n_layers; l++) {
        uint32_t c = is_state_cache_of(&engine->shape, l);
        for (size_t i = 0; i <= search->n[c]; i++) {
            const is_rope *rope = i < search->n[c] ? &search->candidates[c][i].rope : NULL;
            double e = move_error(&engine->layout, l, rope, at0, moved, offset, search->scratch);
            if (!(e <= search->worst[l][i])) search->worst[l][i] = e;
        }
    }
}

/* Gives one layer the rotation whose worst error is smallest. */
static is_status choose_rope(is_llama *engine, uint32_t layer, const rope_search *search, is_error *err)
{
    uint32_t c = is_state_cache_of(&engine->shape, layer);
    size_t best = 0;
    for (size_t i = 1; i <= search->n[c]; i++)
        if (search->worst[layer][i] < search->worst[layer][best]) best = i;
    double error = search->worst[layer][best];
    if (error > engine->probe.max_error) {
        engine->probe.max_error = error;
        engine->probe.worst_layer = layer;
    }
    if (!(error <= MOVE_TOLERANCE))
        return is_fail(err, IS_EUNSUPPORTED,
                       "no known rotation moves K of cache layer %u as the engine does (relative "
                       "difference %.4f)",
                       layer, error);
    if (best == search->n[c]) return IS_OK;
    engine->layout.layers[layer].rope = rope_index(engine, &search->candidates[c][best]);
    return engine->layout.layers[layer].rope == IS_LAYER_NO_ROPE
               ? is_fail(err, IS_EUNSUPPORTED, "the model has more than %d rotations", IS_MAX_ROPES)
               : IS_OK;
}

static is_status find_ropes(is_llama *engine, const char *path, const int32_t *tokens, is_error *err)
{
    int32_t last = (int32_t)engine->n_context - 2;
    int32_t offsets[OFFSETS] = {1, last / 16 + 7, last};
    memcpy(engine->probe.offsets, offsets, sizeof offsets);
    capture at0 = {0}, moved = {0};
    rope_search *search = calloc(1, sizeof *search);
    if (search == NULL) return is_fail(err, IS_ENOMEM, "no memory for the probe");
    is_status status = list_candidates(engine, path, search, err);
    for (size_t t = 0; status == IS_OK && t < ALONE; t++) {
        status = alone_at(engine, tokens[t], 0, &at0, err);
        for (size_t o = 0; status == IS_OK && o < OFFSETS; o++) {
            status = alone_at(engine, tokens[t], offsets[o], &moved, err);
            if (status == IS_OK) try_candidates(engine, search, &at0, &moved, offsets[o]);
        }
    }
    for (uint32_t l = 0; status == IS_OK && l < engine->layout.n_layers; l++)
        status = choose_rope(engine, l, search, err);
    free(at0.bytes);
    free(moved.bytes);
    free(search->scratch);
    free(search);
    return status;
}

static void make_fingerprint(is_llama *engine)
{
    struct {
        uint8_t file[16];
        uint8_t layout[16];
        char engine[64];
    } parts;
    memset(&parts, 0, sizeof parts);
    memcpy(parts.file, engine->model.file_hash, sizeof parts.file);
    is_layout_hash(&engine->layout, parts.layout);
    (void)snprintf(parts.engine, sizeof parts.engine, "llama.cpp %s, %s", llama_version(), IS_ENGINE_BUILD);
    XXH128_canonical_t hash;
    XXH128_canonicalFromHash(&hash, XXH3_128bits(&parts, sizeof parts));
    memcpy(engine->fingerprint, hash.digest, sizeof engine->fingerprint);
}

static is_status copy_logits(is_llama *engine, int32_t row, float *out, is_error *err)
{
    const float *logits = llama_get_logits_ith(engine->context, row);
    if (logits == NULL) return is_fail(err, IS_EENGINE, "llama.cpp gives no logits");
    memcpy(out, logits, (size_t)llama_vocab_n_tokens(engine->model.vocab) * sizeof *out);
    return IS_OK;
}

/* Injects the chunk at position 0 and holds the logits of the token behind it against the wanted ones; *worst grows. */
static is_status compare_logits(is_llama *engine, const is_chunk *chunk, int32_t next, const float *want, float *got,
                                double *worst, is_error *err)
{
    uint32_t n = chunk->info.n_tokens;
    is_placed placed = {chunk, 0};
    uint64_t bytes;
    is_status status = is_inject(engine, 0, &placed, 1, n, 0, 0, &bytes, err);
    if (status == IS_OK) status = decode_at(engine, &next, 1, (int32_t)n, err);
    if (status == IS_OK) status = copy_logits(engine, 0, got, err);
    size_t n_vocab = (size_t)llama_vocab_n_tokens(engine->model.vocab);
    for (size_t i = 0; status == IS_OK && i < n_vocab; i++) {
        double d = fabs((double)want[i] - (double)got[i]);
        if (!(d <= *worst)) *worst = d;
    }
    return status;
}

/* Tries both ways into the cache; the blob's must work, the other is used when it does. */
static is_status prove_both_ways(is_llama *engine, const is_chunk *chunk, int32_t next, const float *want,
                                 bool in_place, is_error *err)
{
    float *got = malloc((size_t)llama_vocab_n_tokens(engine->model.vocab) * sizeof *got);
    if (got == NULL) return is_fail(err, IS_ENOMEM, "no memory for the probe");
    is_status status = compare_logits(engine, chunk, next, want, got, &engine->probe.logit_error, err);
    if (status == IS_OK && engine->probe.logit_error != 0)
        status = is_fail(err, IS_EUNSUPPORTED, "logits behind injected KV differ from prefilled ones by %g",
                         engine->probe.logit_error);
    if (status == IS_OK && in_place) {
        double worst = 0;
        engine->direct.ready = true; /* the sequence has its cells now */
        status = compare_logits(engine, chunk, next, want, got, &worst, err);
        if (status == IS_OK && worst != 0) engine->direct.ready = false;
    }
    free(got);
    return status;
}

/* All canaries but the last are injected at their own place; the last one's logits must be the prefilled ones. */
static is_status prove_injection(is_llama *engine, const int32_t *tokens, is_error *err)
{
    const uint32_t n = CANARIES - 1;
    float *want = malloc((size_t)llama_vocab_n_tokens(engine->model.vocab) * sizeof *want);
    is_encode_target target = {.tokens = tokens, .n_tokens = n};
    capture c = {0};
    is_chunk chunk;
    bool in_place = false;
    is_status status = want == NULL ? is_fail(err, IS_ENOMEM, "no memory for the probe") : IS_OK;
    llama_memory_seq_rm(llama_get_memory(engine->context), 0, -1, -1);
    if (status == IS_OK) status = decode_at(engine, tokens, n, 0, err);
    if (status == IS_OK) status = capture_state(engine, &c, err);
    if (status == IS_OK) in_place = is_direct_prove(engine, 0, &c.view);
    if (status == IS_OK) status = is_chunk_extract(engine, c.bytes, c.size, 0, tokens, "probe", &target, err);
    if (status == IS_OK) status = decode_at(engine, tokens + n, 1, (int32_t)n, err);
    if (status == IS_OK) status = copy_logits(engine, 0, want, err);
    if (status == IS_OK) status = is_chunk_open(&chunk, target.bytes, target.size, IS_CHUNK_CHECK_PAYLOAD, err);
    if (status == IS_OK) status = prove_both_ways(engine, &chunk, tokens[n], want, in_place, err);
    free(want);
    free(target.bytes);
    free(c.bytes);
    return status;
}

static is_status check_kind(const is_llama *engine, is_error *err)
{
    const struct llama_model *m = engine->model.llama;
    if (llama_model_is_recurrent(m) || llama_model_is_hybrid(m))
        return is_fail(err, IS_EUNSUPPORTED, "the model keeps recurrent state, which is no KV cache");
    return IS_OK;
}

is_status is_probe(is_llama *engine, const char *path, is_error *err)
{
    double begin = is_now_ms();
    int32_t tokens[CANARIES];
    capture first = {0};
    is_error why = {0};
    choose_canaries(&engine->model, tokens);
    is_status status = check_kind(engine, &why);
    if (status == IS_OK) status = alone_at(engine, tokens[0], 0, &first, &why);
    if (status == IS_OK) status = read_layout(engine, &first, &why);
    if (status == IS_OK) status = find_ropes(engine, path, tokens, &why);
    if (status == IS_OK) status = is_layout_check(&engine->layout, &why);
    if (status == IS_OK) {
        make_fingerprint(engine);
        status = is_blob_open(engine, engine->n_context, &why);
    }
    if (status == IS_OK) status = prove_injection(engine, tokens, &why);
    free(first.bytes);
    engine->injectable = status == IS_OK;
    if (status != IS_OK) (void)snprintf(engine->why_not, sizeof engine->why_not, "%.500s", why.text);
    engine->probe.probe_ms = is_now_ms() - begin;
    if (engine->context == NULL) return is_fail(err, IS_EENGINE, "%s", why.text);
    engine->direct.watching = false;
    if (!engine->injectable) engine->direct.ready = false;
    /* Nothing of the canaries stays, neither rows nor cells. */
    llama_memory_clear(llama_get_memory(engine->context), true);
    if (engine->dev != NULL) is_dev_drop_scope(engine->dev, 0);
    engine->cells = engine->n_context < FIRST_CELLS ? engine->n_context : FIRST_CELLS;
    for (uint32_t i = 0; i < engine->n_slots; i++) (void)is_fill_cells(engine, engine->slots[i].sequence);
    return IS_OK;
}
