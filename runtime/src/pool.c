/* Memory for sizes that data decides: blocks by size class, kept between runs.
 *
 * Classes are 64 bytes times 1, 1.25, 1.5, 1.75 and doublings of these, so a growing buffer moves
 * O(log n) times and wastes at most a quarter.  Not for use by two threads at once. */
#include <string.h>

#include "runtime.h"

struct tcc_block {
    tcc_block *next, *previous;
    size_t capacity; /* bytes after the header */
    int32_t size_class;
    void *memory; /* what the system gave */
};

enum { HEADER = 64, STEPS = 4, CLASSES = 160 };
_Static_assert(sizeof(tcc_block) <= HEADER, "a block's header fits in one cache line");

/* Every 64-bit size below 2^40 bytes has a class; larger ones are refused. */
static int32_t class_of(size_t size, size_t *out_capacity) {
    size_t base = 64;
    for (int32_t size_class = 0; size_class < CLASSES; size_class += STEPS, base *= 2)
        for (int32_t step = 0; step < STEPS; step++) {
            size_t capacity = base + base / STEPS * (size_t)step;
            if (size <= capacity) {
                *out_capacity = (capacity + 63) / 64 * 64;
                return size_class + step;
            }
        }
    return -1;
}

static tcc_block *block_of(void *memory) { return (tcc_block *)((char *)memory - HEADER); }

static void unlink_live(tcc_pool *pool, tcc_block *block) {
    if (block->previous)
        block->previous->next = block->next;
    else
        pool->live = block->next;
    if (block->next) block->next->previous = block->previous;
}

/* Free blocks go back to the system before a limit is reached. */
static tcc_status check_limit(tcc_pool *pool, size_t more) {
    if (!pool->limit || (more <= pool->limit && pool->held <= pool->limit - more)) return TCC_OK;
    tcc_pool_trim(pool);
    if (more <= pool->limit && pool->held <= pool->limit - more) return TCC_OK;
    return tcc_fail(TCC_OUT_OF_MEMORY,
                    "out of memory: the run holds %zu bytes and asks for %zu more; TCC_MEMORY allows "
                    "it %zu",
                    pool->held, more, pool->limit);
}

tcc_status tcc_pool_take(tcc_pool *pool, size_t size, void **out_memory) {
    size_t capacity = 0;
    int32_t size_class = class_of(size, &capacity);
    if (size_class < 0)
        return tcc_fail(TCC_OUT_OF_MEMORY, "out of memory (%zu bytes for one array)", size);
    tcc_block *block = pool->free_blocks[size_class];
    if (block) {
        pool->free_blocks[size_class] = block->next;
    } else {
        TCC_RETURN_IF_ERROR(check_limit(pool, capacity));
        char *memory = tcc_allocate(capacity + HEADER + 64);
        if (!memory) return TCC_OUT_OF_MEMORY;
        block = (tcc_block *)(memory + (64 - (uintptr_t)memory % 64) % 64);
        block->memory = memory;
        block->capacity = capacity;
        block->size_class = size_class;
        pool->held += capacity;
    }
    block->previous = NULL;
    block->next = pool->live;
    if (pool->live) pool->live->previous = block;
    pool->live = block;
    pool->used += block->capacity;
    if (pool->used > pool->high_water) pool->high_water = pool->used;
    *out_memory = (char *)block + HEADER;
    if (pool->poison) memset(*out_memory, 0xFF, block->capacity);
    return TCC_OK;
}

tcc_status tcc_pool_resize(tcc_pool *pool, void **memory, size_t size, size_t keep) {
    if (*memory && size <= block_of(*memory)->capacity) return TCC_OK;
    void *grown = NULL;
    TCC_RETURN_IF_ERROR(tcc_pool_take(pool, size, &grown));
    if (*memory) {
        memcpy(grown, *memory, keep);
        tcc_pool_give(pool, *memory);
    }
    *memory = grown;
    return TCC_OK;
}

void tcc_pool_give(tcc_pool *pool, void *memory) {
    tcc_block *block = block_of(memory);
    unlink_live(pool, block);
    pool->used -= block->capacity;
    block->next = pool->free_blocks[block->size_class];
    pool->free_blocks[block->size_class] = block;
}

void tcc_pool_reset(tcc_pool *pool) {
    while (pool->live) tcc_pool_give(pool, (char *)pool->live + HEADER);
}

void tcc_pool_trim(tcc_pool *pool) {
    for (int32_t size_class = 0; size_class < CLASSES; size_class++)
        while (pool->free_blocks[size_class]) {
            tcc_block *block = pool->free_blocks[size_class];
            pool->free_blocks[size_class] = block->next;
            pool->held -= block->capacity;
            tcc_free(block->memory);
        }
}
