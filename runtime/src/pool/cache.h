/* Caches of freed blocks, which are taken again without a search and without the lock.
 *
 * A pool of one thread has one cache.  A shared pool has one cache for each of the first THREADS
 * threads; when a thread ends, the next thread takes over its cache.  A thread sets `busy` while it
 * is in its cache, and needs neither a lock nor an atomic read-modify-write.  A thread that needs
 * all caches, which is rare, closes them and makes the other threads pass a barrier (membarrier of
 * Linux 4.14).  After the barrier each other thread is seen to be busy, or sees that its cache is
 * closed.  Without membarrier a shared pool has no caches. */
#ifndef TCC_POOL_CACHE_H
#define TCC_POOL_CACHE_H

#include <stdatomic.h>

#include "pool.h"

enum {
    CACHED_CLASSES = 113,     /* blocks of up to 64 KiB */
    MOST_CACHED = (4 << 20) / UNIT, /* units in one cache at most */
    THREADS = 16,             /* threads that have a cache of a shared pool */
    LINE_PAIR = 128,
};

struct pool_cache {
    _Alignas(LINE_PAIR) atomic_bool busy;
    atomic_bool closed;
    size_t units;
    uint32_t first[CACHED_CLASSES]; /* by class: the first descriptor of a list */
};

/* The number of the calling thread's cache; THREADS or more: none, or none yet. */
extern _Thread_local uint32_t pool_place;
/* Gives the calling thread a cache if it has none.  Returns true if it got one now. */
bool pool_claim_place(void);

static inline void leave_cache(pool_cache *cache) {
    atomic_store_explicit(&cache->busy, false, memory_order_release);
}

/* Returns the cache that the calling thread may use until `leave_cache`; NULL if it has none. */
static inline pool_cache *enter_cache(const tcc_pool *pool) {
    if (!pool->shared) return pool->caches;
    uint32_t place = pool_place;
    if (TCC_UNLIKELY(place >= THREADS)) return NULL;
    pool_cache *cache = &pool->caches[place];
    atomic_store_explicit(&cache->busy, true, memory_order_relaxed);
    atomic_signal_fence(memory_order_seq_cst);
    if (TCC_UNLIKELY(atomic_load_explicit(&cache->closed, memory_order_acquire))) {
        leave_cache(cache);
        return NULL;
    }
    return cache;
}

/* Takes a block of a class below CACHED_CLASSES; 0 if the caller's cache has none.  Like the next
 * function it calls no other function, so that the rare path needs no registers here. */
static inline uint32_t take_cached(tcc_pool *pool, uint32_t class) {
    pool_cache *cache = enter_cache(pool);
    if (TCC_UNLIKELY(!cache)) return 0;
    uint32_t number = cache->first[class];
    if (number) {
        block *at = &pool->all.table[number];
        cache->first[class] = at->next;
        cache->units -= at->units;
        block_set_state(at, BLOCK_LIVE);
    }
    leave_cache(cache);
    return number;
}

/* Puts a block into the cache.  Returns false if the cache does not take it; the caller still owns
 * the block then. */
static inline bool give_cached(tcc_pool *pool, uint32_t number) {
    block *at = &pool->all.table[number];
    uint32_t class = at->class;
    if (!class) return false;
    pool_cache *cache = enter_cache(pool);
    if (TCC_UNLIKELY(!cache)) return false;
    size_t units = cache->units + at->units;
    bool is_cached = units <= MOST_CACHED;
    if (is_cached) {
        block_set_state(at, BLOCK_CACHED);
        at->next = cache->first[class];
        cache->first[class] = number;
        cache->units = units;
    }
    leave_cache(cache);
    return is_cached;
}

#endif
