/* fill_halo: outputs (x), ints (value, before[0], after[0], before[1], after[1], ...).
 *
 * Writes `value` (the bits of one element) to the `before` first and `after` last places along each
 * dimension of x.  The places between stay unchanged. */
#include <string.h>

#include "order.h"

/* AHEAD: how many rows ahead cache lines are prefetched.  MOST_ASKED: bytes prefetched of each row
 * at most. */
enum { AHEAD = 8, MOST_ASKED = 512 };

typedef struct filler {
    const tcc_op_tensor *x;
    const int64_t *widths;
    uint64_t value;
    size_t element;
    int32_t last; /* the innermost dimension that has a halo */
    tcc_ending *ending;
} filler;

static void fill_run(const filler *f, char *to, int64_t count) {
    size_t bytes = f->element * (size_t)count;
    if (!f->value || !bytes) {
        memset(to, 0, bytes);
        return;
    }
    memcpy(to, &f->value, f->element);
    for (size_t done = f->element; done < bytes; done *= 2)
        memcpy(to + done, to, bytes - done < done ? bytes - done : done);
}

/* Prefetches the cache lines of `count` elements that will be changed some steps later.  They lie
 * pages apart, and mostly in another core's cache. */
static void ask(const filler *f, const char *to, int64_t count) {
    int64_t bytes = (int64_t)f->element * count;
    for (int64_t at = 0; at < bytes && at < MOST_ASKED; at += 64) __builtin_prefetch(to + at, 1);
}

/* Fills the places beside `rows` rows of `step` bytes, the first at `to`: `before` and `after`
 * elements of each row.  The elements after a row and before the next row are contiguous. */
static void fill_beside(const filler *f, char *to, int64_t rows, size_t step, int64_t before,
                        int64_t after) {
    if (rows <= 0) return;
    size_t back = (size_t)after * f->element;
    fill_run(f, to, before);
    for (int64_t i = 1; i < rows; i++) {
        char *end = to + (size_t)i * step - back;
        if (i + AHEAD < rows) ask(f, end + AHEAD * step, after + before);
        fill_run(f, end, after + before);
    }
    fill_run(f, to + (size_t)rows * step - back, after);
}

/* Fills the halo of the sub-array at `to`, which spans dimensions `dim` and on and has `count`
 * elements. */
static void fill_dim(const filler *f, char *to, int32_t dim, int64_t count) {
    if (dim > f->last || count == 0) return;
    int64_t size = f->x->dims[dim], inner = count / size;
    int64_t before = f->widths[2 * dim], after = f->widths[2 * dim + 1];
    size_t step = (size_t)inner * f->element;
    fill_run(f, to, before * inner);
    fill_run(f, to + (size_t)(size - after) * step, after * inner);
    if (dim + 1 == f->last) {
        int64_t wide = inner / f->x->dims[f->last];
        fill_beside(f, to + (size_t)before * step, size - after - before, step,
                    f->widths[2 * f->last] * wide, f->widths[2 * f->last + 1] * wide);
        return;
    }
    for (int64_t i = before; i < size - after && !tcc_run_ends(f->ending); i++) fill_dim(f, to + (size_t)i * step, dim + 1, inner);
}

tcc_status tcc_op_fill_halo(tcc_op_call *call) {
    int32_t ndim = call->n_outputs == 1 ? call->outputs[0].ndim : 0;
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 0, 1, 1 + 2 * ndim, 0, "fill_halo"));
    const tcc_op_tensor *x = &call->outputs[0];
    if (x->dtype.bits % 8) return tcc_fail(TCC_INTERNAL, "fill_halo: elements of part of a byte");
    for (int32_t dim = 0; dim < ndim; dim++) {
        int64_t before = call->ints[1 + 2 * dim], after = call->ints[2 + 2 * dim];
        if (before < 0 || after < 0 || before > x->dims[dim] || after > x->dims[dim] - before)
            return tcc_fail(TCC_INTERNAL, "fill_halo: wider than the array");
    }
    filler f = {x, call->ints + 1, (uint64_t)call->ints[0], x->dtype.bits / 8u, -1, call->ending};
    for (int32_t dim = 0; dim < ndim; dim++)
        if (f.widths[2 * dim] || f.widths[2 * dim + 1]) f.last = dim;
    fill_dim(&f, x->data, 0, x->count);
    return TCC_OK;
}
