/* The remote engine: one or several vLLM servers with InferScale's connector in them. */
#ifndef IS_VLLM_ENGINE_H
#define IS_VLLM_ENGINE_H

#include "../engine.h"

typedef struct is_vllm_options {
    const char *upstreams; /* their addresses, http://HOST:PORT, with commas between them */
    const char *key;       /* what they were started with as --api-key; NULL: none */
    const char *model;     /* a served model's name; NULL: the first */
    is_log_fn log;
    void *log_user;
} is_vllm_options;

/*
 * Asks the upstreams what they serve.  All must serve the same model; one that is not there, or serves another, is
 * asked again from time to time, and used when it is right.  IS_EUNAVAILABLE: none of them is there.  A model whose
 * cache cannot be injected into opens all the same, as with is_llama_open.
 *
 * Chunks stay with the workers, see is_engine_ops.remote.  `run` calls back on the caller's thread.
 */
is_status is_vllm_open(const is_vllm_options *options, is_engine **out, is_error *err);

#endif
