/*
 * The remote engine: opening, closing, and its table of operations.
 *
 * It computes nothing itself.  Who calls waits in his own thread for what a vLLM server answers.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

static void op_close(is_engine *base)
{
    is_vllm *engine = (is_vllm *)base;
    is_upstreams_close(engine);
    is_http_close(engine->http);
    is_vllm_templates_free(engine);
    pthread_mutex_destroy(&engine->lock);
    pthread_mutex_destroy(&engine->template_lock);
    pthread_cond_destroy(&engine->wake);
    free(engine->key);
    free(engine->model);
    free(engine);
}

static bool op_injects(is_engine *base)
{
    return ((is_vllm *)base)->why_not[0] == '\0';
}

static const is_layout *op_layout(is_engine *base)
{
    (void)base;
    return NULL;
}

static const char *op_why_not(is_engine *base)
{
    return ((is_vllm *)base)->why_not;
}

static void op_fingerprint(is_engine *base, uint8_t out[16])
{
    memcpy(out, ((is_vllm *)base)->fingerprint, 16);
}

static uint32_t op_context(is_engine *base)
{
    return ((is_vllm *)base)->context;
}

static uint32_t op_vocab(is_engine *base)
{
    (void)base;
    return 0;
}

static is_status op_end_tokens(is_engine *base, int32_t **tokens, size_t *n, is_error *err)
{
    const is_vllm *engine = (const is_vllm *)base;
    *n = engine->n_controls;
    *tokens = malloc((*n + 1) * sizeof **tokens);
    for (size_t i = 0; *tokens != NULL && i < *n; i++) (*tokens)[i] = engine->controls[i].id;
    return *tokens != NULL ? IS_OK : is_fail(err, IS_ENOMEM, "no memory for %zu tokens", *n);
}

static is_status op_tokenize(is_engine *base, const char *text, bool special, int32_t **tokens, size_t *n,
                             is_error *err)
{
    return is_vllm_tokenize((is_vllm *)base, text, special, tokens, n, err);
}

static is_status op_tokenize_prompt(is_engine *base, const char *text, int32_t **tokens, size_t *n, is_error *err)
{
    return is_vllm_tokenize_prompt((is_vllm *)base, text, tokens, n, err);
}

static is_status op_render(is_engine *base, const char *system_head, const char *system_tail,
                           const is_message *messages, size_t n_messages, const is_tools *tools, is_prompt_parts *out,
                           is_error *err)
{
    return is_vllm_render((is_vllm *)base, system_head, system_tail, messages, n_messages, tools, out, err);
}

static is_status op_run(is_engine *base, const is_run *run, is_run_result *out, is_error *err)
{
    return is_vllm_run((is_vllm *)base, run, out, err);
}

static is_status op_score(is_engine *base, is_score *score, is_run_stats *stats, is_error *err)
{
    (void)base;
    (void)score;
    (void)stats;
    return is_fail(err, IS_EUNSUPPORTED, "vLLM hands out no whole rows of logits; use the embedded engine");
}

static is_status op_encode(is_engine *base, is_encode_job *job, is_error *err)
{
    return is_vllm_encode((is_vllm *)base, job, err);
}

static is_status op_describe(is_engine *base, char **json, is_error *err)
{
    is_vllm *engine = (is_vllm *)base;
    char hex[33];
    for (int i = 0; i < 16; i++) (void)snprintf(hex + 2 * i, 3, "%02x", engine->fingerprint[i]);
    json_t *root = json_pack("{s:s, s:s, s:i, s:b, s:s, s:s, s:i, s:i, s:o}", "engine", "vllm", "model", engine->model,
                             "context", (int)engine->context, "injection", (int)op_injects(base), "why_not",
                             engine->why_not, "fingerprint", hex, "ranks", (int)engine->ranks, "block_tokens",
                             (int)engine->block, "upstreams", is_upstreams_describe(engine));
    *json = root == NULL ? NULL : json_dumps(root, JSON_INDENT(2));
    json_decref(root);
    return *json == NULL ? is_fail(err, IS_ENOMEM, "no memory to describe the engine") : IS_OK;
}

static const is_engine_ops ops = {
    .remote = true,
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
    .describe = op_describe,
};

is_status is_vllm_open(const is_vllm_options *options, is_engine **out, is_error *err)
{
    pthread_condattr_t monotonic;
    *out = NULL;
    is_vllm *engine = calloc(1, sizeof *engine);
    if (engine == NULL) return is_fail(err, IS_ENOMEM, "no memory for the engine");
    engine->base.ops = &ops;
    engine->log = options->log;
    engine->log_user = options->log_user;
    (void)pthread_mutex_init(&engine->lock, NULL);
    (void)pthread_mutex_init(&engine->template_lock, NULL);
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&engine->wake, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    is_status status = is_http_open(&engine->http, err);
    if (status == IS_OK && options->key != NULL && (engine->key = strdup(options->key)) == NULL)
        status = is_fail(err, IS_ENOMEM, "no memory for the engine");
    if (status == IS_OK) status = is_upstreams_open(engine, options->upstreams, options->model, err);
    if (status != IS_OK) {
        op_close(&engine->base);
        return status;
    }
    if (engine->why_not[0] != '\0' && options->log != NULL) {
        char line[400];
        (void)snprintf(line, sizeof line, "injection is off, every prompt is prefilled: %s", engine->why_not);
        options->log(options->log_user, 1, line);
    }
    *out = &engine->base;
    return IS_OK;
}
