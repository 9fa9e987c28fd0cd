/* Makes greedy plans: places blocks in some order, each in the smallest gap between the blocks
 * before that holds it.
 *
 * The orders are the largest block first (Pisarchyk and Lee, "Efficient Memory Management for Deep
 * Neural Net Inference", 2020), the largest area of size and life, the longest life, the first
 * born. */
#include <string.h>

#include "plan.h"

enum { BY_SIZE, BY_AREA, BY_LIFE, BY_START, N_ORDERS };
enum { FIRST_WITHOUT_SIZES = BY_LIFE };

static int64_t key_of(const tcc_greedy *g, int32_t block, int order) {
    const tcc_lives *lives = g->lives;
    int64_t size = 0, life = 0, scale = (g->largest >> 32) + 1; /* keeps products below 2^62 */
    for (int32_t b = block; b >= 0; b = lives->next[b]) {
        if (lives->sizes[b] > size) size = lives->sizes[b];
        life += lives->last[b] - lives->first[b];
    }
    switch (order) {
    case BY_SIZE: return -size;
    case BY_AREA: return -(size / scale * life);
    case BY_LIFE: return -life;
    default: return lives->first[block];
    }
}

/* Sorts an order again, which is fast where keys changed little.  Fixed blocks, which leave no
 * choice, come first.  Among equals the block that is born first comes first. */
static void sort_order(tcc_greedy *g, int number) {
    tcc_bounds *order = g->orders + number * g->count;
    for (int64_t i = 0; i < g->count; i++) {
        int32_t block = g->born[order[i].to];
        order[i].from = g->lives->fixed[block] >= 0 ? INT64_MIN : key_of(g, block, number);
    }
    tcc_sort_bounds(order, g->count);
}

/* Collects the offsets that placed blocks take from a block, in order. */
static int64_t collect(tcc_greedy *g, int32_t block) {
    const tcc_lives *lives = g->lives;
    int64_t count = 0;
    for (int32_t b = block; b >= 0; b = lives->next[b]) {
        for (int64_t i = lives->starts[b]; i < lives->starts[b + 1]; i++) {
            int32_t other = lives->neighbours[i];
            int64_t at = g->offsets[lives->block[other]];
            if (at < 0) continue;
            g->occupied[count++] = (tcc_bounds){at - lives->sizes[b], at + lives->sizes[other]};
        }
    }
    tcc_sort_bounds(g->occupied, count);
    return count;
}

/* Returns the start of the smallest gap that holds the block; the end of the last taken range where
 * none does. */
static int64_t best_gap(const tcc_greedy *g, int64_t count, int64_t alignment) {
    int64_t end = 0, best = -1, smallest = INT64_MAX;
    for (int64_t i = 0; i < count; i++) {
        int64_t room = g->occupied[i].from - end;
        if (room >= 0 && room < smallest) {
            smallest = room;
            best = end;
        }
        int64_t to = tcc_aligned(g->occupied[i].to, alignment);
        if (to > end) end = to;
    }
    return best < 0 ? end : best;
}

static bool is_free(const tcc_greedy *g, int64_t count, int64_t offset) {
    for (int64_t i = 0; i < count; i++)
        if (g->occupied[i].from < offset && offset < g->occupied[i].to) return false;
    return true;
}

/* Places all blocks.  Sets `out_peak` to INT64_MAX where the peak is not below `limit`. */
static tcc_status place_all(tcc_greedy *g, const tcc_bounds *order, int64_t limit,
                            int64_t *out_peak) {
    const tcc_lives *lives = g->lives;
    int64_t peak = 0;
    for (int32_t b = 0; b < lives->count; b++) g->offsets[b] = -1;
    for (int64_t i = 0; i < g->count && peak < limit; i++) {
        int32_t block = g->born[order[i].to];
        int64_t busy = collect(g, block), at = lives->fixed[block];
        if (at >= 0 && !is_free(g, busy, at))
            return tcc_fail(TCC_INVALID_ARGUMENT,
                            "buffer %d: its fixed offset is another's that lives with it", block);
        if (at < 0) at = best_gap(g, busy, lives->alignment[block]);
        g->offsets[block] = at;
        for (int32_t b = block; b >= 0; b = lives->next[b])
            if (at + lives->sizes[b] > peak) peak = at + lives->sizes[b];
    }
    *out_peak = peak < limit ? peak : INT64_MAX;
    return TCC_OK;
}

tcc_status tcc_greedy_run(tcc_greedy *greedy, int64_t target, int64_t *out_offsets,
                          int64_t *out_peak) {
    const tcc_lives *lives = greedy->lives;
    *out_peak = INT64_MAX;
    greedy->largest = 0;
    for (int32_t b = 0; b < lives->count; b++)
        if (lives->sizes[b] > greedy->largest) greedy->largest = lives->sizes[b];
    for (int number = 0; number < N_ORDERS && *out_peak > target; number++) {
        int64_t peak = 0;
        if (number < FIRST_WITHOUT_SIZES) sort_order(greedy, number);
        const tcc_bounds *order = greedy->orders + number * greedy->count;
        TCC_RETURN_IF_ERROR(place_all(greedy, order, *out_peak, &peak));
        if (peak == INT64_MAX) continue;
        *out_peak = peak;
        for (int32_t b = 0; b < lives->count; b++)
            out_offsets[b] = greedy->offsets[lives->block[b]];
    }
    return TCC_OK;
}

/* Returns how many offset ranges the busiest block can lose to others. */
static int64_t max_occupied(const tcc_lives *lives) {
    int64_t maximum = lives->count;
    for (int32_t block = 0; block < lives->count; block++) {
        int64_t met = 0;
        for (int32_t b = block; b >= 0; b = lives->next[b])
            met += lives->starts[b + 1] - lives->starts[b];
        if (lives->block[block] == block && met > maximum) maximum = met;
    }
    return maximum;
}

tcc_status tcc_greedy_make(const tcc_lives *lives, tcc_greedy *out_greedy) {
    size_t count = (size_t)lives->count;
    tcc_greedy *g = out_greedy;
    *g = (tcc_greedy){.lives = lives,
                      .offsets = tcc_allocate(count * sizeof *g->offsets),
                      .born = tcc_allocate(count * sizeof *g->born),
                      .orders = tcc_allocate(N_ORDERS * count * sizeof *g->orders),
                      .occupied = tcc_allocate((size_t)max_occupied(lives) * sizeof *g->occupied)};
    if (!g->offsets || !g->born || !g->orders || !g->occupied) {
        tcc_greedy_free(g);
        return TCC_OUT_OF_MEMORY;
    }
    for (int32_t b = 0; b < lives->count; b++)
        if (lives->block[b] == b) g->occupied[g->count++] = (tcc_bounds){lives->first[b], b};
    tcc_sort_bounds(g->occupied, g->count);
    for (int64_t i = 0; i < g->count; i++) {
        g->born[i] = (int32_t)g->occupied[i].to;
        for (int number = 0; number < N_ORDERS; number++) g->orders[number * g->count + i].to = i;
    }
    for (int number = FIRST_WITHOUT_SIZES; number < N_ORDERS; number++) sort_order(g, number);
    return TCC_OK;
}

void tcc_greedy_free(tcc_greedy *greedy) {
    tcc_free(greedy->offsets);
    tcc_free(greedy->born);
    tcc_free(greedy->orders);
    tcc_free(greedy->occupied);
    memset(greedy, 0, sizeof *greedy);
}
