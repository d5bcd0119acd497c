/*
 * What every part uses: filling an is_error, reading clocks, checked sizes.
 */
#ifndef IS_COMMON_H
#define IS_COMMON_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "inferscale.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Fills err (may be NULL). */
void is_error_set(is_error *err, is_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/*
 * Fills err and is the status, so that `return is_fail(...)` is the whole error path.  A macro, so that whoever reads
 * the code alone, compilers and analysers too, sees which status it is; `status` must have no side effects.
 */
#define is_fail(err, status, ...) (is_error_set((err), (status), __VA_ARGS__), (is_status)(status))

/*
 * Cores that this process may run on.  The engine's threads wait for one another at every step of a graph, so one
 * thread more than there are cores for slows all of them down.
 */
uint32_t is_usable_cores(void);

/* Monotonic time in milliseconds. */
double is_now_ms(void);

/* a * b and a + b; false when the result does not fit. */
static inline bool is_mul_size(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool is_add_size(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

/* True when the n bytes are well-formed UTF-8 (RFC 3629: no surrogates, no overlong forms). */
bool is_utf8_valid(const char *text, size_t n);

/* n rounded up to a multiple of align, a power of two. */
static inline size_t is_align_up(size_t n, size_t align)
{
    return (n + align - 1) & ~(align - 1);
}

#ifdef __cplusplus
}
#endif

#endif
