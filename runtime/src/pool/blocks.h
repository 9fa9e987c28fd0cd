/* Two-level segregated fit over a range of 64-byte units; blocks.c and pool.c only.
 *
 * After M.  Masmano, I.  Ripoll, A.  Crespo, J.  Real: TLSF, a new dynamic memory allocator for
 * real-time systems (ECRTS 2004), with three changes.  Descriptors lie beside the range.  The free
 * end of the range is in no list: blocks are cut from it only where no list has one, so that the
 * used part stays short.  Free blocks that may lack memory are cold, and have separate lists. */
#ifndef TCC_POOL_BLOCKS_H
#define TCC_POOL_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    UNIT = 64,        /* bytes */
    STEP_BITS = 5,    /* lists per doubling: 32 */
    STEPS = 1 << STEP_BITS,
    LEVELS = 40,
};
#define MOST_UNITS (UINT64_C(1) << (LEVELS + STEP_BITS - 2))

typedef enum block_state { BLOCK_FREE = 0, BLOCK_LIVE = 1, BLOCK_CACHED = 2 } block_state;

/* A block, identified by its number in a table; number 0 is no block. */
typedef struct block {
    uint64_t start, units;
    uint32_t before, behind;   /* neighbours in the range */
    uint32_t previous, next;   /* in a list of free blocks, cached blocks or unused descriptors */
    uint32_t state;            /* in a shared pool it is also read and written without the lock */
    uint16_t list;             /* a free block's list */
    uint8_t class;             /* class in the cache, for a block in use; 0: not cached */
    uint8_t cold;              /* 1: perhaps a part of it has no memory */
} block;

static inline bool block_is_free(const block *at) {
    return __atomic_load_n(&at->state, __ATOMIC_RELAXED) == BLOCK_FREE;
}

static inline void block_set_state(block *at, block_state state) {
    __atomic_store_n(&at->state, (uint32_t)state, __ATOMIC_RELAXED);
}

/* Lists of free blocks by size. */
typedef struct free_blocks {
    uint64_t levels;           /* bit l: level l has a free block */
    uint32_t steps[LEVELS];    /* bit s: list s of the level has one */
    uint32_t lists[LEVELS * STEPS];
} free_blocks;

typedef struct blocks {
    free_blocks free[2];       /* blocks with memory, and cold blocks */
    block *table;              /* `room` descriptors, of which `n_made` have been used */
    uint32_t *owner;           /* by unit: the block that begins there, or 0 */
    uint32_t n_made, room, unused;
    uint32_t end;              /* the free end of the range, which is the last block; it may have no
                                  units */
} blocks;

/* Makes the whole range of `units` the free end.  table[0 .. room-1] and owner[0 .. units-1] must
 * be zero. */
void blocks_begin(blocks *all, uint64_t units);
/* Takes a block of `units` units; 0 where no free block has them.  Prefers a block with memory.  A
 * caller that takes a cold block and commits its memory clears `cold`. */
uint32_t blocks_take(blocks *all, uint64_t units);
void blocks_give(blocks *all, uint32_t number);
/* Makes a block in use larger, from free units behind it, or smaller. */
bool blocks_resize(blocks *all, uint32_t number, uint64_t units);
/* Returns true if a block in use and the free blocks on both sides have room for `units`, from
 * *out_start on. */
bool blocks_fit_around(const blocks *all, uint32_t number, uint64_t units, uint64_t *out_start);
/* Moves a block's start there and returns its new number.  It does not move the contents. */
uint32_t blocks_slide(blocks *all, uint32_t number, uint64_t units);
/* Marks a free block, other than the free end, as having lost memory. */
void blocks_cool(blocks *all, uint32_t number);
/* Lists the largest free blocks, cold or not, in roughly falling order, without the free end.
 * Returns how many. */
uint32_t blocks_largest(const blocks *all, bool cold, uint32_t *out_numbers, uint32_t limit);
/* Frees all blocks. */
void blocks_reset(blocks *all);

#endif
