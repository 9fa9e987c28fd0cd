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
    static tcc_pool *pool;
    tcc_pool_config config = {.struct_size = sizeof config, .flags = TCC_POOL_POISON};
    return pool || tcc_pool_create(&config, &pool) == TCC_OK ? pool : NULL;
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
