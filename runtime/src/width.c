/* Limits the threads of a run's launches where other programs use the same CPUs.
 *
 * Two events show such use: a launch waits for a worker that lost its CPU, or the caller's CPU time
 * grows more slowly than the clock.  After a wait, launches have one thread less.  After a loss of
 * CPU time they have as many threads as the run had CPUs, assuming that all threads lost as much as
 * the caller.  Launches stay narrow for twice the time that was lost.  Then the run tries all
 * threads again.  If it loses more before they were of use for PAYS times as long, it backs off for
 * twice the previous time.  Results do not depend on the number of threads. */
#define _GNU_SOURCE
#include <sys/resource.h>

#include "workers.h"

enum {
    STALL = 300000,          /* nanoseconds of waiting after which a worker has lost its CPU */
    PAYS = 8,                /* threads must be of use for this many times the time lost before
                                them */
    MOST_NARROW = 500000000, /* nanoseconds */
    WINDOW = 2000000,        /* nanoseconds between two looks at the CPU time, at least */
    LOSS = 4,                /* a thread that lacks a CPU for a quarter (1 / LOSS) of a window
                                shares it */
};

bool tcc_team_stalls(const tcc_team *team, int64_t since, int64_t now) {
    return now - since >= STALL && now - since >= since - team->began;
}

/* Limits launches to `threads` threads for a while, because `lost` nanoseconds from `since` on were
 * lost. */
static void narrow(tcc_team *team, int32_t threads, int64_t since, int64_t lost) {
    bool again = since - team->narrow_until < PAYS * lost && team->narrow_for > lost;
    int64_t span = 2 * (again ? team->narrow_for : lost);
    team->narrow_for = span < MOST_NARROW ? span : MOST_NARROW;
    team->narrow_until = tcc_now() + team->narrow_for;
    team->width = threads > 1 ? threads : 1;
    team->used.at = 0;
}

void tcc_team_note_wait(tcc_team *team, int32_t threads, int64_t since) {
    int64_t now = tcc_now();
    if (tcc_team_stalls(team, since, now)) narrow(team, threads - 1, since, now - since);
}

static tcc_use use_at(int64_t now) {
    struct timespec cpu;
    struct rusage counts;
    if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu) || getrusage(RUSAGE_THREAD, &counts))
        return (tcc_use){now, -1, 0, 0};
    int64_t nanoseconds = (int64_t)cpu.tv_sec * 1000000000 + cpu.tv_nsec;
    return (tcc_use){now, nanoseconds, counts.ru_nvcsw, counts.ru_nivcsw};
}

static _Thread_local int64_t looked; /* this thread's last look; another thread may have looked
                                        since */

TCC_COLD static void look_at_use(tcc_team *team) {
    tcc_use last = team->used, now = use_at(team->began);
    bool same = last.at && last.at == looked;
    team->used = now;
    looked = now.at;
    if (!same || last.cpu < 0 || now.cpu < 0) return;
    if (last.sleeps != now.sleeps) return; /* a thread that slept did not want a CPU */
    if (last.yields == now.yields) return; /* no thread of this machine took the CPU, but a
                                              hypervisor */
    int64_t passed = now.at - last.at, lost = passed - (now.cpu - last.cpu);
    if (lost >= passed / LOSS)
        narrow(team, (int32_t)(team->open * (passed - lost) / passed), last.at, lost);
}

void tcc_team_note_launch(tcc_team *team) {
    if (TCC_UNLIKELY(team->began - team->used.at >= WINDOW)) look_at_use(team);
}

int32_t tcc_team_width(tcc_team *team) {
    if (!team->width) return TCC_MAX_THREADS;
    if (tcc_now() >= team->narrow_until) {
        team->width = 0;
        return TCC_MAX_THREADS;
    }
    tcc_team_trim(team, team->width);
    return team->width;
}
