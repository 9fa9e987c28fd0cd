/* Moves the caller's arrays: uses them in place on the device, or copies them there and back. */
#include "gpu.h"

/* Bytes of alignment. Compiled kernels read 16 bytes at a time where sizes allow. */
enum { ALIGNMENT = 16 };

static bool is_aligned(const char *data) { return (uintptr_t)data % ALIGNMENT == 0; }

/* Returns the bytes of an input up to its last element. The memory behind it may not be the
 * caller's. */
static int64_t used_bytes(const tcc_run *run, int32_t index) {
    const tcc_port_info *info = &run->instance->model->program.inputs[index];
    const tcc_tensor *tensor = &run->inputs[index];
    int64_t size = run->instance->bound[index].size;
    if (info->axis < 0 || size == 0) return size;
    int64_t row = tensor->dtype.bits / 8;
    for (int32_t i = info->axis + 1; i < tensor->ndim; i++) row *= tensor->shape[i];
    return size - (tcc_capacity(tensor, info->axis) - tensor->shape[info->axis]) * row;
}

static tcc_status bring_input(tcc_run *run, int32_t index) {
    tcc_instance *instance = run->instance;
    tcc_gpu_instance *device = instance->device;
    const tcc_gpu_driver *driver = device->gpu->driver;
    tcc_span *span = &instance->bound[index];
    bool host = tcc_gpu_is_host(run->inputs[index].device);
    if (span->size == 0 || (!host && is_aligned(span->data))) return TCC_OK;
    const char *name = instance->model->program.inputs[index].port.name;
    tcc_gpu_array *room = &device->inputs[index];
    if (host)
        TCC_RETURN_IF_ERROR(
            tcc_gpu_unless_recorded(device, "an input is in the host's memory: give device arrays"));
    TCC_RETURN_IF_ERROR(tcc_gpu_grow(device, room, (size_t)span->size, "an input"));
    const size_t bytes = (size_t)used_bytes(run, index);
    if (host)
        TCC_GPU_TRY(driver, copy_to_device(room->data, span->data, bytes, device->queue),
                    "input '%.128s' cannot be copied to the device", name);
    else
        TCC_GPU_TRY(driver, copy(room->data, span->data, bytes, device->queue),
                    "input '%.128s' cannot be copied on the device", name);
    device->host_arrays |= host;
    device->caller_inputs[index] = (tcc_span){span->data, (int64_t)bytes};
    span->data = room->data;
    return TCC_OK;
}

tcc_status tcc_gpu_upload(tcc_run *run) {
    tcc_instance *instance = run->instance;
    const tcc_program *program = &instance->model->program;
    for (int32_t i = 0; i < program->n_inputs; i++) TCC_RETURN_IF_ERROR(bring_input(run, i));
    for (int64_t i = 0; i < program->n_buffers; i++) {
        const tcc_buffer *buffer = &program->buffers[i];
        int64_t input = buffer->place == TCC_PLACE_INPUT    ? buffer->a
                        : buffer->place == TCC_PLACE_OUTPUT ? program->outputs[buffer->a].port.state
                                                            : -1;
        if (input >= 0) instance->spans[i] = instance->bound[input];
    }
    return TCC_OK;
}

tcc_status tcc_gpu_place_output(tcc_run *run, int32_t index, int64_t size, tcc_span *span) {
    tcc_instance *instance = run->instance;
    tcc_gpu_instance *device = instance->device;
    bool has_array = run->outputs && run->outputs[index].data;
    tcc_device where = has_array ? run->outputs[index].device : device->results;
    TCC_RETURN_IF_ERROR(tcc_ports_allocate_output(run, index, size, device->results, span));
    if (instance->model->program.outputs[index].port.state >= 0 || span->size == 0) return TCC_OK;
    bool host = tcc_gpu_is_host(where);
    if (host)
        TCC_RETURN_IF_ERROR(tcc_gpu_unless_recorded(
            device, "an output is in the host's memory: give device arrays"));
    device->host_outputs[index] = host;
    device->host_arrays |= host;
    if (host || !is_aligned(span->data)) {
        tcc_gpu_array *room = &device->outputs[index];
        TCC_RETURN_IF_ERROR(tcc_gpu_grow(device, room, (size_t)span->size, "an output"));
        device->caller_outputs[index] = *span;
        span->data = room->data;
    }
    if (instance->flags & TCC_POISON)
        TCC_GPU_TRY(device->gpu->driver, fill(span->data, 0xFF, (size_t)span->size, device->queue),
                    "an output cannot be filled");
    return TCC_OK;
}

static tcc_status bring_back(const tcc_gpu_instance *device, tcc_span target, const char *source,
                             bool host, const char *name) {
    const tcc_gpu_driver *driver = device->gpu->driver;
    if (!target.data) return TCC_OK; /* it was used in place */
    if (host)
        TCC_GPU_TRY(driver, copy_to_host(target.data, source, (size_t)target.size, device->queue),
                    "output '%.128s' cannot be copied to the host", name);
    else
        TCC_GPU_TRY(driver, copy(target.data, source, (size_t)target.size, device->queue),
                    "output '%.128s' cannot be copied on the device", name);
    return TCC_OK;
}

tcc_status tcc_gpu_download(tcc_run *run) {
    const tcc_gpu_instance *device = run->instance->device;
    const tcc_program *program = &run->instance->model->program;
    for (int32_t i = 0; i < program->n_outputs; i++) {
        const tcc_port *port = &program->outputs[i].port;
        if (port->state >= 0) {
            bool host = tcc_gpu_is_host(run->inputs[port->state].device);
            TCC_RETURN_IF_ERROR(bring_back(device, device->caller_inputs[port->state],
                                           device->inputs[port->state].data, host, port->name));
        } else {
            TCC_RETURN_IF_ERROR(bring_back(device, device->caller_outputs[i],
                                           device->outputs[i].data, device->host_outputs[i],
                                           port->name));
        }
    }
    return TCC_OK;
}
