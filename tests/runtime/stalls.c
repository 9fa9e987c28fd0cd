/* Tests when launches have fewer threads and for how long, and how long workers spin: the rules of
 * width.c and threads.c under fake clocks. */
#define _GNU_SOURCE
#define tcc_now system_now
#include "workers.h"
#undef tcc_now

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

static int64_t clock_now;

static int64_t tcc_now(void) { return clock_now; }

static int64_t cpu_now, sleeps_now, yields_now, looks;
static bool refuses; /* the fake system does not report a thread's CPU time */
static bool is_scheduled = true; /* another thread, not a hypervisor, takes the lost time */

static int read_cpu(int64_t now, struct timespec *out) {
    looks++;
    *out = (struct timespec){now / 1000000000, now % 1000000000};
    return refuses;
}
#define clock_gettime(clock, out) read_cpu(cpu_now, out)
#define getrusage(who, out) ((out)->ru_nvcsw = sleeps_now, (out)->ru_nivcsw = yields_now, 0)

#include "threads.c"
#include "width.c"

static int32_t trimmed;

void tcc_team_trim(tcc_team *t, int32_t threads) { (void)t, trimmed = threads; }
int32_t tcc_team_man(tcc_team *t, int32_t n, tcc_service *f) { return (void)t, (void)f, n; }
bool tcc_worker_leaves(tcc_team *t, int32_t self, int32_t seat) { return (void)t, self + seat < 0; }
void tcc_worker_sleep(tcc_team *t, int32_t self, int32_t seat) { (void)t, (void)self, (void)seat; }

enum { US = 1000, SPIN = 2000 * US };

static tcc_workers workers = {.spin = SPIN, .started = 1};
static tcc_team team = {.workers = &workers, .busy = true};

static void expect(const char *text, int64_t value, int64_t expected) {
    if (value == expected) return;
    printf("%s: %lld, not %lld\n", text, (long long)value, (long long)expected);
    exit(1);
}

/* ---- stalls ---------------------------------------------------------------------------------------- */

/* Returns for how long launches are narrow after a launch on `threads` threads. The caller's range
 * took `work_time` nanoseconds, and it then waited for `wait_time`. */
static int64_t narrow_after(int32_t threads, int64_t work_time, int64_t wait_time) {
    team.began = clock_now;
    clock_now += work_time + wait_time;
    int64_t until = team.narrow_until;
    tcc_team_note_wait(&team, threads, team.began + work_time);
    return team.narrow_until != until ? team.narrow_until - clock_now : 0;
}

static void forget(void) {
    team.narrow_for = team.narrow_until = team.width = 0;
    team.used.at = 0;
}

static int64_t first_narrow(int64_t work_time, int64_t wait_time) {
    forget();
    return narrow_after(2, work_time, wait_time);
}

static void expect_stalls(void) {
    expect("a short wait", first_narrow(50 * US, 299999), 0);
    expect("a long wait", first_narrow(50 * US, 300 * US), 600 * US);
    expect("the other one's last piece", first_narrow(5000 * US, 400 * US), 0);
    expect("nearly as long as its own", first_narrow(5000 * US, 4999 * US), 0);
    expect("as long as its own", first_narrow(5000 * US, 5000 * US), 10000 * US);
    for (int64_t last = 10000 * US; last < MOST_NARROW; last *= 2) {
        clock_now = team.narrow_until;
        int64_t next = 2 * last < MOST_NARROW ? 2 * last : MOST_NARROW;
        expect("again at once", narrow_after(2, 50 * US, 1000 * US), next);
    }
    clock_now = team.narrow_until + PAYS * 1000 * US;
    expect("again after it paid", narrow_after(2, 50 * US, 1000 * US), 2000 * US);
}

static void expect_widths(void) {
    forget();
    expect("nothing happened", tcc_team_width(&team), TCC_MAX_THREADS);
    expect("one thread less", narrow_after(8, 50 * US, 1000 * US), 2000 * US);
    expect("width", tcc_team_width(&team), 7);
    expect("workers that may stay", trimmed, 7);
    clock_now += 500 * US;
    expect("once more, for longer", narrow_after(7, 50 * US, 1000 * US), 4000 * US);
    expect("its width", tcc_team_width(&team), 6);
    clock_now = team.narrow_until - 1;
    expect("until the end", tcc_team_width(&team), 6);
    clock_now++;
    expect("and then", tcc_team_width(&team), TCC_MAX_THREADS);
}

/* ---- lost CPUs ------------------------------------------------------------------------------------- */

/* Returns the width after the caller had a CPU for `ran` of `passed` nanoseconds between two
 * launches. */
static int32_t width_after(int64_t passed, int64_t ran) {
    clock_now += passed;
    cpu_now += ran;
    yields_now += is_scheduled;
    team.began = clock_now;
    tcc_team_note_launch(&team);
    return tcc_team_width(&team);
}

static int32_t first_width(int64_t passed, int64_t ran) {
    forget();
    (void)width_after(WINDOW, WINDOW);
    return width_after(passed, ran);
}

static void expect_losses(void) {
    const int32_t all = TCC_MAX_THREADS;
    team.open = 8;
    expect("all of the time", first_width(WINDOW, WINDOW), all);
    expect("a passing daemon", first_width(WINDOW, WINDOW * 4 / 5), all);
    expect("half of the time", first_width(WINDOW, WINDOW / 2), 4);
    expect("twice what it lost", team.narrow_until - clock_now, WINDOW);
    expect("none of the time", first_width(WINDOW, 0), 1);
    expect("three quarters", first_width(8 * WINDOW, 6 * WINDOW), 6);
    expect("too early to tell", first_width(WINDOW - 1, 0), all);
    (void)width_after(1, 0);
    expect("with what was seen before", tcc_team_width(&team), 1);

    (void)first_width(WINDOW, WINDOW);
    sleeps_now++;
    expect("it slept", width_after(WINDOW, 0), all);
    expect("it slept no more", width_after(WINDOW, WINDOW / 2), 4);
    is_scheduled = false;
    expect("a hypervisor took it", first_width(WINDOW, 0), all);
    is_scheduled = true;
    (void)first_width(WINDOW, WINDOW);
    looked = 0;
    expect("another thread", width_after(WINDOW, 0), all);
    sleeps_now = 0;
    (void)first_width(WINDOW, WINDOW);
    refuses = true;
    expect("nobody says", width_after(WINDOW, 0), all);
    looks = 0;
    expect("nor soon after", width_after(WINDOW - 1, 0), all);
    expect("nobody is asked so soon", looks, 0);
    refuses = false;
    cpu_now = 0;
    expect("somebody says again", width_after(1, 0), all);
    expect("with what was said before", width_after(WINDOW, 0), 1);
    team.open = 0;
}

/* Looks twice after each narrow while, both times with a loss. The whiles double, and the loss
 * during them does not count. */
static void expect_backing_off(void) {
    team.open = 2;
    (void)first_width(WINDOW, WINDOW / 2);
    for (int64_t last = WINDOW; last < MOST_NARROW; last *= 2) {
        clock_now = team.narrow_until;
        expect("all are tried", tcc_team_width(&team), TCC_MAX_THREADS);
        expect("from here on", width_after(100 * US, 0), TCC_MAX_THREADS);
        expect("in vain", width_after(WINDOW, WINDOW / 2), 1);
        int64_t next = 2 * last < MOST_NARROW ? 2 * last : MOST_NARROW;
        expect("for longer", team.narrow_until - clock_now, next);
    }
    clock_now = team.narrow_until;
    (void)tcc_team_width(&team);
    for (int i = 0; i < 3; i++) (void)width_after(WINDOW, WINDOW);
    expect("they did not pay yet", width_after(WINDOW, WINDOW / 2), 1);
    expect("as long as it may be", team.narrow_until - clock_now, MOST_NARROW);
    clock_now = team.narrow_until;
    (void)tcc_team_width(&team);
    for (int i = 0; i < 10; i++) (void)width_after(WINDOW, WINDOW);
    expect("they paid", width_after(WINDOW, WINDOW / 2), 1);
    expect("a short while again", team.narrow_until - clock_now, WINDOW);
    forget();
    team.open = 0;
}

/* ---- spinning -------------------------------------------------------------------------------------- */

/* Returns how long an idle worker spins that looks at the clock every few microseconds. */
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

/* All workers together spin no longer than one worker alone. */
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
    expect_widths();
    expect_losses();
    expect_backing_off();
    expect_spins();
    expect_budget();
    puts("ok");
    return 0;
}
