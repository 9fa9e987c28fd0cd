/* The process's workers and how a launch passes between threads; crew.c, threads.c and workers.c
 * only.
 *
 * Each run in progress has a *team*: the run's caller has its first seat, workers have the other
 * seats.  A worker's *post* says which seat of which team it serves.  The team's owner hires a
 * worker that serves nobody and tells it to leave; the worker itself leaves, between launches, and
 * a worker that falls asleep has left.  So a seat never has two workers.
 *
 * A run's launches are numbered by *tickets*.  A launch lies in one of two slots, by the parity of
 * its ticket, so that the caller can hand out launch t while t-1 still has units in flight.  Every
 * thread walks the tickets in order and crosses from one to the next by reading the other threads'
 * progress.  No thread sends a message, and a launch costs each thread one cache line of every
 * other thread.
 *
 * One word publishes a launch: its ticket, its number of threads, and the number of threads of the
 * launch before it.  So a thread that reads the word late still knows which seats the launch has,
 * whatever the caller writes to the slot at that moment:
 *
 *   ticket << 17 | threads of the launch before, less 1 << 8 | threads, less 1
 *
 * Thread s owns the s-th range of a launch's units, cut into at most PIECES pieces.  The seat's
 * `claim` says which pieces are taken.  It is in the owner's cache unless another thread steals
 * from the range:
 *
 *   ticket << 17 | owner has taken some << 16 | thieves at work << 8 | pieces left
 *
 * A claim of an older ticket means that no piece of this launch's range is taken yet, so ranges
 * need no preparation.  A claim only ever changes to a later state, and the caller overwrites a
 * slot only when the claims of all seats of its launch are used up.  So a successful
 * compare-and-swap at such a seat proves that the launch is still open, and that the values read
 * from its slot before belong to that launch. */
#ifndef TCC_WORKERS_H
#define TCC_WORKERS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <time.h>

#include "clock.h"
#include "runtime.h"

/* version of the shared object's layout */
#define WORKERS_VERSION 9

enum {
    PIECES = 16,
    LINE_PAIR = 128,
    MOST_TEAMS = TCC_MAX_THREADS / 2,
    FREE_NANOSECONDS = 20000, /* spinning time where other runs may want the CPU */
};

/* A test's header may define these: waits between the steps of a launch, or how threads wait. */
#ifdef TCC_TRIAL
#include TCC_TRIAL
#endif
#ifndef TCC_BETWEEN
#define TCC_BETWEEN()
#endif
#ifndef TCC_OWN_TURNS
enum { /* numbers of turns of a waiting thread */
    STEAL_AFTER = 8, /* a look at a working thread's claim costs that thread a cache miss */
    HELP_AFTER = 16,
    LOOK_AT_CLOCK = 64,
    YIELD_AFTER = 1024, /* a worker may be waiting for this very CPU */
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

/* A launch.  It takes one cache line, plus one for the hint `ahead`.  A claim proves that all
 * fields but `word` belong to the launch. */
typedef struct tcc_slot {
    _Alignas(LINE_PAIR) _Atomic uint64_t word;
    _Atomic(tcc_kernel) kernel;
    _Atomic(void *const *) buffers;
    _Atomic(const int64_t *) ints;
    _Atomic int64_t units;
    _Atomic(char *) scratch;
    _Atomic size_t scratch_stride;
    /* the hint: no claim proves it; on a line that only idle threads read */
    _Alignas(LINE_PAIR / 2) _Atomic(const char *) ahead;
    _Atomic int64_t ahead_bytes;
} tcc_slot;

/* The bytes that an idle thread prefetches while it waits: its share of the next launch's
 * constants. */
typedef struct tcc_ahead {
    const char *next, *end;
} tcc_ahead;

typedef struct tcc_seat {
    _Alignas(LINE_PAIR) _Atomic uint64_t claim;
    _Alignas(LINE_PAIR) _Atomic uint64_t done; /* ticket of the last launch whose range is done, if
                                                  the owner took part; only it writes this */
} tcc_seat;

/* The states of a worker's post, the word that it sleeps on: free, asleep (and free), or serving a
 * seat. */
enum {
    POST_NOBODY = 0, /* no such worker */
    POST_FREE = 1,
    POST_ASLEEP = 2,
    POST_SERVES = 4,
    POST_LEAVE = 8, /* the worker is told to leave the seat */
    POST_SEAT = 8, /* position of the seat's bits */
    POST_TEAM = 16,
};

typedef struct tcc_post {
    _Alignas(LINE_PAIR) _Atomic uint32_t post;
    _Atomic int32_t thread; /* the system's thread number; 0: the worker has not begun */
    _Atomic int32_t cpu;    /* CPU where it fell asleep; -1: not known */
} tcc_post;

/* The CPU time of a thread at a moment.  `at` (tcc_now) is 0 where no look was taken, and `cpu` is
 * -1 where the system does not say. */
typedef struct tcc_use {
    int64_t at, cpu; /* nanoseconds */
    int64_t sleeps;  /* voluntary context switches */
    int64_t yields;  /* involuntary context switches */
} tcc_use;

/* A run's seats and launches.  The fields before `busy` belong to the run that set `busy`. */
struct tcc_team {
    uint64_t ticket;     /* the last launch's */
    int64_t narrow_until; /* time (tcc_now) when launches have all their threads again */
    int64_t narrow_for;   /* nanoseconds that they last had fewer threads; 0: never */
    int64_t began;       /* time (tcc_now) of the last launch; only the caller reads it */
    uint16_t open;       /* threads of the last launch; 0 once it is settled */
    int32_t manned;      /* seats 0 .. manned - 1 have a thread, as far as the owner knows */
    int32_t reached;     /* seats from here on never had a worker, or their worker was told to
                            leave */
    uint8_t members[TCC_MAX_THREADS]; /* the last worker of each seat; 0: none yet */
    int32_t width;       /* the most threads of a launch until `narrow_until`; 0: no limit */
    tcc_use used;        /* the owner's CPU time at its last look */
    int (*pause)(void *of); /* as in tcc_crew; artifacts of earlier builds neither set nor call it */
    void *pause_of;
    _Alignas(LINE_PAIR) atomic_bool busy; /* a run owns the team */
    /* the fields that workers read */
    _Alignas(LINE_PAIR) tcc_workers *workers;
    uint32_t number;                             /* index in `teams` */
    _Atomic uint64_t gone[TCC_MAX_THREADS / 64]; /* seats whose worker fell asleep */
    tcc_slot slots[2];
    tcc_seat seats[TCC_MAX_THREADS];
};

/* The fields of one word: runs in progress, workers that they ask for, and workers that serve. */
#define LOAD_RUN UINT64_C(1)
#define LOAD_ASKED (UINT64_C(1) << 16)
#define LOAD_HIRED (UINT64_C(1) << 40)

typedef struct tcc_load {
    int64_t runs, requested, hired;
} tcc_load;

/* The object that all artifacts share.  Another layout has another version, which is the type of
 * the note. */
struct tcc_workers {
    uint32_t version;
    int32_t cpus; /* threads of all runs together, unless a single run asks for more */
    void (*launch)(tcc_team *team, const tcc_job *job);
    void (*settle)(tcc_team *team);
    int64_t spin;   /* nanoseconds that all idle workers together spin before the last one sleeps */
    uint32_t forks; /* forks between this process and the first */
    _Alignas(LINE_PAIR) _Atomic uint64_t load;
    _Alignas(LINE_PAIR) _Atomic int32_t started; /* workers are 1 .. started */
    atomic_bool refused;  /* the system refused a thread, so launches stop asking */
    _Atomic int32_t warm; /* the team that a run left last */
    tcc_budget memory;    /* used by all artifacts together */
    _Atomic(tcc_team *) teams[MOST_TEAMS];
    tcc_post posts[TCC_MAX_THREADS];
};


/* Artifacts of other builds read the same object.  A change of a number below needs a new
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

/* A worker's idle times, as tcc_now. */
typedef struct tcc_idle {
    int64_t since; /* end of its last launch; 0: it is not idle */
    int64_t began; /* when it began to spin; 0: it does not spin */
    int64_t looked; /* when it last read the clock while spinning */
    int64_t debt;  /* nanoseconds that it spun in vain and has not made up for */
} tcc_idle;

/* Serves a seat of a team until the worker leaves it. */
typedef void tcc_service(tcc_team *team, int32_t self, int32_t seat, tcc_idle *idle);

/* Finds workers for seats 1 .. threads-1.  Returns how many seats, counted from the first, have a
 * thread, at most `threads`.  Only the team's owner calls it. */
int32_t tcc_team_man(tcc_team *team, int32_t threads, tcc_service *service);
/* Tells the workers of seats `threads` and up to leave.  Only the team's owner calls it. */
void tcc_team_trim(tcc_team *team, int32_t threads);
/* Returns true if the worker left its seat because it was told to. */
bool tcc_worker_leaves(tcc_team *team, int32_t self, int32_t seat);
/* Leaves the seat and sleeps until the worker is hired, unless the worker has just been told to
 * leave. */
void tcc_worker_sleep(tcc_team *team, int32_t self, int32_t seat);

/* ---- width.c ------------------------------------------------------------------------------------ */

/* Returns true if a wait shows that another thread has lost its CPU.  A thread with a CPU is at a
 * piece of at most half its range, which takes no longer than the caller's own range took. */
bool tcc_team_stalls(const tcc_team *team, int64_t since, int64_t now);
/* Notes a wait for the other threads of a launch that had `threads` threads. */
void tcc_team_note_wait(tcc_team *team, int32_t threads, int64_t since);
/* Notes the begin of a launch on `open` threads. */
void tcc_team_note_launch(tcc_team *team);
/* Returns the most threads that the next launch may have.  Workers beyond them are told to
 * leave. */
int32_t tcc_team_width(tcc_team *team);

/* ---- threads.c ---------------------------------------------------------------------------------- */

/* The two functions of the tcc_workers table: launch, and wait for all launches. */
void tcc_workers_launch(tcc_team *team, const tcc_job *job);
void tcc_workers_settle(tcc_team *team);

/* ---- crew.c ------------------------------------------------------------------------------------- */

/* Returns the process's workers, which the first call makes; NULL without memory for them. */
tcc_workers *tcc_workers_find(void);

/* Prefetches a few cache lines, few enough that the waiting thread looks up again at once. */
static inline void tcc_fetch(tcc_ahead *ahead) {
    enum { LINE = 64, LINES = 4 };
    for (int i = 0; i < LINES && ahead->next < ahead->end; i++, ahead->next += LINE)
        __builtin_prefetch(ahead->next, 0, 2);
}

#endif
