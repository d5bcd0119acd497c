#include "line.h"

#include <stdlib.h>
#include <string.h>

#include "cli.h"

void is_line_add(is_line *line, const char *word)
{
    char **grown = realloc(line->list, (line->n + 2) * sizeof *grown);
    char *copy = strdup(word);
    if (grown == NULL || copy == NULL) is_cli_no_memory();
    line->list = grown;
    line->list[line->n++] = copy;
    line->list[line->n] = NULL;
}

void is_line_option(is_line *line, const char *name, const char *value)
{
    if (value == NULL) return;
    is_line_add(line, name);
    is_line_add(line, value);
}

void is_line_number(is_line *line, const char *name, uint64_t value)
{
    char text[24];
    (void)snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    is_line_option(line, name, value > 0 ? text : NULL);
}

void is_line_free(is_line *line)
{
    for (size_t i = 0; i < line->n; i++) free(line->list[i]);
    free(line->list);
    *line = (is_line){0};
}

void is_line_show(FILE *to, const char *word)
{
    const char *slash = strstr(word, "://") == NULL ? strrchr(word, '/') : NULL;
    const char *equals = word[0] == '-' ? strchr(word, '=') : NULL; /* --option=/a/b */
    int kept = slash != NULL && equals != NULL && equals < slash ? (int)(equals + 1 - word) : 0;
    (void)fprintf(to, " %.*s%s", kept, word, slash != NULL ? slash + 1 : word);
}
