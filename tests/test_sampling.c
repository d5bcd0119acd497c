/*
 * What an answer may be and what its tokens were worth: logit bias, grammars, JSON schemas, log-probabilities; and the
 * request's own system text in a prompt with facts.
 *
 * Models: INFERSCALE_CHAT_MODEL and INFERSCALE_EMBEDDING_MODEL.
 */
#include <fcntl.h>
#include <ftw.h>
#include <jansson.h>
#include <math.h>
#include <sys/stat.h>

#include "engine_fixture.h"
#include "memory/memory.h"

#define CONTEXT 1024

typedef struct world {
    is_engine *engine;
    is_prompt_parts parts;
    is_segment segments[2];
} world;

static int setup(void **state)
{
    world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->engine = fixture_open(CHAT_MODEL, CONTEXT, 2);
    const is_message message = {"user", "Tell me about Ann, who is 34 and lives in Oslo with two cats."};
    is_error err = {0};
    assert_int_equal(
        w->engine->ops->render(w->engine, "You answer as you are told.", "", &message, 1, NULL, &w->parts, &err),
        IS_OK);
    w->segments[0] = (is_segment){w->parts.header, (uint32_t)w->parts.n_header, NULL};
    w->segments[1] = (is_segment){w->parts.tail, (uint32_t)w->parts.n_tail, NULL};
    *state = w;
    return 0;
}

static int teardown(void **state)
{
    world *w = *state;
    if (w == NULL) return 0;
    free(w->parts.header);
    free(w->parts.tail);
    is_engine_close(w->engine);
    free(w);
    return 0;
}

static void init(runner *r, world *w, uint32_t max_tokens)
{
    runner_init(r, w->engine, (is_plan){.segments = w->segments, .n_segments = 2}, max_tokens);
}

/* stderr into a file for a while; what came there. */
static int catch_stderr(int *saved)
{
    char path[] = "/tmp/test-sampling-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    (void)unlink(path);
    (void)fflush(stderr);
    *saved = dup(STDERR_FILENO);
    assert_true(*saved >= 0 && dup2(fd, STDERR_FILENO) >= 0);
    return fd;
}

static off_t release_stderr(int fd, int saved)
{
    struct stat st;
    (void)fflush(stderr);
    assert_int_equal(fstat(fd, &st), 0);
    assert_true(dup2(saved, STDERR_FILENO) >= 0);
    (void)close(saved);
    (void)close(fd);
    return st.st_size;
}

/*
 * A run that must fail with this status, with these words in its error and nowhere else, and before anything is
 * prefilled.
 */
static void refuses(runner *r, is_status status, const char *words)
{
    int saved;
    int fd = catch_stderr(&saved);
    (void)runner_main(r);
    off_t printed = release_stderr(fd, saved);
    if (r->status != status) fail_msg("%s instead of %s: %s", is_status_name(r->status), words, r->err.text);
    assert_int_equal(printed, 0);
    if (strstr(r->err.text, words) == NULL) fail_msg("\"%s\" is not in: %s", words, r->err.text);
    assert_int_equal(r->result.stats.tokens_prefilled, 0);
    assert_int_equal(r->calls, 0);
    runner_free(r);
}

/* ------------------------------------------------------------ log-probabilities */

#define MOST_TOKENS 48

/* What came through on_logprob. */
typedef struct report {
    runner r; /* first: a runner's callbacks find it */
    size_t n;
    int32_t ids[MOST_TOKENS][IS_MAX_LOGPROBS + 1];
    float values[MOST_TOKENS][IS_MAX_LOGPROBS + 1];
    size_t width[MOST_TOKENS];
    uint32_t calls_before[MOST_TOKENS]; /* of on_token */
    char pieces[4096];
    size_t n_pieces;
} report;

static void on_logprob(void *user, const is_token_logprob *tokens, size_t n)
{
    report *p = user;
    assert_true(p->n < MOST_TOKENS && n >= 1 && n <= IS_MAX_LOGPROBS + 1);
    for (size_t i = 0; i < n; i++) {
        p->ids[p->n][i] = tokens[i].id;
        p->values[p->n][i] = tokens[i].logprob;
    }
    p->width[p->n] = n;
    p->calls_before[p->n] = p->r.calls;
    assert_true(p->n_pieces + tokens[0].n_piece < sizeof p->pieces);
    memcpy(p->pieces + p->n_pieces, tokens[0].piece, tokens[0].n_piece);
    p->n_pieces += tokens[0].n_piece;
    p->n++;
}

static report *report_init(world *w, uint32_t max_tokens, uint32_t n_logprobs)
{
    report *p = calloc(1, sizeof *p);
    assert_non_null(p);
    init(&p->r, w, max_tokens);
    p->r.run.on_logprob = on_logprob;
    p->r.run.n_logprobs = n_logprobs;
    p->r.run.user = p;
    return p;
}

static void report_free(report *p)
{
    runner_free(&p->r);
    free(p);
}

/* The tail and the first n tokens of an answer; free(). */
static int32_t *longer_tail(const world *w, const report *p, size_t n)
{
    int32_t *tail = malloc((w->parts.n_tail + n) * sizeof *tail);
    assert_non_null(tail);
    memcpy(tail, w->parts.tail, w->parts.n_tail * sizeof *tail);
    for (size_t i = 0; i < n; i++) tail[w->parts.n_tail + i] = p->ids[i][0];
    return tail;
}

/* Against a softmax of the engine's logits for the same place: the largest difference. */
static double compare(const float *row, size_t vocab, const report *p, size_t i, double tolerance)
{
    double sum = 0, worst = 0, all = 0;
    for (size_t t = 0; t < vocab; t++) sum += exp((double)row[t]);
    assert_int_equal(p->width[i], 6);
    assert_int_equal(p->ids[i][0], p->ids[i][1]); /* greedy: the sampled one is the best */
    for (size_t k = 0; k < 6; k++) {
        worst = fmax(worst, fabs((double)row[p->ids[i][k]] - log(sum) - (double)p->values[i][k]));
        if (k >= 2) assert_true(p->values[i][k] <= p->values[i][k - 1]);
        if (k >= 1) all += exp((double)p->values[i][k]);
    }
    assert_true(all <= 1.00001);
    /* No token is better than the last of them and not among them. */
    for (size_t t = 0; t < vocab; t++) {
        bool named = false;
        for (size_t k = 1; k < 6; k++) named = named || p->ids[i][k] == (int32_t)t;
        if (!named) assert_true((double)row[t] - log(sum) <= (double)p->values[i][5] + tolerance);
    }
    return worst;
}

static void test_logprobs(void **state)
{
    world *w = *state;
    size_t vocab = w->engine->ops->vocab(w->engine);
    report *p = report_init(w, 24, 5);
    runner_do(&p->r);
    assert_int_equal(p->n, p->r.result.stats.tokens_generated);
    assert_int_equal(p->n, 24);
    assert_int_equal(p->n_pieces, strlen(p->r.result.text));
    assert_memory_equal(p->pieces, p->r.result.text, p->n_pieces);
    for (size_t i = 0; i < p->n; i++) assert_true(p->calls_before[i] <= i);
    /* A decode of one token and a piece of many round differently, so the answer's places agree nearly. */
    int32_t *tail = longer_tail(w, p, p->n);
    is_segment segments[2] = {w->segments[0], {tail, (uint32_t)(w->parts.n_tail + p->n - 1), NULL}};
    const is_plan plan = {.segments = segments, .n_segments = 2};
    float *logits = fixture_score(w->engine, &plan, (uint32_t)p->n, NULL);
    for (size_t i = 0; i < p->n; i++) {
        double off = compare(logits + i * vocab, vocab, p, i, 1);
        if (off > 1) fail_msg("the log-probabilities of token %zu are off by %g", i, off);
    }
    free(logits);
    /* The same computation gives the same numbers. */
    for (size_t i = 0; i < p->n; i += 5) {
        segments[1].n_tokens = (uint32_t)(w->parts.n_tail + i);
        report *one = report_init(w, 1, 5);
        one->r.run.plan = plan;
        runner_do(&one->r);
        logits = fixture_score(w->engine, &plan, 1, NULL);
        double off = compare(logits, vocab, one, 0, 1e-5);
        if (off > 1e-5) fail_msg("the log-probabilities of token %zu are off by %g", i, off);
        free(logits);
        report_free(one);
    }
    free(tail);
    report_free(p);
}

/* They are the model's own, whatever the sampler does with them. */
static void test_logprobs_before_sampling(void **state)
{
    world *w = *state;
    report *plain = report_init(w, 1, IS_MAX_LOGPROBS);
    runner_do(&plain->r);
    const is_logit_bias bias[2] = {{plain->ids[0][1], -INFINITY}, {plain->ids[0][7], 100}};
    report *other = report_init(w, 1, IS_MAX_LOGPROBS);
    other->r.run.logit_bias = bias;
    other->r.run.n_logit_bias = 2;
    other->r.run.sampling = (is_sampling){.temperature = 2, .top_p = 0.5f, .top_k = 3, .repeat_penalty = 1.5f};
    runner_do(&other->r);
    assert_int_equal(other->ids[0][0], plain->ids[0][7]);
    assert_float_equal(other->values[0][0], plain->values[0][7], 1e-6);
    for (size_t k = 1; k <= IS_MAX_LOGPROBS; k++) {
        assert_int_equal(other->ids[0][k], plain->ids[0][k]);
        assert_float_equal(other->values[0][k], plain->values[0][k], 1e-6);
    }
    report_free(other);
    report_free(plain);
    report *none = report_init(w, 8, 0);
    runner_do(&none->r);
    for (size_t i = 0; i < none->n; i++) assert_int_equal(none->width[i], 1);
    report_free(none);
    report *many = report_init(w, 1, IS_MAX_LOGPROBS + 1);
    refuses(&many->r, IS_EINVAL, "21 log-probabilities");
    free(many);
}

/* ------------------------------------------------------------ logit bias */

static void test_bias(void **state)
{
    world *w = *state;
    report *p = report_init(w, 6, 3);
    runner_do(&p->r);
    int32_t first = p->ids[0][0], second = p->ids[0][2];
    report_free(p);
    const is_logit_bias ban[2] = {{first, -INFINITY}, {first, -100}};
    for (size_t i = 0; i < 2; i++) {
        p = report_init(w, 1, 0);
        p->r.run.logit_bias = &ban[i];
        p->r.run.n_logit_bias = 1;
        runner_do(&p->r);
        assert_int_equal(p->ids[0][0], second);
        report_free(p);
    }
    uint32_t n;
    int32_t *forced = fixture_tokenize(w->engine, " banana", &n);
    const is_logit_bias want = {forced[0], 100};
    const is_sampling samplings[2] = {fixture_greedy, {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = 3}};
    for (size_t i = 0; i < 2; i++) {
        p = report_init(w, 6, 0);
        p->r.run.logit_bias = &want;
        p->r.run.n_logit_bias = 1;
        p->r.run.sampling = samplings[i];
        runner_do(&p->r);
        assert_int_equal(p->n, 6);
        for (size_t k = 0; k < p->n; k++) assert_int_equal(p->ids[k][0], forced[0]);
        report_free(p);
    }
    free(forced);
}

static void test_bias_refused(void **state)
{
    world *w = *state;
    int32_t vocab = (int32_t)w->engine->ops->vocab(w->engine);
    const is_logit_bias wrong[4] = {{-1, 1}, {vocab, 1}, {5, NAN}, {5, INFINITY}};
    runner r;
    for (size_t i = 0; i < 4; i++) {
        init(&r, w, 4);
        r.run.logit_bias = &wrong[i];
        r.run.n_logit_bias = 1;
        refuses(&r, IS_EINVAL, "logit bias");
    }
    is_logit_bias *all = calloc((size_t)vocab, sizeof *all);
    assert_non_null(all);
    for (int32_t i = 0; i < vocab; i++) all[i] = (is_logit_bias){i, -INFINITY};
    init(&r, w, 4);
    r.run.logit_bias = all;
    r.run.n_logit_bias = (size_t)vocab;
    (void)runner_main(&r);
    assert_int_equal(r.status, IS_EINVAL);
    assert_non_null(strstr(r.err.text, "bans all of them"));
    runner_free(&r);
    /* Where a grammar leaves only what is banned, too; the engine goes on. */
    uint32_t n;
    int32_t *yes = fixture_tokenize(w->engine, "y", &n);
    for (int32_t i = 0; i < vocab; i++) all[i].bias = i == yes[0] ? 0 : -INFINITY;
    init(&r, w, 4);
    r.run.grammar = "root ::= \"no\"";
    r.run.logit_bias = all;
    r.run.n_logit_bias = (size_t)vocab;
    (void)runner_main(&r);
    assert_int_equal(r.status, IS_EINVAL);
    assert_non_null(strstr(r.err.text, "the grammar allows none here"));
    runner_free(&r);
    free(yes);
    free(all);
    is_sampling odd[3] = {fixture_greedy, fixture_greedy, fixture_greedy};
    odd[0].repeat_penalty = 0;
    odd[1].temperature = NAN;
    odd[2].presence_penalty = INFINITY;
    for (size_t i = 0; i < 3; i++) {
        init(&r, w, 4);
        r.run.sampling = odd[i];
        refuses(&r, IS_EINVAL, i == 0 ? "repeat penalty" : "not finite");
    }
    char *text = fixture_answer(w->engine, (is_plan){.segments = w->segments, .n_segments = 2}, 4, NULL);
    assert_true(strlen(text) > 0);
    free(text);
}

/* ------------------------------------------------------------ grammars */

static void hot(runner *r, world *w, uint32_t max_tokens, uint32_t seed)
{
    init(r, w, max_tokens);
    r->run.sampling = (is_sampling){.temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = seed};
}

static void test_grammar(void **state)
{
    world *w = *state;
    bool said[3] = {false, false, false};
    const char *const words[3] = {"Ann is 34 \xC3\xA9t\xC3\xA9", "She has cats", "\xE4\xB8\xAD\xE6\x96\x87"};
    for (uint32_t seed = 0; seed < 12; seed++) {
        runner r;
        hot(&r, w, 32, seed);
        r.run.grammar =
            "# one of three\nroot ::= word\n"
            "word ::= \"Ann is 34 \xC3\xA9t\xC3\xA9\" | \"She has \" \"cats\" | [\xE4\xB8\xAD] [\xE6\x96\x87]";
        runner_do(&r);
        size_t i = 0;
        while (i < 3 && strcmp(r.result.text, words[i]) != 0) i++;
        if (i == 3) fail_msg("\"%s\" is not in the grammar", r.result.text);
        said[i] = true;
        assert_string_equal(r.result.finish, "stop");
        assert_string_equal(r.text, r.result.text);
        runner_free(&r);
    }
    assert_true(said[0] + said[1] + said[2] >= 2);
    /* An end by length leaves a beginning of what the grammar says. */
    runner r;
    init(&r, w, 3);
    r.run.grammar = "root ::= \"abcdefghijklmnopqrstuvwxyz\"";
    runner_do(&r);
    assert_string_equal(r.result.finish, "length");
    assert_memory_equal(r.result.text, "abcdefghijklmnopqrstuvwxyz", strlen(r.result.text));
    assert_true(strlen(r.result.text) >= 3);
    runner_free(&r);
}

/* Two at once, each with its own; and the seed decides. */
static void test_grammars_at_once(void **state)
{
    world *w = *state;
    static runner r[2];
    char first[2][64];
    for (int again = 0; again < 2; again++) {
        for (size_t i = 0; i < 2; i++) {
            hot(&r[i], w, 24, 5);
            r[i].run.grammar = i == 0 ? "root ::= [0-9]{12}" : "root ::= [a-f]{9} \"!\"";
            runner_start(&r[i]);
        }
        for (size_t i = 0; i < 2; i++) {
            runner_join(&r[i]);
            assert_int_equal(r[i].status, IS_OK);
            assert_int_equal(strspn(r[i].result.text, i == 0 ? "0123456789" : "abcdef"), i == 0 ? 12 : 9);
            assert_int_equal(strlen(r[i].result.text), i == 0 ? 12 : 10);
            if (again == 0) (void)snprintf(first[i], sizeof first[i], "%s", r[i].result.text);
            if (again == 1) assert_string_equal(r[i].result.text, first[i]);
            runner_free(&r[i]);
        }
    }
}

/* n times `open`, and n times `close`; free(). */
static char *nested(const char *before, const char *open, const char *close, const char *after, size_t n)
{
    size_t size = strlen(before) + strlen(after) + n * (strlen(open) + strlen(close)) + 1;
    char *text = calloc(1, size);
    assert_non_null(text);
    char *at = stpcpy(text, before);
    for (size_t i = 0; i < n; i++) at = stpcpy(at, open);
    for (size_t i = 0; i < n; i++) at = stpcpy(at, close);
    (void)strcpy(at, after);
    return text;
}

static void test_grammar_refused(void **state)
{
    world *w = *state;
    const struct {
        const char *grammar, *words;
    } wrong[] = {{"root ::= (\"a\"", "expecting ')'"},
                 {"", "empty"},
                 {" \n", "empty"},
                 {"start ::= \"a\"", "root"},
                 {"root ::= name", "name"},
                 {"root ::= root \"a\"", "left recursion"},
                 {"root ::= \"a\"{3,2}", "at least 3 and at most 2"},
                 {"root ::= \"a\"{ 7 , 2 }", "at least 7 and at most 2"},
                 {"root ::= (\"a\"{ # few\n7 # or\n, # less\n2})", "at least 7 and at most 2"},
                 {"root ::= (\"a\" # few\r{3,2})", "at least 3 and at most 2"},
                 {"root ::= <[34]>{3,2}", "at least 3 and at most 2"},
                 {"root ::= \"a\"{7,", "expecting '}'"},
                 {"root ::= \"a\"{100000}", "sane defaults"},
                 {"root ::= \"a", "unexpected end"},
                 {"root ::= [a", "unexpected end"},
                 {"root := \"a\"", "expecting ::="},
                 {"root ::= \"\xFF\"", "UTF-8"}};
    runner r;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        init(&r, w, 4);
        r.run.grammar = wrong[i].grammar;
        refuses(&r, IS_EINVAL, wrong[i].words);
    }
    char *deep = nested("root ::= ", "(", ")", "", 20000);
    init(&r, w, 4);
    r.run.grammar = deep;
    refuses(&r, IS_ELIMIT, "brackets in one another");
    free(deep);
    char *chain = calloc(1, 200000);
    assert_non_null(chain);
    char *at = stpcpy(chain, "root ::= r0\n");
    for (int i = 0; i < 5000; i++) at += sprintf(at, "r%d ::= r%d\n", i, i + 1);
    (void)strcpy(at, "r5000 ::= \"a\"\n");
    init(&r, w, 4);
    r.run.grammar = chain;
    runner_do(&r);
    assert_string_equal(r.result.text, "a");
    runner_free(&r);
    memset(chain, 'a', 199999);
    init(&r, w, 4);
    r.run.grammar = chain;
    refuses(&r, IS_ELIMIT, "bytes");
    at = stpcpy(chain, "root ::= \"a\"");
    for (int i = 0; i < 60; i++) at = stpcpy(at, " \"b\"{2000}");
    init(&r, w, 4);
    r.run.grammar = chain;
    refuses(&r, IS_ELIMIT, "too many repetitions");
    free(chain);
    init(&r, w, 4);
    r.run.grammar = "root ::= \"a\"";
    r.run.json_schema = "{}";
    refuses(&r, IS_EINVAL, "exclude");
}

/* ------------------------------------------------------------ JSON schemas */

static bool conforms(const json_t *schema, const json_t *value);

static bool has_type(const char *type, const json_t *v)
{
    return (strcmp(type, "object") == 0 && json_is_object(v)) || (strcmp(type, "array") == 0 && json_is_array(v)) ||
           (strcmp(type, "string") == 0 && json_is_string(v)) || (strcmp(type, "integer") == 0 && json_is_integer(v)) ||
           (strcmp(type, "number") == 0 && json_is_number(v)) || (strcmp(type, "boolean") == 0 && json_is_boolean(v)) ||
           (strcmp(type, "null") == 0 && json_is_null(v));
}

static bool conforms_object(const json_t *schema, const json_t *value)
{
    const json_t *properties = json_object_get(schema, "properties");
    size_t i;
    json_t *name, *item;
    const char *key;
    json_array_foreach(json_object_get(schema, "required"), i, name)
    {
        if (json_object_get(value, json_string_value(name)) == NULL) return false;
    }
    json_object_foreach((json_t *)(uintptr_t)value, key, item)
    {
        const json_t *its = json_object_get(properties, key);
        if (its == NULL && json_is_false(json_object_get(schema, "additionalProperties"))) return false;
        if (its != NULL && !conforms(its, item)) return false;
    }
    return true;
}

/* The keywords that the schemas below use, by their definition. */
static bool conforms(const json_t *schema, const json_t *value)
{
    const json_t *word;
    size_t i;
    json_t *item;
    if ((word = json_object_get(schema, "type")) != NULL && !has_type(json_string_value(word), value)) return false;
    if ((word = json_object_get(schema, "const")) != NULL && !json_equal(word, value)) return false;
    if ((word = json_object_get(schema, "enum")) != NULL) {
        bool one = false;
        json_array_foreach(word, i, item) one = one || json_equal(item, value);
        if (!one) return false;
    }
    if ((word = json_object_get(schema, "anyOf")) != NULL) {
        bool one = false;
        json_array_foreach(word, i, item) one = one || conforms(item, value);
        if (!one) return false;
    }
    if (json_is_string(value)) {
        word = json_object_get(schema, "maxLength"); /* bytes are at least as many as characters */
        if (word != NULL && json_string_length(value) > 4 * (size_t)json_integer_value(word)) return false;
    }
    if (json_is_integer(value)) {
        word = json_object_get(schema, "minimum");
        if (word != NULL && json_integer_value(value) < json_integer_value(word)) return false;
        word = json_object_get(schema, "maximum");
        if (word != NULL && json_integer_value(value) > json_integer_value(word)) return false;
    }
    if (json_is_array(value)) {
        word = json_object_get(schema, "minItems");
        if (word != NULL && json_array_size(value) < (size_t)json_integer_value(word)) return false;
        word = json_object_get(schema, "maxItems");
        if (word != NULL && json_array_size(value) > (size_t)json_integer_value(word)) return false;
        json_array_foreach(value, i, item)
        {
            const json_t *items = json_object_get(schema, "items");
            if (items != NULL && !conforms(items, item)) return false;
        }
    }
    return !json_is_object(value) || conforms_object(schema, value);
}

static void test_schemas(void **state)
{
    world *w = *state;
    static const char *const schemas[] = {
        "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":12},\"age\":{\"type\":"
        "\"integer\",\"minimum\":0,\"maximum\":120},\"city\":{\"enum\":[\"Oslo\",\"Bergen\"]}},\"required\":[\"name\","
        "\"age\",\"city\"],\"additionalProperties\":false}",
        "{\"type\":\"array\",\"items\":{\"type\":\"boolean\"},\"minItems\":2,\"maxItems\":4}",
        "{\"type\":\"object\",\"properties\":{\"pets\":{\"type\":\"array\",\"minItems\":1,\"maxItems\":2,\"items\":{"
        "\"type\":\"object\",\"properties\":{\"kind\":{\"const\":\"cat\"},\"old\":{\"type\":\"boolean\"}},\"required\":"
        "["
        "\"kind\",\"old\"],\"additionalProperties\":false}},\"note\":{\"anyOf\":[{\"type\":\"null\"},{\"type\":"
        "\"string\","
        "\"maxLength\":8}]}},\"required\":[\"pets\",\"note\"],\"additionalProperties\":false}",
        "{\"enum\":[\"a \\\"quoted\\\" one\",17,null,{\"x\":[1,2]}]}",
        "{\"$defs\":{\"n\":{\"type\":\"integer\",\"minimum\":-3,\"maximum\":3}},\"type\":\"object\",\"properties\":{"
        "\"a\":{"
        "\"$ref\":\"#/$defs/n\"},\"b\":{\"$ref\":\"#/$defs/n\"}},\"required\":[\"a\",\"b\"],\"additionalProperties\":"
        "false}",
    };
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++) {
        json_t *schema = json_loads(schemas[i], 0, NULL);
        assert_non_null(schema);
        for (uint32_t seed = 1; seed <= 3; seed++) {
            runner r;
            hot(&r, w, 300, seed);
            r.run.json_schema = schemas[i];
            runner_do(&r);
            json_error_t why;
            json_t *value = json_loads(r.result.text, JSON_DECODE_ANY, &why);
            if (value == NULL) fail_msg("schema %zu, seed %u: \"%s\": %s", i, seed, r.result.text, why.text);
            assert_string_equal(r.result.finish, "stop");
            if (i != 4 && !conforms(schema, value)) fail_msg("schema %zu: \"%s\"", i, r.result.text);
            if (i == 4) {
                json_int_t a = json_integer_value(json_object_get(value, "a"));
                json_int_t b = json_integer_value(json_object_get(value, "b"));
                assert_true(json_object_size(value) == 2 && a >= -3 && a <= 3 && b >= -3 && b <= 3);
                assert_true(json_is_integer(json_object_get(value, "a")) &&
                            json_is_integer(json_object_get(value, "b")));
            }
            json_decref(value);
            runner_free(&r);
        }
        json_decref(schema);
    }
    /* The check itself can say no. */
    json_t *schema = json_loads(schemas[0], 0, NULL);
    json_t *no = json_loads("{\"name\": \"Ann\", \"age\": 34, \"city\": \"Rome\"}", 0, NULL);
    assert_false(conforms(schema, no));
    json_decref(no);
    json_decref(schema);
}

static void test_any_object(void **state)
{
    world *w = *state;
    static const char *const any[] = {"{}", " { } ", "{\"type\":\"object\"}"};
    size_t whole = 0;
    for (size_t i = 0; i < 9; i++) {
        runner r;
        hot(&r, w, 200, (uint32_t)i);
        r.run.json_schema = any[i % 3];
        runner_do(&r);
        assert_int_equal(r.result.text[0], '{');
        json_t *value = json_loads(r.result.text, 0, NULL);
        if (strcmp(r.result.finish, "stop") == 0) {
            if (!json_is_object(value)) fail_msg("\"%s\" is no object", r.result.text);
            whole++;
        }
        json_decref(value);
        runner_free(&r);
    }
    assert_true(whole > 0);
}

static void test_schema_refused(void **state)
{
    world *w = *state;
    const struct {
        const char *schema, *words;
    } wrong[] = {{"{\"type\":", "not JSON"},
                 {"[]", "no JSON object"},
                 {"true", "not JSON"},
                 {"", "not JSON"},
                 {"{\"type\":\"color\"}", "schema"},
                 {"{\"$ref\":\"#/nowhere\"}", "schema"},
                 {"{\"$ref\":\"https://example.com/s.json\"}", "schema"},
                 {"{\"type\":\"string\",\"pattern\":\"[a-z]+\"}", "the pattern [a-z]+ cannot be kept to"},
                 {"{\"type\":\"string\",\"pattern\":\"^(?=a)a$\"}", "cannot be kept to"},
                 {"{\"type\":\"string\",\"pattern\":\"^a(b$\"}", "unbalanced"},
                 {"{\"type\":\"array\",\"minItems\":9,\"maxItems\":2}", "at least"},
                 {"{\"type\":\"\xFF\"}", "UTF-8"}};
    runner r;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        init(&r, w, 4);
        r.run.json_schema = wrong[i].schema;
        refuses(&r, IS_EINVAL, wrong[i].words);
    }
    char *deep = nested("", "{\"type\":\"array\",\"items\":", "}", "", 5000);
    init(&r, w, 4);
    r.run.json_schema = deep;
    refuses(&r, IS_ELIMIT, "brackets in one another");
    free(deep);
    deep = nested("{\"type\":\"string\",\"pattern\":\"^", "(a", ")", "$\"}", 30000);
    init(&r, w, 4);
    r.run.json_schema = deep;
    refuses(&r, IS_EINVAL, "pattern");
    free(deep);
    /* References from one to the next are followed, up to a number of them. */
    char *chain = calloc(1, 50000);
    assert_non_null(chain);
    for (int n = 490; n < 511; n += 20) {
        char *at = stpcpy(chain, "{\"$ref\":\"#/$defs/a0\",\"$defs\":{");
        for (int i = 0; i < n; i++) at += sprintf(at, "\"a%d\":{\"$ref\":\"#/$defs/a%d\"},", i, i + 1);
        (void)sprintf(at, "\"a%d\":{\"const\":1}}}", n);
        init(&r, w, 4);
        r.run.json_schema = chain;
        if (n > 500) {
            refuses(&r, IS_ELIMIT, "references");
        } else {
            runner_do(&r);
            assert_memory_equal(r.result.text, "1", 1);
            runner_free(&r);
        }
    }
    free(chain);
}

/* ------------------------------------------------------------ the request's own system text */

static char folder[] = "/tmp/test-sampling-store-XXXXXX";

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st;
    (void)kind;
    (void)at;
    return remove(path);
}

static void find_tokens(const is_segment *in, const char *text, is_memory *m, bool at_begin, bool there)
{
    uint32_t n;
    int32_t *tokens = fixture_tokenize(m->engine, text, &n);
    bool found = false;
    for (uint32_t i = 0; i + n <= in->n_tokens && !(at_begin && i > 0); i++)
        found = found || memcmp(in->tokens + i, tokens, n * sizeof *tokens) == 0;
    assert_int_equal(found, there);
    free(tokens);
}

static void test_system(void **state)
{
    (void)state;
    is_options o = is_options_default();
    is_memory *m;
    is_error err = {0};
    assert_non_null(mkdtemp(folder));
    o.store = folder;
    o.model = fixture_path(CHAT_MODEL);
    o.embedding_model = fixture_path(EMBEDDING_MODEL);
    o.context = CONTEXT;
    o.threads = 1;
    o.background = false;
    if (is_open(&o, &m, &err) != IS_OK) fail_msg("%s", err.text);
    const is_scope scope = {.user = "ann"};
    const is_fact facts[2] = {{.text = "Ann has a dog called Rex.", .time = IS_TIME_NONE},
                              {.text = "Ann lives in Oslo.", .time = IS_TIME_NONE}};
    int64_t ids[2];
    assert_int_equal(is_add_facts(m, &scope, facts, 2, ids, &err), IS_OK);
    assert_int_equal(is_encode_pending(m, NULL, NULL, NULL, &err), IS_OK);
    is_fact_list *list;
    assert_int_equal(is_search(m, &scope, "dog", 2, NULL, &list, &err), IS_OK);
    int64_t number;
    assert_int_equal(is_memory_scope(m, &scope, false, &number, &err), IS_OK);
    const is_message message = {"user", "Where does Rex live?"};
    is_prompt_options plan = {.messages = &message, .n_messages = 1, .reserve = 16};
    is_prompt prompt;
    /* Without one, with one: header and facts are the same chunks, and the text is the tail's beginning. */
    for (int with = 0; with < 2; with++) {
        plan.system = with ? "Answer like a pirate. <|im_end|>" : NULL;
        assert_int_equal(is_prompt_build(m, number, list, &plan, &prompt, &err), IS_OK);
        assert_int_equal(prompt.plan.n_segments, 4);
        assert_ptr_equal(prompt.segments[0].tokens, m->header);
        for (size_t i = 0; i < 3; i++) assert_non_null(prompt.segments[i].chunk);
        find_tokens(&prompt.segments[3], "\n\nAnswer like a pirate. <|im_end|>", m, true, with);
        is_prompt_free(m, &prompt);
    }
    /* Without memory it stands in place of the memory's own. */
    plan.mode = IS_MODE_OFF;
    for (int with = 0; with < 2; with++) {
        plan.system = with ? "Answer like a pirate." : NULL;
        assert_int_equal(is_prompt_build(m, number, list, &plan, &prompt, &err), IS_OK);
        assert_int_equal(prompt.plan.n_segments, 2);
        find_tokens(&prompt.segments[0], "Answer like a pirate.", m, false, with);
        find_tokens(&prompt.segments[0], m->system_prompt, m, false, !with);
        find_tokens(&prompt.segments[1], "Answer like a pirate.", m, false, false);
        is_prompt_free(m, &prompt);
    }
    /* Through the public interface, with all that it hands on. */
    is_ask_options ask = is_ask_options_default();
    is_answer *answer;
    ask.max_tokens = 12;
    ask.system = "Answer like a pirate.";
    ask.grammar = "root ::= \"Arr\" [a-z ]{0,9}";
    assert_int_equal(is_ask(m, &scope, "Where does Rex live?", &ask, &answer, &err), IS_OK);
    assert_memory_equal(answer->text, "Arr", 3);
    assert_int_equal(answer->facts_injected, 2);
    assert_null(answer->tool_calls);
    is_answer_free(answer);
    ask.json_schema = "{}";
    assert_int_equal(is_ask(m, &scope, "Where?", &ask, &answer, &err), IS_EINVAL);
    ask.json_schema = NULL;
    ask.tools = "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]";
    assert_int_equal(is_ask(m, &scope, "Where?", &ask, &answer, &err), IS_EINVAL);
    ask.grammar = NULL;
    assert_int_equal(is_ask(m, &scope, "Where?", &ask, &answer, &err), IS_EUNSUPPORTED);
    assert_non_null(strstr(err.text, "knows no tools; leave tools out"));
    assert_null(answer);
    ask.tools = NULL;
    const is_message history[2] = {{"user", "Where does Rex live?"}, {.role = "tool", .content = "Oslo"}};
    ask.history = history;
    ask.n_history = 2;
    assert_int_equal(is_ask(m, &scope, "Where?", &ask, &answer, &err), IS_EINVAL);
    assert_non_null(strstr(err.text, "tool"));
    /* A whole conversation: nothing is put behind it. */
    uint32_t prefilled[2];
    ask.n_history = 1;
    for (int i = 0; i < 2; i++) {
        ask.question_in_history = i == 1;
        assert_int_equal(is_ask(m, &scope, "Where does Rex live?", &ask, &answer, &err), IS_OK);
        prefilled[i] = answer->tokens_prefilled + answer->tokens_history;
        is_answer_free(answer);
    }
    assert_true(prefilled[1] < prefilled[0]);
    ask.n_history = 0;
    assert_int_equal(is_ask(m, &scope, "Where?", &ask, &answer, &err), IS_EINVAL);
    is_fact_list_free(list);
    is_close(m);
    assert_int_equal(nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_logprobs_before_sampling),
        cmocka_unit_test(test_bias),
        cmocka_unit_test(test_bias_refused),
        cmocka_unit_test(test_grammar),
        cmocka_unit_test(test_grammars_at_once),
        cmocka_unit_test(test_grammar_refused),
        cmocka_unit_test(test_schemas),
        cmocka_unit_test(test_any_object),
        cmocka_unit_test(test_schema_refused),
        cmocka_unit_test(test_system),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
