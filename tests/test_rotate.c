/*
 * Conversions, rotation, and the copy of short runs.
 *
 * The judges are: for conversions, exact arithmetic in double on the meaning of the bits; for
 * rotation, the same in long double, and for each instruction set the C twin bit for bit.
 */
#include "kv_reference.h"

/* ----------------------------------------------------------- conversions */

static void assert_rounds(uint16_t (*convert)(float), float from, uint16_t want)
{
    uint16_t got = convert(from);
    if (got != want) fail_msg("%a gives %04x, not %04x", (double)from, got, want);
    got = convert(-from);
    if (got != (want | 0x8000)) fail_msg("%a gives %04x, not %04x", -(double)from, got, want | 0x8000);
}

/* Every finite value both ways, and the three floats around each half-way point: that is all of rounding to nearest. */
static void converts_exactly(float (*to)(uint16_t), uint16_t (*from)(float), int exponent_bits, uint16_t infinite)
{
    for (uint16_t h = 0; h < infinite; h++) {
        assert_true((double)to(h) == meaning(h, exponent_bits));
        assert_true((double)to(h | 0x8000) == -meaning(h, exponent_bits));
        assert_true(signbit(to(h | 0x8000)));
        assert_rounds(from, to(h), h);
        uint16_t above = (uint16_t)(h + 1); /* behind the last: what would follow if exponents went on */
        double half_way = above == infinite
                              ? meaning(h, exponent_bits) * 1.5 - meaning((uint16_t)(h - 1), exponent_bits) / 2
                              : (meaning(h, exponent_bits) + meaning(above, exponent_bits)) / 2;
        float middle = (float)half_way;
        if ((double)middle != half_way) continue; /* bf16: between its two smallest there is no float */
        assert_rounds(from, middle, h % 2 == 0 ? h : above);
        assert_rounds(from, nextafterf(middle, 0), h);
        assert_rounds(from, nextafterf(middle, INFINITY), above);
    }
    assert_true(isinf(to(infinite)) && to(infinite) > 0);
    assert_true(isinf(to(infinite | 0x8000)) && to(infinite | 0x8000) < 0);
    assert_rounds(from, INFINITY, infinite);
    assert_true(isnan(to(infinite | 1)) && isnan(to(0xffff)));
    assert_true(isnan(to(from(NAN))));
    uint32_t low_nan = 0x7f800001; /* its payload is cut off by the conversion; it must not become infinity */
    float nan;
    memcpy(&nan, &low_nan, sizeof nan);
    assert_true(isnan(to(from(nan))));
}

static void half_conversions(void **state)
{
    (void)state;
    converts_exactly(is_f16_to_f32, is_f32_to_f16, 5, 0x7c00);
    converts_exactly(is_bf16_to_f32, is_f32_to_bf16, 8, 0x7f80);
}

/* -------------------------------------------------------------- rotation */

static void rotation_is_within_one_rounding(void **state)
{
    (void)state;
    enum { HEADS = 3, K_DIM = 80, ROWS = 5 };
    const int64_t shifts[] = {1, -7, 1990, -60000};
    for (size_t d = 0; d < 3; d++) {
        is_dtype dtype = all_dtypes[d];
        size_t row = HEADS * K_DIM * is_dtype_size(dtype);
        uint8_t *src = malloc(row * ROWS), *dst = malloc(row * ROWS);
        for (size_t i = 0; i < HEADS * K_DIM * ROWS; i++) put(dtype, src, i, random_value(8));
        for (size_t c = 0; c < 8; c++) {
            is_rope rope = rope_of(c % 2 ? IS_ROPE_HALF : IS_ROPE_PAIR, c % 3 ? 6 : 0, c % 3 ? 74 : 80);
            is_rotation rotation;
            is_rotation_init(&rotation, &rope, shifts[c / 2]);
            is_rotate_rows(is_isa_best(), dtype, &rope, &rotation, HEADS, K_DIM, src, row, dst, row, ROWS);
            for (size_t i = 0; i < HEADS * K_DIM * ROWS; i++) {
                double norm;
                size_t head = i / K_DIM * K_DIM;
                double want = rotated(&rope, dtype, src + head * is_dtype_size(dtype), (uint32_t)(i - head),
                                      shifts[c / 2], &norm);
                double slack = norm == 0 ? 0 : half_unit(dtype, want) + norm * 0x1p-21; /* f32 angles and products */
                if (fabs(get(dtype, dst, i) - want) > slack) fail_msg("%s, element %zu", is_dtype_name(dtype), i);
            }
        }
        free(src);
        free(dst);
    }
}

/*
 * What the whole design rests on: K written at p_ref and moved is K written at p.  Both are roundings of
 * the same raw vector's rotation; the moved one was rounded before the move too.
 */
static void a_moved_row_is_the_row_made_there(void **state)
{
    (void)state;
    enum { K_DIM = 64 };
    const int64_t p_ref = 317, p = 1811;
    for (size_t d = 0; d < 3; d++) {
        for (int style = IS_ROPE_PAIR; style <= IS_ROPE_HALF; style++) {
            is_dtype dtype = all_dtypes[d];
            is_rope rope = rope_of((is_rope_style)style, 0, K_DIM);
            uint8_t stored[K_DIM * 4], moved[K_DIM * 4];
            double raw[K_DIM], there[K_DIM], norm[K_DIM];
            for (uint32_t i = 0; i < K_DIM; i++) raw[i] = random_value(4);
            for (uint32_t i = 0; i < K_DIM; i++) {
                uint32_t other = 0, pair = 0;
                bool first = false;
                assert_true(partner(&rope, i, &other, &pair, &first));
                double sign = first ? -1 : 1;
                double at_ref = (double)p_ref * rope.inv_freq[pair], at_p = (double)p * rope.inv_freq[pair];
                put(dtype, stored, i, raw[i] * cos(at_ref) + sign * raw[other] * sin(at_ref));
                there[i] = raw[i] * cos(at_p) + sign * raw[other] * sin(at_p);
                norm[i] = hypot(raw[i], raw[other]);
            }
            is_rotation rotation;
            is_rotation_init(&rotation, &rope, p - p_ref);
            is_rotate_rows(is_isa_best(), dtype, &rope, &rotation, 1, K_DIM, stored, sizeof stored, moved, sizeof moved,
                           1);
            for (uint32_t i = 0; i < K_DIM; i++) {
                /* the two stored elements' roundings, turned, and one of the result */
                double slack = half_unit(dtype, norm[i]) * (sqrt(2) + 1) + norm[i] * 0x1p-21;
                if (fabs(get(dtype, moved, i) - there[i]) > slack) fail_msg("%s, element %u", is_dtype_name(dtype), i);
            }
        }
    }
}

static void moves_add_up(void **state)
{
    (void)state;
    enum { K_DIM = 128 };
    for (int style = IS_ROPE_PAIR; style <= IS_ROPE_HALF; style++) {
        is_rope rope = rope_of((is_rope_style)style, 0, K_DIM);
        uint8_t start[K_DIM * 4], steps[K_DIM * 4], once[K_DIM * 4], back[K_DIM * 4];
        for (uint32_t i = 0; i < K_DIM; i++) put(IS_F32, start, i, random_value(4));
        is_rotation a, b, sum, undo;
        is_rotation_init(&a, &rope, 900);
        is_rotation_init(&b, &rope, -217);
        is_rotation_init(&sum, &rope, 683);
        is_rotation_init(&undo, &rope, -683);
        is_isa isa = is_isa_best();
        is_rotate_rows(isa, IS_F32, &rope, &a, 1, K_DIM, start, 0, steps, 0, 1);
        is_rotate_rows(isa, IS_F32, &rope, &b, 1, K_DIM, steps, 0, steps, 0, 1); /* in place */
        is_rotate_rows(isa, IS_F32, &rope, &sum, 1, K_DIM, start, 0, once, 0, 1);
        is_rotate_rows(isa, IS_F32, &rope, &undo, 1, K_DIM, once, 0, back, 0, 1);
        double changed = 0;
        for (uint32_t i = 0; i < K_DIM; i++) {
            assert_true(fabs(get(IS_F32, steps, i) - get(IS_F32, once, i)) < 4e-6);
            assert_true(fabs(get(IS_F32, back, i) - get(IS_F32, start, i)) < 4e-6);
            changed = fmax(changed, fabs(get(IS_F32, once, i) - get(IS_F32, start, i)));
        }
        assert_true(changed > 1);
    }
}

typedef struct shape {
    uint32_t heads, k_dim, offset, width;
} shape;

static const shape shapes[] = {
    {3, 64, 0, 64},    {1, 2, 0, 2},     {2, 80, 0, 80}, {1, 256, 0, 256}, {5, 33, 3, 26},
    {1, 576, 512, 64}, {2, 100, 10, 38}, {1, 7, 5, 2},   {4, 96, 0, 24},   {1, 512, 0, 512},
};

/* src and dst at odd addresses, with gaps between rows that nobody may touch. */
static void isa_equals_c(is_isa isa, is_dtype dtype, is_rope_style style, shape s)
{
    enum { ROWS = 7 };
    size_t row = s.heads * s.k_dim * is_dtype_size(dtype);
    size_t src_stride = row + 6, dst_stride = row + 10;
    size_t size = dst_stride * ROWS + 1;
    uint8_t *src = malloc(size), *want = malloc(size), *got = malloc(size), *place = malloc(size);
    for (size_t i = 0; i < size; i++) want[i] = got[i] = (uint8_t)random32();
    memcpy(got, want, size);
    memset(src, 0xff, size);
    for (size_t r = 0; r < ROWS; r++)
        for (size_t i = 0; i < s.heads * s.k_dim; i++) put_any_finite(dtype, src + 1 + r * src_stride, i);
    memcpy(place, src, size);
    is_rope rope = rope_of(style, s.offset, s.width);
    is_rotation rotation;
    is_rotation_init(&rotation, &rope, (int64_t)(random32() % 4000) - 2000);
    rotation.identity = false;
    is_rotate_rows(IS_ISA_C, dtype, &rope, &rotation, s.heads, s.k_dim, src + 1, src_stride, want + 1, dst_stride,
                   ROWS);
    is_rotate_rows(isa, dtype, &rope, &rotation, s.heads, s.k_dim, src + 1, src_stride, got + 1, dst_stride, ROWS);
    assert_memory_equal(got, want, size);
    is_rotate_rows(isa, dtype, &rope, &rotation, s.heads, s.k_dim, place + 1, src_stride, place + 1, src_stride, ROWS);
    for (size_t r = 0; r < ROWS; r++) {
        assert_memory_equal(place + 1 + r * src_stride, want + 1 + r * dst_stride, row);
        assert_memory_equal(place + 1 + r * src_stride + row, src + 1 + r * src_stride + row, 6);
    }
    for (size_t i = 0; i < ROWS * s.heads * s.k_dim; i++) { /* outside the slice: the same bits */
        size_t r = i / (s.heads * s.k_dim), at = i % (s.heads * s.k_dim), element = at % s.k_dim;
        if (element >= s.offset && element < s.offset + s.width) continue;
        size_t bytes = is_dtype_size(dtype);
        assert_memory_equal(got + 1 + r * dst_stride + at * bytes, src + 1 + r * src_stride + at * bytes, bytes);
    }
    free(src);
    free(want);
    free(got);
    free(place);
}

static void every_instruction_set_equals_c(void **state)
{
    (void)state;
    for (size_t a = 1; a < sizeof all_isas / sizeof *all_isas; a++) {
        if (!is_isa_supported(all_isas[a])) continue;
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            for (size_t d = 0; d < 3; d++)
                for (int style = IS_ROPE_PAIR; style <= IS_ROPE_HALF; style++)
                    for (int again = 0; again < 4; again++)
                        isa_equals_c(all_isas[a], all_dtypes[d], (is_rope_style)style, shapes[s]);
    }
}

static void no_move_is_a_copy(void **state)
{
    (void)state;
    is_rope rope = rope_of(IS_ROPE_HALF, 0, 64);
    is_rotation rotation;
    is_rotation_init(&rotation, &rope, 0);
    uint8_t src[3 * 130], dst[3 * 140];
    memset(src, 0xff, sizeof src); /* NaN: no arithmetic may see it */
    for (size_t i = 0; i < sizeof src; i += 3) src[i] = (uint8_t)random32();
    memset(dst, 0x5a, sizeof dst);
    is_rotate_rows(is_isa_best(), IS_F16, &rope, &rotation, 1, 64, src, 130, dst, 140, 3);
    for (size_t r = 0; r < 3; r++) {
        assert_memory_equal(dst + r * 140, src + r * 130, 128);
        for (size_t i = 128; i < 140; i++) assert_int_equal(dst[r * 140 + i], 0x5a);
    }
}

static void short_runs_are_copied_whole(void **state)
{
    (void)state;
    enum { RUNS = 3, MOST = 1100 };
    uint8_t *src = malloc(RUNS * (MOST + 5)), *dst = malloc(RUNS * (MOST + 9));
    for (size_t i = 0; i < RUNS * (MOST + 5); i++) src[i] = (uint8_t)random32();
    for (size_t bytes = 0; bytes <= MOST; bytes += bytes < 200 ? 1 : 37) {
        memset(dst, 0x5a, RUNS * (MOST + 9));
        is_copy_runs(dst, bytes + 9, src, bytes + 5, bytes, RUNS);
        for (size_t r = 0; r < RUNS; r++) {
            assert_memory_equal(dst + r * (bytes + 9), src + r * (bytes + 5), bytes);
            for (size_t i = bytes; i < bytes + 9; i++) assert_int_equal(dst[r * (bytes + 9) + i], 0x5a);
        }
    }
    is_copy_runs(dst, 7, src, 7, 7, RUNS);
    assert_memory_equal(dst, src, 7 * RUNS);
    free(src);
    free(dst);
}

static void instruction_sets_have_names(void **state)
{
    (void)state;
    assert_true(is_isa_supported(IS_ISA_C));
    assert_true(is_isa_supported(is_isa_best()));
    assert_false(is_isa_supported((is_isa)99));
    assert_string_equal(is_isa_name(IS_ISA_AVX512), "AVX-512");
#ifdef __x86_64__
    assert_false(is_isa_supported(IS_ISA_NEON));
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(half_conversions),
        cmocka_unit_test(rotation_is_within_one_rounding),
        cmocka_unit_test(a_moved_row_is_the_row_made_there),
        cmocka_unit_test(moves_add_up),
        cmocka_unit_test(every_instruction_set_equals_c),
        cmocka_unit_test(no_move_is_a_copy),
        cmocka_unit_test(short_runs_are_copied_whole),
        cmocka_unit_test(instruction_sets_have_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
