/* What the program runs on, as Linux tells it: numbers mean little without it. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

/* What makes injection and prefill fast, of all that a processor lists. */
static const char *const FEATURES[] = {"avx2",        "fma",         "f16c",     "avx512f",  "avx512bw",
                                       "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_int8", "amx_bf16", /* x86 */
                                       "asimd",       "asimdhp",     "asimddp",  "i8mm",     "sve"};     /* Arm */

/* The value of a line "name   : value", or NULL. */
static char *value_of(char *line, const char *name)
{
    size_t n = strlen(name);
    char *colon = strchr(line, ':');
    if (strncmp(line, name, n) != 0 || colon == NULL || line + n + strspn(line + n, " \t") != colon) return NULL;
    colon[1 + strcspn(colon + 1, "\n")] = '\0';
    return colon + 1 + strspn(colon + 1, " ");
}

static bool has_word(const char *words, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = strstr(words, word); p != NULL; p = strstr(p + n, word))
        if ((p == words || p[-1] == ' ') && (p[n] == ' ' || p[n] == '\0')) return true;
    return false;
}

static json_t *features(const char *words)
{
    json_t *list = json_array();
    for (size_t i = 0; i < sizeof FEATURES / sizeof FEATURES[0]; i++)
        if (has_word(words, FEATURES[i])) is_cli_append(list, json_string(FEATURES[i]));
    return list;
}

json_t *is_cli_machine(void)
{
    json_t *machine = json_object();
    long pages = sysconf(_SC_PHYS_PAGES);
    is_cli_set(machine, "cpu", json_string("unknown"));
    is_cli_set(machine, "cores", json_integer(sysconf(_SC_NPROCESSORS_ONLN)));
    is_cli_set(machine, "memory_bytes", json_integer((json_int_t)pages * sysconf(_SC_PAGESIZE)));
    is_cli_set(machine, "features", json_array());
    FILE *in = fopen("/proc/cpuinfo", "re");
    char *line = NULL;
    size_t room = 0;
    while (in != NULL && getline(&line, &room, in) > 0 && line[0] != '\n') { /* the first processor's lines */
        const char *value = value_of(line, "model name");
        if (value != NULL) is_cli_set(machine, "cpu", is_cli_json_text(value));
        value = value_of(line, "flags");
        if (value == NULL) value = value_of(line, "Features");
        if (value != NULL) is_cli_set(machine, "features", features(value));
    }
    free(line);
    if (in != NULL) (void)fclose(in);
    return machine;
}
