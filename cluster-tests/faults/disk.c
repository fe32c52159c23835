/* A disk that fails when it is told to: preloaded into a node, it stands between the program and the C library.
 *
 * FAULTY_DISK_UNDER   the folder whose files are on the disk
 * FAULTY_DISK_FAULT   a file that names the fault; without it the disk works
 *
 *   fail-sync-once    the next sync fails with EIO, later ones succeed although what was to be synced is gone
 *   full              there is no space: of the first write to a file half arrives, every later one fails with ENOSPC
 *   stall             syncs do not return until the fault is over
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum fault { NONE, FAIL_SYNC_ONCE, FULL, STALL };

#define REAL(result, name, ...) \
    static result (*real)(__VA_ARGS__); \
    if (!real) real = (result (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

static ssize_t plain_write(int fd, const void *data, size_t length) {
    REAL(ssize_t, "write", int, const void *, size_t);
    return real(fd, data, length);
}

static int on_the_disk(int fd) {
    const char *under = getenv("FAULTY_DISK_UNDER");
    char link[64], path[4096];
    if (!under) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return strncmp(path, under, strlen(under)) == 0;
}

static enum fault fault(void) {
    const char *file = getenv("FAULTY_DISK_FAULT");
    char word[32] = "";
    int fd = file ? open(file, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return NONE;
    ssize_t length = read(fd, word, sizeof word - 1);
    close(fd);
    word[length > 0 ? length : 0] = 0;
    if (strcmp(word, "fail-sync-once") == 0) return FAIL_SYNC_ONCE;
    if (strcmp(word, "full") == 0) return FULL;
    if (strcmp(word, "stall") == 0) return STALL;
    return NONE;
}

/* Whether a sync is to fail. */
static int sync_fails(int fd) {
    int saved = errno;
    if (!on_the_disk(fd)) return 0;
    for (;;) {
        switch (fault()) {
        case STALL:
            usleep(10 * 1000);
            continue;
        case FAIL_SYNC_ONCE:
            /* Whoever removes the file has the failure. */
            if (unlink(getenv("FAULTY_DISK_FAULT")) == 0) {
                errno = EIO;
                return 1;
            }
            continue;
        case FULL:
        case NONE:
            errno = saved;
            return 0;
        }
    }
}

int fsync(int fd) {
    REAL(int, "fsync", int);
    return sync_fails(fd) ? -1 : real(fd);
}

int fdatasync(int fd) {
    REAL(int, "fdatasync", int);
    return sync_fails(fd) ? -1 : real(fd);
}

/* How much of a write arrives: all of it, a half, or none (-1). A file that was cut short once takes no more. */
static ssize_t space(int fd, size_t length) {
    static char cut[1024];
    int saved = errno;
    if (length == 0 || !on_the_disk(fd) || fault() != FULL) {
        errno = saved;
        return (ssize_t)length;
    }
    int first = fd >= 0 && fd < (int)sizeof cut && !__atomic_exchange_n(&cut[fd], 1, __ATOMIC_SEQ_CST);
    if (first && length > 1) {
        errno = saved;
        return (ssize_t)(length / 2);
    }
    errno = ENOSPC;
    return -1;
}

ssize_t write(int fd, const void *data, size_t length) {
    ssize_t room = space(fd, length);
    return room < 0 ? -1 : plain_write(fd, data, (size_t)room);
}

ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) {
    REAL(ssize_t, "pwrite", int, const void *, size_t, off_t);
    ssize_t room = space(fd, length);
    return room < 0 ? -1 : real(fd, data, (size_t)room, offset);
}

ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset) {
    REAL(ssize_t, "pwrite64", int, const void *, size_t, off64_t);
    ssize_t room = space(fd, length);
    return room < 0 ? -1 : real(fd, data, (size_t)room, offset);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    REAL(ssize_t, "writev", int, const struct iovec *, int);
    size_t length = 0;
    for (int part = 0; part < count; part++) length += parts[part].iov_len;
    /* Half a vector is as good as none. */
    if (space(fd, length) < (ssize_t)length) {
        errno = ENOSPC;
        return -1;
    }
    return real(fd, parts, count);
}
