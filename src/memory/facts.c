/*
 * Facts: added, listed, changed, forgotten, searched.
 *
 * A fact is embedded before its transaction, so that text and vector become durable together; encoding
 * follows in the background.  The same holds for a new text of a fact.  Facts that were added without an embedding
 * model get their vectors when their scope is first searched with one.
 */
#include "memory.h"

#include <stdlib.h>
#include <string.h>

#define EMBED_STEP 256 /* facts embedded between two transactions */

/* Embeddings of n texts as f16 rows.  *out: free(). */
static is_status embed_f16(is_memory *memory, const char *const *texts, size_t n, uint16_t **out, is_error *err)
{
    size_t dim = is_embedder_dim(memory->embedder);
    float *wide = malloc(n * dim * sizeof *wide);
    uint16_t *half = malloc(n * dim * sizeof *half);
    is_status status = IS_OK;
    if (wide == NULL || half == NULL) status = is_fail(err, IS_ENOMEM, "no memory for %zu embeddings", n);
    if (status == IS_OK) status = is_embed(memory->embedder, texts, n, wide, err);
    for (size_t i = 0; status == IS_OK && i < n * dim; i++) half[i] = is_f32_to_f16(wide[i]);
    free(wide);
    if (status != IS_OK) {
        free(half);
        half = NULL;
    }
    *out = half;
    return status;
}

static is_status add_facts_inside(is_memory *memory, const is_scope *scope, const is_fact *facts, size_t n,
                                  int64_t *ids, is_error *err)
{
    if (n == 0) return IS_OK;
    int64_t number;
    uint16_t *vectors = NULL;
    const char **texts = NULL;
    for (size_t i = 0; i < n; i++)
        if (facts[i].text == NULL || facts[i].text[0] == '\0')
            return is_fail(err, IS_EINVAL, "fact %zu of %zu has no text", i + 1, n);
    is_status status = is_memory_scope(memory, scope, true, &number, err);
    if (status == IS_OK && memory->embedder != NULL) {
        texts = calloc(n, sizeof *texts);
        if (texts == NULL) return is_fail(err, IS_ENOMEM, "no memory to add %zu facts", n);
        for (size_t i = 0; i < n; i++) texts[i] = facts[i].text;
        status = embed_f16(memory, texts, n, &vectors, err);
    }
    if (status == IS_OK)
        status = is_store_add_facts(memory->store, number, facts, n, vectors,
                                    memory->embedder == NULL ? 0 : is_embedder_dim(memory->embedder),
                                    memory->embedder == NULL ? NULL : is_embedder_name(memory->embedder), ids, err);
    free(vectors);
    free(texts);
    if (status == IS_OK) is_worker_notify(memory);
    return status;
}

is_status is_add_facts(is_memory *memory, const is_scope *scope, const is_fact *facts, size_t n, int64_t *ids,
                       is_error *err)
{
    is_status status = is_memory_enter(memory, err);
    if (status != IS_OK) return status;
    status = add_facts_inside(memory, scope, facts, n, ids, err);
    is_memory_leave(memory);
    return status;
}

static is_status add_turns_inside(is_memory *memory, const is_scope *scope, const is_turn *turns, size_t n,
                                  is_error *err)
{
    int64_t number;
    if (n == 0) return IS_OK;
    is_status status = is_memory_scope(memory, scope, true, &number, err);
    return status == IS_OK ? is_store_add_turns(memory->store, number, turns, n, err) : status;
}

is_status is_add_turns(is_memory *memory, const is_scope *scope, const is_turn *turns, size_t n, is_error *err)
{
    is_status status = is_memory_enter(memory, err);
    if (status != IS_OK) return status;
    status = add_turns_inside(memory, scope, turns, n, err);
    is_memory_leave(memory);
    return status;
}

/* Fills in the states, which depend on the engine. */
static is_status mark_ready(is_memory *memory, int64_t scope, is_fact_list *list, is_error *err)
{
    if (list->n == 0 || memory->engine == NULL || !memory->engine->ops->injects(memory->engine)) return IS_OK;
    int64_t *ids = malloc(list->n * sizeof *ids);
    bool *ready = calloc(list->n, sizeof *ready);
    is_status status = IS_OK;
    if (ids == NULL || ready == NULL) status = is_fail(err, IS_ENOMEM, "no memory for %zu facts", list->n);
    for (size_t i = 0; status == IS_OK && i < list->n; i++) ids[i] = list->facts[i].id;
    if (status == IS_OK) status = is_store_ready(memory->store, scope, ids, list->n, &memory->key, ready, err);
    for (size_t i = 0; status == IS_OK && i < list->n; i++)
        list->facts[i].state = ready[i] ? IS_FACT_READY : IS_FACT_PENDING;
    free(ids);
    free(ready);
    return status;
}

static is_status list_inside(is_memory *memory, const is_scope *scope, int64_t after, size_t limit, is_fact_list **out,
                             is_error *err)
{
    int64_t number;
    is_status status = is_memory_scope(memory, scope, false, &number, err);
    if (status == IS_OK) status = is_store_list(memory->store, number, after, limit, out, err);
    if (status == IS_OK) status = mark_ready(memory, number, *out, err);
    if (status != IS_OK) {
        is_fact_list_free(*out);
        *out = NULL;
    }
    return status;
}

is_status is_list(is_memory *memory, const is_scope *scope, int64_t after, size_t limit, is_fact_list **out,
                  is_error *err)
{
    *out = NULL;
    is_status status = is_memory_enter(memory, err);
    if (status != IS_OK) return status;
    status = list_inside(memory, scope, after, limit, out, err);
    is_memory_leave(memory);
    return status;
}

static is_status get_inside(is_memory *memory, const is_scope *scope, const int64_t *ids, size_t n, is_fact_list **out,
                            is_error *err)
{
    int64_t number;
    is_status status = is_memory_scope(memory, scope, false, &number, err);
    if (status == IS_OK) status = is_store_get(memory->store, number, ids, n, out, err);
    if (status == IS_OK) status = mark_ready(memory, number, *out, err);
    if (status != IS_OK) {
        is_fact_list_free(*out);
        *out = NULL;
    }
    return status;
}

is_status is_get(is_memory *memory, const is_scope *scope, const int64_t *ids, size_t n, is_fact_list **out,
                 is_error *err)
{
    *out = NULL;
    is_status status = is_memory_enter(memory, err);
    if (status != IS_OK) return status;
    status = get_inside(memory, scope, ids, n, out, err);
    is_memory_leave(memory);
    return status;
}

/* ------------------------------------------------------------ changing, history */

static is_status change_inside(is_memory *memory, const is_scope *scope, int64_t id, const is_fact *change,
                               is_error *err)
{
    int64_t number;
    uint16_t *vector = NULL;
    bool embed = memory->embedder != NULL && change->text != NULL && change->text[0] != '\0';
    is_status status = is_memory_scope(memory, scope, false, &number, err);
    if (status == IS_OK && embed) status = embed_f16(memory, &change->text, 1, &vector, err);
    if (status == IS_OK)
        status = is_store_change_fact(memory->store, number, id, change, vector,
                                      embed ? is_embedder_dim(memory->embedder) : 0,
                                      embed ? is_embedder_name(memory->embedder) : NULL, err);
    free(vector);
    if (status != IS_OK) return status;
    is_conversation_forget(memory->conversations, is_scope_key(scope));
    is_forget_prefixes(memory, number);
    is_worker_notify(memory); /* what was encoded behind it is made anew too */
    return IS_OK;
}

is_status is_change_fact(is_memory *memory, const is_scope *scope, int64_t id, const is_fact *change, is_error *err)
{
    is_status status = is_memory_enter(memory, err);
    if (status != IS_OK) return status;
    status = change_inside(memory, scope, id, change, err);
    is_memory_leave(memory);
    return status;
}

is_status is_history(is_memory *memory, const is_scope *scope, int64_t id, is_edition_list **out, is_error *err)
{
    int64_t number;
    *out = NULL;
    is_status status = is_memory_enter(memory, err);
    if (status != IS_OK) return status;
    status = is_memory_scope(memory, scope, false, &number, err);
    if (status == IS_OK) status = is_store_history(memory->store, number, id, out, err);
    is_memory_leave(memory);
    return status;
}

is_status is_list_scopes(is_memory *memory, const char *tenant, int64_t after, size_t limit, is_scope_info **out,
                         size_t *n, is_error *err)
{
    *out = NULL;
    *n = 0;
    is_status status = is_memory_enter(memory, err);
    if (status != IS_OK) return status;
    status = is_store_list_scopes(memory->store, tenant, after, limit, out, n, err);
    is_memory_leave(memory);
    return status;
}

is_status is_scope_of(is_memory *memory, const char *tenant, int64_t id, is_scope_info **out, is_error *err)
{
    *out = NULL;
    is_status status = is_memory_enter(memory, err);
    if (status != IS_OK) return status;
    status = is_store_scope_of(memory->store, tenant, id, out, err);
    is_memory_leave(memory);
    return status;
}

/* ------------------------------------------------------------ forgetting */

static is_status forget_inside(is_memory *memory, const is_scope *scope, const int64_t *ids, size_t n,
                               size_t *forgotten, is_error *err)
{
    int64_t number;
    if (forgotten != NULL) *forgotten = 0;
    is_status status = is_memory_scope(memory, scope, false, &number, err);
    if (status == IS_OK) status = is_store_forget(memory->store, number, ids, n, forgotten, err);
    if (status != IS_OK) return status;
    is_index_drop(memory->index, number);
    is_conversation_forget(memory->conversations, is_scope_key(scope));
    is_forget_prefixes(memory, number);
    is_worker_notify(memory); /* what was encoded behind it is made anew */
    return IS_OK;
}

is_status is_forget(is_memory *memory, const is_scope *scope, const int64_t *ids, size_t n, size_t *forgotten,
                    is_error *err)
{
    is_status status = is_memory_enter(memory, err);
    if (status != IS_OK) return status;
    status = forget_inside(memory, scope, ids, n, forgotten, err);
    is_memory_leave(memory);
    return status;
}

/* ------------------------------------------------------------ searching */

static bool is_checked(is_memory *memory, int64_t scope)
{
    bool found = false;
    pthread_mutex_lock(&memory->scope_lock);
    for (size_t i = 0; i < memory->n_checked && !found; i++) found = memory->checked[i] == scope;
    pthread_mutex_unlock(&memory->scope_lock);
    return found;
}

static void set_checked(is_memory *memory, int64_t scope)
{
    pthread_mutex_lock(&memory->scope_lock);
    int64_t *grown = realloc(memory->checked, (memory->n_checked + 1) * sizeof *grown);
    if (grown != NULL) { /* without memory the scope is looked at again next time */
        memory->checked = grown;
        memory->checked[memory->n_checked++] = scope;
    }
    pthread_mutex_unlock(&memory->scope_lock);
}

static is_status embed_list(is_memory *memory, const is_fact_list *list, is_error *err)
{
    const char **texts = malloc(list->n * sizeof *texts);
    uint16_t *vectors = NULL;
    if (texts == NULL) return is_fail(err, IS_ENOMEM, "no memory for %zu embeddings", list->n);
    for (size_t i = 0; i < list->n; i++) texts[i] = list->facts[i].text;
    is_status status = embed_f16(memory, texts, list->n, &vectors, err);
    if (status == IS_OK)
        status = is_store_put_embeddings_of(memory->store, list, vectors, is_embedder_dim(memory->embedder),
                                            is_embedder_name(memory->embedder), err);
    free(texts);
    free(vectors);
    return status;
}

is_status is_embed_missing(is_memory *memory, int64_t scope, is_error *err)
{
    if (memory->embedder == NULL || is_checked(memory, scope)) return IS_OK;
    for (;;) {
        is_fact_list *list = NULL;
        is_status status =
            is_store_unembedded(memory->store, scope, is_embedder_name(memory->embedder), EMBED_STEP, &list, err);
        if (status != IS_OK) return status;
        size_t n = list->n;
        if (n > 0) status = embed_list(memory, list, err);
        is_fact_list_free(list);
        if (status != IS_OK) return status;
        if (n == 0) break;
    }
    set_checked(memory, scope);
    return IS_OK;
}

/* The hits' facts, in their order, with scores. */
static is_status facts_of(is_memory *memory, int64_t scope, const is_hit *hits, size_t n, is_fact_list **out,
                          is_error *err)
{
    int64_t ids[IS_MAX_K];
    for (size_t i = 0; i < n; i++) ids[i] = hits[i].id;
    is_status status = is_store_get(memory->store, scope, ids, n, out, err);
    if (status != IS_OK) return status;
    (*out)->scores = calloc((*out)->n + 1, sizeof *(*out)->scores);
    if ((*out)->scores == NULL) {
        is_fact_list_free(*out);
        *out = NULL;
        return is_fail(err, IS_ENOMEM, "no memory for %zu facts", n);
    }
    for (size_t i = 0, h = 0; i < (*out)->n; i++) { /* a fact may have been forgotten since it was found */
        while (h < n && hits[h].id != (*out)->facts[i].id) h++;
        if (h < n) (*out)->scores[i] = hits[h].score;
    }
    return IS_OK;
}

is_status is_rank(is_memory *memory, int64_t scope, const char *query, uint32_t k, const is_filter *filter,
                  is_fact_list **out, double *embed_ms, double *rank_ms, is_error *err)
{
    is_hit hits[IS_MAX_K];
    size_t n = 0;
    float *vector = NULL;
    double begin = is_now_ms();
    is_status status = is_embed_missing(memory, scope, err);
    if (status == IS_OK && memory->embedder != NULL) {
        vector = malloc(is_embedder_dim(memory->embedder) * sizeof *vector);
        if (vector == NULL) return is_fail(err, IS_ENOMEM, "no memory for the question's embedding");
        status = is_embed(memory->embedder, &query, 1, vector, err);
    }
    double embedded = is_now_ms();
    if (status == IS_OK && k > 0)
        status = is_index_search(memory->index, scope, query, vector, k, filter, hits, &n, err);
    free(vector);
    if (status == IS_OK) status = facts_of(memory, scope, hits, n, out, err);
    *embed_ms = embedded - begin;
    *rank_ms = is_now_ms() - embedded;
    return status;
}

static is_status search_inside(is_memory *memory, const is_scope *scope, const char *query, uint32_t k,
                               const is_filter *filter, is_fact_list **out, is_error *err)
{
    int64_t number;
    double embed_ms, rank_ms;
    if (query == NULL || query[0] == '\0') return is_fail(err, IS_EINVAL, "the query is empty");
    if (k == 0 || k > IS_MAX_K) return is_fail(err, IS_EINVAL, "k is %u; it must be 1 to %d", k, IS_MAX_K);
    is_status status = is_memory_scope(memory, scope, false, &number, err);
    if (status == IS_OK) status = is_rank(memory, number, query, k, filter, out, &embed_ms, &rank_ms, err);
    if (status == IS_OK) status = mark_ready(memory, number, *out, err);
    if (status != IS_OK) {
        is_fact_list_free(*out);
        *out = NULL;
    }
    return status;
}

is_status is_search(is_memory *memory, const is_scope *scope, const char *query, uint32_t k, const is_filter *filter,
                    is_fact_list **out, is_error *err)
{
    *out = NULL;
    is_status status = is_memory_enter(memory, err);
    if (status != IS_OK) return status;
    status = search_inside(memory, scope, query, k, filter, out, err);
    is_memory_leave(memory);
    return status;
}
