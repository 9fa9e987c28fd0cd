/* sort: inputs (x), outputs (values, indices i64) or (indices), ints (axis, descending).
 * top_k: inputs (x), outputs (values, indices i64), ints (axis, largest, sorted); k is the outputs'
 * size along the axis.  Among equal elements the lower index comes first, both ways. */
#include <string.h>

#include "order.h"

/* What both share: lines of x along the axis, as keys, and where results go. */
typedef struct lines {
    const tcc_op_tensor *source;
    tcc_axis axis;
    size_t element;
    char *values;     /* may be NULL */
    int64_t *indices;
    int64_t kept; /* size of the results along the axis */
    bool descending;
} lines;

static void load_line(const lines *lines, int64_t outer, int64_t inner, tcc_keyed *items) {
    const char *base = lines->source->data;
    for (int64_t i = 0; i < lines->axis.size; i++) {
        int64_t at = (outer * lines->axis.size + i) * lines->axis.inner + inner;
        uint64_t key = tcc_order_key(lines->source->dtype, base + (size_t)at * lines->element);
        items[i] = (tcc_keyed){lines->descending ? ~key : key, i};
    }
}

static void store_line(const lines *lines, int64_t outer, int64_t inner, const tcc_keyed *items) {
    const char *base = lines->source->data;
    for (int64_t i = 0; i < lines->kept; i++) {
        int64_t to = (outer * lines->kept + i) * lines->axis.inner + inner;
        int64_t from = (outer * lines->axis.size + items[i].index) * lines->axis.inner + inner;
        lines->indices[to] = items[i].index;
        if (lines->values)
            memcpy(lines->values + (size_t)to * lines->element, base + (size_t)from * lines->element,
                   lines->element);
    }
}

static bool after(tcc_keyed a, tcc_keyed b) {
    return a.key > b.key || (a.key == b.key && a.index > b.index);
}

/* Restores the heap (the last in order on top) below `at`. */
static void sift(tcc_keyed *heap, int64_t count, int64_t at) {
    tcc_keyed item = heap[at];
    for (int64_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && after(heap[child + 1], heap[child])) child++;
        if (!after(heap[child], item)) break;
        heap[at] = heap[child];
    }
    heap[at] = item;
}

/* Moves the first `kept` items, in order, to the front. */
static void select_first(tcc_keyed *items, tcc_keyed *room, int64_t count, int64_t kept) {
    if (kept == 0) return;
    for (int64_t at = kept / 2 - 1; at >= 0; at--) sift(items, kept, at);
    for (int64_t i = kept; i < count; i++)
        if (after(items[0], items[i])) {
            items[0] = items[i];
            sift(items, kept, 0);
        }
    tcc_order_sort(items, room, kept);
}

static tcc_status order_lines(tcc_op_call *call, const lines *lines) {
    int64_t size = lines->axis.size;
    if (size > INT64_MAX / 64) return tcc_fail(TCC_OUT_OF_MEMORY, "sort: too many elements");
    void *memory = NULL;
    TCC_RETURN_IF_ERROR(
        tcc_pool_take(call->pool, (size_t)(size * 2) * sizeof(tcc_keyed), &memory));
    tcc_keyed *items = memory, *room = items + size;
    for (int64_t outer = 0; outer < lines->axis.outer; outer++)
        for (int64_t inner = 0; inner < lines->axis.inner; inner++) {
            load_line(lines, outer, inner, items);
            if (lines->kept < size)
                select_first(items, room, size, lines->kept);
            else
                tcc_order_sort(items, room, size);
            store_line(lines, outer, inner, items);
        }
    tcc_pool_give(call->pool, memory);
    return TCC_OK;
}

static tcc_status check_indices(const tcc_op_tensor *indices, int64_t expected, const char *op) {
    if (indices->dtype.code == 0 && indices->dtype.bits == 64 && indices->count == expected)
        return TCC_OK;
    return tcc_fail(TCC_INTERNAL, "%s: results do not fit", op);
}

tcc_status tcc_op_sort(tcc_op_call *call) {
    bool with_values = call->n_outputs == 2;
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 1, with_values ? 2 : 1, 2, 0, "sort"));
    const tcc_op_tensor *x = &call->inputs[0], *indices = &call->outputs[with_values];
    TCC_RETURN_IF_ERROR(tcc_order_check(x->dtype, "sort"));
    lines lines = {.source = x, .element = x->dtype.bits / 8u, .descending = call->ints[1] != 0};
    TCC_RETURN_IF_ERROR(tcc_axis_split(x, call->ints[0], &lines.axis));
    TCC_RETURN_IF_ERROR(check_indices(indices, x->count, "sort"));
    if (with_values && (call->outputs[0].count != x->count ||
                        call->outputs[0].dtype.bits != x->dtype.bits))
        return tcc_fail(TCC_INTERNAL, "sort: results do not fit");
    lines.values = with_values ? call->outputs[0].data : NULL;
    lines.indices = indices->data;
    lines.kept = lines.axis.size;
    return order_lines(call, &lines);
}

tcc_status tcc_op_top_k(tcc_op_call *call) {
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 1, 2, 3, 0, "top-k"));
    const tcc_op_tensor *x = &call->inputs[0], *values = &call->outputs[0];
    TCC_RETURN_IF_ERROR(tcc_order_check(x->dtype, "top-k"));
    lines lines = {.source = x, .element = x->dtype.bits / 8u, .descending = call->ints[1] != 0};
    tcc_axis result;
    TCC_RETURN_IF_ERROR(tcc_axis_split(x, call->ints[0], &lines.axis));
    TCC_RETURN_IF_ERROR(tcc_axis_split(values, call->ints[0], &result));
    TCC_RETURN_IF_ERROR(check_indices(&call->outputs[1], values->count, "top-k"));
    if (result.outer != lines.axis.outer || result.inner != lines.axis.inner ||
        values->dtype.bits != x->dtype.bits)
        return tcc_fail(TCC_INTERNAL, "top-k: results do not fit");
    if (result.size > lines.axis.size)
        return tcc_fail(TCC_INVALID_ARGUMENT, "top-k: k is %lld, but the axis has %lld elements",
                        (long long)result.size, (long long)lines.axis.size);
    lines.values = values->data;
    lines.indices = call->outputs[1].data;
    lines.kept = result.size; /* `sorted` asks for nothing more: results are always in order */
    return order_lines(call, &lines);
}
