/* Ops whose result size is a count of true elements; the count comes first, so that the program can
 * allocate exactly.
 *
 * non_zero_count: inputs (x), results (count)
 * non_zero:       inputs (x), outputs (indices i64 [rank, count])
 * compress_count: inputs (x, condition bool [m]), ints (axis, or -1 for flattened), results (count)
 * compress:       inputs (x, condition bool [m]), outputs (y), ints (axis, or -1 for flattened)
 *
 * A condition shorter than the axis ends it; what a longer one says beyond the axis is ignored. */
#include <string.h>

#include "order.h"

static bool is_zero(const char *element, tcc_dtype dtype) {
    uint64_t bits = 0;
    memcpy(&bits, element, dtype.bits / 8u);
    if (dtype.code == 2 || dtype.code == 4) bits &= (UINT64_C(1) << (dtype.bits - 1)) - 1;
    return bits == 0;
}

tcc_status tcc_op_non_zero_count(tcc_op_call *call) {
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 1, 0, 0, 1, "non-zero"));
    const tcc_op_tensor *x = &call->inputs[0];
    TCC_RETURN_IF_ERROR(tcc_order_check(x->dtype, "non-zero"));
    size_t element = x->dtype.bits / 8u;
    int64_t count = 0;
    for (int64_t i = 0; i < x->count; i++)
        count += !is_zero((const char *)x->data + (size_t)i * element, x->dtype);
    call->results[0] = count;
    return TCC_OK;
}

tcc_status tcc_op_non_zero(tcc_op_call *call) {
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 1, 1, 0, 0, "non-zero"));
    const tcc_op_tensor *x = &call->inputs[0], *y = &call->outputs[0];
    TCC_RETURN_IF_ERROR(tcc_order_check(x->dtype, "non-zero"));
    if (y->ndim != 2 || y->dims[0] != x->ndim || y->dtype.code != 0 || y->dtype.bits != 64)
        return tcc_fail(TCC_INTERNAL, "non-zero: results do not fit");
    size_t element = x->dtype.bits / 8u;
    int64_t room = y->dims[1], found = 0, *indices = y->data;
    for (int64_t i = 0; i < x->count && found < room; i++) {
        if (is_zero((const char *)x->data + (size_t)i * element, x->dtype)) continue;
        int64_t rest = i;
        for (int32_t dim = x->ndim - 1; dim >= 0; dim--) {
            indices[dim * room + found] = rest % x->dims[dim];
            rest /= x->dims[dim];
        }
        found++;
    }
    return found == room ? TCC_OK : tcc_fail(TCC_INTERNAL, "non-zero: fewer elements than counted");
}

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

static int64_t count_true(const char *condition, int64_t length) {
    int64_t count = 0;
    for (int64_t i = 0; i < length; i++) count += condition[i] != 0;
    return count;
}

tcc_status tcc_op_compress_count(tcc_op_call *call) {
    tcc_axis axis;
    int64_t length;
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 2, 0, 1, 1, "compress"));
    TCC_RETURN_IF_ERROR(split_for_compress(call, &axis, &length));
    call->results[0] = count_true(call->inputs[1].data, length);
    return TCC_OK;
}

tcc_status tcc_op_compress(tcc_op_call *call) {
    tcc_axis axis;
    int64_t length;
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 2, 1, 1, 0, "compress"));
    TCC_RETURN_IF_ERROR(split_for_compress(call, &axis, &length));
    const tcc_op_tensor *x = &call->inputs[0], *y = &call->outputs[0];
    const char *source = x->data, *condition = call->inputs[1].data;
    char *target = y->data;
    if (y->dtype.bits != x->dtype.bits ||
        y->count != axis.outer * count_true(condition, length) * axis.inner)
        return tcc_fail(TCC_INTERNAL, "compress: results do not fit");
    size_t slice = (size_t)axis.inner * (x->dtype.bits / 8u);
    for (int64_t outer = 0; outer < axis.outer; outer++)
        for (int64_t i = 0; i < length; i++) {
            if (!condition[i]) continue;
            memcpy(target, source + (size_t)(outer * axis.size + i) * slice, slice);
            target += slice;
        }
    return TCC_OK;
}
