/*
 * What the tests of rotation and compose share: numbers by chance, the meaning of an element's bits, and a rotation in
 * long double.  Nothing here uses the library's conversions from bits, nor its angles.
 */
#ifndef IS_TESTS_KV_REFERENCE_H
#define IS_TESTS_KV_REFERENCE_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kv/compose_isa.h"

static const is_dtype all_dtypes[] = {IS_F16, IS_BF16, IS_F32};
static const is_isa all_isas[] = {IS_ISA_C, IS_ISA_AVX2, IS_ISA_AVX512, IS_ISA_NEON};

/* xorshift64*: the same numbers on every machine. */
static uint64_t seed = 88172645463325252u;
static inline uint32_t random32(void)
{
    seed ^= seed >> 12;
    seed ^= seed << 25;
    seed ^= seed >> 27;
    return (uint32_t)((seed * 2685821657736338717u) >> 32);
}
static inline double random_value(double most)
{
    return ((double)random32() / UINT32_MAX * 2 - 1) * most;
}

/* What 16 bits mean, from the definition of the format. */
static inline double meaning(uint16_t h, int exponent_bits)
{
    int mantissa_bits = 15 - exponent_bits;
    int bias = (1 << (exponent_bits - 1)) - 1;
    int exponent = h >> mantissa_bits & ((1 << exponent_bits) - 1);
    double mantissa = h & ((1 << mantissa_bits) - 1);
    double value = exponent == 0 ? ldexp(mantissa, 1 - bias - mantissa_bits)
                                 : ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
    return h & 0x8000 ? -value : value;
}

static inline double get(is_dtype dtype, const uint8_t *from, size_t i)
{
    if (dtype == IS_F32) {
        float f;
        memcpy(&f, from + 4 * i, 4);
        return (double)f;
    }
    uint16_t h;
    memcpy(&h, from + 2 * i, 2);
    return meaning(h, dtype == IS_F16 ? 5 : 8);
}

static inline void put(is_dtype dtype, uint8_t *to, size_t i, double value)
{
    float f = (float)value;
    uint16_t h = dtype == IS_F16 ? is_f32_to_f16(f) : is_f32_to_bf16(f);
    if (dtype == IS_F32)
        memcpy(to + 4 * i, &f, 4);
    else
        memcpy(to + 2 * i, &h, 2);
}

/* Half of the distance between neighbours at this size: the most that one rounding can move. */
static inline double half_unit(is_dtype dtype, double size)
{
    int exponent; /* size is 0.5 to 1 times 2^exponent */
    (void)frexp(size, &exponent);
    if (dtype == IS_F16) return ldexp(1, (exponent > -13 ? exponent : -13) - 12);
    return ldexp(1, exponent - (dtype == IS_BF16 ? 9 : 25));
}

/* Any finite bits: subnormals, zeros of both signs and the largest values more often than chance would have it. */
static inline void put_any_finite(is_dtype dtype, uint8_t *to, size_t i)
{
    uint32_t bits = random32();
    uint32_t kind = random32() % 8;
    if (dtype == IS_F32) {
        if (kind == 0) bits &= 0x807fffff;
        if (kind == 1) bits &= 0x80000000;
        if (kind == 2) bits |= 0x7f000000;
        if ((bits & 0x7f800000) == 0x7f800000) bits &= ~0x00800000u;
        memcpy(to + 4 * i, &bits, 4);
        return;
    }
    uint32_t exponent = dtype == IS_F16 ? 0x7c00 : 0x7f80;
    uint32_t lowest = exponent & (0u - exponent);
    uint16_t h = (uint16_t)bits;
    if (kind == 0) h &= (uint16_t)~exponent;
    if (kind == 1) h &= 0x8000;
    if (kind == 2) h |= (uint16_t)(exponent & ~lowest);
    if ((h & exponent) == exponent) h &= (uint16_t)~lowest;
    memcpy(to + 2 * i, &h, 2);
}

static inline is_rope rope_of(is_rope_style style, uint32_t offset, uint32_t width)
{
    is_rope rope;
    is_rope_params params = {.style = style, .offset = offset, .width = width, .base = 10000};
    assert_int_equal(is_rope_init(&rope, &params, NULL), IS_OK);
    return rope;
}

/* Which other element turns with this one; false: none. */
static inline bool partner(const is_rope *rope, uint32_t element, uint32_t *other, uint32_t *pair, bool *first)
{
    if (element < rope->offset || element >= rope->offset + rope->width) return false;
    uint32_t at = element - rope->offset;
    if (rope->style == IS_ROPE_PAIR) {
        *first = at % 2 == 0;
        *pair = at / 2;
        *other = *first ? element + 1 : element - 1;
    } else {
        *first = at < rope->width / 2;
        *pair = at % (rope->width / 2);
        *other = *first ? element + rope->width / 2 : element - rope->width / 2;
    }
    return true;
}

/* An element of a head after a move by `shift`, in long double from whatever `head` returns. */
static inline double rotated(const is_rope *rope, is_dtype dtype, const uint8_t *head, uint32_t element, int64_t shift,
                             double *norm)
{
    uint32_t other = 0, pair = 0;
    bool first = false;
    double x = get(dtype, head, element);
    *norm = 0;
    if (!partner(rope, element, &other, &pair, &first)) return x;
    double y = get(dtype, head, other);
    *norm = hypot(x, y);
    long double angle = (long double)shift * (long double)rope->inv_freq[pair];
    long double cosine = cosl(angle), sine = sinl(angle);
    return (double)(first ? (long double)x * cosine - (long double)y * sine
                          : (long double)y * sine + (long double)x * cosine);
}

#endif
