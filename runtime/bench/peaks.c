/* The machine's limits: answers each line on stdin with one JSON line,
   {"flops": [one thread, all], "read": [one thread, all]}, in operations and bytes a second.
   Each figure is the best of a few short passes; reading is done in order, and ahead in several
   streams.  The line "now" asks for {"flops": all, "read": all} over one longer pass: not what the
   machine can do but what it does at this moment.  The line "flops" asks for {"flops": all} alone,
   which leaves the caches as they are.  Usage: peaks THREADS */

#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#if defined __AVX512F__
enum { WIDTH = 64, SUMS = 24 };
#elif defined __AVX__
enum { WIDTH = 32, SUMS = 12 };
#else
enum { WIDTH = 16, SUMS = 12 };
#endif
typedef float vector __attribute__((vector_size(WIDTH)));

enum { PASSES = 3, STEPS = 400000, LONGER = 10 };
static const size_t BYTES = (size_t)256 << 20; /* far larger than any cache */
static const size_t HUGE = (size_t)2 << 20;

static pthread_barrier_t barrier;
static const vector *data;
static int threads;

typedef struct {
    pthread_t thread;
    int index, count;
    void (*work)(int index, int count);
    double seconds;
    float sink; /* keeps the results alive */
} task;

static _Thread_local float sink_value;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* SUMS independent chains of multiply-adds: enough to hide their latency, few enough to stay in
   registers. */
static void multiply_add(int index, int count) {
    (void)index, (void)count;
    vector sums[SUMS], a, b;
    memset(sums, 0, sizeof sums);
    for (int lane = 0; lane < (int)(WIDTH / sizeof(float)); lane++) a[lane] = 0.5f, b[lane] = 1.0f;
    __asm__ volatile("" : "+x"(a), "+x"(b));
    for (int step = 0; step < STEPS; step++) {
#pragma GCC unroll 24
        for (int i = 0; i < SUMS; i++) sums[i] = sums[i] * a + b;
    }
    for (int i = 1; i < SUMS; i++) sums[0] += sums[i];
    sink_value = sums[0][0];
}

static void read_all(int index, int count) {
    size_t total = BYTES / sizeof(vector), share = total / (size_t)count;
    const vector *at = data + (size_t)index * share;
    vector sums[8];
    memset(sums, 0, sizeof sums);
    for (size_t i = 0; i + 8 <= share; i += 8) {
#pragma GCC unroll 8
        for (int k = 0; k < 8; k++) sums[k] += at[i + (size_t)k];
    }
    for (int k = 1; k < 8; k++) sums[0] += sums[k];
    sink_value = sums[0][0];
}

/* Asks for the next block of STREAMS pages while it reads one, a line of each page in turn: more of
   memory's banks are busy, and the cache's own prefetcher follows every page. */
static void read_ahead(int index, int count) {
    enum { STREAMS = 16, LINE = 64, PAGE = 4096, BLOCK = STREAMS * PAGE };
    enum { VECTORS = STREAMS * LINE / sizeof(vector) };
    size_t share = BYTES / (size_t)count;
    const char *at = (const char *)data + (size_t)index * share;
    vector sums[STREAMS];
    memset(sums, 0, sizeof sums);
    for (size_t block = 0; block + BLOCK <= share; block += BLOCK) {
        for (size_t line = 0; line < PAGE; line += LINE) {
            /* the address is past the end, where nothing is read */
            const char *next = at + block + BLOCK + line;
#pragma GCC unroll 16
            for (size_t k = 0; k < STREAMS; k++) __builtin_prefetch(next + k * PAGE);
            const vector *here = (const void *)(at + block + line * STREAMS);
#pragma GCC unroll 32
            for (size_t k = 0; k < VECTORS; k++) sums[k % STREAMS] += here[k];
        }
    }
    for (int k = 1; k < STREAMS; k++) sums[0] += sums[k];
    sink_value = sums[0][0];
}

static void *run(void *argument) {
    task *mine = argument;
    pthread_barrier_wait(&barrier);
    double start = now();
    mine->work(mine->index, mine->count);
    mine->seconds = now() - start;
    mine->sink = sink_value;
    return NULL;
}

static void multiply_add_longer(int index, int count) {
    for (int pass = 0; pass < LONGER; pass++) multiply_add(index, count);
}

/* Returns the rate in `amount` per second of `work`, done by `count` threads at once.  The slowest
 * thread sets the time. */
static double rate(void (*work)(int, int), int count, double amount, int passes) {
    double best = 0;
    task tasks[count];
    for (int pass = 0; pass < passes; pass++) {
        double seconds = 0;
        pthread_barrier_init(&barrier, NULL, (unsigned)count);
        for (int i = 0; i < count; i++) {
            tasks[i] = (task){.index = i, .count = count, .work = work};
            if (pthread_create(&tasks[i].thread, NULL, run, &tasks[i])) exit(1);
        }
        for (int i = 0; i < count; i++) {
            pthread_join(tasks[i].thread, NULL);
            if (tasks[i].seconds > seconds) seconds = tasks[i].seconds;
        }
        pthread_barrier_destroy(&barrier);
        if (amount / seconds > best) best = amount / seconds;
    }
    return best;
}

static double read_rate(int count) {
    double ordered = rate(read_all, count, (double)BYTES, PASSES);
    double ahead = rate(read_ahead, count, (double)BYTES, PASSES);
    return ordered > ahead ? ordered : ahead;
}

static void say_limits(double flops) {
    printf("{\"flops\": [%.4g, %.4g], \"read\": [%.4g, %.4g]}\n", rate(multiply_add, 1, flops, PASSES),
           rate(multiply_add, threads, flops * threads, PASSES), read_rate(1), read_rate(threads));
}

static void say_now(double flops) {
    printf("{\"flops\": %.4g, \"read\": %.4g}\n",
           rate(multiply_add_longer, threads, LONGER * flops * threads, 1),
           rate(read_ahead, threads, (double)BYTES, 1));
}

static void say_flops(double flops) {
    printf("{\"flops\": %.4g}\n", rate(multiply_add_longer, threads, LONGER * flops * threads, 1));
}

int main(int argc, char **argv) {
    threads = argc > 1 ? atoi(argv[1]) : 0;
    if (threads < 1) return 1;
    char *memory = aligned_alloc(HUGE, BYTES);
    if (!memory) return 1;
    madvise(memory, BYTES, MADV_HUGEPAGE);
    memset(memory, 0, BYTES);
    data = (const vector *)(const void *)memory;
    const double flops = 2.0 * STEPS * SUMS * (WIDTH / sizeof(float));
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        if (strncmp(line, "now", 3) == 0) say_now(flops);
        else if (strncmp(line, "flops", 5) == 0) say_flops(flops);
        else say_limits(flops);
        fflush(stdout);
    }
    free(memory);
    return 0;
}
