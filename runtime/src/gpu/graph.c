/* Runs whole bodies as graphs of the driver: one launch instead of hundreds.
 *
 * The body is walked twice.  The first walk resolves sizes and addresses, and asks for outputs; its
 * results make the key.  If the key is known, its graph is launched, or recorded when the key is
 * seen for the second time.  The second walk starts the work.  Programs whose control depends on
 * data of the device are not run this way. */
#include <string.h>

#include "gpu.h"

int64_t tcc_gpu_key_words(const tcc_program *program) {
    return program->n_registers + program->n_inputs + program->n_outputs + 2;
}

/* Makes the key: the registers after the prologue and the seed, which decide all later registers,
 * and the resolved addresses. */
static void make_key(const tcc_run *run, int64_t *key) {
    const tcc_instance *instance = run->instance;
    const tcc_program *program = &instance->model->program;
    int64_t *inputs = key + program->n_registers, *outputs = inputs + program->n_inputs;
    for (int32_t i = 0; i < program->n_inputs; i++)
        inputs[i] = (int64_t)(uintptr_t)instance->bound[i].data;
    for (int64_t i = 0; i < program->n_buffers; i++)
        if (program->buffers[i].place == TCC_PLACE_OUTPUT)
            outputs[program->buffers[i].a] = (int64_t)(uintptr_t)instance->spans[i].data;
    outputs[program->n_outputs] = (int64_t)(uintptr_t)instance->device->arena.data;
    outputs[program->n_outputs + 1] = (int64_t)run->seed;
}

void tcc_gpu_drop_graph(const tcc_gpu_instance *device, tcc_gpu_graph *graph) {
    if (graph->executable) (void)device->gpu->driver->executable_destroy(graph->executable);
    graph->executable = NULL;
}

void tcc_gpu_drop_graphs(tcc_gpu_instance *device) {
    for (int32_t i = 0; i < TCC_GPU_GRAPHS; i++) tcc_gpu_drop_graph(device, &device->graphs[i]);
}

static tcc_gpu_graph *find(tcc_gpu_instance *device, size_t bytes) {
    for (int32_t i = 0; i < TCC_GPU_GRAPHS; i++) {
        tcc_gpu_graph *graph = &device->graphs[i];
        if (graph->key && graph->used && memcmp(graph->key, device->key, bytes) == 0) return graph;
    }
    return NULL;
}

/* Stores the key in the entry of the run that was used longest ago. */
static tcc_status remember(tcc_gpu_instance *device, size_t bytes) {
    tcc_gpu_graph *oldest = &device->graphs[0];
    for (int32_t i = 1; i < TCC_GPU_GRAPHS; i++)
        if (device->graphs[i].used < oldest->used) oldest = &device->graphs[i];
    if (!oldest->key) oldest->key = tcc_allocate(bytes);
    if (!oldest->key) return TCC_OUT_OF_MEMORY;
    if (oldest->executable && device->pending) /* the graph may be running */
        TCC_GPU_TRY(device->gpu->driver, event_wait(device->event),
                    "the run before cannot be awaited");
    tcc_gpu_drop_graph(device, oldest);
    memcpy(oldest->key, device->key, bytes);
    oldest->used = device->runs;
    return TCC_OK;
}

/* Walks the body a second time, and puts its work on the current stream. */
static tcc_status enqueue(tcc_run *run) {
    tcc_instance *instance = run->instance;
    const tcc_program *program = &instance->model->program;
    memcpy(instance->registers, instance->device->key,
           (size_t)program->n_registers * sizeof *instance->registers);
    instance->device->phase = TCC_PHASE_ENQUEUE;
    tcc_status status = tcc_interpret(run, program->body);
    instance->device->phase = TCC_PHASE_RUN;
    return status;
}

static tcc_status record(tcc_run *run, void **out_graph) {
    tcc_gpu_instance *device = run->instance->device;
    const tcc_gpu_driver *driver = device->gpu->driver;
    TCC_GPU_TRY(driver, capture_begin(device->capture, TCC_GPU_CAPTURE_THREAD),
                "a graph cannot be recorded");
    void *queue = device->queue;
    device->queue = device->capture;
    tcc_status status = enqueue(run);
    device->queue = queue;
    int error = driver->capture_end(device->capture, out_graph);
    if (status == TCC_OK && error)
        status = tcc_gpu_fail(driver, error, "a graph cannot be recorded");
    return status;
}

static tcc_status capture(tcc_run *run, tcc_gpu_graph *graph) {
    const tcc_gpu_driver *driver = run->instance->device->gpu->driver;
    void *recorded = NULL;
    tcc_status status = record(run, &recorded);
    if (status == TCC_OK) {
        int error = driver->graph_instantiate(&graph->executable, recorded, 0);
        if (error) {
            graph->executable = NULL;
            status = tcc_gpu_fail(driver, error, "a graph cannot be made");
        }
    }
    if (recorded) (void)driver->graph_destroy(recorded);
    return status;
}

static tcc_status resolve(tcc_run *run) {
    tcc_instance *instance = run->instance;
    instance->device->phase = TCC_PHASE_RESOLVE;
    instance->device->kernels = 0;
    tcc_status status = tcc_interpret(run, instance->model->program.body);
    instance->device->phase = TCC_PHASE_RUN;
    return status;
}

tcc_status tcc_gpu_run_graph(tcc_run *run) {
    tcc_instance *instance = run->instance;
    tcc_gpu_instance *device = instance->device;
    const tcc_program *program = &instance->model->program;
    size_t bytes = (size_t)tcc_gpu_key_words(program) * sizeof *device->key;
    device->runs++;
    memcpy(device->key, instance->registers,
           (size_t)program->n_registers * sizeof *instance->registers);
    TCC_RETURN_IF_ERROR(resolve(run));
    TCC_RETURN_IF_ERROR(tcc_collective_none(run));
    if (device->kernels > TCC_GPU_MOST_KERNELS || run->fresh) return enqueue(run);
    make_key(run, device->key);
    tcc_gpu_graph *graph = find(device, bytes);
    if (!graph) {
        TCC_RETURN_IF_ERROR(remember(device, bytes));
        return enqueue(run);
    }
    graph->used = device->runs;
    if (!graph->executable) TCC_RETURN_IF_ERROR(capture(run, graph));
    TCC_GPU_TRY(device->gpu->driver, graph_launch(graph->executable, device->queue),
                "a recorded run of model '%s' cannot be started", tcc_artifact_info.name);
    return TCC_OK;
}
