/*
 * Import files: which form it is, and what both forms share.
 */
#include "import.h"

#include <errno.h>
#include <string.h>

#include "import_record.h"

void is_import_at(is_import_run *run, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)vsnprintf(run->where, sizeof run->where, format, args);
    va_end(args);
}

void is_import_skip(is_import_run *run, const char *format, ...)
{
    char why[512];
    run->counts->skipped++;
    if (run->callbacks->skipped == NULL) return;
    va_list args;
    va_start(args, format);
    (void)vsnprintf(why, sizeof why, format, args);
    va_end(args);
    run->callbacks->skipped(run->callbacks->user, run->where, why);
}

bool is_import_string(is_import_run *run, const json_t *object, const char *name, const char **out)
{
    const json_t *member = json_object_get(object, name);
    *out = NULL;
    if (member == NULL || json_is_null(member)) return true;
    *out = json_string_value(member);
    if (*out == NULL) is_import_skip(run, "%s must be a string", name);
    return *out != NULL;
}

/* ------------------------------------------------------------ checks */

static bool is_blank(const char *text)
{
    return text[strspn(text, " \t\r\n\v\f")] == '\0';
}

static bool check_text(is_import_run *run, const char *text)
{
    if (text == NULL) {
        is_import_skip(run, "text is missing");
        return false;
    }
    size_t n = strlen(text);
    if (is_blank(text)) {
        is_import_skip(run, "text is empty");
    } else if (n > IS_IMPORT_MAX_TEXT) {
        is_import_skip(run, "text is too long: %zu bytes, %d are possible", n, IS_IMPORT_MAX_TEXT);
    } else if (!is_utf8_valid(text, n)) {
        is_import_skip(run, "text is not UTF-8");
    } else {
        return true;
    }
    return false;
}

/* NULL is fine unless it is needed. */
static bool check_name(is_import_run *run, const char *what, const char *name, bool needed)
{
    if (needed && (name == NULL || is_blank(name))) {
        is_import_skip(run, "%s is missing", what);
    } else if (name && strlen(name) > IS_IMPORT_MAX_NAME) {
        is_import_skip(run, "%s is too long: %zu bytes, %d are possible", what, strlen(name), IS_IMPORT_MAX_NAME);
    } else {
        return true;
    }
    return false;
}

static bool check_scope(is_import_run *run, const is_scope *scope)
{
    const char *const part[4] = {scope->tenant, scope->user, scope->agent, scope->run};
    static const char *const what[4] = {"tenant", "user", "agent", "run"};
    bool named = false;
    for (int i = 0; i < 4; i++) {
        if (!check_name(run, what[i], part[i], false)) return false;
        if (part[i] && *part[i]) named = true;
    }
    if (!named) is_import_skip(run, "it belongs to nobody: name a user, in the record or for the whole import");
    return named;
}

static is_status canceled(is_import_run *run)
{
    return is_fail(run->err, IS_ECANCELED, "the import was ended at %s", run->where);
}

is_status is_import_turn(is_import_run *run, const is_scope *scope, const is_turn *turn)
{
    if (!check_name(run, "id", turn->id, true) || !check_name(run, "session", turn->session, false) ||
        !check_name(run, "speaker", turn->speaker, true) || !check_text(run, turn->text) || !check_scope(run, scope))
        return IS_OK;
    run->counts->turns++;
    return run->callbacks->turn(run->callbacks->user, scope, turn) ? IS_OK : canceled(run);
}

is_status is_import_fact(is_import_run *run, const is_scope *scope, const is_fact *fact)
{
    if (!check_text(run, fact->text) || !check_name(run, "source", fact->source, false) || !check_scope(run, scope))
        return IS_OK;
    run->counts->facts++;
    return run->callbacks->fact(run->callbacks->user, scope, fact) ? IS_OK : canceled(run);
}

/* ------------------------------------------------------------ which form */

/* Moves `in` to the first byte that is no blank, over a byte order mark too, and returns that byte, which stays in
 * the stream; EOF at the end. */
static int find_content(FILE *in, uint64_t *line_number)
{
    static const int mark[3] = {0xEF, 0xBB, 0xBF};
    int c = getc(in);
    for (int i = 0; i < 3 && c == mark[i]; i++) c = getc(in);
    *line_number = 1;
    for (; c == ' ' || c == '\t' || c == '\r' || c == '\n'; c = getc(in))
        if (c == '\n') (*line_number)++;
    if (c != EOF) (void)ungetc(c, in);
    return c;
}

is_status is_import_read(FILE *in, const is_import_options *options, const is_import_callbacks *callbacks,
                         is_import_counts *counts, is_error *err)
{
    *counts = (is_import_counts){0};
    is_import_run run = {.options = options, .callbacks = callbacks, .counts = counts, .err = err};
    uint64_t line_number;
    switch (find_content(in, &line_number)) {
    case '[': return is_import_locomo(&run, in);
    case '{':
        if (options->sample)
            return is_fail(err, IS_EINVAL, "the file is JSON Lines and has no samples; leave the sample out");
        return is_import_lines(&run, in, line_number);
    case EOF:
        if (ferror(in)) return is_fail(err, IS_EIO, "the import file cannot be read: %s", strerror(errno));
        return is_fail(err, IS_EINVAL, "the import file is empty");
    default:
        return is_fail(err, IS_EINVAL,
                       "the import file is neither JSON Lines, which begins with {, nor a LoCoMo file, which begins "
                       "with [ (line %llu)",
                       (unsigned long long)line_number);
    }
}
