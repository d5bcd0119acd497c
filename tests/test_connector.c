/*
 * The connector's C interface, as another engine calls it: a cache in memory, a folder of chunks.
 */
#include "connector/connector.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "connector_folder.h"
#include "kv_reference.h"

#define BLOCK  16
#define BLOCKS 20
#define HEADS  2
#define WIDTH  8
#define LAYERS 2
#define ROW    (HEADS * WIDTH)
#define PLACE  ((size_t)BLOCK * ROW * 2) /* elements of a block: [heads][K, V][BLOCK][WIDTH] */

#define KEY_A "0011223344556677"
#define KEY_B "ffeeddccbbaa9988" /* its number leaves the first bit out */

#define MODEL_A "00112233445566778899aabbccddeeff"
#define MODEL_B "ffeeddccbbaa99887766554433221100"

typedef struct bench {
    char folder[64];
    is_connector *connector;
    uint16_t *cache[LAYERS];
    int32_t tokens[BLOCK * BLOCKS];
    uint32_t blocks[BLOCKS], others[BLOCKS];
} bench;

static size_t at(uint32_t block, bool v, uint32_t slot, uint32_t head, uint32_t d)
{
    return block * PLACE + ((size_t)head * 2 + v) * BLOCK * WIDTH + slot * WIDTH + d;
}

static void config_of(const char *folder, const char *fingerprint, unsigned rank, unsigned world, char out[1024])
{
    (void)snprintf(
        out, 1024,
        "{\"folder\": \"%s\", \"rank\": %u, \"world\": %u, \"budget\": 100000000, \"threads\": 2, "
        "\"fingerprint\": \"%s\", \"dtype\": \"bf16\", \"layers\": %d, \"heads\": %d, \"k_dim\": %d, \"v_dim\": "
        "%d, \"rope\": {\"style\": \"half\", \"width\": %d, \"base\": 10000.0}}",
        folder, rank, world, fingerprint, LAYERS, HEADS, WIDTH, WIDTH, WIDTH);
}

static void show_cache(bench *b)
{
    char text[IS_CONNECTOR_TEXT];
    uint16_t low[PLACE], high[PLACE] = {0};
    uint16_t number = 1;
    for (int v = 0; v < 2; v++)
        for (uint32_t t = 0; t < BLOCK; t++)
            for (uint32_t h = 0; h < HEADS; h++)
                for (uint32_t d = 0; d < WIDTH; d++) low[at(0, v != 0, t, h, d)] = number++;
    for (uint32_t l = 0; l < LAYERS; l++)
        if (is_connector_cache(b->connector, l, b->cache[l], PLACE * 2, BLOCKS, BLOCK, low, high, PLACE, text) != IS_OK)
            fail_msg("%s", text);
}

static void open_again(bench *b, const char *fingerprint)
{
    char config[1024], text[IS_CONNECTOR_TEXT];
    is_connector_close(b->connector);
    config_of(b->folder, fingerprint, 0, 1, config);
    if (is_connector_open(config, &b->connector, text) != IS_OK) fail_msg("%s", text);
    show_cache(b);
}

static bench *open_bench(void)
{
    bench *b = calloc(1, sizeof *b);
    (void)snprintf(b->folder, sizeof b->folder, "/tmp/inferscale-connector-XXXXXX");
    assert_non_null(mkdtemp(b->folder));
    for (uint32_t l = 0; l < LAYERS; l++) {
        b->cache[l] = calloc(PLACE * BLOCKS, 2);
        for (size_t i = 0; i < PLACE * BLOCKS; i++) put(IS_BF16, (uint8_t *)b->cache[l], i, random_value(4));
    }
    for (size_t i = 0; i < BLOCK * BLOCKS; i++) b->tokens[i] = (int32_t)random32() & 0xFFFF;
    for (uint32_t i = 0; i < BLOCKS / 2; i++) {
        b->blocks[i] = BLOCKS - 1 - i;
        b->others[i] = i;
    }
    open_again(b, MODEL_A);
    return b;
}

static void close_bench(bench *b)
{
    char command[128];
    is_connector_close(b->connector);
    for (uint32_t l = 0; l < LAYERS; l++) free(b->cache[l]);
    (void)snprintf(command, sizeof command, "rm -rf %s", b->folder);
    assert_int_equal(system(command), 0);
    free(b);
}

static void store(bench *b, const char *key, uint32_t begin, uint32_t n)
{
    char text[IS_CONNECTOR_TEXT];
    folder_make(b->folder, key);
    if (is_connector_store(b->connector, key, "isolated", b->tokens, begin, n, b->blocks, BLOCKS / 2, text) != IS_OK)
        fail_msg("%s", text);
}

/* Loads [begin, end) of a prompt that is A (40 tokens) and B (30); what must be in `text` when not all is loaded. */
static uint32_t load(bench *b, uint32_t begin, uint32_t end, const char *why)
{
    char text[IS_CONNECTOR_TEXT];
    const uint32_t lengths[] = {40, 30};
    uint32_t loaded = 99;
    assert_int_equal(is_connector_load(b->connector, KEY_A KEY_B, lengths, 2, b->tokens, 100, b->others, BLOCKS / 2,
                                       begin, end, &loaded, text),
                     IS_OK);
    if (loaded < end && strstr(text, why) == NULL) fail_msg("\"%s\" is not in \"%s\"", why, text);
    return loaded;
}

static void assert_equal_tokens(const bench *b, uint32_t begin, uint32_t end)
{
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t t = begin; t < end; t++)
            for (uint32_t h = 0; h < HEADS; h++)
                for (int v = 0; v < 2; v++)
                    assert_memory_equal(b->cache[l] + at(b->others[t / BLOCK], v != 0, t % BLOCK, h, 0),
                                        b->cache[l] + at(b->blocks[t / BLOCK], v != 0, t % BLOCK, h, 0), WIDTH * 2);
}

static void what_was_stored_comes_back(void **state)
{
    (void)state;
    bench *b = open_bench();
    assert_int_equal(is_connector_ready(b->folder, 1, KEY_A KEY_B, 2), 0);
    store(b, KEY_A, 0, 40);
    assert_int_equal(is_connector_ready(b->folder, 1, KEY_A KEY_B, 2), 1);
    assert_int_equal(is_connector_ready(b->folder, 2, KEY_A KEY_B, 2), 0); /* the other rank's part is missing */
    store(b, KEY_B, 40, 30);
    assert_int_equal(is_connector_ready(b->folder, 1, KEY_A KEY_B, 2), 2);
    for (int again = 0; again < 2; again++) { /* out of memory, then out of the files */
        assert_int_equal(load(b, 16, 64, ""), 64);
        assert_equal_tokens(b, 16, 64);
        for (uint32_t l = 0; l < LAYERS; l++) memset(b->cache[l], 0, PLACE * 2 * BLOCKS / 2); /* `others` */
        assert_int_equal(load(b, 0, 70, ""), 70);
        assert_equal_tokens(b, 0, 70);
        for (uint32_t l = 0; l < LAYERS; l++) memset(b->cache[l], 0, PLACE * 2 * BLOCKS / 2);
        open_again(b, MODEL_A);
    }
    assert_int_equal(load(b, 0, 80, "end before that"), 70);
    close_bench(b);
}

static void moved_rows_are_rotated(void **state)
{
    (void)state;
    bench *b = open_bench();
    char text[IS_CONNECTOR_TEXT];
    store(b, KEY_B, 17, 30); /* loaded to the prompt's front */
    const uint32_t length = 30;
    uint32_t loaded = 0;
    assert_int_equal(is_connector_load(b->connector, KEY_B, &length, 1, b->tokens + 17, 30, b->others, BLOCKS / 2, 0,
                                       30, &loaded, text),
                     IS_OK);
    assert_int_equal(loaded, 30);
    is_rope rope = rope_of(IS_ROPE_HALF, 0, WIDTH);
    for (uint32_t t = 0; t < 30; t++)
        for (uint32_t h = 0; h < HEADS; h++) {
            const uint16_t *from = b->cache[1] + at(b->blocks[(t + 17) / BLOCK], false, (t + 17) % BLOCK, h, 0);
            const uint16_t *to = b->cache[1] + at(b->others[t / BLOCK], false, t % BLOCK, h, 0);
            for (uint32_t d = 0; d < WIDTH; d++) {
                double norm, want = rotated(&rope, IS_BF16, (const uint8_t *)from, d, -17, &norm);
                assert_true(fabs(get(IS_BF16, (const uint8_t *)to, d) - want) <=
                            half_unit(IS_BF16, want) + norm * 0x1p-21);
            }
        }
    float rows[WIDTH] = {1, 2, 3, 4, 5, 6, 7, 8};
    assert_int_equal(is_connector_rotate(b->connector, rows, 1, 5, text), IS_OK);
    double norm;
    const float before[WIDTH] = {1, 2, 3, 4, 5, 6, 7, 8};
    for (uint32_t d = 0; d < WIDTH; d++)
        assert_true(fabs((double)rows[d] - rotated(&rope, IS_F32, (const uint8_t *)before, d, 5, &norm)) < 1e-5);
    close_bench(b);
}

static void what_is_not_right_is_not_loaded(void **state)
{
    (void)state;
    bench *b = open_bench();
    char path[128], text[IS_CONNECTOR_TEXT];
    store(b, KEY_A, 0, 40);
    assert_int_equal(load(b, 0, 70, "is not there"), 40);
    store(b, KEY_B, 41, 30); /* one token later than where it stands in the prompt */
    assert_int_equal(load(b, 0, 70, "of other tokens"), 40);
    assert_int_equal(load(b, 48, 64, "of other tokens"), 48);
    store(b, KEY_B, 40, 30);
    assert_int_equal(load(b, 0, 70, ""), 70);

    folder_forget(b->folder, KEY_B);
    assert_int_equal(load(b, 0, 70, "is not there"), 40);

    store(b, KEY_B, 40, 30);
    open_again(b, MODEL_B);
    assert_int_equal(load(b, 0, 70, "another model's"), 0);

    open_again(b, MODEL_A);
    folder_path(b->folder, KEY_B, path);
    assert_int_equal(truncate(path, 5000), 0);
    assert_int_equal(load(b, 0, 70, "is broken"), 40);
    assert_int_equal(load(b, 0, 70, "is not there"), 40);
    store(b, KEY_B, 40, 30);
    open_again(b, MODEL_A);
    assert_int_equal(truncate(path, 0), 0);
    assert_int_equal(load(b, 0, 70, "not of a chunk's size"), 40);
    assert_int_equal(is_connector_ready(b->folder, 1, KEY_A KEY_B, 2), 1);

    const uint32_t lengths[] = {40, UINT32_MAX};
    uint32_t loaded = 0;
    assert_int_equal(is_connector_load(b->connector, KEY_A KEY_B, lengths, 2, b->tokens, 100, b->others, BLOCKS / 2, 0,
                                       100, &loaded, text),
                     IS_OK);
    assert_int_equal(loaded, 40);
    assert_int_equal(
        is_connector_load(b->connector, KEY_A, lengths, 1, b->tokens, 100, b->others, 1, 0, 40, &loaded, text),
        IS_EINVAL); /* too few blocks */
    assert_int_equal(loaded, 0);
    assert_int_equal(
        is_connector_load(b->connector, KEY_A, lengths, 1, b->tokens, 30, b->others, BLOCKS / 2, 0, 40, &loaded, text),
        IS_EINVAL); /* a prompt of fewer tokens */
    close_bench(b);
}

/* Told by a file that cannot be loaded under the name of one that is in memory. */
static void a_forgotten_chunk_leaves_memory(void **state)
{
    (void)state;
    bench *b = open_bench();
    char path[128];
    store(b, KEY_A, 0, 40);
    store(b, KEY_B, 40, 30);
    folder_path(b->folder, KEY_B, path);
    (void)sleep(5); /* longer than from look to look */
    assert_int_equal(truncate(path, 0), 0);
    assert_int_equal(load(b, 0, 70, ""), 70); /* what is there stays in memory */
    folder_forget(b->folder, KEY_B);
    (void)sleep(5);
    folder_make(b->folder, KEY_B);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(close(fd), 0);
    assert_int_equal(load(b, 0, 70, "not of a chunk's size"), 40);
    assert_equal_tokens(b, 0, 40);
    close_bench(b);
}

static void what_cannot_be_kept_is_refused(void **state)
{
    (void)state;
    bench *b = open_bench();
    char text[IS_CONNECTOR_TEXT];
    assert_int_equal(
        is_connector_store(b->connector, "../../../../etc0", "isolated", b->tokens, 0, 8, b->blocks, BLOCKS / 2, text),
        IS_EINVAL);
    assert_int_equal(is_connector_store(b->connector, KEY_A, "isolated", b->tokens, 0, 0, b->blocks, BLOCKS / 2, text),
                     IS_EINVAL);
    assert_int_equal(is_connector_store(b->connector, KEY_A, "isolated", b->tokens, 0, 40, b->blocks, 2, text),
                     IS_EINVAL);
    assert_int_equal(is_connector_store(b->connector, KEY_A, "isolated", b->tokens, 0, 8, b->blocks, BLOCKS / 2, text),
                     IS_ENOTFOUND);
    assert_non_null(strstr(text, KEY_A " has no folder"));
    store(b, KEY_A, 0, 8);
    folder_forget(b->folder, KEY_A); /* and a worker that is late */
    assert_int_equal(is_connector_store(b->connector, KEY_A, "isolated", b->tokens, 0, 8, b->blocks, BLOCKS / 2, text),
                     IS_ENOTFOUND);
    assert_int_equal(is_connector_ready(b->folder, 1, KEY_A, 1), 0);
    folder_make(b->folder, KEY_A);
    b->cache[1][at(b->blocks[0], true, 3, 1, 2)] = 0x7F80; /* infinite */
    assert_int_equal(is_connector_store(b->connector, KEY_A, "isolated", b->tokens, 0, 8, b->blocks, BLOCKS / 2, text),
                     IS_ECORRUPT);
    assert_int_equal(is_connector_ready(b->folder, 1, KEY_A, 1), 0);
    assert_int_equal(is_connector_ready("/nowhere", 1, KEY_A, 1), 0);
    assert_int_equal(is_connector_ready(b->folder, 1, "../../../../etc0", 1), 0);
    close_bench(b);
}

static void settings_that_are_none(void **state)
{
    (void)state;
    static const char *const wrong[] = {
        "",
        "[]",
        "{}",
        "{\"folder\": 5}",
        "{\"folder\": \"/tmp\", \"rank\": 1, \"world\": 1, \"budget\": 1, \"threads\": 1, \"fingerprint\": \"" MODEL_A
        "\", \"dtype\": \"bf16\", \"layers\": 1, \"heads\": 1, \"k_dim\": 8, \"v_dim\": 8, \"rope\": null}",
        "{\"folder\": \"/tmp\", \"rank\": 0, \"world\": 1, \"budget\": 1, \"threads\": 1, \"fingerprint\": \"" MODEL_A
        "\", \"dtype\": \"fp8\", \"layers\": 1, \"heads\": 1, \"k_dim\": 8, \"v_dim\": 8, \"rope\": null}",
        "{\"folder\": \"/tmp\", \"rank\": 0, \"world\": 1, \"budget\": 1, \"threads\": 1, \"fingerprint\": \"" MODEL_A
        "\", \"dtype\": \"bf16\", \"layers\": 600, \"heads\": 1, \"k_dim\": 8, \"v_dim\": 8, \"rope\": null}",
        "{\"folder\": \"/tmp\", \"rank\": 0, \"world\": 1, \"budget\": 1, \"threads\": 1, \"fingerprint\": \"" MODEL_A
        "\", \"dtype\": \"bf16\", \"layers\": 1, \"heads\": 1, \"k_dim\": 8, \"v_dim\": 8, \"rope\": {\"style\": "
        "\"half\", "
        "\"width\": 8, \"base\": 10000.0, \"scaling\": \"dynamic\"}}",
        "{\"folder\": \"/nowhere/at/all\", \"rank\": 0, \"world\": 1, \"budget\": 1, \"threads\": 1, \"fingerprint\": "
        "\"" MODEL_A
        "\", \"dtype\": \"bf16\", \"layers\": 1, \"heads\": 1, \"k_dim\": 8, \"v_dim\": 8, \"rope\": null}",
    };
    char text[IS_CONNECTOR_TEXT];
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        is_connector *connector;
        text[0] = '\0';
        assert_int_not_equal(is_connector_open(wrong[i], &connector, text), IS_OK);
        assert_null(connector);
        assert_true(text[0] != '\0');
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_stored_comes_back),      cmocka_unit_test(moved_rows_are_rotated),
        cmocka_unit_test(what_is_not_right_is_not_loaded), cmocka_unit_test(a_forgotten_chunk_leaves_memory),
        cmocka_unit_test(what_cannot_be_kept_is_refused),  cmocka_unit_test(settings_that_are_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
