/* Admits one thread at a time into a comm, until it is closed.
 *
 * The turn is one word.  A thread takes it to begin a call.  A thread that finds it taken marks it
 * and fails the comm, so that both threads get an error.  A thread that closes the comm marks it
 * too, and waits for the end of the turn.  Calls that any thread may make at any time are visits:
 * they take no turn, and closing waits for them. */
#include "comm.h"

enum { PERIOD = 50000 }; /* nanoseconds between two looks of a closing thread */

TCC_COLD static tcc_status refuse_second(const tcc_comm *comm) {
    return tcc_fail(TCC_INVALID_ARGUMENT,
                    "two threads of rank %d were in calls of the comm at once: it serves one at a time",
                    comm->rank);
}

/* Fails the comm after two threads met in it, and tells all ranks: the progress of both threads is
 * unknown. */
TCC_COLD static tcc_status fail_crossed(tcc_comm *comm) {
    (void)refuse_second(comm);
    char reason[256];
    snprintf(reason, sizeof reason, "%s", tcc_last_error());
    tcc_comm_revoke(comm, TCC_INVALID_ARGUMENT, reason);
    return refuse_second(comm); /* the comm may have failed before, for another reason */
}

tcc_turn_answer tcc_turn_ask(_Atomic uint32_t *turn) {
    uint32_t seen = atomic_load(turn);
    for (;;) {
        if (!seen) {
            if (atomic_compare_exchange_weak(turn, &seen, TCC_TURN_TAKEN)) return TCC_TURN_OWN;
        } else if (seen & TCC_TURN_ENDED) {
            return TCC_TURN_CLOSED;
        } else if (atomic_compare_exchange_weak(turn, &seen, seen | TCC_TURN_CROSSED)) {
            return TCC_TURN_SECOND;
        }
    }
}

tcc_status tcc_comm_enter_again(tcc_comm *comm) {
    tcc_turn_answer answer = tcc_turn_ask(&comm->turn);
    if (answer == TCC_TURN_OWN) return TCC_OK;
    if (answer == TCC_TURN_CLOSED) return tcc_comm_refuse_closed(comm);
    if (!tcc_comm_visit(comm)) return refuse_second(comm);
    tcc_status status = fail_crossed(comm);
    tcc_comm_visit_end(comm);
    return status;
}

tcc_status tcc_comm_leave_marked(tcc_comm *comm, tcc_status status) {
    if (atomic_load(&comm->turn) & TCC_TURN_CROSSED) status = fail_crossed(comm);
    atomic_fetch_and(&comm->turn, TCC_TURN_ENDED);
    return status;
}

tcc_status tcc_comm_refuse_closed(const tcc_comm *comm) {
    return tcc_fail(TCC_INVALID_ARGUMENT, "the comm is closed (rank %d of %d)", comm->rank,
                    comm->size);
}

/* ---- visits ---------------------------------------------------------------------------------- */

bool tcc_comm_visit(tcc_comm *comm) {
    atomic_fetch_add(&comm->visitors, 1);
    if (!atomic_load(&comm->gone)) return true;
    tcc_comm_visit_end(comm);
    return false;
}

void tcc_comm_visit_end(tcc_comm *comm) { atomic_fetch_sub(&comm->visitors, 1); }

/* ---- the end --------------------------------------------------------------------------------- */

/* Ends turns.  A leave that did not see the mark may have erased it, so each look sets it again. */
static void end_turns(tcc_comm *comm) {
    uint32_t seen = atomic_load(&comm->turn);
    for (;;) {
        uint32_t marked = seen | TCC_TURN_ENDED;
        if (!atomic_compare_exchange_strong(&comm->turn, &seen, marked)) continue;
        if (!(seen & TCC_TURN_TAKEN)) return;
        tcc_comm_pause(PERIOD);
        seen = atomic_load(&comm->turn);
    }
}

bool tcc_comm_end(tcc_comm *comm) {
    if (atomic_exchange(&comm->ending, true)) return false;
    bool is_own = comm->forks == tcc_comm_forks(); /* in a fork's child, threads of the parent never
                                                      leave */
    if (is_own)
        end_turns(comm);
    else
        atomic_store(&comm->turn, TCC_TURN_ENDED);
    atomic_store(&comm->gone, true);
    while (is_own && atomic_load(&comm->visitors)) tcc_comm_pause(PERIOD);
    return true;
}
