/* compose and gather on the device: the host's bits, and its bytes a second beside a plain copy of the same bytes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "cuda/cache.h"
#include "time.h"

#define BLOCK 16

/* How the cache lies: vLLM's own on GPUs, [heads][tokens][K, V]; or [tokens][heads], K and V apart. */
typedef enum block_order { HEADS_FIRST, TOKENS_FIRST } block_order;

typedef struct model {
    const char *name;
    uint32_t layers, heads, k_dim, v_dim, rope_offset, rope_width;
    is_rope_style style;
} model;

static const model models[] = {
    {"Llama-3.1-8B", 32, 8, 128, 128, 0, 128, IS_ROPE_HALF},
    {"Qwen2.5-7B", 28, 4, 128, 128, 0, 128, IS_ROPE_HALF},
    {"DeepSeek-V2-Lite, latent rows", 27, 1, 576, 0, 512, 64, IS_ROPE_PAIR},
};

typedef struct setup {
    const model *model;
    block_order order;
    is_layout layout;
    uint32_t n_chunks, tokens, n_blocks; /* of one prompt; blocks of the cache */
    size_t layer_bytes, chunk_bytes;
    is_paged_order paged;
    uint8_t *host[IS_MAX_LAYERS], *device[IS_MAX_LAYERS];
    void *chunks, *chunks_on_device, *copy;
    is_chunk *views;
    is_device_placed *placed;
    uint32_t *blocks;
    is_device_prompt prompts[64];
    uint32_t n_prompts;
    is_device_cache *cache;
    is_cuda_stream *stream;
    bool by_layer;
} setup;

static uint32_t chance(void)
{
    static uint32_t state = 2463534242u;
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state;
}

/* ------------------------------------------------------------ a cache and chunks */

/* The order of a block, as the engine's writer would show it. */
static is_status learn(setup *s, is_error *err)
{
    const model *m = s->model;
    size_t elements = (size_t)BLOCK * m->heads * (m->k_dim + m->v_dim);
    uint16_t *low = calloc(elements, 2), *high = calloc(elements, 2);
    uint32_t number = 1;
    for (uint32_t v = 0; v < 2; v++)
        for (uint32_t t = 0; t < BLOCK; t++)
            for (uint32_t h = 0; h < m->heads; h++)
                for (uint32_t d = 0; d < (v ? m->v_dim : m->k_dim); d++, number++) {
                    size_t at = s->order == HEADS_FIRST
                                    ? ((size_t)h * BLOCK + t) * (m->k_dim + m->v_dim) + (v ? m->k_dim : 0) + d
                                    : (v ? (size_t)BLOCK * m->heads * m->k_dim : 0) +
                                          ((size_t)t * m->heads + h) * (v ? m->v_dim : m->k_dim) + d;
                    low[at] = (uint16_t)number;
                    high[at] = (uint16_t)(number >> 16);
                }
    is_status status = is_paged_learn(low, high, elements, BLOCK, m->heads, m->k_dim, m->v_dim, &s->paged, err);
    free(low);
    free(high);
    s->layer_bytes = elements * 2 * s->n_blocks;
    return status;
}

static is_status describe(setup *s, is_error *err)
{
    const model *m = s->model;
    const is_rope_params rope = {.style = m->style, .offset = m->rope_offset, .width = m->rope_width, .base = 500000};
    uint32_t layers = bench_quick ? 2 : m->layers;
    s->layout = (is_layout){.dtype = IS_BF16, .n_layers = layers, .n_ropes = 1};
    for (uint32_t l = 0; l < layers; l++)
        s->layout.layers[l] = (is_layer){.heads = m->heads, .k_dim = m->k_dim, .v_dim = m->v_dim, .rope = 0};
    is_status status = is_rope_init(&s->layout.ropes[0], &rope, err);
    return status == IS_OK ? learn(s, err) : status;
}

static is_status fill_chunk(setup *s, uint32_t i, uint32_t n, is_error *err)
{
    uint8_t *bytes = (uint8_t *)s->chunks + i * s->chunk_bytes;
    int32_t *tokens = calloc(n, sizeof *tokens);
    const is_chunk_info info = {.recipe = "isolated", .p_ref = i == 0 ? 0 : 1600, .n_tokens = n};
    is_status status = is_chunk_begin(bytes, is_chunk_bytes(&s->layout, n), &s->layout, &info, tokens, err);
    free(tokens);
    if (status != IS_OK) return status;
    for (uint32_t l = 0; l < s->layout.n_layers; l++) {
        uint8_t *part[2];
        uint32_t first, rows;
        is_chunk_rows_mut(bytes, l, &part[0], &part[1], &first, &rows);
        size_t sizes[2] = {rows * is_layer_k_bytes(&s->layout, l), rows * is_layer_v_bytes(&s->layout, l)};
        for (int v = 0; v < 2; v++)
            for (size_t at = 0; at + 2 <= sizes[v]; at += 2) {
                uint16_t value = is_f32_to_bf16((float)(int32_t)chance() * 0x1p-30f);
                memcpy(part[v] + at, &value, 2);
            }
    }
    is_chunk_seal(bytes);
    return is_chunk_open(&s->views[i], bytes, is_chunk_bytes(&s->layout, n), IS_CHUNK_CHECK_HEADER, err);
}

static is_status make_chunks(setup *s, is_error *err)
{
    is_status status = IS_OK;
    int32_t at = 0;
    s->chunk_bytes = is_align_up(is_chunk_bytes(&s->layout, 48), 256);
    status = is_cuda_host_malloc(s->n_chunks * s->chunk_bytes, &s->chunks, err);
    if (status == IS_OK) status = is_cuda_malloc(s->n_chunks * s->chunk_bytes, &s->chunks_on_device, err);
    s->views = calloc(s->n_chunks, sizeof *s->views);
    s->placed = calloc(s->n_chunks, sizeof *s->placed);
    for (uint32_t i = 0; status == IS_OK && i < s->n_chunks; i++) {
        uint32_t n = 30 + chance() % 19; /* facts of LoCoMo */
        status = fill_chunk(s, i, n, err);
        s->placed[i] = (is_device_placed){&s->views[i], (uint8_t *)s->chunks_on_device + i * s->chunk_bytes, at};
        at += (int32_t)n;
    }
    s->tokens = (uint32_t)at;
    return status == IS_OK
               ? is_cuda_to_device(s->chunks_on_device, s->chunks, s->n_chunks * s->chunk_bytes, s->stream, err)
               : status;
}

static is_status make_cache(setup *s, is_error *err)
{
    is_device_layer layers[IS_MAX_LAYERS];
    is_status status = IS_OK;
    for (uint32_t l = 0; status == IS_OK && l < s->layout.n_layers; l++) {
        void *memory;
        status = is_cuda_malloc(s->layer_bytes, &memory, err);
        if (status != IS_OK) return status;
        s->device[l] = memory;
        s->host[l] = calloc(1, s->layer_bytes);
        layers[l] = is_device_layer_of(&s->paged, memory, s->layer_bytes / s->n_blocks);
        status = is_cuda_zero(memory, s->layer_bytes, s->stream, err);
    }
    if (status == IS_OK)
        status = is_device_cache_new(&s->layout, layers, IS_CELL_BF16, BLOCK, s->n_blocks, &s->cache, err);
    return status;
}

/* Prompts of the same chunks, each in blocks of its own, that lie anywhere. */
static void make_prompts(setup *s, uint32_t n)
{
    uint32_t each = (s->tokens + BLOCK - 1) / BLOCK;
    s->n_prompts = n;
    s->blocks = calloc(s->n_blocks, sizeof *s->blocks);
    for (uint32_t i = 0; i < s->n_blocks; i++) s->blocks[i] = i;
    for (uint32_t i = s->n_blocks - 1; i > 0; i--) {
        uint32_t j = chance() % (i + 1), was = s->blocks[i];
        s->blocks[i] = s->blocks[j];
        s->blocks[j] = was;
    }
    for (uint32_t p = 0; p < n; p++)
        s->prompts[p] = (is_device_prompt){s->placed, s->n_chunks, s->blocks + p * each, each, 0, s->tokens};
}

static is_status open_setup(setup *s, const model *m, block_order order, uint32_t n_prompts, is_error *err)
{
    uint32_t chunks = bench_quick ? 4 : 51; /* a header and 50 facts */
    *s = (setup){.model = m, .order = order, .n_chunks = chunks, .n_blocks = n_prompts * (chunks * 48 / BLOCK + 1)};
    is_status status = is_cuda_stream_new(&s->stream, err);
    if (status == IS_OK) status = describe(s, err);
    if (status == IS_OK) status = make_chunks(s, err);
    if (status == IS_OK) status = make_cache(s, err);
    if (status == IS_OK) status = is_cuda_stream_wait(NULL, err);
    if (status == IS_OK) make_prompts(s, n_prompts);
    return status;
}

static void close_setup(setup *s)
{
    is_device_cache_free(s->cache);
    for (uint32_t l = 0; l < IS_MAX_LAYERS; l++) {
        free(s->host[l]);
        is_cuda_free(s->device[l]);
    }
    is_cuda_host_free(s->chunks);
    is_cuda_free(s->chunks_on_device);
    is_cuda_free(s->copy);
    is_cuda_stream_free(s->stream);
    is_paged_order_free(&s->paged);
    free(s->views);
    free(s->placed);
    free(s->blocks);
}

/* ------------------------------------------------------------ exactness */

static is_status compose(void *arg, is_error *err)
{
    setup *s = arg;
    is_status status = is_device_begin(s->cache, s->prompts, s->n_prompts, s->stream, err);
    if (!s->by_layer && status == IS_OK) status = is_device_compose(s->cache, 0, s->layout.n_layers, s->stream, err);
    for (uint32_t l = 0; s->by_layer && status == IS_OK && l < s->layout.n_layers; l++)
        status = is_device_compose(s->cache, l, l + 1, s->stream, err);
    return status;
}

/* Every byte of every layer, with the first prompt composed on the host. */
static is_status compare(setup *s, size_t *wrong, is_error *err)
{
    is_paged_cache caches[IS_MAX_LAYERS];
    is_placed *placed = calloc(s->n_chunks, sizeof *placed);
    void *back = NULL;
    for (uint32_t i = 0; i < s->n_chunks; i++) placed[i] = (is_placed){&s->views[i], s->placed[i].position};
    for (uint32_t l = 0; l < s->layout.n_layers; l++)
        caches[l] = (is_paged_cache){s->host[l], s->layer_bytes / s->n_blocks, s->n_blocks, &s->paged};
    is_status status = is_paged_write(&s->layout, caches, placed, s->n_chunks, s->prompts[0].blocks,
                                      s->prompts[0].n_blocks, 0, s->tokens, 0, s->layout.n_layers, err);
    if (status == IS_OK) status = compose(s, err);
    if (status == IS_OK) status = is_cuda_host_malloc(s->layer_bytes, &back, err);
    *wrong = 0;
    for (uint32_t l = 0; status == IS_OK && l < s->layout.n_layers; l++) {
        status = is_cuda_to_host(back, s->device[l], s->layer_bytes, s->stream, err);
        if (status == IS_OK) status = is_cuda_stream_wait(s->stream, err);
        for (size_t i = 0; status == IS_OK && i < s->layer_bytes; i++) *wrong += ((uint8_t *)back)[i] != s->host[l][i];
    }
    is_cuda_host_free(back);
    free(placed);
    return status;
}

/* The cache back into chunks: as it was put in where nothing was moved, which is the first chunk. */
static is_status compare_gather(setup *s, size_t *wrong, is_error *err)
{
    void *back = NULL;
    size_t size = s->views[0].size;
    size_t front = (size_t)(is_chunk_layer(&s->views[0], 0).k - s->views[0].bytes);
    is_status status = is_cuda_zero((uint8_t *)s->chunks_on_device + front, size - front, s->stream, err);
    if (status == IS_OK)
        status = is_device_gather(s->cache, s->chunks, s->chunks_on_device, s->prompts[0].blocks,
                                  s->prompts[0].n_blocks, 0, s->stream, err);
    if (status == IS_OK) status = is_cuda_host_malloc(size, &back, err);
    if (status == IS_OK) status = is_cuda_to_host(back, s->chunks_on_device, size, s->stream, err);
    if (status == IS_OK) status = is_cuda_stream_wait(s->stream, err);
    *wrong = 0;
    for (size_t i = 0; status == IS_OK && i < size; i++) *wrong += ((uint8_t *)back)[i] != ((uint8_t *)s->chunks)[i];
    is_cuda_host_free(back);
    return status;
}

/* ------------------------------------------------------------ speed */

static is_status copy_all(void *arg, is_error *err)
{
    setup *s = arg;
    size_t bytes = (size_t)s->n_prompts * s->tokens * is_layout_token_bytes(&s->layout);
    size_t half = bytes / 2; /* the same memory is both source and target, which a copy must not have */
    is_status status = bench_copy((uint8_t *)s->copy + bytes, s->copy, half, s->stream, err);
    return status == IS_OK
               ? bench_copy((uint8_t *)s->copy + bytes + half, (uint8_t *)s->copy + half, bytes - half, s->stream, err)
               : status;
}

static is_status launch_only(void *arg, is_error *err)
{
    setup *s = arg;
    return is_device_compose(s->cache, 0, s->layout.n_layers, s->stream, err);
}

static is_status promote(void *arg, is_error *err)
{
    setup *s = arg;
    return is_cuda_to_device(s->chunks_on_device, s->chunks, s->n_chunks * s->chunk_bytes, s->stream, err);
}

static is_status measure(setup *s, is_error *err)
{
    double once, layers, kernel, copy, promotion;
    int rounds = bench_quick ? 1 : 9, repeat = bench_quick ? 1 : 5;
    size_t bytes = (size_t)s->n_prompts * s->tokens * is_layout_token_bytes(&s->layout);
    is_status status = is_cuda_malloc(2 * bytes, &s->copy, err);
    if (status == IS_OK) status = bench_time(compose, s, rounds, repeat, s->stream, &once, err);
    if (status == IS_OK) status = bench_time(launch_only, s, rounds, repeat, s->stream, &kernel, err);
    s->by_layer = true;
    if (status == IS_OK) status = bench_time(compose, s, rounds, repeat, s->stream, &layers, err);
    s->by_layer = false;
    if (status == IS_OK) status = bench_time(copy_all, s, rounds, repeat, s->stream, &copy, err);
    if (status == IS_OK) status = bench_time(promote, s, rounds, 1, s->stream, &promotion, err);
    if (status != IS_OK) return status;
    printf("\"prompts\": %u, \"tokens\": %u, \"bytes\": %zu, \"kernel_ms\": %.4f, \"kernel_gb_s\": %.1f, "
           "\"copy_ms\": %.4f, \"copy_gb_s\": %.1f, \"kernel_to_copy\": %.3f, \"with_arguments_ms\": %.4f, "
           "\"by_layer_ms\": %.4f, \"promotion_ms\": %.3f",
           s->n_prompts, s->n_prompts * s->tokens, bytes, kernel, 2e-6 * (double)bytes / kernel, copy,
           2e-6 * (double)bytes / copy, copy / kernel, once, layers, promotion);
    return IS_OK;
}

static is_status bench_one(const model *m, block_order order, uint32_t n_prompts, is_error *err)
{
    setup s;
    size_t wrong = 0, wrong_back = 0;
    is_status status = open_setup(&s, m, order, n_prompts, err);
    printf("{\"model\": \"%s\", \"order\": \"%s\", ", m->name,
           order == HEADS_FIRST ? "heads, tokens, K and V" : "K, V, tokens, heads");
    if (status == IS_OK && n_prompts == 1) {
        status = compare(&s, &wrong, err);
        if (status == IS_OK) status = compare_gather(&s, &wrong_back, err);
        printf("\"wrong_bytes\": %zu, \"wrong_bytes_gathered\": %zu, ", wrong, wrong_back);
    }
    if (status == IS_OK) status = measure(&s, err);
    printf("}");
    close_setup(&s);
    if (status == IS_OK && wrong + wrong_back > 0)
        status = is_fail(err, IS_ECORRUPT, "%s: the device's bytes are not the host's", m->name);
    return status;
}

is_status bench_compose(is_error *err)
{
    is_status status = IS_OK;
    const char *comma = "";
    printf("\"compose\": [");
    for (size_t i = 0; i < sizeof models / sizeof *models && status == IS_OK; i++)
        for (int order = 0; order < 2 && status == IS_OK; order++) {
            printf("%s\n  ", comma);
            status = bench_one(&models[i], (block_order)order, 1, err);
            comma = ",";
        }
    if (status == IS_OK) {
        printf(",\n  ");
        status = bench_one(&models[0], HEADS_FIRST, bench_quick ? 2 : 16, err); /* a step of a busy server */
    }
    printf("]");
    return status;
}
