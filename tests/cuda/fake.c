/*
 * The fake device: streams as queues of operations, events as marks in them.  Memory, and what operations do, stands in
 * fake_memory.c.
 */
#include "fake_internal.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

fake_device fake = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local uint64_t used; /* the device that this thread has chosen, by when it was begun */

_Noreturn void fake_die(const char *what)
{
    (void)fprintf(stderr, "fake device: %s\n", what);
    abort();
}

static uint32_t chance(void)
{
    fake.random ^= fake.random >> 12;
    fake.random ^= fake.random << 25;
    fake.random ^= fake.random >> 27;
    return (uint32_t)((fake.random * 2685821657736338717u) >> 32);
}

void *fake_must(void *allocated)
{
    if (allocated == NULL) fake_die("out of memory");
    return allocated;
}

void fake_lock(void)
{
    (void)pthread_mutex_lock(&fake.mutex);
    if (fake.begun == 0) fake_die("there is none; call fake_begin");
}

void fake_unlock(void)
{
    (void)pthread_mutex_unlock(&fake.mutex);
}

/* Begins a call that can fail: locked if it does not. */
is_status fake_enter(const char *name, is_status failure, is_error *err)
{
    fake_lock();
    if (used != fake.begun) fake_die("a thread calls before is_cuda_use");
    fake.calls++;
    if (fake.calls < fake.fail_at || fake.calls > fake.fail_until) return IS_OK;
    fake.failures++;
    fake_unlock();
    return is_fail(err, failure, "%s: the test lets it fail", name);
}

/* ------------------------------------------------------------ running */

static bool is_ready(const is_cuda_stream *s)
{
    return s->first != NULL && (s->first->after == NULL || s->first->after->happened);
}

static void run_one(is_cuda_stream *s)
{
    operation *op = s->first;
    if (op->run != NULL) {
        fake_protect(PROT_READ | PROT_WRITE);
        op->run(op->args);
        fake_protect(PROT_NONE);
    }
    if (op->record != NULL) op->record->happened = true;
    s->first = op->next;
    if (s->first == NULL) s->end = &s->first;
    free(op);
}

/* Streams that were freed go when what was in them is done. */
static void sweep(void)
{
    for (is_cuda_stream **at = &fake.streams; *at != NULL;) {
        is_cuda_stream *s = *at;
        if (s->freed && s->first == NULL) {
            *at = s->next;
            free(s);
        } else {
            at = &s->next;
        }
    }
}

/* One operation of any stream; false: there is none. */
static bool run_any(void)
{
    uint32_t n = is_ready(&fake.standard) ? 1 : 0;
    for (const is_cuda_stream *s = fake.streams; s != NULL; s = s->next) n += is_ready(s) ? 1 : 0;
    if (n == 0) return false;
    uint32_t which = chance() % n;
    for (is_cuda_stream *s = fake.streams; s != NULL; s = s->next)
        if (is_ready(s) && which-- == 0) {
            run_one(s);
            return true;
        }
    run_one(&fake.standard);
    return true;
}

static void run_some(void)
{
    if (fake.held) return;
    for (uint32_t n = chance() % 2 == 0 ? chance() % 8 : 0; n > 0 && run_any(); n--) {
    }
}

/* Until the mark has happened, or with none until the stream is empty. */
static void run_until(is_cuda_stream *s, const mark *m) // NOLINT(misc-no-recursion): a mark is older than who waits
{
    while (m != NULL ? !m->happened : s->first != NULL) {
        run_some();
        if (m != NULL ? m->happened : s->first == NULL) break;
        if (is_ready(s))
            run_one(s);
        else
            run_until(s->first->after->stream, s->first->after);
    }
}

void fake_run_all(void)
{
    while (run_any()) {
    }
    sweep();
}

/* ------------------------------------------------------------ operations */

static is_cuda_stream *of(is_cuda_stream *stream)
{
    if (stream == NULL) return &fake.standard;
    const is_cuda_stream *s = fake.streams;
    while (s != NULL && s != stream) s = s->next;
    if (s == NULL || s->freed) fake_die("this stream was never made, or was freed");
    return stream;
}

static is_cuda_event *known(is_cuda_event *event)
{
    const is_cuda_event *e = fake.events;
    while (e != NULL && e != event) e = e->next;
    if (e == NULL) fake_die("this event was never made, or was freed");
    return event;
}

operation *fake_add(is_cuda_stream *stream, void (*run)(void *), const void *args, size_t size)
{
    is_cuda_stream *s = of(stream);
    operation *op = fake_must(calloc(1, sizeof *op + size));
    op->run = run;
    if (size > 0) memcpy(op->args, args, size);
    *s->end = op;
    s->end = &op->next;
    return op;
}

void fake_put(is_cuda_stream *stream, void (*run)(void *args), const void *args, size_t size)
{
    fake_lock();
    (void)fake_add(stream, run, args, size);
    fake_unlock();
}

/* ------------------------------------------------------------ devices and block */

uint32_t is_cuda_devices(void)
{
    return 1;
}

is_status is_cuda_use(uint32_t device, is_error *err)
{
    fake_lock();
    uint64_t before = used;
    used = fake.begun;
    fake_unlock();
    is_status status = fake_enter("is_cuda_use", IS_EUNSUPPORTED, err);
    if (status != IS_OK) {
        used = before; /* as cudaSetDevice leaves it */
        return status;
    }
    fake_unlock();
    return device == 0 ? IS_OK : is_fail(err, IS_EUNSUPPORTED, "the fake device is device 0");
}

is_status is_cuda_ready(is_error *err)
{
    is_status status = fake_enter("is_cuda_ready", IS_EUNSUPPORTED, err);
    if (status == IS_OK) fake_unlock();
    return status;
}

/* ------------------------------------------------------------ streams and events */

is_status is_cuda_stream_new(is_cuda_stream **out, is_error *err)
{
    *out = NULL;
    is_status status = fake_enter("is_cuda_stream_new", IS_EENGINE, err);
    if (status != IS_OK) return status;
    is_cuda_stream *s = fake_must(calloc(1, sizeof *s));
    s->end = &s->first;
    s->next = fake.streams;
    fake.streams = s;
    *out = s;
    fake_unlock();
    return IS_OK;
}

/* What is in it still runs. */
void is_cuda_stream_free(is_cuda_stream *stream)
{
    if (stream == NULL) return;
    fake_lock();
    of(stream)->freed = true;
    sweep();
    fake_unlock();
}

is_status is_cuda_stream_wait(is_cuda_stream *stream, is_error *err)
{
    is_status status = fake_enter("is_cuda_stream_wait", IS_EENGINE, err);
    if (status != IS_OK) return status;
    run_until(of(stream), NULL);
    sweep();
    fake_unlock();
    return IS_OK;
}

is_status is_cuda_event_new(is_cuda_event **out, is_error *err)
{
    *out = NULL;
    is_status status = fake_enter("is_cuda_event_new", IS_EENGINE, err);
    if (status != IS_OK) return status;
    is_cuda_event *e = fake_must(calloc(1, sizeof *e));
    e->next = fake.events;
    fake.events = e;
    *out = e;
    fake_unlock();
    return IS_OK;
}

void is_cuda_event_free(is_cuda_event *event)
{
    if (event == NULL) return;
    fake_lock();
    is_cuda_event **at = &fake.events;
    while (*at != known(event)) at = &(*at)->next;
    *at = event->next;
    free(event);
    fake_unlock();
}

is_status is_cuda_event_record(is_cuda_event *event, is_cuda_stream *stream, is_error *err)
{
    is_status status = fake_enter("is_cuda_event_record", IS_EENGINE, err);
    if (status != IS_OK) return status;
    mark *m = fake_must(calloc(1, sizeof *m));
    m->stream = of(stream);
    m->next = fake.marks;
    fake.marks = m;
    known(event)->mark = m;
    fake_add(stream, NULL, NULL, 0)->record = m;
    fake_unlock();
    return IS_OK;
}

is_status is_cuda_event_done(is_cuda_event *event, bool *done, is_error *err)
{
    is_status status = fake_enter("is_cuda_event_done", IS_EENGINE, err);
    if (status != IS_OK) return status;
    run_some();
    sweep();
    *done = known(event)->mark == NULL || event->mark->happened;
    fake_unlock();
    return IS_OK;
}

is_status is_cuda_event_wait(is_cuda_event *event, is_error *err)
{
    is_status status = fake_enter("is_cuda_event_wait", IS_EENGINE, err);
    if (status != IS_OK) return status;
    if (known(event)->mark != NULL) run_until(event->mark->stream, event->mark);
    sweep();
    fake_unlock();
    return IS_OK;
}

is_status is_cuda_stream_after(is_cuda_stream *stream, is_cuda_event *event, is_error *err)
{
    is_status status = fake_enter("is_cuda_stream_after", IS_EENGINE, err);
    if (status != IS_OK) return status;
    if (known(event)->mark != NULL) fake_add(stream, NULL, NULL, 0)->after = event->mark;
    fake_unlock();
    return IS_OK;
}

/* ------------------------------------------------------------ the test's side */

void fake_begin(uint64_t seed)
{
    static uint64_t begins;
    (void)pthread_mutex_lock(&fake.mutex);
    if (fake.begun != 0) fake_die("begun twice; call fake_end");
    fake.begun = ++begins;
    fake.random = seed * 2 + 1;
    fake.held = false;
    fake.calls = 0;
    fake.failures = 0;
    fake.fail_at = 0;
    fake.fail_until = 0;
    fake.standard = (is_cuda_stream){0};
    fake.standard.end = &fake.standard.first;
    fake_unlock();
}

/* Frees what is left of the device. */
static void clear(void)
{
    for (is_cuda_stream *s = fake.streams, *next; s != NULL; s = next) {
        next = s->next;
        free(s);
    }
    for (is_cuda_event *e = fake.events, *next; e != NULL; e = next) {
        next = e->next;
        free(e);
    }
    for (mark *m = fake.marks, *next; m != NULL; m = next) {
        next = m->next;
        free(m);
    }
    fake_memory_clear();
    fake.streams = NULL;
    fake.events = NULL;
    fake.marks = NULL;
    fake.begun = 0;
}

bool fake_end(void)
{
    fake_lock();
    fake_run_all();
    bool device = false;
    for (const block *m = fake.device; m != NULL; m = m->next) device = device || m->live;
    if (device) (void)fprintf(stderr, "fake device: device memory was not freed\n");
    if (fake.host != NULL) (void)fprintf(stderr, "fake device: pinned memory was not freed\n");
    if (fake.streams != NULL) (void)fprintf(stderr, "fake device: a stream was not freed\n");
    if (fake.events != NULL) (void)fprintf(stderr, "fake device: an event was not freed\n");
    bool freed = !device && fake.host == NULL && fake.streams == NULL && fake.events == NULL;
    clear();
    fake_unlock();
    return freed;
}

void fake_hold(bool held)
{
    fake_lock();
    fake.held = held;
    fake_unlock();
}

void fake_finish(void)
{
    fake_lock();
    fake_run_all();
    fake_unlock();
}

static void fail_between(uint64_t first, uint64_t last)
{
    fake_lock();
    fake.fail_at = first == 0 ? 0 : fake.calls + first;
    fake.fail_until = first == 0 ? 0 : last == 0 ? UINT64_MAX : fake.calls + last;
    fake_unlock();
}

void fake_fail_at(uint64_t n)
{
    fail_between(n, n);
}

void fake_fail_from(uint64_t n)
{
    fail_between(n, 0);
}

uint64_t fake_calls(void)
{
    fake_lock();
    uint64_t calls = fake.calls;
    fake_unlock();
    return calls;
}

uint64_t fake_failures(void)
{
    fake_lock();
    uint64_t failures = fake.failures;
    fake_unlock();
    return failures;
}
