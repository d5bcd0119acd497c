/*
 * compose and gather as the device runs them, on a device that is none: for every order of a cache, type and rotation
 * each element is where the engine would have put it, with the bits that the host's rotation gives, and all else stays
 * as it was.
 */
#include "cuda/cache.h"
#include "cuda/fake.h"
#include "cuda/kernels.h"
#include "kv_reference.h"

#define BLOCK_TOKENS 16
#define N_BLOCKS     24
#define MAX_CHUNKS   8
#define GUARD        0x5a

/* How a layer's cache lies: K and V each on their own; one behind the other in a block; by head; by chance. */
typedef enum order_kind { APART, BLOCKWISE, BY_HEAD, BY_CHANCE, KINDS } order_kind;

static const is_layer some_layers[] = {
    {.heads = 3, .k_dim = 32, .v_dim = 32, .rope = 0},
    {.heads = 1, .k_dim = 48, .v_dim = 0, .rope = 1}, /* latent rows */
    {.heads = 2, .k_dim = 10, .v_dim = 6, .rope = IS_LAYER_NO_ROPE},
    {.heads = 2, .k_dim = 64, .v_dim = 64, .rope = 2}, /* elements on both sides of the slice */
    {.heads = 2, .k_dim = 24, .v_dim = 8, .rope = 3},  /* halves that are no whole runs */
    {.heads = 5, .k_dim = 20, .v_dim = 24, .rope = 4},
    {.heads = 40, .k_dim = 64, .v_dim = 128, .rope = 5}, /* more columns than threads */
};
#define N_LAYERS (sizeof some_layers / sizeof *some_layers)

typedef struct bench {
    order_kind kind;
    is_cell cell;
    is_layout layout;
    uint32_t *chance[N_LAYERS][2]; /* [block_tokens * dim] */
    uint8_t *want[N_LAYERS];       /* what the cache must hold */
    uint8_t *pinned, *device[N_LAYERS];
    size_t size[N_LAYERS];
    is_device_layer layers[N_LAYERS];
    is_device_cache *cache;
    is_cuda_stream *stream;
    is_chunk chunks[MAX_CHUNKS];
    void *bytes[MAX_CHUNKS]; /* pinned */
    void *on_device[MAX_CHUNKS];
    size_t n;
    uint32_t blocks[N_BLOCKS];
} bench;

static uint64_t launches;

static void count_compose(const is_move *move)
{
    launches++;
    run_compose(move);
}

static void expect_ok(is_status status, const is_error *err)
{
    if (status != IS_OK) fail_msg("%s", err->text);
}

/* ------------------------------------------------------------ a cache */

static size_t cell_bytes(const bench *b)
{
    return b->cell == IS_CELL_E4M3 ? 1 : 2;
}

static uint32_t dim_of(const is_layer *o, int v)
{
    return v ? o->v_dim : o->k_dim;
}

/* Elements of a block of K, of V, and of the whole. */
static size_t part_elements(const is_layer *o, int v)
{
    return (size_t)BLOCK_TOKENS * o->heads * dim_of(o, v);
}

static size_t block_elements(const bench *b, uint32_t l, int v)
{
    const is_layer *o = &b->layout.layers[l];
    size_t all = part_elements(o, 0) + part_elements(o, 1);
    return b->kind == APART ? part_elements(o, v) : all + 16; /* something behind it that is nobody's */
}

/* Byte of the layer's memory where block 0 of K, or of V, begins. */
static size_t base_of(const bench *b, uint32_t l, int v)
{
    return b->kind == APART && v ? N_BLOCKS * block_elements(b, l, 0) * cell_bytes(b) : 0;
}

static size_t place(const bench *b, uint32_t l, int v, uint32_t t, uint32_t h, uint32_t d)
{
    const is_layer *o = &b->layout.layers[l];
    size_t dim = dim_of(o, v), before = v ? part_elements(o, 0) : 0;
    size_t a_head = (size_t)BLOCK_TOKENS * (o->k_dim + o->v_dim);
    switch (b->kind) {
    case APART: return (t * o->heads + h) * dim + d;
    case BLOCKWISE: return before + (t * o->heads + h) * dim + d;
    case BY_HEAD: return h * a_head + (v ? (size_t)BLOCK_TOKENS * o->k_dim : 0) + t * dim + d;
    default: return before + h * BLOCK_TOKENS * dim + b->chance[l][v][t * dim + d];
    }
}

static uint8_t *element(const bench *b, uint8_t *memory, uint32_t l, int v, uint32_t token, uint32_t h, uint32_t d)
{
    size_t block = b->blocks[token / BLOCK_TOKENS] * block_elements(b, l, v);
    return memory + base_of(b, l, v) + (block + place(b, l, v, token % BLOCK_TOKENS, h, d)) * cell_bytes(b);
}

static void shuffle(uint32_t *values, size_t n)
{
    for (size_t i = 0; i < n; i++) values[i] = (uint32_t)i;
    for (size_t i = n - 1; i > 0 && n > 0; i--) {
        size_t j = random32() % (i + 1);
        uint32_t value = values[i];
        values[i] = values[j];
        values[j] = value;
    }
}

static is_move_part describe(const bench *b, uint32_t l, int v)
{
    const is_layer *o = &b->layout.layers[l];
    bool chance = b->kind == BY_CHANCE;
    is_move_part part = {.base = b->device[l] + base_of(b, l, v),
                         .block_stride = block_elements(b, l, v) * cell_bytes(b),
                         .scale = v ? 0.5f : 0.0371f};
    size_t first = place(b, l, v, 0, 0, 0);
    part.head_stride = o->heads > 1 ? place(b, l, v, 0, 1, 0) - first : 0;
    if (chance) {
        uint32_t *at = malloc((size_t)BLOCK_TOKENS * dim_of(o, v) * sizeof *at);
        for (uint32_t t = 0; t < BLOCK_TOKENS; t++)
            for (uint32_t d = 0; d < dim_of(o, v); d++) at[t * dim_of(o, v) + d] = (uint32_t)place(b, l, v, t, 0, d);
        part.at = at;
    } else {
        part.first = first;
        part.row_stride = place(b, l, v, 1, 0, 0) - first;
    }
    return part;
}

static void open_layer(bench *b, uint32_t l)
{
    const is_layer *o = &b->layout.layers[l];
    is_error err = {0};
    b->size[l] = N_BLOCKS * block_elements(b, l, 0) * cell_bytes(b);
    if (b->kind == APART) b->size[l] += N_BLOCKS * block_elements(b, l, 1) * cell_bytes(b);
    for (int v = 0; v < 2; v++) {
        size_t n = (size_t)BLOCK_TOKENS * dim_of(o, v);
        b->chance[l][v] = malloc(n * sizeof **b->chance[l] + 1);
        shuffle(b->chance[l][v], n);
    }
    void *device;
    expect_ok(is_cuda_malloc(b->size[l], &device, &err), &err);
    b->device[l] = device;
    b->want[l] = malloc(b->size[l]);
    memset(b->want[l], GUARD, b->size[l]);
    b->layers[l].k = describe(b, l, 0);
    if (o->v_dim > 0) b->layers[l].v = describe(b, l, 1);
}

/* The caches as they are wanted, onto the device. */
static void send_caches(bench *b)
{
    is_error err = {0};
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        memcpy(b->pinned, b->want[l], b->size[l]);
        expect_ok(is_cuda_to_device(b->device[l], b->pinned, b->size[l], b->stream, &err), &err);
        expect_ok(is_cuda_stream_wait(b->stream, &err), &err);
    }
}

static bench *open_bench(order_kind kind, is_dtype dtype, is_cell cell)
{
    bench *b = calloc(1, sizeof *b);
    is_error err = {0};
    size_t most = 0;
    fake_begin(random32());
    fake_run_compose = count_compose;
    fake_run_gather = run_gather;
    expect_ok(is_cuda_use(0, &err), &err);
    b->kind = kind;
    b->cell = cell;
    b->layout = (is_layout){.dtype = dtype, .n_layers = N_LAYERS, .n_ropes = 6};
    memcpy(b->layout.layers, some_layers, sizeof some_layers);
    b->layout.ropes[0] = rope_of(IS_ROPE_HALF, 0, 32);
    b->layout.ropes[1] = rope_of(IS_ROPE_PAIR, 32, 16);
    b->layout.ropes[2] = rope_of(IS_ROPE_HALF, 16, 32);
    b->layout.ropes[3] = rope_of(IS_ROPE_HALF, 8, 8);
    b->layout.ropes[4] = rope_of(IS_ROPE_PAIR, 2, 6);
    b->layout.ropes[5] = rope_of(IS_ROPE_PAIR, 0, 64);
    for (uint32_t l = 0; l < N_LAYERS; l++) open_layer(b, l);
    for (uint32_t l = 0; l < N_LAYERS; l++) most = b->size[l] > most ? b->size[l] : most;
    void *pinned;
    expect_ok(is_cuda_host_malloc(most, &pinned, &err), &err);
    b->pinned = pinned;
    expect_ok(is_cuda_stream_new(&b->stream, &err), &err);
    expect_ok(is_device_cache_new(&b->layout, b->layers, cell, BLOCK_TOKENS, N_BLOCKS, &b->cache, &err), &err);
    send_caches(b);
    shuffle(b->blocks, N_BLOCKS);
    return b;
}

static void close_bench(bench *b)
{
    is_device_cache_free(b->cache);
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        is_cuda_free(b->device[l]);
        free(b->want[l]);
        free((void *)(uintptr_t)b->layers[l].k.at);
        free((void *)(uintptr_t)b->layers[l].v.at);
        for (int v = 0; v < 2; v++) free(b->chance[l][v]);
    }
    for (size_t i = 0; i < b->n; i++) {
        is_cuda_host_free(b->bytes[i]);
        is_cuda_free(b->on_device[i]);
    }
    is_cuda_host_free(b->pinned);
    is_cuda_stream_free(b->stream);
    free(b);
    assert_true(fake_end());
}

/* ------------------------------------------------------------ chunks */

static void fill_layer(const bench *b, void *bytes, uint32_t l)
{
    const is_layer *o = &b->layout.layers[l];
    uint8_t *k, *v;
    uint32_t first, n;
    is_chunk_rows_mut(bytes, l, &k, &v, &first, &n);
    for (size_t i = 0; i < (size_t)n * o->heads * o->k_dim; i++) put(b->layout.dtype, k, i, random_value(8));
    for (size_t i = 0; i < (size_t)n * o->heads * o->v_dim; i++)
        if (b->cell == IS_CELL_E4M3)
            put(b->layout.dtype, v, i, random_value(random32() % 8 == 0 ? 4e3 : 2)); /* also more than 448 times 0.5 */
        else
            put_any_finite(b->layout.dtype, v, i);
}

static void add_chunk(bench *b, uint32_t n_tokens, int32_t p_ref)
{
    is_error err = {0};
    size_t size = is_chunk_bytes(&b->layout, n_tokens);
    int32_t *tokens = calloc(n_tokens, sizeof *tokens);
    is_chunk_info info = {.recipe = "isolated", .p_ref = p_ref, .n_tokens = n_tokens};
    expect_ok(is_cuda_host_malloc(size, &b->bytes[b->n], &err), &err);
    expect_ok(is_cuda_malloc(size, &b->on_device[b->n], &err), &err);
    expect_ok(is_chunk_begin(b->bytes[b->n], size, &b->layout, &info, tokens, &err), &err);
    free(tokens);
    for (uint32_t l = 0; l < N_LAYERS; l++) fill_layer(b, b->bytes[b->n], l);
    is_chunk_seal(b->bytes[b->n]);
    expect_ok(is_chunk_open(&b->chunks[b->n], b->bytes[b->n], size, IS_CHUNK_CHECK_PAYLOAD, &err), &err);
    expect_ok(is_cuda_to_device(b->on_device[b->n], b->bytes[b->n], size, b->stream, &err), &err);
    b->n++;
}

/* ------------------------------------------------------------ what is wanted */

/* The code of 8 bits whose meaning is nearest, the even one of two; larger than all: the largest. */
static uint8_t nearest_e4m3(double value)
{
    int best = 0;
    double least = INFINITY;
    for (int code = 0; code < 0x7f; code++) {
        int exponent = code >> 3, mantissa = code & 7;
        double means = exponent == 0 ? ldexp(mantissa, -9) : ldexp(8 + mantissa, exponent - 10);
        double off = fabs(fabs(value) - means);
        if (off < least || (off == least && code % 2 == 0)) {
            least = off;
            best = code;
        }
    }
    return (uint8_t)(best | (signbit(value) ? 0x80 : 0));
}

/* A row of K or V of one head, rotated in f32 where the type of the cache asks for that. */
static void want_head(bench *b, uint32_t l, int v, const uint8_t *from, int64_t shift, uint32_t token, uint32_t h)
{
    const is_layer *o = &b->layout.layers[l];
    uint32_t dim = dim_of(o, v);
    float values[256];
    is_rotation rotation = {.identity = true};
    bool turns = !v && o->rope != IS_LAYER_NO_ROPE;
    if (turns) is_rotation_init(&rotation, &b->layout.ropes[o->rope], shift);
    if (b->cell == IS_CELL_E4M3) {
        for (uint32_t d = 0; d < dim; d++) values[d] = (float)get(b->layout.dtype, from, d);
        if (turns)
            is_rotate_rows(IS_ISA_C, IS_F32, &b->layout.ropes[o->rope], &rotation, 1, dim, (uint8_t *)values, 0,
                           (uint8_t *)values, 0, 1);
        float scale = v ? b->layers[l].v.scale : b->layers[l].k.scale;
        for (uint32_t d = 0; d < dim; d++)
            *element(b, b->want[l], l, v, token, h, d) = nearest_e4m3((double)(values[d] / scale));
        return;
    }
    memcpy(values, from, (size_t)dim * 2);
    if (turns)
        is_rotate_rows(IS_ISA_C, b->layout.dtype, &b->layout.ropes[o->rope], &rotation, 1, dim, (uint8_t *)values, 0,
                       (uint8_t *)values, 0, 1);
    for (uint32_t d = 0; d < dim; d++)
        memcpy(element(b, b->want[l], l, v, token, h, d), (uint8_t *)values + 2 * (size_t)d, 2);
}

static void want_token(bench *b, const is_device_placed *placed, uint32_t token)
{
    int64_t shift = (int64_t)placed->position - placed->chunk->info.p_ref;
    uint32_t row = token - (uint32_t)placed->position;
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        const is_layer *o = &b->layout.layers[l];
        is_chunk_rows rows = is_chunk_layer(placed->chunk, l);
        for (uint32_t h = 0; h < o->heads; h++) {
            want_head(b, l, 0, rows.k + row * rows.k_row + (size_t)h * o->k_dim * 2, shift, token, h);
            if (o->v_dim > 0) want_head(b, l, 1, rows.v + row * rows.v_row + (size_t)h * o->v_dim * 2, 0, token, h);
        }
    }
}

static void check_caches(bench *b)
{
    is_error err = {0};
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        expect_ok(is_cuda_to_host(b->pinned, b->device[l], b->size[l], b->stream, &err), &err);
        expect_ok(is_cuda_stream_wait(b->stream, &err), &err);
        for (size_t i = 0; i < b->size[l]; i++)
            if (b->pinned[i] != b->want[l][i])
                fail_msg("order %d, cell %d, layer %u: byte %zu is %02x and not %02x", b->kind, b->cell, l, i,
                         b->pinned[i], b->want[l][i]);
    }
}

/* ------------------------------------------------------------ the tests */

/* One prompt of these chunks, of which tokens [begin, end) are wanted. */
static is_device_prompt prompt_of(bench *b, is_device_placed *placed, const size_t *chunks, size_t n, uint32_t begin,
                                  uint32_t end)
{
    int32_t at = 0;
    for (size_t i = 0; i < n; i++) {
        placed[i] = (is_device_placed){&b->chunks[chunks[i]], b->on_device[chunks[i]], at};
        at += (int32_t)b->chunks[chunks[i]].info.n_tokens;
    }
    return (is_device_prompt){placed, n, b->blocks, N_BLOCKS / 2, begin, end};
}

static void want_prompt(bench *b, const is_device_prompt *p)
{
    for (size_t i = 0; i < p->n; i++) {
        uint32_t first = (uint32_t)p->chunks[i].position, last = first + p->chunks[i].chunk->info.n_tokens;
        for (uint32_t t = first > p->begin ? first : p->begin; t < last && t < p->end; t++)
            want_token(b, &p->chunks[i], t);
    }
}

static void add_some(bench *b)
{
    add_chunk(b, 37, 0); /* a header where it was made: a copy */
    add_chunk(b, 1, 900);
    add_chunk(b, 80, 41);
    add_chunk(b, 16, 134); /* where it is put */
    add_chunk(b, 5, 4000);
}

static void compose_one(bench *b, const is_device_prompt *p)
{
    is_error err = {0};
    expect_ok(is_device_begin(b->cache, p, 1, b->stream, &err), &err);
    expect_ok(is_device_compose(b->cache, 0, 3, b->stream, &err), &err);
    for (uint32_t l = 3; l < N_LAYERS; l++) expect_ok(is_device_compose(b->cache, l, l + 1, b->stream, &err), &err);
}

static void compose_in_every_order_and_type(void **state)
{
    (void)state;
    static const struct {
        is_dtype dtype;
        is_cell cell;
    } types[] = {{IS_F16, IS_CELL_F16}, {IS_BF16, IS_CELL_BF16}, {IS_F16, IS_CELL_E4M3}, {IS_BF16, IS_CELL_E4M3}};
    static const uint32_t cuts[][2] = {{0, 139}, {32, 112}, {50, 51}, {7, 7}, {38, 139}};
    static const size_t all[] = {0, 1, 2, 3, 4};
    for (int kind = 0; kind < KINDS; kind++)
        for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
            bench *b = open_bench((order_kind)kind, types[t].dtype, types[t].cell);
            is_device_placed placed[5];
            add_some(b);
            for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++) {
                is_device_prompt p = prompt_of(b, placed, all, 5, cuts[c][0], cuts[c][1]);
                compose_one(b, &p);
                want_prompt(b, &p);
                check_caches(b);
                shuffle(b->blocks, N_BLOCKS);
            }
            close_bench(b);
        }
}

/* Prompts of one batch have blocks of their own, and chunks in common at different places. */
static void a_batch_is_one_launch(void **state)
{
    (void)state;
    bench *b = open_bench(BY_HEAD, IS_BF16, IS_CELL_BF16);
    is_error err = {0};
    is_device_placed placed[2][3];
    static const size_t some[] = {0, 2, 4}, others[] = {0, 4, 2};
    add_some(b);
    is_device_prompt p[] = {prompt_of(b, placed[0], some, 3, 0, 122), prompt_of(b, placed[1], others, 3, 37, 122)};
    p[1].blocks = b->blocks + N_BLOCKS / 2;
    uint64_t before = launches;
    expect_ok(is_device_begin(b->cache, p, 2, b->stream, &err), &err);
    expect_ok(is_device_compose(b->cache, 0, N_LAYERS, b->stream, &err), &err);
    expect_ok(is_cuda_stream_wait(b->stream, &err), &err);
    assert_int_equal(launches - before, 1);
    want_prompt(b, &p[0]);
    uint32_t was[N_BLOCKS];
    memcpy(was, b->blocks, sizeof was);
    memcpy(b->blocks, was + N_BLOCKS / 2, sizeof was / 2);
    want_prompt(b, &p[1]);
    memcpy(b->blocks, was, sizeof was);
    check_caches(b);
    close_bench(b);
}

/* More launches than there are arguments, and none is waited for: what is underway is not written over. */
static void launches_in_a_row(void **state)
{
    (void)state;
    bench *b = open_bench(APART, IS_F16, IS_CELL_F16);
    is_device_placed placed[2];
    add_some(b);
    for (int i = 0; i < 11; i++) {
        const size_t two[] = {(size_t)i % 5, (size_t)(i + 2) % 5};
        uint32_t end = b->chunks[two[0]].info.n_tokens + b->chunks[two[1]].info.n_tokens;
        is_device_prompt p = prompt_of(b, placed, two, 2, 0, end);
        compose_one(b, &p);
        want_prompt(b, &p);
        shuffle(b->blocks, N_BLOCKS);
    }
    check_caches(b);
    close_bench(b);
}

/* The value that a code of 8 bits means times the scale, rounded to the chunk's type. */
static uint16_t meant(const bench *b, uint8_t code, float scale)
{
    int exponent = code >> 3 & 15, mantissa = code & 7;
    float value = (float)(exponent == 0 ? ldexp(mantissa, -9) : ldexp(8 + mantissa, exponent - 10)) * scale;
    if (code & 0x80) value = -value;
    return b->layout.dtype == IS_F16 ? is_f32_to_f16(value) : is_f32_to_bf16(value);
}

static void check_row(bench *b, uint32_t l, int v, const uint8_t *row, uint32_t token)
{
    const is_layer *o = &b->layout.layers[l];
    for (uint32_t h = 0; h < o->heads; h++)
        for (uint32_t d = 0; d < dim_of(o, v); d++) {
            const uint8_t *at = element(b, b->want[l], l, v, token, h, d);
            uint16_t want, is;
            memcpy(&is, row + 2 * ((size_t)h * dim_of(o, v) + d), 2);
            if (b->cell == IS_CELL_E4M3)
                want = meant(b, *at, v ? b->layers[l].v.scale : b->layers[l].k.scale);
            else
                memcpy(&want, at, 2);
            if (is != want) fail_msg("layer %u, %c, token %u, head %u, element %u", l, v ? 'V' : 'K', token, h, d);
        }
}

static void fill_caches(bench *b)
{
    for (uint32_t l = 0; l < N_LAYERS; l++)
        for (size_t i = 0; i < b->size[l] / cell_bytes(b); i++) {
            if (b->cell == IS_CELL_E4M3)
                b->want[l][i] = (uint8_t)(random32() % 0x7f | (random32() & 0x80));
            else
                put_any_finite(b->layout.dtype, b->want[l], i);
        }
    send_caches(b);
}

static void gather_from_every_order_and_type(void **state)
{
    (void)state;
    static const is_cell cells[] = {IS_CELL_BF16, IS_CELL_E4M3};
    const uint32_t begin = 21, n = 60;
    for (int kind = 0; kind < KINDS; kind++)
        for (int c = 0; c < 2; c++) {
            bench *b = open_bench((order_kind)kind, IS_BF16, cells[c]);
            is_error err = {0};
            fill_caches(b);
            add_chunk(b, n, (int32_t)begin); /* begun, with other rows */
            expect_ok(is_device_gather(b->cache, b->bytes[0], b->on_device[0], b->blocks, 6, begin, b->stream, &err),
                      &err);
            expect_ok(is_cuda_to_host(b->bytes[0], b->on_device[0], b->chunks[0].size, b->stream, &err), &err);
            expect_ok(is_cuda_stream_wait(b->stream, &err), &err);
            for (uint32_t l = 0; l < N_LAYERS; l++) {
                is_chunk_rows rows = is_chunk_layer(&b->chunks[0], l);
                for (uint32_t t = 0; t < n; t++) {
                    check_row(b, l, 0, rows.k + t * rows.k_row, begin + t);
                    if (rows.v != NULL) check_row(b, l, 1, rows.v + t * rows.v_row, begin + t);
                }
            }
            check_caches(b);
            close_bench(b);
        }
}

static is_status begin(bench *b, is_device_prompt p)
{
    return is_device_begin(b->cache, &p, 1, b->stream, NULL);
}

static void what_does_not_fit_is_refused(void **state)
{
    (void)state;
    bench *b = open_bench(BLOCKWISE, IS_BF16, IS_CELL_BF16);
    static const size_t all[] = {0, 1, 2, 3, 4};
    is_device_placed placed[5];
    is_device_cache *none;
    add_some(b);
    is_device_prompt p = prompt_of(b, placed, all, 5, 0, 139);
    p.end = 140; /* beyond the chunks */
    assert_int_equal(begin(b, p), IS_EINVAL);
    assert_int_equal(is_device_compose(b->cache, 0, 1, b->stream, NULL), IS_EINVAL); /* nothing was begun */
    p.end = 139;
    p.n_blocks = 8;
    assert_int_equal(begin(b, p), IS_EINVAL);
    p.n_blocks = 9;
    p.begin = 140;
    assert_int_equal(begin(b, p), IS_EINVAL);
    p.begin = 0;
    placed[2].position++; /* a gap */
    assert_int_equal(begin(b, p), IS_EINVAL);
    placed[2].position--;
    uint32_t was = b->blocks[3];
    b->blocks[3] = N_BLOCKS;
    assert_int_equal(begin(b, p), IS_EINVAL);
    assert_int_equal(is_device_gather(b->cache, b->bytes[0], b->on_device[0], b->blocks, 9, 40, b->stream, NULL),
                     IS_EINVAL);
    b->blocks[3] = was;
    assert_int_equal(is_device_gather(b->cache, b->bytes[0], b->on_device[0], b->blocks, 1, 0, b->stream, NULL),
                     IS_EINVAL);
    assert_int_equal(begin(b, p), IS_OK);
    assert_int_equal(is_device_compose(b->cache, 0, N_LAYERS + 1, b->stream, NULL), IS_EINVAL);
    check_caches(b);
    b->layout.layers[1].window = 5;
    assert_int_equal(is_device_cache_new(&b->layout, b->layers, b->cell, BLOCK_TOKENS, N_BLOCKS, &none, NULL),
                     IS_EINVAL);
    b->layout.layers[1].window = 0;
    assert_int_equal(is_device_cache_new(&b->layout, b->layers, IS_CELL_F16, BLOCK_TOKENS, N_BLOCKS, &none, NULL),
                     IS_EINVAL);
    b->layers[3].v.scale = 0;
    assert_int_equal(is_device_cache_new(&b->layout, b->layers, IS_CELL_E4M3, BLOCK_TOKENS, N_BLOCKS, &none, NULL),
                     IS_EINVAL);
    close_bench(b);
}

/* Every call fails once: it is said, and the next batch is right. */
static void calls_that_fail(void **state)
{
    (void)state;
    static const size_t two[] = {2, 4};
    bench *b = open_bench(APART, IS_F16, IS_CELL_F16);
    is_device_placed placed[2];
    add_some(b);
    is_device_prompt p = prompt_of(b, placed, two, 2, 0, 85);
    for (uint64_t nth = 1, failed = 1; failed; nth++) {
        is_error err = {0};
        fake_fail_at(nth);
        is_status status = is_device_begin(b->cache, &p, 1, b->stream, &err);
        if (status == IS_OK) status = is_device_compose(b->cache, 0, N_LAYERS, b->stream, &err);
        if (status == IS_OK)
            status = is_device_gather(b->cache, b->bytes[0], b->on_device[0], b->blocks, 9, 0, b->stream, &err);
        failed = status != IS_OK;
        if (failed) assert_true(err.text[0] != '\0');
        fake_fail_at(0);
    }
    p = prompt_of(b, placed, two, 2, 0, 85);
    compose_one(b, &p);
    want_prompt(b, &p);
    check_caches(b);
    close_bench(b);
}

/* A cache that cannot be opened leaves nothing behind. */
static void openings_that_fail(void **state)
{
    (void)state;
    bench *b = open_bench(BY_CHANCE, IS_F16, IS_CELL_F16);
    is_status status = IS_EENGINE;
    for (uint64_t nth = 1; status != IS_OK; nth++) {
        is_device_cache *cache = NULL;
        is_error err = {0};
        fake_fail_at(nth);
        status = is_device_cache_new(&b->layout, b->layers, b->cell, BLOCK_TOKENS, N_BLOCKS, &cache, &err);
        fake_fail_at(0);
        if (status != IS_OK) assert_null(cache);
        is_device_cache_free(cache);
    }
    close_bench(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(compose_in_every_order_and_type),
        cmocka_unit_test(a_batch_is_one_launch),
        cmocka_unit_test(launches_in_a_row),
        cmocka_unit_test(gather_from_every_order_and_type),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(calls_that_fail),
        cmocka_unit_test(openings_that_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
