/* A server that a benchmark starts as a process of its own, and ends again whatever happens. */
#ifndef IS_CLI_CHILD_H
#define IS_CLI_CHILD_H

#include <stdio.h>
#include <sys/types.h>

#include "common/common.h"

typedef struct is_child {
    pid_t pid; /* 0: none */
    FILE *log; /* what it prints; gone with the process */
    char url[64];
} is_child;

/*
 * Starts argv (NULL behind the last word) with "--port N" behind it, where N is a free port of 127.0.0.1.  Settings of
 * either server in the environment do not reach it: what is measured is what argv says.  out: is_child_stop.
 */
is_status is_child_start(const char *const *argv, is_child *out, is_error *err);
/* Waits until `path` is answered with 200.  go_on: asked meanwhile, false is IS_ECANCELED. */
is_status is_child_wait(is_child *child, const char *path, bool (*go_on)(void), is_error *err);
/* IS_EENGINE with the last line that it printed when the process has ended. */
is_status is_child_check(is_child *child, is_error *err);
void is_child_stop(is_child *child);

#endif
