/*
 * Letters of UTF-8 text as Python's str and its module regex see them, without a locale: LoCoMo's scores come from
 * Python, and an answer must not score differently because of a capital É or a dash.
 *
 * Case and kind are those of Unicode for U+0000 to U+058F (Latin, IPA, Greek, Cyrillic, Armenian), U+1E00 to U+2BFF
 * (more Latin and Greek, punctuation, symbols), U+2E00 to U+303F and U+FE00 to U+FFFF (punctuation, wide forms) and
 * U+1F000 to U+1FBFF (emoji).  Whatever lies elsewhere counts as a letter without case.  Whether a sigma ends a word is
 * told by letters and marks up to U+058F and of U+1E00 to U+206F.
 */
#ifndef IS_EVAL_LETTERS_H
#define IS_EVAL_LETTERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The code point at *at, which must lie before end; *at moves behind it.  A byte that begins no UTF-8 character is
 * U+FFFD. */
uint32_t is_eval_next(const char **at, const char *end);

/* White space of Python's str.split(). */
bool is_eval_space(uint32_t c);
/* What \w stands for in regex: letters, marks, digits, "_", joiners. */
bool is_eval_word_char(uint32_t c);

/*
 * Python's str.lower() of n bytes of text: U+0130 becomes two characters, and a capital sigma at the end of a word its
 * final form.  A comma within a word does not end it, since LoCoMo deletes commas first.  What is no UTF-8 becomes
 * U+FFFD.  out: at most `size` bytes with the NUL; 3 * n + 1 always suffice.  False when it does not fit.
 */
bool is_eval_lower(const char *text, size_t n, char *out, size_t size);

#endif
