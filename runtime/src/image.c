/* Makes the loaded code independent of its file, as soon as it is loaded.
 *
 * The dynamic linker maps a library's file.  If another process overwrites that file in place or
 * cuts it short, even pages that this process wrote to are gone.  Every thread that runs the code
 * then fails, among them the process's workers.  The image is some hundred KiB, so it is copied
 * once, before any call.  Where the system allows no executable memory without a file, code stays
 * in the file.  An executable's file cannot be written to while it runs.  If a library links the
 * artifact as an object, the image also holds the library's data, which may be in use already: it
 * stays in the file, and the library stays loaded. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "image.h"
#include "runtime.h"

static char cached_path[4096];

typedef struct range {
    uintptr_t begin, end;
} range;

/* One mapping of a file: addresses, access as in "r-xp", and the file's path. */
typedef struct mapping {
    range pages;
    char access[5], line[sizeof cached_path + 128];
    const char *path; /* points into `line` */
} mapping;

/* Finds the mapping that holds the address `here`, in the kernel's own list.  Returns false where
 * it maps no file. */
static bool find_mapping(uintptr_t here, mapping *out) {
    FILE *maps = fopen("/proc/self/maps", "re");
    bool is_mapping = false;
    while (maps && !is_mapping && fgets(out->line, sizeof out->line, maps)) {
        unsigned long begin, end;
        int at = 0;
        int fields = sscanf(out->line, "%lx-%lx %4s %*s %*s %*s %n", &begin, &end, out->access, &at);
        if (fields < 3 || !at) continue;
        out->line[strcspn(out->line, "\n")] = 0;
        out->pages = (range){begin, end};
        out->path = out->line + at;
        is_mapping = here >= begin && here < end && *out->path == '/';
    }
    if (maps) fclose(maps);
    return is_mapping;
}

/* Finds the file that this object is mapped from.  It reads the kernel's list first, because the
 * dynamic linker's name may be relative to a folder that is no longer current. */
static void find_path(void) {
    mapping its;
    Dl_info info;
    const char *path = NULL;
    if (find_mapping((uintptr_t)&tcc_artifact_info, &its))
        path = its.path;
    else if (dladdr(&tcc_artifact_info, &info))
        path = info.dli_fname;
    if (path && strlen(path) < sizeof cached_path) strcpy(cached_path, path);
}

bool tcc_image_is_file(const void *begin, size_t size) {
    mapping file;
    return find_mapping((uintptr_t)begin, &file) && file.access[1] != 'w' &&
           file.pages.end - (uintptr_t)begin >= size;
}

const char *tcc_image_path(void) {
    if (!cached_path[0]) find_path(); /* the program's constructors may run before this object's */
    return cached_path;
}

/* Keeps the file's inode number in use, even when its last name is gone.  The dynamic linker
 * identifies libraries by that number, and would take a later file with the same number for this
 * one.  The page is never read. */
static void keep_number(void) {
    int file = open(cached_path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    mmap(NULL, 1, PROT_NONE, MAP_PRIVATE, file, 0);
    close(file);
}

/* Copies words.  memcpy will not do: sanitizers forbid it to read between variables. */
__attribute__((no_sanitize("address"))) static void copy_words(uint64_t *to, uintptr_t from,
                                                               size_t size) {
    const volatile uint64_t *words = (const volatile uint64_t *)from;
    for (size_t i = 0; i < size / sizeof *to; i++) to[i] = words[i];
}

/* Puts a copy in memory in place of `pages`.  No thread writes to the pages meanwhile; others may
 * read them. */
static void copy_pages(range pages, int protection) {
    if (pages.end <= pages.begin) return;
    size_t size = pages.end - pages.begin;
    uint64_t *copy = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED) return;
    copy_words(copy, pages.begin, size);
    __builtin___clear_cache((char *)copy, (char *)copy + size); /* does nothing on x86-64 */
    if (mprotect(copy, size, protection) ||
        mremap(copy, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)pages.begin) == MAP_FAILED)
        munmap(copy, size);
}

/* Returns the bytes of the file that `header` maps.  The file may have only a part of the last
 * page. */
static range segment(const struct dl_phdr_info *object, const ElfW(Phdr) * header) {
    uintptr_t begin = object->dlpi_addr + header->p_vaddr;
    return (range){begin, begin + header->p_filesz};
}

static bool holds_artifact(const struct dl_phdr_info *object) {
    uintptr_t here = (uintptr_t)&tcc_artifact_info;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        range bounds = segment(object, &object->dlpi_phdr[i]);
        bool loaded = object->dlpi_phdr[i].p_type == PT_LOAD;
        if (loaded && here >= bounds.begin && here < bounds.end) return true;
    }
    return false;
}

/* Returns the pages that the dynamic linker made read-only after it had written them. */
static range read_only_pages(const struct dl_phdr_info *object, uintptr_t page) {
    for (int i = 0; i < object->dlpi_phnum; i++) {
        if (object->dlpi_phdr[i].p_type != PT_GNU_RELRO) continue;
        range bounds = segment(object, &object->dlpi_phdr[i]);
        return (range){bounds.begin / page * page, bounds.end / page * page};
    }
    return (range){0, 0};
}

static int copy_object(struct dl_phdr_info *object, size_t size, void *unused) {
    (void)size, (void)unused;
    if (!holds_artifact(object)) return 0;
    if (!object->dlpi_name || !object->dlpi_name[0]) return 1; /* the executable */
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    range fixed = read_only_pages(object, page);
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &object->dlpi_phdr[i];
        if (header->p_type != PT_LOAD || !header->p_filesz) continue;
        range pages = segment(object, header);
        pages = (range){pages.begin / page * page, (pages.end + page - 1) / page * page};
        if (!(header->p_flags & PF_W)) {
            copy_pages(pages, PROT_READ | (header->p_flags & PF_X ? PROT_EXEC : 0));
            continue;
        }
        bool inside = fixed.end > pages.begin && fixed.begin < pages.end;
        range front = {pages.begin, inside ? fixed.begin : pages.end};
        copy_pages(front, PROT_READ | PROT_WRITE);
        if (!inside) continue;
        copy_pages(fixed, PROT_READ);
        copy_pages((range){fixed.end, pages.end}, PROT_READ | PROT_WRITE);
    }
    return 1;
}

static int name_library(struct dl_phdr_info *object, size_t size, void *out_name) {
    (void)size;
    if (!holds_artifact(object)) return 0;
    *(const char **)out_name = object->dlpi_name;
    return 1;
}

/* Keeps a library with this object loaded, as -z nodelete does, because idle workers wait in its
 * code. */
static void keep_library(void) {
    const char *name = NULL;
    dl_iterate_phdr(name_library, &name);
    if (name && name[0]) (void)dlopen(name, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
}

__attribute__((constructor)) static void keep_image(void) {
    if (tcc_artifact_info.side_name) {
        keep_library();
        return;
    }
    find_path();
    keep_number();
    dl_iterate_phdr(copy_object, NULL);
    tcc_symbols_tell(cached_path);
}
