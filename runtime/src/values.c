/* Passes strings and lists between callers and the run's heap.  tcc.h says how far a caller's data
 * is trusted: pointers must point to as many items as counts say.  Counts, types and depth are
 * checked. */
#include <string.h>

#include "runtime.h"

enum { DEEPEST = 8, MOST_RANK = 64, ALIGNMENT = 64, MOST_GIVEN = 1 << 22 };

/* ---- in ------------------------------------------------------------------------------------------ */

static tcc_status take_tensor(tcc_heap *heap, const tcc_tensor *tensor, const char *name, int depth,
                              tcc_op_tensor *out_tensor);

static tcc_status bad(const char *name, const char *defect) {
    return tcc_fail(TCC_INVALID_ARGUMENT, "input '%.128s': %s", name, defect);
}

static tcc_status take_strings(tcc_heap *heap, const tcc_string *texts, int64_t count,
                               const char *name, uint64_t *handles) {
    for (int64_t i = 0; i < count; i++) {
        if (texts[i].size < 0 || (texts[i].size > 0 && !texts[i].data))
            return bad(name, "a string has no bytes");
        TCC_RETURN_IF_ERROR(tcc_heap_intern(heap, texts[i].data, texts[i].size, &handles[i]));
    }
    return TCC_OK;
}

static tcc_status take_list(tcc_heap *heap, const tcc_list *list, const char *name, int depth,
                            uint64_t *out_handle) {
    tcc_list_value items = {NULL, 0};
    if (depth == DEEPEST) return bad(name, "lists lie too deep in one another");
    if (!list || list->count < 0 || (list->count > 0 && !list->items))
        return bad(name, "a list has no items");
    for (int64_t i = 0; i < list->count; i++) {
        tcc_op_tensor item;
        TCC_RETURN_IF_ERROR(take_tensor(heap, &list->items[i], name, depth + 1, &item));
        TCC_RETURN_IF_ERROR(tcc_heap_append(heap, items, &item, &items));
    }
    return tcc_heap_name_list(heap, items, out_handle);
}

static bool is_known(tcc_dtype dtype) {
    if (dtype.lanes != 1) return false;
    switch (dtype.code) {
    case 0:
    case 1: return dtype.bits == 8 || dtype.bits == 16 || dtype.bits == 32 || dtype.bits == 64;
    case 2: return dtype.bits == 16 || dtype.bits == 32 || dtype.bits == 64;
    case 4: return dtype.bits == 16;
    case 6: return dtype.bits == 8;
    case 10:
    case 11:
    case 12:
    case 13:
    case 14: return dtype.bits == 8;
    default: return tcc_is_opaque(dtype) && (dtype.bits == 64 || dtype.bits == 128);
    }
}

/* Finds the array in row-major order: the caller's own memory, or a copy. */
static tcc_status take_elements(tcc_heap *heap, const tcc_tensor *tensor, const char *name,
                                int64_t bytes, void **out_data) {
    static char nothing[ALIGNMENT];
    *out_data = nothing;
    if (bytes == 0) return TCC_OK;
    if (!tensor->data) return bad(name, "an array has no data");
    char *data = (char *)tensor->data + tensor->byte_offset;
    size_t element = tensor->dtype.bits / 8u, unit = element > 8 ? 8 : element;
    *out_data = data;
    if (tcc_is_row_major(tensor) && (uintptr_t)data % unit == 0) return TCC_OK;
    TCC_RETURN_IF_ERROR(tcc_heap_take(heap, (size_t)bytes, out_data));
    if (tensor->strides)
        tcc_gather(*out_data, data, tensor, (int64_t)element);
    else
        memcpy(*out_data, data, (size_t)bytes);
    return TCC_OK;
}

static tcc_status take_tensor(tcc_heap *heap, const tcc_tensor *tensor, const char *name, int depth,
                              tcc_op_tensor *out_tensor) {
    if (tensor->device.type != 1) return bad(name, "an array of a list is not in CPU memory");
    if (!is_known(tensor->dtype)) return bad(name, "an array has an unknown element type");
    if (tensor->ndim < 0 || tensor->ndim > MOST_RANK || (tensor->ndim > 0 && !tensor->shape))
        return bad(name, "an array has an impossible number of dimensions");
    int64_t bytes = tcc_byte_count(tensor->shape, tensor->ndim, tensor->dtype), count = 1;
    if (bytes < 0) return bad(name, "an array has an impossible size");
    void *dims = NULL, *data = NULL;
    TCC_RETURN_IF_ERROR(tcc_heap_take(heap, (size_t)tensor->ndim * sizeof(int64_t), &dims));
    if (tensor->ndim) memcpy(dims, tensor->shape, (size_t)tensor->ndim * sizeof(int64_t));
    for (int32_t i = 0; i < tensor->ndim && bytes; i++) count *= tensor->shape[i];
    if (bytes == 0) count = 0;
    TCC_RETURN_IF_ERROR(take_elements(heap, tensor, name, bytes, &data));
    if (tcc_is_opaque(tensor->dtype)) {
        void *handles = NULL;
        if (!tcc_is_string(tensor->dtype) && tensor->ndim) return bad(name, "a list is an array");
        TCC_RETURN_IF_ERROR(tcc_heap_take(heap, (size_t)count * sizeof(uint64_t), &handles));
        if (tcc_is_string(tensor->dtype)) {
            TCC_RETURN_IF_ERROR(take_strings(heap, data, count, name, handles));
        } else {
            const tcc_list *list;
            memcpy(&list, data, sizeof list);
            TCC_RETURN_IF_ERROR(take_list(heap, list, name, depth, handles));
        }
        data = handles;
    }
    *out_tensor = (tcc_op_tensor){data, tensor->dtype, tensor->ndim, dims, count};
    return TCC_OK;
}

tcc_status tcc_values_bind(tcc_run *run, int32_t index, tcc_span *out_span) {
    const tcc_port *port = &run->instance->model->program.inputs[index].port;
    tcc_op_tensor handles;
    TCC_RETURN_IF_ERROR(
        take_tensor(&run->instance->heap, &run->inputs[index], port->name, 0, &handles));
    *out_span = (tcc_span){handles.data, handles.count * (int64_t)sizeof(uint64_t)};
    return TCC_OK;
}

/* ---- out ----------------------------------------------------------------------------------------- */

/* Memory that is filled from its front.  With `base` NULL only the bytes are counted.  Entries that
 * lists share are written once per list, so they are counted once per list too. */
typedef struct writer {
    char *base;
    size_t used;
    int64_t entries;
} writer;

static tcc_status put(writer *to, int64_t count, size_t size, size_t alignment, void **out_place) {
    size_t bytes;
    to->used = (to->used + alignment - 1) / alignment * alignment;
    *out_place = to->base ? to->base + to->used : NULL;
    if (__builtin_mul_overflow((size_t)count, size, &bytes) ||
        __builtin_add_overflow(to->used, bytes, &to->used) || to->used > (size_t)INT64_MAX / 2)
        return tcc_fail(TCC_OUT_OF_MEMORY, "an output of strings or lists is too large");
    return TCC_OK;
}

static tcc_status give_tensor(writer *to, const tcc_heap *heap, const tcc_op_tensor *value, int depth,
                              tcc_tensor *target);

static tcc_status give_strings(writer *to, const tcc_heap *heap, const tcc_op_tensor *value,
                               void **out_data) {
    const uint64_t *handles = value->data;
    TCC_RETURN_IF_ERROR(put(to, value->count, sizeof(tcc_string), ALIGNMENT, out_data));
    for (int64_t i = 0; i < value->count; i++) {
        tcc_string text;
        void *bytes = NULL;
        TCC_RETURN_IF_ERROR(tcc_heap_string(heap, handles[i], &text));
        TCC_RETURN_IF_ERROR(put(to, text.size, 1, 1, &bytes));
        if (!to->base) continue;
        if (text.size) memcpy(bytes, text.data, (size_t)text.size);
        ((tcc_string *)*out_data)[i] = (tcc_string){bytes, text.size};
    }
    return TCC_OK;
}

static tcc_status give_list(writer *to, const tcc_heap *heap, const tcc_op_tensor *value, int depth,
                            void **out_data) {
    tcc_list_value list;
    void *head = NULL, *items = NULL;
    TCC_RETURN_IF_ERROR(tcc_heap_list(heap, *(const uint64_t *)value->data, &list));
    to->entries += list.count;
    if (depth == DEEPEST || to->entries > MOST_GIVEN)
        return tcc_fail(TCC_OUT_OF_MEMORY,
                        "an output has more than %d entries, or lists too deep in one another",
                        MOST_GIVEN);
    TCC_RETURN_IF_ERROR(put(to, 1, sizeof(tcc_list *), ALIGNMENT, out_data));
    TCC_RETURN_IF_ERROR(put(to, 1, sizeof(tcc_list), 8, &head));
    TCC_RETURN_IF_ERROR(put(to, list.count, sizeof(tcc_tensor), 8, &items));
    for (int64_t i = 0; i < list.count; i++)
        TCC_RETURN_IF_ERROR(give_tensor(to, heap, &list.entries->items[i], depth + 1,
                                        items ? (tcc_tensor *)items + i : NULL));
    if (!to->base) return TCC_OK;
    *(tcc_list *)head = (tcc_list){list.count, items};
    memcpy(*out_data, &head, sizeof head);
    return TCC_OK;
}

static tcc_status give_tensor(writer *to, const tcc_heap *heap, const tcc_op_tensor *value, int depth,
                              tcc_tensor *target) {
    void *shape = NULL, *data = NULL;
    TCC_RETURN_IF_ERROR(put(to, value->ndim, sizeof(int64_t), 8, &shape));
    if (tcc_is_string(value->dtype)) {
        TCC_RETURN_IF_ERROR(give_strings(to, heap, value, &data));
    } else if (tcc_is_opaque(value->dtype)) {
        TCC_RETURN_IF_ERROR(give_list(to, heap, value, depth, &data));
    } else {
        int64_t bytes = tcc_stored_bytes(value->dtype, value->count);
        TCC_RETURN_IF_ERROR(put(to, bytes, 1, ALIGNMENT, &data));
        if (data && bytes) memcpy(data, value->data, (size_t)bytes);
    }
    if (!target) return TCC_OK;
    if (value->ndim) memcpy(shape, value->dims, (size_t)value->ndim * sizeof(int64_t));
    *target = (tcc_tensor){.data = data,
                           .device = {1, 0},
                           .ndim = value->ndim,
                           .dtype = {value->dtype.code, value->dtype.bits, 1},
                           .shape = shape};
    return TCC_OK;
}

static tcc_status give_output(tcc_run *run, int32_t index) {
    tcc_instance *instance = run->instance;
    const tcc_port_info *info = &instance->model->program.outputs[index];
    for (int32_t i = 0; i < info->port.ndim; i++)
        instance->shape[i] = instance->registers[info->dims[i]];
    int64_t bytes_held =
        tcc_byte_count(instance->shape, info->port.ndim, (tcc_dtype){1, 64, 1});
    tcc_op_tensor value = {instance->handles[index].data, info->port.dtype, info->port.ndim,
                           instance->shape, bytes_held / (int64_t)sizeof(uint64_t)};
    if (bytes_held < 0 || bytes_held > instance->handles[index].size)
        return tcc_fail(TCC_INTERNAL, "output '%.128s' changed its size", info->port.name);
    writer to = {NULL, sizeof(tcc_tensor), 0};
    TCC_RETURN_IF_ERROR(give_tensor(&to, &instance->heap, &value, 0, NULL));
    int64_t bytes = (int64_t)to.used;
    tcc_tensor request = {
        .device = {1, 0}, .ndim = 1, .dtype = {1, 8, 1}, .shape = &bytes};
    char *block = NULL;
    TCC_RETURN_IF_ERROR(tcc_ask_allocator(run, index, &request, &block));
    if (!block || (uintptr_t)block % ALIGNMENT)
        return tcc_fail(TCC_INVALID_ARGUMENT,
                        "output '%.128s': the allocator gave no memory on a multiple of %d",
                        info->port.name, ALIGNMENT);
    to = (writer){block, sizeof(tcc_tensor), 0};
    TCC_RETURN_IF_ERROR(give_tensor(&to, &instance->heap, &value, 0, (tcc_tensor *)block));
    if (run->outputs) memcpy(&run->outputs[index], block, sizeof *run->outputs);
    return TCC_OK;
}

tcc_status tcc_values_give(tcc_run *run) {
    const tcc_program *program = &run->instance->model->program;
    for (int32_t i = 0; i < program->n_outputs; i++)
        if (tcc_is_opaque(program->outputs[i].port.dtype)) TCC_RETURN_IF_ERROR(give_output(run, i));
    return TCC_OK;
}
