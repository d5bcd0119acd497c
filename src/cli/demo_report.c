/* What the demo shows: each question with both answers, times as bars, what to try next; and the same as JSON. */
#include "demo.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define BAR_WIDTH 50

/* ------------------------------------------------------------ numbers */

double is_demo_speedup(const is_demo_question *question)
{
    double injected = question->inject->timing.ttft_ms;
    return injected > 0 ? question->prefill->timing.ttft_ms / injected : 0;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double is_demo_median_speedup(const is_demo *demo)
{
    double all[IS_DEMO_QUESTIONS] = {0};
    size_t n = demo->n_asked;
    if (n == 0) return 0;
    for (size_t i = 0; i < n; i++) all[i] = is_demo_speedup(&demo->asked[i]);
    qsort(all, n, sizeof all[0], compare);
    return (all[(n - 1) / 2] + all[n / 2]) / 2;
}

/* ------------------------------------------------------------ for people */

/* One line, however the model broke it. */
static void print_answer(const char *label, const char *text)
{
    printf("  %-10s ", label);
    for (; *text != '\0'; text++) is_cli_put_text(*text == '\n' ? " " : text, 1);
    putchar('\n');
}

void is_demo_print_question(const is_demo_question *question, size_t number)
{
    const is_answer *inject = question->inject;
    const is_timing *timing = &inject->timing;
    printf("\nQuestion %zu: %s", number, question->question);
    if (question->expected != NULL) printf("  (the sample says: %s)", question->expected);
    putchar('\n');
    print_answer("prefilled:", question->prefill->text);
    print_answer("injected:", inject->text);
    printf("  TTFT:      %s prefilled, %s injected: %.1f times sooner\n",
           is_cli_duration(question->prefill->timing.ttft_ms).s, is_cli_duration(timing->ttft_ms).s,
           is_demo_speedup(question));
    printf("  tokens:    %s prefilled; or %s injected (%s of KV state) and %s prefilled\n",
           is_cli_count(question->prefill->tokens_prefilled).s, is_cli_count(inject->tokens_injected).s,
           is_cli_bytes(inject->inject_bytes).s, is_cli_count(inject->tokens_prefilled).s);
    printf("  injected run: fetch %s, inject %s, prefill %s; before it, in both runs: embed %s, rank %s\n",
           is_cli_duration(timing->fetch_ms).s, is_cli_duration(timing->inject_ms).s,
           is_cli_duration(timing->prefill_ms).s, is_cli_duration(timing->embed_ms).s,
           is_cli_duration(timing->rank_ms).s);
    (void)fflush(stdout);
}

static void print_bar(const char *label, double ms, double most)
{
    size_t n = most > 0 ? (size_t)(ms / most * BAR_WIDTH + 0.5) : 0;
    printf("  %s ", label);
    for (size_t i = 0; i < (n > 0 ? n : 1); i++) putchar('#');
    printf(" %s\n", is_cli_duration(ms).s);
}

static void print_chart(const is_demo *demo)
{
    double most = 0;
    for (size_t i = 0; i < demo->n_asked; i++) {
        const is_demo_question *q = &demo->asked[i];
        if (q->prefill->timing.ttft_ms > most) most = q->prefill->timing.ttft_ms;
        if (q->inject->timing.ttft_ms > most) most = q->inject->timing.ttft_ms;
    }
    printf("\nTime to first token\n");
    for (size_t i = 0; i < demo->n_asked; i++) {
        char label[32];
        (void)snprintf(label, sizeof label, "%zu prefilled", i + 1);
        print_bar(label, demo->asked[i].prefill->timing.ttft_ms, most);
        print_bar("  injected ", demo->asked[i].inject->timing.ttft_ms, most);
    }
}

/* A word of a shell's line. */
static void print_word(const char *text)
{
    bool plain = text[0] != '\0' && strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                                 "/._-+,:=@") == strlen(text);
    if (plain) {
        printf("%s", text);
        return;
    }
    putchar('\'');
    for (; *text != '\0'; text++) {
        if (*text == '\'')
            printf("'\\''");
        else
            putchar(*text);
    }
    putchar('\'');
}

static void print_command(const is_demo *demo, const char *arguments)
{
    printf("  ");
    print_word(program_invocation_name);
    printf(" %s --store ", arguments);
    print_word(demo->store);
    if (strcmp(demo->cli->scope.user, "default") != 0) {
        printf(" --user ");
        print_word(demo->cli->scope.user);
    }
    putchar('\n');
}

void is_demo_print_end(const is_demo *demo)
{
    print_chart(demo);
    printf("\nMedian speed-up: %.1f, in %s altogether. Both runs see the same tokens; where the answers differ, it is\n"
           "because a stored fact was encoded behind a few other facts instead of all that stand before it now.\n",
           is_demo_median_speedup(demo), is_cli_duration(demo->total_ms).s);
    printf("\nWhat to try next:\n");
    print_command(demo, "serve");
    print_command(demo, "ask \"What is my niece called?\" --facts");
    print_command(demo, "search \"the new kitchen\" -k 5");
    print_command(demo, "add \"Nadia's new bicycle is a green Gazelle.\" --time 2025-06-01");
}

/* ------------------------------------------------------------ for programs */

static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

static json_t *json_question(const is_demo_question *question)
{
    json_t *object = json_object();
    is_cli_set(object, "question", is_cli_json_text(question->question));
    is_cli_set(object, "expected", is_cli_json_text(question->expected));
    is_cli_set(object, "prefill", is_cli_json_answer(question->prefill));
    is_cli_set(object, "inject", is_cli_json_answer(question->inject));
    is_cli_set(object, "speedup", json_real(is_demo_speedup(question)));
    return object;
}

json_t *is_demo_json(const is_demo *demo)
{
    json_t *root = json_object();
    json_t *models = json_object();
    json_t *questions = json_array();
    json_t *remote = json_object_get(json_object_get(demo->system, "engine"), "model");
    is_cli_set(models, "chat",
               demo->cli->upstreams != NULL ? json_incref(remote) : is_cli_json_text(file_name(demo->model)));
    is_cli_set(models, "embedding", is_cli_json_text(file_name(demo->embedding_model)));
    for (size_t i = 0; i < demo->n_asked; i++) is_cli_append(questions, json_question(&demo->asked[i]));
    is_cli_set(root, "version", json_string(IS_VERSION));
    is_cli_set(root, "machine", json_incref(demo->machine));
    is_cli_set(root, "models", models);
    is_cli_set(root, "system", json_incref(demo->system));
    is_cli_set(root, "k", json_integer(IS_DEMO_K));
    is_cli_set(root, "max_tokens", json_integer(IS_DEMO_MAX_TOKENS));
    is_cli_set(root, "facts", json_integer((json_int_t)demo->facts));
    is_cli_set(root, "imported", json_integer((json_int_t)demo->imported));
    is_cli_set(root, "encoded", json_integer((json_int_t)demo->encoded));
    is_cli_set(root, "encode_ms", json_real(demo->encode_ms));
    is_cli_set(root, "questions", questions);
    is_cli_set(root, "median_speedup", json_real(is_demo_median_speedup(demo)));
    is_cli_set(root, "total_ms", json_real(demo->total_ms));
    return root;
}
