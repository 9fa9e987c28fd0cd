/* Starts the threads behind a launch, puts them to sleep where they have no work, and wakes
 * them. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "workers.h"

static void sleep_at(_Atomic uint32_t *post, uint32_t value) {
    syscall(SYS_futex, post, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static uint32_t post_at(const tcc_team *team, int32_t seat) {
    return POST_SERVES | (uint32_t)seat << POST_SEAT | team->number << POST_TEAM;
}

static bool change_post(tcc_workers *workers, int32_t self, uint32_t from, uint32_t to) {
    TCC_BETWEEN();
    return atomic_compare_exchange_strong_explicit(&workers->posts[self].post, &from, to,
                                                   memory_order_release, memory_order_relaxed);
}

/* ---- a worker's life ------------------------------------------------------------------------------ */

static void note_cpu(tcc_workers *workers, int32_t self) {
    atomic_store_explicit(&workers->posts[self].cpu, sched_getcpu(), memory_order_relaxed);
}

static void note_leave(tcc_workers *workers) {
    atomic_fetch_sub_explicit(&workers->load, LOAD_HIRED, memory_order_relaxed);
}

bool tcc_worker_leaves(tcc_team *team, int32_t self, int32_t seat) {
    if (!change_post(team->workers, self, post_at(team, seat) | POST_LEAVE, POST_FREE)) return false;
    note_leave(team->workers);
    return true;
}

void tcc_worker_sleep(tcc_team *team, int32_t self, int32_t seat) {
    tcc_workers *workers = team->workers;
    note_cpu(workers, self);
    if (!change_post(workers, self, post_at(team, seat), POST_ASLEEP)) return;
    note_leave(workers);
    atomic_fetch_or_explicit(&team->gone[seat / 64], UINT64_C(1) << seat % 64, memory_order_relaxed);
    sleep_at(&workers->posts[self].post, POST_ASLEEP);
}

/* Waits until the worker serves a seat; returns its post. */
static uint32_t wait_for_post(tcc_workers *workers, int32_t self) {
    _Atomic uint32_t *post = &workers->posts[self].post;
    for (int64_t since = tcc_now();;) {
        for (int turn = 0; turn < LOOK_AT_CLOCK; turn++) {
            uint32_t now = atomic_load_explicit(post, memory_order_acquire);
            if (now & POST_SERVES) return now;
            if (now == POST_ASLEEP) sleep_at(post, POST_ASLEEP);
            tcc_relax();
        }
        if (tcc_now() - since <= FREE_NANOSECONDS) continue;
        note_cpu(workers, self);
        change_post(workers, self, POST_FREE, POST_ASLEEP);
    }
}

static tcc_team *team_of(tcc_workers *workers, uint32_t post) {
    return atomic_load_explicit(&workers->teams[post >> POST_TEAM], memory_order_relaxed);
}

typedef struct worker_start {
    tcc_workers *workers;
    tcc_service *service;
    int32_t self;
} worker_start;

static void *begin(void *argument) {
    worker_start start = *(worker_start *)argument;
    free(argument);
    atomic_store_explicit(&start.workers->posts[start.self].thread, (int32_t)syscall(SYS_gettid),
                          memory_order_relaxed);
    for (tcc_idle idle = {0};;) {
        uint32_t post = wait_for_post(start.workers, start.self);
        int32_t seat = (int32_t)(post >> POST_SEAT & 0xFF);
        start.service(team_of(start.workers, post), start.self, seat, &idle);
    }
    return NULL;
}

/* ---- starting one ---------------------------------------------------------------------------------- */

/* Fills the set of signals that workers block.  Signals sent to the process go to the program's own
 * threads.  Signals that a thread's own instructions raise must reach a handler, or the kernel
 * kills the process.  Profilers interrupt any thread that uses the CPU. */
static void signals_to_block(sigset_t *out_set) {
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGPROF};
    sigfillset(out_set);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) sigdelset(out_set, faults[i]);
}

enum { LEAST_STACK = 1 << 20 }; /* bytes of a worker's stack at least, whatever `ulimit -s` says */

static bool start_thread(worker_start *start) {
    sigset_t blocked, old;
    pthread_attr_t attributes;
    pthread_t thread;
    if (pthread_attr_init(&attributes)) return false;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    size_t stack = LEAST_STACK;
    if (!pthread_attr_getstacksize(&attributes, &stack) && stack < LEAST_STACK)
        pthread_attr_setstacksize(&attributes, LEAST_STACK);
    signals_to_block(&blocked);
    pthread_sigmask(SIG_SETMASK, &blocked, &old);
    bool started = !pthread_create(&thread, &attributes, begin, start);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attributes);
    return started;
}

/* Starts a worker with the post `post`.  Returns its number, or 0 where the system gives no
 * thread. */
static int32_t start_worker(tcc_workers *workers, uint32_t post, tcc_service *service) {
    int32_t last = atomic_load_explicit(&workers->started, memory_order_relaxed);
    do {
        if (last == TCC_MAX_THREADS - 1 ||
            atomic_load_explicit(&workers->refused, memory_order_relaxed))
            return 0;
    } while (!atomic_compare_exchange_weak_explicit(&workers->started, &last, last + 1,
                                                    memory_order_relaxed, memory_order_relaxed));
    worker_start *start = malloc(sizeof *start);
    if (start) {
        *start = (worker_start){workers, service, last + 1};
        atomic_store_explicit(&workers->posts[last + 1].cpu, -1, memory_order_relaxed);
        atomic_store_explicit(&workers->posts[last + 1].post, post, memory_order_relaxed);
        if (start_thread(start)) return last + 1;
        free(start);
        atomic_store_explicit(&workers->posts[last + 1].post, POST_NOBODY, memory_order_relaxed);
    }
    atomic_store_explicit(&workers->refused, true, memory_order_relaxed);
    return 0;
}

/* ---- the owner's side: who serves a team --------------------------------------------------------------- */

/* Counts one more serving worker.  Returns false where the runs in progress leave it no CPU. */
static bool note_hire(tcc_workers *workers, int32_t threads) {
    uint64_t old = atomic_load_explicit(&workers->load, memory_order_relaxed);
    int64_t cpus = workers->cpus > threads ? workers->cpus : threads;
    do {
        if ((int64_t)(old >> 40) + (int64_t)(old & 0xFFFF) >= cpus) return false;
    } while (!atomic_compare_exchange_weak_explicit(&workers->load, &old, old + LOAD_HIRED,
                                                    memory_order_relaxed, memory_order_relaxed));
    return true;
}

/* Removes from `cpus` the CPUs that other workers used last, as long as one CPU remains. */
static void exclude_others(const tcc_workers *workers, int32_t self, cpu_set_t *cpus) {
    int32_t started = atomic_load_explicit(&workers->started, memory_order_relaxed);
    for (int32_t i = 1; i <= started && CPU_COUNT(cpus) > 1; i++) {
        int32_t cpu = atomic_load_explicit(&workers->posts[i].cpu, memory_order_relaxed);
        if (i != self && cpu >= 0) CPU_CLR((size_t)cpu, cpus);
    }
}

/* Wakes a worker off the caller's CPU; afterwards it may run anywhere.  It wakes on the CPU where
 * it fell asleep or, if that is the caller's, on a CPU where no other worker was.
 *
 * Some systems wake a thread beside the thread that wakes it though other CPUs are idle, and the
 * two take turns until the system notices.  A virtual CPU without work may count as taken to Linux
 * as a guest. */
static void wake(tcc_workers *workers, int32_t self) {
    tcc_post *post = &workers->posts[self];
    int32_t thread = atomic_load_explicit(&post->thread, memory_order_relaxed);
    int32_t here = sched_getcpu();
    cpu_set_t allowed, cpus;
    bool apart = here >= 0 && thread && !sched_getaffinity(thread, sizeof allowed, &allowed);
    if (apart) {
        cpus = allowed;
        CPU_CLR((size_t)here, &cpus);
        if (atomic_load_explicit(&post->cpu, memory_order_relaxed) == here)
            exclude_others(workers, self, &cpus);
        apart = !sched_setaffinity(thread, sizeof cpus, &cpus); /* fails where `cpus` is empty */
    }
    syscall(SYS_futex, &post->post, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    if (apart) sched_setaffinity(thread, sizeof allowed, &allowed);
}

static bool hire(tcc_workers *workers, int32_t self, uint32_t post) {
    if (change_post(workers, self, POST_FREE, post)) return true;
    if (!change_post(workers, self, POST_ASLEEP, post)) return false;
    wake(workers, self);
    return true;
}

/* Finds a worker for the seat: its last worker, another one, or a new one.  Returns 0 if there is
 * none. */
static int32_t find_worker(tcc_team *team, int32_t seat, tcc_service *service) {
    tcc_workers *workers = team->workers;
    uint32_t post = post_at(team, seat);
    int32_t started = atomic_load_explicit(&workers->started, memory_order_relaxed);
    int32_t first = team->members[seat] ? team->members[seat] : seat;
    for (int32_t i = 0; i < started; i++) {
        int32_t self = (first - 1 + i) % started + 1;
        uint32_t now = atomic_load_explicit(&workers->posts[self].post, memory_order_relaxed);
        if (now & (POST_FREE | POST_ASLEEP) && hire(workers, self, post)) return self;
    }
    return start_worker(workers, post, service);
}

/* Gives the seat a worker.  Returns true if it has one now. */
static bool man(tcc_team *team, int32_t seat, int32_t threads, tcc_service *service) {
    int32_t last = team->members[seat];
    uint32_t post = post_at(team, seat);
    if (last) { /* the last worker may still serve, or may not have noticed yet that it shall
                   leave */
        uint32_t now =
            atomic_load_explicit(&team->workers->posts[last].post, memory_order_relaxed);
        if (now == post || change_post(team->workers, last, post | POST_LEAVE, post)) return true;
    }
    if (!note_hire(team->workers, threads)) return false;
    int32_t worker = find_worker(team, seat, service);
    if (worker) team->members[seat] = (uint8_t)worker;
    else note_leave(team->workers);
    return worker != 0;
}

/* Clears the seats whose workers fell asleep. */
static void see_gone(tcc_team *team, int32_t threads) {
    for (int32_t group = 0; group * 64 < threads; group++) {
        if (!atomic_load_explicit(&team->gone[group], memory_order_relaxed)) continue;
        uint64_t gone = atomic_exchange_explicit(&team->gone[group], 0, memory_order_relaxed);
        int32_t seat = group * 64 + (gone ? __builtin_ctzll(gone) : 64);
        if (seat < team->manned) team->manned = seat;
    }
}

int32_t tcc_team_man(tcc_team *team, int32_t threads, tcc_service *service) {
    see_gone(team, threads);
    if (team->manned >= threads) return threads;
    while (team->manned < threads && man(team, team->manned, threads, service)) team->manned++;
    if (team->reached < team->manned) team->reached = team->manned;
    return team->manned;
}

void tcc_team_trim(tcc_team *team, int32_t threads) {
    for (int32_t seat = threads; seat < team->reached; seat++) {
        uint32_t post = post_at(team, seat);
        change_post(team->workers, team->members[seat], post, post | POST_LEAVE);
    }
    if (team->reached > threads) team->reached = threads;
    if (team->manned > threads) team->manned = threads;
}
