/* Budgets: how many bytes a process, an instance or a pool may take, each within the one around it. */
#define _GNU_SOURCE
#include "workers.h"

static void note_most(tcc_budget *budget, size_t used) {
    size_t most = __atomic_load_n(&budget->most, __ATOMIC_RELAXED);
    while (used > most && !__atomic_compare_exchange_n(&budget->most, &most, used, true,
                                                       __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

static bool take_one(tcc_budget *budget, size_t bytes) {
    size_t limit = __atomic_load_n(&budget->limit, __ATOMIC_RELAXED);
    size_t used = __atomic_load_n(&budget->used, __ATOMIC_RELAXED);
    do {
        if (limit && (used > limit || bytes > limit - used)) return false;
    } while (!__atomic_compare_exchange_n(&budget->used, &used, used + bytes, true, __ATOMIC_RELAXED,
                                          __ATOMIC_RELAXED));
    note_most(budget, used + bytes);
    return true;
}

bool tcc_budget_take(tcc_budget *budget, size_t bytes) {
    for (tcc_budget *at = budget; at; at = at->parent) {
        if (take_one(at, bytes)) continue;
        for (tcc_budget *taken = budget; taken != at; taken = taken->parent)
            (void)__atomic_fetch_sub(&taken->used, bytes, __ATOMIC_RELAXED);
        return false;
    }
    return true;
}

void tcc_budget_give(tcc_budget *budget, size_t bytes) {
    for (; budget; budget = budget->parent)
        (void)__atomic_fetch_sub(&budget->used, bytes, __ATOMIC_RELAXED);
}

size_t tcc_budget_used(const tcc_budget *budget) {
    return __atomic_load_n(&budget->used, __ATOMIC_RELAXED);
}

/* ---- the process's budget --------------------------------------------------------------------------- */

tcc_budget *tcc_process_budget(void) {
    static tcc_budget own = {.name = "the process"}; /* where there is no memory to find the others' */
    tcc_workers *workers = tcc_workers_find();
    return workers ? &workers->memory : &own;
}

tcc_status tcc_budget_refuse(const tcc_budget *budget, size_t bytes) {
    for (; budget; budget = budget->parent) {
        size_t limit = __atomic_load_n(&budget->limit, __ATOMIC_RELAXED), used = tcc_budget_used(budget);
        if (limit && (used > limit || bytes > limit - used))
            return tcc_fail(TCC_OUT_OF_MEMORY,
                            "out of memory: %s holds %zu bytes and asks for %zu more; %s allows it %zu",
                            budget->name, used, bytes, budget->source, limit);
    }
    return tcc_fail(TCC_OUT_OF_MEMORY, "out of memory (the system gives no %zu bytes)", bytes);
}
