/*
 * Times of day as text.
 *
 * Days are counted from 0001-01-01, where the Gregorian rule for leap years gives the days before a year without any
 * case: 365 for each year gone, and one more for each that was divisible by 4, but not by 100, but by 400.
 */
#include "time.h"

#include <string.h>

#define DAY_SECONDS     86400
#define DAYS_TO_1970    719162 /* from 0001-01-01 */
#define DAYS_400_YEARS  146097
#define SECONDS_PER_MIN 60

typedef struct civil {
    int year, month, day; /* 1..9999, 1..12, 1..31 */
} civil;

static bool is_leap(int year)
{
    return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
}

static int days_in_month(int year, int month)
{
    static const int days[12] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    return month == 2 && is_leap(year) ? 29 : days[month - 1];
}

static int64_t days_before_year(int year)
{
    int64_t gone = year - 1;
    return gone * 365 + gone / 4 - gone / 100 + gone / 400;
}

static int64_t unix_day(civil date)
{
    int64_t days = days_before_year(date.year) - DAYS_TO_1970;
    for (int month = 1; month < date.month; month++) days += days_in_month(date.year, month);
    return days + date.day - 1;
}

static civil civil_of_unix_day(int64_t day)
{
    int64_t days = day + DAYS_TO_1970;
    civil date = {.year = (int)(days * 400 / DAYS_400_YEARS) + 1, .month = 1}; /* right, or one off */
    while (days_before_year(date.year) > days) date.year--;
    while (days_before_year(date.year + 1) <= days) date.year++;
    int left = (int)(days - days_before_year(date.year));
    while (left >= days_in_month(date.year, date.month)) left -= days_in_month(date.year, date.month++);
    date.day = left + 1;
    return date;
}

bool is_time_format_date(int64_t time, char buf[11])
{
    buf[0] = '\0';
    if (time < IS_TIME_MIN || time > IS_TIME_MAX) return false;
    int64_t day = time / DAY_SECONDS - (time % DAY_SECONDS < 0);
    civil date = civil_of_unix_day(day);
    int parts[3] = {date.year, date.month, date.day};
    static const int last_digit[3] = {3, 6, 9};
    static const int n_digits[3] = {4, 2, 2};
    memcpy(buf, "0000-00-00", 11);
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < n_digits[i]; j++, parts[i] /= 10) buf[last_digit[i] - j] = (char)('0' + parts[i] % 10);
    return true;
}

/* ------------------------------------------------------------ reading */

/* Each of these reads at *p, moves *p behind what it read, and says whether it was there. */

static bool read_char(const char **p, char c)
{
    if (**p != c) return false;
    (*p)++;
    return true;
}

static bool read_digits(const char **p, int min, int max, int *out)
{
    int n = 0;
    int value = 0;
    while (n < max && (*p)[n] >= '0' && (*p)[n] <= '9') value = value * 10 + ((*p)[n++] - '0');
    if (n < min) return false;
    *p += n;
    *out = value;
    return true;
}

/* hour:minute[:second[.fraction]] of 24 hours, as seconds. */
static bool read_clock(const char **p, int64_t *seconds)
{
    int hour;
    int minute;
    int second = 0;
    if (!read_digits(p, 2, 2, &hour) || !read_char(p, ':') || !read_digits(p, 2, 2, &minute)) return false;
    if (read_char(p, ':')) {
        if (!read_digits(p, 2, 2, &second)) return false;
        if (**p == '.' || **p == ',') {
            size_t n = strspn(*p + 1, "0123456789");
            if (n == 0) return false;
            *p += n + 1;
        }
    }
    if (hour > 23 || minute > 59 || second > 60) return false; /* 60: a leap second, which Unix time does not count */
    *seconds = ((int64_t)hour * 60 + minute) * SECONDS_PER_MIN + second;
    return true;
}

/* Z, an offset, or nothing; how far the clock is ahead of UTC. */
static bool read_zone(const char **p, int64_t *ahead)
{
    int hour;
    int minute = 0;
    *ahead = 0;
    if (**p == '\0') return true;
    if (read_char(p, 'Z') || read_char(p, 'z')) return true;
    bool west = **p == '-';
    if (!read_char(p, '-') && !read_char(p, '+')) return false;
    if (!read_digits(p, 2, 2, &hour)) return false;
    bool colon = read_char(p, ':');
    if ((colon || **p != '\0') && !read_digits(p, 2, 2, &minute)) return false;
    if (hour > 23 || minute > 59) return false;
    *ahead = ((int64_t)hour * 60 + minute) * SECONDS_PER_MIN * (west ? -1 : 1);
    return true;
}

static bool is_date(civil date)
{
    return date.year >= 1 && date.month >= 1 && date.month <= 12 && date.day >= 1 &&
           date.day <= days_in_month(date.year, date.month);
}

static bool parse_iso(const char *p, int64_t *out)
{
    civil date;
    int64_t clock = 0;
    int64_t ahead = 0;
    if (!read_digits(&p, 4, 4, &date.year) || !read_char(&p, '-') || !read_digits(&p, 2, 2, &date.month) ||
        !read_char(&p, '-') || !read_digits(&p, 2, 2, &date.day) || !is_date(date))
        return false;
    if (read_char(&p, 'T') || read_char(&p, 't') || read_char(&p, ' '))
        if (!read_clock(&p, &clock) || !read_zone(&p, &ahead)) return false;
    *out = unix_day(date) * DAY_SECONDS + clock - ahead;
    return *p == '\0';
}

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

/* Upper and lower case are the same. */
static bool read_words(const char **p, const char *words)
{
    size_t n = 0;
    while (words[n] && lower((*p)[n]) == lower(words[n])) n++;
    if (words[n]) return false;
    *p += n;
    return true;
}

static bool read_month(const char **p, int *month)
{
    static const char *const names[12] = {"January", "February", "March",     "April",   "May",      "June",
                                          "July",    "August",   "September", "October", "November", "December"};
    for (*month = 1; *month <= 12; (*month)++)
        if (read_words(p, names[*month - 1])) return true;
    return false;
}

static bool parse_locomo(const char *p, int64_t *out)
{
    civil date;
    int hour;
    int minute;
    if (!read_digits(&p, 1, 2, &hour) || !read_char(&p, ':') || !read_digits(&p, 2, 2, &minute)) return false;
    bool afternoon = read_words(&p, " pm");
    if (!afternoon && !read_words(&p, " am")) return false;
    if (hour < 1 || hour > 12 || minute > 59) return false;
    if (!read_words(&p, " on ") || !read_digits(&p, 1, 2, &date.day) || !read_char(&p, ' ') ||
        !read_month(&p, &date.month) || !read_words(&p, ", ") || !read_digits(&p, 4, 4, &date.year) || *p != '\0' ||
        !is_date(date))
        return false;
    hour = hour % 12 + (afternoon ? 12 : 0); /* 12 am is midnight */
    *out = unix_day(date) * DAY_SECONDS + ((int64_t)hour * 60 + minute) * SECONDS_PER_MIN;
    return true;
}

is_status is_time_parse(const char *text, int64_t *out)
{
    int64_t time;
    if (!parse_iso(text, &time) && !parse_locomo(text, &time)) return IS_EINVAL;
    if (time < IS_TIME_MIN || time > IS_TIME_MAX) return IS_EINVAL; /* an offset can lead out of the years */
    *out = time;
    return IS_OK;
}
