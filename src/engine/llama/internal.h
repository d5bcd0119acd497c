/*
 * What the files of the llama.cpp engine share.
 *
 *   model.c      loading, metadata, the file's hash
 *   ropes.c      rotations that the model file may mean
 *   probe.c      which of them the engine really applies, and whether injection is exact
 *   state.c      the sequence-state blob
 *   inject.c     chunks into a sequence
 *   direct.c     the cache's tensors, written in place
 *   encode.c     targets behind a prefix, into chunks
 *   keep.c       what a run leaves in its sequence, into chunks
 *   slot.c       one request: tokens, streaming
 *   sample.c     one request: what may come next, and which of it
 *   text.c       tokens to whole characters, stop strings
 *   prompt.c     chat template and tokenizer
 *   check.c      grammars and other texts from outside
 *   tools.c      functions that an answer may call, and its calls
 *   chat_shim.h  what is used of llama.cpp's C++ library "common"
 *   engine.c     the owner thread and the operations of engine.h
 */
#ifndef IS_LLAMA_INTERNAL_H
#define IS_LLAMA_INTERNAL_H

#include <jansson.h>
#include <llama.h>
#include <pthread.h>
#include <stdatomic.h>

#include "../../cuda/dev.h"
#include "chat_shim.h"
#include "llama_engine.h"
#include "state.h"

/*
 * Measured on SmolLM2-135M Q4_0, two cores with AVX-512: without flash attention a question of 21 tokens over
 * 2,000 in the cache takes 36 ms (with it 78 ms), and a prefill of 2,000 tokens in pieces of 128 takes 1.95 s
 * (with it, at its best piece of 512, 2.06 s).  So one setting is best for both sides.
 */
#define IS_LLAMA_PIECE      128 /* tokens of prefill between two decode steps */
#define IS_ENCODE_SEQUENCES 8
#define IS_ENCODE_BATCH     128 /* tokens of one encode step */
#define IS_MAX_SLOTS        256

/* ---- direct.c: what is known of the cache's tensors */

typedef struct is_direct {
    bool watching;                              /* until the tensors are known */
    bool ready;                                 /* proved: rows may be written in place */
    bool on_device;                             /* and lie in a GPU's memory */
    const struct ggml_tensor *k[IS_MAX_LAYERS]; /* by the model's layer while watching, then by the layout's */
    const struct ggml_tensor *v[IS_MAX_LAYERS];
} is_direct;

/* ---- model.c */

/* How prompts are rendered. */
typedef enum is_prompt_form {
    IS_PROMPT_PLAIN,   /* "User: ...", for a model without a template           */
    IS_PROMPT_SHAPE,   /* by the shape of the template, which llama.cpp knows   */
    IS_PROMPT_TEMPLATE /* by the template itself                                */
} is_prompt_form;

typedef struct is_model {
    struct llama_model *llama;
    const struct llama_vocab *vocab;
    struct ggml_threadpool *pool;
    char arch[64];
    uint8_t file_hash[16];
    uint32_t threads;
    bool on_device; /* its layers are in a GPU's memory */
    is_chat *chat;  /* the model's templates, by is_prompt_open; NULL: none that can be used */
    is_prompt_form form;
} is_model;

is_status is_model_open(const char *path, uint32_t threads, is_model *out, is_error *err);
void is_model_close(is_model *model);
/* `key` without the architecture's name in front; fallback when the file does not say. */
double is_model_number(const is_model *model, const char *key, double fallback);
bool is_model_text(const is_model *model, const char *key, char *out, size_t size);
/* Routes llama.cpp's log: errors are kept for is_llama_last_error, the rest is dropped. */
void is_llama_quiet(void);
/* The last error line that llama.cpp logged on this thread since the last call; "" if none. */
const char *is_llama_last_error(void);
/* The first one. */
const char *is_llama_first_error(void);
/* XXH3-128 over the file's length, its first 16 MiB (metadata and tokenizer) and 64 KiB of every 4 MiB behind. */
is_status is_file_hash(const char *path, uint8_t out[16], is_error *err);

/* A context of this model, whose graphs `watch` (or NULL) sees; NULL with an error text when it cannot be made. */
struct llama_context *is_context_open(const is_model *model, uint32_t context, uint32_t sequences, bool unified,
                                      uint32_t batch, is_direct *watch, is_error *err);

/* ---- ropes.c */

/* The rotations that a layer may have: every one that the file's metadata can mean.  Returns how many.
 * k_dim: of the layers in question; context: tokens of one sequence. */
typedef struct is_rope_candidate {
    is_rope rope;
    char name[48];
} is_rope_candidate;
#define IS_MAX_ROPE_CANDIDATES 12
size_t is_rope_candidates(const is_model *model, const char *path, uint32_t k_dim, uint32_t context,
                          is_rope_candidate *out, is_error *err);

/* ---- probe.c */

typedef struct is_probe_report {
    double max_error; /* largest relative difference of moved K, over layers and offsets */
    uint32_t worst_layer;
    int32_t offsets[3];
    double logit_error; /* injected at its own place against prefilled: 0 when bit for bit */
    double probe_ms;
    char rope_names[IS_MAX_ROPES][48];
} is_probe_report;

struct is_llama;
/* Fills engine->layout and ->shape and sets ->injectable, or fills ->why_not. */
is_status is_probe(struct is_llama *engine, const char *path, is_error *err);

/* ---- text.c */

typedef struct is_text {
    char *all; /* the answer up to now, NUL-terminated */
    size_t n, capacity;
    size_t sent;           /* bytes handed to the caller */
    unsigned char part[4]; /* bytes of a character that is not complete, not in `all` yet */
    size_t n_part;
    const char *const *stop;
    size_t n_stop;
    bool stopped; /* a stop string was met; all ends before it */
} is_text;

/* Appends a piece; *out, *n_out: what may be handed on now (whole characters, no beginning of a stop string). */
is_status is_text_append(is_text *text, const char *piece, size_t n, const char **out, size_t *n_out, is_error *err);
/* What is left at the end, incomplete characters cut off. */
void is_text_finish(is_text *text, const char **out, size_t *n_out);

/* ---- sample.c */

/* How the tokens of one run are drawn; made in the caller's thread. */
typedef struct is_sampler is_sampler;
is_status is_sampler_open(const is_model *model, const is_run *run, is_sampler **out, is_error *err);
void is_sampler_close(is_sampler *sampler);
/* The strings that end the text, [*n]; the sampler's. */
const char *const *is_sampler_stop(const is_sampler *sampler, size_t *n);
/* Whether this control token is part of the text. */
bool is_sampler_shows(const is_sampler *sampler, int32_t token);
struct is_llama;
/* Draws the next token from a row of the batch that was decoded.  IS_EINVAL: nothing is allowed any more. */
is_status is_sampler_next(struct is_llama *engine, is_sampler *sampler, int32_t row, int32_t *token, is_error *err);
/* Whether the one call that was allowed is complete. */
bool is_sampler_ended(const is_sampler *sampler);
/* Calls run->on_logprob for the token that was drawn from this row. */
is_status is_sampler_report(struct is_llama *engine, is_sampler *sampler, const is_run *run, int32_t row, int32_t token,
                            is_error *err);

/* ---- slot.c, engine.c */

typedef enum is_job_kind { IS_JOB_RUN, IS_JOB_SCORE, IS_JOB_ENCODE } is_job_kind;

/* One call from outside, waiting or in work. */
typedef struct is_job {
    is_job_kind kind;
    const is_run *run;
    is_sampler *sampler; /* of a run */
    is_run_result *result;
    is_score *score;
    is_run_stats *stats;
    is_encode_job *encode;
    double submitted_ms;
    bool done;
    is_status status;
    is_error err;
    struct is_job *next;
} is_job;

typedef enum is_slot_state { IS_SLOT_FREE = 0, IS_SLOT_PREFILL, IS_SLOT_DECODE } is_slot_state;

typedef struct is_slot {
    is_slot_state state;
    int32_t sequence;
    is_job *job;
    int32_t *tokens; /* the prompt's tokens that are still to be prefilled, [n_tokens] */
    uint32_t n_tokens;
    uint32_t done;      /* of them */
    uint32_t position;  /* tokens in the cache */
    int32_t next_token; /* DECODE: sampled, to be decoded */
    is_text text;
    is_run_stats stats;
    double started_ms;
    int32_t first_output; /* row of its first logits in the batch in hand; -1: none */
    uint32_t n_outputs;
    uint64_t resident_salt; /* plan.salt of what the sequence holds; 0: nothing to reuse */
    int32_t *resident;      /* token ids of the memory that it holds, [n_resident] */
    uint32_t n_resident;
} is_slot;

/* A prefix of encode jobs as the state of a sequence. */
typedef struct is_kept_prefix {
    int32_t *tokens; /* [n] */
    uint32_t n;
    uint64_t scope; /* whose */
    uint8_t *state; /* [size]; NULL: nothing is here */
    size_t size;
    uint64_t used; /* when it was last, by the cache's clock */
} is_kept_prefix;

#define IS_KEPT_PREFIXES 16

typedef struct is_prefix_cache {
    pthread_mutex_t lock; /* over all: what is forgotten is wiped by whoever forgets it */
    is_kept_prefix kept[IS_KEPT_PREFIXES];
    size_t bytes;
    uint64_t clock;
} is_prefix_cache;

typedef struct is_llama {
    is_engine base;
    is_model model;
    struct llama_context *context;
    uint32_t n_context; /* tokens per sequence */
    uint32_t n_slots;
    is_slot slots[IS_MAX_SLOTS];
    uint32_t turn; /* the slot whose prompt comes first in the next piece */
    struct llama_batch batch;
    struct llama_token_data *candidates; /* of the token that is being drawn, [vocabulary] */

    is_layout layout;
    is_state_shape shape;
    bool injectable;
    char why_not[512];
    uint8_t fingerprint[16];
    is_probe_report probe;

    is_direct direct;
    uint32_t cells; /* that free sequences keep for what is injected next */
    uint8_t *blob;  /* the state that is being injected; pages touched at start */
    size_t blob_size;
    struct is_team *team;  /* composes */
    is_dev *dev;           /* chunks in a GPU's memory, where the model is too; NULL: none */
    atomic_uint forgotten; /* how often something was */

    struct llama_context *encoder; /* made at the first encode job */
    struct llama_batch encode_batch;
    uint8_t *encode_blob;
    size_t encode_blob_size;
    int32_t *encode_prefix; /* what the encoder's sequence 0 holds, [encode_prefix_n] */
    uint32_t encode_prefix_n;
    is_prefix_cache prefixes;

    pthread_t thread;
    bool thread_started;
    const char *model_path; /* while it starts */
    bool started;           /* start_status says how */
    is_status start_status;
    is_error start_err;
    pthread_mutex_t lock;
    pthread_cond_t wake;        /* the owner thread waits here */
    pthread_cond_t done;        /* callers wait here           */
    uint32_t callers;           /* calls that hold on to the engine: close waits for them */
    is_job *queue, *queue_tail; /* runs and scores */
    is_job *encode_queue, *encode_tail;
    atomic_uint waiting; /* runs and scores in the queue: an encode step in hand gives way to them */
    atomic_bool closing;
} is_llama;

is_status is_slot_start(is_llama *engine, is_slot *slot, is_job *job);
/* Adds the slot's next tokens to engine->batch, at most `piece`. */
void is_slot_batch(is_llama *engine, is_slot *slot, uint32_t piece);
/* Takes logits and samples after a decode; ends the slot when its job is done. */
void is_slot_step(is_llama *engine, is_slot *slot);
void is_slot_end(is_llama *engine, is_slot *slot, is_status status, const is_error *err);
void is_job_finish(is_llama *engine, is_job *job, is_status status, const is_error *err);
/* Tokens of one piece into a batch. */
void is_batch_add(struct llama_batch *batch, int32_t token, int32_t position, int32_t sequence, bool logits);

/* ---- inject.c */

/* The engine's threads, for composing. */
typedef struct is_team is_team;
is_status is_team_open(const is_model *model, is_team **out, is_error *err);
void is_team_close(is_team *team);
/*
 * Puts the leading chunks of a plan into a sequence that is empty; *segments: how many went in, *tokens: their
 * tokens.  A refused set_data makes a new context: IS_EENGINE.  scope, forgets: as in is_plan.
 */
is_status is_inject(is_llama *engine, int32_t sequence, const is_placed *chunks, size_t n, uint32_t n_tokens,
                    uint64_t scope, unsigned forgets, uint64_t *bytes, is_error *err);
/* Whether the chunk may stand for these tokens. */
bool is_chunk_usable(const is_llama *engine, const is_segment *segment);
/* A serving context: the first, or a new one after the old one can no longer be trusted. */
is_status is_context_renew(is_llama *engine, is_error *err);

/* Room for the blob: at least `size` bytes. */
is_status is_blob_reserve(is_llama *engine, size_t size, is_error *err);
/* The blob's memory for this many tokens, its pages touched. */
is_status is_blob_open(is_llama *engine, uint32_t n_tokens, is_error *err);
void is_blob_close(is_llama *engine);

/* Fills a free sequence that has few cells up to engine->cells, with zeros; true when it did. */
bool is_fill_cells(is_llama *engine, int32_t sequence);

/* ---- direct.c */

bool is_direct_watch(struct ggml_tensor *t, bool ask, void *user);
/* Where the rows of the sequence's first n tokens lie.  targets: [n_layers]; direct.ready must be set. */
void is_direct_targets(const is_llama *engine, int32_t sequence, uint32_t n_tokens, is_target *targets);
/* Leaves the sequence exactly the cells 0 to n - 1; false, and nothing changed, when it has not that many. */
bool is_direct_cut(const is_llama *engine, int32_t sequence, uint32_t n_tokens);
/* Learns the tensors from what was watched, and whether they hold what the engine's state of a sequence says. */
bool is_direct_prove(is_llama *engine, int32_t sequence, const is_state_view *view);

/* Says to the device's side where the tensors are that were proved; false: it cannot use them. */
bool is_direct_tell_device(is_llama *engine);

/* ---- encode.c */

/* Encodes the job's next targets, at most `most`.  may_abort: it gives way when a request is waiting; *aborted then. */
is_status is_encode_step(is_llama *engine, is_job *job, uint32_t most, bool may_abort, bool *aborted, bool *finished);
/* Owner thread: brings the job's shared part into the encoder's sequence 0, and nothing else stays there; false: it is
 * not kept. The second keeps it, when it is there and nothing else is. */
bool is_prefix_restore(is_llama *engine, const is_encode_job *job);
void is_prefix_keep(is_llama *engine, const is_encode_job *job);
/* What they take.  Any thread. */
size_t is_prefixes_bytes(is_prefix_cache *cache);
/* Wipes those of a scope; 0: all.  Any thread. */
void is_prefixes_forget(is_prefix_cache *cache, uint64_t scope);
void is_encoder_close(is_llama *engine);
/* A begun chunk for the target's tokens behind a prefix; free().  NULL: err says why. */
void *is_chunk_new(const is_llama *engine, uint32_t n_prefix, const int32_t *prefix, const char *recipe,
                   const is_encode_target *target, size_t *size, is_error *err);
/* The target's rows of the sequence's state into a new sealed chunk. */
is_status is_chunk_extract(is_llama *engine, const uint8_t *blob, size_t size, uint32_t n_prefix, const int32_t *prefix,
                           const char *recipe, is_encode_target *target, is_error *err);

/* ---- keep.c */

/* The rows of a sequence's tokens [begin, end) as a chunk; tokens: all of the sequence's. */
is_status is_keep(is_llama *engine, int32_t sequence, const int32_t *tokens, uint32_t begin, uint32_t end, is_kept *out,
                  is_error *err);

/* ---- check.c */

#define IS_MOST_NAME 64 /* bytes of a function's name and of a call's id */

/* Length, UTF-8 and depth of a text from outside. */
is_status is_check_grammar(const char *text, is_error *err);
/* Whether a grammar, the caller's or one made from a schema, can be written out by llama.cpp. */
is_status is_check_repeats(const char *gbnf, const char *what, is_error *err);
is_status is_check_schema(const char *text, is_error *err);
/* `what` names it in an error.  *out: json_decref(). */
is_status is_read_json(const char *text, const char *what, json_t **out, is_error *err);
/* The same for JSON that has schemas in it, which may refer to one another. */
is_status is_read_schemas(const char *text, const char *what, json_t **out, is_error *err);
/* Whether this is a name as functions and calls have it, so that no control token can be in it. */
bool is_plain_name(const char *name);

/* ---- tools.c */

/* What a caller says of tools, for the template; *functions, which *out points to: free(). */
is_status is_tools_read(const is_model *model, const is_tools *tools, is_chat_tools *out, char **functions,
                        is_error *err);
/* The result of a run with tools: text and calls; the text goes out. */
is_status is_tools_finish(const is_run *run, is_run_result *result, is_error *err);

/* ---- prompt.c */

/* Chooses how the model's prompts are rendered. */
is_status is_prompt_open(is_model *model, is_error *err);
/* Whether a text has what the renderer puts in place of others. */
bool is_has_mark(const char *text);
/* bos: with the model's begin mark in front where it wants one, once. */
is_status is_prompt_tokenize(const is_model *model, const char *text, bool special, bool bos, int32_t **tokens,
                             size_t *n, is_error *err);
is_status is_prompt_render(const is_model *model, const char *system_head, const char *system_tail,
                           const is_message *messages, size_t n_messages, const is_tools *tools, is_prompt_parts *out,
                           is_error *err);

#endif
