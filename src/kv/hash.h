/*
 * XXH3-128 over memory that lies in several pieces, for everything in kv that has to be recognised
 * again: chunks and layouts.  The result is in xxHash's canonical byte order, so it may be stored.
 */
#ifndef IS_KV_HASH_H
#define IS_KV_HASH_H

#include <stddef.h>
#include <stdint.h>

typedef struct is_span {
    const void *bytes;
    size_t size;
} is_span;

/* Hashes the spans as if they lay one behind the other. */
void is_hash128(const is_span *spans, size_t n, uint8_t out[16]);

#endif
