/* The process's workers and how a launch passes between threads; crew.c, threads.c and workers.c only.
 *
 * Runs in progress have a *team* each: the run's caller has its first seat, workers have the others.
 * A worker's *post* says which seat of which team it serves.  The team's owner hires a worker that
 * serves nobody and tells it to leave; the worker itself leaves, between launches, and whoever falls
 * asleep has left.  So a seat never has two workers.
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

#include "clock.h"
#include "runtime.h"

/* of the shared object's layout */
#define WORKERS_VERSION 9

enum {
    PIECES = 16,
    LINE_PAIR = 128,
    MOST_TEAMS = TCC_MAX_THREADS / 2,
    FREE_NANOSECONDS = 20000, /* spinning where other runs may want the CPU */
};

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

/* What a worker does, a word that it sleeps on: it is free, or asleep and free, or it serves. */
enum {
    POST_NOBODY = 0, /* no such worker */
    POST_FREE = 1,
    POST_ASLEEP = 2,
    POST_SERVES = 4,
    POST_LEAVE = 8, /* it is to leave the seat */
    POST_SEAT = 8, /* bits up to the seat */
    POST_TEAM = 16,
};

typedef struct tcc_post {
    _Alignas(LINE_PAIR) _Atomic uint32_t post;
    _Atomic int32_t thread; /* the worker's number in the system; 0: it has not begun */
    _Atomic int32_t cpu;    /* where it fell asleep; -1: not known */
} tcc_post;

/* What a thread has used at a time; `at` (tcc_now) is 0 where nobody looked, and `cpu` -1 where the system
 * does not say. */
typedef struct tcc_use {
    int64_t at, cpu; /* nanoseconds */
    int64_t sleeps;  /* how often it gave its CPU up of its own accord */
    int64_t yields;  /* how often it made room for another thread though it had work */
} tcc_use;

/* A run's seats and launches.  What stands before `busy` belongs to the owner of `busy`. */
struct tcc_team {
    uint64_t ticket;     /* of the last launch */
    int64_t narrow_until; /* when launches have all their threads again (tcc_now) */
    int64_t narrow_for;   /* how long they had fewer the last time; 0: never */
    int64_t began;       /* the last launch (tcc_now); only its maker reads it */
    uint16_t open;       /* threads of the last launch; 0 once it is settled */
    int32_t manned;      /* seats that have a thread, as far as the owner knows: 0 .. manned - 1 */
    int32_t reached;     /* seats from here on never had a worker, or it was told to leave */
    uint8_t members[TCC_MAX_THREADS]; /* the last worker of each seat; 0: none yet */
    int32_t width;       /* the most threads of a launch until `narrow_until`; 0: no limit */
    tcc_use used;        /* by the owner when it last looked */
    int (*pause)(void *of); /* as in tcc_crew; artifacts of earlier builds neither set nor call it */
    void *pause_of;
    _Alignas(LINE_PAIR) atomic_bool busy; /* a run has the team */
    /* what workers read */
    _Alignas(LINE_PAIR) tcc_workers *workers;
    uint32_t number;                             /* in `teams` */
    _Atomic uint64_t gone[TCC_MAX_THREADS / 64]; /* seats whose worker fell asleep */
    tcc_slot slots[2];
    tcc_seat seats[TCC_MAX_THREADS];
};

/* Runs in progress, workers that they ask for, and workers that serve, in one word. */
#define LOAD_RUN UINT64_C(1)
#define LOAD_ASKED (UINT64_C(1) << 16)
#define LOAD_HIRED (UINT64_C(1) << 40)

typedef struct tcc_load {
    int64_t runs, asked, hired;
} tcc_load;

/* The shared object; another layout has another version, which is the type of the note. */
struct tcc_workers {
    uint32_t version;
    int32_t cpus; /* threads that all runs have together, unless one run asks for more */
    void (*launch)(tcc_team *team, const tcc_job *job);
    void (*settle)(tcc_team *team);
    int64_t spin;   /* nanoseconds that all idle workers together spin before the last one sleeps */
    uint32_t forks; /* how often this process is the child of a fork */
    _Alignas(LINE_PAIR) _Atomic uint64_t load;
    _Alignas(LINE_PAIR) _Atomic int32_t started; /* workers are 1 .. started */
    atomic_bool refused;  /* the system gave no more threads: do not ask at every launch */
    _Atomic int32_t warm; /* the team that was left last */
    tcc_budget memory;    /* of all artifacts */
    _Atomic(tcc_team *) teams[MOST_TEAMS];
    tcc_post posts[TCC_MAX_THREADS];
};


/* Artifacts of other builds read the same object.  Where a number here has to change, so does
 * WORKERS_VERSION. */
#define AT(type, member, offset) _Static_assert(offsetof(type, member) == (offset), #member " moved")
_Static_assert(sizeof(tcc_workers) == 34176 && sizeof(tcc_team) == 66432 && sizeof(tcc_job) == 72,
               "the shared objects");
_Static_assert(sizeof(tcc_budget) == 64, "a part of the shared object");
_Static_assert(sizeof(tcc_slot) == 128 && sizeof(tcc_seat) == 256 && sizeof(tcc_post) == 128,
               "parts of the shared objects");
AT(tcc_workers, cpus, 4);
AT(tcc_workers, launch, 8);
AT(tcc_workers, settle, 16);
AT(tcc_workers, spin, 24);
AT(tcc_workers, forks, 32);
AT(tcc_workers, load, 128);
AT(tcc_workers, started, 256);
AT(tcc_workers, refused, 260);
AT(tcc_workers, warm, 264);
AT(tcc_workers, memory, 272);
AT(tcc_workers, teams, 336);
AT(tcc_workers, posts, 1408);
AT(tcc_team, ticket, 0);
AT(tcc_team, narrow_until, 8);
AT(tcc_team, narrow_for, 16);
AT(tcc_team, began, 24);
AT(tcc_team, open, 32);
AT(tcc_team, manned, 36);
AT(tcc_team, reached, 40);
AT(tcc_team, members, 44);
AT(tcc_team, width, 300);
AT(tcc_team, used, 304);
AT(tcc_team, pause, 336);
AT(tcc_team, pause_of, 344);
AT(tcc_team, busy, 384);
AT(tcc_team, workers, 512);
AT(tcc_team, number, 520);
AT(tcc_team, gone, 528);
AT(tcc_team, slots, 640);
AT(tcc_team, seats, 896);
AT(tcc_post, thread, 4);
AT(tcc_post, cpu, 8);
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

static inline tcc_load tcc_load_of(const tcc_workers *workers) {
    uint64_t load = atomic_load_explicit(&workers->load, memory_order_relaxed);
    return (tcc_load){(int64_t)(load & 0xFFFF), (int64_t)(load >> 16 & 0xFFFFFF), (int64_t)(load >> 40)};
}

/* ---- workers.c ---------------------------------------------------------------------------------- */

/* What a worker knows of its idle times. */
typedef struct tcc_idle {
    int64_t since; /* its last launch; 0: it has not been long */
    int64_t began; /* to spin; 0: it has not been long */
    int64_t looked; /* at the clock, as it spun */
    int64_t debt;  /* nanoseconds that it spun in vain, and has not made up for */
} tcc_idle;

/* A worker's service at a seat of a team, until it leaves. */
typedef void tcc_service(tcc_team *team, int32_t self, int32_t seat, tcc_idle *idle);

/* Sees to it that seats 1 .. threads-1 have workers; returns how many seats from the first on have a
 * thread, `threads` at most.  For the team's owner. */
int32_t tcc_team_man(tcc_team *team, int32_t threads, tcc_service *service);
/* Tells the workers of seats `threads` and up to leave.  For the team's owner. */
void tcc_team_trim(tcc_team *team, int32_t threads);
/* Whether the worker left its seat, as it was told. */
bool tcc_worker_leaves(tcc_team *team, int32_t self, int32_t seat);
/* The worker leaves its seat and sleeps until it is hired, unless it was told to leave just now. */
void tcc_worker_sleep(tcc_team *team, int32_t self, int32_t seat);

/* ---- width.c ------------------------------------------------------------------------------------ */

/* Whether a wait shows that another thread has lost its CPU.  A thread that has it is at a piece of at
 * most half its range, which takes no longer than the caller's own range took. */
bool tcc_team_stalls(const tcc_team *team, int64_t since, int64_t now);
/* After a wait for the other threads of a launch, which had `threads`. */
void tcc_team_note_wait(tcc_team *team, int32_t threads, int64_t since);
/* As a launch begins, on `open` threads. */
void tcc_team_note_launch(tcc_team *team);
/* The most threads that the next launch is to have; workers beyond them are told to leave. */
int32_t tcc_team_width(tcc_team *team);

/* ---- threads.c ---------------------------------------------------------------------------------- */

/* What tcc_workers holds: launches, and waits for all of them. */
void tcc_workers_launch(tcc_team *team, const tcc_job *job);
void tcc_workers_settle(tcc_team *team);

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
