/*
 * Layouts and frequencies.
 *
 * Frequencies are computed a second time here, in long double and from the papers' words (wavelengths, turns,
 * bands), and compared with constants from a Python session, so that no formula is only
 * compared with itself.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <xxhash.h>

#include "kv/rope.h"

#define PIL 3.141592653589793238462643383279502884L

static void assert_close(double got, long double want)
{
    if (fabsl((long double)got - want) > 1e-12L * fabsl(want)) fail_msg("got %.17g, want %.17g", got, (double)want);
}

/* ---------------------------------------------------------------- layout */

static is_layout small_layout(void)
{
    static is_layout layout;
    memset(&layout, 0, sizeof layout);
    layout.dtype = IS_F16;
    layout.n_layers = 2;
    layout.n_ropes = 1;
    layout.layers[0] = (is_layer){.heads = 3, .k_dim = 64, .v_dim = 32, .window = 0, .rope = 0};
    layout.layers[1] = (is_layer){.heads = 1, .k_dim = 10, .v_dim = 0, .window = 7, .rope = IS_LAYER_NO_ROPE};
    layout.ropes[0] = (is_rope){.style = IS_ROPE_PAIR, .offset = 0, .width = 4, .attention_factor = 1};
    layout.ropes[0].inv_freq[0] = 1;
    layout.ropes[0].inv_freq[1] = 0.25;
    return layout;
}

static void sizes_follow_from_the_fields(void **state)
{
    (void)state;
    is_layout layout = small_layout();
    assert_int_equal(is_dtype_size(IS_F16), 2);
    assert_int_equal(is_dtype_size(IS_BF16), 2);
    assert_int_equal(is_dtype_size(IS_F32), 4);
    assert_int_equal(is_dtype_size((is_dtype)0), 0);
    assert_int_equal(is_dtype_size((is_dtype)4), 0);
    assert_string_equal(is_dtype_name(IS_BF16), "bf16");
    assert_int_equal(is_layer_k_bytes(&layout, 0), 384);
    assert_int_equal(is_layer_v_bytes(&layout, 0), 192);
    assert_int_equal(is_layout_token_bytes(&layout), 384 + 192 + 20);
    assert_int_equal(is_layer_first(&layout.layers[0], 1000), 0);
    assert_int_equal(is_layer_first(&layout.layers[1], 7), 0);
    assert_int_equal(is_layer_first(&layout.layers[1], 8), 1);
}

static void refused(const is_layout *layout, const char *field)
{
    is_error err = {0};
    assert_int_equal(is_layout_check(layout, &err), IS_EINVAL);
    assert_int_equal(err.status, IS_EINVAL);
    if (strstr(err.text, field) == NULL) fail_msg("\"%s\" does not name %s", err.text, field);
    assert_int_equal(is_layout_check(layout, NULL), IS_EINVAL);
}

static void check_bounds_every_field(void **state)
{
    (void)state;
    is_layout good = small_layout();
    assert_int_equal(is_layout_check(&good, NULL), IS_OK);
    is_layout bad;
#define REFUSED(change, field)                                                                                         \
    do {                                                                                                               \
        bad = good;                                                                                                    \
        change;                                                                                                        \
        refused(&bad, field);                                                                                          \
    } while (0)
    REFUSED(bad.dtype = (is_dtype)0, "dtype");
    REFUSED(bad.n_layers = 0, "n_layers");
    REFUSED(bad.n_layers = IS_MAX_LAYERS + 1, "n_layers");
    REFUSED(bad.n_ropes = IS_MAX_ROPES + 1, "n_ropes");
    REFUSED(bad.layers[1].heads = 0, "layer 1: heads");
    REFUSED(bad.layers[1].k_dim = 0, "layer 1: k_dim");
    REFUSED(bad.layers[0].heads = 1u << 20, "layer 0: heads * k_dim");
    REFUSED(bad.layers[0].v_dim = UINT32_MAX, "layer 0: heads * v_dim");
    REFUSED(bad.layers[0].rope = 1, "layer 0: rope");
    REFUSED(bad.layers[0].k_dim = 3, "k_dim 3");
    REFUSED(bad.ropes[0].offset = 61, "rotary slice 61 + 4");
    REFUSED(bad.ropes[0].offset = UINT32_MAX, "rotary slice");
    REFUSED(bad.ropes[0].style = (is_rope_style)3, "rope 0: style");
    REFUSED(bad.ropes[0].width = 0, "rope 0: width");
    REFUSED(bad.ropes[0].width = 5, "rope 0: width");
    REFUSED(bad.ropes[0].width = 2 * IS_ROPE_MAX_PAIRS + 2, "rope 0: width");
    REFUSED(bad.ropes[0].attention_factor = NAN, "rope 0: attention_factor");
    REFUSED(bad.ropes[0].inv_freq[1] = INFINITY, "rope 0: inv_freq[1]");
#undef REFUSED
    good.ropes[0].offset = 60; /* the last place where the slice fits */
    assert_int_equal(is_layout_check(&good, NULL), IS_OK);
}

static uint8_t *put32(uint8_t *at, uint32_t value)
{
    for (int i = 0; i < 4; i++) *at++ = (uint8_t)(value >> (8 * i));
    return at;
}

static void hash_is_xxh3_of_the_fields_in_order(void **state)
{
    (void)state;
    is_layout layout = small_layout();
    uint8_t bytes[128];
    uint8_t *at = bytes;
    const uint32_t fields[] = {1, 0, 2, 1, /**/ 3, 64, 32, 0, 0, /**/ 1, 10, 0, 7, UINT32_MAX, /**/ 1, 0, 4};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) at = put32(at, fields[i]);
    at = put32(at, 0x3f800000);            /* 1.0f */
    at = put32(put32(at, 0), 0x3ff00000u); /* 1.0  */
    at = put32(put32(at, 0), 0x3fd00000u); /* 0.25 */
    XXH128_canonical_t want;
    XXH128_canonicalFromHash(&want, XXH3_128bits(bytes, (size_t)(at - bytes)));
    uint8_t got[16];
    is_layout_hash(&layout, got);
    assert_memory_equal(got, want.digest, 16);
}

static void hash_sees_every_field_and_nothing_else(void **state)
{
    (void)state;
    is_layout base = small_layout();
    uint8_t want[16], got[16];
    is_layout_hash(&base, want);
    is_layout other = base;
    other.layers[2].heads = 9; /* behind n_layers */
    other.ropes[1].width = 8;  /* behind n_ropes */
    other.ropes[0].inv_freq[2] = 3;
    is_layout_hash(&other, got);
    assert_memory_equal(got, want, 16);
#define SEEN(change)                                                                                                   \
    do {                                                                                                               \
        other = base;                                                                                                  \
        change;                                                                                                        \
        is_layout_hash(&other, got);                                                                                   \
        assert_memory_not_equal(got, want, 16);                                                                        \
    } while (0)
    SEEN(other.dtype = IS_BF16);
    SEEN(other.v_transposed = true);
    SEEN(other.n_layers = 1);
    SEEN(other.n_ropes = 0);
    SEEN(other.layers[0].heads = 4);
    SEEN(other.layers[0].k_dim = 65);
    SEEN(other.layers[1].v_dim = 1);
    SEEN(other.layers[1].window = 8);
    SEEN(other.layers[1].rope = 0);
    SEEN(other.ropes[0].style = IS_ROPE_HALF);
    SEEN(other.ropes[0].offset = 1);
    SEEN(other.ropes[0].width = 2);
    SEEN(other.ropes[0].attention_factor = 1.5f);
    SEEN(other.ropes[0].inv_freq[1] = nextafter(0.25, 1));
#undef SEEN
}

/* ----------------------------------------------------------- frequencies */

static is_rope rope_of(is_rope_params params)
{
    is_rope rope;
    is_error err = {0};
    if (params.style == 0) params.style = IS_ROPE_HALF;
    if (is_rope_init(&rope, &params, &err) != IS_OK) fail_msg("%s", err.text);
    assert_int_equal(rope.style, params.style);
    assert_int_equal(rope.offset, params.offset);
    assert_int_equal(rope.width, params.width);
    return rope;
}

/* Tokens until pair i has turned once round, before any scaling. */
static long double wavelength(double base, uint32_t width, uint32_t i)
{
    return 2 * PIL * expl(logl((long double)base) * 2 * i / width);
}

static void plain_and_linear(void **state)
{
    (void)state;
    is_rope plain = rope_of((is_rope_params){.width = 64, .base = 10000});
    is_rope linear = rope_of((is_rope_params){.width = 64, .base = 10000, .scaling = IS_SCALING_LINEAR, .factor = 2.5});
    for (uint32_t i = 0; i < 32; i++) {
        assert_close(plain.inv_freq[i], 2 * PIL / wavelength(10000, 64, i));
        assert_close(linear.inv_freq[i] * 2.5, 2 * PIL / wavelength(10000, 64, i));
    }
    assert_close(plain.inv_freq[17], 0.007498942093324558L); /* Python: 10000.0 ** (-2 * 17 / 64) */
    assert_true(plain.attention_factor == 1.0f && linear.attention_factor == 1.0f);
}

static void frequency_factors_divide(void **state)
{
    (void)state;
    float factors[32];
    for (int i = 0; i < 32; i++) factors[i] = 1 + (float)i / 4;
    is_rope_params params = {.width = 64, .base = 500000, .scaling = IS_SCALING_LINEAR, .factor = 3};
    is_rope without = rope_of(params);
    params.factors = factors;
    is_rope with = rope_of(params);
    for (int i = 0; i < 32; i++) assert_close(with.inv_freq[i] * (1 + i / 4.0), (long double)without.inv_freq[i]);
}

static const is_rope_params yarn_params = {.width = 128,
                                           .base = 1e6,
                                           .scaling = IS_SCALING_YARN,
                                           .factor = 4,
                                           .original_context = 32768,
                                           .beta_fast = 32,
                                           .beta_slow = 1,
                                           .extrapolation = 1};

static void yarn(void **state)
{
    (void)state;
    is_rope rope = rope_of(yarn_params);
    /* The first and the last pair of the ramp, found by counting turns instead of by logarithms. */
    uint32_t low = 0, high = 0;
    while (32768 / wavelength(1e6, 128, low + 1) >= 32) low++;
    while (32768 / wavelength(1e6, 128, high) > 1) high++;
    assert_int_equal(low, 23);
    assert_int_equal(high, 40);
    for (uint32_t i = 0; i < 64; i++) {
        long double plain = 2 * PIL / wavelength(1e6, 128, i);
        long double share = i <= low ? 0 : i >= high ? 1 : (long double)(i - low) / (high - low);
        assert_close(rope.inv_freq[i], plain * (1 - share) + plain / 4 * share);
    }
    /* Python: f = b**(-2*i/w); t = (i-23)/(40-23); f/4*t + f*(1-t) */
    assert_close(rope.inv_freq[30], 0.001064360981247002L);
    assert_close(rope.inv_freq[38], 9.262301704129457e-05L);
    assert_close(rope.inv_freq[63], 3.102344401879299e-07L);
    assert_close((double)rope.attention_factor, (long double)(float)1.138629436111989); /* 0.1 * math.log(4) + 1 */
}

static void yarn_options(void **state)
{
    (void)state;
    is_rope full = rope_of(yarn_params);
    is_rope_params params = yarn_params;
    params.extrapolation = 0;
    params.attention_factor = 1.75;
    is_rope none = rope_of(params);
    params.extrapolation = 0.5;
    is_rope half = rope_of(params);
    for (uint32_t i = 0; i < 64; i++) {
        assert_close(none.inv_freq[i], 2 * PIL / wavelength(1e6, 128, i) / 4);
        assert_close(half.inv_freq[i], ((long double)none.inv_freq[i] + (long double)full.inv_freq[i]) / 2);
    }
    assert_true(half.attention_factor == 1.75f);
    params.extrapolation = 1;
    params.beta_slow = params.beta_fast = 4; /* a ramp of hardly any length, and no division by zero */
    is_rope step = rope_of(params);
    for (uint32_t i = 0; i < 64; i++) assert_true(isfinite(step.inv_freq[i]));
}

static void llama3(void **state)
{
    (void)state;
    is_rope rope = rope_of((is_rope_params){.width = 128,
                                            .base = 500000,
                                            .scaling = IS_SCALING_LLAMA3,
                                            .factor = 8,
                                            .original_context = 8192,
                                            .low_freq_factor = 1,
                                            .high_freq_factor = 4});
    int bands[3] = {0};
    for (uint32_t i = 0; i < 64; i++) {
        long double length = wavelength(500000, 128, i);
        long double plain = 2 * PIL / length;
        if (length < 8192.0L / 4) {
            assert_close(rope.inv_freq[i], plain);
            bands[0]++;
        } else if (length > 8192) {
            assert_close(rope.inv_freq[i], plain / 8);
            bands[1]++;
        } else {
            long double smooth = (8192 / length - 1) / 3;
            assert_close(rope.inv_freq[i], (1 - smooth) * plain / 8 + smooth * plain);
            bands[2]++;
        }
    }
    assert_true(bands[0] > 5 && bands[1] > 5 && bands[2] > 2);
    /* Python, the same bands in its doubles */
    assert_close(rope.inv_freq[20], 0.016560440080994446L);
    assert_close(rope.inv_freq[29], 0.002166570763503359L);
    assert_close(rope.inv_freq[34], 0.0001785078127679964L);
    assert_close(rope.inv_freq[40], 3.428102195952591e-05L);
}

static void longrope(void **state)
{
    (void)state;
    float far[48], near[48];
    for (int i = 0; i < 48; i++) {
        far[i] = 1 + (float)i;
        near[i] = 1 + (float)i / 64;
    }
    is_rope_params params = {.width = 96,
                             .base = 10000,
                             .scaling = IS_SCALING_LONGROPE,
                             .original_context = 4096,
                             .context = 4096,
                             .long_factors = far,
                             .short_factors = near};
    is_rope rope = rope_of(params);
    for (uint32_t i = 0; i < 48; i++)
        assert_close(rope.inv_freq[i] * (1 + i / 64.0), 2 * PIL / wavelength(10000, 96, i));
    assert_true(rope.attention_factor == 1.0f);
    params.context = 4097;
    rope = rope_of(params);
    for (uint32_t i = 0; i < 48; i++) assert_close(rope.inv_freq[i] * (1.0 + i), 2 * PIL / wavelength(10000, 96, i));
    params.context = 131072;
    rope = rope_of(params);
    /* Python: math.sqrt(1 + math.log(131072/4096) / math.log(4096)) */
    assert_close((double)rope.attention_factor, (long double)(float)1.1902380714238083);
    params.attention_factor = 1.25;
    assert_true(rope_of(params).attention_factor == 1.25f);
}

static void not_made(is_rope_params params, is_status status, const char *field)
{
    is_rope rope;
    is_error err = {0};
    assert_int_equal(is_rope_init(&rope, &params, &err), status);
    if (strstr(err.text, field) == NULL) fail_msg("\"%s\" does not name %s", err.text, field);
}

static void parameters_out_of_range(void **state)
{
    (void)state;
    static const float zero_factor[64] = {1, 0};
    is_rope_params p;
#define NOT_MADE(change, status, field)                                                                                \
    do {                                                                                                               \
        p = yarn_params;                                                                                               \
        p.style = IS_ROPE_PAIR;                                                                                        \
        change;                                                                                                        \
        not_made(p, status, field);                                                                                    \
    } while (0)
    NOT_MADE(p.scaling = IS_SCALING_DYNAMIC, IS_EUNSUPPORTED, "dynamic");
    NOT_MADE(p.scaling = (is_rope_scaling)99, IS_EINVAL, "scaling");
    NOT_MADE(p.style = (is_rope_style)0, IS_EINVAL, "style");
    NOT_MADE(p.width = 0, IS_EINVAL, "width");
    NOT_MADE(p.width = 7, IS_EINVAL, "width");
    NOT_MADE(p.width = 514, IS_EINVAL, "width");
    NOT_MADE(p.base = 1, IS_EINVAL, "base");
    NOT_MADE(p.base = NAN, IS_EINVAL, "base");
    NOT_MADE(p.factor = 0.5, IS_EINVAL, "factor");
    NOT_MADE(p.factor = INFINITY, IS_EINVAL, "factor");
    NOT_MADE(p.attention_factor = -1, IS_EINVAL, "attention_factor");
    NOT_MADE(p.factors = zero_factor, IS_EINVAL, "factors[1]");
    NOT_MADE(p.original_context = 0, IS_EINVAL, "original_context");
    NOT_MADE(p.beta_slow = 0, IS_EINVAL, "beta_slow");
    NOT_MADE(p.beta_slow = 33, IS_EINVAL, "beta_slow");
    NOT_MADE(p.extrapolation = NAN, IS_EINVAL, "extrapolation");
    NOT_MADE(p.scaling = IS_SCALING_LLAMA3, IS_EINVAL, "low_freq_factor");
    NOT_MADE(p.scaling = IS_SCALING_LONGROPE, IS_EINVAL, "context");
    NOT_MADE((p.scaling = IS_SCALING_LONGROPE, p.context = 40000), IS_EINVAL, "long_factors");
    NOT_MADE((p.scaling = IS_SCALING_LONGROPE, p.context = 4000), IS_EINVAL, "short_factors");
    NOT_MADE((p.scaling = IS_SCALING_LONGROPE, p.context = 9, p.original_context = 1), IS_EINVAL, "original_context");
#undef NOT_MADE
}

/* -------------------------------------------------------------- rotation */

static void rotation_is_the_angle_of_the_shift(void **state)
{
    (void)state;
    is_rope rope = rope_of((is_rope_params){.width = 64, .base = 10000});
    const int64_t shifts[] = {1, -1, 40, -1999, 131072, -1048576};
    for (size_t s = 0; s < sizeof shifts / sizeof *shifts; s++) {
        is_rotation rotation;
        is_rotation_init(&rotation, &rope, shifts[s]);
        assert_false(rotation.identity);
        for (uint32_t i = 0; i < 32; i++) {
            long double angle = (long double)shifts[s] * (long double)rope.inv_freq[i];
            assert_true(fabsl((long double)rotation.cos[i] - cosl(angle)) <
                        7e-8L); /* half a float's unit, and a little */
            assert_true(fabsl((long double)rotation.sin[i] - sinl(angle)) < 7e-8L);
        }
    }
    is_rotation none;
    is_rotation_init(&none, &rope, 0);
    assert_true(none.identity);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_follow_from_the_fields),
        cmocka_unit_test(check_bounds_every_field),
        cmocka_unit_test(hash_is_xxh3_of_the_fields_in_order),
        cmocka_unit_test(hash_sees_every_field_and_nothing_else),
        cmocka_unit_test(plain_and_linear),
        cmocka_unit_test(frequency_factors_divide),
        cmocka_unit_test(yarn),
        cmocka_unit_test(yarn_options),
        cmocka_unit_test(llama3),
        cmocka_unit_test(longrope),
        cmocka_unit_test(parameters_out_of_range),
        cmocka_unit_test(rotation_is_the_angle_of_the_shift),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
