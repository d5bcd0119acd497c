/*
 * LoCoMo's own file: an array of samples, each a conversation in dated sessions with observations drawn from them.
 *
 *   sample_id                                     "conv-26"
 *   conversation.session_N                        [{speaker, dia_id, text, blip_caption}, ...]
 *   conversation.session_N_date_time              "1:56 pm on 8 May, 2023"
 *   observation.session_N_observation             {speaker: [[text, dia_id or list of them], ...]}
 *
 * The elements of the array are parsed one by one, so that only one sample is in memory as JSON.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../common/time.h"
#include "import_record.h"

typedef struct sample {
    const char *id;
    const json_t *conversation;
    const json_t *observation;
    is_scope scope;
} sample;

typedef struct session {
    char name[32];
    int64_t time;
} session;

/* ------------------------------------------------------------ the sessions of a sample */

/* N of "session_N<suffix>"; false for any other key. */
static bool session_number(const char *key, const char *suffix, uint32_t *number)
{
    static const char prefix[] = "session_";
    if (strncmp(key, prefix, sizeof prefix - 1) != 0) return false;
    const char *digits = key + sizeof prefix - 1;
    size_t n = strspn(digits, "0123456789");
    if (n == 0 || n > 9 || (digits[0] == '0' && n > 1) || strcmp(digits + n, suffix) != 0) return false;
    *number = (uint32_t)strtoul(digits, NULL, 10);
    return true;
}

static int compare_numbers(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a;
    uint32_t y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Appends the session numbers among the object's keys. */
static size_t collect_numbers(const json_t *object, const char *suffix, uint32_t *numbers, size_t n)
{
    /* jansson's way through an object takes it as not const, and changes nothing. */
    json_t *all = (json_t *)(uintptr_t)object;
    for (void *i = json_object_iter(all); i; i = json_object_iter_next(all, i))
        if (session_number(json_object_iter_key(i), suffix, &numbers[n])) n++;
    return n;
}

/* The numbers of sessions with turns or observations, rising.  *out: free(). */
static is_status session_numbers(is_import_run *run, const sample *s, uint32_t **out, size_t *n_out)
{
    size_t most = json_object_size(s->conversation) + json_object_size(s->observation) + 1;
    uint32_t *numbers = malloc(most * sizeof *numbers);
    if (numbers == NULL) return is_fail(run->err, IS_ENOMEM, "no memory for the sessions of sample %s", s->id);
    size_t n = collect_numbers(s->conversation, "", numbers, 0);
    n = collect_numbers(s->observation, "_observation", numbers, n);
    qsort(numbers, n, sizeof *numbers, compare_numbers);
    size_t unique = 0;
    for (size_t i = 0; i < n; i++)
        if (i == 0 || numbers[i] != numbers[i - 1]) numbers[unique++] = numbers[i];
    *out = numbers;
    *n_out = unique;
    return IS_OK;
}

/* ------------------------------------------------------------ turns */

static is_status read_turn(is_import_run *run, const sample *s, const session *in, const json_t *object)
{
    is_turn turn = {.session = in->name, .time = in->time};
    const char *text;
    const char *caption;
    if (!json_is_object(object)) {
        is_import_skip(run, "a turn must be an object");
        return IS_OK;
    }
    if (!is_import_string(run, object, "dia_id", &turn.id) ||
        !is_import_string(run, object, "speaker", &turn.speaker) || !is_import_string(run, object, "text", &text) ||
        !is_import_string(run, object, "blip_caption", &caption))
        return IS_OK;
    char *joined = NULL;
    if (text && caption && asprintf(&joined, "%s%s[image: %s]", text, *text ? " " : "", caption) < 0)
        return is_fail(run->err, IS_ENOMEM, "no memory for %s", run->where);
    turn.text = joined ? joined : text;
    is_status status = is_import_turn(run, &s->scope, &turn);
    free(joined);
    return status;
}

static is_status read_turns(is_import_run *run, const sample *s, const session *in)
{
    const json_t *turns = json_object_get(s->conversation, in->name);
    is_status status = IS_OK;
    if (turns && !json_is_array(turns)) {
        is_import_at(run, "sample %s, %s", s->id, in->name);
        is_import_skip(run, "a session must be an array of turns");
        return IS_OK;
    }
    for (size_t i = 0; i < json_array_size(turns) && status == IS_OK; i++) {
        is_import_at(run, "sample %s, %s, turn %zu", s->id, in->name, i + 1);
        status = read_turn(run, s, in, json_array_get(turns, i));
    }
    return status;
}

/* ------------------------------------------------------------ observations */

/* The last turn that an observation names: of a list its last element, and of a text that itself lists several
 * ("D26:14, D26:34") what stands behind the last comma.  false: it is neither. */
static bool last_source(const json_t *named, const char **out)
{
    *out = NULL;
    if (named == NULL || json_is_null(named)) return true;
    if (json_is_array(named)) {
        if (json_array_size(named) == 0) return true;
        named = json_array_get(named, json_array_size(named) - 1);
    }
    const char *text = json_string_value(named);
    if (text == NULL) return false;
    const char *comma = strrchr(text, ',');
    if (comma) text = comma + 1;
    text += strspn(text, " ");
    *out = *text ? text : NULL;
    return true;
}

static is_status read_observation(is_import_run *run, const sample *s, const session *in, const json_t *pair)
{
    is_fact fact = {.time = in->time};
    fact.text = json_string_value(json_array_get(pair, 0));
    if (fact.text == NULL || !last_source(json_array_get(pair, 1), &fact.source)) {
        is_import_skip(run, "an observation must be [text, the id of a turn or a list of them]");
        return IS_OK;
    }
    return is_import_fact(run, &s->scope, &fact);
}

static is_status read_observations(is_import_run *run, const sample *s, const session *in)
{
    char key[64];
    (void)snprintf(key, sizeof key, "%s_observation", in->name);
    json_t *speakers = json_object_get(s->observation, key);
    is_status status = IS_OK;
    size_t number = 0;
    is_import_at(run, "sample %s, %s", s->id, key);
    if (speakers && !json_is_object(speakers))
        is_import_skip(run, "it must be an object of lists, one for each speaker");
    for (void *i = json_object_iter(speakers); i && status == IS_OK; i = json_object_iter_next(speakers, i)) {
        const json_t *list = json_object_iter_value(i);
        if (!json_is_array(list)) is_import_skip(run, "a speaker's observations must be an array");
        for (size_t j = 0; j < json_array_size(list) && status == IS_OK; j++) {
            is_import_at(run, "sample %s, %s, observation %zu", s->id, in->name, ++number);
            status = read_observation(run, s, in, json_array_get(list, j));
        }
    }
    return status;
}

/* ------------------------------------------------------------ samples */

/* The time of the session's records; false, and a report, when it has one that is not understood. */
static bool session_time(is_import_run *run, const sample *s, session *in)
{
    char key[64];
    const char *text;
    (void)snprintf(key, sizeof key, "%s_date_time", in->name);
    is_import_at(run, "sample %s, %s", s->id, in->name);
    in->time = IS_TIME_NONE;
    if (!is_import_string(run, s->conversation, key, &text)) return false;
    if (text == NULL || is_time_parse(text, &in->time) == IS_OK) return true;
    is_import_skip(run, "the whole session: its time is not understood; write it as 1:56 pm on 8 May, 2023");
    return false;
}

static is_status read_sample(is_import_run *run, const json_t *object, bool *found)
{
    sample s = {.scope = run->options->scope};
    if (!json_is_object(object)) {
        is_import_skip(run, "a sample must be an object");
        return IS_OK;
    }
    if (!is_import_string(run, object, "sample_id", &s.id)) return IS_OK;
    if (run->options->sample && (s.id == NULL || strcmp(s.id, run->options->sample) != 0)) return IS_OK;
    *found = true;
    s.conversation = json_object_get(object, "conversation");
    s.observation = json_object_get(object, "observation");
    if (s.id == NULL || *s.id == '\0' || strlen(s.id) > IS_IMPORT_MAX_NAME || !json_is_object(s.conversation)) {
        is_import_skip(run, "a sample needs a sample_id of 1 to %d bytes and a conversation", IS_IMPORT_MAX_NAME);
        return IS_OK;
    }
    s.scope.user = s.id;
    uint32_t *numbers = NULL;
    size_t n = 0;
    is_status status = session_numbers(run, &s, &numbers, &n);
    for (size_t i = 0; i < n && status == IS_OK; i++) {
        session in;
        (void)snprintf(in.name, sizeof in.name, "session_%u", numbers[i]);
        if (!session_time(run, &s, &in)) continue;
        status = read_turns(run, &s, &in);
        if (status == IS_OK) status = read_observations(run, &s, &in);
    }
    free(numbers);
    return status;
}

/* ------------------------------------------------------------ the file */

static is_status read_whole(is_import_run *run, FILE *in, char **out, size_t *n_out)
{
    char *bytes = NULL;
    size_t n = 0;
    size_t capacity = 0;
    size_t got = 1;
    is_status status = IS_OK;
    while (got > 0 && status == IS_OK) {
        if (n == capacity) {
            capacity = capacity ? 2 * capacity : (size_t)1 << 16;
            if (capacity > IS_IMPORT_MAX_FILE) capacity = IS_IMPORT_MAX_FILE + 1; /* the one byte too many */
            char *more = realloc(bytes, capacity);
            if (more == NULL) {
                status = is_fail(run->err, IS_ENOMEM, "no memory for the import file, which has over %zu bytes", n);
                break;
            }
            bytes = more;
        }
        got = fread(bytes + n, 1, capacity - n, in);
        n += got;
        if (n > IS_IMPORT_MAX_FILE)
            status = is_fail(run->err, IS_ELIMIT, "the LoCoMo file has over %zu MiB; divide it, or use JSON Lines",
                             IS_IMPORT_MAX_FILE >> 20);
    }
    if (status == IS_OK && ferror(in))
        status = is_fail(run->err, IS_EIO, "the import file cannot be read: %s", strerror(errno));
    if (status != IS_OK) {
        free(bytes);
        return status;
    }
    *out = bytes;
    *n_out = n;
    return IS_OK;
}

static size_t skip_blanks(const char *bytes, size_t n, size_t at)
{
    while (at < n && (bytes[at] == ' ' || bytes[at] == '\t' || bytes[at] == '\r' || bytes[at] == '\n')) at++;
    return at;
}

static is_status broken(is_import_run *run, const char *bytes, size_t at, size_t number, int line, const char *why)
{
    for (size_t i = 0; i < at; i++) line += bytes[i] == '\n';
    return is_fail(run->err, IS_EINVAL, "sample %zu of the LoCoMo file, line %d: %s; what stands before it was read",
                   number, line, why);
}

is_status is_import_locomo(is_import_run *run, FILE *in)
{
    char *bytes = NULL;
    size_t n = 0;
    bool found = false;
    is_status status = read_whole(run, in, &bytes, &n);
    if (status != IS_OK) return status;
    size_t at = skip_blanks(bytes, n, 1); /* behind the bracket */
    bool more = !(at < n && bytes[at] == ']');
    for (size_t number = 1; more && status == IS_OK; number++) {
        json_error_t why;
        json_t *sample_object = json_loadb(bytes + at, n - at, JSON_REJECT_DUPLICATES | JSON_DISABLE_EOF_CHECK, &why);
        if (sample_object == NULL) {
            status = broken(run, bytes, at, number, why.line, why.text);
            break;
        }
        is_import_at(run, "sample %zu", number);
        status = read_sample(run, sample_object, &found);
        json_decref(sample_object);
        at = skip_blanks(bytes, n, at + (size_t)why.position);
        more = at < n && bytes[at] == ',';
        if (status == IS_OK && !more && (at == n || bytes[at] != ']'))
            status = broken(run, bytes, at, number, 1, "a comma or the array's end is missing behind it");
        at++;
    }
    free(bytes);
    if (status == IS_OK && run->options->sample && !found)
        return is_fail(run->err, IS_ENOTFOUND, "the LoCoMo file has no sample %s", run->options->sample);
    return status;
}
