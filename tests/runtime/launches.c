/* Measures the cost of a launch between two threads: see scripts/launches. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "runtime.h"

const tcc_artifact tcc_artifact_info = {.name = "launches"};

enum { TRIPS = 100000, LAUNCHES = 20000, ROUNDS = 7 };

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Does ints[0] turns of an empty loop for each unit. */
static void spin(void *const *b, const int64_t *n, int64_t begin, int64_t end, void *scratch) {
    (void)b;
    (void)scratch;
    for (int64_t turn = 0; turn < (end - begin) * n[0]; turn++) __asm__ volatile("");
}

_Alignas(128) static _Atomic int ping;
_Alignas(128) static _Atomic int pong;

static void *answer(void *nothing) {
    for (int trip = 1; trip <= TRIPS; trip++) {
        while (atomic_load_explicit(&ping, memory_order_acquire) != trip) __builtin_ia32_pause();
        atomic_store_explicit(&pong, trip, memory_order_release);
    }
    return nothing;
}

/* Returns the nanoseconds in which a cache line goes to another core and another one comes back. */
static double round_trip(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, answer, NULL)) exit(1);
    int64_t start = now();
    for (int trip = 1; trip <= TRIPS; trip++) {
        atomic_store_explicit(&ping, trip, memory_order_release);
        while (atomic_load_explicit(&pong, memory_order_acquire) != trip) __builtin_ia32_pause();
    }
    double duration = (double)(now() - start) / TRIPS;
    pthread_join(thread, NULL);
    atomic_store(&ping, 0);
    atomic_store(&pong, 0);
    return duration;
}

/* Returns the nanoseconds per launch of a run whose launches depend on one another. */
static double launches(int64_t units, int64_t turns, int32_t threads, char *scratch) {
    void *buffers[1] = {NULL};
    int64_t ints[1] = {turns};
    tcc_job job = {spin, buffers, ints, units, scratch, 4096, threads, NULL, 0};
    tcc_crew crew;
    tcc_crew_enter(&crew);
    for (int i = 0; i < 100; i++) tcc_crew_launch(&crew, &job);
    tcc_crew_settle(&crew);
    int64_t start = now();
    for (int i = 0; i < LAUNCHES; i++) tcc_crew_launch(&crew, &job);
    tcc_crew_settle(&crew);
    double duration = (double)(now() - start) / LAUNCHES;
    tcc_crew_leave(&crew);
    return duration;
}

int main(void) {
    char *scratch = aligned_alloc(4096, 2 * 4096);
    static const int64_t turns[] = {0, 1000, 10000};
    if (!scratch) return 1;
    for (int round = 0; round < ROUNDS; round++) {
        printf("%.0f", round_trip());
        for (int i = 0; i < 3; i++)
            printf(" %.0f %.0f", launches(16, turns[i] / 16, 1, scratch),
                   launches(16, turns[i] / 16, 2, scratch));
        printf("\n");
    }
    return 0;
}
