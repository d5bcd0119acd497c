/*
 * One request in a sequence of the serving context: what can be injected is, the rest is prefilled in
 * pieces, then tokens are drawn (sample.c) and streamed until the answer ends.
 */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

void is_batch_add(struct llama_batch *batch, int32_t token, int32_t position, int32_t sequence, bool logits)
{
    int32_t i = batch->n_tokens++;
    batch->token[i] = token;
    batch->pos[i] = position;
    batch->n_seq_id[i] = 1;
    batch->seq_id[i][0] = sequence;
    batch->logits[i] = logits;
}

static const is_plan *plan_of(const is_job *job)
{
    return job->kind == IS_JOB_RUN ? &job->run->plan : &job->score->plan;
}

/* Whether what the run leaves in its sequence is wanted. */
static bool keeps(const is_job *job)
{
    return job->kind == IS_JOB_RUN && job->run->keep;
}

static is_status check_plan(const is_llama *engine, const is_job *job, uint32_t *total, is_error *err)
{
    const is_plan *plan = plan_of(job);
    uint64_t n = 0;
    if (plan->n_segments == 0) return is_fail(err, IS_EINVAL, "the plan has no segment");
    for (size_t i = 0; i < plan->n_segments; i++) n += plan->segments[i].n_tokens;
    uint32_t tail = plan->segments[plan->n_segments - 1].n_tokens;
    if (tail == 0) return is_fail(err, IS_EINVAL, "the plan's tail is empty; at least one token must be prefilled");
    if (job->kind == IS_JOB_SCORE && (job->score->n_last == 0 || job->score->n_last > tail))
        return is_fail(err, IS_EINVAL, "%u tokens are to be scored and the tail has %u", job->score->n_last, tail);
    uint64_t more = job->kind == IS_JOB_RUN && job->run->max_tokens > 0 ? 1 : 0;
    if (n + more > engine->n_context)
        return is_fail(err, IS_ELIMIT,
                       "the prompt has %llu tokens and the context %u; ask with fewer facts or open with a "
                       "larger context",
                       (unsigned long long)n, engine->n_context);
    *total = (uint32_t)n;
    return IS_OK;
}

/* One wrong token would fail the whole batch, with the other slots' tokens in it. */
static is_status check_tokens(const is_llama *engine, const is_slot *slot, is_error *err)
{
    int32_t vocab = llama_vocab_n_tokens(engine->model.vocab);
    for (uint32_t i = 0; i < slot->n_tokens; i++)
        if (slot->tokens[i] < 0 || slot->tokens[i] >= vocab)
            return is_fail(err, IS_EINVAL, "token %d in the prompt is none of the model's, which has %d",
                           slot->tokens[i], vocab);
    return IS_OK;
}

/* Tokens of all segments, one after another; room behind them for an answer of `more`. */
static is_status flatten(const is_plan *plan, uint32_t total, uint32_t more, is_slot *slot, is_error *err)
{
    int32_t *tokens = realloc(slot->tokens, ((size_t)total + more) * sizeof *tokens);
    if (tokens == NULL) return is_fail(err, IS_ENOMEM, "no memory for %u prompt tokens", total);
    slot->tokens = tokens;
    slot->n_tokens = total;
    for (size_t i = 0; i < plan->n_segments; i++) {
        if (plan->segments[i].n_tokens == 0) continue;
        memcpy(tokens, plan->segments[i].tokens, plan->segments[i].n_tokens * sizeof *tokens);
        tokens += plan->segments[i].n_tokens;
    }
    return IS_OK;
}

static bool reuse_resident(is_llama *engine, is_slot *slot, const is_plan *plan, uint32_t memory)
{
    if (plan->salt == 0 || slot->resident_salt != plan->salt || slot->n_resident != memory || memory == 0) return false;
    if (memcmp(slot->resident, slot->tokens, memory * sizeof *slot->tokens) != 0) return false;
    return llama_memory_seq_rm(llama_get_memory(engine->context), slot->sequence, (llama_pos)memory, -1);
}

/* Remembers what the sequence will hold.  A sliding window forgets rows, so such a sequence is not reused. */
static void remember_resident(const is_llama *engine, is_slot *slot, const is_plan *plan, uint32_t memory)
{
    slot->resident_salt = 0;
    if (plan->salt == 0 || engine->shape.n_caches != 1) return;
    int32_t *kept = realloc(slot->resident, (memory + 1) * sizeof *kept);
    if (kept == NULL) return;
    memcpy(kept, slot->tokens, memory * sizeof *kept);
    slot->resident = kept;
    slot->n_resident = memory;
    slot->resident_salt = plan->salt;
}

/* Injects the leading chunks; slot->done is then the number of tokens in the cache. */
static is_status inject_front(is_llama *engine, is_slot *slot, const is_plan *plan, is_error *err)
{
    if (!plan->inject || !engine->injectable) return IS_OK;
    size_t n = 0;
    uint32_t tokens = 0;
    is_placed *placed = malloc(plan->n_segments * sizeof *placed);
    if (placed == NULL) return is_fail(err, IS_ENOMEM, "no memory for %zu chunks", plan->n_segments);
    for (; n + 1 < plan->n_segments; n++) {
        const is_segment *s = &plan->segments[n];
        if (s->chunk == NULL) break;
        if (!is_chunk_usable(engine, s)) {
            slot->stats.refused++;
            break;
        }
        placed[n] = (is_placed){s->chunk, (int32_t)tokens};
        tokens += s->n_tokens;
    }
    is_status status = IS_OK;
    if (n > 0)
        status = is_inject(engine, slot->sequence, placed, n, tokens, plan->scope, plan->forgets,
                           &slot->stats.inject_bytes, err);
    free(placed);
    if (status != IS_OK || n == 0) return status;
    slot->done = tokens;
    slot->position = tokens;
    slot->stats.tokens_injected = tokens;
    slot->stats.segments_injected = (uint32_t)n;
    return IS_OK;
}

/* Hands text on; false when the caller wants no more.  With tools only the whole text says what is in it. */
static bool emit(const is_slot *slot, const char *piece, size_t n)
{
    const is_run *run = slot->job->run;
    return n == 0 || run->on_token == NULL || run->tool_format != NULL || run->on_token(run->user, piece, n);
}

static bool is_canceled(const is_job *job)
{
    return job->kind == IS_JOB_RUN && job->run->canceled != NULL && job->run->canceled(job->run->user);
}

/* What the run leaves in its sequence; where it cannot be read, the next turn is prefilled. */
static void keep_rows(is_llama *engine, is_slot *slot)
{
    const is_run *run = slot->job->run;
    is_kept *kept = slot->job->result->kept;
    if (!keeps(slot->job) || slot->position < slot->n_tokens) return;
    (void)is_keep(engine, slot->sequence, slot->tokens, run->keep_from, slot->n_tokens, &kept[0], NULL);
    (void)is_keep(engine, slot->sequence, slot->tokens, slot->n_tokens, slot->position, &kept[1], NULL);
}

/* Ends a run; what the text kept back goes out, unless the caller wants no more. */
static void finish_run(is_llama *engine, is_slot *slot, const char *finish)
{
    const char *rest;
    size_t n;
    is_text_finish(&slot->text, &rest, &n);
    if (strcmp(finish, "canceled") != 0 && !emit(slot, rest, n)) finish = "canceled";
    if (strcmp(finish, "canceled") != 0) keep_rows(engine, slot);
    slot->job->result->finish = finish;
    is_slot_end(engine, slot, IS_OK, NULL);
}

is_status is_slot_start(is_llama *engine, is_slot *slot, is_job *job)
{
    const is_plan *plan = plan_of(job);
    double now = is_now_ms();
    uint32_t total = 0;
    slot->job = job;
    slot->stats = (is_run_stats){.queue_ms = now - job->submitted_ms};
    slot->text = (is_text){0};
    if (is_canceled(job)) {
        finish_run(engine, slot, "canceled");
        return IS_OK;
    }
    slot->done = 0;
    slot->position = 0;
    slot->first_output = -1;
    is_status status = check_plan(engine, job, &total, &job->err);
    uint32_t more = keeps(job) ? engine->n_context - total : 0;
    if (status == IS_OK) status = flatten(plan, total, more, slot, &job->err);
    if (status == IS_OK) status = check_tokens(engine, slot, &job->err);
    if (status != IS_OK) return status;
    if (job->kind == IS_JOB_RUN) slot->text.stop = is_sampler_stop(job->sampler, &slot->text.n_stop);
    uint32_t memory = total - plan->segments[plan->n_segments - 1].n_tokens;
    if (reuse_resident(engine, slot, plan, memory)) {
        slot->done = slot->position = memory;
        slot->stats.tokens_resident = memory;
    } else {
        status = inject_front(engine, slot, plan, &job->err);
        if (status != IS_OK) return status;
        if (slot->position == 0) llama_memory_seq_rm(llama_get_memory(engine->context), slot->sequence, -1, -1);
        remember_resident(engine, slot, plan, memory);
    }
    slot->started_ms = is_now_ms();
    slot->stats.inject_ms = slot->started_ms - now;
    slot->state = IS_SLOT_PREFILL;
    return IS_OK;
}

void is_slot_batch(is_llama *engine, is_slot *slot, uint32_t piece)
{
    struct llama_batch *batch = &engine->batch;
    slot->first_output = -1;
    slot->n_outputs = 0;
    if (slot->state == IS_SLOT_DECODE) {
        slot->first_output = batch->n_tokens;
        slot->n_outputs = 1;
        is_batch_add(batch, slot->next_token, (int32_t)slot->position, slot->sequence, true);
        if (keeps(slot->job)) slot->tokens[slot->position] = slot->next_token;
        slot->position++;
        return;
    }
    uint32_t end = slot->n_tokens - slot->done > piece ? slot->done + piece : slot->n_tokens;
    uint32_t wanted = slot->job->kind == IS_JOB_SCORE ? slot->job->score->n_last : 1;
    for (; slot->done < end; slot->done++) {
        bool logits = slot->done + wanted >= slot->n_tokens;
        if (logits && slot->n_outputs++ == 0) slot->first_output = batch->n_tokens;
        is_batch_add(batch, slot->tokens[slot->done], (int32_t)slot->position, slot->sequence, logits);
        slot->position++;
        slot->stats.tokens_prefilled++;
    }
}

/* The token's text behind the answer's; *out: what may go out now. */
static is_status append_token(const is_llama *engine, is_slot *slot, llama_token token, const char **out, size_t *n_out)
{
    char few[256]; /* enough for nearly every token */
    char *many = NULL;
    char *piece = few;
    bool special = is_sampler_shows(slot->job->sampler, token);
    int32_t n = llama_token_to_piece(engine->model.vocab, token, few, sizeof few, 0, special);
    if (n < 0) {
        piece = many = malloc((size_t)-n);
        if (many == NULL) return is_fail(&slot->job->err, IS_ENOMEM, "no memory for a token of %d bytes", -n);
        n = llama_token_to_piece(engine->model.vocab, token, many, -n, 0, special);
    }
    for (int32_t i = 0; i < n; i++)
        if (piece[i] == '\0') piece[i] = ' '; /* the answer is a C string */
    is_status status = is_text_append(&slot->text, piece, n > 0 ? (size_t)n : 0, out, n_out, &slot->job->err);
    free(many);
    return status;
}

/* Draws a token: its text goes out; the slot ends or decodes it next. */
static void take_token(is_llama *engine, is_slot *slot)
{
    is_job *job = slot->job;
    const is_run *run = job->run;
    int32_t token;
    is_status status = is_sampler_next(engine, job->sampler, slot->first_output, &token, &job->err);
    if (status != IS_OK) {
        is_slot_end(engine, slot, status, NULL);
        return;
    }
    if (slot->stats.tokens_generated == 0) {
        double now = is_now_ms();
        slot->stats.prefill_ms = now - slot->started_ms;
        slot->stats.ttft_ms = now - job->submitted_ms;
    }
    if (llama_vocab_is_eog(engine->model.vocab, token)) {
        finish_run(engine, slot, "stop");
        return;
    }
    slot->stats.tokens_generated++;
    const char *out;
    size_t n_out;
    if (run->on_logprob != NULL)
        status = is_sampler_report(engine, job->sampler, run, slot->first_output, token, &job->err);
    if (status == IS_OK) status = append_token(engine, slot, token, &out, &n_out);
    if (status != IS_OK) {
        is_slot_end(engine, slot, status, NULL);
        return;
    }
    if (!emit(slot, out, n_out)) {
        finish_run(engine, slot, "canceled");
    } else if (slot->text.stopped || is_sampler_ended(job->sampler)) {
        finish_run(engine, slot, "stop");
    } else if (slot->stats.tokens_generated >= run->max_tokens || slot->position >= engine->n_context) {
        finish_run(engine, slot, "length");
    } else {
        slot->next_token = token;
        slot->state = IS_SLOT_DECODE;
    }
}

static void take_scores(is_llama *engine, is_slot *slot)
{
    is_score *score = slot->job->score;
    size_t vocab = (size_t)llama_vocab_n_tokens(engine->model.vocab);
    uint32_t row = slot->done - slot->n_outputs - (slot->n_tokens - score->n_last);
    for (uint32_t i = 0; i < slot->n_outputs; i++) {
        const float *logits = llama_get_logits_ith(engine->context, slot->first_output + (int32_t)i);
        if (logits == NULL) {
            (void)is_fail(&slot->job->err, IS_EENGINE, "llama.cpp gives no logits for token %u", row + i);
            is_slot_end(engine, slot, IS_EENGINE, NULL);
            return;
        }
        memcpy(score->logits + (size_t)(row + i) * vocab, logits, vocab * sizeof *logits);
    }
    if (slot->done < slot->n_tokens) return;
    double now = is_now_ms();
    slot->stats.prefill_ms = now - slot->started_ms;
    slot->stats.ttft_ms = now - slot->job->submitted_ms;
    is_slot_end(engine, slot, IS_OK, NULL);
}

void is_slot_step(is_llama *engine, is_slot *slot)
{
    const is_job *job = slot->job;
    if (is_canceled(job)) {
        finish_run(engine, slot, "canceled");
        return;
    }
    if (slot->n_outputs == 0) return;
    if (job->kind == IS_JOB_SCORE) {
        take_scores(engine, slot);
        return;
    }
    if (job->run->max_tokens == 0) {
        slot->stats.prefill_ms = is_now_ms() - slot->started_ms;
        slot->stats.ttft_ms = is_now_ms() - job->submitted_ms;
        finish_run(engine, slot, "length");
        return;
    }
    take_token(engine, slot);
}

void is_slot_end(is_llama *engine, is_slot *slot, is_status status, const is_error *err)
{
    is_job *job = slot->job;
    slot->stats.total_ms = is_now_ms() - job->submitted_ms;
    if (job->kind == IS_JOB_RUN) {
        job->result->stats = slot->stats;
        if (status == IS_OK) {
            job->result->text = slot->text.all != NULL ? slot->text.all : strdup("");
            slot->text.all = NULL;
        }
    } else if (job->stats != NULL) {
        *job->stats = slot->stats;
    }
    free(slot->text.all);
    slot->text = (is_text){0};
    slot->job = NULL;
    slot->state = IS_SLOT_FREE;
    /* A prefill that was cancelled half-way leaves less than the slot was to hold. */
    if (status != IS_OK || slot->position < slot->n_resident) slot->resident_salt = 0;
    is_job_finish(engine, job, status, err);
}
