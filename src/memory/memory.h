/*
 * The system itself, as its own files see it.
 *
 *   memory.c   opening and closing, statistics, verify
 *   facts.c    adding, listing, forgetting, searching
 *   recipe.c   what stands before a fact when it is encoded
 *   encode.c   pending facts become chunks, in the background or when asked
 *   plan.c     one prompt: header, facts, tail
 *   conversation.c   turns of a conversation, kept as chunks
 *   ask.c      a question, from the search to the last token
 *   import.c   reading conversations from files
 */
#ifndef IS_MEMORY_H
#define IS_MEMORY_H

#include <pthread.h>
#include <stdatomic.h>

#include "../engine/llama/llama_engine.h"
#include "../engine/vllm/vllm_engine.h"
#include "../retrieve/retrieve.h"
#include "../store/store.h"
#include "conversation.h"
#include "recipe.h"

#define IS_MAX_K 200

struct is_memory {
    is_store *store;
    is_engine *engine;     /* NULL: opened without a model */
    is_embedder *embedder; /* NULL: opened without one     */
    is_index *index;
    is_conversations *conversations; /* NULL: their turns are not kept */
    is_log_fn log;
    void *log_user;

    char *system_prompt;
    is_recipe recipe;
    char recipe_name[IS_RECIPE_MAX];
    int32_t *header; /* tokens of the prompt up to the first fact, [n_header] */
    uint32_t n_header;
    is_chunk_key key; /* of the chunks that can be used now */

    pthread_mutex_t scope_lock; /* over checked */
    int64_t *checked;           /* scopes whose facts are known to have embeddings, [n_checked] */
    size_t n_checked;

    pthread_mutex_t encode_lock; /* one encodes at a time */
    pthread_t worker;
    bool worker_started;
    pthread_mutex_t worker_lock;
    pthread_cond_t worker_wake;
    bool work;                /* something was added since the worker last looked */
    atomic_bool closing;      /* read by the store's warm-up, running answers and encode jobs too */
    is_encoded_fn on_encoded; /* under watch_lock, as its user */
    void *on_encoded_user;
    pthread_mutex_t watch_lock;
    uint32_t callers; /* inside a public function; is_close waits for them */
    pthread_cond_t quiet;
};

/* Every public function is between these: IS_ECANCELED, and no leave, when the memory is being closed. */
is_status is_memory_enter(is_memory *memory, is_error *err);
void is_memory_leave(is_memory *memory);
/* The number of a scope that there is; IS_ENOTFOUND otherwise. */
is_status is_memory_scope(is_memory *memory, const is_scope *scope, bool create, int64_t *id, is_error *err);
void is_memory_log(const is_memory *memory, int level, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* ---- facts.c */

/* Embeds what has no embedding yet (the store was opened without a model, or with another one). */
is_status is_embed_missing(is_memory *memory, int64_t scope, is_error *err);
/* The best k facts with their texts, best first; *embed_ms, *rank_ms: what it took. */
is_status is_rank(is_memory *memory, int64_t scope, const char *query, uint32_t k, const is_filter *filter,
                  is_fact_list **out, double *embed_ms, double *rank_ms, is_error *err);

/* ---- plan.c */

/* The line of a fact in a prompt, "- 2023-05-08: text\n"; free(). */
char *is_fact_line(const is_fact *fact);
/* XXH3-128 of a text: what ties a chunk to the line that it was made of. */
void is_text_hash(const char *text, uint8_t out[16]);
/* The tokens of a fact's line, and its hash when text is not NULL.  *tokens: free(). */
is_status is_fact_tokens(is_memory *memory, const is_fact *fact, int32_t **tokens, uint32_t *n, uint8_t text[16],
                         is_error *err);
/* Tokens of the header and, through *key, its hash; called when the engine or the system prompt is new. */
is_status is_plan_header(is_memory *memory, is_error *err);

/* A prompt with all that it holds on to. */
typedef struct is_prompt {
    is_plan plan;
    is_segment *segments; /* [plan.n_segments]: header, facts, tail */
    int32_t **owned;      /* token arrays to free, [n_owned] */
    size_t n_owned;
    is_pin **pins; /* [n_pins]: the header's, then the facts' in order of rank */
    size_t n_pins;
    uint32_t n_facts;        /* that are in the prompt: the best n_facts of the list */
    uint32_t dropped;        /* that did not fit */
    size_t refused;          /* damaged chunks */
    is_conversation history; /* turns before, as chunks at the beginning of the tail */
    char *tool_format;       /* is_prompt_parts.tool_format */
} is_prompt;

/* Of the facts in a prompt; the benchmarks compare the first with the others. */
typedef enum is_order { IS_ORDER_BEST_LAST, IS_ORDER_BEST_FIRST, IS_ORDER_AGE } is_order;

typedef struct is_prompt_options {
    is_mode mode;
    uint32_t fresh;
    is_order order;
    uint32_t reserve; /* tokens of the context that are kept for the answer */
    const is_message *messages;
    size_t n_messages;
    const char *system;      /* the request's own system text; NULL: none */
    const is_tools *tools;   /* NULL: none */
    const uint64_t *history; /* the scope's key, when its conversations may be continued from chunks; else NULL */
} is_prompt_options;

/* Lays the plan for a list of facts, best first. */
is_status is_prompt_build(is_memory *memory, int64_t scope, const is_fact_list *facts, const is_prompt_options *options,
                          is_prompt *prompt, is_error *err);
void is_prompt_free(is_memory *memory, is_prompt *prompt);

/* ---- encode.c */

/* What the engine keeps of the scope's primers goes, since a fact in them may be gone. */
void is_forget_prefixes(is_memory *memory, int64_t scope);

is_status is_worker_start(is_memory *memory, is_error *err);
void is_worker_stop(is_memory *memory);
/* Tells the worker that there may be something to encode. */
void is_worker_notify(is_memory *memory);

#endif
