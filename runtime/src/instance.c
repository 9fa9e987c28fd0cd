/* Makes instances: the memory of one run at a time. */
#define _GNU_SOURCE
#include <string.h>

#include "clock.h"
#include "collective.h"
#include "place.h"
#include "runtime.h"

/* Counts an arena's bytes in the budget that it shares with the pool.  The pool gives back what it
 * does not need if the budget lacks room.  `size` is the arena's new size, `more` the bytes that it
 * adds. */
TCC_COLD static tcc_status charge(tcc_instance *instance, size_t more, size_t size) {
    tcc_budget *budget = &instance->budget;
    if (tcc_budget_take(budget, more)) return TCC_OK;
    tcc_pool_trim(instance->pool);
    return tcc_budget_take(budget, more) ? TCC_OK : tcc_budget_refuse(budget, size);
}

TCC_COLD static tcc_status grow(tcc_instance *instance, tcc_arena *arena, size_t size) {
    size = tcc_arena_rounded(size);
    size_t absent = size - arena->size + arena->absent;
    /* an arena that is made anew frees the old one first */
    TCC_RETURN_IF_ERROR(charge(instance, size - arena->size, size));
    if (size > arena->room) {
        tcc_budget_expect(&instance->budget, size - absent);
        absent = size;
    }
    tcc_status status = tcc_arena_reserve(arena, size);
    tcc_budget_settle(&instance->budget, absent - arena->absent);
    tcc_budget_give(&instance->budget, size - arena->size);
    return status;
}

static tcc_status reserve(tcc_instance *instance, tcc_arena *arena, size_t size) {
    return size <= arena->size ? TCC_OK : grow(instance, arena, size);
}

/* Notes that the arenas' pages exist.  After a run all pages that runs need are there, and before
 * the arenas are freed the count does not matter. */
TCC_COLD static void settle_arenas(tcc_instance *instance) {
    tcc_arena *all[] = {&instance->arena, &instance->scratch, &instance->state, &instance->symmetric};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        tcc_budget_settle(&instance->budget, all[i]->absent);
        all[i]->absent = 0;
    }
}

static tcc_status set_threads(tcc_instance *instance) {
    const tcc_program *program = &instance->model->program;
    int32_t request = instance->threads_own;
    if (request < 0) request = __atomic_load_n(&instance->model->threads, __ATOMIC_RELAXED);
    if (instance->threads && request == instance->threads_wanted) return TCC_OK;
    int32_t threads = 0;
    int64_t spin = 0;
    TCC_RETURN_IF_ERROR(tcc_threads_resolve(request, &threads));
    TCC_RETURN_IF_ERROR(tcc_spin_resolve(&spin)); /* for the thread that starts workers */
    /* whole pages, so that no two threads write to one cache line or huge page needlessly */
    size_t stride = ((size_t)program->scratch + 4095) / 4096 * 4096;
    instance->threads = 0; /* a failure below leaves no scratch memory, neither old nor new */
    TCC_RETURN_IF_ERROR(reserve(instance, &instance->scratch, stride * (size_t)threads));
    instance->scratch_stride = stride;
    instance->threads = threads;
    instance->threads_wanted = request;
    return TCC_OK;
}

static tcc_status allocate_tables(tcc_instance *instance) {
    const tcc_program *program = &instance->model->program;
    const struct {
        void **table;
        int64_t count;
        size_t size;
    } tables[] = {
        {(void **)&instance->registers, program->n_registers, sizeof(int64_t)},
        {(void **)&instance->spans, program->n_buffers, sizeof(tcc_span)},
        {(void **)&instance->launch_buffers, 2 * tcc_launch_room(program->max_buffers), sizeof(void *)},
        {(void **)&instance->launch_ints, 2 * tcc_launch_room(program->max_ints), sizeof(int64_t)},
        {(void **)&instance->need_values, program->max_values, sizeof(int64_t)},
        {(void **)&instance->proofs, program->n_proofs, sizeof(int64_t)},
        {(void **)&instance->chunks, program->n_steps, sizeof(int64_t)},
        {(void **)&instance->tensors, program->max_tensors, sizeof(tcc_op_tensor)},
        {(void **)&instance->dims, program->max_dims, sizeof(int64_t)},
        {(void **)&instance->results, program->max_results, sizeof(int64_t)},
        {(void **)&instance->shape, program->max_rank, sizeof(int64_t)},
        {(void **)&instance->bound, program->n_inputs, sizeof(tcc_span)},
        {(void **)&instance->output_done, program->n_outputs, sizeof(bool)},
        {(void **)&instance->handles, program->n_outputs, sizeof(tcc_span)},
        {(void **)&instance->placers, program->n_plans, sizeof(tcc_placer *)},
        {(void **)&instance->flights, program->n_tickets, sizeof(tcc_flight)},
        {(void **)&instance->counts, 2 * program->n_counts, sizeof(int64_t)},
        {(void **)&instance->groups, program->n_groups, sizeof(tcc_comm *)},
    };
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        *tables[i].table = tcc_allocate_zero((size_t)tables[i].count, tables[i].size);
        if (!*tables[i].table) return TCC_OUT_OF_MEMORY;
    }
    for (int odd = 0; odd < 2; odd++) {
        void **head =
            instance->launch_buffers + odd * tcc_launch_room(program->max_buffers) + TCC_LAUNCH_HEAD;
        head[-2] = instance;
        head[-3] = &instance->ending;
        int (*asks)(void *) = tcc_run_asks;
        memcpy(&head[-4], &asks, sizeof asks); /* kernels with long tiles call it */
    }
    bool proved = instance->flags & TCC_POISON;
    for (const tcc_code *code = program->plans; code; code = code->plan)
        TCC_RETURN_IF_ERROR(tcc_placer_make(code, proved, &instance->placers[code->number]));
    return TCC_OK;
}

static tcc_status reserve_memory(tcc_instance *instance) {
    const tcc_model *model = instance->model;
    TCC_RETURN_IF_ERROR(reserve(instance, &instance->state, (size_t)model->program.state_bytes));
    TCC_RETURN_IF_ERROR(reserve(instance, &instance->arena, (size_t)model->program.fixed_arena));
    TCC_RETURN_IF_ERROR(set_threads(instance));
    tcc_instance_aim_constants(instance, model->weights.base, instance->state.base);
    return TCC_OK;
}

tcc_status tcc_instance_set_memory_limit(tcc_instance *instance, uint64_t bytes) {
    if (!instance) return tcc_fail(TCC_INVALID_ARGUMENT, "no instance");
    size_t limit = (size_t)bytes;
    /* 0: the limit in TCC_MEMORY, or none */
    if (!bytes) TCC_RETURN_IF_ERROR(tcc_memory_limit(&limit));
    instance->budget.limit = limit;
    instance->budget.source = bytes ? "instance_set_memory_limit" : "TCC_MEMORY";
    return TCC_OK;
}

tcc_status tcc_instance_set_pool(tcc_instance *instance, const tcc_pool_config *config) {
    tcc_pool_config settings;
    TCC_RETURN_IF_ERROR(tcc_pool_read_config(config, &settings));
    if (!instance || settings.flags & TCC_POOL_SHARED)
        return tcc_fail(TCC_INVALID_ARGUMENT, "no instance, or a shared pool");
    if (instance->flags & TCC_POISON) settings.flags |= TCC_POOL_POISON;
    tcc_pool *pool = NULL;
    TCC_RETURN_IF_ERROR(tcc_pool_create_within(&settings, &instance->budget, &pool));
    tcc_pool_destroy(instance->pool);
    instance->pool = pool;
    return TCC_OK;
}

tcc_status tcc_instance_create(tcc_model *model, uint32_t flags, tcc_instance **out_instance) {
    return tcc_instance_create_on(model, flags, NULL, out_instance);
}

tcc_status tcc_instance_create_on(tcc_model *model, uint32_t flags, tcc_comm *comm,
                                  tcc_instance **out_instance) {
    if (!model || !out_instance) return tcc_fail(TCC_INVALID_ARGUMENT, "no model");
    if (flags & ~(TCC_POISON | TCC_TIMES))
        return tcc_fail(TCC_INVALID_ARGUMENT, "unknown instance flags 0x%x", flags);
    if (comm) TCC_RETURN_IF_ERROR(tcc_collective_suits(comm, model));
    tcc_instance *instance = tcc_allocate_zero(1, sizeof *instance);
    if (!instance) return TCC_OUT_OF_MEMORY;
    instance->model = model;
    instance->flags = flags;
    instance->threads_own = -1;
    instance->budget = (tcc_budget){.parent = tcc_process_budget(), .name = "the instance"};
    tcc_status status = comm ? tcc_collective_keep(comm) : TCC_OK;
    if (status == TCC_OK) instance->comm = comm;
    if (status == TCC_OK) status = tcc_instance_set_memory_limit(instance, 0);
    const tcc_pool_config config = {.struct_size = sizeof config};
    if (status == TCC_OK) status = tcc_instance_set_pool(instance, &config);
    if (status == TCC_OK) status = allocate_tables(instance);
    if (status == TCC_OK && flags & TCC_TIMES) {
        size_t steps = (size_t)model->program.n_steps;
        instance->times = tcc_allocate_zero(steps ? steps : 1, sizeof *instance->times);
        if (!instance->times) status = TCC_OUT_OF_MEMORY;
    }
    if (status == TCC_OK)
        status = model->gpu ? tcc_gpu_instance_create(instance) : reserve_memory(instance);
    /* other ranks would wait to compare plans */
    if (status != TCC_OK && comm && model->ranks > 1) tcc_collective_leave(comm);
    if (status == TCC_OK && comm) status = tcc_collective_groups(instance, comm);
    if (status != TCC_OK) {
        tcc_instance_destroy(instance);
        return status;
    }
    instance->plain = !instance->times && !instance->executor;
    *out_instance = instance;
    return TCC_OK;
}

void tcc_instance_destroy(tcc_instance *instance) {
    if (!instance) return;
    tcc_gpu_instance_destroy(instance);
    tcc_pool_destroy(instance->pool);
    settle_arenas(instance);
    tcc_arena_release(&instance->arena);
    tcc_arena_release(&instance->scratch);
    tcc_arena_release(&instance->state);
    tcc_arena_release(&instance->symmetric);
    for (int64_t i = 0; instance->placers && i < instance->model->program.n_plans; i++)
        tcc_placer_free(instance->placers[i]);
    tcc_free(instance->placers);
    tcc_budget_give(&instance->budget, tcc_budget_used(&instance->budget));
    tcc_free(instance->registers);
    tcc_free(instance->spans);
    tcc_free(instance->launch_buffers);
    tcc_free(instance->launch_ints);
    tcc_free(instance->need_values);
    tcc_free(instance->proofs);
    tcc_free(instance->chunks);
    tcc_free(instance->tensors);
    tcc_free(instance->dims);
    tcc_free(instance->results);
    tcc_free(instance->shape);
    tcc_free(instance->bound);
    tcc_free(instance->output_done);
    tcc_free(instance->handles);
    tcc_free(instance->flights);
    tcc_free(instance->counts);
    tcc_free(instance->groups);
    tcc_free(instance->times);
    tcc_free(instance->views);
    tcc_collective_drop(instance->comm);
    tcc_free(instance);
}

/* Takes symmetric memory from the comm, where ranks reduce in place, else from the instance, where
 * they do not.  Both count as the instance's. */
static tcc_status make_symmetric(tcc_run *run, tcc_span *out_memory) {
    tcc_instance *instance = run->instance;
    int64_t size = 0;
    if (run->comm) TCC_RETURN_IF_ERROR(tcc_instance_symmetric_size(instance, &size));
    *out_memory = (tcc_span){NULL, size};
    if (!size) return TCC_OK;
    tcc_arena *arena = &instance->symmetric;
    if (!arena->base && arena->size < (size_t)size) {
        TCC_RETURN_IF_ERROR(charge(instance, (size_t)size - arena->size, (size_t)size));
        /* the comm has made the pages */
        tcc_budget_settle(&instance->budget, (size_t)size - arena->size);
        arena->size = (size_t)size;
    }
    tcc_status status = tcc_collective_memory(run, out_memory);
    if (status == TCC_UNSUPPORTED) {
        if (!arena->base) {
            tcc_budget_give(&instance->budget, arena->size);
            arena->size = 0;
        }
        status = reserve(instance, arena, (size_t)size);
        out_memory->data = arena->base;
    }
    if (status == TCC_OK && instance->flags & TCC_POISON) memset(out_memory->data, 0xFF, (size_t)size);
    return status;
}

static tcc_status make_arenas(tcc_run *run) {
    tcc_instance *instance = run->instance;
    tcc_span symmetric;
    int64_t size = 0;
    TCC_RETURN_IF_ERROR(tcc_instance_arena_size(instance, &size));
    TCC_RETURN_IF_ERROR(reserve(instance, &instance->arena, (size_t)size));
    if (instance->flags & TCC_POISON) {
        if (instance->arena.base) memset(instance->arena.base, 0xFF, instance->arena.size);
        if (instance->scratch.base) memset(instance->scratch.base, 0xFF, instance->scratch.size);
    }
    TCC_RETURN_IF_ERROR(make_symmetric(run, &symmetric));
    return tcc_instance_aim_arena(instance, (tcc_span){instance->arena.base, size}, symmetric);
}

static tcc_status run_program(tcc_run *run) {
    tcc_instance *instance = run->instance;
    TCC_RETURN_IF_ERROR(set_threads(instance));
    TCC_RETURN_IF_ERROR(tcc_instance_prepare(run));
    tcc_status status = make_arenas(run);
    if (status == TCC_OK) status = tcc_interpret_all(run);
    if (status == TCC_OK) status = tcc_collective_none(run);
    if (status == TCC_OK) status = tcc_ports_check_outputs_written(run);
    if (status == TCC_OK) status = tcc_values_give(run);
    if (TCC_UNLIKELY(status != TCC_OK)) tcc_collective_abort(run);
    return status;
}

tcc_status tcc_instance_run(tcc_instance *instance, const tcc_tensor *inputs, int32_t n_inputs,
                            tcc_tensor *outputs, int32_t n_outputs, const tcc_allocator *allocator,
                            void *stream) {
    if (!instance) return tcc_fail(TCC_INVALID_ARGUMENT, "no instance");
    const tcc_program *program = &instance->model->program;
    if (stream && !instance->device)
        return tcc_fail(TCC_INVALID_ARGUMENT, "a CPU model has no stream: pass NULL");
    if (n_inputs != program->n_inputs || (n_inputs && !inputs))
        return tcc_fail(TCC_INVALID_ARGUMENT, "expected %d inputs, got %d", program->n_inputs,
                        n_inputs);
    if (!(n_outputs == 0 && !outputs && allocator) &&
        (n_outputs != program->n_outputs || (n_outputs && !outputs)))
        return tcc_fail(TCC_INVALID_ARGUMENT, "expected %d outputs, got %d", program->n_outputs,
                        n_outputs);
    tcc_run run = {.instance = instance, .inputs = inputs, .outputs = outputs, .allocator = allocator};
    const int64_t began = TCC_UNLIKELY(instance->ring.stamps != NULL) ? tcc_now() : 0;
    tcc_ending_begin(&instance->ending);
    tcc_status status = program->ranks < 0 ? TCC_OK : tcc_collective_begin(&run);
    if (status == TCC_OK && instance->device) {
        status = tcc_gpu_run(&run, stream);
    } else if (status == TCC_OK) {
        tcc_crew_enter(&run.crew);
        run.crew.pause = tcc_run_asks;
        run.crew.pause_of = &instance->ending;
        status = run_program(&run);
        tcc_crew_leave(&run.crew);
    }
    if (run.comm) tcc_collective_end(&run);
    if (TCC_UNLIKELY(instance->arena.absent | instance->scratch.absent | instance->state.absent |
                     instance->symmetric.absent))
        settle_arenas(instance);
    tcc_pool_reset(instance->pool);
    tcc_ending_over(&instance->ending);
    tcc_stamp(instance, -1, 0, began);
    return status;
}
