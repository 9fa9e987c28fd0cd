/* Counts bytes in budgets of processes, instances and pools.  Each budget lies within the one
 * around it, and the process's budget lies within what the system has left. */
#define _GNU_SOURCE
#include "workers.h"

static size_t load(const size_t *number) { return __atomic_load_n(number, __ATOMIC_RELAXED); }

static size_t in_order(const size_t *number) { return __atomic_load_n(number, __ATOMIC_SEQ_CST); }

static size_t lesser(size_t a, size_t b) { return a < b ? a : b; }

TCC_RARE static void note_peak(tcc_budget *budget, size_t used) {
    size_t peak = load(&budget->peak);
    while (used > peak && !__atomic_compare_exchange_n(&budget->peak, &peak, used, true,
                                                       __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

static bool exceeds(size_t limit, size_t used, size_t bytes) {
    return used > limit || bytes > limit - used;
}

/* ---- what the system has left ---------------------------------------------------------------------- */

/* Computes three quarters of the memory that would be left without this process's bytes.  Bytes
 * without pages yet still count in what the system reports as left.  They are counted before the
 * report is read, not after, so a thread that fills its pages meanwhile makes the result too small,
 * never too large.  `pending` of them are not in `used` yet. */
TCC_RARE static size_t share_of(const tcc_budget *process, size_t used, size_t pending, tcc_room *out_room) {
    size_t absent = in_order(&process->absent) - pending;
    tcc_memory_room(out_room);
    size_t all = (size_t)out_room->remaining + (absent < used ? used - absent : 0);
    return all - all / 4;
}

/* Returns true if the system has `bytes` more.  Between two looks at the system's files only small
 * growths are allowed, which together are negligible. */
TCC_RARE static bool system_has(tcc_budget *process, size_t used, size_t bytes) {
    enum { MOST_UNSEEN = 4 << 20, SHARE = 64 };
    size_t unseen = load(&process->unseen);
    while (bytes <= unseen)
        if (__atomic_compare_exchange_n(&process->unseen, &unseen, unseen - bytes, true,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            return true;
    tcc_room room;
    size_t share = share_of(process, used, bytes, &room);
    if (exceeds(share, used, bytes)) return false;
    __atomic_store_n(&process->unseen, lesser((share - used - bytes) / SHARE, MOST_UNSEEN),
                     __ATOMIC_RELAXED);
    return true;
}

/* ---- budgets ------------------------------------------------------------------------------------------ */

static tcc_budget *outermost(tcc_budget *budget) {
    while (budget->parent) budget = budget->parent;
    return budget;
}

TCC_RARE static bool take_within(tcc_budget *budget, size_t bytes) {
    size_t limit = load(&budget->limit), used = in_order(&budget->used);
    do {
        if (limit && exceeds(limit, used, bytes)) return false;
        if (!budget->parent && !system_has(budget, used, bytes)) return false;
    } while (!__atomic_compare_exchange_n(&budget->used, &used, used + bytes, true, __ATOMIC_SEQ_CST,
                                          __ATOMIC_SEQ_CST));
    note_peak(budget, used + bytes);
    return true;
}

bool tcc_budget_take(tcc_budget *budget, size_t bytes) {
    if (!bytes) return true;
    tcc_budget_expect(budget, bytes); /* absent from before they count as used */
    for (tcc_budget *at = budget; at; at = at->parent) {
        if (take_within(at, bytes)) continue;
        for (tcc_budget *charged = budget; charged != at; charged = charged->parent)
            (void)__atomic_fetch_sub(&charged->used, bytes, __ATOMIC_RELAXED);
        tcc_budget_settle(budget, bytes);
        return false;
    }
    return true;
}

void tcc_budget_give(tcc_budget *budget, size_t bytes) {
    for (; budget; budget = budget->parent)
        (void)__atomic_fetch_sub(&budget->used, bytes, __ATOMIC_SEQ_CST);
}

void tcc_budget_expect(tcc_budget *budget, size_t bytes) {
    (void)__atomic_fetch_add(&outermost(budget)->absent, bytes, __ATOMIC_SEQ_CST);
}

void tcc_budget_settle(tcc_budget *budget, size_t bytes) {
    if (bytes) (void)__atomic_fetch_sub(&outermost(budget)->absent, bytes, __ATOMIC_SEQ_CST);
}

size_t tcc_budget_used(const tcc_budget *budget) { return load(&budget->used); }

/* ---- the process's budget --------------------------------------------------------------------------- */

tcc_budget *tcc_process_budget(void) {
    static tcc_budget fallback = {.name = "the process"}; /* used where there is no memory to find the
                                                             shared budget */
    tcc_workers *workers = tcc_workers_find();
    return workers ? &workers->memory : &fallback;
}

size_t tcc_budget_left(const tcc_budget *budget) {
    size_t remaining = SIZE_MAX;
    for (; budget; budget = budget->parent) {
        tcc_room room;
        size_t limit = load(&budget->limit), used = tcc_budget_used(budget);
        if (!budget->parent) {
            size_t share = share_of(budget, used, 0, &room);
            remaining = lesser(remaining, share > used ? share - used : 0);
        }
        if (limit) remaining = lesser(remaining, limit > used ? limit - used : 0);
    }
    return remaining;
}

tcc_status tcc_budget_refuse(const tcc_budget *budget, size_t bytes) {
    for (; budget; budget = budget->parent) {
        size_t limit = load(&budget->limit), used = tcc_budget_used(budget);
        if (limit && exceeds(limit, used, bytes))
            return tcc_fail(TCC_OUT_OF_MEMORY,
                            "out of memory: %s holds %zu bytes and asks for %zu more; %s allows it %zu",
                            budget->name, used, bytes, budget->source, limit);
        tcc_room room;
        size_t share = budget->parent ? SIZE_MAX : share_of(budget, used, 0, &room);
        if (exceeds(share, used, bytes))
            return tcc_fail(TCC_OUT_OF_MEMORY,
                            "out of memory: %s holds %zu bytes and asks for %zu more; %s leaves it %zu "
                            "(%lld of %lld are in use)",
                            budget->name, used, bytes, room.holder, share, (long long)room.used,
                            (long long)room.limit);
    }
    return tcc_fail(TCC_OUT_OF_MEMORY, "out of memory (the system gives no %zu bytes)", bytes);
}
