/* Declares the GPU's driver, which is found at run time.  One table of functions serves CUDA and
 * HIP, whose interfaces agree in everything that a program needs.  No toolkit is needed to build or
 * to run.
 *
 * Device addresses are `void *` here; CUDA declares them as 64-bit integers, which are passed the
 * same way on all processors that it supports. */
#ifndef TCC_GPU_DRIVER_H
#define TCC_GPU_DRIVER_H

#include "../runtime.h"

enum { TCC_PLATFORM_CUDA, TCC_PLATFORM_HIP, TCC_PLATFORM_COUNT };

/* DLPack's device types. */
enum {
    TCC_DEVICE_CPU = 1,
    TCC_DEVICE_CUDA = 2,
    TCC_DEVICE_CUDA_HOST = 3,
    TCC_DEVICE_ROCM = 10,
    TCC_DEVICE_ROCM_HOST = 11,
    TCC_DEVICE_CUDA_MANAGED = 13
};

/* Error numbers that both drivers share. */
enum { TCC_GPU_OUT_OF_MEMORY = 2, TCC_GPU_NO_DEVICE = 100 };
enum { TCC_GPU_NO_TIMING = 2, TCC_GPU_NON_BLOCKING = 1 };
enum { TCC_GPU_CAPTURE_THREAD = 1 }; /* calls of other threads do not disturb a capture */

/* CUtensorMap: describes an array that the copy engine moves for a kernel.  The alignment is CUDA
 * 13's. */
typedef struct tcc_gpu_tensor_map {
    _Alignas(128) uint64_t words[16];
} tcc_gpu_tensor_map;

/* All functions return 0 for success. */
typedef struct tcc_gpu_driver {
    const char *name;       /* name for messages */
    int32_t platform;
    int32_t device_type;    /* DLPack's */
    int32_t max_shared;     /* the driver's number of an attribute: bytes of shared memory that a
                               block may have */
    int32_t pools_attribute;

    int (*init)(unsigned flags);
    int (*device_count)(int *out_count);
    int (*device_get)(int *out_device, int ordinal);
    int (*device_name)(char *name, int room, int device);
    int (*device_attribute)(int *out_value, int attribute, int device);
    int (*memory_info)(size_t *out_free, size_t *out_total);

    int (*module_load)(void **out_module, const void *image, unsigned n_options, int *options,
                       void **values);
    int (*module_unload)(void *module);
    int (*module_function)(void **out_function, void *module, const char *name);
    int (*launch)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                  unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                  void *stream, void **params, void **extra);

    int (*allocate)(void **out_memory, size_t bytes);
    int (*release)(void *memory);
    /* NULL: the driver is too old */
    int (*allocate_async)(void **out_memory, size_t bytes, void *stream);
    int (*release_async)(void *memory, void *stream);
    int (*allocate_host)(void **out_memory, size_t bytes, unsigned flags);
    int (*release_host)(void *memory);
    int (*copy_to_device)(void *target, const void *source, size_t bytes, void *stream);
    int (*copy_to_host)(void *target, const void *source, size_t bytes, void *stream);
    int (*copy)(void *target, const void *source, size_t bytes, void *stream);
    int (*fill)(void *target, unsigned char value, size_t bytes, void *stream);

    int (*stream_create)(void **out_stream, unsigned flags);
    int (*stream_destroy)(void *stream);
    int (*stream_wait)(void *stream); /* the host waits */
    int (*stream_wait_event)(void *stream, void *event, unsigned flags);
    int (*stream_capture)(void *stream, int *out_status); /* status 0: the stream is not being
                                                             captured */
    int (*event_create)(void **out_event, unsigned flags);
    int (*event_destroy)(void *event);
    int (*event_record)(void *event, void *stream);
    int (*event_wait)(void *event); /* the host waits */

    int (*capture_begin)(void *stream, int mode);
    int (*capture_end)(void *stream, void **out_graph);
    int (*graph_instantiate)(void **out_executable, void *graph, unsigned long long flags);
    int (*graph_launch)(void *executable, void *stream);
    int (*graph_destroy)(void *graph);
    int (*executable_destroy)(void *executable);

    int (*error_name)(int error, const char **out_text);
    int (*error_text)(int error, const char **out_text);

    /* CUDA only */
    int (*context_retain)(void **out_context, int device);
    int (*context_release)(int device);
    int (*context_push)(void *context);
    int (*context_pop)(void **out_context);
    int (*context_current)(void **out_context);
    int (*context_device)(int *out_device);
    int (*function_attribute)(void *function, int attribute, int value);
    int (*driver_version)(int *out_version);
    int (*encode_map)(tcc_gpu_tensor_map *out_map, int dtype, uint32_t rank, void *data,
                      const uint64_t *sizes, const uint64_t *strides, const uint32_t *box,
                      const uint32_t *steps, int interleave, int swizzle, int promotion,
                      int outside); /* NULL: the driver is too old */
    /* HIP only */
    int (*set_device)(int ordinal);
    int (*get_device)(int *out_ordinal);
    int (*device_properties)(void *properties, int ordinal); /* NULL: older than ROCm 6 */
    /* with the struct that ROCm 6 replaced */
    int (*device_properties_5)(void *properties, int ordinal);
} tcc_gpu_driver;

/* Finds the driver of `platform`, ready to use.  It looks once.  Fails with TCC_UNSUPPORTED where
 * there is no driver or it is too old.  Only the thread that loads the model calls it. */
tcc_status tcc_gpu_driver_get(int32_t platform, const tcc_gpu_driver **out_driver);

/* Returns TCC_OK for error 0; otherwise fails with the message `format` and the driver's reason. */
tcc_status tcc_gpu_fail(const tcc_gpu_driver *driver, int error, const char *format, ...)
    TCC_PRINTF(3, 4) TCC_COLD;

#define TCC_GPU_TRY(driver, call, ...)                                                             \
    do {                                                                                           \
        int error_of_call = (driver)->call;                                                        \
        if (TCC_UNLIKELY(error_of_call)) return tcc_gpu_fail(driver, error_of_call, __VA_ARGS__);  \
    } while (0)

#endif
