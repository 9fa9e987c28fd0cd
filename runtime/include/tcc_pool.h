/* tcc_pool.h: tcc's allocator for memory whose sizes are known only at run time.
 *
 * Every artifact has it: `api->pools` of tcc.h is its table.
 *
 *     const tcc_pool_api *pools = api->pools;
 *     tcc_pool *pool;
 *     void *memory;
 *     if (pools->create(&(tcc_pool_config){.struct_size = sizeof(tcc_pool_config)}, &pool)) ...
 *     if (pools->take(pool, 1000, &memory) == TCC_OK) pools->give(pool, memory);
 *     pools->destroy(pool);
 *
 * A pool reserves one range of addresses, cuts it into blocks by two-level segregated fit, and
 * merges free neighbours at once.  Its records of blocks lie beside the range, never in it.  So the
 * range may be memory that the host cannot read, and a wrong address is detected.  A take and a
 * give need a bounded number of steps, whatever the pool holds.  Given blocks of up to 64 KiB go to
 * a cache, and are taken again without a search.  Memory is committed as blocks need it.  Free
 * blocks lose their memory where idle memory would exceed a sixteenth of the most that was in use
 * at a time, plus a quarter of a megabyte, plus 4 MiB in a cache.  No take fails because memory
 * lies in a cache.
 *
 * Ownership.  The pool owns its memory; a block belongs to its taker until it is given back.
 * destroy frees everything, also blocks that were not given back.  The pool copies what a config
 * points to, except the contexts of its functions: they must outlive the pool.
 *
 * Threads.  A pool with TCC_POOL_SHARED may be used by any number of threads at a time (trim and
 * destroy included, destroy as the last); 16 of the threads that are alive have a cache of their
 * own, on Linux from 4.14 on.  If two threads give a block at the same moment, the double give is
 * not detected.  Any other pool serves one thread at a time.  After fork the child may use a pool
 * that no other thread of the parent was in at that moment.
 *
 * Failure.  take and resize return TCC_OUT_OF_MEMORY where the limit, the system or the range has
 * no more, and change nothing then; tcc.h's last_error has the reason.  give returns
 * TCC_INVALID_ARGUMENT, and does nothing, where the address is not that of a block in use; a pool
 * with the caller's own allocator does not detect it. */
#ifndef TCC_POOL_H
#define TCC_POOL_H

#include "tcc.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tcc_pages tcc_pages;

/* Config flags. */
#define TCC_POOL_SHARED 1u /* for several threads at a time */
#define TCC_POOL_POISON 2u /* blocks are filled with 0xFF before use; the host must reach the range */

/* Every block begins at a multiple of this number of bytes, and its size is a multiple of it.  From
 * 2 KiB on a block is at most a sixteenth larger than asked for. */
#define TCC_POOL_ALIGNMENT 64

/* The source of the range.  All sizes and offsets are multiples of 64 KiB.  `reserve` gives
 * addresses without memory, at a multiple of 2 MiB, or NULL.  `commit` puts memory there and
 * returns 0; `decommit` takes it away again.  `release` gives the addresses back. */
typedef struct tcc_pool_memory {
    void *context;
    void *(*reserve)(void *context, size_t bytes);
    int (*commit)(void *context, void *start, size_t bytes);
    void (*decommit)(void *context, void *start, size_t bytes);
    void (*release)(void *context, void *base, size_t bytes);
} tcc_pool_memory;

/* The caller's own allocator, which then serves every take in place of a range.  Its memory must be
 * aligned to TCC_POOL_ALIGNMENT. */
typedef struct tcc_pool_allocator {
    void *context;
    void *(*allocate)(void *context, size_t bytes); /* NULL: there is none */
    void (*release)(void *context, void *memory, size_t bytes);
} tcc_pool_allocator;

struct tcc_pool_config {
    uint32_t struct_size; /* sizeof(tcc_pool_config); of another version: see tcc.h */
    uint32_t flags;
    size_t range; /* bytes of addresses; 0: as many as the machine has memory */
    size_t limit; /* most committed bytes; 0: only the process's limit */
    /* Called before a take fails, with the number of missing bytes.  Returns a value other than 0
     * if it gave memory back; it may use this pool too.  It is called again as long as it does. */
    int (*pressure)(void *context, size_t missing);
    void *pressure_context;
    const tcc_pool_memory *memory;       /* NULL: the system's memory, on huge pages where it has
                                            them */
    const tcc_pool_allocator *allocator; /* not NULL: instead of a range */
};

typedef struct tcc_pool_statistics {
    uint64_t range;          /* addresses reserved */
    uint64_t committed;      /* bytes obtained from the system and not given back */
    uint64_t most_committed; /* the most committed bytes at one time */
    uint64_t live;           /* bytes of blocks in use, rounded up */
    uint64_t most_live;      /* the most live bytes at one time, cached blocks included */
    uint64_t blocks;   /* number of blocks in use */
    uint64_t takes;    /* successful takes, without those from caches */
    uint64_t failures; /* takes and resizes that found no memory */
} tcc_pool_statistics;

struct tcc_pool_api {
    uint32_t struct_size; /* bytes of this table: later versions append, never change */

    tcc_status (*create)(const tcc_pool_config *config, tcc_pool **out_pool);
    void (*destroy)(tcc_pool *pool); /* NULL: does nothing */

    /* Takes at least `bytes` bytes; 0 bytes give a block of 64 bytes. */
    tcc_status (*take)(tcc_pool *pool, size_t bytes, void **out_memory);
    tcc_status (*give)(tcc_pool *pool, void *memory);
    /* Makes a block hold `bytes` bytes and keeps the contents of the first `keep`; *memory == NULL
     * takes a block.  It stays where it is if the addresses behind it are free; a block that moves
     * has a sixteenth more room, so that growing step by step copies each byte a bounded number of
     * times.  The host copies, so the function does not work on memory that the host cannot
     * reach. */
    tcc_status (*resize)(tcc_pool *pool, void **memory, size_t bytes, size_t keep);
    /* Decommits memory that no block needs, and empties the caches. */
    void (*trim)(tcc_pool *pool);
    void (*statistics)(tcc_pool *pool, tcc_pool_statistics *out);

    /* Makes `count` pages of `bytes` bytes each (rounded up to the alignment) in one block of the
     * pool, for caches of keys and values.  Pages are taken and given by number, in constant time
     * and without fragmentation.  One thread at a time may use them.  pages_destroy gives the block
     * back; call it before the pool's end. */
    tcc_status (*pages_create)(tcc_pool *pool, size_t bytes, uint32_t count,
                                    tcc_pages **out_pages);
    void (*pages_destroy)(tcc_pages *pages);
    tcc_status (*pages_take)(tcc_pages *pages, uint32_t *out_page);
    tcc_status (*pages_give)(tcc_pages *pages, uint32_t page);
    /* NULL where the page is not in use */
    void *(*pages_address)(const tcc_pages *pages, uint32_t page);
    uint32_t (*pages_free)(const tcc_pages *pages);
};

#ifdef __cplusplus
}
#endif

#endif
