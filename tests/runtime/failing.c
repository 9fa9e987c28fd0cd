/* Makes system calls fail; all tests share this interposer.
 *
 * As a library to preload (-shared -fPIC) it watches the calls of the objects whose file name
 * contains $FAIL_OF, beginning with the dlopen of one of them.  $FAIL_AT is the number of the call
 * that fails, counted from 1.  $FAIL_ON=1 lets all calls after it fail too, and $FAIL_ERROR chooses
 * among the errors that the call may have.  At the end it writes "calls N" and "refused N" to
 * $FAIL_TO.  Linked into a program with -DWRAPPED and --wrap=NAME for each name here, it watches
 * all calls while `fail_at` is not 0, under sanitizers too.
 *
 * Each FAILS is a function: result, name, parameters, arguments, the result that says it failed,
 * errors. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "failing.h"

long fail_at, fail_calls, fail_refused;
int fail_on, fail_error;

#ifdef WRAPPED
#define OUR(name) __wrap_##name
#define THEIRS(name) __real_##name
#define DECLARE(result, name, parameters) result __real_##name parameters;
static int is_watched(const void *caller) { return (void)caller, fail_at != 0; }
#else
#define OUR(name) name
#define THEIRS(name) ((__typeof__(&name))next_of(&place_of_##name, #name))
#define DECLARE(result, name, parameters) static void *place_of_##name;

static const char *watched; /* NULL: no file is watched yet */

static void *next_of(void **place, const char *name) {
    if (!*place) *place = dlsym(RTLD_NEXT, name);
    return *place;
}

static int is_watched(const void *caller) {
    Dl_info about;
    return watched && dladdr(caller, &about) && about.dli_fname && strstr(about.dli_fname, watched);
}

static long number_of(const char *variable) {
    const char *text = getenv(variable);
    return text ? atol(text) : 0;
}

__attribute__((destructor)) static void tell(void) {
    const char *path = getenv("FAIL_TO");
    FILE *file = watched && path ? fopen(path, "w") : NULL;
    if (!file) return;
    fprintf(file, "calls %ld\nrefused %ld\n", fail_calls, fail_refused);
    fclose(file);
}

/* Begins to watch at the first dlopen of a watched file. */
static void watch(const char *path) {
    const char *name = getenv("FAIL_OF");
    if (watched || !name || !path || !strstr(path, name)) return;
    fail_at = number_of("FAIL_AT");
    fail_on = (int)number_of("FAIL_ON");
    fail_error = (int)number_of("FAIL_ERROR");
    watched = name;
}
#endif

/* Returns true, with errno set, if this call must fail. */
static int refuse(const void *caller, const int *errors, size_t count) {
    if (!is_watched(caller)) return 0;
    long number = __atomic_add_fetch(&fail_calls, 1, __ATOMIC_SEQ_CST);
    if (!fail_at || number < fail_at || (!fail_on && number > fail_at)) return 0;
    int error = errors[(size_t)fail_error % count];
    if (error == EINTR && number > fail_at) return 0; /* only one signal interrupts */
    __atomic_add_fetch(&fail_refused, 1, __ATOMIC_SEQ_CST);
    errno = error;
    return 1;
}

#define REFUSED(...)                                                                               \
    refuse(__builtin_return_address(0), (const int[]){__VA_ARGS__},                                \
           sizeof(int[]){__VA_ARGS__} / sizeof(int))
#define FAILS(result, name, parameters, arguments, failure, ...)                                   \
    DECLARE(result, name, parameters)                                                              \
    result OUR(name) parameters { return REFUSED(__VA_ARGS__) ? (failure) : THEIRS(name) arguments; }
/* Defines a function that returns its error instead of setting errno. */
#define SAYS(name, parameters, arguments, ...)                                                     \
    DECLARE(int, name, parameters)                                                                 \
    int OUR(name) parameters { return REFUSED(__VA_ARGS__) ? errno : THEIRS(name) arguments; }

/* ---- memory --------------------------------------------------------------------------------------- */

#ifdef WRAPPED
FAILS(void *, malloc, (size_t size), (size), NULL, ENOMEM)
FAILS(void *, calloc, (size_t count, size_t size), (count, size), NULL, ENOMEM)
FAILS(void *, realloc, (void *old, size_t size), (old, size), NULL, ENOMEM)
#else /* dlsym itself allocates memory */
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *old, size_t size);
void *malloc(size_t size) { return REFUSED(ENOMEM) ? NULL : __libc_malloc(size); }
void *calloc(size_t count, size_t size) { return REFUSED(ENOMEM) ? NULL : __libc_calloc(count, size); }
void *realloc(void *old, size_t size) { return REFUSED(ENOMEM) ? NULL : __libc_realloc(old, size); }
#endif
FAILS(void *, aligned_alloc, (size_t alignment, size_t size), (alignment, size), NULL, ENOMEM)
SAYS(posix_memalign, (void **out, size_t alignment, size_t size), (out, alignment, size), ENOMEM)
FAILS(void *, mmap, (void *at, size_t size, int access, int flags, int file, off_t offset),
      (at, size, access, flags, file, offset), MAP_FAILED, ENOMEM, EAGAIN, ENFILE)
FAILS(int, mprotect, (void *at, size_t size, int access), (at, size, access), -1, ENOMEM, EACCES)
FAILS(int, madvise, (void *at, size_t size, int advice), (at, size, advice), -1, ENOMEM, EINVAL, EAGAIN)

/* ---- files ---------------------------------------------------------------------------------------- */

FAILS(FILE *, fopen, (const char *path, const char *mode), (path, mode), NULL, EMFILE, ENFILE, ENOMEM,
      EACCES)
FAILS(FILE *, fdopen, (int file, const char *mode), (file, mode), NULL, ENOMEM)
FAILS(char *, fgets, (char *line, int size, FILE *file), (line, size, file), NULL, EIO)
FAILS(ssize_t, __getdelim, (char **line, size_t *size, int end, FILE *file), (line, size, end, file), -1,
      ENOMEM, EIO)
FAILS(DIR *, opendir, (const char *path), (path), NULL, EMFILE, ENOMEM)
FAILS(struct dirent *, readdir, (DIR * folder), (folder), NULL, EIO)
FAILS(ssize_t, readlink, (const char *path, char *out, size_t size), (path, out, size), -1, EACCES)
FAILS(ssize_t, read, (int file, void *out, size_t size), (file, out, size), -1, EIO, EINTR)
FAILS(ssize_t, write, (int file, const void *data, size_t size), (file, data, size), -1, EIO, ENOSPC)
FAILS(ssize_t, pread, (int file, void *out, size_t size, off_t at), (file, out, size, at), -1, EIO, EINTR,
      ENOMEM)
FAILS(ssize_t, pwrite, (int file, const void *data, size_t size, off_t at), (file, data, size, at), -1,
      ENOSPC, EINTR, ENOMEM)
FAILS(off_t, lseek, (int file, off_t at, int from), (file, at, from), -1, EINVAL, EOVERFLOW)
FAILS(int, ftruncate, (int file, off_t size), (file, size), -1, ENOSPC, EINTR, EFBIG)

/* ---- threads and limits ----------------------------------------------------------------------------- */

SAYS(pthread_create, (pthread_t * out, const pthread_attr_t *how, void *(*run)(void *), void *argument),
     (out, how, run, argument), EAGAIN, EPERM)
SAYS(pthread_attr_init, (pthread_attr_t * out), (out), ENOMEM)
SAYS(pthread_key_create, (pthread_key_t * out, void (*end)(void *)), (out, end), EAGAIN, ENOMEM)
FAILS(int, sched_getaffinity, (pid_t thread, size_t size, cpu_set_t *out), (thread, size, out), -1, EINVAL)
FAILS(int, sched_setaffinity, (pid_t thread, size_t size, const cpu_set_t *set), (thread, size, set), -1,
      EINVAL, EPERM)
FAILS(int, getrlimit, (__rlimit_resource_t which, struct rlimit *out), (which, out), -1, EINVAL)
FAILS(int, getrusage, (__rusage_who_t who, struct rusage *out), (who, out), -1, EINVAL)
FAILS(locale_t, newlocale, (int mask, const char *name, locale_t base), (mask, name, base), (locale_t)0,
      ENOMEM)
FAILS(int, nanosleep, (const struct timespec *time, struct timespec *left), (time, left), -1, EINTR)

/* ---- sockets -------------------------------------------------------------------------------------- */

FAILS(int, socket, (int domain, int type, int protocol), (domain, type, protocol), -1, EMFILE, ENOBUFS,
      EAFNOSUPPORT)
FAILS(int, bind, (int file, const struct sockaddr *at, socklen_t size), (file, at, size), -1, EACCES,
      EADDRINUSE)
FAILS(int, listen, (int file, int length), (file, length), -1, EOPNOTSUPP, EADDRINUSE)
FAILS(int, accept4, (int file, struct sockaddr *at, socklen_t *size, int flags), (file, at, size, flags),
      -1, EMFILE, EINTR, ECONNABORTED, EAGAIN)
FAILS(int, connect, (int file, const struct sockaddr *at, socklen_t size), (file, at, size), -1, EACCES,
      ECONNREFUSED, EINTR, EAGAIN)
FAILS(ssize_t, sendmsg, (int file, const struct msghdr *message, int flags), (file, message, flags), -1,
      EPIPE, EINTR, EAGAIN, ETOOMANYREFS)
FAILS(ssize_t, recvmsg, (int file, struct msghdr *message, int flags), (file, message, flags), -1,
      ECONNRESET, EINTR, EAGAIN, ENOMEM)
FAILS(ssize_t, send, (int file, const void *data, size_t size, int flags), (file, data, size, flags), -1,
      EPIPE, EINTR, EAGAIN)
FAILS(ssize_t, recv, (int file, void *out, size_t size, int flags), (file, out, size, flags), -1,
      ECONNRESET, EINTR, EAGAIN)
FAILS(int, getsockopt, (int file, int level, int name, void *out, socklen_t *size),
      (file, level, name, out, size), -1, ENOPROTOOPT)
FAILS(int, setsockopt, (int file, int level, int name, const void *value, socklen_t size),
      (file, level, name, value, size), -1, ENOPROTOOPT)
FAILS(int, getpeername, (int file, struct sockaddr *out, socklen_t *size), (file, out, size), -1, ENOTCONN)
FAILS(int, poll, (struct pollfd * files, nfds_t count, int time), (files, count, time), -1, EINTR, ENOMEM)
FAILS(int, gethostname, (char *out, size_t size), (out, size), -1, ENAMETOOLONG)

/* ---- with a number of arguments of their own -------------------------------------------------------- */

DECLARE(int, open, (const char *path, int flags, ...))
int OUR(open)(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, int) : 0;
    va_end(more);
    return REFUSED(EMFILE, ENFILE, ENOMEM, EACCES, EINTR) ? -1 : THEIRS(open)(path, flags, mode);
}

DECLARE(int, fcntl, (int file, int command, ...))
int OUR(fcntl)(int file, int command, ...) {
    va_list more;
    va_start(more, command);
    long argument = va_arg(more, long);
    va_end(more);
    return REFUSED(EPERM, EINVAL) ? -1 : THEIRS(fcntl)(file, command, argument);
}

DECLARE(void *, mremap, (void *old, size_t old_size, size_t size, int flags, ...))
void *OUR(mremap)(void *old, size_t old_size, size_t size, int flags, ...) {
    va_list more;
    va_start(more, flags);
    void *at = flags & MREMAP_FIXED ? va_arg(more, void *) : NULL;
    va_end(more);
    return REFUSED(ENOMEM, EAGAIN) ? MAP_FAILED : THEIRS(mremap)(old, old_size, size, flags, at);
}

/* Returns the errors with which a system call may fail.  Calls that wake a thread, ask for its own
 * number or end it cannot fail. */
static int fails_of(long number, long operation) {
    if (number == SYS_futex) return (operation & 127) == 0 ? EINTR : 0;
    if (number == SYS_gettid || number == SYS_exit_group) return 0;
    if (number == SYS_getrandom) return EAGAIN;
    if (number == SYS_memfd_create) return EMFILE;
    if (number == SYS_fstat) return EIO;
    return ENOSYS; /* membarrier, pidfd_open and future calls */
}

DECLARE(long, syscall, (long number, ...))
long OUR(syscall)(long number, ...) {
    va_list more;
    long a[6];
    va_start(more, number);
    for (int i = 0; i < 6; i++) a[i] = va_arg(more, long);
    va_end(more);
    int error = fails_of(number, a[1]);
    if (error && REFUSED(error, EPERM)) {
        if (number == SYS_futex) errno = error;
        return -1;
    }
    return THEIRS(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

DECLARE(int, getaddrinfo, (const char *, const char *, const struct addrinfo *, struct addrinfo **))
int OUR(getaddrinfo)(const char *name, const char *port, const struct addrinfo *hints,
                     struct addrinfo **out) {
    if (!REFUSED(EAI_AGAIN, EAI_MEMORY, EAI_NONAME)) return THEIRS(getaddrinfo)(name, port, hints, out);
    return errno;
}

DECLARE(int, __register_atfork, (void (*)(void), void (*)(void), void (*)(void), void *))
int OUR(__register_atfork)(void (*before)(void), void (*parent)(void), void (*child)(void), void *library) {
    return REFUSED(ENOMEM) ? errno : THEIRS(__register_atfork)(before, parent, child, library);
}

DECLARE(void *, dlopen, (const char *path, int flags))
void *OUR(dlopen)(const char *path, int flags) {
#ifndef WRAPPED
    watch(path);
#endif
    return REFUSED(ENOMEM) ? NULL : THEIRS(dlopen)(path, flags);
}
