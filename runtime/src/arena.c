/* Maps large aligned ranges straight from the system, on huge pages where the system grants
 * them. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "clock.h"
#include "runtime.h"

enum { LINE = 64 };
static const size_t huge_page = (size_t)2 << 20;
static const size_t huge_from = (size_t)1 << 20;
static const size_t max_size = SIZE_MAX / 16;
static const size_t filled_to = (size_t)256 << 20;
static const int64_t filling = 20000000; /* nanoseconds; a run that is cancelled meanwhile ends
                                            after them */

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

size_t tcc_populate(void *memory, size_t size) {
    const size_t limit = size < filled_to ? size : filled_to;
    const int64_t end = tcc_now() + filling;
    size_t done = 0;
    do {
        char *place = (char *)memory + done;
        size_t part = huge_page - (uintptr_t)place % huge_page;
        if (part > limit - done) part = limit - done;
        if (madvise(place, part, MADV_POPULATE_WRITE)) break; /* fails before Linux 5.14 */
        done += part;
    } while (done < limit && tcc_now() < end);
    return size - done;
}

/* Rounds up to whole huge pages if that takes at most a thirty-second more memory. */
size_t tcc_arena_rounded(size_t size) {
    size = (size + LINE - 1) / LINE * LINE;
    if (size < huge_from || size > max_size) return size;
    size_t small = (size_t)sysconf(_SC_PAGESIZE);
    size_t huge = (size + huge_page - 1) / huge_page * huge_page;
    return huge - size <= size / 32 ? huge : (size + small - 1) / small * small;
}

static tcc_status reserve_small(tcc_arena *arena, size_t size, size_t room) {
    char *memory = tcc_allocate_zero(1, room + LINE);
    if (!memory) return TCC_OUT_OF_MEMORY;
    arena->mapping = memory;
    arena->base = memory + (LINE - (uintptr_t)memory % LINE) % LINE;
    arena->size = size;
    arena->room = room;
    return TCC_OK;
}

/* Maps addresses for `room` bytes, or for `size` bytes where the system grants no more. */
static tcc_status map_room(tcc_arena *arena, size_t size, size_t room) {
    char *memory = mmap(NULL, room + huge_page, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED && room > size) return map_room(arena, size, size);
    if (memory == MAP_FAILED)
        return tcc_fail(TCC_OUT_OF_MEMORY, "out of memory (%zu bytes of arena)", size);
    arena->mapping = memory;
    arena->mapped = room + huge_page;
    arena->base = memory + (huge_page - (uintptr_t)memory % huge_page) % huge_page;
    arena->room = room;
    return TCC_OK;
}

/* Takes more of the mapped addresses. */
static void grow(tcc_arena *arena, size_t size) {
    char *behind = (char *)arena->base + arena->size;
    size_t more = size - arena->size;
    /* advice only: a kernel without huge pages serves the range all the same */
    (void)madvise(behind, more, MADV_HUGEPAGE);
    arena->absent += tcc_populate(behind, more);
    arena->size = size;
}

tcc_status tcc_arena_reserve(tcc_arena *arena, size_t size) {
    if (size <= arena->size) return TCC_OK;
    if (size > max_size)
        return tcc_fail(TCC_OUT_OF_MEMORY, "out of memory (%zu bytes of arena)", size);
    size_t rounded = tcc_arena_rounded(size);
    if (rounded > arena->room) {
        size_t room = arena->size ? 4 * rounded : rounded; /* an arena that grew once will grow
                                                              again */
        tcc_arena_release(arena);
        if (rounded < huge_from)
            return reserve_small(arena, rounded, room < huge_from ? room : huge_from);
        TCC_RETURN_IF_ERROR(map_room(arena, rounded, room));
    }
    if (arena->mapped)
        grow(arena, rounded);
    else
        arena->size = rounded;
    return TCC_OK;
}

void tcc_arena_release(tcc_arena *arena) {
    if (arena->mapped)
        munmap(arena->mapping, arena->mapped);
    else
        tcc_free(arena->mapping);
    memset(arena, 0, sizeof *arena);
}
