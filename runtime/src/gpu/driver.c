/* Finds the driver's library and fills its table of functions. */
#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- names --------------------------------------------------------------------------------------- */

typedef struct row {
    size_t place; /* offset in tcc_gpu_driver */
    const char *name[TCC_PLATFORM_COUNT]; /* NULL: the platform has no such function */
    bool optional;
} row;

#define ROW(member, cuda, hip) {offsetof(tcc_gpu_driver, member), {cuda, hip}, false}
#define OPTIONAL(member, cuda, hip) {offsetof(tcc_gpu_driver, member), {cuda, hip}, true}

static const row rows[] = {
    ROW(init, "cuInit", "hipInit"),
    ROW(device_count, "cuDeviceGetCount", "hipGetDeviceCount"),
    ROW(device_get, "cuDeviceGet", "hipDeviceGet"),
    ROW(device_name, "cuDeviceGetName", "hipDeviceGetName"),
    ROW(device_attribute, "cuDeviceGetAttribute", "hipDeviceGetAttribute"),
    ROW(memory_info, "cuMemGetInfo_v2", "hipMemGetInfo"),
    ROW(module_load, "cuModuleLoadDataEx", "hipModuleLoadDataEx"),
    ROW(module_unload, "cuModuleUnload", "hipModuleUnload"),
    ROW(module_function, "cuModuleGetFunction", "hipModuleGetFunction"),
    ROW(launch, "cuLaunchKernel", "hipModuleLaunchKernel"),
    ROW(allocate, "cuMemAlloc_v2", "hipMalloc"),
    ROW(release, "cuMemFree_v2", "hipFree"),
    OPTIONAL(allocate_async, "cuMemAllocAsync", "hipMallocAsync"),
    OPTIONAL(release_async, "cuMemFreeAsync", "hipFreeAsync"),
    ROW(allocate_host, "cuMemHostAlloc", "hipHostMalloc"),
    ROW(release_host, "cuMemFreeHost", "hipHostFree"),
    ROW(copy_to_device, "cuMemcpyHtoDAsync_v2", "hipMemcpyHtoDAsync"),
    ROW(copy_to_host, "cuMemcpyDtoHAsync_v2", "hipMemcpyDtoHAsync"),
    ROW(copy, "cuMemcpyDtoDAsync_v2", "hipMemcpyDtoDAsync"),
    ROW(fill, "cuMemsetD8Async", "hipMemsetD8Async"),
    ROW(stream_create, "cuStreamCreate", "hipStreamCreateWithFlags"),
    ROW(stream_destroy, "cuStreamDestroy_v2", "hipStreamDestroy"),
    ROW(stream_wait, "cuStreamSynchronize", "hipStreamSynchronize"),
    ROW(stream_wait_event, "cuStreamWaitEvent", "hipStreamWaitEvent"),
    ROW(stream_capture, "cuStreamIsCapturing", "hipStreamIsCapturing"),
    ROW(event_create, "cuEventCreate", "hipEventCreateWithFlags"),
    ROW(event_destroy, "cuEventDestroy_v2", "hipEventDestroy"),
    ROW(event_record, "cuEventRecord", "hipEventRecord"),
    ROW(event_wait, "cuEventSynchronize", "hipEventSynchronize"),
    ROW(capture_begin, "cuStreamBeginCapture_v2", "hipStreamBeginCapture"),
    ROW(capture_end, "cuStreamEndCapture", "hipStreamEndCapture"),
    ROW(graph_instantiate, "cuGraphInstantiateWithFlags", "hipGraphInstantiateWithFlags"),
    ROW(graph_launch, "cuGraphLaunch", "hipGraphLaunch"),
    ROW(graph_destroy, "cuGraphDestroy", "hipGraphDestroy"),
    ROW(executable_destroy, "cuGraphExecDestroy", "hipGraphExecDestroy"),
    ROW(error_name, "cuGetErrorName", "hipDrvGetErrorName"),
    ROW(error_text, "cuGetErrorString", "hipDrvGetErrorString"),
    ROW(context_retain, "cuDevicePrimaryCtxRetain", NULL),
    ROW(context_release, "cuDevicePrimaryCtxRelease_v2", NULL),
    ROW(context_push, "cuCtxPushCurrent_v2", NULL),
    ROW(context_pop, "cuCtxPopCurrent_v2", NULL),
    ROW(context_current, "cuCtxGetCurrent", NULL),
    ROW(context_device, "cuCtxGetDevice", NULL),
    ROW(function_attribute, "cuFuncSetAttribute", NULL),
    ROW(driver_version, "cuDriverGetVersion", NULL),
    OPTIONAL(encode_map, "cuTensorMapEncodeTiled", NULL),
    ROW(set_device, NULL, "hipSetDevice"),
    ROW(get_device, NULL, "hipGetDevice"),
    OPTIONAL(device_properties, NULL, "hipGetDevicePropertiesR0600"),
    OPTIONAL(device_properties_5, NULL, "hipGetDeviceProperties"),
};

/* ---- libraries ------------------------------------------------------------------------------------- */

static const struct {
    const char *name, *libraries[5], *remedy;
    int32_t device_type, max_shared, pools_attribute;
} platforms[TCC_PLATFORM_COUNT] = {
    {"CUDA", {"libcuda.so.1", "libcuda.so"}, "install NVIDIA's driver, version 525 or newer",
     TCC_DEVICE_CUDA, 97, 115},
    {"HIP",
     {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so", "libamdhip64.so.5"},
     "install ROCm 6 or newer", TCC_DEVICE_ROCM, 74, 88},
};

/* Opens the driver's library. A copy that is already in the process comes first, because two copies
 * would not know each other's memory. */
static void *open_library(int32_t platform) {
    static const int modes[] = {RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD, RTLD_NOW | RTLD_LOCAL};
    for (size_t mode = 0; mode < 2; mode++)
        for (const char *const *name = platforms[platform].libraries; *name; name++) {
            void *library = dlopen(*name, modes[mode]);
            if (library) return library;
        }
    return NULL;
}

static tcc_status fill_table(int32_t platform, void *library, tcc_gpu_driver *driver) {
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *name = rows[i].name[platform];
        if (!name) continue;
        void *function = dlsym(library, name);
        if (!function && !rows[i].optional)
            return tcc_fail(TCC_UNSUPPORTED, "the %s driver is too old, it lacks %s: %s",
                            platforms[platform].name, name, platforms[platform].remedy);
        memcpy((char *)driver + rows[i].place, &function, sizeof function);
    }
    return TCC_OK;
}

static tcc_status open_driver(int32_t platform, tcc_gpu_driver *driver) {
    void *library = open_library(platform); /* never closed: drivers do not expect it */
    if (!library) {
        const char *reason = dlerror();
        return tcc_fail(TCC_UNSUPPORTED, "no %s driver was found (%s): %s", platforms[platform].name,
                        reason ? reason : platforms[platform].libraries[0],
                        platforms[platform].remedy);
    }
    driver->name = platforms[platform].name;
    driver->platform = platform;
    driver->device_type = platforms[platform].device_type;
    driver->max_shared = platforms[platform].max_shared;
    driver->pools_attribute = platforms[platform].pools_attribute;
    TCC_RETURN_IF_ERROR(fill_table(platform, library, driver));
    int error = driver->init(0);
    if (error == TCC_GPU_NO_DEVICE)
        return tcc_fail(TCC_UNSUPPORTED, "there is no GPU for %s here", driver->name);
    if (error) return tcc_gpu_fail(driver, error, "the %s driver does not start", driver->name);
    return TCC_OK;
}

tcc_status tcc_gpu_driver_get(int32_t platform, const tcc_gpu_driver **out_driver) {
    static tcc_gpu_driver drivers[TCC_PLATFORM_COUNT];
    static bool ready[TCC_PLATFORM_COUNT];
    *out_driver = &drivers[platform];
    if (ready[platform]) return TCC_OK;
    tcc_gpu_driver driver = {0};
    TCC_RETURN_IF_ERROR(open_driver(platform, &driver));
    drivers[platform] = driver;
    ready[platform] = true;
    return TCC_OK;
}

/* ---- failures --------------------------------------------------------------------------------------- */

tcc_status tcc_gpu_fail(const tcc_gpu_driver *driver, int error, const char *format, ...) {
    char call[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(call, sizeof call, format, arguments);
    va_end(arguments);
    const char *name = NULL, *text = NULL;
    if (driver->error_name(error, &name) || !name) name = "unknown error";
    if (driver->error_text(error, &text) || !text) text = "no description";
    return tcc_fail(error == TCC_GPU_OUT_OF_MEMORY ? TCC_OUT_OF_MEMORY : TCC_DEVICE,
                    "%s: %s (%s error %d, %s)", call, text, driver->name, error, name);
}
