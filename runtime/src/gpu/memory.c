/* Manages device memory that an instance keeps between runs. */
#include "gpu.h"

void tcc_gpu_release_array(const tcc_gpu *gpu, tcc_gpu_array *array) {
    if (array->data) (void)gpu->driver->release(array->data); /* waits for work that uses it */
    *array = (tcc_gpu_array){NULL, 0};
}

tcc_status tcc_gpu_reserve(const tcc_gpu *gpu, tcc_gpu_array *array, size_t size,
                           const char *purpose) {
    if (size <= array->size) return TCC_OK;
    tcc_gpu_release_array(gpu, array);
    if (size > SIZE_MAX / 2)
        return tcc_fail(TCC_OUT_OF_MEMORY, "out of memory (%zu bytes of %s)", size, purpose);
    size_t rounded = (size + 511) / 512 * 512, free_bytes = 0, total = 0;
    void *memory = NULL;
    int error = gpu->driver->allocate(&memory, rounded);
    if (TCC_UNLIKELY(error)) {
        (void)gpu->driver->memory_info(&free_bytes, &total);
        return tcc_gpu_fail(gpu->driver, error, "no device memory for %zu bytes of %s; %s has %zu of %zu free",
                            rounded, purpose, gpu->name, free_bytes, total);
    }
    *array = (tcc_gpu_array){memory, rounded};
    return TCC_OK;
}

tcc_status tcc_gpu_unless_recorded(const tcc_gpu_instance *device, const char *action) {
    if (!device->recorded) return TCC_OK;
    return tcc_fail(TCC_UNSUPPORTED,
                    "the caller records the run of model '%s' in a graph, but %s",
                    tcc_artifact_info.name, action);
}

tcc_status tcc_gpu_grow(tcc_gpu_instance *device, tcc_gpu_array *array, size_t size,
                        const char *purpose) {
    if (size <= array->size) return TCC_OK;
    TCC_RETURN_IF_ERROR(tcc_gpu_unless_recorded(
        device, "it needs more memory than runs before it had: run it once with such arrays first"));
    if (device->replayed && array->data) {
        tcc_gpu_replaced *item = tcc_allocate(sizeof *item);
        if (!item) return TCC_OUT_OF_MEMORY;
        *item = (tcc_gpu_replaced){device->replaced, *array};
        device->replaced = item;
        *array = (tcc_gpu_array){NULL, 0};
    }
    return tcc_gpu_reserve(device->gpu, array, size, purpose);
}

tcc_status tcc_gpu_take(tcc_gpu *gpu, size_t bytes, void **out_memory) {
    tcc_gpu_array array = {NULL, 0};
    tcc_gpu_scope scope;
    TCC_RETURN_IF_ERROR(tcc_gpu_enter(gpu, &scope));
    tcc_status status = tcc_gpu_reserve(gpu, &array, bytes ? bytes : 1, "a result");
    tcc_gpu_leave(gpu, &scope);
    *out_memory = array.data;
    return status;
}

void tcc_gpu_give(tcc_gpu *gpu, void *memory) {
    tcc_gpu_array array = {memory, 0};
    tcc_gpu_scope scope;
    if (tcc_gpu_enter(gpu, &scope) != TCC_OK) return; /* the driver is gone, and its memory with
                                                         it */
    tcc_gpu_release_array(gpu, &array);
    tcc_gpu_leave(gpu, &scope);
}
