/* The report of an evaluation: report.json, one CSV a step, and a page that needs nothing beside it. */
#ifndef IS_CLI_BENCH_REPORT_H
#define IS_CLI_BENCH_REPORT_H

#include <jansson.h>

#include "common/common.h"

/* Reads FOLDER/steps/NAME.json of these steps, and behind each that of "NAME, vLLM", leaving out what is not there,
 * and writes the report into the folder.  *out: report.json, json_decref. */
is_status is_bench_report(const char *folder, const char *const *steps, size_t n, json_t **out, is_error *err);

#endif
