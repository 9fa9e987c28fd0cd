/* Ops that write to places that data name.  Their output holds x before the call and is updated.
 *
 * scatter_elements: inputs (indices i32 or i64, updates), outputs (y), ints (axis, reduction)
 * scatter_nd:       inputs (indices i32 or i64, updates), outputs (y), ints (reduction)
 * max_unpool:       inputs (x, positions i64), outputs (y, zeroed first)
 *
 * A reduction is 0 (the update replaces the element), 1 (add), 2 (mul), 3 (max) or 4 (min); updates
 * are combined in their order.  Sums and products of bools are or and and.  Negative indices count
 * from the end, but positions of max_unpool do not; what lies outside fails with
 * TCC_INVALID_ARGUMENT. */
#include <string.h>

#include "order.h"

enum { REPLACE, ADD, MUL, MAX, MIN, REDUCTIONS };

/* ---- elements -------------------------------------------------------------------------------- */

static float half_to_float(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, magnitude = half & 0x7FFFu, bits;
    float value;
    if (magnitude >= 0x7C00u) {
        bits = sign | 0x7F800000u | (magnitude & 0x3FFu) << 13;
    } else if (magnitude >= 0x400u) {
        bits = sign | ((magnitude << 13) + (112u << 23));
    } else {
        value = (float)magnitude * 0x1p-24f;
        memcpy(&bits, &value, sizeof bits);
        bits |= sign;
    }
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Rounds to nearest, ties to even: sums and products of two halves are exact in double. */
static uint16_t half_of(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint16_t sign = (uint16_t)(bits >> 48 & 0x8000u);
    if (value != value) return (uint16_t)(sign | 0x7E00u);
    double size = value < 0 ? -value : value;
    if (size >= 65520.0) return (uint16_t)(sign | 0x7C00u);
    double unit = 0x1p-24; /* distance of the halves around `size` */
    uint16_t exponent = 0;
    for (double top = 0x1p-13; size >= top && exponent < 29; top *= 2, exponent++) unit *= 2;
    double whole = size / unit; /* at most 2048, exact */
    uint16_t down = (uint16_t)whole;
    double rest = whole - down;
    down = (uint16_t)(down + (rest > 0.5 || (rest == 0.5 && (down & 1))));
    return (uint16_t)(sign | (uint16_t)(down + exponent * 1024));
}

static float brain_to_float(uint16_t brain) {
    uint32_t bits = (uint32_t)brain << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint16_t brain_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value != value) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

/* max and min give a NaN where either is one. */
static double combine_double(int64_t reduction, double a, double b) {
    switch (reduction) {
    case ADD: return a + b;
    case MUL: return a * b;
    case MAX: return a != a || a > b ? a : b;
    default: return a != a || a < b ? a : b;
    }
}

static void combine_float(tcc_dtype dtype, int64_t reduction, void *target, const void *update) {
    if (dtype.bits == 64) {
        double a, b;
        memcpy(&a, target, sizeof a);
        memcpy(&b, update, sizeof b);
        a = combine_double(reduction, a, b);
        memcpy(target, &a, sizeof a);
        return;
    }
    if (dtype.bits == 32) {
        float a, b;
        memcpy(&a, target, sizeof a);
        memcpy(&b, update, sizeof b);
        a = (float)combine_double(reduction, a, b);
        memcpy(target, &a, sizeof a);
        return;
    }
    uint16_t a, b;
    memcpy(&a, target, sizeof a);
    memcpy(&b, update, sizeof b);
    if (dtype.code == 4)
        a = brain_of((float)combine_double(reduction, brain_to_float(a), brain_to_float(b)));
    else
        a = half_of(combine_double(reduction, half_to_float(a), half_to_float(b)));
    memcpy(target, &a, sizeof a);
}

/* The low bits of sums and products are the same for signed and unsigned numbers. */
static void combine_integer(tcc_dtype dtype, int64_t reduction, void *target, const void *update) {
    size_t bytes = dtype.bits / 8u;
    uint64_t a = 0, b = 0;
    memcpy(&a, target, bytes);
    memcpy(&b, update, bytes);
    bool later = tcc_order_key(dtype, update) > tcc_order_key(dtype, target);
    switch (reduction) {
    case ADD: a = dtype.code == 6 ? a | b : a + b; break;
    case MUL: a = dtype.code == 6 ? a & b : a * b; break;
    case MAX: a = later ? b : a; break;
    default: a = later ? a : b;
    }
    memcpy(target, &a, bytes);
}

static void combine(tcc_dtype dtype, int64_t reduction, char *target, const char *update,
                    int64_t count) {
    size_t bytes = dtype.bits / 8u;
    if (reduction == REPLACE) {
        memcpy(target, update, (size_t)count * bytes);
        return;
    }
    for (int64_t i = 0; i < count; i++, target += bytes, update += bytes)
        if (dtype.code == 2 || dtype.code == 4)
            combine_float(dtype, reduction, target, update);
        else
            combine_integer(dtype, reduction, target, update);
}

/* ---- places ---------------------------------------------------------------------------------- */

static tcc_status place_of(const tcc_op_tensor *indices, int64_t at, int64_t size, const char *op,
                           int64_t *out_place) {
    int64_t index;
    if (indices->dtype.bits == 64)
        index = ((const int64_t *)indices->data)[at];
    else
        index = ((const int32_t *)indices->data)[at];
    int64_t place = index < 0 ? index + size : index;
    if (place < 0 || place >= size)
        return tcc_fail(TCC_INVALID_ARGUMENT, "%s: index %lld is outside an axis of %lld elements",
                        op, (long long)index, (long long)size);
    *out_place = place;
    return TCC_OK;
}

static tcc_status check_scatter(const tcc_op_call *call, int64_t reduction, const char *op) {
    const tcc_op_tensor *indices = &call->inputs[0], *updates = &call->inputs[1];
    const tcc_op_tensor *y = &call->outputs[0];
    TCC_RETURN_IF_ERROR(tcc_order_check(y->dtype, op));
    bool index = indices->dtype.code == 0 && (indices->dtype.bits == 64 || indices->dtype.bits == 32);
    if (!index || updates->dtype.code != y->dtype.code || updates->dtype.bits != y->dtype.bits ||
        reduction < 0 || reduction >= REDUCTIONS)
        return tcc_fail(TCC_INTERNAL, "%s: operands do not fit", op);
    return TCC_OK;
}

tcc_status tcc_op_scatter_elements(tcc_op_call *call) {
    static const char op[] = "scatter of elements";
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 2, 1, 2, 0, op));
    int64_t axis = call->ints[0], reduction = call->ints[1];
    TCC_RETURN_IF_ERROR(check_scatter(call, reduction, op));
    const tcc_op_tensor *indices = &call->inputs[0], *updates = &call->inputs[1];
    const tcc_op_tensor *y = &call->outputs[0];
    if (axis < 0 || axis >= y->ndim || indices->ndim != y->ndim || updates->count != indices->count)
        return tcc_fail(TCC_INTERNAL, "%s: operands do not fit", op);
    for (int32_t dim = 0; dim < y->ndim; dim++)
        if (dim != axis && indices->dims[dim] > y->dims[dim])
            return tcc_fail(TCC_INVALID_ARGUMENT, "%s: the indices are larger than the data", op);
    size_t bytes = y->dtype.bits / 8u;
    for (int64_t i = 0; i < indices->count; i++) {
        int64_t at = 0, rest = i, step = 1, place = 0;
        TCC_RETURN_IF_ERROR(place_of(indices, i, y->dims[axis], op, &place));
        for (int32_t dim = y->ndim - 1; dim >= 0; dim--) {
            at += (dim == axis ? place : rest % indices->dims[dim]) * step;
            rest /= indices->dims[dim];
            step *= y->dims[dim];
        }
        combine(y->dtype, reduction, (char *)y->data + (size_t)at * bytes,
                (const char *)updates->data + (size_t)i * bytes, 1);
    }
    return TCC_OK;
}

tcc_status tcc_op_scatter_nd(tcc_op_call *call) {
    static const char op[] = "scatter of slices";
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 2, 1, 1, 0, op));
    int64_t reduction = call->ints[0];
    TCC_RETURN_IF_ERROR(check_scatter(call, reduction, op));
    const tcc_op_tensor *indices = &call->inputs[0], *updates = &call->inputs[1];
    const tcc_op_tensor *y = &call->outputs[0];
    int64_t depth = indices->ndim ? indices->dims[indices->ndim - 1] : -1;
    if (depth < 0 || depth > y->ndim) return tcc_fail(TCC_INTERNAL, "%s: operands do not fit", op);
    int64_t slice = 1, count = 1;
    for (int64_t dim = depth; dim < y->ndim; dim++) slice *= y->dims[dim];
    for (int32_t dim = 0; dim < indices->ndim - 1; dim++) count *= indices->dims[dim];
    if (updates->count != count * slice)
        return tcc_fail(TCC_INTERNAL, "%s: operands do not fit", op);
    size_t bytes = (size_t)slice * (y->dtype.bits / 8u);
    for (int64_t i = 0; i < count; i++) {
        int64_t at = 0, place = 0;
        for (int64_t dim = 0; dim < depth; dim++) {
            TCC_RETURN_IF_ERROR(place_of(indices, i * depth + dim, y->dims[dim], op, &place));
            at = at * y->dims[dim] + place;
        }
        combine(y->dtype, reduction, (char *)y->data + (size_t)at * bytes,
                (const char *)updates->data + (size_t)i * bytes, slice);
    }
    return TCC_OK;
}

tcc_status tcc_op_max_unpool(tcc_op_call *call) {
    static const char op[] = "max-unpool";
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 2, 1, 0, 0, op));
    const tcc_op_tensor *x = &call->inputs[0], *positions = &call->inputs[1];
    const tcc_op_tensor *y = &call->outputs[0];
    if (positions->dtype.code != 0 || positions->dtype.bits != 64 || positions->count != x->count ||
        x->dtype.bits != y->dtype.bits || y->dtype.bits % 8)
        return tcc_fail(TCC_INTERNAL, "%s: operands do not fit", op);
    size_t bytes = y->dtype.bits / 8u;
    memset(y->data, 0, (size_t)y->count * bytes);
    for (int64_t i = 0; i < x->count; i++) {
        int64_t at = ((const int64_t *)positions->data)[i];
        if (at < 0 || at >= y->count)
            return tcc_fail(TCC_INVALID_ARGUMENT, "%s: position %lld is outside %lld elements", op,
                            (long long)at, (long long)y->count);
        memcpy((char *)y->data + (size_t)at * bytes, (const char *)x->data + (size_t)i * bytes, bytes);
    }
    return TCC_OK;
}
