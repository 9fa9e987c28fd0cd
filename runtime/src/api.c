/* The public function table. */
#include <string.h>

#include "runtime.h"
#include "sized.h"

static tcc_status check_threads(const void *owner, int32_t threads) {
    if (owner && threads >= 0 && threads <= TCC_MAX_THREADS) return TCC_OK;
    return tcc_fail(TCC_INVALID_ARGUMENT, "threads: expected 0 to %d, got %d", TCC_MAX_THREADS,
                    threads);
}

static tcc_status model_set_threads(tcc_model *model, int32_t threads) {
    TCC_RETURN_IF_ERROR(check_threads(model, threads));
    __atomic_store_n(&model->threads, threads, __ATOMIC_RELAXED);
    return TCC_OK;
}

static tcc_status instance_set_threads(tcc_instance *instance, int32_t threads) {
    TCC_RETURN_IF_ERROR(check_threads(instance, threads));
    instance->threads_own = threads;
    return TCC_OK;
}

static tcc_status instance_set_poll(tcc_instance *instance, int (*poll)(void *), void *context) {
    if (!instance) return tcc_fail(TCC_INVALID_ARGUMENT, "no instance");
    instance->ending.poll = poll;
    instance->ending.poll_context = context;
    return TCC_OK;
}

static uint64_t instance_next_run(const tcc_instance *instance) {
    return instance ? tcc_ending_next(&instance->ending) : 0;
}

static tcc_status instance_cancel(tcc_instance *instance) {
    return instance ? tcc_ending_cancel(&instance->ending) : tcc_fail(TCC_INVALID_ARGUMENT, "no instance");
}

static tcc_status instance_cancel_run(tcc_instance *instance, uint64_t number) {
    return instance ? tcc_ending_cancel_run(&instance->ending, number)
                    : tcc_fail(TCC_INVALID_ARGUMENT, "no instance");
}

static tcc_status instance_seed(tcc_instance *instance, uint64_t seed) {
    if (!instance) return tcc_fail(TCC_INVALID_ARGUMENT, "no instance");
    instance->seed = seed;
    instance->seeded = true;
    return TCC_OK;
}

static tcc_status instance_unseed(tcc_instance *instance) {
    if (!instance) return tcc_fail(TCC_INVALID_ARGUMENT, "no instance");
    instance->seeded = false;
    return TCC_OK;
}

static int32_t input_count(const tcc_model *model) { return model ? model->program.n_inputs : 0; }
static int32_t output_count(const tcc_model *model) { return model ? model->program.n_outputs : 0; }

static tcc_status describe(const tcc_port_info *ports, int32_t count, int32_t index,
                           tcc_port *out_port) {
    if (index < 0 || index >= count || !out_port)
        return tcc_fail(TCC_INVALID_ARGUMENT, "no port %d of %d", index, count);
    *out_port = ports[index].port;
    return TCC_OK;
}

static tcc_status input_port(const tcc_model *model, int32_t index, tcc_port *out_port) {
    return describe(model ? model->program.inputs : NULL, input_count(model), index, out_port);
}

static tcc_status output_port(const tcc_model *model, int32_t index, tcc_port *out_port) {
    return describe(model ? model->program.outputs : NULL, output_count(model), index, out_port);
}

static const char *manifest(size_t *out_size) {
    *out_size = (size_t)(tcc_artifact_info.manifest_end - tcc_artifact_info.manifest);
    return tcc_artifact_info.manifest;
}

static int32_t model_variant(const tcc_model *model) {
    return model ? (int32_t)(model->variant - tcc_artifact_info.variants) : -1;
}

static int32_t model_ranks(const tcc_model *model) { return model ? model->program.ranks : -1; }

static tcc_status statistics(const tcc_model *model, const tcc_instance *instance,
                             tcc_statistics *out) {
    if (!model || !out) return tcc_fail(TCC_INVALID_ARGUMENT, "no model");
    memset(out, 0, sizeof *out);
    out->weight_bytes = model->variant->weights->bytes;
    out->state_bytes = (uint64_t)model->program.state_bytes;
    int32_t threads = __atomic_load_n(&model->threads, __ATOMIC_RELAXED);
    if (instance && instance->threads_own >= 0) threads = instance->threads_own;
    TCC_RETURN_IF_ERROR(tcc_threads_resolve(threads, &out->threads));
    if (instance) {
        out->arena_bytes = instance->arena.size + instance->symmetric.size;
        out->scratch_bytes = instance->scratch.size;
        tcc_pool_statistics pool;
        tcc_pool_statistics_of(instance->pool, &pool);
        out->pool_bytes = pool.committed;
        out->pool_high_water = pool.most_live;
        if (instance->device) tcc_gpu_statistics(instance, out);
    }
    return TCC_OK;
}

static tcc_status times(const tcc_instance *instance, const tcc_time **out_times,
                        int64_t *out_count) {
    if (!instance || !out_times || !out_count)
        return tcc_fail(TCC_INVALID_ARGUMENT, "no instance");
    if (!instance->times)
        return tcc_fail(TCC_INVALID_ARGUMENT, "the instance was made without TCC_TIMES");
    *out_times = instance->times;
    *out_count = instance->model->program.n_steps;
    return TCC_OK;
}

/* ---- memory ----------------------------------------------------------------------------------------- */

static tcc_status process_set_memory_limit(uint64_t bytes) {
    __atomic_store_n(&tcc_process_budget()->limit, (size_t)bytes, __ATOMIC_RELAXED);
    return TCC_OK;
}

static tcc_status memory(tcc_instance *instance, tcc_memory *out) {
    const tcc_budget *process = tcc_process_budget();
    tcc_memory numbers = {.process_used = tcc_budget_used(process),
                        .process_most = process->peak,
                        .process_limit = process->limit};
    if (instance) {
        tcc_pool_statistics pool;
        tcc_pool_statistics_of(instance->pool, &pool);
        numbers.arena = instance->arena.size;
        numbers.scratch = instance->scratch.size;
        numbers.state = instance->state.size;
        numbers.pool_committed = pool.committed;
        numbers.pool_live = pool.live;
        numbers.used = tcc_budget_used(&instance->budget);
        numbers.most = instance->budget.peak;
        numbers.limit = instance->budget.limit;
        numbers.symmetric = instance->symmetric.size;
    }
    static const tcc_sized kind = {
        "tcc_memory", sizeof numbers, TCC_END(tcc_memory, process_limit),
        TCC_ENDS(tcc_memory, process_limit) | TCC_ENDS(tcc_memory, symmetric)};
    return tcc_sized_write(&kind, &numbers, out);
}

static const tcc_pool_api pools = {
    .struct_size = sizeof(tcc_pool_api),
    .create = tcc_pool_create,
    .destroy = tcc_pool_destroy,
    .take = tcc_pool_take,
    .give = tcc_pool_give,
    .resize = tcc_pool_resize,
    .trim = tcc_pool_trim,
    .statistics = tcc_pool_statistics_of,
    .pages_create = tcc_pages_create,
    .pages_destroy = tcc_pages_destroy,
    .pages_take = tcc_pages_take,
    .pages_give = tcc_pages_give,
    .pages_address = tcc_pages_address,
    .pages_free = tcc_pages_free,
};

const tcc_api *tcc_runtime_api(void) {
    static const tcc_api table = {
        .struct_size = sizeof(tcc_api),
        .version = TCC_API_VERSION,
        .model_get = tcc_model_get,
        .model_release = tcc_model_release,
        .model_set_threads = model_set_threads,
        .input_count = input_count,
        .output_count = output_count,
        .input_port = input_port,
        .output_port = output_port,
        .manifest = manifest,
        .instance_create = tcc_instance_create,
        .instance_set_threads = instance_set_threads,
        .instance_destroy = tcc_instance_destroy,
        .run = tcc_instance_run,
        .call = tcc_model_call,
        .statistics = statistics,
        .model_trim = tcc_model_trim,
        .last_error = tcc_last_error,
        .times = times,
        .model_variant = model_variant,
        .instance_set_poll = instance_set_poll,
        .process_set_memory_limit = process_set_memory_limit,
        .instance_set_memory_limit = tcc_instance_set_memory_limit,
        .memory = memory,
        .instance_set_pool = tcc_instance_set_pool,
        .pools = &pools,
        .result_pool = tcc_result_pool,
        .instance_create_on = tcc_instance_create_on,
        .model_ranks = model_ranks,
        .instance_seed = instance_seed,
        .instance_unseed = instance_unseed,
        .instance_cancel = instance_cancel,
        .instance_next_run = instance_next_run,
        .instance_cancel_run = instance_cancel_run,
        .model_get_on = tcc_model_get_on,
        .instance_set_stamps = tcc_instance_set_stamps,
        .model_asset = tcc_model_asset,
    };
    return &table;
}
