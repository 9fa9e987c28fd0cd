/* Waits for other ranks: first by spinning, then by sleeping in slices.  Between slices it checks
 * the deadline, the error that revoked the comm, and the processes. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <poll.h>
#include <stdarg.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "shared.h"

enum {
    SLICE = 10,       /* milliseconds of one sleep */
    LOOKS_A_TIME = 64 /* between two looks at the clock */
};
enum { WRITING = 1, REVOKED = 2 }; /* values of `revoked` */

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

/* ---- waking ---------------------------------------------------------------------------------- */

static void wake(tcc_shared_rank *rank) {
    atomic_fetch_add(&rank->bell, 1);
    syscall(SYS_futex, &rank->bell, FUTEX_WAKE, 1, NULL, NULL, 0);
}

void tcc_shared_ring(tcc_shared *shared) {
    /* The change and this load are sequentially consistent, and so are the sleeper's bit and its
     * last look.  Therefore at least one of the two sees the other. */
    uint64_t asleep = atomic_load(&shared->segment->asleep);
    for (; TCC_UNLIKELY(asleep != 0); asleep &= asleep - 1) {
        tcc_shared_rank *rank = &shared->segment->ranks[__builtin_ctzll(asleep)];
        int32_t awaited = atomic_load(&rank->awaited);
        if (awaited == shared->rank || awaited == TCC_SHARED_ANY) wake(rank);
    }
}

/* ---- revoking -------------------------------------------------------------------------------- */

void tcc_shared_revoke(tcc_shared *shared, tcc_status status, const char *format, ...) {
    tcc_shared_segment *segment = shared->segment;
    uint32_t before = 0;
    if (!atomic_compare_exchange_strong(&segment->revoked, &before, WRITING)) return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(segment->reason, sizeof segment->reason, format, arguments);
    va_end(arguments);
    atomic_store(&segment->revoked, REVOKED + (uint32_t)status);
    for (int32_t i = 0; i < shared->size; i++) wake(&segment->ranks[i]);
}

TCC_COLD static tcc_status revoked(tcc_shared *shared) {
    uint32_t state = WRITING;
    /* the writer may have been killed while it wrote */
    for (int looks = 0; state == WRITING && looks < 100; looks++) {
        state = atomic_load(&shared->segment->revoked);
        if (state == WRITING) tcc_comm_pause(100000);
    }
    if (state == WRITING) return tcc_fail(TCC_PEER_DEAD, "a rank ended as it revoked the comm");
    char reason[sizeof shared->segment->reason];
    memcpy(reason, shared->segment->reason, sizeof reason);
    reason[sizeof reason - 1] = 0;
    return tcc_fail((tcc_status)(state - REVOKED), "%s", reason);
}

tcc_status tcc_shared_state(tcc_shared *shared) {
    if (!atomic_load_explicit(&shared->segment->revoked, memory_order_acquire)) return TCC_OK;
    return revoked(shared);
}

/* ---- liveness -------------------------------------------------------------------------------- */

/* Returns true if a wait for `awaited` cannot end without `rank`: it is awaited, or behind this
 * rank's stage. */
static bool is_needed(const tcc_shared *shared, int32_t rank, int32_t awaited) {
    uint32_t stage = atomic_load(&shared->segment->ranks[rank].stage);
    return awaited == rank || awaited == TCC_SHARED_ANY || (int32_t)(stage - shared->stage) < 0;
}

static bool is_closed(const tcc_shared *shared, int32_t rank) {
    return atomic_load(&shared->segment->ranks[rank].closed);
}

/* Returns the bit set of the ranks whose processes have ended. */
static uint64_t ended_ranks(const tcc_shared *shared) {
    struct pollfd polled[TCC_COMM_MOST_LOCAL];
    uint64_t ended = 0;
    for (int32_t i = 0; i < shared->size; i++)
        polled[i] = (struct pollfd){i == shared->rank ? -1 : shared->met.processes[i], POLLIN, 0};
    if (poll(polled, (nfds_t)shared->size, 0) <= 0) return 0;
    for (int32_t i = 0; i < shared->size; i++)
        if (polled[i].revents) ended |= UINT64_C(1) << i;
    return ended;
}

/* Returns the first needed rank whose process has ended without closing the comm; -1 for none. */
static int32_t first_ended(const tcc_shared *shared, int32_t awaited) {
    for (uint64_t ended = ended_ranks(shared); ended; ended &= ended - 1) {
        int32_t rank = __builtin_ctzll(ended);
        if (!is_closed(shared, rank) && is_needed(shared, rank, awaited)) return rank;
    }
    return -1;
}

uint64_t tcc_shared_gone(const tcc_shared *shared) {
    uint64_t gone = ended_ranks(shared);
    for (int32_t i = 0; i < shared->size; i++)
        if (i != shared->rank && is_closed(shared, i)) gone |= UINT64_C(1) << i;
    return gone;
}

static tcc_status report_ended(tcc_shared *shared, int32_t ended) {
    tcc_shared_revoke(shared, TCC_PEER_DEAD,
                      "the process of rank %d (pid %d) ended; seen by rank %d", ended,
                      shared->met.pids[ended], shared->rank);
    return tcc_shared_state(shared);
}

tcc_status tcc_shared_alive(tcc_shared *shared) {
    TCC_RETURN_IF_ERROR(tcc_shared_state(shared));
    int32_t ended = first_ended(shared, TCC_SHARED_ANY);
    return ended < 0 ? TCC_OK : report_ended(shared, ended);
}

static const char *at_hand(const tcc_shared *shared, char text[TCC_COMM_TEXT]) {
    return shared->work ? tcc_comm_text(&shared->work->descriptor, text) : "opening";
}

/* Checks a wait for `*awaited`.  Fails where the wait cannot end, and sets `*out_ready` where it
 * need not go on. */
static tcc_status look_around(tcc_shared *shared, tcc_shared_ready *ready, void *object,
                              int32_t *awaited, bool *out_ready) {
    int32_t rank = *awaited;
    uint64_t pending = rank == TCC_SHARED_ANY ? shared->pending : 0;
    for (; pending && rank < 0; pending &= pending - 1) /* one of several needed ranks has left */
        if (is_closed(shared, __builtin_ctzll(pending))) rank = __builtin_ctzll(pending);
    int32_t before = *awaited, ended = first_ended(shared, *awaited);
    bool late = tcc_comm_now() > shared->deadline, ends = tcc_comm_ends();
    bool closed = rank >= 0 && is_closed(shared, rank);
    if (ended < 0 && !closed && !late && !ends)
        return shared->alive ? shared->alive(shared) : TCC_OK;
    /* a rank may have done its part before it left */
    *out_ready = ready(shared, object, awaited);
    if (*out_ready || *awaited != before) return TCC_OK;
    if (ended >= 0) return report_ended(shared, ended);
    char text[TCC_COMM_TEXT];
    int32_t pid = rank >= 0 ? shared->met.pids[rank] : 0;
    if (closed)
        tcc_shared_revoke(shared, TCC_MISMATCH,
                          "rank %d (pid %d) closed the comm; rank %d is in %s", rank, pid,
                          shared->rank, at_hand(shared, text));
    else if (!late)
        tcc_shared_revoke(shared, TCC_CANCELLED, "rank %d was told to end; it is in %s", shared->rank,
                          at_hand(shared, text));
    else
        tcc_shared_revoke(shared, TCC_TIMEOUT,
                          "rank %d (pid %d) did not come within %lld ms; rank %d is in %s", rank,
                          pid, (long long)(shared->patience / 1000000), shared->rank,
                          at_hand(shared, text));
    return tcc_shared_state(shared);
}

/* ---- waiting --------------------------------------------------------------------------------- */

static bool spin(tcc_shared *shared, tcc_shared_ready *ready, void *object, int32_t *awaited) {
    int64_t end = tcc_comm_now() + shared->spin;
    do {
        for (int i = 0; i < LOOKS_A_TIME; i++) {
            if (ready(shared, object, awaited)) return true;
            relax();
        }
        if (atomic_load_explicit(&shared->segment->revoked, memory_order_relaxed)) return false;
    } while (tcc_comm_now() < end);
    return false;
}

/* Sleeps until this rank is woken, for a slice at most.  Returns true where `ready` holds
 * already. */
static bool doze(tcc_shared *shared, tcc_shared_ready *ready, void *object, int32_t *awaited) {
    tcc_shared_segment *segment = shared->segment;
    tcc_shared_rank *self = &segment->ranks[shared->rank];
    uint64_t bit = UINT64_C(1) << shared->rank;
    uint32_t bell = atomic_load(&self->bell);
    atomic_store(&self->awaited, *awaited);
    atomic_fetch_or(&segment->asleep, bit);
    struct timespec slice = {0, SLICE * 1000000};
    bool is_ready = ready(shared, object, awaited);
    bool same = atomic_load(&self->awaited) == *awaited; /* otherwise the rank that it needs would
                                                            not wake it */
    if (!is_ready && same && !atomic_load(&segment->revoked))
        syscall(SYS_futex, &self->bell, FUTEX_WAIT, bell, &slice, NULL, 0);
    atomic_fetch_and(&segment->asleep, ~bit);
    return is_ready;
}

/* Chooses how long the next wait spins.  Ranks that compute equal shares arrive some hundred
 * microseconds apart.  A sleeper wakes up to a hundred microseconds late, so that the others then
 * wait for it.  A rank whose peer is away for longer should leave its CPU to other threads. */
static void adapt_spin(tcc_shared *shared, int64_t waited) {
    enum { LEAST_SPIN = 20000 }; /* nanoseconds; longer than a stage of an awake peer */
    if (shared->spin) shared->spin = waited < TCC_SHARED_MOST_SPIN ? TCC_SHARED_MOST_SPIN : LEAST_SPIN;
}

tcc_status tcc_shared_wait(tcc_shared *shared, tcc_shared_ready *ready, void *object) {
    int32_t awaited = TCC_SHARED_ANY;
    if (ready(shared, object, &awaited)) return TCC_OK;
    int64_t begun = tcc_comm_now();
    if (shared->spin && spin(shared, ready, object, &awaited)) return TCC_OK;
    shared->deadline = tcc_comm_now() + shared->patience;
    bool is_ready = false;
    for (int64_t looked = 0; !is_ready;) {
        if (ready(shared, object, &awaited)) break; /* also where another rank has failed since */
        int64_t now = tcc_comm_now();
        TCC_RETURN_IF_ERROR(tcc_shared_state(shared));
        if (now - looked >= SLICE * 1000000) { /* at first, and later not at every wake-up */
            TCC_RETURN_IF_ERROR(look_around(shared, ready, object, &awaited, &is_ready));
            looked = now;
        }
        if (!is_ready) is_ready = doze(shared, ready, object, &awaited);
    }
    adapt_spin(shared, tcc_comm_now() - begun);
    return TCC_OK;
}

/* ---- stages ---------------------------------------------------------------------------------- */

static bool all_there(tcc_shared *shared, void *object, int32_t *awaited) {
    int32_t *first = object; /* the ranks before it were there */
    for (; *first < shared->size; ++*first) {
        uint32_t stage = atomic_load(&shared->segment->ranks[*first].stage);
        if ((int32_t)(stage - shared->stage) < 0) {
            *awaited = *first;
            return false;
        }
    }
    return true;
}

void tcc_shared_publish(tcc_shared *shared) {
    shared->stage++;
    /* a full barrier: see tcc_shared_ring */
    (void)atomic_exchange(&shared->segment->ranks[shared->rank].stage, shared->stage);
    tcc_shared_ring(shared);
}

bool tcc_shared_arrived(tcc_shared *shared) {
    int32_t first = 0, awaited;
    return all_there(shared, &first, &awaited);
}

tcc_status tcc_shared_arrive(tcc_shared *shared) {
    int32_t first = 0;
    return tcc_shared_wait(shared, all_there, &first);
}
