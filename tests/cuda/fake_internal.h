/* What the two halves of the fake device share.  All but fake_enter expect its lock to be held. */
#ifndef IS_TESTS_CUDA_FAKE_INTERNAL_H
#define IS_TESTS_CUDA_FAKE_INTERNAL_H

#include "fake.h"

#include <pthread.h>
#include <stdlib.h>

/* Memory of the device, with a page on either side that is never accessible, or of the pinned host. */
typedef struct block block;
struct block {
    uint8_t *base;
    size_t size;
    uint8_t *map; /* of the device only */
    size_t map_size;
    bool live;
    block *next;
};

/* One record of an event, which stays for those that wait for it when the event is recorded anew. */
typedef struct mark mark;
struct mark {
    bool happened;
    is_cuda_stream *stream;
    mark *next;
};

typedef struct operation operation;
struct operation {
    void (*run)(void *args); /* NULL: of the next two */
    mark *record, *after;
    const uint8_t *host; /* what it reads or writes of the host's block */
    size_t host_size;
    operation *next;
    uint64_t args[];
};

struct is_cuda_stream {
    operation *first, **end;
    bool freed;
    is_cuda_stream *next;
};

struct is_cuda_event {
    mark *mark; /* NULL: never recorded */
    is_cuda_event *next;
};

typedef struct fake_device {
    pthread_mutex_t mutex;
    uint64_t begun;
    uint64_t random;
    bool held;
    uint64_t calls, failures, fail_at, fail_until;
    block *device, *host;
    mark *marks;
    is_cuda_stream *streams, standard; /* standard: the one that NULL is */
    is_cuda_event *events;
} fake_device;

extern fake_device fake;

_Noreturn void fake_die(const char *what);
void *fake_must(void *allocated);
void fake_lock(void);
void fake_unlock(void);
/* Begins a call that can fail: locked if it does not. */
is_status fake_enter(const char *name, is_status failure, is_error *err);
/* Puts an operation into the stream. */
operation *fake_add(is_cuda_stream *stream, void (*run)(void *), const void *args, size_t size);
void fake_run_all(void);

/* Makes the device's memory accessible, or not. */
void fake_protect(int how);
void fake_memory_clear(void);

#endif
