/* Searches exactly for a plan within a capacity.
 *
 * Any plan can be packed: a block that rests neither on offset 0 nor on a block below it that lives
 * at the same time is lowered.  So it is enough to place blocks in order of their offsets, each on
 * top of a placed block, as in MiniMalloc (Moffitt, "MiniMalloc: A Lightweight Memory Allocator for
 * Hardware-Accelerated Machine Learning", ASPLOS 2023), whose sections and decomposition this
 * search has too.
 *
 * A node of the search takes the lowest remaining offset and a block that can have it.  Either the
 * block gets the offset, or it rests on a block that is not placed yet; then its offset is at least
 * the lowest end of any unplaced block.  Both alternatives raise the least offsets of other blocks,
 * and in each section the remaining blocks must fit above their least offsets.  Where no remaining
 * block spans a time, the parts before and after that time are searched one after the other.
 *
 * The search takes the block whose section has the fewest bytes to waste.  Equal blocks are ordered
 * by size and life, times the failures of their sections in this run and before, times noise.  A
 * run starts anew after Luby's numbers of nodes (Luby, Sinclair, Zuckerman, "Optimal speedup of Las
 * Vegas algorithms", 1993), which grow without bound, so a capacity that is too small is refuted
 * eventually. */
#include "search.h"

#include <string.h>

/* In this order: nodes of the shortest run; depth of a run in blocks; number of orders; steps
 * between two calls of go_on. */
enum { RUN_NODES = 1000, DEEPEST = 10000, N_ORDERS = 3, ASK_STEPS = 1 << 16 };
static const int64_t max_active = INT64_C(1) << 26; /* buffers of all sections together */

/* ---- nodes ------------------------------------------------------------------------------------------- */

/* Returns the lowest offset that a block of the part can have, after lifting the blocks that rest
 * on no support; -1 where they do not fit. */
static int64_t lowest_offset(tcc_search *s, int32_t begin, int32_t end) {
    for (;;) {
        int64_t lowest = INT64_MAX;
        bool lifted = false;
        if (!tcc_search_reserve(s)) return -1;
        s->progress->steps += end - begin;
        for (int32_t i = begin; i < end; i++)
            if (s->lowest[s->blocks[i]] < lowest) lowest = s->lowest[s->blocks[i]];
        for (int32_t i = begin; i < end; i++) {
            int32_t block = s->blocks[i];
            if (s->lowest[block] != lowest || tcc_search_rests(s, block)) continue;
            tcc_search_lift(s, block);
            lifted = true;
        }
        if (!lifted) return lowest;
        if (!tcc_search_all_fit(s)) return -1;
    }
}

/* Returns the bytes that the tightest section of a block can waste. */
static int64_t smallest_waste_at(const tcc_search *s, int32_t block, int64_t offset) {
    int64_t smallest_waste = INT64_MAX;
    for (int32_t b = block; b >= 0; b = s->lives->next[b]) {
        for (int32_t section = s->lives->first[b]; section < s->lives->last[b]; section++) {
            int64_t waste = s->capacity - s->floor[section] - s->remaining[section];
            if (s->floor[section] == offset && waste < smallest_waste) smallest_waste = waste;
        }
    }
    return smallest_waste;
}

static int32_t choose(const tcc_search *s, int32_t begin, int32_t end, int64_t offset) {
    int32_t best = -1;
    int64_t smallest = 0;
    for (int32_t i = begin; i < end; i++) {
        int32_t block = s->blocks[i];
        if (s->lowest[block] != offset) continue;
        int64_t waste = smallest_waste_at(s, block, offset);
        uint64_t rank = s->rank[block];
        if (best < 0 || waste < smallest || (waste == smallest && rank > s->rank[s->blocks[best]])) {
            best = i;
            smallest = waste;
        }
    }
    return best;
}

/* Returns true if the run has used up its nodes or the search its steps. */
static bool is_over(tcc_search *s) {
    tcc_progress *progress = s->progress;
    if (progress->go_on && progress->steps >= s->ask_at) {
        s->ask_at = progress->steps + ASK_STEPS;
        progress->ended |= !progress->go_on(progress->context, progress->steps, progress->peak);
    }
    return s->remaining_nodes-- <= 0 || progress->steps >= s->steps_end || progress->ended;
}

static tcc_outcome search_part(tcc_search *s, int32_t begin, int32_t end);

/* Searches the remaining blocks in parts that no block connects, in order of time. */
static tcc_outcome search_parts(tcc_search *s, int32_t begin, int32_t end) {
    for (int32_t i = begin; i < end; i++)
        s->order[i] = (tcc_bounds){s->from[s->blocks[i]], s->blocks[i]};
    tcc_sort_bounds(s->order + begin, end - begin);
    for (int32_t i = begin; i < end; i++) s->blocks[i] = (int32_t)s->order[i].to;
    while (begin < end) {
        int32_t part = begin, reach = 0;
        do {
            if (s->to[s->blocks[part]] > reach) reach = s->to[s->blocks[part]];
            part++;
        } while (part < end && s->from[s->blocks[part]] < reach);
        tcc_outcome outcome = search_part(s, begin, part);
        if (outcome != TCC_FOUND) return outcome;
        begin = part;
    }
    return TCC_FOUND;
}

/* Places blocks[begin] .. blocks[end-1]; it may change their order.  On failure it undoes all
 * changes, unless the run is over. */
static tcc_outcome search_part(tcc_search *s, int32_t begin, int32_t end) {
    int64_t before = s->n_trail;
    while (begin < end) {
        int64_t offset = lowest_offset(s, begin, end);
        if (s->no_memory) return TCC_NO_MEMORY;
        if (offset < 0) break;
        if (is_over(s)) return TCC_SPENT;
        int32_t place = choose(s, begin, end, offset), block = s->blocks[place];
        s->blocks[place] = s->blocks[begin];
        s->blocks[begin] = block;
        int64_t without = s->n_trail;
        bool parted = tcc_search_place(s, block);
        if (tcc_search_all_fit(s)) {
            tcc_outcome outcome = parted ? search_parts(s, begin + 1, end)
                                         : search_part(s, begin + 1, end);
            if (outcome != TCC_REFUTED) return outcome;
        }
        tcc_search_undo(s, without);
        if (s->lives->fixed[block] >= 0) break;
        tcc_search_lift(s, block);
        if (!tcc_search_all_fit(s)) break;
    }
    if (begin == end) return TCC_FOUND;
    tcc_search_undo(s, before);
    return TCC_REFUTED;
}

/* ---- runs -------------------------------------------------------------------------------------------- */

/* Returns the terms of 1 1 2 1 1 2 4 1 1 2 1 1 2 4 8 ..., counted from 1. */
static int64_t luby(int64_t number) {
    int64_t size = 1;
    while (2 * size - 1 < number) size *= 2;
    return 2 * size - 1 == number ? size : luby(number - size + 1);
}

static uint64_t noise(tcc_search *s) {
    s->random = s->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return 1024 + (s->random >> 54); /* 1024 .. 2047 */
}

/* Returns a block's rank.  The first runs use size and life only.  The product of all factors stays
 * below 2^63. */
static uint64_t rank_of(tcc_search *s, int32_t block) {
    const tcc_lives *lives = s->lives;
    uint64_t life = 0, size = 1, failures = 1;
    for (int32_t b = block; b >= 0; b = lives->next[b]) {
        uint64_t part = 1 + (uint64_t)(lives->sizes[b] / (s->largest / 1023 + 1));
        if (part > size) size = part;
        life += (uint64_t)(lives->last[b] - lives->first[b]);
        for (int32_t section = lives->first[b]; section < lives->last[b]; section++)
            failures += s->failures[section];
    }
    uint64_t keys[N_ORDERS] = {life << 10 | size, life * size, size << 25 | life};
    uint64_t key = keys[s->runs % N_ORDERS];
    if (s->runs < N_ORDERS) return key;
    return key * (failures < 1 << 17 ? failures : 1 << 17) * noise(s);
}

static void begin_run(tcc_search *s) {
    const tcc_lives *lives = s->lives;
    s->remaining_nodes = RUN_NODES * luby(s->runs + 1);
    s->n_trail = 0;
    tcc_search_forget(s);
    for (int32_t section = 0; section < lives->sections; section++) {
        s->remaining[section] = s->total[section];
        s->floor[section] = s->spanning[section] = 0;
        s->failures[section] -= s->failures[section] / 8;
        tcc_search_mark(s, section);
    }
    for (int32_t i = 0; i < s->n_blocks; i++) {
        int32_t block = s->blocks[i];
        s->placed[block] = false;
        s->resting[block] = 0;
        s->lowest[block] = lives->fixed[block] < 0 ? 0 : lives->fixed[block];
        s->rank[block] = rank_of(s, block);
        for (int32_t section = s->from[block]; section + 1 < s->to[block]; section++)
            s->spanning[section]++;
    }
    s->runs++;
}

tcc_outcome tcc_search_run(tcc_search *search, int64_t capacity, int64_t steps,
                           int64_t *out_offsets) {
    tcc_search *s = search;
    const tcc_lives *lives = s->lives;
    s->capacity = capacity;
    s->steps_end = s->progress->steps + steps;
    tcc_outcome outcome;
    do {
        begin_run(s);
        if (!tcc_search_reserve(s)) return TCC_NO_MEMORY;
        outcome = tcc_search_all_fit(s) ? search_parts(s, 0, s->n_blocks) : TCC_REFUTED;
    } while (outcome == TCC_SPENT && s->progress->steps < s->steps_end && !s->progress->ended);
    for (int32_t b = 0; b < lives->count && outcome == TCC_FOUND; b++)
        out_offsets[b] = s->lowest[b];
    return outcome;
}

/* ---- the state --------------------------------------------------------------------------------------- */

static bool allocate(tcc_search *s) {
    size_t n = (size_t)s->lives->count, sections = (size_t)s->lives->sections;
    s->lowest = tcc_allocate_zero(3 * n, sizeof *s->lowest);
    s->total = tcc_allocate_zero(4 * sections + 1, sizeof *s->total);
    s->blocks = tcc_allocate_zero(3 * n, sizeof *s->blocks);
    s->changed = tcc_allocate_zero(3 * sections, sizeof *s->changed);
    s->placed = tcc_allocate_zero(n + sections, sizeof *s->placed);
    s->order = tcc_allocate_zero(n, sizeof *s->order);
    if (!s->lowest || !s->total || !s->blocks || !s->changed || !s->placed || !s->order)
        return false;
    s->resting = s->lowest + n;
    s->rank = (uint64_t *)s->resting + n;
    s->remaining = s->total + sections;
    s->floor = s->remaining + sections;
    s->starts = s->floor + sections;
    s->from = s->blocks + n;
    s->to = s->from + n;
    s->spanning = s->changed + sections;
    s->failures = (uint32_t *)s->spanning + sections;
    s->is_changed = s->placed + n;
    return true;
}

static void set_blocks(tcc_search *s) {
    const tcc_lives *lives = s->lives;
    int64_t busiest = 0;
    for (int32_t block = 0; block < lives->count; block++) {
        if (lives->block[block] != block) continue;
        int64_t bytes = 0, met = 0;
        s->lowest[block] = lives->fixed[block] < 0 ? 0 : lives->fixed[block];
        s->from[block] = lives->first[block];
        for (int32_t b = block; b >= 0; b = lives->next[b]) {
            s->to[block] = lives->last[b];
            bytes += lives->sizes[b];
            met += lives->starts[b + 1] - lives->starts[b];
            if (lives->sizes[b] > s->largest) s->largest = lives->sizes[b];
        }
        if (bytes) s->blocks[s->n_blocks++] = block;
        if (met > busiest) busiest = met;
    }
    s->max_changes = 2 * (lives->count + 2 * (int64_t)lives->sections + busiest) + 16;
}

/* Lists the buffers of each section. */
static bool set_active(tcc_search *s) {
    const tcc_lives *lives = s->lives;
    int64_t count = 0;
    for (int32_t b = 0; b < lives->count; b++)
        for (int32_t section = lives->first[b]; section < lives->last[b] && lives->sizes[b]; section++)
            s->starts[section + 1]++;
    for (int32_t section = 0; section < lives->sections; section++)
        count = s->starts[section + 1] += count;
    s->active = tcc_allocate((size_t)count * sizeof *s->active);
    if (!s->active) return false;
    for (int32_t b = 0; b < lives->count; b++)
        for (int32_t section = lives->first[b]; section < lives->last[b] && lives->sizes[b]; section++)
            s->active[s->starts[section] + s->spanning[section]++] = b;
    return true;
}

/* Returns true if the search's depth fits the stack and its sections fit memory. */
static bool is_small(const tcc_lives *lives) {
    int64_t active = 0;
    for (int32_t b = 0; b < lives->count; b++) active += lives->last[b] - lives->first[b];
    return lives->count <= DEEPEST && active <= max_active;
}

tcc_status tcc_search_make(const tcc_lives *lives, tcc_progress *progress, tcc_search **out_search) {
    *out_search = NULL;
    if (!is_small(lives)) return TCC_OK;
    tcc_search *s = tcc_allocate_zero(1, sizeof *s);
    if (!s) return TCC_OUT_OF_MEMORY;
    s->lives = lives;
    s->progress = progress;
    bool has_memory = allocate(s);
    if (has_memory) {
        set_blocks(s);
        (void)tcc_plan_bound(lives, s->total);
        has_memory = set_active(s);
    }
    if (!has_memory) {
        tcc_search_free(s);
        return TCC_OUT_OF_MEMORY;
    }
    *out_search = s;
    return TCC_OK;
}

void tcc_search_free(tcc_search *search) {
    if (!search) return;
    tcc_free(search->lowest);
    tcc_free(search->total);
    tcc_free(search->blocks);
    tcc_free(search->changed);
    tcc_free(search->placed);
    tcc_free(search->order);
    tcc_free(search->active);
    tcc_free(search->trail);
    tcc_free(search);
}
