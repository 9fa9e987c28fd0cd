/* Manages pages of one size in one block of a pool. */
#include <string.h>

#include "pool.h"

struct tcc_pages {
    tcc_pool *pool;
    char *base;
    size_t bytes; /* bytes of a page */
    uint32_t count, n_free;
    uint64_t *in_use; /* bit by page */
    uint32_t free[];  /* the last one is taken first */
};

static bool is_used(const tcc_pages *pages, uint32_t page) {
    return page < pages->count && pages->in_use[page / 64] >> (page % 64) & 1;
}

tcc_status tcc_pages_create(tcc_pool *pool, size_t bytes, uint32_t count, tcc_pages **out_pages) {
    size_t page = (bytes + UNIT - 1) / UNIT * UNIT, all;
    if (!bytes || !count || page < bytes || __builtin_mul_overflow(page, (size_t)count, &all))
        return tcc_fail(TCC_INVALID_ARGUMENT, "%u pages of %zu bytes cannot be", count, bytes);
    size_t words = count / 64 + 1, head = sizeof(tcc_pages) + count * sizeof(uint32_t);
    head = (head + sizeof(uint64_t) - 1) / sizeof(uint64_t) * sizeof(uint64_t);
    tcc_pages *pages = tcc_allocate_zero(1, head + words * sizeof(uint64_t));
    if (!pages) return TCC_OUT_OF_MEMORY;
    void *base = NULL;
    tcc_status status = tcc_pool_take(pool, all, &base);
    if (status != TCC_OK) {
        tcc_free(pages);
        return status;
    }
    *pages = (tcc_pages){.pool = pool, .base = base, .bytes = page, .count = count, .n_free = count,
                        .in_use = (uint64_t *)((char *)pages + head)};
    for (uint32_t i = 0; i < count; i++) pages->free[i] = count - 1 - i;
    *out_pages = pages;
    return TCC_OK;
}

void tcc_pages_destroy(tcc_pages *pages) {
    if (!pages) return;
    (void)tcc_pool_give(pages->pool, pages->base);
    tcc_free(pages);
}

tcc_status tcc_pages_take(tcc_pages *pages, uint32_t *out_page) {
    if (!pages->n_free)
        return tcc_fail(TCC_OUT_OF_MEMORY, "out of memory: all %u pages are in use", pages->count);
    uint32_t page = pages->free[--pages->n_free];
    pages->in_use[page / 64] |= UINT64_C(1) << (page % 64);
    *out_page = page;
    return TCC_OK;
}

tcc_status tcc_pages_give(tcc_pages *pages, uint32_t page) {
    if (!is_used(pages, page))
        return tcc_fail(TCC_INVALID_ARGUMENT, "page %u of %u is not in use", page, pages->count);
    pages->in_use[page / 64] &= ~(UINT64_C(1) << (page % 64));
    pages->free[pages->n_free++] = page;
    return TCC_OK;
}

void *tcc_pages_address(const tcc_pages *pages, uint32_t page) {
    return is_used(pages, page) ? pages->base + page * pages->bytes : NULL;
}

uint32_t tcc_pages_free(const tcc_pages *pages) { return pages->n_free; }
