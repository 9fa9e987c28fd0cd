/* Greedy plans: blocks in some order, each in the smallest gap that holds it between those before.
 *
 * The orders are the largest block first (Pisarchyk and Lee, "Efficient Memory Management for Deep
 * Neural Net Inference", 2020), the largest area of size and life, the longest life, the first born. */
#include <string.h>

#include "plan.h"

enum { BY_SIZE, BY_AREA, BY_LIFE, BY_START, N_ORDERS };

typedef struct greedy {
    const tcc_lives *lives;
    int64_t *offsets;  /* by block; -1: not placed yet */
    tcc_bounds *order; /* of blocks */
    tcc_bounds *taken; /* offsets from < o < to that a block cannot have */
    int64_t largest;
} greedy;

static int64_t key_of(const greedy *g, int32_t block, int which) {
    const tcc_lives *lives = g->lives;
    int64_t size = 0, life = 0, scale = (g->largest >> 32) + 1; /* products stay below 2^62 */
    for (int32_t b = block; b >= 0; b = lives->next[b]) {
        if (lives->sizes[b] > size) size = lives->sizes[b];
        life += lives->last[b] - lives->first[b];
    }
    switch (which) {
    case BY_SIZE: return -size;
    case BY_AREA: return -(size / scale * life);
    case BY_LIFE: return -life;
    default: return lives->first[block];
    }
}

/* Fixed blocks, which leave no choice, come first; of equals the first born. */
static int64_t sort_blocks(greedy *g, int which) {
    const tcc_lives *lives = g->lives;
    int64_t count = 0;
    for (int32_t b = 0; b < lives->count; b++)
        if (lives->block[b] == b) g->order[count++] = (tcc_bounds){lives->first[b], b};
    tcc_sort_bounds(g->order, count);
    for (int64_t i = 0; i < count; i++) g->taken[i] = (tcc_bounds){g->order[i].to, 0};
    for (int64_t i = 0; i < count; i++) {
        int32_t block = (int32_t)g->taken[i].from;
        int64_t key = lives->fixed[block] >= 0 ? INT64_MIN : key_of(g, block, which);
        g->order[i] = (tcc_bounds){key, i};
    }
    tcc_sort_bounds(g->order, count);
    for (int64_t i = 0; i < count; i++) g->order[i].to = g->taken[g->order[i].to].from;
    return count;
}

/* The offsets that blocks at hand take from a block, in order. */
static int64_t collect(greedy *g, int32_t block) {
    const tcc_lives *lives = g->lives;
    int64_t count = 0;
    for (int32_t b = block; b >= 0; b = lives->next[b]) {
        for (int64_t i = lives->starts[b]; i < lives->starts[b + 1]; i++) {
            int32_t other = lives->others[i];
            int64_t at = g->offsets[lives->block[other]];
            if (at < 0) continue;
            g->taken[count++] = (tcc_bounds){at - lives->sizes[b], at + lives->sizes[other]};
        }
    }
    tcc_sort_bounds(g->taken, count);
    return count;
}

/* The start of the smallest gap; behind the last where none holds the block. */
static int64_t best_gap(const greedy *g, int64_t count, int64_t alignment) {
    int64_t end = 0, best = -1, least = INT64_MAX;
    for (int64_t i = 0; i < count; i++) {
        int64_t room = g->taken[i].from - end;
        if (room >= 0 && room < least) {
            least = room;
            best = end;
        }
        int64_t to = tcc_aligned(g->taken[i].to, alignment);
        if (to > end) end = to;
    }
    return best < 0 ? end : best;
}

static bool is_free(const greedy *g, int64_t count, int64_t offset) {
    for (int64_t i = 0; i < count; i++)
        if (g->taken[i].from < offset && offset < g->taken[i].to) return false;
    return true;
}

static tcc_status place_all(greedy *g, int64_t count, int64_t *out_peak) {
    const tcc_lives *lives = g->lives;
    int64_t peak = 0;
    for (int32_t b = 0; b < lives->count; b++) g->offsets[b] = -1;
    for (int64_t i = 0; i < count; i++) {
        int32_t block = (int32_t)g->order[i].to;
        int64_t busy = collect(g, block), at = lives->fixed[block];
        if (at >= 0 && !is_free(g, busy, at))
            return tcc_fail(TCC_INVALID_ARGUMENT,
                            "buffer %d: its fixed offset is another's that lives with it", block);
        if (at < 0) at = best_gap(g, busy, lives->alignment[block]);
        g->offsets[block] = at;
        for (int32_t b = block; b >= 0; b = lives->next[b])
            if (at + lives->sizes[b] > peak) peak = at + lives->sizes[b];
    }
    *out_peak = peak;
    return TCC_OK;
}

static tcc_status best_of(greedy *g, int64_t target, int64_t *out_offsets, int64_t *out_peak) {
    const tcc_lives *lives = g->lives;
    *out_peak = INT64_MAX;
    for (int which = 0; which < N_ORDERS && *out_peak > target; which++) {
        int64_t peak = 0, count = sort_blocks(g, which);
        TCC_RETURN_IF_ERROR(place_all(g, count, &peak));
        if (peak >= *out_peak) continue;
        *out_peak = peak;
        memcpy(out_offsets, g->offsets, (size_t)lives->count * sizeof *out_offsets);
    }
    return TCC_OK;
}

/* Room for what the busiest block meets. */
static int64_t most_taken(const tcc_lives *lives) {
    int64_t most = lives->count;
    for (int32_t block = 0; block < lives->count; block++) {
        int64_t met = 0;
        for (int32_t b = block; b >= 0; b = lives->next[b])
            met += lives->starts[b + 1] - lives->starts[b];
        if (lives->block[block] == block && met > most) most = met;
    }
    return most;
}

tcc_status tcc_plan_greedy(const tcc_lives *lives, int64_t target, int64_t *out_offsets,
                           int64_t *out_peak) {
    size_t count = (size_t)lives->count;
    greedy g = {.lives = lives,
                .offsets = tcc_allocate(count * sizeof *g.offsets),
                .order = tcc_allocate(count * sizeof *g.order),
                .taken = tcc_allocate((size_t)most_taken(lives) * sizeof *g.taken)};
    for (size_t b = 0; b < count; b++)
        if (lives->sizes[b] > g.largest) g.largest = lives->sizes[b];
    bool made = g.offsets && g.order && g.taken;
    tcc_status status = made ? best_of(&g, target, out_offsets, out_peak) : TCC_OUT_OF_MEMORY;
    tcc_free(g.offsets);
    tcc_free(g.order);
    tcc_free(g.taken);
    return status;
}
