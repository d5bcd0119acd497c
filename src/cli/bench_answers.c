/*
 * inferscale bench answers: how right the answers are, by LoCoMo's own measures, with the memory injected and with the
 * same facts in the same order as text.
 *
 * Answers are greedy.  What counts is the difference to the text of the same facts, question by question, with its
 * 95 % interval: whether a small model answers well is not the matter here.
 */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "bench_judge.h"
#include "eval/score.h"

#define MAX_TOKENS 48
#define MAX_FRESH  8
#define MAX_SETUPS 64

/* Stands behind the facts.  LoCoMo asks for short phrases too, and says only where there is no answer that this may be
 * so (Maharana et al., ACL 2024, task_eval/gpt_utils.py). */
#define INSTRUCTION                                                                                                    \
    "Answer the question with a short phrase out of these facts, without a sentence around it. Write dates with day, " \
    "month and year."
#define OR_NOTHING " When the facts do not tell, answer: No information available."

static const char *const categories[] = {NULL, "multi-hop", "temporal", "open-domain", "single-hop", "adversarial"};
#define CATEGORIES 6

/* One way to answer. */
typedef struct setup {
    is_mode mode;
    char recipe[IS_RECIPE_MAX]; /* of the store; text is the same in any */
    uint32_t fresh;
    char name[IS_RECIPE_MAX + 24];
} setup;

typedef struct answers {
    is_bench b;
    is_judge judge;
    uint32_t k;
    setup setups[MAX_SETUPS];
    size_t n_setups;
    bool without; /* no memory at all, too */
} answers;

static const char *mode_name(is_mode mode)
{
    return mode == IS_MODE_INJECT ? "injected" : mode == IS_MODE_PREFILL ? "text" : "none";
}

/* Text does not depend on the recipe, so its key does not either. */
static char *key_of(const answers *a, const setup *s, const is_bench_question *q)
{
    return is_bench_key(&a->b, "answer", s->mode == IS_MODE_INJECT ? s->recipe : mode_name(s->mode), "k=%u fresh=%u %s",
                        a->k, s->fresh, q->id);
}

/* ------------------------------------------------------------ asking */

static is_status ask(answers *a, const setup *s, const is_bench_question *q, is_answer **out, is_error *err)
{
    is_scope scope = a->b.cli.scope;
    scope.user = q->user;
    is_ask_options o = is_ask_options_default();
    o.k = a->k;
    o.mode = s->mode;
    o.fresh = s->fresh;
    o.system = a->b.adversarial ? INSTRUCTION OR_NOTHING : INSTRUCTION;
    o.max_tokens = MAX_TOKENS;
    static const char *const stop[] = {"\n"};
    o.stop = stop;
    o.n_stop = 1;
    return is_ask(a->b.memory, &scope, q->question, &o, out, err);
}

static is_status take_answer(answers *a, const setup *s, const is_bench_question *q, is_error *err)
{
    is_answer *answer = NULL;
    double f1 = 0;
    bool exact = false;
    int category = q->category > 0 ? q->category : IS_EVAL_SINGLE_HOP;
    is_status status = ask(a, s, q, &answer, err);
    if (status == IS_OK) status = is_eval_score(category, q->answer, answer->text, &f1, &exact, err);
    if (status == IS_OK) {
        is_bench_evidence evidence = is_bench_find_evidence(&a->b, q, answer->facts);
        json_t *text = is_cli_json_text(answer->text);
        char *key = key_of(a, s, q);
        status = is_bench_note(&a->b, key,
                               json_pack("{s:o, s:f, s:b, s:i, s:i, s:i, s:f}", "answer", text, "f1", f1, "exact",
                                         exact, "category", q->category, "evidence", (int)evidence.n, "found",
                                         (int)evidence.found, "ttft_ms", answer->timing.ttft_ms),
                               err);
        free(key);
    }
    is_answer_free(answer);
    return status;
}

/* What was asked whole needs no chunks any more. */
static bool all_noted(const answers *a, const setup *s)
{
    for (size_t i = 0; i < a->b.n; i++) {
        char *key = key_of(a, s, &a->b.questions[i]);
        bool noted = is_bench_noted(&a->b, key) != NULL;
        free(key);
        if (!noted) return false;
    }
    return true;
}

static is_status take_answers(answers *a, const setup *s, is_error *err)
{
    is_bench *b = &a->b;
    is_cli_progress progress;
    is_status status = is_bench_open(b, s->recipe, false, err);
    if (status == IS_OK && all_noted(a, s)) return IS_OK;
    if (status == IS_OK) status = is_bench_import(b, err);
    if (status == IS_OK && s->mode == IS_MODE_INJECT) status = is_cli_encode(&b->cli, b->memory, NULL, NULL, err);
    is_cli_note(&b->cli, "%s:", s->name);
    is_cli_progress_begin(&progress, &b->cli, "answering", "questions");
    for (size_t i = 0; status == IS_OK && i < b->n; i++) {
        char *key = key_of(a, s, &b->questions[i]);
        if (is_bench_noted(b, key) == NULL) status = take_answer(a, s, &b->questions[i], err);
        free(key);
        if (!is_cli_progress_step(&progress, i + 1, b->n) && status == IS_OK)
            status = is_fail(err, IS_ECANCELED, "interrupted");
    }
    is_cli_progress_end(&progress);
    return status;
}

/* ------------------------------------------------------------ judging */

/* A verdict is of an answer's text, so two setups with the same answer share it. */
static char *verdict_key(const answers *a, const is_bench_question *q, const char *answer)
{
    return is_bench_key(&a->b, "verdict", a->judge.model != NULL ? a->judge.model : "default", "%s %s", q->id, answer);
}

static is_status judge_one(answers *a, const setup *s, const is_bench_question *q, is_error *err)
{
    char *key = key_of(a, s, q);
    const char *answer = json_string_value(json_object_get(is_bench_noted(&a->b, key), "answer"));
    char *verdict = verdict_key(a, q, answer != NULL ? answer : "");
    bool correct = false;
    is_status status = IS_OK;
    if (answer != NULL && is_bench_noted(&a->b, verdict) == NULL) {
        status = is_judge_ask(&a->judge, q->question, q->answer, answer, &correct, err);
        if (status == IS_OK) status = is_bench_note(&a->b, verdict, json_boolean(correct), err);
    }
    free(verdict);
    free(key);
    return status;
}

static is_status judge_all(answers *a, is_error *err)
{
    is_bench *b = &a->b;
    is_cli_progress progress;
    is_status status = IS_OK;
    if (a->judge.url == NULL || b->adversarial) return IS_OK; /* these are scored by a phrase alone */
    is_cli_progress_begin(&progress, &b->cli, "judging", "answers");
    uint64_t done = 0, total = a->n_setups * b->n;
    for (size_t i = 0; status == IS_OK && i < a->n_setups; i++)
        for (size_t j = 0; status == IS_OK && j < b->n; j++) {
            status = judge_one(a, &a->setups[i], &b->questions[j], err);
            if (!is_cli_progress_step(&progress, ++done, total) && status == IS_OK)
                status = is_fail(err, IS_ECANCELED, "interrupted");
        }
    is_cli_progress_end(&progress);
    return status;
}

/* ------------------------------------------------------------ results */

/* Figures of one setup over the questions of one category (0: all), and what they differ by from those of the text. */
typedef struct figures {
    double *f1, *f1_less, *judge_less; /* [n], [n_pairs], [n_judged pairs] */
    size_t n, n_pairs, n_judged, n_judge_pairs;
    double exact, judged, found_f1, lost_f1;
    size_t n_found, n_lost; /* questions with all of their evidence in the prompt, and those without */
} figures;

/* 0 or 1; -1: no verdict. */
static int verdict(const answers *a, const is_bench_question *q, const json_t *note)
{
    char *key = verdict_key(a, q, json_string_value(json_object_get(note, "answer")));
    const json_t *found = a->judge.url != NULL ? is_bench_noted(&a->b, key) : NULL;
    free(key);
    return found == NULL ? -1 : json_is_true(found);
}

static void add(const answers *a, const setup *s, const setup *text, const is_bench_question *q, figures *f)
{
    char *key = key_of(a, s, q), *text_key = key_of(a, text, q);
    const json_t *note = is_bench_noted(&a->b, key), *other = is_bench_noted(&a->b, text_key);
    free(key);
    free(text_key);
    if (note == NULL) return;
    double f1 = is_cli_number(note, "f1");
    int judged = verdict(a, q, note), other_judged = other != NULL ? verdict(a, q, other) : -1;
    f->f1[f->n++] = f1;
    f->exact += json_is_true(json_object_get(note, "exact"));
    if (other != NULL) f->f1_less[f->n_pairs++] = f1 - is_cli_number(other, "f1");
    if (judged >= 0) {
        f->judged += judged;
        f->n_judged++;
    }
    if (judged >= 0 && other_judged >= 0) f->judge_less[f->n_judge_pairs++] = judged - other_judged;
    if (is_cli_number(note, "evidence") <= 0) return;
    bool whole = is_cli_number(note, "found") >= is_cli_number(note, "evidence");
    *(whole ? &f->found_f1 : &f->lost_f1) += f1;
    *(whole ? &f->n_found : &f->n_lost) += 1;
}

/* {"mean", "low", "high"} */
static json_t *interval(const double *values, size_t n)
{
    is_eval_interval i;
    json_t *o = json_object();
    if (is_eval_mean_interval(values, n, &i, NULL) != IS_OK) is_cli_no_memory();
    is_cli_set(o, "mean", is_cli_json_number(i.mean));
    is_cli_set(o, "low", is_cli_json_number(i.low));
    is_cli_set(o, "high", is_cli_json_number(i.high));
    return o;
}

static json_t *figures_json(const figures *f)
{
    json_t *o = json_object();
    is_cli_set(o, "questions", json_integer((json_int_t)f->n));
    is_cli_set(o, "f1", interval(f->f1, f->n));
    is_cli_set(o, "exact", is_cli_json_number(f->exact / (double)f->n));
    is_cli_set(o, "f1_against_text", interval(f->f1_less, f->n_pairs));
    if (f->n_judged > 0) {
        is_cli_set(o, "judge", is_cli_json_number(f->judged / (double)f->n_judged));
        is_cli_set(o, "judge_against_text", interval(f->judge_less, f->n_judge_pairs));
    }
    is_cli_set(o, "f1_with_evidence", is_cli_json_number(f->found_f1 / (double)f->n_found));
    is_cli_set(o, "f1_without_evidence", is_cli_json_number(f->lost_f1 / (double)f->n_lost));
    is_cli_set(o, "with_evidence", json_integer((json_int_t)f->n_found));
    is_cli_set(o, "without_evidence", json_integer((json_int_t)f->n_lost));
    return o;
}

/* NULL: no question is of this category. */
static json_t *summary(const answers *a, const setup *s, int category)
{
    const size_t n = a->b.n;
    figures f = {.f1 = calloc(3 * n + 1, sizeof(double))};
    if (f.f1 == NULL) is_cli_no_memory();
    f.f1_less = f.f1 + n;
    f.judge_less = f.f1_less + n;
    for (size_t i = 0; i < n; i++)
        if (category == 0 || a->b.questions[i].category == category) add(a, s, &a->setups[0], &a->b.questions[i], &f);
    json_t *out = f.n > 0 ? figures_json(&f) : NULL;
    free(f.f1);
    return out;
}

static void print(const setup *s, const char *category, const json_t *o)
{
    const json_t *f1 = json_object_get(o, "f1"), *less = json_object_get(o, "f1_against_text");
    const json_t *judge = json_object_get(o, "judge");
    printf("%-30s %-12s %6.0f %6.1f %6.1f  %+6.1f (%+.1f to %+.1f)", s->name, category, is_cli_number(o, "questions"),
           100 * is_cli_number(f1, "mean"), 100 * is_cli_number(o, "exact"), 100 * is_cli_number(less, "mean"),
           100 * is_cli_number(less, "low"), 100 * is_cli_number(less, "high"));
    if (judge != NULL) printf("  judge %.1f", 100 * json_number_value(judge));
    putchar('\n');
}

static void report(const answers *a, json_t *list)
{
    if (!a->b.cli.json)
        printf("%-30s %-12s %6s %6s %6s  %s\n", "answered by", "questions", "n", "F1", "exact", "F1 against text");
    for (size_t i = 0; i < a->n_setups; i++) {
        const setup *s = &a->setups[i];
        json_t *o = summary(a, s, 0), *by = json_object();
        if (o == NULL) continue;
        if (!a->b.cli.json) print(s, "all", o);
        for (int c = 1; c < CATEGORIES; c++) {
            json_t *part = summary(a, s, c);
            if (part == NULL) continue;
            if (!a->b.cli.json) print(s, categories[c], part);
            is_cli_set(by, categories[c], part);
        }
        is_cli_set(o, "name", json_string(s->name));
        is_cli_set(o, "mode", json_string(mode_name(s->mode)));
        is_cli_set(o, "recipe", s->mode == IS_MODE_INJECT ? json_string(s->recipe) : json_null());
        is_cli_set(o, "fresh", json_integer(s->fresh));
        is_cli_set(o, "by_category", by);
        is_cli_append(list, o);
    }
}

/* ------------------------------------------------------------ the command */

static is_status add_setup(answers *a, is_mode mode, const char *recipe, uint32_t fresh, is_error *err)
{
    is_recipe parsed;
    if (a->n_setups == MAX_SETUPS) return is_fail(err, IS_EINVAL, "more than %d ways to answer", MAX_SETUPS);
    is_status status = is_recipe_parse(recipe, &parsed, err);
    setup *s = &a->setups[a->n_setups];
    char name[IS_RECIPE_MAX], behind[24] = "";
    is_recipe_name(&parsed, name);
    if (fresh > 0) (void)snprintf(behind, sizeof behind, ", fresh:%u", fresh);
    *s = (setup){.mode = mode, .fresh = fresh};
    memcpy(s->recipe, name, sizeof name);
    (void)snprintf(s->name, sizeof s->name, "%s%s", mode == IS_MODE_INJECT ? name : mode_name(mode), behind);
    a->n_setups++;
    return status;
}

/* The text first, whose answers the others' are compared with; it is asked of the first recipe's store. */
static is_status make_setups(answers *a, const uint32_t *fresh, size_t n_fresh, is_error *err)
{
    static const char *const defaults[] = {"isolated", IS_RECIPE_DEFAULT};
    const is_cli_list *given = &a->b.recipes;
    const char *const *recipes = given->n > 0 ? given->items : defaults;
    size_t n = given->n > 0 ? given->n : sizeof defaults / sizeof defaults[0];
    is_status status = add_setup(a, IS_MODE_PREFILL, recipes[0], 0, err);
    if (status == IS_OK && a->without) status = add_setup(a, IS_MODE_OFF, recipes[0], 0, err);
    for (size_t i = 0; status == IS_OK && i < n; i++)
        for (size_t j = 0; status == IS_OK && j < n_fresh; j++)
            status = add_setup(a, IS_MODE_INJECT, recipes[i], fresh[j], err);
    return status;
}

static is_status measure(answers *a, is_error *err)
{
    is_status status = is_judge_open(&a->judge, err);
    if (status == IS_OK) status = is_bench_questions(&a->b, err);
    if (status == IS_OK) status = is_bench_begin(&a->b, err);
    for (size_t i = 0; status == IS_OK && i < a->n_setups; i++) status = take_answers(a, &a->setups[i], err);
    return status == IS_OK ? judge_all(a, err) : status;
}

int is_bench_answers(int argc, char **argv)
{
    answers a = {.b = {.n_questions = 100}};
    is_bench *b = &a.b;
    is_error err = {0};
    uint32_t k[1] = {0}, fresh[MAX_FRESH] = {0};
    size_t n_k, n_fresh;
    const is_cli_option own[] = {
        IS_BENCH_WORK(b),
        IS_BENCH_UNDATED(b),
        {"adversarial", 0, IS_CLI_FLAG, &b->adversarial, 0, 0, NULL,
         "the questions that have no answer, in place of the others"},
        {"without", 0, IS_CLI_FLAG, &a.without, 0, 0, NULL, "also answer with no memory at all"},
        {"judge", 0, IS_CLI_TEXT, &a.judge.url, 0, 0, "URL",
         "a server with OpenAI's interface whose model also says which answers are right"},
        {"judge-model", 0, IS_CLI_TEXT, &a.judge.model, 0, 0, "NAME", "which of its models (default: the server's)"},
        {"judge-key", 0, IS_CLI_TEXT, &a.judge.key, 0, 0, "KEY", "its API key (default: $INFERSCALE_JUDGE_KEY)"},
        {"judge-prompt", 0, IS_CLI_TEXT, &a.judge.prompt, 0, 0, "FILE", "default: " IS_JUDGE_PROMPT},
    };
    a.judge.key = getenv("INFERSCALE_JUDGE_KEY");
    if (!is_bench_parse(
            b, "answers",
            "How right the answers are with injected memory, by recipe, beside those with the same facts as\n"
            "text: LoCoMo's token F1 and exact match, and the difference to the text with its 95 % interval.",
            "inferscale bench answers --data locomo10.json --limit 1540 --work /tmp/answers\n"
            "inferscale bench answers --with-recipe window:5 --with-recipe primed:8 --fresh 0 --fresh 5 --json",
            own, sizeof own / sizeof own[0], argc, argv))
        return b->cli.exit;
    if (!is_bench_numbers(b, &b->ks, "50", k, &n_k, 1, IS_MAX_K) ||
        !is_bench_numbers(b, &b->fresh, "0", fresh, &n_fresh, MAX_FRESH, IS_MAX_K))
        return IS_EXIT_USAGE;
    is_cli_catch_interrupts();
    a.k = k[0];
    is_status status = make_setups(&a, fresh, n_fresh, &err);
    if (status == IS_OK) status = measure(&a, &err);
    json_t *root = is_bench_context(b), *list = json_array();
    if (status == IS_OK) report(&a, list);
    is_cli_set(root, "k", json_integer(a.k));
    is_cli_set(root, "answers", list);
    is_judge_close(&a.judge);
    return is_bench_end(b, root, status, &err);
}
