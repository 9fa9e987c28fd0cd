/* Keys that order elements of any type, and the sort on them. */
#include "order.h"

#include <string.h>

tcc_status tcc_op_expect(const tcc_op_call *call, int32_t inputs, int32_t outputs, int32_t ints,
                         int32_t results, const char *op) {
    if (call->n_inputs == inputs && call->n_outputs == outputs && call->n_ints == ints &&
        call->n_results == results)
        return TCC_OK;
    return tcc_fail(TCC_INTERNAL, "%s: called with other operands than it has", op);
}

tcc_status tcc_order_check(tcc_dtype dtype, const char *op) {
    bool whole = dtype.bits == 8 || dtype.bits == 16 || dtype.bits == 32 || dtype.bits == 64;
    bool known = dtype.code <= 1 || dtype.code == 6 || (dtype.code == 2 && dtype.bits >= 16) ||
                 (dtype.code == 4 && dtype.bits == 16);
    if (whole && known) return TCC_OK;
    return tcc_fail(TCC_INTERNAL, "%s: no order for element type code %d of %d bits", op, dtype.code,
                    dtype.bits);
}

/* Mantissa bits of the floating types. */
static int32_t mantissa_of(tcc_dtype dtype) {
    if (dtype.code == 4) return 7;
    return dtype.bits == 16 ? 10 : dtype.bits == 32 ? 23 : 52;
}

uint64_t tcc_order_key(tcc_dtype dtype, const void *element) {
    uint64_t bits = 0, sign = UINT64_C(1) << (dtype.bits - 1);
    memcpy(&bits, element, dtype.bits / 8u);
    if (dtype.code == 6) return bits != 0;
    if (dtype.code == 1) return bits;
    if (dtype.code == 0) return bits ^ sign;
    uint64_t magnitude = bits & (sign - 1);
    uint64_t infinity = (sign - 1) & ~((UINT64_C(1) << mantissa_of(dtype)) - 1);
    if (magnitude > infinity) return UINT64_MAX;
    return bits & sign ? sign - magnitude : sign + magnitude;
}

static bool before(tcc_keyed a, tcc_keyed b) {
    return a.key < b.key || (a.key == b.key && a.index < b.index);
}

void tcc_order_sort(tcc_keyed *items, tcc_keyed *room, int64_t count) {
    enum { RUN = 16 };
    for (int64_t start = 0; start < count; start += RUN) {
        int64_t end = start + RUN < count ? start + RUN : count;
        for (int64_t i = start + 1; i < end; i++) {
            tcc_keyed item = items[i];
            int64_t at = i;
            for (; at > start && before(item, items[at - 1]); at--) items[at] = items[at - 1];
            items[at] = item;
        }
    }
    tcc_keyed *from = items, *to = room;
    for (int64_t run = RUN; run < count; run *= 2) {
        for (int64_t start = 0; start < count; start += 2 * run) {
            int64_t middle = start + run < count ? start + run : count;
            int64_t end = start + 2 * run < count ? start + 2 * run : count;
            int64_t left = start, right = middle;
            for (int64_t i = start; i < end; i++)
                to[i] = left < middle && (right >= end || !before(from[right], from[left]))
                            ? from[left++]
                            : from[right++];
        }
        tcc_keyed *swap = from;
        from = to;
        to = swap;
    }
    if (from != items) memcpy(items, from, (size_t)count * sizeof *items);
}

tcc_status tcc_axis_split(const tcc_op_tensor *tensor, int64_t axis, tcc_axis *out_axis) {
    if (axis < 0 || axis >= tensor->ndim)
        return tcc_fail(TCC_INTERNAL, "axis %lld of an array of rank %d", (long long)axis,
                        tensor->ndim);
    *out_axis = (tcc_axis){1, tensor->dims[axis], 1};
    for (int64_t i = 0; i < axis; i++) out_axis->outer *= tensor->dims[i];
    for (int64_t i = axis + 1; i < tensor->ndim; i++) out_axis->inner *= tensor->dims[i];
    return TCC_OK;
}
