/*
 * Porter's stemmer (M. Porter, "An algorithm for suffix stripping", Program 14.3, 1980, pages 130-137) with the
 * deviations that Porter endorsed later and those of NLTK, as NLTK's PorterStemmer has them by default.
 */
#ifndef IS_EVAL_STEM_H
#define IS_EVAL_STEM_H

#include <stdbool.h>
#include <stddef.h>

/*
 * The stem of a word, in small letters (is_eval_lower).  Letters that are not of English are consonants.
 * out: at most `size` bytes with the NUL; 3 * strlen(word) + 1 always suffice, strlen(word) + 1 when the word is UTF-8
 * in small letters already.  False when it does not fit; out is then undefined.
 */
bool is_eval_stem(const char *word, char *out, size_t size);

#endif
