/* Implements two-level segregated fit, which blocks.h describes. */
#include "blocks.h"

enum { TRIES = 8 }; /* blocks that are tried in a size's own list, because the list holds smaller
                       blocks too */

static uint32_t log2_of(uint64_t number) { return 63u - (uint32_t)__builtin_clzll(number); }

/* Returns the number of the list for blocks of `units` up to the next list's size; units > 0. */
static uint32_t list_of(uint64_t units) {
    if (units < STEPS) return (uint32_t)units;
    uint32_t shift = log2_of(units) - STEP_BITS;
    return shift * STEPS + (uint32_t)(units >> shift);
}

static void link_free(blocks *all, uint32_t number) {
    block *at = &all->table[number];
    free_blocks *in = &all->free[at->cold];
    uint32_t list = list_of(at->units), first = in->lists[list];
    at->list = (uint16_t)list;
    at->previous = 0;
    at->next = first;
    in->lists[list] = number;
    if (first) {
        all->table[first].previous = number;
        return;
    }
    in->steps[list / STEPS] |= UINT32_C(1) << list % STEPS;
    in->levels |= UINT64_C(1) << list / STEPS;
}

static void unlink_free(blocks *all, uint32_t number) {
    const block *at = &all->table[number];
    if (at->next) all->table[at->next].previous = at->previous;
    if (at->previous) {
        all->table[at->previous].next = at->next;
        return;
    }
    free_blocks *in = &all->free[at->cold];
    uint32_t list = at->list, level = list / STEPS;
    in->lists[list] = at->next;
    if (at->next) return;
    in->steps[level] &= ~(UINT32_C(1) << list % STEPS);
    if (!in->steps[level]) in->levels &= ~(UINT64_C(1) << level);
}

/* ---- descriptors --------------------------------------------------------------------------------- */

static uint32_t make_descriptor(blocks *all) {
    uint32_t number = all->unused;
    if (number)
        all->unused = all->table[number].next;
    else if (all->n_made < all->room)
        number = all->n_made++;
    return number;
}

/* Stores the block of a unit. A thread reads without the lock only the entry of a live block that
 * it holds; a wrong entry of another block does no harm. */
static void set_owner(blocks *all, uint64_t unit, uint32_t number) {
    __atomic_store_n(&all->owner[unit], number, __ATOMIC_RELAXED);
}

/* Drops the block behind `number`, which takes over its units. */
static void absorb_behind(blocks *all, uint32_t number) {
    block *at = &all->table[number];
    uint32_t gone = at->behind;
    block *other = &all->table[gone];
    at->units += other->units;
    at->cold |= other->cold;
    at->behind = other->behind;
    if (at->behind) all->table[at->behind].before = number;
    other->next = all->unused;
    all->unused = gone;
}

/* Cuts `units` off the front of a block. The rest becomes a block behind it, or joins a free one
 * there. Where no descriptor is left, the rest stays part of the block. */
static void split(blocks *all, uint32_t number, uint64_t units) {
    block *at = &all->table[number];
    uint32_t behind = at->behind, remainder;
    if (at->units == units) return;
    if (behind && block_is_free(&all->table[behind])) {
        remainder = behind;
        if (remainder != all->end) unlink_free(all, remainder);
    } else {
        remainder = make_descriptor(all);
        if (!remainder) return;
        all->table[remainder] = (block){.start = at->start + at->units, .before = number, .behind = behind};
        if (behind) all->table[behind].before = remainder;
        at->behind = remainder;
    }
    uint64_t moved = at->units - units;
    at->units = units;
    all->table[remainder].start -= moved;
    all->table[remainder].cold |= at->cold;
    all->table[remainder].units += moved;
    if (remainder != all->end) link_free(all, remainder);
}

/* ---- the interface ------------------------------------------------------------------------------- */

void blocks_begin(blocks *all, uint64_t units) {
    all->n_made = 2;
    all->end = 1;
    all->table[1] = (block){.units = units, .cold = 1};
}

/* Returns the first block of a list that is large enough, among the list's first TRIES; else 0. */
static uint32_t find_in(const blocks *all, uint32_t number, uint64_t units) {
    for (int i = 0; number && i < TRIES; i++, number = all->table[number].next)
        if (all->table[number].units >= units) return number;
    return 0;
}

static uint32_t find(const blocks *all, const free_blocks *in, uint64_t units) {
    uint32_t list = list_of(units), level = list / STEPS;
    uint32_t own_list = find_in(all, in->lists[list], units);
    if (own_list) return own_list;
    uint32_t larger = in->steps[level] & (uint32_t)(~UINT64_C(1) << list % STEPS);
    if (!larger) {
        uint64_t levels = in->levels & ~UINT64_C(1) << level;
        if (!levels) return 0;
        level = (uint32_t)__builtin_ctzll(levels);
        larger = in->steps[level];
    }
    return in->lists[level * STEPS + (uint32_t)__builtin_ctz(larger)];
}

/* Takes a block from the front of the free end; 0 where it is too short. */
static uint32_t take_end(blocks *all, uint64_t units) {
    block *end = &all->table[all->end];
    if (end->units < units) return 0;
    uint32_t number = make_descriptor(all);
    if (!number) return 0;
    all->table[number] =
        (block){.start = end->start, .units = units, .before = end->before, .behind = all->end, .cold = 1};
    if (end->before) all->table[end->before].behind = number;
    end->before = number;
    end->start += units;
    end->units -= units;
    return number;
}

uint32_t blocks_take(blocks *all, uint64_t units) {
    if (units > MOST_UNITS) return 0;
    uint32_t number = find(all, &all->free[0], units);
    if (!number) number = find(all, &all->free[1], units);
    if (number) {
        unlink_free(all, number);
        block_set_state(&all->table[number], BLOCK_LIVE); /* keeps the rest from joining it */
        split(all, number, units);
    } else {
        number = take_end(all, units);
        if (!number) return 0;
        block_set_state(&all->table[number], BLOCK_LIVE);
    }
    set_owner(all, all->table[number].start, number);
    return number;
}

void blocks_give(blocks *all, uint32_t number) {
    block *at = &all->table[number];
    set_owner(all, at->start, 0);
    block_set_state(at, BLOCK_FREE);
    uint32_t before = at->before;
    if (before && block_is_free(&all->table[before])) {
        unlink_free(all, before);
        absorb_behind(all, before);
        number = before;
        at = &all->table[number];
    }
    if (at->behind == all->end) {
        block *end = &all->table[all->end];
        end->start = at->start;
        end->units += at->units;
        end->before = at->before;
        if (at->before) all->table[at->before].behind = all->end;
        at->next = all->unused;
        all->unused = number;
        return;
    }
    if (at->behind && block_is_free(&all->table[at->behind])) {
        unlink_free(all, at->behind);
        absorb_behind(all, number);
    }
    link_free(all, number);
}

bool blocks_resize(blocks *all, uint32_t number, uint64_t units) {
    block *at = &all->table[number];
    if (units <= at->units) {
        split(all, number, units);
        return true;
    }
    uint64_t more = units - at->units;
    block *other = &all->table[at->behind];
    if (!at->behind || !block_is_free(other) || other->units < more) return false;
    if (at->behind == all->end) {
        other->start += more;
        other->units -= more;
        at->units = units;
        at->cold = 1;
        return true;
    }
    unlink_free(all, at->behind);
    absorb_behind(all, number);
    split(all, number, units);
    return true;
}

bool blocks_fit_around(const blocks *all, uint32_t number, uint64_t units, uint64_t *out_start) {
    const block *at = &all->table[number];
    const block *before = &all->table[at->before], *behind = &all->table[at->behind];
    if (!at->before || !block_is_free(before)) return false;
    *out_start = before->start;
    uint64_t room = before->units + at->units;
    if (at->behind && block_is_free(behind)) room += behind->units;
    return room >= units;
}

uint32_t blocks_slide(blocks *all, uint32_t number, uint64_t units) {
    uint32_t first = all->table[number].before;
    set_owner(all, all->table[number].start, 0);
    unlink_free(all, first);
    absorb_behind(all, first);
    block_set_state(&all->table[first], BLOCK_LIVE);
    set_owner(all, all->table[first].start, first);
    (void)blocks_resize(all, first, units);
    return first;
}

void blocks_cool(blocks *all, uint32_t number) {
    if (number == all->end || all->table[number].cold) return;
    unlink_free(all, number);
    all->table[number].cold = 1;
    link_free(all, number);
}

uint32_t blocks_largest(const blocks *all, bool cold, uint32_t *out_numbers, uint32_t limit) {
    const free_blocks *in = &all->free[cold];
    uint32_t count = 0;
    for (uint64_t levels = in->levels; levels;) {
        uint32_t level = log2_of(levels);
        levels ^= UINT64_C(1) << level;
        for (uint32_t steps = in->steps[level]; steps;) {
            uint32_t step = log2_of(steps);
            steps ^= UINT32_C(1) << step;
            for (uint32_t at = in->lists[level * STEPS + step]; at; at = all->table[at].next) {
                if (count == limit) return count;
                out_numbers[count++] = at;
            }
        }
    }
    return count;
}

static void forget(free_blocks *in) {
    for (uint32_t level = 0; level < LEVELS; level++) {
        if (!in->steps[level]) continue;
        in->steps[level] = 0;
        for (uint32_t step = 0; step < STEPS; step++) in->lists[level * STEPS + step] = 0;
    }
    in->levels = 0;
}

void blocks_reset(blocks *all) {
    uint64_t units = 0;
    for (uint32_t number = all->end; number; number = all->table[number].before) {
        const block *at = &all->table[number];
        if (!block_is_free(at)) set_owner(all, at->start, 0);
        units += at->units;
    }
    forget(&all->free[0]);
    forget(&all->free[1]);
    all->unused = 0;
    blocks_begin(all, units);
}
