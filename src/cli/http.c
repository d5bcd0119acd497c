/* A request to a server, whole reply at once. */
#include "http.h"

#include <stdlib.h>

#include "common/http.h"

is_status is_cli_post(const char *url, const json_t *body, json_t **reply, is_error *err)
{
    is_http *http = NULL;
    char *text = json_dumps(body, JSON_COMPACT);
    is_http_call call = {.url = url, .body = text};
    *reply = NULL;
    is_status status = text == NULL ? is_fail(err, IS_ENOMEM, "no memory for a request") : is_http_open(&http, err);
    if (status == IS_OK) status = is_http_run(http, &call, err);
    if (status == IS_OK) {
        *reply = json_loadb(call.text == NULL ? "" : call.text, call.n, 0, NULL);
        const char *message = json_string_value(json_object_get(json_object_get(*reply, "error"), "message"));
        if (*reply == NULL || call.code >= 300)
            status = is_fail(err, IS_EENGINE, "%s answers %ld: %s", url, call.code, message == NULL ? "" : message);
    }
    if (status != IS_OK) {
        json_decref(*reply);
        *reply = NULL;
    }
    is_http_close(http);
    free(call.text);
    free(text);
    return status;
}
