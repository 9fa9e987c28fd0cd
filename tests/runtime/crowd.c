/* Runs several callers at once, as processes and as threads of one process: see
 * scripts/runtime_bars.
 *
 *     crowd PROCESSES CALLERS THREADS MILLISECONDS
 *
 * Every caller runs a chain of launches again and again, on at most THREADS threads.  Prints how
 * many runs all callers did and the microseconds of CPU time for each, and then for each process,
 * in one line, the runs of each of its callers. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "runtime.h"

const tcc_artifact tcc_artifact_info = {.name = "crowd"};

enum { MOST = 64, LAUNCHES = 60, UNITS = 16, STRIDE = 4096 };

typedef struct board {
    _Atomic int ready;
    _Atomic bool over;
    _Atomic int64_t runs[MOST][MOST];
} board;

static board *shared;
static int processes, callers, threads, process;

/* Works about 2.5 to 10 microseconds per unit, so a launch takes 40 to 160 microseconds. */
static void work(void *const *b, const int64_t *n, int64_t begin, int64_t end, void *scratch) {
    (void)b;
    (void)scratch;
    for (int64_t turn = 0; turn < (end - begin) * n[0]; turn++) __asm__ volatile("");
}

static void run(char *scratch) {
    static const int64_t turns[4] = {7000, 14000, 28000, 7000};
    void *buffers[1] = {NULL};
    tcc_crew crew;
    tcc_crew_enter(&crew);
    for (int i = 0; i < LAUNCHES; i++) {
        tcc_job job = {work, buffers, &turns[i % 4], UNITS, scratch, STRIDE, threads, NULL, 0};
        tcc_crew_launch(&crew, &job);
    }
    tcc_crew_leave(&crew);
}

static void *caller(void *number) {
    char *scratch = aligned_alloc(STRIDE, (size_t)threads * STRIDE);
    int64_t count = 0;
    if (!scratch) exit(1);
    for (int i = 0; i < 3; i++) run(scratch);
    atomic_fetch_add(&shared->ready, 1);
    while (atomic_load(&shared->ready) < processes * callers) usleep(100);
    while (!atomic_load(&shared->over)) {
        run(scratch);
        count++;
    }
    atomic_store(&shared->runs[process][(intptr_t)number], count);
    free(scratch);
    return NULL;
}

static int live(void) {
    pthread_t handles[MOST];
    for (intptr_t i = 0; i < callers; i++)
        if (pthread_create(&handles[i], NULL, caller, (void *)i)) return 1;
    for (int i = 0; i < callers; i++) pthread_join(handles[i], NULL);
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    processes = atoi(argv[1]), callers = atoi(argv[2]), threads = atoi(argv[3]);
    if (processes < 1 || processes > MOST || callers < 1 || callers > MOST || threads < 1) return 2;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return 1;
    for (process = 0; process < processes; process++) {
        pid_t child = fork();
        if (child < 0) return 1;
        if (child == 0) _exit(live());
    }
    while (atomic_load(&shared->ready) < processes * callers) usleep(100);
    usleep((useconds_t)atoi(argv[4]) * 1000);
    atomic_store(&shared->over, true);
    int status = 0, failed = 0;
    int64_t all = 0;
    while (wait(&status) > 0) failed |= status;
    for (int p = 0; p < processes; p++)
        for (int c = 0; c < callers; c++) all += atomic_load(&shared->runs[p][c]);
    struct rusage usage;
    getrusage(RUSAGE_CHILDREN, &usage);
    int64_t cpu = (int64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000 +
                  usage.ru_utime.tv_usec + usage.ru_stime.tv_usec;
    printf("%lld %lld\n", (long long)all, (long long)(all ? cpu / all : 0));
    for (int p = 0; p < processes; p++, printf("\n"))
        for (int c = 0; c < callers; c++) printf("%lld ", (long long)atomic_load(&shared->runs[p][c]));
    return failed != 0;
}
