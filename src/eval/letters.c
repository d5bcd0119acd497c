/* Case and kind of letters: tables for the scripts that letters.h names, made from Unicode 17. */
#include "letters.h"

#include "../common/common.h"

#define INVALID 0xFFFDu

typedef struct {
    uint32_t first, last;
} range;

/* Non-ASCII code points that are not of words, in order. */
static const range no_word[] = {
    {0x0080, 0x00A9},   {0x00AB, 0x00B4},   {0x00B6, 0x00B9},   {0x00BB, 0x00BF},   {0x00D7, 0x00D7},
    {0x00F7, 0x00F7},   {0x02C2, 0x02C5},   {0x02D2, 0x02DF},   {0x02E5, 0x02EB},   {0x02ED, 0x02ED},
    {0x02EF, 0x02FF},   {0x0375, 0x0375},   {0x037E, 0x037E},   {0x0384, 0x0385},   {0x0387, 0x0387},
    {0x03F6, 0x03F6},   {0x0482, 0x0482},   {0x055A, 0x055F},   {0x0589, 0x058A},   {0x058D, 0x058F},
    {0x1FBD, 0x1FBD},   {0x1FBF, 0x1FC1},   {0x1FCD, 0x1FCF},   {0x1FDD, 0x1FDF},   {0x1FED, 0x1FEF},
    {0x1FFD, 0x200B},   {0x200E, 0x203E},   {0x2041, 0x2053},   {0x2055, 0x2070},   {0x2074, 0x207E},
    {0x2080, 0x208E},   {0x20A0, 0x20C4},   {0x2100, 0x2101},   {0x2103, 0x2106},   {0x2108, 0x2109},
    {0x2114, 0x2114},   {0x2116, 0x2118},   {0x211E, 0x2123},   {0x2125, 0x2125},   {0x2127, 0x2127},
    {0x2129, 0x2129},   {0x212E, 0x212E},   {0x213A, 0x213B},   {0x2140, 0x2144},   {0x214A, 0x214D},
    {0x214F, 0x215F},   {0x2189, 0x24B5},   {0x24EA, 0x2BFF},   {0x2E00, 0x2E2E},   {0x2E30, 0x3004},
    {0x3008, 0x3020},   {0x3030, 0x3030},   {0x3036, 0x3037},   {0x303D, 0x303F},   {0xFE10, 0xFE19},
    {0xFE30, 0xFE32},   {0xFE35, 0xFE4C},   {0xFE50, 0xFE6B},   {0xFEFF, 0xFF0F},   {0xFF1A, 0xFF20},
    {0xFF3B, 0xFF3E},   {0xFF40, 0xFF40},   {0xFF5B, 0xFF65},   {0xFFE0, 0xFFFD},   {0x1F000, 0x1F12F},
    {0x1F14A, 0x1F14F}, {0x1F16A, 0x1F16F}, {0x1F18A, 0x1FBEF}, {0x1FBFA, 0x1FBFA},
};

typedef struct {
    uint32_t first, last;
    uint8_t step; /* 2: every second one, the others are the small letters between them */
    int16_t plus; /* to the small letter */
} capitals;

static const capitals lower[] = {
    {0x00C0, 0x00D6, 1, 32},    {0x00D8, 0x00DE, 1, 32},    {0x0100, 0x012E, 2, 1},     {0x0132, 0x0136, 2, 1},
    {0x0139, 0x0147, 2, 1},     {0x014A, 0x0176, 2, 1},     {0x0178, 0x0178, 1, -121},  {0x0179, 0x017D, 2, 1},
    {0x0181, 0x0181, 1, 210},   {0x0182, 0x0184, 2, 1},     {0x0186, 0x0186, 1, 206},   {0x0187, 0x0187, 1, 1},
    {0x0189, 0x018A, 1, 205},   {0x018B, 0x018B, 1, 1},     {0x018E, 0x018E, 1, 79},    {0x018F, 0x018F, 1, 202},
    {0x0190, 0x0190, 1, 203},   {0x0191, 0x0191, 1, 1},     {0x0193, 0x0193, 1, 205},   {0x0194, 0x0194, 1, 207},
    {0x0196, 0x0196, 1, 211},   {0x0197, 0x0197, 1, 209},   {0x0198, 0x0198, 1, 1},     {0x019C, 0x019C, 1, 211},
    {0x019D, 0x019D, 1, 213},   {0x019F, 0x019F, 1, 214},   {0x01A0, 0x01A4, 2, 1},     {0x01A6, 0x01A6, 1, 218},
    {0x01A7, 0x01A7, 1, 1},     {0x01A9, 0x01A9, 1, 218},   {0x01AC, 0x01AC, 1, 1},     {0x01AE, 0x01AE, 1, 218},
    {0x01AF, 0x01AF, 1, 1},     {0x01B1, 0x01B2, 1, 217},   {0x01B3, 0x01B5, 2, 1},     {0x01B7, 0x01B7, 1, 219},
    {0x01B8, 0x01B8, 1, 1},     {0x01BC, 0x01BC, 1, 1},     {0x01C4, 0x01C4, 1, 2},     {0x01C5, 0x01C5, 1, 1},
    {0x01C7, 0x01C7, 1, 2},     {0x01C8, 0x01C8, 1, 1},     {0x01CA, 0x01CA, 1, 2},     {0x01CB, 0x01DB, 2, 1},
    {0x01DE, 0x01EE, 2, 1},     {0x01F1, 0x01F1, 1, 2},     {0x01F2, 0x01F4, 2, 1},     {0x01F6, 0x01F6, 1, -97},
    {0x01F7, 0x01F7, 1, -56},   {0x01F8, 0x021E, 2, 1},     {0x0220, 0x0220, 1, -130},  {0x0222, 0x0232, 2, 1},
    {0x023A, 0x023A, 1, 10795}, {0x023B, 0x023B, 1, 1},     {0x023D, 0x023D, 1, -163},  {0x023E, 0x023E, 1, 10792},
    {0x0241, 0x0241, 1, 1},     {0x0243, 0x0243, 1, -195},  {0x0244, 0x0244, 1, 69},    {0x0245, 0x0245, 1, 71},
    {0x0246, 0x024E, 2, 1},     {0x0370, 0x0372, 2, 1},     {0x0376, 0x0376, 1, 1},     {0x037F, 0x037F, 1, 116},
    {0x0386, 0x0386, 1, 38},    {0x0388, 0x038A, 1, 37},    {0x038C, 0x038C, 1, 64},    {0x038E, 0x038F, 1, 63},
    {0x0391, 0x03A1, 1, 32},    {0x03A3, 0x03AB, 1, 32},    {0x03CF, 0x03CF, 1, 8},     {0x03D8, 0x03EE, 2, 1},
    {0x03F4, 0x03F4, 1, -60},   {0x03F7, 0x03F7, 1, 1},     {0x03F9, 0x03F9, 1, -7},    {0x03FA, 0x03FA, 1, 1},
    {0x03FD, 0x03FF, 1, -130},  {0x0400, 0x040F, 1, 80},    {0x0410, 0x042F, 1, 32},    {0x0460, 0x0480, 2, 1},
    {0x048A, 0x04BE, 2, 1},     {0x04C0, 0x04C0, 1, 15},    {0x04C1, 0x04CD, 2, 1},     {0x04D0, 0x052E, 2, 1},
    {0x0531, 0x0556, 1, 48},    {0x1E00, 0x1E94, 2, 1},     {0x1E9E, 0x1E9E, 1, -7615}, {0x1EA0, 0x1EFE, 2, 1},
    {0x1F08, 0x1F0F, 1, -8},    {0x1F18, 0x1F1D, 1, -8},    {0x1F28, 0x1F2F, 1, -8},    {0x1F38, 0x1F3F, 1, -8},
    {0x1F48, 0x1F4D, 1, -8},    {0x1F59, 0x1F5F, 2, -8},    {0x1F68, 0x1F6F, 1, -8},    {0x1F88, 0x1F8F, 1, -8},
    {0x1F98, 0x1F9F, 1, -8},    {0x1FA8, 0x1FAF, 1, -8},    {0x1FB8, 0x1FB9, 1, -8},    {0x1FBA, 0x1FBB, 1, -74},
    {0x1FBC, 0x1FBC, 1, -9},    {0x1FC8, 0x1FCB, 1, -86},   {0x1FCC, 0x1FCC, 1, -9},    {0x1FD8, 0x1FD9, 1, -8},
    {0x1FDA, 0x1FDB, 1, -100},  {0x1FE8, 0x1FE9, 1, -8},    {0x1FEA, 0x1FEB, 1, -112},  {0x1FEC, 0x1FEC, 1, -7},
    {0x1FF8, 0x1FF9, 1, -128},  {0x1FFA, 0x1FFB, 1, -126},  {0x1FFC, 0x1FFC, 1, -9},    {0x2126, 0x2126, 1, -7517},
    {0x212A, 0x212A, 1, -8383}, {0x212B, 0x212B, 1, -8262}, {0x2132, 0x2132, 1, 28},    {0x2160, 0x216F, 1, 16},
    {0x2183, 0x2183, 1, 1},     {0x24B6, 0x24CF, 1, 26},    {0xFF21, 0xFF3A, 1, 32},
};

#define SIGMA       0x03A3u
#define FINAL_SIGMA 0x03C2u
#define DOTTED_I    0x0130u

uint32_t is_eval_next(const char **at, const char *end)
{
    const unsigned char *s = (const unsigned char *)*at;
    size_t n = s[0] < 0x80 ? 1 : s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : 4;
    if ((size_t)(end - *at) < n || !is_utf8_valid(*at, n)) {
        *at += 1;
        return INVALID;
    }
    *at += n;
    if (n == 1) return s[0];
    uint32_t c = s[0] & (0x7Fu >> n);
    for (size_t i = 1; i < n; i++) c = c << 6 | (s[i] & 0x3Fu);
    return c;
}

/* The code point that ends at `at`, which lies behind begin. */
static uint32_t before(const char *begin, const char *at)
{
    const char *start = at - 1;
    while (start > begin && at - start < 4 && ((unsigned char)*start & 0xC0) == 0x80) start--;
    const char *next = start;
    uint32_t c = is_eval_next(&next, at);
    return next == at ? c : INVALID;
}

/* c as UTF-8; returns its bytes, 1 to 4. */
static size_t encode(uint32_t c, char out[4])
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, c >>= 6) out[i] = (char)(0x80u | (c & 0x3Fu));
    out[0] = (char)((0xF00u >> n & 0xFFu) | c);
    return n;
}

bool is_eval_space(uint32_t c)
{
    return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_eval_word_char(uint32_t c)
{
    if (c < 0x80) return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
    for (size_t i = 0; i < sizeof no_word / sizeof *no_word && no_word[i].first <= c; i++)
        if (c <= no_word[i].last) return false;
    return true;
}

static uint32_t small(uint32_t c)
{
    if (c < 0x80) return c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c;
    for (size_t i = 0; i < sizeof lower / sizeof *lower && lower[i].first <= c; i++)
        if (c <= lower[i].last && (c - lower[i].first) % lower[i].step == 0)
            return (uint32_t)((int32_t)c + lower[i].plus);
    return c;
}

/* What the rule of the final sigma looks past: apostrophes, dots, accents, marks, and the comma, see letters.h. */
static bool skipped(uint32_t c)
{
    static const range marks[] = {
        {0xA8, 0xA8},     {0xAD, 0xAD},     {0xAF, 0xAF},     {0xB4, 0xB4},     {0xB7, 0xB8},     {0x2B0, 0x36F},
        {0x374, 0x375},   {0x37A, 0x37A},   {0x384, 0x385},   {0x387, 0x387},   {0x483, 0x489},   {0x559, 0x559},
        {0x55F, 0x55F},   {0x1FBD, 0x1FBD}, {0x1FBF, 0x1FC1}, {0x1FCD, 0x1FCF}, {0x1FDD, 0x1FDF}, {0x1FED, 0x1FEF},
        {0x1FFD, 0x1FFE}, {0x200B, 0x200F}, {0x2018, 0x2019}, {0x2024, 0x2024}, {0x2027, 0x2027}, {0x202A, 0x202E},
        {0x2060, 0x206F}, {0xFE00, 0xFE0F},
    };
    if (c < 0x80) return c == '\'' || c == '.' || c == ':' || c == '^' || c == '`' || c == ',';
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        if (c >= marks[i].first && c <= marks[i].last) return true;
    return false;
}

/* Whether c, which is no mark, has case: the letters of Europe's scripts have, but for some of phonetics. */
static bool cased(uint32_t c)
{
    if (c < 0x80) return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    if (c == 0x1BB || (c >= 0x1C0 && c <= 0x1C3) || c == 0x294) return false;
    return (c < 0x590 || (c >= 0x1E00 && c < 0x2000)) && is_eval_word_char(c);
}

/* The rule of Unicode's SpecialCasing: a letter before the sigma, none behind it. */
static bool ends_word(const char *begin, const char *sigma, const char *behind, const char *end)
{
    uint32_t c = 0;
    while (sigma > begin) {
        c = before(begin, sigma);
        if (!skipped(c)) break;
        sigma--;
        while (sigma > begin && ((unsigned char)*sigma & 0xC0) == 0x80) sigma--;
    }
    if (sigma == begin || !cased(c)) return false;
    while (behind < end) {
        c = is_eval_next(&behind, end);
        if (!skipped(c)) return !cased(c);
    }
    return true;
}

bool is_eval_lower(const char *text, size_t n, char *out, size_t size)
{
    const char *end = text + n;
    size_t used = 0;
    for (const char *at = text; at < end;) {
        const char *letter = at;
        uint32_t c = is_eval_next(&at, end);
        char bytes[6];
        size_t n_bytes = 0;
        if (c == DOTTED_I) {
            n_bytes = encode('i', bytes);
            n_bytes += encode(0x307, bytes + n_bytes); /* the dot above stays */
        } else if (c == SIGMA && ends_word(text, letter, at, end)) {
            n_bytes = encode(FINAL_SIGMA, bytes);
        } else {
            n_bytes = encode(small(c), bytes);
        }
        if (size - used <= n_bytes) return false;
        for (size_t i = 0; i < n_bytes; i++) out[used++] = bytes[i];
    }
    if (used == size) return false;
    out[used] = '\0';
    return true;
}
