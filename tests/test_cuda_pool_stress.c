/*
 * The device tier under everything at once: takes, chunks that are made there, releases and drops in any order on
 * several streams, against what may be found at all, with every call of the runtime failing once, on a device that
 * fails for good, and from several threads.  Whatever a stream reads there must be its chunk, to the last byte.
 */
#include "cuda/pool_fixture.h"

#include <pthread.h>

#define NUMBERS 40
#define BATCH   6
#define HOLDS   8
#define THREADS 4

/* What one take got, until it is given back. */
typedef struct hold {
    is_device_pool_pin *pins[BATCH];
    int64_t numbers[BATCH];
    uint32_t versions[BATCH];
    int stream;
} hold;

/* One thread's doing. */
typedef struct actor {
    world *w;
    uint64_t random;
    bool alone;                /* nobody else changes what is there */
    int first, n_streams;      /* its own streams */
    uint32_t version[NUMBERS]; /* that is current */
    bool perhaps[NUMBERS];     /* not dropped since it was last brought in */
    hold holds[HOLDS];
    uint64_t taken, refused, found;
} actor;

static uint32_t chance(actor *a, uint32_t n)
{
    a->random ^= a->random >> 12;
    a->random ^= a->random << 25;
    a->random ^= a->random >> 27;
    return (uint32_t)((a->random * 2685821657736338717u) >> 33) % n;
}

static size_t size_of(int64_t number, uint32_t version)
{
    return (size_t)byte_of(number, version, 0) % 10 * 512 + 300 + (size_t)(number % 7);
}

/* A call may fail only where the fake has made it, and then says why. */
static bool is_well(actor *a, is_status status, uint64_t failures)
{
    if (status == IS_OK) return true;
    assert_true(fake_failures() > failures);
    assert_non_null(strstr(a->w->err.text, "the test lets it fail"));
    a->w->err.text[0] = '\0';
    return false;
}

static void read_again(actor *a, const hold *h)
{
    for (int i = 0; i < BATCH; i++)
        if (h->pins[i] != NULL) put_read(a->w->streams[h->stream], h->pins[i], h->numbers[i], h->versions[i]);
}

static void release(actor *a, hold *h)
{
    if (chance(a, 2) == 0) read_again(a, h);
    uint64_t failures = fake_failures();
    is_error *err = a->alone ? &a->w->err : NULL;
    is_status status = is_device_pool_release(a->w->pool, h->pins, BATCH, a->w->streams[h->stream], err);
    if (a->alone)
        (void)is_well(a, status, failures);
    else
        assert_int_equal(status, IS_OK);
    memset(h->pins, 0, sizeof h->pins);
}

static hold *free_hold(actor *a)
{
    hold *h = &a->holds[chance(a, HOLDS)];
    release(a, h);
    h->stream = a->first + (int)chance(a, (uint32_t)a->n_streams);
    return h;
}

static void take(actor *a)
{
    static _Thread_local uint8_t bytes[BATCH][6 * 1024];
    is_device_pool_want wants[BATCH];
    hold *h = free_hold(a);
    size_t n = 1 + chance(a, BATCH);
    for (size_t i = 0; i < n; i++) {
        int64_t number = chance(a, NUMBERS);
        uint32_t version = a->alone ? a->version[number] : 1 + chance(a, 2);
        size_t size = size_of(number, version);
        bool given = chance(a, 8) > 0;
        h->numbers[i] = number;
        h->versions[i] = version;
        fill(bytes[i], size, number, version);
        wants[i] = want_of(number, version, size, given ? bytes[i] : NULL);
    }
    uint64_t failures = fake_failures();
    is_status status =
        is_device_pool_take(a->w->pool, wants, n, a->w->streams[h->stream], a->alone ? &a->w->err : NULL);
    bool well = a->alone ? is_well(a, status, failures) : status == IS_OK;
    assert_true(well || a->alone);
    memset(bytes, 0xEE, sizeof bytes);
    for (size_t i = 0; i < n; i++) {
        if (wants[i].bytes != NULL) a->perhaps[h->numbers[i]] = true;
        h->pins[i] = wants[i].pin;
        assert_true(well || wants[i].pin == NULL);
        if (wants[i].pin == NULL) {
            a->refused += wants[i].bytes != NULL ? 1 : 0;
            continue;
        }
        if (a->alone) assert_true(a->perhaps[h->numbers[i]]);
        assert_int_equal(is_device_pool_size(wants[i].pin), size_of(h->numbers[i], h->versions[i]));
        a->taken++;
        a->found += wants[i].bytes == NULL ? 1 : 0;
    }
    read_again(a, h);
}

static void drop(actor *a)
{
    int64_t number = chance(a, NUMBERS);
    uint64_t failures = fake_failures();
    is_status status = is_device_pool_drop(a->w->pool, number, a->alone ? &a->w->err : NULL);
    if (a->alone)
        (void)is_well(a, status, failures);
    else
        assert_int_equal(status, IS_OK);
    a->perhaps[number] = false;
    if (chance(a, 2) == 0) a->version[number]++;
}

/* A kernel makes a chunk, which nobody else finds; in between others may go. */
static void encode(actor *a)
{
    hold *h = free_hold(a);
    is_cuda_stream *stream = a->w->streams[h->stream];
    int64_t number = chance(a, NUMBERS);
    uint32_t version = 1 + chance(a, 2);
    uint64_t failures = fake_failures();
    is_error *err = a->alone ? &a->w->err : NULL;
    is_status status = is_device_pool_reserve(a->w->pool, size_of(number, version), stream, &h->pins[0], err);
    if (status != IS_OK) assert_true(a->alone && !is_well(a, status, failures));
    if (h->pins[0] == NULL) return;
    h->numbers[0] = number;
    h->versions[0] = version;
    put_read(stream, h->pins[0], number, 0);
    put_write(stream, h->pins[0], number, version);
    if (chance(a, 8) == 0) drop(a);
    read_again(a, h);
}

static void step(actor *a)
{
    uint32_t what = chance(a, 16);
    if (what < 8)
        take(a);
    else if (what < 11)
        release(a, &a->holds[chance(a, HOLDS)]);
    else if (what < 13)
        drop(a);
    else if (what < 15)
        encode(a);
    else
        (void)is_cuda_stream_wait(a->w->streams[a->first + (int)chance(a, (uint32_t)a->n_streams)], NULL);
    is_device_pool_counts counts = counts_of(a->w);
    assert_true(counts.used <= counts.budget && counts.pinned <= counts.used);
}

static actor actor_of(world *w, uint64_t seed)
{
    actor a = {.w = w, .random = seed * 2 + 1, .alone = true, .n_streams = STREAMS};
    for (int i = 0; i < NUMBERS; i++) a.version[i] = 1;
    return a;
}

static void release_all(actor *a)
{
    for (int i = 0; i < HOLDS; i++) release(a, &a->holds[i]);
}

/* Ends well: all that was taken is given back, all is dropped, and nothing is left on the device. */
static void close_clean(world *w)
{
    come_to_rest(w);
    for (int64_t i = 0; i < NUMBERS; i++) assert_int_equal(is_device_pool_drop(w->pool, i, &w->err), IS_OK);
    come_to_rest(w);
    assert_int_equal(counts_of(w).used, 0);
    assert_int_equal(counts_of(w).chunks, 0);
    assert_true(fake_is_zero());
    end(w);
}

static const is_device_pool_settings small = {.budget = 48 * 1024, .slot_bytes = 1024, .slots = 3};

/* ------------------------------------------------------------ tests */

static void everything_at_once(void **state)
{
    (void)state;
    uint64_t taken = 0;
    uint64_t refused = 0;
    uint64_t found = 0;
    for (uint64_t seed = 1; seed <= 12; seed++) {
        world w;
        assert_int_equal(begin(&w, seed, small, 0), IS_OK);
        actor a = actor_of(&w, seed);
        for (int i = 0; i < 1500; i++) step(&a);
        taken += a.taken;
        refused += a.refused;
        found += a.found;
        release_all(&a);
        fake_finish();
        assert_true(seen.right > a.taken && counts_of(&w).evicted > 100);
        close_clean(&w);
    }
    /* All that can happen has happened often. */
    assert_true(taken > 10000 && refused > 100 && found > 100);
}

/* Every call of the runtime fails once, the pool's own at its opening too. */
static void any_call_may_fail(void **state)
{
    (void)state;
    bool failed = true;
    uint64_t n = 0;
    while (failed) {
        world w;
        n++;
        is_status status = begin(&w, n, small, n);
        actor a = actor_of(&w, 5);
        failed = fake_failures() > 0;
        if (status == IS_OK) {
            for (int i = 0; i < 60; i++) step(&a);
            failed = fake_failures() > 0;
            fake_fail_at(0);
            for (int i = 0; i < 20; i++) step(&a); /* it goes on */
            release_all(&a);
            close_clean(&w);
        } else {
            assert_true(failed);
            assert_null(w.pool);
            end(&w);
        }
    }
    assert_true(n > 200);
}

/* From some call on every one fails, as after a kernel's fault: nothing wrong is read, and all is freed. */
static void a_device_may_fail_for_good(void **state)
{
    (void)state;
    for (uint64_t n = 1; n <= 400; n += 7) {
        world w;
        assert_int_equal(begin(&w, n, small, 0), IS_OK);
        actor a = actor_of(&w, n);
        fake_fail_from(n);
        for (int i = 0; i < 80; i++) step(&a);
        release_all(&a);
        assert_true(fake_failures() > 0);
        fake_fail_at(0);
        for (int i = 0; i < 40; i++) step(&a); /* what was lost stays out of use */
        release_all(&a);
        end(&w);
    }
}

static void *act(void *arg)
{
    actor *a = arg;
    assert_int_equal(is_cuda_use(0, NULL), IS_OK);
    for (int i = 0; i < 400; i++) step(a);
    release_all(a);
    return NULL;
}

static void several_threads(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        world w;
        assert_int_equal(begin(&w, seed, small, 0), IS_OK);
        world views[THREADS];
        actor actors[THREADS];
        pthread_t threads[THREADS];
        for (int i = 0; i < THREADS; i++) {
            views[i] = (world){.pool = w.pool};
            assert_int_equal(is_cuda_stream_new(&views[i].streams[0], &w.err), IS_OK);
            actors[i] = actor_of(&views[i], seed * THREADS + (uint64_t)i);
            actors[i].alone = false;
            actors[i].n_streams = 1;
        }
        for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, act, &actors[i]), 0);
        for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
        fake_finish();
        assert_true(seen.right > 1000);
        come_to_rest(&w);
        for (int i = 0; i < THREADS; i++) is_cuda_stream_free(views[i].streams[0]);
        close_clean(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_at_once),
        cmocka_unit_test(any_call_may_fail),
        cmocka_unit_test(a_device_may_fail_for_good),
        cmocka_unit_test(several_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
