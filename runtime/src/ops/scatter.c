/* scatter_elements: inputs (x, indices i32 or i64, updates), outputs (y), ints (axis, reduction)
 * scatter_nd:       inputs (x, indices i32 or i64, updates[, rows i32 or i64]), outputs (y),
 *                   ints (reduction)
 * max_unpool:       inputs (x, positions i64), outputs (y)
 *
 * y is x with updates combined in, in the order of the updates; reduction is 0 none, 1 add, 2 mul,
 * 3 max, 4 min.  With `rows` the update of a tuple of indices is the row of `updates` that its
 * element of `rows` names.  Sums and products of f16 and bf16 are kept in f32 and rounded once, after
 * the last update.  Negative indices count from the end; an index outside its axis ends the run.  y
 * may be x.  max_unpool writes x to zeros; positions outside y are dropped.
 *
 * Threads share the results: each reads all indices and applies the updates of its own rows or
 * columns, in their order.  Maxima and minima do not depend on the order: threads share the updates
 * where copies of the results cost little beside them.  Results therefore do not depend on the number
 * of threads. */
#include "combine.h"

#include <string.h>

enum {
    PIECE = 1 << 16,   /* bytes that a thread copies at a time */
    COLUMNS = 64,      /* elements along the last axis that a thread updates at a time */
    LINE_BITS = 6,     /* 64 neighbouring elements belong to one thread */
    NARROW = 4,        /* a row of at most this many elements is combined faster than it is assigned
                          to a thread */
    SHARED = 1 << 14,  /* elements of updates that are worth another thread */
    GROUPED = 1 << 21, /* elements of updates that are worth the division into groups, over all
                          threads */
    COPIED = 4,        /* elements of updates for each element of a copy of x, at least */
    LOOKS = 16,        /* batches between two checks whether the run ends */
};

static bool is_half(tcc_dtype dtype) {
    return dtype.bits == 16 && (dtype.code == 2 || dtype.code == 4);
}

/* Limits units `first` to `behind - 1` of the updates to the share of a group that has a copy of
 * the target, and makes the copy the target. */
static SMALL void take_share(tcc_scatter *s, int64_t group, int64_t *first, int64_t *behind) {
    const tcc_op_tensor *x = &s->call->inputs[0];
    size_t bytes = (size_t)x->count * (x->dtype.bits / 8u);
    int64_t share = (*behind - *first) / s->groups;
    *first += share * group;
    if (group + 1 < s->groups) *behind = *first + share;
    if (!group) return;
    s->target = s->copies + (size_t)(group - 1) * bytes;
    memcpy(s->target, x->data, bytes);
}

/* Keeps only the rows of group `group` among the batch's rows from number `first` on.  It has no
 * branch that depends on data. */
static APART void keep_group(const tcc_scatter *s, tcc_row_batch *rows, int64_t first, int64_t group) {
    int64_t count = first;
    for (int64_t n = first; n < rows->count; n++) {
        uint64_t hash = (uint32_t)((uint64_t)(rows->target[n] >> LINE_BITS) * 2654435769u);
        rows->target[count] = rows->target[n];
        rows->update[count] = rows->update[n];
        count += (int64_t)(hash * (uint32_t)s->groups >> 32) == group;
    }
    rows->count = count;
}

/* ---- the ops ---------------------------------------------------------------------------------------- */
static SMALL tcc_status check_operands(const tcc_op_call *call, int64_t reduction) {
    const tcc_op_tensor *x = &call->inputs[0], *indices = &call->inputs[1];
    const tcc_op_tensor *updates = &call->inputs[2], *y = &call->outputs[0];
    TCC_RETURN_IF_ERROR(tcc_order_check(x->dtype, "scatter"));
    bool types = memcmp(&x->dtype, &updates->dtype, sizeof x->dtype) == 0 &&
                 memcmp(&x->dtype, &y->dtype, sizeof x->dtype) == 0 && indices->dtype.code == 0 &&
                 (indices->dtype.bits == 32 || indices->dtype.bits == 64);
    if (types && y->count == x->count && reduction >= 0 && reduction < REDUCTIONS) return TCC_OK;
    return tcc_fail(TCC_INTERNAL, "scatter: operands do not fit");
}

/* Writes first, first + step, ... to `count` places. */
static APART void begin_places(int64_t *restrict places, int64_t count, int64_t first, int64_t step) {
    for (int64_t n = 0; n < count; n++) places[n] = first + n * step;
}

#define ADD_PLACES(TYPE)                                                                           \
    do {                                                                                           \
        const TYPE *index = (const TYPE *)indices->data + first;                                   \
        for (int64_t n = 0; n < count; n++, index += period)                                       \
            places[n] += (*index < 0 ? *index + size : *index) * stride;                           \
    } while (0)

/* Adds, to `count` places, the indices number first, first + period, ... times `stride`.  The axis
 * has `size` indices. */
static APART void add_places(const tcc_op_tensor *indices, int64_t first, int64_t period, int64_t count,
                             int64_t size, int64_t stride, int64_t *restrict places) {
    if (indices->dtype.bits == 64)
        ADD_PLACES(int64_t);
    else
        ADD_PLACES(int32_t);
}

/* Fails unless every `period`-th index from number `first` on lies in an axis of `size`. */
static SMALL tcc_status check_indices(const tcc_op_call *call, const tcc_op_tensor *indices, int64_t first,
                                int64_t period, int64_t size) {
    int64_t ints[] = {period, first, -size, size - 1}, range[2];
    tcc_op_call search = *call;
    search.inputs = indices;
    search.ints = ints;
    search.results = range;
    search.n_inputs = 1;
    search.n_outputs = 0;
    search.n_ints = 4;
    search.n_results = 2;
    TCC_RETURN_IF_ERROR(tcc_op_index_range(&search));
    if (range[0] >= -size && range[1] < size) return TCC_OK;
    return tcc_fail(TCC_INVALID_ARGUMENT, "scatter: index %lld of an axis of %lld",
                    (long long)(range[0] < -size ? range[0] : range[1]), (long long)size);
}

typedef struct copying {
    char *to;
    const char *from;
    size_t size;
} copying;

static void copy_pieces(void *context, int64_t begin, int64_t end, void *room) {
    const copying *c = context;
    size_t first = (size_t)begin * PIECE, behind = (size_t)end * PIECE;
    (void)room;
    if (behind > c->size) behind = c->size;
    memcpy(c->to + first, c->from + first, behind - first);
}

/* Makes the target and copies x to it.  A row has `width` elements; `updates` rows are combined
 * in. */
static SMALL tcc_status begin(const tcc_op_call *call, int64_t reduction, int64_t width, int64_t updates,
                              tcc_scatter *out_scatter) {
    const tcc_op_tensor *x = &call->inputs[0], *y = &call->outputs[0];
    int32_t threads = call->crew && updates > SHARED / (width + 8) ? call->threads : 1;
    *out_scatter = (tcc_scatter){.call = call, .reduction = reduction, .dtype = x->dtype, .target = y->data,
                                 .from = call->inputs[2].data, .width = width, .groups = 1,
                                 .threads = threads};
    out_scatter->copied = reduction >= MAX && threads > 1 && x->data != y->data &&
                          updates * width / threads / COPIED >= x->count;
    if (width < NARROW || updates * width < GROUPED / threads) out_scatter->alone = true;
    if (!is_half(x->dtype) || (reduction != ADD && reduction != MUL)) {
        copying all = {y->data, x->data, (size_t)x->count * (x->dtype.bits / 8u)};
        if (all.to == all.from) return TCC_OK;
        return tcc_op_parallel(call, copy_pieces, &all, (int64_t)((all.size + PIECE - 1) / PIECE), 0);
    }
    if (x->count > INT64_MAX / 4) return tcc_fail(TCC_OUT_OF_MEMORY, "scatter: too many elements");
    void *memory = NULL;
    TCC_RETURN_IF_ERROR(tcc_pool_take(call->pool, (size_t)x->count * sizeof(float), &memory));
    float *wide = memory;
    for (int64_t i = 0; i < x->count; i++)
        wide[i] = (float)tcc_load_float(x->dtype, (const char *)x->data + 2 * i);
    out_scatter->dtype = (tcc_dtype){2, 32, 1};
    out_scatter->target = memory;
    return TCC_OK;
}

/* Combines pieces of the copies into the target. */
static SMALL void merge_pieces(void *context, int64_t begin, int64_t end, void *room) {
    tcc_scatter s = *(const tcc_scatter *)context;
    int64_t count = s.call->outputs[0].count, first = begin * (PIECE / 8), behind = end * (PIECE / 8);
    (void)room;
    s.from = s.copies;
    s.width = (behind < count ? behind : count) - first;
    for (int32_t copy = 1; copy < s.groups; copy++) {
        tcc_row_batch rows;
        rows.count = 1;
        rows.target[0] = first;
        rows.update[0] = first + (copy - 1) * count;
        tcc_combine(&s, &rows);
    }
}

/* Runs `part`, which is one unit, for each group, with copies of the target. */
static SMALL tcc_status finish_copies(tcc_scatter *s, tcc_op_part part) {
    const tcc_op_call *call = s->call;
    int64_t count = call->outputs[0].count;
    size_t bytes = (size_t)count * (call->outputs[0].dtype.bits / 8u);
    void *memory = NULL;
    TCC_RETURN_IF_ERROR(tcc_pool_take(call->pool, bytes * (size_t)(s->groups - 1), &memory));
    s->copies = memory;
    tcc_status status = tcc_op_parallel(call, part, s, s->groups, 0);
    if (!status)
        status = tcc_op_parallel(call, merge_pieces, s, (count + PIECE / 8 - 1) / (PIECE / 8), 0);
    tcc_pool_give(call->pool, memory);
    return status;
}

/* Runs `part` on `units` parts of the work for each group of rows.  Rounds the target to y, if it
 * is not y itself. */
static SMALL tcc_status finish(tcc_scatter *s, tcc_op_part part, int64_t units) {
    const tcc_op_call *call = s->call;
    const tcc_op_tensor *y = &call->outputs[0];
    bool copies = units == 1 && s->copied;
    if (units && units < s->threads && (copies || !s->alone))
        s->groups = (int32_t)((s->threads + units - 1) / units);
    if (copies) return finish_copies(s, part);
    tcc_status status = tcc_op_parallel(call, part, s, units * s->groups, 0);
    if (s->target == y->data) return status;
    for (int64_t i = 0; i < y->count; i++)
        tcc_store_float(y->dtype, (char *)y->data + 2 * i, ((const float *)(void *)s->target)[i]);
    tcc_pool_give(call->pool, s->target);
    return status;
}

/* scatter_elements in units with disjoint results: indices before the axis, and columns of the last
 * axis, unless the axis is the last. */
typedef struct elements {
    tcc_scatter s;
    int32_t axis, last;
    int64_t rows, blocks; /* a unit's rows of indices along the last axis, and its blocks of
                             columns */
} elements;

/* Combines the updates of columns `first` to `behind - 1` of row `row` of the indices. */
static APART void scatter_row(const elements *e, tcc_row_batch *batch, int64_t group, int64_t row, int64_t first,
                        int64_t behind) {
    const tcc_op_tensor *x = &e->s.call->inputs[0], *indices = &e->s.call->inputs[1];
    int64_t base = 0, along = 1, stride = 1, remainder = row, update = row * indices->dims[e->last];
    int64_t step = e->axis != e->last, size = x->dims[e->axis];
    for (int32_t dim = e->last; dim >= 0; stride *= x->dims[dim--]) {
        if (dim == e->axis) along = stride;
        if (dim == e->last) continue;
        int64_t more = dim ? remainder / indices->dims[dim] : 0;
        if (dim != e->axis) base += (remainder - more * indices->dims[dim]) * stride;
        remainder = more;
    }
    for (int64_t column = first; column < behind && !tcc_ends_at(e->s.call->ending, column / BATCH, LOOKS);) {
        if (batch->count == BATCH) tcc_combine(&e->s, batch);
        int64_t before = batch->count, count = BATCH - before;
        if (count > behind - column) count = behind - column;
        int64_t *target = batch->target + before;
        begin_places(target, count, base + column * step, step);
        begin_places(batch->update + before, count, update + column, 1);
        add_places(indices, update + column, 1, count, size, along, target);
        column += count;
        batch->count += count;
        if (e->s.groups > 1 && !e->s.copies) keep_group(&e->s, batch, before, group);
    }
}

static SMALL void scatter_units(void *context, int64_t begin, int64_t end, void *room) {
    elements e = *(const elements *)context;
    char *target = e.s.target;
    int64_t width = e.s.call->inputs[1].dims[e.last];
    (void)room;
    for (int64_t number = begin; number < end; number++) {
        int64_t unit = number / e.s.groups, group = number % e.s.groups;
        int64_t first = e.blocks == 1 ? 0 : unit % e.blocks * COLUMNS;
        int64_t behind = e.blocks == 1 || first + COLUMNS > width ? width : first + COLUMNS;
        int64_t row = unit / e.blocks * e.rows, stop = row + e.rows;
        tcc_row_batch batch;
        batch.count = 0;
        e.s.target = target;
        if (e.s.copies) take_share(&e.s, group, e.rows > 1 ? &row : &first, e.rows > 1 ? &stop : &behind);
        for (; row < stop && !tcc_ends_at(e.s.call->ending, row, LOOKS); row++)
            scatter_row(&e, &batch, group, row, first, behind);
        tcc_combine(&e.s, &batch);
    }
}

SMALL tcc_status tcc_op_scatter_elements(tcc_op_call *call) {
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 3, 1, 2, 0, "scatter"));
    TCC_RETURN_IF_ERROR(check_operands(call, call->ints[1]));
    const tcc_op_tensor *x = &call->inputs[0], *indices = &call->inputs[1];
    const tcc_op_tensor *updates = &call->inputs[2];
    int64_t axis = call->ints[0];
    if (axis < 0 || axis >= x->ndim || indices->ndim != x->ndim || updates->count != indices->count)
        return tcc_fail(TCC_INTERNAL, "scatter: operands do not fit");
    for (int32_t dim = 0; dim < x->ndim; dim++)
        if (dim != axis && indices->dims[dim] > x->dims[dim])
            return tcc_fail(TCC_INVALID_ARGUMENT, "scatter: the indices have %lld along axis %d, x %lld",
                            (long long)indices->dims[dim], dim, (long long)x->dims[dim]);
    TCC_RETURN_IF_ERROR(check_indices(call, indices, 0, 1, x->dims[axis]));
    elements e = {.axis = (int32_t)axis, .last = x->ndim - 1, .rows = 1, .blocks = 1};
    while (e.last > axis && x->dims[e.last] == 1) e.last--;
    TCC_RETURN_IF_ERROR(begin(call, call->ints[1], 1, indices->count, &e.s));
    int64_t width = indices->dims[e.last], units = indices->count ? indices->count / width : 0;
    for (int32_t dim = e.axis; dim < e.last; dim++) e.rows *= indices->dims[dim];
    if (e.rows > 1) e.blocks = (width + COLUMNS - 1) / COLUMNS;
    if (units) units = units / e.rows * e.blocks;
    return finish(&e.s, scatter_units, units);
}

/* scatter_nd by parts of its slices and by groups of rows. */
typedef struct slices {
    tcc_scatter s;
    int64_t depth, tuples, slice, part;
} slices;

static SMALL void scatter_parts(void *context, int64_t begin, int64_t end, void *room) {
    const slices *all = context;
    const tcc_op_tensor *x = &all->s.call->inputs[0], *indices = &all->s.call->inputs[1];
    const tcc_op_tensor *rows = all->s.call->n_inputs == 4 ? &all->s.call->inputs[3] : NULL;
    tcc_row_batch batch;
    (void)room;
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t first = unit / all->s.groups * all->part, slice = all->slice;
        tcc_scatter s = all->s;
        s.width = slice - first < all->part ? slice - first : all->part;
        int64_t done = 0, behind = all->tuples, count;
        if (s.copies) take_share(&s, unit, &done, &behind);
        for (; done < behind && !tcc_ends_at(s.call->ending, done / BATCH, LOOKS); done += count) {
            int64_t stride = slice;
            count = behind - done < BATCH ? behind - done : BATCH;
            begin_places(batch.target, count, first, 0);
            for (int64_t dim = all->depth - 1; dim >= 0; stride *= x->dims[dim--])
                add_places(indices, done * all->depth + dim, all->depth, count, x->dims[dim], stride,
                           batch.target);
            begin_places(batch.update, count, first + (rows ? 0 : done * slice), rows ? 0 : slice);
            if (rows) add_places(rows, done, 1, count, s.call->inputs[2].dims[0], slice, batch.update);
            batch.count = count;
            if (s.groups > 1 && !s.copies) keep_group(&s, &batch, 0, unit % s.groups);
            tcc_combine(&s, &batch);
        }
    }
}

SMALL tcc_status tcc_op_scatter_nd(tcc_op_call *call) {
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, call->n_inputs == 4 ? 4 : 3, 1, 1, 0, "scatter"));
    TCC_RETURN_IF_ERROR(check_operands(call, call->ints[0]));
    const tcc_op_tensor *x = &call->inputs[0], *indices = &call->inputs[1];
    const tcc_op_tensor *updates = &call->inputs[2];
    int64_t depth = indices->ndim ? indices->dims[indices->ndim - 1] : -1;
    if (depth < 0 || depth > x->ndim) return tcc_fail(TCC_INTERNAL, "scatter: operands do not fit");
    slices n = {.depth = depth, .tuples = 1, .slice = 1};
    for (int64_t dim = depth; dim < x->ndim; dim++) n.slice *= x->dims[dim];
    for (int32_t dim = 0; dim + 1 < indices->ndim; dim++) n.tuples *= indices->dims[dim];
    int64_t expected = n.tuples;
    if (call->n_inputs == 4) {
        const tcc_op_tensor *rows = &call->inputs[3];
        if (rows->count != n.tuples || !updates->ndim)
            return tcc_fail(TCC_INTERNAL, "scatter: operands do not fit");
        TCC_RETURN_IF_ERROR(check_indices(call, rows, 0, 1, expected = updates->dims[0]));
    }
    if (updates->count != expected * n.slice)
        return tcc_fail(TCC_INVALID_ARGUMENT, "scatter: %lld updates for %lld indices of %lld each",
                        (long long)updates->count, (long long)n.tuples, (long long)n.slice);
    for (int64_t dim = 0; dim < depth; dim++)
        TCC_RETURN_IF_ERROR(check_indices(call, indices, dim, depth, x->dims[dim]));
    TCC_RETURN_IF_ERROR(begin(call, call->ints[0], n.slice, n.tuples, &n.s));
    /* parts are whole columns, one for each thread */
    int64_t parts = n.s.copied ? 1 : n.s.threads;
    if (parts > n.slice / COLUMNS) parts = n.slice / COLUMNS;
    n.part = parts < 2 ? n.slice : ((n.slice - 1) / parts / COLUMNS + 1) * COLUMNS;
    int64_t units = n.tuples && n.slice ? (n.slice + n.part - 1) / n.part : 0;
    return finish(&n.s, scatter_parts, units);
}

SMALL tcc_status tcc_op_max_unpool(tcc_op_call *call) {
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 2, 1, 0, 0, "max unpool"));
    const tcc_op_tensor *x = &call->inputs[0], *positions = &call->inputs[1];
    const tcc_op_tensor *y = &call->outputs[0];
    if (positions->count != x->count || positions->dtype.bits != 64 || x->dtype.bits % 8 ||
        y->dtype.bits != x->dtype.bits)
        return tcc_fail(TCC_INTERNAL, "max unpool: operands do not fit");
    size_t element = x->dtype.bits / 8u;
    const int64_t *at = positions->data;
    memset(y->data, 0, (size_t)y->count * element);
    for (int64_t i = 0, look; (look = tcc_next_look(call->ending, i, x->count)) > i;)
        for (; i < look; i++)
            if (at[i] >= 0 && at[i] < y->count)
                memcpy((char *)y->data + (size_t)at[i] * element,
                       (const char *)x->data + (size_t)i * element, element);
    return TCC_OK;
}
