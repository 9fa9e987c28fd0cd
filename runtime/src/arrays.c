/* Reads the caller's arrays: their sizes and strides, and the memory that the caller's allocator
 * gives. */
#include <string.h>

#include "runtime.h"

int64_t tcc_byte_count(const int64_t *shape, int32_t ndim, tcc_dtype dtype) {
    int64_t total = dtype.bits;
    bool empty = false;
    for (int32_t i = 0; i < ndim; i++) {
        if (shape[i] < 0) return -1;
        if (shape[i] == 0) empty = true;
        else if (__builtin_mul_overflow(total, shape[i], &total)) return -1;
    }
    return empty ? 0 : total / 8 + (total % 8 != 0);
}

bool tcc_is_row_major(const tcc_tensor *tensor) {
    if (!tensor->strides) return true;
    int64_t expected = 1;
    for (int32_t i = tensor->ndim - 1; i >= 0; i--) {
        if (tensor->shape[i] == 0) return true;
        if (tensor->shape[i] != 1 && tensor->strides[i] != expected) return false;
        expected *= tensor->shape[i];
    }
    return true;
}

/* Returns the smallest size along `axis` of a row-major array whose front part the tensor is. */
int64_t tcc_capacity(const tcc_tensor *tensor, int32_t axis) {
    const int64_t rows = tensor->shape[axis];
    if (tcc_is_row_major(tensor) || !tcc_byte_count(tensor->shape, tensor->ndim, tensor->dtype)) return rows;
    int64_t capacity = 0, expected = 1; /* not computed yet */
    for (int32_t i = tensor->ndim - 1; i >= 0; i--) {
        const int64_t size = tensor->shape[i], stride = tensor->strides[i];
        if (i < axis && !capacity && size != 1) {
            if (stride % expected || stride / expected < rows) return -1;
            capacity = stride / expected;
            expected = stride;
        }
        if (size != 1 && stride != expected) return -1;
        if (i != axis && __builtin_mul_overflow(expected, size, &expected)) return -1;
    }
    return capacity ? capacity : rows;
}

/* Copies a strided array of whole-byte elements to row-major order. */
static void gather(char *target, const char *source, const tcc_tensor *tensor, int32_t dim,
                   int64_t element) {
    if (dim == tensor->ndim) {
        memcpy(target, source, (size_t)element);
        return;
    }
    int64_t inner = element;
    for (int32_t i = dim + 1; i < tensor->ndim; i++) inner *= tensor->shape[i];
    int64_t step = tensor->strides[dim] * element;
    if (step == inner && dim == tensor->ndim - 1) {
        memcpy(target, source, (size_t)(inner * tensor->shape[dim]));
        return;
    }
    for (int64_t i = 0; i < tensor->shape[dim]; i++)
        gather(target + i * inner, source + i * step, tensor, dim + 1, element);
}

void tcc_gather(char *target, const char *source, const tcc_tensor *tensor, int64_t element) {
    gather(target, source, tensor, 0, element);
}

tcc_status tcc_ask_allocator(tcc_run *run, int32_t index, const tcc_tensor *tensor,
                             char **out_data) {
    const tcc_port *port = &run->instance->model->program.outputs[index].port;
    void *data = NULL;
    if (!run->allocator || !run->allocator->allocate)
        return tcc_fail(TCC_INVALID_ARGUMENT, "output '%.128s': neither an array nor an allocator",
                        port->name);
    if (run->allocator->allocate(run->allocator->context, index, tensor, &data))
        return tcc_fail(TCC_OUT_OF_MEMORY, "output '%.128s': the allocator failed", port->name);
    *out_data = data;
    if (run->outputs) {
        run->outputs[index].data = data;
        run->outputs[index].ndim = port->ndim;
        run->outputs[index].dtype = port->dtype;
        run->outputs[index].device = tensor->device;
        run->outputs[index].byte_offset = 0;
    }
    return TCC_OK;
}
