/* Memory on the device that an instance keeps from run to run. */
#include "gpu.h"

void tcc_gpu_release_array(const tcc_gpu *gpu, tcc_gpu_array *array) {
    if (array->data) (void)gpu->driver->release(array->data); /* waits for work that uses it */
    *array = (tcc_gpu_array){NULL, 0};
}

tcc_status tcc_gpu_reserve(const tcc_gpu *gpu, tcc_gpu_array *array, size_t size,
                           const char *what) {
    if (size <= array->size) return TCC_OK;
    tcc_gpu_release_array(gpu, array);
    if (size > SIZE_MAX / 2)
        return tcc_fail(TCC_OUT_OF_MEMORY, "out of memory (%zu bytes of %s)", size, what);
    size_t rounded = (size + 511) / 512 * 512, free_bytes = 0, total = 0;
    void *memory = NULL;
    int error = gpu->driver->allocate(&memory, rounded);
    if (TCC_UNLIKELY(error)) {
        (void)gpu->driver->memory_info(&free_bytes, &total);
        return tcc_gpu_fail(gpu->driver, error, "no device memory for %zu bytes of %s; %s has %zu of %zu free",
                            rounded, what, gpu->name, free_bytes, total);
    }
    *array = (tcc_gpu_array){memory, rounded};
    return TCC_OK;
}
