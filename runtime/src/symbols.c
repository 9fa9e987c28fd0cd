/* Names of this artifact's functions for profilers that attach to the process.
 *
 * The code lies in memory without a file (image.c), so a profiler that attaches later finds no
 * names for it. With TCC_PERF_MAP=1 they are appended to /tmp/perf-PID.map as the artifact is
 * loaded, where perf and others look for them: a line for each function, "start size name", in
 * hexadecimal. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "image.h"
#include "runtime.h"

typedef struct bytes {
    const char *data;
    size_t size;
} bytes;

/* Returns a part of the file; NULL where the part lies outside. */
static const void *part(bytes file, uint64_t offset, uint64_t size) {
    return offset <= file.size && size <= file.size - offset ? file.data + offset : NULL;
}

static void write_table(FILE *out, bytes file, const ElfW(Shdr) * table, const ElfW(Shdr) * names,
                        uintptr_t base) {
    const ElfW(Sym) *symbols = part(file, table->sh_offset, table->sh_size);
    const char *text = part(file, names->sh_offset, names->sh_size);
    if (!symbols || !text || !names->sh_size || text[names->sh_size - 1]) return;
    for (size_t i = 0; i < table->sh_size / sizeof *symbols; i++) {
        const ElfW(Sym) *symbol = &symbols[i];
        if ((symbol->st_info & 15) != STT_FUNC || !symbol->st_size || symbol->st_name >= names->sh_size)
            continue;
        fprintf(out, "%lx %lx %s [%s]\n", (unsigned long)(base + symbol->st_value),
                (unsigned long)symbol->st_size, text + symbol->st_name, tcc_artifact_info.name);
    }
}

static void write_symbols(FILE *out, bytes file, uintptr_t base) {
    const ElfW(Ehdr) *head = part(file, 0, sizeof *head);
    const ElfW(Shdr) *sections =
        head ? part(file, head->e_shoff, head->e_shnum * sizeof *sections) : NULL;
    for (int i = 0; sections && i < head->e_shnum; i++)
        if (sections[i].sh_type == SHT_SYMTAB && sections[i].sh_link < head->e_shnum)
            write_table(out, file, &sections[i], &sections[sections[i].sh_link], base);
}

/* Opens the profilers' file. It must belong to this user and be no symbolic link. */
static FILE *open_map(void) {
    char path[64];
    struct stat about;
    snprintf(path, sizeof path, "/tmp/perf-%ld.map", (long)getpid());
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file < 0) return NULL;
    /* a direct system call, because `fstat` would need a C library of 2021 */
    FILE *out = !syscall(SYS_fstat, file, &about) && S_ISREG(about.st_mode) && about.st_uid == geteuid()
                    ? fdopen(file, "a")
                    : NULL;
    if (!out) close(file);
    return out;
}

void tcc_symbols_tell(const char *path) {
    const char *setting = secure_getenv("TCC_PERF_MAP");
    Dl_info artifact;
    struct rlimit limit;
    if (!setting || strcmp(setting, "1") || !dladdr(&tcc_artifact_info, &artifact)) return;
    /* a file beyond the limit raises a signal, which ends the process */
    if (getrlimit(RLIMIT_FSIZE, &limit) || limit.rlim_cur != RLIM_INFINITY) return;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    off_t size = lseek(file, 0, SEEK_END);
    void *data =
        size > 0 ? mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, file, 0) : MAP_FAILED;
    close(file);
    if (data == MAP_FAILED) return;
    FILE *out = open_map();
    if (out) {
        write_symbols(out, (bytes){data, (size_t)size}, (uintptr_t)artifact.dli_fbase);
        fclose(out);
    }
    munmap(data, (size_t)size);
}
