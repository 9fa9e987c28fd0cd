/* Combines rows of updates into a target, as scatters do. */
#ifndef TCC_OPS_COMBINE_H
#define TCC_OPS_COMBINE_H

#include "order.h"

/* For functions that take little time or serve rare types: their code should be short. */
#define SMALL __attribute__((cold, noinline))
/* For loops over updates.  Compilers would treat them as rare, because their callers are. */
#define APART __attribute__((hot, noinline))

enum { NONE, ADD, MUL, MAX, MIN, REDUCTIONS };
enum { BATCH = 128 }; /* updates whose places are found before any is applied */

/* The state of a scatter.  The target is y itself, or an f32 image of it. */
typedef struct tcc_scatter {
    const tcc_op_call *call;
    int64_t reduction;
    tcc_dtype dtype; /* the target's element type */
    char *target;
    const char *from; /* the updates */
    /* A row is the `width` elements of the target that one update changes.  All rows that begin in
     * the same 64 elements belong to one group, which a hash chooses. */
    int64_t width;
    int32_t groups, threads; /* numbers that pay off */
    /* copied: for maxima and minima each group takes a share of the updates instead of rows, and
     * all groups but the first have their own copy of the target.  It is set where copies are cheap
     * beside the updates. */
    bool copied, alone; /* alone: one thread combines rows faster than threads find their own
                           rows */
    char *copies;
} tcc_scatter;

/* Places of rows, in elements of the target and of the updates. */
typedef struct tcc_row_batch {
    int64_t count, target[BATCH], update[BATCH];
} tcc_row_batch;

/* Combines the rows of a batch in order, and empties the batch.  For maxima and minima the first
 * NaN wins, and of equal values the first. */
void tcc_combine(const tcc_scatter *s, tcc_row_batch *rows);

/* Read and write an element of a float type.  A double is rounded once. */
double tcc_load_float(tcc_dtype dtype, const void *at);
void tcc_store_float(tcc_dtype dtype, void *at, double value);

#endif
