/* The scan with AVX-512: sixteen elements a step.  dim is a multiple of 8, so a half step may be left at the end of a
 * row; masked loads read it, and no byte behind it. */
#include "scan_isa.h"

#if defined(__x86_64__)

#include <immintrin.h>

static inline __m512 load16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

static inline __m512 load_masked(__mmask16 mask, const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, p));
}

static void four_rows(const float *query, const uint16_t *row, uint32_t dim, float *scores)
{
    const uint16_t *r1 = row + dim;
    const uint16_t *r2 = r1 + dim;
    const uint16_t *r3 = r2 + dim;
    __m512 s0 = _mm512_setzero_ps();
    __m512 s1 = s0;
    __m512 s2 = s0;
    __m512 s3 = s0;
    uint32_t j = 0;
    for (; j + 16 <= dim; j += 16) {
        if (j % 32 == 0) is_scan_prefetch(row, dim, j * sizeof *row);
        __m512 q = _mm512_loadu_ps(query + j);
        s0 = _mm512_fmadd_ps(q, load16(row + j), s0);
        s1 = _mm512_fmadd_ps(q, load16(r1 + j), s1);
        s2 = _mm512_fmadd_ps(q, load16(r2 + j), s2);
        s3 = _mm512_fmadd_ps(q, load16(r3 + j), s3);
    }
    if (j < dim) {
        const __mmask16 half = 0xFF;
        __m512 q = _mm512_maskz_loadu_ps(half, query + j);
        s0 = _mm512_fmadd_ps(q, load_masked(half, row + j), s0);
        s1 = _mm512_fmadd_ps(q, load_masked(half, r1 + j), s1);
        s2 = _mm512_fmadd_ps(q, load_masked(half, r2 + j), s2);
        s3 = _mm512_fmadd_ps(q, load_masked(half, r3 + j), s3);
    }
    scores[0] = _mm512_reduce_add_ps(s0);
    scores[1] = _mm512_reduce_add_ps(s1);
    scores[2] = _mm512_reduce_add_ps(s2);
    scores[3] = _mm512_reduce_add_ps(s3);
}

void is_scan_dot_avx512(const float *query, const uint16_t *rows, size_t n, uint32_t dim, float *scores)
{
    size_t i = 0;
    for (; i + 4 <= n; i += 4) four_rows(query, rows + i * dim, dim, scores + i);
    for (; i < n; i++) {
        const uint16_t *row = rows + i * dim;
        __m512 s = _mm512_setzero_ps();
        for (uint32_t j = 0; j < dim; j += 16) {
            __mmask16 mask = dim - j >= 16 ? 0xFFFF : 0xFF;
            s = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(mask, query + j), load_masked(mask, row + j), s);
        }
        scores[i] = _mm512_reduce_add_ps(s);
    }
}

#endif
