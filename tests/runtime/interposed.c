/* Counts the memory that runs and the functions that they call ask for, by malloc and mmap.
 *
 *     interposed ARTIFACT TRIPS RUNS
 *
 * Runs the artifact's model (a number to an array) RUNS times after a warm-up, with growing
 * numbers, on the default instance; prints the calls of allocating functions in those runs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tcc.h"

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *old, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);

static long calls;
static int counting;

#define COUNT() (calls += __atomic_load_n(&counting, __ATOMIC_RELAXED))

void *malloc(size_t size) { return COUNT(), __libc_malloc(size); }
void *calloc(size_t count, size_t size) { return COUNT(), __libc_calloc(count, size); }
void *realloc(void *old, size_t size) { return COUNT(), __libc_realloc(old, size); }
void *aligned_alloc(size_t alignment, size_t size) { return COUNT(), __libc_memalign(alignment, size); }
int posix_memalign(void **out, size_t alignment, size_t size) {
    COUNT();
    *out = __libc_memalign(alignment, size);
    return !*out;
}
void *mmap(void *at, size_t size, int access, int flags, int file, off_t offset) {
    COUNT();
    return (void *)syscall(SYS_mmap, at, size, access, flags, file, offset);
}
int mprotect(void *at, size_t size, int access) {
    COUNT();
    return (int)syscall(SYS_mprotect, at, size, access);
}

static int give_room(void *context, int32_t output, const tcc_tensor *tensor, void **out_data) {
    (void)output, (void)tensor;
    *out_data = context;
    return 0;
}

int main(int argc, char **argv) {
    static float room[1 << 20];
    if (argc != 4) return 2;
    void *library = dlopen(argv[1], RTLD_NOW);
    const tcc_api *(*entry)(void) = NULL;
    if (library) *(void **)&entry = dlsym(library, "tcc_artifact_api");
    if (!entry) return puts(dlerror()), 2;
    const tcc_api *api = entry();
    tcc_model *model = NULL;
    if (api->model_get(&model)) return puts(api->last_error()), 1;
    tcc_allocator allocator = {room, give_room};
    long trips = atol(argv[2]), runs = atol(argv[3]);
    for (long run = -2; run < runs; run++) {
        int64_t number = run < 0 ? trips : trips - run % 7;
        tcc_tensor x = {.data = &number, .device = {1, 0}, .dtype = {0, 64, 1}};
        __atomic_store_n(&counting, run >= 0, __ATOMIC_RELAXED);
        tcc_status status = api->call(model, &x, 1, NULL, 0, &allocator, NULL);
        __atomic_store_n(&counting, 0, __ATOMIC_RELAXED);
        if (status) return puts(api->last_error()), 1;
        if (room[number - 1] != (float)(number - 1)) return puts("a wrong result"), 1;
    }
    printf("%ld\n", calls);
    return 0;
}
