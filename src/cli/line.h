/* The command line of a process that is to be started, word by word. */
#ifndef IS_CLI_LINE_H
#define IS_CLI_LINE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* All zero is empty. */
typedef struct is_line {
    char **list; /* [n], and NULL behind them once there is one */
    size_t n;
} is_line;

void is_line_add(is_line *line, const char *word); /* copies it */
/* Name and value; nothing where the value is NULL. */
void is_line_option(is_line *line, const char *name, const char *value);
/* The same with a number; nothing for 0. */
void is_line_number(is_line *line, const char *name, uint64_t value);
void is_line_free(is_line *line);

/* Writes one, with a blank in front, as somebody else would type it: without the folders of this machine. */
void is_line_show(FILE *to, const char *word);

#endif
