/* HTTP from the client's side, through libcurl. */
#ifndef IS_HTTP_H
#define IS_HTTP_H

#include "common.h"

/* Connections that are kept open between calls. */
typedef struct is_http is_http;

is_status is_http_open(is_http **out, is_error *err);
void is_http_close(is_http *http);

typedef struct is_http_call {
    const char *url;
    const char *body; /* JSON to POST; NULL: GET */
    const char *key;  /* a bearer's token; NULL: none */
    /* The body of a 200 as it comes; false ends the call.  NULL: it is collected, as that of any other reply is. */
    bool (*on_bytes)(void *user, const char *bytes, size_t n);
    bool (*canceled)(void *user); /* asked every 50 ms; may be NULL */
    void *user;
    uint32_t timeout_ms; /* for all of it; 0: none */
    long code;           /* out: the reply's status, 0: there was none */
    char *text;          /* out: what was collected, with a NUL behind it, free(); NULL: nothing */
    size_t n;            /* out: bytes of it */
} is_http_call;

/*
 * Sends a request and waits for the end of its reply, in the caller's thread; any thread.  IS_OK: there was a whole
 * reply, whatever its status.  IS_EUNAVAILABLE: there was none, the server may not even have seen the request.
 * IS_EENGINE: the connection broke off within it.  IS_ECANCELED: canceled, or on_bytes ended it.
 */
is_status is_http_run(is_http *http, is_http_call *call, is_error *err);

#endif
