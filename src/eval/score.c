/* From an answer to its score: normalised words, their stems, what gold and answer share, and LoCoMo's categories. */
#include "score.h"

#include <stdlib.h>
#include <string.h>

#include "../common/common.h"
#include "letters.h"
#include "stem.h"

/* ------------------------------------------------------------ words */

/* Python's string.punctuation. */
static bool is_punctuation(uint32_t c)
{
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
}

static bool is_article(const char *s, size_t n)
{
    static const char *const articles[] = {"a", "an", "the", "and"};
    for (size_t i = 0; i < sizeof articles / sizeof *articles; i++)
        if (n == strlen(articles[i]) && memcmp(s, articles[i], n) == 0) return true;
    return false;
}

/* n bytes of text in small letters.  *out: free(). */
static is_status lower(const char *text, size_t n, char **out, is_error *err)
{
    size_t size = 0;
    if (!is_mul_size(n, 3, &size) || !is_add_size(size, 1, &size) || (*out = malloc(size)) == NULL)
        return is_fail(err, IS_ENOMEM, "no memory for an answer of %zu bytes", n);
    (void)is_eval_lower(text, n, *out, size); /* 3 * n + 1 always suffice */
    return IS_OK;
}

/* One blank behind what is there, none at the beginning. */
static char *put_blank(const char *begin, char *to)
{
    if (to > begin && to[-1] != ' ') *to++ = ' ';
    return to;
}

/*
 * In place, since nothing grows.  An article is a whole row of word characters (\b of Python's regex) after punctuation
 * is gone: "a-b" is the word "ab", but in "a\u2014b", where a dash stands that is not ASCII, the a is an article.
 */
is_status is_eval_normalise(const char *text, size_t n, char **out, is_error *err)
{
    char *s = NULL;
    is_status status = lower(text, n, &s, err);
    if (status != IS_OK) return status;
    const char *end = s + strlen(s);
    char *to = s;
    char *row = NULL; /* where the word characters that end at `to` begin */
    for (const char *at = s; at < end;) {
        const char *from = at;
        uint32_t c = is_eval_next(&at, end);
        if (is_punctuation(c)) continue;
        bool space = is_eval_space(c);
        bool of_word = !space && is_eval_word_char(c);
        if (!of_word && row != NULL) {
            if (is_article(row, (size_t)(to - row))) to = put_blank(s, row);
            row = NULL;
        }
        if (space) {
            to = put_blank(s, to);
            continue;
        }
        if (of_word && row == NULL) row = to;
        memmove(to, from, (size_t)(at - from));
        to += at - from;
    }
    if (row != NULL && is_article(row, (size_t)(to - row))) to = row;
    if (to > s && to[-1] == ' ') to--;
    *to = '\0';
    *out = s;
    return IS_OK;
}

/* The words of a text, sorted, so that what two texts share is found in one pass. */
typedef struct {
    char *bytes; /* what the words lie in */
    char **word;
    size_t n;
} words;

static void words_free(words *w)
{
    free(w->bytes);
    free(w->word);
    *w = (words){0};
}

static int compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The normalised words of n bytes of text, or their stems.  words_free, also after a failure. */
static is_status read_words(const char *text, size_t n, bool stems, words *out, is_error *err)
{
    *out = (words){0};
    is_status status = is_eval_normalise(text, n, &out->bytes, err);
    if (status != IS_OK || out->bytes[0] == '\0') return status;
    size_t count = 1;
    for (const char *s = out->bytes; *s != '\0'; s++) count += *s == ' ';
    out->word = calloc(count, sizeof *out->word);
    size_t size = strlen(out->bytes) + 1;
    char *stem = malloc(size);
    if (out->word == NULL || stem == NULL) {
        free(stem);
        return is_fail(err, IS_ENOMEM, "no memory for the %zu words of an answer", count);
    }
    char *rest = NULL;
    for (char *w = strtok_r(out->bytes, " ", &rest); w != NULL; w = strtok_r(NULL, " ", &rest)) {
        if (stems && is_eval_stem(w, stem, size)) memcpy(w, stem, strlen(stem) + 1); /* never longer than the word */
        out->word[out->n++] = w;
    }
    free(stem);
    qsort(out->word, out->n, sizeof *out->word, compare);
    return IS_OK;
}

/* ------------------------------------------------------------ comparisons */

static double f1_of(const words *gold, const words *answer)
{
    size_t shared = 0;
    for (size_t i = 0, j = 0; i < gold->n && j < answer->n;) {
        int order = strcmp(gold->word[i], answer->word[j]);
        shared += order == 0;
        i += order <= 0;
        j += order >= 0;
    }
    if (shared == 0) return 0;
    double precision = (double)shared / (double)answer->n;
    double recall = (double)shared / (double)gold->n;
    return 2 * precision * recall / (precision + recall);
}

static size_t skip_equal(const words *w, size_t i)
{
    size_t next = i + 1;
    while (next < w->n && strcmp(w->word[next], w->word[i]) == 0) next++;
    return next;
}

static bool same_set(const words *a, const words *b)
{
    size_t i = 0;
    size_t j = 0;
    while (i < a->n && j < b->n) {
        if (strcmp(a->word[i], b->word[j]) != 0) return false;
        i = skip_equal(a, i);
        j = skip_equal(b, j);
    }
    return i == a->n && j == b->n;
}

/* ------------------------------------------------------------ categories */

static is_status score_exact(const char *gold, size_t n_gold, const char *answer, bool *exact, is_error *err)
{
    words g = {0};
    words a = {0};
    is_status status = read_words(gold, n_gold, false, &g, err);
    if (status == IS_OK) status = read_words(answer, strlen(answer), false, &a, err);
    if (status == IS_OK) *exact = same_set(&g, &a);
    words_free(&g);
    words_free(&a);
    return status;
}

static is_status score_f1(const char *gold, size_t n_gold, const char *answer, double *f1, is_error *err)
{
    words g = {0};
    words a = {0};
    is_status status = read_words(gold, n_gold, true, &g, err);
    if (status == IS_OK) status = read_words(answer, strlen(answer), true, &a, err);
    if (status == IS_OK) *f1 = f1_of(&g, &a);
    words_free(&g);
    words_free(&a);
    return status;
}

/* The stems of each item of a list with commas; always at least one item, perhaps an empty one. */
typedef struct {
    words *item;
    size_t n;
} list;

static void list_free(list *l)
{
    for (size_t i = 0; i < l->n; i++) words_free(&l->item[i]);
    free(l->item);
}

/* list_free, also after a failure. */
static is_status read_list(const char *text, list *out, is_error *err)
{
    size_t n = 1;
    for (const char *s = text; *s != '\0'; s++) n += *s == ',';
    *out = (list){.item = calloc(n, sizeof *out->item)};
    if (out->item == NULL) return is_fail(err, IS_ENOMEM, "no memory for the %zu items of an answer", n);
    for (out->n = 0; out->n < n;) {
        size_t length = strcspn(text, ",");
        is_status status = read_words(text, length, true, &out->item[out->n++], err);
        if (status != IS_OK) return status;
        text += length + 1;
    }
    return IS_OK;
}

static is_status score_lists(const char *gold, const char *answer, double *f1, is_error *err)
{
    list golds = {0};
    list answers = {0};
    is_status status = read_list(gold, &golds, err);
    if (status == IS_OK) status = read_list(answer, &answers, err);
    if (status == IS_OK) {
        double sum = 0;
        for (size_t i = 0; i < golds.n; i++) {
            double best = 0;
            for (size_t j = 0; j < answers.n; j++) {
                double reached = f1_of(&golds.item[i], &answers.item[j]);
                if (reached > best) best = reached;
            }
            sum += best;
        }
        *f1 = sum / (double)golds.n;
    }
    list_free(&golds);
    list_free(&answers);
    return status;
}

static is_status score_refusal(const char *answer, double *f1, bool *exact, is_error *err)
{
    char *s = NULL;
    is_status status = lower(answer, strlen(answer), &s, err);
    if (status != IS_OK) return status;
    *exact = strstr(s, "no information available") != NULL || strstr(s, "not mentioned") != NULL;
    *f1 = *exact ? 1 : 0;
    free(s);
    return IS_OK;
}

is_status is_eval_score(int category, const char *gold, const char *answer, double *f1, bool *exact, is_error *err)
{
    if (category < IS_EVAL_MULTI_HOP || category > IS_EVAL_ADVERSARIAL)
        return is_fail(err, IS_EINVAL, "%d is no category of LoCoMo; they are 1 to 5", category);
    if (category == IS_EVAL_ADVERSARIAL) return score_refusal(answer, f1, exact, err);
    size_t n_gold = category == IS_EVAL_OPEN_DOMAIN ? strcspn(gold, ";") : strlen(gold);
    bool same = false;
    is_status status = score_exact(gold, n_gold, answer, &same, err);
    if (status != IS_OK) return status;
    status =
        category == IS_EVAL_MULTI_HOP ? score_lists(gold, answer, f1, err) : score_f1(gold, n_gold, answer, f1, err);
    if (status == IS_OK) *exact = same;
    return status;
}
