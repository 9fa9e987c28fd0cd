/* One memory file of weights for all processes of a user: made by the first, found by the others in
 * /proc among the descriptors of those that have it.  It lives as long as one of them. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "runtime.h"

/* Headers of old C libraries lack these. */
#ifndef F_ADD_SEALS
#define F_ADD_SEALS 1033
#define F_GET_SEALS 1034
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
enum { SEALS = 0xF, MFD = 0x3 }; /* F_SEAL_SEAL, _SHRINK, _GROW, _WRITE; MFD_CLOEXEC, _ALLOW_SEALING */

static const size_t huge_page = (size_t)2 << 20;

/* Maps a memory file on huge pages; false where the system has none for it. */
static bool map(int file, size_t size, tcc_weights *out_weights) {
    size_t room = size + huge_page;
    char *memory = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return false;
    char *base = memory + (huge_page - (uintptr_t)memory % huge_page) % huge_page;
    if (mmap(base, size, PROT_READ, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED ||
        madvise(base, size / huge_page * huge_page, MADV_COLLAPSE)) {
        munmap(memory, room);
        return false;
    }
    *out_weights = (tcc_weights){base, size, memory, room, file};
    return true;
}

/* Nobody can change or cut the file, it is this user's, and it holds just these bytes. */
static bool is_sound(int file, const char *bytes, size_t size, tcc_weights *out_weights) {
    struct stat about; /* the kernel's own layout; a C library of 2012 has no function fstat */
    if (syscall(SYS_fstat, file, &about) || about.st_uid != geteuid() ||
        about.st_size != (off_t)size || (fcntl(file, F_GET_SEALS) & SEALS) != SEALS ||
        !map(file, size, out_weights))
        return false;
    if (memcmp(out_weights->base, bytes, size) == 0) return true;
    munmap(out_weights->mapping, out_weights->mapped);
    return false;
}

/* ---- finding ----------------------------------------------------------------------------------------- */

/* Looks at the descriptors of the process whose folder in /proc this is. */
static bool find_in(const char *process, const char *name, const char *bytes, size_t size,
                    tcc_weights *out_weights) {
    char path[600], target[300];
    (void)snprintf(path, sizeof path, "/proc/%.20s/fd", process);
    DIR *folder = opendir(path);
    if (!folder) return false; /* another user's, or it has ended */
    bool found = false;
    for (struct dirent *entry; !found && (entry = readdir(folder));) {
        (void)snprintf(path, sizeof path, "/proc/%.20s/fd/%s", process, entry->d_name);
        ssize_t length = readlink(path, target, sizeof target - 1);
        if (length <= 0) continue;
        target[length] = 0;
        if (strcmp(target, name) != 0) continue;
        int file = open(path, O_RDONLY | O_CLOEXEC);
        found = file >= 0 && is_sound(file, bytes, size, out_weights);
        if (file >= 0 && !found) close(file);
    }
    closedir(folder);
    return found;
}

static bool find(const char *name, const char *bytes, size_t size, tcc_weights *out_weights) {
    char shown[300];
    (void)snprintf(shown, sizeof shown, "/memfd:%s (deleted)", name);
    DIR *folder = opendir("/proc");
    if (!folder) return false;
    bool found = false;
    for (struct dirent *entry; !found && (entry = readdir(folder));)
        found = entry->d_name[0] >= '0' && entry->d_name[0] <= '9' &&
                find_in(entry->d_name, shown, bytes, size, out_weights);
    closedir(folder);
    return found;
}

/* ---- making ------------------------------------------------------------------------------------------ */

/* Writes, because that fails where there is no memory; touching pages would end in a signal. */
static bool write_all(int file, const char *bytes, size_t size) {
    for (size_t done = 0; done < size;) {
        ssize_t wrote = pwrite(file, bytes + done, size - done, (off_t)done);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0) return false;
        done += (size_t)wrote;
    }
    return true;
}

static bool make(const char *name, const char *bytes, size_t size, tcc_weights *out_weights) {
    int file = (int)syscall(SYS_memfd_create, name, MFD);
    if (file < 0) return false;
    if (write_all(file, bytes, size) && fcntl(file, F_ADD_SEALS, SEALS) == 0 &&
        map(file, size, out_weights))
        return true;
    close(file);
    return false;
}

/* So that processes which start together make one; not for long, for anybody may hold the lock. */
static bool lock(int file) {
    enum { TRIES = 200, NAP = 10000000 };
    const struct timespec nap = {0, NAP};
    for (int i = 0; i < TRIES; i++) {
        if (syscall(SYS_flock, file, LOCK_EX | LOCK_NB) == 0) return true;
        if (errno != EWOULDBLOCK && errno != EINTR) return false;
        nanosleep(&nap, NULL);
    }
    return false;
}

bool tcc_weights_share(int file, const char *name, const char *bytes, size_t size,
                       tcc_weights *out_weights) {
    bool locked = lock(file);
    bool shared = find(name, bytes, size, out_weights) || make(name, bytes, size, out_weights);
    if (locked) (void)syscall(SYS_flock, file, LOCK_UN);
    return shared;
}
