/* Counts the bytes that a process holds from the allocator, for LD_PRELOAD.  It reports the most
 * bytes held at one time since the last reset, minus the bytes held at the reset.  It counts the
 * sizes that the allocator gave, which are a little more than the sizes that were asked for. */

#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stddef.h>

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *old, size_t size);
extern void *__libc_memalign(size_t align, size_t size);
extern void __libc_free(void *block);

static atomic_llong live, most, base;

static void *took(void *block) {
    if (block == NULL) return NULL;
    long long bytes = (long long)malloc_usable_size(block);
    long long now = atomic_fetch_add(&live, bytes) + bytes, seen = atomic_load(&most);
    while (now > seen && !atomic_compare_exchange_weak(&most, &seen, now)) {
    }
    return block;
}

static void *gave(void *block) {
    if (block != NULL) atomic_fetch_sub(&live, (long long)malloc_usable_size(block));
    return block;
}

void *malloc(size_t size) { return took(__libc_malloc(size)); }
void *calloc(size_t count, size_t size) { return took(__libc_calloc(count, size)); }
void *realloc(void *old, size_t size) { return took(__libc_realloc(gave(old), size)); }
void *memalign(size_t align, size_t size) { return took(__libc_memalign(align, size)); }
void *aligned_alloc(size_t align, size_t size) { return took(__libc_memalign(align, size)); }
void free(void *block) { __libc_free(gave(block)); }

int posix_memalign(void **block, size_t align, size_t size) {
    *block = took(__libc_memalign(align, size));
    return *block == NULL ? ENOMEM : 0;
}

void allocations_reset(void) {
    atomic_store(&base, atomic_load(&live));
    atomic_store(&most, atomic_load(&live));
}

long long allocations_most(void) { return atomic_load(&most) - atomic_load(&base); }
