/* The arena planner: offsets for buffers whose lives and sizes are known.  Its files need nothing of
 * the runtime but status.c and alloc.c.  One paragraph a file.
 *
 * Times are any increasing numbers, as positions of a program.  Offsets and sizes are bytes.  All
 * results are functions of the arguments alone; a callback can end a search early. */
#ifndef TCC_PLAN_H
#define TCC_PLAN_H

#include "../runtime.h"

/* A buffer: it lives at lower <= time < upper.  Buffers that live at one time get disjoint ranges. */
typedef struct tcc_life {
    int64_t lower, upper;
    int64_t size;
    int64_t alignment; /* of the offset: a power of two */
    int64_t over;      /* a buffer that died before and whose offset this one gets; -1: none */
    int64_t fixed;     /* the offset that it must have; -1: the planner chooses */
} tcc_life;

/* ---- lives.c: the buffers as the planner sees them ----------------------------------------------- */

/* A section is the time between two neighbours of all lowers and uppers.  A block is the buffers that
 * share an offset: one buffer and those over it; its first buffer stands for it. */
typedef struct tcc_lives {
    int32_t count, sections;
    int64_t unit;          /* the smallest alignment, of which all offsets are multiples */
    int64_t *sizes;        /* rounded up to a multiple of `unit` */
    int32_t *first, *last; /* a buffer lives in sections first .. last-1 */
    int32_t *block, *next; /* its block, and the next buffer of that; -1: none */
    int64_t *alignment, *fixed; /* of a block, at its first buffer */
    int64_t *starts;       /* the buffers of some bytes that live with buffer b: */
    int32_t *others;       /* others[starts[b]] .. others[starts[b + 1]-1] */
} tcc_lives;

/* TCC_INVALID_ARGUMENT for lives that are none, sizes that sum to more than 2^62, alignments that are
 * no powers of two, fixed offsets that these forbid, and chains of `over` that are none;
 * TCC_UNSUPPORTED above 2^24 buffers or 2^28 pairs that live together. */
tcc_status tcc_lives_make(const tcc_life *buffers, int64_t count, tcc_lives *out_lives);
void tcc_lives_free(tcc_lives *lives);

static inline int64_t tcc_aligned(int64_t offset, int64_t alignment) {
    return (offset + alignment - 1) & -alignment;
}

typedef struct tcc_bounds {
    int64_t from, to;
} tcc_bounds;

/* Sorts by `from`, equals by `to`. */
void tcc_sort_bounds(tcc_bounds *bounds, int64_t count);

/* ---- bound.c: what no plan can do without --------------------------------------------------------- */

/* The most of the bytes that live in each section, which it sets, and of the ends of fixed blocks. */
int64_t tcc_plan_bound(const tcc_lives *lives, int64_t *out_by_section);

/* ---- greedy.c: one block after another ------------------------------------------------------------ */

typedef struct tcc_greedy {
    const tcc_lives *lives;
    int64_t *offsets;   /* by block; -1: not placed yet */
    int32_t *born;      /* blocks in order of birth */
    int64_t count;      /* of blocks */
    tcc_bounds *orders; /* of places in `born`, by keys; as the last plan left them */
    tcc_bounds *taken;  /* offsets from < o < to that a block cannot have */
    int64_t largest;
} tcc_greedy;

/* Room for plans of `lives`, whose sizes may change between them. */
tcc_status tcc_greedy_make(const tcc_lives *lives, tcc_greedy *out_greedy);
void tcc_greedy_free(tcc_greedy *greedy);
/* The best of a few orders; `out_offsets` by buffer.  The smallest gap that holds a block takes it.
 * Stops at `target`.  Allocates nothing.  TCC_INVALID_ARGUMENT where fixed blocks overlap. */
tcc_status tcc_greedy_run(tcc_greedy *greedy, int64_t target, int64_t *out_offsets,
                          int64_t *out_peak);

/* ---- exact/search.c: a plan within a capacity, or the proof that there is none --------------------------- */

typedef struct tcc_search tcc_search;

typedef enum tcc_outcome { TCC_REFUTED, TCC_FOUND, TCC_SPENT, TCC_NO_MEMORY } tcc_outcome;

typedef struct tcc_progress {
    int64_t steps, peak; /* steps done, and the best plan's peak */
    /* Called every few thousand steps; the search ends where it returns 0.  NULL: goes on. */
    int32_t (*go_on)(void *context, int64_t steps, int64_t peak);
    void *context;
    bool ended;
} tcc_progress;

tcc_status tcc_search_make(const tcc_lives *lives, tcc_progress *progress, tcc_search **out_search);
/* Takes about `steps` steps at most, which count buffers looked at.  TCC_FOUND sets `out_offsets`. */
tcc_outcome tcc_search_run(tcc_search *search, int64_t capacity, int64_t steps, int64_t *out_offsets);
void tcc_search_free(tcc_search *search);

/* ---- check.c: the proof of a plan ------------------------------------------------------------------- */

/* Fails with TCC_INTERNAL unless every buffer has an aligned offset with all its bytes below `peak`,
 * its fixed one or that of the buffer it lies over where it must, and none meets another that lives
 * with it.  Shares no code with the planner. */
tcc_status tcc_plan_check(const tcc_life *buffers, int64_t count, const int64_t *offsets,
                          int64_t peak);

/* ---- exact/arena.c: the planner ---------------------------------------------------------------------------- */

typedef struct tcc_plan {
    int64_t peak;  /* where the last buffer ends */
    int64_t bound; /* no plan takes less */
    int64_t steps;
} tcc_plan;

/* Plans within `capacity` bytes, or where it is 0 in as few as it finds, never below the bound.  It
 * searches for about `steps` steps where the greedy plan takes more. */
tcc_status tcc_plan_arena(const tcc_life *buffers, int64_t count, int64_t capacity, int64_t steps,
                          int32_t (*go_on)(void *context, int64_t steps, int64_t peak),
                          void *context, int64_t *out_offsets, tcc_plan *out_plan);

#endif
