/* Declares the state of a search, which search.c describes. */
#ifndef TCC_PLAN_SEARCH_H
#define TCC_PLAN_SEARCH_H

#include "../plan.h"

typedef enum change_kind { LOWEST, RESTING, FLOOR, PLACED } change_kind;

typedef struct change {
    change_kind kind;
    int32_t index;
    int64_t old;
} change;

struct tcc_search {
    const tcc_lives *lives;
    tcc_progress *progress;
    int64_t capacity, largest, steps_end, remaining_nodes, ask_at;
    int32_t runs;
    uint64_t random;
    bool hopeless, no_memory;
    /* by block: the least offset; the offset at which it would rest now; whether it is placed */
    int64_t *lowest, *resting;
    bool *placed;
    uint64_t *rank;     /* among equal blocks the largest rank is chosen */
    int32_t *blocks; /* all blocks that have bytes; each search node has a range of them */
    int32_t *from, *to; /* a block's sections from <= s < to, including those between its buffers */
    /* by section: live bytes in all, live bytes not placed yet, the lowest remaining offset */
    int64_t *total, *remaining, *floor;
    int32_t *spanning; /* unplaced blocks that live on into the next section */
    uint32_t *failures;
    int64_t *starts;   /* the buffers that live in section s: */
    int32_t *active;   /* active[starts[s]] .. active[starts[s + 1]-1], by least offset */
    int32_t *changed;  /* sections that must be checked */
    bool *is_changed;
    int32_t n_changed, n_blocks;
    int64_t max_changes; /* changes of one node at most */
    tcc_bounds *order;
    change *trail;
    int64_t n_trail, trail_room;
};

/* ---- infer.c: what follows from a choice ------------------------------------------------------ */

/* Makes room for the changes of one node. Fails with `no_memory` set. */
bool tcc_search_reserve(tcc_search *s);
/* Undoes all changes but the first `changes`. */
void tcc_search_undo(tcc_search *s, int64_t changes);
/* Mark a section for tcc_search_all_fit, and clear all marks. */
void tcc_search_mark(tcc_search *s, int32_t section);
void tcc_search_forget(tcc_search *s);
/* Returns true if the remaining blocks fit in each changed section. */
bool tcc_search_all_fit(tcc_search *s);
/* Returns true if a block can have its least offset: there it rests on 0 or a placed block, or is
 * fixed. */
bool tcc_search_rests(const tcc_search *s, int32_t block);
/* Raises the least offset of a block that cannot have it. The block rests on a block that is not
 * placed yet, so the lowest end of any of them is its new least offset. */
void tcc_search_lift(tcc_search *s, int32_t block);
/* Places a block at its least offset. Returns true if that divides the remaining blocks into
 * parts. */
bool tcc_search_place(tcc_search *s, int32_t block);

#endif
