/* Names of recipes, read and written.  See recipe.h for what they mean. */
#include "recipe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "name:number" at the start of *at; moves *at behind it. */
static bool take_part(const char **at, const char *name, uint32_t most, uint32_t *number)
{
    size_t n = strlen(name);
    if (strncmp(*at, name, n) != 0 || (*at)[n] != ':') return false;
    const char *digits = *at + n + 1;
    if (*digits < '0' || *digits > '9') return false;
    char *end;
    unsigned long v = strtoul(digits, &end, 10);
    if (v > most) return false;
    *number = (uint32_t)v;
    *at = end;
    return true;
}

is_status is_recipe_parse(const char *name, is_recipe *out, is_error *err)
{
    const char *at = name;
    bool ok = false;
    *out = (is_recipe){0};
    if (strcmp(name, "isolated") == 0) return IS_OK;
    if (take_part(&at, "primed", IS_RECIPE_MAX_PRIMER, &out->primer)) {
        out->header = true;
        ok = *at == '\0';
        if (*at == '+') at++;
    }
    if (!ok)
        ok = take_part(&at, "window", IS_RECIPE_MAX_WINDOW, &out->window) && *at == '\0' &&
             (out->header || out->window > 0);
    if (ok) return IS_OK;
    return is_fail(err, IS_EINVAL,
                   "\"%s\" is no recipe; there are isolated, window:1 to window:%d, primed:0 to primed:%d, and "
                   "primed:N+window:W",
                   name, IS_RECIPE_MAX_WINDOW, IS_RECIPE_MAX_PRIMER);
}

void is_recipe_name(const is_recipe *r, char out[IS_RECIPE_MAX])
{
    if (r->header && r->window > 0)
        (void)snprintf(out, IS_RECIPE_MAX, "primed:%u+window:%u", r->primer, r->window);
    else if (r->header)
        (void)snprintf(out, IS_RECIPE_MAX, "primed:%u", r->primer);
    else if (r->window > 0)
        (void)snprintf(out, IS_RECIPE_MAX, "window:%u", r->window);
    else
        (void)snprintf(out, IS_RECIPE_MAX, "isolated");
}
