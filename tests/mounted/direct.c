/* For LD_PRELOAD: regular files that a program opens to be written are opened with O_DIRECT; $DIRECT_LOG has a line for each. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static int opened(const char *name, const char *path, int flags, mode_t mode)
{
    int (*next)(const char *, int, ...) = dlsym(RTLD_NEXT, name);
    if ((flags & O_ACCMODE) != O_RDWR)
        return next(path, flags, mode);
    int file = next(path, flags | O_DIRECT, mode);
    const char *log = getenv("DIRECT_LOG");
    FILE *lines = file >= 0 && log ? fopen(log, "a") : NULL;
    if (lines) {
        fprintf(lines, "%s\n", path);
        fclose(lines);
    }
    return file;
}

#define OPEN(NAME)                                       \
    int NAME(const char *path, int flags, ...)           \
    {                                                    \
        va_list rest;                                    \
        va_start(rest, flags);                           \
        mode_t mode = flags & O_CREAT ? va_arg(rest, int) : 0; \
        va_end(rest);                                    \
        return opened(#NAME, path, flags, mode);         \
    }

OPEN(open)
OPEN(open64)
