/*
 * Compose in plain C: number conversions, the rotation that every SIMD path must equal bit for bit,
 * and the copy of short runs.
 */
#include "compose_isa.h"

#include <string.h>

#define INLINE static inline __attribute__((always_inline))

/* ----------------------------------------------------------- conversions */

INLINE uint32_t bits_of(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

INLINE float float_of(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

INLINE float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t exponent = (h >> 10) & 31;
    uint32_t mantissa = h & 0x3ffu;
    if (exponent == 31) return float_of(sign | 0x7f800000 | mantissa << 13);
    if (exponent != 0) return float_of(sign | (exponent + 127 - 15) << 23 | mantissa << 13);
    return float_of(sign | bits_of((float)mantissa * 0x1p-24f)); /* subnormal: a multiple of 2^-24 */
}

INLINE uint16_t f32_to_f16(float f)
{
    uint32_t sign = bits_of(f) >> 16 & 0x8000;
    uint32_t magnitude = bits_of(f) & 0x7fffffff;
    if (magnitude > 0x7f800000) /* NaN stays one, and is made quiet */
        return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x1ff));
    if (magnitude >= 0x477ff000) /* 65520, half-way between the largest f16 and 2^16: infinity */
        return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000) /* below 2^-14: the unit in the last place of [0.5, 1) is the subnormals' step */
        return (uint16_t)(sign | (bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f)));
    magnitude += 0xfff + (magnitude >> 13 & 1);
    return (uint16_t)(sign | (magnitude - (112u << 23)) >> 13);
}

INLINE float bf16_to_f32(uint16_t h)
{
    return float_of((uint32_t)h << 16);
}

INLINE uint16_t f32_to_bf16(float f)
{
    uint32_t bits = bits_of(f);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float is_f16_to_f32(uint16_t h)
{
    return f16_to_f32(h);
}

uint16_t is_f32_to_f16(float f)
{
    return f32_to_f16(f);
}

float is_bf16_to_f32(uint16_t h)
{
    return bf16_to_f32(h);
}

uint16_t is_f32_to_bf16(float f)
{
    return f32_to_bf16(f);
}

INLINE float load(is_dtype dtype, const uint8_t *from, size_t index)
{
    if (dtype == IS_F32) {
        float f;
        memcpy(&f, from + index * sizeof f, sizeof f);
        return f;
    }
    uint16_t h;
    memcpy(&h, from + index * sizeof h, sizeof h);
    return dtype == IS_F16 ? f16_to_f32(h) : bf16_to_f32(h);
}

INLINE void store(is_dtype dtype, uint8_t *to, size_t index, float f)
{
    if (dtype == IS_F32) {
        memcpy(to + index * sizeof f, &f, sizeof f);
        return;
    }
    uint16_t h = dtype == IS_F16 ? f32_to_f16(f) : f32_to_bf16(f);
    memcpy(to + index * sizeof h, &h, sizeof h);
}

/* -------------------------------------------------------------- rotation */

/* dtype and style are constants where this is inlined, so each of the six uses has a loop of its own. */
INLINE void rotate_pairs(is_dtype dtype, is_rope_style style, const is_rotate_job *job, const uint8_t *src,
                         uint8_t *dst, uint32_t first)
{
    uint32_t pairs = job->width / 2;
    for (uint32_t i = first; i < pairs; i++) {
        uint32_t at0 = job->offset + (style == IS_ROPE_PAIR ? 2 * i : i);
        uint32_t at1 = style == IS_ROPE_PAIR ? at0 + 1 : at0 + pairs;
        float c = style == IS_ROPE_PAIR ? job->cos[2 * i] : job->cos[i];
        float s = style == IS_ROPE_PAIR ? job->sin[2 * i + 1] : job->sin[i];
        float x0 = load(dtype, src, at0);
        float x1 = load(dtype, src, at1);
        store(dtype, dst, at0, x0 * c - x1 * s);
        store(dtype, dst, at1, x0 * s + x1 * c);
    }
}

void is_rotate_pairs_c(is_dtype dtype, is_rope_style style, const is_rotate_job *job, const uint8_t *src, uint8_t *dst,
                       uint32_t first)
{
    if (dtype == IS_F16)
        style == IS_ROPE_PAIR ? rotate_pairs(IS_F16, IS_ROPE_PAIR, job, src, dst, first)
                              : rotate_pairs(IS_F16, IS_ROPE_HALF, job, src, dst, first);
    else if (dtype == IS_BF16)
        style == IS_ROPE_PAIR ? rotate_pairs(IS_BF16, IS_ROPE_PAIR, job, src, dst, first)
                              : rotate_pairs(IS_BF16, IS_ROPE_HALF, job, src, dst, first);
    else
        style == IS_ROPE_PAIR ? rotate_pairs(IS_F32, IS_ROPE_PAIR, job, src, dst, first)
                              : rotate_pairs(IS_F32, IS_ROPE_HALF, job, src, dst, first);
}

void is_rotate_c(is_dtype dtype, is_rope_style style, const is_rotate_job *job)
{
    size_t head_bytes = job->k_dim * is_element(dtype);
    for (size_t row = 0; row < job->n; row++)
        for (uint32_t head = 0; head < job->heads; head++)
            is_rotate_pairs_c(dtype, style, job, job->src + row * job->src_stride + head * head_bytes,
                              job->dst + row * job->dst_stride + head * head_bytes, 0);
}

/* ------------------------------------------------------------------ runs */

/* memcpy of a fixed size compiles to loads and stores of registers; a call for each run of 80 bytes would cost more. */
#define COPY(dst, src, at, size)                                                                                       \
    do {                                                                                                               \
        uint8_t block_[size];                                                                                          \
        memcpy(block_, (src) + (at), size);                                                                            \
        memcpy((dst) + (at), block_, size);                                                                            \
    } while (0)

/* Below 16 bytes: two blocks of a power of two, which overlap where they must. */
static void copy_short(uint8_t *dst, const uint8_t *src, size_t bytes)
{
    if (bytes >= 8) {
        COPY(dst, src, 0, 8);
        COPY(dst, src, bytes - 8, 8);
    } else if (bytes >= 4) {
        COPY(dst, src, 0, 4);
        COPY(dst, src, bytes - 4, 4);
    } else if (bytes >= 2) {
        COPY(dst, src, 0, 2);
        COPY(dst, src, bytes - 2, 2);
    } else if (bytes == 1) {
        dst[0] = src[0];
    }
}

/* Blocks of 16, and one more that ends with the run. */
static inline void copy_run(uint8_t *dst, const uint8_t *src, size_t bytes)
{
    size_t at = 0;
    for (; at + 64 <= bytes; at += 64) {
        COPY(dst, src, at, 16);
        COPY(dst, src, at + 16, 16);
        COPY(dst, src, at + 32, 16);
        COPY(dst, src, at + 48, 16);
    }
    for (; at + 16 <= bytes; at += 16) COPY(dst, src, at, 16);
    if (at < bytes) COPY(dst, src, bytes - 16, 16);
}

void is_copy_runs(uint8_t *dst, size_t dst_stride, const uint8_t *src, size_t src_stride, size_t bytes, size_t n)
{
    const size_t long_run = 1024; /* from here on libc's memcpy is worth its call */
    if (bytes == dst_stride && bytes == src_stride) {
        memcpy(dst, src, bytes * n);
    } else if (bytes >= long_run) {
        for (size_t i = 0; i < n; i++) memcpy(dst + i * dst_stride, src + i * src_stride, bytes);
    } else if (bytes >= 16) {
        for (size_t i = 0; i < n; i++) copy_run(dst + i * dst_stride, src + i * src_stride, bytes);
    } else {
        for (size_t i = 0; i < n; i++) copy_short(dst + i * dst_stride, src + i * src_stride, bytes);
    }
}

#ifdef __x86_64__

#include <emmintrin.h>

/* Bytes up to the next line, whole lines past the caches, and the rest. */
static void stream_run(uint8_t *dst, const uint8_t *src, size_t bytes)
{
    size_t head = (size_t)(-(uintptr_t)dst & 63);
    if (bytes < 64 + head) {
        memcpy(dst, src, bytes);
        return;
    }
    memcpy(dst, src, head);
    size_t at = head;
    for (; at + 64 <= bytes; at += 64) {
        const __m128i *from = (const __m128i *)(const void *)(src + at);
        __m128i *to = (__m128i *)(void *)(dst + at);
        for (int i = 0; i < 4; i++) _mm_stream_si128(to + i, _mm_loadu_si128(from + i));
    }
    memcpy(dst + at, src + at, bytes - at);
}

void is_stream_runs(uint8_t *dst, size_t dst_stride, const uint8_t *src, size_t src_stride, size_t bytes, size_t n)
{
    if (bytes == dst_stride && bytes == src_stride) {
        stream_run(dst, src, bytes * n);
        return;
    }
    for (size_t i = 0; i < n; i++) stream_run(dst + i * dst_stride, src + i * src_stride, bytes);
}

void is_stream_end(void)
{
    _mm_sfence();
}

#else

void is_stream_runs(uint8_t *dst, size_t dst_stride, const uint8_t *src, size_t src_stride, size_t bytes, size_t n)
{
    is_copy_runs(dst, dst_stride, src, src_stride, bytes, n);
}

void is_stream_end(void) {}

#endif
