/* Names of recipes, read and written.  See recipe.h for what they mean. */
#include "recipe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A name and a number behind it, at the start of *at; moves *at behind both. */
static bool take_part(const char **at, const char *name, uint32_t most, uint32_t *number)
{
    size_t n = strlen(name);
    if (strncmp(*at, name, n) != 0) return false;
    const char *digits = *at + n;
    if (*digits < '0' || *digits > '9') return false;
    char *end;
    unsigned long v = strtoul(digits, &end, 10);
    if (v > most) return false;
    *number = (uint32_t)v;
    *at = end;
    return true;
}

/* The same for the last part, whose number is not below `least`. */
static bool take_last(const char **at, const char *name, uint32_t least, uint32_t most, uint32_t *number)
{
    return take_part(at, name, most, number) && **at == '\0' && *number >= least;
}

is_status is_recipe_parse(const char *name, is_recipe *out, is_error *err)
{
    const char *at = name;
    *out = (is_recipe){0};
    if (strcmp(name, "isolated") == 0) return IS_OK;
    bool ok = strncmp(name, "primed:", 7) != 0;
    if (!ok && take_part(&at, "primed:", IS_RECIPE_MAX_PRIMER, &out->primer)) {
        out->header = true;
        if (*at == '\0') return IS_OK;
        ok = *at++ == '+';
    }
    if (ok && out->primer > 0 &&
        (take_last(&at, "chain:", 2, IS_RECIPE_MAX_CHAIN, &out->chain) ||
         take_last(&at, "near:", 1, IS_RECIPE_MAX_NEAR, &out->near)))
        return IS_OK;
    if (ok && take_last(&at, "window:", out->header ? 0 : 1, IS_RECIPE_MAX_WINDOW, &out->window)) return IS_OK;
    return is_fail(err, IS_EINVAL,
                   "\"%s\" is no recipe; there are isolated, window:1 to window:%d, primed:0 to primed:%d, "
                   "primed:N+chain:2 to primed:N+chain:%d and primed:N+near:1 to primed:N+near:%d with N above 0, and "
                   "primed:N+window:W",
                   name, IS_RECIPE_MAX_WINDOW, IS_RECIPE_MAX_PRIMER, IS_RECIPE_MAX_CHAIN, IS_RECIPE_MAX_NEAR);
}

void is_recipe_name(const is_recipe *r, char out[IS_RECIPE_MAX])
{
    char behind[24] = "";
    if (r->chain > 0)
        (void)snprintf(behind, sizeof behind, "chain:%u", r->chain);
    else if (r->near > 0)
        (void)snprintf(behind, sizeof behind, "near:%u", r->near);
    else if (r->window > 0)
        (void)snprintf(behind, sizeof behind, "window:%u", r->window);
    if (r->header)
        (void)snprintf(out, IS_RECIPE_MAX, "primed:%u%s%s", r->primer, behind[0] != '\0' ? "+" : "", behind);
    else
        (void)snprintf(out, IS_RECIPE_MAX, "%s", behind[0] != '\0' ? behind : "isolated");
}
