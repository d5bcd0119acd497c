/* HTTP, from the client's side. */
#ifndef IS_CLI_HTTP_H
#define IS_CLI_HTTP_H

#include <jansson.h>

#include "inferscale.h"

/* POSTs a JSON body.  *reply: json_decref.  IS_EUNAVAILABLE: nothing came; IS_EENGINE: an error did, with its message.
 */
is_status is_cli_post(const char *url, const json_t *body, json_t **reply, is_error *err);

#endif
