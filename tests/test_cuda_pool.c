/*
 * The device tier, one case after another: what is found, what goes and when, and that what leaves it is zeroed.  The
 * device is a fake that runs late, so that whoever does not wait for it is found out.
 */
#include "cuda/pool_fixture.h"

#include "cuda/arena.h"

#define K 1024

static void open_pool(world *w, size_t budget)
{
    is_device_pool_settings settings = {.budget = budget, .slot_bytes = 4 * K, .slots = 2};
    if (begin(w, 1, settings, 0) != IS_OK) fail_msg("%s", w->err.text);
}

/* One chunk, of version 1 and `size` bytes, whose host memory is gone as soon as it is taken. */
static is_device_pool_pin *take_version(world *w, int64_t number, uint32_t version, size_t size, int stream)
{
    uint8_t *bytes = malloc(size);
    assert_non_null(bytes);
    fill(bytes, size, number, version);
    is_device_pool_want want = want_of(number, version, size, bytes);
    if (is_device_pool_take(w->pool, &want, 1, w->streams[stream], &w->err) != IS_OK) fail_msg("%s", w->err.text);
    memset(bytes, 0xEE, size);
    free(bytes);
    if (want.pin != NULL) put_read(w->streams[stream], want.pin, number, version);
    return want.pin;
}

static is_device_pool_pin *take(world *w, int64_t number, size_t size)
{
    return take_version(w, number, 1, size, 0);
}

/* Only if it is there. */
static is_device_pool_pin *take_there(world *w, int64_t number, uint32_t version)
{
    is_device_pool_want want = want_of(number, version, 0, NULL);
    if (is_device_pool_take(w->pool, &want, 1, w->streams[0], &w->err) != IS_OK) fail_msg("%s", w->err.text);
    if (want.pin != NULL) put_read(w->streams[0], want.pin, number, version);
    return want.pin;
}

static void release(world *w, is_device_pool_pin *pin, int stream)
{
    if (is_device_pool_release(w->pool, &pin, 1, w->streams[stream], &w->err) != IS_OK) fail_msg("%s", w->err.text);
}

static bool is_there(world *w, int64_t number)
{
    is_device_pool_pin *pin = take_there(w, number, 1);
    if (pin != NULL) release(w, pin, 0);
    fake_finish();
    return pin != NULL;
}

/* Takes it and gives it back, done. */
static void use(world *w, int64_t number, size_t size)
{
    is_device_pool_pin *pin = take(w, number, size);
    assert_non_null(pin);
    release(w, pin, 0);
    come_to_rest(w);
}

/* Room on the device, all zeros, where a chunk of this number is then made. */
static is_device_pool_pin *reserve(world *w, int64_t number, uint32_t version, size_t size, int stream)
{
    is_device_pool_pin *pin = NULL;
    if (is_device_pool_reserve(w->pool, size, w->streams[stream], &pin, &w->err) != IS_OK) fail_msg("%s", w->err.text);
    if (pin != NULL) put_read(w->streams[stream], pin, number, 0);
    if (pin != NULL) put_write(w->streams[stream], pin, number, version);
    return pin;
}

static void drop(world *w, int64_t number)
{
    if (is_device_pool_drop(w->pool, number, &w->err) != IS_OK) fail_msg("%s", w->err.text);
}

/* Ends the test: nothing is left on the device when everything was dropped. */
static void close_pool(world *w, int64_t numbers)
{
    come_to_rest(w);
    for (int64_t i = 0; i < numbers; i++) drop(w, i);
    come_to_rest(w);
    assert_int_equal(counts_of(w).used, 0);
    assert_int_equal(counts_of(w).chunks, 0);
    assert_true(fake_is_zero());
    end(w);
}

/* ------------------------------------------------------------ what is found */

static void a_chunk_is_copied_once(void **state)
{
    (void)state;
    world w;
    open_pool(&w, 64 * K);
    fake_hold(true);
    assert_null(take_there(&w, 1, 1));
    is_device_pool_pin *first = take_version(&w, 1, 1, 3 * K + 5, 0);
    is_device_pool_pin *second = take_version(&w, 1, 1, 3 * K + 5, 1); /* reads on another stream, behind the copy */
    assert_ptr_equal(is_device_pool_memory(first), is_device_pool_memory(second));
    assert_int_equal((uintptr_t)is_device_pool_memory(first) % IS_ARENA_ALIGN, 0);
    assert_int_equal(is_device_pool_size(first), 3 * K + 5);
    assert_int_equal(is_cuda_stream_wait(w.streams[1], &w.err), IS_OK);
    assert_int_equal(seen.right, 1);
    is_device_pool_counts counts = counts_of(&w);
    assert_int_equal(counts.hits, 1);
    assert_int_equal(counts.misses, 2);
    assert_int_equal(counts.chunks, 1);
    assert_int_equal(counts.copied_bytes, 3 * K + 5);
    assert_int_equal(counts.used, 3 * K + 256);
    assert_int_equal(counts.pinned, counts.used);
    release(&w, first, 0);
    release(&w, second, 1);
    fake_hold(false);
    close_pool(&w, 2);
}

static void another_key_is_another_chunk(void **state)
{
    (void)state;
    world w;
    open_pool(&w, 64 * K);
    is_device_pool_pin *old = take_version(&w, 1, 1, 2 * K, 0);
    assert_null(take_there(&w, 1, 2));
    is_device_pool_pin *new = take_version(&w, 1, 2, 3 * K, 1);
    assert_non_null(new);
    assert_null(take_there(&w, 1, 1)); /* the old one is out of use, and stands while it is read */
    put_read(w.streams[0], old, 1, 1);
    release(&w, old, 0);
    release(&w, new, 1);
    come_to_rest(&w);
    assert_int_equal(counts_of(&w).used, 3 * K);
    close_pool(&w, 2);
}

static void one_batch_may_want_a_chunk_twice(void **state)
{
    (void)state;
    world w;
    open_pool(&w, 8 * K);
    static uint8_t bytes[3][2 * K];
    is_device_pool_want wants[3];
    for (int i = 0; i < 3; i++) fill(bytes[i], sizeof bytes[i], 1, i == 1 ? 2 : 1);
    for (int i = 0; i < 3; i++) wants[i] = want_of(1, i == 1 ? 2 : 1, sizeof bytes[i], bytes[i]);
    /* Of one number, two chunks, the first of them again at the end. */
    assert_int_equal(is_device_pool_take(w.pool, wants, 3, w.streams[0], &w.err), IS_OK);
    is_device_pool_pin *pins[3];
    for (int i = 0; i < 3; i++) {
        pins[i] = wants[i].pin;
        assert_non_null(pins[i]);
        put_read(w.streams[0], pins[i], 1, i == 1 ? 2 : 1);
    }
    assert_int_equal(counts_of(&w).copied_bytes, 6 * K);
    is_device_pool_want again[2] = {want_of(1, 1, 0, NULL), want_of(1, 1, 0, NULL)};
    assert_int_equal(is_device_pool_take(w.pool, again, 2, w.streams[0], &w.err), IS_OK);
    assert_ptr_equal(is_device_pool_memory(again[0].pin), is_device_pool_memory(again[1].pin));
    assert_ptr_equal(is_device_pool_memory(again[0].pin), is_device_pool_memory(pins[2]));
    is_device_pool_pin *more[3] = {again[0].pin, NULL, again[1].pin};
    assert_int_equal(is_device_pool_release(w.pool, pins, 3, w.streams[0], &w.err), IS_OK);
    assert_int_equal(is_device_pool_release(w.pool, more, 3, w.streams[0], &w.err), IS_OK);
    come_to_rest(&w);
    assert_int_equal(counts_of(&w).used, 2 * K);
    drop(&w, 1);
    wants[1] = wants[2]; /* the same chunk, which is not there */
    assert_int_equal(is_device_pool_take(w.pool, wants, 3, w.streams[0], &w.err), IS_OK);
    for (int i = 0; i < 3; i++) {
        pins[i] = wants[i].pin;
        assert_ptr_equal(is_device_pool_memory(pins[i]), is_device_pool_memory(pins[0]));
    }
    assert_int_equal(counts_of(&w).copied_bytes, 8 * K);
    assert_int_equal(is_device_pool_release(w.pool, pins, 3, w.streams[0], &w.err), IS_OK);
    close_pool(&w, 2);
}

/* ------------------------------------------------------------ what goes */

static void the_least_recently_used_goes(void **state)
{
    (void)state;
    world w;
    open_pool(&w, 4 * K);
    for (int64_t i = 0; i < 4; i++) use(&w, i, K);
    use(&w, 0, K);
    use(&w, 2, K);
    use(&w, 4, K);
    assert_false(is_there(&w, 1));
    use(&w, 5, K);
    assert_false(is_there(&w, 3));
    assert_true(is_there(&w, 0));
    assert_true(is_there(&w, 2));
    assert_true(is_there(&w, 4));
    assert_true(is_there(&w, 5));
    assert_int_equal(counts_of(&w).evicted, 2);
    come_to_rest(&w);
    use(&w, 6, 3 * K); /* the three oldest */
    assert_int_equal(counts_of(&w).evicted, 5);
    assert_true(is_there(&w, 5));
    close_pool(&w, 7);
}

static void what_is_pinned_stays(void **state)
{
    (void)state;
    world w;
    open_pool(&w, 4 * K);
    is_device_pool_pin *pins[4];
    for (int64_t i = 0; i < 4; i++) pins[i] = take(&w, i, K);
    assert_null(take(&w, 4, K));
    assert_int_equal(counts_of(&w).refused, 1);
    assert_int_equal(counts_of(&w).evicted, 0);
    fake_finish();
    assert_null(take(&w, 4, K));
    release(&w, pins[2], 0);
    fake_finish();
    is_device_pool_pin *fits = take(&w, 4, K);
    assert_non_null(fits);
    assert_ptr_not_equal(is_device_pool_memory(fits), is_device_pool_memory(pins[0]));
    assert_false(is_there(&w, 2));
    for (int i = 0; i < 4; i++)
        if (i != 2) put_read(w.streams[1], pins[i], i, 1);
    pins[2] = NULL;
    assert_int_equal(is_device_pool_release(w.pool, pins, 4, w.streams[1], &w.err), IS_OK);
    release(&w, fits, 0);
    close_pool(&w, 5);
}

/* Nothing is evicted for a chunk that would not fit between the pinned ones anyway. */
static void nothing_goes_in_vain(void **state)
{
    (void)state;
    world w;
    open_pool(&w, 8 * K);
    for (int64_t i = 0; i < 8; i++) use(&w, i, K);
    is_device_pool_pin *middle = take(&w, 4, K);
    assert_null(take(&w, 8, 5 * K));
    assert_int_equal(counts_of(&w).evicted, 0);
    assert_null(take(&w, 8, 9 * K));
    assert_int_equal(counts_of(&w).chunks, 8);
    is_device_pool_pin *fits = take(&w, 8, 4 * K);
    assert_non_null(fits);
    release(&w, middle, 0);
    release(&w, fits, 0);
    close_pool(&w, 9);
}

static void memory_waits_for_its_readers(void **state)
{
    (void)state;
    world w;
    open_pool(&w, 2 * K);
    fake_hold(true);
    is_device_pool_pin *a = take_version(&w, 1, 1, K, 0);
    is_device_pool_pin *again = take_version(&w, 1, 1, K, 1);
    is_device_pool_pin *b = take_version(&w, 2, 1, K, 0);
    release(&w, again, 1);
    release(&w, a, 0);
    release(&w, b, 0);
    assert_null(take(&w, 3, K)); /* both readers of a and the one of b are still to run */
    assert_int_equal(is_cuda_stream_wait(w.streams[0], &w.err), IS_OK);
    is_device_pool_pin *c = take_version(&w, 3, 1, K, 2); /* where b was */
    assert_non_null(c);
    assert_null(take_version(&w, 4, 1, K, 2));
    assert_int_equal(counts_of(&w).evicted, 1);
    assert_int_equal(is_cuda_stream_wait(w.streams[1], &w.err), IS_OK);
    is_device_pool_pin *d = take_version(&w, 4, 1, K, 2);
    assert_non_null(d);
    release(&w, c, 2);
    release(&w, d, 2);
    fake_hold(false);
    close_pool(&w, 5);
    assert_int_equal(seen.right, 5);
}

static void a_batch_larger_than_the_pool(void **state)
{
    (void)state;
    world w;
    open_pool(&w, 8 * K);
    for (int64_t i = 8; i < 16; i++) use(&w, i, K);
    static uint8_t bytes[16][K];
    is_device_pool_want wants[16];
    is_device_pool_pin *pins[16];
    for (int64_t i = 0; i < 16; i++) {
        fill(bytes[i], K, i, 1);
        wants[i] = want_of(i, 1, K, bytes[i]);
    }
    wants[9].number = 99; /* not there, so there is room for one */
    fill(bytes[9], K, 99, 1);
    assert_int_equal(is_device_pool_take(w.pool, wants, 16, w.streams[1], &w.err), IS_OK);
    for (int i = 0; i < 16; i++) {
        pins[i] = wants[i].pin;
        assert_int_equal(pins[i] != NULL, i == 0 || (i >= 8 && i != 9)); /* what was there is not evicted for others */
        if (pins[i] != NULL) put_read(w.streams[1], pins[i], wants[i].number, 1);
    }
    assert_int_equal(counts_of(&w).refused, 8);
    assert_int_equal(is_device_pool_release(w.pool, pins, 16, w.streams[1], &w.err), IS_OK);
    close_pool(&w, 16);
    assert_int_equal(seen.right, 16);
}

/* ------------------------------------------------------------ dropping */

/* In the buffers that it came by too, whichever of them. */
static void what_is_dropped_is_nowhere(void **state)
{
    (void)state;
    world w;
    static uint8_t bytes[5000];
    is_device_pool_pin *pin;
    assert_int_equal(begin(&w, 4, (is_device_pool_settings){.budget = 1 << 16, .slot_bytes = 2048, .slots = 4}, 0),
                     IS_OK);
    fill(bytes, sizeof bytes, 7, 1);
    is_device_pool_want want = want_of(7, 1, sizeof bytes, bytes);
    assert_int_equal(is_device_pool_take(w.pool, &want, 1, w.streams[0], &w.err), IS_OK);
    pin = want.pin;
    assert_true(fake_holds(bytes, 2048) && fake_holds(bytes + 4096, 900));
    assert_int_equal(is_device_pool_release(w.pool, &pin, 1, w.streams[0], &w.err), IS_OK);
    drop(&w, 7);
    assert_false(fake_holds(bytes, 16) || fake_holds(bytes + 2048, 16) || fake_holds(bytes + 4096, 16));
    end(&w);
}

static void what_is_dropped_is_zeroed(void **state)
{
    (void)state;
    world w;
    open_pool(&w, 8 * K);
    use(&w, 1, K);
    drop(&w, 1); /* idle */
    assert_false(is_there(&w, 1));
    assert_true(fake_is_zero());
    is_device_pool_pin *pin = take(&w, 1, K);
    fake_hold(true);
    put_read(w.streams[0], pin, 1, 1);
    release(&w, pin, 0);
    drop(&w, 1); /* still to be read */
    assert_null(take_there(&w, 1, 1));
    assert_int_equal(counts_of(&w).used, K);
    fake_hold(false);
    assert_true(fake_is_zero()); /* without any further call */
    pin = take(&w, 1, K);
    is_device_pool_pin *other = take_version(&w, 1, 1, K, 1);
    fake_finish();
    drop(&w, 1); /* held twice */
    put_read(w.streams[0], pin, 1, 1);
    release(&w, pin, 0);
    fake_finish();
    assert_false(is_there(&w, 1));
    put_read(w.streams[1], other, 1, 1);
    release(&w, other, 1);
    assert_true(fake_is_zero());
    assert_int_equal(counts_of(&w).used, K);
    drop(&w, 1);
    drop(&w, 77);
    close_pool(&w, 2);
}

static void what_is_evicted_is_zeroed(void **state)
{
    (void)state;
    world w;
    open_pool(&w, 8 * K);
    for (int64_t i = 0; i < 8; i++) use(&w, i, K);
    use(&w, 8, 3 * K - 300);
    use(&w, 9, 300);
    for (int64_t i = 0; i < 10; i++)
        if (i != 9) drop(&w, i);
    is_device_pool_pin *pin = NULL;
    assert_int_equal(is_device_pool_reserve(w.pool, 6 * K, w.streams[2], &pin, &w.err), IS_OK);
    assert_non_null(pin);
    put_read(w.streams[2], pin, 10, 0); /* all zeros */
    release(&w, pin, 2);
    close_pool(&w, 11);
}

/* Where the runtime says nothing of the readers' end, the chunk is never touched again. */
static void what_cannot_be_waited_for_stays(void **state)
{
    (void)state;
    world w;
    open_pool(&w, 8 * K);
    fake_hold(true);
    is_device_pool_pin *lost = take_version(&w, 1, 1, K, 0);
    is_device_pool_pin *other = take_version(&w, 1, 1, K, 1);
    fake_fail_from(1);
    assert_int_equal(is_device_pool_release(w.pool, &lost, 1, w.streams[0], &w.err), IS_EENGINE);
    fake_fail_at(0);
    drop(&w, 1);
    release(&w, other, 1);
    is_device_pool_pin *pin = take_version(&w, 2, 1, K, 2);
    assert_int_equal(is_cuda_stream_wait(w.streams[2], &w.err), IS_OK); /* all copies and zeros are done */
    release(&w, pin, 2);
    fake_finish();
    assert_int_equal(seen.right, 3);
    fake_hold(false);
    assert_false(is_there(&w, 1));
    assert_int_equal(counts_of(&w).pinned, K);
    end(&w);
}

/* An event is not needed where the stream can be waited for. */
static void a_release_without_an_event_waits(void **state)
{
    (void)state;
    world w;
    open_pool(&w, 8 * K);
    fake_hold(true);
    is_device_pool_pin *pins[2] = {take(&w, 1, K), reserve(&w, 2, 1, K, 0)};
    fake_fail_at(1);
    assert_int_equal(is_device_pool_release(w.pool, pins, 2, w.streams[0], &w.err), IS_OK);
    assert_int_equal(fake_failures(), 1);
    assert_int_equal(seen.right, 2);
    assert_int_equal(counts_of(&w).pinned, 0);
    assert_int_equal(counts_of(&w).used, K);
    fake_hold(false);
    close_pool(&w, 2);
}

/* ------------------------------------------------------------ room for a kernel */

/* What is made there is nobody's to find, and gone behind who made it. */
static void what_is_reserved_is_not_found(void **state)
{
    (void)state;
    world w;
    open_pool(&w, 4 * K);
    fake_hold(true);
    is_device_pool_pin *chunk = take_version(&w, 1, 1, K, 0);
    is_device_pool_pin *pin = reserve(&w, 1, 2, 2 * K, 1);
    assert_non_null(pin);
    assert_null(take_there(&w, 1, 2));
    assert_null(reserve(&w, 2, 1, 2 * K, 1)); /* no room beside it */
    put_read(w.streams[1], pin, 1, 2);
    release(&w, pin, 1);
    assert_int_equal(counts_of(&w).pinned, 3 * K); /* the stream has not come to it yet */
    release(&w, chunk, 0);
    fake_hold(false);
    come_to_rest(&w);
    assert_int_equal(counts_of(&w).used, K);
    assert_null(take_there(&w, 1, 2));
    assert_true(is_there(&w, 1));
    close_pool(&w, 2);
}

/* ------------------------------------------------------------ staging, room */

/* Two buffers of 4 KiB, for chunks of up to 50 KiB: the fake copies late, so a buffer used too early shows. */
static void staging_buffers_go_round(void **state)
{
    (void)state;
    world w;
    open_pool(&w, 256 * K);
    fake_hold(true);
    is_device_pool_pin *pins[5];
    for (int64_t i = 0; i < 5; i++) pins[i] = take_version(&w, i, 1, (size_t)(10 * K * i + 4 * K - 1 + i), (int)i % 3);
    for (int i = 0; i < 5; i++) release(&w, pins[i], i % 3);
    fake_hold(false);
    close_pool(&w, 5);
    assert_int_equal(seen.right, 5);
}

/* The copy stream stands behind a reader here, so whoever waits for a copy lets the reader run. */
static void the_host_waits_when_all_buffers_are_used(void **state)
{
    (void)state;
    world w;
    open_pool(&w, 64 * K);
    use(&w, 1, K);
    use(&w, 2, K); /* as many buffers as there are have been used */
    fake_hold(true);
    is_device_pool_pin *read = take_there(&w, 1, 1);
    release(&w, read, 0);
    drop(&w, 1);
    uint64_t before = seen.right;
    is_device_pool_pin *pins[2] = {take_version(&w, 3, 1, 8 * K, 1), NULL};
    assert_int_equal(seen.right, before);
    pins[1] = take_version(&w, 4, 1, K, 1);
    assert_int_equal(seen.right, before + 1);
    assert_int_equal(is_device_pool_release(w.pool, pins, 2, w.streams[1], &w.err), IS_OK);
    fake_hold(false);
    close_pool(&w, 5);
}

/* Chunks of 1 to 10 parts come and go; after a while most of the memory is still chunks, and in the end it is one. */
static void memory_does_not_crumble(void **state)
{
    (void)state;
    world w;
    open_pool(&w, 512 * K);
    uint32_t random = 1;
    double used = 0;
    for (int i = 0; i < 3000; i++) {
        random = random * 1664525 + 1013904223;
        int64_t number = random >> 16 & 511;
        use(&w, number, (size_t)(number % 37 * 256 + 1024));
        if (i >= 1000) used += (double)counts_of(&w).used / (512 * K) / 2000;
    }
    assert_true(counts_of(&w).evicted > 1000);
    assert_true(used > 0.9);
    assert_int_equal(counts_of(&w).refused, 0);
    use(&w, 600, 512 * K);
    assert_int_equal(counts_of(&w).chunks, 1);
    close_pool(&w, 601);
}

static void settings_that_hold_nothing(void **state)
{
    (void)state;
    world w;
    assert_int_equal(begin(&w, 1, (is_device_pool_settings){.budget = 255}, 0), IS_EINVAL);
    assert_non_null(strstr(w.err.text, "255 bytes"));
    assert_null(w.pool);
    end(&w);
    assert_int_equal(begin(&w, 1, (is_device_pool_settings){.budget = 300}, 0),
                     IS_OK); /* 256, and buffers by default */
    use(&w, 1, 256);
    assert_null(take(&w, 2, 257));
    close_pool(&w, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chunk_is_copied_once),
        cmocka_unit_test(another_key_is_another_chunk),
        cmocka_unit_test(one_batch_may_want_a_chunk_twice),
        cmocka_unit_test(the_least_recently_used_goes),
        cmocka_unit_test(what_is_pinned_stays),
        cmocka_unit_test(nothing_goes_in_vain),
        cmocka_unit_test(memory_waits_for_its_readers),
        cmocka_unit_test(a_batch_larger_than_the_pool),
        cmocka_unit_test(what_is_dropped_is_nowhere),
        cmocka_unit_test(what_is_dropped_is_zeroed),
        cmocka_unit_test(what_is_evicted_is_zeroed),
        cmocka_unit_test(what_cannot_be_waited_for_stays),
        cmocka_unit_test(a_release_without_an_event_waits),
        cmocka_unit_test(what_is_reserved_is_not_found),
        cmocka_unit_test(staging_buffers_go_round),
        cmocka_unit_test(the_host_waits_when_all_buffers_are_used),
        cmocka_unit_test(memory_does_not_crumble),
        cmocka_unit_test(settings_that_hold_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
