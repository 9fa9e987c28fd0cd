/* Large aligned ranges straight from the system, on huge pages where the system grants them. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime.h"

enum { LINE = 64 };
static const size_t huge_page = (size_t)2 << 20;
static const size_t huge_from = (size_t)1 << 20;
static const size_t filled_to = (size_t)256 << 20; /* a second, where memory is slow */

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* Page faults of as much as most models need come now, not in the middle of a run; but a size that
 * may be nonsense takes no more than half of what is free. */
static void populate(void *memory, size_t size) {
    if (size > filled_to) size = filled_to;
    long free_pages = sysconf(_SC_AVPHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    if (free_pages > 0 && page > 0 && size / (size_t)page <= (size_t)free_pages / 2)
        (void)madvise(memory, size, MADV_POPULATE_WRITE); /* before Linux 5.14: faults as it goes */
}

/* The last huge page is one where that takes a thirty-second more memory at most. */
static size_t rounded_to_pages(size_t size) {
    size_t small = (size_t)sysconf(_SC_PAGESIZE);
    size_t huge = (size + huge_page - 1) / huge_page * huge_page;
    return huge - size <= size / 32 ? huge : (size + small - 1) / small * small;
}

tcc_status tcc_arena_reserve(tcc_arena *arena, size_t size) {
    if (size <= arena->size) return TCC_OK;
    tcc_arena_release(arena);
    if (size > SIZE_MAX / 2)
        return tcc_fail(TCC_OUT_OF_MEMORY, "out of memory (%zu bytes of arena)", size);
    size_t rounded = (size + LINE - 1) / LINE * LINE;
    if (rounded < huge_from) {
        char *memory = tcc_allocate_zero(1, rounded + LINE);
        if (!memory) return TCC_OUT_OF_MEMORY;
        arena->mapping = memory;
        arena->base = memory + (LINE - (uintptr_t)memory % LINE) % LINE;
        arena->size = rounded;
        return TCC_OK;
    }
    rounded = rounded_to_pages(rounded);
    char *memory = mmap(NULL, rounded + huge_page, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return tcc_fail(TCC_OUT_OF_MEMORY, "out of memory (%zu bytes of arena)", rounded);
    arena->mapping = memory;
    arena->mapped = rounded + huge_page;
    arena->base = memory + (huge_page - (uintptr_t)memory % huge_page) % huge_page;
    arena->size = rounded;
    /* advice only: a kernel without huge pages serves the range all the same */
    (void)madvise(arena->base, rounded, MADV_HUGEPAGE);
    populate(arena->base, rounded);
    return TCC_OK;
}

void tcc_arena_release(tcc_arena *arena) {
    if (arena->mapped)
        munmap(arena->mapping, arena->mapped);
    else
        tcc_free(arena->mapping);
    memset(arena, 0, sizeof *arena);
}
