/* Finds and maps the weights.
 *
 * An object that a program links has the weights in a read-only section.  Otherwise they lie behind
 * the last byte of this file's ELF image, or in a side file.  The file's last 64 bytes give their
 * page-aligned offset:
 *
 *   "TCCWGTS\0", u64 version, u64 offset, u64 size, u8 sha256[32]
 *
 * File pages are shared between processes.  They are mapped on huge pages where the file system can
 * do that; where it cannot, large weights are copied to a memory file on huge pages (one TLB miss
 * per 2 MiB instead of per 4 KiB) that processes share, if memory allows.  TCC_WEIGHTS overrides
 * the choice. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "image.h"
#include "runtime.h"
#include "sha256.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

enum { TRAILER = 64, VERSION = 1 };
static const size_t huge_page = (size_t)2 << 20;
static const size_t huge_from = (size_t)8 << 20;

typedef struct trailer {
    char magic[8];
    uint64_t version, offset, size;
    uint8_t sha256[32];
} trailer;
_Static_assert(sizeof(trailer) == TRAILER, "the trailer has no padding");

static bool read_trailer(int file, int64_t *out_length, trailer *out_trailer) {
    *out_length = lseek(file, 0, SEEK_END); /* because fstat would need a C library of 2021 */
    if (*out_length < TRAILER) return false;
    return pread(file, out_trailer, TRAILER, *out_length - TRAILER) == TRAILER &&
           memcmp(out_trailer->magic, "TCCWGTS", 8) == 0 && out_trailer->version == VERSION;
}

/* Opens `path` and returns its descriptor if the file ends with the wanted section.  Otherwise
 * returns -1; errno is 0 where the file could be read or does not exist. */
TCC_RARE static int open_weights(const char *path, uint64_t size, const uint8_t sha256[32], int64_t *out_offset) {
    trailer end;
    int64_t length;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        if (errno == ENOENT) errno = 0;
        return -1;
    }
    long page = sysconf(_SC_PAGESIZE);
    if (read_trailer(file, &length, &end) && end.size == size &&
        memcmp(end.sha256, sha256, 32) == 0 && end.offset % (uint64_t)page == 0 &&
        end.offset <= (uint64_t)(length - TRAILER) &&
        size <= (uint64_t)(length - TRAILER) - end.offset) {
        *out_offset = (int64_t)end.offset;
        return file;
    }
    close(file);
    errno = 0;
    return -1;
}

static tcc_status read_to_huge_pages(const tcc_weight_source *from, size_t size, tcc_weights *out_weights) {
    size_t room = (size + huge_page - 1) / huge_page * huge_page + huge_page;
    char *memory = mmap(NULL, room, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return tcc_fail(TCC_OUT_OF_MEMORY, "out of memory (%zu bytes of weights)", room);
    char *base = memory + (huge_page - (uintptr_t)memory % huge_page) % huge_page;
    (void)madvise(base, room - huge_page, MADV_HUGEPAGE);
    for (size_t at = 0, block; at < size; at += block) {
        block = size - at < TCC_WEIGHT_BLOCK ? size - at : TCC_WEIGHT_BLOCK;
        if (tcc_weights_read(from, at, base + at, block)) continue;
        munmap(memory, room);
        return tcc_fail(TCC_CORRUPT, "reading %zu bytes of weights failed: %s", size,
                        errno ? strerror(errno) : "the file is cut short");
    }
    (void)mprotect(memory, room, PROT_READ); /* guards against the runtime's own faults; runs do not
                                                need it */
    *out_weights = (tcc_weights){base, size, memory, room, 0, size};
    return TCC_OK;
}

typedef enum choice { CHOOSE, MAP, SHARE, COPY } choice;

static tcc_status told_choice(choice *out_choice) {
    static const char *const names[] = {"", "map", "share", "copy"};
    const char *text = secure_getenv("TCC_WEIGHTS");
    for (int i = 0; i < 4; i++)
        if (strcmp(text ? text : "", names[i]) == 0) {
            *out_choice = (choice)i;
            return TCC_OK;
        }
    return tcc_fail(TCC_INVALID_ARGUMENT,
                    "TCC_WEIGHTS is '%.64s': expected map, share or copy", text);
}

static tcc_status map_source(const tcc_weight_source *from, size_t size, tcc_weights *out_weights) {
    if (from->memory) {
        *out_weights = (tcc_weights){from->memory, size, NULL, 0, 0, 0};
        return TCC_OK;
    }
    /* reserve first, so that the file's 2 MiB steps fall on 2 MiB addresses */
    size_t room = size + huge_page;
    char *memory = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return tcc_fail(TCC_OUT_OF_MEMORY, "no address space for %zu bytes of weights", size);
    char *base = memory + (huge_page - (uintptr_t)memory % huge_page) % huge_page;
    if (mmap(base, size, PROT_READ, MAP_SHARED | MAP_FIXED, from->file, from->offset) == MAP_FAILED) {
        munmap(memory, room);
        return tcc_fail(TCC_OUT_OF_MEMORY, "mapping %zu bytes of weights failed: %s", size,
                        strerror(errno));
    }
    *out_weights = (tcc_weights){base, size, memory, room, 0, 0};
    return TCC_OK;
}

void tcc_weights_unmap(tcc_weights *weights) {
    if (weights->mapping) munmap(weights->mapping, weights->mapped);
    if (weights->shared) close(weights->shared);
    if (weights->counted) tcc_budget_give(tcc_process_budget(), weights->counted);
    memset(weights, 0, sizeof *weights);
}

/* Copies the weights to a memory file that processes share, or to private memory.  A copy that the
 * user did not ask for may take half of the memory that the process and an instance may take: where
 * memory is short the system can drop pages of the file, but for pages of a copy it kills the
 * process. */
TCC_RARE static tcc_status copy(const tcc_weight_source *from, const char *name, choice told,
                                const tcc_weights *mapped, tcc_weights *out_better) {
    size_t size = mapped->size, spare = told == CHOOSE ? size : 0, limit = 0;
    tcc_budget *process = tcc_process_budget();
    tcc_status status = told == CHOOSE ? tcc_memory_limit(&limit) : TCC_OK;
    if (status != TCC_OK || (limit && size + spare > limit)) return TCC_OK;
    if (!tcc_budget_take(process, size + spare))
        return told == COPY ? tcc_budget_refuse(process, size) : TCC_OK;
    if (told == COPY || (!tcc_weights_share(name, from, size, out_better) && told != SHARE))
        status = read_to_huge_pages(from, size, out_better);
    tcc_budget_settle(process, size + spare);
    tcc_budget_give(process, size + spare - out_better->counted);
    return told == CHOOSE && status == TCC_OUT_OF_MEMORY ? TCC_OK : status;
}

/* Maps the weights in the best way.  `mapped` holds the file's own pages, which are used where
 * nothing better is possible. */
TCC_RARE static tcc_status map_best(const tcc_weight_source *from, const char *name, choice told,
                                    tcc_weights *mapped) {
    size_t size = mapped->size;
    char *base = (char *)(uintptr_t)mapped->base;
    (void)madvise(base, size, MADV_HUGEPAGE);
    if (told == MAP) return TCC_OK;
    if (told == CHOOSE && madvise(base, size / huge_page * huge_page, MADV_COLLAPSE) == 0)
        return TCC_OK;
    tcc_weights better = {0};
    TCC_RETURN_IF_ERROR(copy(from, name, told, mapped, &better));
    if (!better.mapping) return TCC_OK;
    tcc_weights_unmap(mapped);
    *mapped = better;
    return TCC_OK;
}

/* Writes the name of a part's memory file.  Files with the same section have the same name. */
static void name_part(const uint8_t sha256[32], tcc_range part, char out_name[128]) {
    int used = snprintf(out_name, 128, "tcc-weights-");
    for (int i = 0; i < 32; i++) used += snprintf(out_name + used, 3, "%02x", sha256[i]);
    (void)snprintf(out_name + used, 32, "-%llx", (unsigned long long)part.offset);
}

/* Compares the whole section with its hash if TCC_VERIFY asks for it. */
static tcc_status verify(const tcc_weight_source *from, uint64_t size, const uint8_t sha256[32]) {
    const char *told = secure_getenv("TCC_VERIFY");
    if (!told || !*told || strcmp(told, "0") == 0) return TCC_OK;
    if (strcmp(told, "1") != 0)
        return tcc_fail(TCC_INVALID_ARGUMENT, "TCC_VERIFY is '%.64s': expected 0 or 1", told);
    tcc_weights all = {0};
    TCC_RETURN_IF_ERROR(map_source(from, (size_t)size, &all));
    uint8_t digest[32];
    tcc_sha256((const uint8_t *)all.base, (size_t)size, digest);
    tcc_weights_unmap(&all);
    if (memcmp(digest, sha256, sizeof digest) == 0) return TCC_OK;
    return tcc_fail(TCC_CORRUPT, "the weights of '%s' are damaged: their hash is another one than that "
                                 "of the model's: copy the file again, or compile the model again",
                    tcc_image_path());
}

/* Finds a section in a file: in this object's own file if it has one, else in the side file. */
TCC_RARE static tcc_status find_in_files(uint64_t size, const uint8_t sha256[32],
                                         tcc_weight_source *out_source) {
    const char *path = tcc_image_path(), *name = tcc_artifact_info.side_name;
    char side[4096 + 512];
    if (!path[0]) return tcc_fail(TCC_CORRUPT, "the artifact's own file cannot be found");
    const char *end = strrchr(path, '/');
    int folder = end ? (int)(end - path) + 1 : 0;
    if (name)
        (void)snprintf(side, sizeof side, "%.*s%s", folder, path, name);
    else
        (void)snprintf(side, sizeof side, "%s.weights", path);
    int file = -1;
    errno = 0;
    if (!name) file = open_weights(path, size, sha256, &out_source->offset);
    if (file < 0 && !errno) file = open_weights(side, size, sha256, &out_source->offset);
    out_source->file = file;
    if (file >= 0) return TCC_OK;
    if (errno) return tcc_fail(TCC_SYSTEM, "the weights of '%s': %s", path, strerror(errno));
    if (name)
        return tcc_fail(TCC_CORRUPT,
                        "the weights of model '%s' are missing or damaged: '%s' must be the side file that "
                        "was written with the model, beside the program that links the model",
                        tcc_artifact_info.name, side);
    return tcc_fail(TCC_CORRUPT,
                    "the weights of '%s' are missing or damaged, in the file and in "
                    "'%s' beside it: compile the model again, or copy both files",
                    path, side);
}

tcc_status tcc_weights_map(uint64_t size, const uint8_t sha256[32], tcc_range part, bool huge,
                           tcc_weights *out_weights) {
    memset(out_weights, 0, sizeof *out_weights);
    if (part.bytes == 0) return TCC_OK;
    if (part.offset > size || part.bytes > size - part.offset ||
        part.offset % (uint64_t)sysconf(_SC_PAGESIZE))
        return tcc_fail(TCC_CORRUPT, "the artifact is damaged: its weights are not in it");
    choice told = CHOOSE;
    TCC_RETURN_IF_ERROR(told_choice(&told));
    tcc_weight_source from = {tcc_artifact_info.section, -1, 0, false};
    if (!from.memory) TCC_RETURN_IF_ERROR(find_in_files(size, sha256, &from));
    char name[128];
    name_part(sha256, part, name);
    tcc_status status = verify(&from, size, sha256);
    from.offset += (int64_t)part.offset;
    if (from.memory) from.memory += part.offset;
    from.from_file = from.memory && tcc_image_is_file(from.memory, (size_t)part.bytes);
    if (status == TCC_OK) status = map_source(&from, (size_t)part.bytes, out_weights);
    if (status == TCC_OK && huge && part.bytes >= huge_from)
        status = map_best(&from, name, told, out_weights);
    if (status != TCC_OK) tcc_weights_unmap(out_weights);
    if (from.file >= 0) close(from.file);
    return status;
}
