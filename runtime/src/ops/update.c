/* update_slice: inputs (x, update, front), outputs (y), ints (axis)
 *
 * y is x, with rows replaced by the update's along the axis.  The first replaced row is the size of
 * `front` along the axis; only the shape of `front` is used.  y may be x. */
#include <string.h>

#include "order.h"

static bool same_dtype(const tcc_op_tensor *a, const tcc_op_tensor *b) {
    return a->dtype.code == b->dtype.code && a->dtype.bits == b->dtype.bits &&
           a->dtype.lanes == b->dtype.lanes;
}

tcc_status tcc_op_update_slice(tcc_op_call *call) {
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 3, 1, 1, 0, "update of a slice"));
    const tcc_op_tensor *x = &call->inputs[0], *update = &call->inputs[1];
    const tcc_op_tensor *y = &call->outputs[0];
    tcc_axis full, part, front;
    TCC_RETURN_IF_ERROR(tcc_axis_split(x, call->ints[0], &full));
    TCC_RETURN_IF_ERROR(tcc_axis_split(update, call->ints[0], &part));
    TCC_RETURN_IF_ERROR(tcc_axis_split(&call->inputs[2], call->ints[0], &front));
    if (x->dtype.bits % 8 || !same_dtype(x, update) || !same_dtype(x, y) || y->count != x->count ||
        part.outer != full.outer || part.inner != full.inner)
        return tcc_fail(TCC_INTERNAL, "update of a slice: operands do not fit");
    if (front.size > full.size || part.size > full.size - front.size)
        return tcc_fail(TCC_INVALID_ARGUMENT, "update of a slice: %lld rows from %lld on, of %lld",
                        (long long)part.size, (long long)front.size, (long long)full.size);
    size_t element = x->dtype.bits / 8u, row = (size_t)full.inner * element;
    char *target = y->data;
    const char *source = update->data;
    if (y->data != x->data)
        TCC_RETURN_IF_ERROR(tcc_copy(call->ending, target, x->data, (size_t)x->count * element));
    if (update->count == 0) return TCC_OK;
    for (int64_t i = 0; i < full.outer && !tcc_run_ends(call->ending); i++)
        memcpy(target + (size_t)(i * full.size + front.size) * row,
               source + (size_t)(i * part.size) * row, (size_t)part.size * row);
    return TCC_OK;
}
