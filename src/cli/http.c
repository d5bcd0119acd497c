/* A request to a server, whole reply at once, through libcurl. */
#include "http.h"

#include <curl/curl.h>
#include <stdlib.h>
#include <string.h>

#include "common/common.h"

typedef struct buffer {
    char *bytes;
    size_t n;
} buffer;

static size_t take(char *bytes, size_t size, size_t n, void *user)
{
    buffer *b = user;
    char *grown = realloc(b->bytes, b->n + size * n + 1);
    if (grown == NULL) return 0;
    b->bytes = grown;
    memcpy(b->bytes + b->n, bytes, size * n);
    b->n += size * n;
    return size * n;
}

static is_status perform(CURL *curl, const char *url, const char *body, buffer *reply, is_error *err)
{
    char why[CURL_ERROR_SIZE] = "";
    struct curl_slist *headers = curl_slist_append(NULL, "Content-Type: application/json");
    (void)curl_easy_setopt(curl, CURLOPT_URL, url);
    (void)curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    (void)curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body);
    (void)curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take);
    (void)curl_easy_setopt(curl, CURLOPT_WRITEDATA, reply);
    (void)curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, why);
    (void)curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    (void)curl_easy_setopt(curl, CURLOPT_PROXY, ""); /* it is this machine */
    CURLcode code = curl_easy_perform(curl);
    curl_slist_free_all(headers);
    if (code == CURLE_OK) return IS_OK;
    return is_fail(err, IS_EIO, "no answer from %s: %s", url, why[0] != '\0' ? why : curl_easy_strerror(code));
}

is_status is_cli_post(const char *url, const json_t *body, json_t **reply, is_error *err)
{
    buffer got = {NULL, 0};
    long code = 0;
    *reply = NULL;
    char *text = json_dumps(body, JSON_COMPACT);
    CURL *curl = curl_easy_init();
    is_status status = text == NULL || curl == NULL ? is_fail(err, IS_ENOMEM, "no memory for a request") : IS_OK;
    if (status == IS_OK) status = perform(curl, url, text, &got, err);
    if (status == IS_OK) {
        (void)curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &code);
        *reply = json_loadb(got.bytes == NULL ? "" : got.bytes, got.n, 0, NULL);
        const char *message = json_string_value(json_object_get(json_object_get(*reply, "error"), "message"));
        if (*reply == NULL || code >= 300)
            status = is_fail(err, IS_EENGINE, "%s answers %ld: %s", url, code, message == NULL ? "" : message);
    }
    if (status != IS_OK) {
        json_decref(*reply);
        *reply = NULL;
    }
    curl_easy_cleanup(curl);
    free(text);
    free(got.bytes);
    return status;
}
