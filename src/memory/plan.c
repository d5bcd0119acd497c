/*
 * Plans: one prompt as header, facts and tail.  Of a conversation that goes on the tail begins with chunks too.
 *
 * Facts stand in reverse rank, the best nearest the question.  Those with a chunk come first, so that what can
 * be injected is one run at the front; those without (not encoded yet, or wanted fresh) stand behind them in
 * the same order.  What does not fit into the context is dropped from the worst end.  The token sequence is the
 * same in inject and in prefill mode.
 */
#include "memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "../common/time.h"

/* Counts the forms that is_fact_line has had: chunks of lines in another form are not used any more. */
#define FACT_LINE_FORM 1

/* Stands between the system prompt and the first fact. */
#define FACTS_INTRO "\n\nYou remember these facts about the user. The last ones fit the question best.\n"

char *is_fact_line(const is_fact *fact)
{
    char date[16];
    size_t size = strlen(fact->text) + 32;
    char *line = malloc(size);
    if (line == NULL) return NULL;
    if (is_time_format_date(fact->time, date))
        (void)snprintf(line, size, "- %s: %s\n", date, fact->text);
    else
        (void)snprintf(line, size, "- %s\n", fact->text);
    return line;
}

void is_text_hash(const char *text, uint8_t out[16])
{
    XXH128_canonical_t hash;
    XXH128_canonicalFromHash(&hash, XXH3_128bits(text, strlen(text)));
    memcpy(out, hash.digest, 16);
}

is_status is_fact_tokens(is_memory *memory, const is_fact *fact, int32_t **tokens, uint32_t *n, uint8_t text[16],
                         is_error *err)
{
    char *line = is_fact_line(fact);
    size_t count;
    if (line == NULL) return is_fail(err, IS_ENOMEM, "no memory for a fact's line");
    if (text != NULL) is_text_hash(line, text);
    is_status status = memory->engine->ops->tokenize(memory->engine, line, false, tokens, &count, err);
    free(line);
    if (status == IS_OK) *n = (uint32_t)count;
    return status;
}

/* The texts of the system message: the memory's prompt in front of the facts, the request's own behind them. */
static is_status render_all(is_memory *memory, bool with_facts, const is_prompt_options *o, is_prompt_parts *parts,
                            is_error *err)
{
    const char *prompt = !with_facts && o->system != NULL ? o->system : memory->system_prompt;
    const char *behind = with_facts && o->system != NULL ? o->system : "";
    size_t size = strlen(prompt) + sizeof FACTS_INTRO;
    size_t tail_size = strlen(behind) + sizeof "\n\n";
    char *head = malloc(size);
    char *tail = malloc(tail_size);
    is_status status =
        head == NULL || tail == NULL ? is_fail(err, IS_ENOMEM, "no memory for the system prompt") : IS_OK;
    if (status == IS_OK) {
        (void)snprintf(head, size, "%s%s", prompt, with_facts ? FACTS_INTRO : "");
        (void)snprintf(tail, tail_size, "%s%s", behind[0] != '\0' ? "\n\n" : "", behind);
        /* With memories and no tools the header is always the same one and is not made again. */
        bool known = with_facts && o->tools == NULL && memory->header != NULL;
        status = memory->engine->ops->render(memory->engine, known ? NULL : head, tail, o->messages, o->n_messages,
                                             o->tools, parts, err);
    }
    free(head);
    free(tail);
    return status;
}

/* parts->header NULL: it is the memory's, for which there is a chunk.  Tools may stand in front of the facts. */
static is_status render(is_memory *memory, bool memories, const is_prompt_options *o, is_prompt_parts *parts,
                        is_error *err)
{
    is_status status = render_all(memory, memories, o, parts, err);
    if (status != IS_OK || !memories || parts->header == NULL) return status;
    if (parts->n_header == memory->n_header &&
        memcmp(parts->header, memory->header, parts->n_header * sizeof *parts->header) == 0) {
        free(parts->header);
        parts->header = NULL;
        parts->n_header = 0;
    }
    return IS_OK;
}

is_status is_plan_header(is_memory *memory, is_error *err)
{
    /* The header must not depend on the messages; any will do. */
    const is_message message = {"user", "?"};
    const is_prompt_options options = {.messages = &message, .n_messages = 1};
    is_prompt_parts parts;
    free(memory->header);
    memory->header = NULL;
    is_status status = render_all(memory, true, &options, &parts, err);
    if (status != IS_OK) return status;
    free(parts.tail);
    memory->header = parts.header;
    memory->n_header = (uint32_t)parts.n_header;
    memory->engine->ops->fingerprint(memory->engine, memory->key.fingerprint);
    XXH128_canonical_t hash;
    XXH128_canonicalFromHash(
        &hash, XXH3_128bits_withSeed(parts.header, parts.n_header * sizeof *parts.header, FACT_LINE_FORM));
    memcpy(memory->key.header, hash.digest, sizeof memory->key.header);
    return IS_OK;
}

static is_status pin_chunks(is_memory *memory, int64_t scope, const is_fact_list *facts, is_prompt *p, is_error *err)
{
    p->n_pins = facts->n + 1;
    p->pins = calloc(p->n_pins, sizeof(is_pin *));
    int64_t *ids = calloc(p->n_pins, sizeof *ids);
    is_status status = IS_OK;
    if (p->pins == NULL || ids == NULL) status = is_fail(err, IS_ENOMEM, "no memory for %zu chunks", facts->n);
    for (size_t i = 0; status == IS_OK && i < facts->n; i++) ids[i + 1] = facts->facts[i].id;
    const int64_t header = 0;
    if (status == IS_OK) status = is_store_pin(memory->store, 0, &header, 1, &memory->key, p->pins, &p->refused, err);
    size_t refused = 0;
    if (status == IS_OK && facts->n > 0)
        status = is_store_pin(memory->store, scope, ids + 1, facts->n, &memory->key, p->pins + 1, &refused, err);
    p->refused += refused;
    free(ids);
    return status;
}

/* Keeps a token array for is_prompt_free; takes it over in any case. */
static is_status own(is_prompt *p, int32_t *tokens, is_error *err)
{
    int32_t **grown = realloc(p->owned, (p->n_owned + 1) * sizeof *grown);
    if (grown == NULL) {
        free(tokens);
        return is_fail(err, IS_ENOMEM, "no memory for the prompt");
    }
    p->owned = grown;
    p->owned[p->n_owned++] = tokens;
    return IS_OK;
}

/*
 * The segment of one fact.  A chunk names its tokens and the hash of the text that they are of, so with a chunk of
 * this very line nothing is tokenized; with one of another text it is not used.
 */
static is_status fact_segment(is_memory *memory, const is_fact *fact, const is_chunk *chunk, is_segment *out,
                              is_prompt *p, is_error *err)
{
    uint8_t hash[16];
    int32_t *tokens = NULL;
    size_t n = 0;
    char *line = is_fact_line(fact);
    if (line == NULL) return is_fail(err, IS_ENOMEM, "no memory for a fact's line");
    is_text_hash(line, hash);
    if (chunk != NULL && memcmp(chunk->info.text, hash, sizeof hash) == 0) {
        free(line);
        *out = (is_segment){chunk->tokens, chunk->info.n_tokens, chunk};
        return IS_OK;
    }
    if (chunk != NULL) p->refused++;
    is_status status = memory->engine->ops->tokenize(memory->engine, line, false, &tokens, &n, err);
    free(line);
    if (status == IS_OK) status = own(p, tokens, err);
    *out = (is_segment){tokens, (uint32_t)n, NULL};
    return status;
}

/* A fact's segment, and what its place in the prompt depends on. */
typedef struct line {
    is_segment segment;
    int64_t fact;
    uint32_t rank; /* from 0, the best */
} line;

/* The facts' lines, from the best on until the context is full. */
static is_status lay_facts(is_memory *memory, const is_fact_list *facts, uint32_t room, line *lines, is_prompt *p,
                           is_error *err)
{
    uint32_t used = 0;
    for (uint32_t i = 0; i < facts->n; i++) {
        const is_chunk *chunk = p->pins == NULL || p->pins[i + 1] == NULL ? NULL : is_pin_chunk(p->pins[i + 1]);
        lines[i] = (line){.fact = facts->facts[i].id, .rank = i};
        is_status status = fact_segment(memory, &facts->facts[i], chunk, &lines[i].segment, p, err);
        if (status != IS_OK) return status;
        if (lines[i].segment.n_tokens > room - used) {
            p->dropped = (uint32_t)(facts->n - i);
            return IS_OK;
        }
        used += lines[i].segment.n_tokens;
        p->n_facts++;
    }
    return IS_OK;
}

static int by_age(const void *a, const void *b)
{
    const line *x = a, *y = b;
    return (x->fact > y->fact) - (x->fact < y->fact);
}

static int best_first(const void *a, const void *b)
{
    const line *x = a, *y = b;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

static int best_last(const void *a, const void *b)
{
    return best_first(b, a);
}

/* Header, chunks in order, the rest in order, tail. */
static void order_segments(is_memory *memory, line *lines, const is_prompt_options *options,
                           const is_prompt_parts *parts, is_prompt *p)
{
    static int (*const orders[])(const void *, const void *) = {best_last, best_first, by_age};
    is_segment *at = p->segments;
    const is_chunk *header = p->pins == NULL || p->pins[0] == NULL ? NULL : is_pin_chunk(p->pins[0]);
    *at++ = parts->header == NULL ? (is_segment){memory->header, memory->n_header, header}
                                  : (is_segment){parts->header, (uint32_t)parts->n_header, NULL};
    qsort(lines, p->n_facts, sizeof *lines, orders[options->order]);
    for (uint32_t i = 0; i < p->n_facts; i++) {
        if (lines[i].rank < options->fresh) lines[i].segment.chunk = NULL;
        if (lines[i].segment.chunk != NULL) *at++ = lines[i].segment;
    }
    for (uint32_t i = 0; i < p->n_facts; i++)
        if (lines[i].segment.chunk == NULL) *at++ = lines[i].segment;
    for (size_t i = 0; i < p->history.n; i++) *at++ = p->history.segments[i];
    *at++ = (is_segment){parts->tail + p->history.n_tokens, (uint32_t)parts->n_tail - p->history.n_tokens, NULL};
    p->plan.segments = p->segments;
    p->plan.n_segments = (size_t)(at - p->segments);
}

is_status is_prompt_build(is_memory *memory, int64_t scope, const is_fact_list *facts, const is_prompt_options *options,
                          is_prompt *prompt, is_error *err)
{
    static const is_fact_list none;
    is_prompt_parts parts = {0};
    bool memories = options->mode != IS_MODE_OFF;
    if (!memories) facts = &none;
    memset(prompt, 0, sizeof *prompt);
    line *lines = calloc(facts->n + 1, sizeof *lines);
    is_status status = lines == NULL ? is_fail(err, IS_ENOMEM, "no memory for the prompt") : IS_OK;
    if (status == IS_OK) status = render(memory, memories, options, &parts, err);
    prompt->tool_format = parts.tool_format;
    if (status == IS_OK) status = own(prompt, parts.header, err);
    if (status == IS_OK) status = own(prompt, parts.tail, err);
    bool chunks = memories && memory->engine->ops->injects(memory->engine);
    prompt->plan.scope = (uint64_t)scope;
    if (chunks && memory->engine->ops->forgets != NULL)
        prompt->plan.forgets = memory->engine->ops->forgets(memory->engine);
    if (status == IS_OK && chunks) status = pin_chunks(memory, scope, facts, prompt, err);
    if (status == IS_OK) {
        uint32_t context = memory->engine->ops->context(memory->engine);
        uint64_t header = parts.header == NULL ? memory->n_header : parts.n_header;
        uint64_t fixed = header + parts.n_tail + options->reserve;
        uint32_t room = fixed < context ? context - (uint32_t)fixed : 0;
        status = lay_facts(memory, facts, room, lines, prompt, err);
    }
    if (status == IS_OK && chunks && options->history != NULL)
        status = is_conversation_find(memory->conversations, *options->history, parts.tail, parts.n_tail,
                                      &prompt->history, err);
    if (status == IS_OK) {
        prompt->segments = calloc(facts->n + prompt->history.n + 2, sizeof *prompt->segments);
        if (prompt->segments == NULL) status = is_fail(err, IS_ENOMEM, "no memory for the prompt");
    }
    if (status == IS_OK) order_segments(memory, lines, options, &parts, prompt);
    prompt->plan.inject = options->mode == IS_MODE_INJECT;
    free(lines);
    if (status != IS_OK) is_prompt_free(memory, prompt);
    return status;
}

void is_prompt_free(is_memory *memory, is_prompt *prompt)
{
    if (prompt->pins != NULL) is_store_unpin(memory->store, prompt->pins, prompt->n_pins);
    free(prompt->pins);
    is_conversation_release(memory->conversations, &prompt->history);
    for (size_t i = 0; i < prompt->n_owned; i++) free(prompt->owned[i]);
    free(prompt->owned);
    free(prompt->segments);
    free(prompt->tool_format);
    memset(prompt, 0, sizeof *prompt);
}
