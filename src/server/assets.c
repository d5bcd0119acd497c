/* Files that are part of the program (files.S). */
#include <string.h>

#include "internal.h"

#define ASSET(name) extern const char is_asset_##name[], is_asset_##name##_end[]
ASSET(index);
ASSET(app);
ASSET(style);
ASSET(openapi);
ASSET(chart);

typedef struct asset {
    const char *path, *type;
    const char *begin, *end;
} asset;

static const asset ASSETS[] = {
    {"/", "text/html; charset=utf-8", is_asset_index, is_asset_index_end},
    {"/app.js", "text/javascript; charset=utf-8", is_asset_app, is_asset_app_end},
    {"/style.css", "text/css; charset=utf-8", is_asset_style, is_asset_style_end},
    {"/chart.js", "text/javascript; charset=utf-8", is_asset_chart, is_asset_chart_end},
    {"/openapi.json", "application/json", is_asset_openapi, is_asset_openapi_end},
};

void is_handle_asset(is_request *r)
{
    for (size_t i = 0; i < sizeof ASSETS / sizeof ASSETS[0]; i++)
        if (strcmp(r->route->path, ASSETS[i].path) == 0)
            is_reply_static(r, ASSETS[i].type, ASSETS[i].begin, (size_t)(ASSETS[i].end - ASSETS[i].begin));
}

void is_handle_openapi(is_request *r)
{
    is_handle_asset(r);
}

/* Browsers ask for it by themselves; there is none. */
void is_handle_icon(is_request *r)
{
    is_reply(r, MHD_HTTP_NO_CONTENT, "image/x-icon", NULL, 0);
}
