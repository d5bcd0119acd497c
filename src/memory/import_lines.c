/*
 * JSON Lines: one record a line.  A line is read into one buffer that is used again for the next, and never grows over
 * IS_IMPORT_MAX_LINE: what is longer is read past, byte by byte.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../common/time.h"
#include "import_record.h"

typedef struct line {
    char *bytes;
    size_t n, capacity;
    bool too_long;
    bool last; /* the file ends behind it */
} line;

static bool line_grow(line *l)
{
    size_t capacity = l->capacity ? 2 * l->capacity : 4096;
    char *bytes = realloc(l->bytes, capacity);
    if (bytes == NULL) return false;
    l->bytes = bytes;
    l->capacity = capacity;
    return true;
}

static is_status line_read(line *l, FILE *in, is_error *err)
{
    l->n = 0;
    l->too_long = false;
    int c;
    while ((c = getc_unlocked(in)) != EOF && c != '\n') {
        if (l->n == IS_IMPORT_MAX_LINE) {
            l->too_long = true;
            continue;
        }
        if (l->n == l->capacity && !line_grow(l))
            return is_fail(err, IS_ENOMEM, "no memory for a line of %zu bytes of the import file", l->n);
        l->bytes[l->n++] = (char)c;
    }
    l->last = c == EOF;
    if (ferror(in)) return is_fail(err, IS_EIO, "the import file cannot be read: %s", strerror(errno));
    return IS_OK;
}

static bool line_is_blank(const line *l)
{
    for (size_t i = 0; i < l->n; i++)
        if (strchr(" \t\r", l->bytes[i]) == NULL || l->bytes[i] == '\0') return false;
    return true;
}

/* ------------------------------------------------------------ records */

static bool get_time(is_import_run *run, const json_t *record, int64_t *out)
{
    const json_t *time = json_object_get(record, "time");
    *out = IS_TIME_NONE;
    if (time == NULL || json_is_null(time)) return true;
    if (json_is_number(time)) {
        double seconds = floor(json_number_value(time));
        if (seconds >= (double)IS_TIME_MIN && seconds <= (double)IS_TIME_MAX) {
            *out = (int64_t)seconds;
            return true;
        }
        is_import_skip(run, "time is outside the years 1 to 9999; a number is taken as Unix seconds");
        return false;
    }
    if (json_is_string(time) && is_time_parse(json_string_value(time), out) == IS_OK) return true;
    is_import_skip(run, "time is not understood; write it as 2023-05-08, 2023-05-08T13:56:00Z or Unix seconds");
    return false;
}

static bool get_scope(is_import_run *run, const json_t *record, is_scope *scope)
{
    const char **const part[4] = {&scope->tenant, &scope->user, &scope->agent, &scope->run};
    static const char *const name[4] = {"tenant", "user", "agent", "run"};
    *scope = run->options->scope;
    for (int i = 0; i < 4; i++) {
        const char *own;
        if (!is_import_string(run, record, name[i], &own)) return false;
        if (own) *part[i] = own;
    }
    return true;
}

static is_status read_turn(is_import_run *run, const json_t *record)
{
    is_scope scope;
    is_turn turn;
    if (!is_import_string(run, record, "id", &turn.id) || !is_import_string(run, record, "session", &turn.session) ||
        !is_import_string(run, record, "speaker", &turn.speaker) ||
        !is_import_string(run, record, "text", &turn.text) || !get_time(run, record, &turn.time) ||
        !get_scope(run, record, &scope))
        return IS_OK;
    if (turn.session == NULL) turn.session = "";
    return is_import_turn(run, &scope, &turn);
}

static is_status read_fact(is_import_run *run, const json_t *record)
{
    is_scope scope;
    is_fact fact = {0};
    if (!is_import_string(run, record, "text", &fact.text) || !is_import_string(run, record, "source", &fact.source) ||
        !get_time(run, record, &fact.time) || !get_scope(run, record, &scope))
        return IS_OK;
    const json_t *metadata = json_object_get(record, "metadata");
    char *text = NULL;
    if (json_is_object(metadata)) {
        text = json_dumps(metadata, JSON_COMPACT);
        if (text == NULL) return is_fail(run->err, IS_ENOMEM, "no memory for the metadata of %s", run->where);
    } else if (metadata && !json_is_null(metadata)) {
        is_import_skip(run, "metadata must be an object");
        return IS_OK;
    }
    fact.metadata = text;
    is_status status = is_import_fact(run, &scope, &fact);
    free(text);
    return status;
}

static is_status read_record(is_import_run *run, const json_t *record)
{
    if (!json_is_object(record)) {
        is_import_skip(run, "a record must be an object");
        return IS_OK;
    }
    const char *type;
    if (!is_import_string(run, record, "type", &type)) return IS_OK;
    if (type == NULL) type = json_object_get(record, "speaker") ? "turn" : "fact";
    if (strcmp(type, "turn") == 0) return read_turn(run, record);
    if (strcmp(type, "fact") == 0) return read_fact(run, record);
    is_import_skip(run, "type must be \"turn\" or \"fact\"");
    return IS_OK;
}

static is_status read_json(is_import_run *run, const line *l)
{
    json_error_t why;
    json_t *record = json_loadb(l->bytes, l->n, JSON_REJECT_DUPLICATES, &why);
    if (record == NULL && json_error_code(&why) == json_error_out_of_memory)
        return is_fail(run->err, IS_ENOMEM, "no memory for %s of the import file", run->where);
    if (record == NULL) {
        is_import_skip(run, "bad JSON at byte %d: %s", why.position, why.text);
        return IS_OK;
    }
    is_status status = read_record(run, record);
    json_decref(record);
    return status;
}

is_status is_import_lines(is_import_run *run, FILE *in, uint64_t line_number)
{
    line l = {0};
    is_status status = IS_OK;
    for (; !l.last && status == IS_OK; line_number++) {
        status = line_read(&l, in, run->err);
        is_import_at(run, "line %llu", (unsigned long long)line_number);
        if (status != IS_OK || line_is_blank(&l)) continue;
        if (l.too_long)
            is_import_skip(run, "the line is too long: over %zu bytes", IS_IMPORT_MAX_LINE);
        else
            status = read_json(run, &l);
    }
    free(l.bytes);
    return status;
}
