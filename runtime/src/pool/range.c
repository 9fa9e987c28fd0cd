/* Manages a pool's addresses and the memory behind them. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>

#include "pool.h"

static const size_t huge_page = (size_t)2 << 20;
static const size_t max_range = (size_t)1 << 45;   /* bytes, of the 2^47 that a process has */
static const size_t min_range = (size_t)1 << 20;   /* bytes; with fewer, no pool is made */
static const uint32_t max_blocks = UINT32_C(1) << 22;

/* ---- the system's memory ----------------------------------------------------------------------------- */

/* Reserves addresses without MAP_NORESERVE: a commit must fail where the system knows that memory
 * is short. */
static void *reserve(void *context, size_t bytes) {
    (void)context;
    char *memory = mmap(NULL, bytes + huge_page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return NULL;
    size_t skipped = (huge_page - (uintptr_t)memory % huge_page) % huge_page;
    if (skipped) munmap(memory, skipped);
    if (skipped != huge_page) munmap(memory + skipped + bytes, huge_page - skipped);
    (void)madvise(memory + skipped, bytes, MADV_HUGEPAGE); /* advice only */
    return memory + skipped;
}

static int commit(void *context, void *start, size_t bytes) {
    (void)context;
    return mprotect(start, bytes, PROT_READ | PROT_WRITE);
}

/* Frees the memory but leaves the addresses accessible: that takes one call instead of two, and
 * adds no mappings. */
static void decommit(void *context, void *start, size_t bytes) {
    (void)context;
    (void)madvise(start, bytes, MADV_DONTNEED);
}

static void release(void *context, void *base, size_t bytes) {
    (void)context;
    munmap(base, bytes);
}

static const tcc_pool_memory system_memory = {NULL, reserve, commit, decommit, release};

/* ---- tables ---------------------------------------------------------------------------------------- */

enum {
    STEP = 256 << 10, /* bytes of a table that are made accessible at once */
    OPENED_AT_ONCE = 4, /* descriptors that one change of blocks may make, plus one */
};

static size_t round_to_steps(size_t bytes) { return (bytes + STEP - 1) / STEP * STEP; }

static bool open_up_to(void *table, size_t *opened, size_t bytes) {
    if (bytes <= *opened) return true;
    size_t target = round_to_steps(bytes);
    if (mprotect((char *)table + *opened, target - *opened, PROT_READ | PROT_WRITE)) return false;
    __atomic_store_n(opened, target, __ATOMIC_RELEASE);
    return true;
}

/* ---- the range ------------------------------------------------------------------------------------- */

/* Maps zeroed addresses for the tables.  `pool_open_tables` makes only the used part accessible,
 * because a process's data limits count writable memory. */
static bool make_tables(tcc_pool *pool, size_t range) {
    size_t units = range / UNIT, granules = range / GRANULE;
    uint32_t room = units < max_blocks ? (uint32_t)units + 2 : max_blocks;
    size_t bits = round_to_steps((granules / 64 + 1) * sizeof(uint64_t));
    size_t owners = round_to_steps(units * sizeof(uint32_t)), table = round_to_steps(room * sizeof(block));
    pool->table_bytes = bits + owners + table;
    char *memory = mmap(NULL, pool->table_bytes, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return false;
    pool->tables = memory;
    pool->all = (blocks){.owner = (uint32_t *)(memory + bits),
                         .table = (block *)(memory + bits + owners),
                         .room = room};
    pool->committed = (uint64_t *)memory;
    pool->open_owners = pool->open_table = 0;
    return !mprotect(memory, bits, PROT_READ | PROT_WRITE) &&
           open_up_to(pool->all.owner, &pool->open_owners, 1) &&
           open_up_to(pool->all.table, &pool->open_table, 1);
}

static void drop_tables(tcc_pool *pool) {
    if (pool->tables) munmap(pool->tables, pool->table_bytes);
    pool->tables = NULL;
}

bool pool_open_tables(tcc_pool *pool, uint64_t units) {
    const block *end = &pool->all.table[pool->all.end];
    uint64_t last = end->start + (units <= end->units ? units : 0), last_unit = pool->range / UNIT - 1;
    uint32_t n_opened = pool->all.n_made + OPENED_AT_ONCE, room = pool->all.room;
    return open_up_to(pool->all.owner, &pool->open_owners,
                      ((last < last_unit ? last : last_unit) + 1) * sizeof(uint32_t)) &&
           open_up_to(pool->all.table, &pool->open_table,
                      (n_opened < room ? n_opened : room) * sizeof(block));
}

tcc_status pool_reserve(tcc_pool *pool) {
    if (!pool->memory.reserve) pool->memory = system_memory;
    size_t range = pool->reserve_size < max_range ? pool->reserve_size : max_range;
    range = (range + huge_page - 1) / huge_page * huge_page;
    /* the system may grant fewer addresses */
    for (; range >= min_range; range = range / 2 / GRANULE * GRANULE) {
        if (!make_tables(pool, range)) {
            drop_tables(pool);
            continue;
        }
        pool->base = pool->memory.reserve(pool->memory.context, range);
        if (pool->base) {
            pool->range = range;
            blocks_begin(&pool->all, range / UNIT);
            return TCC_OK;
        }
        drop_tables(pool);
    }
    return tcc_fail(TCC_OUT_OF_MEMORY, "out of memory (no addresses for a pool of %zu bytes)",
                    pool->reserve_size);
}

TCC_COLD void pool_settle(tcc_pool *pool, size_t bytes) {
    if (bytes > pool->absent) bytes = pool->absent;
    tcc_budget_settle(&pool->budget, bytes);
    pool->absent -= bytes;
}

void pool_release(tcc_pool *pool) {
    if (pool->base) pool->memory.release(pool->memory.context, pool->base, pool->range);
    drop_tables(pool);
    pool_settle(pool, SIZE_MAX);
    tcc_budget_give(&pool->budget, tcc_budget_used(&pool->budget));
}

/* ---- memory ---------------------------------------------------------------------------------------- */

static void mark(tcc_pool *pool, size_t first, size_t behind, bool committed) {
    for (size_t g = first; g < behind; g++)
        if (committed)
            pool->committed[g / 64] |= UINT64_C(1) << (g % 64);
        else
            pool->committed[g / 64] &= ~(UINT64_C(1) << (g % 64));
}

/* Returns the next granule from `first` on with this state of commitment; at most `behind`. */
static size_t next(const tcc_pool *pool, size_t first, size_t behind, bool committed) {
    while (first < behind) {
        uint64_t word = pool->committed[first / 64] ^ (committed ? 0 : ~UINT64_C(0));
        word &= ~UINT64_C(0) << (first % 64);
        if (word) {
            size_t granule = first / 64 * 64 + (size_t)__builtin_ctzll(word);
            return granule < behind ? granule : behind;
        }
        first = (first / 64 + 1) * 64;
    }
    return behind;
}

/* Frees at most `limit` bytes of a free block's memory.  Returns how many. */
static size_t decommit_block(tcc_pool *pool, uint32_t number, size_t limit) {
    const block *at = &pool->all.table[number];
    size_t first = (at->start * UNIT + GRANULE - 1) / GRANULE, released = 0;
    size_t behind = (at->start + at->units) * UNIT / GRANULE;
    if (behind > pool->frontier) behind = pool->frontier;
    for (first = next(pool, first, behind, true); first < behind && released < limit;
         first = next(pool, first, behind, true)) {
        size_t end = next(pool, first, behind, false);
        if (end - first > (limit - released + GRANULE - 1) / GRANULE)
            end = first + (limit - released + GRANULE - 1) / GRANULE;
        pool->memory.decommit(pool->memory.context, pool->base + first * GRANULE,
                              (end - first) * GRANULE);
        pool_settle(pool, (end - first) * GRANULE); /* counts as if bytes without pages went
                                                       first */
        tcc_budget_give(&pool->budget, (end - first) * GRANULE);
        mark(pool, first, end, false);
        if (first < pool->solid) pool->solid = first;
        released += (end - first) * GRANULE;
    }
    if (released) blocks_cool(&pool->all, number);
    return released;
}

bool pool_decommit_free(tcc_pool *pool) {
    bool is_released = false;
    for (uint32_t number = pool->all.end; number; number = pool->all.table[number].before) {
        if (block_is_free(&pool->all.table[number]) && decommit_block(pool, number, SIZE_MAX / 2))
            is_released = true;
    }
    return is_released;
}

/* Returns by how many bytes the pool would exceed the amount that it means to commit, if `bytes`
 * more were committed. */
static size_t excess_of(const tcc_pool *pool, size_t bytes) {
    enum { SHARE = 16 };
    size_t allowance = pool->most_live + pool->most_live / SHARE + GRANULE * 4;
    size_t used = tcc_budget_used(&pool->budget) + bytes;
    return used <= allowance ? 0 : used - allowance;
}

/* Keeps the committed bytes close to the most that were in use: before a commit beyond that, it
 * decommits as much from free blocks, cold and large ones first.  It looks at LOOKS blocks at
 * most. */
static void make_up_for(tcc_pool *pool, size_t bytes) {
    enum { LOOKS = 64 };
    size_t excess = excess_of(pool, bytes);
    if (!excess) return;
    size_t released = decommit_block(pool, pool->all.end, excess);
    uint32_t numbers[LOOKS];
    for (int cold = 1; cold >= 0; cold--) {
        uint32_t count = blocks_largest(&pool->all, cold, numbers, LOOKS);
        for (uint32_t i = 0; i < count && released < excess; i++)
            released += decommit_block(pool, numbers[i], excess - released);
    }
}

static bool commit_run(tcc_pool *pool, size_t first, size_t behind, size_t *out_missing) {
    size_t bytes = (behind - first) * GRANULE;
    *out_missing = bytes;
    if (!tcc_budget_take(&pool->budget, bytes)) return false;
    char *start = pool->base + first * GRANULE;
    if (pool->memory.commit(pool->memory.context, start, bytes)) {
        tcc_budget_settle(&pool->budget, bytes);
        tcc_budget_give(&pool->budget, bytes);
        return false;
    }
    size_t absent = pool->memory.commit == commit ? tcc_populate(start, bytes) : 0;
    tcc_budget_settle(&pool->budget, bytes - absent);
    pool->absent += absent;
    mark(pool, first, behind, true);
    if (behind > pool->frontier) pool->frontier = behind;
    if (first <= pool->solid) pool->solid = next(pool, pool->solid, pool->frontier, false);
    return true;
}

/* Returns where a commit at the frontier ends: a thirty-second of the committed bytes further, so
 * that a growing pool asks the system rarely.  It rounds to whole huge pages once that is one page
 * or more. */
static size_t ahead_of(const tcc_pool *pool, size_t behind) {
    size_t granules = tcc_budget_used(&pool->budget) / 32 / GRANULE, huge_granules = huge_page / GRANULE;
    size_t end = behind + granules;
    if (granules >= huge_granules) end = end / huge_granules * huge_granules;
    if (end > pool->range / GRANULE) end = pool->range / GRANULE;
    return end > behind ? end : behind;
}

static size_t first_of(const block *at) { return at->start * UNIT / GRANULE; }

static size_t behind_of(const block *at) {
    return ((at->start + at->units) * UNIT + GRANULE - 1) / GRANULE;
}

bool pool_exceeds(const tcc_pool *pool, const block *at) {
    size_t behind = behind_of(at), first = next(pool, first_of(at), behind, false);
    return !pool_has(pool, at) && first < behind && excess_of(pool, (behind - first) * GRANULE);
}

bool pool_commit(tcc_pool *pool, const block *at, size_t *out_missing) {
    size_t first = first_of(at), behind = behind_of(at);
    for (first = next(pool, first, behind, false); first < behind;
         first = next(pool, first, behind, false)) {
        size_t end = next(pool, first, behind, true);
        make_up_for(pool, (end - first) * GRANULE);
        size_t ahead = end > pool->frontier ? ahead_of(pool, end) : end;
        if (ahead > end && commit_run(pool, first, ahead, out_missing)) return true;
        if (!commit_run(pool, first, end, out_missing)) return false;
    }
    return true;
}

