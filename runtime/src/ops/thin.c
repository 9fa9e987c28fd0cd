/* thin: inputs (x), outputs (y), ints (every[0], every[1], ...).
 *
 * y[i, j, ...] = x[i * every[0], j * every[1], ...], as far as x goes.  y may begin at x's address:
 * an element never moves to a later place, and its new place held an element that has already
 * moved. */
#include <string.h>

#include "order.h"

/* Bytes of a contiguous run that are worth another thread. */
enum { COLUMN = 512 };
enum { ROWS = 1 << 10 }; /* rows between two checks whether the run ends */

typedef struct thinner {
    const char *from;
    char *to;
    const int64_t *x_dims, *y_dims, *every;
    int32_t last; /* the innermost dimension that is thinned */
    int64_t run;  /* contiguous bytes that move together: the dimensions inside `last` */
    tcc_ending *ending;
} thinner;

/* Moves bytes begin to end - 1 of every contiguous run from the sub-array at `from` to the one at
 * `to`.  Returns the end of the latter. */
static char *compacted_dim(const thinner *t, const char *from, char *to, int32_t dim, int64_t begin,
                           int64_t end) {
    if (dim > t->last) {
        if (to != from) memcpy(to + begin, from + begin, (size_t)(end - begin));
        return to + t->run;
    }
    /* the stride is unused then, and may be any number */
    int64_t step = t->y_dims[dim] > 1 ? t->run * t->every[dim] : 0;
    for (int32_t inner = dim + 1; inner <= t->last; inner++) step *= t->x_dims[inner];
    for (int64_t i = 0; i < t->y_dims[dim] && !tcc_ends_at(t->ending, i, dim < t->last ? 8 : ROWS); i++)
        to = compacted_dim(t, from + i * step, to, dim + 1, begin, end);
    return to;
}

/* Moves columns of runs.  Columns are independent, so threads need not wait for each other. */
static void thin_columns(void *context, int64_t begin, int64_t end, void *room) {
    const thinner *t = context;
    (void)room;
    int64_t stop = end * COLUMN;
    compacted_dim(t, t->from, t->to, 0, begin * COLUMN, stop < t->run ? stop : t->run);
}

tcc_status tcc_op_thin(tcc_op_call *call) {
    int32_t ndim = call->n_outputs == 1 ? call->outputs[0].ndim : 0;
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 1, 1, ndim, 0, "thin"));
    const tcc_op_tensor *x = &call->inputs[0], *y = &call->outputs[0];
    if (x->ndim != ndim || x->dtype.bits != y->dtype.bits || x->dtype.bits % 8)
        return tcc_fail(TCC_INTERNAL, "thin: arrays that do not fit each other");
    thinner t = {x->data, y->data, x->dims, y->dims, call->ints, -1, x->dtype.bits / 8,
                 call->ending};
    for (int32_t dim = 0; dim < ndim; dim++) {
        int64_t every = call->ints[dim];
        if (every < 1 || y->dims[dim] != x->dims[dim] / every + (x->dims[dim] % every != 0))
            return tcc_fail(TCC_INTERNAL, "thin: arrays that do not fit each other");
        if (every > 1) t.last = dim;
    }
    for (int32_t dim = t.last + 1; dim < ndim; dim++) t.run *= x->dims[dim];
    if (y->count == 0) return TCC_OK;
    return tcc_op_parallel(call, thin_columns, &t, (t.run + COLUMN - 1) / COLUMN, 0);
}
