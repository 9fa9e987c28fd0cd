/* Implements the caches of a pool, which cache.h describes. */
#define _GNU_SOURCE
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cache.h"

/* ---- threads --------------------------------------------------------------------------------------- */

/* Values of <linux/membarrier.h> since Linux 4.14: MEMBARRIER_CMD_PRIVATE_EXPEDITED, and its
 * registration. */
enum { BARRIER = 1 << 3, REGISTER = 1 << 4 };

static atomic_bool claimed[THREADS];
static pthread_key_t at_end;
static bool has_places;
_Thread_local uint32_t pool_place = THREADS;

static bool register_barrier(void) {
    return syscall(SYS_membarrier, REGISTER, 0) == 0;
}

static void leave_place(void *place) {
    pool_place = THREADS; /* a destructor that runs later claims a new place */
    atomic_store_explicit((atomic_bool *)place, false, memory_order_release);
}

/* Resets the places in a fork's child, where no other thread exists. */
static void after_fork(void) {
    has_places = has_places && register_barrier();
    if (!has_places) pool_place = THREADS;
    for (uint32_t i = 0; i < THREADS; i++)
        if (i != pool_place) atomic_store_explicit(&claimed[i], false, memory_order_relaxed);
}

static void prepare_threads(void) {
    has_places = register_barrier() && pthread_key_create(&at_end, leave_place) == 0 &&
                 pthread_atfork(NULL, NULL, after_fork) == 0;
}

bool pool_claim_place(void) {
    if (!has_places || pool_place < THREADS) return false;
    for (uint32_t i = 0; i < THREADS; i++) {
        if (atomic_load_explicit(&claimed[i], memory_order_relaxed) ||
            atomic_exchange_explicit(&claimed[i], true, memory_order_acquire))
            continue;
        if (pthread_setspecific(at_end, &claimed[i]) == 0) {
            pool_place = i;
            return true;
        }
        atomic_store_explicit(&claimed[i], false, memory_order_release);
        break;
    }
    return false;
}

/* ---- all caches ------------------------------------------------------------------------------------- */

static int count_of(const tcc_pool *pool) { return pool->shared ? THREADS : 1; }

/* Closes all caches: until `open_all` no thread is in a cache.  The caller holds the lock.  Returns
 * false where that is impossible. */
static bool close_all(tcc_pool *pool) {
    if (!pool->shared) return true;
    for (int i = 0; i < THREADS; i++) atomic_store(&pool->caches[i].closed, true);
    bool passed = !has_places || syscall(SYS_membarrier, BARRIER, 0) == 0;
    for (int i = 0; passed && i < THREADS; i++)
        while (atomic_load(&pool->caches[i].busy)) sched_yield();
    return passed;
}

static void open_all(tcc_pool *pool) {
    for (int i = 0; pool->shared && i < THREADS; i++)
        atomic_store_explicit(&pool->caches[i].closed, false, memory_order_release);
}

tcc_status pool_caches_create(tcc_pool *pool) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (pool->shared) pthread_once(&once, prepare_threads);
    size_t bytes = (size_t)count_of(pool) * sizeof(pool_cache);
    pool->cache_memory = tcc_allocate_zero(1, bytes + LINE_PAIR);
    if (!pool->cache_memory) return TCC_OUT_OF_MEMORY;
    uintptr_t start = (uintptr_t)pool->cache_memory;
    pool->caches = (pool_cache *)((start + LINE_PAIR - 1) / LINE_PAIR * LINE_PAIR);
    return TCC_OK;
}

static void empty(tcc_pool *pool, pool_cache *cache) {
    for (int class = 0; cache->units && class < CACHED_CLASSES; class++)
        for (uint32_t number = cache->first[class], next; number; number = next) {
            next = pool->all.table[number].next;
            cache->first[class] = next;
            pool->n_blocks--;
            pool->live -= pool->all.table[number].units * UNIT;
            blocks_give(&pool->all, number);
        }
    cache->units = 0;
}

bool pool_caches_empty(tcc_pool *pool) {
    size_t before = pool->n_blocks;
    if (close_all(pool))
        for (int i = 0; i < count_of(pool); i++) empty(pool, &pool->caches[i]);
    open_all(pool);
    return pool->n_blocks != before;
}

static void forget(pool_cache *cache) {
    memset(cache->first, 0, sizeof cache->first);
    cache->units = 0;
}

void pool_caches_forget(tcc_pool *pool) {
    for (int i = 0; i < count_of(pool); i++) forget(&pool->caches[i]);
}

void pool_caches_after_fork(tcc_pool *pool) {
    for (int i = 0; i < THREADS; i++) {
        pool_cache *cache = &pool->caches[i];
        if (!atomic_load_explicit(&cache->busy, memory_order_relaxed)) continue;
        forget(cache); /* a thread was changing it during the fork */
        atomic_store_explicit(&cache->busy, false, memory_order_relaxed);
    }
}

static size_t count(const tcc_pool *pool, const pool_cache *cache) {
    size_t blocks = 0;
    for (int class = 0; cache->units && class < CACHED_CLASSES; class++)
        for (uint32_t number = cache->first[class]; number; number = pool->all.table[number].next) blocks++;
    return blocks;
}

size_t pool_caches_hold(tcc_pool *pool, size_t *out_blocks) {
    size_t bytes = 0;
    *out_blocks = 0;
    if (close_all(pool))
        for (int i = 0; i < count_of(pool); i++) {
            bytes += pool->caches[i].units * UNIT;
            *out_blocks += count(pool, &pool->caches[i]);
        }
    open_all(pool);
    return bytes;
}
