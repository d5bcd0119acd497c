/*
 * Chunks into a sequence of the serving context.
 *
 * Where the cache can be written in place (direct.c) the chunks are composed into it.  Otherwise
 * they are composed into a state blob, layers divided among the threads, and the blob is
 * handed to the engine: two passes over the bytes, both at memory speed.  The blob's memory is kept and its
 * pages are touched when the engine opens, since the first touch of a page costs several times the copy.
 */
#include "internal.h"

#include <ggml-cpu.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/*
 * Taken where a compose is handed over and where its shares begin and end, never while they copy.  OpenMP orders the
 * threads already; this does where ThreadSanitizer can see it.  It is the process's, as OpenMP's threads are.
 */
static pthread_mutex_t hand_over = PTHREAD_MUTEX_INITIALIZER;

/* One compose as a graph of a single operation, so that the engine's own threads, awake or not, do it. */
struct is_team {
    const is_layout *layout;
    const is_placed *chunks;
    size_t n;
    const is_target *targets;
    struct ggml_context *graph_context;
    struct ggml_cgraph *graph;
    struct ggml_cplan plan;
    is_status status; /* of the last share that failed */
};

/* Share `index` of `parts` of the layers. */
static void compose_share(struct ggml_tensor *dst, int index, int parts, void *user)
{
    (void)dst;
    is_team *team = user;
    pthread_mutex_lock(&hand_over); /* the compose is seen whole from here on */
    int64_t n = team->layout->n_layers;
    pthread_mutex_unlock(&hand_over);
    uint32_t begin = (uint32_t)(n * index / parts);
    uint32_t end = (uint32_t)(n * (index + 1) / parts);
    is_status status = is_compose(team->layout, team->chunks, team->n, team->targets, begin, end, NULL);
    pthread_mutex_lock(&hand_over);
    if (status != IS_OK) team->status = status;
    pthread_mutex_unlock(&hand_over);
}

is_status is_team_open(const is_model *model, is_team **out, is_error *err)
{
    is_team *team = *out = calloc(1, sizeof *team);
    if (team == NULL) return is_fail(err, IS_ENOMEM, "no memory to compose");
    struct ggml_init_params params = {.mem_size = 2 * ggml_tensor_overhead() + ggml_graph_overhead_custom(8, false),
                                      .no_alloc = true};
    team->graph_context = ggml_init(params);
    if (team->graph_context == NULL) return is_fail(err, IS_ENOMEM, "no memory to compose");
    struct ggml_tensor *all =
        ggml_custom_4d(team->graph_context, GGML_TYPE_I8, 1, 1, 1, 1, NULL, 0, compose_share, GGML_N_TASKS_MAX, team);
    team->graph = ggml_new_graph_custom(team->graph_context, 8, false);
    ggml_build_forward_expand(team->graph, all);
    team->plan = ggml_graph_plan(team->graph, (int)model->threads, model->pool);
    team->plan.work_data = malloc(team->plan.work_size + 1);
    return team->plan.work_data == NULL ? is_fail(err, IS_ENOMEM, "no memory to compose") : IS_OK;
}

void is_team_close(is_team *team)
{
    if (team == NULL) return;
    free(team->plan.work_data);
    ggml_free(team->graph_context);
    free(team);
}

static is_status compose_all(is_llama *engine, const is_placed *chunks, size_t n, const is_target *targets,
                             is_error *err)
{
    is_team *team = engine->team;
    pthread_mutex_lock(&hand_over);
    team->layout = &engine->layout;
    team->chunks = chunks;
    team->n = n;
    team->targets = targets;
    team->status = IS_OK;
    pthread_mutex_unlock(&hand_over);
    if (ggml_graph_compute(team->graph, &team->plan) != GGML_STATUS_SUCCESS)
        return is_fail(err, IS_EENGINE, "the engine's threads could not compose");
    pthread_mutex_lock(&hand_over);
    is_status status = team->status;
    pthread_mutex_unlock(&hand_over);
    return status == IS_OK ? IS_OK : is_fail(err, status, "the chunks do not fill their rows");
}

bool is_chunk_usable(const is_llama *engine, const is_segment *segment)
{
    const is_chunk *chunk = segment->chunk;
    return memcmp(chunk->info.fingerprint, engine->fingerprint, sizeof engine->fingerprint) == 0 &&
           chunk->info.n_tokens == segment->n_tokens &&
           memcmp(chunk->tokens, segment->tokens, segment->n_tokens * sizeof *segment->tokens) == 0 &&
           is_chunk_fits(chunk, &engine->layout, NULL) == IS_OK;
}

is_status is_context_renew(is_llama *engine, is_error *err)
{
    /* The first one's tensors are learnt by the probe; a later one is served by the blob's way. */
    engine->direct = (is_direct){.watching = engine->context == NULL};
    if (engine->context != NULL) llama_free(engine->context);
    engine->context = is_context_open(&engine->model, engine->n_context, engine->n_slots, false,
                                      IS_LLAMA_PIECE + IS_MAX_SLOTS, &engine->direct, err);
    for (uint32_t i = 0; i < engine->n_slots; i++) engine->slots[i].resident_salt = 0;
    return engine->context == NULL ? IS_EENGINE : IS_OK;
}

/* Room for the blob; grown in whole huge pages and touched once. */
is_status is_blob_reserve(is_llama *engine, size_t size, is_error *err)
{
    if (size <= engine->blob_size) return IS_OK;
    size_t want = is_align_up(size, (size_t)2 << 20);
    void *p = mmap(NULL, want, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return is_fail(err, IS_ENOMEM, "no memory for %zu bytes of injected state", want);
    (void)madvise(p, want, MADV_HUGEPAGE);
    memset(p, 0, want);
    if (engine->blob != NULL) munmap(engine->blob, engine->blob_size);
    engine->blob = p;
    engine->blob_size = want;
    return IS_OK;
}

is_status is_blob_open(is_llama *engine, uint32_t n_tokens, is_error *err)
{
    uint32_t cells[IS_STATE_MAX_CACHES] = {n_tokens, n_tokens};
    size_t size = is_state_bytes(&engine->shape, cells);
    if (size == 0) return is_fail(err, IS_ELIMIT, "a state of %u tokens is larger than memory can be", n_tokens);
    return is_blob_reserve(engine, size, err);
}

void is_blob_close(is_llama *engine)
{
    if (engine->blob != NULL) munmap(engine->blob, engine->blob_size);
    engine->blob = NULL;
}

/* Follows what is injected up at once and down slowly, with an eighth to spare. */
static void note_cells(is_llama *engine, uint32_t n_tokens)
{
    uint32_t wanted = n_tokens + n_tokens / 8;
    if (wanted > engine->n_context) wanted = engine->n_context;
    engine->cells = wanted >= engine->cells ? wanted : engine->cells - (engine->cells - wanted) / 8;
}

/* What a prompt's chunks are known by on the device. */
typedef struct known {
    int64_t *numbers;
    uint8_t (*keys)[IS_DEVICE_POOL_KEY];
} known;

static is_status write_prompt(is_llama *engine, const is_dev_prompt *prompt, uint64_t scope, unsigned forgets,
                              bool *written, is_error *err)
{
    uint32_t reach = 0;
    llama_synchronize(engine->context); /* whatever it does with these cells is done before */
    is_dev_lock(engine->dev);
    is_status status = is_dev_add(engine->dev, prompt, &reach, NULL, err);
    if (status == IS_OK) status = is_dev_start(engine->dev, NULL, err);
    /* What was forgotten since the chunks were pinned does not come back by them. */
    if (atomic_load(&engine->forgotten) != forgets) is_dev_drop_scope(engine->dev, scope);
    is_dev_unlock(engine->dev);
    if (status == IS_OK) status = is_dev_finish(engine->dev, err);
    *written = status == IS_OK && reach == prompt->end;
    return status;
}

/* Chunks into cells that are there, by the device's side; *written false: there is no room for all of them. */
static is_status write_on_device(is_llama *engine, int32_t sequence, const is_placed *chunks, size_t n,
                                 uint32_t n_tokens, uint64_t scope, unsigned forgets, bool *written, is_error *err)
{
    known k = {malloc(n * sizeof *k.numbers), malloc(n * sizeof *k.keys)};
    const uint32_t block = (uint32_t)sequence;
    is_status status = k.numbers != NULL && k.keys != NULL ? IS_OK : is_fail(err, IS_ENOMEM, "no memory to inject");
    for (size_t i = 0; status == IS_OK && i < n; i++) {
        is_chunk_identity(chunks[i].chunk, k.keys[i]);
        k.numbers[i] = is_dev_number(scope, k.keys[i]);
    }
    const is_dev_prompt prompt = {.placed = chunks,
                                  .numbers = k.numbers,
                                  .keys = (const uint8_t(*)[IS_DEVICE_POOL_KEY])k.keys,
                                  .n = (uint32_t)n,
                                  .blocks = &block,
                                  .n_blocks = 1,
                                  .end = n_tokens};
    *written = false;
    if (status == IS_OK) status = write_prompt(engine, &prompt, scope, forgets, written, err);
    free(k.numbers);
    free(k.keys);
    return status;
}

is_status is_inject(is_llama *engine, int32_t sequence, const is_placed *chunks, size_t n, uint32_t n_tokens,
                    uint64_t scope, unsigned forgets, uint64_t *bytes, is_error *err)
{
    const is_state_shape *shape = &engine->shape;
    is_target targets[IS_MAX_LAYERS];
    uint32_t cells[IS_STATE_MAX_CACHES] = {0};
    note_cells(engine, n_tokens);
    if (engine->direct.on_device && is_direct_cut(engine, sequence, n_tokens)) {
        bool written;
        *bytes = (uint64_t)n_tokens * is_layout_token_bytes(&engine->layout);
        is_status status = write_on_device(engine, sequence, chunks, n, n_tokens, scope, forgets, &written, err);
        if (status != IS_OK || written) return status;
    } else if (is_direct_cut(engine, sequence, n_tokens)) {
        is_direct_targets(engine, sequence, n_tokens, targets);
        *bytes = (uint64_t)n_tokens * is_layout_token_bytes(&engine->layout);
        return compose_all(engine, chunks, n, targets, err);
    }
    llama_memory_seq_rm(llama_get_memory(engine->context), sequence, -1, -1);
    for (uint32_t c = 0; c < shape->n_caches; c++) {
        const is_layer *layer = &engine->layout.layers[shape->caches[c].layer_begin];
        cells[c] = n_tokens - is_layer_first(layer, n_tokens);
    }
    size_t size = is_state_bytes(shape, cells);
    is_status status = is_blob_reserve(engine, size, err);
    if (status != IS_OK) return status;
    size_t used = is_state_begin(shape, engine->blob, n_tokens, cells, targets);
    status = compose_all(engine, chunks, n, targets, err);
    if (status != IS_OK) return status;
    *bytes = used;
    is_llama_quiet();
    if (llama_state_seq_set_data(engine->context, engine->blob, used, sequence) != used) {
        /* A restore that failed half-way leaves rows behind that later sequences may see. */
        (void)is_fail(err, IS_EENGINE, "the engine refused the injected state: %s", is_llama_last_error());
        (void)is_context_renew(engine, NULL);
        return IS_EENGINE;
    }
    return IS_OK;
}

bool is_fill_cells(is_llama *engine, int32_t sequence)
{
    llama_memory_t memory = llama_get_memory(engine->context);
    uint32_t n = engine->cells;
    if (!engine->direct.ready || llama_memory_seq_pos_max(memory, sequence) + 1 >= (llama_pos)(n - n / 8)) return false;
    is_target targets[IS_MAX_LAYERS];
    uint32_t cells[IS_STATE_MAX_CACHES] = {n};
    size_t size = is_state_bytes(&engine->shape, cells);
    if (size == 0 || is_blob_reserve(engine, size, NULL) != IS_OK) return false;
    memset(engine->blob, 0, size);
    size_t used = is_state_begin(&engine->shape, engine->blob, n, cells, targets);
    is_llama_quiet();
    if (llama_state_seq_set_data(engine->context, engine->blob, used, sequence) == used) return true;
    (void)is_context_renew(engine, NULL);
    return false;
}
