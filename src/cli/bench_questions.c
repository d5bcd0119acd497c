/* The questions of the data: LoCoMo's own, or an array of {"question", "answer"} beside JSON Lines. */
#include <libgen.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

#define ADVERSARIAL 5 /* LoCoMo's category of questions that the conversation does not answer */

static char *copy(const char *text)
{
    char *out = strdup(text);
    if (out == NULL) is_cli_no_memory();
    return out;
}

/* A text or a whole number, as a text; NULL for anything else. */
static char *text_of(const json_t *value)
{
    char *out = NULL;
    if (json_is_string(value)) return copy(json_string_value(value));
    if (json_is_integer(value) && asprintf(&out, "%lld", (long long)json_integer_value(value)) < 0) is_cli_no_memory();
    return out;
}

static void free_question(is_bench_question *q)
{
    free(q->id);
    free(q->user);
    free(q->question);
    free(q->answer);
}

static void add_question(is_bench *b, const char *user, size_t number, const json_t *item)
{
    is_bench_question q = {.user = copy(user),
                           .question = text_of(json_object_get(item, "question")),
                           .answer = text_of(json_object_get(item, "answer")),
                           .category = (int)json_integer_value(json_object_get(item, "category")),
                           .evidence = json_object_get(item, "evidence")};
    if (asprintf(&q.id, "%s#%zu", user, number) < 0) is_cli_no_memory();
    bool adversarial = q.category == ADVERSARIAL;
    if (q.question == NULL || adversarial != b->adversarial ||
        (!adversarial && (q.answer == NULL || q.answer[0] == '\0'))) {
        free_question(&q);
        return;
    }
    is_bench_question *grown = realloc(b->questions, (b->n + 1) * sizeof *grown);
    if (grown == NULL) is_cli_no_memory();
    b->questions = grown;
    b->questions[b->n++] = q;
}

/* Keeps n_questions of them, at even distances. */
static void thin(is_bench *b)
{
    if (b->n_questions == 0 || b->n <= b->n_questions) return;
    size_t kept = 0;
    for (size_t i = 0; i < b->n; i++) {
        is_bench_question *q = &b->questions[i];
        if (kept < b->n_questions && i == kept * b->n / b->n_questions)
            b->questions[kept++] = *q;
        else
            free_question(q);
    }
    b->n = kept;
}

static json_t *read_file(const is_bench *b, const char *data, is_error *err)
{
    char path[4096];
    json_error_t why;
    json_t *root = b->questions_file == NULL ? json_load_file(data, 0, NULL) : NULL; /* LoCoMo's file has its own */
    if (root != NULL) return root;
    char *folder = copy(data);
    (void)snprintf(path, sizeof path, "%s/questions.json", dirname(folder));
    free(folder);
    const char *file = b->questions_file != NULL ? b->questions_file : path;
    root = json_load_file(file, 0, &why);
    if (root == NULL)
        (void)is_fail(err, IS_EINVAL, "no questions in %s: %s; give --data and --questions", file, why.text);
    return root;
}

is_status is_bench_questions(is_bench *b, is_error *err)
{
    const char *data = b->data != NULL ? b->data : IS_BENCH_SAMPLE;
    size_t i, j;
    json_t *item, *qa;
    b->file = read_file(b, data, err);
    if (b->file == NULL) return IS_EINVAL;
    json_array_foreach(b->file, i, item)
    {
        const json_t *list = json_object_get(item, "qa");
        const char *user = json_string_value(json_object_get(item, "sample_id"));
        if (list == NULL) add_question(b, b->cli.scope.user, i, item);
        json_array_foreach(list, j, qa)
        {
            if (user != NULL) add_question(b, user, j, qa);
        }
    }
    if (b->n == 0) return is_fail(err, IS_EINVAL, "%s holds no questions with answers", data);
    thin(b);
    return IS_OK;
}

void is_bench_free_questions(is_bench *b)
{
    for (size_t i = 0; i < b->n; i++) free_question(&b->questions[i]);
    free(b->questions);
    json_decref(b->file);
}

/* ------------------------------------------------------------ evidence */

/* Whether a text that names a turn, or lists several ("D26:14, D26:34"), names this one. */
static bool text_names(const char *text, const char *turn)
{
    static const char between[] = " ,;";
    size_t n = strlen(turn);
    for (const char *at = text; at != NULL && (at = strstr(at, turn)) != NULL; at += n)
        if ((at == text || strchr(between, at[-1]) != NULL) && (at[n] == '\0' || strchr(between, at[n]) != NULL))
            return true;
    return false;
}

/* The same of such a text, or a list of them. */
static bool names(const json_t *named, const char *turn)
{
    size_t i;
    json_t *one;
    json_array_foreach(named, i, one)
    {
        if (names(one, turn)) return true;
    }
    return text_names(json_string_value(named), turn);
}

/* All that LoCoMo's file says this fact was drawn from; NULL: it is not of such a file. */
static const json_t *sources(const is_bench *b, const char *user, const char *text)
{
    size_t i, j;
    json_t *item, *pair;
    const char *key;
    json_array_foreach(b->file, i, item)
    {
        const char *id = json_string_value(json_object_get(item, "sample_id"));
        json_t *sessions = json_object_get(item, "observation"), *session;
        if (id == NULL || strcmp(id, user) != 0) continue;
        json_object_foreach(sessions, key, session)
        {
            const char *speaker;
            json_t *pairs;
            json_object_foreach(session, speaker, pairs)
            {
                json_array_foreach(pairs, j, pair)
                {
                    const char *other = json_string_value(json_array_get(pair, 0));
                    if (other != NULL && strcmp(other, text) == 0) return json_array_get(pair, 1);
                }
            }
        }
    }
    return NULL;
}

static void find_turn(const is_bench *b, const is_bench_question *q, const is_fact_list *facts, const char *turn,
                      is_bench_evidence *out)
{
    out->n++;
    for (uint32_t i = 0; i < facts->n; i++) {
        const is_fact *fact = &facts->facts[i];
        const json_t *all = sources(b, q->user, fact->text);
        if (all != NULL ? !names(all, turn) : !text_names(fact->source, turn)) continue;
        out->found++;
        if (out->best == 0 || i + 1 < out->best) out->best = i + 1;
        return;
    }
}

is_bench_evidence is_bench_find_evidence(const is_bench *b, const is_bench_question *q, const is_fact_list *facts)
{
    static const char between[] = " ,;";
    is_bench_evidence found = {0};
    size_t i;
    json_t *named;
    json_array_foreach(q->evidence, i, named)
    {
        char *rest = NULL, *list = json_is_string(named) ? copy(json_string_value(named)) : NULL;
        for (char *turn = list != NULL ? strtok_r(list, between, &rest) : NULL; turn != NULL;
             turn = strtok_r(NULL, between, &rest))
            find_turn(b, q, facts, turn, &found);
        free(list);
    }
    return found;
}
