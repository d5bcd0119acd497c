/* The payload's scan for any processor. */
#define SCAN_VECTOR 16
#include "chunk_scan_body.h"

bool is_chunk_scan(const uint8_t *bytes, size_t n, is_dtype dtype, uint8_t hash[16])
{
    return scan(bytes, n, dtype, hash);
}
