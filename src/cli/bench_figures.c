#include "bench_figures.h"

#include <math.h>
#include <stdlib.h>

const char *is_system_name(is_system system)
{
    static const char *const names[] = {
        [IS_SYSTEM_INJECT] = "inject", [IS_SYSTEM_PREFILL] = "prefill", [IS_SYSTEM_PEER] = "peer"};
    return names[system];
}

/* ------------------------------------------------------------ figures */

static void add_answer(is_figures *f, const is_load_answer *a, double *steps)
{
    f->requests++;
    f->tokens += a->tokens;
    f->prompt_tokens += a->prompt_tokens;
    f->prefilled += a->prefilled;
    f->search_ms += a->search_ms;
    f->inject_ms += a->inject_ms;
    f->prefill_ms += a->prefill_ms;
    f->decode_ms += a->decode_ms;
    f->waiting_ms += a->total_ms - a->search_ms - a->inject_ms - a->prefill_ms - a->decode_ms;
    *steps += a->tokens > 0 ? a->tokens - 1 : 0; /* the first token comes out of the prefill */
}

/* A step gives every answer that is decoding one token, so the sums say how many there were. */
static void divide(is_figures *f, double wall_ms, double steps)
{
    double n = f->requests;
    f->requests_per_s = n / wall_ms * 1e3;
    f->tokens_per_s = f->tokens / wall_ms * 1e3;
    f->step_ms = f->decode_ms / steps;
    f->batch = f->decode_ms / wall_ms;
    double *const sums[] = {&f->tokens,    &f->prompt_tokens, &f->prefilled,  &f->waiting_ms,
                            &f->search_ms, &f->inject_ms,     &f->prefill_ms, &f->decode_ms};
    for (size_t i = 0; i < sizeof sums / sizeof sums[0]; i++) *sums[i] /= n;
}

is_figures is_figures_of(const is_load_result *r, uint32_t users)
{
    is_figures f = {.users_measured = users, .errors = r->errors, .retries = r->retries};
    double *ttft = calloc(r->n + 1, sizeof *ttft), *end = calloc(r->n + 1, sizeof *end), steps = 0;
    if (ttft == NULL || end == NULL) is_cli_no_memory();
    for (size_t i = 0; i < r->n; i++) {
        const is_load_answer *a = &r->answers[i];
        if (!a->ok) continue;
        ttft[f.requests] = a->ttft_ms;
        end[f.requests] = a->total_ms;
        add_answer(&f, a, &steps);
    }
    divide(&f, r->wall_ms, steps);
    f.ttft_p50 = is_percentile(ttft, f.requests, 0.5);
    f.ttft_p95 = is_percentile(ttft, f.requests, 0.95);
    f.ttft_p99 = is_percentile(ttft, f.requests, 0.99);
    f.end_p50 = is_median(end, f.requests);
    f.between_p50 = is_median(r->gaps, r->n_gaps);
    (void)snprintf(f.first_error, sizeof f.first_error, "%s", r->first_error);
    free(ttft);
    free(end);
    return f;
}

/* ------------------------------------------------------------ JSON */

static json_t *figures_json(uint32_t users, is_system system, const is_figures *f)
{
    json_t *o = json_object();
    is_cli_set(o, "users", json_integer(users));
    is_cli_set(o, "system", json_string(is_system_name(system)));
    is_cli_set(o, "users_measured", json_integer(f->users_measured));
    is_cli_set(o, "requests", json_integer(f->requests));
    is_cli_set(o, "errors", json_integer(f->errors));
    is_cli_set(o, "retries", json_integer(f->retries));
    if (f->first_error[0] != '\0') is_cli_set(o, "first_error", is_cli_json_text(f->first_error));
    const struct {
        const char *name;
        double value;
    } numbers[] = {
        {"requests_per_s", f->requests_per_s},
        {"tokens_per_s", f->tokens_per_s},
        {"ttft_p50_ms", f->ttft_p50},
        {"ttft_p95_ms", f->ttft_p95},
        {"ttft_p99_ms", f->ttft_p99},
        {"end_to_end_p50_ms", f->end_p50},
        {"inter_token_p50_ms", f->between_p50},
        {"output_tokens_mean", f->tokens},
        {"prompt_tokens_mean", f->prompt_tokens},
        {"prefilled_tokens_mean", f->prefilled},
        {"waiting_mean_ms", f->waiting_ms},
        {"search_mean_ms", f->search_ms},
        {"inject_mean_ms", f->inject_ms},
        {"prefill_mean_ms", f->prefill_ms},
        {"decode_mean_ms", f->decode_ms},
        {"decode_step_mean_ms", f->step_ms},
        {"decode_batch_mean", f->batch},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        is_cli_set(o, numbers[i].name, is_cli_json_number(numbers[i].value));
    return o;
}

json_t *is_throughput_json(const is_throughput_row *rows, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        for (is_system s = 0; s < IS_N_SYSTEMS; s++)
            if (rows[i].of[s].users_measured > 0) is_cli_append(list, figures_json(rows[i].users, s, &rows[i].of[s]));
    return list;
}

/* Requests a second of injection against those of another system; NAN when one of them was not measured. */
static double ratio(const is_throughput_row *row, is_system other)
{
    const is_figures *a = &row->of[IS_SYSTEM_INJECT], *b = &row->of[other];
    return a->users_measured > 0 && b->users_measured > 0 ? a->requests_per_s / b->requests_per_s : NAN;
}

json_t *is_throughput_ratios(const is_throughput_row *rows, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) {
        json_t *o = json_object();
        is_cli_set(o, "users", json_integer(rows[i].users));
        is_cli_set(o, "inject_over_prefill", is_cli_json_number(ratio(&rows[i], IS_SYSTEM_PREFILL)));
        is_cli_set(o, "inject_over_peer", is_cli_json_number(ratio(&rows[i], IS_SYSTEM_PEER)));
        is_cli_append(list, o);
    }
    return list;
}

/* ------------------------------------------------------------ tables */

static void print_rates(const is_throughput_row *row, is_system system, bool *others)
{
    const is_figures *f = &row->of[system];
    char users[24];
    bool other = f->users_measured != row->users;
    int n = snprintf(users, sizeof users, "%u", row->users);
    if (other) (void)snprintf(users + n, sizeof users - (size_t)n, " (%u)", f->users_measured);
    printf("%-9s %-8s %7.2f %9.1f %10.0f %9.0f %9.0f %10.0f %8.1f %7u", users, is_system_name(system),
           f->requests_per_s, f->tokens_per_s, f->ttft_p50, f->ttft_p95, f->ttft_p99, f->end_p50, f->between_p50,
           f->errors);
    if (system != IS_SYSTEM_INJECT) printf(" %8.2fx", ratio(row, system));
    putchar('\n');
    if (f->errors > 0) printf("          the first error: %s\n", f->first_error);
    *others = *others || other;
}

/* Of a request's own time, without waiting for others. */
static void print_bounds(const is_figures *f, is_system system)
{
    double own = (f->search_ms + f->inject_ms + f->prefill_ms + f->decode_ms) / 100;
    printf("%-9u %-8s %9.1f %7.1f %10.0f %8.1f%% %8.1f%% %8.1f%% %8.1f%% %8.0f %9.0f %7.1f\n", f->users_measured,
           is_system_name(system), f->step_ms, f->batch, f->waiting_ms, f->search_ms / own, f->inject_ms / own,
           f->prefill_ms / own, f->decode_ms / own, f->prompt_tokens, f->prefilled, f->tokens);
}

/* Measured in this row, and not taken over from one before. */
static bool is_new(const is_throughput_row *rows, size_t i, is_system system)
{
    uint32_t users = rows[i].of[system].users_measured;
    for (size_t j = 0; j < i; j++)
        if (rows[j].of[system].users_measured == users) return false;
    return users > 0;
}

void is_throughput_print(const is_throughput_row *rows, size_t n)
{
    bool others = false;
    printf("%-9s %-8s %7s %9s %10s %9s %9s %10s %8s %7s %9s\n", "users", "system", "req/s", "tokens/s", "TTFT p50",
           "p95", "p99", "end p50", "between", "errors", "inject is");
    printf("%-9s %-8s %7s %9s %10s %9s %9s %10s %8s\n", "", "", "", "", "ms", "ms", "ms", "ms", "ms");
    for (size_t i = 0; i < n; i++)
        for (is_system s = 0; s < IS_N_SYSTEMS; s++)
            if (rows[i].of[s].users_measured > 0) print_rates(&rows[i], s, &others);
    if (others)
        printf(
            "\nWhere users stand twice, those in brackets were measured: a system that is never idle serves as many\n"
            "requests a second however many wait, so its rate stands for all of them, and its times do not.\n");
    printf("\nWhat bounds it: means of a request.  Shares are of its own time, without waiting for others.\n");
    printf("%-9s %-8s %9s %7s %10s %9s %9s %9s %9s %8s %9s %7s\n", "users", "system", "step ms", "batch", "waiting ms",
           "search", "inject", "prefill", "decode", "prompt", "prefilled", "output");
    for (size_t i = 0; i < n; i++)
        for (is_system s = 0; s < IS_N_SYSTEMS; s++)
            if (is_new(rows, i, s)) print_bounds(&rows[i].of[s], s);
}
