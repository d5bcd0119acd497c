#include "bench_judge.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

#define MAX_PROMPT (1 << 16)
#define PATIENCE   120000 /* ms for one verdict */

static const char *const marks[] = {"{question}", "{gold}", "{answer}"};

is_status is_judge_open(is_judge *j, is_error *err)
{
    if (j->url == NULL) return IS_OK;
    const char *path = j->prompt != NULL ? j->prompt : IS_JUDGE_PROMPT;
    FILE *in = fopen(path, "re");
    if (in == NULL)
        return is_fail(err, IS_ENOTFOUND, "cannot read the judge's prompt %s: %s; name it with --judge-prompt", path,
                       strerror(errno));
    j->text = calloc(1, MAX_PROMPT + 1);
    if (j->text == NULL) is_cli_no_memory();
    size_t n = fread(j->text, 1, MAX_PROMPT, in);
    (void)fclose(in);
    for (size_t i = 0; i < 3; i++)
        if (n == MAX_PROMPT || strstr(j->text, marks[i]) == NULL)
            return is_fail(err, IS_EINVAL, "the judge's prompt %s must be a text of less than %d bytes with %s in it",
                           path, MAX_PROMPT, marks[i]);
    return is_http_open(&j->http, err);
}

void is_judge_close(is_judge *j)
{
    is_http_close(j->http);
    free(j->text);
    j->http = NULL;
    j->text = NULL;
}

/* The prompt with the three texts in place; what looks like a mark in them is left as it is.  free() */
static char *fill(const char *text, const char *const *values)
{
    char *out = NULL;
    size_t size = 0;
    FILE *to = open_memstream(&out, &size);
    if (to == NULL) is_cli_no_memory();
    while (*text != '\0') {
        size_t i = 0;
        while (i < 3 && strncmp(text, marks[i], strlen(marks[i])) != 0) i++;
        (void)fputs(i < 3 ? values[i] : "", to);
        if (i == 3) (void)fputc(*text, to);
        text += i < 3 ? strlen(marks[i]) : 1;
    }
    if (fclose(to) != 0) is_cli_no_memory();
    return out;
}

static is_status read_verdict(const is_http_call *call, bool *correct, is_error *err)
{
    json_t *reply = call->text != NULL ? json_loads(call->text, 0, NULL) : NULL;
    const json_t *choice = json_array_get(json_object_get(reply, "choices"), 0);
    const char *text = json_string_value(json_object_get(json_object_get(choice, "message"), "content"));
    bool right = text != NULL && strstr(text, "CORRECT") != NULL && strstr(text, "INCORRECT") == NULL;
    bool wrong = text != NULL && strstr(text, "WRONG") != NULL;
    is_status status = IS_OK;
    if (call->code != 200)
        status = is_fail(err, IS_EENGINE, "the judge refused, HTTP %ld: %.300s", call->code,
                         call->text != NULL ? call->text : "");
    else if (right == wrong)
        status = is_fail(err, IS_EENGINE, "the judge said neither CORRECT nor WRONG: %.300s", text != NULL ? text : "");
    *correct = right;
    json_decref(reply);
    return status;
}

static bool interrupted(void *user)
{
    (void)user;
    return is_cli_interrupted();
}

is_status is_judge_ask(is_judge *j, const char *question, const char *gold, const char *answer, bool *correct,
                       is_error *err)
{
    const char *const values[] = {question, gold, answer};
    char *prompt = fill(j->text, values), *url = NULL;
    if (asprintf(&url, "%s/v1/chat/completions", j->url) < 0) is_cli_no_memory();
    json_t *body = json_object(), *messages = json_array(), *message = json_object();
    is_cli_set(message, "role", json_string("user"));
    is_cli_set(message, "content", is_cli_json_text(prompt));
    is_cli_append(messages, message);
    is_cli_set(body, "messages", messages);
    is_cli_set(body, "temperature", json_integer(0));
    is_cli_set(body, "max_tokens", json_integer(16));
    if (j->model != NULL) is_cli_set(body, "model", json_string(j->model));
    char *text = json_dumps(body, JSON_COMPACT);
    if (text == NULL) is_cli_no_memory();
    is_http_call call = {.url = url, .body = text, .key = j->key, .canceled = interrupted, .timeout_ms = PATIENCE};
    is_status status = is_http_run(j->http, &call, err);
    if (status == IS_OK) status = read_verdict(&call, correct, err);
    free(call.text);
    free(text);
    json_decref(body);
    free(url);
    free(prompt);
    return status;
}
