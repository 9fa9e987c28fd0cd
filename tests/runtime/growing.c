/* Grows an arena a hundred times. Prints how often it was made anew. */
#include <stdio.h>
#include <string.h>

#include "runtime.h"

int main(int count, char **arguments) {
    size_t row = count > 1 ? (size_t)atoll(arguments[1]) : 1;
    tcc_arena arena = {0};
    const void *base = NULL;
    int anew = -1; /* does not count the first time */
    for (size_t rows = 1; rows <= 100; rows++) {
        size_t size = rows * row;
        if (tcc_arena_reserve(&arena, size)) return 1;
        if (arena.size < size || arena.size > size + size / 32 + 4096) return 2;
        if ((uintptr_t)arena.base % 64) return 3;
        if (arena.base != base) anew++;
        base = arena.base;
        memset(arena.base, 1, arena.size);
        if (tcc_arena_reserve(&arena, size / 2) || arena.base != base) return 4;
    }
    tcc_arena_release(&arena);
    printf("%d\n", anew);
    return 0;
}
