/*
 * The device's scan, over a device that is none, against the host's.  Vectors' elements are small multiples of 1/8, so
 * that products are exact in any order of the sums, and both give the very same scores and ranking, ties included.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/fake.h"
#include "cuda/scan.h"
#include "cuda/select_host.h"
#include "retrieve/retrieve.h"

static uint64_t random_state = 1;

static uint32_t random_u32(void)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(random_state >> 32);
}

static void *must(void *memory)
{
    if (memory == NULL) fail_msg("out of memory");
    return memory;
}

#define DIM      16
#define N_SCOPES 6

/* What the test knows of a scope. */
typedef struct scope_rows {
    uint16_t *rows; /* [n][DIM] */
    size_t n;
    uint64_t series;
} scope_rows;

typedef struct fixture {
    is_device_scan *scan;
    scope_rows scopes[N_SCOPES];
    uint64_t series;
    is_error err;
} fixture;

static uint16_t random_element(void)
{
    static const float odd[] = {NAN, INFINITY, -INFINITY, -0.0F};
    if (random_u32() % 5000 == 0) return is_f32_to_f16(odd[random_u32() % 4]);
    return is_f32_to_f16(((float)(random_u32() % 9) - 4) / 8);
}

static void add_rows(scope_rows *s, size_t n)
{
    uint16_t *rows = must(malloc((s->n + n) * DIM * sizeof *rows + 1)); /* another place, as in vectors.c */
    if (s->n > 0) memcpy(rows, s->rows, s->n * DIM * sizeof *rows);
    for (size_t i = s->n * DIM; i < (s->n + n) * DIM; i++) rows[i] = random_element();
    free(s->rows);
    s->rows = rows;
    s->n += n;
}

static void remove_row(fixture *f, scope_rows *s, size_t at)
{
    memmove(s->rows + at * DIM, s->rows + (at + 1) * DIM, (s->n - at - 1) * DIM * sizeof *s->rows);
    s->n--;
    s->series = ++f->series;
}

static is_vectors_view view_of(const scope_rows *s)
{
    return (is_vectors_view){.rows = s->rows, .n = s->n, .series = s->series};
}

typedef struct question {
    is_vectors_view view;
    float vector[DIM];
    uint32_t index[IS_SELECT_MAX];
    float score[IS_SELECT_MAX];
} question;

static is_device_query ask_of(question *q, int64_t scope, is_vectors_view view, uint32_t k)
{
    q->view = view;
    for (int i = 0; i < DIM; i++) q->vector[i] = ((float)(random_u32() % 9) - 4) / 8;
    return (is_device_query){
        .scope = scope, .view = &q->view, .vector = q->vector, .k = k, .index = q->index, .score = q->score};
}

static bool is_right(const is_device_query *query)
{
    const is_vectors_view *view = query->view;
    float *scores = must(malloc(view->n * sizeof *scores + 1));
    uint32_t index[IS_SELECT_MAX];
    float score[IS_SELECT_MAX];
    is_scan_dot(IS_ISA_C, query->vector, view->rows, view->n, DIM, scores);
    size_t n = is_scan_top(scores, view->n, query->k, index, score);
    bool right = query->n == n;
    for (size_t i = 0; i < n && right; i++)
        right =
            query->index[i] == index[i] && (query->score[i] == score[i] || (isnan(query->score[i]) && isnan(score[i])));
    free(scores);
    return right;
}

static void check_status(fixture *f, is_status status)
{
    if (status != IS_OK) fail_msg("%s: %s", is_status_name(status), f->err.text);
}

static void check_ask(fixture *f, is_device_query *queries, size_t n)
{
    check_status(f, is_device_scan_ask(f->scan, queries, n, &f->err));
    for (size_t i = 0; i < n; i++)
        if (!is_right(&queries[i])) fail_msg("question %zu of %zu, k %u", i, n, queries[i].k);
}

static void check_scope(fixture *f, size_t i, uint32_t k)
{
    question q;
    is_device_query query = ask_of(&q, (int64_t)i, view_of(&f->scopes[i]), k);
    check_ask(f, &query, 1);
}

static void open_scan(fixture *f, uint64_t budget, size_t round)
{
    is_device_scan_settings settings = {.dim = DIM, .budget = budget, .round = round};
    check_status(f, is_device_scan_new(&settings, &f->scan, &f->err));
}

static void reopen_scan(fixture *f, uint64_t budget, size_t round)
{
    is_device_scan_free(f->scan);
    f->scan = NULL;
    open_scan(f, budget, round);
}

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    if (f == NULL) return -1;
    fake_begin(random_u32());
    fake_run_select = is_select_host;
    for (int i = 0; i < N_SCOPES; i++) f->scopes[i].series = ++f->series;
    open_scan(f, 64 << 20, 0);
    *state = f;
    return 0;
}

static int take_down(void **state)
{
    fixture *f = *state;
    is_device_scan_free(f->scan);
    for (int i = 0; i < N_SCOPES; i++) free(f->scopes[i].rows);
    free(f);
    return fake_end() ? 0 : -1;
}

#define N_BATCH 60

static void check_random_batch(fixture *f, question *questions)
{
    is_device_query queries[N_BATCH];
    size_t n = 1 + random_u32() % N_BATCH;
    for (size_t i = 0; i < n; i++) {
        size_t at = random_u32() % N_SCOPES;
        is_vectors_view view = view_of(&f->scopes[at]);
        if (random_u32() % 4 == 0) view.n -= random_u32() % (view.n / 2 + 1); /* it was acquired earlier */
        queries[i] = ask_of(&questions[i], (int64_t)at, view, 1 + random_u32() % IS_SELECT_MAX);
    }
    check_ask(f, queries, n);
}

/* Scopes grow, lose rows and are dropped between batches. */
static void test_scan(void **state)
{
    fixture *f = *state;
    question *questions = must(malloc(N_BATCH * sizeof *questions));
    check_random_batch(f, questions); /* all empty */
    for (int round = 0; round < 60; round++) {
        if (round == 30) reopen_scan(f, 1 << 20, 5000); /* not room for all; many rounds */
        for (size_t i = 0; i < N_SCOPES; i++) {
            scope_rows *s = &f->scopes[i];
            if (random_u32() % 3 == 0) add_rows(s, random_u32() % (i == 0 ? 3000 : 100));
            if (s->n > 0 && random_u32() % 10 == 0) remove_row(f, s, random_u32() % s->n);
            if (random_u32() % 30 == 0) is_device_scan_drop(f->scan, (int64_t)i);
        }
        check_random_batch(f, questions);
        assert_true(is_device_scan_counts(f->scan).bytes <= (round < 30 ? 64 << 20 : 1 << 20));
    }
    free(questions);
}

/* Two threads may have acquired views before and behind a change. */
static void test_two_series_at_once(void **state)
{
    fixture *f = *state;
    scope_rows *s = &f->scopes[0];
    question *questions = must(malloc(6 * sizeof *questions));
    add_rows(s, 500);
    scope_rows before = {.rows = must(malloc(500 * DIM * sizeof(uint16_t))), .n = 500, .series = s->series};
    memcpy(before.rows, s->rows, 500 * DIM * sizeof(uint16_t));
    remove_row(f, s, 100);
    add_rows(s, 50);
    for (size_t round = 1; round < 2000; round += 700) {
        is_device_query queries[6];
        reopen_scan(f, 1 << 20, round);
        for (size_t i = 0; i < 6; i++) queries[i] = ask_of(&questions[i], 0, view_of(i % 2 ? &before : s), 20);
        check_ask(f, queries, 6);
        assert_int_equal(is_device_scan_counts(f->scan).uploaded, 500 + 549); /* each once */
        check_ask(f, queries, 6);
        assert_int_equal(is_device_scan_counts(f->scan).scopes, 1);
    }
    free(before.rows);
    free(questions);
}

/* Only what was appended goes up, and rows that are more than the staging buffers hold. */
static void test_uploads(void **state)
{
    fixture *f = *state;
    scope_rows *s = &f->scopes[1];
    add_rows(s, 1000);
    check_scope(f, 1, 10);
    check_scope(f, 1, 10);
    assert_int_equal(is_device_scan_counts(f->scan).uploaded, 1000);
    assert_int_equal(is_device_scan_counts(f->scan).bytes, 1000 * DIM * 2);
    add_rows(s, 1); /* no room: moves to where there is twice as much */
    check_scope(f, 1, 10);
    assert_int_equal(is_device_scan_counts(f->scan).uploaded, 2001);
    assert_int_equal(is_device_scan_counts(f->scan).bytes, 2000 * DIM * 2);
    add_rows(s, 999);
    check_scope(f, 1, 10);
    assert_int_equal(is_device_scan_counts(f->scan).uploaded, 3000);
    remove_row(f, s, 0);
    check_scope(f, 1, 10);
    assert_int_equal(is_device_scan_counts(f->scan).uploaded, 4999);
    assert_int_equal(is_device_scan_counts(f->scan).bytes, 2000 * DIM * 2);
    add_rows(s, 200000);
    check_scope(f, 1, 300);
    is_device_scan_drop(f->scan, 1);
    is_device_scan_drop(f->scan, 1);
    assert_int_equal(is_device_scan_counts(f->scan).bytes, 0);
    assert_int_equal(is_device_scan_counts(f->scan).scopes, 0);
    check_scope(f, 1, 300);
}

static void test_budget(void **state)
{
    fixture *f = *state;
    question q;
    const uint64_t one = 1000 * DIM * 2;
    reopen_scan(f, 3 * one, 0);
    for (size_t i = 0; i < 5; i++) add_rows(&f->scopes[i], 1000);
    for (size_t i = 0; i < 3; i++) check_scope(f, i, 5);
    check_scope(f, 0, 5);
    check_scope(f, 3, 5); /* 1 goes */
    check_scope(f, 0, 5);
    check_scope(f, 2, 5);
    is_matrices_counts counts = is_device_scan_counts(f->scan);
    assert_int_equal(counts.evicted, 1);
    assert_int_equal(counts.uploaded, 4000);
    assert_int_equal(counts.bytes, 3 * one);

    add_rows(&f->scopes[0], 1); /* twice the room would cost others theirs: one goes, and not two */
    check_scope(f, 0, 5);
    counts = is_device_scan_counts(f->scan);
    assert_int_equal(counts.bytes, 2 * one + 8 * DIM * 2);
    assert_int_equal(counts.evicted, 2);

    add_rows(&f->scopes[4], 2001);
    is_device_query query = ask_of(&q, 4, view_of(&f->scopes[4]), 5);
    assert_int_equal(is_device_scan_ask(f->scan, &query, 1, &f->err), IS_ENOMEM);
    assert_non_null(strstr(f->err.text, "3001 vectors of scope 4"));
    assert_int_equal(query.n, 0);
    for (size_t i = 0; i < 4; i++) check_scope(f, i, 5);
}

static void test_refusals(void **state)
{
    fixture *f = *state;
    question q;
    is_device_scan *scan = NULL;
    is_device_scan_settings settings = {.dim = 12, .budget = 1 << 20};
    assert_int_equal(is_device_scan_new(&settings, &scan, &f->err), IS_EUNSUPPORTED);
    settings = (is_device_scan_settings){.device = is_cuda_devices(), .dim = 8};
    assert_int_equal(is_device_scan_new(&settings, &scan, &f->err), IS_EUNSUPPORTED);
    add_rows(&f->scopes[0], 10);
    is_device_query query = ask_of(&q, 0, view_of(&f->scopes[0]), 0);
    assert_int_equal(is_device_scan_ask(f->scan, &query, 1, &f->err), IS_EINVAL);
    query.k = IS_SELECT_MAX + 1;
    assert_int_equal(is_device_scan_ask(f->scan, &query, 1, &f->err), IS_EINVAL);
    query.k = IS_SELECT_MAX;
    check_ask(f, &query, 1);
    check_status(f, is_device_scan_ask(f->scan, NULL, 0, &f->err));
    q.view.n = (size_t)INT32_MAX + 1;
    assert_int_equal(is_device_scan_ask(f->scan, &query, 1, &f->err), IS_EUNSUPPORTED);
    q.view.n = INT32_MAX - 3;
    assert_true(is_device_scan_ask(f->scan, &query, 1, &f->err) != IS_OK);
    check_scope(f, 0, 5);
    is_device_scan_free(NULL);
}

/* ------------------------------------------------------------ what fails */

/* Asks, with the n-th call from then on failing; false: there were fewer calls.  What comes behind is right.  warm:
 * some of what is asked is there already. */
static bool check_failure(fixture *f, bool warm, uint64_t n)
{
    question *questions = must(malloc(4 * sizeof *questions));
    is_device_query queries[4];
    size_t rows[3];
    reopen_scan(f, 4000 * DIM * 2, 1500);
    for (size_t i = 0; i < 3 && warm; i++) check_scope(f, i, 5);
    for (size_t i = 0; i < 3; i++) rows[i] = f->scopes[i].n;
    add_rows(&f->scopes[0], 1);
    remove_row(f, &f->scopes[1], 3);
    for (size_t i = 0; i < 4; i++) queries[i] = ask_of(&questions[i], (int64_t)i, view_of(&f->scopes[i]), 20);

    uint64_t before = fake_calls();
    fake_fail_at(n);
    is_status status = is_device_scan_ask(f->scan, queries, 4, &f->err);
    bool failed = fake_calls() - before >= n;
    bool last = fake_calls() - before == n; /* the wait for the answers: what was put may still come to be */
    fake_fail_at(0);
    if (status != IS_OK) {
        assert_true(failed && *f->err.text);
        if (!warm && !last) assert_int_equal(is_device_scan_counts(f->scan).scopes, 0);
        for (size_t i = 0; i < 4; i++) assert_int_equal(queries[i].n, 0);
    } else {
        for (size_t i = 0; i < 4; i++) assert_true(is_right(&queries[i]));
    }
    check_ask(f, queries, 4);
    for (size_t i = 0; i < 4; i++) is_device_scan_drop(f->scan, (int64_t)i);
    assert_int_equal(is_device_scan_counts(f->scan).bytes, 0);
    assert_int_equal(is_device_scan_counts(f->scan).scopes, 0);
    check_ask(f, queries, 4);
    for (size_t i = 0; i < 3; i++) f->scopes[i].n = rows[i]; /* as it was, but for the row that is gone */
    f->scopes[0].series = ++f->series;
    f->scopes[1].series = ++f->series;
    f->scopes[1].n--;
    add_rows(&f->scopes[1], 1);
    free(questions);
    return failed;
}

static void test_failures(void **state)
{
    fixture *f = *state;
    for (size_t i = 0; i < 4; i++) add_rows(&f->scopes[i], i == 1 ? 2000 : 600);
    for (int warm = 0; warm < 2; warm++) {
        uint64_t n = 1;
        while (check_failure(f, warm, n)) n++;
        assert_true(n > 20); /* calls of one batch */
    }
}

/* What was put into the stream before a failure is done before its memory is freed for more. */
static void test_failure_before_more(void **state)
{
    fixture *f = *state;
    enum { MANY = 20000 };
    question *questions = must(calloc(MANY, sizeof *questions));
    is_device_query *queries = must(calloc(MANY, sizeof *queries));
    add_rows(&f->scopes[0], 8);
    for (size_t i = 0; i < MANY; i++) queries[i] = ask_of(&questions[i], 0, view_of(&f->scopes[0]), 1);
    uint64_t calls = fake_calls();
    check_ask(f, queries, 1);
    calls = fake_calls() - calls;
    for (uint64_t n = 0; n < 2; n++) { /* the calls that come last */
        reopen_scan(f, 1 << 20, 0);
        fake_fail_at(calls - n);
        assert_int_equal(is_device_scan_ask(f->scan, queries, 1, &f->err), IS_EENGINE);
        fake_fail_at(0);
        check_ask(f, queries, MANY);
    }
    free(questions);
    free(queries);
}

static void test_failures_of_opening(void **state)
{
    fixture *f = *state;
    is_device_scan_settings settings = {.dim = DIM, .budget = 1 << 20};
    is_device_scan_free(f->scan);
    f->scan = NULL;
    for (uint64_t n = 1; f->scan == NULL; n++) {
        fake_fail_at(n);
        is_status status = is_device_scan_new(&settings, &f->scan, &f->err);
        assert_true(status == IS_OK || f->scan == NULL);
    }
    fake_fail_at(0);
    add_rows(&f->scopes[0], 100);
    check_scope(f, 0, 5);
}

/* ------------------------------------------------------------ what is left behind */

static bool watching; /* all device memory is zero whenever some is freed */
static size_t freed;

void __real_is_cuda_free(void *memory); // NOLINT: names that the linker wants
void __wrap_is_cuda_free(void *memory); // NOLINT

void __wrap_is_cuda_free(void *memory) // NOLINT
{
    if (watching && memory) {
        assert_true(fake_is_zero());
        freed++;
    }
    __real_is_cuda_free(memory);
}

static const char *pinned[4];
static size_t pinned_size[4];
static size_t n_pinned;

is_status __real_is_cuda_host_malloc(size_t size, void **out, is_error *err); // NOLINT
is_status __wrap_is_cuda_host_malloc(size_t size, void **out, is_error *err); // NOLINT

is_status __wrap_is_cuda_host_malloc(size_t size, void **out, is_error *err) // NOLINT
{
    is_status status = __real_is_cuda_host_malloc(size, out, err);
    if (status == IS_OK && watching) {
        assert_true(n_pinned < 4);
        pinned[n_pinned] = *out;
        pinned_size[n_pinned++] = size;
    }
    return status;
}

static void get_matrix(fixture *f, is_matrices *matrices, is_cuda_stream *stream, size_t scope, size_t n)
{
    const uint16_t *rows = NULL;
    is_vectors_view view = view_of(&f->scopes[scope]);
    view.n = n;
    check_status(f, is_matrices_get(matrices, (int64_t)scope, &view, &rows, &f->err));
    check_status(f, is_cuda_stream_wait(stream, &f->err));
    is_matrices_settle(matrices, true);
    assert_false(fake_is_zero());
    for (size_t i = 0; i < n_pinned; i++)
        assert_null(memmem(pinned[i], pinned_size[i], view.rows + (n - 1) * DIM, DIM * sizeof *view.rows));
}

/* Matrices of dropped, evicted, moved and shrunken scopes. */
static void test_nothing_is_left(void **state)
{
    fixture *f = *state;
    is_matrices *matrices = NULL;
    is_cuda_stream *stream = NULL;
    is_device_scan_free(f->scan);
    f->scan = NULL;
    for (size_t i = 0; i < 2; i++) add_rows(&f->scopes[i], 1000);
    check_status(f, is_cuda_use(0, &f->err));
    check_status(f, is_cuda_stream_new(&stream, &f->err));
    watching = true;
    freed = n_pinned = 0;
    check_status(f, is_matrices_new(DIM, 1000 * DIM * 2, stream, &matrices, &f->err));
    assert_true(n_pinned > 0);
    get_matrix(f, matrices, stream, 0, 100);
    get_matrix(f, matrices, stream, 0, 300); /* moves */
    assert_int_equal(freed, 1);
    get_matrix(f, matrices, stream, 1, 999); /* 0 goes */
    assert_int_equal(freed, 2);
    f->scopes[1].series = ++f->series;
    memset(f->scopes[1].rows, 0, DIM * sizeof(uint16_t));
    f->scopes[1].rows[0] = 0x3C00;
    get_matrix(f, matrices, stream, 1, 1); /* shrinks */
    f->scopes[1].series = ++f->series;
    f->scopes[1].rows[0] = 0;
    const uint16_t *rows = NULL;
    is_vectors_view view = view_of(&f->scopes[1]);
    view.n = 1;
    check_status(f, is_matrices_get(matrices, 1, &view, &rows, &f->err));
    assert_true(fake_is_zero());
    get_matrix(f, matrices, stream, 1, 50);
    is_matrices_drop(matrices, 1);
    assert_int_equal(freed, 3);
    get_matrix(f, matrices, stream, 1, 50);
    is_matrices_free(matrices);
    assert_int_equal(freed, 4);
    watching = false;
    is_cuda_stream_free(stream);
}

/* ------------------------------------------------------------ threads */

typedef struct asker {
    fixture *f;
    is_device_query queries[8];
    question questions[8];
    bool right;
} asker;

static void *ask_often(void *arg)
{
    asker *a = arg;
    a->right = true;
    for (int round = 0; round < 30 && a->right; round++) {
        a->right = is_device_scan_ask(a->f->scan, a->queries, 8, NULL) == IS_OK;
        for (int i = 0; i < 8 && a->right; i++) a->right = is_right(&a->queries[i]);
        if (round % 10 == 0) is_device_scan_drop(a->f->scan, 0);
    }
    return NULL;
}

static void test_threads(void **state)
{
    fixture *f = *state;
    pthread_t threads[3];
    asker *askers = must(calloc(3, sizeof *askers));
    for (size_t i = 0; i < 3; i++) add_rows(&f->scopes[i], 300);
    for (size_t t = 0; t < 3; t++) {
        askers[t].f = f;
        for (size_t i = 0; i < 8; i++)
            askers[t].queries[i] =
                ask_of(&askers[t].questions[i], (int64_t)(i % 3), view_of(&f->scopes[i % 3]), 1 + random_u32() % 100);
        assert_int_equal(pthread_create(&threads[t], NULL, ask_often, &askers[t]), 0);
    }
    for (size_t t = 0; t < 3; t++) {
        pthread_join(threads[t], NULL);
        assert_true(askers[t].right);
    }
    free(askers);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, take_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_scan),
        TEST(test_two_series_at_once),
        TEST(test_uploads),
        TEST(test_budget),
        TEST(test_refusals),
        TEST(test_failures),
        TEST(test_failure_before_more),
        TEST(test_failures_of_opening),
        TEST(test_nothing_is_left),
        TEST(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
