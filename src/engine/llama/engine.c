/*
 * The owner thread, and the operations of engine.h.
 *
 * One thread owns the model.  Each round it gives waiting requests to free slots, makes one batch (a token for
 * every slot that decodes, a piece of prompt for those that prefill), decodes it, and lets each slot take
 * its logits.  So a long prompt stalls nobody for more than a piece.  When no slot is busy it encodes;
 * while slots are busy it encodes one target now and then, so that new facts become ready under load too.
 */
#include "internal.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENCODE_UNDER_LOAD_MS 500 /* between two targets encoded while requests run: at most some 10 % of the time */
#define FILL_AFTER_MS        50  /* of idling: who asks again at once does not wait for cells to be made */

void is_job_finish(is_llama *engine, is_job *job, is_status status, const is_error *err)
{
    if (err != NULL) job->err = *err;
    pthread_mutex_lock(&engine->lock);
    job->status = status;
    job->done = true;
    pthread_cond_broadcast(&engine->done);
    pthread_mutex_unlock(&engine->lock);
}

static void push(is_job **head, is_job **tail, is_job *job)
{
    job->next = NULL;
    if (*tail != NULL)
        (*tail)->next = job;
    else
        *head = job;
    *tail = job;
}

static is_job *pop(is_job **head, is_job **tail)
{
    is_job *job = *head;
    if (job == NULL) return NULL;
    *head = job->next;
    if (*head == NULL) *tail = NULL;
    return job;
}

/* ------------------------------------------------------------ the owner thread */

static uint32_t busy_slots(const is_llama *engine)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < engine->n_slots; i++) n += engine->slots[i].state != IS_SLOT_FREE;
    return n;
}

static void end_busy(is_llama *engine, is_status status, const char *text)
{
    is_error err = {.status = status};
    (void)snprintf(err.text, sizeof err.text, "%s", text);
    for (uint32_t i = 0; i < engine->n_slots; i++)
        if (engine->slots[i].job != NULL) is_slot_end(engine, &engine->slots[i], status, &err);
}

/* Tokens of memory that the job would like to inject. */
static uint32_t wanted_cells(const is_job *job)
{
    const is_plan *plan = job->kind == IS_JOB_RUN ? &job->run->plan : &job->score->plan;
    uint32_t n = 0;
    for (size_t i = 0; plan->inject && i + 1 < plan->n_segments; i++) n += plan->segments[i].n_tokens;
    return n;
}

/*
 * A free slot: the one that still holds this plan's memory; else, of those that hold none, the one with the fewest
 * cells that are enough, or with the fewest at all where none has enough; else the one used longest ago.
 */
static is_slot *free_slot(is_llama *engine, const is_job *job)
{
    uint64_t salt = job->kind == IS_JOB_RUN ? job->run->plan.salt : job->score->plan.salt;
    llama_memory_t memory = llama_get_memory(engine->context);
    uint32_t wanted = wanted_cells(job);
    is_slot *found = NULL, *oldest = NULL;
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < engine->n_slots; i++) {
        is_slot *slot = &engine->slots[i];
        if (slot->state != IS_SLOT_FREE) continue;
        if (slot->resident_salt != 0) {
            if (slot->resident_salt == salt) return slot;
            if (oldest == NULL || slot->started_ms < oldest->started_ms) oldest = slot;
            continue;
        }
        uint64_t cells = (uint64_t)llama_memory_seq_pos_max(memory, slot->sequence) + 1; /* -1: none */
        uint64_t rank = cells >= wanted ? cells : UINT32_MAX + cells;
        if (rank >= least) continue;
        least = rank;
        found = slot;
    }
    return found != NULL ? found : oldest;
}

static void start_jobs(is_llama *engine)
{
    while (busy_slots(engine) < engine->n_slots) {
        pthread_mutex_lock(&engine->lock);
        is_job *job = pop(&engine->queue, &engine->queue_tail);
        pthread_mutex_unlock(&engine->lock);
        if (job == NULL) return;
        atomic_fetch_sub(&engine->waiting, 1);
        is_slot *slot = free_slot(engine, job);
        is_status status = is_slot_start(engine, slot, job);
        if (status == IS_OK) continue;
        bool context_lost = status == IS_EENGINE;
        is_slot_end(engine, slot, status, NULL);
        /* A refused state ended the context, and with it what the other slots had in it. */
        if (context_lost) end_busy(engine, IS_EENGINE, "the engine's context was renewed; ask again");
        if (engine->context == NULL) return;
    }
}

/* One piece of prompt, by turns: whoever used up the last piece is the last to get one of the next. */
static void add_prompts(is_llama *engine)
{
    uint32_t room = IS_LLAMA_PIECE;
    uint32_t first = engine->turn;
    for (uint32_t i = 0; i < engine->n_slots; i++) {
        uint32_t index = (first + i) % engine->n_slots;
        is_slot *slot = &engine->slots[index];
        if (slot->state != IS_SLOT_PREFILL) continue;
        slot->n_outputs = 0;
        if (room == 0) continue;
        int32_t before = engine->batch.n_tokens;
        is_slot_batch(engine, slot, room);
        room -= (uint32_t)(engine->batch.n_tokens - before);
        if (room == 0) engine->turn = index + 1;
    }
}

static void serve(is_llama *engine)
{
    engine->batch.n_tokens = 0;
    for (uint32_t i = 0; i < engine->n_slots; i++) {
        if (engine->slots[i].state != IS_SLOT_DECODE) continue;
        is_slot_batch(engine, &engine->slots[i], 1);
    }
    add_prompts(engine);
    is_llama_quiet();
    int32_t rc = llama_decode(engine->context, engine->batch);
    if (rc != 0) {
        is_error err;
        (void)is_fail(&err, IS_EENGINE, "llama.cpp cannot decode (code %d): %s", rc, is_llama_last_error());
        end_busy(engine, IS_EENGINE, err.text);
        (void)is_context_renew(engine, NULL);
        return;
    }
    for (uint32_t i = 0; i < engine->n_slots; i++)
        if (engine->slots[i].state != IS_SLOT_FREE) is_slot_step(engine, &engine->slots[i]);
}

/* A step of the first encode job; false when it gave way to a request. */
static bool encode(is_llama *engine, bool idle)
{
    pthread_mutex_lock(&engine->lock);
    is_job *job = engine->encode_queue;
    pthread_mutex_unlock(&engine->lock);
    if (job == NULL) return true;
    bool aborted, finished;
    is_status status = is_encode_step(engine, job, idle ? IS_ENCODE_SEQUENCES : 1, idle, &aborted, &finished);
    if (status == IS_OK && !finished) return !aborted;
    pthread_mutex_lock(&engine->lock);
    (void)pop(&engine->encode_queue, &engine->encode_tail);
    pthread_mutex_unlock(&engine->lock);
    is_job_finish(engine, job, status, NULL);
    return true;
}

static bool is_idle(const is_llama *engine)
{
    return !atomic_load(&engine->closing) && engine->queue == NULL && engine->encode_queue == NULL &&
           busy_slots(engine) == 0;
}

/* Makes cells in a free slot for injections to come; false when none needs them. */
static bool fill_a_slot(is_llama *engine)
{
    for (uint32_t i = 0; i < engine->n_slots; i++)
        if (engine->slots[i].resident_salt == 0 && is_fill_cells(engine, engine->slots[i].sequence)) return true;
    return false;
}

/* Waits for work; when none comes for a moment, fills free slots one after another until some comes. */
static void wait_for_work(is_llama *engine)
{
    bool filled = false;
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += FILL_AFTER_MS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    pthread_mutex_lock(&engine->lock);
    while (is_idle(engine)) {
        if (filled) {
            pthread_cond_wait(&engine->wake, &engine->lock);
        } else if (pthread_cond_clockwait(&engine->wake, &engine->lock, CLOCK_MONOTONIC, &until) == ETIMEDOUT) {
            pthread_mutex_unlock(&engine->lock);
            filled = !fill_a_slot(engine);
            pthread_mutex_lock(&engine->lock);
            if (engine->context == NULL) break;
        }
    }
    pthread_mutex_unlock(&engine->lock);
}

/*
 * The probe computes in this thread too: libgomp lets its threads sleep at once, at every step of a graph, when all
 * threads of all its teams are more than the cores, and each thread that computes has a team of its own.
 */
static is_status start(is_llama *engine)
{
    is_error err = {0};
    is_status status = is_probe(engine, engine->model_path, &err);
    pthread_mutex_lock(&engine->lock);
    engine->start_err = err;
    engine->start_status = status;
    engine->started = true;
    pthread_cond_broadcast(&engine->done);
    pthread_mutex_unlock(&engine->lock);
    return status;
}

static void *owner_main(void *arg)
{
    is_llama *engine = arg;
    double last_encode = 0;
    if (start(engine) != IS_OK) return NULL;
    for (;;) {
        wait_for_work(engine);
        if (atomic_load(&engine->closing) || engine->context == NULL) break;
        start_jobs(engine);
        if (engine->context == NULL) break;
        bool idle = busy_slots(engine) == 0;
        if (!idle) serve(engine);
        if (engine->context == NULL) break;
        /* A step that gave way does not count: requests that come and go must not hold encoding up for ever. */
        if ((idle || is_now_ms() - last_encode > ENCODE_UNDER_LOAD_MS) && encode(engine, idle))
            last_encode = is_now_ms();
    }
    /* Without a context there is nothing to go on with. */
    is_error err = {.status = IS_ECANCELED, .text = "the engine is being closed"};
    if (engine->context == NULL)
        (void)is_fail(&err, IS_EENGINE,
                      "the engine lost its context and could not open another; open the memory again");
    end_busy(engine, err.status, err.text);
    pthread_mutex_lock(&engine->lock);
    atomic_store(&engine->closing, true);
    for (;;) {
        is_job *job = pop(&engine->queue, &engine->queue_tail);
        if (job == NULL) job = pop(&engine->encode_queue, &engine->encode_tail);
        if (job == NULL) break;
        job->status = err.status;
        job->err = err;
        job->done = true;
    }
    pthread_cond_broadcast(&engine->done);
    pthread_mutex_unlock(&engine->lock);
    return NULL;
}

/* ------------------------------------------------------------ operations */

/* A call holds on to the engine from here to leave(): close waits for it. */
static is_status enter(is_llama *engine, is_error *err)
{
    pthread_mutex_lock(&engine->lock);
    bool closing = atomic_load(&engine->closing);
    if (!closing) engine->callers++;
    pthread_mutex_unlock(&engine->lock);
    return closing ? is_fail(err, IS_ECANCELED, "the engine is closed or lost its context") : IS_OK;
}

static void leave(is_llama *engine)
{
    pthread_mutex_lock(&engine->lock);
    if (--engine->callers == 0) pthread_cond_broadcast(&engine->done);
    pthread_mutex_unlock(&engine->lock);
}

static is_status submit(is_llama *engine, is_job *job, is_error *err)
{
    job->submitted_ms = is_now_ms();
    pthread_mutex_lock(&engine->lock);
    if (atomic_load(&engine->closing)) {
        pthread_mutex_unlock(&engine->lock);
        return is_fail(err, IS_ECANCELED, "the engine is closed or lost its context");
    }
    if (job->kind == IS_JOB_ENCODE) {
        push(&engine->encode_queue, &engine->encode_tail, job);
    } else {
        push(&engine->queue, &engine->queue_tail, job);
        atomic_fetch_add(&engine->waiting, 1);
    }
    engine->callers++;
    pthread_cond_signal(&engine->wake);
    while (!job->done) pthread_cond_wait(&engine->done, &engine->lock);
    if (--engine->callers == 0) pthread_cond_broadcast(&engine->done);
    pthread_mutex_unlock(&engine->lock);
    if (job->status != IS_OK && err != NULL) *err = job->err;
    return job->status;
}

static is_status op_run(is_engine *base, const is_run *run, is_run_result *out, is_error *err)
{
    memset(out, 0, sizeof *out);
    is_llama *engine = (is_llama *)base;
    is_job job = {.kind = IS_JOB_RUN, .run = run, .result = out};
    is_status status = enter(engine, err);
    if (status != IS_OK) return status;
    status = is_sampler_open(&engine->model, run, &job.sampler, err);
    if (status == IS_OK) status = submit(engine, &job, err);
    is_sampler_close(job.sampler);
    leave(engine);
    return status == IS_OK && run->tool_format != NULL ? is_tools_finish(run, out, err) : status;
}

static is_status op_score(is_engine *base, is_score *score, is_run_stats *stats, is_error *err)
{
    is_job job = {.kind = IS_JOB_SCORE, .score = score, .stats = stats};
    return submit((is_llama *)base, &job, err);
}

static is_status op_encode(is_engine *base, is_encode_job *encode_job, is_error *err)
{
    for (size_t i = 0; i < encode_job->n_targets; i++) encode_job->targets[i].bytes = NULL;
    if (encode_job->n_targets == 0) return IS_OK;
    is_job job = {.kind = IS_JOB_ENCODE, .encode = encode_job};
    is_status status = submit((is_llama *)base, &job, err);
    for (size_t i = 0; status != IS_OK && i < encode_job->n_targets; i++) {
        free(encode_job->targets[i].bytes);
        encode_job->targets[i].bytes = NULL;
    }
    return status;
}

static bool op_injects(is_engine *base)
{
    return ((is_llama *)base)->injectable;
}

static const is_layout *op_layout(is_engine *base)
{
    is_llama *engine = (is_llama *)base;
    return engine->injectable ? &engine->layout : NULL;
}

static const char *op_why_not(is_engine *base)
{
    return ((is_llama *)base)->why_not;
}

static void op_fingerprint(is_engine *base, uint8_t out[16])
{
    memcpy(out, ((is_llama *)base)->fingerprint, 16);
}

static uint32_t op_context(is_engine *base)
{
    return ((is_llama *)base)->n_context;
}

static uint32_t op_vocab(is_engine *base)
{
    return (uint32_t)llama_vocab_n_tokens(((is_llama *)base)->model.vocab);
}

static is_status op_end_tokens(is_engine *base, int32_t **tokens, size_t *n, is_error *err)
{
    const struct llama_vocab *vocab = ((is_llama *)base)->model.vocab;
    int32_t all = llama_vocab_n_tokens(vocab);
    *n = 0;
    *tokens = malloc((size_t)(all + 1) * sizeof **tokens);
    for (int32_t i = 0; *tokens != NULL && i < all; i++)
        if (llama_vocab_is_eog(vocab, i)) (*tokens)[(*n)++] = i;
    return *tokens != NULL ? IS_OK : is_fail(err, IS_ENOMEM, "no memory for the tokens that end an answer");
}

static is_status op_tokenize(is_engine *base, const char *text, bool special, int32_t **tokens, size_t *n,
                             is_error *err)
{
    return is_prompt_tokenize(&((is_llama *)base)->model, text, special, false, tokens, n, err);
}

static is_status op_tokenize_prompt(is_engine *base, const char *text, int32_t **tokens, size_t *n, is_error *err)
{
    return is_prompt_tokenize(&((is_llama *)base)->model, text, true, text[0] != '\0', tokens, n, err);
}

static is_status op_render(is_engine *base, const char *system_head, const char *system_tail,
                           const is_message *messages, size_t n_messages, const is_tools *tools, is_prompt_parts *out,
                           is_error *err)
{
    return is_prompt_render(&((is_llama *)base)->model, system_head, system_tail, messages, n_messages, tools, out,
                            err);
}

static json_t *describe_layers(const is_llama *engine)
{
    const is_layout *layout = &engine->layout;
    json_t *runs = json_array(); /* equal layers in a row are one entry */
    for (uint32_t l = 0, end; l < layout->n_layers; l = end) {
        const is_layer *a = &layout->layers[l];
        for (end = l + 1; end < layout->n_layers; end++) {
            const is_layer *b = &layout->layers[end];
            if (a->heads != b->heads || a->k_dim != b->k_dim || a->v_dim != b->v_dim || a->window != b->window ||
                a->rope != b->rope)
                break;
        }
        json_array_append_new(runs,
                              json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:s}", "first", (int)l, "layers",
                                        (int)(end - l), "kv_heads", (int)a->heads, "k_dim", (int)a->k_dim, "v_dim",
                                        (int)a->v_dim, "window", (int)a->window, "rope",
                                        a->rope == IS_LAYER_NO_ROPE ? "none" : engine->probe.rope_names[a->rope]));
    }
    return runs;
}

/* What this llama.cpp can compute on: "CUDA0: NVIDIA H200" and the like, "CPU: ...". */
static json_t *describe_devices(void)
{
    json_t *list = json_array();
    for (size_t i = 0; list != NULL && i < ggml_backend_dev_count(); i++) {
        ggml_backend_dev_t dev = ggml_backend_dev_get(i);
        json_array_append_new(list,
                              json_sprintf("%s: %s", ggml_backend_dev_name(dev), ggml_backend_dev_description(dev)));
    }
    return list;
}

static is_status op_describe(is_engine *base, char **json, is_error *err)
{
    is_llama *engine = (is_llama *)base;
    char name[128] = "";
    (void)llama_model_desc(engine->model.llama, name, sizeof name);
    json_t *root =
        json_pack("{s:s, s:s, s:i, s:i, s:i, s:b, s:b, s:s, s:f}", "engine", "llama.cpp", "model", name, "context",
                  (int)engine->n_context, "slots", (int)engine->n_slots, "threads", (int)engine->model.threads, "tools",
                  engine->model.chat != NULL && is_chat_has_tools(engine->model.chat), "injection", engine->injectable,
                  "why_not", engine->why_not, "probe_ms", engine->probe.probe_ms);
    if (root != NULL) json_object_set_new(root, "llama_cpp", json_string(llama_version()));
    if (root != NULL) json_object_set_new(root, "devices", describe_devices());
    if (root != NULL && engine->injectable) {
        char hex[33];
        for (int i = 0; i < 16; i++) (void)snprintf(hex + 2 * i, 3, "%02x", engine->fingerprint[i]);
        json_object_set_new(root, "fingerprint", json_string(hex));
        json_object_set_new(root, "kv_type", json_string(is_dtype_name(engine->layout.dtype)));
        json_object_set_new(root, "kv_bytes_per_token",
                            json_integer((json_int_t)is_layout_token_bytes(&engine->layout)));
        json_object_set_new(root, "prefix_bytes", json_integer((json_int_t)is_prefixes_bytes(&engine->prefixes)));
        if (engine->dev != NULL)
            json_object_set_new(root, "device_chunks", json_integer((json_int_t)is_dev_count(engine->dev)));
        json_object_set_new(root, "v_transposed", json_boolean(engine->layout.v_transposed));
        json_object_set_new(root, "layers", describe_layers(engine));
        json_object_set_new(root, "compose", json_string(is_isa_name(is_isa_best())));
        json_object_set_new(root, "probe",
                            json_pack("{s:[i,i,i], s:f, s:i, s:f, s:b}", "offsets", engine->probe.offsets[0],
                                      engine->probe.offsets[1], engine->probe.offsets[2], "max_k_error",
                                      engine->probe.max_error, "worst_layer", (int)engine->probe.worst_layer,
                                      "logit_error", engine->probe.logit_error, "in_place", (int)engine->direct.ready));
    }
    *json = root == NULL ? NULL : json_dumps(root, JSON_INDENT(2));
    json_decref(root);
    return *json == NULL ? is_fail(err, IS_ENOMEM, "no memory to describe the engine") : IS_OK;
}

static void op_close(is_engine *base)
{
    is_llama *engine = (is_llama *)base;
    if (engine->thread_started) {
        pthread_mutex_lock(&engine->lock);
        atomic_store(&engine->closing, true);
        pthread_cond_signal(&engine->wake);
        pthread_mutex_unlock(&engine->lock);
        pthread_join(engine->thread, NULL);
        /* The last callers were woken but may not have left yet. */
        pthread_mutex_lock(&engine->lock);
        while (engine->callers > 0) pthread_cond_wait(&engine->done, &engine->lock);
        pthread_mutex_unlock(&engine->lock);
    }
    is_encoder_close(engine);
    is_prefixes_forget(&engine->prefixes, 0);
    free(engine->encode_blob);
    free(engine->candidates);
    for (uint32_t i = 0; i < engine->n_slots; i++) {
        free(engine->slots[i].tokens);
        free(engine->slots[i].resident);
    }
    is_team_close(engine->team);
    is_blob_close(engine);
    if (engine->dev != NULL) is_dev_close(engine->dev);
    if (engine->context != NULL) llama_free(engine->context);
    if (engine->batch.token != NULL) llama_batch_free(engine->batch);
    is_model_close(&engine->model);
    pthread_mutex_destroy(&engine->prefixes.lock);
    pthread_mutex_destroy(&engine->lock);
    pthread_cond_destroy(&engine->wake);
    pthread_cond_destroy(&engine->done);
    free(engine);
}

static void op_forget(is_engine *base, uint64_t scope)
{
    is_llama *engine = (is_llama *)base;
    is_prefixes_forget(&engine->prefixes, scope);
    if (engine->dev == NULL) return;
    atomic_fetch_add(&engine->forgotten, 1);
    is_dev_lock(engine->dev);
    is_dev_drop_scope(engine->dev, scope);
    is_dev_unlock(engine->dev);
}

static unsigned op_forgets(is_engine *base)
{
    return atomic_load(&((is_llama *)base)->forgotten);
}

static const is_engine_ops ops = {
    .close = op_close,
    .injects = op_injects,
    .layout = op_layout,
    .why_not = op_why_not,
    .fingerprint = op_fingerprint,
    .context = op_context,
    .vocab = op_vocab,
    .end_tokens = op_end_tokens,
    .tokenize = op_tokenize,
    .tokenize_prompt = op_tokenize_prompt,
    .render = op_render,
    .run = op_run,
    .score = op_score,
    .encode = op_encode,
    .forget = op_forget,
    .forgets = op_forgets,
    .describe = op_describe,
};

/* Tokens of one sequence: as asked, at most what the model was trained for, in the engine's steps of 256. */
static uint32_t choose_context(const is_model *model, uint32_t asked)
{
    int32_t trained = llama_model_n_ctx_train(model->llama);
    uint32_t most = trained > 0 ? (uint32_t)trained : 8192;
    uint32_t n = asked != 0 ? asked : 8192;
    if (n > most) n = most;
    n = n / 256 * 256;
    return n < 256 ? 256 : n;
}

static is_status open_serving(is_llama *engine, const is_llama_options *o, is_error *err)
{
    const struct llama_model *m = engine->model.llama;
    if (llama_model_has_encoder(m) || !llama_model_has_decoder(m) ||
        llama_vocab_type(engine->model.vocab) == LLAMA_VOCAB_TYPE_NONE ||
        llama_vocab_type(engine->model.vocab) == LLAMA_VOCAB_TYPE_WPM)
        return is_fail(err, IS_EUNSUPPORTED, "%s is no model that continues text; give a chat model", o->model);
    engine->n_context = choose_context(&engine->model, o->context);
    engine->n_slots = o->slots == 0 ? 1 : o->slots < IS_MAX_SLOTS ? o->slots : IS_MAX_SLOTS;
    for (uint32_t i = 0; i < engine->n_slots; i++) engine->slots[i].sequence = (int32_t)i;
    engine->batch = llama_batch_init(IS_LLAMA_PIECE + IS_MAX_SLOTS, 0, 1);
    engine->candidates = malloc((size_t)llama_vocab_n_tokens(engine->model.vocab) * sizeof *engine->candidates);
    if (engine->candidates == NULL) return is_fail(err, IS_ENOMEM, "no memory for the model's vocabulary");
    is_status status = is_prompt_open(&engine->model, err);
    if (status == IS_OK) status = is_context_renew(engine, err);
    if (status != IS_OK) return status;
    return is_team_open(&engine->model, &engine->team, err);
}

static is_status start_owner(is_llama *engine, const char *model_path, is_error *err)
{
    engine->model_path = model_path;
    if (pthread_create(&engine->thread, NULL, owner_main, engine) != 0)
        return is_fail(err, IS_ENOMEM, "the system gives no thread for the engine");
    engine->thread_started = true;
    pthread_mutex_lock(&engine->lock);
    while (!engine->started) pthread_cond_wait(&engine->done, &engine->lock);
    is_status status = engine->start_status;
    if (status != IS_OK && err != NULL) *err = engine->start_err;
    pthread_mutex_unlock(&engine->lock);
    return status;
}

/* Prompts hold their chunks themselves, so there is nothing to give back. */
static is_status open_device(is_llama *engine, uint64_t budget, is_error *err)
{
    if (is_dev_open == NULL)
        return is_fail(err, IS_EUNSUPPORTED, "this program was built without CUDA; `make cuda` builds one with it");
    engine->model.on_device = true;
    return is_dev_open(0, budget, NULL, NULL, &engine->dev, err);
}

is_status is_llama_open(const is_llama_options *options, is_engine **out, is_error *err)
{
    *out = NULL;
    is_llama *engine = calloc(1, sizeof *engine);
    if (engine == NULL) return is_fail(err, IS_ENOMEM, "no memory for the engine");
    engine->base.ops = &ops;
    pthread_mutex_init(&engine->prefixes.lock, NULL);
    pthread_mutex_init(&engine->lock, NULL);
    pthread_cond_init(&engine->wake, NULL);
    pthread_cond_init(&engine->done, NULL);
    is_status status = is_model_open(options->model, options->threads, &engine->model, err);
    if (status == IS_OK && options->device_budget > 0) status = open_device(engine, options->device_budget, err);
    if (status == IS_OK) status = open_serving(engine, options, err);
    if (status == IS_OK) status = start_owner(engine, options->model, err);
    if (status != IS_OK) {
        op_close(&engine->base);
        return status;
    }
    if (!engine->injectable && options->log != NULL) {
        char line[640];
        (void)snprintf(line, sizeof line, "injection is off, every prompt is prefilled: %s", engine->why_not);
        options->log(options->log_user, 1, line);
    }
    *out = &engine->base;
    return IS_OK;
}
