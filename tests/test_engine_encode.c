/*
 * What the llama.cpp engine's chunks hold.
 *
 * - Encoding the same job gives the same bytes; what stands beside a target in a job is not seen by it, what stands in
 *   front of it is.
 * - Facts encoded behind others and moved keep the next tokens near what a prefill gives, far nearer than no memory
 *   does.
 */
#include <math.h>

#include "engine/llama/internal.h"
#include "engine_fixture.h"

/* ------------------------------------------------------------ answers */

static uint32_t top1(const float *logits, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

static double log_sum(const float *logits, uint32_t n)
{
    double sum = 0;
    double most = (double)logits[top1(logits, n)];
    for (uint32_t i = 0; i < n; i++) sum += exp((double)logits[i] - most);
    return most + log(sum);
}

/* KL(p || q) of two next-token distributions, in nats. */
static double divergence(const float *p, const float *q, uint32_t n)
{
    double kl = 0;
    double zp = log_sum(p, n);
    double zq = log_sum(q, n);
    for (uint32_t i = 0; i < n; i++) {
        double lp = (double)p[i] - zp;
        kl += exp(lp) * (lp - ((double)q[i] - zq));
    }
    return kl;
}

static const char *const story[] = {
    "- Ann has a dog called Rex.\n",      "- Ann lives in Oslo.\n",
    "- Ann works as a nurse.\n",          "- Ann plays the cello on Sundays.\n",
    "- Ann's brother is called Peter.\n", "- Ann drives a green car.\n",
    "- Ann was in Peru in March 2023.\n", "- Ann does not eat fish.\n",
};

/* The scene's facts anew, each half behind the header and the other half: the recipe primed:4. */
static void prime(scene *s, is_engine *engine)
{
    const size_t half = SCENE_FACTS / 2;
    for (size_t side = 0; side < 2; side++) {
        size_t from = side * half;
        size_t other = half - from;
        int32_t *prefix = malloc(scene_memory(s) * sizeof *prefix);
        assert_non_null(prefix);
        memcpy(prefix, s->parts.header, s->parts.n_header * sizeof *prefix);
        uint32_t n = (uint32_t)s->parts.n_header;
        for (size_t i = other; i < other + half; i++) {
            memcpy(prefix + n, s->facts[i].tokens, s->facts[i].n_tokens * sizeof *prefix);
            n += s->facts[i].n_tokens;
        }
        for (size_t i = from; i < from + half; i++) free(s->facts[i].bytes);
        fixture_encode(engine, prefix, n, s->facts + from, half);
        for (size_t i = from; i < from + half; i++) s->chunks[i + 1] = fixture_chunk(&s->facts[i]);
        free(prefix);
    }
}

static void test_injected_answers(void **state)
{
    (void)state;
    is_engine *engine = fixture_open(CHAT_MODEL, 1024, 1);
    scene s;
    scene_open(&s, engine, story, SCENE_FACTS, "Tell me all that you know about me: my dog, my town, my work, my car.");
    prime(&s, engine);
    uint32_t vocab = engine->ops->vocab(engine);
    uint32_t n = (uint32_t)s.parts.n_tail;
    is_plan prefill = scene_plan(&s, false, 0);
    is_plan inject = scene_plan(&s, true, 0);
    is_segment bare_segments[2] = {s.segments[0], s.segments[s.n_facts + 1]};
    is_plan bare = {.segments = bare_segments, .n_segments = 2};
    is_run_stats stats;
    float *want = fixture_score(engine, &prefill, n, &stats);
    float *got = fixture_score(engine, &inject, n, &stats);
    assert_int_equal(stats.tokens_injected, scene_memory(&s));
    assert_int_equal(stats.segments_injected, s.n_facts + 1);
    float *without = fixture_score(engine, &bare, n, &stats);
    uint32_t equal = 0;
    double kl = 0, kl_bare = 0;
    for (uint32_t i = 0; i < n; i++) {
        const float *a = want + (size_t)i * vocab;
        const float *b = got + (size_t)i * vocab;
        for (uint32_t t = 0; t < vocab; t++) assert_true(isfinite(b[t]));
        equal += top1(a, vocab) == top1(b, vocab);
        kl += divergence(a, b, vocab) / n;
        kl_bare += divergence(a, without + (size_t)i * vocab, vocab) / n;
    }
    /* Seen: 35 of 37 equal, KL 0.027 with and 0.317 without memory. */
    if (equal * 10 < n * 8 || !(kl < kl_bare / 3))
        fail_msg("of %u tokens %u have the same top-1; KL %.3f, without memory %.3f", n, equal, kl, kl_bare);
    free(want);
    free(got);
    free(without);
    scene_close(&s);
    is_engine_close(engine);
}

/* ------------------------------------------------------------ encoded together, alone, again */

/* The difference of two runs of f16, as a part of the first one's length. */
static double relative(const uint8_t *a, const uint8_t *b, size_t bytes)
{
    double diff = 0, norm = 0;
    for (size_t i = 0; i < bytes; i += 2) {
        uint16_t x, y;
        memcpy(&x, a + i, 2);
        memcpy(&y, b + i, 2);
        double d = (double)is_f16_to_f32(x) - (double)is_f16_to_f32(y);
        diff += d * d;
        norm += (double)is_f16_to_f32(x) * (double)is_f16_to_f32(x);
    }
    return norm > 0 ? sqrt(diff / norm) : diff > 0;
}

static double chunk_difference(const is_encode_target *a, const is_encode_target *b)
{
    is_chunk x = fixture_chunk(a);
    is_chunk y = fixture_chunk(b);
    double worst = 0;
    assert_int_equal(a->size, b->size);
    for (uint32_t l = 0; l < x.n_layers; l++) {
        is_chunk_rows p = is_chunk_layer(&x, l);
        is_chunk_rows q = is_chunk_layer(&y, l);
        worst = fmax(worst, relative(p.k, q.k, p.n * p.k_row));
        worst = fmax(worst, relative(p.v, q.v, p.n * p.v_row));
    }
    return worst;
}

#define TARGETS 11 /* more than a step has sequences */

static void free_targets(is_encode_target *targets, size_t n)
{
    for (size_t i = 0; i < n; i++) free(targets[i].bytes);
}

/*
 * Encoding is one function of the job, to the last bit.  Alone and together the sums over cells run in another order:
 * a last bit flips, the quantised weights' activations round the other way, and layers later it is some percent of
 * a row.  A target that saw another one, or sat at another place, would be off by far more, and in an early layer.
 */
static void encode_ways(const char *variable)
{
    is_engine *engine = fixture_open(variable, 1024, 1);
    int32_t *prefix = fixture_tokens(engine, 31, 60);
    int32_t *text = fixture_tokens(engine, 32, 400);
    is_encode_target together[TARGETS], alone[TARGETS], again[TARGETS];
    for (size_t i = 0; i < TARGETS; i++)
        together[i] = alone[i] = again[i] =
            (is_encode_target){.tokens = text + 31 * i, .n_tokens = (uint32_t)(3 + 8 * i)};
    fixture_encode(engine, prefix, 60, together, TARGETS);
    for (size_t i = TARGETS; i-- > 0;) {
        fixture_encode(engine, prefix, 60, &alone[i], 1);
        double difference = chunk_difference(&together[i], &alone[i]);
        if (!(difference < 0.2)) fail_msg("%s: target %zu is off by %g of a row", variable, i, difference);
    }
    /* Another prefix comes between, so the first is brought back as it was. */
    is_encode_target other = {.tokens = text, .n_tokens = 30};
    fixture_encode(engine, prefix + 1, 59, &other, 1);
    fixture_encode(engine, prefix, 60, again, TARGETS);
    for (size_t i = 0; i < TARGETS; i++) {
        assert_int_equal(again[i].size, together[i].size);
        assert_memory_equal(again[i].bytes, together[i].bytes, again[i].size);
    }
    free_targets(together, TARGETS);
    free_targets(alone, TARGETS);
    free_targets(again, TARGETS);
    free(other.bytes);
    free(prefix);
    free(text);
    is_engine_close(engine);
}

/* Other texts of the same lengths around a target change no bit of it: targets do not see one another. */
static void encode_neighbours(const char *variable)
{
    is_engine *engine = fixture_open(variable, 1024, 1);
    int32_t *prefix = fixture_tokens(engine, 41, 50);
    int32_t *text = fixture_tokens(engine, 42, 20);
    int32_t *others = fixture_tokens(engine, 43, 90);
    is_encode_target a[3], b[3];
    for (size_t i = 0; i < 3; i++) {
        a[i] = (is_encode_target){.tokens = i == 1 ? text : others + 15 * i, .n_tokens = i == 1 ? 20 : 15};
        b[i] = (is_encode_target){.tokens = i == 1 ? text : others + 45 + 15 * i, .n_tokens = i == 1 ? 20 : 15};
    }
    fixture_encode(engine, prefix, 50, a, 3);
    fixture_encode(engine, prefix, 50, b, 3);
    assert_memory_equal(a[1].bytes, b[1].bytes, a[1].size);
    assert_memory_not_equal(a[0].bytes, b[0].bytes, a[0].size);
    assert_memory_not_equal(a[2].bytes, b[2].bytes, a[2].size);
    free_targets(a, 3);
    free_targets(b, 3);
    free(prefix);
    free(text);
    free(others);
    is_engine_close(engine);
}

/* A target behind a prefix has the K that the same tokens have when all of it is one chunk. */
static void encode_behind(const char *variable)
{
    const uint32_t n_prefix = 70, n = 30;
    is_engine *engine = fixture_open(variable, 512, 1);
    int32_t *tokens = fixture_tokens(engine, 51, n_prefix + n);
    is_encode_target whole = {.tokens = tokens, .n_tokens = n_prefix + n};
    is_encode_target behind = {.tokens = tokens + n_prefix, .n_tokens = n};
    is_encode_target without = behind;
    fixture_encode(engine, NULL, 0, &whole, 1);
    fixture_encode(engine, tokens, n_prefix, &behind, 1);
    fixture_encode(engine, tokens + 1, n_prefix, &without, 1); /* as many other tokens in front */
    is_chunk chunks[3] = {fixture_chunk(&whole), fixture_chunk(&behind), fixture_chunk(&without)};
    double worst = 0, other = 0;
    for (uint32_t l = 0; l < chunks[0].n_layers; l++) {
        is_chunk_rows rows[3];
        for (size_t c = 0; c < 3; c++) rows[c] = is_chunk_layer(&chunks[c], l);
        const uint8_t *want = rows[0].k + n_prefix * rows[0].k_row;
        worst = fmax(worst, relative(want, rows[1].k, n * rows[1].k_row));
        other = fmax(other, relative(want, rows[2].k, n * rows[2].k_row));
    }
    /* Seen: SmolLM2 equal to the last bit, Gemma 3 off by 0.055 of a row; with other tokens in front 0.16 and 0.18. */
    if (!(worst < other / 2)) fail_msg("%s: off by %g, with another prefix by %g", variable, worst, other);
    free(whole.bytes);
    free(behind.bytes);
    free(without.bytes);
    free(tokens);
    is_engine_close(engine);
}

static void test_encode_behind(void **state)
{
    (void)state;
    encode_behind(CHAT_MODEL);
    encode_behind(WINDOW_MODEL);
}

/* What a prefix leaves behind is kept while it is of use, for its scope alone, and gone when that forgets. */
static void test_kept_prefixes(void **state)
{
    (void)state;
    is_engine *engine = fixture_open(CHAT_MODEL, 512, 1);
    is_prefix_cache *cache = &((is_llama *)engine)->prefixes;
    is_error err = {0};
    int32_t *tokens = fixture_tokens(engine, 61, IS_KEPT_PREFIXES + 40);
    uint64_t restored[2];
    for (uint32_t i = 0; i < IS_KEPT_PREFIXES + 4; i++) {
        is_encode_target target = {.tokens = tokens + i, .n_tokens = 4};
        is_encode_job job = {.prefix = tokens + i,
                             .n_prefix = 30,
                             .n_shared = 30,
                             .recipe = "primed:1",
                             .scope = 1 + i % 2,
                             .targets = &target,
                             .n_targets = 1};
        assert_int_equal(engine->ops->encode(engine, &job, &err), IS_OK);
        free(target.bytes);
        restored[i % 2] = cache->clock;
    }
    size_t of[3] = {0}, bytes = cache->bytes;
    for (size_t i = 0; i < IS_KEPT_PREFIXES; i++) {
        assert_non_null(cache->kept[i].state);
        of[cache->kept[i].scope]++;
    }
    assert_int_equal(of[1], IS_KEPT_PREFIXES / 2);
    assert_int_equal(restored[0] + 1, restored[1]);
    is_encode_target target = {.tokens = tokens, .n_tokens = 4};
    is_encode_job job = {.prefix = tokens + IS_KEPT_PREFIXES,
                         .n_prefix = 30,
                         .n_shared = 30,
                         .recipe = "primed:1",
                         .scope = 1,
                         .targets = &target,
                         .n_targets = 1};
    assert_int_equal(engine->ops->encode(engine, &job, &err), IS_OK); /* kept: nothing else has to go */
    free(target.bytes);
    assert_int_equal(cache->bytes, bytes);
    engine->ops->forget(engine, 2);
    assert_int_equal(cache->bytes, bytes / 2);
    for (size_t i = 0; i < IS_KEPT_PREFIXES; i++) assert_true(cache->kept[i].scope != 2);
    engine->ops->forget(engine, 1);
    assert_int_equal(cache->bytes, 0);
    free(tokens);
    is_engine_close(engine);
}

/* Behind a shared part and one of its own a target has what it has behind all of it in one piece, and the shared part
 * alone is kept. */
static void encode_shared(const char *variable)
{
    is_engine *engine = fixture_open(variable, 512, 1);
    const is_prefix_cache *cache = &((is_llama *)engine)->prefixes;
    int32_t *text = fixture_tokens(engine, 71, 90);
    int32_t prefix[2][60];
    is_encode_target whole[2], parts[2], again;
    for (size_t i = 0; i < 2; i++) { /* 40 in common, then 20 others */
        memcpy(prefix[i], text, 40 * sizeof *text);
        memcpy(prefix[i] + 40, text + 40 + 20 * i, 20 * sizeof *text);
        whole[i] = parts[i] = again = (is_encode_target){.tokens = text + 80, .n_tokens = 10};
    }
    for (size_t i = 0; i < 2; i++) {
        fixture_encode_shared(engine, prefix[i], 60, 40, &parts[i], 1);
        size_t n = 0;
        for (size_t j = 0; j < IS_KEPT_PREFIXES; j++) {
            if (cache->kept[j].state == NULL) continue;
            assert_int_equal(cache->kept[j].n, 40);
            n++;
        }
        assert_int_equal(n, 1);
    }
    const uint64_t restored = cache->clock;
    for (size_t i = 0; i < 2; i++) fixture_encode(engine, prefix[i], 60, &whole[i], 1);
    for (size_t i = 0; i < 2; i++) {
        double same = chunk_difference(&whole[i], &parts[i]), other = chunk_difference(&whole[1 - i], &parts[i]);
        if (!(same < other / 2)) fail_msg("%s: off by %g, behind the other's part by %g", variable, same, other);
    }
    /* The encoder holds something else, and the shared part comes back. */
    is_encode_target between = {.tokens = text + 50, .n_tokens = 10};
    fixture_encode(engine, text + 1, 20, &between, 1);
    const uint64_t before = cache->clock;
    fixture_encode_shared(engine, prefix[0], 60, 40, &again, 1);
    assert_int_equal(cache->clock, before + 1);
    assert_true(before > restored);
    assert_true(chunk_difference(&parts[0], &again) < 1e-6);
    free_targets(whole, 2);
    free_targets(parts, 2);
    free(again.bytes);
    free(between.bytes);
    free(text);
    is_engine_close(engine);
}

/* Facts one behind the other: what was a target is in front of the next one, and has what it has when it is a prefix.
 */
static void encode_chain(const char *variable)
{
    is_engine *engine = fixture_open(variable, 512, 1);
    const is_llama *llama = (is_llama *)engine;
    int32_t *text = fixture_tokens(engine, 81, 80);
    is_encode_target link[4];
    for (size_t i = 0; i < 4; i++) {
        const uint32_t n_prefix = 40 + 10 * (uint32_t)i;
        link[i] = (is_encode_target){.tokens = text + n_prefix, .n_tokens = 10};
        fixture_encode_shared(engine, text, n_prefix, 40, &link[i], 1);
        assert_int_equal(llama->encode_prefix_n, n_prefix + (llama->shape.n_caches == 1 ? 10 : 0));
    }
    int32_t *other = fixture_tokens(engine, 82, 80);
    for (size_t i = 0; i < 4; i++) {
        const uint32_t n_prefix = 40 + 10 * (uint32_t)i;
        const is_encode_target same_tokens = {.tokens = text + n_prefix, .n_tokens = 10};
        is_encode_target wrong = same_tokens;
        is_encode_target pair[2] = {same_tokens, same_tokens}; /* two targets are not in place */
        fixture_encode(engine, text, n_prefix, pair, 2);
        fixture_encode(engine, other, n_prefix, &wrong, 1);
        double same = chunk_difference(&pair[0], &link[i]), not_same = chunk_difference(&pair[0], &wrong);
        if (!(same < not_same / 2)) fail_msg("%s, %zu: off by %g, behind others by %g", variable, i, same, not_same);
        free_targets(pair, 2);
        free(wrong.bytes);
    }
    free(other);
    free_targets(link, 4);
    free(text);
    is_engine_close(engine);
}

static void test_encode_chain(void **state)
{
    (void)state;
    encode_chain(CHAT_MODEL);
    encode_chain(WINDOW_MODEL);
}

static void test_encode_ways(void **state)
{
    (void)state;
    encode_ways(CHAT_MODEL);
    encode_ways(WINDOW_MODEL);
}

static void test_encode_neighbours(void **state)
{
    (void)state;
    encode_neighbours(CHAT_MODEL);
    encode_neighbours(WINDOW_MODEL);
}

static void test_encode_shared(void **state)
{
    (void)state;
    encode_shared(CHAT_MODEL);
    encode_shared(WINDOW_MODEL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encode_ways),      cmocka_unit_test(test_kept_prefixes),
        cmocka_unit_test(test_encode_behind),    cmocka_unit_test(test_encode_neighbours),
        cmocka_unit_test(test_encode_shared),    cmocka_unit_test(test_encode_chain),
        cmocka_unit_test(test_injected_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
