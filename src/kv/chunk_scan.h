/*
 * One look at every byte of a payload: its hash, and whether all elements are finite.
 *
 * This runs over each chunk that comes from disk, so it has to keep up with memory.  xxHash picks its
 * vectors by the flags it is compiled with, hence the function exists twice, in chunk_scan.c for any
 * processor and in chunk_scan_avx2.c; chunk_scan_body.h holds the code that both compile.
 */
#ifndef IS_KV_CHUNK_SCAN_H
#define IS_KV_CHUNK_SCAN_H

#include "layout.h"

/* n is a multiple of 64.  Fills the XXH3-128 hash; false when an element is NaN or infinite. */
bool is_chunk_scan(const uint8_t *bytes, size_t n, is_dtype dtype, uint8_t hash[16]);
bool is_chunk_scan_avx2(const uint8_t *bytes, size_t n, is_dtype dtype, uint8_t hash[16]);

#endif
