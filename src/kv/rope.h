/*
 * Chunked RoPE by difference.
 *
 * The paper (arXiv 2607.27090) keeps K before rotation and rotates it at injection.  Rotations in one
 * plane add up, R(a) R(b) = R(a + b) (RoFormer, arXiv 2104.09864, section 3.2), so a chunk keeps K as
 * the engine wrote it at its reference position, and a move by `shift` tokens rotates every row of it
 * by the same angles.  One rotation vector a chunk, one rounding, and a plain copy where shift is 0.
 */
#ifndef IS_KV_ROPE_H
#define IS_KV_ROPE_H

#include "layout.h"

typedef enum is_rope_scaling {
    IS_SCALING_NONE = 0,
    IS_SCALING_LINEAR,   /* position / factor (Chen et al., arXiv 2306.15595)                        */
    IS_SCALING_YARN,     /* NTK-by-parts with a ramp (YaRN, arXiv 2309.00071, sections 3.2 to 3.4)   */
    IS_SCALING_LLAMA3,   /* by wavelength bands (Llama 3.1)                                          */
    IS_SCALING_LONGROPE, /* a factor for each pair, long or short by context size (arXiv 2402.13753) */
    IS_SCALING_DYNAMIC   /* frequencies depend on the prompt's length: refused, IS_EUNSUPPORTED      */
} is_rope_scaling;

/* What model files say about rotation.  Fields that a scaling does not use are ignored. */
typedef struct is_rope_params {
    is_rope_style style;
    uint32_t offset;
    uint32_t width;
    double base; /* theta, > 1 */
    is_rope_scaling scaling;
    double factor;              /* linear, YaRN, Llama 3: s, >= 1                           */
    uint32_t original_context;  /* YaRN, Llama 3, LongRoPE: context before extension, tokens */
    uint32_t context;           /* LongRoPE: context that the engine was opened with, tokens */
    double beta_fast;           /* YaRN: rotations above which nothing is interpolated (32)  */
    double beta_slow;           /* YaRN: rotations below which all is interpolated (1)       */
    double extrapolation;       /* YaRN: mix of the ramp (1)                                 */
    double attention_factor;    /* YaRN, LongRoPE: 0 means the paper's own formula           */
    double low_freq_factor;     /* Llama 3 (1) */
    double high_freq_factor;    /* Llama 3 (4) */
    const float *factors;       /* [width / 2] divide each frequency, any scaling, or NULL (GGUF rope_freqs) */
    const float *long_factors;  /* LongRoPE [width / 2] */
    const float *short_factors; /* LongRoPE [width / 2] */
} is_rope_params;

/* Computes inverse frequencies in double precision.  IS_EINVAL names the field that is out of range. */
is_status is_rope_init(is_rope *out, const is_rope_params *params, is_error *err);

/*
 * One rotation vector: what moves a whole chunk by `shift` tokens.  Angles are reduced and their sine
 * and cosine taken in double, then kept as float.  cos and sin are [width / 2].
 */
typedef struct is_rotation {
    bool identity; /* shift 0: rows are copied bit for bit */
    float cos[IS_ROPE_MAX_PAIRS];
    float sin[IS_ROPE_MAX_PAIRS];
} is_rotation;

void is_rotation_init(is_rotation *out, const is_rope *rope, int64_t shift);

#endif
