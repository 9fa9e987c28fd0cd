/* Two-level segregated fit over a range of 64-byte units; blocks.c and pool.c only.
 *
 * After M. Masmano, I. Ripoll, A. Crespo, J. Real: TLSF, a new dynamic memory allocator for real-time
 * systems (ECRTS 2004), with three changes.  Descriptors lie beside the range.  The free end of the
 * range is no list's member: blocks are cut from it only where no list has one, so that the part in
 * use stays short.  Free blocks that may lack memory are cold, and have lists of their own. */
#ifndef TCC_POOL_BLOCKS_H
#define TCC_POOL_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    UNIT = 64,        /* bytes */
    STEP_BITS = 5,    /* lists a doubling: 32 */
    STEPS = 1 << STEP_BITS,
    LEVELS = 40,
};
#define MOST_UNITS (UINT64_C(1) << (LEVELS + STEP_BITS - 2))

typedef enum block_state { BLOCK_FREE = 0, BLOCK_LIVE = 1, BLOCK_CACHED = 2 } block_state;

/* Blocks are named by their number in a table; 0 is none. */
typedef struct block {
    uint64_t start, units;
    uint32_t before, behind;   /* neighbours in the range */
    uint32_t previous, next;   /* in a list of free or of cached blocks, or of unused descriptors */
    uint32_t state;            /* of a shared pool, also read and written without the lock */
    uint16_t list;             /* of a free block */
    uint8_t class;             /* of a block in use: where it is cached; 0: nowhere */
    uint8_t cold;              /* 1: perhaps not all of it is memory */
} block;

static inline bool block_is_free(const block *at) {
    return __atomic_load_n(&at->state, __ATOMIC_RELAXED) == BLOCK_FREE;
}

static inline void block_set_state(block *at, block_state state) {
    __atomic_store_n(&at->state, (uint32_t)state, __ATOMIC_RELAXED);
}

/* Free blocks by size. */
typedef struct free_blocks {
    uint64_t levels;           /* bit l: level l has a free block */
    uint32_t steps[LEVELS];    /* bit s: the level's list s has one */
    uint32_t lists[LEVELS * STEPS];
} free_blocks;

typedef struct blocks {
    free_blocks free[2];       /* those that are memory, and the cold ones */
    block *table;              /* of `room` descriptors, of which `made` have been used */
    uint32_t *owner;           /* by unit: the block that begins there, or 0 */
    uint32_t made, room, unused;
    uint32_t end;              /* the free end of the range, the last block; it may have no units */
} blocks;

/* Makes the whole range of `units` the free end.  table[0 .. room-1] and owner[0 .. units-1] are zero. */
void blocks_begin(blocks *all, uint64_t units);
/* A block of so many units, in use; 0 where no free block has them.  Of those that do, one that is memory
 * if there is one.  Who takes a cold block and makes it memory says so. */
uint32_t blocks_take(blocks *all, uint64_t units);
void blocks_give(blocks *all, uint32_t number);
/* Makes a block in use larger, from what is free behind it, or smaller. */
bool blocks_resize(blocks *all, uint32_t number, uint64_t units);
/* Whether the free addresses on both sides of a block in use make room for `units`, from *out_start on. */
bool blocks_fit_around(const blocks *all, uint32_t number, uint64_t units, uint64_t *out_start);
/* Makes such a block begin there; returns its new number.  What it held is where it was. */
uint32_t blocks_slide(blocks *all, uint32_t number, uint64_t units);
/* A free block, but for the free end, has lost memory. */
void blocks_cool(blocks *all, uint32_t number);
/* The largest free blocks, cold or not, roughly in this order, without the free end; returns how many. */
uint32_t blocks_largest(const blocks *all, bool cold, uint32_t *out_numbers, uint32_t most);
/* Ends the use of all blocks. */
void blocks_reset(blocks *all);

#endif
