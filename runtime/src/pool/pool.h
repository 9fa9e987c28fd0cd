/* Declares the contents of a pool, for the files of this folder only. */
#ifndef TCC_POOL_POOL_H
#define TCC_POOL_POOL_H

#include <pthread.h>

#include "../runtime.h"
#include "blocks.h"

enum { GRANULE_BITS = 16 }; /* memory is committed in multiples of 64 KiB */
#define GRANULE ((size_t)1 << GRANULE_BITS)

typedef struct pool_cache pool_cache;

struct tcc_pool {
    tcc_pool_memory memory;
    tcc_pool_allocator allocator; /* if `allocate` is NULL the range is used */
    int (*pressure)(void *context, size_t missing);
    void *pressure_context;
    tcc_budget budget; /* counts committed bytes, or bytes from the allocator */
    size_t absent;     /* committed bytes that may have no pages yet */
    bool shared, poison;
    size_t reserve_size; /* bytes to reserve at the first take */

    pthread_mutex_t lock; /* guards the fields below, in a shared pool */
    char *base;           /* NULL: nothing is reserved yet */
    size_t range;
    blocks all;
    uint64_t *committed; /* one bit per granule */
    size_t frontier;     /* no granule from here on has ever been committed */
    size_t solid;        /* all granules before this one are committed */
    void *tables;
    size_t table_bytes;
    size_t open_owners, open_table; /* bytes of all.owner and all.table that are accessible */
    size_t live, most_live, n_blocks;
    uint64_t takes, failures;
    pool_cache *caches;       /* NULL: the pool has an allocator or poison */
    void *cache_memory;       /* the memory that holds them */
    struct own_block *own_blocks; /* blocks in use, in a pool with an allocator */
};

/* ---- range.c: addresses and memory --------------------------------------------------------------- */

/* Reserves the range and its tables. */
tcc_status pool_reserve(tcc_pool *pool);
void pool_release(tcc_pool *pool);
/* Makes memory accessible for the descriptors of a change that moves the free end by `units` at
 * most.  Called before the change.  Returns false where there is none. */
bool pool_open_tables(tcc_pool *pool, uint64_t units);
/* Returns true if all memory of a block is known to be committed, by a quick test. */
static inline bool pool_has(const tcc_pool *pool, const block *at) {
    return at->start + at->units <= pool->solid << (GRANULE_BITS - 6);
}
/* Returns true if a block needs memory beyond the amount that the pool means to commit. */
bool pool_exceeds(const tcc_pool *pool, const block *at);
/* Commits the memory that a block needs.  On failure it stores the number of missing bytes, and
 * sets no message. */
bool pool_commit(tcc_pool *pool, const block *at, size_t *out_missing);
/* Counts committed bytes as resident, at the end of a run or when they are given back. */
void pool_settle(tcc_pool *pool, size_t bytes);
/* Decommits memory that no block needs.  Returns false if there was none. */
bool pool_decommit_free(tcc_pool *pool);

/* ---- sizes ------------------------------------------------------------------------------------------ */

/* A rounded size.  From 2 KiB on, sizes go in steps of a sixteenth, so that free blocks and gaps
 * fit later blocks. */
typedef struct pool_size {
    uint64_t units;
    uint32_t class; /* number of the size, counted from the smallest */
} pool_size;

/* Returns the smallest size of at least `units` units; `units` is not 0. */
static inline pool_size pool_size_of(uint64_t units) {
    uint32_t shift = 59 - (uint32_t)__builtin_clzll(units | 31);
    uint64_t steps = (units + (UINT64_C(1) << shift) - 1) >> shift;
    return (pool_size){steps << shift, shift * 16 + (uint32_t)steps};
}

/* ---- cache.c: blocks of up to 64 KiB that were given and may be taken again (cache.h) ---------------- */

tcc_status pool_caches_create(tcc_pool *pool);
/* Gives the blocks of all caches back.  Returns false if there were none.  The caller holds the
 * lock. */
bool pool_caches_empty(tcc_pool *pool);
/* Empties the cache of a pool of one thread, all of whose blocks have ended. */
void pool_caches_forget(tcc_pool *pool);
/* Resets the caches of a shared pool in a fork's child, where no thread is in a cache. */
void pool_caches_after_fork(tcc_pool *pool);
/* Returns the bytes of the blocks in all caches, and stores their number.  The caller holds the
 * lock. */
size_t pool_caches_hold(tcc_pool *pool, size_t *out_blocks);

/* ---- own.c: pools with the caller's allocator ------------------------------------------------------ */

/* Takes a block; NULL where the budget or the allocator refuses. */
void *own_take(tcc_pool *pool, size_t bytes);
void own_give(tcc_pool *pool, void *memory);
void own_give_all(tcc_pool *pool);
size_t own_bytes(const void *memory);

#endif
