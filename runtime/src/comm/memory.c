/* Makes memory files: processes share them by passing their descriptor, and they vanish with the
 * last process that has them. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "packet.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

size_t tcc_memory_round(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return bytes > SIZE_MAX - page ? 0 : (bytes + page - 1) / page * page;
}

tcc_status tcc_memory_make(size_t bytes, int *out_file) {
    struct rlimit limit; /* a file beyond the limit raises a signal, which ends the process */
    if (bytes > INT64_MAX || (!getrlimit(RLIMIT_FSIZE, &limit) && bytes > limit.rlim_cur))
        return tcc_fail(TCC_SYSTEM,
                        "a memory file of %zu bytes: the limit of file sizes (ulimit -f)", bytes);
    int file = (int)syscall(SYS_memfd_create, "tcc-comm", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (file < 0) return tcc_fail(TCC_SYSTEM, "a memory file: %s", strerror(errno));
    if (ftruncate(file, (off_t)bytes) || fcntl(file, F_ADD_SEALS, SEALS)) {
        tcc_fail(TCC_SYSTEM, "a memory file of %zu bytes: %s", bytes, strerror(errno));
        close(file);
        return TCC_SYSTEM;
    }
    *out_file = file;
    return TCC_OK;
}

tcc_status tcc_memory_map(int file, size_t bytes, void **out_memory) {
    struct stat about; /* the kernel's own layout, because a C library of 2012 has no function
                          fstat */
    int seals = fcntl(file, F_GET_SEALS);
    if (seals < 0 || (seals & SEALS) != SEALS || syscall(SYS_fstat, file, &about) ||
        about.st_size != (off_t)bytes || about.st_uid != geteuid())
        return tcc_fail(TCC_SYSTEM,
                        "rank 0 passed something else than a sealed memory file of %zu bytes that "
                        "this user owns",
                        bytes);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED)
        return tcc_fail(TCC_OUT_OF_MEMORY, "%zu bytes of shared memory: %s", bytes,
                        strerror(errno));
    *out_memory = memory;
    return TCC_OK;
}

tcc_status tcc_memory_populate(void *memory, size_t bytes) {
    if (bytes >= (size_t)4 << 20) (void)madvise(memory, bytes, MADV_HUGEPAGE); /* advice only */
    if (!bytes || !madvise(memory, bytes, MADV_POPULATE_WRITE)) return TCC_OK;
    if (errno == EINVAL || errno == ENOSYS) return TCC_OK; /* before Linux 5.14, pages come at first
                                                              use */
    return tcc_fail(TCC_OUT_OF_MEMORY, "%zu bytes of shared memory: %s", bytes, strerror(errno));
}
