/* inferscale bench encode: what encoding the data's facts costs under each recipe, the recipes in turn. */
#include <math.h>
#include <stdlib.h>

#include "bench.h"

#define MAX_RECIPES 16
#define MAX_ROUNDS  16

typedef struct row {
    const char *recipe;
    double ms[MAX_ROUNDS];
    uint64_t facts, tokens, bytes;
} row;

static is_status measure(is_bench *b, row *r, uint32_t round, is_error *err)
{
    is_stats after = {0};
    char *text = NULL;

    is_status status = is_bench_open(b, r->recipe, false, err);
    if (status == IS_OK) status = is_bench_import(b, err);
    double begin = is_now_ms();
    if (status == IS_OK) status = is_cli_encode(&b->cli, b->memory, NULL, NULL, err);
    r->ms[round] = is_now_ms() - begin;
    if (status == IS_OK) status = is_get_stats(b->memory, &after, err);
    if (status == IS_OK) status = is_describe(b->memory, &text, err);
    if (status == IS_OK) {
        json_t *system = json_loads(text, 0, NULL);
        json_int_t token = json_integer_value(json_object_get(json_object_get(system, "engine"), "kv_bytes_per_token"));
        r->facts = after.facts_ready;
        r->bytes = after.chunk_bytes;
        r->tokens = token > 0 ? after.chunk_bytes / (uint64_t)token : 0;
        json_decref(system);
    }
    free(text);
    return status;
}

static void print_rows(const is_bench *b, row *rows, size_t n, json_t *root)
{
    json_t *list = json_array();
    double base = is_median(rows[0].ms, b->repeat) / (double)rows[0].tokens;
    if (!b->cli.json)
        printf("%-24s %8s %9s %10s %10s %14s\n", "recipe", "facts", "tokens", "s", "tokens/s", "against first");
    for (size_t i = 0; i < n; i++) {
        double ms = is_median(rows[i].ms, b->repeat);
        double ratio = ms / (double)rows[i].tokens / base;
        if (!b->cli.json)
            printf("%-24s %8llu %9llu %10.2f %10.0f %13.2fx\n", rows[i].recipe, (unsigned long long)rows[i].facts,
                   (unsigned long long)rows[i].tokens, ms / 1e3, (double)rows[i].tokens / ms * 1e3, ratio);
        json_t *o = json_object();
        is_cli_set(o, "recipe", json_string(rows[i].recipe));
        is_cli_set(o, "facts", json_integer((json_int_t)rows[i].facts));
        is_cli_set(o, "tokens", json_integer((json_int_t)rows[i].tokens));
        is_cli_set(o, "bytes", json_integer((json_int_t)rows[i].bytes));
        is_cli_set(o, "ms", json_real(ms));
        is_cli_set(o, "tokens_per_s", json_real((double)rows[i].tokens / ms * 1e3));
        is_cli_set(o, "cost_against_first", json_real(ratio));
        is_cli_append(list, o);
    }
    is_cli_set(root, "encode", list);
}

int is_bench_encode(int argc, char **argv)
{
    is_bench b = {.repeat = 3, .n_questions = 1};
    is_error err = {0};
    row rows[MAX_RECIPES] = {{.recipe = "isolated"}, {.recipe = IS_RECIPE_DEFAULT}};
    size_t n = 2;
    if (!is_bench_parse(
            &b, "encode", "What encoding the data's facts costs, by recipe, per fact token.",
            "inferscale bench encode\ninferscale bench encode --with-recipe isolated --with-recipe window:5", NULL, 0,
            argc, argv))
        return b.cli.exit;
    if (b.repeat > MAX_ROUNDS) b.repeat = MAX_ROUNDS;
    if (b.recipes.n > 0) n = b.recipes.n < MAX_RECIPES ? b.recipes.n : MAX_RECIPES;
    for (size_t i = 0; i < b.recipes.n && i < n; i++) rows[i].recipe = b.recipes.items[i];
    is_cli_catch_interrupts();
    is_status status = is_bench_questions(&b, &err);
    if (status == IS_OK) status = is_bench_begin(&b, &err);
    for (uint32_t r = 0; status == IS_OK && r < b.repeat; r++)
        for (size_t i = 0; status == IS_OK && i < n; i++) status = measure(&b, &rows[i], r, &err);
    json_t *root = is_bench_context(&b);
    if (status == IS_OK) print_rows(&b, rows, n, root);
    return is_bench_end(&b, root, status, &err);
}
