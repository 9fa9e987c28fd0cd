/* The state of a search: search.c says what it does with it. */
#ifndef TCC_PLAN_SEARCH_H
#define TCC_PLAN_SEARCH_H

#include "../plan.h"

typedef enum change_kind { LEAST, REST, FLOOR, PLACED } change_kind;

typedef struct change {
    change_kind kind;
    int32_t index;
    int64_t old;
} change;

struct tcc_search {
    const tcc_lives *lives;
    tcc_progress *progress;
    int64_t capacity, largest, steps_end, nodes_left, ask_at;
    int32_t runs;
    uint64_t random;
    bool hopeless, no_memory;
    /* by block: no smaller offset is left; what it would rest on now; whether it has its offset */
    int64_t *least, *rest;
    bool *placed;
    uint64_t *rank;     /* of equals the largest is chosen */
    int32_t *blocks; /* all of some bytes; each node has a part of them */
    int32_t *from, *to; /* its sections from <= s < to, those between its buffers included */
    /* by section: live bytes in all and of what is not placed, the lowest offset that is left */
    int64_t *total, *left, *floor;
    int32_t *spanning; /* blocks not placed that live on into the next section */
    uint32_t *failures;
    int64_t *starts;   /* the buffers that live in section s: */
    int32_t *active;   /* active[starts[s]] .. active[starts[s + 1]-1], by least offset */
    int32_t *changed;  /* sections to be looked at */
    bool *is_changed;
    int32_t n_changed, n_blocks;
    int64_t most_changes; /* of a node */
    tcc_bounds *order;
    change *trail;
    int64_t n_trail, trail_room;
};

/* ---- infer.c: what follows from a choice ------------------------------------------------------ */

/* Room for what one node can change; fails with `no_memory` set. */
bool tcc_search_reserve(tcc_search *s);
/* Takes back all changes but the first `changes`. */
void tcc_search_undo(tcc_search *s, int64_t changes);
/* A section is to be looked at by tcc_search_all_fit; none is any more. */
void tcc_search_mark(tcc_search *s, int32_t section);
void tcc_search_forget(tcc_search *s);
/* Whether what is left fits in each section that changed. */
bool tcc_search_all_fit(tcc_search *s);
/* Whether a block can have its least offset: it rests there on 0 or a block that is placed, or is
 * fixed there. */
bool tcc_search_rests(const tcc_search *s, int32_t block);
/* A block that cannot rests on one that is not placed yet, whose ends are its new least offset. */
void tcc_search_lift(tcc_search *s, int32_t block);
/* Places a block at its least offset; whether that parts what is left. */
bool tcc_search_place(tcc_search *s, int32_t block);

#endif
