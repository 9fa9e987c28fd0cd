/* How a launch's units come to threads: every thread has a range of its own, the same one at every
 * launch of as many units, so that what it reads stays in its caches; who is done helps the others.
 *
 * Nobody waits for a thread that has not begun: its pieces are taken over.  So a sleeping or
 * descheduled worker costs its share of the speed and no more. */
#define _GNU_SOURCE
#include <sched.h>

#include "workers.h"

enum {
    STALL = 300000,      /* nanoseconds of waiting that show that a worker has lost its CPU */
    MOST_ALONE = 20000000,
    MOST_AHEAD = 1 << 18, /* bytes: they are to stay in a core's second-level cache */
    CROWDED_NANOSECONDS = 20000, /* spinning where other runs could use the CPU */
};

/* A launch as its word tells it. */
typedef struct launch {
    const tcc_slot *slot;
    uint64_t ticket;
    int32_t threads; /* 0: there was none */
} launch;

typedef struct pieces {
    int64_t first, behind; /* of `count` pieces of the range */
    int64_t count;
} pieces;

static launch launch_at(const tcc_workers *workers, uint64_t ticket, int32_t threads) {
    return (launch){&workers->slots[ticket & 1], ticket, threads};
}

static launch launch_of(const tcc_workers *workers, uint64_t word) {
    return launch_at(workers, word >> WORD_TICKET, (int32_t)(word & 0xFF) + 1);
}

static launch launch_before(const tcc_workers *workers, uint64_t word) {
    int32_t threads = (int32_t)(word >> WORD_PREVIOUS & 0xFF) + 1;
    return launch_at(workers, (word >> WORD_TICKET) - 1, threads);
}

static int64_t range_start(int64_t units, int32_t threads, int32_t seat) {
    int64_t share = units / threads, rest = units % threads;
    return share * seat + (seat < rest ? seat : rest);
}

static void run_pieces(const launch *at, int32_t self, int32_t seat, pieces taken) {
    const tcc_slot *slot = at->slot;
    int64_t units = atomic_load_explicit(&slot->units, memory_order_relaxed);
    int64_t start = range_start(units, at->threads, seat);
    int64_t count = range_start(units, at->threads, seat + 1) - start;
    char *scratch = atomic_load_explicit(&slot->scratch, memory_order_relaxed);
    size_t stride = atomic_load_explicit(&slot->scratch_stride, memory_order_relaxed);
    tcc_kernel kernel = atomic_load_explicit(&slot->kernel, memory_order_relaxed);
    kernel(atomic_load_explicit(&slot->buffers, memory_order_relaxed),
           atomic_load_explicit(&slot->ints, memory_order_relaxed),
           start + count * taken.first / taken.count, start + count * taken.behind / taken.count,
           scratch ? scratch + (size_t)self * stride : NULL);
}

/* Takes half of what is left of the range of one of the launch's seats.  False if nothing is, or the
 * launch is over. */
static bool claim(tcc_workers *workers, const launch *at, int32_t seat, uint64_t mark,
                  pieces *out_taken) {
    _Atomic uint64_t *word = &workers->seats[seat].claim;
    uint64_t old = atomic_load_explicit(word, memory_order_relaxed);
    for (;;) {
        if (old >> CLAIM_TICKET > at->ticket) return false;
        bool fresh = old >> CLAIM_TICKET < at->ticket;
        int64_t units = atomic_load_explicit(&at->slot->units, memory_order_relaxed);
        int64_t count =
            range_start(units, at->threads, seat + 1) - range_start(units, at->threads, seat);
        if (count > PIECES) count = PIECES;
        int64_t left = fresh ? count : (int64_t)(old & CLAIM_LEFT);
        if (left <= 0 || left > count) return false;
        int64_t take = left / 2 > 1 ? left / 2 : 1;
        uint64_t others = fresh ? at->ticket << CLAIM_TICKET : old & ~CLAIM_LEFT;
        uint64_t next = mark == CLAIM_INSIDE ? others | mark : others + mark;
        TCC_BETWEEN();
        if (atomic_compare_exchange_weak_explicit(word, &old, next | (uint64_t)(left - take),
                                                  memory_order_acq_rel, memory_order_relaxed)) {
            TCC_BETWEEN();
            *out_taken = (pieces){count - left, count - left + take, count};
            return true;
        }
    }
}

static bool steal(tcc_workers *workers, const launch *at, int32_t self, int32_t seat) {
    pieces taken;
    if (!claim(workers, at, seat, CLAIM_THIEF, &taken)) return false;
    run_pieces(at, self, seat, taken);
    TCC_BETWEEN();
    atomic_fetch_sub_explicit(&workers->seats[seat].claim, CLAIM_THIEF, memory_order_release);
    return true;
}

/* A worker that lost its CPU inside a launch may do so again at the next: the caller does without the
 * workers for twice as long as it waited.  So a crowded machine costs a run a part of its speed, not
 * a time slice for every launch.  A worker that has its CPU is at a piece of at most half its range,
 * which takes no longer than the caller's own range took. */
static void note_stall(tcc_workers *workers, int64_t since) {
    int64_t now = tcc_now(), waited = now - since;
    if (waited < STALL || waited < since - workers->began) return;
    workers->alone_until = now + (2 * waited < MOST_ALONE ? 2 * waited : MOST_ALONE);
}

static void run_own_range(tcc_workers *workers, const launch *at, int32_t self) {
    tcc_seat *seat = &workers->seats[self];
    pieces taken;
    bool inside = false;
    while (claim(workers, at, self, CLAIM_INSIDE, &taken)) {
        inside = true;
        run_pieces(at, self, self, taken);
        /* again, for one of them may have fallen asleep as the launch went out */
        if (self == 0) tcc_workers_wake(workers, at->threads);
    }
    if (!inside && self) return; /* but no one looks at whether the caller's range is done */
    int64_t since = 0;
    for (uint32_t spins = 1;
         atomic_load_explicit(&seat->claim, memory_order_acquire) & CLAIM_THIEVES; spins++) {
        tcc_relax();
        if (spins % YIELD_AFTER) continue;
        if (!since) since = tcc_now();
        sched_yield();
    }
    if (since && self == 0) note_stall(workers, since);
    TCC_BETWEEN();
    atomic_store_explicit(&seat->done, at->ticket, memory_order_release);
}

static bool is_done(const tcc_seat *seat, uint64_t ticket) {
    return atomic_load_explicit(&seat->done, memory_order_acquire) >= ticket;
}

/* Whether a range whose owner did not say so is done: it was taken over whole. */
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

/* Until every range of the launch is done.  The first seat is the caller's, which hands out the
 * next launch only when its own range is. */
static void settle(tcc_workers *workers, const launch *at, int32_t self) {
    tcc_ahead ahead = share_ahead(at, self);
    for (int32_t seat = 1; seat < at->threads; seat++) {
        const tcc_seat *other = &workers->seats[seat];
        int64_t since = 0;
        for (uint32_t spins = 1; !is_done(other, at->ticket); spins++) {
            tcc_fetch(&ahead);
            tcc_relax();
            if (spins % STEAL_AFTER) continue;
            if (is_exhausted(other, at->ticket)) break;
            if (steal(workers, at, self, seat) || spins % YIELD_AFTER) continue;
            if (!since) since = tcc_now();
            sched_yield();
        }
        if (since && self == 0) note_stall(workers, since);
    }
}

/* Takes over pieces of a launch that their owners have not begun; false if none are left. */
static bool help(tcc_workers *workers, int32_t self, uint64_t word) {
    launch at = launch_of(workers, word);
    bool helped = false;
    for (int32_t i = 1; i < at.threads; i++)
        if (steal(workers, &at, self, (self + i) % at.threads)) helped = true;
    return helped;
}

/* What worker `self` does for the launch whose word it found.  False if it has no part in it. */
static bool join(tcc_workers *workers, int32_t self, uint64_t word) {
    launch at = launch_of(workers, word), before = launch_before(workers, word);
    if (self >= at.threads) return false;
    /* perhaps another launch's by now, which costs a wasted line */
    __builtin_prefetch((const void *)atomic_load_explicit(&at.slot->buffers, memory_order_relaxed));
    __builtin_prefetch(atomic_load_explicit(&at.slot->ints, memory_order_relaxed));
    settle(workers, &before, self);
    run_own_range(workers, &at, self);
    return true;
}

/* ---- a worker's life ------------------------------------------------------------------------------ */

/* Nanoseconds that a worker may spin now: the last ones make room for the callers of other runs. */
static int64_t patience(const tcc_workers *workers, int32_t self) {
    int32_t others = atomic_load_explicit(&workers->runs, memory_order_relaxed) - 1;
    int32_t started = atomic_load_explicit(&workers->started, memory_order_relaxed);
    bool crowded = others > 0 && self > started - others;
    return crowded && workers->spin > CROWDED_NANOSECONDS ? CROWDED_NANOSECONDS : workers->spin;
}

static void work(tcc_workers *workers, int32_t self, uint64_t last) {
    int64_t idle_since = tcc_now();
    uint64_t word = 0;
    bool part = false; /* in a launch that others may still be at */
    tcc_ahead ahead = {0};
    for (uint32_t spins = 1;; spins++) {
        uint64_t next = tcc_workers_next(workers, last);
        if (next >> WORD_TICKET > last) {
            TCC_BETWEEN();
            word = next;
            last = word >> WORD_TICKET;
            part = join(workers, self, word);
            launch at = launch_of(workers, word);
            ahead = share_ahead(&at, self);
            idle_since = 0;
            spins = 0;
            continue;
        }
        tcc_fetch(&ahead);
        tcc_relax();
        if (part && spins % HELP_AFTER == 0) part = help(workers, self, word);
        if (spins % LOOK_AT_CLOCK) continue;
        if (!idle_since) idle_since = tcc_now();
        if (tcc_now() - idle_since > patience(workers, self)) {
            tcc_workers_sleep(workers, self, last);
            idle_since = 0;
        }
    }
}

/* ---- the caller's side --------------------------------------------------------------------------- */

static int32_t alive(tcc_workers *workers) {
    return atomic_load_explicit(&workers->started, memory_order_relaxed);
}

void tcc_workers_settle(tcc_workers *workers) {
    launch last = launch_at(workers, workers->ticket, workers->open);
    settle(workers, &last, 0);
    workers->open = 0;
}

void tcc_workers_launch(tcc_workers *workers, const tcc_job *job) {
    int32_t threads = job->threads;
    if (TCC_UNLIKELY(alive(workers) < threads - 1)) {
        if (!workers->refused) tcc_workers_start(workers, threads - 1, work);
        if (threads > alive(workers) + 1) threads = alive(workers) + 1;
    }
    launch before = launch_at(workers, workers->ticket, workers->open);
    uint64_t ticket = workers->ticket + 1;
    uint64_t previous = workers->open ? workers->open - 1u : 0;
    uint64_t seats = (uint64_t)threads - 1;
    tcc_slot *slot = &workers->slots[ticket & 1];
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
    tcc_workers_wake(workers, threads);
    settle(workers, &before, 0);
    workers->ticket = ticket;
    workers->open = (uint16_t)threads;
    workers->began = tcc_now();
    launch at = launch_at(workers, ticket, threads);
    run_own_range(workers, &at, 0);
}
