/* Sequences and optionals: lists of tensors.  A list is a handle, u64 [].  Types in ints are words:
 * code << 8 | bits of an element type.  Positions are i64 [] and may be left out: the last place.
 *
 * list_make:         inputs (entries...), outputs (list), ints (type)
 * list_insert:       inputs (list, entry, position?), outputs (list), ints (type)
 * list_erase:        inputs (list, position?), outputs (list)
 * list_length:       inputs (list), outputs (count i64 [])
 * list_shape:        inputs (list, position?), ints (type, rank, sizes...), results (sizes...)
 * list_at:           as list_shape, outputs (entry)
 * list_concat_shape: inputs (list), ints (axis, is it new?, type), results (sizes...)
 * list_concat:       as list_concat_shape, outputs (y)
 * list_split:        inputs (x, sizes i64 [n] or the size of all []), outputs (list), ints (axis, keep
 *                    the axis?, type)
 * list_expect:       inputs (list), outputs (list), ints (1 optional or 2 sequence for each level, 0,
 *                    type, rank, sizes...); -1 is any rank or size */
#include <string.h>

#include "order.h"

static tcc_dtype type_of(int64_t word) {
    return (tcc_dtype){(uint8_t)(word >> 8), (uint8_t)(word & 0xFF), 1};
}

static tcc_status misfit(void) { return tcc_fail(TCC_INTERNAL, "lists: operands do not fit"); }

static bool is_scalar(const tcc_op_tensor *tensor, int code) {
    return tensor->count == 1 && tensor->dtype.code == code && tensor->dtype.bits == 64;
}

static tcc_status read_list(const tcc_op_call *call, tcc_list_value *out_list) {
    if (call->n_inputs < 1 || !is_scalar(&call->inputs[0], 1)) return misfit();
    return tcc_heap_list(call->heap, *(const uint64_t *)call->inputs[0].data, out_list);
}

static tcc_status write_list(const tcc_op_call *call, tcc_list_value list) {
    if (call->n_outputs != 1 || !is_scalar(&call->outputs[0], 1)) return misfit();
    return tcc_heap_name_list(call->heap, list, call->outputs[0].data);
}

/* Reads the place that operand `number` gives, one of `places`; the last place without the
 * operand. */
static tcc_status read_place(const tcc_op_call *call, int32_t number, int64_t count, int64_t places,
                             int64_t *out_place) {
    int64_t at = places - 1;
    if (call->n_inputs > number) {
        if (!is_scalar(&call->inputs[number], 0)) return misfit();
        at = *(const int64_t *)call->inputs[number].data;
    }
    *out_place = at < 0 && at >= -count ? at + count : at;
    if (*out_place >= 0 && *out_place < places) return TCC_OK;
    return tcc_fail(TCC_INVALID_ARGUMENT, "position %lld in a sequence of %lld", (long long)at,
                    (long long)count);
}

static bool is_list(tcc_dtype dtype) { return tcc_is_opaque(dtype) && !tcc_is_string(dtype); }

/* Copies `x` as an entry of type `word`.  A list inside is not copied, because no list can contain
 * itself. */
static tcc_status take_entry(const tcc_op_call *call, const tcc_op_tensor *x, int64_t word,
                             tcc_op_tensor *out_entry) {
    tcc_list_value entries;
    tcc_op_tensor viewed = *x;
    viewed.dtype = type_of(word);
    if (tcc_stored_bytes(viewed.dtype, 8) != tcc_stored_bytes(x->dtype, 8)) return misfit();
    if (is_list(viewed.dtype) && x->count != 1) return misfit();
    if (is_list(viewed.dtype))
        TCC_RETURN_IF_ERROR(tcc_heap_list(call->heap, *(const uint64_t *)x->data, &entries));
    return tcc_heap_copy(call->heap, &viewed, out_entry);
}

tcc_status tcc_op_list_make(tcc_op_call *call) {
    tcc_list_value list = {NULL, 0};
    if (call->n_ints != 1) return misfit();
    for (int32_t i = 0; i < call->n_inputs; i++) {
        tcc_op_tensor entry;
        TCC_RETURN_IF_ERROR(take_entry(call, &call->inputs[i], call->ints[0], &entry));
        TCC_RETURN_IF_ERROR(tcc_heap_append(call->heap, list, &entry, &list));
    }
    return write_list(call, list);
}

tcc_status tcc_op_list_insert(tcc_op_call *call) {
    tcc_list_value list, result;
    tcc_op_tensor entry;
    int64_t place = 0;
    if (call->n_inputs < 2 || call->n_ints != 1) return misfit();
    TCC_RETURN_IF_ERROR(read_list(call, &list));
    TCC_RETURN_IF_ERROR(read_place(call, 2, list.count, list.count + 1, &place));
    TCC_RETURN_IF_ERROR(take_entry(call, &call->inputs[1], call->ints[0], &entry));
    result = (tcc_list_value){list.entries, place};
    TCC_RETURN_IF_ERROR(tcc_heap_append(call->heap, result, &entry, &result));
    for (int64_t i = place; i < list.count; i++)
        TCC_RETURN_IF_ERROR(tcc_heap_append(call->heap, result, &list.entries->items[i], &result));
    return write_list(call, result);
}

tcc_status tcc_op_list_erase(tcc_op_call *call) {
    tcc_list_value list, result;
    int64_t place = 0;
    TCC_RETURN_IF_ERROR(read_list(call, &list));
    TCC_RETURN_IF_ERROR(read_place(call, 1, list.count, list.count, &place));
    result = (tcc_list_value){list.entries, place};
    for (int64_t i = place + 1; i < list.count; i++)
        TCC_RETURN_IF_ERROR(tcc_heap_append(call->heap, result, &list.entries->items[i], &result));
    return write_list(call, result);
}

tcc_status tcc_op_list_length(tcc_op_call *call) {
    tcc_list_value list;
    TCC_RETURN_IF_ERROR(read_list(call, &list));
    if (call->n_outputs != 1 || !is_scalar(&call->outputs[0], 0)) return misfit();
    *(int64_t *)call->outputs[0].data = list.count;
    return TCC_OK;
}

/* ---- entries as tensors ---------------------------------------------------------------------------- */

static tcc_status wrong_entry(const tcc_op_tensor *entry, const char *expected) {
    char type[16];
    return tcc_fail(TCC_INVALID_ARGUMENT, "an entry of a sequence (%s, %d dimensions) has another %s "
                    "than the model takes", tcc_dtype_name(entry->dtype, type), entry->ndim, expected);
}

/* Checks an entry against `words`: type, rank and sizes, `count` words in all. */
static tcc_status check_entry(const tcc_op_tensor *entry, const int64_t *words, int64_t count) {
    if (count < 2 || (words[1] >= 0 && count - 2 != words[1])) return misfit();
    tcc_dtype due = type_of(words[0]);
    if (entry->dtype.code != due.code || entry->dtype.bits != due.bits)
        return wrong_entry(entry, "element type");
    if (words[1] < 0) return TCC_OK;
    if (entry->ndim != words[1]) return wrong_entry(entry, "number of dimensions");
    for (int32_t i = 0; i < entry->ndim; i++)
        if (words[2 + i] >= 0 && entry->dims[i] != words[2 + i]) return wrong_entry(entry, "size");
    return TCC_OK;
}

static tcc_status find_entry(const tcc_op_call *call, tcc_op_tensor *out_entry) {
    tcc_list_value list;
    int64_t place = 0;
    TCC_RETURN_IF_ERROR(read_list(call, &list));
    if (list.count == 0)
        return tcc_fail(TCC_INVALID_ARGUMENT, "an empty sequence or optional has no element");
    TCC_RETURN_IF_ERROR(read_place(call, 1, list.count, list.count, &place));
    *out_entry = list.entries->items[place];
    return check_entry(out_entry, call->ints, call->n_ints);
}

tcc_status tcc_op_list_shape(tcc_op_call *call) {
    tcc_op_tensor entry;
    TCC_RETURN_IF_ERROR(find_entry(call, &entry));
    if (call->n_results != entry.ndim) return misfit();
    for (int32_t i = 0; i < entry.ndim; i++) call->results[i] = entry.dims[i];
    return TCC_OK;
}

/* Computes the bytes of an array that the program made for data of the heap. */
static tcc_status result_bytes(const tcc_op_call *call, tcc_dtype dtype, int64_t count,
                               size_t *out_bytes) {
    int64_t bytes = tcc_stored_bytes(dtype, count);
    if (call->n_outputs != 1 || call->outputs[0].count != count || bytes < 0 ||
        tcc_stored_bytes(call->outputs[0].dtype, count) != bytes)
        return misfit();
    *out_bytes = (size_t)bytes;
    return TCC_OK;
}

tcc_status tcc_op_list_at(tcc_op_call *call) {
    tcc_op_tensor entry;
    size_t bytes = 0;
    TCC_RETURN_IF_ERROR(find_entry(call, &entry));
    TCC_RETURN_IF_ERROR(result_bytes(call, entry.dtype, entry.count, &bytes));
    if (bytes) memcpy(call->outputs[0].data, entry.data, bytes);
    return TCC_OK;
}

static tcc_status expect(const tcc_heap *heap, uint64_t handle, const int64_t *words, int64_t count) {
    tcc_list_value list;
    if (count < 2 || words[0] < 1 || words[0] > 2) return misfit();
    TCC_RETURN_IF_ERROR(tcc_heap_list(heap, handle, &list));
    if (words[0] == 1 && list.count > 1)
        return tcc_fail(TCC_INVALID_ARGUMENT, "an optional has %lld elements", (long long)list.count);
    for (int64_t i = 0; i < list.count; i++) {
        const tcc_op_tensor *entry = &list.entries->items[i];
        if (words[1] == 0) {
            TCC_RETURN_IF_ERROR(check_entry(entry, words + 2, count - 2));
        } else {
            if (!is_list(entry->dtype) || entry->count != 1)
                return wrong_entry(entry, "element type");
            TCC_RETURN_IF_ERROR(expect(heap, *(uint64_t *)entry->data, words + 1, count - 1));
        }
    }
    return TCC_OK;
}

tcc_status tcc_op_list_expect(tcc_op_call *call) {
    tcc_list_value list;
    TCC_RETURN_IF_ERROR(read_list(call, &list));
    if (call->n_outputs != 1 || !is_scalar(&call->outputs[0], 1)) return misfit();
    uint64_t handle = *(const uint64_t *)call->inputs[0].data;
    TCC_RETURN_IF_ERROR(expect(call->heap, handle, call->ints, call->n_ints));
    *(uint64_t *)call->outputs[0].data = handle;
    return TCC_OK;
}

/* ---- joining and cutting --------------------------------------------------------------------------- */

typedef struct join {
    tcc_list_value list;
    int64_t axis, extent; /* the result's */
    int64_t outer, inner; /* elements before and behind the axis */
    bool is_new;
    tcc_dtype dtype;
} join;

/* Checks that the entries can be joined.  Writes the sizes of the result if `sizes` is not NULL. */
static tcc_status plan_join(const tcc_op_call *call, join *j, int64_t *sizes, int32_t rank) {
    if (call->n_ints != 3) return misfit();
    *j = (join){.axis = call->ints[0], .is_new = call->ints[1] != 0, .outer = 1, .inner = 1};
    j->dtype = type_of(call->ints[2]);
    TCC_RETURN_IF_ERROR(read_list(call, &j->list));
    if (j->list.count == 0)
        return tcc_fail(TCC_INVALID_ARGUMENT, "an empty sequence cannot be joined");
    const tcc_op_tensor *first = &j->list.entries->items[0];
    if (j->axis < 0 || j->axis >= first->ndim + j->is_new)
        return wrong_entry(first, "number of dimensions");
    if (sizes && rank != first->ndim + j->is_new) return wrong_entry(first, "number of dimensions");
    for (int64_t i = 0; i < j->list.count; i++) {
        const tcc_op_tensor *entry = &j->list.entries->items[i];
        if (entry->dtype.code != j->dtype.code || entry->dtype.bits != j->dtype.bits)
            return wrong_entry(entry, "element type");
        if (entry->ndim != first->ndim) return wrong_entry(entry, "number of dimensions");
        for (int32_t dim = 0; dim < entry->ndim; dim++)
            if ((j->is_new || dim != j->axis) && entry->dims[dim] != first->dims[dim])
                return tcc_fail(TCC_INVALID_ARGUMENT,
                                "entries of a sequence that are joined have different sizes");
        if (__builtin_add_overflow(j->extent, j->is_new ? 1 : entry->dims[j->axis], &j->extent))
            return tcc_fail(TCC_INVALID_ARGUMENT, "a joined sequence is too large");
    }
    for (int32_t dim = 0; dim < first->ndim; dim++) {
        if (dim < j->axis) j->outer *= first->dims[dim];
        if (dim > j->axis || (j->is_new && dim == j->axis)) j->inner *= first->dims[dim];
    }
    for (int32_t dim = 0; sizes && dim < rank; dim++)
        sizes[dim] = dim == j->axis ? j->extent : first->dims[dim - (j->is_new && dim > j->axis)];
    return TCC_OK;
}

tcc_status tcc_op_list_concat_shape(tcc_op_call *call) {
    join j;
    return plan_join(call, &j, call->results, call->n_results);
}

tcc_status tcc_op_list_concat(tcc_op_call *call) {
    join j;
    size_t bytes = 0;
    TCC_RETURN_IF_ERROR(plan_join(call, &j, NULL, 0));
    int64_t count;
    if (__builtin_mul_overflow(j.outer * j.inner, j.extent, &count)) return misfit();
    TCC_RETURN_IF_ERROR(result_bytes(call, j.dtype, count, &bytes));
    if (count == 0) return TCC_OK;
    int64_t element = tcc_stored_bytes(j.dtype, 1);
    if (tcc_stored_bytes(j.dtype, 8) != 8 * element) return misfit();
    char *target = call->outputs[0].data;
    for (int64_t outer = 0; outer < j.outer; outer++)
        for (int64_t i = 0; i < j.list.count; i++) {
            const tcc_op_tensor *entry = &j.list.entries->items[i];
            size_t part = (size_t)((j.is_new ? 1 : entry->dims[j.axis]) * j.inner * element);
            if (part) memcpy(target, (const char *)entry->data + (size_t)outer * part, part);
            target += part;
        }
    return TCC_OK;
}

/* Makes an entry of the elements `from` to `to` - 1 of an axis of x. */
static tcc_status cut(const tcc_op_call *call, const tcc_axis *axis, int64_t from, int64_t to,
                      tcc_list_value *list) {
    const tcc_op_tensor *x = &call->inputs[0];
    bool keep = call->ints[1] != 0;
    int64_t element = tcc_stored_bytes(x->dtype, 1);
    size_t run = (size_t)((to - from) * axis->inner * element);
    size_t step = (size_t)(axis->size * axis->inner * element);
    void *dims = NULL, *data = NULL;
    TCC_RETURN_IF_ERROR(tcc_heap_take(call->heap, (size_t)x->ndim * sizeof(int64_t), &dims));
    TCC_RETURN_IF_ERROR(tcc_heap_take(call->heap, (size_t)axis->outer * run, &data));
    int64_t *sizes = dims;
    int32_t rank = 0;
    for (int32_t dim = 0; dim < x->ndim; dim++)
        if (dim != call->ints[0])
            sizes[rank++] = x->dims[dim];
        else if (keep)
            sizes[rank++] = to - from;
    const char *source = (const char *)x->data + (size_t)(from * axis->inner * element);
    for (int64_t outer = 0; outer < axis->outer && run; outer++)
        memcpy((char *)data + (size_t)outer * run, source + (size_t)outer * step, run);
    tcc_op_tensor entry = {data, type_of(call->ints[2]), rank, sizes,
                           axis->outer * (to - from) * axis->inner};
    return tcc_heap_append(call->heap, *list, &entry, list);
}

tcc_status tcc_op_list_split(tcc_op_call *call) {
    tcc_axis axis;
    tcc_list_value list = {NULL, 0};
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 2, 1, 3, 0, "list_split"));
    TCC_RETURN_IF_ERROR(tcc_op_expect_types(call, ".ih", "list_split"));
    const tcc_op_tensor *x = &call->inputs[0], *split = &call->inputs[1];
    tcc_dtype type = type_of(call->ints[2]);
    if (x->dtype.bits % 8 || is_list(type) || tcc_stored_bytes(type, 8) != tcc_stored_bytes(x->dtype, 8))
        return misfit();
    TCC_RETURN_IF_ERROR(tcc_axis_split(x, call->ints[0], &axis));
    const int64_t *sizes = split->data;
    bool equal = split->ndim == 0;
    int64_t at = 0, number = 0;
    for (; equal ? at < axis.size : number < split->count; number++) {
        int64_t size = sizes[equal ? 0 : number];
        if (size < equal || (!equal && size > axis.size - at))
            return tcc_fail(TCC_INVALID_ARGUMENT, "a piece of %lld of an axis of %lld",
                            (long long)size, (long long)axis.size);
        int64_t to = size > axis.size - at ? axis.size : at + size;
        if (!call->ints[1] && to - at != 1) return misfit();
        TCC_RETURN_IF_ERROR(cut(call, &axis, at, to, &list));
        at = to;
    }
    if (at != axis.size)
        return tcc_fail(TCC_INVALID_ARGUMENT, "pieces have %lld elements of an axis of %lld",
                        (long long)at, (long long)axis.size);
    return write_list(call, list);
}
