/*
 * The chunk format: what is written comes back, and nothing else is ever accepted.
 *
 * Offsets into the header are written out here as numbers, independently of the structs in the
 * library, so that a change of the format cannot pass unseen.  Called with a folder as its argument, the
 * program writes the fuzzer's seeds there.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <xxhash.h>

#include "kv/chunk.h"
#include "kv/chunk_scan.h"
#include "kv/compose.h"

/* --------------------------------------------------------------- helpers */

static is_layout layout_of(is_dtype dtype, bool v_transposed)
{
    static is_layout layout;
    memset(&layout, 0, sizeof layout);
    layout.dtype = dtype;
    layout.v_transposed = v_transposed;
    layout.n_layers = 3;
    layout.layers[0] = (is_layer){.heads = 2, .k_dim = 5, .v_dim = 3, .rope = IS_LAYER_NO_ROPE};
    layout.layers[1] = (is_layer){.heads = 1, .k_dim = 7, .v_dim = 4, .window = 4, .rope = IS_LAYER_NO_ROPE};
    layout.layers[2] = (is_layer){.heads = 1, .k_dim = 9, .v_dim = 0, .rope = IS_LAYER_NO_ROPE}; /* latent */
    return layout;
}

typedef struct made {
    uint8_t *bytes;
    size_t size;
} made;

static void put_element(uint8_t *to, is_dtype dtype, size_t i, float value)
{
    uint16_t half = dtype == IS_F16 ? is_f32_to_f16(value) : is_f32_to_bf16(value);
    if (dtype == IS_F32)
        memcpy(to + 4 * i, &value, 4);
    else
        memcpy(to + 2 * i, &half, 2);
}

/* A begun and filled chunk: element i of layer l is l * 1000 + i in K, and its negative in V. */
static made filled(const is_layout *layout, uint32_t n_tokens)
{
    made out = {.size = is_chunk_bytes(layout, n_tokens)};
    assert_true(out.size > 0);
    out.bytes = aligned_alloc(64, out.size);
    assert_non_null(out.bytes);
    memset(out.bytes, 0xff, out.size); /* NaN in every type: what is not written must be zeroed */
    is_chunk_info info = {.recipe = "primed:8", .p_ref = 77, .n_tokens = n_tokens};
    memset(info.fingerprint, 0x11, 16);
    memset(info.context, 0x22, 16);
    memset(info.text, 0x33, 16);
    int32_t *tokens = calloc(n_tokens, sizeof *tokens);
    assert_non_null(tokens);
    for (uint32_t i = 0; i < n_tokens; i++) tokens[i] = (int32_t)i * 3 + 1;
    is_error err = {0};
    if (is_chunk_begin(out.bytes, out.size, layout, &info, tokens, &err) != IS_OK) fail_msg("%s", err.text);
    free(tokens);
    for (uint32_t l = 0; l < layout->n_layers; l++) {
        uint8_t *k, *v;
        uint32_t first, n;
        is_chunk_rows_mut(out.bytes, l, &k, &v, &first, &n);
        const is_layer *o = &layout->layers[l];
        for (size_t i = 0; i < (size_t)n * o->heads * o->k_dim; i++)
            put_element(k, layout->dtype, i, (float)(l * 1000 + i));
        for (size_t i = 0; i < (size_t)n * o->heads * o->v_dim; i++)
            put_element(v, layout->dtype, i, -(float)(l * 1000 + i));
    }
    return out;
}

static made sealed(const is_layout *layout, uint32_t n_tokens)
{
    made out = filled(layout, n_tokens);
    is_chunk_seal(out.bytes);
    return out;
}

static is_status opens(const void *bytes, size_t size, is_chunk_check check)
{
    is_chunk chunk;
    is_error err = {0};
    is_status status = is_chunk_open(&chunk, bytes, size, check, &err);
    assert_int_equal(err.status, status);
    if (status != IS_OK) assert_true(strlen(err.text) > 10);
    return status;
}

static void canonical(uint8_t out[16], XXH128_hash_t hash)
{
    XXH128_canonical_t digest;
    XXH128_canonicalFromHash(&digest, hash);
    memcpy(out, digest.digest, 16);
}

static uint32_t get32(const uint8_t *from)
{
    uint32_t value;
    memcpy(&value, from, 4);
    return value;
}

static uint64_t get64(const uint8_t *from)
{
    uint64_t value;
    memcpy(&value, from, 8);
    return value;
}

/* Puts right hashes on whatever the lengths say, where they say something that can be hashed. */
static void reseal(uint8_t *bytes, size_t size)
{
    uint64_t front = 256 + 48 * (uint64_t)get32(bytes + 20) + 4 * (uint64_t)get32(bytes + 24);
    uint64_t payload = get64(bytes + 40);
    uint64_t end = get64(bytes + 32);
    memset(bytes + 144, 0, 32);
    uint8_t meta[16] = {0}, data[16] = {0};
    if (front <= size) canonical(meta, XXH3_128bits(bytes, (size_t)front));
    if (payload <= end && end <= size) canonical(data, XXH3_128bits(bytes + payload, (size_t)(end - payload)));
    memcpy(bytes + 144, meta, 16);
    memcpy(bytes + 160, data, 16);
}

/* ------------------------------------------------------------ round trip */

static void assert_rows(const is_chunk *chunk, const is_layout *layout)
{
    size_t element = is_dtype_size(layout->dtype);
    const uint8_t *end = NULL;
    for (uint32_t l = 0; l < layout->n_layers; l++) {
        const is_layer *o = &layout->layers[l];
        is_chunk_rows rows = is_chunk_layer(chunk, l);
        uint32_t first = o->window != 0 && chunk->info.n_tokens > o->window ? chunk->info.n_tokens - o->window : 0;
        assert_int_equal(rows.first, first);
        assert_int_equal(rows.n, chunk->info.n_tokens - first);
        assert_int_equal(rows.k_row, o->heads * o->k_dim * element);
        assert_int_equal(rows.v_row, o->heads * o->v_dim * element);
        assert_int_equal((uintptr_t)rows.k % 64, 0);
        assert_true(end == NULL || rows.k >= end);
        end = rows.k + rows.n * rows.k_row;
        if (o->v_dim == 0) {
            assert_null(rows.v);
        } else {
            assert_int_equal((uintptr_t)rows.v % 64, 0);
            assert_true(rows.v >= end);
            end = rows.v + rows.n * rows.v_row;
        }
        assert_true(end <= chunk->bytes + chunk->size);
        uint8_t want[4];
        for (size_t i = 0; i < rows.n * rows.k_row / element; i++) {
            put_element(want, layout->dtype, 0, (float)(l * 1000 + i));
            assert_memory_equal(rows.k + i * element, want, element);
        }
        for (size_t i = 0; i < rows.n * rows.v_row / element; i++) {
            put_element(want, layout->dtype, 0, -(float)(l * 1000 + i));
            assert_memory_equal(rows.v + i * element, want, element);
        }
    }
}

static void what_is_written_comes_back(void **state)
{
    (void)state;
    const is_dtype dtypes[] = {IS_F16, IS_BF16, IS_F32};
    const uint32_t lengths[] = {1, 4, 5, 33, 1000};
    for (size_t d = 0; d < 3; d++) {
        for (size_t n = 0; n < sizeof lengths / sizeof *lengths; n++) {
            is_layout layout = layout_of(dtypes[d], d % 2 == 0);
            made m = sealed(&layout, lengths[n]);
            is_chunk chunk;
            is_error err = {0};
            if (is_chunk_open(&chunk, m.bytes, m.size, IS_CHUNK_CHECK_PAYLOAD, &err) != IS_OK) fail_msg("%s", err.text);
            assert_int_equal(chunk.info.p_ref, 77);
            assert_int_equal(chunk.info.n_tokens, lengths[n]);
            assert_string_equal(chunk.info.recipe, "primed:8");
            for (int i = 0; i < 16; i++)
                assert_true(chunk.info.fingerprint[i] == 0x11 && chunk.info.context[i] == 0x22 &&
                            chunk.info.text[i] == 0x33);
            assert_int_equal(chunk.dtype, dtypes[d]);
            assert_int_equal(chunk.v_transposed, d % 2 == 0);
            assert_int_equal(chunk.n_layers, 3);
            assert_ptr_equal(chunk.bytes, m.bytes);
            assert_int_equal(chunk.size, m.size);
            for (uint32_t i = 0; i < lengths[n]; i++) assert_int_equal(chunk.tokens[i], i * 3 + 1);
            assert_rows(&chunk, &layout);
            assert_int_equal(is_chunk_fits(&chunk, &layout, NULL), IS_OK);
            free(m.bytes);
        }
    }
}

/* The table of the format, as numbers: version 1 may not change. */
static void bytes_lie_where_the_format_says(void **state)
{
    (void)state;
    is_layout layout = layout_of(IS_F16, true);
    made m = sealed(&layout, 10);
    assert_memory_equal(m.bytes, "ISKVCHNK", 8);
    const uint32_t fields[] = {1, IS_F16, 1, 3, 10, 77};
    for (size_t i = 0; i < 6; i++) assert_int_equal(get32(m.bytes + 8 + 4 * i), fields[i]);
    assert_int_equal(get64(m.bytes + 32), m.size);
    assert_int_equal(get64(m.bytes + 40), 4096);
    assert_int_equal(m.bytes[48], 0x11);
    assert_int_equal(m.bytes[64], 0x22);
    assert_string_equal((const char *)m.bytes + 80, "primed:8");
    const uint8_t *windowed = m.bytes + 256 + 48;
    const uint32_t record[] = {6, 4, 1, 7, 4, 0};
    for (size_t i = 0; i < 6; i++) assert_int_equal(get32(windowed + 4 * i), record[i]);
    /* K of layer 0: 10 rows of 20 bytes, its V: 10 of 12; each to the next 64 */
    assert_int_equal(get64(windowed + 24), 256 + 128);
    assert_int_equal(get64(windowed + 32), 256 + 128 + 64);
    assert_int_equal(get32(m.bytes + 256 + 3 * 48), 1); /* token 0 */
    assert_int_equal(m.size, 4096 + 256 + 128 + 64 + 64 + 192);
    uint8_t before[32];
    memcpy(before, m.bytes + 144, 32);
    reseal(m.bytes, m.size);
    assert_memory_equal(m.bytes + 144, before, 32);
    free(m.bytes);
}

static void sizes_out_of_range(void **state)
{
    (void)state;
    is_layout layout = layout_of(IS_F32, false);
    assert_int_equal(is_chunk_bytes(&layout, 0), 0);
    assert_int_equal(is_chunk_bytes(&layout, IS_CHUNK_MAX_TOKENS + 1), 0);
    assert_true(is_chunk_bytes(&layout, IS_CHUNK_MAX_TOKENS) > (size_t)IS_CHUNK_MAX_TOKENS * 4 * (10 + 6 + 9));
    layout.layers[0].heads = 0;
    assert_int_equal(is_chunk_bytes(&layout, 4), 0);
}

static void begin_refuses_what_could_not_be_opened(void **state)
{
    (void)state;
    is_layout layout = layout_of(IS_F16, false);
    size_t size = is_chunk_bytes(&layout, 2);
    uint8_t *bytes = aligned_alloc(64, size + 64);
    const int32_t tokens[2] = {1, 2};
    is_chunk_info info = {.recipe = "isolated", .p_ref = 0, .n_tokens = 2};
    is_error err;
    assert_int_equal(is_chunk_begin(bytes, size, &layout, &info, tokens, &err), IS_OK);
    assert_int_equal(is_chunk_begin(bytes + 2, size, &layout, &info, tokens, &err), IS_EINVAL);
    assert_int_equal(is_chunk_begin(bytes, size - 64, &layout, &info, tokens, &err), IS_EINVAL);
    assert_int_equal(is_chunk_begin(bytes, size + 64, &layout, &info, tokens, &err), IS_EINVAL);
    info.p_ref = -1;
    assert_int_equal(is_chunk_begin(bytes, size, &layout, &info, tokens, &err), IS_EINVAL);
    info.p_ref = 0;
    info.n_tokens = 0;
    assert_int_equal(is_chunk_begin(bytes, size, &layout, &info, tokens, &err), IS_EINVAL);
    info.n_tokens = 2;
    memset(info.recipe, 'x', sizeof info.recipe);
    assert_int_equal(is_chunk_begin(bytes, size, &layout, &info, tokens, &err), IS_EINVAL);
    assert_non_null(strstr(err.text, "recipe"));
    info.recipe[IS_RECIPE_MAX - 1] = 0;
    layout.layers[1].k_dim = 0;
    assert_int_equal(is_chunk_begin(bytes, size, &layout, &info, tokens, &err), IS_EINVAL);
    free(bytes);
}

/* ------------------------------------------------------------ corruption */

static void every_flipped_byte_is_noticed(void **state)
{
    (void)state;
    is_layout layout = layout_of(IS_BF16, true);
    made m = sealed(&layout, 6);
    for (size_t i = 0; i < m.size; i++) {
        for (int bit = 0; bit < 8; bit += 7) {
            m.bytes[i] ^= (uint8_t)(1u << bit);
            if (opens(m.bytes, m.size, IS_CHUNK_CHECK_PAYLOAD) == IS_OK) fail_msg("bit %d of byte %zu", bit, i);
            m.bytes[i] ^= (uint8_t)(1u << bit);
        }
    }
    for (size_t i = 0; i < 4096; i++) { /* all but the payload's hash is noticed without the payload's check */
        if (i >= 160 && i < 176) continue;
        m.bytes[i] ^= 0x40;
        if (opens(m.bytes, m.size, IS_CHUNK_CHECK_HEADER) == IS_OK) fail_msg("byte %zu", i);
        m.bytes[i] ^= 0x40;
    }
    assert_int_equal(opens(m.bytes, m.size, IS_CHUNK_CHECK_PAYLOAD), IS_OK);
    free(m.bytes);
}

static void every_other_length_fails(void **state)
{
    (void)state;
    is_layout layout = layout_of(IS_F16, false);
    made m = sealed(&layout, 6);
    for (size_t size = 0; size < m.size; size++) {
        uint8_t *cut = aligned_alloc(64, (size + 64) / 64 * 64); /* its own memory, so that ASan sees a read behind */
        memcpy(cut, m.bytes, size);
        if (size % 64 != 0 || size < 512) assert_int_equal(opens(cut, size, IS_CHUNK_CHECK_PAYLOAD), IS_ECORRUPT);
        assert_int_equal(opens(cut, size, IS_CHUNK_CHECK_HEADER), IS_ECORRUPT);
        free(cut);
    }
    uint8_t *longer = aligned_alloc(64, m.size + 64);
    memcpy(longer, m.bytes, m.size);
    memset(longer + m.size, 0, 64);
    assert_int_equal(opens(longer, m.size + 64, IS_CHUNK_CHECK_HEADER), IS_ECORRUPT);
    free(longer);
    free(m.bytes);
}

static void other_versions_and_addresses(void **state)
{
    (void)state;
    is_layout layout = layout_of(IS_F16, false);
    made m = sealed(&layout, 3);
    m.bytes[8] = 2;
    reseal(m.bytes, m.size);
    assert_int_equal(opens(m.bytes, m.size, IS_CHUNK_CHECK_PAYLOAD), IS_EUNSUPPORTED);
    assert_int_equal(opens(m.bytes + 4, m.size - 4, IS_CHUNK_CHECK_PAYLOAD), IS_EINVAL);
    free(m.bytes);
}

/* Another head or width may fit into the 64 bytes' rounding; then rows must stay inside. */
static bool smaller_than_its_place(const uint8_t *bytes, size_t size, size_t at)
{
    size_t field = (at - 256) % 48;
    if (at < 256 || field < 8 || field > 16) return false;
    is_chunk chunk;
    assert_int_equal(is_chunk_open(&chunk, bytes, size, IS_CHUNK_CHECK_HEADER, NULL), IS_OK);
    const uint8_t *end = bytes + 4096;
    for (uint32_t l = 0; l < chunk.n_layers; l++) {
        is_chunk_rows rows = is_chunk_layer(&chunk, l);
        if (rows.k < end) return false;
        end = rows.k + rows.n * rows.k_row;
        if (rows.v != NULL && rows.v < end) return false;
        if (rows.v != NULL) end = rows.v + rows.n * rows.v_row;
    }
    return end <= bytes + size;
}

/* Right hashes over wrong numbers: every length and offset on its own, set to what hurts most. */
static void a_right_hash_makes_no_number_right(void **state)
{
    (void)state;
    is_layout layout = layout_of(IS_F16, true);
    made m = sealed(&layout, 6);
    uint8_t *bytes = aligned_alloc(64, m.size);
    const uint64_t values[] = {0,
                               1,
                               2,
                               5,
                               7,
                               63,
                               64,
                               4095,
                               4096,
                               0x7fffffff,
                               0x80000000,
                               0xffffffff,
                               1ull << 33,
                               UINT64_MAX / 2,
                               UINT64_MAX - 63,
                               UINT64_MAX};
    for (size_t at = 8; at < 256 + 3 * 48; at += 4) {
        bool free_to_choose = at == 28 || (at >= 48 && at < 144) || (at >= 176 && at < 192);
        /* p_ref, fingerprint, context, recipe, text */
        bool hashes = at >= 144 && at < 176;
        if (free_to_choose || hashes) continue;
        for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
            for (size_t width = 4; width <= 8; width += 4) {
                if (width == 8 && (at % 8 != 0 || at + 8 > 256 + 3 * 48)) continue;
                memcpy(bytes, m.bytes, m.size);
                memcpy(bytes + at, &values[v], width);
                if (memcmp(bytes, m.bytes, m.size) == 0) continue;
                if (at == 16 && (uint32_t)values[v] <= 1 && width == 4) continue; /* V in rows or not: both can be */
                if (at == 12 && values[v] == IS_BF16 && width == 4) continue;     /* as wide as f16 */
                reseal(bytes, m.size);
                if (opens(bytes, m.size, IS_CHUNK_CHECK_PAYLOAD) == IS_OK && !smaller_than_its_place(bytes, m.size, at))
                    fail_msg("field at %zu set to %llx", at, (unsigned long long)values[v]);
            }
        }
    }
    memcpy(bytes, m.bytes, m.size);
    memset(bytes + 28, 0xff, 4); /* p_ref -1 */
    reseal(bytes, m.size);
    assert_int_equal(opens(bytes, m.size, IS_CHUNK_CHECK_HEADER), IS_ECORRUPT);
    memcpy(bytes, m.bytes, m.size);
    memset(bytes + 80, 'x', 64); /* a recipe without end */
    reseal(bytes, m.size);
    assert_int_equal(opens(bytes, m.size, IS_CHUNK_CHECK_HEADER), IS_ECORRUPT);
    free(bytes);
    free(m.bytes);
}

/* Everything agrees, but the last layer keeps no row: `first` must be a token. */
static void a_layer_without_rows_is_refused(void **state)
{
    (void)state;
    is_layout layout = layout_of(IS_F16, true);
    made m = sealed(&layout, 6);
    uint8_t *last = m.bytes + 256 + 2 * 48;
    size_t k_offset = (size_t)get64(last + 24);
    const uint32_t first_n[2] = {6, 0};
    const uint64_t end = 4096 + k_offset;
    memcpy(last, first_n, 8);
    memcpy(last + 32, &k_offset, 8); /* V of no bytes, behind K of no bytes */
    memcpy(m.bytes + 32, &end, 8);
    reseal(m.bytes, (size_t)end);
    assert_int_equal(opens(m.bytes, (size_t)end, IS_CHUNK_CHECK_PAYLOAD), IS_ECORRUPT);
    free(m.bytes);
}

/* ---------------------------------------------------------------- finite */

static void elements_must_be_finite(void **state)
{
    (void)state;
    const is_dtype dtypes[] = {IS_F16, IS_BF16, IS_F32};
    const uint32_t largest[] = {0x7bff, 0x7f7f, 0x7f7fffff};
    const uint32_t infinite[] = {0x7c00, 0x7f80, 0x7f800000};
    for (size_t d = 0; d < 3; d++) {
        is_layout layout = layout_of(dtypes[d], true);
        size_t element = is_dtype_size(dtypes[d]);
        uint32_t sign = element == 2 ? 0x8000u : 0x80000000u;
        const uint32_t bad[] = {infinite[d], infinite[d] | sign, infinite[d] | 1,
                                infinite[d] | sign | infinite[d] >> 3};
        made m = filled(&layout, 9);
        for (uint32_t l = 0; l < 3; l++) {
            for (int part = 0; part < 2; part++) {
                uint8_t *k, *v;
                uint32_t first, n;
                is_chunk_rows_mut(m.bytes, l, &k, &v, &first, &n);
                const is_layer *o = &layout.layers[l];
                uint8_t *rows = part == 0 ? k : v;
                if (rows == NULL) continue;
                size_t last = (size_t)n * o->heads * (part == 0 ? o->k_dim : o->v_dim) - 1;
                for (size_t i = 0; i <= last; i += last) {
                    uint32_t keep;
                    memcpy(&keep, rows + i * element, element);
                    for (size_t b = 0; b < 4; b++) {
                        memcpy(rows + i * element, &bad[b], element);
                        is_chunk_seal(m.bytes);
                        assert_int_equal(opens(m.bytes, m.size, IS_CHUNK_CHECK_PAYLOAD), IS_ECORRUPT);
                        assert_int_equal(opens(m.bytes, m.size, IS_CHUNK_CHECK_HEADER), IS_OK);
                    }
                    uint32_t most = largest[d] | sign;
                    memcpy(rows + i * element, &most, element);
                    is_chunk_seal(m.bytes);
                    assert_int_equal(opens(m.bytes, m.size, IS_CHUNK_CHECK_PAYLOAD), IS_OK);
                    memcpy(rows + i * element, &keep, element);
                }
            }
        }
        free(m.bytes);
    }
}

typedef bool (*scan_fn)(const uint8_t *, size_t, is_dtype, uint8_t[16]);

static void scans_with(scan_fn scan)
{
    const size_t sizes[] = {64, 128, 4096, 65536, 65600, 200000 / 64 * 64};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        size_t n = sizes[s];
        uint8_t *bytes = aligned_alloc(64, n);
        for (size_t i = 0; i < n; i++) bytes[i] = (uint8_t)((i * 131 + i / 7) % 120); /* below 0x78: finite as f16 */
        uint8_t want[16], got[16];
        canonical(want, XXH3_128bits(bytes, n));
        assert_true(scan(bytes, n, IS_F16, got));
        assert_memory_equal(got, want, 16);
        const uint16_t nan = 0x7e01;
        for (size_t i = 0; i < n; i += n < 5000 ? 2 : 1234) {
            uint16_t keep;
            memcpy(&keep, bytes + i, 2);
            memcpy(bytes + i, &nan, 2);
            assert_false(scan(bytes, n, IS_F16, got));
            memcpy(bytes + i, &keep, 2);
        }
        free(bytes);
    }
}

/* One 16-bit value at a time, every one there is, against its exponent read out the plain way. */
static void every_half_is_judged(scan_fn scan)
{
    _Alignas(64) uint8_t bytes[64] = {0};
    uint8_t hash[16];
    for (uint32_t h = 0; h < 65536; h++) {
        uint16_t half = (uint16_t)h;
        memcpy(bytes + h % 32 * 2, &half, 2);
        assert_int_equal(scan(bytes, 64, IS_F16, hash), isfinite(is_f16_to_f32(half)) != 0);
        assert_int_equal(scan(bytes, 64, IS_BF16, hash), isfinite(is_bf16_to_f32(half)) != 0);
        memset(bytes + h % 32 * 2, 0, 2);
    }
}

static void scans_of_every_instruction_set_agree(void **state)
{
    (void)state;
    scans_with(is_chunk_scan);
    every_half_is_judged(is_chunk_scan);
#ifdef __x86_64__
    if (is_isa_supported(IS_ISA_AVX2)) {
        scans_with(is_chunk_scan_avx2);
        every_half_is_judged(is_chunk_scan_avx2);
    }
#endif
}

/* ------------------------------------------------------------------ fits */

static void misfit(const is_chunk *chunk, const is_layout *layout, const char *word)
{
    is_error err = {0};
    assert_int_equal(is_chunk_fits(chunk, layout, &err), IS_EINVAL);
    if (strstr(err.text, word) == NULL) fail_msg("\"%s\" does not say %s", err.text, word);
}

static void fits_only_its_own_layout(void **state)
{
    (void)state;
    is_layout layout = layout_of(IS_F16, true);
    made m = sealed(&layout, 9);
    is_chunk chunk;
    assert_int_equal(is_chunk_open(&chunk, m.bytes, m.size, IS_CHUNK_CHECK_HEADER, NULL), IS_OK);
    is_layout other;
#define MISFIT(change, word)                                                                                           \
    do {                                                                                                               \
        other = layout;                                                                                                \
        change;                                                                                                        \
        misfit(&chunk, &other, word);                                                                                  \
    } while (0)
    MISFIT(other.dtype = IS_BF16, "bf16");
    MISFIT(other.v_transposed = false, "transposed");
    MISFIT(other.n_layers = 2, "layers");
    MISFIT((other.layers[0].heads = 1, other.layers[0].k_dim = 10, other.layers[0].v_dim = 6), "layer 0");
    MISFIT(other.layers[0].k_dim = 4, "layer 0");
    MISFIT(other.layers[2].v_dim = 1, "layer 2");
    MISFIT(other.layers[1].window = 5, "window");
    MISFIT(other.layers[1].window = 0, "window");
    MISFIT(other.layers[0].window = 8, "window");
#undef MISFIT
    other = layout;
    other.layers[0].window = 9; /* cuts nothing off nine tokens */
    assert_int_equal(is_chunk_fits(&chunk, &other, NULL), IS_OK);
    free(m.bytes);
}

/* ----------------------------------------------------------------- stubs */

static made stub_of(uint32_t n_tokens)
{
    is_chunk_info info = {.p_ref = 3, .n_tokens = n_tokens, .parts = 2, .key = 0x1234, .recipe = "primed:8"};
    made m = {.size = is_chunk_stub_bytes(n_tokens)};
    int32_t *tokens = calloc(n_tokens, sizeof *tokens);
    for (uint32_t i = 0; i < n_tokens; i++) tokens[i] = (int32_t)i + 7;
    m.bytes = aligned_alloc(IS_CHUNK_ALIGN, m.size);
    assert_int_equal(is_chunk_stub(m.bytes, m.size, &info, tokens, NULL), IS_OK);
    free(tokens);
    return m;
}

static void a_stub_says_where_its_rows_are(void **state)
{
    (void)state;
    made m = stub_of(1000);
    is_chunk chunk;
    is_layout layout = layout_of(IS_F16, true);
    assert_int_equal(is_chunk_open(&chunk, m.bytes, m.size, IS_CHUNK_CHECK_PAYLOAD, NULL), IS_OK);
    assert_int_equal(chunk.info.parts, 2);
    assert_int_equal(chunk.info.key, 0x1234);
    assert_int_equal(chunk.n_layers, 0);
    assert_int_equal(chunk.info.n_tokens, 1000);
    assert_int_equal(chunk.tokens[999], 1006);
    assert_int_equal(is_chunk_fits(&chunk, &layout, NULL), IS_EINVAL); /* no engine of this process takes it */
    for (size_t i = 0; i < m.size; i++) {
        ((uint8_t *)m.bytes)[i] ^= 0x10;
        if (is_chunk_open(&chunk, m.bytes, m.size, IS_CHUNK_CHECK_PAYLOAD, NULL) == IS_OK) fail_msg("byte %zu", i);
        ((uint8_t *)m.bytes)[i] ^= 0x10;
    }
    free(m.bytes);
}

static void what_is_no_stub_is_not_written(void **state)
{
    (void)state;
    const is_chunk_info good = {.n_tokens = 5, .parts = 1, .key = 1};
    int32_t tokens[5] = {0};
    size_t size = is_chunk_stub_bytes(5);
    void *bytes = aligned_alloc(IS_CHUNK_ALIGN, size);
    is_chunk_info bad[] = {good, good, good, good, good};
    bad[0].parts = 0;
    bad[1].parts = IS_CHUNK_MAX_PARTS + 1;
    bad[2].key = 0;
    bad[3].key = -1;
    bad[4].n_tokens = 0;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(is_chunk_stub(bytes, size, &bad[i], tokens, NULL), IS_EINVAL);
    assert_int_equal(is_chunk_stub(bytes, size - 1, &good, tokens, NULL), IS_EINVAL);
    assert_int_equal(is_chunk_stub_bytes(0), 0);
    is_layout layout = layout_of(IS_F16, true);
    made m = sealed(&layout, 5);
    is_chunk_info with_key = {.n_tokens = 5, .key = 4, .parts = 1};
    assert_int_equal(is_chunk_begin(m.bytes, m.size, &layout, &with_key, tokens, NULL), IS_EINVAL);
    free(m.bytes);
    free(bytes);
}

/* ----------------------------------------------------------------- seeds */

static int write_seeds(const char *folder)
{
    const is_dtype dtypes[] = {IS_F16, IS_BF16, IS_F32, IS_F16};
    const char *names[] = {"f16-transposed", "bf16-rows", "f32-transposed", "f16-one-token"};
    for (size_t i = 0; i < 4; i++) {
        is_layout layout = layout_of(dtypes[i], i % 2 == 0);
        made m = sealed(&layout, i == 3 ? 1 : 6 + (uint32_t)i);
        char path[1024];
        (void)snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        FILE *file = fopen(path, "wb");
        if (file == NULL) return 1;
        size_t written = fwrite(m.bytes, 1, m.size, file);
        if (fclose(file) != 0 || written != m.size) return 1;
        free(m.bytes);
    }
    char path[1024];
    made m = stub_of(6);
    (void)snprintf(path, sizeof path, "%s/stub", folder);
    FILE *file = fopen(path, "wb");
    if (file == NULL) return 1;
    size_t written = fwrite(m.bytes, 1, m.size, file);
    free(m.bytes);
    return fclose(file) != 0 || written != m.size ? 1 : 0;
}

int main(int argc, char **argv)
{
    if (argc == 2) return write_seeds(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_comes_back),
        cmocka_unit_test(bytes_lie_where_the_format_says),
        cmocka_unit_test(sizes_out_of_range),
        cmocka_unit_test(begin_refuses_what_could_not_be_opened),
        cmocka_unit_test(every_flipped_byte_is_noticed),
        cmocka_unit_test(every_other_length_fails),
        cmocka_unit_test(other_versions_and_addresses),
        cmocka_unit_test(a_right_hash_makes_no_number_right),
        cmocka_unit_test(a_layer_without_rows_is_refused),
        cmocka_unit_test(elements_must_be_finite),
        cmocka_unit_test(scans_of_every_instruction_set_agree),
        cmocka_unit_test(fits_only_its_own_layout),
        cmocka_unit_test(a_stub_says_where_its_rows_are),
        cmocka_unit_test(what_is_no_stub_is_not_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
