/* Combines rows of updates into a target, as scatters do. */
#ifndef TCC_OPS_COMBINE_H
#define TCC_OPS_COMBINE_H

#include "order.h"

/* Of functions that take no time or serve rare types: their code should be short. */
#define SMALL __attribute__((cold, noinline))
/* Of loops over updates.  Compilers would take them to be rare, as their callers are. */
#define APART __attribute__((hot, noinline))

enum { NONE, ADD, MUL, MAX, MIN, REDUCTIONS };
enum { BATCH = 128 }; /* updates whose places are found before they are applied */

/* Where updates are combined: y itself, or an f32 image of it. */
typedef struct tcc_scatter {
    const tcc_op_call *call;
    int64_t reduction;
    tcc_dtype dtype; /* of the elements of target */
    char *target;
    const char *from; /* the updates */
    /* A row is `width` elements of the target that one update changes.  The rows that begin within 64
     * elements belong to the group that a hash gives them. */
    int64_t width;
    int32_t groups, threads; /* that are worth their way */
    /* Of maxima and minima each group has a share of the updates instead, and all but the first a copy of
     * the target of its own, where these cost little beside the updates. */
    bool copied, alone; /* alone: rows are combined faster than threads tell them apart */
    char *copies;
} tcc_scatter;

/* Places of rows, in elements of the target and of the updates. */
typedef struct tcc_row_batch {
    int64_t count, target[BATCH], update[BATCH];
} tcc_row_batch;

/* Combines the rows of a batch, in their order, and empties it.  Of maxima and minima the first NaN wins,
 * and of equal values the first. */
void tcc_combine(const tcc_scatter *s, tcc_row_batch *rows);

/* An element of a float type; a double is rounded once. */
double tcc_load_float(tcc_dtype dtype, const void *at);
void tcc_store_float(tcc_dtype dtype, void *at, double value);

#endif
