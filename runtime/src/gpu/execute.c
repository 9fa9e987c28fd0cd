/* Executes instructions on the device: all work goes to the run's stream, in the program's
 * order. */
#include <string.h>

#include "gpu.h"

tcc_status tcc_gpu_wait(const tcc_gpu_instance *device) {
    const tcc_gpu *gpu = device->gpu;
    int error = 0;
    TCC_RETURN_IF_ERROR(tcc_gpu_wait_watched(device, &error));
    if (!error) return TCC_OK;
    return tcc_gpu_fail(gpu->driver, error,
                        "model '%s' failed on %s (TCC_SYNC=1 tells in which kernel)",
                        tcc_artifact_info.name, gpu->name);
}

/* ---- kernels ----------------------------------------------------------------------------------------- */

static tcc_status fill_params(const tcc_instance *instance, const tcc_code *code,
                              const tcc_gpu_kernel *kernel) {
    tcc_gpu_instance *device = instance->device;
    uint64_t *values = device->values;
    int32_t buffer = 0, number = 0, map = 0;
    for (int32_t i = 0; i < kernel->n_params; i++) {
        char *data = NULL;
        device->params[i] = &values[i];
        switch (kernel->params[i]) {
        case TCC_PARAM_POINTER:
            data = instance->spans[code->as.launch.buffers.numbers[buffer++]].data;
            if (TCC_UNLIKELY(!data))
                return tcc_fail(TCC_INTERNAL, "kernel '%.128s' uses a buffer that has no memory yet",
                                kernel->symbol);
            values[i] = (uint64_t)(uintptr_t)data;
            break;
        case TCC_PARAM_INT64:
            values[i] = (uint64_t)instance->registers[code->as.launch.ints.numbers[number++]];
            break;
        case TCC_PARAM_TENSOR_MAP:
            data = instance->spans[code->as.launch.buffers.numbers[kernel->maps[map].buffer]].data;
            if (TCC_UNLIKELY(!data))
                return tcc_fail(TCC_INTERNAL, "kernel '%.128s' uses a buffer that has no memory yet",
                                kernel->symbol);
            TCC_RETURN_IF_ERROR(tcc_gpu_encode_map(device->gpu, kernel, &kernel->maps[map], data,
                                                   &device->maps[map]));
            device->params[i] = &device->maps[map++];
            break;
        default: values[i] = 0; break;
        }
    }
    return TCC_OK;
}

static tcc_status launch(tcc_run *run, const tcc_code *code, int64_t units) {
    const tcc_instance *instance = run->instance;
    tcc_gpu_instance *device = instance->device;
    const tcc_gpu *gpu = device->gpu;
    const tcc_gpu_kernel *kernel = &gpu->variant->kernels[code->as.launch.kernel];
    if (device->phase == TCC_PHASE_RESOLVE) {
        device->kernels++;
        return TCC_OK;
    }
    device->read_from = NULL;
    if (units > INT32_MAX)
        return tcc_fail(TCC_UNSUPPORTED, "kernel '%.128s' has %lld blocks, more than a GPU takes",
                        kernel->symbol, (long long)units);
    if (gpu->driver->platform == TCC_PLATFORM_HIP && units > UINT32_MAX / kernel->threads)
        return tcc_fail(TCC_UNSUPPORTED,
                        "kernel '%.128s' has %lld blocks of %u threads, and HIP takes less than "
                        "2^32 threads",
                        kernel->symbol, (long long)units, kernel->threads);
    if (kernel->stays && gpu->processors > 0 && units > gpu->processors) units = gpu->processors;
    TCC_RETURN_IF_ERROR(fill_params(instance, code, kernel));
    TCC_GPU_TRY(gpu->driver,
                launch(gpu->functions[code->as.launch.kernel], (unsigned)units, 1, 1,
                       kernel->threads, 1, 1, kernel->shared, device->queue, device->params, NULL),
                "kernel '%.128s' cannot be started", kernel->symbol);
    if (!TCC_UNLIKELY(gpu->wait && !device->recorded)) return TCC_OK;
    int error = 0;
    TCC_RETURN_IF_ERROR(tcc_gpu_wait_watched(device, &error));
    if (error) return tcc_gpu_fail(gpu->driver, error, "kernel '%.128s' failed", kernel->symbol);
    return TCC_OK;
}

/* ---- memory ------------------------------------------------------------------------------------------ */

static tcc_status copy(tcc_run *run, char *target, const char *source, int64_t size) {
    tcc_gpu_instance *device = run->instance->device;
    if (device->phase == TCC_PHASE_RESOLVE) return TCC_OK;
    device->read_from = NULL;
    TCC_GPU_TRY(device->gpu->driver, copy(target, source, (size_t)size, device->queue),
                "%lld bytes cannot be copied on the device", (long long)size);
    return TCC_OK;
}

/* Returns the host address of a buffer that is an unchanged input of the caller; else NULL. */
static const char *host_copy(const tcc_run *run, int64_t id) {
    const tcc_instance *instance = run->instance;
    const tcc_buffer *buffer = &instance->model->program.buffers[id];
    if (buffer->place != TCC_PLACE_INPUT || !tcc_gpu_is_host(run->inputs[buffer->a].device))
        return NULL;
    const char *caller_data = instance->device->caller_inputs[buffer->a].data;
    if (!caller_data) return instance->spans[id].data; /* the input is not uploaded yet, or empty */
    return tcc_ports_feeds_state(&instance->model->program, (int32_t)buffer->a) ? NULL : caller_data;
}

static tcc_status fetch(tcc_run *run, int64_t buffer, int64_t offset, int64_t size,
                        void *out_bytes) {
    tcc_instance *instance = run->instance;
    tcc_gpu_instance *device = instance->device;
    const char *host = host_copy(run, buffer);
    if (host) {
        memcpy(out_bytes, host + offset, (size_t)size);
        return TCC_OK;
    }
    TCC_RETURN_IF_ERROR(
        tcc_gpu_unless_recorded(device, "it reads data of the device to decide what runs"));
    const tcc_span *span = &instance->spans[buffer];
    if (span->data != device->read_from || offset + size > device->read_bytes) {
        bool is_small = span->size <= TCC_GPU_READ; /* neighbouring words are likely to be read next */
        int64_t bytes = is_small ? span->size : size;
        device->read_from = NULL;
        TCC_GPU_TRY(device->gpu->driver,
                    copy_to_host(device->word, span->data + (is_small ? 0 : offset), (size_t)bytes,
                                 device->queue),
                    "%lld bytes cannot be read from the device", (long long)bytes);
        TCC_RETURN_IF_ERROR(tcc_gpu_wait(device));
        if (!is_small) {
            memcpy(out_bytes, device->word, (size_t)size);
            return TCC_OK;
        }
        device->read_from = span->data;
        device->read_bytes = bytes;
    }
    memcpy(out_bytes, (const char *)device->word + offset, (size_t)size);
    return TCC_OK;
}

static tcc_status settle(tcc_run *run) {
    const tcc_gpu_instance *device = run->instance->device;
    TCC_RETURN_IF_ERROR(tcc_gpu_unless_recorded(device, "times of its kernels are taken"));
    return tcc_gpu_wait(device);
}

static tcc_status output(tcc_run *run, int32_t index, int64_t size, tcc_span *span) {
    if (run->instance->device->phase == TCC_PHASE_ENQUEUE) return TCC_OK;
    return tcc_gpu_place_output(run, index, size, span);
}

static void free_memory(const tcc_gpu_instance *device, char *data) {
    if (device->gpu->pools)
        (void)device->gpu->driver->release_async(data, device->queue);
    else
        (void)device->gpu->driver->release(data); /* waits for work that uses it */
}

static tcc_status take_memory(const tcc_gpu_instance *device, size_t size, void **out_memory) {
    const tcc_gpu_driver *driver = device->gpu->driver;
    int error = device->gpu->pools ? driver->allocate_async(out_memory, size, device->queue)
                                   : driver->allocate(out_memory, size);
    if (!error) return TCC_OK;
    size_t free_bytes = 0, total = 0;
    (void)driver->memory_info(&free_bytes, &total);
    return tcc_gpu_fail(driver, error, "no device memory for an array of %zu bytes; %s has %zu of "
                        "%zu free", size, device->gpu->name, free_bytes, total);
}

/* Resizes a dynamic array. An array that grows in a loop moves O(log n) times. */
static tcc_status resize(tcc_run *run, int64_t id, int64_t size, int64_t keep) {
    tcc_instance *instance = run->instance;
    tcc_gpu_instance *device = instance->device;
    tcc_span *span = &instance->spans[id];
    size_t capacity = span->data ? device->capacities[id] : 0;
    device->read_from = NULL;
    TCC_RETURN_IF_ERROR(tcc_collective_spares(run, span));
    if (!span->data || (size_t)size > capacity) {
        size_t grown = (size_t)size > capacity + capacity / 2 ? (size_t)size : capacity + capacity / 2;
        void *memory = NULL;
        TCC_RETURN_IF_ERROR(
            tcc_gpu_unless_recorded(device, "an array gets its size while it runs"));
        TCC_RETURN_IF_ERROR(take_memory(device, (grown + 255) / 256 * 256 + 256, &memory));
        char *old = span->data;
        *span = (tcc_span){memory, span->size};
        device->capacities[id] = grown;
        tcc_status status = old && keep ? copy(run, memory, old, keep) : TCC_OK;
        if (old) free_memory(device, old);
        TCC_RETURN_IF_ERROR(status);
    }
    if (instance->flags & TCC_POISON && keep < size)
        TCC_GPU_TRY(device->gpu->driver,
                    fill(span->data + keep, 0xFF, (size_t)(size - keep), device->queue),
                    "an array cannot be filled");
    span->size = size;
    return TCC_OK;
}

void tcc_gpu_free_dynamic(tcc_instance *instance) {
    const tcc_program *program = &instance->model->program;
    for (int64_t i = 0; i < program->n_buffers; i++) {
        if (program->buffers[i].place != TCC_PLACE_DYNAMIC || !instance->spans[i].data) continue;
        free_memory(instance->device, instance->spans[i].data);
        instance->spans[i] = (tcc_span){NULL, 0};
    }
}

/* ---- functions of the host ---------------------------------------------------------------------------- */

static int64_t bytes_of(const tcc_op_tensor *tensor) {
    int64_t bits = tensor->count * tensor->dtype.bits;
    return bits / 8 + (bits % 8 != 0);
}

/* Copies operands to the host's memory. Operands with one address get one copy, because functions
 * may work in place. */
static tcc_status bring(tcc_run *run, const tcc_op_tensor *there, tcc_op_tensor *here,
                        int32_t count) {
    const tcc_gpu_instance *device = run->instance->device;
    for (int32_t i = 0; i < count; i++) {
        here[i] = there[i];
        int32_t same = 0;
        while (same < i && (there[same].data != there[i].data ||
                            bytes_of(&there[same]) != bytes_of(&there[i])))
            same++;
        here[i].data = here[same].data;
        if (same < i) continue;
        size_t bytes = (size_t)bytes_of(&there[i]);
        TCC_RETURN_IF_ERROR(tcc_pool_take(run->instance->pool, bytes, &here[i].data));
        if (bytes) /* outputs too, because a function may leave parts of them unchanged */
            TCC_GPU_TRY(device->gpu->driver,
                        copy_to_host(here[i].data, there[i].data, bytes, device->queue),
                        "operands cannot be copied to the host");
    }
    return tcc_gpu_wait(device);
}

static tcc_status call(tcc_run *run, tcc_op op, const tcc_op_call *arguments) {
    tcc_gpu_instance *device = run->instance->device;
    device->read_from = NULL;
    int32_t count = arguments->n_inputs + arguments->n_outputs;
    TCC_RETURN_IF_ERROR(tcc_gpu_unless_recorded(device, "a function of it runs on the host"));
    void *room = NULL;
    TCC_RETURN_IF_ERROR(tcc_pool_take(run->instance->pool,
                                      (size_t)count * sizeof(tcc_op_tensor) + 1, &room));
    tcc_op_tensor *here = room;
    tcc_op_call local = *arguments;
    TCC_RETURN_IF_ERROR(bring(run, arguments->inputs, here, count));
    local.inputs = here;
    local.outputs = here + arguments->n_inputs;
    local.crew = NULL; /* only the calling thread: the CPU's workers do not belong to this run */
    local.threads = 1;
    TCC_RETURN_IF_ERROR(op(&local));
    for (int32_t i = 0; i < arguments->n_outputs; i++) {
        size_t bytes = (size_t)bytes_of(&local.outputs[i]);
        if (bytes)
            TCC_GPU_TRY(device->gpu->driver,
                        copy_to_device(arguments->outputs[i].data, local.outputs[i].data, bytes,
                                       device->queue),
                        "results cannot be copied to the device");
    }
    return tcc_gpu_wait(device); /* the copies' memory is reused afterwards */
}

const tcc_executor tcc_gpu_executor = {
    .launch = launch,
    .call = call,
    .copy = copy,
    .output = output,
    .resize = resize,
    .fetch = fetch,
    .settle = settle,
    .start = tcc_gpu_start,
    .wait = tcc_gpu_await,
};
