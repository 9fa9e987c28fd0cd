/* The process's workers and how a launch passes between threads; crew.c, threads.c and workers.c only.
 *
 * A run's launches are numbered by *tickets*.  A launch lies in one of two slots, by the parity of
 * its ticket, so that the caller can hand out launch t while t-1 still has units in flight.  Every
 * thread walks the tickets in order and crosses from one to the next by reading how far the others
 * are: no thread is told anything, and a launch costs each thread one cache line of every other.
 *
 * One word publishes a launch: its ticket, its number of threads, and that of the launch before it.
 * So a thread that reads the word late still knows which seats the launch has, whatever the caller
 * writes to the slot at that moment:
 *
 *   ticket << 17 | threads of the launch before, less 1 << 8 | threads, less 1
 *
 * Thread s owns the s-th range of a launch's units, cut into at most PIECES pieces.  `claim` of its
 * seat says which are taken; it is in the owner's cache unless someone steals from it:
 *
 *   ticket << 17 | owner has taken some << 16 | thieves at work << 8 | pieces left
 *
 * A claim of an older ticket means that nothing of this launch's range is taken yet; so nobody has to
 * prepare ranges.  Claims only ever change to a later state, and the caller overwrites a slot when the
 * claims of all seats of its launch are used up.  So a successful compare-and-swap at such a seat
 * proves that the launch is still open, and that what was read of its slot before is the launch's. */
#ifndef TCC_WORKERS_H
#define TCC_WORKERS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <time.h>

#include "runtime.h"

/* of the shared object's layout */
#define WORKERS_VERSION 5

enum { PIECES = 16, LINE_PAIR = 128 };

/* What a test's header changes: waits between the steps of a launch, or how threads wait. */
#ifdef TCC_TRIAL
#include TCC_TRIAL
#endif
#ifndef TCC_BETWEEN
#define TCC_BETWEEN()
#endif
#ifndef TCC_OWN_TURNS
enum { /* turns of waiting threads */
    STEAL_AFTER = 8, /* looking at a working thread's claim costs it a cache miss */
    HELP_AFTER = 16,
    LOOK_AT_CLOCK = 64,
    YIELD_AFTER = 1024, /* a worker may wait for this very CPU */
};

static inline void tcc_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}
#endif

#define WORD_TICKET 17
#define WORD_PREVIOUS 8

#define CLAIM_TICKET 17
#define CLAIM_INSIDE UINT64_C(0x10000)
#define CLAIM_THIEF UINT64_C(0x100)
#define CLAIM_THIEVES UINT64_C(0xFF00)
#define CLAIM_LEFT UINT64_C(0xFF)

/* One cache line but for the hint.  A claim proves all but `word`. */
typedef struct tcc_slot {
    _Alignas(LINE_PAIR) _Atomic uint64_t word;
    _Atomic(tcc_kernel) kernel;
    _Atomic(void *const *) buffers;
    _Atomic(const int64_t *) ints;
    _Atomic int64_t units;
    _Atomic(char *) scratch;
    _Atomic size_t scratch_stride;
    /* on a line that only idle threads read, for a hint: nothing proves them */
    _Alignas(LINE_PAIR / 2) _Atomic(const char *) ahead;
    _Atomic int64_t ahead_bytes;
} tcc_slot;

/* What an idle thread fetches while it waits: its share of what the next launch reads. */
typedef struct tcc_ahead {
    const char *next, *end;
} tcc_ahead;

typedef struct tcc_seat {
    _Alignas(LINE_PAIR) _Atomic uint64_t claim;
    _Alignas(LINE_PAIR) _Atomic uint64_t done; /* the last launch whose range is done, if its owner
                                                  took part; written by the owner alone */
} tcc_seat;

/* The shared object; another layout has another version, which is the type of the note. */
struct tcc_workers {
    uint32_t version;
    void (*launch)(tcc_workers *workers, const tcc_job *job);
    void (*settle)(tcc_workers *workers);
    int64_t spin;    /* nanoseconds that an idle worker spins before it sleeps */
    bool refused;    /* the system gave no more threads: do not ask at every launch */
    uint64_t ticket; /* of the last launch; these three belong to the owner of `busy` */
    uint16_t open;   /* threads of the last launch; 0 once it is settled */
    int64_t alone_until; /* when the owner counts on its workers again (tcc_now); 0: now */
    int64_t began;       /* the last launch (tcc_now); only its maker reads it */
    _Alignas(LINE_PAIR) atomic_bool busy;     /* a run has the workers */
    _Alignas(LINE_PAIR) _Atomic int32_t runs; /* in progress, with workers or without */
    _Atomic int32_t started;                  /* workers alive; the owner of `busy` starts more */
    tcc_budget memory;                        /* of all artifacts */
    _Alignas(LINE_PAIR) _Atomic uint64_t asleep[TCC_MAX_THREADS / 64];
    _Atomic uint32_t bell[TCC_MAX_THREADS];
    tcc_slot slots[2];
    tcc_seat seats[TCC_MAX_THREADS];
};

/* Artifacts of other builds read the same object.  Where a number here has to change, so does
 * WORKERS_VERSION. */
#define AT(type, member, offset) _Static_assert(offsetof(type, member) == (offset), #member " moved")
_Static_assert(sizeof(tcc_workers) == 67328 && sizeof(tcc_job) == 72, "the shared object");
_Static_assert(sizeof(tcc_slot) == 128 && sizeof(tcc_seat) == 256, "parts of the shared object");
AT(tcc_workers, launch, 8);
AT(tcc_workers, settle, 16);
AT(tcc_workers, spin, 24);
AT(tcc_workers, refused, 32);
AT(tcc_workers, ticket, 40);
AT(tcc_workers, open, 48);
AT(tcc_workers, alone_until, 56);
AT(tcc_workers, busy, 128);
AT(tcc_workers, runs, 256);
AT(tcc_workers, started, 260);
AT(tcc_workers, memory, 264);
AT(tcc_workers, asleep, 384);
AT(tcc_workers, bell, 416);
AT(tcc_workers, slots, 1536);
AT(tcc_workers, seats, 1792);
AT(tcc_slot, word, 0);
AT(tcc_slot, kernel, 8);
AT(tcc_slot, buffers, 16);
AT(tcc_slot, ints, 24);
AT(tcc_slot, units, 32);
AT(tcc_slot, scratch, 40);
AT(tcc_slot, scratch_stride, 48);
AT(tcc_slot, ahead, 64);
AT(tcc_slot, ahead_bytes, 72);
AT(tcc_seat, claim, 0);
AT(tcc_seat, done, 128);
AT(tcc_job, kernel, 0);
AT(tcc_job, buffers, 8);
AT(tcc_job, ints, 16);
AT(tcc_job, units, 24);
AT(tcc_job, scratch, 32);
AT(tcc_job, scratch_stride, 40);
AT(tcc_job, threads, 48);
AT(tcc_job, ahead, 56);
AT(tcc_job, ahead_bytes, 64);
#undef AT

static inline int64_t tcc_now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* ---- workers.c ---------------------------------------------------------------------------------- */

/* A worker's life from the launch after `last` on; it never ends. */
typedef void tcc_worker(tcc_workers *workers, int32_t self, uint64_t last);

/* Starts threads until `wanted` are alive or the system refuses.  For the owner of `busy`. */
void tcc_workers_start(tcc_workers *workers, int32_t wanted, tcc_worker *worker);
/* Wakes those of the first `threads` seats that sleep. */
void tcc_workers_wake(tcc_workers *workers, int32_t threads);
/* The word of the slot where the launch after `last` will be, or one after that. */
uint64_t tcc_workers_next(const tcc_workers *workers, uint64_t last);
/* Sleeps until there is such a launch, or somebody calls. */
void tcc_workers_sleep(tcc_workers *workers, int32_t self, uint64_t last);

/* ---- threads.c ---------------------------------------------------------------------------------- */

/* What tcc_workers holds: launches, and waits for all of them. */
void tcc_workers_launch(tcc_workers *workers, const tcc_job *job);
void tcc_workers_settle(tcc_workers *workers);

/* ---- crew.c ------------------------------------------------------------------------------------- */

/* The process's workers, made at the first call; NULL without memory for them. */
tcc_workers *tcc_workers_find(void);

/* Asks for a few lines: so few that whoever waits looks up again at once. */
static inline void tcc_fetch(tcc_ahead *ahead) {
    enum { LINE = 64, LINES = 4 };
    for (int i = 0; i < LINES && ahead->next < ahead->end; i++, ahead->next += LINE)
        __builtin_prefetch(ahead->next, 0, 2);
}

#endif
