/* Launches work of many sizes from several callers at the same time.  Every unit must run exactly
 * once, with scratch memory that no other thread uses.  Prints "ok".  Arguments: callers, launches
 * of each, threads, fork (0 or 1), pause in microseconds (so that workers fall asleep). */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "workers.h"

const tcc_artifact tcc_artifact_info = {.name = "stress"};

enum { MOST = 3000, STRIDE = 4096 };

static int launches, threads, pause_us;
static atomic_int failures;

/* Checks unit u of step n: it may run when all units of the steps before it are done, the mirrored
 * unit's too. */
static void count(void *const *b, const int64_t *n, int64_t begin, int64_t end, void *scratch) {
    uint8_t *hits = b[0];
    int64_t *room = scratch;
    for (int64_t u = begin; u < end; u++) {
        *room = u + n[0]; /* a thread that shares this scratch would change it */
        if (hits[u]++ != n[0]) atomic_fetch_add(&failures, 1);
        if (*room != u + n[0]) atomic_fetch_add(&failures, 1);
    }
}

static void *caller(void *argument) {
    unsigned seed = (unsigned)(uintptr_t)argument;
    uint8_t *hits = calloc(MOST, 1);
    char *scratch = calloc(64, STRIDE);
    int64_t ints[2][1];
    void *buffers[2][1] = {{hits}, {hits}};
    for (int i = 0, launched = 0; launched < launches; i++) {
        int64_t units = rand_r(&seed) % (i % 7 ? 40 : MOST);
        int chain = 1 + rand_r(&seed) % 5; /* each launch depends on the results of the one before
                                              it */
        memset(hits, 0, (size_t)units);
        tcc_crew crew;
        tcc_crew_enter(&crew);
        for (int step = 0; step < chain; step++, launched++) {
            ints[step % 2][0] = step;
            int32_t limit = 1 + rand_r(&seed) % threads;
            tcc_job job = {count, buffers[step % 2], ints[step % 2], units, scratch, STRIDE,
                           step % 2 ? limit : threads, scratch, STRIDE};
#ifdef TCC_TRIAL /* threads take turns, so that workers come reliably */
            if (crew.team) crew.team->width = 0;
#endif
            tcc_crew_launch(&crew, &job);
        }
        if (i % 2) tcc_crew_settle(&crew);
        tcc_crew_leave(&crew);
        for (int64_t u = 0; u < units; u++)
            if (hits[u] != chain) atomic_fetch_add(&failures, 1);
        if (pause_us && i % 50 == 0) usleep((useconds_t)pause_us);
    }
    free(hits);
    free(scratch);
    return NULL;
}

static int run_callers(int callers) {
    pthread_t handles[16];
    for (int i = 0; i < callers; i++)
        if (pthread_create(&handles[i], NULL, caller, (void *)(uintptr_t)(i + 1))) return 1;
    for (int i = 0; i < callers; i++) pthread_join(handles[i], NULL);
    return atomic_load(&failures) != 0;
}

int main(int argc, char **argv) {
    if (argc != 6) return 2;
    int callers = atoi(argv[1]);
    launches = atoi(argv[2]);
    threads = atoi(argv[3]);
    pause_us = atoi(argv[5]);
    if (run_callers(callers)) return 1;
    if (atoi(argv[4])) {
        int status = 0;
        pid_t child = fork();
        if (child == 0) _exit(run_callers(callers));
        if (waitpid(child, &status, 0) != child || status) return 3;
        if (run_callers(callers)) return 1;
    }
    puts("ok");
    return 0;
}
