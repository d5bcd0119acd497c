/*
 * Chunks: put, pinned, replaced, damaged, forgotten; the budget of host memory; many threads at once.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <dirent.h>
#include <pthread.h>

#include <stdatomic.h>

#include "store/store_internal.h"
#include "store_fixture.h"

#define TOKENS 200 /* a chunk of 12 KB: three pages */

typedef struct world {
    char folder[FIXTURE_PATH];
    is_store *store;
    int64_t scope;
    int64_t ids[16];
    is_chunk_key key;
    is_error err;
} world;

static int setup(void **state)
{
    world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    fixture_folder(w->folder);
    w->store = fixture_open(w->folder, 1 << 20);
    w->key = fixture_key(1);
    assert_int_equal(is_store_scope(w->store, &(is_scope){.user = "ann"}, true, &w->scope, &w->err), IS_OK);
    is_fact facts[16];
    char texts[16][32];
    for (int i = 0; i < 16; i++) {
        (void)snprintf(texts[i], sizeof texts[i], "fact %d", i);
        facts[i] = (is_fact){.text = texts[i], .time = IS_TIME_NONE};
    }
    assert_int_equal(is_store_add_facts(w->store, w->scope, facts, 16, NULL, 0, NULL, w->ids, &w->err), IS_OK);
    *state = w;
    return 0;
}

static int teardown(void **state)
{
    world *w = *state;
    is_store_close(w->store);
    fixture_remove(w->folder);
    free(w);
    return 0;
}

static void reopen(world *w, uint64_t budget)
{
    is_store_close(w->store);
    w->store = fixture_open(w->folder, budget);
}

static is_status put_behind(world *w, int64_t scope, int64_t fact, uint8_t salt, const int64_t *deps, size_t n_deps)
{
    size_t size = 0;
    void *bytes = fixture_chunk(fact, TOKENS, salt, &w->key, &size);
    is_status status = is_store_put_chunk(w->store, scope, fact, &w->key, bytes, size, deps, n_deps, &w->err);
    free(bytes);
    return status;
}

static void put(world *w, int64_t fact, uint8_t salt)
{
    if (put_behind(w, fact == 0 ? 0 : w->scope, fact, salt, NULL, 0) != IS_OK) fail_msg("%s", w->err.text);
}

static void put_all(world *w, int n)
{
    for (int i = 0; i < n; i++) put(w, w->ids[i], (uint8_t)i);
}

static is_pin *pin_one(world *w, int64_t scope, int64_t fact, const is_chunk_key *key, size_t *refused)
{
    is_pin *pin = NULL;
    is_status status = is_store_pin(w->store, scope, &fact, 1, key, &pin, refused, &w->err);
    if (status != IS_OK) fail_msg("%s", w->err.text);
    return pin;
}

static bool pinnable(world *w, int64_t scope, int64_t fact, const is_chunk_key *key)
{
    size_t refused = 0;
    is_pin *pin = pin_one(w, scope, fact, key, &refused);
    bool got = pin != NULL;
    is_store_unpin(w->store, &pin, 1);
    assert_null(pin);
    assert_int_equal(refused, 0);
    return got;
}

static void assert_chunk(const is_pin *pin, int64_t fact, uint8_t salt)
{
    assert_non_null(pin);
    const is_chunk *chunk = is_pin_chunk(pin);
    assert_int_equal(chunk->tokens[0], fact);
    assert_int_equal(chunk->info.p_ref, 7);
    is_chunk_rows rows = is_chunk_layer(chunk, 1);
    assert_int_equal(((const uint16_t *)(const void *)rows.k)[17], 0x3C00 + salt);
    assert_int_equal((uintptr_t)chunk->bytes % 64, 0);
}

static bool ready(world *w, int64_t fact)
{
    bool is_ready = false;
    assert_int_equal(is_store_ready(w->store, w->scope, &fact, 1, &w->key, &is_ready, &w->err), IS_OK);
    return is_ready;
}

static is_stats stats(world *w)
{
    is_stats out;
    assert_int_equal(is_store_stats(w->store, &w->key, &out, &w->err), IS_OK);
    return out;
}

/* Files below chunks/; the last one's path into `path` (may be NULL). */
static size_t files(world *w, char *path)
{
    size_t n = 0;
    for (int i = 0; i < 256; i++) {
        char folder[FIXTURE_PATH + 32];
        (void)snprintf(folder, sizeof folder, "%s/chunks/%02x", w->folder, i);
        DIR *dir = opendir(folder);
        assert_non_null(dir);
        const struct dirent *entry = NULL;
        while ((entry = readdir(dir)) != NULL) {
            if (entry->d_name[0] == '.') continue;
            n++;
            if (path != NULL) (void)snprintf(path, FIXTURE_PATH * 2, "%s/%.60s", folder, entry->d_name);
        }
        (void)closedir(dir);
    }
    return n;
}

static is_verify_report verify(world *w, bool repair)
{
    is_verify_report report;
    is_status status = is_store_verify(w->store, repair, NULL, NULL, &report, &w->err);
    if (status != IS_OK) fail_msg("%s", w->err.text);
    assert_int_equal(report.database_bad, 0);
    return report;
}

static void assert_clean(world *w)
{
    is_verify_report report = verify(w, false);
    assert_int_equal(report.chunks_bad + report.files_missing + report.files_orphaned, 0);
    assert_int_equal(report.chunks_checked, stats(w).chunks);
    assert_int_equal(files(w, NULL), stats(w).chunks);
}

/* ------------------------------------------------------------ one chunk */

static void test_put_and_pin(void **state)
{
    world *w = *state;
    int64_t asked[4] = {w->ids[1], 0, w->ids[2], w->ids[0]};
    is_pin *pins[4];
    size_t refused = 9;
    put(w, w->ids[0], 5);
    put(w, w->ids[1], 6);
    put(w, 0, 7);
    for (int round = 0; round < 2; round++) {
        assert_int_equal(is_store_pin(w->store, w->scope, asked, 4, &w->key, pins, &refused, &w->err), IS_OK);
        assert_int_equal(refused, 0);
        assert_chunk(pins[0], w->ids[1], 6);
        assert_chunk(pins[1], 0, 7);
        assert_null(pins[2]);
        assert_chunk(pins[3], w->ids[0], 5);
        is_store_unpin(w->store, pins, 4);
        for (int i = 0; i < 4; i++) assert_null(pins[i]);
        /* the first round has them in memory, the second reads them */
        is_stats s = stats(w);
        assert_int_equal(s.host_misses, round == 0 ? 1 : 4);
        assert_int_equal(s.host_hits, round == 0 ? 3 : 0);
        assert_int_equal(s.host_chunks, 3);
        assert_int_equal(s.chunks, 3);
        assert_int_equal(s.facts_ready, 2);
        assert_int_equal(s.facts_pending, 14);
        if (round == 0) reopen(w, 1 << 20);
    }
    assert_clean(w);
}

static void test_same_fact_twice(void **state)
{
    world *w = *state;
    put_all(w, 1);
    reopen(w, 1 << 20);
    int64_t asked[3] = {w->ids[0], w->ids[0], w->ids[0]};
    is_pin *pins[3];
    assert_int_equal(is_store_pin(w->store, w->scope, asked, 3, &w->key, pins, NULL, &w->err), IS_OK);
    for (int i = 0; i < 3; i++) assert_chunk(pins[i], w->ids[0], 0);
    is_store_unpin(w->store, pins, 2);
    assert_chunk(pins[2], w->ids[0], 0);
    is_store_unpin(w->store, pins + 2, 1);
    assert_int_equal(stats(w).host_misses, 1);
}

static void test_only_the_same_key_and_scope(void **state)
{
    world *w = *state;
    put_all(w, 1);
    int64_t bob = 0;
    assert_int_equal(is_store_scope(w->store, &(is_scope){.user = "bob"}, true, &bob, &w->err), IS_OK);
    for (int round = 0; round < 2; round++) {
        is_chunk_key other[3] = {w->key, w->key, w->key};
        other[0].fingerprint[15] ^= 1;
        other[1].header[0] ^= 1;
        other[2].recipe = "primed:9";
        for (int i = 0; i < 3; i++) {
            assert_false(pinnable(w, w->scope, w->ids[0], &other[i]));
            bool is_ready = true;
            assert_int_equal(is_store_ready(w->store, w->scope, w->ids, 1, &other[i], &is_ready, &w->err), IS_OK);
            assert_false(is_ready);
        }
        assert_false(pinnable(w, bob, w->ids[0], &w->key));
        assert_true(pinnable(w, w->scope, w->ids[0], &w->key));
        reopen(w, 1 << 20); /* once from memory, once from disk */
    }
}

static void test_refused_chunks(void **state)
{
    world *w = *state;
    size_t size = 0;
    is_chunk_key other = fixture_key(2);
    void *bytes = fixture_chunk(1, TOKENS, 0, &w->key, &size);
    is_status status = is_store_put_chunk(w->store, w->scope, w->ids[0], &other, bytes, size, NULL, 0, &w->err);
    assert_int_equal(status, IS_EINVAL);
    /* the header's chunk is everybody's: it may know no fact */
    status = is_store_put_chunk(w->store, 0, 0, &w->key, bytes, size, w->ids, 1, &w->err);
    assert_int_equal(status, IS_EINVAL);
    status = is_store_put_chunk(w->store, w->scope, 0, &w->key, bytes, size, NULL, 0, &w->err);
    assert_int_equal(status, IS_EINVAL);
    ((uint8_t *)bytes)[size - 100] ^= 1;
    status = is_store_put_chunk(w->store, w->scope, w->ids[0], &w->key, bytes, size, NULL, 0, &w->err);
    assert_int_equal(status, IS_ECORRUPT);
    free(bytes);
    assert_int_equal(files(w, NULL), 0);
    assert_int_equal(stats(w).chunks, 0);
}

static void test_replace(void **state)
{
    world *w = *state;
    put(w, w->ids[0], 1);
    is_pin *old = pin_one(w, w->scope, w->ids[0], &w->key, NULL);
    put(w, w->ids[0], 2);
    assert_int_equal(files(w, NULL), 1);
    is_pin *new = pin_one(w, w->scope, w->ids[0], &w->key, NULL);
    assert_chunk(old, w->ids[0], 1); /* whoever has it pinned keeps it */
    assert_chunk(new, w->ids[0], 2);
    is_store_unpin(w->store, &old, 1);
    is_store_unpin(w->store, &new, 1);
    assert_int_equal(stats(w).host_chunks, 1);
    reopen(w, 1 << 20);
    new = pin_one(w, w->scope, w->ids[0], &w->key, NULL);
    assert_chunk(new, w->ids[0], 2);
    is_store_unpin(w->store, &new, 1);
    w->key = fixture_key(3); /* another model's chunk takes its place */
    put(w, w->ids[0], 3);
    assert_int_equal(stats(w).chunks, 1);
    is_chunk_key first = fixture_key(1);
    assert_false(pinnable(w, w->scope, w->ids[0], &first));
    assert_clean(w);
}

static void test_pending(void **state)
{
    world *w = *state;
    int64_t bob = 0;
    int64_t bobs = 0;
    assert_int_equal(is_store_scope(w->store, &(is_scope){.user = "bob"}, true, &bob, &w->err), IS_OK);
    is_fact fact = {.text = "bob's"};
    assert_int_equal(is_store_add_facts(w->store, bob, &fact, 1, NULL, 0, NULL, &bobs, &w->err), IS_OK);
    put(w, w->ids[2], 0);
    put(w, w->ids[4], 0);
    put(w, 0, 0);
    is_fact_list *list = NULL;
    int64_t *scopes = NULL;
    uint64_t n = 0;
    assert_int_equal(is_store_pending(w->store, w->scope, &w->key, w->ids[1], 2, &list, &scopes, &w->err), IS_OK);
    assert_int_equal(list->n, 2);
    assert_int_equal(list->facts[0].id, w->ids[3]);
    assert_int_equal(list->facts[1].id, w->ids[5]);
    assert_string_equal(list->facts[1].text, "fact 5");
    is_fact_list_free(list);
    free(scopes);
    assert_int_equal(is_store_pending(w->store, 0, &w->key, w->ids[14], 100, &list, &scopes, &w->err), IS_OK);
    assert_int_equal(list->n, 2);
    assert_int_equal(scopes[0], w->scope);
    assert_int_equal(list->facts[1].id, bobs);
    assert_int_equal(scopes[1], bob);
    is_fact_list_free(list);
    free(scopes);
    assert_int_equal(is_store_count_pending(w->store, w->scope, &w->key, &n, &w->err), IS_OK);
    assert_int_equal(n, 14);
    assert_int_equal(is_store_count_pending(w->store, 0, &w->key, &n, &w->err), IS_OK);
    assert_int_equal(n, 15);
    is_chunk_key other = fixture_key(9);
    assert_int_equal(is_store_count_pending(w->store, 0, &other, &n, &w->err), IS_OK);
    assert_int_equal(n, 17);
    assert_true(ready(w, w->ids[2]) && ready(w, 0) && !ready(w, w->ids[3]));
}

static void test_drop_stale(void **state)
{
    world *w = *state;
    put_all(w, 3);
    put(w, 0, 0);
    is_chunk_key old = w->key;
    w->key = fixture_key(2);
    put(w, w->ids[1], 9);
    uint64_t n = 0;
    assert_int_equal(is_store_drop_stale(w->store, &w->key, &n, &w->err), IS_OK);
    assert_int_equal(n, 3);
    assert_int_equal(files(w, NULL), 1);
    assert_false(pinnable(w, w->scope, w->ids[0], &old));
    assert_true(pinnable(w, w->scope, w->ids[1], &w->key));
    assert_clean(w);
}

/* ------------------------------------------------------------ damage */

static void flip(const char *path, long at)
{
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, at, at < 0 ? SEEK_END : SEEK_SET), 0);
    int byte = fgetc(file);
    assert_int_equal(fseek(file, -1, SEEK_CUR), 0);
    (void)fputc(byte ^ 1, file);
    (void)fclose(file);
}

static void assert_refused_and_pending(world *w)
{
    size_t refused = 0;
    assert_true(ready(w, w->ids[0]));
    assert_null(pin_one(w, w->scope, w->ids[0], &w->key, &refused));
    assert_int_equal(refused, 1);
    assert_false(ready(w, w->ids[0]));
    assert_false(pinnable(w, w->scope, w->ids[0], &w->key)); /* refused once, then just not there */
    assert_int_equal(files(w, NULL), 0);
    put(w, w->ids[0], 3);
    assert_true(pinnable(w, w->scope, w->ids[0], &w->key));
}

static void test_damaged_file(void **state)
{
    world *w = *state;
    char path[FIXTURE_PATH * 2];
    static const long PLACES[] = {0, 100, 300, 5000, -3};
    for (size_t i = 0; i < sizeof PLACES / sizeof *PLACES; i++) {
        put(w, w->ids[0], 1);
        reopen(w, 1 << 20);
        assert_int_equal(files(w, path), 1);
        flip(path, PLACES[i]);
        assert_refused_and_pending(w);
    }
    reopen(w, 1 << 20);
    assert_int_equal(files(w, path), 1);
    assert_int_equal(truncate(path, 5000), 0);
    assert_refused_and_pending(w);
    reopen(w, 1 << 20);
    assert_int_equal(files(w, path), 1);
    assert_int_equal(unlink(path), 0);
    assert_refused_and_pending(w);
}

/* A healthy chunk of another fact in this one's place. */
static void test_swapped_files(void **state)
{
    world *w = *state;
    char first[FIXTURE_PATH * 2];
    char second[FIXTURE_PATH * 2];
    char aside[FIXTURE_PATH + 16];
    (void)snprintf(aside, sizeof aside, "%s/aside", w->folder);
    put(w, w->ids[0], 1);
    assert_int_equal(files(w, first), 1);
    assert_int_equal(rename(first, aside), 0);
    put(w, w->ids[1], 1);
    assert_int_equal(files(w, second), 1);
    assert_int_equal(rename(aside, first), 0);
    reopen(w, 1 << 20);
    assert_int_equal(rename(first, second), 0);
    int64_t asked[2] = {w->ids[0], w->ids[1]};
    is_pin *pins[2];
    size_t refused = 0;
    assert_int_equal(is_store_pin(w->store, w->scope, asked, 2, &w->key, pins, &refused, &w->err), IS_OK);
    assert_int_equal(refused, 2);
    assert_null(pins[0]);
    assert_null(pins[1]);
    assert_clean(w);
}

static void test_chunks_taken_away(void **state)
{
    world *w = *state;
    put_all(w, 3);
    is_store_close(w->store);
    char path[FIXTURE_PATH + 16];
    (void)snprintf(path, sizeof path, "%s/chunks", w->folder);
    fixture_remove(path);
    w->store = fixture_open(w->folder, 1 << 20);
    for (int i = 0; i < 3; i++) assert_false(ready(w, w->ids[i]));
    assert_clean(w);
    put_all(w, 3);
    assert_clean(w);
}

static void test_orphans_go_at_open(void **state)
{
    world *w = *state;
    put_all(w, 2);
    static const char *const NAMES[] = {"00/1200000000000034.chunk", "00/1200000000000034.tmp", "00/notes.txt"};
    char path[3][FIXTURE_PATH + 64];
    for (int i = 0; i < 3; i++) {
        (void)snprintf(path[i], sizeof path[i], "%s/chunks/%s", w->folder, NAMES[i]);
        FILE *file = fopen(path[i], "wb");
        assert_non_null(file);
        (void)fclose(file);
    }
    assert_int_equal(verify(w, false).files_orphaned, 2);
    assert_int_equal(files(w, NULL), 5);
    reopen(w, 1 << 20);
    assert_int_equal(verify(w, false).files_orphaned, 0);
    assert_int_equal(access(path[0], F_OK), -1);
    assert_int_equal(access(path[2], F_OK), 0); /* not ours */
    assert_true(pinnable(w, w->scope, w->ids[0], &w->key));
}

static void count_line(void *user, const char *line)
{
    assert_true(line[0] != '\0');
    (*(int *)user)++;
}

static void test_verify_and_repair(void **state)
{
    world *w = *state;
    char path[FIXTURE_PATH * 2];
    put_all(w, 4);
    assert_int_equal(files(w, path), 4);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(files(w, path), 3);
    flip(path, -1);
    char orphan[FIXTURE_PATH + 64];
    (void)snprintf(orphan, sizeof orphan, "%s/chunks/00/1200000000000034.chunk", w->folder);
    FILE *file = fopen(orphan, "wb");
    assert_non_null(file);
    (void)fclose(file);
    for (int round = 0; round < 2; round++) {
        is_verify_report report;
        int lines = 0;
        assert_int_equal(is_store_verify(w->store, round == 1, count_line, &lines, &report, &w->err), IS_OK);
        assert_int_equal(lines, 3);
        assert_int_equal(report.chunks_checked, 4);
        assert_int_equal(report.chunks_bad, 1);
        assert_int_equal(report.files_missing, 1);
        assert_int_equal(report.files_orphaned, 1);
        assert_int_equal(report.database_bad, 0);
    }
    assert_clean(w);
    assert_int_equal(stats(w).chunks, 2);
    assert_int_equal(stats(w).host_chunks, 2); /* what has no row is not served from memory */
}

/* ------------------------------------------------------------ forgetting */

static void test_forget_drops_chunks(void **state)
{
    world *w = *state;
    int64_t deps[3] = {w->ids[5], w->ids[6], w->ids[5]};
    put_all(w, 4);
    assert_int_equal(put_behind(w, w->scope, w->ids[7], 7, deps, 3), IS_OK);
    assert_int_equal(put_behind(w, w->scope, w->ids[8], 8, deps + 1, 1), IS_OK);
    is_pin *held = pin_one(w, w->scope, w->ids[7], &w->key, NULL);
    size_t forgotten = 0;
    int64_t gone[2] = {w->ids[5], w->ids[0]};
    assert_int_equal(is_store_forget(w->store, w->scope, gone, 2, &forgotten, &w->err), IS_OK);
    assert_int_equal(forgotten, 2);
    assert_false(pinnable(w, w->scope, w->ids[0], &w->key)); /* its own */
    assert_false(pinnable(w, w->scope, w->ids[7], &w->key)); /* made behind it */
    assert_false(ready(w, w->ids[7]));
    assert_true(pinnable(w, w->scope, w->ids[8], &w->key));
    assert_true(pinnable(w, w->scope, w->ids[1], &w->key));
    assert_int_equal(files(w, NULL), 4);
    assert_chunk(held, w->ids[7], 7);
    is_store_unpin(w->store, &held, 1);
    assert_int_equal(stats(w).host_chunks, 4);
    assert_int_equal(is_store_forget(w->store, w->scope, NULL, 0, &forgotten, &w->err), IS_OK);
    assert_int_equal(forgotten, 14);
    assert_int_equal(files(w, NULL), 0);
    assert_int_equal(stats(w).host_chunks, 0);
    assert_int_equal(stats(w).host_bytes, 0);
    assert_int_equal(stats(w).facts, 0);
    assert_clean(w);
}

static void test_put_after_forget_is_refused(void **state)
{
    world *w = *state;
    int64_t bob = 0;
    assert_int_equal(is_store_scope(w->store, &(is_scope){.user = "bob"}, true, &bob, &w->err), IS_OK);
    put(w, w->ids[2], 1);
    assert_int_equal(is_store_forget(w->store, w->scope, w->ids, 1, NULL, &w->err), IS_OK);
    assert_int_equal(put_behind(w, w->scope, w->ids[0], 0, NULL, 0), IS_ENOTFOUND);
    assert_int_equal(put_behind(w, w->scope, w->ids[2], 2, w->ids, 1), IS_ENOTFOUND);
    assert_int_equal(put_behind(w, bob, w->ids[1], 0, NULL, 0), IS_ENOTFOUND); /* another's fact */
    assert_int_equal(files(w, NULL), 1);
    is_pin *pin = pin_one(w, w->scope, w->ids[2], &w->key, NULL);
    assert_chunk(pin, w->ids[2], 1); /* what was there before stays */
    is_store_unpin(w->store, &pin, 1);
    assert_clean(w);
}

/* ------------------------------------------------------------ the budget */

static void test_budget(void **state)
{
    world *w = *state;
    put_all(w, 16);
    uint64_t budget = 70000;
    reopen(w, budget);
    is_pin *pins[16];
    for (int i = 0; i < 16; i++) {
        pins[i] = pin_one(w, w->scope, w->ids[i], &w->key, NULL);
        assert_true(stats(w).host_bytes <= budget);
        is_store_unpin(w->store, &pins[i], 1);
    }
    uint64_t fit = stats(w).host_chunks;
    assert_true(fit >= 3 && fit < 16);
    /* more than the budget is served whole, and goes when it is let go */
    assert_int_equal(is_store_pin(w->store, w->scope, w->ids, 16, &w->key, pins, NULL, &w->err), IS_OK);
    for (int i = 0; i < 16; i++) assert_chunk(pins[i], w->ids[i], (uint8_t)i);
    assert_int_equal(stats(w).host_chunks, 16);
    is_store_unpin(w->store, pins, 16);
    assert_true(stats(w).host_bytes <= budget);
    assert_int_equal(stats(w).host_chunks, fit);
    /* what does not fit beside pinned chunks is stored without being kept */
    assert_int_equal(is_store_pin(w->store, w->scope, w->ids, (size_t)fit, &w->key, pins, NULL, &w->err), IS_OK);
    put(w, w->ids[15], 99);
    assert_int_equal(stats(w).host_chunks, fit);
    is_pin *late = pin_one(w, w->scope, w->ids[15], &w->key, NULL);
    assert_chunk(late, w->ids[15], 99);
    is_store_unpin(w->store, &late, 1);
    for (size_t i = 0; i < fit; i++) assert_chunk(pins[i], w->ids[i], (uint8_t)i);
    is_store_unpin(w->store, pins, (size_t)fit);
    assert_true(stats(w).host_bytes <= budget);
    reopen(w, 0);
    assert_int_equal(is_store_pin(w->store, w->scope, w->ids, 16, &w->key, pins, NULL, &w->err), IS_OK);
    assert_chunk(pins[3], w->ids[3], 3);
    is_store_unpin(w->store, pins, 16);
    assert_int_equal(stats(w).host_bytes, 0);
}

/* Room for three; misses tell what was evicted. */
static void test_least_recently_used_goes_first(void **state)
{
    world *w = *state;
    put_all(w, 5);
    reopen(w, 40000);
    static const struct {
        int fact;
        bool miss;
    } STEPS[] = {{0, true},  {1, true}, {2, true}, {0, false}, {3, true}, {0, false},
                 {2, false}, {1, true}, {3, true}, {2, false}, {0, true}};
    uint64_t misses = 0;
    for (size_t i = 0; i < sizeof STEPS / sizeof *STEPS; i++) {
        assert_true(pinnable(w, w->scope, w->ids[STEPS[i].fact], &w->key));
        misses += STEPS[i].miss;
        assert_int_equal(stats(w).host_misses, misses);
    }
    assert_int_equal(stats(w).host_chunks, 3);
}

static void test_warm(void **state)
{
    world *w = *state;
    put_all(w, 8);
    reopen(w, 40000);
    atomic_bool stop = true;
    assert_int_equal(is_store_warm(w->store, &w->key, &stop, &w->err), IS_OK);
    assert_int_equal(stats(w).host_chunks, 0);
    stop = false;
    is_chunk_key other = fixture_key(9);
    assert_int_equal(is_store_warm(w->store, &other, &stop, &w->err), IS_OK);
    assert_int_equal(stats(w).host_chunks, 0);
    assert_int_equal(is_store_warm(w->store, &w->key, &stop, &w->err), IS_OK);
    is_stats s = stats(w);
    assert_int_equal(s.host_chunks, 3);
    assert_int_equal(s.host_misses, 0);
    for (int i = 5; i < 8; i++) assert_true(pinnable(w, w->scope, w->ids[i], &w->key)); /* the newest */
    assert_int_equal(stats(w).host_misses, 0);
    reopen(w, 40000);
    assert_int_equal(is_store_warm(w->store, &w->key, NULL, &w->err), IS_OK);
    assert_true(pinnable(w, w->scope, w->ids[0], &w->key));
    assert_true(pinnable(w, w->scope, w->ids[7], &w->key));
    assert_int_equal(stats(w).host_misses, 1); /* of the warmed the oldest made room */
}

/* ------------------------------------------------------------ the tier by itself */

/* A chunk that is dropped while it is being read is not served, and the next who asks begins anew. */
static void test_dropped_while_loading(void **state)
{
    world *w = *state;
    is_tier *tier = NULL;
    is_chunk chunk = {.n_layers = 1};
    uint8_t key[IS_KEY_BYTES] = {1};
    is_want want = {.fact = 3, .scope = 1};
    is_want again = {.fact = 3, .scope = 1};
    is_stats s;
    assert_int_equal(is_tier_open(1 << 20, &tier, &w->err), IS_OK);
    assert_int_equal(is_tier_claim(tier, key, &want, 1, true, &w->err), IS_OK);
    assert_true(want.mine && !want.done);
    is_tier_reserve(tier, want.pin, 5000);
    is_tier_drop(tier, 3);
    assert_false(is_tier_finish(tier, want.pin, malloc(5000), &chunk));
    is_tier_stats(tier, &s);
    assert_int_equal(s.host_bytes, 0);
    assert_int_equal(s.host_chunks, 0);
    assert_int_equal(is_tier_claim(tier, key, &again, 1, true, &w->err), IS_OK);
    assert_true(again.mine);
    is_tier_reserve(tier, again.pin, 5000);
    assert_true(is_tier_finish(tier, again.pin, malloc(5000), &chunk));
    is_tier_unpin(tier, again.pin, false);
    assert_true(is_tier_holds(tier, 1, 3, key));
    is_tier_close(tier);
}

/* ------------------------------------------------------------ threads */

typedef struct crowd {
    world *w;
    pthread_barrier_t barrier;
    const uint8_t *bytes[4];
} crowd;

typedef struct member {
    crowd *c;
    int number;
    uint32_t seed;
    int served;
    bool wrong;
} member;

static void *pin_together(void *context)
{
    member *m = context;
    is_pin *pin = NULL;
    (void)pthread_barrier_wait(&m->c->barrier);
    (void)is_store_pin(m->c->w->store, m->c->w->scope, m->c->w->ids, 1, &m->c->w->key, &pin, NULL, NULL);
    m->c->bytes[m->number] = pin != NULL ? is_pin_chunk(pin)->bytes : NULL;
    (void)pthread_barrier_wait(&m->c->barrier);
    is_store_unpin(m->c->w->store, &pin, 1);
    return NULL;
}

static void test_one_load_for_many(void **state)
{
    world *w = *state;
    put_all(w, 1);
    for (int round = 0; round < 20; round++) {
        reopen(w, 1 << 20);
        crowd c = {.w = w};
        pthread_t threads[4];
        member members[4];
        (void)pthread_barrier_init(&c.barrier, NULL, 4);
        for (int i = 0; i < 4; i++) {
            members[i] = (member){.c = &c, .number = i};
            assert_int_equal(pthread_create(&threads[i], NULL, pin_together, &members[i]), 0);
        }
        for (int i = 0; i < 4; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
        (void)pthread_barrier_destroy(&c.barrier);
        for (int i = 0; i < 4; i++) assert_true(c.bytes[i] != NULL && c.bytes[i] == c.bytes[0]);
        is_stats s = stats(w);
        assert_int_equal(s.host_misses, 1);
        assert_int_equal(s.host_hits, 3);
    }
}

static uint32_t next_random(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

/* Whatever is pinned is this fact's, and all of one making: the salt fills every K row. */
static void look_at(member *m, const is_pin *pin, int64_t fact)
{
    if (pin == NULL) return;
    const is_chunk *chunk = is_pin_chunk(pin);
    is_chunk_rows a = is_chunk_layer(chunk, 0);
    is_chunk_rows b = is_chunk_layer(chunk, 1);
    m->served++;
    if (chunk->tokens[0] != (int32_t)fact || memcmp(a.k, b.k, TOKENS * 8) != 0) m->wrong = true;
}

static void *pin_at_random(void *context)
{
    member *m = context;
    world *w = m->c->w;
    for (int i = 0; i < 300; i++) {
        int64_t asked[6];
        is_pin *pins[6];
        for (int j = 0; j < 6; j++) asked[j] = w->ids[next_random(&m->seed) % 16];
        if (is_store_pin(w->store, w->scope, asked, 6, &w->key, pins, NULL, NULL) != IS_OK) m->wrong = true;
        for (int j = 0; j < 6; j++) look_at(m, pins[j], asked[j]);
        is_store_unpin(w->store, pins, 6);
    }
    return NULL;
}

static void *put_at_random(void *context)
{
    member *m = context;
    world *w = m->c->w;
    for (int i = 0; i < 60; i++) {
        int64_t fact = w->ids[next_random(&m->seed) % 16];
        int64_t dep = w->ids[next_random(&m->seed) % 16];
        size_t size = 0;
        void *bytes = fixture_chunk(fact, TOKENS, (uint8_t)i, &w->key, &size);
        is_status status = is_store_put_chunk(w->store, w->scope, fact, &w->key, bytes, size, &dep, 1, NULL);
        if (status != IS_OK && status != IS_ENOTFOUND) m->wrong = true;
        if (status == IS_OK) m->served++;
        free(bytes);
    }
    return NULL;
}

static void *forget_and_look(void *context)
{
    member *m = context;
    world *w = m->c->w;
    for (int i = 0; i < 6; i++) {
        is_pin *pin = NULL;
        is_hit hits[4];
        size_t n = 0;
        int64_t fact = w->ids[10 + i];
        if (is_store_forget(w->store, w->scope, &fact, 1, &n, NULL) != IS_OK || n != 1) m->wrong = true;
        /* from here on it is never served again */
        if (is_store_pin(w->store, w->scope, &fact, 1, &w->key, &pin, NULL, NULL) != IS_OK || pin != NULL)
            m->wrong = true;
        if (is_store_match(w->store, w->scope, "fact", 4, 100, hits, &n, NULL) != IS_OK || n != 4) m->wrong = true;
        is_verify_report report;
        if (is_store_verify(w->store, false, NULL, NULL, &report, NULL) != IS_OK || report.chunks_bad != 0 ||
            report.files_missing != 0 || report.files_orphaned != 0 || report.database_bad != 0)
            m->wrong = true;
        m->served++;
    }
    return NULL;
}

static void test_threads(void **state)
{
    world *w = *state;
    put_all(w, 16);
    reopen(w, 100000); /* room for some six: they are read and evicted all the time */
    crowd c = {.w = w};
    static void *(*const WORK[4])(void *) = {pin_at_random, pin_at_random, put_at_random, forget_and_look};
    pthread_t threads[4];
    member members[4];
    for (int i = 0; i < 4; i++) {
        members[i] = (member){.c = &c, .number = i, .seed = (uint32_t)i + 1};
        assert_int_equal(pthread_create(&threads[i], NULL, WORK[i], &members[i]), 0);
    }
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < 4; i++) {
        assert_false(members[i].wrong);
        assert_true(members[i].served > 0);
    }
    assert_true(stats(w).host_bytes <= 100000);
    assert_int_equal(stats(w).facts, 10);
    assert_clean(w);
}

int main(void)
{
#define TEST(NAME) cmocka_unit_test_setup_teardown(NAME, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_put_and_pin),
        TEST(test_same_fact_twice),
        TEST(test_only_the_same_key_and_scope),
        TEST(test_refused_chunks),
        TEST(test_replace),
        TEST(test_pending),
        TEST(test_drop_stale),
        TEST(test_damaged_file),
        TEST(test_swapped_files),
        TEST(test_chunks_taken_away),
        TEST(test_orphans_go_at_open),
        TEST(test_verify_and_repair),
        TEST(test_forget_drops_chunks),
        TEST(test_put_after_forget_is_refused),
        TEST(test_budget),
        TEST(test_least_recently_used_goes_first),
        TEST(test_warm),
        TEST(test_dropped_while_loading),
        TEST(test_one_load_for_many),
        TEST(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
