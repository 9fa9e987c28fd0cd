/* Small uses of the workers, and their invariants for all speeds of the threads. */
#include <stdio.h>
#include <string.h>

#include "explorer.h"
#include "workers.h"

const tcc_artifact tcc_artifact_info = {.name = "explorer"};


enum { UNITS = 8, STEPS = 4, CALLERS = 2, TEAMS = 3, STRIDE = 16 };

typedef struct run {
    tcc_crew crew;
    int64_t units;
    int steps;
    void *buffers[2][3];
    int64_t ints[2][2];
    int64_t values[2][UNITS]; /* the input and output of launch n, by the parity of n */
    int8_t times[STEPS][UNITS]; /* the number of times that a launch did a unit */
} run;

/* The memory that all threads share. */
static struct {
    tcc_workers workers;
    tcc_team teams[TEAMS];
    run runs[CALLERS];
    _Atomic int stage;
    int64_t rooms[CALLERS][MOST_THREADS][STRIDE / 8];
} memory;

static tcc_workers fresh;
static int teams; /* the number of created teams */

/* Unit u of launch n needs units u and its mirror of launch n - 1, and overwrites the input of
 * launch n - 1. */
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

/* Later launches have more seats, so that seats are new when workers are late. */
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

/* A run that has all CPUs at first gives a CPU to the other run. */
static void giving(int caller) {
    run *of = enter(caller, 3);
    for (int i = caller; i < 2; i++) launch(of, 3 - caller);
    leave(of);
}

/* Waits for another caller without learning what it did. */
static void await(int stage) {
    while (atomic_load_explicit(&memory.stage, memory_order_relaxed) != stage) spin_turn();
}

static void reach(int stage) {
    atomic_store_explicit(&memory.stage, stage, memory_order_relaxed);
}

/* The worker of one team falls asleep; then a team that is younger than the worker hires it. */
static void taking(int caller) {
    run *of = enter(caller, 2);
    if (caller) await(1);
    launch(of, 2);
    tcc_crew_settle(&of->crew);
    reach(1 + caller);
    if (caller) {
        await(3);
        launch(of, 2);
    } else {
        await(2);
        while (tcc_load_of(of->crew.workers).hired) spin_turn();
        reach(3);
    }
    leave(of);
}

/* Two runs make their teams and start their workers at the same time. */
static void making(int caller) {
    run *of = enter(caller, 2);
    launch(of, 2);
    leave(of);
}

/* A run that loses its CPUs uses fewer threads, then one thread, then all threads again. */
static void narrowing(int caller) {
    static const int32_t widths[] = {0, 2, 1, 0};
    run *of = enter(caller, 3);
    for (int i = 0; i < 4; i++) {
        if (of->crew.team) {
            of->crew.team->width = widths[i] ? widths[i] : TCC_MAX_THREADS;
            of->crew.team->narrow_until = widths[i] ? INT64_MAX : 0;
        }
        launch(of, 3);
    }
    demand(!of->crew.team->width, "all threads are tried again");
    leave(of);
}

const scenario scenarios[] = {
    {"pair", 1, pair, INT64_MAX, 2},       {"pieces", 1, pieces, INT64_MAX, 2},
    {"growing", 1, growing, INT64_MAX, 3}, {"settling", 1, settling, INT64_MAX, 3},
    {"sleeping", 1, pair, 0, 2},           {"callers", 2, turns, INT64_MAX, 3},
    {"giving", 2, giving, INT64_MAX, 3},   {"taking", 2, taking, 0, 3},
    {"making", 2, making, 0, 4},           {"narrowing", 1, narrowing, INT64_MAX, 3},
};
const int n_scenarios = sizeof scenarios / sizeof *scenarios;

int explorer_memalign(void **out, size_t alignment, size_t bytes);
int explorer_memalign(void **out, size_t alignment, size_t bytes) {
    bool is_team = bytes == sizeof *memory.teams;
    demand(is_team || bytes == sizeof memory.workers, "only workers and teams are allocated");
    demand(alignment == LINE_PAIR && teams < TEAMS, "there is room for them");
    *out = is_team ? (void *)&memory.teams[teams++] : &memory.workers;
    return 0;
}

void prepare_scenarios(void) {
    demand(tcc_workers_find() == &memory.workers, "the workers are found");
    memory_watch(&memory, sizeof memory);
    fresh = memory.workers;
}

void begin_scenario(const scenario *begun) {
    memory.workers = fresh;
    memory.workers.spin = begun->spin;
    memory.workers.cpus = begun->cpus;
    memset(memory.teams, 0, sizeof memory.teams);
    teams = 0;
    memset(memory.runs, 0, sizeof memory.runs);
    memory.stage = 0;
}

void end_scenario(void) {
    for (int caller = 0; caller < CALLERS; caller++)
        for (int step = 0; step < memory.runs[caller].steps; step++)
            for (int64_t u = 0; u < memory.runs[caller].units; u++)
                demand(memory.runs[caller].times[step][u] == 1, "every unit ran once");
}

static void print_part(size_t team, size_t place) {
    const tcc_team *all = NULL;
    size_t slot = place - (size_t)all->slots, seat = place - (size_t)all->seats;
    if (slot < sizeof all->slots)
        printf("team[%zu].slot[%zu]+%zu", team, slot / sizeof *all->slots, slot % sizeof *all->slots);
    else if (seat < sizeof all->seats)
        printf("team[%zu].seat[%zu]+%zu", team, seat / sizeof *all->seats, seat % sizeof *all->seats);
    else
        printf("team[%zu]+%zu", team, place);
}

void print_place(const volatile void *at) {
    size_t place = (size_t)((const volatile char *)at - (char *)&memory);
    const tcc_workers *all = NULL;
    if (place - sizeof memory.workers < sizeof memory.teams) {
        print_part((place - sizeof memory.workers) / sizeof *memory.teams,
                   (place - sizeof memory.workers) % sizeof *memory.teams);
        return;
    }
#define PART(name, of) \
    if (place - (size_t)&of < sizeof of) { \
        printf("%s[%zu]+%zu", name, (place - (size_t)&of) / sizeof of[0], (place - (size_t)&of) % sizeof of[0]); \
        return; \
    }
    PART("post", all->posts)
    PART("team", all->teams)
    printf("%s+%zu", place < sizeof memory.workers ? "workers" : "run",
           place < sizeof memory.workers ? place : place - sizeof memory.workers);
}
