/*
 * Rotation with AVX-512: sixteen elements a step, and a masked step for what is left of a slice, so
 * every width runs at full speed.
 *
 * The same operations in the same order as the C twin: two products, one sum, one rounding.
 */
#include "compose_isa.h"

#ifdef __x86_64__

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))

INLINE __m512 load(is_dtype dtype, const uint8_t *from, __mmask16 mask)
{
    if (dtype == IS_F32) return _mm512_maskz_loadu_ps(mask, from);
    __m256i half = _mm256_maskz_loadu_epi16(mask, from);
    if (dtype == IS_F16) return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

INLINE __m256i to_bf16(__m512 x)
{
    __m512i bits = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, quiet), 16));
}

INLINE void store(is_dtype dtype, uint8_t *to, __mmask16 mask, __m512 x)
{
    if (dtype == IS_F32)
        _mm512_mask_storeu_ps(to, mask, x);
    else if (dtype == IS_F16)
        _mm256_mask_storeu_epi16(to, mask, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    else
        _mm256_mask_storeu_epi16(to, mask, to_bf16(x));
}

INLINE void pair_step(is_dtype dtype, const is_rotate_job *job, const uint8_t *src, uint8_t *dst, uint32_t at,
                      __mmask16 mask)
{
    size_t place = at * is_element(dtype);
    __m512 x = load(dtype, src + place, mask);
    __m512 swapped = _mm512_permute_ps(x, _MM_SHUFFLE(2, 3, 0, 1));
    __m512 a = _mm512_mul_ps(x, _mm512_maskz_loadu_ps(mask, job->cos + at));
    __m512 b = _mm512_mul_ps(swapped, _mm512_maskz_loadu_ps(mask, job->sin + at));
    store(dtype, dst + place, mask, _mm512_add_ps(a, b));
}

INLINE void half_step(is_dtype dtype, const is_rotate_job *job, const uint8_t *src, uint8_t *dst, uint32_t at,
                      __mmask16 mask)
{
    size_t low = at * is_element(dtype);
    size_t high = low + job->width / 2 * is_element(dtype);
    __m512 x0 = load(dtype, src + low, mask);
    __m512 x1 = load(dtype, src + high, mask);
    __m512 c = _mm512_maskz_loadu_ps(mask, job->cos + at);
    __m512 s = _mm512_maskz_loadu_ps(mask, job->sin + at);
    store(dtype, dst + low, mask, _mm512_sub_ps(_mm512_mul_ps(x0, c), _mm512_mul_ps(x1, s)));
    store(dtype, dst + high, mask, _mm512_add_ps(_mm512_mul_ps(x0, s), _mm512_mul_ps(x1, c)));
}

/* dtype and style are constants where this is inlined, so each of the six uses has loops of its own. */
INLINE void rotate(is_dtype dtype, is_rope_style style, const is_rotate_job *given)
{
    const is_rotate_job copy = *given; /* stores through dst cannot change this one, so it stays in registers */
    const is_rotate_job *job = &copy;
    size_t element = is_element(dtype);
    uint32_t steps = style == IS_ROPE_PAIR ? job->width : job->width / 2;
    __mmask16 rest = (__mmask16)((1u << steps % 16) - 1);
    for (size_t row = 0; row < job->n; row++) {
        is_prefetch_next(job, row);
        const uint8_t *src = job->src + row * job->src_stride + job->offset * element;
        uint8_t *dst = job->dst + row * job->dst_stride + job->offset * element;
        for (uint32_t head = 0; head < job->heads; head++) {
            uint32_t at = 0;
            for (; at + 16 <= steps; at += 16) {
                if (style == IS_ROPE_PAIR)
                    pair_step(dtype, job, src, dst, at, 0xffff);
                else
                    half_step(dtype, job, src, dst, at, 0xffff);
            }
            if (rest != 0 && style == IS_ROPE_PAIR) pair_step(dtype, job, src, dst, at, rest);
            if (rest != 0 && style == IS_ROPE_HALF) half_step(dtype, job, src, dst, at, rest);
            src += job->k_dim * element;
            dst += job->k_dim * element;
        }
    }
}

void is_rotate_avx512(is_dtype dtype, is_rope_style style, const is_rotate_job *job)
{
    if (dtype == IS_F16)
        style == IS_ROPE_PAIR ? rotate(IS_F16, IS_ROPE_PAIR, job) : rotate(IS_F16, IS_ROPE_HALF, job);
    else if (dtype == IS_BF16)
        style == IS_ROPE_PAIR ? rotate(IS_BF16, IS_ROPE_PAIR, job) : rotate(IS_BF16, IS_ROPE_HALF, job);
    else
        style == IS_ROPE_PAIR ? rotate(IS_F32, IS_ROPE_PAIR, job) : rotate(IS_F32, IS_ROPE_HALF, job);
}

#endif
