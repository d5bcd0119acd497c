/* Error texts, the clock, and UTF-8: the few things that every part needs. */
#include "common.h"

#include <sched.h>
#include <stdio.h>
#include <time.h>

void is_error_set(is_error *err, is_status status, const char *format, ...)
{
    if (err == NULL) return;
    err->status = status;
    va_list args;
    va_start(args, format);
    (void)vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
}

const char *is_status_name(is_status status)
{
    switch (status) {
    case IS_OK: return "IS_OK";
    case IS_EINVAL: return "IS_EINVAL";
    case IS_ENOMEM: return "IS_ENOMEM";
    case IS_EIO: return "IS_EIO";
    case IS_ECORRUPT: return "IS_ECORRUPT";
    case IS_ENOTFOUND: return "IS_ENOTFOUND";
    case IS_EUNSUPPORTED: return "IS_EUNSUPPORTED";
    case IS_ELIMIT: return "IS_ELIMIT";
    case IS_ECANCELED: return "IS_ECANCELED";
    case IS_EENGINE: return "IS_EENGINE";
    case IS_EUNAVAILABLE: return "IS_EUNAVAILABLE";
    }
    return "unknown status";
}

uint32_t is_usable_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    int n = CPU_COUNT(&set);
    return n > 0 ? (uint32_t)n : 1;
}

double is_now_ms(void)
{
    struct timespec ts;
    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e3 + (double)ts.tv_nsec * 1e-6;
}

bool is_utf8_valid(const char *text, size_t n)
{
    const unsigned char *s = (const unsigned char *)text;
    size_t i = 0;
    while (i < n) {
        unsigned char c = s[i];
        if (c < 0x80) {
            i++;
            continue;
        }
        size_t more = c >= 0xF0 ? 3 : c >= 0xE0 ? 2 : 1;
        if (c < 0xC2 || c > 0xF4 || n - i <= more) return false;
        unsigned char low = 0x80;
        unsigned char high = 0xBF; /* bounds of the second byte */
        if (c == 0xE0) low = 0xA0;
        if (c == 0xED) high = 0x9F;
        if (c == 0xF0) low = 0x90;
        if (c == 0xF4) high = 0x8F;
        if (s[i + 1] < low || s[i + 1] > high) return false;
        for (size_t j = 2; j <= more; j++)
            if ((s[i + j] & 0xC0) != 0x80) return false;
        i += more + 1;
    }
    return true;
}
