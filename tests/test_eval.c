/*
 * Scores of answers: cases worked out by hand, and texts that are no text.
 *
 * With an argument the program is what tests/test_eval.sh compares with NLTK: it reads lines and prints one for each.
 *   stems      a word; its stem
 *   normal     a text; its normalised words
 *   scores     {"category", "gold", "answer"}; F1, and 1 or 0 for exact
 *   intervals  an array of numbers; mean, low, high
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval/letters.h"
#include "eval/score.h"
#include "eval/stem.h"

static void check_normal(const char *text, const char *expected)
{
    is_error err;
    char *normal = NULL;
    if (is_eval_normalise(text, strlen(text), &normal, &err) != IS_OK) fail_msg("%s", err.text);
    assert_string_equal(normal, expected);
    free(normal);
}

static void check_score(int category, const char *gold, const char *answer, double f1, bool exact)
{
    is_error err;
    double scored = -1;
    bool same = !exact;
    if (is_eval_score(category, gold, answer, &scored, &same, &err) != IS_OK) fail_msg("%s", err.text);
    if (fabs(scored - f1) > 1e-12 || same != exact)
        fail_msg("%d: \"%s\" for \"%s\" gives %.12f, %d", category, answer, gold == NULL ? "" : gold, scored, same);
}

/* ------------------------------------------------------------ letters */

static void test_normalise(void **state)
{
    (void)state;
    check_normal("", "");
    check_normal(" \t\r\n", "");
    check_normal("?!,;.()", "");
    check_normal("a", "");
    check_normal("The cat, a dog and an owl.", "cat dog owl");
    check_normal("  red,blue \n green ", "redblue green");
    check_normal("$1,500.50", "150050");
    check_normal("rock-and-roll", "rockandroll");
    check_normal("A.M. a.n.d", "am"); /* punctuation goes first, and leaves an "and" */
    check_normal("the the the end", "end");
    check_normal("thea anthe a_b", "thea anthe ab");
    check_normal("theatre candy", "theatre candy");
}

static void test_normalise_other_letters(void **state)
{
    (void)state;
    check_normal("\u00C9T\u00C9 \u0141\u00D3D\u0179 \u0178", "\u00E9t\u00E9 \u0142\u00F3d\u017A \u00FF");
    check_normal("\u041C\u041E\u0421\u041A\u0412\u0410 \u0401", "\u043C\u043E\u0441\u043A\u0432\u0430 \u0451");
    check_normal("\u00DF\u00D7\u00F7\u00AA", "\u00DF\u00D7\u00F7\u00AA"); /* no capitals, though between them */
    check_normal("\u0130", "i\u0307");
    check_normal("a\u00A0b\u2003c\u3000d\u1680e\u2028f", "b c d e f");
    check_normal("a\u200Bb", "\u200Bb");                        /* no space in Python, yet a border of words */
    check_normal("the\u2014end a\u2019s", "\u2014end \u2019s"); /* only ASCII's punctuation is deleted */
    check_normal("caf\u00E9\u2014a\u2014bar", "caf\u00E9\u2014 \u2014bar");
    check_normal("\u00E9a a\u0301 the\u0301", "\u00E9a a\u0301 the\u0301"); /* a mark is of the word */
    check_normal("a\U0001F389the \u00BD", "\U0001F389 \u00BD");
}

static void test_final_sigma(void **state)
{
    (void)state;
    check_normal("\u039F\u0394\u039F\u03A3 \u03A3\u0391\u03A3", "\u03BF\u03B4\u03BF\u03C2 \u03C3\u03B1\u03C2");
    check_normal("\u03A3 1\u03A3", "\u03C3 1\u03C3");
    check_normal("\u0391\u03A3. \u0391\u03A3.\u0391", "\u03B1\u03C2 \u03B1\u03C3\u03B1");
    check_normal("\u0391\u03A3,\u0391", "\u03B1\u03C3\u03B1"); /* the comma is gone before */
    check_normal("\u0391'\u03A3'", "\u03B1\u03C2");
}

/* What is no UTF-8 must not be read past its end, and counts like a symbol. */
static void test_no_utf8(void **state)
{
    (void)state;
    check_normal("\xFF", "\uFFFD");
    check_normal("caf\xE9 the\xC3", "caf\uFFFD \uFFFD");
    check_normal("\xF0\x9F\x8E", "\uFFFD\uFFFD\uFFFD");
    check_normal("x\xED\xA0\x80y", "x\uFFFD\uFFFD\uFFFDy");
    check_normal("\x80\xCE\xA3", "\uFFFD\u03C3");
    check_score(IS_EVAL_SINGLE_HOP, "\xFF\xFE", "\xC3", 0, false);
    check_score(IS_EVAL_MULTI_HOP, "\xC3,\xC3", "\xC3", 1, false);
    check_score(IS_EVAL_ADVERSARIAL, NULL, "\xE2\x80 not MENTIONED", 1, true);
    uint32_t x = 12345;
    for (int i = 0; i < 20000; i++) {
        char text[24];
        size_t n = x % sizeof text;
        for (size_t j = 0; j < n; j++) {
            x = x * 1664525u + 1013904223u;
            text[j] = (char)(x >> 24);
        }
        x = x * 1664525u + 1013904223u;
        char *exact_size = malloc(n + 1); /* so that the sanitizer sees where it ends */
        memcpy(exact_size, text, n);
        char *normal = NULL;
        assert_int_equal(is_eval_normalise(exact_size, n, &normal, NULL), IS_OK);
        free(normal);
        for (size_t j = 0; j < n; j++)
            if (exact_size[j] == '\0') exact_size[j] = 'y';
        exact_size[n] = '\0';
        char stem[3 * sizeof text + 1];
        assert_true(is_eval_stem(exact_size, stem, sizeof stem));
        double f1 = 0;
        bool exact = false;
        assert_int_equal(is_eval_score(1 + i % 5, exact_size, exact_size, &f1, &exact, NULL), IS_OK);
        free(exact_size);
    }
}

/* ------------------------------------------------------------ stems */

/* Pairs from Porter's paper where NLTK agrees, and those that NLTK's and Porter's later changes are about. */
static void test_stems(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {
        {"caresses", "caress"},
        {"ponies", "poni"},
        {"ties", "tie"},
        {"cats", "cat"},
        {"dies", "die"},
        {"flies", "fli"},
        {"feed", "feed"},
        {"agreed", "agre"},
        {"plastered", "plaster"},
        {"bled", "bled"},
        {"motoring", "motor"},
        {"sing", "sing"},
        {"conflated", "conflat"},
        {"troubled", "troubl"},
        {"sized", "size"},
        {"hopping", "hop"},
        {"falling", "fall"},
        {"hissing", "hiss"},
        {"fizzed", "fizz"},
        {"filing", "file"},
        {"died", "die"},
        {"spied", "spi"},
        {"happy", "happi"},
        {"enjoy", "enjoy"},
        {"fly", "fli"},
        {"by", "by"},
        {"say", "say"},
        {"relational", "relat"},
        {"rational", "ration"},
        {"digitizer", "digit"},
        {"radically", "radic"},
        {"nationally", "nation"},
        {"hopefully", "hope"},
        {"geology", "geolog"},
        {"possibly", "possibl"},
        {"vietnamization", "vietnam"},
        {"sensibility", "sensibl"},
        {"electrical", "electr"},
        {"goodness", "good"},
        {"adoption", "adopt"},
        {"relation", "relat"},
        {"communism", "commun"},
        {"rate", "rate"},
        {"cease", "ceas"},
        {"controlling", "control"},
        {"roll", "roll"},
        {"owed", "owe"},
        {"skies", "sky"},
        {"dying", "die"},
        {"news", "news"},
        {"innings", "inning"},
        {"succeed", "succeed"},
        {"is", "is"},
        {"", ""},
        {"Running", "run"},
        {"SKIES", "sky"},
        {"yyy", "yyy"},
        {"yyyy", "yyyi"},
        {"1990s", "1990"},
        {"\u00E9ies", "\u00E9ie"},
        {"\u00E9\u00E9ies", "\u00E9\u00E9i"},
        {"a\u00E9\u00E9ed", "a\u00E9"},
        {"a\u00E9ed", "a\u00E9e"},
        {"ba\u00E9ed", "ba\u00E9e"},
        {"\u00E9ts", "\u00E9t"},
        {"\u00E9s", "\u00E9s"},
        {"\u00E9y", "\u00E9y"},
        {"\u00E9\u00E9y", "\u00E9\u00E9i"},
        {"\u00C9T\u00C9S", "\u00E9t\u00E9"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        char stem[64];
        assert_true(is_eval_stem(pairs[i][0], stem, sizeof stem));
        assert_string_equal(stem, pairs[i][1]);
    }
}

static void test_stem_size(void **state)
{
    (void)state;
    char stem[8];
    assert_true(is_eval_stem("relates", stem, 8));
    assert_string_equal(stem, "relat");
    assert_false(is_eval_stem("relates", stem, 7));
    assert_false(is_eval_stem("", stem, 0));
    assert_true(is_eval_stem("", stem, 1));
    assert_true(is_eval_stem("\u0130", stem, 4)); /* two bytes become three */
    assert_false(is_eval_stem("\u0130", stem, 3));
}

/* ------------------------------------------------------------ scores */

static void test_f1(void **state)
{
    (void)state;
    check_score(IS_EVAL_SINGLE_HOP, "the red car", "Red car!", 1, true);
    check_score(IS_EVAL_SINGLE_HOP, "running shoes", "shoe run", 1, false); /* equal stems, other words */
    check_score(IS_EVAL_SINGLE_HOP, "7 May 2023", "on 7 May", 2.0 / 3, false);
    check_score(IS_EVAL_TEMPORAL, "2022", "in the year 2022", 0.5, false); /* 1/3 and 1 */
    check_score(IS_EVAL_SINGLE_HOP, "red", "blue", 0, false);
    check_score(IS_EVAL_SINGLE_HOP, "yes yes no", "yes no no no", 4.0 / 7, true); /* 2 shared of 3 and 4 */
    check_score(IS_EVAL_SINGLE_HOP, "one, two", "one two", 1, true);              /* no list here */
    check_score(IS_EVAL_SINGLE_HOP, "blue; as she said", "blue", 0.4, false);     /* nor an explanation */
    check_score(IS_EVAL_SINGLE_HOP, "", "", 0, true);
    check_score(IS_EVAL_SINGLE_HOP, "the", "?", 0, true);
    check_score(IS_EVAL_SINGLE_HOP, "car", "", 0, false);
    check_score(IS_EVAL_SINGLE_HOP, "", "car", 0, false);
}

static void test_multi_hop(void **state)
{
    (void)state;
    check_score(IS_EVAL_MULTI_HOP, "pottery, camping, painting", "camping, pottery", 2.0 / 3, false);
    /* camping alone is 2/3 of the item it shares; pottery, painting: 0 */
    check_score(IS_EVAL_MULTI_HOP, "pottery, camping, painting", "camping trips", 2.0 / 9, false);
    check_score(IS_EVAL_MULTI_HOP, "pottery", "camping, pottery, painting", 1, false);
    check_score(IS_EVAL_MULTI_HOP, "red car, blue car", "blue cars,red car", 1, false);
    check_score(IS_EVAL_MULTI_HOP, "red car, blue car", "car", 2.0 / 3, false);
    check_score(IS_EVAL_MULTI_HOP, "a b, c d", "d c b", (0.5 + 0.8) / 2, true); /* "a" is an article */
    check_score(IS_EVAL_MULTI_HOP, "one,,two,", "two", 0.25, false);            /* empty items count as well */
    check_score(IS_EVAL_MULTI_HOP, "", "", 0, true);
    check_score(IS_EVAL_MULTI_HOP, ",", "one", 0, false);
    check_score(IS_EVAL_MULTI_HOP, "one; two", "one", 2.0 / 3, false);
}

static void test_open_domain(void **state)
{
    (void)state;
    check_score(IS_EVAL_OPEN_DOMAIN, "Likely no; she is allergic", "likely no", 1, true);
    check_score(IS_EVAL_OPEN_DOMAIN, "Yes; a; b", "Yes", 1, true);
    check_score(IS_EVAL_OPEN_DOMAIN, "; yes", "yes", 0, false);
    check_score(IS_EVAL_OPEN_DOMAIN, "yes", "yes; no", 2.0 / 3, false); /* an answer is not cut */
    check_score(IS_EVAL_OPEN_DOMAIN, "one, two", "two, one", 1, true);
}

static void test_adversarial(void **state)
{
    (void)state;
    check_score(IS_EVAL_ADVERSARIAL, NULL, "No information available.", 1, true);
    check_score(IS_EVAL_ADVERSARIAL, "x", "That is NOT MENTIONED in the text", 1, true);
    check_score(IS_EVAL_ADVERSARIAL, "x", "x", 0, false);
    check_score(IS_EVAL_ADVERSARIAL, "x", "no, information available", 0, false);
    check_score(IS_EVAL_ADVERSARIAL, "x", "", 0, false);
}

static void test_no_category(void **state)
{
    (void)state;
    static const int none[] = {-1, 0, 6};
    for (size_t i = 0; i < 3; i++) {
        is_error err;
        double f1 = 42;
        bool exact = true;
        assert_int_equal(is_eval_score(none[i], "x", "x", &f1, &exact, &err), IS_EINVAL);
        assert_true(f1 > 41 && exact);
        assert_non_null(strstr(err.text, "category"));
    }
}

/* ------------------------------------------------------------ intervals */

static void check_interval(const double *values, size_t n, double mean, double low, double high, double within)
{
    is_eval_interval i;
    assert_int_equal(is_eval_mean_interval(values, n, &i, NULL), IS_OK);
    if (fabs(i.mean - mean) > 1e-12 || fabs(i.low - low) > within || fabs(i.high - high) > within)
        fail_msg("%zu values: %.6f [%.6f, %.6f]", n, i.mean, i.low, i.high);
}

static void test_intervals(void **state)
{
    (void)state;
    static const double one[] = {0.25};
    static const double same[] = {-0.5, -0.5, -0.5, -0.5};
    check_interval(one, 1, 0.25, 0.25, 0.25, 0);
    check_interval(same, 4, -0.5, -0.5, -0.5, 0);
    /* Of a coin's two sides a resample's mean is 0, 0.5 or 1, the outer two with 1/4 each. */
    static const double two[] = {0, 1};
    check_interval(two, 2, 0.5, 0, 1, 0);
    /* A resample of 100 with 30 ones is binomial: its quantiles are 21 and 39 of 100 ones (P(X <= 20) = 0.0165, P(X <=
     * 21) = 0.0288; P(X <= 38) = 0.9660, P(X <= 39) = 0.9790). */
    double hundred[100];
    for (size_t i = 0; i < 100; i++) hundred[i] = i % 10 < 3;
    check_interval(hundred, 100, 0.3, 0.21, 0.39, 1e-12);
    /* Of many, the normal distribution's: 0.5 +- 1.959964 * sqrt(1/12 / n), the values being spread evenly. */
    enum { MANY = 4000 };
    static double many[MANY];
    for (size_t i = 0; i < MANY; i++) many[i] = ((double)i + 0.5) / MANY;
    double half = 1.959964 * sqrt(1.0 / 12 / MANY);
    check_interval(many, MANY, 0.5, 0.5 - half, 0.5 + half, 0.0004);
}

static void test_no_interval(void **state)
{
    (void)state;
    static const double odd[][2] = {{1, NAN}, {INFINITY, 1}, {INFINITY, -INFINITY}};
    is_eval_interval i = {0, 0, 0};
    assert_int_equal(is_eval_mean_interval(NULL, 0, &i, NULL), IS_OK);
    assert_true(isnan(i.mean) && isnan(i.low) && isnan(i.high));
    for (size_t j = 0; j < 3; j++) {
        assert_int_equal(is_eval_mean_interval(odd[j], 2, &i, NULL), IS_OK);
        assert_true(isnan(i.mean) && isnan(i.low) && isnan(i.high));
    }
}

/* ------------------------------------------------------------ for the comparison */

static bool print_stem(const char *line)
{
    size_t size = 3 * strlen(line) + 1;
    char *stem = malloc(size);
    bool well = stem != NULL && is_eval_stem(line, stem, size) && printf("%s\n", stem) > 0;
    free(stem);
    return well;
}

static bool print_normal(const char *line)
{
    char *normal = NULL;
    bool well = is_eval_normalise(line, strlen(line), &normal, NULL) == IS_OK && printf("%s\n", normal) > 0;
    free(normal);
    return well;
}

static bool print_score(const char *line)
{
    json_t *json = json_loads(line, 0, NULL);
    int category = 0;
    const char *gold = NULL;
    const char *answer = NULL;
    double f1 = 0;
    bool exact = false;
    bool well = json_unpack(json, "{s:i, s:s, s:s}", "category", &category, "gold", &gold, "answer", &answer) == 0 &&
                is_eval_score(category, gold, answer, &f1, &exact, NULL) == IS_OK &&
                printf("%.17g %d\n", f1, exact) > 0;
    json_decref(json);
    return well;
}

static bool print_interval(const char *line)
{
    json_t *json = json_loads(line, 0, NULL);
    size_t n = json_array_size(json);
    double *values = calloc(n + 1, sizeof *values);
    is_eval_interval i;
    bool well = values != NULL;
    for (size_t j = 0; well && j < n; j++) values[j] = json_number_value(json_array_get(json, j));
    well = well && is_eval_mean_interval(values, n, &i, NULL) == IS_OK &&
           printf("%.17g %.17g %.17g\n", i.mean, i.low, i.high) > 0;
    free(values);
    json_decref(json);
    return well;
}

static int print_lines(const char *what)
{
    bool (*print)(const char *) = strcmp(what, "stems") == 0       ? print_stem
                                  : strcmp(what, "normal") == 0    ? print_normal
                                  : strcmp(what, "scores") == 0    ? print_score
                                  : strcmp(what, "intervals") == 0 ? print_interval
                                                                   : NULL;
    char *line = NULL;
    size_t size = 0;
    bool well = print != NULL;
    ssize_t n = 0;
    while (well && (n = getline(&line, &size, stdin)) > 0) {
        if (line[n - 1] == '\n') line[n - 1] = '\0';
        well = print(line);
    }
    free(line);
    return well ? 0 : 1;
}

int main(int argc, char **argv)
{
    if (argc > 1) return print_lines(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_normalise),   cmocka_unit_test(test_normalise_other_letters),
        cmocka_unit_test(test_final_sigma), cmocka_unit_test(test_no_utf8),
        cmocka_unit_test(test_stems),       cmocka_unit_test(test_stem_size),
        cmocka_unit_test(test_f1),          cmocka_unit_test(test_multi_hop),
        cmocka_unit_test(test_open_domain), cmocka_unit_test(test_adversarial),
        cmocka_unit_test(test_no_category), cmocka_unit_test(test_intervals),
        cmocka_unit_test(test_no_interval),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
