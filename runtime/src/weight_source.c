/* Reads weights from their file, or from memory of the program that links them. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime.h"

bool tcc_weights_read(const tcc_weight_source *from, size_t at, char *to, size_t size) {
    if (from->memory) {
        char *pages = (char *)(uintptr_t)from->memory + at;
        memcpy(to, pages, size);
        if (from->from_file && size >= TCC_WEIGHT_BLOCK) (void)madvise(pages, size, MADV_DONTNEED);
        return true;
    }
    for (size_t done = 0; done < size;) {
        errno = 0;
        ssize_t got = pread(from->file, to + done, size - done, from->offset + (int64_t)(at + done));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        done += (size_t)got;
    }
    return true;
}
