/* One memory file of weights for all processes of a user: made by the first, found by the others in
 * /proc among the descriptors of those that have it.  It lives as long as one of them. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
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
    *out_weights = (tcc_weights){base, size, memory, room, file, 0};
    return true;
}

/* What is looked for: the bytes of a part, in a file of this name. */
typedef struct wanted {
    char shown[300]; /* by /proc */
    const char *bytes;
    size_t size;
    uint64_t own; /* number of the file that this process makes */
    bool first;   /* this process has the lock of the artifact */
    bool busy;    /* another process of this user is making one, or comes first */
} wanted;

static bool lock(int file, int operation) { return syscall(SYS_flock, file, operation | LOCK_NB) == 0; }

/* Nobody can change or cut the file, it is this user's, and it holds just these bytes. */
static bool is_sound(int file, wanted *wanted, tcc_weights *out_weights) {
    struct stat about; /* the kernel's own layout; a C library of 2012 has no function fstat */
    int seals = fcntl(file, F_GET_SEALS);
    if (seals < 0 || syscall(SYS_fstat, file, &about) || about.st_uid != geteuid()) return false;
    if ((seals & SEALS) != SEALS) { /* who makes it holds a lock on it, and gives it a size */
        bool before = about.st_size || (!wanted->first && about.st_ino < wanted->own);
        if (before && about.st_ino != wanted->own) wanted->busy |= !lock(file, LOCK_SH);
        return false;
    }
    if (about.st_size != (off_t)wanted->size || !map(file, wanted->size, out_weights)) return false;
    if (memcmp(out_weights->base, wanted->bytes, wanted->size) == 0) return true;
    munmap(out_weights->mapping, out_weights->mapped);
    return false;
}

/* ---- finding ----------------------------------------------------------------------------------------- */

/* Looks at the descriptors of the process whose folder in /proc this is. */
static bool find_in(const char *process, wanted *wanted, tcc_weights *out_weights) {
    char path[600], target[300];
    (void)snprintf(path, sizeof path, "/proc/%.20s/fd", process);
    DIR *folder = opendir(path);
    if (!folder) return false; /* another user's, or it has ended */
    struct stat about;
    bool own = !syscall(SYS_fstat, dirfd(folder), &about) && about.st_uid == geteuid(), found = false;
    for (struct dirent *entry; own && !found && (entry = readdir(folder));) {
        (void)snprintf(path, sizeof path, "/proc/%.20s/fd/%s", process, entry->d_name);
        ssize_t length = readlink(path, target, sizeof target - 1);
        if (length <= 0) continue;
        target[length] = 0;
        if (strcmp(target, wanted->shown) != 0) continue;
        int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        found = file >= 0 && is_sound(file, wanted, out_weights);
        if (file >= 0 && !found) close(file);
    }
    closedir(folder);
    return found;
}

static bool find(wanted *wanted, tcc_weights *out_weights) {
    DIR *folder = opendir("/proc");
    if (!folder) return false;
    bool found = false;
    wanted->busy = false;
    for (struct dirent *entry; !found && (entry = readdir(folder));)
        found = entry->d_name[0] >= '0' && entry->d_name[0] <= '9' &&
                find_in(entry->d_name, wanted, out_weights);
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

/* Whether another process of this user makes one before it is the turn of this one, whose file is still
 * empty.  Of those that start together the one with the artifact's lock is first, else the one with the
 * oldest file; the others wait for it, and for nobody else: a stranger too may hold that lock. */
static bool find_first(int file, int artifact, wanted *wanted, tcc_weights *out_weights) {
    enum { TRIES = 200, NAP = 10000000 };
    const struct timespec nap = {0, NAP};
    struct stat about;
    if (!lock(file, LOCK_EX) || syscall(SYS_fstat, file, &about)) return false;
    wanted->own = about.st_ino;
    for (int i = 0; i < TRIES; i++) {
        wanted->first = lock(artifact, LOCK_EX);
        if (wanted->first) (void)!ftruncate(file, 1);
        if (find(wanted, out_weights)) return true;
        if (!wanted->busy) break;
        nanosleep(&nap, NULL);
    }
    return false;
}

static bool make(const char *name, int artifact, wanted *wanted, tcc_weights *out_weights) {
    struct rlimit limit; /* a file past it is a signal, which ends the process */
    if (!getrlimit(RLIMIT_FSIZE, &limit) && wanted->size > limit.rlim_cur) return false;
    int file = (int)syscall(SYS_memfd_create, name, MFD);
    if (file < 0) return false;
    bool found = find_first(file, artifact, wanted, out_weights);
    bool made = !found && write_all(file, wanted->bytes, wanted->size) &&
                fcntl(file, F_ADD_SEALS, SEALS) == 0 && map(file, wanted->size, out_weights);
    if (made) {
        out_weights->counted = wanted->size;
        (void)lock(file, LOCK_UN);
    } else {
        close(file);
    }
    return found || made;
}

bool tcc_weights_share(int file, const char *name, const char *bytes, size_t size,
                       tcc_weights *out_weights) {
    wanted wanted = {.bytes = bytes, .size = size};
    (void)snprintf(wanted.shown, sizeof wanted.shown, "/memfd:%s (deleted)", name);
    bool shared = find(&wanted, out_weights) || make(name, file, &wanted, out_weights);
    (void)lock(file, LOCK_UN);
    return shared;
}
