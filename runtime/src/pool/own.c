/* Implements pools with the caller's allocator. It only counts, limits and finds the blocks. */
#include "pool.h"

typedef struct own_block {
    _Alignas(UNIT) struct own_block *previous;
    struct own_block *next;
    size_t bytes; /* bytes behind this header */
} own_block;
_Static_assert(sizeof(own_block) == UNIT, "what is behind a header is aligned");

static own_block *header_of(const void *memory) { return (own_block *)((char *)memory - UNIT); }

size_t own_bytes(const void *memory) { return header_of(memory)->bytes; }

void *own_take(tcc_pool *pool, size_t bytes) {
    size_t rounded = bytes + UNIT;
    if (rounded < bytes || !tcc_budget_take(&pool->budget, rounded)) return NULL;
    own_block *block = pool->allocator.allocate(pool->allocator.context, rounded);
    tcc_budget_settle(&pool->budget, rounded);
    if (!block) {
        tcc_budget_give(&pool->budget, rounded);
        return NULL;
    }
    *block = (own_block){.next = pool->own_blocks, .bytes = bytes};
    if (pool->own_blocks) pool->own_blocks->previous = block;
    pool->own_blocks = block;
    pool->n_blocks++;
    pool->live += bytes;
    if (pool->live > pool->most_live) pool->most_live = pool->live;
    return (char *)block + UNIT;
}

void own_give(tcc_pool *pool, void *memory) {
    own_block *at = header_of(memory);
    size_t bytes = at->bytes;
    if (at->next) at->next->previous = at->previous;
    if (at->previous)
        at->previous->next = at->next;
    else
        pool->own_blocks = at->next;
    pool->n_blocks--;
    pool->live -= bytes;
    pool->allocator.release(pool->allocator.context, at, bytes + UNIT);
    tcc_budget_give(&pool->budget, bytes + UNIT);
}

void own_give_all(tcc_pool *pool) {
    while (pool->own_blocks) own_give(pool, (char *)pool->own_blocks + UNIT);
}
