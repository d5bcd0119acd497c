/*
 * Chunks whose rows the workers of another engine keep: the store has a stub and a folder of parts, and both come and
 * go together.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>

#include "store/store_internal.h"
#include "store_fixture.h"

#define TOKENS 20
#define PARTS  2

typedef struct world {
    char folder[FIXTURE_PATH];
    is_store *store;
    int64_t scope;
    int64_t ids[2];
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
    const is_fact facts[2] = {{.text = "one", .time = IS_TIME_NONE}, {.text = "two", .time = IS_TIME_NONE}};
    assert_int_equal(is_store_scope(w->store, &(is_scope){.user = "ann"}, true, &w->scope, &w->err), IS_OK);
    assert_int_equal(is_store_add_facts(w->store, w->scope, facts, 2, NULL, 0, NULL, w->ids, &w->err), IS_OK);
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

static void path_of(const world *w, int64_t key, const char *part, char out[FIXTURE_PATH + 96])
{
    (void)snprintf(out, FIXTURE_PATH + 96, "%s/chunks/%02x/%016llx.parts%s%s", w->folder,
                   (unsigned)((uint64_t)key >> 48) & 0xFF, (unsigned long long)key, part[0] != '\0' ? "/" : "", part);
}

static bool there(const world *w, int64_t key, const char *part)
{
    char path[FIXTURE_PATH + 96];
    path_of(w, key, part, path);
    return access(path, F_OK) == 0;
}

/* As a worker does it; 0 or an errno. */
static int write_part(const world *w, int64_t key, const char *part, const void *bytes, size_t size)
{
    char path[FIXTURE_PATH + 96];
    path_of(w, key, part, path);
    FILE *out = fopen(path, "wbe");
    if (out == NULL) return errno;
    assert_int_equal(fwrite(bytes, 1, size, out), size);
    assert_int_equal(fclose(out), 0);
    return 0;
}

static void write_parts(const world *w, int64_t key, int64_t fact)
{
    size_t size = 0;
    void *bytes = fixture_chunk(fact, TOKENS, 3, &w->key, &size);
    assert_int_equal(write_part(w, key, "0of2", bytes, size), 0);
    assert_int_equal(write_part(w, key, "1of2", bytes, size), 0);
    free(bytes);
}

static is_status put_stub(world *w, int64_t key, int64_t fact)
{
    int32_t tokens[TOKENS] = {(int32_t)fact};
    is_chunk_info info = {.p_ref = 7, .n_tokens = TOKENS, .parts = PARTS, .key = key, .recipe = "primed:8"};
    memcpy(info.fingerprint, w->key.fingerprint, sizeof info.fingerprint);
    size_t size = is_chunk_stub_bytes(TOKENS);
    void *bytes = aligned_alloc(IS_CHUNK_ALIGN, size);
    assert_int_equal(is_chunk_stub(bytes, size, &info, tokens, &w->err), IS_OK);
    is_status status =
        is_store_put_chunk(w->store, fact == 0 ? 0 : w->scope, fact, &w->key, bytes, size, NULL, 0, &w->err);
    free(bytes);
    return status;
}

static int64_t put_whole(world *w, int64_t fact)
{
    int64_t key = 0;
    assert_int_equal(is_store_new_key(w->store, &key, &w->err), IS_OK);
    write_parts(w, key, fact);
    if (put_stub(w, key, fact) != IS_OK) fail_msg("%s", w->err.text);
    return key;
}

/* The pinned stub's key, 0 for none. */
static int64_t pinned_key(world *w, int64_t fact, size_t *refused)
{
    is_pin *pin = NULL;
    assert_int_equal(is_store_pin(w->store, w->scope, &fact, 1, &w->key, &pin, refused, &w->err), IS_OK);
    int64_t key = pin == NULL ? 0 : is_pin_chunk(pin)->info.key;
    if (pin != NULL) assert_int_equal(is_pin_chunk(pin)->info.parts, PARTS);
    is_store_unpin(w->store, &pin, 1);
    return key;
}

static void reopen(world *w)
{
    is_store_close(w->store);
    w->store = fixture_open(w->folder, 1 << 20);
}

/* ------------------------------------------------------------ tests */

static void a_stub_is_put_when_its_parts_are_there(void **state)
{
    world *w = *state;
    int64_t key = 0;
    size_t refused = 0;
    assert_int_equal(is_store_new_key(w->store, &key, &w->err), IS_OK);
    assert_true(there(w, key, ""));
    assert_int_equal(put_stub(w, key, w->ids[0]), IS_EIO);
    assert_non_null(strstr(w->err.text, "the workers have made no chunk"));
    assert_int_equal(pinned_key(w, w->ids[0], &refused), 0);
    assert_int_equal(is_store_new_key(w->store, &key, &w->err), IS_OK);
    write_parts(w, key, w->ids[0]);
    assert_int_equal(put_stub(w, key, w->ids[0]), IS_OK);
    assert_int_equal(pinned_key(w, w->ids[0], &refused), key);
    reopen(w);
    assert_int_equal(pinned_key(w, w->ids[0], &refused), key);
    assert_int_equal(refused, 0);
}

static void forgetting_takes_the_parts_too(void **state)
{
    world *w = *state;
    int64_t key = put_whole(w, w->ids[0]), other = put_whole(w, w->ids[1]);
    assert_int_equal(is_store_forget(w->store, w->scope, &w->ids[0], 1, NULL, &w->err), IS_OK);
    assert_false(there(w, key, ""));
    assert_true(there(w, other, "1of2"));
    assert_int_equal(write_part(w, key, "0of2", "late", 4), ENOENT);
    assert_int_equal(is_store_forget(w->store, w->scope, NULL, 0, NULL, &w->err), IS_OK);
    assert_false(there(w, other, ""));
}

static void another_chunk_replaces_stub_and_parts(void **state)
{
    world *w = *state;
    size_t refused = 0;
    int64_t first = put_whole(w, w->ids[0]), second = put_whole(w, w->ids[0]);
    assert_int_not_equal(first, second);
    assert_false(there(w, first, ""));
    assert_int_equal(pinned_key(w, w->ids[0], &refused), second);
}

static void a_key_that_is_given_up_leaves_nothing(void **state)
{
    world *w = *state;
    int64_t key = 0;
    size_t refused = 0;
    assert_int_equal(is_store_new_key(w->store, &key, &w->err), IS_OK);
    write_parts(w, key, 1);
    is_store_drop_key(w->store, key);
    assert_false(there(w, key, ""));
    int64_t kept = put_whole(w, w->ids[0]);
    is_store_drop_key(w->store, kept);
    assert_int_equal(pinned_key(w, w->ids[0], &refused), kept);
    assert_true(there(w, kept, "0of2"));
}

static void what_is_being_made_is_no_leftover(void **state)
{
    world *w = *state;
    int64_t key = 0;
    is_verify_report report;
    int64_t kept = put_whole(w, w->ids[0]);
    assert_int_equal(is_store_new_key(w->store, &key, &w->err), IS_OK);
    write_parts(w, key, w->ids[1]);
    assert_int_equal(is_store_verify(w->store, true, NULL, NULL, &report, &w->err), IS_OK);
    assert_int_equal(report.files_orphaned, 0);
    assert_true(there(w, key, "0of2"));
    reopen(w); /* as after a crash */
    assert_false(there(w, key, ""));
    assert_true(there(w, kept, "0of2"));
}

static void a_removal_that_was_cut_short_is_ended(void **state)
{
    world *w = *state;
    int64_t key = put_whole(w, w->ids[0]);
    char path[FIXTURE_PATH + 96], gone[FIXTURE_PATH + 96];
    path_of(w, key, "", path);
    (void)snprintf(gone, sizeof gone, "%s", path);
    memcpy(strstr(gone, ".parts"), ".gone", sizeof ".gone");
    assert_int_equal(rename(path, gone), 0);
    reopen(w);
    assert_int_not_equal(access(gone, F_OK), 0);
}

static void a_missing_part_drops_the_chunk(void **state)
{
    world *w = *state;
    size_t refused = 0;
    char path[FIXTURE_PATH + 96];
    int64_t key = put_whole(w, w->ids[0]);
    path_of(w, key, "1of2", path);
    assert_int_equal(unlink(path), 0);
    reopen(w);
    assert_int_equal(pinned_key(w, w->ids[0], &refused), 0);
    assert_int_equal(refused, 1);
    assert_false(there(w, key, ""));
}

static void verify_reads_the_parts(void **state)
{
    world *w = *state;
    is_verify_report report;
    size_t size = 0;
    int64_t key = put_whole(w, w->ids[0]), other = put_whole(w, w->ids[1]);
    assert_int_equal(is_store_verify(w->store, false, NULL, NULL, &report, &w->err), IS_OK);
    assert_int_equal(report.chunks_checked, 2);
    assert_int_equal(report.chunks_bad, 0);
    uint8_t *bytes = fixture_chunk(w->ids[0], TOKENS, 3, &w->key, &size);
    bytes[size - 1] ^= 1;
    assert_int_equal(write_part(w, key, "1of2", bytes, size), 0);
    free(bytes);
    bytes = fixture_chunk(99, TOKENS, 3, &w->key, &size); /* whole, and of another text */
    assert_int_equal(write_part(w, other, "0of2", bytes, size), 0);
    free(bytes);
    assert_int_equal(is_store_verify(w->store, true, NULL, NULL, &report, &w->err), IS_OK);
    assert_int_equal(report.chunks_bad, 2);
    assert_false(there(w, key, ""));
    assert_false(there(w, other, ""));
}

/* A stub's file under another number would be injected as another fact. */
static void a_stub_of_another_key_is_refused(void **state)
{
    world *w = *state;
    size_t refused = 0;
    char from[FIXTURE_PATH + 96], to[FIXTURE_PATH + 96], command[3 * FIXTURE_PATH];
    int64_t key = put_whole(w, w->ids[0]), other = put_whole(w, w->ids[1]);
    path_of(w, key, "", from);
    path_of(w, other, "", to);
    memcpy(strstr(from, ".parts"), ".chunk", sizeof ".chunk");
    memcpy(strstr(to, ".parts"), ".chunk", sizeof ".chunk");
    (void)snprintf(command, sizeof command, "cp %s %s", from, to);
    assert_int_equal(system(command), 0);
    reopen(w);
    assert_int_equal(pinned_key(w, w->ids[1], &refused), 0);
    assert_int_equal(refused, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_stub_is_put_when_its_parts_are_there, setup, teardown),
        cmocka_unit_test_setup_teardown(forgetting_takes_the_parts_too, setup, teardown),
        cmocka_unit_test_setup_teardown(another_chunk_replaces_stub_and_parts, setup, teardown),
        cmocka_unit_test_setup_teardown(a_key_that_is_given_up_leaves_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_being_made_is_no_leftover, setup, teardown),
        cmocka_unit_test_setup_teardown(a_removal_that_was_cut_short_is_ended, setup, teardown),
        cmocka_unit_test_setup_teardown(a_missing_part_drops_the_chunk, setup, teardown),
        cmocka_unit_test_setup_teardown(verify_reads_the_parts, setup, teardown),
        cmocka_unit_test_setup_teardown(a_stub_of_another_key_is_refused, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
