/* index_range: inputs (indices i32 or i64), ints (period, number), results (least, largest)
 *
 * The least and the largest of the elements number, number + period, ...; where there are none, the
 * largest and the least number there is, so that every check of a range holds. */
#include "order.h"

typedef struct range {
    int64_t least, largest;
} range;

static range widened(range r, int64_t low, int64_t high) {
    if (low < r.least) r.least = low;
    if (high > r.largest) r.largest = high;
    return r;
}

/* By two ranges that do not wait for each other. */
#define FIND_RANGE(TYPE)                                                                           \
    do {                                                                                           \
        const TYPE *x = indices->data;                                                             \
        for (; n + period < indices->count; n += 2 * period) {                                     \
            even = widened(even, x[n], x[n]);                                                      \
            odd = widened(odd, x[n + period], x[n + period]);                                      \
        }                                                                                          \
        if (n < indices->count) even = widened(even, x[n], x[n]);                                  \
    } while (0)

tcc_status tcc_op_index_range(tcc_op_call *call) {
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 1, 0, 2, 2, "index range"));
    const tcc_op_tensor *indices = &call->inputs[0];
    int64_t period = call->ints[0], n = call->ints[1];
    bool narrow = indices->dtype.bits == 32;
    range even = {INT64_MAX, INT64_MIN}, odd = even;
    if (period < 1 || period > INT32_MAX || n < 0 || indices->dtype.code != 0 ||
        (!narrow && indices->dtype.bits != 64))
        return tcc_fail(TCC_CORRUPT, "index range: the program is damaged");
    if (narrow)
        FIND_RANGE(int32_t);
    else
        FIND_RANGE(int64_t);
    even = widened(even, odd.least, odd.largest);
    call->results[0] = even.least;
    call->results[1] = even.largest;
    return TCC_OK;
}
