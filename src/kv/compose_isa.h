/*
 * What compose.c and the files of the single instruction sets share.  Private to them and their test.
 *
 * A rotation job is n rows with everything looked up beforehand.  Its tables are laid out so that a
 * SIMD path needs no shuffle of the angles: for IS_ROPE_HALF they are [width / 2], as in is_rotation;
 * for IS_ROPE_PAIR they are [width], cos twice and then (-sin, sin), so that with the elements of
 * each pair swapped, out = x * cos + swapped * sin.  Negating a factor is exact and a - b is
 * a + (-b), so both forms round alike.
 */
#ifndef IS_KV_COMPOSE_ISA_H
#define IS_KV_COMPOSE_ISA_H

#include "compose.h"

typedef struct is_rotate_job {
    uint32_t heads, k_dim;  /* elements are counted, not bytes */
    uint32_t offset, width; /* the rotary slice of a head      */
    const float *cos, *sin;
    const uint8_t *src;
    uint8_t *dst;
    size_t src_stride, dst_stride; /* bytes */
    size_t n;                      /* rows  */
    /*
     * What comes after this job: while row r is rotated, the r-th share of these bytes is prefetched.  A model's
     * layers are short pieces, and at each one the hardware's prefetcher has to start anew.
     */
    const uint8_t *next_src; /* or NULL */
    uint8_t *next_dst;       /* or NULL */
    size_t next_bytes;
    size_t next_share;
} is_rotate_job;

/* is_dtype_size for the inner loops, where a call would cost more than the work. */
static inline size_t is_element(is_dtype dtype)
{
    return dtype == IS_F32 ? 4 : 2;
}

/* Always inlined: gcc takes a function that only prefetches for one without effect, and drops calls of it. */
static inline __attribute__((always_inline)) void is_prefetch_next(const is_rotate_job *job, size_t row)
{
    size_t end = (row + 1) * job->next_share;
    if (end > job->next_bytes) end = job->next_bytes;
    for (size_t at = row * job->next_share; at < end; at += 64) {
        if (job->next_src != NULL) __builtin_prefetch(job->next_src + at, 0);
        if (job->next_dst != NULL) __builtin_prefetch(job->next_dst + at, 1);
    }
}

/* Each rotates the slices of all heads and rows; elements outside the slices are left alone. */
void is_rotate_c(is_dtype dtype, is_rope_style style, const is_rotate_job *job);
void is_rotate_avx2(is_dtype dtype, is_rope_style style, const is_rotate_job *job);
void is_rotate_avx512(is_dtype dtype, is_rope_style style, const is_rotate_job *job);
void is_rotate_neon(is_dtype dtype, is_rope_style style, const is_rotate_job *job);

/* Pairs first .. width/2 - 1 of one head in plain C: the tail of a path whose vectors do not end with the slice. */
void is_rotate_pairs_c(is_dtype dtype, is_rope_style style, const is_rotate_job *job, const uint8_t *src, uint8_t *dst,
                       uint32_t first);

/* Does a job with the tables of `rotation`: is_rotate_rows, with what comes next. */
void is_rotate_run(is_isa isa, is_dtype dtype, const is_rope *rope, const is_rotation *rotation, is_rotate_job job);

/* Copies n runs of `bytes`, src and dst not overlapping. */
void is_copy_runs(uint8_t *dst, size_t dst_stride, const uint8_t *src, size_t src_stride, size_t bytes, size_t n);

/*
 * As is_copy_runs, for what is too large to stay in the caches: whole lines are written past them (x86), which saves
 * reading them first.  is_stream_end makes what was written so visible to other threads.
 */
void is_stream_runs(uint8_t *dst, size_t dst_stride, const uint8_t *src, size_t src_stride, size_t bytes, size_t n);
void is_stream_end(void);

/* is_compose with a given instruction set; the C path where this processor does not have it. */
is_status is_compose_isa(is_isa isa, const is_layout *layout, const is_placed *chunks, size_t n,
                         const is_target *targets, uint32_t layer_begin, uint32_t layer_end, is_error *err);

#endif
