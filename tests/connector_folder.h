/* A connector's folder, as whoever asks for chunks makes and removes what is in it. */
#ifndef IS_TESTS_CONNECTOR_FOLDER_H
#define IS_TESTS_CONNECTOR_FOLDER_H

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kv_reference.h"

static inline void folder_path(const char *folder, const char *key, char out[128])
{
    (void)snprintf(out, 128, "%s/%.2s/%s.parts/0of1", folder, key + 2, key);
}

/* The folder of a chunk. */
static inline void folder_make(const char *folder, const char *key)
{
    char path[128];
    folder_path(folder, key, path);
    *strrchr(path, '/') = '\0';
    char *last = strrchr(path, '/');
    *last = '\0';
    (void)mkdir(path, 0700);
    *last = '/';
    (void)mkdir(path, 0700);
}

static inline void folder_forget(const char *folder, const char *key)
{
    char path[128];
    folder_path(folder, key, path);
    assert_int_equal(unlink(path), 0);
    *strrchr(path, '/') = '\0';
    assert_int_equal(rmdir(path), 0); /* no temporary file is left in it */
}

#endif
