/* What a pool consists of; the files of this folder only. */
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
    tcc_pool_allocator allocator; /* without `allocate`: the range is used */
    int (*pressure)(void *context, size_t missing);
    void *pressure_context;
    tcc_budget budget; /* of what is committed, or of what the allocator gave */
    size_t absent;     /* committed bytes that may have no pages yet */
    bool shared, poison;
    size_t wanted; /* bytes to reserve at the first take */

    pthread_mutex_t lock; /* of what follows, in a shared pool */
    char *base;           /* NULL: nothing is reserved yet */
    size_t range;
    blocks all;
    uint64_t *committed; /* bit by granule */
    size_t frontier;     /* no granule from here on has ever been committed */
    size_t solid;        /* all granules before this one are committed */
    void *tables;
    size_t table_bytes;
    size_t open_owners, open_table; /* bytes of all.owner and all.table that are memory */
    size_t live, most_live, n_blocks;
    uint64_t takes, failures;
    pool_cache *caches;       /* NULL: of a pool with an allocator, or with poison */
    void *cache_memory;       /* that they lie in */
    struct own_block *own;    /* in use, of a pool with an allocator */
};

/* ---- range.c: addresses and memory --------------------------------------------------------------- */

/* Reserves the range and its tables. */
tcc_status pool_reserve(tcc_pool *pool);
void pool_release(tcc_pool *pool);
/* Before a change of blocks that moves the free end by `units` at most: makes its descriptors' places
 * memory.  False where there is none. */
bool pool_open_tables(tcc_pool *pool, uint64_t units);
/* Whether all is committed that a block needs, as far as that is seen at a glance. */
static inline bool pool_has(const tcc_pool *pool, const block *at) {
    return at->start + at->units <= pool->solid << (GRANULE_BITS - 6);
}
/* Whether a block lacks memory that can only be had beyond what is meant to be committed. */
bool pool_exceeds(const tcc_pool *pool, const block *at);
/* Commits what a block needs.  Fails with the number of missing bytes and without a message. */
bool pool_commit(tcc_pool *pool, const block *at, size_t *out_missing);
/* What is committed counts as resident: as a run has ended, or where it is given back. */
void pool_settle(tcc_pool *pool, size_t bytes);
/* Decommits what no block needs; false if there was nothing. */
bool pool_decommit_free(tcc_pool *pool);

/* ---- sizes ------------------------------------------------------------------------------------------ */

/* Sizes from 2 KiB on go in steps of a sixteenth, so that blocks fit others, and gaps too. */
typedef struct pool_size {
    uint64_t units;
    uint32_t class; /* sizes are numbered from the smallest on */
} pool_size;

/* The least size of `units` or more, which are not 0. */
static inline pool_size pool_size_of(uint64_t units) {
    uint32_t shift = 59 - (uint32_t)__builtin_clzll(units | 31);
    uint64_t steps = (units + (UINT64_C(1) << shift) - 1) >> shift;
    return (pool_size){steps << shift, shift * 16 + (uint32_t)steps};
}

/* ---- cache.c: blocks of up to 64 KiB that were given and may be taken again (cache.h) ---------------- */

tcc_status pool_caches_create(tcc_pool *pool);
/* Gives the blocks of all caches back; false if there were none.  With the lock held. */
bool pool_caches_empty(tcc_pool *pool);
/* Of a pool of one thread, whose blocks have all ended. */
void pool_caches_forget(tcc_pool *pool);
/* In the child of a fork, of a shared pool: nobody is in a cache, whatever it says. */
void pool_caches_after_fork(tcc_pool *pool);
/* Bytes and number of the blocks in all caches.  With the lock held. */
size_t pool_caches_hold(tcc_pool *pool, size_t *out_blocks);

/* ---- own.c: pools with the caller's allocator ------------------------------------------------------ */

/* NULL where the budget or the allocator refuses. */
void *own_take(tcc_pool *pool, size_t bytes);
void own_give(tcc_pool *pool, void *memory);
void own_give_all(tcc_pool *pool);
size_t own_bytes(const void *memory);

#endif
