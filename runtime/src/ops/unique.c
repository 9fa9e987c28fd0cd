/* unique_count: inputs (x), ints (axis, or -1 for flattened; sorted), results (count)
 * unique:       inputs (x), outputs (y, first indices i64 [count], inverse indices i64 [axis], counts
 *               i64 [count]), ints as above; y has `count` along the axis
 *
 * Unsorted means in order of first appearance.  Slices are compared element by element; all NaN are
 * one value. */
#include <string.h>

#include "order.h"

typedef struct slices {
    const tcc_op_tensor *x;
    tcc_axis axis;
    size_t element;
    tcc_ending *ending;
} slices;

enum { LOOKS = 1 << 8 }; /* slices between two checks whether the run ends */

static int compare_slices(const slices *slices, int64_t a, int64_t b) {
    const char *data = slices->x->data;
    for (int64_t outer = 0; outer < slices->axis.outer; outer++)
        for (int64_t inner = 0; inner < slices->axis.inner; inner++) {
            int64_t row = outer * slices->axis.size;
            uint64_t left = tcc_order_key(
                slices->x->dtype,
                data + (size_t)((row + a) * slices->axis.inner + inner) * slices->element);
            uint64_t right = tcc_order_key(
                slices->x->dtype,
                data + (size_t)((row + b) * slices->axis.inner + inner) * slices->element);
            if (left != right) return left < right ? -1 : 1;
        }
    return 0;
}

/* Orders slices of one element each by their keys. */
static void sort_elements(const slices *slices, int64_t *order, tcc_keyed *room, int64_t count) {
    tcc_order_load_line(slices->x->dtype, slices->x->data, count, 0, room, slices->ending);
    if (tcc_has_ended(slices->ending)) return;
    tcc_order_sort(room, room + count, count, slices->ending);
    if (tcc_has_ended(slices->ending)) return;
    for (int64_t i = 0; i < count; i++) order[i] = room[i].index;
}

/* Orders the numbers of the slices; equal slices are ordered by number.  It is a merge sort on the
 * slices themselves.  `items` has room for two keyed items per slice. */
static void sort_slices(const slices *slices, int64_t *order, tcc_keyed *items, int64_t count) {
    if (slices->axis.outer * slices->axis.inner == 1) {
        sort_elements(slices, order, items, count);
        return;
    }
    int64_t *room = (int64_t *)items;
    for (int64_t i = 0; i < count; i++) order[i] = i;
    int64_t *from = order, *to = room;
    for (int64_t run = 1; run < count; run *= 2) {
        for (int64_t start = 0; start < count && !tcc_has_ended(slices->ending); start += 2 * run) {
            int64_t middle = start + run < count ? start + run : count;
            int64_t end = start + 2 * run < count ? start + 2 * run : count;
            int64_t left = start, right = middle;
            for (int64_t i = start; i < end && !tcc_ends_at(slices->ending, i, LOOKS); i++)
                to[i] = left < middle && (right >= end ||
                                          compare_slices(slices, from[right], from[left]) >= 0)
                            ? from[left++]
                            : from[right++];
        }
        if (tcc_has_ended(slices->ending)) return;
        int64_t *swap = from;
        from = to;
        to = swap;
    }
    if (from != order) memcpy(order, from, (size_t)count * sizeof *order);
}

/* Groups equal neighbours of `order`; returns how many groups.  A group's first index is its
 * smallest, because the sort is stable. */
static int64_t group(const slices *slices, const int64_t *order, int64_t *first, int64_t *inverse,
                     int64_t *counts) {
    int64_t groups = 0;
    for (int64_t i = 0; i < slices->axis.size && !tcc_ends_at(slices->ending, i, LOOKS); i++) {
        if (i == 0 || compare_slices(slices, order[i - 1], order[i]) != 0) {
            first[groups] = order[i];
            counts[groups++] = 0;
        }
        counts[groups - 1]++;
        inverse[order[i]] = groups - 1;
    }
    return groups;
}

/* Renumbers groups by first appearance; `room` holds 2 * groups keyed items. */
static void order_by_appearance(int64_t groups, int64_t size, int64_t *first, int64_t *inverse,
                                int64_t *counts, tcc_keyed *room, tcc_ending *ending) {
    tcc_keyed *items = room;
    for (int64_t g = 0; g < groups; g++) items[g] = (tcc_keyed){(uint64_t)first[g], g};
    tcc_order_sort(items, room + groups, groups, ending);
    int64_t *rank = (int64_t *)(room + groups), *old_counts = rank + groups;
    memcpy(old_counts, counts, (size_t)groups * sizeof *counts);
    for (int64_t g = 0; g < groups; g++) {
        first[g] = (int64_t)items[g].key;
        counts[g] = old_counts[items[g].index];
        rank[items[g].index] = g;
    }
    for (int64_t i = 0; i < size; i++) inverse[i] = rank[inverse[i]];
}

static void gather_slices(const slices *slices, const int64_t *first, int64_t groups, char *y) {
    size_t slice = (size_t)slices->axis.inner * slices->element;
    const char *data = slices->x->data;
    for (int64_t outer = 0; outer < slices->axis.outer; outer++)
        for (int64_t g = 0; g < groups; g++) {
            memcpy(y, data + (size_t)(outer * slices->axis.size + first[g]) * slice, slice);
            y += slice;
        }
}

static tcc_status find_slices(const tcc_op_call *call, slices *out_slices) {
    const tcc_op_tensor *x = &call->inputs[0];
    TCC_RETURN_IF_ERROR(tcc_order_check(x->dtype, "unique"));
    *out_slices = (slices){x, {1, x->count, 1}, x->dtype.bits / 8u, call->ending};
    if (call->ints[0] >= 0) TCC_RETURN_IF_ERROR(tcc_axis_split(x, call->ints[0], &out_slices->axis));
    if (out_slices->axis.size <= INT64_MAX / 64) return TCC_OK;
    return tcc_fail(TCC_OUT_OF_MEMORY, "unique: too many elements");
}

tcc_status tcc_op_unique_count(tcc_op_call *call) {
    slices slices;
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 1, 0, 2, 1, "unique"));
    TCC_RETURN_IF_ERROR(find_slices(call, &slices));
    int64_t size = slices.axis.size, groups = size > 0;
    void *memory = NULL;
    size_t bytes = (size_t)size * (2 * sizeof(tcc_keyed) + sizeof(int64_t));
    TCC_RETURN_IF_ERROR(tcc_pool_take(call->pool, bytes, &memory));
    tcc_keyed *room = memory;
    int64_t *order = (int64_t *)(room + 2 * size);
    sort_slices(&slices, order, room, size);
    if (tcc_has_ended(call->ending)) return tcc_cancelled(call->ending);
    for (int64_t i = 1; i < size && !tcc_ends_at(call->ending, i, LOOKS); i++)
        groups += compare_slices(&slices, order[i - 1], order[i]) != 0;
    tcc_pool_give(call->pool, memory);
    call->results[0] = groups;
    return TCC_OK;
}

static bool is_index_vector(const tcc_op_tensor *tensor, int64_t count) {
    return tensor->dtype.code == 0 && tensor->dtype.bits == 64 && tensor->count == count;
}

tcc_status tcc_op_unique(tcc_op_call *call) {
    slices slices;
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 1, 4, 2, 0, "unique"));
    TCC_RETURN_IF_ERROR(find_slices(call, &slices));
    const tcc_op_tensor *outputs = call->outputs;
    int64_t size = slices.axis.size, groups = outputs[1].count;
    int64_t elements = slices.axis.outer * slices.axis.inner * groups;
    if (!is_index_vector(&outputs[1], groups) || !is_index_vector(&outputs[2], size) ||
        !is_index_vector(&outputs[3], groups) || outputs[0].count != elements ||
        outputs[0].dtype.bits != slices.x->dtype.bits)
        return tcc_fail(TCC_INTERNAL, "unique: results do not fit");
    void *memory = NULL;
    /* memory for sorting, also used for the groups; then for the order, first indices and counts */
    size_t bytes = (size_t)size * (2 * sizeof(tcc_keyed) + 3 * sizeof(int64_t));
    TCC_RETURN_IF_ERROR(tcc_pool_take(call->pool, bytes, &memory));
    tcc_keyed *room = memory;
    int64_t *order = (int64_t *)(room + 2 * size), *first = order + size, *counts = first + size;
    int64_t *inverse = outputs[2].data;
    sort_slices(&slices, order, room, size);
    if (tcc_has_ended(call->ending)) return tcc_cancelled(call->ending);
    bool fits = group(&slices, order, first, inverse, counts) == groups;
    if (tcc_has_ended(call->ending)) return tcc_cancelled(call->ending);
    if (fits) {
        memcpy(outputs[1].data, first, (size_t)groups * sizeof *first);
        memcpy(outputs[3].data, counts, (size_t)groups * sizeof *counts);
        if (!call->ints[1])
            order_by_appearance(groups, size, outputs[1].data, inverse, outputs[3].data, room,
                                call->ending);
        gather_slices(&slices, outputs[1].data, groups, outputs[0].data);
    }
    tcc_pool_give(call->pool, memory);
    return fits ? TCC_OK : tcc_fail(TCC_INTERNAL, "unique: another count than before");
}
