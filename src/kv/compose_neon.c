/*
 * Rotation with NEON (AArch64): four elements a step; what is left of a slice is done by the C twin.
 *
 * The same operations in the same order as the C twin: two products, one sum, one rounding.
 */
#include "compose_isa.h"

#ifdef __aarch64__

#include <arm_neon.h>

#define INLINE static inline __attribute__((always_inline))

INLINE float32x4_t load(is_dtype dtype, const uint8_t *from)
{
    if (dtype == IS_F32) return vreinterpretq_f32_u8(vld1q_u8(from));
    uint16x4_t half = vreinterpret_u16_u8(vld1_u8(from));
    if (dtype == IS_F16) return vcvt_f32_f16(vreinterpret_f16_u16(half));
    return vreinterpretq_f32_u32(vshll_n_u16(half, 16));
}

INLINE uint16x4_t to_bf16(float32x4_t x)
{
    uint32x4_t bits = vreinterpretq_u32_f32(x);
    uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    return vshrn_n_u32(vbslq_u32(vceqq_f32(x, x), rounded, quiet), 16);
}

INLINE void store(is_dtype dtype, uint8_t *to, float32x4_t x)
{
    if (dtype == IS_F32)
        vst1q_u8(to, vreinterpretq_u8_f32(x));
    else if (dtype == IS_F16)
        vst1_u8(to, vreinterpret_u8_f16(vcvt_f16_f32(x)));
    else
        vst1_u8(to, vreinterpret_u8_u16(to_bf16(x)));
}

INLINE void pair_step(is_dtype dtype, const is_rotate_job *job, const uint8_t *src, uint8_t *dst, uint32_t at)
{
    size_t place = at * is_element(dtype);
    float32x4_t x = load(dtype, src + place);
    float32x4_t a = vmulq_f32(x, vld1q_f32(job->cos + at));
    float32x4_t b = vmulq_f32(vrev64q_f32(x), vld1q_f32(job->sin + at));
    store(dtype, dst + place, vaddq_f32(a, b));
}

INLINE void half_step(is_dtype dtype, const is_rotate_job *job, const uint8_t *src, uint8_t *dst, uint32_t at)
{
    size_t low = at * is_element(dtype);
    size_t high = low + job->width / 2 * is_element(dtype);
    float32x4_t x0 = load(dtype, src + low);
    float32x4_t x1 = load(dtype, src + high);
    float32x4_t c = vld1q_f32(job->cos + at);
    float32x4_t s = vld1q_f32(job->sin + at);
    store(dtype, dst + low, vsubq_f32(vmulq_f32(x0, c), vmulq_f32(x1, s)));
    store(dtype, dst + high, vaddq_f32(vmulq_f32(x0, s), vmulq_f32(x1, c)));
}

/* dtype and style are constants where this is inlined, so each of the six uses has loops of its own. */
INLINE void rotate(is_dtype dtype, is_rope_style style, const is_rotate_job *given)
{
    const is_rotate_job copy = *given; /* stores through dst cannot change this one, so it stays in registers */
    const is_rotate_job *job = &copy;
    size_t head_bytes = job->k_dim * is_element(dtype);
    size_t slice = job->offset * is_element(dtype);
    uint32_t steps = style == IS_ROPE_PAIR ? job->width : job->width / 2;
    uint32_t whole = steps / 4 * 4;
    for (size_t row = 0; row < job->n; row++) {
        is_prefetch_next(job, row);
        const uint8_t *src = job->src + row * job->src_stride;
        uint8_t *dst = job->dst + row * job->dst_stride;
        for (uint32_t head = 0; head < job->heads; head++, src += head_bytes, dst += head_bytes) {
            for (uint32_t at = 0; at < whole; at += 4) {
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

void is_rotate_neon(is_dtype dtype, is_rope_style style, const is_rotate_job *job)
{
    if (dtype == IS_F16)
        style == IS_ROPE_PAIR ? rotate(IS_F16, IS_ROPE_PAIR, job) : rotate(IS_F16, IS_ROPE_HALF, job);
    else if (dtype == IS_BF16)
        style == IS_ROPE_PAIR ? rotate(IS_BF16, IS_ROPE_PAIR, job) : rotate(IS_BF16, IS_ROPE_HALF, job);
    else
        style == IS_ROPE_PAIR ? rotate(IS_F32, IS_ROPE_PAIR, job) : rotate(IS_F32, IS_ROPE_HALF, job);
}

#endif
