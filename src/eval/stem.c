/*
 * Porter's algorithm, step by step as in the paper; what NLTK does otherwise is said where it happens.
 *
 * A word is cut and changed at its end only, in its buffer: no rule makes it longer than it came.  Suffixes are ASCII,
 * and every byte of another letter counts as a consonant, so that only the conditions on the last letters of a stem,
 * and on the length of a word, look at more than bytes.
 */
#include "stem.h"

#include <stdint.h>
#include <string.h>

#include "letters.h"

typedef struct {
    char *at;
    size_t n;
} word;

/* ------------------------------------------------------------ vowels and consonants */

static bool is_vowel(char c)
{
    return c == 'a' || c == 'e' || c == 'i' || c == 'o' || c == 'u';
}

/* A y is a consonant at the beginning and behind a vowel; in a row of them every second one. */
static bool is_consonant(const char *s, size_t i)
{
    if (s[i] != 'y') return !is_vowel(s[i]);
    size_t first = i;
    while (first > 0 && s[first - 1] == 'y') first--;
    bool first_is = first == 0 || is_vowel(s[first - 1]);
    return (i - first) % 2 == 0 ? first_is : !first_is;
}

/* Porter's m: how often a consonant follows a vowel in the first n bytes. */
static size_t measure(const char *s, size_t n)
{
    size_t m = 0;
    bool previous = true;
    for (size_t i = 0; i < n; i++) {
        bool consonant = s[i] == 'y' ? i == 0 || !previous : !is_vowel(s[i]);
        if (consonant && !previous) m++;
        previous = consonant;
    }
    return m;
}

/* Porter's *v*.  The first y behind consonants is a vowel. */
static bool has_vowel(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (is_vowel(s[i]) || (s[i] == 'y' && i > 0)) return true;
    return false;
}

/* Where the last letter of n > 0 bytes begins. */
static size_t last_letter(const char *s, size_t n)
{
    size_t i = n - 1;
    while (i > 0 && ((unsigned char)s[i] & 0xC0) == 0x80) i--;
    return i;
}

/* Porter's *d: ends with the same consonant twice. */
static bool ends_double(const char *s, size_t n)
{
    if (n == 0) return false;
    size_t last = last_letter(s, n);
    size_t size = n - last;
    return last >= size && last_letter(s, last) == last - size && memcmp(s + last, s + last - size, size) == 0 &&
           is_consonant(s, last);
}

/* Porter's *o: ends consonant, vowel, consonant, and the last one is no w, x or y.  Later also a word of just a vowel
 * and any consonant, so that "owed" gives "owe". */
static bool ends_cvc(const char *s, size_t n)
{
    if (n < 2) return false;
    size_t last = last_letter(s, n);
    if (last == 0 || is_consonant(s, last - 1) || !is_consonant(s, last)) return false;
    if (last == 1) return true;
    return is_consonant(s, last - 2) && s[last] != 'w' && s[last] != 'x' && s[last] != 'y';
}

/* ------------------------------------------------------------ rules */

typedef struct {
    const char *suffix, *replacement;
} rule;

static bool ends_with(const word *w, const char *suffix)
{
    size_t n = strlen(suffix);
    return w->n >= n && memcmp(w->at + w->n - n, suffix, n) == 0;
}

/* No replacement is longer than what it replaces. */
static void replace(word *w, size_t n_suffix, const char *replacement)
{
    size_t n = strlen(replacement);
    w->n -= n_suffix;
    memcpy(w->at + w->n, replacement, n);
    w->n += n;
}

/* The first rule whose suffix the word has, if the measure of what is before it is more than `above`. */
static void apply(word *w, const rule *rules, size_t n, size_t above)
{
    for (size_t i = 0; i < n; i++) {
        if (!ends_with(w, rules[i].suffix)) continue;
        size_t n_suffix = strlen(rules[i].suffix);
        if (measure(w->at, w->n - n_suffix) > above) replace(w, n_suffix, rules[i].replacement);
        return;
    }
}

#define APPLY(w, rules, above) apply((w), (rules), sizeof(rules) / sizeof *(rules), (above))

/* ------------------------------------------------------------ the steps */

/* Plurals.  NLTK: "dies" gives "die", but "flies" "fli", as in Porter. */
static void step_1a(word *w)
{
    if (ends_with(w, "ies"))
        replace(w, 3, w->n > 3 && last_letter(w->at, w->n - 3) == 0 ? "ie" : "i");
    else if (ends_with(w, "sses"))
        w->n -= 2;
    else if (ends_with(w, "s") && !ends_with(w, "ss"))
        w->n -= 1;
}

/* Past and progressive.  NLTK: "died" gives "die", "spied" "spi". */
static void step_1b(word *w)
{
    if (ends_with(w, "ied")) {
        replace(w, 3, w->n > 3 && last_letter(w->at, w->n - 3) == 0 ? "ie" : "i");
        return;
    }
    if (ends_with(w, "eed")) {
        if (measure(w->at, w->n - 3) > 0) w->n -= 1;
        return;
    }
    size_t n_suffix = ends_with(w, "ed") ? 2 : ends_with(w, "ing") ? 3 : 0;
    if (n_suffix == 0 || !has_vowel(w->at, w->n - n_suffix)) return;
    w->n -= n_suffix;
    if (ends_with(w, "at") || ends_with(w, "bl") || ends_with(w, "iz") ||
        (measure(w->at, w->n) == 1 && ends_cvc(w->at, w->n))) {
        replace(w, 0, "e");
    } else if (ends_double(w->at, w->n)) {
        size_t last = last_letter(w->at, w->n);
        if (w->at[last] != 'l' && w->at[last] != 's' && w->at[last] != 'z') w->n = last;
    }
}

/* NLTK: a y becomes an i behind a consonant that is not the word's first letter, whatever else is before it: "enjoy"
 * stays, "fly" gives "fli" as "flies" does. */
static void step_1c(word *w)
{
    if (!ends_with(w, "y")) return;
    size_t n = w->n - 1;
    if (n > 0 && last_letter(w->at, n) > 0 && is_consonant(w->at, n - 1)) w->at[n] = 'i';
}

/* Double suffixes to single ones.  Later: "bli" for Porter's "abli", "fulli", and "logi" with its l counted as of the
 * stem, so that "geology" is shortened too.  NLTK: what "alli" leaves goes through the step again. */
static void step_2(word *w)
{
    static const rule rules[] = {
        {"ational", "ate"}, {"tional", "tion"}, {"enci", "ence"}, {"anci", "ance"},   {"izer", "ize"},
        {"bli", "ble"},     {"entli", "ent"},   {"eli", "e"},     {"ousli", "ous"},   {"ization", "ize"},
        {"ation", "ate"},   {"ator", "ate"},    {"alism", "al"},  {"iveness", "ive"}, {"fulness", "ful"},
        {"ousness", "ous"}, {"aliti", "al"},    {"iviti", "ive"}, {"biliti", "ble"},  {"fulli", "ful"},
    };
    if (ends_with(w, "alli") && measure(w->at, w->n - 4) > 0) w->n -= 2;
    if (!ends_with(w, "logi"))
        APPLY(w, rules, 0);
    else if (measure(w->at, w->n - 3) > 0)
        w->n -= 1;
}

static void step_3(word *w)
{
    static const rule rules[] = {
        {"icate", "ic"}, {"ative", ""}, {"alize", "al"}, {"iciti", "ic"}, {"ical", "ic"}, {"ful", ""}, {"ness", ""},
    };
    APPLY(w, rules, 0);
}

static void step_4(word *w)
{
    static const rule rules[] = {
        {"al", ""},   {"ance", ""}, {"ence", ""},  {"er", ""},   {"ic", ""},  {"able", ""},
        {"ible", ""}, {"ant", ""},  {"ement", ""}, {"ment", ""}, {"ent", ""}, {"ou", ""},
        {"ism", ""},  {"ate", ""},  {"iti", ""},   {"ous", ""},  {"ive", ""}, {"ize", ""},
    };
    if (!ends_with(w, "ion"))
        APPLY(w, rules, 1);
    else if ((ends_with(w, "sion") || ends_with(w, "tion")) && measure(w->at, w->n - 3) > 1)
        w->n -= 3;
}

/* The e at the end, then the second l. */
static void step_5(word *w)
{
    if (ends_with(w, "e")) {
        size_t m = measure(w->at, w->n - 1);
        if (m > 1 || (m == 1 && !ends_cvc(w->at, w->n - 1))) w->n -= 1;
    }
    if (ends_with(w, "ll") && measure(w->at, w->n - 1) > 1) w->n -= 1;
}

/* ------------------------------------------------------------ the whole */

/* NLTK's table of words that the rules would spoil; NULL: not there. */
static const char *irregular(const char *s)
{
    static const char *const forms[][2] = {
        {"sky", "sky"},        {"skies", "sky"},       {"dying", "die"},        {"lying", "lie"},
        {"tying", "tie"},      {"news", "news"},       {"innings", "inning"},   {"inning", "inning"},
        {"outings", "outing"}, {"outing", "outing"},   {"cannings", "canning"}, {"canning", "canning"},
        {"howe", "howe"},      {"proceed", "proceed"}, {"exceed", "exceed"},    {"succeed", "succeed"},
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (strcmp(s, forms[i][0]) == 0) return forms[i][1];
    return NULL;
}

bool is_eval_stem(const char *s, char *out, size_t size)
{
    if (!is_eval_lower(s, strlen(s), out, size)) return false;
    const char *known = irregular(out);
    if (known != NULL) {
        memcpy(out, known, strlen(known) + 1); /* none is longer than its form */
        return true;
    }
    const char *end = s + strlen(s);
    size_t letters = 0;
    for (const char *at = s; at < end && letters < 3; letters++) (void)is_eval_next(&at, end);
    if (letters < 3) return true; /* Porter later: a word of one or two letters stays */

    word w = {out, strlen(out)};
    step_1a(&w);
    step_1b(&w);
    step_1c(&w);
    step_2(&w);
    step_3(&w);
    step_4(&w);
    step_5(&w);
    out[w.n] = '\0';
    return true;
}
