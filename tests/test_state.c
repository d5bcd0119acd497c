/*
 * Reading and writing the sequence-state blob, and turning tokens' bytes into text.  No model is needed: the blobs are
 * built here, byte by byte, after the table in state.h.
 */
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/llama/internal.h"

/* ------------------------------------------------------------ a blob by hand */

#define BLOB_MAX 4096

typedef struct blob {
    uint8_t bytes[BLOB_MAX];
    size_t n;
} blob;

static void put(blob *b, const void *value, size_t n)
{
    assert_true(b->n + n <= BLOB_MAX);
    memcpy(b->bytes + b->n, value, n);
    b->n += n;
}

static void put32(blob *b, uint32_t v)
{
    put(b, &v, 4);
}

static void put64(blob *b, uint64_t v)
{
    put(b, &v, 8);
}

/* Rows that tell where they stand: every byte is tag + its own index. */
static void put_rows(blob *b, uint8_t tag, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint8_t v = (uint8_t)(tag + i);
        put(b, &v, 1);
    }
}

typedef struct cache_spec {
    uint32_t n_stream, full; /* which of the streams holds the cells */
    uint32_t n_cells, first; /* positions first, first + 1, ... */
    uint32_t n_layers;
    uint32_t k_row, v_row; /* v_row 0: latent */
    bool v_trans;
} cache_spec;

static void put_cache(blob *b, const cache_spec *s)
{
    put32(b, s->n_stream);
    for (uint32_t stream = 0; stream < s->n_stream; stream++) {
        if (stream != s->full) {
            put32(b, 0);
            continue;
        }
        put32(b, s->n_cells);
        for (uint32_t c = 0; c < s->n_cells; c++) {
            put32(b, s->first + c);
            put32(b, 1);
            put32(b, 7); /* the sequence */
        }
        put32(b, s->v_trans);
        put32(b, s->n_layers);
        for (uint32_t l = 0; l < s->n_layers; l++) {
            put32(b, 1); /* f16 */
            put64(b, s->k_row);
            put_rows(b, (uint8_t)(l * 16), (size_t)s->n_cells * s->k_row);
        }
        for (uint32_t l = 0; s->v_row != 0 && l < s->n_layers; l++) {
            put32(b, 1);
            if (s->v_trans) {
                put32(b, 2);
                put32(b, s->v_row / 2);
            } else {
                put64(b, s->v_row);
            }
            put_rows(b, (uint8_t)(l * 16 + 128), (size_t)s->n_cells * s->v_row);
        }
    }
}

static void begin_blob(blob *b)
{
    b->n = 0;
    put32(b, 0xfeed1234);
    put32(b, 7);
}

static const cache_spec plain = {.n_stream = 1, .n_cells = 3, .n_layers = 2, .k_row = 8, .v_row = 6};
static const cache_spec transposed = {
    .n_stream = 4, .full = 2, .n_cells = 3, .n_layers = 2, .k_row = 8, .v_row = 6, .v_trans = true};
static const cache_spec window = {.n_stream = 1, .n_cells = 2, .first = 1, .n_layers = 3, .k_row = 4, .v_row = 4};
static const cache_spec latent = {.n_stream = 4, .full = 1, .n_cells = 3, .n_layers = 2, .k_row = 8};

/* Parses a copy of exactly the blob's size, so that the sanitizers see every byte read behind it. */
static is_status parse(const blob *b, is_state_shape *shape, is_state_view *view, is_error *err, uint8_t **copy)
{
    *copy = malloc(b->n == 0 ? 1 : b->n);
    assert_non_null(*copy);
    memcpy(*copy, b->bytes, b->n);
    *err = (is_error){0};
    return is_state_parse(*copy, b->n, shape, view, err);
}

static void check_cache(const cache_spec *s, uint32_t index, const is_state_shape *shape, const is_state_view *view)
{
    const is_state_cache *cache = &shape->caches[index];
    assert_int_equal(cache->n_stream, s->n_stream);
    assert_int_equal(cache->n_layers, s->n_layers);
    assert_int_equal(cache->has_v, s->v_row != 0);
    assert_int_equal(view->n_cells[index], s->n_cells);
    for (uint32_t c = 0; c < s->n_cells; c++) assert_int_equal(is_state_position(view, index, c), s->first + c);
    for (uint32_t l = 0; l < s->n_layers; l++) {
        uint32_t layer = cache->layer_begin + l;
        assert_int_equal(is_state_cache_of(shape, layer), index);
        assert_int_equal(shape->layers[layer].k_row, s->k_row);
        assert_int_equal(shape->layers[layer].v_row, s->v_row);
        for (size_t i = 0; i < (size_t)s->n_cells * s->k_row; i++)
            assert_int_equal(view->k[layer][i], (uint8_t)(l * 16 + i));
        if (s->v_row == 0) assert_null(view->v[layer]);
        for (size_t i = 0; i < (size_t)s->n_cells * s->v_row; i++)
            assert_int_equal(view->v[layer][i], (uint8_t)(l * 16 + 128 + i));
    }
}

static void test_parse(void **state)
{
    (void)state;
    const cache_spec *const specs[3] = {&plain, &transposed, &latent};
    blob b;
    is_state_shape shape;
    is_state_view view;
    is_error err;
    uint8_t *copy;
    for (size_t i = 0; i < 3; i++) {
        begin_blob(&b);
        put_cache(&b, specs[i]);
        if (parse(&b, &shape, &view, &err, &copy) != IS_OK) fail_msg("%s", err.text);
        assert_int_equal(shape.magic, 0xfeed1234);
        assert_int_equal(shape.n_caches, 1);
        assert_int_equal(shape.v_trans, specs[i]->v_trans);
        check_cache(specs[i], 0, &shape, &view);
        free(copy);
    }
    begin_blob(&b);
    put_cache(&b, &plain);
    put_cache(&b, &window);
    if (parse(&b, &shape, &view, &err, &copy) != IS_OK) fail_msg("%s", err.text);
    assert_int_equal(shape.n_caches, 2);
    assert_int_equal(shape.n_layers, 5);
    check_cache(&plain, 0, &shape, &view);
    check_cache(&window, 1, &shape, &view);
    free(copy);
}

static void refused(const blob *b, const char *why)
{
    is_state_shape shape;
    is_state_view view;
    is_error err;
    uint8_t *copy;
    if (parse(b, &shape, &view, &err, &copy) != IS_ECORRUPT) fail_msg("%s: it was taken", why);
    if (strstr(err.text, "sequence state") == NULL) fail_msg("%s: the error says only \"%s\"", why, err.text);
    free(copy);
}

static void test_cut_short(void **state)
{
    (void)state;
    blob whole, b;
    begin_blob(&whole);
    put_cache(&whole, &transposed);
    for (size_t n = 0; n < whole.n; n++) {
        b = whole;
        b.n = n;
        refused(&b, "a blob that is cut short");
    }
}

static void test_wrong_numbers(void **state)
{
    (void)state;
    /* plain: 0 magic, 4 sequence, 8 streams, 12 cells, 16 the cells, 52 v_trans, 56 layers, 60 type, 64 K row */
    const struct {
        size_t at;
        uint32_t value;
        const char *why;
    } cases[] = {
        {8, 0, "no stream"},
        {8, 5000, "too many streams"},
        {8, 2, "a stream that is missing"},
        {12, 0, "no cells"},
        {12, 4, "a cell too many"},
        {12, UINT32_MAX, "more cells than there are bytes"},
        {16, UINT32_MAX, "a negative position"},
        {20, 0, "a cell of no sequence"},
        {20, 2, "a cell of two sequences"},
        {36, 8, "a cell of another sequence"},
        {52, 2, "an order of V that is none"},
        {56, 0, "no layers"},
        {56, IS_MAX_LAYERS + 1, "too many layers"},
        {56, 3, "a layer too many"},
        {64, 0, "a K row without size"},
        {64, 9, "a K row that is longer"},
        {68, UINT32_MAX, "a K row whose product does not fit"},
    };
    blob whole;
    begin_blob(&whole);
    put_cache(&whole, &plain);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        blob b = whole;
        memcpy(b.bytes + cases[i].at, &cases[i].value, 4);
        refused(&b, cases[i].why);
    }
    blob b = whole;
    put32(&b, 0);
    refused(&b, "bytes behind the last cache");
    b = whole;
    put_cache(&b, &window);
    put_cache(&b, &window);
    refused(&b, "three caches");
    cache_spec turned = window;
    turned.v_trans = true;
    begin_blob(&b);
    put_cache(&b, &plain);
    put_cache(&b, &turned);
    refused(&b, "caches of different orders");
    begin_blob(&b);
    put_cache(&b, &latent);
    put_cache(&b, &window);
    refused(&b, "a cache behind a latent one");
    begin_blob(&b);
    refused(&b, "no cache");
    begin_blob(&b);
    put_cache(&b, &transposed);
    memcpy(b.bytes + 12, &(uint32_t){1}, 4); /* stream 0 says that it has a cell too */
    refused(&b, "cells in two streams");
}

/* What is_state_begin writes, with rows put in where it says, is what the parser finds. */
static void test_written_and_read(void **state)
{
    (void)state;
    const cache_spec *const specs[4] = {&plain, &transposed, &latent, &plain};
    for (size_t i = 0; i < 4; i++) {
        blob b;
        is_state_shape shape, seen;
        is_state_view view;
        is_error err;
        uint8_t *copy;
        begin_blob(&b);
        put_cache(&b, specs[i]);
        if (i == 3) put_cache(&b, &window);
        assert_int_equal(parse(&b, &shape, &view, &err, &copy), IS_OK);
        free(copy);
        const uint32_t cells[2] = {9, 4};
        size_t size = is_state_bytes(&shape, cells);
        uint8_t *bytes = malloc(size);
        is_target targets[8];
        assert_non_null(bytes);
        assert_int_equal(is_state_begin(&shape, bytes, 9, cells, targets), size);
        for (uint32_t l = 0; l < shape.n_layers; l++) {
            uint32_t c = is_state_cache_of(&shape, l);
            const is_state_layer *layer = &shape.layers[l];
            assert_int_equal(targets[l].n, cells[c]);
            assert_int_equal(targets[l].first, 9 - cells[c]);
            assert_int_equal(targets[l].k_stride, layer->k_row);
            memset(targets[l].k, (int)l + 1, (size_t)layer->k_row * cells[c]);
            if (!shape.caches[c].has_v) continue;
            assert_int_equal(targets[l].v_stride, shape.v_trans ? layer->v_el * cells[c] : layer->v_row);
            memset(targets[l].v, (int)l + 100, (size_t)layer->v_row * cells[c]);
        }
        if (is_state_parse(bytes, size, &seen, &view, &err) != IS_OK) fail_msg("%s", err.text);
        assert_memory_equal(&seen, &shape, sizeof seen);
        for (uint32_t c = 0; c < shape.n_caches; c++) {
            assert_int_equal(view.n_cells[c], cells[c]);
            for (uint32_t n = 0; n < cells[c]; n++) assert_int_equal(is_state_position(&view, c, n), 9 - cells[c] + n);
        }
        for (uint32_t l = 0; l < shape.n_layers; l++) {
            uint32_t c = is_state_cache_of(&shape, l);
            for (size_t n = 0; n < (size_t)shape.layers[l].k_row * cells[c]; n++) assert_int_equal(view.k[l][n], l + 1);
            for (size_t n = 0; n < (size_t)shape.layers[l].v_row * cells[c]; n++)
                assert_int_equal(view.v[l][n], l + 100);
        }
        free(bytes);
    }
}

static void test_bytes_overflow(void **state)
{
    (void)state;
    is_state_shape shape = {.n_caches = 1, .n_layers = 2};
    shape.caches[0] = (is_state_cache){.n_stream = 1, .n_layers = 2, .has_v = true};
    shape.layers[0].k_row = shape.layers[1].k_row = UINT64_MAX / 2 + 1;
    uint32_t cells[2] = {1, 0};
    assert_int_equal(is_state_bytes(&shape, cells), 0);
    shape.layers[0].k_row = shape.layers[1].k_row = UINT64_MAX >> 33;
    cells[0] = UINT32_MAX;
    assert_int_equal(is_state_bytes(&shape, cells), 0);
}

/* ------------------------------------------------------------ text */

typedef struct piece {
    const char *bytes;
    size_t n;
} piece;

#define PIECE(s)                                                                                                       \
    {                                                                                                                  \
        s, sizeof(s) - 1                                                                                               \
    }

/* Feeds pieces; what was handed on is gathered in `out` and each part of it must be well-formed by itself. */
static void feed(is_text *t, const piece *pieces, size_t n, char *out, size_t size)
{
    size_t at = 0;
    is_error err;
    const char *part;
    size_t length;
    for (size_t i = 0; i < n && !t->stopped; i++) {
        assert_int_equal(is_text_append(t, pieces[i].bytes, pieces[i].n, &part, &length, &err), IS_OK);
        assert_true(length == 0 || is_utf8_valid(part, length));
        assert_true(at + length < size);
        if (length > 0) memcpy(out + at, part, length);
        at += length;
    }
    is_text_finish(t, &part, &length);
    assert_true(length == 0 || is_utf8_valid(part, length));
    assert_true(at + length < size);
    if (length > 0) memcpy(out + at, part, length);
    out[at + length] = '\0';
    assert_string_equal(out, t->all == NULL ? "" : t->all);
    is_text_finish(t, &part, &length);
    assert_int_equal(length, 0);
}

static void text_is(const piece *pieces, size_t n, const char *const *stop, size_t n_stop, const char *want,
                    bool stopped)
{
    is_text t = {.stop = stop, .n_stop = n_stop};
    char out[256];
    feed(&t, pieces, n, out, sizeof out);
    assert_string_equal(out, want);
    assert_int_equal(t.stopped, stopped);
    free(t.all);
}

#define TEXT_IS(want, ...)                                                                                             \
    do {                                                                                                               \
        const piece pieces[] = {__VA_ARGS__};                                                                          \
        text_is(pieces, sizeof pieces / sizeof *pieces, NULL, 0, want, false);                                         \
    } while (0)

static void test_characters(void **state)
{
    (void)state;
    TEXT_IS("", PIECE(""));
    TEXT_IS("abc", PIECE("a"), PIECE(""), PIECE("bc"));
    TEXT_IS("\xC3\xA9", PIECE("\xC3"), PIECE("\xA9"));
    TEXT_IS("\xE2\x82\xAC!", PIECE("\xE2"), PIECE("\x82"), PIECE("\xAC!"));
    TEXT_IS("a\xF0\x9F\x98\x80z", PIECE("a\xF0"), PIECE("\x9F\x98"), PIECE("\x80z"));
    TEXT_IS("\xF4\x8F\xBF\xBF", PIECE("\xF4"), PIECE("\x8F"), PIECE("\xBF"), PIECE("\xBF"));
    /* cut off at the end */
    TEXT_IS("a", PIECE("a\xF0\x9F\x98"));
    TEXT_IS("", PIECE("\xC3"));
}

/* Bytes that are no UTF-8 become U+FFFD, one for each run that could not go on (the practice of Unicode 3.9). */
static void test_no_characters(void **state)
{
    (void)state;
    TEXT_IS("\xEF\xBF\xBD", PIECE("\x80"));
    TEXT_IS("a\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"
            "b",
            PIECE("a\x80\x81"),
            PIECE("\x82\x83"
                  "b"));
    TEXT_IS("\xEF\xBF\xBD\xC3\xA9", PIECE("\xE2\x82"), PIECE("\xC3\xA9"));
    TEXT_IS("\xEF\xBF\xBDx", PIECE("\xF0\x9F\x98"), PIECE("x"));
    TEXT_IS("\xEF\xBF\xBD\xEF\xBF\xBD", PIECE("\xC0\xAF")); /* overlong */
    TEXT_IS("\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD", PIECE("\xE0\x80\xAF"));
    TEXT_IS("\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD", PIECE("\xED\xA0\x80")); /* surrogate */
    TEXT_IS("\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD", PIECE("\xF4\x90\x80\x80"));
    TEXT_IS("\xEF\xBF\xBD\xEF\xBF\xBD", PIECE("\xFF\xFE"));
    TEXT_IS("\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD", PIECE("\xC3"), PIECE("\xC3"), PIECE("\xFF"));
}

static void test_any_bytes(void **state)
{
    (void)state;
    uint32_t seed = 1;
    for (int round = 0; round < 2000; round++) {
        char bytes[24];
        piece pieces[8];
        for (size_t i = 0; i < sizeof bytes; i++) {
            seed = seed * 1664525u + 1013904223u;
            static const unsigned char often[] = {0xC3, 0xE2, 0xED, 0xF0, 0xF4, 0x80, 0x9F, 0xA0, 0xBF, 'a'};
            bytes[i] = (char)(seed >> 30 == 0 ? (seed >> 16) | 1 : often[(seed >> 16) % sizeof often]);
            if (bytes[i] == '\0') bytes[i] = ' ';
        }
        for (size_t i = 0; i < 8; i++) pieces[i] = (piece){bytes + 3 * i, 3};
        is_text t = {.n_stop = 0};
        char out[128];
        feed(&t, pieces, 8, out, sizeof out);
        assert_true(is_utf8_valid(t.all, strlen(t.all)));
        /* In one piece it is the same text. */
        piece whole = {bytes, sizeof bytes};
        is_text u = {.n_stop = 0};
        char other[128];
        feed(&u, &whole, 1, other, sizeof other);
        assert_string_equal(out, other);
        free(t.all);
        free(u.all);
    }
}

static void test_stop(void **state)
{
    (void)state;
    const char *const stop[] = {"END", "", "\n\n", "\xE2\x82\xAC"};
    const piece over_borders[] = {PIECE("so E"), PIECE("N"), PIECE("Done")};
    text_is(over_borders, 3, stop, 4, "so ", true);
    const piece almost[] = {PIECE("so E"), PIECE("N"), PIECE("d, EEN"), PIECE("!")};
    text_is(almost, 4, stop, 4, "so ENd, EEN!", false);
    const piece held_at_end[] = {PIECE("a\n")};
    text_is(held_at_end, 1, stop, 4, "a\n", false);
    const piece at_once[] = {PIECE("END")};
    text_is(at_once, 1, stop, 4, "", true);
    const piece first_wins[] = {PIECE("a\n"), PIECE("\nbEND")};
    text_is(first_wins, 2, stop, 4, "a", true);
    const piece within_character[] = {PIECE("5 \xE2\x82"), PIECE("\xAC"), PIECE("x")};
    text_is(within_character, 3, stop, 4, "5 ", true);
    const piece twice_begun[] = {PIECE("EE"), PIECE("ND")};
    text_is(twice_begun, 2, stop, 4, "E", true);
}

/* Nothing of a stop string goes out before it is sure that it is none. */
static void test_held_back(void **state)
{
    (void)state;
    const char *const stop[] = {"Stop now", "op"};
    is_text t = {.stop = stop, .n_stop = 2};
    is_error err;
    const char *out;
    size_t n;
    assert_int_equal(is_text_append(&t, "x St", 4, &out, &n, &err), IS_OK);
    assert_int_equal(n, 2);
    assert_memory_equal(out, "x ", 2);
    assert_int_equal(is_text_append(&t, "o", 1, &out, &n, &err), IS_OK);
    assert_int_equal(n, 0);
    assert_int_equal(is_text_append(&t, "p", 1, &out, &n, &err), IS_OK);
    assert_int_equal(n, 2);
    assert_memory_equal(out, "St", 2);
    assert_true(t.stopped);
    assert_string_equal(t.all, "x St");
    free(t.all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse),          cmocka_unit_test(test_cut_short),
        cmocka_unit_test(test_wrong_numbers),  cmocka_unit_test(test_written_and_read),
        cmocka_unit_test(test_bytes_overflow), cmocka_unit_test(test_characters),
        cmocka_unit_test(test_no_characters),  cmocka_unit_test(test_any_bytes),
        cmocka_unit_test(test_stop),           cmocka_unit_test(test_held_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
