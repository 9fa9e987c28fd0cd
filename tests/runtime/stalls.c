/* When a wait shows that a worker has lost its CPU, what the caller then does, and how long workers
 * spin: the rules of threads.c under a clock of its own. */
#define _GNU_SOURCE
#define tcc_now system_now
#include "workers.h"
#undef tcc_now

#include <stdio.h>
#include <stdlib.h>

static int64_t clock_now;

static int64_t tcc_now(void) { return clock_now; }

#include "threads.c"

int32_t tcc_team_man(tcc_team *t, int32_t n, tcc_service *f) { return (void)t, (void)f, n; }
bool tcc_worker_leaves(tcc_team *t, int32_t self, int32_t seat) { return (void)t, self + seat < 0; }
void tcc_worker_sleep(tcc_team *t, int32_t self, int32_t seat) { (void)t, (void)self, (void)seat; }

enum { US = 1000, SPIN = 2000 * US };

static tcc_workers workers = {.spin = SPIN, .started = 1};
static tcc_team team = {.workers = &workers, .busy = true};

static void expect(const char *what, int64_t found, int64_t expected) {
    if (found == expected) return;
    printf("%s: %lld, not %lld\n", what, (long long)found, (long long)expected);
    exit(1);
}

/* ---- stalls ---------------------------------------------------------------------------------------- */

/* For how long the caller works alone after a launch whose own range took it `own` nanoseconds, and
 * which it then waited for. */
static int64_t alone(int64_t own, int64_t waited) {
    team.began = clock_now;
    clock_now += own + waited;
    int64_t until = team.alone_until;
    note_wait(&team, team.began + own);
    return team.alone_until != until ? team.alone_until - clock_now : 0;
}

static int64_t first_alone(int64_t own, int64_t waited) {
    team.alone_for = 0;
    return alone(own, waited);
}

static void expect_stalls(void) {
    expect("a short wait", first_alone(50 * US, 299999), 0);
    expect("a long wait", first_alone(50 * US, 300 * US), 600 * US);
    expect("the other one's last piece", first_alone(5000 * US, 400 * US), 0);
    expect("nearly as long as its own", first_alone(5000 * US, 4999 * US), 0);
    expect("as long as its own", first_alone(5000 * US, 5000 * US), 10000 * US);
    for (int64_t last = 10000 * US; last < MOST_ALONE; last *= 2) {
        clock_now = team.alone_until;
        int64_t next = 2 * last < MOST_ALONE ? 2 * last : MOST_ALONE;
        expect("again at once", alone(50 * US, 1000 * US), next);
    }
    clock_now = team.alone_until + PAYS * 1000 * US;
    expect("again after it paid", alone(50 * US, 1000 * US), 2000 * US);
}

/* ---- spinning -------------------------------------------------------------------------------------- */

/* How long an idle worker spins, which looks at the clock every few microseconds. */
static int64_t spins(tcc_idle *idle) {
    int64_t began = clock_now;
    while (!is_tired(&team, 1, idle)) clock_now += 10 * US;
    idle->began = idle->looked = 0;
    return clock_now - began;
}

static void work_after(tcc_idle *idle, int64_t waited) {
    is_tired(&team, 1, idle);
    clock_now = idle->since + waited;
    note_work(&team, 1, idle);
}

static void expect_spins(void) {
    const int64_t look = 10 * US;
    tcc_idle idle = {0};
    clock_now = SPIN;
    expect("a new worker spins", spins(&idle), SPIN + look);
    work_after(&idle, 5 * SPIN);
    expect("in vain before, it spins", spins(&idle), FREE_NANOSECONDS + look);
    work_after(&idle, 500 * US);
    expect("it has made up for it in part, and spins", spins(&idle), 500 * US + look);
    for (int i = 0; i < 4; i++) work_after(&idle, SPIN);
    expect("it has made up for it, and spins", spins(&idle), SPIN + look);
    idle = (tcc_idle){0};
    is_tired(&team, 1, &idle);
    clock_now += LOST + 1;
    expect("without its CPU it is tired", is_tired(&team, 1, &idle), true);
    idle.began = idle.looked = idle.since = 0;
    expect("afterwards it spins", spins(&idle), FREE_NANOSECONDS + look);
    idle = (tcc_idle){0};
    team.busy = false;
    workers.load = LOAD_RUN;
    expect("beside another run it spins", spins(&idle), FREE_NANOSECONDS + look);
}

/* All workers together spin no longer than one alone. */
static void expect_budget(void) {
    for (int32_t started = 1; started < TCC_MAX_THREADS; started++) {
        int64_t all = 0;
        workers.started = started;
        for (int32_t self = 1; self <= started; self++) all += patience(&workers, self);
        expect("within the budget", all <= SPIN && all >= SPIN / 2, true);
    }
}

int main(void) {
    expect_stalls();
    expect_spins();
    expect_budget();
    puts("ok");
    return 0;
}
