/* Runs a program's collectives through the table of functions that a comm begins with. */
#include <stdatomic.h>
#include <string.h>

#include "collective.h"
#include "launchers.h"
#include "ranks.h"
#include "sized.h"

tcc_status tcc_collective_fits(const tcc_comm *comm) {
    const tcc_comm_table *table = tcc_collective_table(comm);
    /* the functions after it are for GPUs */
    if (table->version == TCC_COMM_VERSION && TCC_HAS(table, subgroup)) return TCC_OK;
    return tcc_fail(TCC_UNSUPPORTED, "the comm has version %u, this model knows version %d",
                    table->version, TCC_COMM_VERSION);
}

tcc_status tcc_collective_suits(const tcc_comm *comm, const tcc_model *model) {
    const tcc_comm_table *table = tcc_collective_table(comm);
    TCC_RETURN_IF_ERROR(tcc_collective_fits(comm));
    return tcc_ranks_check(model, table->rank(comm), table->size(comm));
}

tcc_status tcc_collective_place(const tcc_comm *comm, int32_t *out_rank, int32_t *out_ranks) {
    tcc_comm *shared = comm ? NULL : tcc_collective_shared();
    if (shared) comm = shared;
    tcc_launch launch = {.rank = 0, .size = 1};
    bool launched = true;
    tcc_status status = comm ? tcc_collective_fits(comm) : tcc_launch_read(&launch, &launched);
    if (status == TCC_OK && comm) {
        launch.rank = tcc_collective_table(comm)->rank(comm);
        launch.size = tcc_collective_table(comm)->size(comm);
    }
    tcc_collective_drop(shared);
    *out_rank = launched ? launch.rank : 0;
    *out_ranks = launched ? launch.size : 1;
    return status;
}

/* ---- who keeps a comm ---------------------------------------------------------------------------- */

/* Returns true if the comm can be kept.  Comms of older libraries live only until they are closed,
 * as their header says. */
static bool is_kept(const tcc_comm *comm) {
    const tcc_comm_table *table = tcc_collective_table(comm);
    return table->version == TCC_COMM_VERSION &&
           TCC_HAS(table, memory_drop);
}

tcc_status tcc_collective_keep(tcc_comm *comm) {
    return is_kept(comm) ? tcc_collective_table(comm)->keep(comm) : TCC_OK;
}

void tcc_collective_drop(tcc_comm *comm) {
    if (comm && is_kept(comm)) tcc_collective_table(comm)->drop(comm);
}

tcc_comm *tcc_collective_shared(void) {
    _Atomic(tcc_comm *) *slot = tcc_note_slot(TCC_COMM_NOTE);
    for (;;) {
        tcc_comm *comm = slot ? atomic_load(slot) : NULL;
        if (!comm) return NULL;
        if (tcc_collective_keep(comm) != TCC_OK) continue; /* the comm was closed in between and
                                                              withdrawn */
        if (atomic_load(slot) == comm) return comm;
        tcc_collective_drop(comm); /* it may be another comm by now */
    }
}

void tcc_collective_leave(tcc_comm *comm) {
    char reason[512];
    snprintf(reason, sizeof reason, "%s", tcc_last_error());
    (void)tcc_collective_table(comm)->abort(comm, reason);
    (void)tcc_fail(TCC_INTERNAL, "%s", reason); /* restores the message, because abort may have
                                                   replaced it */
}

/* ---- groups of ranks --------------------------------------------------------------------------- */

/* Returns the group's list that has the rank, and the rank's place in the list; NULL where no list
 * has it. */
static const int32_t *list_of(const tcc_rank_group *group, int32_t rank) {
    for (int64_t i = 0; i < group->lists * group->length; i++)
        if (group->ranks[i] == rank) return group->ranks + i / group->length * group->length;
    return NULL;
}

/* Writes ` in group NAME (the comm's ranks 0 2 ...)` for messages; an empty text for all ranks. */
static const char *group_text(const tcc_program *program, int64_t number, int32_t rank,
                              char text[256]) {
    text[0] = 0;
    if (number < 0) return text;
    const tcc_rank_group *group = &program->groups[number];
    const int32_t *list = list_of(group, rank);
    size_t used = (size_t)snprintf(text, 160, " in group %.100s", group->name);
    for (int64_t i = 0; list && i < group->length && i < 8; i++)
        used += (size_t)snprintf(text + used, 256 - used, "%s%d", i ? " " : " (the comm's ranks ", list[i]);
    if (list) snprintf(text + used, 256 - used, group->length > 8 ? " ...)" : ")");
    return text;
}

/* The comm, kept, whose ranks have the model's plan, or NULL.  An artifact has one model. */
static _Atomic(tcc_comm *) compared;

/* Compares plans with the other ranks, once per model and comm, so that a rank may make further
 * instances alone.  The address identifies the comm because the comm is kept. */
static tcc_status compare(const tcc_model *model, tcc_comm *comm) {
    if (model->ranks < 2 || atomic_load(&compared) == comm) return TCC_OK;
    TCC_RETURN_IF_ERROR(tcc_plans_compare(&tcc_artifact_info, model, comm));
    if (!is_kept(comm)) return TCC_OK;
    TCC_RETURN_IF_ERROR(tcc_collective_keep(comm));
    tcc_collective_drop(atomic_exchange(&compared, comm));
    return TCC_OK;
}

void tcc_collective_forget(void) { tcc_collective_drop(atomic_exchange(&compared, NULL)); }

tcc_status tcc_collective_groups(tcc_instance *instance, tcc_comm *comm) {
    const tcc_program *program = &instance->model->program;
    const tcc_comm_table *table = tcc_collective_table(comm);
    int32_t rank = table->rank(comm);
    tcc_status status = compare(instance->model, comm);
    char text[256];
    for (int64_t i = 0; i < program->n_groups && status == TCC_OK; i++) {
        const int32_t *list = list_of(&program->groups[i], rank);
        (void)group_text(program, i, rank, text);
        if (!list)
            status = tcc_fail(TCC_UNSUPPORTED, "rank %d has no place%s of the model", rank, text);
        else if ((status = table->subgroup(comm, list, (int32_t)program->groups[i].length,
                                           &instance->groups[i])) != TCC_OK)
            status = tcc_fail(status, "rank %d%s: %.512s", rank, text, table->last_error());
    }
    if (status != TCC_OK) tcc_collective_leave(comm);
    return status;
}

/* ---- runs ---------------------------------------------------------------------------------------- */

/* Lets waits for other ranks end together with the run.  Older libraries lack this; their waits end
 * by the deadline. */
static void ask(const tcc_run *run, int (*ends)(void *of)) {
    const tcc_comm_table *table = tcc_collective_table(run->comm);
    if (TCC_HAS(table, ask) && table->ask) table->ask(ends, &run->instance->ending);
}

static tcc_status find_comm(tcc_run *run) {
    tcc_instance *instance = run->instance;
    int32_t ranks = instance->model->program.ranks;
    run->comm = instance->comm ? instance->comm : tcc_collective_shared();
    if (!run->comm)
        return tcc_fail(TCC_UNSUPPORTED,
                        "the model has collectives, and there is no comm: start its ranks with "
                        "tcc run --nproc, mpirun, torchrun or srun, and open a comm in each "
                        "(tcc.load(path, comm=tcc.runtime.comm.open()), or instance_create_on of "
                        "tcc.h)");
    tcc_status fits = tcc_collective_suits(run->comm, instance->model);
    if (fits != TCC_OK) {
        run->comm = NULL;
        return fits;
    }
    /* a run that failed may have left collectives in progress */
    memset(instance->flights, 0,
           (size_t)instance->model->program.n_tickets * sizeof *instance->flights);
    int32_t size = tcc_collective_table(run->comm)->size(run->comm);
    if (ranks && size != ranks)
        return tcc_fail(TCC_UNSUPPORTED, "the model is for %d ranks, its comm has %d", ranks, size);
    ask(run, tcc_run_asks);
    return tcc_collective_groups(instance, run->comm);
}

tcc_status tcc_collective_begin(tcc_run *run) {
    tcc_status status = find_comm(run);
    if (status != TCC_OK) tcc_collective_end(run);
    return status;
}

void tcc_collective_end(tcc_run *run) {
    if (run->comm) ask(run, NULL);
    if (run->symmetric) tcc_collective_table(run->comm)->memory_drop(run->symmetric);
    if (run->comm != run->instance->comm) tcc_collective_drop(run->comm);
    run->symmetric = NULL;
    run->comm = NULL;
}

void tcc_collective_abort(const tcc_run *run) {
    char reason[512];
    if (!run->comm) return;
    const tcc_comm_table *table = tcc_collective_table(run->comm);
    snprintf(reason, sizeof reason, "a run of rank %d failed: %s", table->rank(run->comm),
             tcc_last_error());
    (void)table->abort(run->comm, reason);
}

/* Fails unless the buffer holds, `times` times, a block of `counts[i]` elements for each i < n,
 * with `element` bytes an element. */
static tcc_status check_span(const tcc_span *span, const int64_t *counts, int64_t n, int64_t times,
                             int64_t element) {
    int64_t part, needed, total = 0;
    bool fits = span->data != NULL;
    for (int64_t i = 0; i < n && fits; i++)
        fits = counts[i] >= 0 && !__builtin_mul_overflow(counts[i], times, &part) &&
               !__builtin_add_overflow(total, part, &total);
    if (fits && !__builtin_mul_overflow(total, element, &needed) && needed <= span->size)
        return TCC_OK;
    return tcc_fail(TCC_INTERNAL,
                    "the program gives a collective more than a buffer holds, or a negative count");
}

static tcc_comm *comm_of(const tcc_run *run, int64_t group) {
    return group < 0 ? run->comm : run->instance->groups[group];
}

tcc_status tcc_collective_failed(const tcc_run *run, int64_t group, tcc_status status) {
    const tcc_comm_table *table = tcc_collective_table(run->comm);
    int32_t rank = table->rank(run->comm);
    char text[256];
    return tcc_fail(status, "rank %d%s: %.600s", rank,
                    group_text(&run->instance->model->program, group, rank, text),
                    table->last_error());
}

/* Fills `call` with the operation and the registers' counts.  The counts stay in the instance until
 * the wait. */
static tcc_status make_call(const tcc_run *run, const tcc_code *code, tcc_comm_call *call) {
    static const tcc_comm_kind kinds[TCC_COLLECTIVE_COUNT] = {
        TCC_COMM_ALL_REDUCE, TCC_COMM_REDUCE_SCATTER, TCC_COMM_ALL_GATHER, TCC_COMM_ALL_TO_ALL,
        TCC_COMM_BROADCAST};
    const tcc_instance *instance = run->instance;
    const tcc_operands *counts = &code->as.collective.counts;
    int64_t *values = &instance->counts[code->counts], ranks = code->as.collective.ranks;
    for (int64_t i = 0; i < counts->count; i++) values[i] = instance->registers[counts->numbers[i]];
    *call = (tcc_comm_call){.struct_size = sizeof *call,
                            .kind = kinds[code->as.collective.kind],
                            .reduction = (tcc_comm_reduction)code->as.collective.reduction,
                            .dtype = code->as.collective.dtype,
                            .root = (int32_t)code->as.collective.root,
                            .count = values[0]};
    bool all_to_all = call->kind == TCC_COMM_ALL_TO_ALL, uneven = counts->count > 1;
    int64_t sent = all_to_all || call->kind == TCC_COMM_REDUCE_SCATTER ? ranks : 1;
    int64_t received = all_to_all || call->kind == TCC_COMM_ALL_GATHER ? ranks : 1;
    int64_t element = call->dtype.bits / 8, *theirs = uneven ? values + sent : values;
    TCC_RETURN_IF_ERROR(check_span(&instance->spans[code->as.collective.send], values,
                                   uneven ? sent : 1, uneven ? 1 : sent, element));
    TCC_RETURN_IF_ERROR(check_span(&instance->spans[code->as.collective.receive], theirs,
                                   uneven ? received : 1, uneven ? 1 : received, element));
    if (!uneven) return TCC_OK;
    call->kind = all_to_all ? TCC_COMM_ALL_TO_ALL_V : TCC_COMM_ALL_GATHER_V;
    call->send_counts = all_to_all ? values : theirs;
    call->receive_counts = theirs;
    int32_t rank = tcc_collective_table(run->comm)->rank(comm_of(run, code->as.collective.group));
    if (all_to_all || theirs[rank] == values[0]) return TCC_OK;
    return tcc_fail(TCC_MISMATCH, "rank %d sends %lld elements to an all_gather, and receives %lld of them",
                    rank, (long long)values[0], (long long)theirs[rank]);
}

tcc_status tcc_collective_start(tcc_run *run, const tcc_code *code) {
    const tcc_instance *instance = run->instance;
    tcc_flight *flight = &instance->flights[code->as.collective.ticket];
    const tcc_span *send = &instance->spans[code->as.collective.send];
    const tcc_span *receive = &instance->spans[code->as.collective.receive];
    tcc_comm_call call;
    TCC_RETURN_IF_ERROR(make_call(run, code, &call));
    if (flight->ticket)
        return tcc_fail(TCC_INTERNAL, "the program starts a collective while it is under way");
    int64_t group = code->as.collective.group;
    if (instance->executor) {
        TCC_RETURN_IF_ERROR(instance->executor->start(run, &call, code));
        flight->ticket = 1;
    } else {
        tcc_comm *comm = comm_of(run, group);
        tcc_status status = tcc_collective_table(comm)->start(comm, &call, send->data,
                                                              receive->data, &flight->ticket);
        if (status != TCC_OK) return tcc_collective_failed(run, group, status);
    }
    flight->group = group;
    flight->send = send->data;
    flight->receive = receive->data;
    run->in_flight++;
    return TCC_OK;
}

tcc_status tcc_collective_wait(tcc_run *run, const tcc_code *code) {
    tcc_flight *flight = &run->instance->flights[code->as.wait.ticket];
    if (!flight->ticket)
        return tcc_fail(TCC_INTERNAL, "the program waits for a collective that it did not start");
    const tcc_executor *executor = run->instance->executor;
    if (executor) {
        TCC_RETURN_IF_ERROR(executor->wait(run, code->as.wait.ticket));
    } else {
        tcc_comm *comm = comm_of(run, flight->group);
        tcc_status status = tcc_collective_table(comm)->wait(comm, flight->ticket);
        if (status != TCC_OK) return tcc_collective_failed(run, flight->group, status);
    }
    flight->ticket = 0;
    run->in_flight--;
    return TCC_OK;
}

tcc_status tcc_collective_none(const tcc_run *run) {
    if (!run->in_flight) return TCC_OK;
    return tcc_fail(TCC_INTERNAL, "the program ends while a collective is under way");
}

tcc_status tcc_collective_spares(const tcc_run *run, const tcc_span *memory) {
    const tcc_instance *instance = run->instance;
    for (int64_t i = 0; run->in_flight && i < instance->model->program.n_tickets; i++) {
        const tcc_flight *flight = &instance->flights[i];
        uintptr_t begin = (uintptr_t)memory->data, end = begin + (size_t)memory->size;
        uintptr_t send = (uintptr_t)flight->send, receive = (uintptr_t)flight->receive;
        if (flight->ticket && ((begin <= send && send <= end) || (begin <= receive && receive <= end)))
            return tcc_fail(TCC_INTERNAL, "the program frees memory that a collective uses");
    }
    return TCC_OK;
}

tcc_status tcc_collective_memory(tcc_run *run, tcc_span *memory) {
    const tcc_comm_table *table = tcc_collective_table(run->comm);
    tcc_comm *comm = comm_of(run, run->instance->model->program.sharers);
    void *scratch;
    tcc_status status = table->scratch(comm, (size_t)memory->size, &scratch);
    if (status == TCC_UNSUPPORTED) return status;
    if (status == TCC_OK && is_kept(comm)) status = table->memory_keep(comm, scratch, &run->symmetric);
    if (status != TCC_OK)
        return tcc_fail(status, "rank %d, which asks for memory that ranks share: %.768s",
                        table->rank(run->comm), table->last_error());
    memory->data = scratch;
    return TCC_OK;
}

int32_t tcc_collective_rank(const tcc_run *run) {
    return tcc_collective_table(run->comm)->rank(run->comm);
}
