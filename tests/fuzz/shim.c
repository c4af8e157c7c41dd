/* Preloaded before libc: counts the calls of each kind that a process makes, and lets the n-th of one kind fail.

   Nothing is counted before shim_arm(), so that a process forked from one that has imported everything begins at 1.
   Counts and the call that failed go to a file that is shared with whoever watches. libpython, libhdf5 and torch (gloo
   and its store) reach all of these through their tables of symbols; what libc calls within itself (malloc's mmap) is
   not seen. Writes to a socket count as sends, writes to standard output and standard error by themselves, and writes
   to pipes and the like not at all.

     cc -O1 -shared -fPIC -o shim.so shim.c -ldl
*/
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { WRITE, SYNC, RENAME, MAP, SEND, SAID, OPEN, TRUNCATE, KINDS };
enum mode { ONCE, ALWAYS, SHORT };

struct told {
    long counts[KINDS];
    long failed;
    char what[512]; /* name of the call, and the file */
};

static struct told *told;
static int armed_kind = -1, armed_error, armed_mode;
static long armed_at;

/* Fails the calls of a kind from the n-th on (ALWAYS), or the n-th alone (ONCE); SHORT: it does half of its work.
   kind -1: everything is counted and nothing fails. Returns 0, or -1 where `path` cannot be shared. */
int shim_arm(const char *path, int kind, long at, int error, int mode)
{
    int file = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CREAT, 0600);
    if (file < 0 || syscall(SYS_ftruncate, file, sizeof(struct told)))
        return -1;
    void *memory = (void *)syscall(SYS_mmap, 0, sizeof(struct told), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    syscall(SYS_close, file);
    if (memory == MAP_FAILED)
        return -1;
    armed_kind = kind, armed_at = at, armed_error = error, armed_mode = mode;
    told = memory;
    return 0;
}

/* Where a call to libc goes on; asked for once. */
#define REAL(result, name, ...)                                             \
    static result (*real)(__VA_ARGS__);                                     \
    if (!real)                                                              \
        *(void **)&real = dlsym(RTLD_NEXT, #name)

/* Whether this call is one of those that fail; file: its number, or -1. */
static int fails(enum kind kind, const char *name, int file, const char *path)
{
    if (!told)
        return 0;
    long number = __atomic_add_fetch(&told->counts[kind], 1, __ATOMIC_RELAXED);
    if ((int)kind != armed_kind || (armed_mode == ALWAYS ? number < armed_at : number != armed_at))
        return 0;
    if (__atomic_fetch_add(&told->failed, 1, __ATOMIC_RELAXED) == 0) {
        char link[64];
        int begun = snprintf(told->what, sizeof told->what, "%s ", name);
        if (path) {
            snprintf(told->what + begun, sizeof told->what - begun, "%s", path);
        } else if (file >= 0) {
            snprintf(link, sizeof link, "/proc/self/fd/%d", file);
            syscall(SYS_readlink, link, told->what + begun, sizeof told->what - begun - 1);
        }
    }
    errno = armed_error;
    return 1;
}

/* What a write to this file counts as; KINDS: as nothing. */
static enum kind kind_of(int file)
{
    struct stat status;
    int before = errno;
    int bad = !told || fstat(file, &status);
    errno = before;
    if (bad)
        return KINDS;
    if (file == 1 || file == 2)
        return SAID;
    return S_ISREG(status.st_mode) ? WRITE : S_ISSOCK(status.st_mode) ? SEND : KINDS;
}

/* Whether it ends on this machine as a file does: such sockets are the harness's own, which hands out spares. */
static int of_harness(int file)
{
    struct sockaddr address = {0};
    socklen_t length = sizeof address;
    int before = errno;
    int family = getsockname(file, &address, &length) ? AF_UNSPEC : address.sa_family;
    errno = before;
    return family == AF_UNIX;
}

static int sends_fail(const char *name, int file)
{
    return told && !of_harness(file) && fails(SEND, name, file, 0);
}

static int writes_fail(const char *name, int file)
{
    enum kind kind = kind_of(file);
    return kind == SEND ? sends_fail(name, file) : kind != KINDS && fails(kind, name, file, 0);
}

ssize_t write(int file, const void *from, size_t count)
{
    REAL(ssize_t, write, int, const void *, size_t);
    if (writes_fail("write", file)) {
        if (armed_mode != SHORT)
            return -1;
        count -= count / 2;
    }
    return real(file, from, count);
}

#define PWRITE(name, offset_type)                                           \
    ssize_t name(int file, const void *from, size_t count, offset_type at)  \
    {                                                                       \
        REAL(ssize_t, name, int, const void *, size_t, offset_type);        \
        if (writes_fail(#name, file)) {                                     \
            if (armed_mode != SHORT)                                        \
                return -1;                                                  \
            count -= count / 2;                                             \
        }                                                                   \
        return real(file, from, count, at);                                 \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

/* A short one writes half of its first part. */
static ssize_t half(int file, const struct iovec *parts)
{
    return syscall(SYS_write, file, parts[0].iov_base, parts[0].iov_len - parts[0].iov_len / 2);
}

ssize_t writev(int file, const struct iovec *parts, int count)
{
    REAL(ssize_t, writev, int, const struct iovec *, int);
    if (writes_fail("writev", file))
        return armed_mode == SHORT && count ? half(file, parts) : -1;
    return real(file, parts, count);
}

#define PWRITEV(name, offset_type)                                                                       \
    ssize_t name(int file, const struct iovec *parts, int count, offset_type at)                         \
    {                                                                                                    \
        REAL(ssize_t, name, int, const struct iovec *, int, offset_type);                                \
        if (!writes_fail(#name, file))                                                                   \
            return real(file, parts, count, at);                                                         \
        if (armed_mode != SHORT || !count)                                                               \
            return -1;                                                                                   \
        return syscall(SYS_pwrite64, file, parts[0].iov_base, parts[0].iov_len - parts[0].iov_len / 2, at); \
    }
PWRITEV(pwritev, off_t)
PWRITEV(pwritev64, off64_t)

ssize_t send(int file, const void *from, size_t count, int flags)
{
    REAL(ssize_t, send, int, const void *, size_t, int);
    if (sends_fail("send", file)) {
        if (armed_mode != SHORT)
            return -1;
        count -= count / 2;
    }
    return real(file, from, count, flags);
}

ssize_t sendto(int file, const void *from, size_t count, int flags, const struct sockaddr *to, socklen_t length)
{
    REAL(ssize_t, sendto, int, const void *, size_t, int, const struct sockaddr *, socklen_t);
    if (sends_fail("sendto", file)) {
        if (armed_mode != SHORT)
            return -1;
        count -= count / 2;
    }
    return real(file, from, count, flags, to, length);
}

ssize_t sendmsg(int file, const struct msghdr *message, int flags)
{
    REAL(ssize_t, sendmsg, int, const struct msghdr *, int);
    if (sends_fail("sendmsg", file)) {
        if (armed_mode != SHORT || !message->msg_iovlen)
            return -1;
        const struct iovec *first = message->msg_iov;
        return syscall(SYS_sendto, file, first->iov_base, first->iov_len - first->iov_len / 2, flags, 0, 0);
    }
    return real(file, message, flags);
}

#define SYNCED(name)                                                        \
    int name(int file)                                                      \
    {                                                                       \
        REAL(int, name, int);                                               \
        return fails(SYNC, #name, file, 0) ? -1 : real(file);               \
    }
SYNCED(fsync)
SYNCED(fdatasync)

int rename(const char *from, const char *to)
{
    REAL(int, rename, const char *, const char *);
    return fails(RENAME, "rename", -1, to) ? -1 : real(from, to);
}

int renameat(int of, const char *from, int in, const char *to)
{
    REAL(int, renameat, int, const char *, int, const char *);
    return fails(RENAME, "renameat", -1, to) ? -1 : real(of, from, in, to);
}

int renameat2(int of, const char *from, int in, const char *to, unsigned flags)
{
    REAL(int, renameat2, int, const char *, int, const char *, unsigned);
    return fails(RENAME, "renameat2", -1, to) ? -1 : real(of, from, in, to, flags);
}

/* Of files, and of memory that processes share; not what malloc and its like ask for. */
#define MAPPED(name, offset_type)                                                                        \
    void *name(void *near, size_t length, int allowed, int flags, int file, offset_type at)              \
    {                                                                                                    \
        REAL(void *, name, void *, size_t, int, int, int, offset_type);                                  \
        int ours = !(flags & MAP_ANONYMOUS) || (flags & MAP_SHARED);                                     \
        return ours && fails(MAP, #name, file, 0) ? MAP_FAILED : real(near, length, allowed, flags, file, at); \
    }
MAPPED(mmap, off_t)
MAPPED(mmap64, off64_t)

static int opens_to_write(int flags)
{
    return (flags & O_ACCMODE) != O_RDONLY || (flags & O_CREAT);
}

#define OPENED(name)                                                        \
    int name(const char *path, int flags, ...)                              \
    {                                                                       \
        REAL(int, name, const char *, int, ...);                            \
        va_list more;                                                       \
        va_start(more, flags);                                              \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more);                                                       \
        if (opens_to_write(flags) && fails(OPEN, #name, -1, path))          \
            return -1;                                                      \
        return real(path, flags, mode);                                     \
    }
OPENED(open)
OPENED(open64)

#define OPENED_AT(name)                                                     \
    int name(int folder, const char *path, int flags, ...)                  \
    {                                                                       \
        REAL(int, name, int, const char *, int, ...);                       \
        va_list more;                                                       \
        va_start(more, flags);                                              \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more);                                                       \
        if (opens_to_write(flags) && fails(OPEN, #name, -1, path))          \
            return -1;                                                      \
        return real(folder, path, flags, mode);                             \
    }
OPENED_AT(openat)
OPENED_AT(openat64)

int creat(const char *path, mode_t mode)
{
    REAL(int, creat, const char *, mode_t);
    return fails(OPEN, "creat", -1, path) ? -1 : real(path, mode);
}

int mkdir(const char *path, mode_t mode)
{
    REAL(int, mkdir, const char *, mode_t);
    return fails(OPEN, "mkdir", -1, path) ? -1 : real(path, mode);
}

int mkdirat(int folder, const char *path, mode_t mode)
{
    REAL(int, mkdirat, int, const char *, mode_t);
    return fails(OPEN, "mkdirat", -1, path) ? -1 : real(folder, path, mode);
}

#define TRUNCATED(name, length_type)                                        \
    int name(int file, length_type length)                                  \
    {                                                                       \
        REAL(int, name, int, length_type);                                  \
        return fails(TRUNCATE, #name, file, 0) ? -1 : real(file, length);   \
    }
TRUNCATED(ftruncate, off_t)
TRUNCATED(ftruncate64, off64_t)

/* These return the error's number instead of setting errno. */
#define RESERVED(name, offset_type)                                         \
    int name(int file, offset_type at, offset_type length)                  \
    {                                                                       \
        REAL(int, name, int, offset_type, offset_type);                     \
        return fails(TRUNCATE, #name, file, 0) ? armed_error : real(file, at, length); \
    }
RESERVED(posix_fallocate, off_t)
RESERVED(posix_fallocate64, off64_t)
