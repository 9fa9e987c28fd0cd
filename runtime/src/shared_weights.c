/* Shares one memory file of weights between all processes of a user.  The first process makes it.
 * Others find it in /proc among the descriptors of the processes that have it.  It exists as long
 * as one of them does. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
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
#ifndef F_OFD_GETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
enum { SEALS = 0xF, MFD = 0x3 }; /* F_SEAL_SEAL, _SHRINK, _GROW, _WRITE; MFD_CLOEXEC, _ALLOW_SEALING */

static const size_t huge_page = (size_t)2 << 20;
static const struct timespec pause_10_ms = {0, 10000000};

/* Puts mapped pages on huge pages.  The system refuses for a moment while another process does so
 * with pages of the same file. */
static bool collapse(const char *base, size_t size) {
    enum { TRIES = 50 };
    for (int i = 0; i < TRIES; i++) {
        if (madvise((void *)(uintptr_t)base, size / huge_page * huge_page, MADV_COLLAPSE) == 0) return true;
        if (errno != EAGAIN && errno != EBUSY) return false;
        nanosleep(&pause_10_ms, NULL);
    }
    return false;
}

/* Maps a memory file to addresses that huge pages can have. */
static bool map(int file, int access, size_t size, tcc_weights *out_weights) {
    size_t room = size + huge_page;
    char *memory = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return false;
    char *base = memory + (huge_page - (uintptr_t)memory % huge_page) % huge_page;
    *out_weights = (tcc_weights){base, size, memory, room, file, 0};
    if (mmap(base, size, access, MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED) return true;
    munmap(memory, room);
    return false;
}

/* Processes that start together agree on one maker by Lamport's bakery algorithm (Communications of the
 * ACM 17(8), 1974).  Each has a memory file that only it has locked.  The number of bytes past the weights
 * is the ticket of that process; without a ticket it still looks at the tickets of the others. */
enum { TICKETS = 1 << 20 }; /* no process makes a larger ticket */

/* The weights that a process looks for, and its place among the processes that make them. */
typedef struct request {
    char shown[300]; /* the file's name in /proc */
    const tcc_weight_source *from;
    size_t size;
    char *block;     /* room for a block of the weights */
    uint64_t inode;  /* inode of the file that this process makes; 0 before there is one */
    int64_t ticket;  /* 0 before it has one */
    int64_t largest; /* the largest ticket of the others at the last look */
    bool busy;       /* another process comes first in making the file, or has no ticket yet */
} request;

/* Locks a whole file, or asks which process has it locked.  The question changes nothing.  A short
 * lock would make the owner's own attempt fail. */
static bool lock(int file, int command, struct flock *lock) {
    *lock = (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (command == F_OFD_GETLK) lock->l_type = F_RDLCK;
    return fcntl(file, command, lock) == 0;
}

/* Notes the ticket of the process that has an unfinished file locked. */
static void see_ticket(int file, const struct stat *about, request *request) {
    struct flock holder;
    bool locked = lock(file, F_OFD_GETLK, &holder) && holder.l_type != F_UNLCK;
    int64_t ticket = about->st_size - (int64_t)request->size;
    if (!locked || about->st_ino == request->inode || ticket > TICKETS) return;
    if (ticket > request->largest) request->largest = ticket;
    if (ticket <= 0 || ticket < request->ticket ||
        (ticket == request->ticket && about->st_ino < request->inode))
        request->busy = true;
}

/* ---- bytes ------------------------------------------------------------------------------------------- */

static size_t block_size(size_t bytes) { return bytes < TCC_WEIGHT_BLOCK ? bytes : TCC_WEIGHT_BLOCK; }

/* Compares mapped bytes with the weights. */
static bool is_equal(const char *base, const request *request) {
    for (size_t at = 0, size; at < request->size; at += size) {
        size = block_size(request->size - at);
        if (!tcc_weights_read(request->from, at, request->block, size)) return false;
        if (memcmp(base + at, request->block, size) != 0) return false;
    }
    return true;
}

/* Writes, because a write fails where there is no memory, whereas touching a new page would end in
 * a signal. */
static bool write_all(int file, const char *bytes, size_t size, size_t at) {
    for (size_t done = 0; done < size;) {
        ssize_t wrote = pwrite(file, bytes + done, size - done, (off_t)(at + done));
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0) return false;
        done += (size_t)wrote;
    }
    return true;
}

/* Writes the weights to an empty file that is mapped at `base`.  For each huge page it first writes
 * one byte by a call and makes the page huge.  So a system without huge pages reports the failure
 * at once, and no bytes move from small pages to huge ones.  The huge page exists then, and the
 * weights are read straight into it. */
static bool write_weights(int file, char *base, const request *request) {
    size_t at = 0, size;
    for (; request->size - at >= huge_page; at += huge_page)
        if (!write_all(file, "", 1, at) || !collapse(base + at, huge_page) ||
            !tcc_weights_read(request->from, at, base + at, huge_page))
            return false;
    for (; at < request->size; at += size) {
        size = block_size(request->size - at);
        if (!tcc_weights_read(request->from, at, request->block, size) ||
            !write_all(file, request->block, size, at))
            return false;
    }
    return true;
}

/* Writes the file and seals it.  The mapping ends first, because a file with a writable mapping
 * cannot be sealed. */
static bool fill(int file, const request *request) {
    tcc_weights mapped;
    if (!map(file, PROT_READ | PROT_WRITE, request->size, &mapped)) return false;
    bool full = write_weights(file, (char *)(uintptr_t)mapped.base, request);
    munmap(mapped.mapping, mapped.mapped);
    return full;
}

/* Returns true if the file can be neither changed nor cut, belongs to this user, and holds exactly
 * the weights. */
static bool is_sound(int file, request *request, tcc_weights *out_weights) {
    struct stat about; /* the kernel's own layout, because a C library of 2012 has no function
                          fstat */
    int seals = fcntl(file, F_GET_SEALS);
    if (seals < 0 || syscall(SYS_fstat, file, &about) || about.st_uid != geteuid()) return false;
    if ((seals & SEALS) != SEALS) {
        see_ticket(file, &about, request);
        return false;
    }
    if (about.st_size != (off_t)request->size || !map(file, PROT_READ, request->size, out_weights)) return false;
    if (collapse(out_weights->base, request->size) && is_equal(out_weights->base, request)) return true;
    munmap(out_weights->mapping, out_weights->mapped);
    return false;
}

/* ---- finding ----------------------------------------------------------------------------------------- */

/* Looks at the descriptors of the process whose folder in /proc this is. */
static bool find_in(const char *process, request *request, tcc_weights *out_weights) {
    char path[600], target[300];
    (void)snprintf(path, sizeof path, "/proc/%.20s/fd", process);
    DIR *folder = opendir(path);
    if (!folder) return false; /* the process belongs to another user, or has ended */
    struct stat about;
    bool is_own = !syscall(SYS_fstat, dirfd(folder), &about) && about.st_uid == geteuid(), has_weights = false;
    for (struct dirent *entry; is_own && !has_weights && (entry = readdir(folder));) {
        (void)snprintf(path, sizeof path, "/proc/%.20s/fd/%s", process, entry->d_name);
        ssize_t length = readlink(path, target, sizeof target - 1);
        if (length <= 0) continue;
        target[length] = 0;
        if (strcmp(target, request->shown) != 0) continue;
        int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        has_weights = file >= 0 && is_sound(file, request, out_weights);
        if (file >= 0 && !has_weights) close(file);
    }
    closedir(folder);
    return has_weights;
}

static bool find(request *request, tcc_weights *out_weights) {
    DIR *folder = opendir("/proc");
    if (!folder) return false;
    bool has_weights = false;
    request->busy = false;
    request->largest = 0;
    for (struct dirent *entry; !has_weights && (entry = readdir(folder));)
        has_weights = entry->d_name[0] >= '0' && entry->d_name[0] <= '9' &&
                find_in(entry->d_name, request, out_weights);
    closedir(folder);
    return has_weights;
}

/* ---- making ------------------------------------------------------------------------------------------ */

/* Takes a ticket for this process and waits for the processes with a smaller ticket.  Returns true
 * if one of them made the file.  After two seconds a process makes its own. */
static bool find_first(int file, request *request, tcc_weights *out_weights) {
    enum { TRIES = 200 };
    struct stat about;
    struct flock ours;
    if (!lock(file, F_OFD_SETLK, &ours) || syscall(SYS_fstat, file, &about)) return false;
    request->inode = about.st_ino;
    if (find(request, out_weights)) return true;
    request->ticket = request->largest + 1;
    if (ftruncate(file, (off_t)request->size + request->ticket)) return false;
    for (int i = 0; i < TRIES; i++) {
        if (find(request, out_weights)) return true;
        if (!request->busy) break;
        nanosleep(&pause_10_ms, NULL);
    }
    return false;
}

/* The file keeps its ticket while it is written. */
static bool make(const char *name, request *request, tcc_weights *out_weights) {
    struct rlimit limit; /* a file beyond the limit raises a signal, which ends the process */
    if (!getrlimit(RLIMIT_FSIZE, &limit) && request->size + TICKETS > limit.rlim_cur) return false;
    int file = (int)syscall(SYS_memfd_create, name, MFD);
    if (file < 0) return false;
    bool has_weights = find_first(file, request, out_weights);
    bool is_first = !has_weights && fill(file, request) && ftruncate(file, (off_t)request->size) == 0 &&
                fcntl(file, F_ADD_SEALS, SEALS) == 0 && map(file, PROT_READ, request->size, out_weights);
    if (is_first) out_weights->counted = request->size;
    /* avoids a fault at a huge page's first use */
    if (is_first) (void)collapse(out_weights->base, request->size);
    if (!is_first) close(file);
    return has_weights || is_first;
}

bool tcc_weights_share(const char *name, const tcc_weight_source *from, size_t size, tcc_weights *out_weights) {
    request request = {.from = from, .size = size, .block = malloc(TCC_WEIGHT_BLOCK)};
    (void)snprintf(request.shown, sizeof request.shown, "/memfd:%s (deleted)", name);
    bool shared = request.block && (find(&request, out_weights) || make(name, &request, out_weights));
    free(request.block);
    if (!shared) memset(out_weights, 0, sizeof *out_weights); /* an unsuitable file was mapped */
    return shared;
}
