/* Lets Python call the functions of runtime/src/ops directly. */
#include <string.h>

#include "runtime.h"

const tcc_artifact tcc_artifact_info = {.name = "harness"};

int harness_call(const char *name, tcc_op_call *call, tcc_pool *pool) {
    tcc_op op = tcc_op_find(name);
    tcc_crew crew = {0};
    tcc_heap heap;
    call->pool = pool;
    call->heap = &heap;
    if (tcc_heap_begin(&heap, pool)) return TCC_INTERNAL;
    if (call->threads) {
        tcc_crew_enter(&crew);
        call->crew = &crew;
    }
    tcc_status status = op ? op(call) : TCC_INTERNAL;
    if (call->threads) tcc_crew_leave(&crew);
    tcc_pool_reset(pool);
    return status;
}

const char *harness_error(void) { return tcc_last_error(); }

tcc_pool *harness_pool(void) {
    static tcc_pool pool = {.poison = true};
    return &pool;
}

/* Takes, grows, gives and trims; returns the first of its checks that failed, or 0. */
int harness_exercise_pool(void) {
    tcc_pool pool = {.poison = false};
    void *first = NULL, *second = NULL;
    if (tcc_pool_take(&pool, 100, &first) || (uintptr_t)first % 64) return 1;
    memset(first, 7, 100);
    size_t moves = 0, held = 0;
    for (size_t size = 100; size < 1 << 20; size += 1000) {
        void *before = first;
        if (tcc_pool_resize(&pool, &first, size, size < 1100 ? 100 : size - 1000)) return 2;
        moves += first != before;
    }
    for (int i = 0; i < 100; i++)
        if (((char *)first)[i] != 7) return 3;
    if (moves > 60 || pool.used > (3 << 20) / 2 || pool.high_water < pool.used) return 4;
    held = pool.held;
    tcc_pool_reset(&pool);
    if (pool.used || pool.held != held) return 5;
    if (tcc_pool_take(&pool, 1 << 20, &second) || pool.held > held + (3 << 20) / 2) return 6;
    tcc_pool_give(&pool, second);
    tcc_pool_trim(&pool);
    if (pool.held) return 7;
    return tcc_pool_take(&pool, SIZE_MAX / 2, &first) == TCC_OUT_OF_MEMORY ? 0 : 8;
}

/* An arena keeps its alignment, takes little more than asked, and keeps its promise of zeros for new memory. */
int harness_exercise_arena(size_t size) {
    tcc_arena arena = {0};
    if (tcc_arena_reserve(&arena, size)) return 1;
    size_t alignment = size >= 1 << 20 ? 2 << 20 : 64;
    if (size && (uintptr_t)arena.base % alignment) return 2;
    for (size_t i = 0; i < size; i++)
        if (((char *)arena.base)[i]) return 3;
    if (arena.size < size || arena.size > size + size / 32 + 4096) return 6;
    void *base = arena.base;
    if (tcc_arena_reserve(&arena, size / 2) || arena.base != base) return 4;
    tcc_arena_release(&arena);
    tcc_arena_release(&arena);
    return tcc_arena_reserve(&arena, SIZE_MAX / 4 * 3) == TCC_OUT_OF_MEMORY ? 0 : 5;
}
