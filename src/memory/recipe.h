/*
 * Recipes: what stands before a fact when its KV is made.
 *
 *   isolated             nothing (the paper's w = 0)
 *   window:w             the w turns of conversation that end at the fact's source (the paper's
 *                        Context-Window Encoding, arXiv 2607.27090)
 *   primed:n             the prompt's header and n other fact lines of the same scope
 *   primed:n+chain:m     header, n fact lines, then those that were added before the fact, of each m that follow one
 *                        another
 *   primed:n+near:m      header, n fact lines, then the m that are most like the fact, the nearest first
 *   primed:n+window:w    header, n fact lines, then the window
 *
 * What stands before a fact matters more than how much: a few of the same user's fact lines behind the real
 * header bring the fidelity of injected memory several times closer to a full prefill than a window does.
 */
#ifndef IS_RECIPE_H
#define IS_RECIPE_H

#include "../kv/chunk.h"

#define IS_RECIPE_DEFAULT    "primed:32"
#define IS_RECIPE_MAX_PRIMER 64
#define IS_RECIPE_MAX_CHAIN  32
#define IS_RECIPE_MAX_NEAR   16
#define IS_RECIPE_MAX_WINDOW 200

typedef struct is_recipe {
    bool header;     /* the prompt's header stands first */
    uint32_t primer; /* fact lines behind it */
    uint32_t chain;  /* facts of a chain, where each stands behind those before it; 0: there are none */
    uint32_t near;   /* lines of the facts that are most like it, behind those */
    uint32_t window; /* turns of conversation behind those */
} is_recipe;

/* Reads a recipe's name.  IS_EINVAL says what recipes there are. */
is_status is_recipe_parse(const char *name, is_recipe *out, is_error *err);
/* The one way to write a recipe, so that equal recipes have equal names. */
void is_recipe_name(const is_recipe *recipe, char out[IS_RECIPE_MAX]);

#endif
