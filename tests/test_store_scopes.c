/*
 * Which scopes there are, page by page, and whose a fact is.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "store_fixture.h"

typedef struct world {
    char folder[FIXTURE_PATH];
    is_store *store;
    is_error err;
} world;

static int setup(void **state)
{
    world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    fixture_folder(w->folder);
    w->store = fixture_open(w->folder, 0);
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

static void check(const world *w, is_status status)
{
    if (status != IS_OK) fail_msg("%s: %s", is_status_name(status), w->err.text);
}

static int64_t scope_of(world *w, const char *tenant, const char *user)
{
    int64_t id = 0;
    check(w, is_store_scope(w->store, &(is_scope){.tenant = tenant, .user = user}, true, &id, &w->err));
    return id;
}

static int64_t add(world *w, int64_t scope, size_t n)
{
    const is_fact facts[3] = {{.text = "a"}, {.text = "b"}, {.text = "c"}};
    int64_t ids[3];
    check(w, is_store_add_facts(w->store, scope, facts, n, NULL, 0, NULL, ids, &w->err));
    return ids[0];
}

/* Names of the users page by page, and what stands behind them. */
static void assert_users(world *w, const char *tenant, size_t limit, const char *want)
{
    char got[512] = "";
    int64_t after = 0;
    for (;;) {
        is_scope_info *page = NULL;
        size_t n = 99;
        check(w, is_store_list_scopes(w->store, tenant, after, limit, &page, &n, &w->err));
        assert_true(n <= limit);
        for (size_t i = 0; i < n; i++) {
            assert_true(page[i].number > after);
            after = page[i].number;
            size_t used = strlen(got);
            (void)snprintf(got + used, sizeof got - used, "%s/%s%s%s:%d,%d ", page[i].tenant, page[i].user,
                           page[i].agent, page[i].run, (int)page[i].facts, (int)page[i].turns);
        }
        is_scope_info_free(page, n);
        if (n == 0) break;
    }
    assert_string_equal(got, want);
}

static void test_scopes_are_listed(void **state)
{
    world *w = *state;
    assert_users(w, NULL, 10, "");
    int64_t ann = scope_of(w, "acme", "ann");
    (void)scope_of(w, "acme", "never had anything");
    int64_t bob = scope_of(w, "Acme", "bob");
    int64_t cleo = scope_of(w, "acme", "cleo");
    int64_t dan = scope_of(w, NULL, "dan");
    (void)add(w, ann, 3);
    (void)add(w, bob, 1);
    check(w, is_store_add_turns(w->store, cleo, &(is_turn){.id = "t", .text = "hi"}, 1, &w->err));
    int64_t his = add(w, dan, 1);
    for (size_t limit = 1; limit < 5; limit++) {
        assert_users(w, "acme", limit, "acme/ann:3,0 acme/cleo:0,1 ");
        assert_users(w, "Acme", limit, "Acme/bob:1,0 ");
        assert_users(w, "", limit, "/dan:1,0 ");
        assert_users(w, NULL, limit, "acme/ann:3,0 Acme/bob:1,0 acme/cleo:0,1 /dan:1,0 ");
        assert_users(w, "acm", limit, "");
        assert_users(w, "acme%", limit, "");
    }
    assert_users(w, NULL, 0, "");
    check(w, is_store_forget(w->store, dan, &his, 1, NULL, &w->err));
    check(w, is_store_forget(w->store, ann, NULL, 0, NULL, &w->err));
    assert_users(w, NULL, 10, "Acme/bob:1,0 acme/cleo:0,1 ");
    (void)add(w, ann, 2);
    assert_users(w, "acme", SIZE_MAX, "acme/ann:2,0 acme/cleo:0,1 ");
}

static void assert_not_there(world *w, const char *tenant, int64_t id, char text[sizeof w->err.text])
{
    is_scope_info *found = (is_scope_info *)1;
    assert_int_equal(is_store_scope_of(w->store, tenant, id, &found, &w->err), IS_ENOTFOUND);
    assert_null(found);
    (void)snprintf(text, sizeof w->err.text, "%s", w->err.text);
}

static void assert_of(world *w, const char *tenant, int64_t id, int64_t scope, const char *user)
{
    is_scope_info *found = NULL;
    check(w, is_store_scope_of(w->store, tenant, id, &found, &w->err));
    assert_int_equal(found->number, scope);
    assert_string_equal(found->tenant, tenant != NULL ? tenant : "");
    assert_string_equal(found->user, user);
    is_scope_info_free(found, 1);
}

static void test_whose_a_fact_is(void **state)
{
    world *w = *state;
    char other[sizeof w->err.text];
    char never[sizeof w->err.text];
    int64_t ann = scope_of(w, "acme", "ann");
    int64_t dan = scope_of(w, NULL, "dan");
    int64_t hers = add(w, ann, 1);
    int64_t his = add(w, dan, 1);
    assert_of(w, "acme", hers, ann, "ann");
    assert_of(w, "", his, dan, "dan");
    assert_of(w, NULL, his, dan, "dan");
    assert_not_there(w, "acme", his, other);
    check(w, is_store_forget(w->store, dan, &his, 1, NULL, &w->err));
    assert_not_there(w, "acme", his, never);
    assert_string_equal(other, never); /* nobody learns that another tenant has this fact */
    assert_not_there(w, "", his, never);
    assert_not_there(w, "", hers, never);
    assert_not_there(w, NULL, hers, never);
    assert_not_there(w, "Acme", hers, never);
    assert_not_there(w, "acme", hers + 100, never);
    assert_not_there(w, "acme", 0, never);
    is_scope_info_free(NULL, 0);
}

int main(void)
{
#define TEST(NAME) cmocka_unit_test_setup_teardown(NAME, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_scopes_are_listed),
        TEST(test_whose_a_fact_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
