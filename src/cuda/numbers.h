/*
 * Elements and their conversions, the same on the device and in plain C: round to nearest, ties to even.
 */
#ifndef IS_CUDA_NUMBERS_H
#define IS_CUDA_NUMBERS_H

#include "kernel.h"
#include "move.h"

#ifdef __CUDACC__

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

/* Single operations with a rounding of their own: the compiler makes no fused ones of them. */
#define IS_MUL(a, b) __fmul_rn((a), (b))
#define IS_SUM(a, b) __fadd_rn((a), (b))
#define IS_DIV(a, b) __fdiv_rn((a), (b))

IS_DEVICE float is_cell_load16(uint32_t cell, uint16_t bits)
{
    return cell == IS_CELL_F16 ? __half2float(__ushort_as_half(bits)) : __bfloat162float(__ushort_as_bfloat16(bits));
}

IS_DEVICE uint16_t is_cell_store16(uint32_t cell, float value)
{
    return cell == IS_CELL_F16 ? __half_as_ushort(__float2half_rn(value))
                               : __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

IS_DEVICE float is_e4m3_load(uint8_t bits)
{
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(bits, __NV_E4M3)));
}

/* What is too large becomes the largest. */
IS_DEVICE uint8_t is_e4m3_store(float value)
{
    return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
}

#else

#include <math.h>
#include <string.h>

#include "../kv/compose.h"

#define IS_MUL(a, b) ((a) * (b)) /* the build forbids contraction */
#define IS_SUM(a, b) ((a) + (b))
#define IS_DIV(a, b) ((a) / (b))

IS_DEVICE float is_cell_load16(uint32_t cell, uint16_t bits)
{
    return cell == IS_CELL_F16 ? is_f16_to_f32(bits) : is_bf16_to_f32(bits);
}

IS_DEVICE uint16_t is_cell_store16(uint32_t cell, float value)
{
    return cell == IS_CELL_F16 ? is_f32_to_f16(value) : is_f32_to_bf16(value);
}

/* 1 sign bit, 4 of the exponent with bias 7, 3 of the mantissa; 0x7f is NaN (Micikevicius et al., arXiv 2209.05433). */
IS_DEVICE float is_e4m3_load(uint8_t bits)
{
    int exponent = bits >> 3 & 15, mantissa = bits & 7;
    float value = exponent == 0 ? (float)mantissa * 0x1p-9f : ldexpf(1.0f + (float)mantissa / 8, exponent - 7);
    if ((bits & 0x7f) == 0x7f) value = NAN;
    return (bits & 0x80) != 0 ? -value : value;
}

IS_DEVICE uint8_t is_e4m3_store(float value)
{
    uint8_t sign = signbit(value) ? 0x80 : 0;
    float magnitude = fabsf(value);
    int exponent;
    if (isnan(value)) return sign | 0x7f;
    if (magnitude >= 448) return sign | 0x7e;
    if (magnitude < 0x1p-6f) return (uint8_t)(sign | (int)rintf(magnitude * 0x1p9f)); /* steps of 2^-9; 8 is 2^-6 */
    float fraction = frexpf(magnitude, &exponent);                                    /* in [1/2, 1) */
    int steps = (int)rintf(fraction * 16);                                            /* 8 to 16; 16 carries */
    return (uint8_t)(sign | (((exponent + 6) << 3) + steps - 8));
}

#endif

#endif
