/*
 * Pieces of tokens become text that can be handed on.
 *
 * A token may end in the middle of a UTF-8 character, and a stop string may be spread over several tokens.
 * So the text keeps back what is not a whole character yet and what could be the beginning of a stop string.
 * A model may also write bytes that are no UTF-8 at all; what goes out is well-formed all the same.
 */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

#define REPLACEMENT "\xEF\xBF\xBD" /* U+FFFD stands for bytes that are no character */

/* Bytes of the character that begins with this byte; 0: none does (RFC 3629). */
static size_t char_bytes(unsigned char lead)
{
    return lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
}

/* Whether c may follow the n bytes of an unfinished character. */
static bool may_follow(const unsigned char *part, size_t n, unsigned char c)
{
    unsigned char low = 0x80, high = 0xBF;
    if (n == 1 && part[0] == 0xE0) low = 0xA0; /* lower ones would be overlong forms */
    if (n == 1 && part[0] == 0xF0) low = 0x90;
    if (n == 1 && part[0] == 0xED) high = 0x9F; /* higher ones would be surrogates */
    if (n == 1 && part[0] == 0xF4) high = 0x8F; /* higher ones would be beyond U+10FFFF */
    return c >= low && c <= high;
}

static void put(is_text *t, const void *bytes, size_t n)
{
    memcpy(t->all + t->n, bytes, n);
    t->n += n;
}

/* Takes one byte: the character that it ends goes to the text, and a mark for bytes that are none. */
static void take_byte(is_text *t, unsigned char c)
{
    if (t->n_part > 0 && !may_follow(t->part, t->n_part, c)) {
        put(t, REPLACEMENT, 3);
        t->n_part = 0;
    }
    if (t->n_part == 0 && char_bytes(c) == 0) {
        put(t, REPLACEMENT, 3);
        return;
    }
    t->part[t->n_part++] = c;
    if (t->n_part < char_bytes(t->part[0])) return;
    put(t, t->part, t->n_part);
    t->n_part = 0;
}

/* Bytes at the end of the text that are a proper beginning of a stop string. */
static size_t held_for_stop(const is_text *t, size_t from)
{
    size_t held = 0;
    for (size_t i = 0; i < t->n_stop; i++) {
        size_t m = strlen(t->stop[i]);
        size_t most = m > 0 ? m - 1 : 0;
        if (most > t->n - from) most = t->n - from;
        for (size_t k = most; k > held; k--)
            if (memcmp(t->all + t->n - k, t->stop[i], k) == 0) held = k;
    }
    return held;
}

/* Cuts the text before the first stop string in it. */
static void find_stop(is_text *t, size_t new_bytes)
{
    size_t first = SIZE_MAX;
    for (size_t i = 0; i < t->n_stop; i++) {
        size_t m = strlen(t->stop[i]);
        if (m == 0) continue;
        size_t reach = new_bytes + m - 1;
        size_t from = t->n > reach ? t->n - reach : 0;
        const char *hit = t->n >= m ? strstr(t->all + from, t->stop[i]) : NULL;
        if (hit != NULL && (size_t)(hit - t->all) < first) first = (size_t)(hit - t->all);
    }
    if (first == SIZE_MAX) return;
    t->n = first;
    t->all[first] = '\0';
    t->stopped = true;
}

is_status is_text_append(is_text *t, const char *piece, size_t n, const char **out, size_t *n_out, is_error *err)
{
    *out = NULL;
    *n_out = 0;
    size_t most = t->n + 3 * n + sizeof t->part + 1; /* a byte may become a mark of three */
    if (most > t->capacity) {
        char *grown = realloc(t->all, most * 2);
        if (grown == NULL) return is_fail(err, IS_ENOMEM, "no memory for the answer's text");
        t->all = grown;
        t->capacity = most * 2;
    }
    size_t before = t->n;
    for (size_t i = 0; i < n; i++) take_byte(t, (unsigned char)piece[i]);
    t->all[t->n] = '\0';
    find_stop(t, t->n - before);
    size_t end = t->stopped ? t->n : t->n - held_for_stop(t, t->sent);
    if (end > t->sent) {
        *out = t->all + t->sent;
        *n_out = end - t->sent;
        t->sent = end;
    }
    return IS_OK;
}

void is_text_finish(is_text *t, const char **out, size_t *n_out)
{
    *out = NULL;
    *n_out = 0;
    if (t->n <= t->sent) return;
    *out = t->all + t->sent;
    *n_out = t->n - t->sent;
    t->sent = t->n;
}
