/* Copyright (c) 2026, gpuops.fleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
/* Preloaded (LD_PRELOAD=libdeaths.so): lets a process die before, in the middle of or after the N-th thing that it does to files below one
 * directory, or has a program started for it end. Nothing in the process knows of it; it stands at the C library's border.
 *
 * Events: open for writing, write, fsync, fchmod, rename, unlink, mkdir, each with the last part of the path; and the first wait for a child
 * and that it ended, however often it is asked for. fsync is counted and not made: it matters to a power cut only, and what a cut may lose is
 * judged by the order of the events.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum { BEFORE, AFTER, TORN, FULL }; /* FULL: the disk is full, the call fails with ENOSPC */
enum { MAX_FD = 1024, SEEN_LEN = 1 << 16 };

static char watched[4096];
static size_t watched_len = 0;
static long count = 0, at = 0;
static int how = BEFORE;
static char names[MAX_FD][64];
static char seen[SEEN_LEN];

#define REAL(type, name, ...) ((type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name))

static const char *base(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool below(const char *path) {
    return watched_len > 0 && path && strncmp(path, watched, watched_len) == 0 &&
           (path[watched_len] == '/' || path[watched_len] == '\0');
}

static const char *name_of_fd(int fd) {
    return watched_len > 0 && fd >= 0 && fd < MAX_FD && names[fd][0] ? names[fd] : NULL;
}

static void die(void) {
    kill(getpid(), SIGKILL);
}

static bool begins(const char *what, const char *name) {
    count++;
    size_t used = strlen(seen);
    if (used + 100 < sizeof seen)
        snprintf(seen + used, sizeof seen - used, "%s %s\n", what, name);
    if (count == at && how == BEFORE)
        die();
    return count == at && how == FULL;
}

static void ended(void) {
    if (count == at && how == AFTER)
        die();
}

/* From now on: watch what is below `path`; die at event number `number` (0: only count). */
EXPORT void deathsWatch(const char *path, long number, int manner) {
    snprintf(watched, sizeof watched, "%s", path);
    watched_len = strlen(watched);
    memset(names, 0, sizeof names);
    seen[0] = '\0';
    count = 0;
    at = number;
    how = manner;
}

/* Every event so far, one a line. */
EXPORT const char *deathsSeen(void) {
    return seen;
}

static int opened(int fd, const char *path, bool event) {
    if (fd >= 0 && fd < MAX_FD)
        snprintf(names[fd], sizeof names[fd], "%s", below(path) ? base(path) : "");
    if (event) {
        int kept = errno;
        ended();
        errno = kept;
    }
    return fd;
}

static int open_with(const char *symbol, const char *path, int flags, mode_t mode) {
    bool event = below(path) && (flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC)) != 0;
    if (event && begins("open", base(path))) {
        errno = ENOSPC;
        return -1;
    }
    int (*real)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, symbol);
    return opened(real(path, flags, mode), path, event);
}

#define OPENER(name)                                                                                                   \
    EXPORT int name(const char *path, int flags, ...) {                                                                \
        va_list ap;                                                                                                    \
        va_start(ap, flags);                                                                                           \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(ap, mode_t) : 0;                                          \
        va_end(ap);                                                                                                    \
        return open_with(#name, path, flags, mode);                                                                    \
    }
OPENER(open)
OPENER(open64)

EXPORT int close(int fd) {
    if (fd >= 0 && fd < MAX_FD)
        names[fd][0] = '\0';
    return REAL(int, close, int)(fd);
}

EXPORT ssize_t write(int fd, const void *data, size_t size) {
    ssize_t (*real)(int, const void *, size_t) = (ssize_t(*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    const char *name = name_of_fd(fd);
    if (!name)
        return real(fd, data, size);
    if (begins("write", name)) {
        errno = ENOSPC;
        return -1;
    }
    if (count == at && how == TORN) {
        real(fd, data, size / 2);
        die();
    }
    ssize_t done = real(fd, data, size);
    ended();
    return done;
}

EXPORT int fsync(int fd) {
    const char *name = name_of_fd(fd);
    if (name && begins("fsync", name)) {
        errno = ENOSPC;
        return -1;
    }
    if (name)
        ended();
    return 0;
}

EXPORT int fchmod(int fd, mode_t mode) {
    const char *name = name_of_fd(fd);
    if (name)
        begins("fchmod", name);
    int done = REAL(int, fchmod, int, mode_t)(fd, mode);
    if (name)
        ended();
    return done;
}

EXPORT int rename(const char *from, const char *to) {
    bool event = below(to);
    if (event && begins("rename", base(to))) {
        errno = ENOSPC;
        return -1;
    }
    int done = REAL(int, rename, const char *, const char *)(from, to);
    if (event)
        ended();
    return done;
}

EXPORT int unlink(const char *path) {
    bool event = below(path);
    if (event)
        begins("unlink", base(path));
    int done = REAL(int, unlink, const char *)(path);
    if (event)
        ended();
    return done;
}

EXPORT int mkdir(const char *path, mode_t mode) {
    bool event = below(path);
    if (event && begins("mkdir", base(path))) {
        errno = ENOSPC;
        return -1;
    }
    int done = REAL(int, mkdir, const char *, mode_t)(path, mode);
    if (event) {
        int kept = errno;
        ended();
        errno = kept;
    }
    return done;
}

EXPORT pid_t waitpid(pid_t pid, int *status, int options) {
    pid_t (*real)(pid_t, int *, int) = (pid_t(*)(pid_t, int *, int))dlsym(RTLD_NEXT, "waitpid");
    static pid_t waited_for = 0;
    if (watched_len > 0 && pid > 0 && pid != waited_for) {
        waited_for = pid;
        begins("wait", "begins");
        ended();
    }
    pid_t done = real(pid, status, options);
    if (watched_len > 0 && done > 0) {
        begins("wait", "ended");
        ended();
    }
    return done;
}
