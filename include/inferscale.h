/*
 * InferScale: memory for language models, kept as KV state.
 *
 * A fact about a user is encoded once: the model reads it and the K and V rows
 * that it leaves in the KV cache are stored as a chunk.  When a question comes,
 * the facts that it needs are found, their chunks are moved to their places in
 * the prompt by one rotation each and written into the engine's cache, and only
 * the question itself is prefilled.
 *
 * Conventions of this header
 *  - A function that can fail returns is_status; IS_OK is 0.  Its last parameter
 *    is an is_error, which may be NULL, and which then says what was wrong, with
 *    what, and how to mend it.  Nothing in the library prints or exits.
 *  - Strings are UTF-8, and copied where they are kept.
 *  - What a function hands out through a pointer to a pointer belongs to the
 *    caller, who frees it with the function named there.  Freeing NULL is fine.
 *  - Times of day are Unix seconds, durations are milliseconds, sizes are bytes.
 *  - An is_memory may be used from several threads at once.
 */
#ifndef INFERSCALE_H
#define INFERSCALE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define IS_VERSION "0.1.0"

/* ------------------------------------------------------------------ errors */

typedef enum is_status {
    IS_OK = 0,
    IS_EINVAL,       /* an argument or an input file is not what it must be   */
    IS_ENOMEM,       /* the system has no more memory                         */
    IS_EIO,          /* a file or the database could not be read or written   */
    IS_ECORRUPT,     /* stored bytes are not what was written                 */
    IS_ENOTFOUND,    /* no such fact, scope or file                           */
    IS_EUNSUPPORTED, /* this model or setting cannot do what was asked        */
    IS_ELIMIT,       /* does not fit: context, budget, size of an input       */
    IS_ECANCELED,    /* the caller cancelled, or the memory is being closed   */
    IS_EENGINE,      /* the inference engine refused or failed                */
    IS_EUNAVAILABLE  /* the inference engine cannot be reached now; ask again */
} is_status;

typedef struct is_error {
    is_status status;
    char text[1024];
} is_error;

/* The status's name, such as "IS_EIO"; never NULL. */
const char *is_status_name(is_status status);

/* ------------------------------------------------------------ scope, facts */

/* Whose facts.  NULL counts as "".  At least one field must not be empty. */
typedef struct is_scope {
    const char *tenant;
    const char *user;
    const char *agent;
    const char *run;
} is_scope;

#define IS_TIME_NONE INT64_MIN /* a fact or turn whose time is not known */

typedef enum is_fact_state {
    IS_FACT_PENDING = 0, /* kept and searchable; its chunk is still to be made */
    IS_FACT_READY = 1    /* its chunk can be injected                          */
} is_fact_state;

typedef struct is_fact {
    int64_t id;           /* set by the library; never used twice            */
    const char *text;     /* one statement, one line; the truth              */
    const char *source;   /* id of the turn it came from, or NULL            */
    int64_t time;         /* when it was said, or IS_TIME_NONE               */
    const char *metadata; /* a JSON object as text, or NULL                  */
    int64_t created;      /* set by the library                              */
    is_fact_state state;  /* set by the library                              */
} is_fact;

/* One turn of a conversation: context for encoding (`window:w`), never ranked. */
typedef struct is_turn {
    const char *id;      /* unique within the scope, such as "D1:3"         */
    const char *session; /* turns of one session stand in order of adding   */
    const char *speaker;
    const char *text;
    int64_t time; /* or IS_TIME_NONE */
} is_turn;

typedef struct is_fact_list {
    size_t n;
    is_fact *facts;
    double *scores; /* [n], for a search's result; else NULL */
} is_fact_list;

void is_fact_list_free(is_fact_list *list);

/* ------------------------------------------------------------------ opening */

typedef struct is_memory is_memory;

typedef void (*is_log_fn)(void *user, int level, const char *line); /* 0 error, 1 warning, 2 info */

typedef struct is_options {
    const char *store;            /* folder; made when it is not there            */
    const char *model;            /* GGUF of the chat model; NULL: no engine, so  */
                                  /* nothing is encoded and ask is refused        */
    const char *upstreams;        /* in place of model: vLLM servers with the connector,  */
                                  /* http://HOST:PORT with commas between them; NULL: none */
    const char *upstream_model;   /* a name among those they serve; NULL: the first       */
    const char *upstream_key;     /* what they want as API key; NULL: none        */
    const char *embedding_model;  /* GGUF of the embedding model; NULL: BM25 only */
    const char *recipe;           /* NULL: the store's own, "primed:32" when new  */
    const char *system_prompt;    /* NULL: the default; part of the header        */
    uint64_t host_budget;         /* bytes for chunks in host memory              */
    uint64_t device_chunks;       /* bytes for chunks in the first GPU's memory, where the model is; 0: it is not */
                                  /* on a GPU, or chunks stay on the host                                  */
    uint64_t device_vectors;      /* bytes for embeddings in the first GPU's memory; 0: the host scans them. */
                                  /* IS_EUNSUPPORTED: no GPU, or built without CUDA                         */
    uint64_t conversation_budget; /* bytes for turns of conversations; 0: they are prefilled each time */
    uint32_t context;             /* tokens per sequence; 0: the model's, <= 8192 */
    uint32_t slots;               /* requests answered at the same time           */
    uint32_t threads;             /* 0: one for each core (with upstreams   */
                                  /* these three are theirs)                      */
    bool background;              /* read chunks into memory when opened, and     */
                                  /* encode new facts by itself                   */
    is_log_fn log;                /* NULL: silent                                 */
    void *log_user;
} is_options;

is_options is_options_default(void);

/* Opens a store, loads the models, proves the layout.  IS_EUNAVAILABLE: no upstream answers yet.  *out: is_close. */
is_status is_open(const is_options *options, is_memory **out, is_error *err);
/* Ends running calls of other threads with IS_ECANCELED and waits for them; they must have begun before. */
void is_close(is_memory *memory);

/* ------------------------------------------------------------ adding, reading */

/* Called during long work; returning false cancels it.  On the caller's thread. */
typedef bool (*is_progress_fn)(void *user, uint64_t done, uint64_t total);

/*
 * Adds n facts in one transaction: all or none; when it returns IS_OK they are on disk.
 * ids: [n], may be NULL.  Text: 1 to 4096 bytes of UTF-8; line breaks become blanks.
 */
is_status is_add_facts(is_memory *memory, const is_scope *scope, const is_fact *facts, size_t n, int64_t *ids,
                       is_error *err);
/* Adds turns, in order.  A turn whose id is there already is left as it is. */
is_status is_add_turns(is_memory *memory, const is_scope *scope, const is_turn *turns, size_t n, is_error *err);
/* Encodes what is pending (scope NULL: everywhere) and returns when it is done. */
is_status is_encode_pending(is_memory *memory, const is_scope *scope, is_progress_fn progress, void *user,
                            is_error *err);

/* After each job of encoding, from the thread that had it done: how many facts, and how long it took. */
typedef void (*is_encoded_fn)(void *user, uint32_t facts, double ms);
/* fn NULL: nobody.  When it returns, the one before is not called any more. */
void is_set_on_encoded(is_memory *memory, is_encoded_fn fn, void *user);

/* Facts of a scope by rising id, at most `limit`, with ids > after.  Free with is_fact_list_free. */
is_status is_list(is_memory *memory, const is_scope *scope, int64_t after, size_t limit, is_fact_list **out,
                  is_error *err);
/*
 * Forgets facts: text, embedding, index, chunks, and chunks made behind them.  n 0: the whole scope, its turns too;
 * otherwise turns stay, and so do chunks that were made behind the turn a fact came from.
 */
is_status is_forget(is_memory *memory, const is_scope *scope, const int64_t *ids, size_t n, size_t *forgotten,
                    is_error *err);

typedef struct is_filter {
    int64_t time_from;    /* inclusive; IS_TIME_NONE: open            */
    int64_t time_to;      /* exclusive; IS_TIME_NONE: open            */
    const char *metadata; /* JSON object; each member must be equal   */
} is_filter;

/* The k facts that fit the query best, best first (k 1..200).  filter may be NULL. */
is_status is_search(is_memory *memory, const is_scope *scope, const char *query, uint32_t k, const is_filter *filter,
                    is_fact_list **out, is_error *err);

/* ------------------------------------------------- changing, history, scopes */

/* These facts [n], in this order; an id that is not there is left out.  Free with is_fact_list_free. */
is_status is_get(is_memory *memory, const is_scope *scope, const int64_t *ids, size_t n, is_fact_list **out,
                 is_error *err);

/*
 * Changes a fact, which keeps its id; when it returns IS_OK the change is on disk.  What is NULL in `change`, or
 * IS_TIME_NONE, stays as it is; the rest is checked as in is_add_facts.  From then on the fact is found by its new text
 * alone.  Another text or time puts its chunk, and the chunks that were made behind it, out of use, and they are made
 * anew; another source does so with its own chunk.  What the fact said before stays in its history and goes with it
 * when it is forgotten.  IS_ENOTFOUND: not in this scope.
 */
is_status is_change_fact(is_memory *memory, const is_scope *scope, int64_t id, const is_fact *change, is_error *err);

/* What a fact said from some time on. */
typedef struct is_edition {
    int64_t id; /* 1 for the fact as it was added, then 2, 3 ... */
    const char *text;
    const char *source;   /* or NULL */
    int64_t time;         /* or IS_TIME_NONE */
    const char *metadata; /* or NULL */
    int64_t changed;      /* since when it says this; of the first: when it was added */
} is_edition;

typedef struct is_edition_list {
    size_t n;
    is_edition *editions;
} is_edition_list;

void is_edition_list_free(is_edition_list *list);

/* All that a fact ever said, oldest first; the last is what it says now.  IS_ENOTFOUND: not in this scope.  Free with
 * is_edition_list_free. */
is_status is_history(is_memory *memory, const is_scope *scope, int64_t id, is_edition_list **out, is_error *err);

/* A scope that holds something; none of its names is NULL. */
typedef struct is_scope_info {
    int64_t number; /* in order of first use; never used twice */
    char *tenant, *user, *agent, *run;
    uint64_t facts, turns;
} is_scope_info;

void is_scope_info_free(is_scope_info *scopes, size_t n);

/* Scopes that hold a fact or a turn, of one tenant ("": of none; NULL: of all), by rising number: at most `limit`, with
 * numbers > after.  *out: [*n], is_scope_info_free. */
is_status is_list_scopes(is_memory *memory, const char *tenant, int64_t after, size_t limit, is_scope_info **out,
                         size_t *n, is_error *err);
/*
 * The scope that holds this fact, if it is of this tenant (NULL or "": of none).  IS_ENOTFOUND otherwise: a fact of
 * another tenant is as little there as one that never was.  *out: is_scope_info_free with n 1.
 */
is_status is_scope_of(is_memory *memory, const char *tenant, int64_t id, is_scope_info **out, is_error *err);

/* ------------------------------------------------------------------- asking */

typedef enum is_mode {
    IS_MODE_INJECT = 0, /* chunks are written into the cache      */
    IS_MODE_PREFILL,    /* the same tokens, prefilled as text     */
    IS_MODE_OFF         /* no memory in the prompt                */
} is_mode;

typedef struct is_message {
    const char *role;         /* "user" or "assistant"; with tools also "tool", a tool's answer    */
    const char *content;      /* NULL: none, for an assistant's message with tool_calls            */
    const char *tool_calls;   /* an assistant's calls, is_answer.tool_calls; NULL: none            */
    const char *tool_call_id; /* of a tool's answer: the id of the call that it answers; NULL: none */
} is_message;

typedef struct is_sampling {
    float temperature; /* 0: greedy */
    float top_p;
    float min_p;
    int32_t top_k;
    float repeat_penalty;
    float presence_penalty;
    float frequency_penalty;
    uint32_t seed;
} is_sampling;

/* Added to a token's logit in front of all else; -INFINITY bans it. */
typedef struct is_logit_bias {
    int32_t token;
    float bias;
} is_logit_bias;

typedef struct is_token_logprob {
    int32_t id;        /* -1: not told, as by upstreams */
    float logprob;     /* natural, of the model's own softmax before bias, grammar and sampling; at least -9999 */
    const char *piece; /* the token's bytes, [n_piece]; maybe only a part of a character */
    size_t n_piece;
} is_token_logprob;

/* A piece of the answer, whole UTF-8 characters; returning false cancels. */
typedef bool (*is_token_fn)(void *user, const char *piece, size_t n_bytes);
/* Asked between the engine's steps, before the first token too; true cancels.  It must be quick: all requests wait. */
typedef bool (*is_canceled_fn)(void *user);
/*
 * One generated token, before its text goes out: tokens[0] is the sampled one, behind it the best ones in falling
 * order (the sampled one again, if it is among them).  Valid during the call only.
 */
typedef void (*is_logprob_fn)(void *user, const is_token_logprob *tokens, size_t n);

typedef struct is_ask_options {
    uint32_t k; /* facts, 0..200 */
    is_mode mode;
    uint32_t fresh; /* the best m facts are prefilled behind the injected rest */
    const is_filter *filter;
    const char *system;        /* stands behind the facts; with IS_MODE_OFF in place of the system prompt; NULL: none */
    const is_message *history; /* earlier turns of this conversation, oldest first */
    size_t n_history;
    bool recompute_history;   /* earlier turns are prefilled, though they may be there as chunks */
    bool question_in_history; /* the history is the whole conversation; the question only finds the facts */
    is_sampling sampling;
    const is_logit_bias *logit_bias;
    size_t n_logit_bias;
    const char *grammar;     /* what the answer must be, in llama.cpp's GBNF; NULL: free */
    const char *json_schema; /* or as a JSON schema; "{}": any JSON object; NULL: free   */
    uint32_t max_tokens;
    const char *const *stop; /* strings that end the answer */
    size_t n_stop;
    /*
     * Functions that the model may call, a JSON array as in OpenAI's API; NULL: none.  The answer's text then comes in
     * one piece at the end, in the thread that asked.  IS_EUNSUPPORTED when the model's chat template knows no tools.
     */
    const char *tools;
    const char *tool_choice;  /* "auto" (or NULL), "none", "required", or the name of the function to call */
    bool one_tool_call;       /* at most one call in an answer */
    uint32_t n_logprobs;      /* for on_logprob: how many of the best tokens, 0..20 */
    is_logprob_fn on_logprob; /* on the engine's thread, like the others; may be NULL */
    is_token_fn on_token;     /* may be NULL */
    is_token_fn on_reasoning; /* what the model thinks before it answers, where upstreams tell it apart; may be NULL */
    is_canceled_fn canceled;  /* may be NULL */
    void *user;
} is_ask_options;

is_ask_options is_ask_options_default(void);

typedef struct is_timing {
    double embed_ms;   /* the question's embedding                        */
    double rank_ms;    /* scan, BM25, fusion                              */
    double fetch_ms;   /* chunks found, read, pinned                      */
    double inject_ms;  /* rotated, copied, written into the engine's cache */
    double prefill_ms; /* what was not injected                           */
    double queue_ms;   /* waiting for a slot                              */
    double ttft_ms;    /* plan to first token: fetch, inject, prefill, queue */
    double total_ms;   /* question to end of answer                       */
} is_timing;

typedef struct is_answer {
    char *text;
    char *reasoning;         /* what was thought before, where upstreams tell it apart; NULL: nothing */
    char *tool_calls;        /* JSON array of {"id", "type", "function": {"name", "arguments"}}; NULL: none */
    const char *finish;      /* "stop", "length", "canceled" or "tool_calls"  */
    is_fact_list *facts;     /* in the prompt, best first, with scores        */
    uint32_t facts_dropped;  /* did not fit into the context                  */
    uint32_t facts_injected; /* from chunks                                   */
    uint32_t tokens_injected;
    uint32_t tokens_history; /* of them: from earlier turns of the conversation */
    uint32_t tokens_cached;  /* were in an upstream's own prefix cache; with injection they count as injected */
    uint32_t tokens_prefilled;
    uint32_t tokens_generated;
    uint64_t inject_bytes;
    uint32_t refused;         /* chunks that were not used: wrong checksum, fingerprint, tokens */
    uint32_t refused_damaged; /* of them: did not pass their checks */
    is_timing timing;
} is_answer;

/* Answers a question with the scope's facts.  *out: is_answer_free. */
is_status is_ask(is_memory *memory, const is_scope *scope, const char *question, const is_ask_options *options,
                 is_answer **out, is_error *err);
void is_answer_free(is_answer *answer);

/*
 * Continues a bare prompt, without chat template or memory: of the options those for sampling, ends and callbacks
 * count.  The prompt is a text (control tokens in it are recognised, and the model's begin mark is put in front where
 * the model wants one and the text has none) or, when prompt is NULL, the model's token ids, as they are.
 * *out: is_answer_free; it has no facts.
 */
is_status is_complete(is_memory *memory, const char *prompt, const int32_t *tokens, size_t n_tokens,
                      const is_ask_options *options, is_answer **out, is_error *err);

/* Unit vectors of n texts, [n][*dim], by the embedding model; *tokens: how many it read.  *out: free(). */
is_status is_embed_texts(is_memory *memory, const char *const *texts, size_t n, float **out, uint32_t *dim,
                         uint64_t *tokens, is_error *err);

/* ------------------------------------------------------------------- looking */

typedef struct is_stats {
    uint64_t scopes, facts, facts_ready, facts_pending, turns;
    uint64_t chunks, chunk_bytes;                  /* on disk, in use            */
    uint64_t host_bytes, host_budget, host_chunks; /* in host memory          */
    uint64_t host_hits, host_misses;
    uint64_t database_bytes, vector_bytes;
} is_stats;

is_status is_get_stats(is_memory *memory, is_stats *out, is_error *err);

typedef struct is_verify_report {
    uint64_t chunks_checked, chunks_bad, files_orphaned, files_missing;
    uint64_t database_bad; /* lines of SQLite's integrity check that are not "ok" */
} is_verify_report;

/*
 * Reads every chunk and checks it, looks for files without an entry and entries without a file, and
 * runs the database's own check.  repair: bad and missing chunks are dropped (they are encoded again
 * from the facts' texts), orphans are deleted.  on_problem: one line each; may be NULL.
 */
is_status is_verify(is_memory *memory, bool repair, void (*on_problem)(void *user, const char *line), void *user,
                    is_verify_report *out, is_error *err);

/* What the engine is and what the probe at start measured, as a JSON text.  *out: free(). */
is_status is_describe(is_memory *memory, char **out, is_error *err);

#ifdef __cplusplus
}
#endif
#endif
