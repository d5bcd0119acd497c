/*
 * Compose, against a slow builder that makes every row token by token from what the chunks hold, in
 * guarded memory: bytes that belong to nobody must stay as they were.
 */
#include "kv_reference.h"

#define MAX_CHUNKS 256

typedef struct bench {
    is_layout layout;
    size_t n;
    void *bytes[MAX_CHUNKS];
    is_chunk chunks[MAX_CHUNKS];
    is_placed placed[MAX_CHUNKS];
    uint32_t total;
    is_target targets[IS_MAX_LAYERS];
    uint8_t *k_memory[IS_MAX_LAYERS], *v_memory[IS_MAX_LAYERS];
    size_t k_size[IS_MAX_LAYERS], v_size[IS_MAX_LAYERS];
} bench;

#define GUARD 0x5a

static void add_chunk(bench *b, uint32_t n_tokens, int32_t p_ref)
{
    size_t size = is_chunk_bytes(&b->layout, n_tokens);
    void *bytes = aligned_alloc(64, size);
    int32_t *tokens = calloc(n_tokens, sizeof *tokens);
    is_chunk_info info = {.recipe = "isolated", .p_ref = p_ref, .n_tokens = n_tokens};
    is_error err = {0};
    if (is_chunk_begin(bytes, size, &b->layout, &info, tokens, &err) != IS_OK) fail_msg("%s", err.text);
    free(tokens);
    for (uint32_t l = 0; l < b->layout.n_layers; l++) {
        uint8_t *k, *v;
        uint32_t first, n;
        is_chunk_rows_mut(bytes, l, &k, &v, &first, &n);
        const is_layer *o = &b->layout.layers[l];
        for (size_t i = 0; i < (size_t)n * o->heads * o->k_dim; i++) put(b->layout.dtype, k, i, random_value(8));
        for (size_t i = 0; i < (size_t)n * o->heads * o->v_dim; i++) put_any_finite(b->layout.dtype, v, i);
    }
    is_chunk_seal(bytes);
    is_chunk *chunk = &b->chunks[b->n];
    if (is_chunk_open(chunk, bytes, size, IS_CHUNK_CHECK_PAYLOAD, &err) != IS_OK) fail_msg("%s", err.text);
    assert_int_equal(is_chunk_fits(chunk, &b->layout, NULL), IS_OK);
    b->bytes[b->n] = bytes;
    b->placed[b->n] = (is_placed){chunk, (int32_t)b->total};
    b->n++;
    b->total += n_tokens;
}

/* Targets for everything that the layers' windows still show, at odd addresses and with gaps, in guarded memory. */
static void make_targets(bench *b, size_t gap)
{
    size_t element = is_dtype_size(b->layout.dtype);
    for (uint32_t l = 0; l < b->layout.n_layers; l++) {
        is_target *t = &b->targets[l];
        t->first = is_layer_first(&b->layout.layers[l], b->total);
        t->n = b->total - t->first;
        size_t dims = (size_t)b->layout.layers[l].heads * b->layout.layers[l].v_dim;
        t->k_stride = is_layer_k_bytes(&b->layout, l) + gap;
        t->v_stride = (b->layout.v_transposed ? t->n * element : dims * element) + gap;
        b->k_size[l] = t->n * t->k_stride + 4;
        b->v_size[l] = (b->layout.v_transposed ? dims : t->n) * t->v_stride + 4;
        b->k_memory[l] = malloc(b->k_size[l]);
        b->v_memory[l] = malloc(b->v_size[l]);
        memset(b->k_memory[l], GUARD, b->k_size[l]);
        memset(b->v_memory[l], GUARD, b->v_size[l]);
        t->k = b->k_memory[l] + 2;
        t->v = dims != 0 ? b->v_memory[l] + 2 : NULL;
    }
}

static void free_bench(bench *b)
{
    for (size_t i = 0; i < b->n; i++) free(b->bytes[i]);
    for (uint32_t l = 0; l < b->layout.n_layers; l++) {
        free(b->k_memory[l]);
        free(b->v_memory[l]);
    }
    free(b);
}

/* Everything in [size] that is not marked as written must still be the guard. */
static void assert_guarded(const uint8_t *memory, const uint8_t *written, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (!written[i] && memory[i] != GUARD) fail_msg("byte %zu was written and belongs to nobody", i);
}

static void check_k(const bench *b, uint32_t l, uint32_t r, const is_placed *placed, const uint8_t *src)
{
    const is_layer *o = &b->layout.layers[l];
    is_dtype dtype = b->layout.dtype;
    size_t element = is_dtype_size(dtype);
    const uint8_t *dst = b->targets[l].k + r * b->targets[l].k_stride;
    int64_t shift = (int64_t)placed->position - placed->chunk->info.p_ref;
    for (uint32_t i = 0; i < o->heads * o->k_dim; i++) {
        uint32_t at = i % o->k_dim;
        double norm = 0, want = get(dtype, src, i);
        if (o->rope != IS_LAYER_NO_ROPE && shift != 0)
            want = rotated(&b->layout.ropes[o->rope], dtype, src + (i - at) * element, at, shift, &norm);
        double slack = norm == 0 ? 0 : half_unit(dtype, want) + norm * 0x1p-21;
        if (fabs(get(dtype, dst, i) - want) > slack) fail_msg("layer %u, row %u, K element %u", l, r, i);
        if (norm == 0) assert_memory_equal(dst + i * element, src + i * element, element);
    }
}

/* Goes through one layer's wanted tokens one by one. */
static void check_layer(const bench *b, uint32_t l)
{
    const is_layer *o = &b->layout.layers[l];
    const is_target *t = &b->targets[l];
    size_t element = is_dtype_size(b->layout.dtype);
    size_t dims = (size_t)o->heads * o->v_dim;
    uint8_t *k_written = calloc(1, b->k_size[l]), *v_written = calloc(1, b->v_size[l]);
    for (uint32_t r = 0; r < t->n; r++) {
        size_t c = 0;
        uint32_t token = t->first + r;
        while (token >= (uint32_t)b->placed[c].position + b->chunks[c].info.n_tokens) c++;
        is_chunk_rows rows = is_chunk_layer(&b->chunks[c], l);
        size_t row = token - (uint32_t)b->placed[c].position - rows.first;
        assert_true(row < rows.n);
        check_k(b, l, r, &b->placed[c], rows.k + row * rows.k_row);
        memset(k_written + 2 + r * t->k_stride, 1, rows.k_row);
        for (size_t j = 0; j < dims; j++) {
            size_t from = b->layout.v_transposed ? (j * rows.n + row) * element : row * rows.v_row + j * element;
            size_t to = b->layout.v_transposed ? j * t->v_stride + r * element : r * t->v_stride + j * element;
            if (memcmp(t->v + to, rows.v + from, element) != 0) fail_msg("layer %u, row %u, V element %zu", l, r, j);
            memset(v_written + 2 + to, 1, element);
        }
    }
    assert_guarded(b->k_memory[l], k_written, b->k_size[l]);
    assert_guarded(b->v_memory[l], v_written, b->v_size[l]);
    free(k_written);
    free(v_written);
}

static void assert_untouched(const bench *b, uint32_t l)
{
    for (size_t i = 0; i < b->k_size[l]; i++) assert_int_equal(b->k_memory[l][i], GUARD);
    for (size_t i = 0; i < b->v_size[l]; i++) assert_int_equal(b->v_memory[l][i], GUARD);
}

/* Two ropes, a window, a layer without rope, a latent layer, and a partial slice. */
static bench *mixed_bench(is_dtype dtype, bool v_transposed)
{
    bench *b = calloc(1, sizeof *b);
    is_layout *o = &b->layout;
    o->dtype = dtype;
    o->v_transposed = v_transposed;
    o->n_layers = 5;
    o->n_ropes = 3;
    o->layers[0] = (is_layer){.heads = 3, .k_dim = 32, .v_dim = 16, .rope = 0};
    o->layers[1] = (is_layer){.heads = 2, .k_dim = 20, .v_dim = 5, .window = 50, .rope = 1};
    o->layers[2] = (is_layer){.heads = 1, .k_dim = 11, .v_dim = 7, .rope = IS_LAYER_NO_ROPE};
    o->layers[3] = (is_layer){.heads = 1, .k_dim = 48, .v_dim = 0, .rope = 2};
    o->layers[4] = (is_layer){.heads = 1, .k_dim = 20, .v_dim = 3, .window = 1, .rope = 1};
    o->ropes[0] = rope_of(IS_ROPE_PAIR, 0, 32);
    o->ropes[1] = rope_of(IS_ROPE_HALF, 2, 14);
    o->ropes[2] = rope_of(IS_ROPE_PAIR, 32, 16);
    assert_int_equal(is_layout_check(o, NULL), IS_OK);
    return b;
}

static void composed_equals_row_by_row(void **state)
{
    (void)state;
    for (size_t a = 0; a < sizeof all_isas / sizeof *all_isas; a++) {
        if (!is_isa_supported(all_isas[a])) continue;
        for (size_t d = 0; d < 3; d++) {
            for (int transposed = 0; transposed < 2; transposed++) {
                bench *b = mixed_bench(all_dtypes[d], transposed != 0);
                add_chunk(b, 70, 0);   /* a header where it was made: a copy; its window rows are all cut off */
                add_chunk(b, 40, 900); /* cut by the window: 50 of 102 tokens */
                add_chunk(b, 1, 5);
                add_chunk(b, 31, 4000);
                add_chunk(b, 30, 141);
                make_targets(b, transposed ? 6 : 0);
                is_error err = {0};
                if (is_compose_isa(all_isas[a], &b->layout, b->placed, b->n, b->targets, 0, 5, &err) != IS_OK)
                    fail_msg("%s", err.text);
                for (uint32_t l = 0; l < 5; l++) check_layer(b, l);
                free_bench(b);
            }
        }
    }
}

/* Runs longer than the buffers: many tiny chunks, one that is cut in the middle, and rows beyond one block. */
static void long_and_many(void **state)
{
    (void)state;
    for (int transposed = 0; transposed < 2; transposed++) {
        for (size_t gap = 0; gap <= 4; gap += 4) {
            bench *b = mixed_bench(IS_F16, transposed != 0);
            for (int i = 0; i < 150; i++) add_chunk(b, 1 + (uint32_t)i % 3, 3000 + i);
            add_chunk(b, 5000, 17);
            for (int i = 0; i < 70; i++) add_chunk(b, 9, 40 * i);
            make_targets(b, gap);
            assert_int_equal(is_compose(&b->layout, b->placed, b->n, b->targets, 0, 5, NULL), IS_OK);
            for (uint32_t l = 0; l < 5; l++) check_layer(b, l);
            free_bench(b);
        }
    }
}

/* Runs that are written past the caches: every byte as in the small ones, at odd addresses and with gaps. */
static void beyond_the_caches(void **state)
{
    (void)state;
    for (int transposed = 0; transposed < 2; transposed++) {
        for (size_t gap = 0; gap <= 4; gap += 4) {
            bench *b = mixed_bench(IS_F16, transposed != 0);
            size_t bytes = 0;
            for (int i = 0; i < 190 && bytes < ((size_t)9 << 20); i++) {
                add_chunk(b, 700 + (uint32_t)i, 31 * i);
                bytes = 0;
                for (uint32_t l = 0; l < 5; l++)
                    bytes += (b->total - is_layer_first(&b->layout.layers[l], b->total)) *
                             (is_layer_k_bytes(&b->layout, l) + is_layer_v_bytes(&b->layout, l));
            }
            assert_true(bytes >= (size_t)9 << 20);
            make_targets(b, gap);
            assert_int_equal(is_compose(&b->layout, b->placed, b->n, b->targets, 0, 5, NULL), IS_OK);
            for (uint32_t l = 0; l < 5; l++) check_layer(b, l);
            free_bench(b);
        }
    }
}

static void layer_ranges_are_kept(void **state)
{
    (void)state;
    bench *b = mixed_bench(IS_BF16, true);
    add_chunk(b, 60, 1);
    add_chunk(b, 60, 2);
    make_targets(b, 2);
    assert_int_equal(is_compose(&b->layout, b->placed, b->n, b->targets, 1, 3, NULL), IS_OK);
    for (uint32_t l = 0; l < 5; l++) l == 1 || l == 2 ? check_layer(b, l) : assert_untouched(b, l);
    assert_int_equal(is_compose(&b->layout, b->placed, b->n, b->targets, 3, 3, NULL), IS_OK);
    assert_untouched(b, 3);
    assert_int_equal(is_compose(&b->layout, b->placed, b->n, b->targets, 3, 5, NULL), IS_OK);
    assert_int_equal(is_compose(&b->layout, b->placed, b->n, b->targets, 0, 1, NULL), IS_OK);
    for (uint32_t l = 0; l < 5; l++) check_layer(b, l);
    free_bench(b);
}

/* A target may ask for any rows that are there: edges inside a chunk, and none at all. */
static void any_part_may_be_wanted(void **state)
{
    (void)state;
    const uint32_t parts[][2] = {{0, 0}, {0, 1}, {39, 2}, {40, 40}, {41, 38}, {13, 100}, {119, 1}};
    for (int transposed = 0; transposed < 2; transposed++) {
        for (size_t p = 0; p < sizeof parts / sizeof *parts; p++) {
            bench *b = mixed_bench(IS_F32, transposed != 0);
            for (int i = 0; i < 3; i++) add_chunk(b, 40, 100 * i);
            make_targets(b, 0);
            for (uint32_t l = 0; l < 4; l++) {
                b->targets[l].first = parts[p][0];
                b->targets[l].n = parts[p][1];
            }
            assert_int_equal(is_compose(&b->layout, b->placed, b->n, b->targets, 0, 1, NULL), IS_OK);
            assert_int_equal(is_compose(&b->layout, b->placed, b->n, b->targets, 2, 4, NULL), IS_OK);
            check_layer(b, 0);
            check_layer(b, 2);
            check_layer(b, 3);
            free_bench(b);
        }
    }
}

static void composing_refused(const bench *b, const char *word)
{
    is_error err = {0};
    assert_int_equal(is_compose(&b->layout, b->placed, b->n, b->targets, 0, 5, &err), IS_EINVAL);
    if (strstr(err.text, word) == NULL) fail_msg("\"%s\" does not say %s", err.text, word);
    for (uint32_t l = 0; l < 5; l++) assert_untouched(b, l);
}

static void wrong_runs_are_refused_before_a_byte_is_written(void **state)
{
    (void)state;
    bench *b = mixed_bench(IS_F16, true);
    for (int i = 0; i < 3; i++) add_chunk(b, 60, i);
    make_targets(b, 0);
    b->placed[1].position = 61; /* a gap */
    composing_refused(b, "chunk 1");
    b->placed[1].position = 59; /* an overlap */
    composing_refused(b, "chunk 1");
    b->placed[1].position = 60;
    b->placed[0].position = 1;
    composing_refused(b, "chunk 0");
    b->placed[0].position = -60;
    composing_refused(b, "chunk 0");
    b->placed[0].position = 0;
    b->targets[0].n++; /* a row behind the last chunk */
    composing_refused(b, "layer 0");
    b->targets[0].n--;
    b->targets[1].first -= 61; /* each chunk keeps its last 50 rows: row 69 is nobody's */
    composing_refused(b, "row 69");
    b->targets[1].first += 61;
    b->targets[4].first = UINT32_MAX; /* sums must not wrap */
    composing_refused(b, "layer 4");
    b->targets[4].first = b->total - 1;
    b->targets[2].k_stride--;
    composing_refused(b, "layer 2");
    b->targets[2].k_stride++;
    b->targets[2].v_stride--;
    composing_refused(b, "layer 2");
    b->targets[2].v_stride++;
    uint8_t *v = b->targets[2].v;
    b->targets[2].v = NULL;
    composing_refused(b, "layer 2");
    b->targets[2].v = v;
    assert_int_equal(is_compose(&b->layout, b->placed, b->n, b->targets, 0, 6, NULL), IS_EINVAL);
    assert_int_equal(is_compose(&b->layout, b->placed, b->n, b->targets, 2, 1, NULL), IS_EINVAL);
    assert_int_equal(is_compose(&b->layout, b->placed, b->n, b->targets, 0, 5, NULL), IS_OK);
    for (uint32_t l = 0; l < 5; l++) check_layer(b, l);
    free_bench(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(composed_equals_row_by_row), cmocka_unit_test(long_and_many),
        cmocka_unit_test(beyond_the_caches),          cmocka_unit_test(layer_ranges_are_kept),
        cmocka_unit_test(any_part_may_be_wanted),     cmocka_unit_test(wrong_runs_are_refused_before_a_byte_is_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
