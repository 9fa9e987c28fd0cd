/* Implements ops whose result size is a count of true elements. The count comes first, so that the
 * program can allocate exactly.
 *
 * non_zero_count: inputs (x), results (count) non_zero: inputs (x), outputs (indices i64 [rank,
 * count]) compress_count: inputs (x, condition bool [m]), ints (axis, or -1 for flattened), results
 * (count) compress: inputs (x, condition bool [m]), outputs (y), ints (axis, or -1 for flattened)
 *
 * Elements of the axis beyond the end of a shorter condition are left out. Elements of a condition
 * beyond the axis are ignored. */
#include <string.h>

#include "order.h"

enum {
    PART = 1 << 14, /* elements of a part: enough work for a thread */
    BLOCK = 64,
    RUN = 256, /* elements of a row whose indices are collected before they are written */
};

/* ---- non_zero ------------------------------------------------------------------------------------- */

typedef struct non_zero {
    const tcc_op_tensor *x;
    int64_t *indices;
    int64_t room;   /* elements of a row of `indices` */
    int64_t *ahead; /* by part: first its number of elements, then the number in all parts before
                       it */
} non_zero;

/* Counts the elements, of `count`, that have a bit of `mask`. */
#define COUNT_BITS(TYPE)                                                                           \
    do {                                                                                           \
        const TYPE *x = elements, bits = (TYPE)mask;                                               \
        int64_t n_set = 0, at = 0;                                                                 \
        for (; at + BLOCK <= count; at += BLOCK) {                                                 \
            TYPE some = 0;                                                                         \
            for (int i = 0; i < BLOCK; i++) some = (TYPE)(some + ((x[at + i] & bits) != 0));       \
            n_set += (int64_t)some;                                                                \
        }                                                                                          \
        for (; at < count; at++) n_set += (x[at] & bits) != 0;                                     \
        return n_set;                                                                              \
    } while (0)

static int64_t count_bits(const void *elements, size_t element, uint64_t mask, int64_t count) {
    switch (element) {
    case 1: COUNT_BITS(uint8_t);
    case 2: COUNT_BITS(uint16_t);
    case 4: COUNT_BITS(uint32_t);
    default: COUNT_BITS(uint64_t);
    }
}

/* Returns the bits of an element that are zero only in a zero: all except the sign of floats. */
static uint64_t value_bits(tcc_dtype dtype) {
    uint64_t all = UINT64_MAX >> (64 - dtype.bits);
    return dtype.code == 2 || dtype.code == 4 ? all >> 1 : all;
}

static int64_t part_end(const tcc_op_tensor *x, int64_t part) {
    return (part + 1) * PART < x->count ? (part + 1) * PART : x->count;
}

static void count_parts(void *context, int64_t begin, int64_t end, void *room) {
    const non_zero *n = context;
    size_t element = n->x->dtype.bits / 8u;
    (void)room;
    for (int64_t part = begin; part < end; part++)
        n->ahead[part] =
            count_bits((const char *)n->x->data + (size_t)(part * PART) * element, element,
                       value_bits(n->x->dtype), part_end(n->x, part) - part * PART);
}

/* Counts by part in memory of the pool, and sums the counts. */
static tcc_status count_all(const tcc_op_call *call, non_zero *n, int64_t *out_count) {
    int64_t parts = (n->x->count + PART - 1) / PART;
    void *memory = NULL;
    TCC_RETURN_IF_ERROR(tcc_pool_take(call->pool, (size_t)parts * sizeof(int64_t), &memory));
    n->ahead = memory;
    TCC_RETURN_IF_ERROR(tcc_op_parallel(call, count_parts, n, parts, 0));
    *out_count = 0;
    for (int64_t part = 0; part < parts; part++) {
        int64_t n_ahead = n->ahead[part];
        n->ahead[part] = *out_count;
        *out_count += n_ahead;
    }
    return TCC_OK;
}

/* Finds the places, counted from `first`, of the elements that have a bit of `mask`. */
#define FIND_BITS(TYPE)                                                                            \
    do {                                                                                           \
        const TYPE *x = elements, bits = (TYPE)mask;                                               \
        int64_t n_set = 0;                                                                         \
        for (int64_t i = 0; i < count; i++) {                                                      \
            places[n_set] = first + i;                                                             \
            n_set += (x[i] & bits) != 0;                                                           \
        }                                                                                          \
        return n_set;                                                                              \
    } while (0)

static int64_t find_bits(const void *elements, size_t element, uint64_t mask, int64_t count,
                         int64_t first, int64_t *places) {
    switch (element) {
    case 1: FIND_BITS(uint8_t);
    case 2: FIND_BITS(uint16_t);
    case 4: FIND_BITS(uint32_t);
    default: FIND_BITS(uint64_t);
    }
}

/* Writes the index along `dim` of `n_places` elements of the row that contains element `at`. */
static void write_dim(const non_zero *n, int32_t dim, int64_t at, int64_t to, int64_t n_places) {
    int64_t *target = n->indices + dim * n->room + to;
    for (int32_t inner = n->x->ndim - 1; inner > dim; inner--) at /= n->x->dims[inner];
    at %= n->x->dims[dim];
    for (int64_t i = 0; i < n_places; i++) target[i] = at;
}

static void write_parts(void *context, int64_t begin, int64_t end, void *room) {
    const non_zero *n = context;
    int32_t last = n->x->ndim - 1;
    int64_t row = last < 0 ? 1 : n->x->dims[last];
    size_t element = n->x->dtype.bits / 8u;
    int64_t places[RUN];
    (void)room;
    for (int64_t part = begin; part < end; part++) {
        int64_t to = n->ahead[part], stop = part_end(n->x, part);
        for (int64_t at = part * PART, count; at < stop; at += count) {
            int64_t place = at % row;
            count = row - place < stop - at ? row - place : stop - at;
            if (count > RUN) count = RUN;
            int64_t n_places = find_bits((const char *)n->x->data + (size_t)at * element, element,
                                         value_bits(n->x->dtype), count, place, places);
            if (n_places == 0 || last < 0) continue;
            memcpy(n->indices + last * n->room + to, places, (size_t)n_places * sizeof *places);
            for (int32_t dim = 0; dim < last; dim++) write_dim(n, dim, at, to, n_places);
            to += n_places;
        }
    }
}

tcc_status tcc_op_non_zero_count(tcc_op_call *call) {
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 1, 0, 0, 1, "non-zero"));
    non_zero n = {.x = &call->inputs[0]};
    TCC_RETURN_IF_ERROR(tcc_order_check(n.x->dtype, "non-zero"));
    TCC_RETURN_IF_ERROR(count_all(call, &n, &call->results[0]));
    tcc_pool_give(call->pool, n.ahead);
    return TCC_OK;
}

tcc_status tcc_op_non_zero(tcc_op_call *call) {
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 1, 1, 0, 0, "non-zero"));
    const tcc_op_tensor *x = &call->inputs[0], *y = &call->outputs[0];
    TCC_RETURN_IF_ERROR(tcc_order_check(x->dtype, "non-zero"));
    if (y->ndim != 2 || y->dims[0] != x->ndim || y->dtype.code != 0 || y->dtype.bits != 64)
        return tcc_fail(TCC_INTERNAL, "non-zero: results do not fit");
    non_zero n = {.x = x, .indices = y->data, .room = y->dims[1]};
    int64_t count = 0;
    TCC_RETURN_IF_ERROR(count_all(call, &n, &count));
    bool fits = count == n.room;
    if (fits)
        TCC_RETURN_IF_ERROR(
            tcc_op_parallel(call, write_parts, &n, (x->count + PART - 1) / PART, 0));
    tcc_pool_give(call->pool, n.ahead);
    return fits ? TCC_OK : tcc_fail(TCC_INTERNAL, "non-zero: another count than before");
}

/* ---- compress -------------------------------------------------------------------------------------- */

typedef struct compress {
    tcc_axis axis;
    const char *source;
    char *target;
    size_t slice;
    const int64_t *places; /* places along the axis */
    int64_t count, together; /* number of places; slices of a unit */
} compress;

static tcc_status split_for_compress(const tcc_op_call *call, tcc_axis *out_axis,
                                     int64_t *out_length) {
    const tcc_op_tensor *x = &call->inputs[0], *condition = &call->inputs[1];
    if (condition->dtype.bits != 8 || x->dtype.bits % 8)
        return tcc_fail(TCC_INTERNAL, "compress: element types do not fit");
    *out_axis = (tcc_axis){1, x->count, 1};
    if (call->ints[0] >= 0) TCC_RETURN_IF_ERROR(tcc_axis_split(x, call->ints[0], out_axis));
    *out_length = condition->count < out_axis->size ? condition->count : out_axis->size;
    return TCC_OK;
}

tcc_status tcc_op_compress_count(tcc_op_call *call) {
    tcc_axis axis;
    int64_t length;
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 2, 0, 1, 1, "compress"));
    TCC_RETURN_IF_ERROR(split_for_compress(call, &axis, &length));
    call->results[0] = count_bits(call->inputs[1].data, 1, UINT8_MAX, length);
    return TCC_OK;
}

static void copy_slices(void *context, int64_t begin, int64_t end, void *room) {
    const compress *c = context;
    int64_t first = begin * c->together, behind = end * c->together;
    (void)room;
    if (behind > c->axis.outer * c->count) behind = c->axis.outer * c->count;
    for (int64_t i = first; i < behind; i++) {
        int64_t from = i / c->count * c->axis.size + c->places[i % c->count];
        memcpy(c->target + (size_t)i * c->slice, c->source + (size_t)from * c->slice, c->slice);
    }
}

tcc_status tcc_op_compress(tcc_op_call *call) {
    compress c = {.source = call->inputs[0].data};
    int64_t length;
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 2, 1, 1, 0, "compress"));
    TCC_RETURN_IF_ERROR(split_for_compress(call, &c.axis, &length));
    const tcc_op_tensor *x = &call->inputs[0], *y = &call->outputs[0];
    const char *condition = call->inputs[1].data;
    c.count = count_bits(condition, 1, UINT8_MAX, length);
    if (y->dtype.bits != x->dtype.bits || y->count != c.axis.outer * c.count * c.axis.inner)
        return tcc_fail(TCC_INTERNAL, "compress: results do not fit");
    c.target = y->data;
    c.slice = (size_t)c.axis.inner * (x->dtype.bits / 8u);
    if (y->count == 0) return TCC_OK;
    void *memory = NULL;
    size_t bytes = (size_t)(length + 1) * sizeof(int64_t);
    TCC_RETURN_IF_ERROR(tcc_pool_take(call->pool, bytes, &memory));
    find_bits(condition, 1, UINT8_MAX, length, 0, memory);
    c.places = memory;
    c.together = PART / c.axis.inner + 1;
    int64_t units = (c.axis.outer * c.count + c.together - 1) / c.together;
    TCC_RETURN_IF_ERROR(tcc_op_parallel(call, copy_slices, &c, units, 0));
    tcc_pool_give(call->pool, memory);
    return TCC_OK;
}
