/* Makes the remaining ranks of a comm agree on who they are, in the comm's own segment.
 *
 * Each rank publishes the set of ranks that it leaves out: ranks whose processes have ended (the
 * kernel tells), ranks that have closed the comm, and ranks that the caller or another rank
 * excludes.  When all remaining ranks publish the same set in one turn, they meet.  That may fail
 * because a rank ends meanwhile; then they try again in the next turn.  One word in the new comm's
 * segment decides for all ranks whether the comm is made.  The first rank that sees all of them
 * there writes it, or the first that gives up. */
#include "shared.h"

static uint64_t bit_of(int32_t rank) { return UINT64_C(1) << rank; }

static uint32_t turn_of(const tcc_shared *shared, int32_t rank) {
    return atomic_load(&shared->segment->ranks[rank].turn);
}

static uint64_t said_by(const tcc_shared *shared, int32_t rank) {
    return atomic_load(&shared->segment->ranks[rank].without);
}

/* Returns true if the rank takes part in this rank's turn and publishes the same set. */
static bool agrees(const tcc_shared *shared, int32_t rank) {
    return turn_of(shared, rank) == shared->turn && said_by(shared, rank) == shared->without;
}

/* Returns the first other rank from `rank` on that is not left out and does not agree; -1 for
 * none. */
static int32_t next_absent(const tcc_shared *shared, int32_t rank) {
    for (int32_t i = rank; i < shared->size; i++)
        if (i != shared->rank && !(shared->without & bit_of(i)) && !agrees(shared, i)) return i;
    return -1;
}

static void say(tcc_shared *shared) {
    tcc_shared_rank *self = &shared->segment->ranks[shared->rank];
    atomic_store(&self->without, shared->without);
    atomic_store(&self->turn, shared->turn);
}

void tcc_shared_enter(tcc_shared *shared, const bool *excluded) {
    shared->entered = shared->turn |= 1;
    shared->without = 0;
    for (int32_t i = 0; i < shared->size; i++)
        if (excluded[i]) shared->without |= bit_of(i);
}

void tcc_shared_again(tcc_shared *shared) {
    shared->turn += 2;
    say(shared);
}

void tcc_shared_depart(tcc_shared *shared) {
    shared->turn++;
    say(shared);
}

/* Takes over the other ranks' sets, and the latest turn.  Returns true if all sets were equal. */
static bool hear(tcc_shared *shared) {
    bool agreed = next_absent(shared, 0) < 0;
    uint64_t without = shared->without;
    uint32_t latest = shared->turn;
    for (int32_t i = 0; !agreed && i < shared->size; i++) {
        if (i == shared->rank || shared->without & bit_of(i)) continue;
        uint32_t turn = turn_of(shared, i);
        if ((int32_t)(turn - latest) > 0) latest = turn | 1;
        if (turn & 1) without |= said_by(shared, i); /* an even turn means that the set is from an
                                                        earlier call */
    }
    shared->without = without & ~bit_of(shared->rank);
    shared->turn = latest;
    return agreed;
}

/* Fails where a rank shrinks the comm without this one, or did so before this one came.  The
 * refusal is permanent, so that this rank does not go on alone after the others have closed the
 * comm.  A rank that has ended is ignored: the remaining ranks publish the exclusions that they
 * took over from it. */
static tcc_status check_welcome(tcc_shared *shared, uint64_t gone) {
    for (int32_t i = 0; i < shared->size && shared->refused_by < 0; i++) {
        bool ended = gone & bit_of(i) && !atomic_load(&shared->segment->ranks[i].closed);
        bool later = (int32_t)(turn_of(shared, i) - shared->entered) >= 0;
        if (i != shared->rank && !ended && later && said_by(shared, i) & bit_of(shared->rank))
            shared->refused_by = i;
    }
    int32_t other = shared->refused_by;
    return other < 0 ? TCC_OK
                     : tcc_fail(TCC_MISMATCH, "shrink: rank %d (pid %d) leaves out rank %d", other,
                                shared->met.pids[other], shared->rank);
}

TCC_COLD static tcc_status fail_late(const tcc_shared *shared) {
    char list[200] = "";
    size_t used = 0;
    for (int32_t i = next_absent(shared, 0); i >= 0 && used < sizeof list - 40;
         i = next_absent(shared, i + 1))
        used += (size_t)snprintf(list + used, sizeof list - used, "%srank %d (pid %d)",
                                 used ? ", " : "", i, shared->met.pids[i]);
    return tcc_fail(TCC_TIMEOUT, "shrink: rank %d is there, and these did not come in time: %s",
                    shared->rank, used ? list : "none, for ranks ended until then");
}

tcc_status tcc_shared_agree(tcc_shared *shared, int64_t deadline) {
    for (int64_t pause = 20000;; pause += pause < 1000000 ? pause / 4 : 0) {
        uint64_t gone = tcc_shared_gone(shared);
        shared->without |= gone;
        say(shared);
        TCC_RETURN_IF_ERROR(check_welcome(shared, gone));
        if (hear(shared)) return TCC_OK;
        if (tcc_comm_now() > deadline) break;
        tcc_comm_pause(pause);
    }
    return fail_late(shared);
}

tcc_status tcc_shared_gathers(void *of) {
    const tcc_shared *shared = of;
    uint64_t gone = tcc_shared_gone(shared) & ~shared->without;
    int32_t absent = gone ? __builtin_ctzll(gone) : next_absent(shared, 0);
    if (absent < 0) return TCC_OK;
    return tcc_fail(TCC_PEER_DEAD, "rank %d (pid %d) left while the comm was shrunk", absent,
                    shared->met.pids[absent]);
}

tcc_status tcc_shared_decide(tcc_shared *shared, tcc_status status) {
    enum { MADE = 1, GIVEN_UP = 2 };
    uint32_t decided = 0;
    if (atomic_compare_exchange_strong(&shared->segment->decided, &decided,
                                       status == TCC_OK ? MADE : GIVEN_UP))
        return status;
    if (decided == MADE) return TCC_OK; /* the comm's operations report later failures */
    if (status != TCC_OK) return status;
    return tcc_fail(TCC_PEER_DEAD, "a rank gave up while the comm was shrunk");
}
