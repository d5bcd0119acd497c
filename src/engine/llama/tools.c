/*
 * Tools: what a caller says of its functions, and the calls in an answer.
 *
 * How a model is told of functions and how it writes a call is the business of its chat template; llama.cpp's library
 * knows the forms (chat_shim.h).  The template writes the functions among its control tokens, so they may hold none.
 */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_TOOLS 128

/* ------------------------------------------------------------ functions */

/* One of the caller's tools in the form that the templates read: {"type", "function": {"name", ...}}. */
static is_status read_tool(const json_t *tool, size_t i, json_t **out, is_error *err)
{
    const char *type = json_string_value(json_object_get(tool, "type"));
    const json_t *function = json_object_get(tool, "function");
    const char *name = json_string_value(json_object_get(function, "name"));
    const json_t *text = json_object_get(function, "description");
    json_t *parameters = json_object_get(function, "parameters");
    if (type == NULL || strcmp(type, "function") != 0 || !json_is_object(function))
        return is_fail(err, IS_EINVAL, "tool %zu must be {\"type\": \"function\", \"function\": {...}}", i + 1);
    if (!is_plain_name(name))
        return is_fail(err, IS_EINVAL, "tool %zu needs a name of 1 to %d letters, digits, \"_\", \"-\" or \".\"", i + 1,
                       IS_MOST_NAME);
    if ((text != NULL && !json_is_string(text) && !json_is_null(text)) ||
        (parameters != NULL && !json_is_object(parameters) && !json_is_null(parameters)))
        return is_fail(err, IS_EINVAL, "of tool %s, \"description\" must be a text and \"parameters\" a JSON schema",
                       name);
    *out = json_pack("{s:s, s:{s:s, s:s, s:o}}", "type", "function", "function", "name", name, "description",
                     json_is_string(text) ? json_string_value(text) : "", "parameters",
                     json_is_object(parameters) ? json_incref(parameters) : json_object());
    return *out == NULL ? is_fail(err, IS_ENOMEM, "no memory for the tools") : IS_OK;
}

static const char *name_of(const json_t *tool)
{
    return json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
}

/* The tools that may be called; a choice by name leaves that one only. */
static is_status read_tools(const json_t *given, const char *only, json_t *out, is_error *err)
{
    size_t n = json_array_size(given);
    if (n == 0 || n > MOST_TOOLS)
        return is_fail(err, IS_EINVAL, "the tools must be a JSON array of 1 to %d functions", MOST_TOOLS);
    for (size_t i = 0; i < n; i++) {
        json_t *tool;
        is_status status = read_tool(json_array_get(given, i), i, &tool, err);
        if (status != IS_OK) return status;
        for (size_t j = 0; j < json_array_size(out); j++)
            if (strcmp(name_of(json_array_get(out, j)), name_of(tool)) == 0) {
                status = is_fail(err, IS_EINVAL, "two tools have the name %s", name_of(tool));
                json_decref(tool);
                return status;
            }
        if (json_array_append_new(out, tool) != 0) return is_fail(err, IS_ENOMEM, "no memory for the tools");
    }
    if (only == NULL) return IS_OK;
    for (size_t i = n; i-- > 0;)
        if (strcmp(name_of(json_array_get(out, i)), only) != 0) json_array_remove(out, i);
    if (json_array_size(out) == 0)
        return is_fail(err, IS_EINVAL, "the tool choice is %.80s, but no tool has that name", only);
    return IS_OK;
}

/* The template writes the tools among its control tokens, so they must hold none, nor the renderer's marks. */
static is_status check_controls(const is_model *model, const char *functions, is_error *err)
{
    int32_t *with = NULL, *without = NULL;
    size_t n_with, n_without;
    is_status status = is_prompt_tokenize(model, functions, true, false, &with, &n_with, err);
    if (status == IS_OK) status = is_prompt_tokenize(model, functions, false, false, &without, &n_without, err);
    if (status == IS_OK && (n_with != n_without || (n_with > 0 && memcmp(with, without, n_with * sizeof *with) != 0)))
        status = is_fail(err, IS_EINVAL, "the tools hold a control token of the model; write it in another way");
    if (status == IS_OK && is_has_mark(functions))
        status = is_fail(err, IS_EINVAL, "the tools hold a text that stands for others here; write it in another way");
    free(with);
    free(without);
    return status;
}

is_status is_tools_read(const is_model *model, const is_tools *tools, is_chat_tools *out, char **functions,
                        is_error *err)
{
    const char *choice = tools->choice == NULL ? "auto" : tools->choice;
    bool named = strcmp(choice, "auto") != 0 && strcmp(choice, "none") != 0 && strcmp(choice, "required") != 0;
    json_t *given, *kept = json_array();
    *functions = NULL;
    if (model->chat == NULL || !is_chat_has_tools(model->chat)) {
        json_decref(kept);
        return is_fail(err, IS_EUNSUPPORTED,
                       "the chat template of this model knows no tools; leave tools out or use a model whose template "
                       "has them");
    }
    is_status status = is_read_schemas(tools->functions, "the list of tools", &given, err);
    if (status == IS_OK && tools->json_schema != NULL) status = is_check_schema(tools->json_schema, err);
    if (status == IS_OK) status = read_tools(given, named ? choice : NULL, kept, err);
    if (status == IS_OK) {
        *functions = json_dumps(kept, JSON_COMPACT);
        status = *functions == NULL ? is_fail(err, IS_ENOMEM, "no memory for the tools")
                                    : check_controls(model, *functions, err);
    }
    json_decref(given);
    json_decref(kept);
    *out = (is_chat_tools){.functions = *functions,
                           .choice = named ? "required" : choice,
                           .json_schema = tools->json_schema,
                           .one_call = tools->one_call || named};
    return status;
}

/* ------------------------------------------------------------ calls */

/* Of an answer that was cut the last call may lack its end. */
static void drop_incomplete(char **calls)
{
    json_t *list = json_loads(*calls, 0, NULL);
    size_t n = json_array_size(list);
    const json_t *last = n == 0 ? NULL : json_object_get(json_array_get(list, n - 1), "function");
    const char *text = json_string_value(json_object_get(last, "arguments"));
    json_t *arguments = text == NULL ? NULL : json_loads(text, 0, NULL);
    if (!json_is_object(arguments)) {
        if (n > 0) json_array_remove(list, n - 1);
        free(*calls);
        *calls = n > 1 ? json_dumps(list, JSON_COMPACT) : NULL;
    }
    json_decref(arguments);
    json_decref(list);
}

is_status is_tools_finish(const is_run *run, is_run_result *result, is_error *err)
{
    char *content, *calls;
    bool cut = strcmp(result->finish, "length") == 0;
    if (strcmp(result->finish, "canceled") == 0) return IS_OK;
    is_status status = is_chat_parse(run->tool_format, result->text, cut, &content, &calls, err);
    if (status == IS_ENOMEM) return status;
    if (status == IS_OK) {
        free(result->text);
        result->text = content;
        if (cut && calls != NULL) drop_incomplete(&calls);
        result->tool_calls = calls;
        if (!cut && calls != NULL) result->finish = "tool_calls";
    } /* else it is what the model wrote, in no form that is known */
    size_t n = strlen(result->text);
    if (n > 0 && run->on_token != NULL && !run->on_token(run->user, result->text, n)) result->finish = "canceled";
    return IS_OK;
}
