/* Holds the device's side of an instance, and carries a run on it from beginning to end. */
#include <string.h>

#include "gpu.h"

/* ---- making and ending ------------------------------------------------------------------------------- */

static tcc_status allocate_tables(tcc_instance *instance, tcc_gpu_instance *device) {
    const tcc_program *program = &instance->model->program;
    /* the unused operands share one NULL */
    int64_t params = program->max_buffers + program->max_ints + 1;
    for (int64_t i = 0; i < device->gpu->images.n_kernels; i++)
        if (device->gpu->variant->kernels[i].n_params > params)
            params = device->gpu->variant->kernels[i].n_params;
    const struct {
        void **table;
        int64_t count;
        size_t size;
    } tables[] = {
        {(void **)&device->inputs, program->n_inputs, sizeof(tcc_gpu_array)},
        {(void **)&device->outputs, program->n_outputs, sizeof(tcc_gpu_array)},
        {(void **)&device->caller_inputs, program->n_inputs, sizeof(tcc_span)},
        {(void **)&device->caller_outputs, program->n_outputs, sizeof(tcc_span)},
        {(void **)&device->host_outputs, program->n_outputs, sizeof(bool)},
        {(void **)&device->capacities, program->n_buffers, sizeof(size_t)},
        {(void **)&device->values, params, sizeof(uint64_t)},
        {(void **)&device->params, params, sizeof(void *)},
        {&device->map_room, device->gpu->max_maps + 1, sizeof(tcc_gpu_tensor_map)},
        {(void **)&device->key, tcc_gpu_key_words(program), sizeof(int64_t)},
        {(void **)&device->ended, program->n_tickets, sizeof(void *)},
        {(void **)&device->parties, program->n_groups, sizeof(void *)},
    };
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        *tables[i].table = tcc_allocate_zero((size_t)tables[i].count, tables[i].size);
        if (!*tables[i].table) return TCC_OUT_OF_MEMORY;
    }
    device->maps = (tcc_gpu_tensor_map *)(((uintptr_t)device->map_room + 127) / 128 * 128);
    return TCC_OK;
}

static tcc_status make_streams(tcc_gpu_instance *device) {
    const tcc_gpu *gpu = device->gpu;
    TCC_GPU_TRY(gpu->driver, stream_create(&device->stream, 0), "no stream on %s", gpu->name);
    if (gpu->graphs)
        TCC_GPU_TRY(gpu->driver, stream_create(&device->capture, TCC_GPU_NON_BLOCKING),
                    "no stream on %s", gpu->name);
    TCC_GPU_TRY(gpu->driver, event_create(&device->event, TCC_GPU_NO_TIMING), "no event on %s",
                gpu->name);
    TCC_GPU_TRY(gpu->driver, allocate_host(&device->word, TCC_GPU_READ, 0), "no pinned memory for %s",
                gpu->name);
    return TCC_OK;
}

static tcc_status make_beside(tcc_gpu_instance *device, int64_t tickets) {
    const tcc_gpu *gpu = device->gpu;
    if (!gpu->overlaps) return TCC_OK;
    TCC_GPU_TRY(gpu->driver, stream_create(&device->beside, TCC_GPU_NON_BLOCKING), "no stream on %s",
                gpu->name);
    TCC_GPU_TRY(gpu->driver, event_create(&device->begun, TCC_GPU_NO_TIMING), "no event on %s",
                gpu->name);
    for (int64_t i = 0; i < tickets; i++)
        TCC_GPU_TRY(gpu->driver, event_create(&device->ended[i], TCC_GPU_NO_TIMING),
                    "no event on %s", gpu->name);
    return TCC_OK;
}

static tcc_status make_state(tcc_instance *instance) {
    tcc_gpu_instance *device = instance->device;
    const tcc_gpu *gpu = device->gpu;
    size_t size = (size_t)instance->model->program.state_bytes;
    if (!size) return TCC_OK;
    TCC_RETURN_IF_ERROR(tcc_gpu_grow(device, &device->state, size, "state"));
    TCC_GPU_TRY(gpu->driver, fill(device->state.data, 0, size, device->stream),
                "the state cannot be cleared on %s", gpu->name);
    TCC_GPU_TRY(gpu->driver, stream_wait(device->stream), "the state cannot be cleared on %s",
                gpu->name);
    return TCC_OK;
}

static tcc_status fill_instance(tcc_instance *instance) {
    tcc_gpu_instance *device = instance->device;
    const tcc_program *program = &instance->model->program;
    TCC_RETURN_IF_ERROR(allocate_tables(instance, device));
    TCC_RETURN_IF_ERROR(make_streams(device));
    TCC_RETURN_IF_ERROR(make_beside(device, program->n_tickets));
    TCC_RETURN_IF_ERROR(make_state(instance));
    return tcc_gpu_grow(device, &device->arena, (size_t)program->fixed_arena, "arena");
}

tcc_status tcc_gpu_instance_create(tcc_instance *instance) {
    const tcc_gpu *gpu = instance->model->gpu;
    tcc_gpu_scope scope;
    instance->device = tcc_allocate_zero(1, sizeof *instance->device);
    if (!instance->device) return TCC_OUT_OF_MEMORY;
    instance->device->gpu = gpu;
    instance->executor = &tcc_gpu_executor;
    TCC_RETURN_IF_ERROR(tcc_gpu_enter(gpu, &scope));
    tcc_status status = fill_instance(instance);
    tcc_gpu_leave(gpu, &scope);
    if (status == TCC_OK)
        tcc_instance_aim_constants(instance, gpu->weights, instance->device->state.data);
    return status;
}

static void release_memory(tcc_instance *instance) {
    tcc_gpu_instance *device = instance->device;
    const tcc_gpu_driver *driver = device->gpu->driver;
    const tcc_program *program = &instance->model->program;
    if (device->pending) (void)driver->event_wait(device->event);
    tcc_gpu_part(device);
    tcc_gpu_drop_graphs(device);
    tcc_gpu_release_array(device->gpu, &device->arena);
    tcc_gpu_release_array(device->gpu, &device->state);
    for (tcc_gpu_replaced *item = device->replaced; item; item = item->next)
        tcc_gpu_release_array(device->gpu, &item->array);
    for (int32_t i = 0; device->inputs && i < program->n_inputs; i++)
        tcc_gpu_release_array(device->gpu, &device->inputs[i]);
    for (int32_t i = 0; device->outputs && i < program->n_outputs; i++)
        tcc_gpu_release_array(device->gpu, &device->outputs[i]);
    if (device->word) (void)driver->release_host(device->word);
    for (int64_t i = 0; device->ended && i < program->n_tickets; i++)
        if (device->ended[i]) (void)driver->event_destroy(device->ended[i]);
    if (device->begun) (void)driver->event_destroy(device->begun);
    if (device->beside) (void)driver->stream_destroy(device->beside);
    if (device->event) (void)driver->event_destroy(device->event);
    if (device->capture) (void)driver->stream_destroy(device->capture);
    if (device->stream) (void)driver->stream_destroy(device->stream);
}

void tcc_gpu_instance_destroy(tcc_instance *instance) {
    tcc_gpu_instance *device = instance->device;
    tcc_gpu_scope scope;
    if (!device) return;
    if (tcc_gpu_enter(device->gpu, &scope) == TCC_OK) {
        release_memory(instance);
        tcc_gpu_leave(device->gpu, &scope);
    }
    while (device->replaced) {
        tcc_gpu_replaced *next = device->replaced->next;
        tcc_free(device->replaced);
        device->replaced = next;
    }
    for (int32_t i = 0; i < TCC_GPU_GRAPHS; i++) tcc_free(device->graphs[i].key);
    tcc_free(device->inputs);
    tcc_free(device->outputs);
    tcc_free(device->caller_inputs);
    tcc_free(device->caller_outputs);
    tcc_free(device->host_outputs);
    tcc_free(device->capacities);
    tcc_free(device->values);
    tcc_free(device->params);
    tcc_free(device->map_room);
    tcc_free(device->key);
    tcc_free(device->ended);
    tcc_free(device->parties);
    tcc_free(device);
    instance->device = NULL;
}

void tcc_gpu_statistics(const tcc_instance *instance, tcc_statistics *out) {
    out->arena_bytes = instance->device->arena.size;
    out->scratch_bytes = 0;
}

/* ---- a run ----------------------------------------------------------------------------------------- */

/* Finds out whether the caller records its stream.  If so, the run's work goes into the caller's
 * graph.  The graph does not wait for the run before: the caller keeps replays and other runs
 * apart. */
static tcc_status look_for_recording(tcc_gpu_instance *device, void *stream) {
    int status = 0;
    device->queue = stream ? stream : device->stream;
    device->recorded = false;
    if (!stream) return TCC_OK;
    TCC_GPU_TRY(device->gpu->driver, stream_capture(stream, &status),
                "the caller's stream cannot be used");
    device->recorded = status != 0;
    device->replayed |= device->recorded;
    return TCC_OK;
}

static tcc_status begin(tcc_run *run) {
    tcc_gpu_instance *device = run->instance->device;
    const tcc_program *program = &run->instance->model->program;
    const tcc_gpu *gpu = device->gpu;
    device->phase = TCC_PHASE_RUN;
    device->read_from = NULL;
    device->host_arrays = false;
    device->results = (tcc_device){TCC_DEVICE_CPU, 0};
    for (int32_t i = 0; i < program->n_inputs; i++)
        if (!tcc_gpu_is_host(run->inputs[i].device))
            device->results = (tcc_device){gpu->driver->device_type, gpu->ordinal};
    memset(device->caller_inputs, 0, (size_t)program->n_inputs * sizeof *device->caller_inputs);
    memset(device->caller_outputs, 0, (size_t)program->n_outputs * sizeof *device->caller_outputs);
    /* the run before may still use this instance's memory, on another stream */
    if (device->pending && !device->recorded)
        TCC_GPU_TRY(gpu->driver, stream_wait_event(device->queue, device->event, 0),
                    "the run before cannot be awaited");
    return TCC_OK;
}

static tcc_status aim_arena(tcc_instance *instance) {
    tcc_gpu_instance *device = instance->device;
    int64_t size = 0;
    TCC_RETURN_IF_ERROR(tcc_instance_arena_size(instance, &size));
    TCC_RETURN_IF_ERROR(tcc_gpu_grow(device, &device->arena, (size_t)size, "arena"));
    if (instance->flags & TCC_POISON && size)
        TCC_GPU_TRY(device->gpu->driver, fill(device->arena.data, 0xFF, (size_t)size, device->queue),
                    "the arena cannot be filled");
    return tcc_instance_aim_arena(instance, (tcc_span){device->arena.data, size}, (tcc_span){NULL, 0});
}

/* Prepares a run.  A failure concerns this rank only, because no operation has begun. */
static tcc_status prepare(tcc_run *run, void *stream) {
    TCC_RETURN_IF_ERROR(look_for_recording(run->instance->device, stream));
    TCC_RETURN_IF_ERROR(begin(run));
    TCC_RETURN_IF_ERROR(tcc_instance_prepare(run));
    return tcc_gpu_join(run);
}

static tcc_status run_program(tcc_run *run) {
    tcc_instance *instance = run->instance;
    TCC_RETURN_IF_ERROR(tcc_gpu_upload(run));
    TCC_RETURN_IF_ERROR(aim_arena(instance));
    bool watched = instance->times || instance->ring.stamps;
    if (instance->device->gpu->graphs && !watched && !instance->device->recorded)
        TCC_RETURN_IF_ERROR(tcc_gpu_run_graph(run));
    else
        TCC_RETURN_IF_ERROR(tcc_interpret(run, instance->model->program.body));
    TCC_RETURN_IF_ERROR(tcc_collective_none(run));
    TCC_RETURN_IF_ERROR(tcc_ports_check_outputs_written(run));
    return tcc_gpu_download(run);
}

/* Ends a run.  Results on the caller's stream are ready when the stream has reached them; all other
 * results are ready on return. */
static tcc_status finish(tcc_run *run, void *stream) {
    tcc_gpu_instance *device = run->instance->device;
    if (device->recorded) return TCC_OK;
    if (!stream || device->host_arrays) {
        device->pending = false;
        return tcc_gpu_wait(device);
    }
    TCC_GPU_TRY(device->gpu->driver, event_record(device->event, device->queue),
                "the end of the run cannot be marked");
    device->pending = true;
    return TCC_OK;
}

/* Waits for all work after a failed run, so that nothing still uses the caller's memory or the
 * run's dynamic arrays, which are freed next: kernels, collectives that were started and not waited
 * for, and the run before, which the failed run may not have waited for. */
static void await_all(tcc_gpu_instance *device) {
    const tcc_gpu_driver *driver = device->gpu->driver;
    int error = driver->stream_wait(device->queue);
    if (device->beside) (void)driver->stream_wait(device->beside);
    if (device->pending && !error) error = driver->event_wait(device->event);
    device->pending = error && device->pending;
}

tcc_status tcc_gpu_run(tcc_run *run, void *stream) {
    tcc_gpu_instance *device = run->instance->device;
    tcc_gpu_scope scope;
    TCC_RETURN_IF_ERROR(tcc_gpu_enter(device->gpu, &scope));
    tcc_status status = prepare(run, stream);
    bool begun = status == TCC_OK;
    if (begun) status = run_program(run);
    bool ended = status == TCC_OK;
    if (ended) {
        tcc_gpu_free_dynamic(run->instance); /* freed in stream order, after the run's work */
        status = finish(run, stream);
    }
    /* tells the other ranks, and ends device work that waits for them */
    if (status != TCC_OK && begun) tcc_collective_abort(run);
    if (!ended) {
        if (!device->recorded) await_all(device);
        tcc_gpu_free_dynamic(run->instance);
    }
    if (status != TCC_OK && run->comm) tcc_gpu_drop_graphs(device);
    tcc_gpu_leave(device->gpu, &scope);
    return status;
}
