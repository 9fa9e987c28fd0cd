/* index_range: inputs (indices i32 or i64), ints (period, number), results (least, largest)
 *
 * The least and the largest of the elements number, number + period, ...; where there are none, the
 * largest and the least number there is, so that every check of a range holds. */
#include "order.h"

tcc_status tcc_op_index_range(tcc_op_call *call) {
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 1, 0, 2, 2, "index range"));
    const tcc_op_tensor *x = &call->inputs[0];
    int64_t period = call->ints[0], least = INT64_MAX, largest = INT64_MIN;
    bool narrow = x->dtype.bits == 32;
    if (period < 1 || call->ints[1] < 0 || x->dtype.code != 0 || (!narrow && x->dtype.bits != 64))
        return tcc_fail(TCC_CORRUPT, "index range: the program is damaged");
    const int32_t *singles = x->data;
    const int64_t *doubles = x->data;
    for (int64_t n = call->ints[1]; n < x->count; n += period) {
        int64_t index = narrow ? singles[n] : doubles[n];
        if (index < least) least = index;
        if (index > largest) largest = index;
    }
    call->results[0] = least;
    call->results[1] = largest;
    return TCC_OK;
}
