/* Times as text: against timegm and gmtime_r of the C library, and against written-out cases. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/time.h"

#define DAY INT64_C(86400)

/* Every seventh day of the years 1 to 9999, at a second of the day that wanders, both ways. */
static void test_against_libc(void **state)
{
    (void)state;
    int64_t step = 0;
    for (int64_t day = IS_TIME_MIN; day <= IS_TIME_MAX - DAY; day += 7 * DAY, step++) {
        int64_t t = day + step * 7919 % DAY;
        time_t seconds = (time_t)t;
        struct tm tm;
        assert_non_null(gmtime_r(&seconds, &tm));
        char date[32];
        char text[64];
        snprintf(date, sizeof date, "%04d-%02d-%02d", tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday);
        snprintf(text, sizeof text, "%sT%02d:%02d:%02dZ", date, tm.tm_hour, tm.tm_min, tm.tm_sec);
        char formatted[11];
        assert_true(is_time_format_date(t, formatted));
        assert_string_equal(formatted, date);
        int64_t parsed = 0;
        assert_int_equal(is_time_parse(text, &parsed), IS_OK);
        assert_int_equal(parsed, t);
        assert_int_equal(parsed, timegm(&tm));
    }
}

static void test_every_day_of_leap_and_common_years(void **state)
{
    (void)state;
    static const int first[] = {1599, 1899, 1999, 2099};
    for (size_t i = 0; i < 4; i++) {
        struct tm tm = {.tm_year = first[i] - 1900, .tm_mon = 0, .tm_mday = 1};
        int64_t t = timegm(&tm);
        for (int day = 0; day < 3 * 366; day++, t += DAY) {
            time_t seconds = (time_t)t;
            gmtime_r(&seconds, &tm);
            char expected[11];
            char formatted[11];
            strftime(expected, sizeof expected, "%Y-%m-%d", &tm);
            assert_true(is_time_format_date(t, formatted));
            assert_string_equal(formatted, expected);
            assert_true(is_time_format_date(t + DAY - 1, formatted));
            assert_string_equal(formatted, expected);
        }
    }
}

static void test_forms(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t time;
    } good[] = {
        {"1970-01-01", 0},
        {"2023-05-08", 1683504000},
        {"2023-05-08T13:56", 1683554160},
        {"2023-05-08 13:56", 1683554160},
        {"2023-05-08T13:56:00", 1683554160},
        {"2023-05-08t13:56:07z", 1683554167},
        {"2023-05-08T13:56:07.999Z", 1683554167},
        {"2023-05-08T13:56:07,5+00:00", 1683554167},
        {"2023-05-08T15:56:00+02:00", 1683554160},
        {"2023-05-08T15:56:00+0200", 1683554160},
        {"2023-05-08T15:56:00+02", 1683554160},
        {"2023-05-08T08:26:00-05:30", 1683554160},
        {"2023-05-07T23:30:00-00:30", 1683504000},
        {"2016-12-31T23:59:60Z", 1483228800},
        {"2024-02-29", 1709164800},
        {"0001-01-01", IS_TIME_MIN},
        {"9999-12-31T23:59:59Z", IS_TIME_MAX},
        {"1:56 pm on 8 May, 2023", 1683554160},
        {"1:56 PM on 08 may, 2023", 1683554160},
        {"12:00 am on 1 January, 1970", 0},
        {"12:30 pm on 1 January, 1970", 45000},
        {"11:59 pm on 29 February, 2024", 1709251140},
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        int64_t t = 42;
        if (is_time_parse(good[i].text, &t) != IS_OK || t != good[i].time)
            fail_msg("%s gives %lld, not %lld", good[i].text, (long long)t, (long long)good[i].time);
    }
}

static void test_what_is_no_time(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        " ",
        "2023",
        "2023-05",
        "2023-5-8",
        "2023-13-01",
        "2023-00-01",
        "2023-02-29",
        "1900-02-29",
        "2023-04-31",
        "2023-05-00",
        "0000-01-01",
        "12023-05-08",
        "2023-05-08 ",
        "2023-05-08T",
        "2023-05-08T13",
        "2023-05-08T24:00",
        "2023-05-08T13:60",
        "2023-05-08T13:56:61",
        "2023-05-08T13:56:07.",
        "2023-05-08T13:56:07Zulu",
        "2023-05-08T13:56:07+2",
        "2023-05-08T13:56:07+02:",
        "2023-05-08T13:56:07+24:00",
        "2023-05-08Z",
        "0001-01-01T00:00:00+01:00",
        "9999-12-31T23:59:59-01:00",
        "1683554160",
        "yesterday",
        "13:56 pm on 8 May, 2023",
        "0:56 pm on 8 May, 2023",
        "1:60 pm on 8 May, 2023",
        "1:56 on 8 May, 2023",
        "1:56 pm on 31 June, 2023",
        "1:56 pm on 8 Mai, 2023",
        "1:56 pm on 8 May 2023",
        "1:56 pm on 8 May, 2023.",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int64_t t = 42;
        if (is_time_parse(bad[i], &t) != IS_EINVAL || t != 42)
            fail_msg("\"%s\" was taken as %lld", bad[i], (long long)t);
    }
}

static void test_times_without_a_date(void **state)
{
    (void)state;
    static const int64_t none[] = {IS_TIME_NONE, IS_TIME_MIN - 1, IS_TIME_MAX + 1, INT64_MAX};
    for (size_t i = 0; i < 4; i++) {
        char buf[11] = "unchanged";
        assert_false(is_time_format_date(none[i], buf));
        assert_string_equal(buf, "");
    }
    char buf[11];
    assert_true(is_time_format_date(-1, buf));
    assert_string_equal(buf, "1969-12-31");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_libc),
        cmocka_unit_test(test_every_day_of_leap_and_common_years),
        cmocka_unit_test(test_forms),
        cmocka_unit_test(test_what_is_no_time),
        cmocka_unit_test(test_times_without_a_date),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
