/*
 * Pending facts become chunks.
 *
 * Whoever encodes (the worker in the background, or is_encode_pending) takes facts without a usable chunk, scope by
 * scope, has the engine compute them behind what the recipe says, and stores what comes back together with the ids of
 * the facts that stood in front: when one of those is forgotten, the chunk goes too.
 *
 * Primers are shared by a scope's facts, so that their KV is computed once for many.  Their lines are spread evenly
 * over the scope's oldest facts, as many of these as the greatest power of two that there are.  So a primer is of all
 * that the user has said and not only of how it began, it stays as it is while facts are added, and is made anew, with
 * all chunks behind it, each time that the scope has doubled: what that costs is at most what was encoded before.
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

#define FEW 16 /* facts that are encoded each behind all the others */

#define MOST_WAIT_S 60 /* of the worker after failures */

#define MOST_PRIMERS 2
#define MOST_LINES   IS_RECIPE_MAX_PRIMER                         /* of a primer */
#define MOST_DEPS    (IS_RECIPE_MAX_PRIMER + IS_RECIPE_MAX_CHAIN) /* of a prefix */

/* What stands before a fact. */
typedef struct prefix {
    int32_t *tokens;
    uint32_t n;
    uint32_t n_shared;       /* of the tokens stand before other facts too */
    int64_t deps[MOST_DEPS]; /* ids of the facts in it */
    size_t n_deps;
} prefix;

/* The prefixes that a scope's facts share, without windows: each is encoded behind the first that it does not stand in
 * itself. */
typedef struct primers {
    prefix prefixes[MOST_PRIMERS];
    uint32_t n;
    is_fact_list *few; /* the oldest facts of a scope that has few, where each has a prefix of its own; else NULL */
    int64_t until;     /* facts from this id on are too young to stand in front as near ones, or in a chain */
    int64_t renew;     /* a chunk with no fact from this id on in front of it is of a smaller scope; 0: none is */
} primers;

typedef struct encode_run {
    is_memory *memory;
    is_progress_fn progress; /* may be NULL */
    void *user;
    uint64_t done, total;
} encode_run;

/* ------------------------------------------------------------ prefixes */

static void prefix_free(prefix *p)
{
    free(p->tokens);
    memset(p, 0, sizeof *p);
}

static is_status append(prefix *p, const int32_t *tokens, size_t n, is_error *err)
{
    int32_t *grown = realloc(p->tokens, (p->n + n + 1) * sizeof *grown);
    if (grown == NULL) return is_fail(err, IS_ENOMEM, "no memory for a prefix of %zu tokens", p->n + n);
    if (n > 0) memcpy(grown + p->n, tokens, n * sizeof *tokens);
    p->tokens = grown;
    p->n += (uint32_t)n;
    return IS_OK;
}

/* A prefix takes at most half of the context, so that there is room for the fact itself. */
static uint32_t most_prefix(const is_memory *memory)
{
    return memory->engine->ops->context(memory->engine) / 2;
}

/* The line of a fact, if it fits. */
static is_status append_fact(is_memory *memory, const is_fact *fact, prefix *p, is_error *err)
{
    int32_t *tokens;
    uint32_t n;
    is_status status = is_fact_tokens(memory, fact, &tokens, &n, NULL, err);
    if (status != IS_OK) return status;
    if (p->n + n <= most_prefix(memory)) {
        status = append(p, tokens, n, err);
        if (status == IS_OK) p->deps[p->n_deps++] = fact->id;
    }
    free(tokens);
    return status;
}

/* The header, where the recipe has it, into a prefix that is empty. */
static is_status prefix_begin(is_memory *memory, prefix *p, is_error *err)
{
    is_status status = memory->recipe.header ? append(p, memory->header, memory->n_header, err) : IS_OK;
    p->n_shared = p->n;
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
static is_status append_window(is_memory *memory, int64_t scope, const is_fact *fact, uint32_t w, prefix *p,
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

/* ------------------------------------------------------------ primers */

static void primers_free(primers *p)
{
    for (uint32_t i = 0; i < MOST_PRIMERS; i++) prefix_free(&p->prefixes[i]);
    is_fact_list_free(p->few);
    p->few = NULL;
}

static bool holds(const prefix *p, int64_t fact)
{
    for (size_t i = 0; i < p->n_deps; i++)
        if (p->deps[i] == fact) return true;
    return false;
}

static int64_t youngest(const prefix *p)
{
    int64_t most = 0;
    for (size_t i = 0; i < p->n_deps; i++)
        if (p->deps[i] > most) most = p->deps[i];
    return most;
}

/*
 * The lines of the scope's facts that are most like this one, the nearest first.  Of the oldest ones only, as with
 * primers: so they stay as they are while facts are added, and what was made when the scope was smaller has none in
 * front that is younger than what primers were made of then.
 */
static is_status append_near(is_memory *memory, int64_t scope, const is_fact *fact, int64_t until, prefix *p,
                             is_error *err)
{
    uint32_t near = 0;
    double embed_ms, rank_ms;
    is_fact_list *list = NULL;
    if (memory->recipe.near == 0) return IS_OK;
    is_status status = is_rank(memory, scope, fact->text, IS_MAX_K, NULL, &list, &embed_ms, &rank_ms, err);
    for (size_t i = 0; status == IS_OK && i < list->n && near < memory->recipe.near; i++) {
        const is_fact *other = &list->facts[i];
        if (other->id >= until || other->id == fact->id || holds(p, other->id)) continue;
        status = append_fact(memory, other, p, err);
        near++;
    }
    is_fact_list_free(list);
    return status;
}

/* The lines of the facts that stand before it in its chain. */
static is_status append_chain(is_memory *memory, int64_t scope, const is_fact *fact, int64_t until, prefix *p,
                              is_error *err)
{
    int64_t ids[IS_RECIPE_MAX_CHAIN];
    size_t n = 0, others = 0;
    is_fact_list *list = NULL;
    if (memory->recipe.chain == 0) return IS_OK;
    is_status status = is_store_group_before(memory->store, scope, fact->id, memory->recipe.chain, ids, &n, err);
    for (size_t i = 0; i < n; i++)
        if (ids[i] < until && !holds(p, ids[i])) ids[others++] = ids[i];
    if (status == IS_OK) status = is_store_get(memory->store, scope, ids, others, &list, err);
    for (size_t i = 0; status == IS_OK && i < list->n; i++) status = append_fact(memory, &list->facts[i], p, err);
    is_fact_list_free(list);
    return status;
}

/* Of few facts the youngest ones but the fact itself, oldest first. */
static is_status prefix_of_few(is_memory *memory, const is_fact_list *few, int64_t fact, prefix *out, is_error *err)
{
    size_t others = 0, first = few->n;
    is_status status = prefix_begin(memory, out, err);
    while (first > 0 && others < memory->recipe.primer) others += few->facts[--first].id != fact;
    for (size_t i = first; status == IS_OK && i < few->n; i++)
        if (few->facts[i].id != fact) status = append_fact(memory, &few->facts[i], out, err);
    return status;
}

/* Where the youngest that can stand in front of each of them is the oldest: one of the last two has it.  Where not all
 * lines fit, others may have an older one, and what was made stays. */
static is_status renew_of_few(is_memory *memory, primers *p, is_error *err)
{
    is_status status = IS_OK;
    const size_t n = p->few->n, lines = n - 1 < memory->recipe.primer ? n - 1 : memory->recipe.primer;
    for (size_t i = 0; status == IS_OK && n >= 2 && i < 2; i++) {
        prefix one = {0};
        status = prefix_of_few(memory, p->few, p->few->facts[n - 1 - i].id, &one, err);
        int64_t most = one.n_deps == lines ? youngest(&one) : 0;
        if (i == 0 || most < p->renew) p->renew = most;
        prefix_free(&one);
    }
    return status;
}

/* The lines at even distances over the oldest `basis` facts, dealt out in turn.  *whole: all of them fitted. */
static is_status spread(is_memory *memory, int64_t scope, uint64_t basis, uint32_t lines_of_one, primers *p,
                        bool *whole, is_error *err)
{
    uint64_t ranks[MOST_PRIMERS * MOST_LINES];
    int64_t ids[MOST_PRIMERS * MOST_LINES];
    const size_t lines = (size_t)p->n * lines_of_one;
    is_fact_list *facts = NULL;
    *whole = true;
    for (size_t i = 0; i < lines; i++) ranks[i] = (2 * i + 1) * basis / (2 * lines);
    is_status status = is_store_at_ranks(memory->store, scope, ranks, lines, ids, err);
    if (status == IS_OK) status = is_store_get(memory->store, scope, ids, lines, &facts, err);
    for (uint32_t j = 0; status == IS_OK && j < p->n; j++) {
        prefix *one = &p->prefixes[j];
        size_t n = 0;
        status = prefix_begin(memory, one, err);
        for (size_t i = j; status == IS_OK && i < facts->n; i += p->n, n++)
            status = append_fact(memory, &facts->facts[i], one, err);
        one->n_shared = one->n;
        if (one->n_deps < n) *whole = false;
        if (j == 0 || youngest(one) < p->renew) p->renew = youngest(one);
    }
    is_fact_list_free(facts);
    return status;
}

/*
 * When the scope has doubled, what has none in front that is younger than the oldest of the last lines of primers is
 * made anew.  So these lines, and what is younger, stand in front of nothing before: the first of them is at this rank
 * when 2 * basis facts are dealt out.
 */
static is_status set_until(is_memory *memory, int64_t scope, uint64_t basis, primers *p, is_error *err)
{
    const is_recipe *recipe = &memory->recipe;
    const uint64_t lines = 2 * (recipe->primer < basis ? recipe->primer : basis);
    uint64_t rank = (2 * lines - 3) * basis / lines; /* below the basis where a primer has one line */
    int64_t id;
    if (recipe->chain == 0 && recipe->near == 0) return IS_OK;
    if (recipe->near > 0 && rank > basis) rank = basis;
    is_status status = is_store_at_ranks(memory->store, scope, &rank, 1, &id, err);
    p->until = id == 0 ? INT64_MAX : id;
    return status;
}

/*
 * Few facts stand each behind all the others, which costs less than it brings.  Of more there are two primers at least,
 * so that there is one for the facts in the other, and so at most half of the facts in each.  Where the context is too
 * small for that many lines, fewer are spread over all of the facts.
 */
static is_status primers_read(is_memory *memory, int64_t scope, primers *out, is_error *err)
{
    const is_recipe *recipe = &memory->recipe;
    uint64_t facts = 0, basis = 1;
    bool whole = false;
    *out = (primers){.n = 1};
    is_status status = recipe->primer > 0 ? is_store_count_facts(memory->store, scope, &facts, err) : IS_OK;
    while (basis <= facts / 2) basis *= 2;
    if (status != IS_OK || recipe->primer == 0)
        return status == IS_OK ? prefix_begin(memory, &out->prefixes[0], err) : status;
    if (basis <= FEW && basis < 2 * (uint64_t)recipe->primer) {
        status = is_store_list(memory->store, scope, 0, (size_t)basis, &out->few, err);
        return status == IS_OK ? renew_of_few(memory, out, err) : status;
    }
    out->n = MOST_PRIMERS;
    uint64_t lines = recipe->primer < basis / 2 ? recipe->primer : basis / 2;
    for (; status == IS_OK && !whole && lines > 0; lines /= 2) {
        primers_free(out);
        status = spread(memory, scope, basis, (uint32_t)lines, out, &whole, err);
    }
    return status == IS_OK ? set_until(memory, scope, basis, out, err) : status;
}

void is_forget_prefixes(is_memory *m, int64_t scope)
{
    if (m->engine != NULL && m->engine->ops->forget != NULL) m->engine->ops->forget(m->engine, (uint64_t)scope);
}

/* ------------------------------------------------------------ one job */

/* Facts that are being encoded behind one prefix. */
typedef struct batch {
    int64_t ids[JOB];
    is_encode_target targets[JOB]; /* tokens, text, key; in the end the chunk */
    size_t n;
} batch;

static void batch_clear(batch *b)
{
    for (size_t i = 0; i < b->n; i++) {
        free((int32_t *)(uintptr_t)b->targets[i].tokens);
        free(b->targets[i].bytes);
    }
    b->n = 0;
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

/* A key for each target, where the engine needs one. */
static is_status new_keys(is_memory *m, is_encode_target *targets, size_t n, is_error *err)
{
    is_status status = IS_OK;
    for (size_t i = 0; m->engine->ops->remote && i < n && status == IS_OK; i++)
        status = is_store_new_key(m->store, &targets[i].key, err);
    return status;
}

/* What was not put will not be. */
static void drop_key(is_memory *m, const is_encode_target *target)
{
    if (m->engine->ops->remote && target->key != 0) is_store_drop_key(m->store, target->key);
}

static is_status put_target(is_memory *m, int64_t scope, const prefix *p, int64_t fact, const is_encode_target *target,
                            is_error *err)
{
    is_error why = {0};
    is_status status =
        is_store_put_chunk(m->store, scope, fact, &m->key, target->bytes, target->size, p->deps, p->n_deps, &why);
    if (status == IS_ENOTFOUND) {
        /* What was forgotten meanwhile may be of a primer that the engine has kept since. */
        is_forget_prefixes(m, scope);
        return IS_OK;
    }
    if (status != IS_OK && err != NULL) *err = why;
    return status;
}

/* Encodes the batch's facts behind the prefix, and stores their chunks. */
static is_status batch_run(encode_run *run, int64_t scope, const prefix *p, batch *b, is_error *err)
{
    is_memory *m = run->memory;
    size_t n = b->n;
    if (n == 0) return IS_OK;
    is_encode_job job = {.prefix = p->tokens,
                         .n_prefix = p->n,
                         .n_shared = p->n_shared,
                         .recipe = m->recipe_name,
                         .scope = (uint64_t)scope,
                         .cancel = &m->closing,
                         .targets = b->targets,
                         .n_targets = n};
    double begin = is_now_ms();
    is_status status = new_keys(m, b->targets, n, err);
    if (status == IS_OK) status = m->engine->ops->encode(m->engine, &job, err);
    if (status == IS_OK) tell_encoded(m, (uint32_t)n, is_now_ms() - begin);
    for (size_t i = 0; status == IS_OK && i < n; i++) status = put_target(m, scope, p, b->ids[i], &b->targets[i], err);
    for (size_t i = 0; i < n; i++) drop_key(m, &b->targets[i]);
    batch_clear(b);
    return status == IS_OK ? tick(run, n, err) : status;
}

/* Puts a fact into the batch, which has room; one that is too long is left out. */
static is_status batch_add(is_memory *m, const prefix *p, const is_fact *fact, batch *b, is_error *err)
{
    int32_t *tokens = NULL;
    uint32_t n = 0;
    is_encode_target target = {0};
    is_status status = is_fact_tokens(m, fact, &tokens, &n, target.text, err);
    if (status != IS_OK) return status;
    if (p->n + n > m->engine->ops->context(m->engine)) {
        is_memory_log(m, 1, "fact %lld is too long to be encoded; it is prefilled", (long long)fact->id);
        free(tokens);
        return IS_OK;
    }
    target.tokens = tokens;
    target.n_tokens = n;
    b->ids[b->n] = fact->id;
    b->targets[b->n++] = target;
    return IS_OK;
}

/* The primer that the fact stands behind. */
static uint32_t primer_of(const primers *p, int64_t fact)
{
    uint32_t j = 0;
    while (j + 1 < p->n && holds(&p->prefixes[j], fact)) j++;
    return j;
}

/* Each fact has a prefix of its own, or one that goes on behind the primer. */
static bool alone(const is_memory *m, const primers *p)
{
    return p->few != NULL || m->recipe.chain > 0 || m->recipe.near > 0 || m->recipe.window > 0;
}

/* A fact whose prefix is its own. */
static is_status encode_alone(encode_run *run, int64_t scope, const primers *p, const is_fact *fact, is_error *err)
{
    is_memory *m = run->memory;
    prefix own = {0};
    batch b = {.n = 0};
    is_status status = IS_OK;
    if (p->few != NULL) {
        status = prefix_of_few(m, p->few, fact->id, &own, err);
    } else {
        const prefix *shared = &p->prefixes[primer_of(p, fact->id)];
        own = *shared;
        own.tokens = NULL;
        own.n = 0;
        status = append(&own, shared->tokens, shared->n, err);
        if (status == IS_OK) status = append_chain(m, scope, fact, p->until, &own, err);
        if (status == IS_OK) status = append_near(m, scope, fact, p->until, &own, err);
    }
    if (status == IS_OK) status = append_window(m, scope, fact, m->recipe.window, &own, err);
    if (status == IS_OK) status = batch_add(m, &own, fact, &b, err);
    if (status == IS_OK) status = batch_run(run, scope, &own, &b, err);
    batch_clear(&b);
    prefix_free(&own);
    return status;
}

/* ------------------------------------------------------------ everything pending */

/* Primer by primer, so that the engine computes each once. */
static is_status encode_list(encode_run *run, int64_t scope, const primers *p, const is_fact *facts, size_t n,
                             is_error *err)
{
    is_memory *m = run->memory;
    batch b = {.n = 0};
    is_status status = IS_OK;
    for (uint32_t j = 0; status == IS_OK && j < p->n; j++) {
        for (size_t i = 0; status == IS_OK && i < n; i++) {
            if (primer_of(p, facts[i].id) != j) continue;
            if (alone(m, p)) {
                status = encode_alone(run, scope, p, &facts[i], err);
                continue;
            }
            if (b.n == JOB) status = batch_run(run, scope, &p->prefixes[j], &b, err);
            if (status == IS_OK) status = batch_add(m, &p->prefixes[j], &facts[i], &b, err);
        }
        if (status == IS_OK) status = batch_run(run, scope, &p->prefixes[j], &b, err);
    }
    batch_clear(&b);
    return status;
}

/* Makes chunks anew that were made when the scope was half as large, each at most once a call. */
static is_status renew(encode_run *run, int64_t scope, const primers *p, is_error *err)
{
    is_memory *m = run->memory;
    is_status status = IS_OK;
    for (int64_t after = 0; status == IS_OK && p->renew > 0;) {
        is_fact_list *list = NULL;
        status = is_store_outdated(m->store, scope, &m->key, p->renew, after, PAGE, &list, err);
        if (status != IS_OK) break;
        size_t n = list->n;
        if (n > 0) after = list->facts[n - 1].id;
        status = encode_list(run, scope, p, list->facts, n, err);
        is_fact_list_free(list);
        if (n == 0) break;
    }
    return status;
}

/* A page of one scope's facts, then those of the scope that are outdated. */
static is_status encode_page(encode_run *run, int64_t scope, const is_fact_list *page, size_t begin, size_t end,
                             is_error *err)
{
    primers p;
    is_status status = primers_read(run->memory, scope, &p, err);
    if (status == IS_OK) status = encode_list(run, scope, &p, page->facts + begin, end - begin, err);
    if (status == IS_OK) status = renew(run, scope, &p, err);
    primers_free(&p);
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
    status = new_keys(m, &target, 1, err);
    if (status == IS_OK) status = m->engine->ops->encode(m->engine, &job, err);
    if (status == IS_OK) status = is_store_put_chunk(m->store, 0, 0, &m->key, target.bytes, target.size, NULL, 0, err);
    drop_key(m, &target);
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
