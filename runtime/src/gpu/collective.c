/* Runs collectives between GPUs: the comm's device puts them into a stream.
 *
 * If a program waits for each collective at once, they go to the run's stream.  Otherwise they go
 * to a second stream, which begins each after all earlier work, and waits are events.  So kernels
 * between a start and its wait run beside the collective, also in a graph. */
#include "../sized.h"
#include "gpu.h"

/* ---- the comm of a run ------------------------------------------------------------------------------- */

tcc_status tcc_gpu_join(tcc_run *run) {
    tcc_gpu_instance *device = run->instance->device;
    if (!run->comm || !run->instance->model->program.n_tickets) return TCC_OK;
    if (!device->joined)
        TCC_RETURN_IF_ERROR(tcc_gpu_unless_recorded(
            device, "its ranks have not met on their GPUs: run it once before"));
    const tcc_comm_table *table = tcc_collective_table(run->comm);
    if (!TCC_HAS(table, device_wait))
        return tcc_fail(TCC_UNSUPPORTED,
                        "the comm's library is older than this model and knows no GPUs");
    tcc_comm_device *joined = NULL;
    tcc_status status = table->device_open(run->comm, device->gpu->driver->device_type, &joined);
    if (status != TCC_OK) return tcc_collective_failed(run, -1, status);
    if (joined == device->joined) { /* the device has joined it already */
        table->device_close(joined);
        return TCC_OK;
    }
    tcc_gpu_part(device);
    device->joined = joined;
    device->talk = table;
    device->party_groups = run->instance->model->program.groups;
    for (int64_t i = 0; i < run->instance->model->program.n_groups; i++) {
        status = table->device_open(run->instance->groups[i], device->gpu->driver->device_type,
                                    &device->parties[i]);
        if (status != TCC_OK) {
            status = tcc_collective_failed(run, i, status);
            tcc_gpu_part(device);
            return status;
        }
        device->n_parties = i + 1;
    }
    return TCC_OK;
}

void tcc_gpu_part(tcc_gpu_instance *device) {
    if (!device->joined) return;
    if (device->pending) (void)device->gpu->driver->event_wait(device->event);
    tcc_gpu_drop_graphs(device); /* the library's close waits for these graphs */
    while (device->n_parties) device->talk->device_close(device->parties[--device->n_parties]);
    device->talk->device_close(device->joined);
    device->joined = NULL;
}

/* A wait that the comms of several groups watch, one inside another. */
typedef struct watched_wait {
    const tcc_gpu_instance *device;
    int64_t parties;
    tcc_status status; /* status of a group's comm that failed */
    char reason[512];
} watched_wait;

static int wait_for_stream(void *of) {
    watched_wait *wait = of;
    const tcc_gpu_instance *device = wait->device;
    if (!wait->parties) return device->gpu->driver->stream_wait(device->queue);
    int64_t group = --wait->parties;
    int error = 0;
    tcc_status status =
        device->talk->device_wait(device->parties[group], wait_for_stream, wait, &error);
    if (status != TCC_OK) {
        wait->status = status;
        snprintf(wait->reason, sizeof wait->reason, "in group %.100s: %.400s",
                 device->party_groups[group].name, device->talk->last_error());
    }
    return error;
}

tcc_status tcc_gpu_wait_watched(const tcc_gpu_instance *device, int *out_error) {
    watched_wait wait = {.device = device, .parties = device->n_parties};
    if (!device->joined) {
        *out_error = wait_for_stream(&wait);
        return TCC_OK;
    }
    tcc_status status =
        device->talk->device_wait(device->joined, wait_for_stream, &wait, out_error);
    if (status == TCC_OK && wait.status != TCC_OK) return tcc_fail(wait.status, "%s", wait.reason);
    return status == TCC_OK ? TCC_OK : tcc_fail(status, "%s", device->talk->last_error());
}

/* ---- instructions ------------------------------------------------------------------------------------ */

/* Lets ranks compare counts on the host where a run learns the counts: the library would wait for
 * ever for elements that its peer does not send. */
static tcc_status compare_counts(const tcc_run *run, const tcc_comm_call *call, int64_t group) {
    const tcc_instance *instance = run->instance;
    tcc_comm *comm = group < 0 ? run->comm : instance->groups[group];
    const tcc_comm_table *table = tcc_collective_table(comm);
    int32_t rank = table->rank(comm);
    bool per_rank = call->kind == TCC_COMM_ALL_TO_ALL_V;
    const int64_t *due = call->receive_counts;
    int64_t *theirs = &instance->counts[instance->model->program.n_counts + (due - instance->counts)];
    const tcc_comm_call exchange = {.struct_size = sizeof exchange,
                                    .kind = per_rank ? TCC_COMM_ALL_TO_ALL : TCC_COMM_ALL_GATHER,
                                    .dtype = {0, 64, 1}, .count = 1};
    tcc_status status = table->issue(comm, &exchange, per_rank ? call->send_counts : &due[rank], theirs);
    if (status != TCC_OK) return tcc_collective_failed(run, group, status);
    for (int32_t i = 0; i < table->size(comm); i++)
        if (theirs[i] != due[i])
            return tcc_fail(TCC_MISMATCH, "rank %d sends %lld elements to rank %d, which expects %lld",
                            i, (long long)theirs[i], rank, (long long)due[i]);
    return TCC_OK;
}

tcc_status tcc_gpu_start(tcc_run *run, const tcc_comm_call *call, const tcc_code *code) {
    tcc_gpu_instance *device = run->instance->device;
    const tcc_gpu_driver *driver = device->gpu->driver;
    const tcc_span *spans = run->instance->spans;
    void *stream = device->beside ? device->beside : device->queue;
    int64_t group = code->as.collective.group;
    if (call->receive_counts && device->gpu->reads && device->phase != TCC_PHASE_ENQUEUE)
        TCC_RETURN_IF_ERROR(compare_counts(run, call, group)); /* once per run */
    if (device->phase == TCC_PHASE_RESOLVE) return TCC_OK;
    device->read_from = NULL;
    if (device->beside) {
        TCC_GPU_TRY(driver, event_record(device->begun, device->queue),
                    "a collective cannot be put behind kernels");
        TCC_GPU_TRY(driver, stream_wait_event(stream, device->begun, 0),
                    "a collective cannot be put behind kernels");
    }
    tcc_status status = device->talk->device_start(
        group < 0 ? device->joined : device->parties[group], call, spans[code->as.collective.send].data,
        spans[code->as.collective.receive].data, stream);
    if (status != TCC_OK) return tcc_collective_failed(run, group, status);
    if (device->beside)
        TCC_GPU_TRY(driver, event_record(device->ended[code->as.collective.ticket], stream),
                    "the end of a collective cannot be marked");
    return TCC_OK;
}

tcc_status tcc_gpu_await(tcc_run *run, int64_t ticket) {
    tcc_gpu_instance *device = run->instance->device;
    if (device->phase == TCC_PHASE_RESOLVE || !device->beside) return TCC_OK;
    TCC_GPU_TRY(device->gpu->driver, stream_wait_event(device->queue, device->ended[ticket], 0),
                "kernels cannot be put behind a collective");
    return TCC_OK;
}
