/* Caches of a shared pool: small blocks that a thread gave and takes again, without the pool's lock.
 *
 * Threads are dealt to a fixed number of caches, so that nothing is left behind when one ends.  Two of
 * one cache never wait for each other: the second goes to the pool. */
#include <stdatomic.h>
#include <string.h>

#include "pool.h"

enum { CACHES = 16, SIZES = 32, DEPTH = 8, LINE_PAIR = 128 }; /* blocks of up to SIZES units */

struct pool_cache {
    _Alignas(LINE_PAIR) atomic_bool busy;
    uint8_t counts[SIZES];
    uint32_t numbers[SIZES][DEPTH];
};

tcc_status pool_caches_create(tcc_pool *pool) {
    void *memory = NULL;
    memory = tcc_allocate_zero(CACHES + 1, sizeof(pool_cache));
    if (!memory) return TCC_OUT_OF_MEMORY;
    pool->caches = memory;
    return TCC_OK;
}

/* Aligned in what was allocated with one more. */
static pool_cache *cache_at(const tcc_pool *pool, uint32_t index) {
    uintptr_t start = ((uintptr_t)pool->caches + LINE_PAIR - 1) / LINE_PAIR * LINE_PAIR;
    return (pool_cache *)start + index;
}

static pool_cache *own_cache(const tcc_pool *pool) {
    static _Atomic uint32_t threads;
    static _Thread_local uint32_t mine; /* counted from 1 */
    if (TCC_UNLIKELY(!mine))
        mine = 1 + atomic_fetch_add_explicit(&threads, 1, memory_order_relaxed) % CACHES;
    return cache_at(pool, mine - 1);
}

static bool enter(pool_cache *cache) {
    return !atomic_exchange_explicit(&cache->busy, true, memory_order_acquire);
}

static void leave(pool_cache *cache) {
    atomic_store_explicit(&cache->busy, false, memory_order_release);
}

static bool change_state(tcc_pool *pool, uint32_t number, block_state from, block_state to) {
    uint32_t expected = from;
    return __atomic_compare_exchange_n(&pool->all.table[number].state, &expected, (uint32_t)to, false,
                                       __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

uint32_t pool_cache_take(tcc_pool *pool, uint64_t units) {
    if (units > SIZES) return 0;
    pool_cache *cache = own_cache(pool);
    uint32_t number = 0;
    if (!enter(cache)) return 0;
    uint8_t *count = &cache->counts[units - 1];
    if (*count) {
        number = cache->numbers[units - 1][--*count];
        (void)change_state(pool, number, BLOCK_CACHED, BLOCK_LIVE);
    }
    leave(cache);
    return number;
}

bool pool_cache_give(tcc_pool *pool, uint32_t number) {
    uint64_t units = pool->all.table[number].units;
    if (units > SIZES) return false;
    pool_cache *cache = own_cache(pool);
    if (!enter(cache)) return false;
    uint8_t *count = &cache->counts[units - 1];
    bool kept = *count < DEPTH && change_state(pool, number, BLOCK_LIVE, BLOCK_CACHED);
    if (kept) cache->numbers[units - 1][(*count)++] = number;
    leave(cache);
    return kept;
}

static void wait_for(pool_cache *cache) {
    while (!enter(cache)) {
    }
}

void pool_caches_empty(tcc_pool *pool) {
    for (uint32_t i = 0; i < CACHES; i++) {
        pool_cache *cache = cache_at(pool, i);
        wait_for(cache);
        for (int size = 0; size < SIZES; size++)
            while (cache->counts[size]) {
                uint32_t number = cache->numbers[size][--cache->counts[size]];
                pool->n_blocks--;
                pool->live -= pool->all.table[number].units * UNIT;
                blocks_give(&pool->all, number);
            }
        leave(cache);
    }
}

void pool_caches_free(tcc_pool *pool) {
    for (uint32_t i = 0; i < CACHES; i++) leave(cache_at(pool, i));
}

size_t pool_caches_hold(tcc_pool *pool, size_t *out_blocks) {
    size_t bytes = 0, blocks = 0;
    for (uint32_t i = 0; i < CACHES; i++) {
        pool_cache *cache = cache_at(pool, i);
        wait_for(cache);
        for (size_t size = 0; size < SIZES; size++) {
            blocks += cache->counts[size];
            bytes += cache->counts[size] * (size + 1) * UNIT;
        }
        leave(cache);
    }
    *out_blocks = blocks;
    return bytes;
}
