/* Checks the caller's arrays against the model's ports. */
#include <stdio.h>
#include <string.h>

#include "runtime.h"

/* names of DLPack's codes from 7 on: floats of one byte or less */
static const char *const narrow_names[] = {
    "f8e3m4",     "f8e4m3", "f8e4m3b11fnuz", "f8e4m3fn", "f8e4m3fnuz", "f8e5m2",
    "f8e5m2fnuz", "f8e8m0", "f6e2m3",        "f6e3m2",   "f4e2m1"};
enum { FIRST_NARROW = 7, NARROW = sizeof narrow_names / sizeof *narrow_names };

const char *tcc_dtype_name(tcc_dtype dtype, char text[16]) {
    if (dtype.code >= FIRST_NARROW && dtype.code < FIRST_NARROW + NARROW) {
        snprintf(text, 16, "%s", narrow_names[dtype.code - FIRST_NARROW]);
        return text;
    }
    const char *stem = dtype.code == 0   ? "i"
                       : dtype.code == 1 ? "u"
                       : dtype.code == 2 ? "f"
                       : dtype.code == 4 ? "bf"
                       : dtype.code == 5 ? "complex"
                       : dtype.code == 3 ? (dtype.bits == 128 ? "string" : "list")
                                         : "type";
    if (dtype.code == 6 && dtype.bits == 8)
        snprintf(text, 16, "bool");
    else if (dtype.code == TCC_OPAQUE)
        snprintf(text, 16, "%s", stem);
    else
        snprintf(text, 16, "%s%d", stem, dtype.bits);
    return text;
}

static void shape_text(const int64_t *shape, int32_t ndim, char *text, size_t room) {
    size_t used = (size_t)snprintf(text, room, "[");
    for (int32_t i = 0; i < ndim && used < room; i++)
        used += (size_t)snprintf(text + used, room - used, i ? ",%lld" : "%lld",
                                 (long long)shape[i]);
    if (used < room) snprintf(text + used, room - used, "]");
}

static tcc_status wrong_shape(const char *kind, const tcc_port *port, const int64_t *shape,
                              int32_t ndim) {
    char got[256];
    shape_text(shape, ndim, got, sizeof got);
    return tcc_fail(TCC_INVALID_ARGUMENT, "%s '%.128s': expected shape %.256s, got %s", kind,
                    port->name, port->text, got);
}

static tcc_status check_device(const tcc_gpu *gpu, const char *kind, const tcc_port *port,
                               tcc_device device) {
    char expected[64] = "in CPU memory";
    if (gpu ? tcc_gpu_accepts(gpu, device) : device.type == 1) return TCC_OK;
    return tcc_fail(TCC_INVALID_ARGUMENT,
                    "%s '%.128s': expected an array %s, got DLPack device type %d, id %d", kind,
                    port->name, gpu ? tcc_gpu_expected(gpu, expected) : expected, device.type,
                    device.id);
}

static tcc_status check_descriptor(const tcc_instance *instance, const char *kind,
                                   const tcc_port *port, const tcc_tensor *tensor) {
    char expected[16], got[16];
    tcc_dtype dtype = tensor->dtype;
    if (dtype.code != port->dtype.code || dtype.bits != port->dtype.bits || dtype.lanes != 1)
        return tcc_fail(TCC_INVALID_ARGUMENT, "%s '%.128s': expected element type %s, got %s", kind,
                        port->name, tcc_dtype_name(port->dtype, expected),
                        tcc_dtype_name(dtype, got));
    TCC_RETURN_IF_ERROR(check_device(instance->model->gpu, kind, port, tensor->device));
    if (tensor->ndim != port->ndim || (tensor->ndim > 0 && !tensor->shape)) {
        bool shown = tensor->ndim >= 0 && tensor->shape;
        return wrong_shape(kind, port, tensor->shape, shown ? tensor->ndim : 0);
    }
    for (int32_t i = 0; i < port->ndim; i++)
        if (tensor->shape[i] < 0 || (port->shape[i] >= 0 && tensor->shape[i] != port->shape[i]))
            return wrong_shape(kind, port, tensor->shape, tensor->ndim);
    return TCC_OK;
}

bool tcc_ports_feeds_state(const tcc_program *program, int32_t input) {
    for (int32_t i = 0; i < program->n_outputs; i++)
        if (program->outputs[i].port.state == input) return true;
    return false;
}

/* Binds one input: to the caller's memory, or to a row-major copy of it. */
static tcc_status bind_input(tcc_run *run, int32_t index, tcc_span *out_span) {
    static char nothing[64]; /* address for arrays without elements */
    tcc_instance *instance = run->instance;
    const tcc_program *program = &instance->model->program;
    const tcc_tensor *tensor = &run->inputs[index];
    const tcc_port *port = &program->inputs[index].port;
    TCC_RETURN_IF_ERROR(check_descriptor(instance, "input", port, tensor));
    if (port->dtype.code == TCC_OPAQUE) return tcc_values_bind(run, index, out_span);
    int64_t bytes = tcc_byte_count(tensor->shape, tensor->ndim, tensor->dtype);
    if (bytes < 0) return wrong_shape("input", port, tensor->shape, tensor->ndim);
    *out_span = (tcc_span){nothing, 0};
    if (bytes == 0) return TCC_OK;
    if (!tensor->data)
        return tcc_fail(TCC_INVALID_ARGUMENT, "input '%.128s': no data", port->name);
    char *data = (char *)tensor->data + tensor->byte_offset;
    int64_t element = tensor->dtype.bits / 8;
    bool aligned = element == 0 || (uintptr_t)data % (uintptr_t)element == 0;
    *out_span = (tcc_span){data, bytes};
    const int32_t axis = program->inputs[index].axis;
    if (axis >= 0 && aligned) {
        const int64_t rows = tensor->shape[axis], capacity = tcc_capacity(tensor, axis);
        if (capacity >= 0 && !__builtin_mul_overflow(bytes / rows, capacity, &out_span->size))
            return TCC_OK;
    }
    if (axis < 0 && tcc_is_row_major(tensor) && aligned) return TCC_OK;
    if (axis >= 0)
        return tcc_fail(TCC_INVALID_ARGUMENT,
                        "input '%.128s': expected an aligned array that is row-major, or the front of "
                        "a row-major array along axis %d, because it is updated in place",
                        port->name, axis);
    if (instance->device && !tcc_gpu_is_host(tensor->device))
        return tcc_fail(TCC_INVALID_ARGUMENT,
                        "input '%.128s': expected a row-major, aligned array, because it is on a "
                        "device",
                        port->name);
    if (tensor->dtype.bits % 8 || tcc_ports_feeds_state(program, index))
        return tcc_fail(TCC_INVALID_ARGUMENT,
                        "input '%.128s': expected a row-major, aligned array, because it %s",
                        port->name,
                        tensor->dtype.bits % 8 ? "has packed elements" : "is updated in place");
    void *copy = NULL;
    TCC_RETURN_IF_ERROR(tcc_pool_take(instance->pool, (size_t)bytes, &copy));
    if (tensor->strides)
        tcc_gather(copy, data, tensor, element);
    else
        memcpy(copy, data, (size_t)bytes);
    out_span->data = copy;
    return TCC_OK;
}

tcc_status tcc_ports_bind_inputs(tcc_run *run) {
    tcc_instance *instance = run->instance;
    const tcc_program *program = &instance->model->program;
    for (int32_t i = 0; i < program->n_inputs; i++)
        TCC_RETURN_IF_ERROR(bind_input(run, i, &instance->bound[i]));
    for (int64_t i = 0; i < program->n_buffers; i++) {
        const tcc_buffer *buffer = &program->buffers[i];
        tcc_span *span = &instance->spans[i];
        switch (buffer->place) {
        case TCC_PLACE_INPUT: *span = instance->bound[buffer->a]; break;
        case TCC_PLACE_OUTPUT: {
            int32_t state = program->outputs[buffer->a].port.state;
            *span = state >= 0 ? instance->bound[state] : (tcc_span){NULL, 0};
            break;
        }
        case TCC_PLACE_ARENA:
        case TCC_PLACE_SYMMETRIC:
        case TCC_PLACE_DYNAMIC:
        case TCC_PLACE_ALIAS: *span = (tcc_span){NULL, 0}; break;
        default: break; /* weights and state have fixed addresses */
        }
    }
    return TCC_OK;
}

/* Compares the sizes that the prologue computed with the sizes of the arrays. */
tcc_status tcc_ports_check_inputs(const tcc_run *run) {
    const tcc_program *program = &run->instance->model->program;
    for (int32_t i = 0; i < program->n_inputs; i++) {
        const tcc_port_info *info = &program->inputs[i];
        for (int32_t dim = 0; dim < info->port.ndim; dim++)
            if (run->instance->registers[info->dims[dim]] != run->inputs[i].shape[dim])
                return wrong_shape("input", &info->port, run->inputs[i].shape, info->port.ndim);
    }
    return TCC_OK;
}

static bool overlap(const char *a, int64_t a_size, const char *b, int64_t b_size) {
    return a_size && b_size && (uintptr_t)a < (uintptr_t)b + (uintptr_t)b_size &&
           (uintptr_t)b < (uintptr_t)a + (uintptr_t)a_size;
}

/* Returns true if the elements are row-major, or lie as in the input that the output updates. */
static bool lies_right(const tcc_run *run, const tcc_port *port, const tcc_tensor *tensor) {
    const tcc_port_info *inputs = run->instance->model->program.inputs;
    const int32_t axis = port->state < 0 ? -1 : inputs[port->state].axis;
    if (axis < 0) return tcc_is_row_major(tensor);
    return tcc_capacity(tensor, axis) == tcc_capacity(&run->inputs[port->state], axis);
}

static tcc_status check_caller_output(tcc_run *run, int32_t index) {
    const tcc_program *program = &run->instance->model->program;
    const tcc_port *port = &program->outputs[index].port;
    tcc_tensor *tensor = &run->outputs[index];
    if (port->dtype.code == TCC_OPAQUE)
        return tcc_fail(TCC_INVALID_ARGUMENT,
                        "output '%.128s': strings and lists come from the allocator: leave data NULL",
                        port->name);
    TCC_RETURN_IF_ERROR(check_descriptor(run->instance, "output", port, tensor));
    int64_t bytes = tcc_byte_count(tensor->shape, tensor->ndim, tensor->dtype);
    char *data = (char *)tensor->data + tensor->byte_offset;
    if (bytes < 0 || !lies_right(run, port, tensor) ||
        (port->dtype.bits >= 8 && (uintptr_t)data % (port->dtype.bits / 8u)))
        return tcc_fail(TCC_INVALID_ARGUMENT,
                        "output '%.128s': expected a row-major array aligned to one element",
                        port->name);
    if (port->state >= 0 && data != run->instance->bound[port->state].data)
        return tcc_fail(TCC_INVALID_ARGUMENT,
                        "output '%.128s' updates input '%.128s' in place: pass the same array, or "
                        "none",
                        port->name, program->inputs[port->state].port.name);
    for (int32_t i = 0; i < program->n_inputs && port->state < 0; i++)
        if (overlap(data, bytes, run->instance->bound[i].data, run->instance->bound[i].size))
            return tcc_fail(TCC_INVALID_ARGUMENT,
                            "output '%.128s' shares memory with input '%.128s': pass another array",
                            port->name, program->inputs[i].port.name);
    for (int32_t i = 0; i < index; i++) {
        const tcc_tensor *other = &run->outputs[i];
        int64_t size = other->data ? tcc_byte_count(other->shape, other->ndim, other->dtype) : 0;
        if (overlap(data, bytes, (char *)other->data + other->byte_offset, size))
            return tcc_fail(TCC_INVALID_ARGUMENT,
                            "output '%.128s' shares memory with output '%.128s': pass another array",
                            port->name, program->outputs[i].port.name);
    }
    return TCC_OK;
}

/* Fails where an input that the run updates shares memory with another input, which would change
 * while it is read. */
static tcc_status check_updated(const tcc_run *run, int32_t state) {
    const tcc_program *program = &run->instance->model->program;
    const tcc_span *bound = run->instance->bound, span = bound[state];
    for (int32_t i = 0; i < program->n_inputs; i++)
        if (i != state && overlap(span.data, span.size, bound[i].data, bound[i].size))
            return tcc_fail(TCC_INVALID_ARGUMENT,
                            "input '%.128s' is updated in place and shares memory with input "
                            "'%.128s': pass another array",
                            program->inputs[state].port.name, program->inputs[i].port.name);
    return TCC_OK;
}

tcc_status tcc_ports_bind_outputs(tcc_run *run) {
    const tcc_program *program = &run->instance->model->program;
    for (int32_t i = 0; i < program->n_outputs; i++) {
        int32_t state = program->outputs[i].port.state;
        run->instance->output_done[i] = state >= 0;
        if (state >= 0) TCC_RETURN_IF_ERROR(check_updated(run, state));
        if (!run->outputs) continue;
        if (run->outputs[i].data) TCC_RETURN_IF_ERROR(check_caller_output(run, i));
        if (state >= 0 && !run->outputs[i].data) {
            run->outputs[i].data = run->instance->bound[state].data;
            run->outputs[i].byte_offset = 0;
        }
    }
    return TCC_OK;
}

/* Checks the caller's array for output `index`, whose size the run knows now, or asks the allocator
 * for an array. */
tcc_status tcc_ports_allocate_output(tcc_run *run, int32_t index, int64_t size, tcc_device device,
                                     tcc_span *span) {
    static char nothing[64];
    tcc_instance *instance = run->instance;
    const tcc_port_info *info = &instance->model->program.outputs[index];
    const tcc_port *port = &info->port;
    int64_t *shape = instance->shape;
    for (int32_t i = 0; i < port->ndim; i++) shape[i] = instance->registers[info->dims[i]];
    bool opaque = port->dtype.code == TCC_OPAQUE;
    /* elements of strings and lists are handles */
    tcc_dtype stored = opaque ? (tcc_dtype){1, 64, 1} : port->dtype;
    int64_t bytes = tcc_byte_count(shape, port->ndim, stored);
    if (bytes < 0 || size > bytes)
        return tcc_fail(TCC_INTERNAL, "output '%.128s' has %lld bytes by its shape, %lld by its size",
                        port->name, (long long)bytes, (long long)size);
    if (port->state >= 0) {
        if (bytes <= instance->bound[port->state].size) return TCC_OK;
        return wrong_shape("in-place output", port, shape, port->ndim);
    }
    if (instance->output_done[index])
        return tcc_fail(TCC_INTERNAL, "output '%.128s' is allocated twice", port->name);
    instance->output_done[index] = true;
    char *data = NULL;
    if (opaque) {
        void *memory = NULL;
        TCC_RETURN_IF_ERROR(tcc_pool_take(instance->pool, (size_t)bytes, &memory));
        *span = instance->handles[index] = (tcc_span){memory, bytes};
        return TCC_OK;
    }
    if (run->outputs && run->outputs[index].data) {
        const tcc_tensor *array = &run->outputs[index];
        for (int32_t i = 0; i < port->ndim; i++)
            if (array->shape[i] != shape[i]) {
                char required[256];
                shape_text(shape, port->ndim, required, sizeof required);
                char got[256];
                shape_text(array->shape, port->ndim, got, sizeof got);
                return tcc_fail(TCC_INVALID_ARGUMENT, "output '%.128s': expected shape %s, got %s",
                                port->name, required, got);
            }
        data = (char *)array->data + array->byte_offset;
    } else if (bytes || run->allocator) { /* the caller's pointer to an empty array may be NULL */
        tcc_tensor request = {.device = device, .ndim = port->ndim, .dtype = port->dtype,
                             .shape = shape};
        TCC_RETURN_IF_ERROR(tcc_ask_allocator(run, index, &request, &data));
    }
    if (bytes == 0)
        data = nothing;
    else if (!data)
        return tcc_fail(TCC_OUT_OF_MEMORY, "output '%.128s': the allocator gave no memory",
                        port->name);
    *span = (tcc_span){data, bytes};
    return TCC_OK;
}

tcc_status tcc_ports_check_outputs_written(const tcc_run *run) {
    const tcc_program *program = &run->instance->model->program;
    for (int32_t i = 0; i < program->n_outputs; i++)
        if (!run->instance->output_done[i])
            return tcc_fail(TCC_INTERNAL, "output '%.128s' was not written",
                            program->outputs[i].port.name);
    return TCC_OK;
}
