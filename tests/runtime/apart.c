/* Checks on which CPUs workers wake, for three CPUs that need not exist: this file replaces the
 * system calls of the runtime.  Prints "ok". */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include "workers.h"

const tcc_artifact tcc_artifact_info = {.name = "apart"};

enum { THREADS = 3, ALL = 7, MOST = 64, TURNS = 1000 };

/* The affinity calls of one launch, as masks of CPUs. */
static unsigned masks[MOST];
static int asks;
static int caller_at;
static _Atomic int workers_at; /* the CPU that threads other than the caller report */
static _Thread_local int is_caller;

int sched_getcpu(void) { return is_caller ? caller_at : workers_at; }

int sched_getaffinity(pid_t thread, size_t size, cpu_set_t *out) {
    (void)thread, (void)size;
    CPU_ZERO(out);
    for (size_t cpu = 0; cpu < 3; cpu++) CPU_SET(cpu, out);
    return 0;
}

int sched_setaffinity(pid_t thread, size_t size, const cpu_set_t *set) {
    (void)size;
    unsigned mask = 0;
    for (size_t cpu = 0; cpu < 3; cpu++) mask |= (unsigned)!!CPU_ISSET(cpu, set) << cpu;
    if (thread <= 0 || asks == MOST) exit(3);
    masks[asks++] = mask;
    return 0;
}

static void work(void *const *b, const int64_t *n, int64_t begin, int64_t end, void *scratch) {
    (void)b, (void)n, (void)begin, (void)end, (void)scratch;
}

static void launch(tcc_crew *crew) {
    tcc_job job = {work, NULL, NULL, THREADS, NULL, 0, THREADS, NULL, 0};
    tcc_crew_enter(crew);
    tcc_crew_launch(crew, &job);
    tcc_crew_settle(crew);
    crew->team->width = 0; /* keep the launch wide, whatever else runs on the machine */
    tcc_crew_leave(crew);
}

/* Waits until all workers sleep and have noted that they are at `cpu`. */
static void rest_worker(tcc_workers *workers, int cpu) {
    workers_at = cpu;
    for (int32_t i = 1; i <= workers->started; i++)
        while (workers->posts[i].post != POST_ASLEEP || !workers->posts[i].thread) sched_yield();
}

/* Wakes both workers from CPU `here`.  One fell asleep at CPU 1, the other at CPU `other`.  Expects
 * the masks `first` and `second` in either order, each followed by the mask of all CPUs. */
static void expect(const char *text, int other, int here, unsigned first, unsigned second) {
    tcc_workers *workers = tcc_workers_find();
    tcc_crew crew;
    for (int turn = 0; turn < TURNS; turn++) {
        rest_worker(workers, 1);
        workers->posts[2].cpu = other;
        caller_at = here;
        asks = 0;
        launch(&crew);
        if (asks != 4) continue; /* a worker fell asleep again and was woken again */
        bool either = (masks[0] == first && masks[2] == second) || (masks[0] == second && masks[2] == first);
        if (either && masks[1] == ALL && masks[3] == ALL) return;
        break;
    }
    printf("%s:", text);
    for (int i = 0; i < asks; i++) printf(" %u", masks[i]);
    puts("");
    exit(1);
}

int main(void) {
    tcc_crew crew;
    is_caller = 1;
    launch(&crew);
    if (tcc_workers_find()->started != THREADS - 1) return 2;
    expect("workers elsewhere", 1, 0, ALL & ~1u, ALL & ~1u);
    expect("workers beside the caller", 1, 1, 1 | 4, 1 | 4);
    expect("one beside the caller, one elsewhere", 2, 1, 1, 1 | 4);
    puts("ok");
    return 0;
}
