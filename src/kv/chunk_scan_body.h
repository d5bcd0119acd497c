/*
 * The scan's code, included once by each file that compiles it; SCAN_VECTOR is the width of its
 * vectors in bytes.
 *
 * An element is NaN or infinite when its exponent is all ones.  Adding the exponent's lowest bit to
 * the exponent alone then carries into the place of the sign, and never beyond it, so one add over
 * 64-bit words tests four (or two) elements, and an or gathers the carries of all of them.
 */
#include "chunk_scan.h"

#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

typedef uint64_t scan_vector __attribute__((vector_size(SCAN_VECTOR)));

typedef struct exponent_test {
    uint64_t mask, lowest, sign;
} exponent_test;

static exponent_test exponent_of(is_dtype dtype)
{
    if (dtype == IS_F16) return (exponent_test){0x7c007c007c007c00, 0x0400040004000400, 0x8000800080008000};
    if (dtype == IS_BF16) return (exponent_test){0x7f807f807f807f80, 0x0080008000800080, 0x8000800080008000};
    return (exponent_test){0x7f8000007f800000, 0x0080000000800000, 0x8000000080000000};
}

static bool all_finite(const uint8_t *bytes, size_t n, exponent_test test)
{
    scan_vector seen0 = {0};
    scan_vector seen1 = {0};
    for (size_t at = 0; at < n; at += 2 * SCAN_VECTOR) {
        scan_vector words0, words1;
        memcpy(&words0, bytes + at, SCAN_VECTOR);
        memcpy(&words1, bytes + at + SCAN_VECTOR, SCAN_VECTOR);
        seen0 |= (words0 & test.mask) + test.lowest;
        seen1 |= (words1 & test.mask) + test.lowest;
    }
    seen0 |= seen1;
    uint64_t any = 0;
    for (size_t i = 0; i < SCAN_VECTOR / sizeof any; i++) any |= seen0[i];
    return (any & test.sign) == 0;
}

/* Both looks at one block after the other, so that the second finds it in a near cache however long the payload is. */
static bool scan(const uint8_t *bytes, size_t n, is_dtype dtype, uint8_t hash[16])
{
    const size_t block = 65536;
    const exponent_test test = exponent_of(dtype);
    XXH3_state_t state;
    XXH3_INITSTATE(&state);
    (void)XXH3_128bits_reset(&state);
    bool finite = true;
    for (size_t at = 0; at < n; at += block) {
        size_t size = n - at < block ? n - at : block;
        (void)XXH3_128bits_update(&state, bytes + at, size);
        finite &= all_finite(bytes + at, size, test);
    }
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state));
    memcpy(hash, canonical.digest, sizeof canonical.digest);
    return finite;
}
