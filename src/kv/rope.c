/*
 * Inverse frequencies of every scaling that model files name, and the rotation that moves a chunk.
 *
 * Pair i of a slice of `width` elements turns by base^(-2i/width) radians a token (RoFormer, arXiv
 * 2104.09864, section 3.4.2); a scaling changes these frequencies, each in its own way.  Engines do
 * this in float; here it is done in double, so that a chunk may be moved by any number of tokens with
 * an error far below the rounding of the stored type.
 */
#include "rope.h"

#include <math.h>

#define PI 3.14159265358979323846

/* ---------------------------------------------------------------- bounds */

static bool is_positive(double value)
{
    return isfinite(value) && value > 0;
}

static is_status check_factors(const float *factors, const char *name, uint32_t pairs, is_error *err)
{
    if (factors == NULL) return is_fail(err, IS_EINVAL, "rope: LongRoPE needs %s, and there are none", name);
    for (uint32_t i = 0; i < pairs; i++)
        if (!is_positive((double)factors[i]))
            return is_fail(err, IS_EINVAL, "rope: %s[%u] is %g, it must be above 0", name, i, (double)factors[i]);
    return IS_OK;
}

static is_status check_yarn(const is_rope_params *p, is_error *err)
{
    if (p->original_context < 1) return is_fail(err, IS_EINVAL, "rope: YaRN needs original_context, and it is 0");
    if (!is_positive(p->beta_slow) || !isfinite(p->beta_fast) || p->beta_fast < p->beta_slow)
        return is_fail(err, IS_EINVAL, "rope: beta_slow is %g and beta_fast %g, YaRN needs 0 < beta_slow <= beta_fast",
                       p->beta_slow, p->beta_fast);
    if (!(p->extrapolation >= 0 && p->extrapolation <= 1))
        return is_fail(err, IS_EINVAL, "rope: extrapolation is %g, it must be 0 to 1", p->extrapolation);
    return IS_OK;
}

static is_status check_llama3(const is_rope_params *p, is_error *err)
{
    if (p->original_context < 1) return is_fail(err, IS_EINVAL, "rope: Llama 3 needs original_context, and it is 0");
    if (!is_positive(p->low_freq_factor) || !isfinite(p->high_freq_factor) || p->high_freq_factor <= p->low_freq_factor)
        return is_fail(err, IS_EINVAL, "rope: low_freq_factor is %g and high_freq_factor %g, 0 < low < high is needed",
                       p->low_freq_factor, p->high_freq_factor);
    return IS_OK;
}

static is_status check_longrope(const is_rope_params *p, is_error *err)
{
    if (p->original_context < 2)
        return is_fail(err, IS_EINVAL, "rope: original_context is %u, LongRoPE needs at least 2", p->original_context);
    if (p->context < 1) return is_fail(err, IS_EINVAL, "rope: LongRoPE needs the engine's context, and it is 0");
    bool is_long = p->context > p->original_context;
    return check_factors(is_long ? p->long_factors : p->short_factors, is_long ? "long_factors" : "short_factors",
                         p->width / 2, err);
}

static is_status check_scaling(const is_rope_params *p, is_error *err)
{
    switch (p->scaling) {
    case IS_SCALING_LINEAR:
    case IS_SCALING_YARN:
    case IS_SCALING_LLAMA3:
        if (!isfinite(p->factor) || p->factor < 1)
            return is_fail(err, IS_EINVAL, "rope: factor is %g, it must be at least 1", p->factor);
        if (p->scaling == IS_SCALING_YARN) return check_yarn(p, err);
        return p->scaling == IS_SCALING_LLAMA3 ? check_llama3(p, err) : IS_OK;
    case IS_SCALING_LONGROPE: return check_longrope(p, err);
    case IS_SCALING_NONE: return IS_OK;
    case IS_SCALING_DYNAMIC:
        return is_fail(err, IS_EUNSUPPORTED,
                       "rope: dynamic scaling changes the frequencies with the prompt's length, so stored KV cannot be "
                       "moved; open the model with YaRN or linear scaling, or without injection");
    }
    return is_fail(err, IS_EINVAL, "rope: scaling is %d, which is no is_rope_scaling", (int)p->scaling);
}

static is_status check_params(const is_rope_params *p, is_error *err)
{
    if (p->style != IS_ROPE_PAIR && p->style != IS_ROPE_HALF)
        return is_fail(err, IS_EINVAL, "rope: style is %d, it must be IS_ROPE_PAIR or IS_ROPE_HALF", (int)p->style);
    if (p->width < 2 || p->width % 2 != 0 || p->width > 2 * IS_ROPE_MAX_PAIRS)
        return is_fail(err, IS_EINVAL, "rope: width is %u, it must be even and 2 to %d", p->width,
                       2 * IS_ROPE_MAX_PAIRS);
    if (!isfinite(p->base) || p->base <= 1)
        return is_fail(err, IS_EINVAL, "rope: base is %g, it must be above 1", p->base);
    if (!isfinite(p->attention_factor) || p->attention_factor < 0)
        return is_fail(err, IS_EINVAL, "rope: attention_factor is %g, it must be 0 or above", p->attention_factor);
    is_status status = p->factors != NULL ? check_factors(p->factors, "factors", p->width / 2, err) : IS_OK;
    return status == IS_OK ? check_scaling(p, err) : status;
}

/* -------------------------------------------------------------- scalings */

/*
 * YaRN, section 3.2: pairs that turn at least beta_fast times within the original context keep their frequency, pairs
 * that turn at most beta_slow times are interpolated, and a ramp joins the two.  The paper draws the ramp over the
 * number of turns; its authors' code, and every engine after it, draws it over the pair's index, between the indices
 * of beta_fast and beta_slow rounded outwards.  K must equal what the engine wrote, so it is done their way; at both
 * ends of the ramp it is the same.
 */
static double yarn_index(const is_rope_params *p, double turns)
{
    return p->width * log(p->original_context / (turns * 2 * PI)) / (2 * log(p->base));
}

static void scale_yarn(double *inv_freq, const is_rope_params *p)
{
    double low = fmax(floor(yarn_index(p, p->beta_fast)), 0);
    double high = fmin(ceil(yarn_index(p, p->beta_slow)), p->width - 1.0);
    double length = fmax(high - low, 0.001); /* never a division by zero: the ramp becomes a step */
    for (uint32_t i = 0; i < p->width / 2; i++) {
        double interpolated = fmin(fmax((i - low) / length, 0), 1);
        double kept = (1 - interpolated) * p->extrapolation;
        inv_freq[i] = inv_freq[i] / p->factor * (1 - kept) + inv_freq[i] * kept;
    }
}

/* Llama 3.1: as YaRN's, but over the wavelength, and smooth between two bands. */
static void scale_llama3(double *inv_freq, const is_rope_params *p)
{
    for (uint32_t i = 0; i < p->width / 2; i++) {
        double turns = p->original_context * inv_freq[i] / (2 * PI); /* original context over wavelength */
        double kept = (turns - p->low_freq_factor) / (p->high_freq_factor - p->low_freq_factor);
        kept = fmin(fmax(kept, 0), 1);
        inv_freq[i] = (1 - kept) * inv_freq[i] / p->factor + kept * inv_freq[i];
    }
}

static void scale(double *inv_freq, const is_rope_params *p)
{
    uint32_t pairs = p->width / 2;
    if (p->scaling == IS_SCALING_LINEAR) {
        for (uint32_t i = 0; i < pairs; i++) inv_freq[i] /= p->factor;
    } else if (p->scaling == IS_SCALING_YARN) {
        scale_yarn(inv_freq, p);
    } else if (p->scaling == IS_SCALING_LLAMA3) {
        scale_llama3(inv_freq, p);
    } else if (p->scaling == IS_SCALING_LONGROPE) {
        const float *factors = p->context > p->original_context ? p->long_factors : p->short_factors;
        for (uint32_t i = 0; i < pairs; i++) inv_freq[i] /= (double)factors[i];
    }
}

/* YaRN, section 3.4; LongRoPE as Phi-3 publishes it: attention grows with the logarithm of the stretch. */
static double attention_factor(const is_rope_params *p)
{
    if (p->scaling != IS_SCALING_YARN && p->scaling != IS_SCALING_LONGROPE) return 1;
    if (p->attention_factor > 0) return p->attention_factor;
    if (p->scaling == IS_SCALING_YARN) return 0.1 * log(p->factor) + 1;
    double stretch = (double)p->context / p->original_context;
    return stretch > 1 ? sqrt(1 + log(stretch) / log(p->original_context)) : 1;
}

is_status is_rope_init(is_rope *out, const is_rope_params *params, is_error *err)
{
    is_status status = check_params(params, err);
    if (status != IS_OK) return status;
    *out = (is_rope){.style = params->style, .offset = params->offset, .width = params->width};
    for (uint32_t i = 0; i < params->width / 2; i++) out->inv_freq[i] = pow(params->base, -2.0 * i / params->width);
    scale(out->inv_freq, params);
    if (params->factors != NULL)
        for (uint32_t i = 0; i < params->width / 2; i++) out->inv_freq[i] /= (double)params->factors[i];
    out->attention_factor = (float)attention_factor(params);
    return IS_OK;
}

/* -------------------------------------------------------------- rotation */

void is_rotation_init(is_rotation *out, const is_rope *rope, int64_t shift)
{
    out->identity = shift == 0;
    for (uint32_t i = 0; i < rope->width / 2; i++) {
        double angle = remainder((double)shift * rope->inv_freq[i], 2 * PI);
        out->cos[i] = (float)cos(angle);
        out->sin[i] = (float)sin(angle);
    }
}
