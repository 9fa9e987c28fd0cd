/* index_range: inputs (indices i32 or i64), ints (period, number, low, high), results (least, largest)
 *
 * The least and the largest of the elements number, number + period, ...; where there are none, the
 * largest and the least number there is, so that every check of a range holds.  Where all elements
 * lie within low and high, the results may be these. */
#include "order.h"

enum {
    BLOCK = 64,
    PARTS = 64,  /* parts at most; they do not depend on the number of threads */
    PART = 8192, /* elements that are worth another thread */
};

typedef struct range {
    int64_t smallest, largest;
} range;

typedef struct search {
    const tcc_op_tensor *indices;
    int64_t period, number, low, high;
    int64_t length; /* elements of a part, a multiple of the period */
    range ranges[PARTS];
    tcc_ending *ending;
} search;

static range widened(range r, int64_t low, int64_t high) {
    if (low < r.smallest) r.smallest = low;
    if (high > r.largest) r.largest = high;
    return r;
}

/* Skips whole blocks of elements inside the range: for them neither distance from an end has its
 * sign bit set. */
#define PASS_INSIDE(TYPE, UNSIGNED, LARGEST)                                                       \
    do {                                                                                           \
        const TYPE *x = s->indices->data;                                                          \
        int64_t low = s->low, high = s->high;                                                      \
        if (period != 1 || low > 0 || high < 0 || low < -(LARGEST) || high > (LARGEST) + low) break; \
        for (; n + BLOCK <= stop; n += BLOCK) {                                                    \
            UNSIGNED outside = 0;                                                                  \
            for (int i = 0; i < BLOCK; i++)                                                        \
                outside |= ((UNSIGNED)x[n + i] - (UNSIGNED)low) |                                  \
                           ((UNSIGNED)high - (UNSIGNED)x[n + i]);                                  \
            if (outside > (UNSIGNED)(LARGEST)) break;                                              \
            bounds = (range){low, high};                                                           \
        }                                                                                          \
    } while (0)

/* Keeps two ranges, so that their computations do not wait for each other. */
#define FIND_RANGE(TYPE)                                                                           \
    do {                                                                                           \
        const TYPE *x = s->indices->data;                                                          \
        range other = bounds;                                                                      \
        for (; n + period < stop; n += 2 * period) {                                               \
            bounds = widened(bounds, x[n], x[n]);                                                  \
            other = widened(other, x[n + period], x[n + period]);                                  \
        }                                                                                          \
        if (n < stop) bounds = widened(bounds, x[n], x[n]);                                        \
        bounds = widened(bounds, other.smallest, other.largest);                                   \
    } while (0)

/* Returns the range of elements n, n + period, ... before `stop`. */
static range range_between(const search *s, int64_t n, int64_t stop) {
    int64_t period = s->period;
    range bounds = {INT64_MAX, INT64_MIN};
    if (s->indices->dtype.bits == 32) {
        PASS_INSIDE(int32_t, uint32_t, INT32_MAX);
        FIND_RANGE(int32_t);
    } else {
        PASS_INSIDE(int64_t, uint64_t, INT64_MAX);
        FIND_RANGE(int64_t);
    }
    return bounds;
}

static void search_parts(void *context, int64_t begin, int64_t end, void *room) {
    search *s = context;
    (void)room;
    for (int64_t part = begin; part < end && !tcc_run_ends(s->ending); part++) {
        int64_t first = s->number + part * s->length, remaining = s->indices->count - first;
        s->ranges[part] = range_between(s, first, first + (remaining < s->length ? remaining : s->length));
    }
}

tcc_status tcc_op_index_range(tcc_op_call *call) {
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 1, 0, 4, 2, "index range"));
    search s = {.indices = &call->inputs[0], .period = call->ints[0], .number = call->ints[1],
                .low = call->ints[2], .high = call->ints[3], .ending = call->ending};
    tcc_dtype dtype = s.indices->dtype;
    if (s.period < 1 || s.period > INT32_MAX || s.number < 0 || dtype.code != 0 ||
        (dtype.bits != 32 && dtype.bits != 64))
        return tcc_fail(TCC_CORRUPT, "index range: the program is damaged");
    int64_t count = s.indices->count - s.number;
    int64_t min_length = count / PARTS < PART ? PART : count / PARTS + 1;
    s.length = (min_length + s.period - 1) / s.period * s.period;
    int64_t parts = count > 0 ? (count + s.length - 1) / s.length : 0;
    TCC_RETURN_IF_ERROR(tcc_op_parallel(call, search_parts, &s, parts, 0));
    range bounds = {INT64_MAX, INT64_MIN};
    for (int64_t part = 0; part < parts; part++)
        bounds = widened(bounds, s.ranges[part].smallest, s.ranges[part].largest);
    call->results[0] = bounds.smallest;
    call->results[1] = bounds.largest;
    return TCC_OK;
}
