/*
 * Pending facts become chunks.
 *
 * Whoever encodes (the worker in the background, or is_encode_pending) takes facts without a usable chunk,
 * scope by scope, puts those with the same prefix into one job for the engine, and stores what comes back
 * together with the ids of the facts in the prefix: when one of those is forgotten, the chunk goes too.
 *
 * The primer of a scope is its n oldest facts, the same for all, so that its KV is computed once for many
 * facts.  The n oldest themselves have the next n as theirs.
 */
#include "memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PAGE    64  /* facts looked up at a time   */
#define JOB     32  /* facts of one engine job     */
#define WAIT_MS 200 /* between two reports of one who waits */

#define MOST_WAIT_S 60 /* of the worker after failures */

typedef struct encode_run {
    is_memory *memory;
    is_progress_fn progress; /* may be NULL */
    void *user;
    uint64_t done, total;
} encode_run;

void is_prefix_free(is_prefix *prefix)
{
    free(prefix->tokens);
    free(prefix->deps);
    memset(prefix, 0, sizeof *prefix);
}

static is_status append(is_prefix *p, const int32_t *tokens, size_t n, is_error *err)
{
    int32_t *grown = realloc(p->tokens, (p->n + n + 1) * sizeof *grown);
    if (grown == NULL) return is_fail(err, IS_ENOMEM, "no memory for a prefix of %zu tokens", p->n + n);
    memcpy(grown + p->n, tokens, n * sizeof *tokens);
    p->tokens = grown;
    p->n += (uint32_t)n;
    return IS_OK;
}

/* A prefix takes at most half of the context, so that there is room for the fact itself. */
static uint32_t most_prefix(const is_memory *memory)
{
    return memory->engine->ops->context(memory->engine) / 2;
}

static is_status append_fact(is_memory *memory, const is_fact *fact, is_prefix *p, bool *fits, is_error *err)
{
    int32_t *tokens;
    uint32_t n;
    is_status status = is_fact_tokens(memory, fact, &tokens, &n, NULL, err);
    if (status != IS_OK) return status;
    *fits = p->n + n <= most_prefix(memory);
    if (*fits) status = append(p, tokens, n, err);
    free(tokens);
    if (status == IS_OK && *fits) p->deps[p->n_deps++] = fact->id;
    return status;
}

/*
 * The first `most` of the oldest facts; for one of those themselves the ones behind them, and where there are too few,
 * the first ones without itself.  So two prefixes serve a whole scope.
 */
static is_status append_primer(is_memory *memory, const is_fact_list *oldest, const is_fact *fact, uint32_t most,
                               is_prefix *p, is_error *err)
{
    size_t first = 0;
    for (size_t i = 0; i < oldest->n && i < most; i++)
        if (oldest->facts[i].id == fact->id) first = most < oldest->n ? most : 0;
    p->deps = malloc((most + 1) * sizeof *p->deps);
    if (p->deps == NULL) return is_fail(err, IS_ENOMEM, "no memory for a primer");
    bool fits = true;
    is_status status = IS_OK;
    for (size_t round = 0; round < oldest->n && p->n_deps < most && fits && status == IS_OK; round++) {
        const is_fact *other = &oldest->facts[(first + round) % oldest->n];
        if (other->id != fact->id) status = append_fact(memory, other, p, &fits, err);
    }
    return status;
}

/* The tokens of one turn of conversation. */
static is_status turn_tokens(is_memory *memory, const is_turn *turn, int32_t **tokens, size_t *n, is_error *err)
{
    const char *speaker = turn->speaker == NULL ? "" : turn->speaker;
    size_t size = strlen(speaker) + strlen(turn->text) + 4;
    char *line = malloc(size);
    if (line == NULL) return is_fail(err, IS_ENOMEM, "no memory for a window");
    (void)snprintf(line, size, "%s: %s\n", speaker, turn->text);
    is_status status = memory->engine->ops->tokenize(memory->engine, line, false, tokens, n, err);
    free(line);
    return status;
}

/* The youngest of the window's turns that fit, oldest first. */
static is_status append_window(is_memory *memory, int64_t scope, const is_fact *fact, uint32_t w, is_prefix *p,
                               is_error *err)
{
    if (w == 0 || fact->source == NULL) return IS_OK;
    is_turn_list *turns = NULL;
    int32_t *tokens[IS_RECIPE_MAX_WINDOW] = {NULL};
    size_t n[IS_RECIPE_MAX_WINDOW];
    is_status status = is_store_window(memory->store, scope, fact->source, w, &turns, err);
    if (status != IS_OK) return status;
    size_t used = p->n;
    size_t first = turns->n;
    while (status == IS_OK && first > 0) {
        status = turn_tokens(memory, &turns->turns[first - 1], &tokens[first - 1], &n[first - 1], err);
        if (status != IS_OK || used + n[first - 1] > most_prefix(memory)) break;
        used += n[--first];
    }
    for (size_t i = first; status == IS_OK && i < turns->n; i++) status = append(p, tokens[i], n[i], err);
    for (size_t i = 0; i < turns->n; i++) free(tokens[i]);
    is_turn_list_free(turns);
    return status;
}

is_status is_prefix_build(is_memory *memory, int64_t scope, const is_recipe *recipe, const is_fact_list *primer,
                          const is_fact *fact, is_prefix *out, is_error *err)
{
    memset(out, 0, sizeof *out);
    is_status status = IS_OK;
    if (recipe->header) status = append(out, memory->header, memory->n_header, err);
    if (status == IS_OK && recipe->primer > 0) status = append_primer(memory, primer, fact, recipe->primer, out, err);
    if (status == IS_OK) status = append_window(memory, scope, fact, recipe->window, out, err);
    if (status != IS_OK) is_prefix_free(out);
    return status;
}

/* ------------------------------------------------------------ one job */

/* Which of a scope's prefixes a fact has: facts of one kind share theirs, so it is made once a job. */
typedef enum prefix_kind { PREFIX_OWN, PREFIX_OF_OLDEST, PREFIX_OF_REST } prefix_kind;

typedef struct batch {
    is_prefix prefix;
    prefix_kind kind;
    is_encode_target targets[JOB];
    int32_t *tokens[JOB];
    int64_t ids[JOB];
    size_t n;
} batch;

static void batch_clear(batch *b)
{
    for (size_t i = 0; i < b->n; i++) {
        free(b->tokens[i]);
        free(b->targets[i].bytes);
    }
    is_prefix_free(&b->prefix);
    b->n = 0;
}

/* Whether the fact is one of the first n. */
static bool in_list(const is_fact_list *list, size_t n, int64_t id)
{
    for (size_t i = 0; i < list->n && i < n; i++)
        if (list->facts[i].id == id) return true;
    return false;
}

static prefix_kind kind_of(const is_recipe *recipe, const is_fact_list *primer, const is_fact *fact)
{
    if (recipe->window > 0 || primer->n < 2 * (size_t)recipe->primer) return PREFIX_OWN;
    return in_list(primer, recipe->primer, fact->id) ? PREFIX_OF_OLDEST : PREFIX_OF_REST;
}

static bool same_prefix(const is_prefix *a, const is_prefix *b)
{
    return a->n == b->n && (a->n == 0 || memcmp(a->tokens, b->tokens, a->n * sizeof *a->tokens) == 0);
}

static is_status tick(encode_run *run, uint64_t n, is_error *err)
{
    run->done += n;
    if (run->done > run->total) run->total = run->done; /* facts were added meanwhile */
    if (run->progress != NULL && !run->progress(run->user, run->done, run->total))
        return is_fail(err, IS_ECANCELED, "encoding was stopped after %llu facts; the rest stays pending",
                       (unsigned long long)run->done);
    if (run->memory->closing) return is_fail(err, IS_ECANCELED, "the memory is being closed");
    return IS_OK;
}

void is_set_on_encoded(is_memory *memory, is_encoded_fn fn, void *user)
{
    pthread_mutex_lock(&memory->watch_lock);
    memory->on_encoded = fn;
    memory->on_encoded_user = user;
    pthread_mutex_unlock(&memory->watch_lock);
}

static void tell_encoded(is_memory *m, uint32_t facts, double ms)
{
    pthread_mutex_lock(&m->watch_lock);
    if (m->on_encoded != NULL) m->on_encoded(m->on_encoded_user, facts, ms);
    pthread_mutex_unlock(&m->watch_lock);
}

/* Has the engine encode targets that stand alone or behind one prefix, each with a key where it needs one. */
static is_status encode_targets(is_memory *m, is_encode_job *job, is_error *err)
{
    is_status status = IS_OK;
    for (size_t i = 0; m->engine->ops->remote && i < job->n_targets && status == IS_OK; i++)
        status = is_store_new_key(m->store, &job->targets[i].key, err);
    return status == IS_OK ? m->engine->ops->encode(m->engine, job, err) : status;
}

/* What was not put will not be. */
static void drop_keys(is_memory *m, const is_encode_target *targets, size_t n)
{
    for (size_t i = 0; m->engine->ops->remote && i < n; i++)
        if (targets[i].key != 0) is_store_drop_key(m->store, targets[i].key);
}

/* Encodes the batch and stores its chunks. */
static is_status batch_run(encode_run *run, int64_t scope, batch *b, is_error *err)
{
    is_memory *m = run->memory;
    if (b->n == 0) return IS_OK;
    is_encode_job job = {.prefix = b->prefix.tokens,
                         .n_prefix = b->prefix.n,
                         .recipe = m->recipe_name,
                         .scope = (uint64_t)scope,
                         .cancel = &m->closing,
                         .targets = b->targets,
                         .n_targets = b->n};
    double begin = is_now_ms();
    is_status status = encode_targets(m, &job, err);
    if (status == IS_OK) tell_encoded(m, (uint32_t)b->n, is_now_ms() - begin);
    for (size_t i = 0; status == IS_OK && i < b->n; i++) {
        is_error why = {0};
        status = is_store_put_chunk(m->store, scope, b->ids[i], &m->key, b->targets[i].bytes, b->targets[i].size,
                                    b->prefix.deps, b->prefix.n_deps, &why);
        if (status == IS_ENOTFOUND) status = IS_OK; /* forgotten meanwhile, or its primer was */
        if (status != IS_OK && err != NULL) *err = why;
    }
    size_t n = b->n;
    drop_keys(m, b->targets, n);
    batch_clear(b);
    return status == IS_OK ? tick(run, n, err) : status;
}

/* Gives the batch the fact's prefix; what is in the batch with another one is run first. */
static is_status batch_prefix(encode_run *run, int64_t scope, const is_fact_list *primer, const is_fact *fact, batch *b,
                              is_error *err)
{
    is_memory *m = run->memory;
    prefix_kind kind = kind_of(&m->recipe, primer, fact);
    if (b->n > 0 && b->kind == kind && kind != PREFIX_OWN) return IS_OK;
    is_prefix prefix;
    is_status status = is_prefix_build(m, scope, &m->recipe, primer, fact, &prefix, err);
    if (status == IS_OK && b->n > 0 && !same_prefix(&prefix, &b->prefix)) status = batch_run(run, scope, b, err);
    if (status != IS_OK) {
        is_prefix_free(&prefix);
        return status;
    }
    is_prefix_free(&b->prefix);
    b->prefix = prefix;
    b->kind = kind;
    return IS_OK;
}

/* Adds a fact to the batch; a batch that is full or has another prefix is run first. */
static is_status batch_add(encode_run *run, int64_t scope, const is_fact_list *primer, const is_fact *fact, batch *b,
                           is_error *err)
{
    is_memory *m = run->memory;
    int32_t *tokens = NULL;
    uint32_t n = 0;
    uint8_t text[16];
    is_status status = b->n == JOB ? batch_run(run, scope, b, err) : IS_OK;
    if (status == IS_OK) status = batch_prefix(run, scope, primer, fact, b, err);
    if (status == IS_OK) status = is_fact_tokens(m, fact, &tokens, &n, text, err);
    if (status != IS_OK) return status;
    if (b->prefix.n + n > m->engine->ops->context(m->engine)) {
        is_memory_log(m, 1, "fact %lld is too long to be encoded; it is prefilled", (long long)fact->id);
        free(tokens);
        return IS_OK;
    }
    is_encode_target *target = &b->targets[b->n];
    *target = (is_encode_target){.tokens = tokens, .n_tokens = n};
    memcpy(target->text, text, sizeof text);
    b->ids[b->n] = fact->id; // NOLINT(clang-analyzer-unix.Malloc): it loses sight of b->prefix here
    b->tokens[b->n++] = tokens;
    return IS_OK;
}

/* ------------------------------------------------------------ everything pending */

/*
 * Facts that were encoded while the scope had too few others for a whole primer are encoded again, once, when it has
 * enough: they are among its oldest, which are the primer itself.
 */
static is_status encode_thin(encode_run *run, int64_t scope, const is_fact_list *primer, batch *b, is_error *err)
{
    is_memory *m = run->memory;
    if (m->recipe.primer == 0 || primer->n <= m->recipe.primer) return IS_OK;
    int64_t ids[2 * IS_RECIPE_MAX_PRIMER], counts[2 * IS_RECIPE_MAX_PRIMER];
    for (size_t i = 0; i < primer->n; i++) ids[i] = primer->facts[i].id;
    is_status status = is_store_count_deps(m->store, scope, ids, primer->n, &m->key, counts, err);
    for (size_t i = primer->n; status == IS_OK && i-- > 0;) {
        is_prefix whole;
        if (counts[i] < 0 || counts[i] >= m->recipe.primer) continue;
        status = is_prefix_build(m, scope, &m->recipe, primer, &primer->facts[i], &whole, err);
        bool thin = status == IS_OK && counts[i] < (int64_t)whole.n_deps;
        if (status == IS_OK) is_prefix_free(&whole);
        if (thin) status = batch_add(run, scope, primer, &primer->facts[i], b, err);
    }
    return status;
}

/* Encodes a page of one scope's facts: those that share the oldest facts as their primer, then the oldest themselves.
 */
static is_status encode_page(encode_run *run, int64_t scope, const is_fact_list *page, size_t begin, size_t end,
                             is_error *err)
{
    is_memory *m = run->memory;
    is_fact_list *primer = NULL;
    batch b = {.n = 0};
    is_status status = is_store_list(m->store, scope, 0, 2 * (size_t)m->recipe.primer, &primer, err);
    for (size_t i = begin; status == IS_OK && i < end; i++)
        if (!in_list(primer, m->recipe.primer, page->facts[i].id))
            status = batch_add(run, scope, primer, &page->facts[i], &b, err);
    for (size_t i = begin; status == IS_OK && i < end; i++)
        if (in_list(primer, m->recipe.primer, page->facts[i].id))
            status = batch_add(run, scope, primer, &page->facts[i], &b, err);
    if (status == IS_OK) status = batch_run(run, scope, &b, err);
    if (status == IS_OK) status = encode_thin(run, scope, primer, &b, err);
    if (status == IS_OK) status = batch_run(run, scope, &b, err);
    batch_clear(&b);
    is_fact_list_free(primer);
    return status;
}

static is_status encode_chunk_of_header(is_memory *m, is_error *err)
{
    bool ready = false;
    const int64_t id = 0;
    is_status status = is_store_ready(m->store, 0, &id, 1, &m->key, &ready, err);
    if (status != IS_OK || ready) return status;
    is_encode_target target = {.tokens = m->header, .n_tokens = m->n_header};
    is_encode_job job = {.recipe = "header", .targets = &target, .n_targets = 1};
    status = encode_targets(m, &job, err);
    if (status == IS_OK) status = is_store_put_chunk(m->store, 0, 0, &m->key, target.bytes, target.size, NULL, 0, err);
    drop_keys(m, &target, 1);
    free(target.bytes);
    return status;
}

static is_status encode_all(encode_run *run, int64_t scope, is_error *err)
{
    is_memory *m = run->memory;
    int64_t after = 0;
    is_status status = encode_chunk_of_header(m, err);
    while (status == IS_OK) {
        is_fact_list *page = NULL;
        int64_t *scopes = NULL;
        status = is_store_pending(m->store, scope, &m->key, after, PAGE, &page, &scopes, err);
        if (status != IS_OK) break;
        size_t n = page->n;
        for (size_t begin = 0, end; status == IS_OK && begin < n; begin = end) {
            for (end = begin + 1; end < n && scopes[end] == scopes[begin]; end++) {
            }
            status = encode_page(run, scopes[begin], page, begin, end, err);
        }
        if (n > 0) after = page->facts[n - 1].id;
        is_fact_list_free(page);
        free(scopes);
        if (n == 0) break;
    }
    return status;
}

/*
 * Waits until nobody else encodes; the others do so for this caller too, so that what they get done is its progress.
 * `total`: what was pending when it began to wait, or has come since; 0 when there was no need to.
 */
static is_status lock_encoding(is_memory *m, int64_t scope, is_progress_fn progress, void *user, uint64_t *total,
                               is_error *err)
{
    for (;;) {
        struct timespec until;
        (void)clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += WAIT_MS * 1000000L;
        until.tv_sec += until.tv_nsec / 1000000000L;
        until.tv_nsec %= 1000000000L;
        if (pthread_mutex_timedlock(&m->encode_lock, &until) == 0) return IS_OK;
        if (atomic_load(&m->closing)) return is_fail(err, IS_ECANCELED, "the memory is being closed");
        if (progress == NULL) continue;
        uint64_t pending;
        is_status status = is_store_count_pending(m->store, scope, &m->key, &pending, err);
        if (status != IS_OK) return status;
        if (pending > *total) *total = pending;
        if (!progress(user, *total - pending, *total))
            return is_fail(err, IS_ECANCELED, "encoding was stopped; %llu facts stay pending",
                           (unsigned long long)pending);
    }
}

static is_status encode_locked(is_memory *m, int64_t scope, is_progress_fn progress, void *user, uint64_t seen,
                               is_error *err)
{
    encode_run run = {.memory = m, .progress = progress, .user = user};
    is_status status = is_store_count_pending(m->store, scope, &m->key, &run.total, err);
    if (seen > run.total) {
        run.done = seen - run.total;
        run.total = seen;
    }
    if (status == IS_OK && run.total > 0 && progress != NULL) status = tick(&run, 0, err);
    if (status == IS_OK) status = encode_all(&run, scope, err);
    uint64_t dropped = 0;
    /* With everything encoded, what an earlier recipe, model or header left is only in the way. */
    if (status == IS_OK && scope == 0) status = is_store_drop_stale(m->store, &m->key, &dropped, err);
    if (dropped > 0)
        is_memory_log(m, 2, "%llu chunks of an earlier recipe, model or header were deleted",
                      (unsigned long long)dropped);
    return status;
}

static is_status encode_pending_inside(is_memory *memory, const is_scope *scope, is_progress_fn progress, void *user,
                                       is_error *err)
{
    int64_t number = 0;
    if (memory->engine == NULL)
        return is_fail(err, IS_EUNSUPPORTED, "the memory was opened without a model; open it with one to encode");
    if (!memory->engine->ops->injects(memory->engine)) return IS_OK; /* served by prefill: nothing to make */
    if (scope != NULL) {
        is_status status = is_memory_scope(memory, scope, false, &number, err);
        if (status != IS_OK) return status;
    }
    uint64_t seen = 0;
    is_status status = lock_encoding(memory, number, progress, user, &seen, err);
    if (status != IS_OK) return status;
    status = encode_locked(memory, number, progress, user, seen, err);
    pthread_mutex_unlock(&memory->encode_lock);
    return status;
}

is_status is_encode_pending(is_memory *memory, const is_scope *scope, is_progress_fn progress, void *user,
                            is_error *err)
{
    is_status status = is_memory_enter(memory, err);
    if (status != IS_OK) return status;
    status = encode_pending_inside(memory, scope, progress, user, err);
    is_memory_leave(memory);
    return status;
}

/* ------------------------------------------------------------ the worker */

/* What could not be done is tried again, after a longer time each time it fails. */
static void *worker_main(void *arg)
{
    is_memory *m = arg;
    is_error err = {0};
    time_t wait_s = 0;
    for (;;) {
        is_status status = is_encode_pending(m, NULL, NULL, NULL, &err);
        bool failed = status != IS_OK && status != IS_ECANCELED;
        if (failed) is_memory_log(m, 0, "encoding: %s", err.text);
        wait_s = !failed ? 0 : wait_s == 0 ? 1 : wait_s < MOST_WAIT_S ? 2 * wait_s : MOST_WAIT_S;
        struct timespec until;
        (void)clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += wait_s;
        pthread_mutex_lock(&m->worker_lock);
        while ((failed || !m->work) && !m->closing) {
            if (!failed)
                pthread_cond_wait(&m->worker_wake, &m->worker_lock);
            else if (pthread_cond_timedwait(&m->worker_wake, &m->worker_lock, &until) == ETIMEDOUT)
                break;
        }
        m->work = false;
        bool closing = m->closing;
        pthread_mutex_unlock(&m->worker_lock);
        if (closing) return NULL;
    }
}

/*
 * Chunks are read into memory before anything is served, so that the first request is as fast as the thousandth, and
 * not beside the first requests, whose engine threads would share their cores with the reading.
 */
is_status is_worker_start(is_memory *memory, is_error *err)
{
    is_error why = {0};
    if (is_store_warm(memory->store, &memory->key, &memory->closing, &why) != IS_OK)
        is_memory_log(memory, 1, "warming up: %s", why.text);
    if (pthread_create(&memory->worker, NULL, worker_main, memory) != 0)
        return is_fail(err, IS_ENOMEM, "the system gives no thread for encoding");
    memory->worker_started = true;
    return IS_OK;
}

void is_worker_stop(is_memory *memory)
{
    pthread_mutex_lock(&memory->worker_lock);
    memory->closing = true;
    pthread_cond_signal(&memory->worker_wake);
    pthread_mutex_unlock(&memory->worker_lock);
    if (memory->worker_started) pthread_join(memory->worker, NULL);
    memory->worker_started = false;
}

void is_worker_notify(is_memory *memory)
{
    pthread_mutex_lock(&memory->worker_lock);
    memory->work = true;
    pthread_cond_signal(&memory->worker_wake);
    pthread_mutex_unlock(&memory->worker_lock);
}
