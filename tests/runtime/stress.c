/* Callers that launch at the same time, of many sizes: every unit runs exactly once, on a scratch
 * that no other thread uses.  Prints "ok".  Arguments: callers, launches, threads, fork (0 or 1),
 * pause in microseconds (so that workers fall asleep). */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime.h"

const tcc_artifact tcc_artifact_info = {.name = "stress"};

enum { MOST = 3000, STRIDE = 4096 };

static int launches, threads, pause_us;
static atomic_int failures;

static void count(void *const *b, const int64_t *n, int64_t begin, int64_t end, void *scratch) {
    uint8_t *hits = b[0];
    int64_t *room = scratch;
    for (int64_t u = begin; u < end; u++) {
        *room = u + n[0]; /* a thread that shares this scratch would change it */
        hits[u]++;
        if (*room != u + n[0]) atomic_fetch_add(&failures, 1);
    }
}

static void *caller(void *argument) {
    unsigned seed = (unsigned)(uintptr_t)argument;
    uint8_t *hits = calloc(MOST, 1);
    char *scratch = calloc(64, STRIDE);
    for (int i = 0; i < launches; i++) {
        int64_t units = rand_r(&seed) % (i % 7 ? 40 : MOST), ints[1] = {i};
        void *buffers[1] = {hits};
        for (int64_t u = 0; u < units; u++) hits[u] = 0;
        tcc_job job = {count, buffers, ints, units, scratch, STRIDE, threads};
        tcc_threads_launch(&job);
        for (int64_t u = 0; u < units; u++)
            if (hits[u] != 1) atomic_fetch_add(&failures, 1);
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
