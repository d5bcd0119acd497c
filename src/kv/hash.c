/*
 * XXH3-128 over spans.  xxHash is compiled in here rather than called in its shared library, because
 * only so may its streaming state lie on the stack: nothing in kv needs the heap for a checksum.
 */
#include "hash.h"

#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

void is_hash128(const is_span *spans, size_t n, uint8_t out[16])
{
    XXH3_state_t state;
    XXH3_INITSTATE(&state);
    (void)XXH3_128bits_reset(&state);
    for (size_t i = 0; i < n; i++) (void)XXH3_128bits_update(&state, spans[i].bytes, spans[i].size);
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state));
    memcpy(out, canonical.digest, sizeof canonical.digest);
}
