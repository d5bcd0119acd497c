/*
 * Opening and closing the system, and looking at it.
 *
 * A memory is a store, an index over its vectors, an engine that reads the chunks and made them, and a worker that
 * keeps chunks up with the texts.  Without a model it still adds, lists, searches by words and forgets.
 */
#include "memory.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

is_options is_options_default(void)
{
    return (is_options){
        .system_prompt = NULL,
        .host_budget = (uint64_t)1 << 30,
        .slots = 1,
        .conversation_budget = (uint64_t)256 << 20,
        .background = true,
    };
}

void is_memory_log(const is_memory *memory, int level, const char *format, ...)
{
    if (memory->log == NULL) return;
    char line[1200];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(line, sizeof line, format, args);
    va_end(args);
    memory->log(memory->log_user, level, line);
}

is_status is_memory_enter(is_memory *memory, is_error *err)
{
    pthread_mutex_lock(&memory->worker_lock);
    bool closing = atomic_load(&memory->closing);
    if (!closing) memory->callers++;
    pthread_mutex_unlock(&memory->worker_lock);
    return closing ? is_fail(err, IS_ECANCELED, "the memory is being closed") : IS_OK;
}

void is_memory_leave(is_memory *memory)
{
    pthread_mutex_lock(&memory->worker_lock);
    if (--memory->callers == 0) pthread_cond_broadcast(&memory->quiet);
    pthread_mutex_unlock(&memory->worker_lock);
}

is_status is_memory_scope(is_memory *memory, const is_scope *scope, bool create, int64_t *id, is_error *err)
{
    static const is_scope none;
    if (scope == NULL) scope = &none;
    return is_store_scope(memory->store, scope, create, id, err);
}

/* The recipe: what the caller asks, else what the store has, else the default; the store remembers it. */
static is_status settle_recipe(is_memory *memory, const char *asked, is_error *err)
{
    char *kept = NULL;
    is_status status = is_store_get_setting(memory->store, "recipe", &kept, err);
    const char *name = asked != NULL ? asked : kept != NULL ? kept : IS_RECIPE_DEFAULT;
    if (status == IS_OK) status = is_recipe_parse(name, &memory->recipe, err);
    if (status == IS_OK) {
        is_recipe_name(&memory->recipe, memory->recipe_name);
        if (kept == NULL || strcmp(kept, memory->recipe_name) != 0)
            status = is_store_set_setting(memory->store, "recipe", memory->recipe_name, err);
    }
    free(kept);
    return status;
}

static is_status open_models(is_memory *memory, const is_options *o, is_error *err)
{
    is_status status = IS_OK;
    /* One thread: a question is short, and more threads would fight the chat model's for its cores. */
    if (o->embedding_model != NULL) status = is_embedder_open(o->embedding_model, 1, &memory->embedder, err);
    uint32_t threads = o->threads != 0 ? o->threads : is_usable_cores();
    if (status == IS_OK)
        status = is_index_open(memory->store, memory->embedder == NULL ? NULL : is_embedder_name(memory->embedder),
                               memory->embedder == NULL ? 0 : is_embedder_dim(memory->embedder), threads - 1,
                               &memory->index, err);
    if (status == IS_OK && o->device_vectors > 0) status = is_index_use_device(memory->index, o->device_vectors, err);
    if (status != IS_OK || (o->model == NULL && o->upstreams == NULL)) return status;
    const is_vllm_options vllm = {.upstreams = o->upstreams,
                                  .key = o->upstream_key,
                                  .model = o->upstream_model,
                                  .log = o->log,
                                  .log_user = o->log_user};
    const is_llama_options llama = {.model = o->model,
                                    .context = o->context,
                                    .slots = o->slots,
                                    .threads = o->threads,
                                    .device_budget = o->device_chunks,
                                    .log = o->log,
                                    .log_user = o->log_user};
    status =
        o->upstreams != NULL ? is_vllm_open(&vllm, &memory->engine, err) : is_llama_open(&llama, &memory->engine, err);
    return status == IS_OK ? is_plan_header(memory, err) : status;
}

is_status is_open(const is_options *options, is_memory **out, is_error *err)
{
    *out = NULL;
    if (options == NULL || options->store == NULL) return is_fail(err, IS_EINVAL, "options.store names no folder");
    is_memory *memory = calloc(1, sizeof *memory);
    if (memory == NULL) return is_fail(err, IS_ENOMEM, "no memory to open %s", options->store);
    memory->log = options->log;
    memory->log_user = options->log_user;
    pthread_mutex_init(&memory->scope_lock, NULL);
    pthread_mutex_init(&memory->encode_lock, NULL);
    pthread_mutex_init(&memory->worker_lock, NULL);
    pthread_mutex_init(&memory->watch_lock, NULL);
    pthread_cond_init(&memory->worker_wake, NULL);
    pthread_cond_init(&memory->quiet, NULL);
    memory->key.recipe = memory->recipe_name;
    memory->system_prompt =
        strdup(options->system_prompt != NULL ? options->system_prompt : "You are a helpful assistant.");
    is_store_options store = {.folder = options->store, .host_budget = options->host_budget};
    is_status status = memory->system_prompt == NULL ? is_fail(err, IS_ENOMEM, "no memory to open %s", options->store)
                                                     : is_store_open(&store, &memory->store, err);
    if (status == IS_OK) status = settle_recipe(memory, options->recipe, err);
    /* Upstreams keep conversations themselves, in their prefix cache. */
    if (status == IS_OK && options->model != NULL && options->upstreams == NULL && options->conversation_budget > 0)
        status = is_conversations_open(options->conversation_budget, &memory->conversations, err);
    if (status == IS_OK) status = open_models(memory, options, err);
    if (status == IS_OK && memory->engine != NULL && options->background) status = is_worker_start(memory, err);
    if (status != IS_OK) {
        is_close(memory);
        return status;
    }
    *out = memory;
    return IS_OK;
}

void is_close(is_memory *memory)
{
    if (memory == NULL) return;
    is_worker_stop(memory);
    pthread_mutex_lock(&memory->worker_lock);
    while (memory->callers > 0) pthread_cond_wait(&memory->quiet, &memory->worker_lock);
    pthread_mutex_unlock(&memory->worker_lock);
    is_engine_close(memory->engine);
    is_index_close(memory->index);
    is_conversations_close(memory->conversations);
    is_embedder_close(memory->embedder);
    is_store_close(memory->store);
    free(memory->header);
    free(memory->system_prompt);
    free(memory->checked);
    pthread_mutex_destroy(&memory->scope_lock);
    pthread_mutex_destroy(&memory->encode_lock);
    pthread_mutex_destroy(&memory->worker_lock);
    pthread_mutex_destroy(&memory->watch_lock);
    pthread_cond_destroy(&memory->worker_wake);
    pthread_cond_destroy(&memory->quiet);
    free(memory);
}

static is_status get_stats_inside(is_memory *memory, is_stats *out, is_error *err)
{
    bool keyed = memory->engine != NULL && memory->engine->ops->injects(memory->engine);
    is_status status = is_store_stats(memory->store, keyed ? &memory->key : NULL, out, err);
    if (status == IS_OK) out->vector_bytes = is_index_bytes(memory->index);
    return status;
}

is_status is_get_stats(is_memory *memory, is_stats *out, is_error *err)
{
    is_status status = is_memory_enter(memory, err);
    if (status != IS_OK) return status;
    status = get_stats_inside(memory, out, err);
    is_memory_leave(memory);
    return status;
}

static is_status verify_inside(is_memory *memory, bool repair, void (*on_problem)(void *user, const char *line),
                               void *user, is_verify_report *out, is_error *err)
{
    is_status status = is_store_verify(memory->store, repair, on_problem, user, out, err);
    if (status == IS_OK && repair) is_worker_notify(memory);
    return status;
}

is_status is_verify(is_memory *memory, bool repair, void (*on_problem)(void *user, const char *line), void *user,
                    is_verify_report *out, is_error *err)
{
    is_status status = is_memory_enter(memory, err);
    if (status != IS_OK) return status;
    status = verify_inside(memory, repair, on_problem, user, out, err);
    is_memory_leave(memory);
    return status;
}

static is_status describe_inside(is_memory *memory, char **out, is_error *err)
{
    char *engine_text = NULL;
    json_t *root = json_pack("{s:s, s:s}", "version", IS_VERSION, "recipe", memory->recipe_name);
    if (memory->engine != NULL) {
        is_status status = memory->engine->ops->describe(memory->engine, &engine_text, err);
        if (status != IS_OK) {
            json_decref(root);
            return status;
        }
        json_object_set_new(root, "engine", json_loads(engine_text, 0, NULL));
        json_object_set_new(root, "header_tokens", json_integer((json_int_t)memory->n_header));
        free(engine_text);
    }
    if (memory->embedder != NULL)
        json_object_set_new(root, "embedder",
                            json_pack("{s:s, s:i}", "name", is_embedder_name(memory->embedder), "dim",
                                      (int)is_embedder_dim(memory->embedder)));
    *out = root == NULL ? NULL : json_dumps(root, JSON_INDENT(2));
    json_decref(root);
    return *out == NULL ? is_fail(err, IS_ENOMEM, "no memory to describe the system") : IS_OK;
}

is_status is_describe(is_memory *memory, char **out, is_error *err)
{
    *out = NULL;
    is_status status = is_memory_enter(memory, err);
    if (status != IS_OK) return status;
    status = describe_inside(memory, out, err);
    is_memory_leave(memory);
    return status;
}
