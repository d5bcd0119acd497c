/* The mean of chunks, against sums in double of rows that are rotated by their definition. */
#include "kv/mean.h"
#include "kv_reference.h"

#define N      7 /* tokens */
#define CHUNKS 4

static const int32_t places[CHUNKS] = {300, 7, 2043, 300};

/* Two layers of other shapes, one of them without rotation and with a window that cuts rows off; V either way round. */
static is_layout make_layout(is_dtype dtype, is_rope_style style, bool transposed)
{
    is_layout layout = {.dtype = dtype, .v_transposed = transposed, .n_layers = 3, .n_ropes = 1};
    layout.ropes[0] = rope_of(style, 2, 8);
    layout.layers[0] = (is_layer){.heads = 2, .k_dim = 12, .v_dim = 5, .rope = 0};
    layout.layers[1] = (is_layer){.heads = 1, .k_dim = 6, .v_dim = 6, .window = 4, .rope = IS_LAYER_NO_ROPE};
    layout.layers[2] = (is_layer){.heads = 1, .k_dim = 16, .v_dim = 0, .rope = 0};
    return layout;
}

static is_chunk make_chunk(const is_layout *layout, int32_t p_ref, int32_t first_token, uint32_t n)
{
    int32_t tokens[N];
    is_chunk chunk;
    is_error err = {0};
    const is_chunk_info info = {.recipe = "primed:4x2", .p_ref = p_ref, .n_tokens = n};
    size_t size = is_chunk_bytes(layout, n);
    void *bytes = is_chunk_memory(size);
    for (uint32_t i = 0; i < n; i++) tokens[i] = first_token + (int32_t)i;
    assert_int_equal(is_chunk_begin(bytes, size, layout, &info, tokens, &err), IS_OK);
    for (uint32_t l = 0; l < layout->n_layers; l++) {
        uint8_t *k, *v;
        uint32_t first, rows;
        const is_layer *o = &layout->layers[l];
        is_chunk_rows_mut(bytes, l, &k, &v, &first, &rows);
        for (size_t i = 0; i < (size_t)rows * o->heads * o->k_dim; i++) put(layout->dtype, k, i, random_value(8));
        for (size_t i = 0; i < (size_t)rows * o->heads * o->v_dim; i++)
            put(layout->dtype, v, i, i == 0 ? 0x1p-20 : random_value(8)); /* f16 keeps the small one as a subnormal */
    }
    is_chunk_seal(bytes);
    assert_int_equal(is_chunk_open(&chunk, bytes, size, IS_CHUNK_CHECK_PAYLOAD, &err), IS_OK);
    return chunk;
}

static void free_chunk(const is_chunk *chunk)
{
    free((void *)(uintptr_t)chunk->bytes);
}

/* Element e of row r as it is where the first chunk stands. */
static double moved(const is_layout *layout, const is_layer *o, const is_chunk_rows *rows, uint32_t r, uint32_t e,
                    int64_t shift)
{
    double norm;
    size_t head = ((size_t)r * o->heads + e / o->k_dim) * o->k_dim;
    const uint8_t *at = rows->k + head * is_dtype_size(layout->dtype);
    if (o->rope == IS_LAYER_NO_ROPE) return get(layout->dtype, at, e % o->k_dim);
    return rotated(&layout->ropes[0], layout->dtype, at, e % o->k_dim, shift, &norm);
}

static void check_mean(const is_layout *layout, const is_chunk *chunks, const is_chunk *mean)
{
    for (uint32_t l = 0; l < layout->n_layers; l++) {
        const is_layer *o = &layout->layers[l];
        is_chunk_rows got = is_chunk_layer(mean, l);
        assert_int_equal(got.n, N - is_layer_first(o, N));
        for (uint32_t r = 0; r < got.n; r++)
            for (uint32_t e = 0; e < o->heads * o->k_dim; e++) {
                double want = 0;
                for (int i = 0; i < CHUNKS; i++) {
                    is_chunk_rows rows = is_chunk_layer(&chunks[i], l);
                    want += moved(layout, o, &rows, r, e, places[0] - places[i]) / CHUNKS;
                }
                double is = get(layout->dtype, got.k, (size_t)r * o->heads * o->k_dim + e);
                assert_true(fabs(is - want) <= half_unit(layout->dtype, want) + 4e-5);
            }
        for (size_t e = 0; e < (size_t)got.n * o->heads * o->v_dim; e++) {
            double want = 0;
            for (int i = 0; i < CHUNKS; i++) want += get(layout->dtype, is_chunk_layer(&chunks[i], l).v, e) / CHUNKS;
            assert_true(fabs(get(layout->dtype, got.v, e) - want) <= half_unit(layout->dtype, want) + 2e-6);
        }
    }
}

static void test_mean_of_rows(void **state)
{
    (void)state;
    for (size_t d = 0; d < sizeof all_dtypes / sizeof all_dtypes[0]; d++)
        for (int variant = 0; variant < 4; variant++) {
            is_layout layout =
                make_layout(all_dtypes[d], variant & 1 ? IS_ROPE_HALF : IS_ROPE_PAIR, (variant & 2) != 0);
            is_chunk chunks[CHUNKS], mean;
            is_mean *sum = NULL;
            is_error err = {0};
            void *bytes;
            size_t size;
            for (int i = 0; i < CHUNKS; i++) {
                chunks[i] = make_chunk(&layout, places[i], 50, N);
                if (is_mean_add(&sum, &layout, &chunks[i], &err) != IS_OK) fail_msg("%s", err.text);
            }
            assert_int_equal(is_mean_end(sum, &bytes, &size, &err), IS_OK);
            assert_int_equal(is_chunk_open(&mean, bytes, size, IS_CHUNK_CHECK_PAYLOAD, &err), IS_OK);
            assert_int_equal(mean.info.p_ref, places[0]);
            assert_string_equal(mean.info.recipe, "primed:4x2");
            assert_memory_equal(mean.tokens, chunks[0].tokens, N * sizeof(int32_t));
            check_mean(&layout, chunks, &mean);
            for (int i = 0; i < CHUNKS; i++) free_chunk(&chunks[i]);
            free(bytes);
        }
}

static void test_mean_of_one_is_itself(void **state)
{
    (void)state;
    is_layout layout = make_layout(IS_F16, IS_ROPE_HALF, true);
    is_chunk one = make_chunk(&layout, 12, 3, N);
    is_mean *sum = NULL;
    void *bytes;
    size_t size;
    assert_int_equal(is_mean_add(&sum, &layout, &one, NULL), IS_OK);
    assert_int_equal(is_mean_end(sum, &bytes, &size, NULL), IS_OK);
    assert_int_equal(size, one.size);
    assert_memory_equal(bytes, one.bytes, size);
    free(bytes);
    free_chunk(&one);
}

static void test_other_tokens_are_refused(void **state)
{
    (void)state;
    is_layout layout = make_layout(IS_F16, IS_ROPE_HALF, false);
    is_chunk one = make_chunk(&layout, 12, 3, N), other = make_chunk(&layout, 12, 4, N);
    is_chunk shorter = make_chunk(&layout, 12, 3, N - 1);
    is_mean *sum = NULL;
    is_error err = {0};
    assert_int_equal(is_mean_add(&sum, &layout, &one, &err), IS_OK);
    assert_int_equal(is_mean_add(&sum, &layout, &other, &err), IS_EINVAL);
    assert_non_null(strstr(err.text, "different tokens"));
    assert_int_equal(is_mean_add(&sum, &layout, &shorter, &err), IS_EINVAL);
    layout.layers[0].k_dim = 14;
    assert_int_equal(is_mean_add(&sum, &layout, &one, &err), IS_EINVAL);
    is_mean_free(sum);
    is_mean_free(NULL);
    free_chunk(&one);
    free_chunk(&other);
    free_chunk(&shorter);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mean_of_rows),
        cmocka_unit_test(test_mean_of_one_is_itself),
        cmocka_unit_test(test_other_tokens_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
