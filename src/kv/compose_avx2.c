/*
 * Rotation with AVX2 and F16C: eight elements a step; what is left of a slice is done by the C twin.
 *
 * The same operations in the same order as the C twin: two products, one sum, one rounding.
 */
#include "compose_isa.h"

#ifdef __x86_64__

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))

INLINE __m256 load(is_dtype dtype, const uint8_t *from)
{
    if (dtype == IS_F32) return _mm256_loadu_ps((const float *)(const void *)from);
    __m128i half = _mm_loadu_si128((const __m128i *)(const void *)from);
    if (dtype == IS_F16) return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

INLINE __m128i to_bf16(__m256 x)
{
    __m256i bits = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    __m256i packed = _mm256_packus_epi32(high, high); /* within each 128 bits */
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, _MM_SHUFFLE(3, 1, 2, 0)));
}

INLINE void store(is_dtype dtype, uint8_t *to, __m256 x)
{
    if (dtype == IS_F32)
        _mm256_storeu_ps((float *)(void *)to, x);
    else if (dtype == IS_F16)
        _mm_storeu_si128((__m128i *)(void *)to, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    else
        _mm_storeu_si128((__m128i *)(void *)to, to_bf16(x));
}

INLINE void pair_step(is_dtype dtype, const is_rotate_job *job, const uint8_t *src, uint8_t *dst, uint32_t at)
{
    size_t place = at * is_element(dtype);
    __m256 x = load(dtype, src + place);
    __m256 swapped = _mm256_permute_ps(x, _MM_SHUFFLE(2, 3, 0, 1));
    __m256 a = _mm256_mul_ps(x, _mm256_loadu_ps(job->cos + at));
    __m256 b = _mm256_mul_ps(swapped, _mm256_loadu_ps(job->sin + at));
    store(dtype, dst + place, _mm256_add_ps(a, b));
}

INLINE void half_step(is_dtype dtype, const is_rotate_job *job, const uint8_t *src, uint8_t *dst, uint32_t at)
{
    size_t low = at * is_element(dtype);
    size_t high = low + job->width / 2 * is_element(dtype);
    __m256 x0 = load(dtype, src + low);
    __m256 x1 = load(dtype, src + high);
    __m256 c = _mm256_loadu_ps(job->cos + at);
    __m256 s = _mm256_loadu_ps(job->sin + at);
    store(dtype, dst + low, _mm256_sub_ps(_mm256_mul_ps(x0, c), _mm256_mul_ps(x1, s)));
    store(dtype, dst + high, _mm256_add_ps(_mm256_mul_ps(x0, s), _mm256_mul_ps(x1, c)));
}

/* dtype and style are constants where this is inlined, so each of the six uses has loops of its own. */
INLINE void rotate(is_dtype dtype, is_rope_style style, const is_rotate_job *given)
{
    const is_rotate_job copy = *given; /* stores through dst cannot change this one, so it stays in registers */
    const is_rotate_job *job = &copy;
    size_t head_bytes = job->k_dim * is_element(dtype);
    size_t slice = job->offset * is_element(dtype);
    uint32_t steps = style == IS_ROPE_PAIR ? job->width : job->width / 2;
    uint32_t whole = steps / 8 * 8;
    for (size_t row = 0; row < job->n; row++) {
        is_prefetch_next(job, row);
        const uint8_t *src = job->src + row * job->src_stride;
        uint8_t *dst = job->dst + row * job->dst_stride;
        for (uint32_t head = 0; head < job->heads; head++, src += head_bytes, dst += head_bytes) {
            for (uint32_t at = 0; at < whole; at += 8) {
                if (style == IS_ROPE_PAIR)
                    pair_step(dtype, job, src + slice, dst + slice, at);
                else
                    half_step(dtype, job, src + slice, dst + slice, at);
            }
            if (whole != steps)
                is_rotate_pairs_c(dtype, style, job, src, dst, style == IS_ROPE_PAIR ? whole / 2 : whole);
        }
    }
}

void is_rotate_avx2(is_dtype dtype, is_rope_style style, const is_rotate_job *job)
{
    if (dtype == IS_F16)
        style == IS_ROPE_PAIR ? rotate(IS_F16, IS_ROPE_PAIR, job) : rotate(IS_F16, IS_ROPE_HALF, job);
    else if (dtype == IS_BF16)
        style == IS_ROPE_PAIR ? rotate(IS_BF16, IS_ROPE_PAIR, job) : rotate(IS_BF16, IS_ROPE_HALF, job);
    else
        style == IS_ROPE_PAIR ? rotate(IS_F32, IS_ROPE_PAIR, job) : rotate(IS_F32, IS_ROPE_HALF, job);
}

#endif
