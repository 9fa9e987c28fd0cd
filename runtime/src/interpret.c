/* Runs a decoded program.  Only the instruction `Allocate` allocates memory. */
#define _GNU_SOURCE
#include <string.h>

#include "clock.h"
#include "collective.h"
#include "needs.h"
#include "place.h"
#include "runtime.h"
#include "seed.h"

static tcc_status broken(const char *defect) {
    return tcc_fail(TCC_INTERNAL, "the program %s", defect);
}

static tcc_status evaluate(tcc_run *run, const tcc_code *code) {
    int64_t *registers = run->instance->registers, value = 0;
    int64_t a = code->as.let.a, b = code->as.let.b;
    int64_t op = code->as.let.op;
    bool computed = true;
    if (op > TCC_INT_DIM && op < TCC_INT_RANK) {
        a = registers[a];
        b = registers[b];
    }
    switch (op) {
    case TCC_INT_DIM: value = run->inputs[a].shape[b]; break;
    case TCC_INT_CAPACITY: value = tcc_capacity(&run->inputs[a], (int32_t)b); break;
    case TCC_INT_RANK: value = tcc_collective_rank(run); break;
    case TCC_INT_SEED: TCC_RETURN_IF_ERROR(tcc_run_seed(run, &value)); break;
    default: computed = tcc_compute(op, a, b, &value);
    }
    if (TCC_UNLIKELY(!computed))
        return tcc_fail(TCC_INVALID_ARGUMENT,
                        op == TCC_INT_FLOORDIV || op == TCC_INT_MOD
                            ? "a size is divided by what is not positive (%lld by %lld)"
                            : "a size is too large (%lld and %lld)",
                        (long long)a, (long long)b);
    registers[code->as.let.target] = value;
    return TCC_OK;
}

/* Reads a buffer after the launches that write it are done. */
static tcc_status fetch(tcc_run *run, int64_t buffer, int64_t offset, int64_t size, void *out) {
    const tcc_executor *executor = run->instance->executor;
    if (TCC_UNLIKELY(executor != NULL)) return executor->fetch(run, buffer, offset, size, out);
    memcpy(out, run->instance->spans[buffer].data + offset, (size_t)size);
    return TCC_OK;
}

static tcc_status read_int(tcc_run *run, const tcc_code *code) {
    const tcc_span *span = &run->instance->spans[code->as.read.buffer];
    tcc_dtype dtype = code->as.read.dtype;
    int64_t bytes = dtype.bits / 8, offset = code->as.read.element * bytes, value;
    if (!span->data || offset > span->size - bytes) return broken("reads outside an array");
    uint64_t bits = 0; /* little-endian, as all machines that tcc supports */
    TCC_RETURN_IF_ERROR(fetch(run, code->as.read.buffer, offset, bytes, &bits));
    if (dtype.code == 0) {
        int32_t shift = 64 - dtype.bits;
        value = (int64_t)(bits << shift) >> shift;
    } else {
        if (bits > INT64_MAX) return tcc_fail(TCC_INVALID_ARGUMENT, "a size is above 2^63");
        value = dtype.code == 6 ? bits != 0 : (int64_t)bits;
    }
    run->instance->registers[code->as.read.target] = value;
    return TCC_OK;
}

static tcc_status check(const tcc_run *run, const tcc_code *code) {
    int64_t a = run->instance->registers[code->as.check.a];
    int64_t b = run->instance->registers[code->as.check.b];
    bool holds = false;
    switch (code->as.check.relation) {
    case TCC_REL_EQ: holds = a == b; break;
    case TCC_REL_LE: holds = a <= b; break;
    case TCC_REL_LT: holds = a < b; break;
    default: holds = a > 0 && b % a == 0; break;
    }
    if (!TCC_UNLIKELY(!holds)) return TCC_OK;
    return tcc_fail(TCC_INVALID_ARGUMENT, "%.768s (%lld, %lld)", code->as.check.message,
                    (long long)a, (long long)b);
}

static tcc_status allocate_output(tcc_run *run, int32_t index, int64_t size, tcc_span *span) {
    tcc_span memory = {NULL, 0};
    TCC_RETURN_IF_ERROR(tcc_ports_allocate_output(run, index, size, (tcc_device){1, 0}, &memory));
    if (!memory.data) return TCC_OK; /* the caller's input array is the output */
    if (run->instance->flags & TCC_POISON) memset(memory.data, 0xFF, (size_t)memory.size);
    *span = memory;
    return TCC_OK;
}

static tcc_status allocate(tcc_run *run, const tcc_code *code) {
    tcc_instance *instance = run->instance;
    int64_t id = code->as.allocate.buffer;
    const tcc_buffer *buffer = &instance->model->program.buffers[id];
    tcc_span *span = &instance->spans[id];
    int64_t size = instance->registers[code->as.allocate.size];
    if (size < 0) return broken("allocates a negative size");
    int64_t keep = code->as.allocate.keep ? span->size : 0;
    if (TCC_UNLIKELY(instance->executor != NULL))
        return buffer->place == TCC_PLACE_OUTPUT
                   ? instance->executor->output(run, (int32_t)buffer->a, size, span)
                   : instance->executor->resize(run, id, size, keep < size ? keep : size);
    if (buffer->place == TCC_PLACE_OUTPUT) return allocate_output(run, (int32_t)buffer->a, size, span);
    void *memory = span->data;
    TCC_RETURN_IF_ERROR(tcc_collective_spares(run, span));
    TCC_RETURN_IF_ERROR(tcc_pool_resize(instance->pool, &memory, (size_t)size,
                                        (size_t)(keep < size ? keep : size)));
    if ((instance->flags & TCC_POISON) && keep < size)
        memset((char *)memory + keep, 0xFF, (size_t)(size - keep));
    *span = (tcc_span){memory, size};
    return TCC_OK;
}

static tcc_status view(tcc_run *run, const tcc_code *code) {
    tcc_instance *instance = run->instance;
    tcc_span base = instance->spans[code->as.view.base];
    int64_t offset = instance->registers[code->as.view.offset];
    if (!base.data || offset < 0 || offset > base.size) return broken("aims outside a buffer");
    instance->spans[code->as.view.buffer] = (tcc_span){base.data + offset, base.size - offset};
    return TCC_OK;
}

enum {
    BRIEF = 512,  /* work per thread, in microseconds, below which a run need not look whether it
                     ends */
    LOOKS = 1024, /* work between two looks at the clock */
};

TCC_COLD static tcc_status look_closely(tcc_run *run) {
    tcc_ending *ending = &run->instance->ending;
    run->since = 0;
    return tcc_run_ends(ending) ? tcc_cancelled(ending) : TCC_OK;
}

/* Fails where the run must end.  Polls when a poll is due. */
static tcc_status look_up(tcc_run *run) {
    bool closely = run->since >= LOOKS || tcc_is_cancelled(&run->instance->ending);
    return TCC_UNLIKELY(closely) ? look_closely(run) : TCC_OK;
}

/* Waits for all launches.  Fails where one of them may have ended early. */
__attribute__((noinline)) static tcc_status wait_for_launches(tcc_run *run) {
    tcc_crew_settle(&run->crew);
    run->cut = false;
    return look_up(run);
}

/* Returns true if the launch is right.  Values that passed the check before are only compared, so
 * most runs compare a few numbers. */
static bool is_proved(tcc_instance *instance, const tcc_code *code) {
    const tcc_operands *buffers = &code->as.launch.buffers, *ints = &code->as.launch.ints;
    const int64_t *registers = instance->registers;
    int64_t *proof = instance->proofs + code->proof, *at = proof + 1;
    uint64_t differ = (uint64_t)(proof[0] ^ registers[code->as.launch.grid]);
    for (int64_t i = 0; i < ints->count; i++) differ |= (uint64_t)(*at++ ^ registers[ints->numbers[i]]);
    for (int64_t i = 0; i < buffers->count; i++)
        differ |= (uint64_t)(*at++ ^ instance->spans[buffers->numbers[i]].size);
    if (!differ) return true;
    /* the launch's units changed */
    __atomic_store_n(&instance->chunks[code->number], 0, __ATOMIC_RELAXED);
    return tcc_needs_prove(&instance->model->program, code, registers, instance->spans,
                           instance->need_values, proof);
}

/* Runs units of a launch on any thread. */
static void run_units(const void *of, int64_t begin, int64_t end, void *scratch) {
    const tcc_job *job = of;
    job->kernel(job->buffers, job->ints, begin, end, scratch);
}

/* Stands in as the kernel of launches that may end early with their run.  The words ahead of the
 * operands hold the real launch. */
static void run_chunks(void *const *buffers, const int64_t *ints, int64_t begin, int64_t end, void *scratch) {
    const tcc_code *code = buffers[-1];
    const tcc_instance *instance = buffers[-2];
    const tcc_job job = {.kernel = code->kernel, .buffers = buffers, .ints = ints};
    const tcc_chunked work = {run_units, &job};
    tcc_by_chunks(buffers[-3], &work, begin, end, scratch, &instance->chunks[code->number]);
}

/* Sets the number of threads for which the launch has enough work, and whether it may end early
 * with its run.  It may if its kernels can take long, or if it reads data that another such launch
 * may have left unfinished. */
static void set_threads(tcc_run *run, const tcc_code *code, tcc_job *job) {
    int64_t min_units = code->as.launch.least < 0 ? 1 : run->instance->registers[code->as.launch.least];
    int64_t worth = min_units > 1 ? job->units / min_units : job->units;
    job->threads = run->instance->threads;
    if (worth < job->threads) job->threads = (int32_t)worth;
    run->since += min_units > 1 && worth < BRIEF ? worth + 1 : BRIEF / 2;
    if (min_units > 1 && worth < BRIEF && !run->cut) return;
    job->kernel = run_chunks;
    run->cut = true;
}

/* Stands in as the kernel of launches that are stamped. */
static void run_stamped(void *const *buffers, const int64_t *ints, int64_t begin, int64_t end, void *scratch) {
    const tcc_code *code = buffers[-1];
    tcc_kernel kernel;
    memcpy(&kernel, &buffers[-5], sizeof kernel);
    const int64_t time = tcc_now();
    kernel(buffers, ints, begin, end, scratch);
    tcc_stamp(buffers[-2], code->number, (int64_t)(intptr_t)buffers[-6], time);
}

static tcc_status launch(tcc_run *run, const tcc_code *code) {
    tcc_instance *instance = run->instance;
    const tcc_program *program = &instance->model->program;
    int64_t units = instance->registers[code->as.launch.grid];
    TCC_RETURN_IF_ERROR(look_up(run));
    if (units <= 0) return TCC_OK;
    if (code->proof >= 0 && TCC_UNLIKELY(!is_proved(instance, code)))
        return broken("gives a kernel less memory than it needs, or other sizes");
    if (TCC_UNLIKELY(instance->executor != NULL)) {
        run->since += BRIEF / 8;
        return instance->executor->launch(run, code, units);
    }
    /* the previous launch may still read its half of the tables */
    run->odd = !run->odd;
    void **buffers =
        instance->launch_buffers + run->odd * tcc_launch_room(program->max_buffers) + TCC_LAUNCH_HEAD;
    int64_t *ints = instance->launch_ints + run->odd * tcc_launch_room(program->max_ints);
    const tcc_operands *operands = &code->as.launch.buffers, *sizes = &code->as.launch.ints;
    for (int64_t i = 0; i < operands->count; i++) {
        buffers[i] = instance->spans[operands->numbers[i]].data;
        if (TCC_UNLIKELY(!buffers[i])) return broken("uses a buffer that has no memory yet");
    }
    for (int64_t i = 0; i < sizes->count; i++) ints[i] = instance->registers[sizes->numbers[i]];
    buffers[-1] = (void *)(uintptr_t)code;
    tcc_job job = {.kernel = code->kernel,
                   .buffers = buffers,
                   .ints = ints,
                   .units = units,
                   .scratch = instance->scratch.base,
                   .scratch_stride = instance->scratch_stride};
    if (code->ahead >= 0) {
        const tcc_span *ahead = &instance->spans[code->ahead];
        job.ahead = ahead->data;
        job.ahead_bytes = ahead->size;
    }
    set_threads(run, code, &job);
    if (TCC_UNLIKELY(instance->ring.stamps != NULL)) {
        memcpy(&buffers[-5], &job.kernel, sizeof job.kernel);
        buffers[-6] = (void *)(intptr_t)run->executions;
        job.kernel = run_stamped;
    }
    tcc_crew_launch(&run->crew, &job);
    return TCC_OK;
}

static tcc_status fill_tensor(const tcc_instance *instance, const tcc_tensor_ref *ref,
                              int64_t *dims, tcc_op_tensor *out_tensor) {
    const tcc_span *span = &instance->spans[ref->buffer];
    for (int32_t i = 0; i < ref->ndim; i++) dims[i] = instance->registers[ref->dims[i]];
    int64_t count = 1, bytes = tcc_byte_count(dims, ref->ndim, ref->dtype);
    if (bytes < 0) return broken("gives a function an array of no possible size");
    for (int32_t i = 0; i < ref->ndim; i++) count = bytes ? count * dims[i] : 0;
    if (!span->data || bytes > span->size)
        return broken("gives a function an array larger than its memory");
    uintptr_t unaligned = ref->dtype.bits >= 64 ? 7 : ref->dtype.bits >= 16 ? ref->dtype.bits / 8u - 1 : 0;
    if ((uintptr_t)span->data & unaligned) return broken("gives a function an array that is not aligned");
    *out_tensor = (tcc_op_tensor){span->data, ref->dtype, ref->ndim, dims, count};
    return TCC_OK;
}

static tcc_status call(tcc_run *run, const tcc_code *code) {
    tcc_instance *instance = run->instance;
    const tcc_operands *inputs = &code->as.call.inputs, *outputs = &code->as.call.outputs;
    const tcc_operands *results = &code->as.call.results;
    int64_t *dims = instance->dims;
    for (int64_t i = 0; i < inputs->count + outputs->count; i++) {
        const tcc_tensor_ref *ref = i < inputs->count ? &inputs->tensors[i]
                                                      : &outputs->tensors[i - inputs->count];
        TCC_RETURN_IF_ERROR(fill_tensor(instance, ref, dims, &instance->tensors[i]));
        dims += ref->ndim;
    }
    tcc_op_call arguments = {.inputs = instance->tensors,
                             .outputs = instance->tensors + inputs->count,
                             .n_inputs = (int32_t)inputs->count,
                             .n_outputs = (int32_t)outputs->count,
                             .ints = code->as.call.ints.numbers,
                             .n_ints = (int32_t)code->as.call.ints.count,
                             .results = instance->results,
                             .n_results = (int32_t)results->count,
                             .pool = instance->pool,
                             .heap = &instance->heap,
                             .crew = &run->crew,
                             .threads = instance->threads,
                             .ending = &instance->ending};
    TCC_RETURN_IF_ERROR(instance->executor
                            ? instance->executor->call(run, code->op, &arguments)
                            : code->op(&arguments));
    if (tcc_is_cancelled(&instance->ending)) return tcc_cancelled(&instance->ending);
    for (int64_t i = 0; i < results->count; i++)
        instance->registers[results->numbers[i]] = instance->results[i];
    return TCC_OK;
}

static tcc_status copy(tcc_run *run, const tcc_code *code) {
    tcc_span target = run->instance->spans[code->as.copy.target];
    tcc_span source = run->instance->spans[code->as.copy.source];
    int64_t size = run->instance->registers[code->as.copy.size];
    if (!target.data || !source.data || size < 0 || size > target.size || size > source.size)
        return broken("copies outside a buffer");
    if (size == 0 || target.data == source.data) return TCC_OK;
    if (TCC_UNLIKELY(run->instance->executor != NULL))
        return run->instance->executor->copy(run, target.data, source.data, size);
    return tcc_copy(&run->instance->ending, target.data, source.data, (size_t)size);
}

static tcc_status read_condition(tcc_run *run, int64_t buffer, bool *out_value) {
    const tcc_span *span = &run->instance->spans[buffer];
    if (!span->data || span->size < 1) return broken("reads a condition that is not there");
    char value = 0;
    TCC_RETURN_IF_ERROR(fetch(run, buffer, 0, 1, &value));
    *out_value = value != 0;
    return TCC_OK;
}

#ifdef TCC_TEST_FAIL_ALLOCATION
/* Tests of damaged programs set this to the total number of iterations that loops may take. */
__attribute__((visibility("default"))) int64_t tcc_test_trips = INT64_MAX;

static bool may_go_on(void) { return tcc_test_trips > 0 && --tcc_test_trips > 0; }
#else
static bool may_go_on(void) { return true; }
#endif

static tcc_status loop(tcc_run *run, const tcc_code *code) {
    int64_t *registers = run->instance->registers, trip = 0;
    for (; trip < registers[code->as.loop.trips] && may_go_on(); trip++) {
        bool go_on = true;
        if (TCC_UNLIKELY(tcc_run_ends(&run->instance->ending)))
            return tcc_cancelled(&run->instance->ending);
        registers[code->as.loop.counter] = trip;
        if (code->as.loop.condition >= 0) {
            TCC_RETURN_IF_ERROR(wait_for_launches(run));
            TCC_RETURN_IF_ERROR(read_condition(run, code->as.loop.condition, &go_on));
        }
        if (!go_on) break;
        TCC_RETURN_IF_ERROR(tcc_interpret(run, code->as.loop.body));
    }
    registers[code->as.loop.counter] = trip;
    return TCC_OK;
}

static tcc_status branch(tcc_run *run, const tcc_code *code) {
    bool is_true = false;
    if (code->as.branch.condition < 0)
        is_true = run->instance->registers[code->as.branch.when] != 0;
    else
        TCC_RETURN_IF_ERROR(read_condition(run, code->as.branch.condition, &is_true));
    return tcc_interpret(run, is_true ? code->as.branch.then : code->as.branch.otherwise);
}

static tcc_status settle(tcc_run *run) {
    if (run->instance->executor) return run->instance->executor->settle(run);
    return wait_for_launches(run);
}

/* Executes an instruction that takes time worth measuring. */
static tcc_status step(tcc_run *run, const tcc_code *code) {
    switch (code->kind) {
    case TCC_CODE_LAUNCH: return launch(run, code);
    case TCC_CODE_CALL: return call(run, code);
    case TCC_CODE_WAIT: return tcc_collective_wait(run, code);
    default: return tcc_collective_start(run, code);
    }
}

/* Executes and times a step.  Steps do not overlap, so the whole run takes a little longer. */
static tcc_status timed(tcc_run *run, const tcc_code *code) {
    tcc_instance *instance = run->instance;
    TCC_RETURN_IF_ERROR(settle(run));
    int64_t began = tcc_now();
    TCC_RETURN_IF_ERROR(step(run, code));
    TCC_RETURN_IF_ERROR(settle(run));
    if (instance->executor || code->kind != TCC_CODE_LAUNCH) tcc_stamp(instance, code->number, run->executions, began);
    if (!instance->times) return TCC_OK;
    instance->times[code->number].nanoseconds += tcc_now() - began;
    instance->times[code->number].count++;
    return TCC_OK;
}

/* Executes a step of an instance with times or stamps.  On CPUs the threads of a launch stamp their
 * own parts. */
TCC_COLD static tcc_status watched(tcc_run *run, const tcc_code *code) {
    const tcc_instance *instance = run->instance;
    run->executions++;
    if (instance->times || instance->executor) return timed(run, code);
    int64_t began = tcc_now();
    TCC_RETURN_IF_ERROR(step(run, code));
    if (code->kind != TCC_CODE_LAUNCH) tcc_stamp(instance, code->number, run->executions, began);
    return TCC_OK;
}

static bool is_watched(const tcc_instance *instance) {
    return TCC_UNLIKELY((instance->times != NULL) | (instance->ring.stamps != NULL));
}

static tcc_status execute(tcc_run *run, const tcc_code *code) {
    switch (code->kind) { /* instructions that neither read nor free data may run before the workers
                             are done */
    case TCC_CODE_LET: return evaluate(run, code);
    case TCC_CODE_CHECK: return check(run, code);
    case TCC_CODE_VIEW: return view(run, code);
    case TCC_CODE_PLAN:
        return tcc_placer_run(run->instance->placers[code->number], run->instance->registers);
    case TCC_CODE_LAUNCH: return is_watched(run->instance) ? watched(run, code) : launch(run, code);
    case TCC_CODE_WAIT: /* its start has waited for the launches that write its buffers */
        return is_watched(run->instance) ? watched(run, code) : tcc_collective_wait(run, code);
    default: break;
    }
    run->since += BRIEF / 8;
    TCC_RETURN_IF_ERROR(wait_for_launches(run));
    switch (code->kind) {
    case TCC_CODE_READ: return read_int(run, code);
    case TCC_CODE_ALLOCATE: return allocate(run, code);
    case TCC_CODE_CALL:
    case TCC_CODE_COLLECTIVE:
        return is_watched(run->instance) ? watched(run, code) : step(run, code);
    case TCC_CODE_COPY: return copy(run, code);
    case TCC_CODE_BRANCH: return branch(run, code);
    default: return loop(run, code);
    }
}

tcc_status tcc_interpret_all(tcc_run *run) {
    TCC_RETURN_IF_ERROR(tcc_interpret(run, run->instance->model->program.body));
    /* a poll that asked for the end still reports it */
    return run->cut ? wait_for_launches(run) : look_up(run);
}

__attribute__((noinline)) tcc_status tcc_interpret(tcc_run *run, tcc_body body) {
    for (int64_t i = 0; i < body.count; i++) TCC_RETURN_IF_ERROR(execute(run, &body.code[i]));
    return TCC_OK;
}
