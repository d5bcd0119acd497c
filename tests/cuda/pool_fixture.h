/*
 * What the tests of the device tier share: a pool on the fake device, chunks whose every byte says whose it is, and
 * operations that read or write them there.
 */
#ifndef IS_TESTS_CUDA_POOL_FIXTURE_H
#define IS_TESTS_CUDA_POOL_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cuda/pool.h"
#include "fake.h"

#define STREAMS 3

typedef struct world {
    is_device_pool *pool;
    is_cuda_stream *streams[STREAMS];
    is_error err;
} world;

/* What the operations saw; they run one at a time, and it is read when they have run. */
static struct {
    uint64_t right, wrong;
} seen;

/* ------------------------------------------------------------ chunks */

static inline uint8_t byte_of(int64_t number, uint32_t version, size_t i)
{
    uint64_t x = (uint64_t)number * 0x9E3779B97F4A7C15u + version * 0xD1B54A32D192ED03u + i / 8;
    x = (x ^ x >> 32) * 0xD6E8FEB86659FD93u;
    x ^= x >> 32;
    return (uint8_t)(x >> i % 8 * 8);
}

static inline void fill(uint8_t *bytes, size_t size, int64_t number, uint32_t version)
{
    for (size_t i = 0; i < size; i++) bytes[i] = byte_of(number, version, i);
}

static inline is_device_pool_want want_of(int64_t number, uint32_t version, size_t size, const uint8_t *bytes)
{
    is_device_pool_want want = {.number = number, .bytes = bytes, .size = bytes != NULL ? size : 0};
    memcpy(want.key, &version, sizeof version);
    return want;
}

/* ------------------------------------------------------------ what kernels do */

typedef struct part {
    uint8_t *memory;
    size_t size;
    int64_t number;
    uint32_t version; /* 0: zeros */
} part;

static void run_read(void *args)
{
    const part *p = args;
    bool right = true;
    for (size_t i = 0; i < p->size && right; i++)
        right = p->memory[i] == (p->version == 0 ? 0 : byte_of(p->number, p->version, i));
    seen.right += right ? 1 : 0;
    seen.wrong += right ? 0 : 1;
}

static void run_write(void *args)
{
    const part *p = args;
    fill(p->memory, p->size, p->number, p->version);
}

static inline void put_read(is_cuda_stream *stream, const is_device_pool_pin *pin, int64_t number, uint32_t version)
{
    part p = {is_device_pool_memory(pin), is_device_pool_size(pin), number, version};
    fake_put(stream, run_read, &p, sizeof p);
}

static inline void put_write(is_cuda_stream *stream, const is_device_pool_pin *pin, int64_t number, uint32_t version)
{
    part p = {is_device_pool_memory(pin), is_device_pool_size(pin), number, version};
    fake_put(stream, run_write, &p, sizeof p);
}

/* ------------------------------------------------------------ the world */

static inline is_status begin(world *w, uint64_t seed, is_device_pool_settings settings, uint64_t fail_at)
{
    *w = (world){0};
    memset(&seen, 0, sizeof seen);
    fake_begin(seed);
    assert_int_equal(is_cuda_use(0, &w->err), IS_OK);
    for (int i = 0; i < STREAMS; i++) assert_int_equal(is_cuda_stream_new(&w->streams[i], &w->err), IS_OK);
    fake_fail_at(fail_at);
    return is_device_pool_open(&settings, &w->pool, &w->err);
}

/* Nobody has a pin any more. */
static inline void end(world *w)
{
    fake_fail_at(0);
    is_device_pool_close(w->pool);
    for (int i = 0; i < STREAMS; i++) is_cuda_stream_free(w->streams[i]);
    assert_true(fake_end());
    assert_int_equal(seen.wrong, 0);
}

static inline is_device_pool_counts counts_of(const world *w)
{
    is_device_pool_counts counts;
    is_device_pool_stats(w->pool, &counts);
    return counts;
}

/* All that is under way ends, and the pool sees it. */
static inline void come_to_rest(world *w)
{
    fake_finish();
    assert_int_equal(is_device_pool_take(w->pool, NULL, 0, w->streams[0], &w->err), IS_OK);
    assert_int_equal(counts_of(w).pinned, 0);
}

#endif
