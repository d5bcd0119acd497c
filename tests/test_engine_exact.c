/*
 * What of the llama.cpp engine is exact.
 *
 * - A chunk injected at its own place gives the engine's own logits bit for bit, across a sliding window too, and
 *   whatever its slot held before.
 * - A moved chunk's K is within the rounding of its type of K rotated in double precision by angles that this file
 *   works out from the models' published bases; V is the same bytes.
 * - The engine's own rows agree: in the first layer K depends on nothing but token and position, so two prefixes of
 *   different lengths give rows that are one rotation apart.
 */
#include <math.h>

#include "engine_fixture.h"

/* ------------------------------------------------------------ at its own place */

static double largest_difference(const float *a, const float *b, size_t n)
{
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        if (!(d <= worst)) worst = d; /* NaN too */
    }
    return worst;
}

static void whole_prompt(const char *variable, uint32_t n_memory)
{
    const uint32_t n_tail = 9, n_last = 3;
    is_engine *engine = fixture_open(variable, 2048, 1);
    bool window = engine->ops->layout(engine)->layers[engine->ops->layout(engine)->n_layers - 1].window != 0;
    int32_t *tokens = fixture_tokens(engine, 7, n_memory + n_tail);
    is_encode_target target = {.tokens = tokens, .n_tokens = n_memory};
    fixture_encode(engine, NULL, 0, &target, 1);
    is_chunk chunk = fixture_chunk(&target);
    is_segment segments[2] = {{tokens, n_memory, &chunk}, {tokens + n_memory, n_tail, NULL}};
    is_plan inject = {.segments = segments, .n_segments = 2, .inject = true};
    is_plan prefill = {.segments = segments, .n_segments = 2, .salt = 5};
    is_run_stats injected, prefilled, resident;
    float *a = fixture_score(engine, &inject, n_last, &injected);
    float *b = fixture_score(engine, &prefill, n_last, &prefilled);
    float *c = fixture_score(engine, &prefill, n_last, &resident);
    assert_int_equal(injected.tokens_injected, n_memory);
    assert_int_equal(injected.tokens_prefilled, n_tail);
    assert_int_equal(injected.segments_injected, 1);
    assert_int_equal(injected.refused, 0);
    assert_int_equal(prefilled.tokens_injected, 0);
    assert_int_equal(prefilled.tokens_prefilled, n_memory + n_tail);
    /* The second prefill finds the memory in the cache; a sliding window has forgotten some of it. */
    assert_int_equal(resident.tokens_resident, window ? 0 : n_memory);
    size_t n = (size_t)n_last * engine->ops->vocab(engine);
    assert_true(largest_difference(a, b, n) == 0);
    assert_true(largest_difference(a, c, n) == 0);
    free(a);
    free(b);
    free(c);
    free(target.bytes);
    free(tokens);
    is_engine_close(engine);
}

static void test_whole_prompt_pairs(void **state)
{
    (void)state;
    whole_prompt(CHAT_MODEL, 200);
    whole_prompt(CHAT_MODEL, 1024);
}

static void test_whole_prompt_window(void **state)
{
    (void)state;
    whole_prompt(WINDOW_MODEL, 200);
    whole_prompt(WINDOW_MODEL, 1024); /* beyond the window of 512 */
}

/*
 * A slot that has held longer and shorter prompts, injected and prefilled, answered and not, still takes every chunk
 * exactly: rows of earlier prompts lie behind the ones that count.
 */
#define PROMPTS 5

static void slot_history(const char *variable, uint32_t slots)
{
    /* Multiples of four: some kernels compute tokens by fours and what is left over in another way, so that the last
     * bits of a token depend on how many tokens the engine was given with it. */
    const uint32_t lengths[PROMPTS] = {40, 300, 8, 520, 128};
    const uint32_t n_tail = 9;
    is_engine *engine = fixture_open(variable, 1024, slots);
    size_t vocab = engine->ops->vocab(engine);
    int32_t *tokens[PROMPTS];
    is_encode_target targets[PROMPTS];
    is_chunk chunks[PROMPTS];
    is_segment segments[PROMPTS][2];
    float *want[PROMPTS];
    for (uint32_t i = 0; i < PROMPTS; i++) {
        tokens[i] = fixture_tokens(engine, 100 + i, lengths[i] + n_tail);
        targets[i] = (is_encode_target){.tokens = tokens[i], .n_tokens = lengths[i]};
        fixture_encode(engine, NULL, 0, &targets[i], 1);
        chunks[i] = fixture_chunk(&targets[i]);
        segments[i][0] = (is_segment){tokens[i], lengths[i], &chunks[i]};
        segments[i][1] = (is_segment){tokens[i] + lengths[i], n_tail, NULL};
        want[i] = fixture_score(engine, &(is_plan){.segments = segments[i], .n_segments = 2}, 1, NULL);
    }
    uint32_t seed = 5;
    for (int step = 0; step < 24; step++) {
        seed = seed * 1664525u + 1013904223u;
        uint32_t i = (seed >> 8) % PROMPTS;
        bool inject = (seed >> 16) % 8 != 0;
        is_plan plan = {.segments = segments[i], .n_segments = 2, .inject = inject};
        plan.salt = (seed >> 20) % 2 == 0 ? 0 : 10 + 2 * i + inject;
        if ((seed >> 24) % 4 == 0) {
            free(fixture_answer(engine, plan, 5, NULL));
            continue;
        }
        is_run_stats stats;
        float *got = fixture_score(engine, &plan, 1, &stats);
        assert_int_equal(stats.tokens_injected + stats.tokens_resident + stats.tokens_prefilled, lengths[i] + n_tail);
        if (inject) assert_int_equal(stats.tokens_prefilled, n_tail);
        double difference = largest_difference(got, want[i], vocab);
        if (difference != 0) fail_msg("step %d, %u tokens: logits are off by %g", step, lengths[i], difference);
        free(got);
    }
    for (uint32_t i = 0; i < PROMPTS; i++) {
        free(tokens[i]);
        free(targets[i].bytes);
        free(want[i]);
    }
    is_engine_close(engine);
}

static void test_slot_history(void **state)
{
    (void)state;
    slot_history(CHAT_MODEL, 1);
    slot_history(CHAT_MODEL, 3);
    slot_history(WINDOW_MODEL, 2);
}

/* ------------------------------------------------------------ moved */

/* One model's rotation, as its authors publish it. */
typedef struct model_facts {
    const char *variable;
    bool half;      /* element i turns with i + width/2; else 2i with 2i + 1 */
    uint32_t width; /* of a head */
    double base;    /* of layers that see everything */
    double window_base;
    uint32_t n_full;   /* layers that see everything */
    uint32_t n_window; /* the rest, behind them in the cache */
} model_facts;

static const model_facts smollm2 = {CHAT_MODEL, false, 64, 100000, 0, 30, 0};
static const model_facts gemma3 = {WINDOW_MODEL, true, 256, 1000000, 10000, 3, 15};

typedef struct turn {
    double cos[128], sin[128];
} turn;

static turn turn_by(const model_facts *m, double base, int32_t shift)
{
    turn t;
    for (uint32_t i = 0; i < m->width / 2; i++) {
        double angle = (double)shift * pow(base, -2.0 * (double)i / (double)m->width);
        t.cos[i] = cos(angle);
        t.sin[i] = sin(angle);
    }
    return t;
}

/* Turns one head of a row: the 2x2 rotation of RoFormer, section 3.2, in double precision. */
static void rotate_head(const model_facts *m, const turn *t, const uint16_t *from, double *to)
{
    for (uint32_t i = 0; i < m->width / 2; i++) {
        uint32_t x = m->half ? i : 2 * i;
        uint32_t y = m->half ? i + m->width / 2 : 2 * i + 1;
        double a = (double)is_f16_to_f32(from[x]);
        double b = (double)is_f16_to_f32(from[y]);
        to[x] = a * t->cos[i] - b * t->sin[i];
        to[y] = a * t->sin[i] + b * t->cos[i];
    }
}

/* Half a step of f16 at this size, and a little for the f32 arithmetic before it. */
static double rounding(double value)
{
    int exponent;
    (void)frexp(value, &exponent);
    return ldexp(1.0, exponent < -13 ? -25 : exponent - 12) * 1.02;
}

/* Holds one K row against the source row. */
static void check_row(const model_facts *m, uint32_t layer, uint32_t heads, const turn *t, const uint8_t *source,
                      const uint8_t *moved)
{
    double want[512];
    uint16_t from[512], got[512];
    size_t bytes = m->width * sizeof *from;
    for (uint32_t h = 0; h < heads; h++) {
        memcpy(from, source + h * bytes, bytes);
        memcpy(got, moved + h * bytes, bytes);
        rotate_head(m, t, from, want);
        for (uint32_t i = 0; i < m->width; i++) {
            double value = (double)is_f16_to_f32(got[i]);
            /* f32 angles' sine and cosine are off by 2^-25 of the pair's size. */
            double slack = (fabs((double)is_f16_to_f32(from[i])) + fabs(want[i])) * 1e-6;
            if (!(fabs(value - want[i]) <= rounding(want[i]) + slack))
                fail_msg("layer %u head %u element %u is %.9g, want %.9g", layer, h, i, value, want[i]);
        }
    }
}

static void check_layout(const model_facts *m, const is_layout *layout)
{
    assert_int_equal(layout->dtype, IS_F16);
    assert_int_equal(layout->n_layers, m->n_full + m->n_window);
    for (uint32_t l = 0; l < layout->n_layers; l++) {
        const is_layer *layer = &layout->layers[l];
        assert_int_equal(layer->k_dim, m->width);
        assert_int_equal(layer->window, l < m->n_full ? 0 : 512);
        assert_true(layer->rope < layout->n_ropes);
        assert_int_equal(layout->ropes[layer->rope].style, m->half ? IS_ROPE_HALF : IS_ROPE_PAIR);
    }
}

/* Buffers for one composed layer each. */
static void open_targets(const is_layout *layout, uint32_t total, is_target *targets)
{
    for (uint32_t l = 0; l < layout->n_layers; l++) {
        is_target *t = &targets[l];
        size_t el = is_dtype_size(layout->dtype);
        t->first = is_layer_first(&layout->layers[l], total);
        t->n = total - t->first;
        t->k_stride = is_layer_k_bytes(layout, l);
        t->v_stride = layout->v_transposed ? t->n * el : is_layer_v_bytes(layout, l);
        t->k = malloc(t->n * is_layer_k_bytes(layout, l));
        t->v = malloc(t->n * is_layer_v_bytes(layout, l));
        assert_non_null(t->k);
        assert_non_null(t->v);
    }
}

static void check_v(const is_layout *layout, uint32_t layer, const is_chunk_rows *rows, uint32_t row,
                    const is_target *t, uint32_t to)
{
    size_t el = is_dtype_size(layout->dtype);
    if (!layout->v_transposed) {
        assert_memory_equal(t->v + to * t->v_stride, rows->v + row * rows->v_row, rows->v_row);
        return;
    }
    for (size_t d = 0; d < is_layer_v_bytes(layout, layer) / el; d++)
        assert_memory_equal(t->v + d * t->v_stride + to * el, rows->v + (d * rows->n + row) * el, el);
}

/* Every composed row against its chunk's row. */
static void check_composed(const model_facts *m, const is_layout *layout, const is_placed *placed, size_t n,
                           const is_target *targets)
{
    for (uint32_t l = 0; l < layout->n_layers; l++) {
        size_t seen = 0;
        for (size_t c = 0; c < n; c++) {
            is_chunk_rows rows = is_chunk_layer(placed[c].chunk, l);
            double base = l < m->n_full ? m->base : m->window_base;
            turn t = turn_by(m, base, placed[c].position - placed[c].chunk->info.p_ref);
            for (uint32_t r = 0; r < rows.n; r++) {
                uint32_t at = (uint32_t)placed[c].position + rows.first + r;
                if (at < targets[l].first) continue;
                uint32_t to = at - targets[l].first;
                seen++;
                check_row(m, l, layout->layers[l].heads, &t, rows.k + r * rows.k_row,
                          targets[l].k + to * targets[l].k_stride);
                check_v(layout, l, &rows, r, &targets[l], to);
            }
        }
        assert_int_equal(seen, targets[l].n);
    }
}

/* A fact encoded behind `behind` tokens and put behind a header of `header` tokens and another fact. */
static void moved(const model_facts *m, uint32_t behind, uint32_t header, uint32_t n_fact)
{
    is_engine *engine = fixture_open(m->variable, 1024, 1);
    const is_layout *layout = engine->ops->layout(engine);
    check_layout(m, layout);
    int32_t *prefix = fixture_tokens(engine, 11, behind);
    int32_t *head = fixture_tokens(engine, 12, header);
    int32_t *text = fixture_tokens(engine, 13, 2 * (size_t)n_fact);
    is_encode_target targets[2] = {{.tokens = text, .n_tokens = n_fact}, {.tokens = text + n_fact, .n_tokens = n_fact}};
    is_encode_target top = {.tokens = head, .n_tokens = header};
    fixture_encode(engine, prefix, behind, targets, 2);
    fixture_encode(engine, NULL, 0, &top, 1);
    is_chunk chunks[3] = {fixture_chunk(&top), fixture_chunk(&targets[0]), fixture_chunk(&targets[1])};
    assert_int_equal(chunks[1].info.p_ref, behind);
    assert_string_equal(chunks[1].info.recipe, "isolated");
    is_placed placed[3] = {{&chunks[0], 0}, {&chunks[1], (int32_t)header}, {&chunks[2], (int32_t)(header + n_fact)}};
    is_target *to = calloc(layout->n_layers, sizeof *to);
    assert_non_null(to);
    open_targets(layout, header + 2 * n_fact, to);
    is_error err = {0};
    if (is_compose(layout, placed, 3, to, 0, layout->n_layers, &err) != IS_OK) fail_msg("%s", err.text);
    check_composed(m, layout, placed, 3, to);
    for (uint32_t l = 0; l < layout->n_layers; l++) {
        free(to[l].k);
        free(to[l].v);
    }
    free(to);
    free(targets[0].bytes);
    free(targets[1].bytes);
    free(top.bytes);
    free(prefix);
    free(head);
    free(text);
    is_engine_close(engine);
}

static void test_moved_pairs(void **state)
{
    (void)state;
    moved(&smollm2, 37, 101, 23);
    moved(&smollm2, 101, 37, 23); /* to the front */
}

static void test_moved_window(void **state)
{
    (void)state;
    moved(&gemma3, 37, 101, 23);
    moved(&gemma3, 37, 700, 23); /* the window cuts the header's rows */
}

/* ------------------------------------------------------------ the engine's own rows */

/* The model's first layer stands first in the full cache of SmolLM2 and first in the window cache of Gemma 3. */
static void first_layer(const model_facts *m)
{
    const uint32_t near = 37, far = 229, n = 12;
    is_engine *engine = fixture_open(m->variable, 512, 1);
    const is_layout *layout = engine->ops->layout(engine);
    int32_t *prefix = fixture_tokens(engine, 21, far);
    int32_t *text = fixture_tokens(engine, 22, n);
    is_encode_target a = {.tokens = text, .n_tokens = n};
    is_encode_target b = a;
    fixture_encode(engine, prefix, near, &a, 1);
    fixture_encode(engine, prefix, far, &b, 1);
    is_chunk chunk_a = fixture_chunk(&a);
    is_chunk chunk_b = fixture_chunk(&b);
    uint32_t layer = m->n_window > 0 ? m->n_full : 0;
    turn t = turn_by(m, m->n_window > 0 ? m->window_base : m->base, (int32_t)(far - near));
    is_chunk_rows rows_a = is_chunk_layer(&chunk_a, layer);
    is_chunk_rows rows_b = is_chunk_layer(&chunk_b, layer);
    double want[512];
    uint16_t from[512], got[512];
    for (uint32_t r = 0; r < n; r++) {
        for (uint32_t h = 0; h < layout->layers[layer].heads; h++) {
            double diff = 0, norm = 0;
            memcpy(from, rows_a.k + r * rows_a.k_row + h * m->width * 2, m->width * 2);
            memcpy(got, rows_b.k + r * rows_b.k_row + h * m->width * 2, m->width * 2);
            rotate_head(m, &t, from, want);
            for (uint32_t i = 0; i < m->width; i++) {
                double d = (double)is_f16_to_f32(got[i]) - want[i];
                diff += d * d;
                norm += want[i] * want[i];
            }
            /* Two roundings to f16, 0.0003 each, and angles that the engine computes in f32. */
            if (!(sqrt(diff / norm) < 0.001))
                fail_msg("row %u head %u is off by %g of its length", r, h, sqrt(diff / norm));
        }
    }
    assert_memory_equal(rows_a.v, rows_b.v, n * is_layer_v_bytes(layout, layer));
    free(a.bytes);
    free(b.bytes);
    free(prefix);
    free(text);
    is_engine_close(engine);
}

static void test_first_layer(void **state)
{
    (void)state;
    first_layer(&smollm2);
    first_layer(&gemma3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_prompt_pairs), cmocka_unit_test(test_whole_prompt_window),
        cmocka_unit_test(test_slot_history),       cmocka_unit_test(test_moved_pairs),
        cmocka_unit_test(test_moved_window),       cmocka_unit_test(test_first_layer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
