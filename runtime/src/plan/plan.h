/* Declares the arena planner, which finds offsets for buffers with known lives and sizes.  Its
 * files need nothing of the runtime but status.c and alloc.c.  One paragraph per file.
 *
 * Times are any increasing numbers, as positions of a program.  Offsets and sizes are bytes.  All
 * results are functions of the arguments alone; a callback can end a search early. */
#ifndef TCC_PLAN_H
#define TCC_PLAN_H

#include "../runtime.h"

/* A buffer, which lives at lower <= time < upper.  Buffers that live at the same time get disjoint
 * ranges. */
typedef struct tcc_life {
    int64_t lower, upper;
    int64_t size;
    int64_t alignment; /* the offset is a multiple of it; a power of two */
    int64_t over;      /* a buffer that died before, whose offset this one gets; -1: none */
    int64_t fixed;     /* the required offset; -1: the planner chooses */
} tcc_life;

/* ---- lives.c: the buffers as the planner sees them ----------------------------------------------- */

/* The prepared problem.  A section is the time between two neighbours among all lowers and uppers.
 * A block is a set of buffers that share an offset: a buffer and the buffers over it.  Its first
 * buffer represents it. */
typedef struct tcc_lives {
    int32_t count, sections;
    int64_t unit;          /* the smallest alignment; all offsets are multiples of it */
    int64_t *sizes;        /* rounded up to a multiple of `unit` */
    int32_t *first, *last; /* a buffer lives in sections first .. last-1 */
    int32_t *block, *next; /* by buffer: its block, and the next buffer of the block; -1: none */
    int64_t *alignment, *fixed; /* a block's values, at its first buffer */
    int64_t *starts;       /* the buffers with bytes that live at the same time as buffer b: */
    int32_t *neighbours;   /* others[starts[b]] .. others[starts[b + 1]-1] */
} tcc_lives;

/* Fails with TCC_INVALID_ARGUMENT for invalid lives, sizes that sum to more than 2^62, alignments
 * that are no powers of two, fixed offsets that contradict them, and invalid chains of `over`.
 * Fails with TCC_UNSUPPORTED above 2^24 buffers or 2^28 pairs that live together. */
tcc_status tcc_lives_make(const tcc_life *buffers, int64_t count, tcc_lives *out_lives);
void tcc_lives_free(tcc_lives *lives);

static inline int64_t tcc_aligned(int64_t offset, int64_t alignment) {
    return (offset + alignment - 1) & -alignment;
}

typedef struct tcc_bounds {
    int64_t from, to;
} tcc_bounds;

/* Sorts by `from`, then by `to`. */
void tcc_sort_bounds(tcc_bounds *bounds, int64_t count);

/* ---- bound.c: what no plan can do without --------------------------------------------------------- */

/* Returns the largest of two: the live bytes of any section, which it stores by section, and the
 * ends of fixed blocks. */
int64_t tcc_plan_bound(const tcc_lives *lives, int64_t *out_by_section);

/* ---- greedy.c: one block after another ------------------------------------------------------------ */

typedef struct tcc_greedy {
    const tcc_lives *lives;
    int64_t *offsets;   /* by block; -1: not placed yet */
    int32_t *born;      /* blocks in order of birth */
    int64_t count;      /* number of blocks */
    tcc_bounds *orders; /* places in `born`, sorted by keys, as the last plan left them */
    tcc_bounds *occupied; /* offsets from < o < to that a block cannot have */
    int64_t largest;
} tcc_greedy;

/* Makes room for plans of `lives`, whose sizes may change between plans. */
tcc_status tcc_greedy_make(const tcc_lives *lives, tcc_greedy *out_greedy);
void tcc_greedy_free(tcc_greedy *greedy);
/* Finds the best plan of a few orders; `out_offsets` is by buffer.  Each block takes the smallest
 * gap that holds it.  Stops at `target`.  Allocates nothing.  Fails with TCC_INVALID_ARGUMENT where
 * fixed blocks overlap. */
tcc_status tcc_greedy_run(tcc_greedy *greedy, int64_t target, int64_t *out_offsets,
                          int64_t *out_peak);

/* ---- exact/search.c: a plan within a capacity, or the proof that there is none --------------------------- */

typedef struct tcc_search tcc_search;

typedef enum tcc_outcome { TCC_REFUTED, TCC_FOUND, TCC_SPENT, TCC_NO_MEMORY } tcc_outcome;

typedef struct tcc_progress {
    int64_t steps, peak; /* steps done, and the best plan's peak */
    /* Called every few thousand steps; the search ends where it returns 0.  NULL: never called. */
    int32_t (*go_on)(void *context, int64_t steps, int64_t peak);
    void *context;
    bool ended;
} tcc_progress;

tcc_status tcc_search_make(const tcc_lives *lives, tcc_progress *progress, tcc_search **out_search);
/* Searches for about `steps` steps at most; a step is one buffer that is looked at.  TCC_FOUND sets
 * `out_offsets`. */
tcc_outcome tcc_search_run(tcc_search *search, int64_t capacity, int64_t steps, int64_t *out_offsets);
void tcc_search_free(tcc_search *search);

/* ---- check.c: the proof of a plan ------------------------------------------------------------------- */

/* Fails with TCC_INTERNAL unless the plan is right: every buffer has an aligned offset with all its
 * bytes below `peak`; a fixed buffer has its offset, and a buffer over another has that one's; and
 * no two buffers that live together overlap.  Shares no code with the planner. */
tcc_status tcc_plan_check(const tcc_life *buffers, int64_t count, const int64_t *offsets,
                          int64_t peak);

/* ---- exact/arena.c: the planner ---------------------------------------------------------------------------- */

typedef struct tcc_plan {
    int64_t peak;  /* end of the last buffer */
    int64_t bound; /* no plan needs less */
    int64_t steps;
} tcc_plan;

/* Plans within `capacity` bytes; where it is 0, in as few bytes as the search finds, never below
 * the bound.  Searches for about `steps` steps where the greedy plan takes more. */
tcc_status tcc_plan_arena(const tcc_life *buffers, int64_t count, int64_t capacity, int64_t steps,
                          int32_t (*go_on)(void *context, int64_t steps, int64_t peak),
                          void *context, int64_t *out_offsets, tcc_plan *out_plan);

#endif
