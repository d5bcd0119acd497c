/*
 * What the commands print: errors, JSON, facts, numbers for people.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "common/time.h"

/* ------------------------------------------------------------ errors */

void is_cli_no_memory(void)
{
    fprintf(stderr, "inferscale: out of memory\n");
    exit(IS_EXIT_FAILED);
}

static void report(bool json, const char *status, const char *text)
{
    fprintf(stderr, "inferscale: %s\n", text);
    if (!json) return;
    json_t *error = json_object();
    is_cli_set(error, "status", is_cli_json_text(status));
    is_cli_set(error, "text", is_cli_json_text(text));
    json_t *root = json_object();
    is_cli_set(root, "error", error);
    is_cli_print_json(root);
}

int is_cli_fail(const is_cli *cli, const is_error *err)
{
    if (is_cli_interrupted()) {
        report(cli->json, is_status_name(IS_ECANCELED), "interrupted");
        return IS_EXIT_INTERRUPTED;
    }
    report(cli->json, is_status_name(err->status), err->text);
    return err->status == IS_ENOTFOUND ? IS_EXIT_NOT_FOUND : IS_EXIT_FAILED;
}

int is_cli_usage(const is_cli *cli, const char *format, ...)
{
    char what[1024];
    char text[1200];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(what, sizeof what, format, args);
    va_end(args);
    (void)snprintf(text, sizeof text, "%s: %s; `inferscale %s --help` says more", cli->command, what, cli->command);
    report(cli->json, is_status_name(IS_EINVAL), text);
    return IS_EXIT_USAGE;
}

void is_cli_note(const is_cli *cli, const char *format, ...)
{
    if (cli->quiet) return;
    va_list args;
    va_start(args, format);
    (void)vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
}

int is_cli_end_output(int code)
{
    bool failed = ferror(stdout) != 0;
    errno = 0;
    if (fflush(stdout) != 0) failed = true;
    if (!failed) return code;
    /* A reader that had enough, as in `inferscale list | head`, needs no message. */
    if (errno != EPIPE && errno != 0) fprintf(stderr, "inferscale: cannot write the output: %s\n", strerror(errno));
    return code == IS_EXIT_OK ? IS_EXIT_FAILED : code;
}

/* ------------------------------------------------------------ JSON */

void is_cli_set(json_t *object, const char *name, json_t *value)
{
    if (json_object_set_new(object, name, value) != 0) is_cli_no_memory();
}

void is_cli_append(json_t *array, json_t *value)
{
    if (json_array_append_new(array, value) != 0) is_cli_no_memory();
}

char *is_cli_format(const char *text, ...)
{
    char *out = NULL;
    va_list args;
    va_start(args, text);
    if (vasprintf(&out, text, args) < 0) is_cli_no_memory();
    va_end(args);
    return out;
}

json_t *is_cli_json_number(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

double is_cli_number(const json_t *object, const char *name)
{
    return json_number_value(json_object_get(object, name));
}

json_t *is_cli_json_text(const char *text)
{
    if (text == NULL) return json_null();
    json_t *json = json_string(text);
    if (json != NULL) return json;
    char *ascii = strdup(text);
    if (ascii == NULL) is_cli_no_memory();
    for (char *p = ascii; *p != '\0'; p++)
        if ((unsigned char)*p >= 0x80) *p = '?';
    json = json_string(ascii);
    free(ascii);
    return json;
}

void is_cli_print_json(json_t *value)
{
    (void)json_dumpf(value, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(7));
    putchar('\n');
    json_decref(value);
}

static json_t *json_fact(const is_fact *fact, bool state)
{
    json_t *object = json_object();
    json_t *metadata = fact->metadata != NULL ? json_loads(fact->metadata, 0, NULL) : NULL;
    is_cli_set(object, "id", json_integer(fact->id));
    is_cli_set(object, "text", is_cli_json_text(fact->text));
    is_cli_set(object, "source", is_cli_json_text(fact->source));
    is_cli_set(object, "time", fact->time != IS_TIME_NONE ? json_integer(fact->time) : json_null());
    is_cli_set(object, "metadata", metadata != NULL ? metadata : json_null());
    is_cli_set(object, "created", json_integer(fact->created));
    if (state) is_cli_set(object, "state", json_string(fact->state == IS_FACT_READY ? "ready" : "pending"));
    return object;
}

json_t *is_cli_json_facts(const is_fact_list *list, bool state)
{
    json_t *array = json_array();
    for (size_t i = 0; i < list->n; i++) {
        json_t *fact = json_fact(&list->facts[i], state);
        if (list->scores != NULL) is_cli_set(fact, "score", json_real(list->scores[i]));
        is_cli_append(array, fact);
    }
    return array;
}

static json_t *json_timing(const is_timing *timing)
{
    json_t *object = json_object();
    is_cli_set(object, "embed_ms", json_real(timing->embed_ms));
    is_cli_set(object, "rank_ms", json_real(timing->rank_ms));
    is_cli_set(object, "queue_ms", json_real(timing->queue_ms));
    is_cli_set(object, "fetch_ms", json_real(timing->fetch_ms));
    is_cli_set(object, "inject_ms", json_real(timing->inject_ms));
    is_cli_set(object, "prefill_ms", json_real(timing->prefill_ms));
    is_cli_set(object, "ttft_ms", json_real(timing->ttft_ms));
    is_cli_set(object, "total_ms", json_real(timing->total_ms));
    return object;
}

json_t *is_cli_json_answer(const is_answer *answer)
{
    json_t *root = json_object();
    json_t *tokens = json_object();
    is_cli_set(tokens, "injected", json_integer(answer->tokens_injected));
    is_cli_set(tokens, "prefilled", json_integer(answer->tokens_prefilled));
    is_cli_set(tokens, "generated", json_integer(answer->tokens_generated));
    is_cli_set(root, "answer", is_cli_json_text(answer->text));
    is_cli_set(root, "finish", is_cli_json_text(answer->finish));
    is_cli_set(root, "facts_injected", json_integer(answer->facts_injected));
    is_cli_set(root, "facts_dropped", json_integer(answer->facts_dropped));
    is_cli_set(root, "refused", json_integer(answer->refused));
    is_cli_set(root, "tokens", tokens);
    is_cli_set(root, "inject_bytes", json_integer((json_int_t)answer->inject_bytes));
    is_cli_set(root, "timing", json_timing(&answer->timing));
    return root;
}

/* ------------------------------------------------------------ for people */

void is_cli_put_text(const char *text, size_t n)
{
    if (isatty(STDOUT_FILENO) != 1) {
        (void)fwrite(text, 1, n, stdout);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        bool control = (c < 0x20 && c != '\n' && c != '\t') || c == 0x7F;
        bool control_c1 = c == 0xC2 && i + 1 < n && ((unsigned char)text[i + 1] & 0xE0) == 0x80;
        if (control_c1) i++;
        putchar(control || control_c1 ? '?' : c);
    }
}

void is_cli_print_facts(const is_fact_list *list)
{
    for (size_t i = 0; i < list->n; i++) {
        const is_fact *fact = &list->facts[i];
        char date[11];
        (void)is_time_format_date(fact->time, date);
        if (list->scores != NULL) printf("%7.4f  ", list->scores[i]);
        printf("%6lld  %-10s  ", (long long)fact->id, date);
        is_cli_put_text(fact->text, strlen(fact->text));
        putchar('\n');
    }
}

is_cli_text is_cli_count(uint64_t n)
{
    is_cli_text out;
    char digits[24];
    int n_digits = snprintf(digits, sizeof digits, "%llu", (unsigned long long)n);
    char *p = out.s;
    for (int i = 0; i < n_digits; i++) {
        if (i > 0 && (n_digits - i) % 3 == 0) *p++ = ',';
        *p++ = digits[i];
    }
    *p = '\0';
    return out;
}

is_cli_text is_cli_bytes(uint64_t n)
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB"};
    is_cli_text out;
    if (n < 1024) {
        (void)snprintf(out.s, sizeof out.s, "%u bytes", (unsigned)n);
        return out;
    }
    double value = (double)n / 1024;
    size_t unit = 0;
    for (; value >= 1024 && unit < 3; unit++) value /= 1024;
    (void)snprintf(out.s, sizeof out.s, "%.1f %s", value, units[unit]);
    return out;
}

is_cli_text is_cli_duration(double ms)
{
    is_cli_text out;
    unsigned long long seconds = ms > 0 && ms < 1e15 ? (unsigned long long)(ms / 1e3) : 0;
    if (ms < 10)
        (void)snprintf(out.s, sizeof out.s, "%.1f ms", ms);
    else if (ms < 1e3)
        (void)snprintf(out.s, sizeof out.s, "%.0f ms", ms);
    else if (ms < 6e4)
        (void)snprintf(out.s, sizeof out.s, ms < 1e4 ? "%.2f s" : "%.1f s", ms / 1e3);
    else if (seconds < 3600)
        (void)snprintf(out.s, sizeof out.s, "%llu min %02llu s", seconds / 60, seconds % 60);
    else
        (void)snprintf(out.s, sizeof out.s, "%llu h %02llu min", seconds / 3600, seconds / 60 % 60);
    return out;
}

void is_cli_scope_name(const is_scope *scope, char *out, size_t size)
{
    const char *const part[4] = {scope->tenant, scope->user, scope->agent, scope->run};
    static const char *const name[4] = {"tenant", "user", "agent", "run"};
    size_t used = 0;
    out[0] = '\0';
    for (int i = 0; i < 4; i++) {
        if (part[i] == NULL || part[i][0] == '\0' || used >= size) continue;
        int n = snprintf(out + used, size - used, "%s%s \"%s\"", used > 0 ? ", " : "", name[i], part[i]);
        used += n > 0 ? (size_t)n : 0;
    }
}
