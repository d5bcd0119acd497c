/*
 * Encoding: facts behind a prefix become chunks.
 *
 * The encoder is a context of its own with one unified cache.  The prefix (header, primer, and what is in front of one
 * fact only) is decoded once and stays resident in sequence 0; each target of a step gets a sequence that shares
 * the prefix's cells and sees no other target.  So encoding behind a primer costs little more than without: the
 * primer's tokens are computed once for many facts.
 *
 * A step gives way when a request is waiting: the engine's abort callback ends the decode, what it left is
 * removed, and the step is done again later.
 */
#include "internal.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static bool give_way(void *data)
{
    is_llama *engine = data;
    return atomic_load_explicit(&engine->waiting, memory_order_relaxed) > 0 ||
           atomic_load_explicit(&engine->closing, memory_order_relaxed);
}

static is_status open_encoder(is_llama *engine, is_error *err)
{
    if (engine->encoder != NULL) return IS_OK;
    /* As large as one sequence of the serving context: what depends on the context's size (LongRoPE's factors) is
     * equal. */
    engine->encoder =
        is_context_open(&engine->model, engine->n_context, IS_ENCODE_SEQUENCES + 1, true, engine->n_context, NULL, err);
    if (engine->encoder == NULL) return IS_EENGINE;
    engine->encode_batch = llama_batch_init((int32_t)engine->n_context, 0, 1);
    engine->encode_prefix_n = 0;
    return IS_OK;
}

/* Removes the target sequences; after a fatal error the whole encoder goes. */
static void clear_targets(is_llama *engine)
{
    llama_memory_t memory = llama_get_memory(engine->encoder);
    for (int32_t s = 1; s <= IS_ENCODE_SEQUENCES; s++) llama_memory_seq_rm(memory, s, -1, -1);
}

static is_status decode(is_llama *engine, bool may_abort, bool *aborted, is_error *err)
{
    llama_set_abort_callback(engine->encoder, may_abort ? give_way : NULL, engine);
    is_llama_quiet();
    int32_t rc = llama_decode(engine->encoder, engine->encode_batch);
    *aborted = rc == 2;
    if (rc == 0 || rc == 2) return IS_OK;
    (void)is_fail(err, IS_EENGINE, "llama.cpp cannot encode (code %d): %s", rc, is_llama_last_error());
    is_encoder_close(engine);
    return IS_EENGINE;
}

void is_encoder_close(is_llama *engine)
{
    if (engine->encoder == NULL) return;
    llama_free(engine->encoder);
    llama_batch_free(engine->encode_batch);
    engine->encoder = NULL;
    free(engine->encode_prefix);
    engine->encode_prefix = NULL;
    engine->encode_prefix_n = 0;
}

/* Room to say what the tokens of sequence 0 are. */
static is_status reserve_prefix(is_llama *engine, uint32_t n, is_error *err)
{
    int32_t *kept = realloc(engine->encode_prefix, ((size_t)n + 1) * sizeof *kept);
    if (kept == NULL) return is_fail(err, IS_ENOMEM, "no memory to keep the encode prefix");
    engine->encode_prefix = kept;
    return IS_OK;
}

/* How much of the resident prefix the job's begins with. */
static uint32_t common(const is_llama *engine, const is_encode_job *job)
{
    uint32_t n = engine->encode_prefix_n < job->n_prefix ? engine->encode_prefix_n : job->n_prefix;
    uint32_t same = 0;
    while (same < n && engine->encode_prefix[same] == job->prefix[same]) same++;
    /* Where rows have to go from behind it, a sliding window may have lost some before it that are to be seen again. */
    return same < engine->encode_prefix_n && engine->shape.n_caches != 1 ? 0 : same;
}

/*
 * Leaves in sequence 0 a beginning of the job's prefix and nothing else, as long a one as there is: of the resident
 * prefix, or what is kept of the part that jobs share.  Returns its length.
 */
static uint32_t keep_beginning(is_llama *engine, const is_encode_job *job)
{
    llama_memory_t memory = llama_get_memory(engine->encoder);
    uint32_t same = common(engine, job);
    if (same < job->n_shared && is_prefix_restore(engine, job)) return job->n_shared;
    if (same > 0 && (same == engine->encode_prefix_n || llama_memory_seq_rm(memory, 0, (llama_pos)same, -1)))
        return same;
    llama_memory_clear(memory, false);
    return 0;
}

static bool is_resident(const is_llama *engine, const is_encode_job *job)
{
    return engine->encode_prefix_n == job->n_prefix && common(engine, job) == job->n_prefix;
}

/*
 * Brings sequence 0 closer to holding the job's prefix and nothing else: up to where the shared part ends or, with
 * that, to its end.  Where the step may not give way to requests it decodes one piece only.  What is missing then, or
 * when it gave way, is for later steps; what was done stays.
 */
static is_status load_prefix(is_llama *engine, const is_encode_job *job, bool may_abort, bool *aborted, is_error *err)
{
    *aborted = false;
    if (is_resident(engine, job)) return IS_OK;
    uint32_t same = keep_beginning(engine, job);
    engine->encode_prefix_n = same;
    is_status status = reserve_prefix(engine, job->n_prefix, err);
    if (status != IS_OK) return status;
    if (job->n_prefix > 0) memcpy(engine->encode_prefix, job->prefix, job->n_prefix * sizeof *job->prefix);
    if (same == job->n_prefix) return IS_OK;
    engine->encode_batch.n_tokens = 0;
    uint32_t end = same < job->n_shared ? job->n_shared : job->n_prefix;
    if (!may_abort && end - same > IS_LLAMA_PIECE) end = same + IS_LLAMA_PIECE;
    for (uint32_t i = same; i < end; i++) is_batch_add(&engine->encode_batch, job->prefix[i], (int32_t)i, 0, false);
    status = decode(engine, may_abort, aborted, err);
    if (status != IS_OK) return status;
    engine->encode_prefix_n = (uint32_t)(llama_memory_seq_pos_max(llama_get_memory(engine->encoder), 0) + 1);
    if (engine->encode_prefix_n == job->n_shared) is_prefix_keep(engine, job);
    return IS_OK;
}

/* The target's rows of one layer, out of the state's cells and into the chunk. */
static void extract_layer(const is_layout *layout, const is_state_view *view, uint32_t cache, uint32_t layer,
                          uint32_t n_prefix, void *chunk)
{
    uint8_t *k, *v;
    uint32_t first, n;
    is_chunk_rows_mut(chunk, layer, &k, &v, &first, &n);
    size_t k_row = is_layer_k_bytes(layout, layer);
    size_t v_row = is_layer_v_bytes(layout, layer);
    size_t el = is_dtype_size(layout->dtype);
    uint32_t cells = view->n_cells[cache];
    for (uint32_t c = 0; c < cells; c++) {
        int64_t token = (int64_t)is_state_position(view, cache, c) - n_prefix;
        if (token < (int64_t)first) continue;
        size_t row = (size_t)token - first;
        memcpy(k + row * k_row, view->k[layer] + (size_t)c * k_row, k_row);
        if (v == NULL) continue;
        if (!layout->v_transposed) {
            memcpy(v + row * v_row, view->v[layer] + (size_t)c * v_row, v_row);
            continue;
        }
        for (size_t d = 0; d < v_row / el; d++)
            memcpy(v + (d * n + row) * el, view->v[layer] + (d * cells + c) * el, el);
    }
}

/* Every position that the chunk keeps must be in the state once. */
static bool cells_complete(const is_layout *layout, const is_state_shape *shape, const is_state_view *view,
                           uint32_t n_prefix, uint32_t n_tokens)
{
    for (uint32_t c = 0; c < shape->n_caches; c++) {
        const is_layer *layer = &layout->layers[shape->caches[c].layer_begin];
        uint32_t want = n_tokens - is_layer_first(layer, n_tokens);
        uint32_t from = n_prefix + n_tokens - want;
        uint32_t got = 0;
        for (uint32_t i = 0; i < view->n_cells[c]; i++) {
            int32_t p = is_state_position(view, c, i);
            if (p >= (int32_t)from && p < (int32_t)(n_prefix + n_tokens)) got++;
        }
        if (got != want) return false;
    }
    return true;
}

void *is_chunk_new(const is_llama *engine, uint32_t n_prefix, const int32_t *prefix, const char *recipe,
                   const is_encode_target *target, size_t *size, is_error *err)
{
    const is_layout *layout = &engine->layout;
    is_chunk_info info = {.p_ref = (int32_t)n_prefix, .n_tokens = target->n_tokens};
    memcpy(info.fingerprint, engine->fingerprint, sizeof info.fingerprint);
    XXH128_canonical_t hash;
    XXH128_canonicalFromHash(&hash, XXH3_128bits(prefix, n_prefix * sizeof *prefix));
    memcpy(info.context, hash.digest, sizeof info.context);
    memcpy(info.text, target->text, sizeof info.text);
    strncpy(info.recipe, recipe, sizeof info.recipe - 1);
    *size = is_chunk_bytes(layout, target->n_tokens);
    void *chunk = *size == 0 ? NULL : is_chunk_memory(*size);
    if (chunk == NULL) {
        (void)is_fail(err, IS_ENOMEM, "no memory for a chunk of %u tokens", target->n_tokens);
        return NULL;
    }
    if (is_chunk_begin(chunk, *size, layout, &info, target->tokens, err) == IS_OK) return chunk;
    free(chunk);
    return NULL;
}

is_status is_chunk_extract(is_llama *engine, const uint8_t *blob, size_t size, uint32_t n_prefix, const int32_t *prefix,
                           const char *recipe, is_encode_target *target, is_error *err)
{
    const is_layout *layout = &engine->layout;
    is_state_shape shape;
    is_state_view view;
    is_status status = is_state_parse(blob, size, &shape, &view, err);
    if (status != IS_OK) return status;
    if (shape.n_layers != layout->n_layers || shape.v_trans != layout->v_transposed ||
        !cells_complete(layout, &shape, &view, n_prefix, target->n_tokens))
        return is_fail(err, IS_EENGINE, "the encoder's cache does not hold the %u tokens that were just encoded",
                       target->n_tokens);
    size_t bytes;
    void *chunk = is_chunk_new(engine, n_prefix, prefix, recipe, target, &bytes, err);
    if (chunk == NULL) return IS_ENOMEM;
    for (uint32_t l = 0; l < layout->n_layers; l++)
        extract_layer(layout, &view, is_state_cache_of(&shape, l), l, n_prefix, chunk);
    is_chunk_seal(chunk);
    target->bytes = chunk;
    target->size = bytes;
    return IS_OK;
}

/* Reads the state of a sequence into the encoder's buffer. */
static is_status read_state(is_llama *engine, int32_t sequence, size_t *size, is_error *err)
{
    *size = llama_state_seq_get_size(engine->encoder, sequence);
    if (*size > engine->encode_blob_size) {
        uint8_t *grown = realloc(engine->encode_blob, *size);
        if (grown == NULL) return is_fail(err, IS_ENOMEM, "no memory for %zu bytes of state", *size);
        engine->encode_blob = grown;
        engine->encode_blob_size = *size;
    }
    if (*size == 0 || llama_state_seq_get_data(engine->encoder, engine->encode_blob, *size, sequence) != *size)
        return is_fail(err, IS_EENGINE, "llama.cpp does not give the encoded state: %s", is_llama_last_error());
    return IS_OK;
}

/* A target's tokens behind the prefix into the batch. */
static void add_target(is_llama *engine, const is_encode_job *job, const is_encode_target *target, int32_t sequence)
{
    for (uint32_t i = 0; i < target->n_tokens; i++)
        is_batch_add(&engine->encode_batch, target->tokens[i], (int32_t)(job->n_prefix + i), sequence, false);
}

/* A target's chunk out of its sequence. */
static is_status take_target(is_llama *engine, const is_encode_job *job, is_encode_target *target, int32_t sequence,
                             is_error *err)
{
    size_t size;
    is_status status = read_state(engine, sequence, &size, err);
    if (status != IS_OK) return status;
    return is_chunk_extract(engine, engine->encode_blob, size, job->n_prefix, job->prefix, job->recipe, target, err);
}

/* The next targets that fit into one step and, behind the prefix, into the context: [*begin, *end). */
static void next_group(const is_llama *engine, const is_encode_job *job, uint32_t most, size_t *begin, size_t *end)
{
    size_t room = engine->n_context - job->n_prefix;
    if (room > IS_ENCODE_BATCH) room = IS_ENCODE_BATCH;
    size_t b = 0;
    while (b < job->n_targets && job->targets[b].bytes != NULL) b++;
    size_t e = b;
    size_t tokens = 0;
    while (e < job->n_targets && e - b < most && job->targets[e].bytes == NULL) {
        if (e > b && tokens + job->targets[e].n_tokens > room) break;
        tokens += job->targets[e++].n_tokens;
    }
    *begin = b;
    *end = e;
}

static is_status encode_group(is_llama *engine, is_encode_job *job, size_t begin, size_t end, bool may_abort,
                              bool *aborted, is_error *err)
{
    llama_memory_t memory = llama_get_memory(engine->encoder);
    engine->encode_batch.n_tokens = 0;
    for (size_t t = begin; t < end; t++) {
        int32_t sequence = (int32_t)(t - begin) + 1;
        if (job->n_prefix > 0) llama_memory_seq_cp(memory, 0, sequence, -1, -1);
        add_target(engine, job, &job->targets[t], sequence);
    }
    is_status status = decode(engine, may_abort, aborted, err);
    if (status != IS_OK) return status;
    for (size_t t = begin; status == IS_OK && !*aborted && t < end; t++)
        status = take_target(engine, job, &job->targets[t], (int32_t)(t - begin) + 1, err);
    clear_targets(engine);
    return status;
}

/*
 * A job's only target goes into sequence 0 and stays there: the next job's prefix may go on with it, as where facts are
 * encoded each behind the one before it.
 */
static is_status encode_in_place(is_llama *engine, is_encode_job *job, bool may_abort, bool *aborted, is_error *err)
{
    is_encode_target *target = &job->targets[0];
    const uint32_t end = job->n_prefix + target->n_tokens;
    is_status status = reserve_prefix(engine, end, err);
    if (status != IS_OK) return status;
    engine->encode_batch.n_tokens = 0;
    add_target(engine, job, target, 0);
    status = decode(engine, may_abort, aborted, err);
    if (status != IS_OK) return status;
    if (!*aborted) status = take_target(engine, job, target, 0, err);
    if (*aborted || status != IS_OK) {
        llama_memory_seq_rm(llama_get_memory(engine->encoder), 0, (llama_pos)job->n_prefix, -1);
        return status;
    }
    memcpy(engine->encode_prefix + job->n_prefix, target->tokens, target->n_tokens * sizeof *target->tokens);
    engine->encode_prefix_n = end;
    return IS_OK;
}

static is_status check_job(const is_llama *engine, const is_encode_job *job, is_error *err)
{
    if (!engine->injectable) return is_fail(err, IS_EUNSUPPORTED, "chunks cannot be made: %s", engine->why_not);
    for (size_t i = 0; i < job->n_targets; i++) {
        if (job->targets[i].n_tokens == 0) return is_fail(err, IS_EINVAL, "an encode target has no tokens");
        if ((uint64_t)job->n_prefix + job->targets[i].n_tokens > engine->n_context)
            return is_fail(err, IS_ELIMIT, "%u tokens behind a prefix of %u do not fit into a context of %u",
                           job->targets[i].n_tokens, job->n_prefix, engine->n_context);
    }
    return IS_OK;
}

is_status is_encode_step(is_llama *engine, is_job *job, uint32_t most, bool may_abort, bool *aborted, bool *finished)
{
    is_encode_job *encode = job->encode;
    *aborted = false;
    *finished = false;
    if (encode->cancel != NULL && atomic_load(encode->cancel))
        return is_fail(&job->err, IS_ECANCELED, "encoding was cancelled");
    is_status status = check_job(engine, encode, &job->err);
    if (status == IS_OK) status = open_encoder(engine, &job->err);
    if (status == IS_OK) status = load_prefix(engine, encode, may_abort, aborted, &job->err);
    if (status != IS_OK || *aborted || engine->encode_prefix_n < encode->n_prefix) return status;
    size_t begin, end;
    next_group(engine, encode, most, &begin, &end);
    if (begin < end && encode->n_targets == 1 && engine->shape.n_caches == 1)
        status = encode_in_place(engine, encode, may_abort, aborted, &job->err);
    else if (begin < end)
        status = encode_group(engine, encode, begin, end, may_abort, aborted, &job->err);
    if (status != IS_OK) return status;
    *finished = !*aborted && end == encode->n_targets;
    return IS_OK;
}
