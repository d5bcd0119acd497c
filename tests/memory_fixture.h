/* A memory on real models in a folder of its own, and some facts, for tests of the whole system. */
#ifndef IS_TEST_MEMORY_FIXTURE_H
#define IS_TEST_MEMORY_FIXTURE_H

// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <dirent.h>
#include <ftw.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "memory/memory.h"

static char folder[256];

static const char *const TEXTS[] = {
    "Nora keeps her bicycle key in the blue teapot.",
    "Nora's brother Emil works as a baker in Ghent.",
    "Nora is allergic to walnuts and always asks about them.",
    "Nora will fly to Porto for a week in September.",
    "Nora's cat is called Biscuit and is eleven years old.",
    "Nora plays the viola in a quartet on Thursday evenings.",
    "Nora painted her kitchen yellow last spring.",
    "Nora reads crime novels before she goes to sleep.",
    "Nora's doctor is called Ines Vandamme.",
    "Nora wants to learn how to repair clocks.",
    "Nora lent her green tent to her colleague Sami.",
    "Nora's favourite soup is lentil soup with cumin.",
};
#define N_TEXTS (sizeof TEXTS / sizeof TEXTS[0])

static const is_scope NORA = {.user = "nora"};
static const is_scope OMAR = {.user = "omar"};

static const char *model(const char *variable)
{
    const char *path = getenv(variable);
    if (path == NULL) fail_msg("%s is not set; run `make test`", variable);
    return path;
}

static inline is_options plain_options(void)
{
    is_options o = is_options_default();
    o.store = folder;
    o.model = model("INFERSCALE_CHAT_MODEL");
    o.embedding_model = model("INFERSCALE_EMBEDDING_MODEL");
    o.context = 1024;
    o.background = false;
    return o;
}

static inline is_memory *open_with(const is_options *o)
{
    is_memory *m;
    is_error err = {0};
    if (is_open(o, &m, &err) != IS_OK) fail_msg("%s", err.text);
    return m;
}

static inline is_memory *open_plain(void)
{
    is_options o = plain_options();
    return open_with(&o);
}

static inline void check(is_status status, const is_error *err)
{
    if (status != IS_OK) fail_msg("%s: %s", is_status_name(status), err->text);
}

static inline void add(is_memory *m, const is_scope *scope, size_t begin, size_t end, int64_t *ids)
{
    is_error err = {0};
    is_fact facts[N_TEXTS];
    for (size_t i = begin; i < end; i++) facts[i - begin] = (is_fact){.text = TEXTS[i], .time = IS_TIME_NONE};
    check(is_add_facts(m, scope, facts, end - begin, ids, &err), &err);
}

static inline void encode(is_memory *m)
{
    is_error err = {0};
    check(is_encode_pending(m, NULL, NULL, NULL, &err), &err);
}

static inline int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    (void)kind;
    (void)ftw;
    return remove(path);
}

static inline int set_up(void **state)
{
    (void)state;
    const char *tmp = getenv("TMPDIR");
    (void)snprintf(folder, sizeof folder, "%s/inferscale-test-XXXXXX", tmp != NULL ? tmp : "/tmp");
    return mkdtemp(folder) == NULL;
}

static inline int tear_down(void **state)
{
    (void)state;
    return nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

#endif
