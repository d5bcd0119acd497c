/*
 * Grammars, schemas and other texts from outside, looked at before llama.cpp reads them.
 *
 * llama.cpp recurses over brackets and references, writes repetitions out, and one that asks for more than it allows
 * ("a"{3,2}) never ends.  So a text is measured first, and what would take all the stack or memory is refused.
 */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

#define MOST_TEXT  (128u << 10) /* bytes of a schema, of a grammar, of all tools */
#define MOST_DEPTH 64           /* brackets in one another */
#define MOST_REFS  500          /* references in a schema; a chain of them takes some 2 KB of stack each */

#define MOST_TIMES    2000u    /* a count that llama.cpp writes out; a larger one is no limit for it */
#define MOST_REPEATS  100000u  /* of all counts together: each may become a rule, of some 200 bytes */
#define MOST_ELEMENTS 4000000u /* of all that is written out, of 8 bytes */

/* What begins here and is passed over (strings, GBNF's classes, tokens, comments) ends with this; '\0': nothing. */
static char passed_over(char begin, bool gbnf)
{
    if (begin == '"') return '"';
    return !gbnf ? '\0' : begin == '[' ? ']' : begin == '<' ? '>' : begin == '#' ? '\n' : '\0';
}

/* The end of what is passed over from `at` on, or the text's. */
static const char *pass_over(const char *at, char end)
{
    if (end == '\n') return at + strcspn(at, "\r\n");
    for (at++; *at != '\0' && *at != end; at++)
        if (*at == '\\' && end != '>' && at[1] != '\0') at++;
    return at;
}

/* Brackets in one another. */
static unsigned depth_of(const char *text, bool gbnf)
{
    unsigned depth = 0, most = 0;
    for (const char *at = text; *at != '\0'; at++) {
        char end = passed_over(*at, gbnf);
        if (end != '\0') {
            at = pass_over(at, end);
            if (*at == '\0') break;
        } else if (*at == '(' || *at == '{' || *at == '[') {
            most = ++depth > most ? depth : most;
        } else if ((*at == ')' || *at == '}' || *at == ']') && depth > 0) {
            depth--;
        }
    }
    return most;
}

static is_status check_text(const char *text, const char *what, bool gbnf, is_error *err)
{
    size_t n = strlen(text);
    if (n > MOST_TEXT) return is_fail(err, IS_ELIMIT, "%s has %zu bytes; at most %u are read", what, n, MOST_TEXT);
    if (!is_utf8_valid(text, n)) return is_fail(err, IS_EINVAL, "%s is not UTF-8", what);
    if (depth_of(text, gbnf) > MOST_DEPTH)
        return is_fail(err, IS_ELIMIT, "%s has more than %d brackets in one another", what, MOST_DEPTH);
    return IS_OK;
}

is_status is_check_grammar(const char *text, is_error *err)
{
    if (text[strspn(text, " \t\r\n")] == '\0') return is_fail(err, IS_EINVAL, "the grammar is empty");
    return check_text(text, "the grammar", true, err);
}

/* White space and comments of GBNF. */
static const char *skip_space(const char *at)
{
    for (at += strspn(at, " \t\r\n"); *at == '#'; at += strspn(at, " \t\r\n")) at += strcspn(at, "\r\n");
    return at;
}

/* A number, or `none` where none stands; a larger one than fits is the largest. */
static uint64_t read_number(const char **at, uint64_t none)
{
    char *end;
    *at = skip_space(*at);
    if (**at < '0' || **at > '9') return none;
    uint64_t n = strtoull(*at, &end, 10);
    *at = skip_space(end);
    return n;
}

is_status is_check_repeats(const char *gbnf, const char *what, is_error *err)
{
    uint64_t times = 0, elements = 0;
    size_t symbol = 1; /* elements of what would be repeated, at most */
    for (const char *at = gbnf; *at != '\0'; at++) {
        char end = passed_over(*at, true);
        if (end != '\0') {
            const char *begin = at;
            at = pass_over(at, end);
            if (end != '\n') symbol = (size_t)(at - begin);
            if (*at == '\0') break;
        } else if (*at == '{') {
            const char *number = at + 1;
            uint64_t least = read_number(&number, 0), most = least;
            if (*number == ',') {
                number++;
                most = read_number(&number, UINT64_MAX);
            }
            if (most < least)
                return is_fail(err, IS_EINVAL, "%s asks for at least %llu and at most %llu of the same thing", what,
                               (unsigned long long)least, (unsigned long long)most);
            uint64_t n = most <= MOST_TIMES ? most : least <= MOST_TIMES ? least : MOST_TIMES;
            times += n;
            elements += n * symbol;
        } else if (strchr(" \t\r\n", *at) == NULL) {
            symbol = 1;
        }
    }
    if (times > MOST_REPEATS || elements > MOST_ELEMENTS)
        return is_fail(err, IS_ELIMIT, "%s has too many repetitions with a count; ask for fewer", what);
    return IS_OK;
}

is_status is_read_json(const char *text, const char *what, json_t **out, is_error *err)
{
    json_error_t why;
    *out = NULL;
    is_status status = check_text(text, what, false, err);
    if (status != IS_OK) return status;
    *out = json_loads(text, 0, &why);
    if (*out != NULL) return IS_OK;
    return is_fail(err, IS_EINVAL, "%s is not JSON: line %d, column %d: %s", what, why.line, why.column, why.text);
}

is_status is_read_schemas(const char *text, const char *what, json_t **out, is_error *err)
{
    unsigned n = 0;
    is_status status = is_read_json(text, what, out, err);
    if (status != IS_OK) return status;
    for (const char *at = text; (at = strstr(at, "\"$ref\"")) != NULL; at++) n++;
    if (n <= MOST_REFS) return IS_OK;
    json_decref(*out);
    *out = NULL;
    return is_fail(err, IS_ELIMIT, "%s has %u references; at most %u are followed", what, n, MOST_REFS);
}

is_status is_check_schema(const char *text, is_error *err)
{
    json_t *json;
    is_status status = is_read_schemas(text, "the JSON schema", &json, err);
    if (status == IS_OK && !json_is_object(json)) status = is_fail(err, IS_EINVAL, "the JSON schema is no JSON object");
    json_decref(json);
    return status;
}

bool is_plain_name(const char *name)
{
    size_t n = name == NULL ? 0 : strlen(name);
    return n > 0 && n <= IS_MOST_NAME &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:") == n;
}
