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
#include <math.h>
#include <string.h>

#include "order.h"

/* Of functions that take no time or serve rare types: their code should be short. */
#define SMALL __attribute__((cold, noinline))
/* Of loops over updates.  Compilers would take them to be rare, as their callers are. */
#define APART __attribute__((hot, noinline))

enum { NONE, ADD, MUL, MAX, MIN, REDUCTIONS };

/* ---- half precision: no compiler support is taken for granted --------------------------------- */

static float as_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static float from_half(uint16_t bits) {
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, magnitude = (uint32_t)(bits & 0x7FFF) << 13;
    if (magnitude >= 0x0F800000) return as_float(sign | magnitude | 0x7F800000);
    return as_float(sign | 0x3F800000) * (as_float(magnitude) * 0x1p112f);
}

/* To nearest, ties to even. */
static uint16_t to_half(float value) {
    uint32_t bits, sign;
    memcpy(&bits, &value, 4);
    sign = bits >> 16 & 0x8000;
    bits &= 0x7FFFFFFF;
    if (bits > 0x7F800000) return 0x7E00;
    if (bits >= 0x477FF000) return (uint16_t)(sign | 0x7C00);
    if (bits < 0x38800000) { /* below 2**-14: one half has the step of halves there */
        value = fabsf(value) + 0.5f;
        memcpy(&bits, &value, 4);
        return (uint16_t)(sign | (bits & 0xFFFF));
    }
    return (uint16_t)(sign | (bits - 0x38000000 + 0xFFF + (bits >> 13 & 1)) >> 13);
}

static uint16_t to_bfloat(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return isnan(value) ? 0x7FC0 : (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

/* ---- one element ---------------------------------------------------------------------------------- */

/* The first NaN wins, and of equal ones the first. */
#define LARGER(a, b) (isnan(b) ? (isnan(a) ? a : b) : b > a ? b : a)
#define SMALLER(a, b) (isnan(b) ? (isnan(a) ? a : b) : b < a ? b : a)

static double combine_floats(int64_t reduction, double a, double b) {
    if (reduction == ADD) return a + b;
    if (reduction == MUL) return a * b;
    return reduction == MAX ? LARGER(a, b) : SMALLER(a, b);
}

static double load_float(tcc_dtype dtype, const void *at) {
    uint16_t half;
    if (dtype.bits == 64) return *(const double *)at;
    if (dtype.bits == 32) return *(const float *)at;
    memcpy(&half, at, 2);
    return dtype.code == 4 ? as_float((uint32_t)half << 16) : from_half(half);
}

/* Sums and products of two floats are rounded once: a double holds them to more than twice the bits
 * of every narrower type. */
static void store_float(tcc_dtype dtype, void *at, double value) {
    float single = (float)value;
    uint16_t half = 0;
    if (dtype.bits == 16) {
        half = dtype.code == 4 ? to_bfloat(single) : to_half(single);
        memcpy(at, &half, 2);
    } else if (dtype.bits == 64) {
        memcpy(at, &value, 8);
    } else {
        memcpy(at, &single, 4);
    }
}

static uint64_t load_word(uint32_t bits, const void *at) {
    return bits == 64   ? *(const uint64_t *)at
           : bits == 32 ? *(const uint32_t *)at
           : bits == 16 ? *(const uint16_t *)at
                        : *(const uint8_t *)at;
}

static void store_word(uint32_t bits, void *at, uint64_t value) {
    if (bits == 64)
        *(uint64_t *)at = value;
    else if (bits == 32)
        *(uint32_t *)at = (uint32_t)value;
    else if (bits == 16)
        *(uint16_t *)at = (uint16_t)value;
    else
        *(uint8_t *)at = (uint8_t)value;
}

/* Of integers of so many bits; arithmetic wraps, as the type's own does. */
static uint64_t combine_words(tcc_dtype dtype, int64_t reduction, uint64_t a, uint64_t b) {
    if (reduction == ADD) return dtype.code == 6 ? (a | b) : a + b;
    if (reduction == MUL) return a * b;
    /* with the sign bit exchanged, the order of signed integers is that of unsigned ones */
    uint64_t sign = dtype.code == 0 ? UINT64_C(1) << (dtype.bits - 1) : 0;
    return ((a ^ sign) > (b ^ sign)) == (reduction == MAX) ? a : b;
}

/* ---- rows of elements ------------------------------------------------------------------------------- */

enum {
    BATCH = 128,      /* updates whose places are found before they are applied */
    PIECE = 1 << 16,  /* bytes that a thread copies at a time */
    COLUMNS = 64,     /* elements along the last axis that a thread updates at a time */
    LINE_BITS = 6,    /* 64 neighbouring elements belong to one thread */
    AHEAD = 512,      /* bytes of updates that are fetched at a time, twice as many ahead */
    MOST_SKIPPED = 4, /* updates that are fetched for each that is taken */
    NARROW = 4,       /* elements that a thread combines faster than it tells whose they are */
    SHARED = 1 << 14, /* elements whose updates are worth a thread's way there */
    COPIED = 4,       /* elements of updates for each element of a copy of x */
};

/* Where updates are combined: y itself, or an f32 image of it. */
typedef struct scatter {
    const tcc_op_call *call;
    int64_t reduction;
    tcc_dtype dtype; /* of the elements of target */
    char *target;
    /* A row is `width` elements of the target that one update changes.  The rows that begin within 64
     * elements belong to the group that a hash gives them. */
    int64_t width;
    int32_t groups;
    /* Of maxima and minima of many updates each group has a share of the updates instead, and all but
     * the first a copy of the target of its own. */
    char *copies;
} scatter;

/* Places of rows, in elements of the target and of the updates. */
typedef struct batch {
    int64_t count, target[BATCH], update[BATCH];
} batch;

typedef float floats __attribute__((vector_size(16)));
typedef double doubles __attribute__((vector_size(16)));
typedef int32_t words __attribute__((vector_size(16)));

/* Combines the first `count` elements of a row one by one, of any type. */
static SMALL void combine_row(const scatter *s, char *target, const char *from, int64_t count) {
    tcc_dtype dtype = s->call->inputs[2].dtype, wide = s->dtype;
    bool floating = dtype.code == 2 || dtype.code == 4;
    for (int64_t i = 0; i < count; i++, target += wide.bits / 8, from += dtype.bits / 8) {
        if (floating) {
            double a = load_float(wide, target), b = load_float(dtype, from);
            store_float(wide, target, combine_floats(s->reduction, a, b));
        } else {
            uint64_t a = load_word(dtype.bits, target), b = load_word(dtype.bits, from);
            store_word(dtype.bits, target, combine_words(dtype, s->reduction, a, b));
        }
    }
}

/* Combines rows `n` to `end - 1` of elements that have a type of C: `ONE` is a and b combined.  `WIDE`
 * is that of vectors of the first `most` elements; where these of a row have NaN in b, they are combined
 * once more one by one. */
#define COMBINE_ROWS(TYPE, VECTOR, most, WIDE, ONE)                                                \
    do {                                                                                           \
        TYPE *target = (TYPE *)(void *)s->target;                                                  \
        const TYPE *from = s->call->inputs[2].data;                                                \
        for (int64_t row = n; (most) && row < end; row++) {                                        \
            TYPE *y = target + rows->target[row];                                                  \
            const TYPE *u = from + rows->update[row];                                              \
            words nan = {0};                                                                       \
            for (int64_t i = 0; i < (most); i += 16 / (int64_t)sizeof(TYPE)) {                     \
                VECTOR a, b;                                                                       \
                memcpy(&a, y + i, sizeof a);                                                       \
                memcpy(&b, u + i, sizeof b);                                                       \
                a = WIDE;                                                                          \
                memcpy(y + i, &a, sizeof a);                                                       \
            }                                                                                      \
            if (nan[0] | nan[1] | nan[2] | nan[3])                                                 \
                combine_row(s, (char *)y, (const char *)u, most);                                  \
        }                                                                                          \
        for (; (most) < width && n < end; n++) {                                                   \
            TYPE *y = target + rows->target[n];                                                    \
            const TYPE *u = from + rows->update[n];                                                \
            int64_t i = most;                                                                      \
            do {                                                                                   \
                TYPE a = y[i], b = u[i];                                                           \
                y[i] = ONE;                                                                        \
            } while (++i < width);                                                                 \
        }                                                                                          \
    } while (0)
#define COMBINE(TYPE, ONE) COMBINE_ROWS(TYPE, TYPE, 0, a, ONE)
#define COMBINE_FLOATS(WIDE, ONE) COMBINE_ROWS(float, floats, width & ~(int64_t)3, WIDE, ONE)

/* Compilers make one instruction of each: b where either is NaN. */
static floats larger(floats a, floats b) {
    for (int i = 0; i < 4; i++) b[i] = a[i] > b[i] ? a[i] : b[i];
    return b;
}

static floats smaller(floats a, floats b) {
    for (int i = 0; i < 4; i++) b[i] = a[i] < b[i] ? a[i] : b[i];
    return b;
}

/* Combines rows `n` to `end - 1` of a batch, of a frequent type; false for others. */
static bool combine_fast(const scatter *s, const batch *rows, int64_t n, int64_t end) {
    tcc_dtype dtype = s->call->inputs[2].dtype;
    bool add = s->reduction == ADD;
    int64_t width = s->width;
    if (dtype.bits == 32 && dtype.code == 2) {
        if (add)
            COMBINE_FLOATS(a + b, a + b);
        else if (s->reduction == MUL)
            COMBINE_FLOATS(a * b, a * b);
        else if (s->reduction == MAX)
            COMBINE_FLOATS((nan |= b != b, larger(b, a)), LARGER(a, b));
        else
            COMBINE_FLOATS((nan |= b != b, smaller(b, a)), SMALLER(a, b));
    } else if (add && dtype.bits == 64 && dtype.code == 2) {
        COMBINE_ROWS(double, doubles, width & ~(int64_t)1, a + b, a + b);
    } else if (add && dtype.bits == 64) {
        COMBINE(uint64_t, a + b);
    } else if (add && dtype.bits == 32) {
        COMBINE(uint32_t, a + b);
    } else {
        return false;
    }
    return true;
}

static bool is_half(tcc_dtype dtype) {
    return dtype.bits == 16 && (dtype.code == 2 || dtype.code == 4);
}

/* Without the statement of no instructions compilers see nothing done and leave the call out. */
static void fetch(const char *first, const char *behind) {
    for (; first < behind; first += 64) {
        __builtin_prefetch(first);
        __asm__ volatile("");
    }
}

/* Fetches the updates of rows `first` to `end - 1` of a batch, `first` at least 1.  A unit that takes a
 * good part of the updates, in their order, fetches those between too: memory is read fastest so. */
static APART void fetch_rows(const scatter *s, const batch *rows, int64_t first, int64_t end) {
    size_t element = s->call->inputs[2].dtype.bits / 8u;
    const char *from = s->call->inputs[2].data;
    int64_t width = s->width, behind = rows->update[first - 1] + width;
    if (end > rows->count) end = rows->count;
    if (first >= end) return;
    int64_t last = rows->update[end - 1] + width;
    if (last >= behind && last - behind <= MOST_SKIPPED * width * (end - first)) {
        fetch(from + (size_t)behind * element, from + (size_t)last * element);
        return;
    }
    for (; first < end; first++) {
        const char *u = from + (size_t)rows->update[first] * element;
        fetch(u, u + (size_t)width * element);
    }
}

/* Narrows units `first` to `behind - 1` of the updates to those of a group that has a copy of the target,
 * and gives it that. */
static SMALL void take_share(scatter *s, int64_t group, int64_t *first, int64_t *behind) {
    const tcc_op_tensor *x = &s->call->inputs[0];
    size_t bytes = (size_t)x->count * (x->dtype.bits / 8u);
    int64_t each = (*behind - *first) / s->groups;
    *first += each * group;
    if (group + 1 < s->groups) *behind = *first + each;
    if (!group) return;
    s->target = s->copies + (size_t)(group - 1) * bytes;
    memcpy(s->target, x->data, bytes);
}

/* Combines the rows of a batch, and empties it. */
static APART void combine(const scatter *s, batch *rows) {
    size_t element = s->call->inputs[2].dtype.bits / 8u, step = s->dtype.bits / 8u;
    int64_t bytes = s->width * (int64_t)element;
    int64_t some = bytes < 16 ? BATCH : bytes < AHEAD ? AHEAD / bytes : 1;
    for (int64_t first = 0, end; first < rows->count; first = end) {
        end = rows->count - first < some ? rows->count : first + some;
        if (some < BATCH) fetch_rows(s, rows, first + 2 * some, end + 2 * some);
        if (s->reduction != NONE && combine_fast(s, rows, first, end)) continue;
        for (int64_t n = first; n < end; n++) {
            char *target = s->target + (size_t)rows->target[n] * step;
            const char *from = (const char *)s->call->inputs[2].data + (size_t)rows->update[n] * element;
            if (s->reduction != NONE)
                combine_row(s, target, from, s->width);
            else if (s->width == 1 && element == 4)
                memcpy(target, from, 4);
            else
                memcpy(target, from, (size_t)s->width * element);
        }
    }
    rows->count = 0;
}

/* Keeps of the rows from number `first` of a batch on those of group `group`, without a branch that
 * data decides. */
static APART void keep_group(const scatter *s, batch *rows, int64_t first, int64_t group) {
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

/* Adds to `count` places indices number first, first + period, ... of an axis that has `size` indices,
 * times `stride`. */
static APART void add_places(const tcc_op_tensor *indices, int64_t first, int64_t period, int64_t count,
                             int64_t size, int64_t stride, int64_t *restrict places) {
    if (indices->dtype.bits == 64)
        ADD_PLACES(int64_t);
    else
        ADD_PLACES(int32_t);
}

/* Fails unless every `period`-th index from number `first` on lies within an axis of `size`. */
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

/* Makes the target and copies x to it; `width` elements are a row. */
static SMALL tcc_status begin(const tcc_op_call *call, int64_t reduction, int64_t width,
                        scatter *out_scatter) {
    const tcc_op_tensor *x = &call->inputs[0], *y = &call->outputs[0];
    *out_scatter = (scatter){.call = call, .reduction = reduction, .dtype = x->dtype,
                             .target = y->data, .width = width, .groups = 1};
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
        wide[i] = (float)load_float(x->dtype, (const char *)x->data + 2 * i);
    out_scatter->dtype = (tcc_dtype){2, 32, 1};
    out_scatter->target = memory;
    return TCC_OK;
}

/* Combines pieces of the copies, as updates, into the target. */
static SMALL void merge_pieces(void *context, int64_t begin, int64_t end, void *room) {
    scatter s = *(const scatter *)context;
    tcc_op_tensor inputs[3] = {{0}, {0}, s.call->outputs[0]};
    tcc_op_call merging = {.inputs = inputs};
    int64_t count = inputs[2].count, first = begin * (PIECE / 8), behind = end * (PIECE / 8);
    (void)room;
    s.call = &merging;
    s.width = (behind < count ? behind : count) - first;
    inputs[2].data = s.copies;
    for (int32_t copy = 1; copy < s.groups; copy++) {
        batch rows;
        rows.count = 1;
        rows.target[0] = first;
        rows.update[0] = first + (copy - 1) * count;
        combine(&s, &rows);
    }
}

/* Runs `part`, which is one unit, by groups with copies of the target. */
static SMALL tcc_status finish_copies(scatter *s, tcc_op_part part) {
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

/* The threads that are worth their way to `updates` rows that are combined in. */
static int64_t helpers(const scatter *s, int64_t updates) {
    return s->call->crew && updates > SHARED / (s->width + 8) ? s->call->threads : 1;
}

/* Whether copies of x cost little beside `updates` rows whose order does not matter. */
static SMALL bool copies_pay(const scatter *s, int64_t updates) {
    const tcc_op_tensor *x = &s->call->inputs[0];
    int64_t threads = helpers(s, updates);
    return s->reduction >= MAX && threads > 1 && x->data != s->target &&
           updates * s->width / threads / COPIED >= x->count;
}

/* Runs `part` on `units` parts of the work for each group of rows, and rounds the target to y, where
 * it is not y; `updates` is how many rows are combined in. */
static SMALL tcc_status finish(scatter *s, tcc_op_part part, int64_t units, int64_t updates) {
    const tcc_op_call *call = s->call;
    const tcc_op_tensor *y = &call->outputs[0];
    int64_t threads = helpers(s, updates);
    bool copies = units == 1 && copies_pay(s, updates);
    if (units && units < threads && (copies || s->width >= NARROW))
        s->groups = (int32_t)((threads + units - 1) / units);
    if (copies) return finish_copies(s, part);
    tcc_status status = tcc_op_parallel(call, part, s, units * s->groups, 0);
    if (s->target == y->data) return status;
    for (int64_t i = 0; i < y->count; i++)
        store_float(y->dtype, (char *)y->data + 2 * i, ((const float *)(void *)s->target)[i]);
    tcc_pool_give(call->pool, s->target);
    return status;
}

/* scatter_elements by units that do not touch each other's elements: indices before the axis, and
 * where the axis is not the last one, columns along the last. */
typedef struct elements {
    scatter s;
    int32_t axis, last;
    int64_t rows, blocks; /* rows of indices along the last axis in a unit, and its column blocks */
} elements;

/* Combines in the updates of columns `first` to `behind - 1` of row `row` of the indices. */
static APART void scatter_row(const elements *e, batch *taken, int64_t group, int64_t row, int64_t first,
                        int64_t behind) {
    const tcc_op_tensor *x = &e->s.call->inputs[0], *indices = &e->s.call->inputs[1];
    int64_t base = 0, along = 1, stride = 1, rest = row, update = row * indices->dims[e->last];
    int64_t step = e->axis != e->last, size = x->dims[e->axis];
    for (int32_t dim = e->last; dim >= 0; stride *= x->dims[dim--]) {
        if (dim == e->axis) along = stride;
        if (dim == e->last) continue;
        int64_t more = dim ? rest / indices->dims[dim] : 0;
        if (dim != e->axis) base += (rest - more * indices->dims[dim]) * stride;
        rest = more;
    }
    for (int64_t column = first; column < behind;) {
        if (taken->count == BATCH) combine(&e->s, taken);
        int64_t before = taken->count, count = BATCH - before;
        if (count > behind - column) count = behind - column;
        int64_t *target = taken->target + before;
        begin_places(target, count, base + column * step, step);
        begin_places(taken->update + before, count, update + column, 1);
        add_places(indices, update + column, 1, count, size, along, target);
        column += count;
        taken->count += count;
        if (e->s.groups > 1 && !e->s.copies) keep_group(&e->s, taken, before, group);
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
        batch taken;
        taken.count = 0;
        e.s.target = target;
        if (e.s.copies) take_share(&e.s, group, e.rows > 1 ? &row : &first, e.rows > 1 ? &stop : &behind);
        for (; row < stop; row++) scatter_row(&e, &taken, group, row, first, behind);
        combine(&e.s, &taken);
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
    TCC_RETURN_IF_ERROR(begin(call, call->ints[1], 1, &e.s));
    int64_t width = indices->dims[e.last], units = indices->count ? indices->count / width : 0;
    for (int32_t dim = e.axis; dim < e.last; dim++) e.rows *= indices->dims[dim];
    if (e.rows > 1) e.blocks = (width + COLUMNS - 1) / COLUMNS;
    if (units) units = units / e.rows * e.blocks;
    return finish(&e.s, scatter_units, units, indices->count);
}

/* scatter_nd by parts of its slices and groups of rows. */
typedef struct slices {
    scatter s;
    int64_t depth, tuples, slice, part;
} slices;

static SMALL void scatter_parts(void *context, int64_t begin, int64_t end, void *room) {
    const slices *all = context;
    const tcc_op_tensor *x = &all->s.call->inputs[0], *indices = &all->s.call->inputs[1];
    const tcc_op_tensor *rows = all->s.call->n_inputs == 4 ? &all->s.call->inputs[3] : NULL;
    batch taken;
    (void)room;
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t first = unit / all->s.groups * all->part, slice = all->slice;
        scatter s = all->s;
        s.width = slice - first < all->part ? slice - first : all->part;
        int64_t done = 0, behind = all->tuples, count;
        if (s.copies) take_share(&s, unit, &done, &behind);
        for (; done < behind; done += count) {
            int64_t stride = slice;
            count = behind - done < BATCH ? behind - done : BATCH;
            begin_places(taken.target, count, first, 0);
            for (int64_t dim = all->depth - 1; dim >= 0; stride *= x->dims[dim--])
                add_places(indices, done * all->depth + dim, all->depth, count, x->dims[dim], stride,
                           taken.target);
            begin_places(taken.update, count, first + (rows ? 0 : done * slice), rows ? 0 : slice);
            if (rows) add_places(rows, done, 1, count, s.call->inputs[2].dims[0], slice, taken.update);
            taken.count = count;
            if (s.groups > 1 && !s.copies) keep_group(&s, &taken, 0, unit % s.groups);
            combine(&s, &taken);
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
    TCC_RETURN_IF_ERROR(begin(call, call->ints[0], n.slice, &n.s));
    /* parts of whole columns, as many as there are threads */
    int64_t parts = n.slice / COLUMNS < call->threads ? n.slice / COLUMNS : call->threads;
    bool whole = parts < 2 || !call->crew || copies_pay(&n.s, n.tuples);
    n.part = whole ? n.slice : ((n.slice - 1) / parts / COLUMNS + 1) * COLUMNS;
    int64_t units = n.tuples && n.slice ? (n.slice + n.part - 1) / n.part : 0;
    return finish(&n.s, scatter_parts, units, n.tuples);
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
    for (int64_t i = 0; i < x->count; i++)
        if (at[i] >= 0 && at[i] < y->count)
            memcpy((char *)y->data + (size_t)at[i] * element,
                   (const char *)x->data + (size_t)i * element, element);
    return TCC_OK;
}
