/* Small uses of the workers, and what must hold of them whatever the threads' speeds. */
#include <stdio.h>
#include <string.h>

#include "explorer.h"
#include "workers.h"

const tcc_artifact tcc_artifact_info = {.name = "explorer"};


enum { UNITS = 8, STEPS = 4, CALLERS = 2, STRIDE = 16 };

typedef struct run {
    tcc_crew crew;
    int64_t units;
    int steps;
    void *buffers[2][3];
    int64_t ints[2][2];
    int64_t values[2][UNITS]; /* what launch n reads and writes, by the parity of n */
    int8_t times[STEPS][UNITS]; /* that a launch did a unit */
} run;

/* All that threads share. */
static struct {
    tcc_workers workers;
    run runs[CALLERS];
    int64_t rooms[CALLERS][MOST_THREADS][STRIDE / 8];
} memory;

static tcc_workers fresh;

/* Unit u of launch n needs the units u and its mirror of launch n - 1, and writes where launch n - 1
 * read. */
static void count(void *const *b, const int64_t *n, int64_t begin, int64_t end, void *scratch) {
    const int64_t *in = b[0];
    int64_t *out = b[1], *room = scratch;
    int8_t *times = b[2];
    *room = begin;
    for (int64_t u = begin; u < end; u++) {
        demand(in[u] == n[0] && in[n[1] - 1 - u] == n[0], "all of the launch before is done");
        demand(times[u]++ == 0, "a unit runs once");
        out[u] = n[0] + 1;
    }
    demand(*room == begin, "a thread has its scratch to itself");
}

static run *enter(int caller, int64_t units) {
    run *of = &memory.runs[caller];
    of->units = units;
    tcc_crew_enter(&of->crew);
    return of;
}

static void launch(run *of, int threads) {
    int half = of->steps % 2;
    of->buffers[half][0] = of->values[half];
    of->buffers[half][1] = of->values[!half];
    of->buffers[half][2] = of->times[of->steps];
    of->ints[half][0] = of->steps++;
    of->ints[half][1] = of->units;
    tcc_job job = {count, of->buffers[half], of->ints[half], of->units,
                   (char *)memory.rooms[of - memory.runs], STRIDE, threads, NULL, 0};
    tcc_crew_launch(&of->crew, &job);
}

static void look(const run *of) {
    for (int64_t u = 0; u < of->units; u++)
        demand(of->values[of->steps % 2][u] == of->steps, "a settled run has done all its units");
}

static void leave(run *of) {
    tcc_crew_settle(&of->crew);
    look(of);
    tcc_crew_leave(&of->crew);
}

static void pair(int caller) {
    run *of = enter(caller, 2);
    for (int i = 0; i < 3; i++) launch(of, 2);
    leave(of);
}

static void pieces(int caller) {
    run *of = enter(caller, 8);
    for (int i = 0; i < 2; i++) launch(of, 2);
    leave(of);
}

/* Launches of more seats than the ones before, so that seats are new when workers are late. */
static void growing(int caller) {
    run *of = enter(caller, 3);
    for (int i = 0; i < 4; i++) launch(of, 2 + i / 2);
    leave(of);
}

static void settling(int caller) {
    run *of = enter(caller, 3);
    launch(of, 3);
    tcc_crew_settle(&of->crew);
    look(of);
    launch(of, 2);
    launch(of, 3);
    leave(of);
}

static void turns(int caller) {
    run *of = enter(caller, 2);
    for (int i = 0; i < 2; i++) launch(of, 2);
    leave(of);
}

const scenario scenarios[] = {
    {"pair", 1, pair, INT64_MAX},   {"pieces", 1, pieces, INT64_MAX},
    {"growing", 1, growing, INT64_MAX}, {"settling", 1, settling, INT64_MAX},
    {"sleeping", 1, pair, 0},       {"callers", 2, turns, INT64_MAX},
};
const int n_scenarios = sizeof scenarios / sizeof *scenarios;

int explorer_memalign(void **out, size_t alignment, size_t bytes);
int explorer_memalign(void **out, size_t alignment, size_t bytes) {
    demand(bytes == sizeof memory.workers && alignment == LINE_PAIR, "only workers are allocated");
    *out = &memory.workers;
    return 0;
}

void prepare_scenarios(void) {
    demand(tcc_workers_find() == &memory.workers, "the workers are found");
    memory_watch(&memory, sizeof memory);
    fresh = memory.workers;
}

void begin_scenario(const scenario *which) {
    memory.workers = fresh;
    memory.workers.spin = which->spin;
    memset(memory.runs, 0, sizeof memory.runs);
}

void end_scenario(void) {
    for (int caller = 0; caller < CALLERS; caller++)
        for (int step = 0; step < memory.runs[caller].steps; step++)
            for (int64_t u = 0; u < memory.runs[caller].units; u++)
                demand(memory.runs[caller].times[step][u] == 1, "every unit ran once");
}

void print_place(const volatile void *at) {
    size_t place = (size_t)((const volatile char *)at - (char *)&memory);
    const tcc_workers *all = NULL;
#define PART(name, of) \
    if (place - (size_t)&of < sizeof of) { \
        printf("%s[%zu]+%zu", name, (place - (size_t)&of) / sizeof of[0], (place - (size_t)&of) % sizeof of[0]); \
        return; \
    }
    PART("slot", all->slots)
    PART("seat", all->seats)
    PART("bell", all->bell)
    PART("asleep", all->asleep)
    printf("%s+%zu", place < sizeof memory.workers ? "workers" : "run",
           place < sizeof memory.workers ? place : place - sizeof memory.workers);
}
