/*
 * What both forms of import files share: members of JSON objects, the checks of turns and facts, reports.
 */
#ifndef IS_MEMORY_IMPORT_RECORD_H
#define IS_MEMORY_IMPORT_RECORD_H

#include <jansson.h>

#include "import.h"

typedef struct is_import_run {
    const is_import_options *options;
    const is_import_callbacks *callbacks;
    is_import_counts *counts;
    is_error *err;
    char where[2 * IS_IMPORT_MAX_NAME]; /* the record in hand, for reports */
} is_import_run;

void is_import_at(is_import_run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Reports the record in hand as passed over. */
void is_import_skip(is_import_run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The member as text, NULL when it is absent or null.  false, and a report, when it is no string. */
bool is_import_string(is_import_run *run, const json_t *object, const char *name, const char **out);

/* These check the record in hand and pass it on, or report what is wrong with it.  Any other status than IS_OK ends
 * the reading. */
is_status is_import_turn(is_import_run *run, const is_scope *scope, const is_turn *turn);
is_status is_import_fact(is_import_run *run, const is_scope *scope, const is_fact *fact);

/* The two forms; `in` stands at the first byte that is no blank. */
is_status is_import_lines(is_import_run *run, FILE *in, uint64_t line_number);
is_status is_import_locomo(is_import_run *run, FILE *in);

#endif
