#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <unistd.h>

int is_file_write(int folder, const char *name, int flags, const void *bytes, size_t size)
{
    int fd = openat(folder, name, O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0600);
    if (fd < 0) return errno;
    int error = 0;
    for (size_t done = 0; done < size && error == 0;) {
        ssize_t n = write(fd, (const uint8_t *)bytes + done, size - done);
        if (n >= 0) {
            done += (size_t)n;
        } else if (errno != EINTR) {
            error = errno;
        }
    }
    if (error == 0 && fsync(fd) != 0) error = errno;
    if (close(fd) != 0 && error == 0) error = errno;
    return error;
}

int is_file_read(int fd, void *bytes, size_t size)
{
    for (size_t done = 0; done < size;) {
        ssize_t n = pread(fd, (uint8_t *)bytes + done, size - done, (off_t)done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno;
        if (n == 0) return -1;
        done += (size_t)n;
    }
    return 0;
}
