/*
 * Members of a JSON body.  Each reader leaves *out as it is when the member is missing or null, and answers 400 with
 * the member's name when it is not what it must be.
 */
#include "internal.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/time.h"

/* NULL when it is missing or null. */
static const json_t *member(const json_t *o, const char *name)
{
    const json_t *v = json_object_get(o, name);
    return v == NULL || json_is_null(v) ? NULL : v;
}

static bool refuse(is_request *r, const char *name, const char *must)
{
    is_reply_error(r, 400, name, "invalid_value", "%s must be %s", name, must);
    return false;
}

bool is_field_text(is_request *r, const json_t *o, const char *name, size_t max, const char **out)
{
    const json_t *v = member(o, name);
    if (v == NULL) return true;
    if (!json_is_string(v)) return refuse(r, name, "a text");
    if (json_string_length(v) > max) {
        is_reply_error(r, 400, name, "too_long", "%s has %zu bytes and must have at most %zu", name,
                       json_string_length(v), max);
        return false;
    }
    *out = json_string_value(v);
    return true;
}

bool is_field_bool(is_request *r, const json_t *o, const char *name, bool *out)
{
    const json_t *v = member(o, name);
    if (v == NULL) return true;
    if (!json_is_boolean(v)) return refuse(r, name, "true or false");
    *out = json_is_true(v);
    return true;
}

bool is_field_uint(is_request *r, const json_t *o, const char *name, uint32_t min, uint32_t max, uint32_t *out)
{
    const json_t *v = member(o, name);
    if (v == NULL) return true;
    if (!json_is_integer(v) || json_integer_value(v) < min || json_integer_value(v) > max) {
        is_reply_error(r, 400, name, "invalid_value", "%s must be a whole number from %u to %u", name, min, max);
        return false;
    }
    *out = (uint32_t)json_integer_value(v);
    return true;
}

bool is_field_real(is_request *r, const json_t *o, const char *name, double min, double max, float *out)
{
    const json_t *v = member(o, name);
    if (v == NULL) return true;
    double x = json_number_value(v);
    if (!json_is_number(v) || !isfinite(x) || x < min || x > max) {
        is_reply_error(r, 400, name, "invalid_value", "%s must be a number from %g to %g", name, min, max);
        return false;
    }
    *out = (float)x;
    return true;
}

bool is_field_object(is_request *r, const json_t *o, const char *name, const json_t **out)
{
    const json_t *v = member(o, name);
    if (v == NULL) return true;
    if (!json_is_object(v)) return refuse(r, name, "an object");
    *out = v;
    return true;
}

bool is_field_array(is_request *r, const json_t *o, const char *name, size_t max, const json_t **out)
{
    const json_t *v = member(o, name);
    if (v == NULL) return true;
    if (!json_is_array(v)) return refuse(r, name, "an array");
    if (json_array_size(v) > max) {
        is_reply_error(r, 400, name, "too_many", "%s has %zu entries and must have at most %zu", name,
                       json_array_size(v), max);
        return false;
    }
    *out = v;
    return true;
}

static bool read_time(const char *text, const json_t *v, int64_t *out)
{
    if (text != NULL) return is_time_parse(text, out) == IS_OK;
    if (!json_is_integer(v) || json_integer_value(v) < IS_TIME_MIN || json_integer_value(v) > IS_TIME_MAX) return false;
    *out = json_integer_value(v);
    return true;
}

bool is_field_time(is_request *r, const json_t *o, const char *name, int64_t *out)
{
    const json_t *v = member(o, name);
    if (v == NULL) return true;
    return read_time(json_string_value(v), v, out) ||
           refuse(r, name, "a time such as \"2024-03-04T18:20:00Z\" or Unix seconds");
}

bool is_field_object_text(is_request *r, const json_t *o, const char *name, char **out)
{
    const json_t *v = NULL;
    if (!is_field_object(r, o, name, &v)) return false;
    if (v == NULL) return true;
    *out = json_dumps(v, JSON_COMPACT);
    if (*out == NULL) is_reply_error(r, 503, NULL, "no_memory", "no memory for %s", name);
    return *out != NULL;
}

bool is_field_filter(is_request *r, const json_t *o, const char *name, is_filter *filter, char **metadata)
{
    const json_t *v = NULL;
    if (!is_field_object(r, o, name, &v)) return false;
    if (v == NULL) return true;
    if (!is_field_time(r, v, "from", &filter->time_from) || !is_field_time(r, v, "to", &filter->time_to) ||
        !is_field_object_text(r, v, "metadata", metadata))
        return false;
    filter->metadata = *metadata;
    return true;
}

static bool scope_part(is_request *r, const json_t *o, const char *name, char copy[IS_MAX_NAME], const char **out)
{
    const char *asked = is_query(r, name);
    if (asked != NULL) {
        if (strlen(asked) >= IS_MAX_NAME || !is_utf8_valid(asked, strlen(asked)))
            return refuse(r, name, "UTF-8 of at most 255 bytes");
        *out = strcpy(copy, asked);
    }
    return is_field_text(r, o, name, IS_MAX_NAME - 1, out);
}

bool is_field_scope(is_request *r, const json_t *o, is_scope *scope)
{
    *scope = (is_scope){.tenant = r->tenant, .user = r->user_header};
    if (!scope_part(r, o, "user", r->asked[0], &scope->user) ||
        !scope_part(r, o, "agent", r->asked[1], &scope->agent) || !scope_part(r, o, "run", r->asked[2], &scope->run))
        return false;
    if (scope->user[0] == '\0') scope->user = "default";
    return true;
}

bool is_query_uint(is_request *r, const char *name, int64_t min, int64_t max, int64_t *out)
{
    const char *text = is_query(r, name);
    if (text == NULL) return true;
    char *end = NULL;
    errno = 0;
    long long value = text[0] >= '0' && text[0] <= '9' ? strtoll(text, &end, 10) : -1;
    if (value < min || value > max || errno == ERANGE || end == NULL || *end != '\0') {
        is_reply_error(r, 400, name, "invalid_value", "%s must be a whole number from %lld to %lld", name,
                       (long long)min, (long long)max);
        return false;
    }
    *out = value;
    return true;
}

/* ------------------------------------------------------------ out */

json_t *is_json_time(int64_t time)
{
    char date[11], text[32];
    if (!is_time_format_date(time, date)) return json_null();
    int64_t second = ((time % 86400) + 86400) % 86400;
    (void)snprintf(text, sizeof text, "%sT%02d:%02d:%02dZ", date, (int)(second / 3600), (int)(second / 60 % 60),
                   (int)(second % 60));
    return json_string(text);
}

json_t *is_json_text(const char *text, size_t n)
{
    if (is_utf8_valid(text, n)) return json_stringn(text, n);
    char *copy = malloc(n + 1);
    if (copy == NULL) return NULL;
    for (size_t i = 0; i < n; i++) copy[i] = (unsigned char)text[i] < 0x80 ? text[i] : '?';
    json_t *value = json_stringn(copy, n);
    free(copy);
    return value;
}

json_t *is_json_fact(const is_fact *fact, double score)
{
    json_t *o = json_pack("{s:I, s:s, s:s?, s:o, s:o, s:o, s:s}", "id", (json_int_t)fact->id, "text", fact->text,
                          "source", fact->source, "time", is_json_time(fact->time), "metadata",
                          fact->metadata == NULL ? json_null() : json_loads(fact->metadata, 0, NULL), "created",
                          is_json_time(fact->created), "state", fact->state == IS_FACT_READY ? "ready" : "pending");
    if (o != NULL && !isnan(score)) json_object_set_new(o, "score", json_real(score));
    return o;
}
