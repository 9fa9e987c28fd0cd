/* Prepares a run on any device: sets the addresses of buffers and computes sizes. */
#include <string.h>

#include "runtime.h"

static char nothing[64]; /* address for buffers of no bytes */

static tcc_span part_of(const void *base, int64_t offset, int64_t size) {
    return size ? (tcc_span){(char *)base + offset, size} : (tcc_span){nothing, 0};
}

void tcc_instance_aim_constants(tcc_instance *instance, const char *weights, char *state) {
    const tcc_program *program = &instance->model->program;
    for (int64_t i = 0; i < program->n_buffers; i++) {
        const tcc_buffer *buffer = &program->buffers[i];
        if (buffer->place == TCC_PLACE_WEIGHT)
            instance->spans[i] = part_of(weights, buffer->a, buffer->b);
        if (buffer->place == TCC_PLACE_STATE)
            instance->spans[i] = part_of(state, buffer->a, buffer->b);
    }
}

/* The prologue must have set the registers. */
tcc_status tcc_instance_arena_size(const tcc_instance *instance, int64_t *out_size) {
    *out_size = instance->registers[instance->model->program.arena];
    if (*out_size >= 0) return TCC_OK;
    return tcc_fail(TCC_INTERNAL, "the program's arena has a negative size");
}

tcc_status tcc_instance_symmetric_size(const tcc_instance *instance, int64_t *out_size) {
    const tcc_program *program = &instance->model->program;
    *out_size = 0;
    for (int64_t i = 0, end; i < program->n_arena_buffers; i++) {
        const tcc_buffer *buffer = &program->buffers[program->arena_buffers[i]];
        if (buffer->place != TCC_PLACE_SYMMETRIC) continue;
        int64_t offset = instance->registers[buffer->a], bytes = instance->registers[buffer->b];
        if (offset < 0 || bytes < 0 || __builtin_add_overflow(offset, bytes, &end))
            return tcc_fail(TCC_INTERNAL, "the program places a buffer outside its arena");
        if (end > *out_size) *out_size = end;
    }
    return TCC_OK;
}

tcc_status tcc_instance_aim_arena(tcc_instance *instance, tcc_span arena, tcc_span symmetric) {
    const tcc_program *program = &instance->model->program;
    for (int64_t i = 0; i < program->n_arena_buffers; i++) {
        int64_t id = program->arena_buffers[i];
        tcc_span all = program->buffers[id].place == TCC_PLACE_SYMMETRIC ? symmetric : arena;
        int64_t offset = instance->registers[program->buffers[id].a];
        int64_t bytes = instance->registers[program->buffers[id].b];
        if (offset < 0 || bytes < 0 || offset > all.size || bytes > all.size - offset)
            return tcc_fail(TCC_INTERNAL, "the program places a buffer outside its arena");
        instance->spans[id] = part_of(all.data, offset, bytes);
    }
    return TCC_OK;
}

tcc_status tcc_instance_prepare(tcc_run *run) {
    tcc_instance *instance = run->instance;
    const tcc_program *program = &instance->model->program;
    memset(instance->registers, 0, (size_t)program->n_registers * sizeof *instance->registers);
    TCC_RETURN_IF_ERROR(tcc_heap_begin(&instance->heap, instance->pool));
    TCC_RETURN_IF_ERROR(tcc_ports_bind_inputs(run));
    TCC_RETURN_IF_ERROR(tcc_ports_bind_outputs(run));
    TCC_RETURN_IF_ERROR(tcc_interpret(run, program->prologue));
    return tcc_ports_check_inputs(run);
}
