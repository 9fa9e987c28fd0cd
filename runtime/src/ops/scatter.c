/* scatter_elements: inputs (x, indices i32 or i64, updates), outputs (y), ints (axis, reduction)
 * scatter_nd:       inputs (x, indices i32 or i64, updates), outputs (y), ints (reduction)
 * max_unpool:       inputs (x, positions i64), outputs (y)
 *
 * y is x with updates combined in, in the order of the updates; reduction is 0 none, 1 add, 2 mul,
 * 3 max, 4 min.  Sums and products of f16 and bf16 are kept in f32 and rounded once, after the last
 * update.  Negative indices count from the end; one outside the axis ends the run.  y may be
 * x.  max_unpool writes x to zeros; positions outside y are dropped. */
#include <math.h>
#include <string.h>

#include "order.h"

enum { NONE, ADD, MUL, MAX, MIN, REDUCTIONS };

/* ---- half precision: no compiler support is taken for granted --------------------------------- */

static double from_half(uint16_t bits) {
    int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    double value = exponent == 31  ? (mantissa ? (double)NAN : (double)INFINITY)
                   : exponent == 0 ? ldexp(mantissa, -24)
                                   : ldexp(mantissa + 1024, exponent - 25);
    return bits >> 15 ? -value : value;
}

/* Rounds to the nearest of numbers with `digits` significant bits and a least exponent, ties to
 * even; the result is exact in double. */
static double round_to(double value, int digits, int least) {
    int exponent = 0;
    if (value == 0 || !isfinite(value)) return value;
    frexp(value, &exponent);
    int step = exponent - digits > least ? exponent - digits : least;
    return ldexp(rint(ldexp(value, -step)), step);
}

static uint16_t to_half(double value) {
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    if (isnan(value)) return 0x7E00;
    value = round_to(fabs(value), 11, -24);
    if (value >= 65536) return sign | 0x7C00;
    if (value < ldexp(1, -14)) return (uint16_t)(sign | (uint16_t)ldexp(value, 24));
    int exponent = 0;
    double mantissa = frexp(value, &exponent); /* 0.5 <= mantissa < 1 */
    return (uint16_t)(sign | (exponent + 14) << 10 | ((int)ldexp(mantissa, 11) & 1023));
}

static double from_bfloat(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}

static uint16_t to_bfloat(double value) {
    if (isnan(value)) return 0x7FC0;
    float narrow = (float)round_to(value, 8, -133);
    uint32_t wide;
    memcpy(&wide, &narrow, 4);
    return (uint16_t)(wide >> 16);
}

/* ---- one element ---------------------------------------------------------------------------------- */

static double combine_floats(int64_t reduction, double a, double b) {
    switch (reduction) {
    case ADD: return a + b;
    case MUL: return a * b;
    case MAX: return isnan(a) || a > b ? a : b; /* NaN wins, as in max and min reductions */
    default: return isnan(a) || a < b ? a : b;
    }
}

static double load_float(tcc_dtype dtype, const void *at) {
    float single;
    double value;
    uint16_t half;
    if (dtype.bits == 16) {
        memcpy(&half, at, 2);
        return dtype.code == 4 ? from_bfloat(half) : from_half(half);
    }
    if (dtype.bits == 64) return memcpy(&value, at, 8), value;
    return memcpy(&single, at, 4), single;
}

/* Sums and products of two floats are rounded once: a double holds them to more than twice the bits
 * of every narrower type. */
static void store_float(tcc_dtype dtype, void *at, double value) {
    float single = (float)value;
    uint16_t half = 0;
    if (dtype.bits == 16) {
        half = dtype.code == 4 ? to_bfloat(value) : to_half(value);
        memcpy(at, &half, 2);
    } else if (dtype.bits == 64) {
        memcpy(at, &value, 8);
    } else {
        memcpy(at, &single, 4);
    }
}

/* Integers as sign- or zero-extended words; arithmetic wraps, as the type's own does. */
static uint64_t load_word(tcc_dtype dtype, const void *at) {
    uint64_t bits = 0;
    memcpy(&bits, at, dtype.bits / 8u);
    uint64_t sign = UINT64_C(1) << (dtype.bits - 1);
    return dtype.code == 0 ? (bits ^ sign) - sign : bits;
}

static uint64_t combine_words(tcc_dtype dtype, int64_t reduction, uint64_t a, uint64_t b) {
    bool less = dtype.code == 0 ? (int64_t)a < (int64_t)b : a < b;
    switch (reduction) {
    case ADD: return dtype.code == 6 ? (a | b) : a + b;
    case MUL: return a * b;
    case MAX: return less ? b : a;
    default: return less ? a : b;
    }
}

/* Where updates are combined: y itself, or an f32 image of it. */
typedef struct scatter {
    const tcc_op_call *call;
    int64_t reduction;
    tcc_dtype dtype; /* of the elements of target */
    char *target;
} scatter;

static bool adds_floats(const scatter *s) {
    tcc_dtype dtype = s->call->inputs[2].dtype;
    return s->reduction == ADD && dtype.code == 2 && dtype.bits == 32;
}

/* Combines `count` updates from number `update` on into the elements from `at` on. */
static void combine(const scatter *s, int64_t at, int64_t update, int64_t count) {
    tcc_dtype dtype = s->call->inputs[2].dtype;
    size_t element = dtype.bits / 8u, step = s->dtype.bits / 8u;
    char *target = s->target + (size_t)at * step;
    const char *from = (const char *)s->call->inputs[2].data + (size_t)update * element;
    if (s->reduction == NONE) {
        memcpy(target, from, (size_t)count * element);
        return;
    }
    bool floating = dtype.code == 2 || dtype.code == 4;
    if (adds_floats(s)) {
        float *sum = (float *)(void *)target;
        const float *term = (const float *)(const void *)from;
        for (int64_t i = 0; i < count; i++) sum[i] += term[i];
        return;
    }
    for (int64_t i = 0; i < count; i++, target += step, from += element) {
        if (floating) {
            double a = load_float(s->dtype, target), b = load_float(dtype, from);
            store_float(s->dtype, target, combine_floats(s->reduction, a, b));
        } else {
            uint64_t a = load_word(dtype, target), b = load_word(dtype, from);
            uint64_t value = combine_words(dtype, s->reduction, a, b);
            memcpy(target, &value, element);
        }
    }
}

/* ---- the ops ---------------------------------------------------------------------------------------- */

static tcc_status check_operands(const tcc_op_call *call, int64_t reduction, const char *op) {
    const tcc_op_tensor *x = &call->inputs[0], *indices = &call->inputs[1];
    const tcc_op_tensor *updates = &call->inputs[2], *y = &call->outputs[0];
    TCC_RETURN_IF_ERROR(tcc_order_check(x->dtype, op));
    bool types = memcmp(&x->dtype, &updates->dtype, sizeof x->dtype) == 0 &&
                 memcmp(&x->dtype, &y->dtype, sizeof x->dtype) == 0 && indices->dtype.code == 0 &&
                 (indices->dtype.bits == 32 || indices->dtype.bits == 64);
    if (types && y->count == x->count && reduction >= 0 && reduction < REDUCTIONS) return TCC_OK;
    return tcc_fail(TCC_INTERNAL, "%s: operands do not fit", op);
}

static int64_t load_index(const tcc_op_tensor *indices, int64_t at) {
    if (indices->dtype.bits == 64) return ((const int64_t *)indices->data)[at];
    return ((const int32_t *)indices->data)[at];
}

/* Index number `at`, counted from the front of an axis of `size`. */
static int64_t read_index(const tcc_op_tensor *indices, int64_t at, int64_t size) {
    int64_t index = load_index(indices, at);
    return index < 0 ? index + size : index;
}

/* Fails unless every `period`-th index from number `first` on lies within an axis of `size`. */
static tcc_status check_indices(const tcc_op_tensor *indices, int64_t first, int64_t period,
                                int64_t size) {
    for (int64_t at = first; at < indices->count; at += period) {
        int64_t index = load_index(indices, at);
        if (TCC_UNLIKELY(index < -size || index >= size))
            return tcc_fail(TCC_INVALID_ARGUMENT, "scatter: index %lld of an axis of %lld",
                            (long long)index, (long long)size);
    }
    return TCC_OK;
}

enum {
    PIECE = 1 << 16, /* bytes that a thread copies at a time */
    COLUMNS = 64,    /* elements along the last axis that a thread updates at a time */
};

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

/* Makes the target and copies x to it. */
static tcc_status begin(const tcc_op_call *call, int64_t reduction, scatter *out_scatter) {
    const tcc_op_tensor *x = &call->inputs[0], *y = &call->outputs[0];
    bool half = (x->dtype.code == 2 || x->dtype.code == 4) && x->dtype.bits == 16;
    *out_scatter = (scatter){call, reduction, x->dtype, y->data};
    if (!half || (reduction != ADD && reduction != MUL)) {
        copying all = {y->data, x->data, (size_t)x->count * (x->dtype.bits / 8u)};
        if (all.to == all.from) return TCC_OK;
        return tcc_op_parallel(call, copy_pieces, &all, (int64_t)((all.size + PIECE - 1) / PIECE), 0);
    }
    if (x->count > INT64_MAX / 4) return tcc_fail(TCC_OUT_OF_MEMORY, "scatter: too many elements");
    void *memory = NULL;
    TCC_RETURN_IF_ERROR(tcc_pool_take(call->pool, (size_t)x->count * sizeof(float), &memory));
    float *wide = memory;
    for (int64_t i = 0; i < x->count; i++)
        wide[i] = (float)load_float(x->dtype, (const char *)x->data + 2 * i);
    out_scatter->dtype = (tcc_dtype){2, 32, 1};
    out_scatter->target = memory;
    return TCC_OK;
}

/* Rounds the target to y, where it is not y. */
static void finish(const scatter *s) {
    const tcc_op_tensor *y = &s->call->outputs[0];
    if (s->target == y->data) return;
    for (int64_t i = 0; i < y->count; i++)
        store_float(y->dtype, (char *)y->data + 2 * i, ((const float *)(void *)s->target)[i]);
    tcc_pool_give(s->call->pool, s->target);
}

/* scatter_elements by units that do not touch each other's elements: indices before the axis, and
 * where the axis is not the last one, columns along the last. */
typedef struct elements {
    scatter s;
    int32_t axis, last;
    int64_t rows, blocks; /* rows of indices along the last axis in a unit, and its column blocks */
} elements;

/* Updates columns `first` to `behind - 1` of row `row` of the indices. */
static void scatter_row(const elements *e, int64_t row, int64_t first, int64_t behind) {
    const tcc_op_tensor *x = &e->s.call->inputs[0], *indices = &e->s.call->inputs[1];
    int64_t base = 0, along = 1, stride = 1, rest = row, width = indices->dims[e->last];
    const char *updates = e->s.call->inputs[2].data;
    bool moves = e->s.reduction == NONE && e->s.dtype.bits == 32, adds = adds_floats(&e->s);
    for (int32_t dim = e->last; dim >= 0; stride *= x->dims[dim--]) {
        if (dim == e->axis) along = stride;
        if (dim == e->last) continue;
        if (dim != e->axis) base += rest % indices->dims[dim] * stride;
        rest /= indices->dims[dim];
    }
    for (int64_t column = first; column < behind; column++) {
        int64_t update = row * width + column;
        int64_t at = base + read_index(indices, update, x->dims[e->axis]) * along;
        if (e->axis != e->last) at += column;
        if (moves)
            memcpy(e->s.target + 4 * at, updates + 4 * update, 4);
        else if (adds)
            ((float *)(void *)e->s.target)[at] += ((const float *)(const void *)updates)[update];
        else
            combine(&e->s, at, update, 1);
    }
}

static void scatter_units(void *context, int64_t begin, int64_t end, void *room) {
    const elements *e = context;
    int64_t width = e->s.call->inputs[1].dims[e->last];
    (void)room;
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t first = e->blocks == 1 ? 0 : unit % e->blocks * COLUMNS;
        int64_t behind = e->blocks == 1 || first + COLUMNS > width ? width : first + COLUMNS;
        for (int64_t row = 0; row < e->rows; row++)
            scatter_row(e, unit / e->blocks * e->rows + row, first, behind);
    }
}

tcc_status tcc_op_scatter_elements(tcc_op_call *call) {
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 3, 1, 2, 0, "scatter"));
    TCC_RETURN_IF_ERROR(check_operands(call, call->ints[1], "scatter"));
    const tcc_op_tensor *x = &call->inputs[0], *indices = &call->inputs[1];
    const tcc_op_tensor *updates = &call->inputs[2];
    int64_t axis = call->ints[0];
    if (axis < 0 || axis >= x->ndim || indices->ndim != x->ndim || updates->count != indices->count)
        return tcc_fail(TCC_INTERNAL, "scatter: operands do not fit");
    for (int32_t dim = 0; dim < x->ndim; dim++)
        if (dim != axis && indices->dims[dim] > x->dims[dim])
            return tcc_fail(TCC_INVALID_ARGUMENT, "scatter: the indices have %lld along axis %d, x %lld",
                            (long long)indices->dims[dim], dim, (long long)x->dims[dim]);
    TCC_RETURN_IF_ERROR(check_indices(indices, 0, 1, x->dims[axis]));
    elements e = {.axis = (int32_t)axis, .last = x->ndim - 1, .rows = 1, .blocks = 1};
    TCC_RETURN_IF_ERROR(begin(call, call->ints[1], &e.s));
    int64_t width = indices->dims[e.last], units = indices->count ? indices->count / width : 0;
    for (int32_t dim = e.axis; dim < e.last; dim++) e.rows *= indices->dims[dim];
    if (e.rows > 1) e.blocks = (width + COLUMNS - 1) / COLUMNS;
    if (units) units = units / e.rows * e.blocks;
    TCC_RETURN_IF_ERROR(tcc_op_parallel(call, scatter_units, &e, units, 0));
    finish(&e.s);
    return TCC_OK;
}

/* scatter_nd by parts of its slices, which no other unit touches. */
typedef struct slices {
    scatter s;
    int64_t depth, tuples, slice, part;
} slices;

static void scatter_parts(void *context, int64_t begin, int64_t end, void *room) {
    const slices *n = context;
    const tcc_op_tensor *x = &n->s.call->inputs[0], *indices = &n->s.call->inputs[1];
    int64_t first = begin * n->part, behind = end * n->part < n->slice ? end * n->part : n->slice;
    (void)room;
    for (int64_t i = 0; i < n->tuples; i++) {
        int64_t row = 0;
        for (int64_t dim = 0; dim < n->depth; dim++)
            row = row * x->dims[dim] + read_index(indices, i * n->depth + dim, x->dims[dim]);
        combine(&n->s, row * n->slice + first, i * n->slice + first, behind - first);
    }
}

tcc_status tcc_op_scatter_nd(tcc_op_call *call) {
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 3, 1, 1, 0, "scatter"));
    TCC_RETURN_IF_ERROR(check_operands(call, call->ints[0], "scatter"));
    const tcc_op_tensor *x = &call->inputs[0], *indices = &call->inputs[1];
    const tcc_op_tensor *updates = &call->inputs[2];
    int64_t depth = indices->ndim ? indices->dims[indices->ndim - 1] : -1;
    if (depth < 0 || depth > x->ndim) return tcc_fail(TCC_INTERNAL, "scatter: operands do not fit");
    slices n = {.depth = depth, .tuples = 1, .slice = 1};
    for (int64_t dim = depth; dim < x->ndim; dim++) n.slice *= x->dims[dim];
    for (int32_t dim = 0; dim + 1 < indices->ndim; dim++) n.tuples *= indices->dims[dim];
    if (updates->count != n.tuples * n.slice)
        return tcc_fail(TCC_INVALID_ARGUMENT, "scatter: %lld updates for %lld indices of %lld each",
                        (long long)updates->count, (long long)n.tuples, (long long)n.slice);
    for (int64_t dim = 0; dim < depth; dim++)
        TCC_RETURN_IF_ERROR(check_indices(indices, dim, depth, x->dims[dim]));
    TCC_RETURN_IF_ERROR(begin(call, call->ints[0], &n.s));
    /* short updates are not worth reading the indices in every thread */
    n.part = n.slice < 2 * COLUMNS ? n.slice : COLUMNS;
    int64_t units = n.tuples && n.slice ? (n.slice + n.part - 1) / n.part : 0;
    TCC_RETURN_IF_ERROR(tcc_op_parallel(call, scatter_parts, &n, units, 0));
    finish(&n.s);
    return TCC_OK;
}

tcc_status tcc_op_max_unpool(tcc_op_call *call) {
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 2, 1, 0, 0, "max unpool"));
    const tcc_op_tensor *x = &call->inputs[0], *positions = &call->inputs[1];
    const tcc_op_tensor *y = &call->outputs[0];
    if (positions->count != x->count || positions->dtype.bits != 64 || x->dtype.bits % 8 ||
        y->dtype.bits != x->dtype.bits)
        return tcc_fail(TCC_INTERNAL, "max unpool: operands do not fit");
    size_t element = x->dtype.bits / 8u;
    const int64_t *at = positions->data;
    memset(y->data, 0, (size_t)y->count * element);
    for (int64_t i = 0; i < x->count; i++)
        if (at[i] >= 0 && at[i] < y->count)
            memcpy((char *)y->data + (size_t)at[i] * element,
                   (const char *)x->data + (size_t)i * element, element);
    return TCC_OK;
}
