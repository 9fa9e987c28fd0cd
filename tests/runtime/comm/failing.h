/* Included before every file of the library by -include: the n-th of its calls for memory, memory
 * files, sockets and descriptors fails in a chosen process, and all after it succeed. */
#ifndef FAILING_H
#define FAILING_H
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

extern long fail_after; /* counts down; the call that finds 1 fails */

static inline int must_fail(int error) {
    if (fail_after <= 0 || --fail_after) return 0;
    errno = error;
    return 1;
}

#define malloc(bytes) (must_fail(ENOMEM) ? NULL : malloc(bytes))
#define calloc(count, bytes) (must_fail(ENOMEM) ? NULL : calloc(count, bytes))
#define memfd_create(name, flags) (must_fail(EPERM) ? -1 : memfd_create(name, flags))
#define ftruncate(file, size) (must_fail(ENOSPC) ? -1 : ftruncate(file, size))
#define mmap(a, b, c, d, e, f) (must_fail(ENOMEM) ? MAP_FAILED : mmap(a, b, c, d, e, f))
#define madvise(a, b, c) (must_fail(ENOMEM) ? -1 : madvise(a, b, c))
#define socket(a, b, c) (must_fail(EMFILE) ? -1 : socket(a, b, c))
#define bind(a, b, c) (must_fail(EACCES) ? -1 : bind(a, b, c))
#define listen(a, b) (must_fail(EOPNOTSUPP) ? -1 : listen(a, b))
#define accept4(a, b, c, d) (must_fail(EMFILE) ? -1 : accept4(a, b, c, d))
#define connect(a, b, c) (must_fail(EACCES) ? -1 : connect(a, b, c))
#define sendmsg(a, b, c) (must_fail(EPIPE) ? -1 : sendmsg(a, b, c))
#define recvmsg(a, b, c) (must_fail(ECONNRESET) ? -1 : recvmsg(a, b, c))
#define getsockopt(a, b, c, d, e) (must_fail(ENOPROTOOPT) ? -1 : getsockopt(a, b, c, d, e))
#define sched_getaffinity(a, b, c) (must_fail(EINVAL) ? -1 : sched_getaffinity(a, b, c))

#endif
