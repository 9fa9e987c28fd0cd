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

static inline int one_fails(int error) {
    if (fail_after <= 0 || --fail_after) return 0;
    errno = error;
    return 1;
}

#define malloc(bytes) (one_fails(ENOMEM) ? NULL : malloc(bytes))
#define calloc(count, bytes) (one_fails(ENOMEM) ? NULL : calloc(count, bytes))
#define memfd_create(name, flags) (one_fails(EPERM) ? -1 : memfd_create(name, flags))
#define ftruncate(file, size) (one_fails(ENOSPC) ? -1 : ftruncate(file, size))
#define mmap(a, b, c, d, e, f) (one_fails(ENOMEM) ? MAP_FAILED : mmap(a, b, c, d, e, f))
#define madvise(a, b, c) (one_fails(ENOMEM) ? -1 : madvise(a, b, c))
#define socket(a, b, c) (one_fails(EMFILE) ? -1 : socket(a, b, c))
#define bind(a, b, c) (one_fails(EACCES) ? -1 : bind(a, b, c))
#define listen(a, b) (one_fails(EOPNOTSUPP) ? -1 : listen(a, b))
#define accept4(a, b, c, d) (one_fails(EMFILE) ? -1 : accept4(a, b, c, d))
#define connect(a, b, c) (one_fails(EACCES) ? -1 : connect(a, b, c))
#define sendmsg(a, b, c) (one_fails(EPIPE) ? -1 : sendmsg(a, b, c))
#define recvmsg(a, b, c) (one_fails(ECONNRESET) ? -1 : recvmsg(a, b, c))
#define getsockopt(a, b, c, d, e) (one_fails(ENOPROTOOPT) ? -1 : getsockopt(a, b, c, d, e))
#define fcntl(a, ...) (one_fails(EPERM) ? -1 : fcntl(a, __VA_ARGS__))
#define fstat(a, b) (one_fails(EIO) ? -1 : fstat(a, b))
#define syscall(number, ...) /* of them only pidfd_open, 434 */                                    \
    ((number) == 434 && one_fails(ENOSYS) ? -1 : syscall(number, __VA_ARGS__))
#define sched_getaffinity(a, b, c) (one_fails(EINVAL) ? -1 : sched_getaffinity(a, b, c))

#endif
