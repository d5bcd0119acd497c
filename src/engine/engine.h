/*
 * What an inference engine is to the rest of the system.
 *
 * An engine knows tokens, plans and layouts; it knows nothing of users or facts.  It has one owner
 * thread that alone touches the model; every function here may be called from any thread and hands
 * its work to that thread.
 */
#ifndef IS_ENGINE_H
#define IS_ENGINE_H

#include <stdatomic.h>

#include "../kv/compose.h"

typedef struct is_engine is_engine;

/* A run of tokens in a prompt; with a chunk it can be injected, without one it is prefilled. */
typedef struct is_segment {
    const int32_t *tokens;
    uint32_t n_tokens;
    const is_chunk *chunk; /* or NULL; pinned by the caller until the run has ended */
} is_segment;

/*
 * One prompt, front to back.  The engine injects the leading segments that have usable chunks and
 * prefills the rest; inject false: everything is prefilled, chunks are not looked at.
 */
typedef struct is_plan {
    const is_segment *segments;
    size_t n_segments; /* at least 1; the last one, the tail, is always prefilled */
    bool inject;
    uint64_t salt; /* 0: nothing is reused; else a sequence that still holds all segments but the tail from a plan with
                      the same salt is used as it is.  It must tell scopes, and injected from prefilled, apart. */
    unsigned forgets; /* is_engine_ops.forgets, before the chunks were pinned */
    uint64_t scope;   /* whose prompt it is: what an engine keeps of it by itself serves nobody else; 0: nobody's */
} is_plan;

typedef struct is_run_stats {
    uint32_t tokens_injected, tokens_prefilled, tokens_generated;
    uint32_t tokens_resident; /* were in the cache already, see is_plan.salt */
    uint32_t segments_injected;
    uint32_t refused; /* chunks that did not fit: fingerprint, tokens, layout */
    uint64_t inject_bytes;
    double queue_ms, inject_ms, prefill_ms, ttft_ms, total_ms; /* ttft from submission to first token */
} is_run_stats;

typedef struct is_run {
    is_plan plan;
    is_sampling sampling;
    const is_logit_bias *logit_bias;
    size_t n_logit_bias;
    const char *grammar;     /* GBNF; NULL: free */
    const char *json_schema; /* or as a JSON schema; "{}": any JSON object; NULL: free */
    const char *tool_format; /* is_prompt_parts.tool_format, in place of both; the text then comes at the end, in the
                                caller's thread; NULL: none */
    uint32_t max_tokens;
    const char *const *stop;
    size_t n_stop;
    bool keep;                /* what the run leaves in the cache is wanted as chunks */
    uint32_t keep_from;       /* from this token of the plan on */
    uint32_t n_logprobs;      /* 0..IS_MAX_LOGPROBS */
    is_logprob_fn on_logprob; /* on the owner thread, before the token's text goes out; may be NULL */
    is_token_fn on_token;     /* on the owner thread; whole UTF-8 characters; may be NULL */
    is_token_fn on_reasoning; /* the same for what the model thinks before it answers, where the engine tells them
                                 apart; may be NULL */
    void *user;
    is_canceled_fn canceled; /* on the owner thread, between steps; may be NULL */
} is_run;

/* A sealed chunk, free(); NULL: none. */
typedef struct is_kept {
    void *bytes;
    size_t size;
} is_kept;

typedef struct is_run_result {
    char *text;         /* free() */
    char *reasoning;    /* free(); NULL: none */
    char *tool_calls;   /* JSON array, free(); NULL: none */
    const char *finish; /* "stop", "length", "canceled", "tool_calls" */
    is_kept kept[2];    /* the prompt from is_run.keep_from on, and the answer; where they could be read */
    is_run_stats stats;
} is_run_result;

/*
 * The logits behind each of the last n_last tokens of the plan: logits [n_last][n_vocab], the caller's.  For tests and
 * `bench fidelity`; the same path as a run.  The n_last tokens must stand in segments without a chunk.
 */
typedef struct is_score {
    is_plan plan;
    uint32_t n_last;
    float *logits;
} is_score;

/* One encode job: targets are encoded each behind the same prefix; they do not see one another. */
typedef struct is_encode_target {
    const int32_t *tokens;
    uint32_t n_tokens;
    uint8_t text[16]; /* is_chunk_info.text */
    int64_t key;      /* where the engine is remote: is_store_new_key */
    void *bytes;      /* out: a sealed chunk in aligned memory, free(); NULL on failure */
    size_t size;
} is_encode_target;

typedef struct is_encode_job {
    const int32_t *prefix; /* may be empty; p_ref of the chunks is n_prefix */
    uint32_t n_prefix;
    uint32_t n_shared;         /* of them are also in front of other jobs' targets, and worth being kept computed */
    const char *recipe;        /* written into the chunks */
    uint64_t scope;            /* as is_plan.scope */
    const atomic_bool *cancel; /* may be NULL; looked at between steps: IS_ECANCELED */
    is_encode_target *targets;
    size_t n_targets;
} is_encode_job;

typedef struct is_prompt_parts {
    int32_t *header; /* tokens up to the first fact, BOS included where the model wants it */
    size_t n_header;
    int32_t *tail; /* tokens behind the last fact, to the assistant's opening */
    size_t n_tail;
    char *tool_format; /* how calls are written and read, for is_run; the engine's own form, free(); NULL: no tools */
} is_prompt_parts;

/* Functions that an answer may call. */
typedef struct is_tools {
    const char *functions;   /* JSON array as in OpenAI's API */
    const char *choice;      /* "auto" (or NULL), "none", "required", or a function's name */
    const char *json_schema; /* what an answer without calls must be; NULL: free */
    bool one_call;
} is_tools;

#define IS_MAX_LOGPROBS 20

/* What the engine's implementation provides; is_engine's first member points to one of these. */
typedef struct is_engine_ops {
    bool remote; /* its workers keep the rows of chunks: encode() hands out stubs, see is_chunk_stub */
    void (*close)(is_engine *engine);
    bool (*injects)(is_engine *engine);            /* false: `why_not` says why */
    const is_layout *(*layout)(is_engine *engine); /* NULL: it is remote, or does not inject */
    const char *(*why_not)(is_engine *engine);     /* "" when injection works */
    void (*fingerprint)(is_engine *engine, uint8_t out[16]);
    uint32_t (*context)(is_engine *engine); /* tokens of one sequence */
    uint32_t (*vocab)(is_engine *engine);
    /* The tokens that may end an answer, and for a remote one all that are no text.  *tokens [n]: free(). */
    is_status (*end_tokens)(is_engine *engine, int32_t **tokens, size_t *n, is_error *err);
    /* *tokens: free().  special: control tokens in the text are recognised; never for users' text. */
    is_status (*tokenize)(is_engine *engine, const char *text, bool special, int32_t **tokens, size_t *n,
                          is_error *err);
    /* The same for a bare prompt, whole: control tokens are recognised, and where the model wants a begin mark and the
     * text has none, one is put in front.  An empty text stays empty. */
    is_status (*tokenize_prompt)(is_engine *engine, const char *text, int32_t **tokens, size_t *n, is_error *err);
    /* The chat template around a system message whose text is system_head, then the facts, then system_tail.
     * system_head NULL: the header is known, only the tail is made.  Roles are user, assistant, system, developer
     * (as system) and, with tools, tool.  tools may be NULL; with them the template may write another header.
     * IS_EUNSUPPORTED: the template knows no tools. */
    is_status (*render)(is_engine *engine, const char *system_head, const char *system_tail, const is_message *messages,
                        size_t n_messages, const is_tools *tools, is_prompt_parts *out, is_error *err);
    is_status (*run)(is_engine *engine, const is_run *run, is_run_result *out, is_error *err);  /* blocks */
    is_status (*score)(is_engine *engine, is_score *score, is_run_stats *stats, is_error *err); /* blocks */
    is_status (*encode)(is_engine *engine, is_encode_job *job, is_error *err); /* blocks; lower priority */
    /* Something of this scope was forgotten: what the engine keeps of its encode jobs goes.  May be NULL. */
    void (*forget)(is_engine *engine, uint64_t scope);
    /* How often that was; what an engine keeps of chunks that were pinned before does not outlast it.  May be NULL. */
    unsigned (*forgets)(is_engine *engine);
    is_status (*describe)(is_engine *engine, char **json, is_error *err); /* *json: free() */
} is_engine_ops;

struct is_engine {
    const is_engine_ops *ops;
};

static inline void is_engine_close(is_engine *engine)
{
    if (engine != NULL) engine->ops->close(engine);
}

#endif
