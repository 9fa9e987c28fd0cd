/* Runs an artifact with other programs in place of its own program, each in a separate process.
 *
 *     mutants ARTIFACT.so RECORDS SECONDS SIZE
 *
 * RECORDS holds (bytes, program) one after another: the artifact's own program first, the others
 * with as many bytes.  Symbolic sizes of inputs are SIZE; inputs are zeros.  After the fork each
 * allocation, and each of the caller's arrays, ends at an inaccessible page.  Prints how many ran,
 * were refused, took more than SECONDS and ended by a signal, and the numbers of the last. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tcc.h"

/* ---- allocations ------------------------------------------------------------------------------------- */

enum { PAGE = 4096, MOST = 1 << 28 };
static int guarded; /* only in the child */

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

/* Returns `bytes` zero bytes that end at an inaccessible page, except for the bytes that `align`
 * needs. */
static void *guard(size_t bytes, size_t align) {
    if (bytes > MOST) return NULL;
    size_t pages = (bytes + align + PAGE - 1) / PAGE * PAGE;
    char *memory = mmap(NULL, pages + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return NULL;
    (void)mprotect(memory + pages, PAGE, PROT_NONE);
    return memory + (pages - bytes) / align * align;
}

void *malloc(size_t bytes) { return guarded ? guard(bytes, 16) : __libc_malloc(bytes); }
void *calloc(size_t count, size_t bytes) {
    size_t all;
    if (!guarded) return __libc_calloc(count, bytes);
    return __builtin_mul_overflow(count, bytes, &all) ? NULL : guard(all, 16);
}
void *aligned_alloc(size_t align, size_t bytes) {
    return guarded ? guard(bytes, align) : __libc_memalign(align, bytes);
}
void free(void *memory) {
    if (!guarded) __libc_free(memory); /* otherwise the process ends soon */
}
void *realloc(void *memory, size_t bytes) {
    if (!guarded) return __libc_realloc(memory, bytes);
    return memory ? NULL : guard(bytes, 16); /* the runtime never calls it */
}

/* ---- the program in memory ----------------------------------------------------------------------------- */

typedef struct place {
    const char *bytes;
    size_t size;
    char *memory;
    const tcc_api *api;
} place;

static int find_program(struct dl_phdr_info *object, size_t size, void *context) {
    place *searched = context;
    uintptr_t api = (uintptr_t)searched->api;
    int here = 0;
    (void)size;
    for (int turn = 0; turn < 2; turn++)
        for (int i = 0; i < object->dlpi_phnum; i++) {
            const ElfW(Phdr) *part = &object->dlpi_phdr[i];
            uintptr_t begin = object->dlpi_addr + part->p_vaddr;
            if (part->p_type != PT_LOAD) continue;
            if (!turn) {
                here |= api >= begin && api < begin + part->p_memsz;
            } else if (here && !searched->memory) {
                searched->memory = memmem((void *)begin, part->p_filesz, searched->bytes, searched->size);
            }
        }
    return searched->memory != NULL;
}

/* ---- one run -------------------------------------------------------------------------------------------- */

static int give(void *context, int32_t output, const tcc_tensor *tensor, void **out_data) {
    size_t bytes = tensor->dtype.bits / 8u + 1;
    (void)context, (void)output;
    for (int32_t i = 0; i < tensor->ndim; i++)
        if (__builtin_mul_overflow(bytes, (size_t)tensor->shape[i], &bytes)) return 1;
    *out_data = guard((bytes + 63) / 64 * 64, 64);
    return !*out_data;
}

static int run(const tcc_api *api, int64_t size) {
    tcc_model *model = NULL;
    tcc_instance *instance = NULL;
    if (api->model_get(&model) != TCC_OK) return 2;
    int32_t count = api->input_count(model);
    tcc_tensor *inputs = guard((size_t)count * sizeof *inputs + 1, 16);
    for (int32_t i = 0; i < count; i++) {
        tcc_port port;
        if (api->input_port(model, i, &port) != TCC_OK) return 3;
        int64_t *shape = guard((size_t)port.ndim * 8 + 8, 16), bytes = port.dtype.bits;
        for (int32_t dim = 0; dim < port.ndim; dim++) {
            shape[dim] = port.shape[dim] < 0 ? size : port.shape[dim];
            if (__builtin_mul_overflow(bytes, shape[dim], &bytes)) return 3;
        }
        void *data = guard((size_t)(bytes + 7) / 8, port.dtype.bits > 64 ? 16 : 8);
        if (!data) return 3;
        inputs[i] = (tcc_tensor){data, {1, 0}, port.ndim, port.dtype, shape, NULL, 0};
    }
    const tcc_allocator allocator = {NULL, give};
    if (api->instance_create(model, 0, &instance) != TCC_OK) return 4;
    for (int turn = 0; turn < 2; turn++)
        if (api->run(instance, inputs, count, NULL, 0, &allocator, NULL) != TCC_OK) return 5;
    api->instance_destroy(instance);
    api->model_release(model);
    return 0;
}

static int tried(const place *place, const char *program, const tcc_api *api, int64_t size,
                 unsigned seconds) {
    fflush(NULL);
    pid_t child = fork();
    if (!child) {
        uintptr_t begin = (uintptr_t)place->memory / PAGE * PAGE;
        (void)mprotect((void *)begin, (uintptr_t)place->memory + place->size - begin,
                       PROT_READ | PROT_WRITE);
        memcpy(place->memory, program, place->size);
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        signal(SIGALRM, SIG_DFL);
        alarm(seconds);
        guarded = 1;
        int code = run(api, size);
        if (getenv("MUTANTS_SAY")) fprintf(stderr, "%d %s\n", code, code ? api->last_error() : "");
        _exit(code);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) < 0) abort();
    if (WIFEXITED(status)) return WEXITSTATUS(status) ? 1 : 0;
    if (getenv("MUTANTS_SAY")) fprintf(stderr, "signal %d\n", WTERMSIG(status));
    return WTERMSIG(status) == SIGALRM ? 2 : 3;
}

int main(int argc, char **argv) {
    if (argc != 5) return 64;
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!library) return fprintf(stderr, "%s\n", dlerror()), 65;
    const tcc_api *(*entry)(void);
    *(void **)&entry = dlsym(library, "tcc_artifact_api");
    const tcc_api *api = entry();
    FILE *file = fopen(argv[2], "rb");
    place place = {.api = api};
    char *program = NULL;
    int64_t bytes, counts[4] = {0}, number = 0;
    while (file && fread(&bytes, 8, 1, file) == 1) {
        program = __libc_realloc(program, (size_t)bytes);
        if (fread(program, 1, (size_t)bytes, file) != (size_t)bytes) return 66;
        if (!place.memory) {
            char *copy = __libc_malloc((size_t)bytes);
            place.bytes = memcpy(copy, program, (size_t)bytes);
            place.size = (size_t)bytes;
            dl_iterate_phdr(find_program, &place);
            if (!place.memory) return fprintf(stderr, "the program is not in the artifact\n"), 67;
        }
        int class = tried(&place, program, api, atoll(argv[4]), (unsigned)atoi(argv[3]));
        counts[class]++;
        if (!number && class) return fprintf(stderr, "the artifact's own program fails\n"), 68;
        if (class == 3) fprintf(stderr, "%lld\n", (long long)number);
        number++;
    }
    printf("%lld %lld %lld %lld\n", (long long)counts[0], (long long)counts[1],
           (long long)counts[2], (long long)counts[3]);
    return 0;
}
