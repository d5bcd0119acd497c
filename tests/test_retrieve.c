/*
 * The index over a real store.  The vectors' elements are small multiples of 1/8, so that every dot product is exact
 * in f32 whatever the order of the sums, and the brute force here can ask for the very same ranking, ties included.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <ftw.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "retrieve/retrieve.h"
#include "retrieve/scan_pool.h"
#include "retrieve/vectors.h"

#define DIM      16
#define EMBEDDER "synthetic"

/* Takes the C library's place in this program: what the index wipes is counted. */
static atomic_size_t wiped;

void explicit_bzero(void *p, size_t n)
{
    volatile unsigned char *bytes = p;
    for (size_t i = 0; i < n; i++) bytes[i] = 0;
    atomic_fetch_add(&wiped, n);
}

/* ------------------------------------------------------------ facts with vectors */

static uint64_t random_state = 1;

static uint32_t random_u32(void)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(random_state >> 32);
}

static void random_vector(float *v)
{
    for (int i = 0; i < DIM; i++) v[i] = ((float)(random_u32() % 9) - 4) / 8;
}

/* What the test knows of the facts of one scope. */
typedef struct model {
    int64_t scope;
    size_t n, capacity;
    int64_t *ids;
    float (*vectors)[DIM];
    int *topic; /* in the metadata */
} model;

typedef struct fixture {
    char folder[512];
    is_store *store;
    is_index *index;
    is_error err;
    model m;
} fixture;

static void model_free(model *m)
{
    free(m->ids);
    free(m->vectors);
    free(m->topic);
}

static void check_status(fixture *f, is_status status)
{
    if (status != IS_OK) fail_msg("%s: %s", is_status_name(status), f->err.text);
}

static int64_t scope_of(fixture *f, const char *user)
{
    int64_t id = 0;
    check_status(f, is_store_scope(f->store, &(is_scope){.user = user}, true, &id, &f->err));
    return id;
}

static void model_grow(model *m, size_t n)
{
    if (m->n + n <= m->capacity) return;
    m->capacity = m->n + n + 1000;
    m->ids = realloc(m->ids, m->capacity * sizeof *m->ids);
    m->vectors = realloc(m->vectors, m->capacity * sizeof *m->vectors);
    m->topic = realloc(m->topic, m->capacity * sizeof *m->topic);
    assert_true(m->ids && m->vectors && m->topic);
}

/* Adds n facts "common number<i> topic<i % 50>", with time i and metadata {"topic": i % 50}, i counting on in the
 * scope. embedded false: without their vectors, which the model has all the same. */
static void add(fixture *f, model *m, size_t n, bool embedded)
{
    is_fact *facts = calloc(n, sizeof *facts);
    uint16_t *rows = malloc(n * DIM * sizeof *rows);
    char(*text)[2][64] = malloc(n * sizeof *text);
    assert_true(facts && rows && text);
    model_grow(m, n);
    for (size_t i = 0; i < n; i++) {
        size_t number = m->n + i;
        m->topic[number] = (int)(number % 50);
        random_vector(m->vectors[number]);
        snprintf(text[i][0], sizeof text[i][0], "common number%zu topic%d", number, m->topic[number]);
        snprintf(text[i][1], sizeof text[i][1], "{\"topic\":%d}", m->topic[number]);
        facts[i] = (is_fact){.text = text[i][0], .metadata = text[i][1], .time = (int64_t)number};
        for (int j = 0; j < DIM; j++) rows[i * DIM + (size_t)j] = is_f32_to_f16(m->vectors[number][j]);
    }
    check_status(f, is_store_add_facts(f->store, m->scope, facts, n, embedded ? rows : NULL, DIM, EMBEDDER,
                                       m->ids + m->n, &f->err));
    m->n += n;
    free(facts);
    free(rows);
    free(text);
}

static void model_remove(model *m, size_t at)
{
    m->n--;
    memmove(m->ids + at, m->ids + at + 1, (m->n - at) * sizeof *m->ids);
    memmove(m->vectors + at, m->vectors + at + 1, (m->n - at) * sizeof *m->vectors);
    memmove(m->topic + at, m->topic + at + 1, (m->n - at) * sizeof *m->topic);
}

static void forget(fixture *f, model *m, size_t at)
{
    size_t forgotten = 0;
    check_status(f, is_store_forget(f->store, m->scope, &m->ids[at], 1, &forgotten, &f->err));
    assert_int_equal(forgotten, 1);
    model_remove(m, at);
}

/* ------------------------------------------------------------ brute force */

typedef struct scored {
    double score;
    int64_t id;
} scored;

static int by_score(const void *a, const void *b)
{
    const scored *x = a;
    const scored *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

/* Searches by vector alone and compares with all dot products of the facts with this topic (-1: all). */
static void check_vector_search(fixture *f, const model *m, uint32_t k, int topic)
{
    float query[DIM];
    is_hit hits[200];
    size_t n = 0;
    char metadata[32];
    random_vector(query);
    snprintf(metadata, sizeof metadata, "{\"topic\":%d}", topic);
    is_filter filter = {.time_from = IS_TIME_NONE, .time_to = IS_TIME_NONE, .metadata = metadata};
    check_status(f, is_index_search(f->index, m->scope, NULL, query, k, topic < 0 ? NULL : &filter, hits, &n, &f->err));

    scored *all = malloc((m->n + 1) * sizeof *all);
    assert_non_null(all);
    size_t n_all = 0;
    for (size_t i = 0; i < m->n; i++) {
        if (topic >= 0 && m->topic[i] != topic) continue;
        double sum = 0;
        for (int j = 0; j < DIM; j++) sum += (double)query[j] * (double)m->vectors[i][j];
        all[n_all++] = (scored){sum, m->ids[i]};
    }
    qsort(all, n_all, sizeof *all, by_score);
    assert_int_equal(n, k < n_all ? k : n_all);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(hits[i].id, all[i].id);
        assert_true(hits[i].score == 1.0 / (61.0 + (double)i));
    }
    free(all);
}

static bool has(const is_hit *hits, size_t n, int64_t id)
{
    for (size_t i = 0; i < n; i++)
        if (hits[i].id == id) return true;
    return false;
}

/* ------------------------------------------------------------ set up, take down */

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    if (f == NULL) return -1;
    const char *temporary = getenv("TMPDIR");
    snprintf(f->folder, sizeof f->folder, "%s/inferscale-test-XXXXXX", temporary ? temporary : P_tmpdir);
    if (mkdtemp(f->folder) == NULL) return -1;
    is_store_options options = {.folder = f->folder, .host_budget = 1 << 20};
    check_status(f, is_store_open(&options, &f->store, &f->err));
    check_status(f, is_index_open(f->store, EMBEDDER, DIM, 2, &f->index, &f->err));
    f->m.scope = scope_of(f, "ann");
    *state = f;
    return 0;
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *at)
{
    (void)info, (void)type, (void)at;
    return remove(path);
}

static int take_down(void **state)
{
    fixture *f = *state;
    is_index_close(f->index);
    is_store_close(f->store);
    model_free(&f->m);
    int rc = nftw(f->folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(f);
    return rc;
}

/* ------------------------------------------------------------ tests */

static void test_exact(void **state)
{
    fixture *f = *state;
    check_vector_search(f, &f->m, 10, -1); /* no facts, no hits */
    add(f, &f->m, 700, true);
    static const uint32_t ks[] = {1, 2, 12, 13, 50, 100, 101, 199, 200};
    for (size_t i = 0; i < sizeof ks / sizeof *ks; i++)
        for (int round = 0; round < 10; round++) check_vector_search(f, &f->m, ks[i], -1);
}

static void test_growth(void **state)
{
    fixture *f = *state;
    size_t bytes = 0;
    for (size_t n = 1; n < 200; n += 1 + n / 3) { /* beside what is there and into larger blocks */
        add(f, &f->m, n, true);
        check_vector_search(f, &f->m, 20, -1);
        check_vector_search(f, &f->m, 200, -1);
        assert_true(is_index_bytes(f->index) >= f->m.n * (DIM * 2 + 8));
        assert_true(is_index_bytes(f->index) >= bytes);
        bytes = is_index_bytes(f->index);
    }
    assert_true(bytes < 3 * f->m.n * (DIM * 2 + 8));
}

/* Facts that get their vectors after younger ones did are found too. */
static void test_late_embeddings(void **state)
{
    fixture *f = *state;
    add(f, &f->m, 30, true);
    check_vector_search(f, &f->m, 20, -1);
    size_t late = f->m.n;
    add(f, &f->m, 20, false);
    model seen = f->m; /* the model without them */
    seen.ids = NULL;
    seen.vectors = NULL;
    seen.topic = NULL;
    seen.n = seen.capacity = 0;
    add(f, &f->m, 30, true);
    model_grow(&seen, f->m.n);
    for (size_t i = 0; i < f->m.n; i++) {
        if (i >= late && i < late + 20) continue;
        seen.ids[seen.n] = f->m.ids[i];
        seen.topic[seen.n] = f->m.topic[i];
        memcpy(seen.vectors[seen.n++], f->m.vectors[i], sizeof *seen.vectors);
    }
    check_vector_search(f, &seen, 200, -1);
    for (size_t i = late; i < late + 20; i += 5) { /* in two steps, the younger half first */
        size_t from = i < late + 10 ? i + 10 : i - 10;
        uint16_t rows[5 * DIM];
        for (size_t j = 0; j < 5 * DIM; j++) rows[j] = is_f32_to_f16(f->m.vectors[from + j / DIM][j % DIM]);
        check_status(f, is_store_put_embeddings(f->store, &f->m.ids[from], rows, 5, DIM, EMBEDDER, &f->err));
        float query[DIM];
        is_hit hits[200];
        size_t n = 0;
        random_vector(query);
        check_status(f, is_index_search(f->index, f->m.scope, NULL, query, 200, NULL, hits, &n, &f->err));
        assert_int_equal(n, 60 + (i - late) + 5);
        assert_true(has(hits, n, f->m.ids[from]));
    }
    check_vector_search(f, &f->m, 200, -1);
    add(f, &f->m, 5, true);
    check_vector_search(f, &f->m, 200, -1);
    model_free(&seen);
}

static void test_forgetting(void **state)
{
    fixture *f = *state;
    add(f, &f->m, 300, true);
    check_vector_search(f, &f->m, 200, -1);
    for (int round = 0; round < 20; round++) {
        size_t at = random_u32() % f->m.n;
        int64_t id = f->m.ids[at];
        char word[32];
        is_hit hits[200];
        size_t n = 0;
        float query[DIM];
        memcpy(query, f->m.vectors[at], sizeof query);
        check_status(f, is_index_search(f->index, f->m.scope, NULL, query, 200, NULL, hits, &n, &f->err));
        assert_true(has(hits, n, id));
        forget(f, &f->m, at);
        snprintf(word, sizeof word, "number%zu", at);
        check_status(f, is_index_search(f->index, f->m.scope, word, query, 200, NULL, hits, &n, &f->err));
        assert_false(has(hits, n, id));
        check_vector_search(f, &f->m, 200, -1);
        if (round % 3 == 0) add(f, &f->m, 2, true);
    }
    /* The whole scope. */
    size_t before = atomic_load(&wiped);
    size_t rows = f->m.n;
    size_t forgotten;
    check_status(f, is_store_forget(f->store, f->m.scope, NULL, 0, &forgotten, &f->err));
    is_index_drop(f->index, f->m.scope);
    assert_true(atomic_load(&wiped) - before >= rows * DIM * 2);
    assert_true(is_index_bytes(f->index) < rows * DIM * 2);
    f->m.n = 0;
    check_vector_search(f, &f->m, 200, -1);
}

/* A dropped scope comes back; what a search in flight looks at stays until it is done. */
static void test_drop(void **state)
{
    fixture *f = *state;
    is_vectors *vectors = NULL;
    is_vectors_view view;
    is_vectors_view late;
    add(f, &f->m, 100, true);
    check_status(f, is_vectors_new(f->store, EMBEDDER, DIM, 1 << 20, &vectors, &f->err));
    is_vectors_drop(vectors, f->m.scope); /* nothing there yet */
    check_status(f, is_vectors_acquire(vectors, f->m.scope, &view, &f->err));
    assert_int_equal(view.n, 100);
    assert_int_equal((uintptr_t)view.rows % 64, 0);
    uint16_t copy[100 * DIM];
    memcpy(copy, view.rows, sizeof copy);
    uint64_t bytes = is_vectors_bytes(vectors);

    assert_true(view.series != 0 && is_vectors_current(&view));
    forget(f, &f->m, 40);
    is_vectors_drop(vectors, f->m.scope);
    assert_false(is_vectors_current(&view));
    assert_int_equal(is_vectors_bytes(vectors), bytes);
    add(f, &f->m, 3, true);
    check_status(f, is_vectors_acquire(vectors, f->m.scope, &late, &f->err));
    assert_int_equal(late.n, 102);
    assert_true(late.series != view.series);
    assert_memory_equal(view.rows, copy, sizeof copy);
    for (size_t i = 0; i < late.n; i++) assert_int_equal(late.ids[i], f->m.ids[i]);
    size_t before = atomic_load(&wiped);
    is_vectors_release(vectors, &view);
    assert_int_equal(atomic_load(&wiped) - before, sizeof copy);
    is_vectors_release(vectors, &late);
    is_vectors_free(vectors);
    is_vectors_free(NULL);
}

static is_vectors_view view_now(fixture *f, is_vectors *vectors)
{
    is_vectors_view view = {0};
    check_status(f, is_vectors_acquire(vectors, f->m.scope, &view, &f->err));
    return view;
}

/* Rows that come in between go to another place, though there is room where they are. */
static void test_view_stays(void **state)
{
    fixture *f = *state;
    is_vectors *vectors = NULL;
    uint16_t row[DIM] = {0x3C00};
    check_status(f, is_vectors_new(f->store, EMBEDDER, DIM, 1 << 20, &vectors, &f->err));
    add(f, &f->m, 10, true);
    is_vectors_view view = view_now(f, vectors);
    uint64_t series = view.series;
    is_vectors_release(vectors, &view);
    add(f, &f->m, 1, true);
    is_vectors_view first = view_now(f, vectors);
    add(f, &f->m, 1, false);
    add(f, &f->m, 1, true);
    is_vectors_view second = view_now(f, vectors);
    assert_ptr_equal(second.rows, first.rows); /* there was room */
    check_status(f, is_store_put_embeddings(f->store, &f->m.ids[11], row, 1, DIM, EMBEDDER, &f->err));
    is_vectors_view third = view_now(f, vectors);
    assert_int_equal(first.n, 11);
    assert_int_equal(second.n, 12);
    assert_int_equal(third.n, 13);
    for (size_t i = 0; i < 13; i++) {
        if (i < 11) assert_int_equal(second.ids[i], f->m.ids[i]);
        assert_int_equal(third.ids[i], f->m.ids[i]);
    }
    assert_int_equal(second.ids[11], f->m.ids[12]);
    assert_int_equal(second.rows[11 * DIM], is_f32_to_f16(f->m.vectors[12][0]));
    assert_memory_equal(third.rows + 11 * DIM, row, sizeof row);
    assert_int_equal(first.series, series); /* also where rows moved */
    assert_int_equal(second.series, series);
    assert_true(third.series != series);
    assert_false(is_vectors_current(&second));
    assert_true(is_vectors_current(&third));
    is_vectors_release(vectors, &second);
    is_vectors_release(vectors, &first);
    is_vectors_release(vectors, &third);
    is_vectors_free(vectors);
}

static void test_memory_limit(void **state)
{
    fixture *f = *state;
    is_vectors *vectors = NULL;
    is_vectors_view view;
    is_vectors_view held;
    int64_t scopes[6];
    const uint64_t one = 500 * (DIM * 2 + 8); /* bytes of one scope's rows */
    for (int i = 0; i < 6; i++) {
        char user[16];
        snprintf(user, sizeof user, "user%d", i);
        model m = {.scope = scope_of(f, user)};
        add(f, &m, 500, true);
        scopes[i] = m.scope;
        model_free(&m);
    }
    check_status(f, is_vectors_new(f->store, EMBEDDER, DIM, 3 * one, &vectors, &f->err));
    check_status(f, is_vectors_acquire(vectors, scopes[0], &held, &f->err));
    for (int round = 0; round < 2; round++) {
        for (int i = 1; i < 6; i++) {
            check_status(f, is_vectors_acquire(vectors, scopes[i], &view, &f->err));
            assert_int_equal(view.n, 500);
            is_vectors_release(vectors, &view);
            assert_true(is_vectors_bytes(vectors) <= 3 * one);
        }
    }
    assert_true(is_vectors_bytes(vectors) > 2 * one); /* it is used, too */
    int64_t sum = 0;
    for (size_t i = 0; i < held.n; i++) /* the one in use was not dropped */
        sum += held.ids[i] + held.rows[i * DIM];
    assert_true(sum > 0);
    size_t before = atomic_load(&wiped);
    check_status(f, is_vectors_acquire(vectors, scopes[5], &view, &f->err)); /* nor the youngest: nothing is read */
    assert_int_equal(atomic_load(&wiped), before);
    is_vectors_release(vectors, &view);
    is_vectors_release(vectors, &held);
    is_vectors_free(vectors);
}

static void test_filters(void **state)
{
    fixture *f = *state;
    add(f, &f->m, 2000, true);
    for (int topic = 0; topic < 52; topic += 3) /* topics 50 and 51 there are none of */
        check_vector_search(f, &f->m, 200, topic);

    /* By words alone: all 2,000 have the word, and those that pass are spread over the whole ranking. */
    is_filter filter = {.time_from = IS_TIME_NONE, .time_to = IS_TIME_NONE, .metadata = "{\"topic\":7}"};
    is_hit hits[200];
    size_t n = 0;
    static const uint32_t ks[] = {40, 200};
    for (size_t j = 0; j < 2; j++) {
        check_status(f, is_index_search(f->index, f->m.scope, "common", NULL, ks[j], &filter, hits, &n, &f->err));
        assert_int_equal(n, 40);
        for (size_t i = 0; i < f->m.n; i++) assert_int_equal(has(hits, n, f->m.ids[i]), f->m.topic[i] == 7);
    }

    /* By time, inclusive and exclusive, with both rankings. */
    float query[DIM];
    random_vector(query);
    filter = (is_filter){.time_from = 1000, .time_to = 1100};
    check_status(f, is_index_search(f->index, f->m.scope, "common number1500", query, 200, &filter, hits, &n, &f->err));
    assert_int_equal(n, 100);
    for (size_t i = 0; i < f->m.n; i++) assert_int_equal(has(hits, n, f->m.ids[i]), i >= 1000 && i < 1100);

    filter = (is_filter){.time_from = IS_TIME_NONE, .time_to = IS_TIME_NONE, .metadata = "not JSON"};
    assert_int_equal(is_index_search(f->index, f->m.scope, "common", query, 5, &filter, hits, &n, &f->err), IS_EINVAL);
}

static void test_scopes_are_apart(void **state)
{
    fixture *f = *state;
    model other = {.scope = scope_of(f, "bob")};
    add(f, &f->m, 60, true);
    add(f, &other, 40, true);
    add(f, &f->m, 10, true);
    add(f, &other, 30, true);
    for (int round = 0; round < 5; round++) {
        check_vector_search(f, &f->m, 200, -1);
        check_vector_search(f, &other, 200, -1);
        check_vector_search(f, &other, 200, 3);
    }
    is_hit hits[200];
    size_t n = 0;
    check_status(f, is_index_search(f->index, other.scope, "common", NULL, 200, NULL, hits, &n, &f->err));
    assert_int_equal(n, 70);
    for (size_t i = 0; i < f->m.n; i++) assert_false(has(hits, n, f->m.ids[i]));
    model_free(&other);
}

static void test_words_and_both(void **state)
{
    fixture *f = *state;
    is_hit hits[200];
    size_t n = 0;
    float query[DIM] = {0};
    add(f, &f->m, 400, true);
    check_status(f, is_index_search(f->index, f->m.scope, "Number123?", NULL, 5, NULL, hits, &n, &f->err));
    assert_int_equal(n, 1);
    assert_int_equal(hits[0].id, f->m.ids[123]);
    assert_true(hits[0].score == 1.0 / 61.0);
    check_status(f, is_index_search(f->index, f->m.scope, "nowhere", NULL, 5, NULL, hits, &n, &f->err));
    assert_int_equal(n, 0);
    check_status(f, is_index_search(f->index, f->m.scope, "", NULL, 5, NULL, hits, &n, &f->err));
    assert_int_equal(n, 0);

    /* A query of zeros ranks by id alone: number123 is 124th by vector and first by words. */
    check_status(f, is_index_search(f->index, f->m.scope, "number123", query, 200, NULL, hits, &n, &f->err));
    assert_int_equal(n, 200);
    assert_int_equal(hits[0].id, f->m.ids[123]);
    assert_true(hits[0].score == 1.0 / 61.0 + 1.0 / 184.0);
    assert_int_equal(hits[1].id, f->m.ids[0]);
    assert_true(hits[1].score == 1.0 / 61.0);
    /* With k 3 the candidates are 50, and the vector's ranking does not reach it. */
    check_status(f, is_index_search(f->index, f->m.scope, "number123", query, 3, NULL, hits, &n, &f->err));
    assert_int_equal(n, 3);
    assert_int_equal(hits[0].id, f->m.ids[0]); /* 1/61 both, the lower id */
    assert_int_equal(hits[1].id, f->m.ids[123]);
    assert_int_equal(hits[2].id, f->m.ids[1]);
}

static void test_refusals(void **state)
{
    fixture *f = *state;
    is_index *words = NULL;
    is_hit hits[200];
    size_t n = 9;
    float query[DIM] = {0};
    add(f, &f->m, 10, true);
    assert_int_equal(is_index_search(f->index, f->m.scope, "a", query, 0, NULL, hits, &n, &f->err), IS_EINVAL);
    assert_int_equal(n, 0);
    assert_int_equal(is_index_search(f->index, f->m.scope, "a", query, 201, NULL, hits, &n, &f->err), IS_EINVAL);
    assert_int_equal(is_index_open(f->store, EMBEDDER, 12, 0, &words, &f->err), IS_EUNSUPPORTED);
    check_status(f, is_index_open(f->store, NULL, 0, 0, &words, &f->err));
    assert_int_equal(is_index_search(words, f->m.scope, "common", query, 5, NULL, hits, &n, &f->err), IS_EINVAL);
    check_status(f, is_index_search(words, f->m.scope, "number3", NULL, 5, NULL, hits, &n, &f->err));
    assert_int_equal(n, 1);
    assert_int_equal(is_index_bytes(words), 0);
    is_index_drop(words, f->m.scope);
    is_index_close(words);
    is_index_close(NULL);
}

/* More rows than one thread scans alone. */
static void test_large_scope(void **state)
{
    fixture *f = *state;
    add(f, &f->m, IS_SCAN_POOL_ROWS + 1500, true);
    for (int round = 0; round < 5; round++) check_vector_search(f, &f->m, 200, round == 4 ? 9 : -1);
}

/* ------------------------------------------------------------ several threads */

#define N_SEARCHERS 2

typedef struct traffic {
    fixture *f;
    int64_t first[8];        /* ids that are forgotten in this order */
    atomic_size_t forgotten; /* how many of them are */
    atomic_bool stop, failed;
    atomic_size_t searches;
} traffic;

static void *search_on(void *arg)
{
    traffic *t = arg;
    is_error err;
    uint64_t seed = 7;
    while (!atomic_load(&t->stop) && !atomic_load(&t->failed)) {
        float query[DIM];
        is_hit hits[200];
        size_t n = 0;
        for (int i = 0; i < DIM; i++) {
            seed = seed * UINT64_C(6364136223846793005) + 1;
            query[i] = (float)((seed >> 40) % 9) / 8 - 0.5F;
        }
        size_t gone = atomic_load(&t->forgotten);
        if (is_index_search(t->f->index, t->f->m.scope, "common", query, 200, NULL, hits, &n, &err) != IS_OK || n == 0)
            atomic_store(&t->failed, true);
        for (size_t i = 0; i < gone; i++)
            if (has(hits, n, t->first[i])) atomic_store(&t->failed, true);
        atomic_fetch_add(&t->searches, 1);
    }
    return NULL;
}

static void test_threads(void **state)
{
    fixture *f = *state;
    traffic t = {.f = f};
    pthread_t threads[N_SEARCHERS];
    add(f, &f->m, 100, true);
    memcpy(t.first, f->m.ids, sizeof t.first);
    for (int i = 0; i < N_SEARCHERS; i++) assert_int_equal(pthread_create(&threads[i], NULL, search_on, &t), 0);
    for (size_t round = 0; round < 40; round++) {
        add(f, &f->m, 1 + round, true);
        if (round % 5 == 4) {
            forget(f, &f->m, 0);
            atomic_fetch_add(&t.forgotten, 1);
            if (round % 2) is_index_drop(f->index, f->m.scope);
        }
        size_t seen = atomic_load(&t.searches);
        while (atomic_load(&t.searches) < seen + 2 && !atomic_load(&t.failed)) usleep(100);
    }
    atomic_store(&t.stop, true);
    for (int i = 0; i < N_SEARCHERS; i++) pthread_join(threads[i], NULL);
    assert_false(atomic_load(&t.failed));
    check_vector_search(f, &f->m, 200, -1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, take_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_exact),          TEST(test_growth),   TEST(test_late_embeddings),
        TEST(test_forgetting),     TEST(test_drop),     TEST(test_view_stays),
        TEST(test_memory_limit),   TEST(test_filters),  TEST(test_scopes_are_apart),
        TEST(test_words_and_both), TEST(test_refusals), TEST(test_large_scope),
        TEST(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
