/*
 * Parts of chunks as files: their names, and reading and writing them.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../common/file.h"
#include "internal.h"

#define LARGEST_FILE ((off_t)1 << 40)

/* ------------------------------------------------------------ names */

bool is_hex(const char *text, size_t n)
{
    return strspn(text, "0123456789abcdef") >= n;
}

bool is_part_key(const char *key)
{
    return is_hex(key, IS_CONNECTOR_KEY);
}

void is_part_name(const char *key, uint32_t rank, uint32_t world, char out[IS_PART_NAME])
{
    (void)snprintf(out, IS_PART_NAME, "%.2s/%.*s.parts/%uof%u", key + 2, IS_CONNECTOR_KEY, key, rank, world);
}

void is_hex_bytes(const char *digits, uint8_t *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char two[3] = {digits[2 * i], digits[2 * i + 1], '\0'};
        out[i] = (uint8_t)strtoul(two, NULL, 16);
    }
}

int64_t is_part_number(const char *key, uint8_t bytes[IS_KEY_BYTES])
{
    uint64_t number = 0;
    memset(bytes, 0, IS_KEY_BYTES);
    is_hex_bytes(key, bytes, IS_CONNECTOR_KEY / 2);
    for (int i = 0; i < IS_CONNECTOR_KEY / 2; i++) number = number << 8 | bytes[i];
    return (int64_t)(number & INT64_MAX);
}

void is_part_key_of(const uint8_t bytes[IS_KEY_BYTES], char out[IS_CONNECTOR_KEY + 1])
{
    for (size_t i = 0; i < IS_CONNECTOR_KEY / 2; i++) (void)snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

/* ------------------------------------------------------------ files */

static is_status read_file(int fd, const char *name, void **bytes, size_t *size, is_error *err)
{
    struct stat about;
    if (fstat(fd, &about) != 0 || about.st_size <= 0 || about.st_size > LARGEST_FILE)
        return is_fail(err, IS_ECORRUPT, "chunk %s is not of a chunk's size", name);
    *size = (size_t)about.st_size;
    uint8_t *memory = is_chunk_memory(*size);
    if (memory == NULL) return is_fail(err, IS_ENOMEM, "no memory for chunk %s of %zu bytes", name, *size);
    *bytes = memory;
    if (is_file_read(fd, memory, *size) != 0) return is_fail(err, IS_EIO, "chunk %s cannot be read to its end", name);
    return IS_OK;
}

is_status is_part_read(const is_connector *c, const char *name, void **bytes, is_chunk *chunk, is_error *err)
{
    size_t size = 0;
    is_error why = {0};
    *bytes = NULL;
    int fd = openat(c->folder_fd, name, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? is_fail(err, IS_ENOTFOUND, "chunk %s is not there", name)
                               : is_fail(err, IS_EIO, "chunk %s cannot be opened: %s", name, strerror(errno));
    is_status status = read_file(fd, name, bytes, &size, err);
    (void)close(fd);
    if (status == IS_OK && is_chunk_open(chunk, *bytes, size, IS_CHUNK_CHECK_PAYLOAD, &why) != IS_OK)
        status = is_fail(err, IS_ECORRUPT, "chunk %s is broken: %.800s", name, why.text);
    if (status == IS_OK &&
        (memcmp(chunk->info.fingerprint, c->fingerprint, 16) != 0 || is_chunk_fits(chunk, &c->layout, NULL) != IS_OK))
        status = is_fail(err, IS_EINVAL, "chunk %s is another model's", name);
    if (status == IS_OK) return IS_OK;
    free(*bytes);
    *bytes = NULL;
    return status;
}

is_status is_part_write(const is_connector *c, const char *name, const void *bytes, size_t size, is_error *err)
{
    char folder[IS_PART_NAME], temporary[IS_PART_NAME + 32];
    uint64_t number = 0; /* not the process's, which another machine's has too */
    if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number)
        return is_fail(err, IS_EIO, "the system gives no random numbers: %s", strerror(errno));
    (void)snprintf(folder, sizeof folder, "%s", name);
    char *part = strrchr(folder, '/');
    *part++ = '\0';
    (void)snprintf(temporary, sizeof temporary, "%s.%016llx.tmp", part, (unsigned long long)number);
    int fd = openat(c->folder_fd, folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int error = fd < 0 ? errno : is_file_write(fd, temporary, O_EXCL, bytes, size);
    if (error == 0 && renameat(fd, temporary, fd, part) != 0) error = errno;
    if (error == 0 && fsync(fd) != 0) error = errno;
    if (error != 0 && fd >= 0) (void)unlinkat(fd, temporary, 0);
    if (fd >= 0) (void)close(fd);
    if (error == 0) return IS_OK;
    if (error == ENOENT) /* also when it goes while it is being written into */
        return is_fail(
            err, IS_ENOTFOUND,
            "chunk %.*s has no folder: it was forgotten meanwhile, or whoever asked for it did not make %s/%s",
            IS_CONNECTOR_KEY, strchr(folder, '/') + 1, c->folder, folder);
    return is_fail(err, IS_EIO, "cannot write chunk %s/%s: %s; check the disk's space and health", c->folder, name,
                   strerror(error));
}

uint32_t is_connector_ready(const char *folder, uint32_t world, const char *keys, uint32_t n)
{
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return 0;
    uint32_t ready = 0;
    for (bool there = true; ready < n && there; ready += there) {
        const char *key = keys + (size_t)ready * IS_CONNECTOR_KEY;
        there = is_part_key(key);
        for (uint32_t rank = 0; rank < world && there; rank++) {
            char name[IS_PART_NAME];
            is_part_name(key, rank, world, name);
            there = faccessat(fd, name, R_OK, 0) == 0;
        }
    }
    (void)close(fd);
    return ready;
}
