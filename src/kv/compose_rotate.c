/*
 * Which instruction set does a rotation, and everything about a rotation that is the same in all of
 * them: a move by nothing is a copy, elements outside the rotary slice are copied, and the angles are
 * laid out as compose_isa.h says.
 */
#include "compose_isa.h"

/* ----------------------------------------------------- instruction sets */

bool is_isa_supported(is_isa isa)
{
    if (isa == IS_ISA_C) return true;
#if defined(__x86_64__)
    /* Every processor with AVX2 has F16C; the compilers' builtin does not know that name everywhere. */
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (isa == IS_ISA_AVX2) return avx2;
    if (isa == IS_ISA_AVX512)
        return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#elif defined(__aarch64__)
    if (isa == IS_ISA_NEON) return true;
#endif
    return false;
}

is_isa is_isa_best(void)
{
    static const is_isa by_speed[] = {IS_ISA_AVX512, IS_ISA_AVX2, IS_ISA_NEON};
    for (size_t i = 0; i < sizeof by_speed / sizeof *by_speed; i++)
        if (is_isa_supported(by_speed[i])) return by_speed[i];
    return IS_ISA_C;
}

const char *is_isa_name(is_isa isa)
{
    switch (isa) {
    case IS_ISA_C: return "C";
    case IS_ISA_AVX2: return "AVX2";
    case IS_ISA_AVX512: return "AVX-512";
    case IS_ISA_NEON: return "NEON";
    }
    return "unknown";
}

static void rotate_slices(is_isa isa, is_dtype dtype, is_rope_style style, const is_rotate_job *job)
{
    switch (is_isa_supported(isa) ? isa : IS_ISA_C) {
#if defined(__x86_64__)
    case IS_ISA_AVX2: is_rotate_avx2(dtype, style, job); return;
    case IS_ISA_AVX512: is_rotate_avx512(dtype, style, job); return;
#elif defined(__aarch64__)
    case IS_ISA_NEON: is_rotate_neon(dtype, style, job); return;
#endif
    default: is_rotate_c(dtype, style, job); return;
    }
}

/* -------------------------------------------------------------- rotation */

/* The elements of each head that no angle touches. */
static void copy_outside(const is_rotate_job *job, size_t element)
{
    size_t head = job->k_dim * element;
    size_t front = job->offset * element;
    size_t back = (job->offset + job->width) * element;
    for (size_t row = 0; row < job->n; row++) {
        const uint8_t *src = job->src + row * job->src_stride;
        uint8_t *dst = job->dst + row * job->dst_stride;
        is_copy_runs(dst, head, src, head, front, job->heads);
        is_copy_runs(dst + back, head, src + back, head, head - back, job->heads);
    }
}

void is_rotate_run(is_isa isa, is_dtype dtype, const is_rope *rope, const is_rotation *rotation, is_rotate_job job)
{
    size_t element = is_dtype_size(dtype);
    if (rotation->identity) {
        if (job.src != job.dst)
            is_copy_runs(job.dst, job.dst_stride, job.src, job.src_stride, job.heads * job.k_dim * element, job.n);
        return;
    }
    job.offset = rope->offset;
    job.width = rope->width;
    job.cos = rotation->cos;
    job.sin = rotation->sin;
    float pair_cos[2 * IS_ROPE_MAX_PAIRS];
    float pair_sin[2 * IS_ROPE_MAX_PAIRS];
    if (rope->style == IS_ROPE_PAIR) {
        for (uint32_t i = 0; i < rope->width / 2; i++) {
            pair_cos[2 * i] = pair_cos[2 * i + 1] = rotation->cos[i];
            pair_sin[2 * i] = -rotation->sin[i];
            pair_sin[2 * i + 1] = rotation->sin[i];
        }
        job.cos = pair_cos;
        job.sin = pair_sin;
    }
    if (job.src != job.dst && rope->width != job.k_dim) copy_outside(&job, element);
    rotate_slices(isa, dtype, rope->style, &job);
}

void is_rotate_rows(is_isa isa, is_dtype dtype, const is_rope *rope, const is_rotation *rotation, uint32_t heads,
                    uint32_t k_dim, const uint8_t *src, size_t src_stride, uint8_t *dst, size_t dst_stride, size_t n)
{
    is_rotate_job job = {.heads = heads,
                         .k_dim = k_dim,
                         .src = src,
                         .dst = dst,
                         .src_stride = src_stride,
                         .dst_stride = dst_stride,
                         .n = n};
    is_rotate_run(isa, dtype, rope, rotation, job);
}
