/* Divides a launch's units among threads.  Every thread has its own range.  The range is the same
 * at every launch with as many units, so that its data stays in the thread's caches.  A thread that
 * has finished its range helps the others.
 *
 * No thread waits for a thread that has not begun: the others take over its pieces.  So a sleeping
 * or descheduled worker costs only its share of the speed. */
#define _GNU_SOURCE
#include <sched.h>

#include "workers.h"

enum {
    SLICE = 50000, /* nanoseconds that the caller sleeps while another thread has lost its CPU */
    LOST = 100000, /* nanoseconds between two looks at the clock that show that a spinning thread
                      lost its CPU */
    MOST_AHEAD = 1 << 18, /* bytes, few enough to stay in a core's second-level cache */
};

/* A launch, as its published word describes it. */
typedef struct launch {
    const tcc_slot *slot;
    uint64_t ticket;
    int32_t threads; /* 0: there was no launch */
} launch;

typedef struct pieces {
    int64_t first, behind; /* pieces first .. behind - 1 of the range's `count` pieces */
    int64_t count;
} pieces;

static launch launch_at(const tcc_team *team, uint64_t ticket, int32_t threads) {
    return (launch){&team->slots[ticket & 1], ticket, threads};
}

static launch launch_of(const tcc_team *team, uint64_t word) {
    return launch_at(team, word >> WORD_TICKET, (int32_t)(word & 0xFF) + 1);
}

static launch launch_before(const tcc_team *team, uint64_t word) {
    int32_t threads = (int32_t)(word >> WORD_PREVIOUS & 0xFF) + 1;
    return launch_at(team, (word >> WORD_TICKET) - 1, threads);
}

static int64_t range_start(int64_t units, int32_t threads, int32_t seat) {
    int64_t share = units / threads, remainder = units % threads;
    return share * seat + (seat < remainder ? seat : remainder);
}

static void run_pieces(const launch *at, int32_t self, int32_t seat, pieces part) {
    const tcc_slot *slot = at->slot;
    int64_t units = atomic_load_explicit(&slot->units, memory_order_relaxed);
    int64_t start = range_start(units, at->threads, seat);
    int64_t count = range_start(units, at->threads, seat + 1) - start;
    char *scratch = atomic_load_explicit(&slot->scratch, memory_order_relaxed);
    size_t stride = atomic_load_explicit(&slot->scratch_stride, memory_order_relaxed);
    tcc_kernel kernel = atomic_load_explicit(&slot->kernel, memory_order_relaxed);
    kernel(atomic_load_explicit(&slot->buffers, memory_order_relaxed),
           atomic_load_explicit(&slot->ints, memory_order_relaxed),
           start + count * part.first / part.count, start + count * part.behind / part.count,
           scratch ? scratch + (size_t)self * stride : NULL);
}

/* Takes half of the pieces that are left in a seat's range.  Returns false if no piece is left or
 * the launch is over. */
static bool claim(tcc_team *team, const launch *at, int32_t seat, uint64_t mark,
                  pieces *out_part) {
    _Atomic uint64_t *word = &team->seats[seat].claim;
    uint64_t old = atomic_load_explicit(word, memory_order_relaxed);
    for (;;) {
        if (old >> CLAIM_TICKET > at->ticket) return false;
        bool fresh = old >> CLAIM_TICKET < at->ticket;
        int64_t units = atomic_load_explicit(&at->slot->units, memory_order_relaxed);
        int64_t count =
            range_start(units, at->threads, seat + 1) - range_start(units, at->threads, seat);
        if (count > PIECES) count = PIECES;
        int64_t remaining = fresh ? count : (int64_t)(old & CLAIM_LEFT);
        if (remaining <= 0 || remaining > count) return false;
        int64_t take = remaining / 2 > 1 ? remaining / 2 : 1;
        uint64_t claims = fresh ? at->ticket << CLAIM_TICKET : old & ~CLAIM_LEFT;
        uint64_t next = mark == CLAIM_INSIDE ? claims | mark : claims + mark;
        TCC_BETWEEN();
        if (atomic_compare_exchange_weak_explicit(word, &old, next | (uint64_t)(remaining - take),
                                                  memory_order_acq_rel, memory_order_relaxed)) {
            TCC_BETWEEN();
            *out_part = (pieces){count - remaining, count - remaining + take, count};
            return true;
        }
    }
}

static bool steal(tcc_team *team, const launch *at, int32_t self, int32_t seat) {
    pieces part;
    if (!claim(team, at, seat, CLAIM_THIEF, &part)) return false;
    run_pieces(at, self, seat, part);
    TCC_BETWEEN();
    atomic_fetch_sub_explicit(&team->seats[seat].claim, CLAIM_THIEF, memory_order_release);
    return true;
}

/* Pauses in a wait for threads that still run a piece.  `since` becomes the time of the wait's
 * first pause.  Returns the turns until the next pause.  If the caller waits for a thread without a
 * CPU, it sleeps, because the other thread may need the caller's CPU. */
TCC_COLD static int32_t pause_waiting(const tcc_team *team, int32_t self, int64_t *since) {
    if (!*since) *since = tcc_now();
    if (self == 0 && team->pause) (void)team->pause(team->pause_of);
    if (self == 0 && tcc_team_stalls(team, *since, tcc_now())) {
        nanosleep(&(struct timespec){0, SLICE}, NULL);
        return STEAL_AFTER;
    }
    sched_yield();
    return YIELD_AFTER;
}

static void serve(tcc_team *team, int32_t self, int32_t seat, tcc_idle *idle);

static void run_range_of_seat(tcc_team *team, const launch *at, int32_t self) {
    tcc_seat *seat = &team->seats[self];
    pieces part;
    bool inside = false;
    while (claim(team, at, self, CLAIM_INSIDE, &part)) {
        inside = true;
        run_pieces(at, self, self, part);
        /* again, because a worker may have fallen asleep while the launch was published */
        if (self == 0) (void)tcc_team_man(team, at->threads, serve);
    }
    if (!inside && self) return; /* no thread reads `done` of the caller's seat */
    int64_t since = 0;
    for (int32_t turns = YIELD_AFTER;
         atomic_load_explicit(&seat->claim, memory_order_acquire) & CLAIM_THIEVES;) {
        tcc_relax();
        if (--turns == 0) turns = pause_waiting(team, self, &since);
    }
    if (since && self == 0) tcc_team_note_wait(team, at->threads, since);
    TCC_BETWEEN();
    atomic_store_explicit(&seat->done, at->ticket, memory_order_release);
}

static bool is_done(const tcc_seat *seat, uint64_t ticket) {
    return atomic_load_explicit(&seat->done, memory_order_acquire) >= ticket;
}

/* Returns true if other threads took over and finished all pieces of a range whose owner never took
 * one. */
static bool is_exhausted(const tcc_seat *seat, uint64_t ticket) {
    uint64_t claim = atomic_load_explicit(&seat->claim, memory_order_acquire);
    if (claim >> CLAIM_TICKET != ticket) return claim >> CLAIM_TICKET > ticket;
    return !(claim & (CLAIM_INSIDE | CLAIM_THIEVES | CLAIM_LEFT));
}

static tcc_ahead share_ahead(const launch *at, int32_t self) {
    const char *start = atomic_load_explicit(&at->slot->ahead, memory_order_relaxed);
    int64_t bytes = atomic_load_explicit(&at->slot->ahead_bytes, memory_order_relaxed);
    if (!start || self >= at->threads) return (tcc_ahead){0};
    start += range_start(bytes, at->threads, self);
    int64_t share = bytes / at->threads;
    return (tcc_ahead){start, start + (share < MOST_AHEAD ? share : MOST_AHEAD)};
}

/* Waits until every range of the launch is done, and steals pieces meanwhile.  The caller's range
 * (seat 0) needs no check, because the caller publishes the next launch only after its own range is
 * done. */
static void settle(tcc_team *team, const launch *at, int32_t self) {
    tcc_ahead ahead = share_ahead(at, self);
    for (int32_t seat = 1; seat < at->threads; seat++) {
        const tcc_seat *other = &team->seats[seat];
        int64_t since = 0;
        for (int32_t turns = YIELD_AFTER; !is_done(other, at->ticket);) {
            tcc_fetch(&ahead);
            tcc_relax();
            if (--turns % STEAL_AFTER) continue;
            if (is_exhausted(other, at->ticket)) break;
            if (steal(team, at, self, seat)) turns = YIELD_AFTER;
            else if (turns == 0) turns = pause_waiting(team, self, &since);
        }
        if (since && self == 0) tcc_team_note_wait(team, at->threads, since);
    }
}

/* Takes over pieces of a launch that their owners have not begun.  Returns false if none are
 * left. */
static bool help(tcc_team *team, int32_t self, uint64_t word) {
    launch at = launch_of(team, word);
    bool helped = false;
    for (int32_t i = 1; i < at.threads; i++)
        if (steal(team, &at, self, (self + i) % at.threads)) helped = true;
    return helped;
}

/* Takes part in the launch of `word` as seat `self`: waits for the launch before, then runs its own
 * range.  Returns false if the launch has no such seat. */
static bool join(tcc_team *team, int32_t self, uint64_t word) {
    launch at = launch_of(team, word), before = launch_before(team, word);
    if (self >= at.threads) return false;
    /* the slot may hold another launch by now; then the prefetch is wasted */
    __builtin_prefetch((const void *)atomic_load_explicit(&at.slot->buffers, memory_order_relaxed));
    __builtin_prefetch(atomic_load_explicit(&at.slot->ints, memory_order_relaxed));
    settle(team, &before, self);
    run_range_of_seat(team, &at, self);
    return true;
}

/* ---- a worker's service ----------------------------------------------------------------------------- */

static uint64_t next_word(const tcc_team *team, uint64_t last) {
    return atomic_load_explicit(&team->slots[(last + 1) & 1].word, memory_order_acquire);
}

/* Returns the nanoseconds that a worker may spin.  The workers share a budget: worker n gets 1/n of
 * it, divided by the number of binary digits of the number of workers, so the shares add up to at
 * most the budget. */
static int64_t patience(const tcc_workers *workers, int32_t self) {
    int32_t started = atomic_load_explicit(&workers->started, memory_order_relaxed);
    return workers->spin / (self * (32 - __builtin_clz((uint32_t)started)));
}

static int64_t smaller(int64_t value, int64_t limit) { return value < limit ? value : limit; }

/* Returns true if a worker has spun for long enough.  A worker owes the time that it spins in vain,
 * and its whole share if it lost its CPU meanwhile.  It spins only briefly if its team has no run
 * while other runs may want the CPU. */
static bool is_tired(const tcc_team *team, int32_t self, tcc_idle *idle) {
    int64_t now = tcc_now(), share = patience(team->workers, self);
    int64_t brief = smaller(share, FREE_NANOSECONDS), longest = share - idle->debt;
    if (!idle->since) idle->since = now;
    if (!idle->began) idle->began = now;
    bool busy = atomic_load_explicit(&team->busy, memory_order_relaxed);
    if (!busy && tcc_load_of(team->workers).runs) longest = smaller(longest, brief);
    bool lost = idle->looked && now - idle->looked > LOST;
    idle->looked = now;
    if (!lost && now - idle->began <= (longest > brief ? longest : brief)) return false;
    idle->debt = lost ? share : smaller(idle->debt + now - idle->began, share);
    return true;
}

/* Reduces a worker's debt by the length of a wait, if spinning covered the whole wait. */
static void note_work(const tcc_team *team, int32_t self, tcc_idle *idle) {
    if (!idle->since) return; /* the caller is using the team's cache lines at this moment */
    int64_t waited = tcc_now() - idle->since;
    if (waited <= patience(team->workers, self)) idle->debt -= smaller(waited, idle->debt);
    idle->since = idle->began = idle->looked = 0;
}

static void serve(tcc_team *team, int32_t self, int32_t seat, tcc_idle *idle) {
    uint64_t word = 0, last = 0;
    bool part = false; /* takes part in a launch that other threads may still run */
    tcc_ahead ahead = {0};
    idle->began = idle->looked = 0;
    for (uint32_t spins = 1;; spins++) {
        uint64_t next = next_word(team, last);
        if (next >> WORD_TICKET > last) {
            TCC_BETWEEN();
            word = next;
            last = word >> WORD_TICKET;
            part = join(team, seat, word);
            if (part) note_work(team, self, idle);
            launch at = launch_of(team, word);
            ahead = share_ahead(&at, seat);
            spins = 0;
            continue;
        }
        tcc_fetch(&ahead);
        tcc_relax();
        if (part && spins % HELP_AFTER == 0) part = help(team, seat, word);
        if (spins % LOOK_AT_CLOCK) continue;
        if (tcc_worker_leaves(team, self, seat)) return;
        if (is_tired(team, self, idle)) {
            tcc_worker_sleep(team, self, seat);
            return;
        }
    }
}

/* ---- the caller's side --------------------------------------------------------------------------- */

void tcc_workers_settle(tcc_team *team) {
    launch last = launch_at(team, team->ticket, team->open);
    settle(team, &last, 0);
    team->open = 0;
}

void tcc_workers_launch(tcc_team *team, const tcc_job *job) {
    int32_t threads = tcc_team_man(team, job->threads, serve);
    launch before = launch_at(team, team->ticket, team->open);
    uint64_t ticket = team->ticket + 1;
    uint64_t previous = team->open ? team->open - 1u : 0;
    uint64_t seats = (uint64_t)threads - 1;
    tcc_slot *slot = &team->slots[ticket & 1];
    TCC_BETWEEN();
    atomic_store_explicit(&slot->kernel, job->kernel, memory_order_relaxed);
    atomic_store_explicit(&slot->buffers, job->buffers, memory_order_relaxed);
    atomic_store_explicit(&slot->ints, job->ints, memory_order_relaxed);
    atomic_store_explicit(&slot->units, job->units, memory_order_relaxed);
    atomic_store_explicit(&slot->scratch, job->scratch, memory_order_relaxed);
    atomic_store_explicit(&slot->scratch_stride, job->scratch_stride, memory_order_relaxed);
    atomic_store_explicit(&slot->ahead, job->ahead, memory_order_relaxed);
    atomic_store_explicit(&slot->ahead_bytes, job->ahead_bytes, memory_order_relaxed);
    TCC_BETWEEN();
    atomic_store_explicit(&slot->word,
                          ticket << WORD_TICKET | previous << WORD_PREVIOUS | seats,
                          memory_order_release);
    TCC_BETWEEN();
    settle(team, &before, 0);
    team->ticket = ticket;
    team->open = (uint16_t)threads;
    team->began = tcc_now();
    tcc_team_note_launch(team);
    launch at = launch_at(team, ticket, threads);
    run_range_of_seat(team, &at, 0);
}
