/* Carries out operations of comms: at once, in groups, started, and as plans. */
#include <string.h>

#include "comm.h"

/* ---- operations ------------------------------------------------------------------------------ */

static tcc_status append(tcc_comm_queue *queue, const tcc_comm_work *work) {
    if (queue->n == queue->room) {
        int32_t room = queue->room ? 2 * queue->room : 16;
        tcc_comm_work *more = tcc_allocate((size_t)room * sizeof *more);
        if (!more) return TCC_OUT_OF_MEMORY;
        if (queue->n) memcpy(more, queue->works, (size_t)queue->n * sizeof *more);
        tcc_free(queue->works);
        queue->works = more;
        queue->room = room;
    }
    queue->works[queue->n++] = *work;
    return TCC_OK;
}

tcc_status tcc_comm_give_up(tcc_comm *comm, tcc_status status) {
    char reason[512];
    snprintf(reason, sizeof reason, "%s", tcc_last_error());
    tcc_comm_revoke(comm, status, reason);
    return comm->backend->error(comm);
}

/* Carries out started operations in order up to the one with `ticket`. Without `wait` it goes only
 * as far as possible without waiting. */
static tcc_status carry_on(tcc_comm *comm, uint64_t ticket, bool wait) {
    tcc_comm_queue *started = &comm->started;
    for (bool done = true; done && comm->done < ticket;) {
        if (atomic_load(&comm->dropped)) return comm->backend->error(comm);
        tcc_status status = comm->backend->advance(comm, wait, &done);
        if (status != TCC_OK) return tcc_comm_give_up(comm, status);
        if (!done) continue;
        comm->done++;
        if (!--started->n) continue;
        memmove(started->works, started->works + 1, (size_t)started->n * sizeof(tcc_comm_work));
        status = comm->backend->begin(comm, started->works);
        /* the next call reports the failure */
        if (status != TCC_OK) (void)tcc_comm_give_up(comm, status);
    }
    return TCC_OK;
}

/* Waits for all started operations first. */
static tcc_status run(tcc_comm *comm, const tcc_comm_work *works, int32_t n) {
    if (TCC_UNLIKELY(comm->done < comm->tickets))
        TCC_RETURN_IF_ERROR(carry_on(comm, comm->tickets, true));
    if (tcc_comm_is_transfer(works->call.kind)) return comm->backend->transfer(comm, works, n);
    bool done;
    TCC_RETURN_IF_ERROR(comm->backend->begin(comm, works));
    return comm->backend->advance(comm, true, &done);
}

static tcc_status issue(tcc_comm *comm, tcc_comm_work *work, const void *send, void *receive) {
    TCC_RETURN_IF_ERROR(tcc_comm_check_buffers(work, comm->rank, comm->size, send, receive));
    if (!comm->group.open) return run(comm, work, 1);
    if (atomic_load(&comm->dropped)) return comm->backend->error(comm);
    return append(&comm->group.queue, work);
}

tcc_status tcc_comm_perform(tcc_comm *comm, const tcc_comm_call *call, const void *send,
                            void *receive) {
    tcc_comm_work work;
    TCC_RETURN_IF_ERROR(tcc_comm_check_call(call, comm->rank, comm->size, &work));
    return issue(comm, &work, send, receive);
}

tcc_status tcc_comm_issue(tcc_comm *comm, const tcc_comm_call *call, const void *send,
                          void *receive) {
    TCC_RETURN_IF_ERROR(tcc_comm_enter(comm));
    return tcc_comm_leave_operation(comm, tcc_comm_perform(comm, call, send, receive));
}

#define CALL(...) (&(tcc_comm_call){.struct_size = sizeof(tcc_comm_call), __VA_ARGS__})

tcc_status tcc_comm_all_reduce(tcc_comm *comm, const void *send, void *receive, int64_t count,
                               tcc_dtype dtype, tcc_comm_reduction reduction) {
    return tcc_comm_issue(
        comm,
        CALL(.kind = TCC_COMM_ALL_REDUCE, .reduction = reduction, .dtype = dtype, .count = count),
        send, receive);
}

tcc_status tcc_comm_reduce_scatter(tcc_comm *comm, const void *send, void *receive, int64_t count,
                                   tcc_dtype dtype, tcc_comm_reduction reduction) {
    return tcc_comm_issue(comm,
                CALL(.kind = TCC_COMM_REDUCE_SCATTER, .reduction = reduction, .dtype = dtype,
                     .count = count),
                send, receive);
}

tcc_status tcc_comm_all_gather(tcc_comm *comm, const void *send, void *receive, int64_t count,
                               tcc_dtype dtype) {
    return tcc_comm_issue(comm, CALL(.kind = TCC_COMM_ALL_GATHER, .dtype = dtype, .count = count), send,
                receive);
}

tcc_status tcc_comm_all_gather_v(tcc_comm *comm, const void *send, void *receive,
                                 const int64_t *counts, tcc_dtype dtype) {
    return tcc_comm_issue(comm, CALL(.kind = TCC_COMM_ALL_GATHER_V, .dtype = dtype, .send_counts = counts),
                send, receive);
}

tcc_status tcc_comm_all_to_all(tcc_comm *comm, const void *send, void *receive, int64_t count,
                               tcc_dtype dtype) {
    return tcc_comm_issue(comm, CALL(.kind = TCC_COMM_ALL_TO_ALL, .dtype = dtype, .count = count), send,
                receive);
}

tcc_status tcc_comm_all_to_all_v(tcc_comm *comm, const void *send, void *receive,
                                 const int64_t *send_counts, const int64_t *receive_counts,
                                 tcc_dtype dtype) {
    return tcc_comm_issue(comm,
                CALL(.kind = TCC_COMM_ALL_TO_ALL_V, .dtype = dtype, .send_counts = send_counts,
                     .receive_counts = receive_counts),
                send, receive);
}

tcc_status tcc_comm_broadcast(tcc_comm *comm, const void *send, void *receive, int64_t count,
                              tcc_dtype dtype, int32_t root) {
    return tcc_comm_issue(comm,
                CALL(.kind = TCC_COMM_BROADCAST, .dtype = dtype, .count = count, .root = root),
                send, receive);
}

tcc_status tcc_comm_send(tcc_comm *comm, const void *send, int64_t count, tcc_dtype dtype,
                         int32_t peer) {
    return tcc_comm_issue(comm, CALL(.kind = TCC_COMM_SEND, .dtype = dtype, .count = count, .root = peer),
                send, NULL);
}

tcc_status tcc_comm_receive(tcc_comm *comm, void *receive, int64_t count, tcc_dtype dtype,
                            int32_t peer) {
    return tcc_comm_issue(comm, CALL(.kind = TCC_COMM_RECEIVE, .dtype = dtype, .count = count, .root = peer),
                NULL, receive);
}

tcc_status tcc_comm_barrier(tcc_comm *comm) {
    return tcc_comm_issue(comm, CALL(.kind = TCC_COMM_BARRIER), NULL, NULL);
}

/* ---- groups of operations -------------------------------------------------------------------- */

static tcc_status open_group(tcc_comm *comm) {
    if (comm->group.open) return tcc_fail(TCC_INVALID_ARGUMENT, "a group is open already");
    comm->group.open = true;
    comm->group.queue.n = 0;
    return TCC_OK;
}

tcc_status tcc_comm_group_start(tcc_comm *comm) {
    TCC_RETURN_IF_ERROR(tcc_comm_enter(comm));
    return tcc_comm_leave(comm, open_group(comm));
}

static tcc_status run_group(tcc_comm *comm) {
    if (!comm->group.open) return tcc_fail(TCC_INVALID_ARGUMENT, "no group is open");
    comm->group.open = false;
    const tcc_comm_queue *queue = &comm->group.queue;
    int32_t transfers = 0; /* number of transfers, which move to the front of the queue once the
                              collectives are done */
    for (int32_t i = 0; i < queue->n; i++) {
        if (tcc_comm_is_transfer(queue->works[i].call.kind))
            queue->works[transfers++] = queue->works[i];
        else
            TCC_RETURN_IF_ERROR(run(comm, &queue->works[i], 1));
    }
    return transfers ? run(comm, queue->works, transfers) : TCC_OK;
}

tcc_status tcc_comm_group_end(tcc_comm *comm) {
    TCC_RETURN_IF_ERROR(tcc_comm_enter(comm));
    return tcc_comm_leave(comm, run_group(comm));
}

/* ---- started operations ---------------------------------------------------------------------- */

static tcc_status start(tcc_comm *comm, tcc_comm_work *work, const void *send, void *receive,
                        uint64_t *out_ticket) {
    if (!out_ticket || comm->group.open || tcc_comm_is_transfer(work->call.kind))
        return tcc_fail(TCC_INVALID_ARGUMENT,
                        "start: out_ticket is NULL, a group is open, or it is no collective");
    TCC_RETURN_IF_ERROR(tcc_comm_check_buffers(work, comm->rank, comm->size, send, receive));
    TCC_RETURN_IF_ERROR(carry_on(comm, comm->tickets, false));
    TCC_RETURN_IF_ERROR(append(&comm->started, work));
    tcc_status status =
        comm->started.n > 1 ? TCC_OK : comm->backend->begin(comm, comm->started.works);
    if (status != TCC_OK) {
        comm->started.n = 0;
        return status;
    }
    *out_ticket = ++comm->tickets;
    return TCC_OK;
}

tcc_status tcc_comm_start(tcc_comm *comm, const tcc_comm_call *call, const void *send,
                          void *receive, uint64_t *out_ticket) {
    TCC_RETURN_IF_ERROR(tcc_comm_enter(comm));
    tcc_comm_work work;
    tcc_status status = tcc_comm_check_call(call, comm->rank, comm->size, &work);
    if (status == TCC_OK) status = start(comm, &work, send, receive, out_ticket);
    return tcc_comm_leave_operation(comm, status);
}

static tcc_status wait_for(tcc_comm *comm, uint64_t ticket) {
    if (ticket == 0 || ticket > comm->tickets)
        return tcc_fail(TCC_INVALID_ARGUMENT, "wait: there is no ticket %llu",
                        (unsigned long long)ticket);
    return carry_on(comm, ticket, true);
}

tcc_status tcc_comm_wait(tcc_comm *comm, uint64_t ticket) {
    TCC_RETURN_IF_ERROR(tcc_comm_enter(comm));
    return tcc_comm_leave_operation(comm, wait_for(comm, ticket));
}

/* ---- plans ----------------------------------------------------------------------------------- */

struct tcc_comm_plan {
    tcc_comm *comm;
    tcc_comm_work work;
    int64_t counts[]; /* counts to send, then counts to receive */
};

static tcc_status make_plan(tcc_comm *comm, const tcc_comm_call *call, tcc_comm_plan **out_plan) {
    tcc_comm_work work;
    TCC_RETURN_IF_ERROR(tcc_comm_check_call(call, comm->rank, comm->size, &work));
    size_t n = (size_t)comm->size, bytes = n * sizeof(int64_t);
    tcc_comm_plan *plan = tcc_allocate_zero(1, sizeof *plan + 2 * bytes);
    if (!plan) return TCC_OUT_OF_MEMORY;
    if (tcc_comm_keep(comm) != TCC_OK) {
        tcc_free(plan);
        return TCC_INVALID_ARGUMENT;
    }
    plan->comm = comm;
    plan->work = work;
    if (work.call.send_counts) {
        memcpy(plan->counts, work.call.send_counts, bytes);
        plan->work.call.send_counts = plan->counts;
    }
    if (work.call.receive_counts) {
        memcpy(plan->counts + n, work.call.receive_counts, bytes);
        plan->work.call.receive_counts = plan->counts + n;
    }
    *out_plan = plan;
    return TCC_OK;
}

void tcc_comm_plan_free(tcc_comm_plan *plan) {
    if (!plan) return;
    tcc_comm_drop(plan->comm);
    tcc_free(plan);
}

tcc_status tcc_comm_plan_make(tcc_comm *comm, const tcc_comm_call *call,
                              tcc_comm_plan **out_plan) {
    if (!out_plan) return tcc_fail(TCC_INVALID_ARGUMENT, "plan_make: out_plan is NULL");
    tcc_comm_plan *plan = NULL;
    TCC_RETURN_IF_ERROR(tcc_comm_enter(comm));
    tcc_status status = tcc_comm_leave(comm, make_plan(comm, call, &plan));
    if (status == TCC_OK)
        *out_plan = plan;
    else
        tcc_comm_plan_free(plan);
    return status;
}

tcc_status tcc_comm_plan_post(tcc_comm_plan *plan, const void *send, void *receive) {
    TCC_RETURN_IF_ERROR(tcc_comm_enter(plan->comm));
    return tcc_comm_leave_operation(plan->comm, issue(plan->comm, &plan->work, send, receive));
}

tcc_status tcc_comm_plan_start(tcc_comm_plan *plan, const void *send, void *receive,
                               uint64_t *out_ticket) {
    TCC_RETURN_IF_ERROR(tcc_comm_enter(plan->comm));
    tcc_status status = start(plan->comm, &plan->work, send, receive, out_ticket);
    return tcc_comm_leave_operation(plan->comm, status);
}

