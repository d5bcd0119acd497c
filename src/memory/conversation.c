/*
 * Conversations that go on.
 *
 * What a prompt has behind its facts (the end of the system message, the turns before, the user's message) and the
 * answer to it are KV rows when the answer is done.  They are kept as chunks, two a turn: what was asked, and what was
 * answered.  The next prompt of the conversation begins its tail with the same tokens, so these chunks are injected
 * behind the facts, moved by difference, though other facts stand in front of them now.
 *
 * A chunk is found by what stands before it in the tail (a hash over all those tokens, so that the same words at
 * another place are another chunk), by its own tokens, which are compared one by one, and by its scope.  It carries a
 * trace of the facts it was made behind: when a scope forgets or changes a fact, all of its conversations go.
 *
 * They live in memory only, in a budget of bytes; the one that was used longest ago goes first.
 */
#include "conversation.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

typedef struct entry {
    uint64_t scope;
    uint64_t before; /* hash of the tail's tokens in front of it */
    uint64_t used;   /* by the clock */
    uint32_t pins;
    bool dropped; /* goes with its last pin */
    void *bytes;
    size_t size;
    is_chunk chunk;
} entry;

struct is_conversations {
    pthread_mutex_t lock;
    entry **entries;
    size_t n, capacity;
    uint64_t clock;
    uint64_t bytes, budget;
};

is_status is_conversations_open(uint64_t budget, is_conversations **out, is_error *err)
{
    is_conversations *c = *out = calloc(1, sizeof *c);
    if (c == NULL) return is_fail(err, IS_ENOMEM, "no memory for conversations");
    pthread_mutex_init(&c->lock, NULL);
    c->budget = budget;
    return IS_OK;
}

static void entry_free(entry *e)
{
    if (e->bytes != NULL) explicit_bzero(e->bytes, e->size); /* users' words, in their way */
    free(e->bytes);
    free(e);
}

void is_conversations_close(is_conversations *c)
{
    if (c == NULL) return;
    for (size_t i = 0; i < c->n; i++) entry_free(c->entries[i]);
    free(c->entries);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

uint64_t is_conversations_bytes(is_conversations *c)
{
    pthread_mutex_lock(&c->lock);
    uint64_t bytes = c->bytes;
    pthread_mutex_unlock(&c->lock);
    return bytes;
}

/* Takes entry i out of the list; a pinned one is freed by whoever unpins it last.  The lock is held. */
static void drop(is_conversations *c, size_t i)
{
    entry *e = c->entries[i];
    c->entries[i] = c->entries[--c->n];
    c->bytes -= e->size;
    e->dropped = true;
    if (e->pins == 0) entry_free(e);
}

static uint64_t extend(uint64_t before, const int32_t *tokens, size_t n)
{
    return XXH3_64bits_withSeed(tokens, n * sizeof *tokens, before);
}

uint64_t is_scope_key(const is_scope *scope)
{
    const char *const names[] = {scope->tenant, scope->user, scope->agent, scope->run};
    uint64_t key = 0;
    for (int i = 0; i < 4; i++) {
        const char *name = names[i] == NULL ? "" : names[i];
        key = XXH3_64bits_withSeed(name, strlen(name) + 1, key);
    }
    return key;
}

/* ------------------------------------------------------------ finding */

/* The longest chunk that the tail goes on with; something must be left behind it.  The lock is held. */
static entry *next_of(const is_conversations *c, uint64_t scope, uint64_t before, const int32_t *tokens, size_t n)
{
    entry *best = NULL;
    for (size_t i = 0; i < c->n; i++) {
        entry *e = c->entries[i];
        uint32_t have = e->chunk.info.n_tokens;
        if (e->scope != scope || e->before != before || have >= n) continue;
        if (best != NULL && have <= best->chunk.info.n_tokens) continue;
        if (memcmp(e->chunk.tokens, tokens, have * sizeof *tokens) == 0) best = e;
    }
    return best;
}

is_status is_conversation_find(is_conversations *c, uint64_t scope, const int32_t *tokens, size_t n,
                               is_conversation *out, is_error *err)
{
    *out = (is_conversation){.hash = IS_CONVERSATION_START};
    is_status status = IS_OK;
    pthread_mutex_lock(&c->lock);
    entry *e;
    while (status == IS_OK && (e = next_of(c, scope, out->hash, tokens + out->n_tokens, n - out->n_tokens)) != NULL) {
        is_segment *segments = realloc(out->segments, (out->n + 1) * sizeof *segments);
        if (segments != NULL) out->segments = segments;
        void **pins = realloc(out->pins, (out->n + 1) * sizeof *pins);
        if (pins != NULL) out->pins = pins;
        if (segments == NULL || pins == NULL) {
            status = is_fail(err, IS_ENOMEM, "no memory for a conversation's turns");
            break;
        }
        e->pins++;
        e->used = ++c->clock;
        segments[out->n] = (is_segment){e->chunk.tokens, e->chunk.info.n_tokens, &e->chunk};
        pins[out->n++] = e;
        out->hash = extend(out->hash, e->chunk.tokens, e->chunk.info.n_tokens);
        out->n_tokens += e->chunk.info.n_tokens;
    }
    pthread_mutex_unlock(&c->lock);
    if (status != IS_OK) is_conversation_release(c, out);
    return status;
}

void is_conversation_release(is_conversations *c, is_conversation *conversation)
{
    if (c != NULL) {
        pthread_mutex_lock(&c->lock);
        for (size_t i = 0; i < conversation->n; i++) {
            entry *e = conversation->pins[i];
            if (--e->pins == 0 && e->dropped) entry_free(e);
        }
        pthread_mutex_unlock(&c->lock);
    }
    free(conversation->segments);
    free(conversation->pins);
    *conversation = (is_conversation){0};
}

/* ------------------------------------------------------------ keeping */

/* Makes room by what was used longest ago and nobody reads.  The lock is held. */
static void make_room(is_conversations *c, size_t size)
{
    while (c->n > 0 && c->bytes + size > c->budget) {
        size_t oldest = SIZE_MAX;
        for (size_t i = 0; i < c->n; i++)
            if (c->entries[i]->pins == 0 && (oldest == SIZE_MAX || c->entries[i]->used < c->entries[oldest]->used))
                oldest = i;
        if (oldest == SIZE_MAX) return;
        drop(c, oldest);
    }
}

static bool have(const is_conversations *c, uint64_t scope, uint64_t before, const is_chunk *chunk)
{
    for (size_t i = 0; i < c->n; i++) {
        const entry *e = c->entries[i];
        if (e->scope == scope && e->before == before && e->chunk.info.n_tokens == chunk->info.n_tokens &&
            memcmp(e->chunk.tokens, chunk->tokens, chunk->info.n_tokens * sizeof *chunk->tokens) == 0)
            return true;
    }
    return false;
}

static bool insert(is_conversations *c, entry *e)
{
    make_room(c, e->size);
    if (c->bytes + e->size > c->budget || have(c, e->scope, e->before, &e->chunk)) return false;
    if (c->n == c->capacity) {
        size_t capacity = c->capacity == 0 ? 64 : 2 * c->capacity;
        entry **grown = realloc(c->entries, capacity * sizeof(entry *));
        if (grown == NULL) return false;
        c->entries = grown;
        c->capacity = capacity;
    }
    e->used = ++c->clock;
    c->entries[c->n++] = e;
    c->bytes += e->size;
    return true;
}

/* Whoever forgets counts first and drops then; so either this sees the count, or the drop sees the entry. */
static bool still_valid(const is_made *made)
{
    uint64_t any, removed;
    if (made->number == 0) return true;
    is_store_generation(made->store, made->number, &any, &removed);
    return removed == made->removed;
}

void is_conversation_keep(is_conversations *c, uint64_t scope, const is_made *made, uint64_t *hash, void *bytes,
                          size_t size)
{
    entry *e = bytes == NULL ? NULL : calloc(1, sizeof *e);
    if (e == NULL || is_chunk_open(&e->chunk, bytes, size, IS_CHUNK_CHECK_HEADER, NULL) != IS_OK) {
        free(e);
        free(bytes);
        return;
    }
    e->scope = scope;
    e->before = *hash;
    e->bytes = bytes;
    e->size = size;
    *hash = extend(*hash, e->chunk.tokens, e->chunk.info.n_tokens);
    pthread_mutex_lock(&c->lock);
    bool kept = still_valid(made) && insert(c, e);
    pthread_mutex_unlock(&c->lock);
    if (!kept) entry_free(e);
}

void is_conversation_forget(is_conversations *c, uint64_t scope)
{
    if (c == NULL) return;
    pthread_mutex_lock(&c->lock);
    for (size_t i = c->n; i-- > 0;)
        if (c->entries[i]->scope == scope) drop(c, i);
    pthread_mutex_unlock(&c->lock);
}
