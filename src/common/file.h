/*
 * Whole files.
 */
#ifndef IS_FILE_H
#define IS_FILE_H

#include <stddef.h>

/* Writes and syncs a file.  flags: O_EXCL, which refuses one that is there, or O_TRUNC.  0, or an errno. */
int is_file_write(int folder, const char *name, int flags, const void *bytes, size_t size);

/* Reads the first `size` bytes.  0, an errno, or -1: the file ends before that. */
int is_file_read(int fd, void *bytes, size_t size);

#endif
