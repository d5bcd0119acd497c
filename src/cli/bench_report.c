#include "bench_report.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli.h"
#include "memory/recipe.h"

/* Parts of the page (report.S). */
#define ASSET(name) extern const char is_report_##name[], is_report_##name##_end[]
ASSET(page);
ASSET(draw);
ASSET(script);
ASSET(style);
ASSET(paper);

static is_status write_file(const char *folder, const char *name, const char *bytes, size_t n, is_error *err)
{
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *to = fopen(path, "we");
    bool ok = to != NULL && fwrite(bytes, 1, n, to) == n;
    if (to != NULL && fclose(to) != 0) ok = false;
    return ok ? IS_OK : is_fail(err, IS_EIO, "cannot write %s: %s", path, strerror(errno));
}

/* ------------------------------------------------------------ CSV */

/* The value's columns under this name, or the values: "a,b.c,b.d" and then "1,2,3". Lists in a row are left out. */
static void put_columns(FILE *to, const char *name, const json_t *value, bool names, bool *first)
{
    const char *key;
    json_t *member;
    if (json_is_object(value)) {
        json_object_foreach((json_t *)(uintptr_t)value, key, member)
        {
            char full[256];
            (void)snprintf(full, sizeof full, "%s%s%s", name, name[0] != '\0' ? "." : "", key);
            put_columns(to, full, member, names, first);
        }
        return;
    }
    if (json_is_array(value)) return;
    if (!*first) (void)fputc(',', to);
    *first = false;
    if (names)
        (void)fputs(name, to);
    else if (json_is_string(value)) {
        (void)fputc('"', to);
        for (const char *at = json_string_value(value); *at != '\0'; at++) {
            if (*at == '"') (void)fputc('"', to);
            (void)fputc(*at, to);
        }
        (void)fputc('"', to);
    } else if (json_is_number(value))
        (void)fprintf(to, "%.7g", json_number_value(value));
    else if (json_is_boolean(value))
        (void)fputs(json_is_true(value) ? "true" : "false", to);
}

/* The first list of objects in a step's result, a line each. */
static is_status write_csv(const char *folder, const json_t *step, is_error *err)
{
    const char *key;
    json_t *list = NULL, *row;
    size_t i, size = 0;
    char *text = NULL, name[300];
    json_object_foreach(json_object_get(step, "result"), key, list)
    {
        if (json_is_object(json_array_get(list, 0))) break;
        list = NULL;
    }
    if (list == NULL) return IS_OK;
    FILE *to = open_memstream(&text, &size);
    if (to == NULL) is_cli_no_memory();
    json_array_foreach(list, i, row)
    {
        for (int names = i == 0; names >= 0; names--) {
            bool first = true;
            put_columns(to, "", row, names, &first);
            (void)fputc('\n', to);
        }
    }
    if (fclose(to) != 0) is_cli_no_memory();
    (void)snprintf(name, sizeof name, "%s.csv", json_string_value(json_object_get(step, "name")));
    is_status status = write_file(folder, name, text, size, err);
    free(text);
    return status;
}

/* ------------------------------------------------------------ the page */

static void put_part(FILE *to, const char *begin, const char *end)
{
    (void)fwrite(begin, 1, (size_t)(end - begin), to);
}

/* JSON inside of a script element must not end it. */
static void put_data(FILE *to, const char *text)
{
    for (; *text != '\0'; text++) (void)fputs(*text == '<' ? "\\u003c" : (char[2]){*text, '\0'}, to);
}

static is_status write_page(const char *folder, const char *data, is_error *err)
{
    static const struct {
        const char *mark;
        const char *begin, *end; /* NULL: the data */
    } parts[] = {{"<!-- style -->", is_report_style, is_report_style_end},
                 {"<!-- data -->", NULL, NULL},
                 {"<!-- draw -->", is_report_draw, is_report_draw_end},
                 {"<!-- script -->", is_report_script, is_report_script_end}};
    char *page = strndup(is_report_page, (size_t)(is_report_page_end - is_report_page)), *text = NULL;
    size_t size = 0;
    FILE *to = open_memstream(&text, &size);
    if (page == NULL || to == NULL) is_cli_no_memory();
    const char *at = page;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        const char *mark = strstr(at, parts[i].mark);
        if (mark == NULL) break;
        put_part(to, at, mark);
        if (parts[i].begin != NULL)
            put_part(to, parts[i].begin, parts[i].end);
        else
            put_data(to, data);
        at = mark + strlen(parts[i].mark);
    }
    (void)fputs(at, to);
    if (fclose(to) != 0) is_cli_no_memory();
    is_status status = write_file(folder, "report.html", text, size, err);
    free(text);
    free(page);
    return status;
}

/* ------------------------------------------------------------ all of it */

static json_t *now(void)
{
    char text[32];
    time_t t = time(NULL);
    struct tm parts;
    (void)strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&t, &parts));
    return json_string(text);
}

static void read_step(json_t *list, const char *folder, const char *name)
{
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/steps/%s.json", folder, name);
    json_t *step = json_load_file(path, 0, NULL);
    if (step != NULL) is_cli_append(list, step);
}

static json_t *read_steps(const char *folder, const char *const *steps, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) {
        read_step(list, folder, steps[i]);
        /* The same on the other engine, which bench/vllm_*.py measure and put there. */
        char other[64];
        (void)snprintf(other, sizeof other, "%s, vLLM", steps[i]);
        read_step(list, folder, other);
    }
    return list;
}

is_status is_bench_report(const char *folder, const char *const *steps, size_t n, json_t **out, is_error *err)
{
    json_t *root = json_object(), *list = read_steps(folder, steps, n), *step;
    is_status status = IS_OK;
    size_t i;
    is_cli_set(root, "version", json_string(IS_VERSION));
    is_cli_set(root, "made", now());
    is_cli_set(root, "default_recipe", json_string(IS_RECIPE_DEFAULT));
    is_cli_set(root, "steps", list);
    is_cli_set(root, "paper", json_loadb(is_report_paper, (size_t)(is_report_paper_end - is_report_paper), 0, NULL));
    json_array_foreach(list, i, step)
    {
        if (status == IS_OK) status = write_csv(folder, step, err);
    }
    char *text = json_dumps(root, JSON_INDENT(1));
    if (text == NULL) is_cli_no_memory();
    if (status == IS_OK) status = write_file(folder, "report.json", text, strlen(text), err);
    if (status == IS_OK) status = write_page(folder, text, err);
    free(text);
    *out = root;
    return status;
}
