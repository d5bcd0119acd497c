/*
 * The connector over a cache in device memory, beside one over the same cache in host memory: what one writes and
 * keeps, the other does too, and in the order that the engine's stream needs.
 */
#include "connector/internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "connector_folder.h"
#include "cuda/fake.h"
#include "cuda/kernels.h"
#include "kv_reference.h"

#define BLOCK  16
#define BLOCKS 24
#define HEADS  2
#define WIDTH  32
#define LAYERS 3
#define PLACE  ((size_t)BLOCK * HEADS * WIDTH * 2) /* elements of a block: [heads][BLOCK][K, V][WIDTH] */
#define CACHE  (PLACE * BLOCKS * 2)                /* bytes of a layer's */
#define BUDGET ((uint64_t)4 << 20)

#define KEY_A "0011223344556677"
#define KEY_B "ffeeddccbbaa9988"
#define KEY_C "8899aabbccddeeff"
#define MODEL "00112233445566778899aabbccddeeff"

typedef struct side {
    char folder[64];
    is_connector *connector;
    uint8_t *cache[LAYERS];
} side;

#define K_SCALE 0.25F
#define V_SCALE 2.0F

typedef struct bench {
    bool eight_bits;   /* the device's cache is of codes, the host's of what they mean */
    side host, device; /* with a folder of its own each */
    uint8_t *pinned;   /* a layer's cache */
    is_cuda_stream *engine;
    int32_t tokens[BLOCK * BLOCKS];
    uint32_t blocks[BLOCKS];
} bench;

static void expect_ok(int status, const char *text)
{
    if (status != (int)IS_OK) fail_msg("%s", text);
}

static void expect_done(is_status status, const is_error *err)
{
    if (status != IS_OK) fail_msg("%s", err->text);
}

static size_t at(uint32_t block, bool v, uint32_t slot, uint32_t head, uint32_t d)
{
    return block * PLACE + (((size_t)head * BLOCK + slot) * 2 + v) * WIDTH + d;
}

static void open_side(side *s)
{
    char config[1024], text[IS_CONNECTOR_TEXT];
    (void)snprintf(config, sizeof config,
                   "{\"folder\": \"%s\", \"rank\": 0, \"world\": 1, \"budget\": 100000000, \"threads\": 2, "
                   "\"fingerprint\": \"" MODEL "\", \"dtype\": \"bf16\", \"layers\": %d, \"heads\": %d, \"k_dim\": %d, "
                   "\"v_dim\": %d, \"rope\": {\"style\": \"half\", \"width\": %d, \"base\": 10000.0}}",
                   s->folder, LAYERS, HEADS, WIDTH, WIDTH, WIDTH);
    expect_ok(is_connector_open(config, &s->connector, text), text);
}

static void show_cache(side *s, bool eight_bits)
{
    char text[IS_CONNECTOR_TEXT];
    const size_t stride = eight_bits ? PLACE : PLACE * 2;
    static uint16_t low[PLACE], high[PLACE];
    uint16_t number = 1;
    for (int v = 0; v < 2; v++)
        for (uint32_t t = 0; t < BLOCK; t++)
            for (uint32_t h = 0; h < HEADS; h++)
                for (uint32_t d = 0; d < WIDTH; d++) low[at(0, v != 0, t, h, d)] = number++;
    for (uint32_t l = 0; eight_bits && l < LAYERS; l++)
        expect_ok(is_connector_eight_bits(s->connector, l, K_SCALE, V_SCALE, text), text);
    for (uint32_t l = 0; l < LAYERS; l++)
        expect_ok(is_connector_cache(s->connector, l, s->cache[l], stride, BLOCKS, BLOCK, low, high, PLACE, text),
                  text);
}

/* OCP 8-bit floating point, E4M3: a sign, four bits of exponent with bias 7, three of fraction. */
static float meant(uint8_t code, bool v)
{
    int exponent = code >> 3 & 15, fraction = code & 7;
    double value = exponent == 0 ? ldexp(fraction, -9) : ldexp(8 + fraction, exponent - 10);
    return (float)(code < 128 ? value : -value) * (v ? V_SCALE : K_SCALE);
}

static bool is_v(size_t element)
{
    return element / WIDTH % 2 == 1;
}

/* Numbers, and what they mean on the other side. */
static void fill_with_codes(uint8_t *host, uint8_t *codes)
{
    for (size_t i = 0; i < CACHE / 2; i++) {
        codes[i] = (uint8_t)(random32() % 2 * 128 + random32() % 104);
        put(IS_BF16, host, i, meant(codes[i], is_v(i)));
    }
}

static void make_memory(bench *b)
{
    is_error err = {0};
    void *memory;
    expect_done(is_cuda_stream_new(&b->engine, &err), &err);
    expect_done(is_cuda_host_malloc(CACHE, &memory, &err), &err);
    b->pinned = memory;
    for (uint32_t l = 0; l < LAYERS; l++) {
        b->host.cache[l] = malloc(CACHE);
        for (size_t i = 0; i < CACHE / 2; i++) put(IS_BF16, b->host.cache[l], i, random_value(4));
        memcpy(b->pinned, b->host.cache[l], CACHE);
        if (b->eight_bits) fill_with_codes(b->host.cache[l], b->pinned);
        expect_done(is_cuda_malloc(CACHE, &memory, &err), &err);
        b->device.cache[l] = memory;
        expect_done(is_cuda_to_device(memory, b->pinned, CACHE, b->engine, &err), &err);
        expect_done(is_cuda_stream_wait(b->engine, &err), &err);
    }
}

static bench *open_bench_of(uint64_t budget, bool eight_bits)
{
    char text[IS_CONNECTOR_TEXT];
    is_error err = {0};
    bench *b = calloc(1, sizeof *b);
    b->eight_bits = eight_bits;
    fake_begin(random32());
    fake_run_compose = run_compose;
    fake_run_gather = run_gather;
    expect_done(is_cuda_use(0, &err), &err);
    side *sides[] = {&b->host, &b->device};
    make_memory(b);
    for (int i = 0; i < 2; i++) {
        (void)snprintf(sides[i]->folder, sizeof sides[i]->folder, "/tmp/inferscale-connector-XXXXXX");
        assert_non_null(mkdtemp(sides[i]->folder));
        open_side(sides[i]);
        if (i == 1) expect_ok(is_connector_device(b->device.connector, 0, budget, text), text);
        show_cache(sides[i], eight_bits && i == 1);
    }
    is_connector_stream(b->device.connector, b->engine);
    for (size_t i = 0; i < BLOCK * BLOCKS; i++) b->tokens[i] = (int32_t)(random32() & 0xFFFF);
    for (uint32_t i = 0; i < BLOCKS; i++) b->blocks[i] = (i * 7 + 3) % BLOCKS;
    return b;
}

static bench *open_bench(uint64_t budget)
{
    return open_bench_of(budget, false);
}

static void close_side(side *s)
{
    char command[128];
    is_connector_close(s->connector);
    (void)snprintf(command, sizeof command, "rm -rf %s", s->folder);
    assert_int_equal(system(command), 0);
}

static void close_bench(bench *b)
{
    close_side(&b->host);
    close_side(&b->device);
    for (uint32_t l = 0; l < LAYERS; l++) {
        free(b->host.cache[l]);
        is_cuda_free(b->device.cache[l]);
    }
    is_cuda_host_free(b->pinned);
    is_cuda_stream_free(b->engine);
    free(b);
    assert_true(fake_end());
}

static int store(bench *b, side *s, const char *key, uint32_t begin, uint32_t n, char *text)
{
    folder_make(s->folder, key);
    return is_connector_store(s->connector, key, "isolated", b->tokens, begin, n, b->blocks, BLOCKS, text);
}

static void store_both(bench *b, const char *key, uint32_t begin, uint32_t n)
{
    char text[IS_CONNECTOR_TEXT];
    expect_ok(store(b, &b->host, key, begin, n, text), text);
    expect_ok(store(b, &b->device, key, begin, n, text), text);
}

/* Tokens [begin, end) of a prompt of A (40 tokens from 0 on) and B (30, from 50 on), into these blocks. */
static uint32_t load(bench *b, side *s, uint32_t begin, uint32_t end, const uint32_t *blocks, const char *why)
{
    char text[IS_CONNECTOR_TEXT];
    const uint32_t lengths[] = {40, 30};
    int32_t prompt[70];
    uint32_t loaded = 99;
    memcpy(prompt, b->tokens, 40 * sizeof *prompt);
    memcpy(prompt + 40, b->tokens + 50, 30 * sizeof *prompt);
    expect_ok(is_connector_load(s->connector, KEY_A KEY_B, lengths, 2, prompt, 70, blocks, BLOCKS / 4, begin, end,
                                &loaded, text),
              text);
    if (loaded < end && strstr(text, why) == NULL) fail_msg("\"%s\" is not in \"%s\"", why, text);
    return loaded;
}

static void start(bench *b)
{
    char text[IS_CONNECTOR_TEXT];
    expect_ok(is_connector_start(b->device.connector, text), text);
}

static void wait_for(bench *b, uint32_t layer)
{
    char text[IS_CONNECTOR_TEXT];
    expect_ok(is_connector_wait(b->device.connector, layer, text), text);
}

static void assert_equal_caches(bench *b)
{
    is_error err = {0};
    for (uint32_t l = 0; l < LAYERS; l++) {
        expect_done(is_cuda_to_host(b->pinned, b->device.cache[l], CACHE, b->engine, &err), &err);
        expect_done(is_cuda_stream_wait(b->engine, &err), &err);
        for (size_t i = 0; i < CACHE; i++)
            if (b->pinned[i] != b->host.cache[l][i]) fail_msg("layer %u: byte %zu differs", l, i);
    }
}

/* ------------------------------------------------------------ the tests */

static void assert_equal_files(bool eight_bits)
{
    bench *b = open_bench_of(BUDGET, eight_bits);
    static uint8_t bytes[2][1 << 17];
    size_t n[2];
    store_both(b, KEY_A, 21, 40);
    for (int i = 0; i < 2; i++) {
        char path[128];
        folder_path((i == 0 ? &b->host : &b->device)->folder, KEY_A, path);
        FILE *file = fopen(path, "re");
        assert_non_null(file);
        n[i] = fread(bytes[i], 1, sizeof bytes[i], file);
        assert_int_equal(fclose(file), 0);
    }
    assert_true(n[0] > 4096 && n[0] < sizeof bytes[0]);
    assert_int_equal(n[0], n[1]);
    assert_memory_equal(bytes[0], bytes[1], n[0]);
    close_bench(b);
}

static void files_are_the_same(void **state)
{
    (void)state;
    assert_equal_files(false);
    assert_equal_files(true);
}

/* Half a step of E4M3 around a value, and what bfloat16 on the other side is off by. */
static double half_step(double value)
{
    int exponent;
    (void)frexp(value, &exponent);
    return ldexp(1, (exponent - 1 > -6 ? exponent - 1 : -6) - 4) + fabs(value) / 256;
}

/* Rows in 8 bits are those in 16 but for the rounding, and what stays where it was keeps its codes. */
static void caches_of_eight_bits(void **state)
{
    (void)state;
    is_error err = {0};
    bench *b = open_bench_of(BUDGET, true);
    const uint32_t *blocks = b->blocks + BLOCKS / 2;
    char text[IS_CONNECTOR_TEXT];
    store_both(b, KEY_A, 0, 40);
    store_both(b, KEY_B, 50, 30);
    assert_int_equal(load(b, &b->host, 0, 70, blocks, ""), 70);
    assert_int_equal(load(b, &b->device, 0, 70, blocks, ""), 70);
    start(b);
    wait_for(b, LAYERS - 1);
    for (uint32_t l = 0; l < LAYERS; l++) {
        expect_done(is_cuda_to_host(b->pinned, b->device.cache[l], CACHE, b->engine, &err), &err);
        expect_done(is_cuda_stream_wait(b->engine, &err), &err);
        for (size_t i = 0; i < CACHE / 2; i++) {
            double scale = is_v(i) ? V_SCALE : K_SCALE, want = get(IS_BF16, b->host.cache[l], i) / scale;
            double got = meant(b->pinned[i], is_v(i)) / scale;
            if (fabs(got - want) > half_step(want)) fail_msg("layer %u, element %zu: %g, not %g", l, i, got, want);
        }
        for (uint32_t t = 0; t < 40; t++) /* A stands where it stood */
            for (uint32_t h = 0; h < HEADS; h++)
                assert_memory_equal(b->pinned + at(blocks[t / BLOCK], false, t % BLOCK, h, 0),
                                    b->pinned + at(b->blocks[t / BLOCK], false, t % BLOCK, h, 0), 2 * WIDTH);
    }
    assert_int_equal(is_connector_eight_bits(b->host.connector, 0, 1, 1, text), IS_EUNSUPPORTED);
    assert_non_null(strstr(text, "on a device only"));
    assert_int_equal(is_connector_eight_bits(b->device.connector, LAYERS, 1, 1, text), IS_EINVAL);
    close_bench(b);
}

static void prompts_of_a_step_are_written(void **state)
{
    (void)state;
    bench *b = open_bench(BUDGET);
    store_both(b, KEY_A, 0, 40);
    store_both(b, KEY_B, 50, 30);
    for (int again = 0; again < 6; again++) { /* out of host memory, then out of the device's, into other blocks */
        const uint32_t *blocks = b->blocks + 3 * again;
        assert_int_equal(load(b, &b->host, 16, 64, blocks, ""), 64);
        assert_int_equal(load(b, &b->host, 0, 70, blocks + 2 * BLOCKS / 4 - 3 * again, ""), 70);
        is_connector_stream(b->device.connector, b->engine);
        assert_int_equal(load(b, &b->device, 16, 64, blocks, ""), 64);
        assert_int_equal(load(b, &b->device, 0, 70, blocks + 2 * BLOCKS / 4 - 3 * again, ""), 70);
        start(b);
        if (again % 2 == 0) /* one by one, or all at once */
            for (uint32_t l = 0; l < LAYERS; l++) wait_for(b, l);
        else
            wait_for(b, LAYERS - 1);
        assert_equal_caches(b);
    }
    close_bench(b);
}

typedef struct touch {
    uint8_t *memory;
    const uint8_t *want; /* NULL: overwrites what is there */
    bool *wrong;
} touch;

static void touch_cache(void *args)
{
    const touch *t = args;
    if (t->want == NULL)
        memset(t->memory, 0xAA, CACHE);
    else
        *t->wrong = *t->wrong || memcmp(t->memory, t->want, CACHE) != 0;
}

/* Blocks that the engine still writes to, as the former owner's, and reads as soon as it has waited for a layer. */
static void the_engine_s_stream_is_heeded(void **state)
{
    (void)state;
    for (int round = 0; round < 20; round++) {
        bench *b = open_bench(BUDGET);
        bool wrong = false;
        store_both(b, KEY_A, 0, 40);
        store_both(b, KEY_B, 50, 30);
        for (uint32_t l = 0; l < LAYERS; l++) {
            memset(b->host.cache[l], 0xAA, CACHE);
            fake_put(b->engine, touch_cache, &(touch){b->device.cache[l], NULL, NULL}, sizeof(touch));
        }
        assert_int_equal(load(b, &b->host, 0, 70, b->blocks, ""), 70);
        assert_int_equal(load(b, &b->device, 0, 70, b->blocks, ""), 70);
        start(b);
        for (uint32_t l = 0; l < LAYERS; l++) {
            wait_for(b, l);
            fake_put(b->engine, touch_cache, &(touch){b->device.cache[l], b->host.cache[l], &wrong}, sizeof(touch));
        }
        is_error err = {0};
        expect_done(is_cuda_stream_wait(b->engine, &err), &err);
        assert_false(wrong);
        close_bench(b);
    }
}

static void what_has_no_room_is_left_out(void **state)
{
    (void)state;
    bench *b = open_bench(40000); /* A's 35 KiB, and not B's too while A is held */
    store_both(b, KEY_A, 0, 40);
    store_both(b, KEY_B, 50, 30);
    assert_int_equal(load(b, &b->device, 0, 70, b->blocks, "no room"), 40);
    assert_int_equal(load(b, &b->device, 48, 64, b->blocks + 6, ""), 64); /* A is written first, and then goes */
    assert_int_equal(load(b, &b->device, 16, 40, b->blocks + 12, ""), 40);
    start(b);
    wait_for(b, LAYERS - 1);
    assert_int_equal(load(b, &b->host, 0, 40, b->blocks, ""), 40);
    assert_int_equal(load(b, &b->host, 48, 64, b->blocks + 6, ""), 64);
    assert_int_equal(load(b, &b->host, 16, 40, b->blocks + 12, ""), 40);
    assert_equal_caches(b);
    folder_forget(b->device.folder, KEY_B);
    assert_int_equal(load(b, &b->device, 0, 70, b->blocks, "is not there"), 40);
    start(b);
    assert_equal_caches(b);
    close_bench(b);
}

static size_t on_device(const bench *b)
{
    is_device_pool_listed *listed;
    size_t n;
    assert_int_equal(is_dev_list(b->device.connector->dev, &listed, &n, NULL), IS_OK);
    free(listed);
    return n;
}

static void a_forgotten_chunk_leaves_the_device(void **state)
{
    (void)state;
    bench *b = open_bench(BUDGET);
    store_both(b, KEY_A, 0, 40);
    store_both(b, KEY_B, 50, 30);
    assert_int_equal(load(b, &b->device, 0, 70, b->blocks, ""), 70);
    start(b);
    assert_int_equal(on_device(b), 2);
    folder_forget(b->device.folder, KEY_B);
    assert_int_equal(load(b, &b->device, 0, 70, b->blocks, "is not there"), 40); /* at once, where it is asked for */
    start(b);
    assert_int_equal(on_device(b), 1);
    folder_forget(b->device.folder, KEY_A);
    for (int i = 0; i < 100 && on_device(b) > 0; i++) (void)usleep(100000); /* and within seconds, where it is not */
    assert_int_equal(on_device(b), 0);
    /* Made anew, it is the new one that is written. */
    (void)store(b, &b->device, KEY_B, 50, 30, (char[IS_CONNECTOR_TEXT]){0});
    store_both(b, KEY_A, 0, 40);
    assert_int_equal(load(b, &b->device, 0, 70, b->blocks, ""), 70);
    start(b);
    assert_int_equal(on_device(b), 2);
    store_both(b, KEY_A, 0, 40);
    assert_int_equal(on_device(b), 1);
    close_bench(b);
}

/* What the engine computes into its cache itself after a failure stays: nothing comes late.  Then all as it was. */
static void assert_nothing_comes_late(bench *b)
{
    is_error err = {0};
    for (uint32_t l = 0; l < LAYERS; l++)
        fake_put(b->engine, touch_cache, &(touch){b->device.cache[l], NULL, NULL}, sizeof(touch));
    fake_finish();
    expect_done(is_cuda_use(0, &err), &err);
    for (uint32_t l = 0; l < LAYERS; l++) {
        expect_done(is_cuda_to_host(b->pinned, b->device.cache[l], CACHE, b->engine, &err), &err);
        expect_done(is_cuda_stream_wait(b->engine, &err), &err);
        for (size_t i = 0; i < CACHE; i++) assert_int_equal(b->pinned[i], 0xAA);
        memcpy(b->pinned, b->host.cache[l], CACHE);
        expect_done(is_cuda_to_device(b->device.cache[l], b->pinned, CACHE, b->engine, &err), &err);
        expect_done(is_cuda_stream_wait(b->engine, &err), &err);
    }
}

/* Each call fails once: it is said, what comes after it is right, and nothing is left behind. */
static void calls_that_fail(void **state)
{
    (void)state;
    bool failed = true;
    for (uint64_t nth = 1; failed; nth++) {
        bench *b = open_bench(BUDGET);
        char text[IS_CONNECTOR_TEXT] = "";
        store_both(b, KEY_A, 0, 40);
        store_both(b, KEY_B, 50, 30);
        assert_int_equal(load(b, &b->host, 0, 70, b->blocks, ""), 70);
        fake_fail_at(nth);
        uint64_t before = fake_failures();
        const uint32_t lengths[] = {40};
        uint32_t loaded;
        int status = is_connector_load(b->device.connector, KEY_A, lengths, 1, b->tokens, 40, b->blocks, BLOCKS, 0, 40,
                                       &loaded, text);
        if (status == IS_OK) status = is_connector_start(b->device.connector, text);
        if (status != IS_OK) {
            fake_fail_at(0);
            assert_nothing_comes_late(b);
        }
        if (status == IS_OK) status = is_connector_wait(b->device.connector, 0, text);
        if (status == IS_OK) status = store(b, &b->device, KEY_C, 3, 9, text);
        failed = fake_failures() > before;
        if (failed && status != IS_OK) assert_true(text[0] != '\0');
        if (!failed) assert_int_equal(status, IS_OK);
        fake_fail_at(0);
        start(b);
        assert_int_equal(load(b, &b->device, 0, 70, b->blocks, ""), 70);
        start(b);
        wait_for(b, LAYERS - 1);
        assert_equal_caches(b);
        close_bench(b);
    }
}

static void what_cannot_be_is_refused(void **state)
{
    (void)state;
    bench *b = open_bench(BUDGET);
    char text[IS_CONNECTOR_TEXT];
    assert_int_equal(is_connector_device(b->device.connector, 0, BUDGET, text), IS_EINVAL); /* twice */
    assert_int_equal(is_connector_device(b->host.connector, 7, BUDGET, text), IS_EUNSUPPORTED);
    assert_non_null(strstr(text, "no CUDA device 7"));
    assert_int_equal(is_connector_wait(b->device.connector, LAYERS, text), IS_EINVAL);
    assert_int_equal(is_connector_start(b->host.connector, text), IS_OK);
    assert_int_equal(is_connector_wait(b->host.connector, 0, text), IS_OK);
    start(b); /* nothing was loaded */
    uint32_t was = b->blocks[1];
    store_both(b, KEY_A, 0, 40);
    b->blocks[1] = BLOCKS; /* outside of the cache */
    assert_int_equal(load(b, &b->device, 0, 40, b->blocks, ""), 40);
    assert_int_equal(is_connector_start(b->device.connector, text), IS_EINVAL);
    assert_int_equal(store(b, &b->device, KEY_B, 0, 40, text), IS_EINVAL);
    b->blocks[1] = was;
    assert_equal_caches(b);
    close_bench(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_are_the_same),
        cmocka_unit_test(caches_of_eight_bits),
        cmocka_unit_test(prompts_of_a_step_are_written),
        cmocka_unit_test(the_engine_s_stream_is_heeded),
        cmocka_unit_test(what_has_no_room_is_left_out),
        cmocka_unit_test(a_forgotten_chunk_leaves_the_device),
        cmocka_unit_test(calls_that_fail),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
