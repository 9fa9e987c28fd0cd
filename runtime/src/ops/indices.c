/* index_range: inputs (indices i32 or i64), ints (period, number, low, high), results (least, largest)
 *
 * The least and the largest of the elements number, number + period, ...; where there are none, the
 * largest and the least number there is, so that every check of a range holds.  Where all elements
 * lie within low and high, the results may be these. */
#include "order.h"

enum { BLOCK = 64 };

typedef struct range {
    int64_t least, largest;
} range;

static range widened(range r, int64_t low, int64_t high) {
    if (low < r.least) r.least = low;
    if (high > r.largest) r.largest = high;
    return r;
}

/* Passes whole blocks of elements that are inside: neither distance from the ends has its sign bit. */
#define PASS_INSIDE(TYPE, UNSIGNED, LARGEST)                                                       \
    do {                                                                                           \
        const TYPE *x = indices->data;                                                             \
        if (period != 1 || low > 0 || high < 0 || low < -(LARGEST) || high > (LARGEST) + low) break; \
        for (; n + BLOCK <= indices->count; n += BLOCK) {                                          \
            UNSIGNED outside = 0;                                                                  \
            for (int i = 0; i < BLOCK; i++)                                                        \
                outside |= ((UNSIGNED)x[n + i] - (UNSIGNED)low) |                                  \
                           ((UNSIGNED)high - (UNSIGNED)x[n + i]);                                  \
            if (outside > (UNSIGNED)(LARGEST)) break;                                              \
            found = (range){low, high};                                                            \
        }                                                                                          \
    } while (0)

/* By two ranges that do not wait for each other. */
#define FIND_RANGE(TYPE)                                                                           \
    do {                                                                                           \
        const TYPE *x = indices->data;                                                             \
        range other = found;                                                                       \
        for (; n + period < indices->count; n += 2 * period) {                                     \
            found = widened(found, x[n], x[n]);                                                    \
            other = widened(other, x[n + period], x[n + period]);                                  \
        }                                                                                          \
        if (n < indices->count) found = widened(found, x[n], x[n]);                                \
        found = widened(found, other.least, other.largest);                                        \
    } while (0)

tcc_status tcc_op_index_range(tcc_op_call *call) {
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 1, 0, 4, 2, "index range"));
    const tcc_op_tensor *indices = &call->inputs[0];
    int64_t period = call->ints[0], n = call->ints[1], low = call->ints[2], high = call->ints[3];
    bool narrow = indices->dtype.bits == 32;
    range found = {INT64_MAX, INT64_MIN};
    if (period < 1 || period > INT32_MAX || n < 0 || indices->dtype.code != 0 ||
        (!narrow && indices->dtype.bits != 64))
        return tcc_fail(TCC_CORRUPT, "index range: the program is damaged");
    if (narrow) {
        PASS_INSIDE(int32_t, uint32_t, INT32_MAX);
        FIND_RANGE(int32_t);
    } else {
        PASS_INSIDE(int64_t, uint64_t, INT64_MAX);
        FIND_RANGE(int64_t);
    }
    call->results[0] = found.least;
    call->results[1] = found.largest;
    return TCC_OK;
}
