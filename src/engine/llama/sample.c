/*
 * One request's sampler: what an answer may be, how its tokens are drawn, and what they were worth to the model.
 *
 * The order is that of llama.cpp's own server: bias, penalties, top-k, top-p, min-p, temperature, draw.  With a grammar
 * the token that was drawn is looked at first; only if it does not fit are all tokens put through the grammar, and it
 * is drawn again.  A sampler is made in the caller's thread, since a grammar may take a while to read, and then belongs
 * to the owner thread until the request has ended.
 */
#include "internal.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PENALTY_TOKENS 64         /* that the penalties look back over */
#define LEAST_LOGPROB  (-9999.0f) /* what OpenAI says of a token that is as good as impossible */

struct is_sampler {
    struct llama_sampler *bias;    /* or NULL */
    struct llama_sampler *chain;   /* all behind the bias */
    struct llama_sampler *grammar; /* or NULL */
    json_t *format;                /* of the tools; owns its texts */
    int32_t *shown;                /* control tokens that are part of the text, [n_shown] */
    size_t n_shown;
    int32_t end, letter; /* tokens that a grammar which is complete takes, and does not take */
    bool one_call;       /* the text ends with the first call */
    bool ended;          /* it did */
    const char **stop;   /* the request's and the format's, [n_stop] */
    size_t n_stop;
    char *pieces; /* of the log-probabilities in hand */
    size_t pieces_size;
};

void is_sampler_close(is_sampler *s)
{
    if (s == NULL) return;
    if (s->bias != NULL) llama_sampler_free(s->bias);
    if (s->chain != NULL) llama_sampler_free(s->chain);
    if (s->grammar != NULL) llama_sampler_free(s->grammar);
    json_decref(s->format);
    free(s->shown);
    free(s->stop);
    free(s->pieces);
    free(s);
}

const char *const *is_sampler_stop(const is_sampler *s, size_t *n)
{
    *n = s->n_stop;
    return s->stop;
}

bool is_sampler_shows(const is_sampler *s, int32_t token)
{
    for (size_t i = 0; i < s->n_shown; i++)
        if (s->shown[i] == token) return true;
    return false;
}

bool is_sampler_ended(const is_sampler *s)
{
    return s->ended;
}

/* ------------------------------------------------------------ making one */

static is_status check_sampling(const is_model *model, const is_run *run, is_error *err)
{
    const is_sampling *s = &run->sampling;
    int32_t vocab = llama_vocab_n_tokens(model->vocab);
    if (!isfinite(s->temperature) || !isfinite(s->top_p) || !isfinite(s->min_p) || !isfinite(s->frequency_penalty) ||
        !isfinite(s->presence_penalty) || !isfinite(s->repeat_penalty))
        return is_fail(err, IS_EINVAL, "a number that tokens are to be drawn by is not finite");
    if (s->repeat_penalty <= 0)
        return is_fail(err, IS_EINVAL, "the repeat penalty is %g; it must be greater than 0, and 1 is off",
                       (double)s->repeat_penalty);
    if (run->n_logprobs > IS_MAX_LOGPROBS)
        return is_fail(err, IS_EINVAL, "%u log-probabilities a token are asked for; at most %d are given",
                       run->n_logprobs, IS_MAX_LOGPROBS);
    for (size_t i = 0; i < run->n_logit_bias; i++) {
        const is_logit_bias *b = &run->logit_bias[i];
        if (b->token < 0 || b->token >= vocab)
            return is_fail(err, IS_EINVAL, "the logit bias is for token %d; the model has the tokens 0 to %d", b->token,
                           vocab - 1);
        if (isnan(b->bias) || b->bias == INFINITY)
            return is_fail(err, IS_EINVAL, "the logit bias of token %d is no number that can be added", b->token);
    }
    if ((run->grammar != NULL) + (run->json_schema != NULL) + (run->tool_format != NULL) > 1)
        return is_fail(err, IS_EINVAL, "a grammar, a JSON schema and tools exclude one another; give one of them");
    return IS_OK;
}

static is_status no_memory(is_error *err)
{
    return is_fail(err, IS_ENOMEM, "no memory for the sampler");
}

/* The caller's biases, and the tokens that the model file itself says are never to come. */
static is_status open_bias(const is_model *model, const is_run *run, is_sampler *s, is_error *err)
{
    int32_t n_never = 0;
    const llama_token *never = llama_vocab_get_suppress_tokens(model->vocab, &n_never);
    size_t n = run->n_logit_bias + (size_t)n_never;
    if (n == 0) return IS_OK;
    if (n > INT32_MAX) return is_fail(err, IS_EINVAL, "%zu logit biases are too many", n);
    llama_logit_bias *all = malloc(n * sizeof *all);
    if (all == NULL) return no_memory(err);
    for (size_t i = 0; i < run->n_logit_bias; i++)
        all[i] = (llama_logit_bias){run->logit_bias[i].token, run->logit_bias[i].bias};
    for (int32_t i = 0; i < n_never; i++) all[run->n_logit_bias + (size_t)i] = (llama_logit_bias){never[i], -INFINITY};
    s->bias = llama_sampler_init_logit_bias(llama_vocab_n_tokens(model->vocab), (int32_t)n, all);
    free(all);
    return s->bias == NULL ? no_memory(err) : IS_OK;
}

static is_status open_chain(const is_model *model, const is_sampling *by, is_sampler *s, is_error *err)
{
    struct llama_sampler_chain_params params = llama_sampler_chain_default_params();
    params.no_perf = true;
    s->chain = llama_sampler_chain_init(params);
    if (s->chain == NULL) return no_memory(err);
    if (by->repeat_penalty != 1.0f || by->frequency_penalty != 0.0f || by->presence_penalty != 0.0f)
        llama_sampler_chain_add(s->chain, llama_sampler_init_penalties(llama_vocab_n_tokens(model->vocab),
                                                                       PENALTY_TOKENS, by->repeat_penalty,
                                                                       by->frequency_penalty, by->presence_penalty));
    if (by->temperature <= 0) {
        llama_sampler_chain_add(s->chain, llama_sampler_init_greedy());
        return IS_OK;
    }
    if (by->top_k > 0) llama_sampler_chain_add(s->chain, llama_sampler_init_top_k(by->top_k));
    if (by->top_p < 1.0f) llama_sampler_chain_add(s->chain, llama_sampler_init_top_p(by->top_p, 1));
    if (by->min_p > 0.0f) llama_sampler_chain_add(s->chain, llama_sampler_init_min_p(by->min_p, 1));
    llama_sampler_chain_add(s->chain, llama_sampler_init_temp(by->temperature));
    llama_sampler_chain_add(s->chain, llama_sampler_init_dist(by->seed));
    return IS_OK;
}

static is_status wrong_grammar(const char *what, is_error *err)
{
    const char *why = is_llama_first_error();
    const char *at = strstr(why, "error parsing grammar: "); /* behind the name of a function */
    return is_fail(err, IS_EINVAL, "%s cannot be used: %.400s", what, at != NULL ? at + 23 : why);
}

static is_status open_grammar(const is_model *model, const char *gbnf, const char *what, is_sampler *s, is_error *err)
{
    is_status status = is_check_repeats(gbnf, what, err);
    if (status != IS_OK) return status;
    is_llama_quiet();
    s->grammar = is_grammar_open(model->vocab, gbnf, NULL, 0, NULL, 0);
    return s->grammar == NULL ? wrong_grammar(what, err) : IS_OK;
}

static is_status open_schema(const is_model *model, const char *schema, is_sampler *s, is_error *err)
{
    is_error why = {0};
    char *gbnf;
    is_status status = is_check_schema(schema, err);
    if (status != IS_OK) return status;
    status = is_schema_grammar(schema, &gbnf, &why);
    if (status != IS_OK) return is_fail(err, status, "the JSON schema cannot be used: %.400s", why.text);
    status = open_grammar(model, gbnf, "the JSON schema", s, err);
    free(gbnf);
    return status;
}

/* ------------------------------------------------------------ tools */

/* An array of numbers of the format; *out: free(). */
static is_status numbers_of(const json_t *format, const char *key, int32_t **out, size_t *n, is_error *err)
{
    const json_t *array = json_object_get(format, key);
    *n = json_array_size(array);
    *out = malloc((*n + 1) * sizeof **out);
    if (*out == NULL) return no_memory(err);
    for (size_t i = 0; i < *n; i++) (*out)[i] = (int32_t)json_integer_value(json_array_get(array, i));
    return IS_OK;
}

/* The grammar begins with what the prompt ends with, so that goes in first. */
static is_status take_opening(const is_model *model, const char *opening, is_sampler *s, is_error *err)
{
    int32_t *tokens;
    size_t n;
    is_status status = is_prompt_tokenize(model, opening, true, false, &tokens, &n, err);
    for (size_t i = 0; status == IS_OK && i < n; i++) {
        char piece[8] = "";
        int32_t length = llama_token_to_piece(model->vocab, tokens[i], piece, sizeof piece, 0, true);
        if (i == 0 && length == 1 && piece[0] == ' ' && opening[0] != ' ')
            continue; /* some tokenizers put it in front */
        status = is_grammar_accept(s->grammar, tokens[i], err);
    }
    free(tokens);
    return status;
}

static is_status open_tool_grammar(const is_model *model, is_sampler *s, is_error *err)
{
    const char *gbnf = json_string_value(json_object_get(s->format, "grammar"));
    bool lazy = json_is_true(json_object_get(s->format, "lazy"));
    if (gbnf == NULL || gbnf[0] == '\0') return IS_OK;
    if (!lazy) {
        is_status status = open_grammar(model, gbnf, "the grammar of the tools", s, err);
        const char *opening = json_string_value(json_object_get(s->format, "opening"));
        return status == IS_OK && opening != NULL ? take_opening(model, opening, s, err) : status;
    }
    is_status status = is_check_repeats(gbnf, "the grammar of the tools", err);
    if (status != IS_OK) return status;
    const json_t *array = json_object_get(s->format, "patterns");
    size_t n = json_array_size(array), n_tokens;
    int32_t *tokens;
    const char **patterns = malloc((n + 1) * sizeof *patterns);
    status = patterns == NULL ? no_memory(err) : numbers_of(s->format, "tokens", &tokens, &n_tokens, err);
    if (status == IS_OK) {
        for (size_t i = 0; i < n; i++) patterns[i] = json_string_value(json_array_get(array, i));
        is_llama_quiet();
        s->grammar = is_grammar_open(model->vocab, gbnf, patterns, n, tokens, n_tokens);
        if (s->grammar == NULL) status = wrong_grammar("the grammar of the tools", err);
        free(tokens);
    }
    free(patterns);
    return status;
}

/* What tells that a call is complete. */
static is_status find_ends(const is_model *model, is_sampler *s, is_error *err)
{
    int32_t *tokens;
    size_t n;
    is_status status = is_prompt_tokenize(model, "q", false, false, &tokens, &n, err);
    if (status != IS_OK) return status;
    s->end = llama_vocab_eos(model->vocab);
    s->letter = n > 0 ? tokens[n - 1] : -1;
    s->one_call = s->end >= 0 && s->letter >= 0 && json_is_true(json_object_get(s->format, "one_call"));
    free(tokens);
    return IS_OK;
}

static is_status open_tools(const is_model *model, const is_run *run, is_sampler *s, is_error *err)
{
    s->format = json_loads(run->tool_format, 0, NULL);
    if (!json_is_object(s->format)) return is_fail(err, IS_EINVAL, "the tools' format is not what this engine made");
    is_status status = numbers_of(s->format, "preserved", &s->shown, &s->n_shown, err);
    if (status == IS_OK) status = find_ends(model, s, err);
    return status == IS_OK ? open_tool_grammar(model, s, err) : status;
}

/* The request's stop strings and the format's. */
static is_status join_stops(const is_run *run, is_sampler *s, is_error *err)
{
    const json_t *more = json_object_get(s->format, "stops");
    s->n_stop = run->n_stop + json_array_size(more);
    s->stop = malloc((s->n_stop + 1) * sizeof *s->stop);
    if (s->stop == NULL) return no_memory(err);
    for (size_t i = 0; i < s->n_stop; i++)
        s->stop[i] = i < run->n_stop ? run->stop[i] : json_string_value(json_array_get(more, i - run->n_stop));
    return IS_OK;
}

is_status is_sampler_open(const is_model *model, const is_run *run, is_sampler **out, is_error *err)
{
    *out = NULL;
    is_status status = check_sampling(model, run, err);
    if (status != IS_OK) return status;
    is_sampler *s = calloc(1, sizeof *s);
    if (s == NULL) return no_memory(err);
    if (run->grammar != NULL) {
        status = is_check_grammar(run->grammar, err);
        if (status == IS_OK) status = open_grammar(model, run->grammar, "the grammar", s, err);
    } else if (run->json_schema != NULL) {
        status = open_schema(model, run->json_schema, s, err);
    } else if (run->tool_format != NULL) {
        status = open_tools(model, run, s, err);
    }
    if (status == IS_OK) status = open_bias(model, run, s, err);
    if (status == IS_OK) status = open_chain(model, &run->sampling, s, err);
    if (status == IS_OK) status = join_stops(run, s, err);
    if (status != IS_OK) {
        is_sampler_close(s);
        return status;
    }
    *out = s;
    return IS_OK;
}

/* ------------------------------------------------------------ drawing */

/* All tokens with their logits, through the bias. */
static llama_token_data_array candidates(is_llama *engine, const is_sampler *s, const float *logits)
{
    int32_t n = llama_vocab_n_tokens(engine->model.vocab);
    for (int32_t i = 0; i < n; i++) engine->candidates[i] = (llama_token_data){i, logits[i], 0.0f};
    llama_token_data_array all = {engine->candidates, (size_t)n, -1, false};
    if (s->bias != NULL) llama_sampler_apply(s->bias, &all);
    return all;
}

static bool any_left(const llama_token_data_array *all)
{
    for (size_t i = 0; i < all->size; i++)
        if (all->data[i].logit > -INFINITY) return true;
    return false;
}

static is_status draw(const is_sampler *s, llama_token_data_array *all, int32_t *token, is_error *err)
{
    if ((s->bias != NULL || s->grammar != NULL) && !any_left(all))
        return is_fail(err, IS_EINVAL, "no token is left to go on with: %s",
                       s->grammar == NULL ? "the logit bias bans all of them"
                                          : "the grammar allows none here that the logit bias does not ban");
    llama_sampler_apply(s->chain, all);
    if (all->selected < 0 || (size_t)all->selected >= all->size)
        return is_fail(err, IS_EENGINE, "llama.cpp's samplers chose no token");
    *token = all->data[all->selected].id;
    return IS_OK;
}

/* With a grammar: draws among the tokens that fit. */
static is_status draw_again(is_llama *engine, const is_sampler *s, const float *logits, int32_t *token, is_error *err)
{
    llama_token_data_array all = candidates(engine, s, logits);
    is_status status = is_grammar_apply(s->grammar, &all, err);
    if (status == IS_OK) status = draw(s, &all, token, err);
    if (status == IS_OK && !is_grammar_allows(s->grammar, *token))
        status = is_fail(err, IS_EENGINE, "llama.cpp's samplers chose a token that the grammar does not allow");
    return status;
}

is_status is_sampler_next(is_llama *engine, is_sampler *s, int32_t row, int32_t *token, is_error *err)
{
    const float *logits = llama_get_logits_ith(engine->context, row);
    if (logits == NULL) return is_fail(err, IS_EENGINE, "llama.cpp gives no logits for the next token");
    llama_token_data_array all = candidates(engine, s, logits);
    is_status status = draw(s, &all, token, err);
    if (status == IS_OK && s->grammar != NULL && !is_grammar_allows(s->grammar, *token))
        status = draw_again(engine, s, logits, token, err);
    if (status != IS_OK) return status;
    /* An end ends the request, so the grammar need not know of it. */
    if (s->grammar != NULL && !llama_vocab_is_eog(engine->model.vocab, *token) &&
        is_grammar_accept(s->grammar, *token, NULL) != IS_OK) {
        /* What began a call is none, so the text goes on freely. */
        llama_sampler_free(s->grammar);
        s->grammar = NULL;
    }
    s->ended = s->one_call && s->grammar != NULL && is_grammar_complete(s->grammar, s->end, s->letter);
    llama_sampler_accept(s->chain, *token);
    return IS_OK;
}

/* ------------------------------------------------------------ log-probabilities */

/* The logarithm of the sum of exp(logits). */
static double log_sum(const float *logits, int32_t n)
{
    float most = -INFINITY;
    double sum = 0;
    for (int32_t i = 0; i < n; i++) most = logits[i] > most ? logits[i] : most;
    for (int32_t i = 0; i < n; i++) sum += exp((double)logits[i] - (double)most);
    return (double)most + log(sum);
}

/* The tokens with the highest logits, in falling order; of equal ones the lower id first. */
static void best_tokens(const float *logits, int32_t n, int32_t *best, size_t wanted)
{
    size_t have = 0;
    for (int32_t i = 0; i < n; i++) {
        if (have == wanted && (wanted == 0 || !(logits[i] > logits[best[have - 1]]))) continue;
        size_t at = have < wanted ? have++ : have - 1;
        for (; at > 0 && logits[i] > logits[best[at - 1]]; at--) best[at] = best[at - 1];
        best[at] = i;
    }
}

/* The token's bytes behind the first `used` of s->pieces; *n: how many. */
static is_status add_piece(const is_llama *engine, is_sampler *s, int32_t token, size_t used, size_t *n, is_error *err)
{
    for (;;) {
        int32_t room = (int32_t)(s->pieces_size - used);
        int32_t got = llama_token_to_piece(engine->model.vocab, token, s->pieces + used, room, 0, true);
        *n = got > 0 ? (size_t)got : 0;
        if (got >= 0) return IS_OK;
        size_t size = 2 * s->pieces_size + (size_t)-got;
        char *grown = realloc(s->pieces, size);
        if (grown == NULL) return is_fail(err, IS_ENOMEM, "no memory for a token's log-probabilities");
        s->pieces = grown;
        s->pieces_size = size;
    }
}

is_status is_sampler_report(is_llama *engine, is_sampler *s, const is_run *run, int32_t row, int32_t token,
                            is_error *err)
{
    const float *logits = llama_get_logits_ith(engine->context, row);
    int32_t vocab = llama_vocab_n_tokens(engine->model.vocab);
    int32_t ids[IS_MAX_LOGPROBS + 1] = {token};
    is_token_logprob out[IS_MAX_LOGPROBS + 1];
    size_t wanted = run->n_logprobs < (uint32_t)vocab ? run->n_logprobs : (size_t)vocab;
    size_t used = 0;
    double sum = log_sum(logits, vocab);
    best_tokens(logits, vocab, ids + 1, wanted);
    if (s->pieces == NULL) {
        s->pieces_size = 1024;
        s->pieces = malloc(s->pieces_size);
        if (s->pieces == NULL) return is_fail(err, IS_ENOMEM, "no memory for a token's log-probabilities");
    }
    for (size_t i = 0; i <= wanted; i++) {
        double logprob = (double)logits[ids[i]] - sum;
        out[i] = (is_token_logprob){.id = ids[i], .logprob = fmaxf((float)logprob, LEAST_LOGPROB)};
        is_status status = add_piece(engine, s, ids[i], used, &out[i].n_piece, err);
        if (status != IS_OK) return status;
        used += out[i].n_piece;
    }
    used = 0;
    for (size_t i = 0; i <= wanted; i++) {
        out[i].piece = s->pieces + used;
        used += out[i].n_piece;
    }
    run->on_logprob(run->user, out, wanted + 1);
    return IS_OK;
}
