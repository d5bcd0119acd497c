/* The fake device's memory, behind mprotect, and what goes on in it: copies and kernels. */
#include "fake_internal.h"

#include "kv/compose.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define GARBAGE 0xA5 /* what fresh memory is full of */

void (*fake_run_compose)(const is_move *move);
void (*fake_run_gather)(const is_move *move);
void (*fake_run_select)(const is_select *select);

void fake_protect(int how)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (const block *m = fake.device; m != NULL; m = m->next) {
        if (m->live && mprotect(m->map + page, m->map_size - 2 * page, how) != 0) fake_die("mprotect failed");
    }
}

bool fake_is_zero(void)
{
    fake_lock();
    fake_run_all();
    fake_protect(PROT_READ);
    bool zero = true;
    for (const block *m = fake.device; m != NULL; m = m->next)
        for (size_t i = 0; i < m->size && m->live && zero; i++) zero = m->base[i] == 0;
    fake_protect(PROT_NONE);
    fake_unlock();
    return zero;
}

bool fake_holds(const void *bytes, size_t size)
{
    fake_lock();
    fake_run_all();
    fake_protect(PROT_READ);
    bool holds = false;
    for (const block *m = fake.device; m != NULL && !holds; m = m->next)
        holds = m->live && memmem(m->base, m->size, bytes, size) != NULL;
    for (const block *m = fake.host; m != NULL && !holds; m = m->next)
        holds = m->live && memmem(m->base, m->size, bytes, size) != NULL;
    fake_protect(PROT_NONE);
    fake_unlock();
    return holds;
}

/* ------------------------------------------------------------ allocations */

static bool lies_in(const block *m, const void *address, size_t size)
{
    const uint8_t *at = address;
    return m->live && at >= m->base && size <= m->size && (size_t)(at - m->base) <= m->size - size;
}

static bool all_is_adopted;

void fake_adopt_all(bool adopt)
{
    all_is_adopted = adopt;
}

bool is_cuda_owns(const void *address)
{
    fake_lock();
    bool owns = all_is_adopted;
    for (const block *m = fake.device; m != NULL && !owns; m = m->next) owns = lies_in(m, address, 1);
    fake_unlock();
    return owns;
}

/* The end of the memory is the end of a page, as far as its alignment lets it be. */
is_status is_cuda_malloc(size_t size, void **out, is_error *err)
{
    *out = NULL;
    is_status status = fake_enter("is_cuda_malloc", IS_ENOMEM, err);
    if (status != IS_OK) return status;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t inner = is_align_up(size, page);
    block *m = fake_must(calloc(1, sizeof *m));
    m->map_size = inner + 2 * page;
    void *map = mmap(NULL, m->map_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) fake_die("out of memory");
    m->map = map;
    m->size = size;
    m->base = m->map + page + inner - is_align_up(size, 256);
    memset(m->base, GARBAGE, size);
    if (mprotect(m->map, m->map_size, PROT_NONE) != 0) fake_die("mprotect failed");
    m->live = true;
    m->next = fake.device;
    fake.device = m;
    *out = m->base;
    fake_unlock();
    return IS_OK;
}

static block *block_at(block *m, const void *base)
{
    while (m != NULL && !(m->live && m->base == base)) m = m->next;
    if (m == NULL) fake_die("memory is freed that was never allocated, or was freed before");
    return m;
}

/* Its address is not given out again before the device ends. */
void is_cuda_free(void *memory)
{
    if (memory == NULL) return;
    fake_lock();
    fake_run_all();
    block *m = block_at(fake.device, memory);
    (void)madvise(m->map, m->map_size, MADV_DONTNEED);
    m->live = false;
    fake_unlock();
}

is_status is_cuda_host_malloc(size_t size, void **out, is_error *err)
{
    *out = NULL;
    is_status status = fake_enter("is_cuda_host_malloc", IS_ENOMEM, err);
    if (status != IS_OK) return status;
    block *m = fake_must(calloc(1, sizeof *m));
    if (posix_memalign(out, 4096, size) != 0) fake_die("out of memory");
    memset(*out, GARBAGE, size);
    *m = (block){.base = *out, .size = size, .live = true, .next = fake.host};
    fake.host = m;
    fake_unlock();
    return IS_OK;
}

static void must_not_use(const is_cuda_stream *s, const block *m)
{
    for (const operation *op = s->first; op != NULL; op = op->next)
        if (op->host_size > 0 && lies_in(m, op->host, op->host_size))
            fake_die("pinned memory is freed while a copy still needs it");
}

void is_cuda_host_free(void *memory)
{
    if (memory == NULL) return;
    fake_lock();
    block *m = block_at(fake.host, memory);
    must_not_use(&fake.standard, m);
    for (const is_cuda_stream *s = fake.streams; s != NULL; s = s->next) must_not_use(s, m);
    block **at = &fake.host;
    while (*at != m) at = &(*at)->next;
    *at = m->next;
    free(memory);
    free(m);
    fake_unlock();
}

void fake_memory_clear(void)
{
    for (block *m = fake.device, *next; m != NULL; m = next) {
        next = m->next;
        (void)munmap(m->map, m->map_size);
        free(m);
    }
    for (block *m = fake.host, *next; m != NULL; m = next) {
        next = m->next;
        free(m->base);
        free(m);
    }
    fake.device = NULL;
    fake.host = NULL;
}

/* ------------------------------------------------------------ copies */

static void must_lie_in(const block *m, const void *address, size_t size, const char *what)
{
    while (m != NULL && !lies_in(m, address, size)) m = m->next;
    if (m == NULL) fake_die(what);
}

typedef struct copy {
    void *to;
    const void *from; /* NULL: zeros */
    size_t size;
} copy;

static void run_copy(void *args)
{
    const copy *c = args;
    if (c->from != NULL)
        memcpy(c->to, c->from, c->size);
    else
        memset(c->to, 0, c->size);
}

static is_status put_copy(const char *name, copy c, const void *device, const void *host, is_cuda_stream *stream,
                          is_error *err)
{
    is_status status = fake_enter(name, IS_EENGINE, err);
    if (status != IS_OK) return status;
    must_lie_in(fake.device, device, c.size, "a copy that does not lie in device memory");
    if (host != NULL) must_lie_in(fake.host, host, c.size, "a copy that does not lie in pinned memory");
    operation *op = fake_add(stream, run_copy, &c, sizeof c);
    op->host = host;
    op->host_size = host != NULL ? c.size : 0;
    fake_unlock();
    return IS_OK;
}

is_status is_cuda_to_device(void *device, const void *host, size_t size, is_cuda_stream *stream, is_error *err)
{
    return put_copy("is_cuda_to_device", (copy){device, host, size}, device, host, stream, err);
}

is_status is_cuda_to_host(void *host, const void *device, size_t size, is_cuda_stream *stream, is_error *err)
{
    return put_copy("is_cuda_to_host", (copy){host, device, size}, device, host, stream, err);
}

is_status is_cuda_zero(void *device, size_t size, is_cuda_stream *stream, is_error *err)
{
    return put_copy("is_cuda_zero", (copy){device, NULL, size}, device, NULL, stream, err);
}

/* ------------------------------------------------------------ kernels */

static void run_compose(void *args)
{
    fake_run_compose(args);
}

static void run_gather(void *args)
{
    fake_run_gather(args);
}

static void run_select(void *args)
{
    fake_run_select(args);
}

static is_status launch(const char *name, bool there, void (*run)(void *), const void *args, size_t size,
                        is_cuda_stream *stream, is_error *err)
{
    is_status status = fake_enter(name, IS_EENGINE, err);
    if (status != IS_OK) return status;
    if (!there) fake_die("a launch of a kernel that the test gives no body");
    (void)fake_add(stream, run, args, size);
    fake_unlock();
    return IS_OK;
}

is_status is_cuda_compose(const is_move *move, is_cuda_stream *stream, is_error *err)
{
    return launch("is_cuda_compose", fake_run_compose != NULL, run_compose, move, sizeof *move, stream, err);
}

is_status is_cuda_gather(const is_move *move, is_cuda_stream *stream, is_error *err)
{
    return launch("is_cuda_gather", fake_run_gather != NULL, run_gather, move, sizeof *move, stream, err);
}

is_status is_cuda_select(const is_select *select, is_cuda_stream *stream, is_error *err)
{
    return launch("is_cuda_select", fake_run_select != NULL, run_select, select, sizeof *select, stream, err);
}

typedef struct scoring {
    const uint16_t *rows, *queries;
    uint32_t n, n_queries, dim;
    float *scores;
} scoring;

static void run_scores(void *args)
{
    const scoring *s = args;
    for (size_t q = 0; q < s->n_queries; q++)
        for (size_t r = 0; r < s->n; r++) {
            float sum = 0;
            for (size_t d = 0; d < s->dim; d++)
                sum += is_f16_to_f32(s->rows[r * s->dim + d]) * is_f16_to_f32(s->queries[q * s->dim + d]);
            s->scores[q * s->n + r] = sum;
        }
}

is_status is_cuda_scores(const uint16_t *rows, uint32_t n, const uint16_t *queries, uint32_t n_queries, uint32_t dim,
                         float *scores, is_cuda_stream *stream, is_error *err)
{
    scoring s = {.rows = rows, .queries = queries, .n = n, .n_queries = n_queries, .dim = dim, .scores = scores};
    return launch("is_cuda_scores", true, run_scores, &s, sizeof s, stream, err);
}
