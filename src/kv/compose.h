/*
 * Compose: chunks become rows of the engine's cache.
 *
 * One pass over the bytes: K rows are rotated by the chunk's one rotation vector and written where the
 * engine wants them, V is copied.  All arithmetic is f32 with one rounding to the stored type, and
 * without fused multiply-add, so that the plain C twin and every SIMD path agree bit for bit.
 *
 * Nothing here allocates or locks.
 */
#ifndef IS_KV_COMPOSE_H
#define IS_KV_COMPOSE_H

#include "chunk.h"
#include "rope.h"

/* A chunk and the position of its first token in the prompt. */
typedef struct is_placed {
    const is_chunk *chunk;
    int32_t position;
} is_placed;

/*
 * Where one layer's rows of the whole injected run go.  Row r is the prompt's token first + r; rows
 * before `first` are not wanted (a sliding window does not show them).
 */
typedef struct is_target {
    uint8_t *k; /* [n][heads * k_dim], rows k_stride bytes apart */
    uint8_t *v; /* [n][heads * v_dim], rows v_stride bytes apart; transposed: [heads * v_dim][n],
                   dimensions v_stride bytes apart; NULL without V */
    size_t k_stride;
    size_t v_stride;
    uint32_t first;
    uint32_t n;
} is_target;

/*
 * Writes layers [layer_begin, layer_end) of the n chunks.  The chunks must follow one another without a
 * gap, the first at position 0, and every one must have passed is_chunk_fits.  IS_EINVAL: a gap, or a
 * target row that no chunk has (its window was cut and the chunk does not end the run), or a target
 * without room; nothing is written then.
 * targets: [layout->n_layers].  Different layer ranges may be written by different threads at once; each
 * call computes the chunks' angles anew, so a few large ranges are better than one call a layer.
 */
is_status is_compose(const is_layout *layout, const is_placed *chunks, size_t n, const is_target *targets,
                     uint32_t layer_begin, uint32_t layer_end, is_error *err);

/* The instruction sets that there is a path for. */
typedef enum is_isa { IS_ISA_C = 0, IS_ISA_AVX2, IS_ISA_AVX512, IS_ISA_NEON } is_isa;

/* The best one that this processor has. */
is_isa is_isa_best(void);
bool is_isa_supported(is_isa isa);
const char *is_isa_name(is_isa isa);

/*
 * Rotates n rows of K from src to dst, the inner step of is_compose, for the probe and for tests.
 * Rows are [heads][k_dim]; src and dst may be the same, and must not overlap otherwise.
 */
void is_rotate_rows(is_isa isa, is_dtype dtype, const is_rope *rope, const is_rotation *rotation, uint32_t heads,
                    uint32_t k_dim, const uint8_t *src, size_t src_stride, uint8_t *dst, size_t dst_stride, size_t n);

/* f16 and bf16 to f32 and back (round to nearest, ties to even), the plain C conversions. */
float is_f16_to_f32(uint16_t h);
uint16_t is_f32_to_f16(float f);
float is_bf16_to_f32(uint16_t h);
uint16_t is_f32_to_bf16(float f);

#endif
