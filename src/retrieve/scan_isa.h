/*
 * The scan's kernels, one a file, since each is compiled with the flags of its instruction set.  Only scan.c calls
 * them.  All of them take four rows at a time: the query is loaded once for the four, and four independent sums hide
 * the latency of the multiply-add.  What limits them is memory, and four streams are one thing too many for the
 * hardware's prefetchers: asking for the rows IS_SCAN_AHEAD further on brings 100,000 rows of 384 from 3.5 ms to 2.0,
 * where just reading them takes 1.8 (AVX-512, one thread of an EPYC; 4 ahead took 2.6, 16 ahead 2.2).
 */
#ifndef IS_RETRIEVE_SCAN_ISA_H
#define IS_RETRIEVE_SCAN_ISA_H

#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__)

#include <xmmintrin.h>

#define IS_SCAN_AHEAD 8 /* rows */

/* Asks for one cache line of each of the four rows that stand IS_SCAN_AHEAD behind these, `at` bytes into them.  Behind
 * the last row there is nothing, which a prefetch may ask for; so the address is a number and not a pointer. */
static inline void is_scan_prefetch(const uint16_t *row, uint32_t dim, size_t at)
{
    size_t row_size = dim * sizeof *row;
    uintptr_t p = (uintptr_t)row + IS_SCAN_AHEAD * row_size + at;
    for (int r = 0; r < 4; r++, p += row_size) _mm_prefetch((const char *)p, _MM_HINT_T0);
}

void is_scan_dot_avx2(const float *query, const uint16_t *rows, size_t n, uint32_t dim, float *scores);
void is_scan_dot_avx512(const float *query, const uint16_t *rows, size_t n, uint32_t dim, float *scores);
#elif defined(__aarch64__)
void is_scan_dot_neon(const float *query, const uint16_t *rows, size_t n, uint32_t dim, float *scores);
#endif

#endif
