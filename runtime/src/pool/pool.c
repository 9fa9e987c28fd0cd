/* Implements the pool: takes, gives and grows blocks. tcc_pool.h documents it. */
#include <string.h>
#include <unistd.h>

#include "../sized.h"
#include "cache.h"

#define NOINLINE __attribute__((noinline))

static void lock(tcc_pool *pool) {
    if (pool->shared) pthread_mutex_lock(&pool->lock);
}

static void unlock(tcc_pool *pool) {
    if (pool->shared) pthread_mutex_unlock(&pool->lock);
}

static char *address_of(const tcc_pool *pool, uint32_t number) {
    return pool->base + pool->all.table[number].start * UNIT;
}

/* Returns the block that begins at an address, in any state; 0 if none does. */
static inline uint32_t block_at(const tcc_pool *pool, const void *memory) {
    size_t offset = (size_t)((uintptr_t)memory - (uintptr_t)pool->base);
    size_t opened = __atomic_load_n(&pool->open_owners, __ATOMIC_ACQUIRE);
    if (offset % UNIT || offset / UNIT >= opened / sizeof(uint32_t)) return 0;
    return __atomic_load_n(&pool->all.owner[offset / UNIT], __ATOMIC_RELAXED);
}

static bool is_live(const tcc_pool *pool, uint32_t number) {
    return number && __atomic_load_n(&pool->all.table[number].state, __ATOMIC_RELAXED) == BLOCK_LIVE;
}

/* Tries to free memory. Returns true if something is free now that was not. The caller holds the
 * lock. */
static bool find_memory(tcc_pool *pool, size_t missing) {
    if (pool->caches && pool_caches_empty(pool)) return true;
    if (pool->base && pool_decommit_free(pool)) return true;
    if (!pool->pressure) return false;
    unlock(pool); /* the callback may use the pool */
    bool is_freed = pool->pressure(pool->pressure_context, missing) != 0;
    lock(pool);
    return is_freed;
}

/* ---- create and destroy ------------------------------------------------------------------------------ */

static size_t default_range(void) {
    size_t bytes = 0;
    if (tcc_memory_limit(&bytes) != TCC_OK || !bytes)
        bytes = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    return 2 * bytes; /* such blocks need addresses rather than memory, because blocks between them
                         were freed */
}

#define ENDS(field) TCC_ENDS(tcc_pool_config, field)

static const tcc_sized config_kind = {
    "tcc_pool_config", sizeof(tcc_pool_config), TCC_END(tcc_pool_config, range),
    ENDS(range) | ENDS(limit) | ENDS(pressure) | ENDS(pressure_context) | ENDS(memory) |
        ENDS(allocator)};

tcc_status tcc_pool_read_config(const tcc_pool_config *config, tcc_pool_config *out_config) {
    *out_config = (tcc_pool_config){0};
    return tcc_sized_read(&config_kind, config, out_config);
}

tcc_status tcc_pool_create_within(const tcc_pool_config *config, tcc_budget *parent,
                                  tcc_pool **out_pool) {
    if (!out_pool || config->flags & ~(TCC_POOL_SHARED | TCC_POOL_POISON) ||
        config->range > SIZE_MAX / 2)
        return tcc_fail(TCC_INVALID_ARGUMENT,
                        "a pool: no place for its address, flags 0x%x, or a range of %zu bytes",
                        config->flags, config->range);
    tcc_pool *pool = tcc_allocate_zero(1, sizeof *pool);
    if (!pool) return TCC_OUT_OF_MEMORY;
    pool->shared = config->flags & TCC_POOL_SHARED;
    pool->poison = config->flags & TCC_POOL_POISON;
    pool->reserve_size = config->range ? config->range : default_range();
    pool->budget = (tcc_budget){.limit = config->limit, .parent = parent, .name = "the pool",
                                .source = "its config"};
    pool->pressure = config->pressure;
    pool->pressure_context = config->pressure_context;
    if (config->memory) pool->memory = *config->memory;
    if (config->allocator) pool->allocator = *config->allocator;
    if (pool->shared) pthread_mutex_init(&pool->lock, NULL);
    if (!pool->allocator.allocate && !pool->poison && pool_caches_create(pool) != TCC_OK) {
        tcc_pool_destroy(pool);
        return TCC_OUT_OF_MEMORY;
    }
    *out_pool = pool;
    return TCC_OK;
}

tcc_status tcc_pool_create(const tcc_pool_config *config, tcc_pool **out_pool) {
    tcc_pool_config settings;
    TCC_RETURN_IF_ERROR(tcc_pool_read_config(config, &settings));
    return tcc_pool_create_within(&settings, tcc_process_budget(), out_pool);
}

void tcc_pool_destroy(tcc_pool *pool) {
    if (!pool) return;
    own_give_all(pool);
    pool_release(pool);
    tcc_free(pool->cache_memory);
    if (pool->shared) pthread_mutex_destroy(&pool->lock);
    tcc_free(pool);
}

static pool_size size_of(size_t bytes) { return pool_size_of(bytes ? (bytes - 1) / UNIT + 1 : 1); }

static uint64_t units_of(size_t bytes) { return size_of(bytes).units; }

/* Sets the class of a block in use whose size is final. Blocks without full memory are not
 * cached. */
static void set_class(block *at) {
    pool_size size = pool_size_of(at->units);
    bool cached = size.class < CACHED_CLASSES && size.units == at->units && !at->cold;
    at->class = cached ? (uint8_t)size.class : 0;
}

/* ---- take -------------------------------------------------------------------------------------------- */

/* Adds `more` units to the live count. A negative number wraps. */
static void count_live(tcc_pool *pool, uint64_t more) {
    pool->live += more * UNIT;
    if (pool->live > pool->most_live) pool->most_live = pool->live;
}

/* Finds a block and returns its descriptor, or 0. Empties the caches before it commits more than
 * intended. */
static uint32_t find_block(tcc_pool *pool, uint64_t units) {
    uint32_t number = blocks_take(&pool->all, units);
    const block *at = &pool->all.table[number];
    if (!number || !at->cold || !pool->caches || !pool_exceeds(pool, at) || !pool_caches_empty(pool))
        return number;
    blocks_give(&pool->all, number);
    return blocks_take(&pool->all, units);
}

/* Takes a block with committed memory. On failure returns a status and sets the message. The caller
 * holds the lock. */
static tcc_status take_block(tcc_pool *pool, size_t bytes, uint32_t *out_number) {
    if (!pool->base) TCC_RETURN_IF_ERROR(pool_reserve(pool));
    uint32_t number;
    uint64_t units = units_of(bytes);
    if (!pool_open_tables(pool, units)) return tcc_budget_refuse(&pool->budget, bytes);
    while (!(number = find_block(pool, units)))
        if (!find_memory(pool, bytes))
            return tcc_fail(TCC_OUT_OF_MEMORY,
                            "out of memory (%zu bytes for one array, of a pool of %zu)", bytes,
                            pool->range);
    size_t missing, peak = pool->most_live;
    block *at = &pool->all.table[number];
    count_live(pool, at->units);
    while (at->cold && !pool_has(pool, at) && !pool_commit(pool, at, &missing))
        if (!find_memory(pool, missing)) {
            count_live(pool, -at->units);
            pool->most_live = peak;
            blocks_give(&pool->all, number);
            return tcc_budget_refuse(&pool->budget, missing);
        }
    at->cold = 0;
    set_class(at);
    pool->most_live = peak; /* the callback may have given back blocks that were counted */
    count_live(pool, 0);
    pool->n_blocks++;
    *out_number = number;
    return TCC_OK;
}

static tcc_status take_allocated(tcc_pool *pool, size_t bytes, void **out_memory) {
    while (!(*out_memory = own_take(pool, bytes)))
        if (!find_memory(pool, bytes)) return tcc_budget_refuse(&pool->budget, bytes);
    return TCC_OK;
}

static tcc_status take(tcc_pool *pool, size_t bytes, void **out_memory) {
    uint32_t number = 0;
    tcc_status status = TCC_OK;
    if (pool->allocator.allocate)
        status = take_allocated(pool, bytes, out_memory);
    else if ((status = take_block(pool, bytes, &number)) == TCC_OK)
        *out_memory = address_of(pool, number);
    if (status == TCC_OK)
        pool->takes++;
    else
        pool->failures++;
    return status;
}

static size_t bytes_of(const tcc_pool *pool, const void *memory) {
    if (pool->allocator.allocate) return own_bytes(memory);
    return pool->all.table[block_at(pool, memory)].units * UNIT;
}

static NOINLINE tcc_status take_locked(tcc_pool *pool, size_t bytes, void **out_memory) {
    if (pool->shared && pool_claim_place()) return tcc_pool_take(pool, bytes, out_memory);
    lock(pool);
    tcc_status status = take(pool, bytes, out_memory);
    unlock(pool);
    if (pool->poison && status == TCC_OK) memset(*out_memory, 0xFF, bytes_of(pool, *out_memory));
    return status;
}

tcc_status tcc_pool_take(tcc_pool *pool, size_t bytes, void **out_memory) {
    uint32_t class = size_of(bytes).class;
    uint32_t number = pool->caches && class < CACHED_CLASSES ? take_cached(pool, class) : 0;
    if (TCC_UNLIKELY(!number)) return take_locked(pool, bytes, out_memory);
    *out_memory = address_of(pool, number);
    return TCC_OK;
}

/* ---- give -------------------------------------------------------------------------------------------- */

static tcc_status no_block(const void *memory) {
    return tcc_fail(TCC_INVALID_ARGUMENT, "%p is no block of the pool that is in use", memory);
}

static tcc_status give(tcc_pool *pool, void *memory) {
    if (pool->allocator.allocate && memory) {
        own_give(pool, memory);
        return TCC_OK;
    }
    uint32_t number = block_at(pool, memory);
    if (!is_live(pool, number)) return no_block(memory);
    pool->n_blocks--;
    pool->live -= pool->all.table[number].units * UNIT;
    blocks_give(&pool->all, number);
    return TCC_OK;
}

static NOINLINE tcc_status give_locked(tcc_pool *pool, void *memory) {
    if (pool->shared && pool_claim_place()) return tcc_pool_give(pool, memory);
    lock(pool);
    tcc_status status = give(pool, memory);
    unlock(pool);
    return status;
}

tcc_status tcc_pool_give(tcc_pool *pool, void *memory) {
    uint32_t number = pool->caches ? block_at(pool, memory) : 0;
    if (is_live(pool, number) && give_cached(pool, number)) return TCC_OK;
    return give_locked(pool, memory);
}

/* ---- resize ------------------------------------------------------------------------------------------ */

/* Returns the size with spare room, for a block that had to move, so that it can grow again. */
static size_t with_room(size_t bytes) { return bytes > SIZE_MAX / 2 ? bytes : bytes + bytes / 16; }

/* Resizes a block in place. Returns false if it cannot have `bytes` bytes there. */
static bool resize_here(tcc_pool *pool, uint32_t number, size_t bytes) {
    block *at = &pool->all.table[number];
    uint64_t units = units_of(bytes), old = at->units;
    size_t missing;
    if (units <= old && old - units <= units / 8) return true; /* leave room to grow again */
    if (!pool_open_tables(pool, units) || !blocks_resize(&pool->all, number, units)) return false;
    if (at->cold && !pool_commit(pool, at, &missing)) {
        (void)blocks_resize(&pool->all, number, old); /* moving may help, because another free block
                                                         has memory */
        at->cold = at->units > old;
        return false;
    }
    at->cold = 0;
    set_class(at);
    count_live(pool, at->units - old);
    return true;
}

/* Moves a block down into the free block before it. That closes gaps where several blocks grow
 * alternately. */
static bool slide(tcc_pool *pool, void **memory, size_t bytes, size_t keep) {
    uint32_t number = block_at(pool, *memory);
    uint64_t old = pool->all.table[number].units, start, missing;
    block request = {.units = units_of(with_room(bytes))};
    if (!blocks_fit_around(&pool->all, number, request.units, &start)) {
        request.units = units_of(bytes);
        if (!blocks_fit_around(&pool->all, number, request.units, &start)) return false;
    }
    request.start = start;
    if (!pool_open_tables(pool, request.units)) return false;
    if (!pool_has(pool, &request) && !pool_commit(pool, &request, &missing)) return false;
    number = blocks_slide(&pool->all, number, request.units);
    memmove(address_of(pool, number), *memory, keep < old * UNIT ? keep : old * UNIT);
    *memory = address_of(pool, number);
    block *at = &pool->all.table[number];
    at->cold = at->units > request.units;
    set_class(at);
    count_live(pool, at->units - old);
    return true;
}

static tcc_status move(tcc_pool *pool, void **memory, size_t bytes, size_t keep) {
    void *grown = NULL;
    size_t old = bytes_of(pool, *memory);
    if (keep > old) keep = old;
    if (take(pool, with_room(bytes), &grown) != TCC_OK) {
        pool->failures--; /* the caller did not ask for this take */
        TCC_RETURN_IF_ERROR(take(pool, bytes, &grown));
    }
    memcpy(grown, *memory, keep < bytes ? keep : bytes);
    (void)give(pool, *memory);
    *memory = grown;
    return TCC_OK;
}

static tcc_status resize(tcc_pool *pool, void **memory, size_t bytes, size_t keep) {
    if (pool->allocator.allocate)
        return bytes <= own_bytes(*memory) ? TCC_OK : move(pool, memory, bytes, keep);
    uint32_t number = block_at(pool, *memory);
    if (!is_live(pool, number)) return no_block(*memory);
    if (resize_here(pool, number, bytes) || slide(pool, memory, bytes, keep)) return TCC_OK;
    return move(pool, memory, bytes, keep);
}

tcc_status tcc_pool_resize(tcc_pool *pool, void **memory, size_t bytes, size_t keep) {
    if (!*memory) return tcc_pool_take(pool, bytes, memory);
    lock(pool);
    tcc_status status = resize(pool, memory, bytes, keep);
    unlock(pool);
    return status;
}

/* ---- fork ------------------------------------------------------------------------------------------- */

void tcc_pool_before_fork(tcc_pool *pool) { lock(pool); }

void tcc_pool_after_fork(tcc_pool *pool, bool child) {
    if (child && pool->caches) pool_caches_after_fork(pool);
    unlock(pool);
}

/* ---- all blocks --------------------------------------------------------------------------------------- */

void tcc_pool_reset(tcc_pool *pool) {
    own_give_all(pool);
    if (pool->absent) pool_settle(pool, SIZE_MAX);
    if (!pool->n_blocks || (pool->caches && pool->live == pool->caches->units * UNIT)) return;
    if (pool->caches) pool_caches_forget(pool);
    blocks_reset(&pool->all);
    pool->n_blocks = 0;
    pool->live = 0;
}

void tcc_pool_trim(tcc_pool *pool) {
    lock(pool);
    if (pool->caches) (void)pool_caches_empty(pool);
    if (pool->base) (void)pool_decommit_free(pool);
    unlock(pool);
}

void tcc_pool_statistics_of(tcc_pool *pool, tcc_pool_statistics *out) {
    lock(pool);
    *out = (tcc_pool_statistics){
        .range = pool->range,
        .committed = tcc_budget_used(&pool->budget),
        .most_committed = __atomic_load_n(&pool->budget.peak, __ATOMIC_RELAXED),
        .live = pool->live,
        .most_live = pool->most_live,
        .blocks = pool->n_blocks,
        .takes = pool->takes,
        .failures = pool->failures,
    };
    if (pool->caches) {
        size_t cached = 0;
        out->live -= pool_caches_hold(pool, &cached);
        out->blocks -= cached;
    }
    unlock(pool);
}
