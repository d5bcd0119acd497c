/* The embedded engine: llama.cpp in this process. */
#ifndef IS_LLAMA_ENGINE_H
#define IS_LLAMA_ENGINE_H

#include "../engine.h"

typedef struct is_llama_options {
    const char *model;      /* GGUF file */
    uint32_t context;       /* tokens per sequence; 0: the model's own, at most 8192 */
    uint32_t slots;         /* sequences answered at the same time, at least 1 */
    uint32_t threads;       /* 0: one for each core */
    uint64_t device_budget; /* bytes of chunks in the first GPU's memory, where the model is; 0: it is not on a GPU */
    is_log_fn log;
    void *log_user;
} is_llama_options;

/*
 * Loads the model, proves the layout and starts the owner thread.  A model whose cache cannot be injected
 * into opens all the same: layout() is then NULL and why_not() says why.
 */
is_status is_llama_open(const is_llama_options *options, is_engine **out, is_error *err);

/* The embedding model, in a context of its own (embed.c).  Any thread; calls are serialised. */
typedef struct is_embedder is_embedder;
is_status is_embedder_open(const char *model, uint32_t threads, is_embedder **out, is_error *err);
void is_embedder_close(is_embedder *embedder);
uint32_t is_embedder_dim(const is_embedder *embedder);
/* Names the model by its file's hash, 32 hex digits. */
const char *is_embedder_name(const is_embedder *embedder);
/* Unit vectors [n][dim] f32 of n texts; longer texts than the model's context are cut. */
is_status is_embed(is_embedder *embedder, const char *const *texts, size_t n, float *out, is_error *err);
/* Tokens of a text that the model reads. */
is_status is_embed_count(is_embedder *embedder, const char *text, uint32_t *n, is_error *err);

#endif
