/*
 * Paged caches: orders are learnt from what a writer leaves, and every element of rows that go in and out is where that
 * writer would have put it; all else stays as it was.
 */
#include "kv/paged.h"
#include "kv_reference.h"

#define BLOCK_TOKENS 16
#define N_BLOCKS     40
#define N_LAYERS     3
#define MAX_CHUNKS   16
#define GUARD        0x5a5a

typedef enum order_kind { TOKENS_FIRST, HEADS_FIRST, K_TRANSPOSED, BY_CHANCE, KINDS } order_kind;

typedef struct bench {
    order_kind kind;
    is_layout layout;
    is_paged_order orders[N_LAYERS];
    is_paged_cache caches[N_LAYERS];
    uint32_t *chance[N_LAYERS]; /* BY_CHANCE: [block_tokens * (k_dim + v_dim)], a permutation of a head's elements */
    void *bytes[MAX_CHUNKS];
    is_chunk chunks[MAX_CHUNKS];
    is_placed placed[MAX_CHUNKS];
    size_t n;
    uint32_t total;
    uint32_t blocks[N_BLOCKS];
} bench;

static size_t head_elements(const is_layer *o)
{
    return (size_t)BLOCK_TOKENS * (o->k_dim + o->v_dim);
}

/* Of a block, with something behind its elements that belongs to nobody. */
static size_t block_elements(const is_layer *o)
{
    return o->heads * head_elements(o) + 24;
}

/* Where the engine of this kind keeps an element, counted from the block's begin. */
static size_t place(const bench *b, uint32_t l, bool v, uint32_t t, uint32_t h, uint32_t d)
{
    const is_layer *o = &b->layout.layers[l];
    size_t k = o->k_dim, w = o->v_dim, bt = BLOCK_TOKENS;
    switch (b->kind) {
    case TOKENS_FIRST: return v ? bt * o->heads * k + (t * o->heads + h) * w + d : (t * o->heads + h) * k + d;
    case HEADS_FIRST: return h * head_elements(o) + (v ? bt * k + t * w + d : t * k + d);
    case K_TRANSPOSED: return h * head_elements(o) + (v ? bt * k + t * w + d : d * bt + t);
    default: return h * head_elements(o) + b->chance[l][v ? bt * k + t * w + d : t * k + d];
    }
}

static void learn(bench *b, uint32_t l)
{
    const is_layer *o = &b->layout.layers[l];
    size_t n = block_elements(o);
    uint16_t *low = calloc(n, 2), *high = calloc(n, 2);
    uint32_t number = 1;
    for (int v = 0; v < 2; v++)
        for (uint32_t t = 0; t < BLOCK_TOKENS; t++)
            for (uint32_t h = 0; h < o->heads; h++)
                for (uint32_t d = 0; d < (v ? o->v_dim : o->k_dim); d++, number++) {
                    low[place(b, l, v, t, h, d)] = (uint16_t)number;
                    high[place(b, l, v, t, h, d)] = (uint16_t)(number >> 16);
                }
    is_error err = {0};
    if (is_paged_learn(low, high, n, BLOCK_TOKENS, o->heads, o->k_dim, o->v_dim, &b->orders[l], &err) != IS_OK)
        fail_msg("%s", err.text);
    /* A copy of one element over another is noticed, and so is one that is missing. */
    is_paged_order wrong;
    uint16_t was = low[place(b, l, false, 3, 0, 1)];
    low[place(b, l, false, 3, 0, 1)] = low[place(b, l, false, 2, 0, 1)];
    assert_int_equal(is_paged_learn(low, high, n, BLOCK_TOKENS, o->heads, o->k_dim, o->v_dim, &wrong, NULL),
                     IS_EUNSUPPORTED);
    low[place(b, l, false, 3, 0, 1)] = 0;
    assert_int_equal(is_paged_learn(low, high, n, BLOCK_TOKENS, o->heads, o->k_dim, o->v_dim, &wrong, NULL),
                     IS_EUNSUPPORTED);
    low[place(b, l, false, 3, 0, 1)] = was;
    free(low);
    free(high);
}

static void fill(bench *b, uint32_t l)
{
    size_t elements = N_BLOCKS * block_elements(&b->layout.layers[l]);
    uint16_t *base = malloc(elements * 2);
    for (size_t i = 0; i < elements; i++) base[i] = GUARD;
    b->caches[l] = (is_paged_cache){.base = (uint8_t *)base,
                                    .block_stride = block_elements(&b->layout.layers[l]) * 2,
                                    .n_blocks = N_BLOCKS,
                                    .order = &b->orders[l]};
}

static void shuffle(uint32_t *v, size_t n)
{
    for (size_t i = 0; i < n; i++) v[i] = (uint32_t)i;
    for (size_t i = n - 1; i > 0; i--) {
        size_t j = random32() % (i + 1);
        uint32_t x = v[i];
        v[i] = v[j];
        v[j] = x;
    }
}

static bench *open_with(order_kind kind, is_dtype dtype, is_layer first)
{
    bench *b = calloc(1, sizeof *b);
    b->kind = kind;
    b->layout = (is_layout){.dtype = dtype, .n_layers = N_LAYERS, .n_ropes = 2};
    b->layout.layers[0] = first;
    b->layout.layers[1] = (is_layer){.heads = 1, .k_dim = 48, .v_dim = 0, .rope = 1};
    b->layout.layers[2] = (is_layer){.heads = 2, .k_dim = 10, .v_dim = 6, .rope = IS_LAYER_NO_ROPE};
    b->layout.ropes[0] = rope_of(IS_ROPE_HALF, 0, 32);
    b->layout.ropes[1] = rope_of(IS_ROPE_PAIR, 32, 16);
    assert_int_equal(is_layout_check(&b->layout, NULL), IS_OK);
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        size_t n = head_elements(&b->layout.layers[l]);
        b->chance[l] = malloc(n * sizeof *b->chance[l]);
        shuffle(b->chance[l], n);
        learn(b, l);
        fill(b, l);
    }
    shuffle(b->blocks, N_BLOCKS);
    return b;
}

static bench *open_bench(order_kind kind, is_dtype dtype)
{
    return open_with(kind, dtype, (is_layer){.heads = 3, .k_dim = 32, .v_dim = 32, .rope = 0});
}

static void close_bench(bench *b)
{
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        is_paged_order_free(&b->orders[l]);
        free(b->caches[l].base);
        free(b->chance[l]);
    }
    for (size_t i = 0; i < b->n; i++) free(b->bytes[i]);
    free(b);
}

static void add_chunk(bench *b, uint32_t n_tokens, int32_t p_ref)
{
    size_t size = is_chunk_bytes(&b->layout, n_tokens);
    void *bytes = aligned_alloc(64, size);
    int32_t *tokens = calloc(n_tokens, sizeof *tokens);
    is_chunk_info info = {.recipe = "isolated", .p_ref = p_ref, .n_tokens = n_tokens};
    assert_int_equal(is_chunk_begin(bytes, size, &b->layout, &info, tokens, NULL), IS_OK);
    free(tokens);
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        const is_layer *o = &b->layout.layers[l];
        uint8_t *k, *v;
        uint32_t first, n;
        is_chunk_rows_mut(bytes, l, &k, &v, &first, &n);
        for (size_t i = 0; i < (size_t)n * o->heads * o->k_dim; i++) put(b->layout.dtype, k, i, random_value(8));
        for (size_t i = 0; i < (size_t)n * o->heads * o->v_dim; i++) put_any_finite(b->layout.dtype, v, i);
    }
    is_chunk_seal(bytes);
    assert_int_equal(is_chunk_open(&b->chunks[b->n], bytes, size, IS_CHUNK_CHECK_PAYLOAD, NULL), IS_OK);
    b->bytes[b->n] = bytes;
    b->placed[b->n] = (is_placed){&b->chunks[b->n], (int32_t)b->total};
    b->n++;
    b->total += n_tokens;
}

static const uint8_t *element(const bench *b, uint32_t l, bool v, uint32_t token, uint32_t h, uint32_t d)
{
    return b->caches[l].base + b->blocks[token / BLOCK_TOKENS] * b->caches[l].block_stride +
           2 * place(b, l, v, token % BLOCK_TOKENS, h, d);
}

/* A token's K in the long double reference, its V bit for bit; what is seen is overwritten with the guard. */
static void check_token(const bench *b, uint32_t l, const is_placed *placed, uint32_t token)
{
    const is_layer *o = &b->layout.layers[l];
    is_dtype dtype = b->layout.dtype;
    is_chunk_rows rows = is_chunk_layer(placed->chunk, l);
    size_t row = token - (uint32_t)placed->position;
    int64_t shift = (int64_t)placed->position - placed->chunk->info.p_ref;
    const uint16_t guard = GUARD;
    for (uint32_t h = 0; h < o->heads; h++) {
        const uint8_t *head = rows.k + row * rows.k_row + (size_t)h * o->k_dim * 2;
        for (uint32_t d = 0; d < o->k_dim; d++) {
            double norm = 0, want = get(dtype, head, d);
            if (o->rope != IS_LAYER_NO_ROPE && shift != 0)
                want = rotated(&b->layout.ropes[o->rope], dtype, head, d, shift, &norm);
            const uint8_t *at = element(b, l, false, token, h, d);
            double slack = norm == 0 ? 0 : half_unit(dtype, want) + norm * 0x1p-21;
            if (fabs(get(dtype, at, 0) - want) > slack) fail_msg("layer %u, token %u, head %u, K %u", l, token, h, d);
            memcpy((uint8_t *)(uintptr_t)at, &guard, 2);
        }
        for (uint32_t d = 0; d < o->v_dim; d++) {
            const uint8_t *at = element(b, l, true, token, h, d);
            assert_memory_equal(at, rows.v + row * rows.v_row + 2 * ((size_t)h * o->v_dim + d), 2);
            memcpy((uint8_t *)(uintptr_t)at, &guard, 2);
        }
    }
}

static void assert_untouched(const bench *b)
{
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        size_t n = N_BLOCKS * block_elements(&b->layout.layers[l]);
        const uint16_t *e = (const uint16_t *)(const void *)b->caches[l].base;
        for (size_t i = 0; i < n; i++)
            if (e[i] != GUARD) fail_msg("layer %u: element %zu was written and belongs to nobody", l, i);
    }
}

static void add_some(bench *b)
{
    add_chunk(b, 37, 0); /* a header where it was made: a copy */
    add_chunk(b, 1, 900);
    add_chunk(b, 80, 41);
    add_chunk(b, 16, 134); /* where it was made */
    add_chunk(b, 5, 4000);
}

static void written_where_the_engine_has_it(void **state)
{
    (void)state;
    const uint32_t cuts[][2] = {{0, 139}, {0, 128}, {32, 112}, {50, 51}, {7, 7}, {38, 139}};
    for (order_kind k = 0; k < KINDS; k++)
        for (int dtype = IS_F16; dtype <= IS_BF16; dtype++) {
            bench *b = open_bench(k, (is_dtype)dtype);
            add_some(b);
            for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++) {
                uint32_t begin = cuts[c][0], end = cuts[c][1];
                is_error err = {0};
                for (uint32_t l = 0; l < N_LAYERS; l++)
                    if (is_paged_write(&b->layout, b->caches, b->placed, b->n, b->blocks, 9, begin, end, l, l + 1,
                                       &err) != IS_OK)
                        fail_msg("%s", err.text);
                for (uint32_t l = 0; l < N_LAYERS; l++)
                    for (uint32_t t = begin; t < end; t++) {
                        size_t i = 0;
                        while (t >= (uint32_t)b->placed[i].position + b->chunks[i].info.n_tokens) i++;
                        check_token(b, l, &b->placed[i], t);
                    }
                assert_untouched(b);
            }
            close_bench(b);
        }
}

/* Rows that are larger than what is rotated at once. */
static void wide_rows(void **state)
{
    (void)state;
    bench *b = open_with(K_TRANSPOSED, IS_BF16, (is_layer){.heads = 40, .k_dim = 512, .v_dim = 2, .rope = 0});
    add_chunk(b, 21, 900);
    assert_int_equal(is_paged_write(&b->layout, b->caches, b->placed, 1, b->blocks, 2, 0, 21, 0, N_LAYERS, NULL),
                     IS_OK);
    for (uint32_t l = 0; l < N_LAYERS; l++)
        for (uint32_t t = 0; t < 21; t++) check_token(b, l, &b->placed[0], t);
    assert_untouched(b);
    close_bench(b);
}

static void read_from_where_the_engine_has_it(void **state)
{
    (void)state;
    for (order_kind k = 0; k < KINDS; k++) {
        bench *b = open_bench(k, IS_BF16);
        for (uint32_t l = 0; l < N_LAYERS; l++) {
            size_t n = N_BLOCKS * block_elements(&b->layout.layers[l]);
            for (size_t i = 0; i < n; i++) put_any_finite(IS_BF16, b->caches[l].base, i);
        }
        const uint32_t begin = 21, n_tokens = 60;
        add_chunk(b, n_tokens, begin); /* begun, with other rows */
        is_error err = {0};
        if (is_paged_read(&b->layout, b->caches, b->blocks, 6, begin, n_tokens, 0, N_LAYERS, b->bytes[0], &err) !=
            IS_OK)
            fail_msg("%s", err.text);
        is_chunk_seal(b->bytes[0]);
        assert_int_equal(is_chunk_open(&b->chunks[0], b->bytes[0], b->chunks[0].size, IS_CHUNK_CHECK_PAYLOAD, NULL),
                         IS_OK);
        for (uint32_t l = 0; l < N_LAYERS; l++) {
            const is_layer *o = &b->layout.layers[l];
            is_chunk_rows rows = is_chunk_layer(&b->chunks[0], l);
            for (uint32_t t = 0; t < n_tokens; t++)
                for (uint32_t h = 0; h < o->heads; h++) {
                    for (uint32_t d = 0; d < o->k_dim; d++)
                        assert_memory_equal(rows.k + t * rows.k_row + 2 * ((size_t)h * o->k_dim + d),
                                            element(b, l, false, begin + t, h, d), 2);
                    for (uint32_t d = 0; d < o->v_dim; d++)
                        assert_memory_equal(rows.v + t * rows.v_row + 2 * ((size_t)h * o->v_dim + d),
                                            element(b, l, true, begin + t, h, d), 2);
                }
        }
        close_bench(b);
    }
}

static is_status write(const bench *b, size_t n, size_t n_blocks, uint32_t begin, uint32_t end)
{
    return is_paged_write(&b->layout, b->caches, b->placed, n, b->blocks, n_blocks, begin, end, 0, N_LAYERS, NULL);
}

static void what_does_not_fit_is_refused(void **state)
{
    (void)state;
    bench *b = open_bench(HEADS_FIRST, IS_BF16);
    add_some(b);
    assert_int_equal(write(b, b->n, 9, 0, 140), IS_EINVAL); /* beyond the chunks */
    assert_int_equal(write(b, b->n, 8, 0, 139), IS_EINVAL); /* beyond the blocks */
    assert_int_equal(write(b, b->n, 9, 5, 4), IS_EINVAL);
    assert_int_equal(write(b, 2, 9, 0, 64), IS_EINVAL);
    uint32_t was = b->blocks[3];
    b->blocks[3] = N_BLOCKS;
    assert_int_equal(write(b, b->n, 9, 0, 139), IS_EINVAL);
    b->blocks[3] = was;
    b->placed[2].position++; /* a gap */
    assert_int_equal(write(b, b->n, 9, 0, 64), IS_EINVAL);
    b->placed[2].position--;
    b->caches[2].block_stride -= 50; /* less than a block */
    assert_int_equal(write(b, b->n, 9, 0, 64), IS_EINVAL);
    b->caches[2].block_stride += 50;
    b->layout.layers[0].window = 64;
    assert_int_equal(write(b, b->n, 9, 0, 64), IS_EINVAL);
    b->layout.layers[0].window = 0;
    b->caches[1].order = &b->orders[0]; /* another layer's */
    assert_int_equal(write(b, b->n, 9, 0, 64), IS_EINVAL);
    b->caches[1].order = &b->orders[1];
    assert_int_equal(is_paged_read(&b->layout, b->caches, b->blocks, 3, 40, 9, 0, N_LAYERS, b->bytes[0], NULL),
                     IS_EINVAL);
    assert_untouched(b);
    assert_int_equal(write(b, b->n, 9, 0, 139), IS_OK);
    close_bench(b);
}

/* Heads in another order each, or from the last to the first: not learnt. */
static void orders_that_are_none(void **state)
{
    (void)state;
    is_paged_order order;
    uint16_t high[8] = {0};
    const uint16_t plain[8] = {1, 2, 5, 6, 3, 4, 7, 8}; /* K [2][2][1], V [2][2][1] */
    const uint16_t backwards[8] = {2, 1, 6, 5, 4, 3, 8, 7};
    const uint16_t mixed[8] = {1, 2, 5, 6, 4, 3, 7, 8};
    assert_int_equal(is_paged_learn(plain, high, 8, 2, 2, 1, 1, &order, NULL), IS_OK);
    assert_int_equal(order.k.row_stride, 4);
    assert_int_equal(order.k.head_stride, 1);
    is_paged_order_free(&order);
    assert_int_equal(is_paged_learn(backwards, high, 8, 2, 2, 1, 1, &order, NULL), IS_EUNSUPPORTED);
    assert_int_equal(is_paged_learn(mixed, high, 8, 2, 2, 1, 1, &order, NULL), IS_EUNSUPPORTED);
    assert_int_equal(is_paged_learn(plain, high, 7, 2, 2, 1, 1, &order, NULL), IS_EINVAL);
    assert_int_equal(is_paged_learn(plain, high, 8, 0, 2, 1, 1, &order, NULL), IS_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(written_where_the_engine_has_it),
        cmocka_unit_test(wide_rows),
        cmocka_unit_test(read_from_where_the_engine_has_it),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(orders_that_are_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
