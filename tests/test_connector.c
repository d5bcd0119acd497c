/*
 * The connector's C interface, as another engine calls it: a cache in memory, a folder of chunks.
 */
#include "connector/connector.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "connector_folder.h"
#include "kv_reference.h"
#include "memory/recipe.h"

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
    if (is_connector_store(b->connector, key, "isolated", 0, 1, b->tokens, begin, n, b->blocks, BLOCKS / 2, text) !=
        IS_OK)
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
    assert_int_equal(is_connector_store(b->connector, "../../../../etc0", "isolated", 0, 1, b->tokens, 0, 8, b->blocks,
                                        BLOCKS / 2, text),
                     IS_EINVAL);
    assert_int_equal(
        is_connector_store(b->connector, KEY_A, "isolated", 0, 1, b->tokens, 0, 0, b->blocks, BLOCKS / 2, text),
        IS_EINVAL);
    assert_int_equal(is_connector_store(b->connector, KEY_A, "isolated", 0, 1, b->tokens, 0, 40, b->blocks, 2, text),
                     IS_EINVAL);
    assert_int_equal(
        is_connector_store(b->connector, KEY_A, "isolated", 0, 1, b->tokens, 0, 8, b->blocks, BLOCKS / 2, text),
        IS_ENOTFOUND);
    assert_non_null(strstr(text, KEY_A " has no folder"));
    store(b, KEY_A, 0, 8);
    folder_forget(b->folder, KEY_A); /* and a worker that is late */
    assert_int_equal(
        is_connector_store(b->connector, KEY_A, "isolated", 0, 1, b->tokens, 0, 8, b->blocks, BLOCKS / 2, text),
        IS_ENOTFOUND);
    assert_int_equal(is_connector_ready(b->folder, 1, KEY_A, 1), 0);
    folder_make(b->folder, KEY_A);
    b->cache[1][at(b->blocks[0], true, 3, 1, 2)] = 0x7F80; /* infinite */
    assert_int_equal(
        is_connector_store(b->connector, KEY_A, "isolated", 0, 1, b->tokens, 0, 8, b->blocks, BLOCKS / 2, text),
        IS_ECORRUPT);
    assert_int_equal(is_connector_ready(b->folder, 1, KEY_A, 1), 0);
    assert_int_equal(is_connector_ready("/nowhere", 1, KEY_A, 1), 0);
    assert_int_equal(is_connector_ready(b->folder, 1, "../../../../etc0", 1), 0);
    close_bench(b);
}

/* ------------------------------------------------------------ shares of a mean */

#define SHARES 3
#define FACT   30 /* tokens */

/* The same 30 tokens behind prefixes of these lengths; in the cache each has rows of its own. */
static const uint32_t begins[SHARES] = {40, 5, 17};

static int store_share(is_connector *connector, bench *b, uint32_t share, uint32_t shares, uint32_t begin,
                       char text[IS_CONNECTOR_TEXT])
{
    int32_t prompt[BLOCK * BLOCKS];
    for (uint32_t i = 0; i < begin; i++) prompt[i] = (int32_t)(1000 * begin + i);
    memcpy(prompt + begin, b->tokens + begins[0], FACT * sizeof *prompt);
    return is_connector_store(connector, KEY_B, "primed:4x3", share, shares, prompt, begin, FACT, b->blocks, BLOCKS / 2,
                              text);
}

static void bring(bench *b, uint32_t share)
{
    char text[IS_CONNECTOR_TEXT];
    if (store_share(b->connector, b, share, SHARES, begins[share], text) != IS_OK) fail_msg("%s", text);
}

static bool has_share(const bench *b, uint32_t share, char path[128])
{
    folder_path(b->folder, KEY_B, path);
    (void)snprintf(path + strlen(path), 4, ".%u", share);
    return access(path, F_OK) == 0;
}

static bool is_ready(const bench *b)
{
    return is_connector_ready(b->folder, 1, KEY_B, 1) == 1;
}

/* The part's bytes; free(). */
static uint8_t *part_of(const bench *b, size_t *size)
{
    char path[128];
    struct stat about;
    folder_path(b->folder, KEY_B, path);
    FILE *in = fopen(path, "rbe");
    assert_non_null(in);
    assert_int_equal(fstat(fileno(in), &about), 0);
    *size = (size_t)about.st_size;
    uint8_t *bytes = malloc(*size);
    assert_int_equal(fread(bytes, 1, *size, in), *size);
    assert_int_equal(fclose(in), 0);
    return bytes;
}

static void assert_part(const bench *b, const uint8_t *want, size_t want_size)
{
    size_t size;
    uint8_t *bytes = part_of(b, &size);
    assert_int_equal(size, want_size);
    assert_memory_equal(bytes, want, size);
    free(bytes);
}

/* Element d of the mean of the rows that lie at `from`, each turned to where the first one stands. */
static void assert_mean_element(const bench *b, const uint32_t *from, uint32_t l, uint32_t t, uint32_t h, bool v,
                                uint32_t d)
{
    const is_rope rope = rope_of(IS_ROPE_HALF, 0, WIDTH);
    double sum = 0, size = 0, norm = 0;
    for (uint32_t s = 0; s < SHARES; s++) {
        const uint32_t place = from[s] + t;
        const uint16_t *row = b->cache[l] + at(b->blocks[place / BLOCK], v, place % BLOCK, h, 0);
        sum += v ? get(IS_BF16, (const uint8_t *)row, d)
                 : rotated(&rope, IS_BF16, (const uint8_t *)row, d, (int64_t)from[0] - from[s], &norm);
        size += 8 + norm;
    }
    const uint32_t place = begins[0] + t; /* in the prompt */
    const uint16_t *got = b->cache[l] + at(b->others[place / BLOCK], v, place % BLOCK, h, 0);
    const double want = sum / SHARES;
    assert_true(fabs(get(IS_BF16, (const uint8_t *)got, d) - want) <= half_unit(IS_BF16, want) + size * 0x1p-21);
}

static void load_mean(bench *b)
{
    for (uint32_t l = 0; l < LAYERS; l++) memset(b->cache[l], 0, PLACE * 2 * BLOCKS / 2); /* `others` */
    assert_int_equal(load(b, 0, 70, ""), 70);
}

static void assert_mean(bench *b, const uint32_t *from)
{
    load_mean(b);
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t t = 0; t < FACT; t++)
            for (uint32_t h = 0; h < HEADS; h++)
                for (uint32_t d = 0; d < WIDTH; d++) {
                    assert_mean_element(b, from, l, t, h, false, d);
                    assert_mean_element(b, from, l, t, h, true, d);
                }
}

static void shares_in_any_order_give_the_mean(void **state)
{
    (void)state;
    static const uint32_t orders[][SHARES] = {{2, 0, 1}, {0, 1, 2}, {1, 2, 0}};
    bench *b = open_bench();
    char path[128];
    size_t size = 0;
    uint8_t *first = NULL;
    store(b, KEY_A, 0, 40);
    for (size_t o = 0; o < sizeof orders / sizeof *orders; o++) {
        folder_make(b->folder, KEY_B);
        for (uint32_t i = 0; i < SHARES; i++) {
            assert_false(is_ready(b));
            assert_int_equal(load(b, 0, 70, "is not there"), 40);
            bring(b, orders[o][i]);
            assert_int_equal(has_share(b, orders[o][i], path), i + 1 < SHARES);
        }
        assert_true(is_ready(b));
        assert_mean(b, begins); /* out of memory */
        open_again(b, MODEL_A);
        assert_mean(b, begins); /* out of its file */
        if (first == NULL) first = part_of(b, &size);
        assert_part(b, first, size);
        folder_forget(b->folder, KEY_B); /* no share is left */
    }
    free(first);
    close_bench(b);
}

static void a_share_may_come_again(void **state)
{
    (void)state;
    bench *b = open_bench();
    char path[128], text[IS_CONNECTOR_TEXT];
    store(b, KEY_A, 0, 40);
    folder_make(b->folder, KEY_B);
    assert_int_equal(store_share(b->connector, b, 0, SHARES, 70, text), IS_OK); /* other rows */
    bring(b, 1);
    bring(b, 0);
    bring(b, 2);
    assert_mean(b, begins);
    size_t size;
    uint8_t *made = part_of(b, &size);

    bring(b, 1); /* when the mean is made already */
    assert_true(is_ready(b));
    assert_true(has_share(b, 1, path));
    assert_part(b, made, size);
    assert_mean(b, begins);
    free(made);

    const uint32_t others[SHARES] = {40, 5, 60}; /* and all of them, the last one with other rows */
    bring(b, 0);
    assert_int_equal(store_share(b->connector, b, 2, SHARES, others[2], text), IS_OK);
    assert_mean(b, others);
    folder_forget(b->folder, KEY_B);
    close_bench(b);
}

static void a_broken_share_is_removed(void **state)
{
    (void)state;
    bench *b = open_bench();
    char path[128], text[IS_CONNECTOR_TEXT];
    store(b, KEY_A, 0, 40);
    folder_make(b->folder, KEY_B);
    for (int fault = 0; fault < 2; fault++) {
        bring(b, 0);
        bring(b, 1);
        assert_true(has_share(b, 1, path));
        if (fault == 0) {
            FILE *file = fopen(path, "r+be");
            assert_non_null(file);
            assert_int_equal(fseek(file, -1, SEEK_END), 0);
            int last = fgetc(file);
            assert_int_equal(fseek(file, -1, SEEK_END), 0);
            assert_int_equal(fputc(last ^ 1, file), last ^ 1);
            assert_int_equal(fclose(file), 0);
        } else {
            assert_int_equal(truncate(path, 0), 0);
        }
        assert_int_equal(store_share(b->connector, b, 2, SHARES, begins[2], text), IS_ECORRUPT);
        assert_non_null(strstr(text, fault == 0 ? ".parts/0of1.1 is broken" : "0of1.1 is not of a chunk's size"));
        assert_false(has_share(b, 1, path));
        assert_true(has_share(b, 0, path) && has_share(b, 2, path));
        assert_false(is_ready(b));
        bring(b, 1);
        assert_mean(b, begins);
        folder_path(b->folder, KEY_B, path);
        assert_int_equal(unlink(path), 0);
    }
    close_bench(b);
}

/* The folder goes with shares in it; one of other tokens; one of another model; rows that become infinite when they
 * are turned. */
static void shares_that_make_no_chunk(void **state)
{
    (void)state;
    bench *b = open_bench();
    char path[128], text[IS_CONNECTOR_TEXT];
    folder_make(b->folder, KEY_B);
    bring(b, 0);
    assert_true(has_share(b, 0, path));
    assert_int_equal(unlink(path), 0);
    *strrchr(path, '/') = '\0';
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(store_share(b->connector, b, 1, SHARES, begins[1], text), IS_ENOTFOUND);
    assert_non_null(strstr(text, KEY_B " has no folder"));
    assert_int_not_equal(access(path, F_OK), 0);

    folder_make(b->folder, KEY_B);
    bring(b, 0);
    assert_int_equal(
        is_connector_store(b->connector, KEY_B, "primed:4x3", 1, 2, b->tokens, 3, FACT, b->blocks, BLOCKS / 2, text),
        IS_EINVAL);
    assert_non_null(strstr(text, "different tokens"));
    assert_false(is_ready(b));

    open_again(b, MODEL_B);
    bring(b, 1);
    assert_int_equal(store_share(b->connector, b, 2, SHARES, begins[2], text), IS_EINVAL);
    assert_non_null(strstr(text, "another model's"));
    assert_false(is_ready(b));

    bring(b, 0); /* the model's own: all are there now */
    assert_true(is_ready(b));
    folder_path(b->folder, KEY_B, path);
    assert_int_equal(unlink(path), 0);
    bring(b, 0);
    bring(b, 2);
    for (uint32_t d = 0; d < WIDTH; d++) /* the largest numbers, of both signs */
        b->cache[0][at(b->blocks[0], false, 7, 0, d)] = d % 2 ? 0x7F7F : 0xFF7F;
    b->cache[0][at(b->blocks[0], false, 7, 0, 0)] = 0x7F7F;
    assert_int_equal(store_share(b->connector, b, 1, SHARES, begins[1], text), IS_ECORRUPT);
    assert_false(is_ready(b));
    close_bench(b);
}

static void shares_with_bad_numbers(void **state)
{
    (void)state;
    static const uint32_t wrong[][2] = {{0, 0}, {1, 1}, {3, 3}, {UINT32_MAX, 3}, {0, 9}, {8, 9}, {0, UINT32_MAX}};
    bench *b = open_bench();
    char text[IS_CONNECTOR_TEXT];
    assert_int_equal(IS_CONNECTOR_SHARES, IS_RECIPE_MAX_TIMES); /* what planners may ask for */
    folder_make(b->folder, KEY_B);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(store_share(b->connector, b, wrong[i][0], wrong[i][1], 5, text), IS_EINVAL);
        assert_non_null(strstr(text, "shares are 1 to 8"));
    }
    assert_false(is_ready(b));
    for (uint32_t i = 0; i < 8; i++) assert_int_equal(store_share(b->connector, b, i, 8, 5 + i, text), IS_OK);
    assert_true(is_ready(b));
    folder_forget(b->folder, KEY_B); /* nothing else was written */
    close_bench(b);
}

static void each_rank_takes_its_own_mean(void **state)
{
    (void)state;
    bench *b = open_bench();
    char config[1024], path[128], text[IS_CONNECTOR_TEXT];
    is_connector *ranks[2];
    for (unsigned r = 0; r < 2; r++) {
        is_connector_close(b->connector);
        config_of(b->folder, MODEL_A, r, 2, config);
        if (is_connector_open(config, &b->connector, text) != IS_OK) fail_msg("%s", text);
        show_cache(b);
        ranks[r] = b->connector;
        b->connector = NULL;
    }
    folder_make(b->folder, KEY_B);
    for (uint32_t i = 0; i < SHARES; i++) { /* rank 1 is behind by one share */
        assert_int_equal(store_share(ranks[0], b, i, SHARES, begins[i], text), IS_OK);
        if (i > 0) assert_int_equal(store_share(ranks[1], b, i, SHARES, begins[i], text), IS_OK);
        assert_int_equal(is_connector_ready(b->folder, 2, KEY_B, 1), 0);
    }
    folder_path(b->folder, KEY_B, path);
    (void)snprintf(strrchr(path, '/'), 8, "/0of2");
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(store_share(ranks[1], b, 0, SHARES, begins[0], text), IS_OK);
    assert_int_equal(is_connector_ready(b->folder, 2, KEY_B, 1), 1);
    for (int r = 0; r < 2; r++) is_connector_close(ranks[r]);
    close_bench(b);
}

/* Two servers over one folder, each of which brings one of the last two shares. */
typedef struct server {
    bench *b;
    is_connector *connector;
    pthread_barrier_t *both;
    uint32_t share;
    int status;
    char text[IS_CONNECTOR_TEXT];
} server;

static void *bring_at_once(void *arg)
{
    server *s = arg;
    (void)pthread_barrier_wait(s->both);
    s->status = store_share(s->connector, s->b, s->share, SHARES, begins[s->share], s->text);
    return NULL;
}

static void last_shares_may_come_at_once(void **state)
{
    (void)state;
    bench *b = open_bench();
    is_connector *first = b->connector;
    b->connector = NULL;
    open_again(b, MODEL_A);
    pthread_barrier_t both;
    assert_int_equal(pthread_barrier_init(&both, NULL, 2), 0);
    size_t size = 0;
    uint8_t *want = NULL;
    for (int round = 0; round < 200; round++) {
        pthread_t threads[2];
        server servers[2] = {{.b = b, .connector = first, .both = &both, .share = 0},
                             {.b = b, .connector = b->connector, .both = &both, .share = 2}};
        folder_make(b->folder, KEY_B);
        bring(b, 1);
        for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&threads[i], NULL, bring_at_once, &servers[i]), 0);
        for (int i = 0; i < 2; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
        for (int i = 0; i < 2; i++)
            if (servers[i].status != IS_OK) fail_msg("%s", servers[i].text);
        assert_true(is_ready(b));
        if (want == NULL) want = part_of(b, &size);
        assert_part(b, want, size);
        folder_forget(b->folder, KEY_B);
    }
    free(want);
    (void)pthread_barrier_destroy(&both);
    is_connector_close(first);
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
        cmocka_unit_test(what_cannot_be_kept_is_refused),  cmocka_unit_test(shares_in_any_order_give_the_mean),
        cmocka_unit_test(a_share_may_come_again),          cmocka_unit_test(a_broken_share_is_removed),
        cmocka_unit_test(shares_that_make_no_chunk),       cmocka_unit_test(shares_with_bad_numbers),
        cmocka_unit_test(each_rank_takes_its_own_mean),    cmocka_unit_test(last_shares_may_come_at_once),
        cmocka_unit_test(settings_that_are_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
