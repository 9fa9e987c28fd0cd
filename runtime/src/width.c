/* On how many threads a run launches where other programs use the same CPUs.
 *
 * Two things show that they do: a launch waits for a worker that lost its CPU, and the caller itself
 * runs for less time than passes.  The run then has fewer threads for a while: one less after a wait, as
 * many as it had CPUs for after a loss.  The while is twice what was lost, and twice the last one where
 * the threads between were of use too short for that to pay; then the run tries all of them again. */
#define _GNU_SOURCE
#include <sys/resource.h>

#include "workers.h"

enum {
    STALL = 300000,          /* nanoseconds of waiting that show that a worker has lost its CPU */
    PAYS = 8,                /* times what was lost that threads are to be of use before it */
    MOST_NARROW = 500000000, /* nanoseconds */
    WINDOW = 2000000,        /* nanoseconds at least from one look at the CPU time to the next */
    LOSS = 4,                /* this part of a window without a CPU is more than a passing daemon takes */
};

bool tcc_team_stalls(const tcc_team *team, int64_t since, int64_t now) {
    return now - since >= STALL && now - since >= since - team->began;
}

/* `lost` nanoseconds from `since` on show that the launches have too many threads. */
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

/* What the calling thread has used at a time; `at` is 0 where the system does not say. */
static tcc_use use_at(int64_t now) {
    struct timespec cpu;
    struct rusage counts;
    if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu) || getrusage(RUSAGE_THREAD, &counts))
        return (tcc_use){0};
    return (tcc_use){now, (int64_t)cpu.tv_sec * 1000000000 + cpu.tv_nsec, counts.ru_nvcsw,
                     pthread_self()};
}

TCC_COLD static void look_at_use(tcc_team *team) {
    tcc_use last = team->used, now = use_at(team->began);
    team->used = now;
    bool same = last.at && now.at && pthread_equal(last.thread, now.thread);
    if (!same || last.sleeps != now.sleeps) return; /* who slept did not want a CPU */
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
