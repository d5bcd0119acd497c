/*
 * Times of day as text.  All of it is Gregorian and UTC, and none of it asks the C library, whose answers depend on
 * the process's time zone and locale.
 */
#ifndef IS_COMMON_TIME_H
#define IS_COMMON_TIME_H

#include "common.h"

/* The Unix seconds of 0001-01-01T00:00:00Z and 9999-12-31T23:59:59Z: what there is text for. */
#define IS_TIME_MIN INT64_C(-62135596800)
#define IS_TIME_MAX INT64_C(253402300799)

/*
 * Text to Unix seconds.  IS_EINVAL, with *out untouched, when it is neither
 *  - ISO 8601: 2023-05-08, or with a time of day behind a T or a blank: 13:56, 13:56:07, 13:56:07.25 (the fraction is
 *    cut off), and then Z, an offset as +02:00, +0200 or +02, or nothing, which is UTC; nor
 *  - as LoCoMo writes the time of a session: 1:56 pm on 8 May, 2023.
 */
is_status is_time_parse(const char *text, int64_t *out);

/* The day as YYYY-MM-DD.  false, and "", for a time that has no such text (IS_TIME_NONE is one). */
bool is_time_format_date(int64_t time, char buf[11]);

#endif
