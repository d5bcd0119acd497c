/* The scan with NEON: four elements a step and sum, two sums a row. */
#include "scan_isa.h"

#if defined(__aarch64__)

#include <arm_neon.h>

static inline float32x4_t load4(const uint16_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}

static void four_rows(const float *query, const uint16_t *row, uint32_t dim, float *scores)
{
    float32x4_t sum[4][2];
    for (int r = 0; r < 4; r++) sum[r][0] = sum[r][1] = vdupq_n_f32(0);
    for (uint32_t j = 0; j < dim; j += 8) {
        float32x4_t low = vld1q_f32(query + j);
        float32x4_t high = vld1q_f32(query + j + 4);
        for (int r = 0; r < 4; r++) {
            const uint16_t *p = row + (size_t)r * dim + j;
            sum[r][0] = vfmaq_f32(sum[r][0], low, load4(p));
            sum[r][1] = vfmaq_f32(sum[r][1], high, load4(p + 4));
        }
    }
    for (int r = 0; r < 4; r++) scores[r] = vaddvq_f32(vaddq_f32(sum[r][0], sum[r][1]));
}

void is_scan_dot_neon(const float *query, const uint16_t *rows, size_t n, uint32_t dim, float *scores)
{
    size_t i = 0;
    for (; i + 4 <= n; i += 4) four_rows(query, rows + i * dim, dim, scores + i);
    for (; i < n; i++) {
        const uint16_t *row = rows + i * dim;
        float32x4_t low = vdupq_n_f32(0);
        float32x4_t high = low;
        for (uint32_t j = 0; j < dim; j += 8) {
            low = vfmaq_f32(low, vld1q_f32(query + j), load4(row + j));
            high = vfmaq_f32(high, vld1q_f32(query + j + 4), load4(row + j + 4));
        }
        scores[i] = vaddvq_f32(vaddq_f32(low, high));
    }
}

#endif
