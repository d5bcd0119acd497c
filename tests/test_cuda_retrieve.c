/*
 * The index with its scan on a device that is none, beside one that scans on the host: the same facts in the same
 * order, also where the device fails, and nothing stays on it of what was forgotten.  The vectors' elements are small
 * multiples of 1/8, so that every product is exact in any order of the sums, in f16 too.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cuda/fake.h"
#include "cuda/select_host.h"
#include "retrieve/retrieve.h"
#include "store_fixture.h"

#define DIM      16
#define EMBEDDER "synthetic"

typedef struct bench {
    char folder[FIXTURE_PATH];
    is_store *store;
    is_index *host, *device;
    int64_t scopes[2];
    uint16_t last[DIM]; /* the vector of the fact that was added last */
} bench;

static uint32_t chance(void)
{
    static uint64_t state = 1;
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(state >> 32);
}

static void random_vector(float *v)
{
    for (int i = 0; i < DIM; i++) v[i] = ((float)(chance() % 9) - 4) / 8;
}

static void expect_ok(is_status status, const is_error *err)
{
    if (status != IS_OK) fail_msg("%s", err->text);
}

static void add_facts(bench *b, int scope, size_t n)
{
    is_error err = {0};
    for (size_t i = 0; i < n; i++) {
        char text[64];
        float vector[DIM];
        uint16_t row[DIM];
        (void)snprintf(text, sizeof text, "fact %u of scope %d", chance(), scope);
        random_vector(vector);
        for (int d = 0; d < DIM; d++) row[d] = is_f32_to_f16(vector[d]);
        memcpy(b->last, row, sizeof row);
        const is_fact fact = {.text = text, .time = chance() % 2 ? 1000 : 2000};
        expect_ok(is_store_add_facts(b->store, b->scopes[scope], &fact, 1, row, DIM, EMBEDDER, NULL, &err), &err);
    }
}

static bench *open_bench(uint64_t budget)
{
    bench *b = calloc(1, sizeof *b);
    is_error err = {0};
    fake_begin(chance());
    fake_run_select = is_select_host;
    fixture_folder(b->folder);
    b->store = fixture_open(b->folder, 1 << 20);
    for (int i = 0; i < 2; i++) {
        const is_scope scope = {.user = i == 0 ? "nora" : "omar"};
        expect_ok(is_store_scope(b->store, &scope, true, &b->scopes[i], &err), &err);
    }
    expect_ok(is_index_open(b->store, EMBEDDER, DIM, 0, &b->host, &err), &err);
    expect_ok(is_index_open(b->store, EMBEDDER, DIM, 0, &b->device, &err), &err);
    expect_ok(is_index_use_device(b->device, budget, &err), &err);
    return b;
}

static void close_bench(bench *b)
{
    is_index_close(b->host);
    is_index_close(b->device);
    is_store_close(b->store);
    fixture_remove(b->folder);
    free(b);
    assert_true(fake_end());
}

/* One question to both. */
static void compare(bench *b, int scope, uint32_t k, const is_filter *filter)
{
    float vector[DIM];
    is_hit hits[2][200];
    size_t n[2];
    is_error err = {0};
    random_vector(vector);
    expect_ok(is_index_search(b->host, b->scopes[scope], "", vector, k, filter, hits[0], &n[0], &err), &err);
    expect_ok(is_index_search(b->device, b->scopes[scope], "", vector, k, filter, hits[1], &n[1], &err), &err);
    assert_int_equal(n[0], n[1]);
    for (size_t i = 0; i < n[0]; i++) {
        assert_int_equal(hits[0][i].id, hits[1][i].id);
        assert_true(hits[0][i].score == hits[1][i].score);
    }
}

static void the_host_s_facts(void **state)
{
    (void)state;
    bench *b = open_bench(1 << 20);
    compare(b, 0, 5, NULL); /* nothing there yet */
    for (int round = 0; round < 4; round++) {
        add_facts(b, 0, 40);
        add_facts(b, 1, 7);
        compare(b, 0, 5, NULL);
        compare(b, 1, 50, NULL);
        compare(b, 0, 200, NULL);
    }
    assert_true(fake_holds(b->last, sizeof b->last)); /* it was the device */
    const is_filter filter = {.time_from = 1500, .time_to = IS_TIME_NONE};
    compare(b, 0, 10, &filter);
    close_bench(b);
}

static void what_the_device_cannot_do(void **state)
{
    (void)state;
    bench *b = open_bench(1024); /* room for 32 rows */
    add_facts(b, 0, 100);
    add_facts(b, 1, 10);
    compare(b, 0, 5, NULL);
    compare(b, 1, 5, NULL);
    for (uint64_t nth = 1; nth < 30; nth++) {
        fake_fail_at(nth);
        compare(b, 1, 5, NULL);
        fake_fail_at(0);
        compare(b, 1, 5, NULL);
        add_facts(b, 1, 1);
    }
    fake_fail_from(1);
    compare(b, 1, 5, NULL);
    fake_fail_at(0);
    close_bench(b);
}

static void what_is_forgotten_leaves_the_device(void **state)
{
    (void)state;
    bench *b = open_bench(1 << 20);
    is_error err = {0};
    size_t n = 0;
    add_facts(b, 0, 60);
    compare(b, 0, 5, NULL);
    assert_true(fake_holds(b->last, sizeof b->last));
    expect_ok(is_store_forget(b->store, b->scopes[0], NULL, 0, &n, &err), &err);
    is_index_drop(b->host, b->scopes[0]);
    is_index_drop(b->device, b->scopes[0]);
    assert_false(fake_holds(b->last, sizeof b->last));
    compare(b, 0, 5, NULL);
    add_facts(b, 0, 3);
    compare(b, 0, 5, NULL);
    close_bench(b);
}

static void without_embeddings(void **state)
{
    (void)state;
    bench *b = open_bench(1 << 20);
    is_index *words = NULL;
    is_error err = {0};
    expect_ok(is_index_open(b->store, NULL, 0, 0, &words, &err), &err);
    assert_int_equal(is_index_use_device(words, 1 << 20, &err), IS_EINVAL);
    is_index_close(words);
    close_bench(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_host_s_facts),
        cmocka_unit_test(what_the_device_cannot_do),
        cmocka_unit_test(what_is_forgotten_leaves_the_device),
        cmocka_unit_test(without_embeddings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
