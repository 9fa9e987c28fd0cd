/* Infers the consequences of a choice in the search, and undoes them. */
#include "search.h"

#include <string.h>

/* ---- changes that are taken back ----------------------------------------------------------------- */

/* Makes room for the changes of one node. */
bool tcc_search_reserve(tcc_search *s) {
    if (s->trail_room - s->n_trail >= s->max_changes) return true;
    int64_t room = 2 * s->trail_room + s->max_changes;
    change *grown = tcc_allocate((size_t)room * sizeof *grown);
    if (!grown) {
        s->no_memory = true;
        return false;
    }
    if (s->n_trail) memcpy(grown, s->trail, (size_t)s->n_trail * sizeof *grown);
    tcc_free(s->trail);
    s->trail = grown;
    s->trail_room = room;
    return true;
}

static void note(tcc_search *s, change_kind kind, int32_t index, int64_t old) {
    s->trail[s->n_trail++] = (change){kind, index, old};
}

void tcc_search_mark(tcc_search *s, int32_t section) {
    if (s->is_changed[section]) return;
    s->is_changed[section] = true;
    s->changed[s->n_changed++] = section;
}

void tcc_search_forget(tcc_search *s) {
    while (s->n_changed) s->is_changed[s->changed[--s->n_changed]] = false;
}

/* Moves the bytes of a block between placed and remaining. */
static bool count_block(tcc_search *s, int32_t block, int sign) {
    bool parted = false;
    for (int32_t b = block; b >= 0; b = s->lives->next[b])
        for (int32_t section = s->lives->first[b]; section < s->lives->last[b]; section++)
            s->remaining[section] += sign * s->lives->sizes[b];
    for (int32_t section = s->from[block]; section + 1 < s->to[block]; section++)
        parted |= (s->spanning[section] += sign) == 0;
    return parted;
}

void tcc_search_undo(tcc_search *s, int64_t to) {
    while (s->n_trail > to) {
        change *last = &s->trail[--s->n_trail];
        switch (last->kind) {
        case LOWEST: s->lowest[last->index] = last->old; break;
        case RESTING: s->resting[last->index] = last->old; break;
        case FLOOR: s->floor[last->index] = last->old; break;
        case PLACED:
            s->placed[last->index] = false;
            (void)count_block(s, last->index, 1);
        }
    }
}

/* ---- what follows from a choice ------------------------------------------------------------------- */

static void raise(tcc_search *s, int32_t block, int64_t offset) {
    const tcc_lives *lives = s->lives;
    int64_t old = s->lowest[block];
    if (offset <= old) return;
    if (lives->fixed[block] >= 0) s->hopeless = true;
    note(s, LOWEST, block, old);
    s->lowest[block] = offset;
    for (int32_t b = block; b >= 0; b = lives->next[b])
        for (int32_t section = lives->first[b]; section < lives->last[b]; section++)
            tcc_search_mark(s, section);
}

/* Returns true if the remaining blocks of a section fit: for each offset it sums the blocks that
 * cannot lie lower. */
static bool fits(tcc_search *s, int32_t section) {
    const tcc_lives *lives = s->lives;
    int32_t *active = s->active + s->starts[section];
    int64_t count = s->starts[section + 1] - s->starts[section];
    s->progress->steps += count;
    for (int64_t i = 1; i < count; i++) { /* insertion sort, because the order changed little since
                                             the last call */
        int32_t moved = active[i];
        int64_t at = i, key = s->lowest[lives->block[moved]];
        for (; at && s->lowest[lives->block[active[at - 1]]] > key; at--) active[at] = active[at - 1];
        active[at] = moved;
    }
    int64_t bytes = 0, lowest = s->floor[section];
    for (int64_t i = count; i-- > 0;) {
        int32_t block = lives->block[active[i]];
        if (s->placed[block]) continue;
        lowest = s->lowest[block];
        bytes += lives->sizes[active[i]];
        if (bytes > s->capacity - lowest) return false;
    }
    if (lowest != s->floor[section]) note(s, FLOOR, section, s->floor[section]);
    s->floor[section] = lowest;
    return true;
}

bool tcc_search_all_fit(tcc_search *s) {
    bool fit = !s->hopeless;
    for (int32_t i = 0; i < s->n_changed && fit; i++) {
        int32_t section = s->changed[i];
        fit = !s->remaining[section] || fits(s, section);
        if (!fit) s->failures[section]++;
    }
    tcc_search_forget(s);
    s->hopeless = false;
    return fit;
}

/* Returns true if a block rests on a support at its least offset. A block that does not rests on a
 * block that is not placed yet. */
bool tcc_search_rests(const tcc_search *s, int32_t block) {
    return s->resting[block] == s->lowest[block] || s->lives->fixed[block] >= 0;
}

void tcc_search_lift(tcc_search *s, int32_t block) {
    const tcc_lives *lives = s->lives;
    int64_t lowest = INT64_MAX;
    for (int32_t b = block; b >= 0; b = lives->next[b]) {
        s->progress->steps += lives->starts[b + 1] - lives->starts[b];
        for (int64_t i = lives->starts[b]; i < lives->starts[b + 1]; i++) {
            int32_t other = lives->neighbours[i], below = lives->block[other];
            if (s->placed[below]) continue;
            int64_t end = tcc_aligned(s->lowest[below] + lives->sizes[other], lives->alignment[block]);
            if (end < lowest) lowest = end;
        }
    }
    if (lowest == INT64_MAX)
        s->hopeless = true;
    else
        raise(s, block, lowest);
}

/* Places a block at its least offset. Returns true if that divides the remaining blocks into
 * parts. */
bool tcc_search_place(tcc_search *s, int32_t block) {
    const tcc_lives *lives = s->lives;
    s->placed[block] = true;
    note(s, PLACED, block, 0);
    bool parted = count_block(s, block, -1);
    for (int32_t b = block; b >= 0; b = lives->next[b]) {
        int64_t end = s->lowest[block] + lives->sizes[b];
        for (int32_t section = lives->first[b]; section < lives->last[b]; section++)
            tcc_search_mark(s, section);
        s->progress->steps += lives->starts[b + 1] - lives->starts[b];
        for (int64_t i = lives->starts[b]; i < lives->starts[b + 1]; i++) {
            int32_t above = lives->block[lives->neighbours[i]];
            int64_t top = tcc_aligned(end, lives->alignment[above]);
            if (s->placed[above] || top <= s->resting[above]) continue;
            note(s, RESTING, above, s->resting[above]);
            s->resting[above] = top;
            raise(s, above, top);
        }
    }
    return parted;
}
