/* The fake device itself: that it is late, in the right order, and does not let by what a real one would not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda/fake.h"
#include "kv/compose.h"

#define SIZE 1000

typedef struct world {
    is_cuda_stream *a, *b;
    is_cuda_event *event;
    uint8_t *host, *device;
    is_error err;
} world;

static void begin(world *w, uint64_t seed)
{
    void *host;
    void *device;
    fake_begin(seed);
    assert_int_equal(is_cuda_use(0, &w->err), IS_OK);
    assert_int_equal(is_cuda_stream_new(&w->a, &w->err), IS_OK);
    assert_int_equal(is_cuda_stream_new(&w->b, &w->err), IS_OK);
    assert_int_equal(is_cuda_event_new(&w->event, &w->err), IS_OK);
    assert_int_equal(is_cuda_host_malloc(SIZE, &host, &w->err), IS_OK);
    assert_int_equal(is_cuda_malloc(SIZE, &device, &w->err), IS_OK);
    w->host = host;
    w->device = device;
}

static void end(world *w)
{
    is_cuda_free(w->device);
    is_cuda_host_free(w->host);
    is_cuda_event_free(w->event);
    is_cuda_stream_free(w->a);
    is_cuda_stream_free(w->b);
    assert_true(fake_end());
}

/* ------------------------------------------------------------ what ends the program */

static void read_device(world *w)
{
    (void)*(volatile uint8_t *)w->device;
}

static void read_freed(world *w)
{
    is_cuda_free(w->device);
    (void)*(volatile uint8_t *)w->device;
}

static void copy_unpinned(world *w)
{
    uint8_t bytes[8] = {0};
    (void)is_cuda_to_device(w->device, bytes, sizeof bytes, w->a, &w->err);
}

static void copy_beyond(world *w)
{
    (void)is_cuda_to_device(w->device + 1, w->host, SIZE, w->a, &w->err);
}

static void free_too_early(world *w)
{
    (void)is_cuda_to_device(w->device, w->host, SIZE, w->a, &w->err);
    is_cuda_host_free(w->host);
}

static void launch_nothing(world *w)
{
    (void)is_cuda_compose(&(is_move){0}, w->a, &w->err);
}

static void use_freed_stream(world *w)
{
    is_cuda_stream_free(w->a);
    (void)is_cuda_stream_wait(w->a, &w->err);
}

static void *call(void *arg)
{
    (void)is_cuda_zero(((world *)arg)->device, 1, NULL, NULL);
    return NULL;
}

static void call_without_use(world *w)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, call, w) == 0) (void)pthread_join(thread, NULL);
}

static void what_must_not_be_ends_the_program(void **state)
{
    (void)state;
    void (*const wrongs[])(world *) = {read_device,    read_freed,     copy_unpinned,    copy_beyond,
                                       free_too_early, launch_nothing, use_freed_stream, call_without_use};
    world w;
    begin(&w, 1);
    for (size_t i = 0; i < sizeof wrongs / sizeof *wrongs; i++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
            (void)dup2(nowhere, STDERR_FILENO);
            wrongs[i](&w);
            _exit(0);
        }
        int how = 0;
        assert_int_equal(waitpid(child, &how, 0), child);
        if (WIFEXITED(how) && WEXITSTATUS(how) == 0) fail_msg("wrong %zu was let by", i);
    }
    end(&w);
}

/* ------------------------------------------------------------ late, and in order */

static void copies_are_late(void **state)
{
    (void)state;
    world w;
    begin(&w, 1);
    memset(w.host, 1, SIZE);
    assert_int_equal(is_cuda_to_device(w.device, w.host, SIZE, w.a, &w.err), IS_OK);
    w.host[5] = 2; /* too early */
    assert_int_equal(is_cuda_zero(w.device, 4, w.a, &w.err), IS_OK);
    assert_int_equal(is_cuda_event_record(w.event, w.a, &w.err), IS_OK);
    assert_int_equal(is_cuda_to_host(w.host, w.device, SIZE, w.a, &w.err), IS_OK);
    fake_hold(true);
    bool done = true;
    assert_int_equal(is_cuda_event_done(w.event, &done, &w.err), IS_OK);
    assert_false(done);
    assert_int_equal(is_cuda_event_wait(w.event, &w.err), IS_OK);
    assert_int_equal(is_cuda_event_done(w.event, &done, &w.err), IS_OK);
    assert_true(done);
    assert_int_equal(w.host[0], 1); /* what stands behind the event has not run */
    assert_int_equal(is_cuda_stream_wait(w.a, &w.err), IS_OK);
    assert_int_equal(w.host[3], 0);
    assert_int_equal(w.host[4], 1);
    assert_int_equal(w.host[5], 2);
    end(&w);
}

static uint32_t order;
static void note(void *args)
{
    order = order * 10 + *(const uint32_t *)args;
}

static void put_note(is_cuda_stream *stream, uint32_t n)
{
    fake_put(stream, note, &n, sizeof n);
}

/* Of 1 and 2 in one stream and 3 in another: every order that may be is seen, and none that may not. */
static void streams_run_in_any_allowed_order(void **state)
{
    (void)state;
    bool seen[400] = {false};
    for (uint64_t seed = 0; seed < 200; seed++) {
        world w;
        begin(&w, seed);
        bool after = seed % 2 == 1;
        order = 0;
        put_note(w.a, 1);
        assert_int_equal(is_cuda_event_record(w.event, w.a, &w.err), IS_OK);
        put_note(w.a, 2);
        if (after) assert_int_equal(is_cuda_stream_after(w.b, w.event, &w.err), IS_OK);
        put_note(w.b, 3);
        assert_int_equal(is_cuda_event_record(w.event, w.a, &w.err), IS_OK); /* b still waits for the first */
        assert_int_equal(is_cuda_stream_wait(w.b, &w.err), IS_OK);
        fake_finish();
        assert_true(order < 400);
        if (after) assert_int_not_equal(order, 312);
        seen[order] = true;
        end(&w);
    }
    for (uint32_t i = 0; i < 400; i++) assert_int_equal(seen[i], i == 123 || i == 132 || i == 312);
}

static void what_is_not_freed_is_said(void **state)
{
    (void)state;
    world w;
    void *more = NULL;
    begin(&w, 1);
    fake_fail_at(2);
    assert_int_equal(is_cuda_malloc(1, &more, &w.err), IS_OK);
    assert_int_equal(is_cuda_malloc(1, &more, &w.err), IS_ENOMEM);
    assert_null(more);
    assert_int_equal(fake_failures(), 1);
    assert_false(fake_end());
}

/* ------------------------------------------------------------ scores */

#define ROWS    5
#define QUERIES 3
#define DIM     16

static void scores_are_products(void **state)
{
    (void)state;
    world w;
    begin(&w, 1);
    uint16_t *values = (uint16_t *)(void *)w.host;
    for (int i = 0; i < (ROWS + QUERIES) * DIM; i++) values[i] = is_f32_to_f16((float)(i * 37 % 64 - 32) / 16.0F);
    const uint16_t *rows = (const uint16_t *)(void *)w.device;
    float *scores = (float *)(void *)(w.device + 512);
    assert_int_equal(is_cuda_to_device(w.device, w.host, SIZE, w.a, &w.err), IS_OK);
    assert_int_equal(is_cuda_scores(rows, ROWS, rows + ROWS * DIM, QUERIES, DIM, scores, w.a, &w.err), IS_OK);
    assert_int_equal(is_cuda_to_host(w.host, scores, ROWS * QUERIES * sizeof(float), w.a, &w.err), IS_OK);
    assert_int_equal(is_cuda_stream_wait(w.a, &w.err), IS_OK);
    for (int q = 0; q < QUERIES; q++)
        for (int r = 0; r < ROWS; r++) {
            double want = 0;
            for (int d = 0; d < DIM; d++)
                want += (double)((r * DIM + d) * 37 % 64 - 32) * (((ROWS + q) * DIM + d) * 37 % 64 - 32) / 256.0;
            float got;
            memcpy(&got, w.host + (q * ROWS + r) * (int)sizeof got, sizeof got);
            assert_true(fabs((double)got - want) < 1e-3);
        }
    end(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_must_not_be_ends_the_program),
        cmocka_unit_test(copies_are_late),
        cmocka_unit_test(streams_run_in_any_allowed_order),
        cmocka_unit_test(what_is_not_freed_is_said),
        cmocka_unit_test(scores_are_products),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
