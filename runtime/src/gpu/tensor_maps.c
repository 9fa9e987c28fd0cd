/* Makes tensor maps, which describe arrays to CUDA's copy engine. */
#include "gpu.h"

/* Drivers up to 13.1 mark tensors below 128 KiB wrongly. Like CUTLASS, this file clears the wrong
 * bit. */
enum { LAST_WRONG_DRIVER = 13010, WRONG_BELOW = 128 << 10, WRONG_WORD = 1, WRONG_BIT = 21 };
enum { L2_PROMOTION_128B = 2 };

tcc_status tcc_gpu_check_maps(tcc_gpu *gpu) {
    enum { PROCESSORS = 16 };
    const tcc_gpu_driver *driver = gpu->driver;
    bool stays = false;
    for (int64_t i = 0; i < gpu->images.n_kernels; i++) {
        const tcc_gpu_kernel *kernel = &gpu->variant->kernels[i];
        stays |= kernel->stays;
        if (kernel->n_maps > gpu->max_maps) gpu->max_maps = kernel->n_maps;
        if (kernel->n_maps && !driver->encode_map)
            return tcc_fail(TCC_UNSUPPORTED,
                            "kernel '%.128s' needs cuTensorMapEncodeTiled, which the %s driver "
                            "lacks: install version 525 or newer, or compile the model with "
                            "--gpu-kernels triton",
                            kernel->symbol, driver->name);
    }
    if (stays && driver->platform == TCC_PLATFORM_CUDA)
        TCC_GPU_TRY(driver, device_attribute(&gpu->processors, PROCESSORS, gpu->device),
                    "%s does not describe itself", gpu->name);
    if (gpu->max_maps)
        TCC_GPU_TRY(driver, driver_version(&gpu->driver_version), "the driver has no version");
    return TCC_OK;
}

/* Returns the offset of the last element. */
static uint64_t last_element(const tcc_gpu_map *map) {
    uint64_t last = (map->sizes[0] - 1) * (uint64_t)map->element;
    for (int32_t i = 1; i < map->rank; i++) last += (map->sizes[i] - 1) * map->strides[i - 1];
    return last;
}

tcc_status tcc_gpu_encode_map(const tcc_gpu *gpu, const tcc_gpu_kernel *kernel,
                              const tcc_gpu_map *map, char *data, tcc_gpu_tensor_map *out) {
    static const uint32_t steps[TCC_MAP_RANK] = {1, 1, 1, 1, 1};
    TCC_GPU_TRY(gpu->driver,
                encode_map(out, map->dtype, (uint32_t)map->rank, data, map->sizes, map->strides,
                           map->box, steps, 0, map->swizzle, L2_PROMOTION_128B, 0),
                "array %d of kernel '%.128s' cannot be described", map->buffer, kernel->symbol);
    uint64_t bytes = last_element(map) + (uint64_t)map->element;
    if (gpu->driver_version <= LAST_WRONG_DRIVER && bytes <= WRONG_BELOW)
        out->words[WRONG_WORD] &= ~(UINT64_C(1) << WRONG_BIT);
    return TCC_OK;
}
