/* The scan with AVX2 and F16C: eight elements a step. */
#include "scan_isa.h"

#if defined(__x86_64__)

#include <immintrin.h>

static inline __m256 load8(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

static inline float sum8(__m256 x)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

static void four_rows(const float *query, const uint16_t *row, uint32_t dim, float *scores)
{
    const uint16_t *r1 = row + dim;
    const uint16_t *r2 = r1 + dim;
    const uint16_t *r3 = r2 + dim;
    __m256 s0 = _mm256_setzero_ps();
    __m256 s1 = s0;
    __m256 s2 = s0;
    __m256 s3 = s0;
    for (uint32_t j = 0; j < dim; j += 8) {
        if (j % 32 == 0) is_scan_prefetch(row, dim, j * sizeof *row);
        __m256 q = _mm256_loadu_ps(query + j);
        s0 = _mm256_fmadd_ps(q, load8(row + j), s0);
        s1 = _mm256_fmadd_ps(q, load8(r1 + j), s1);
        s2 = _mm256_fmadd_ps(q, load8(r2 + j), s2);
        s3 = _mm256_fmadd_ps(q, load8(r3 + j), s3);
    }
    scores[0] = sum8(s0);
    scores[1] = sum8(s1);
    scores[2] = sum8(s2);
    scores[3] = sum8(s3);
}

void is_scan_dot_avx2(const float *query, const uint16_t *rows, size_t n, uint32_t dim, float *scores)
{
    size_t i = 0;
    for (; i + 4 <= n; i += 4) four_rows(query, rows + i * dim, dim, scores + i);
    for (; i < n; i++) {
        const uint16_t *row = rows + i * dim;
        __m256 s = _mm256_setzero_ps();
        for (uint32_t j = 0; j < dim; j += 8) s = _mm256_fmadd_ps(_mm256_loadu_ps(query + j), load8(row + j), s);
        scores[i] = sum8(s);
    }
}

#endif
