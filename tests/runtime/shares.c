/* Tests how workers are divided between runs in progress, on eight CPUs that need not exist.
 * Prints "ok". */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include "workers.h"

const tcc_artifact tcc_artifact_info = {.name = "shares"};

enum { CPUS = 8, TURNS = 1 << 20, KEPT = 300, STRIDE = 64 };

static void work(void *const *b, const int64_t *n, int64_t begin, int64_t end, void *scratch) {
    (void)b, (void)n, (void)begin, (void)end, (void)scratch;
}

static void launch(tcc_crew *crew, int32_t threads) {
    static char scratch[CPUS * STRIDE];
    tcc_job job = {work, NULL, NULL, CPUS, scratch, STRIDE, threads, NULL, 0};
    tcc_crew_launch(crew, &job);
    tcc_crew_settle(crew);
    if (crew->team) crew->team->width = 0; /* keep launches wide, whatever else runs on the
                                              machine */
}

static int32_t seats(const tcc_crew *crew) { return crew->team ? crew->team->manned : 1; }

static int hired(const tcc_crew *crew) { return (int)tcc_load_of(crew->workers).hired; }

static void fail(const char *text, const tcc_crew *first, const tcc_crew *second) {
    printf("%s: %d and %d seats, %d workers serve\n", text, seats(first), seats(second), hired(first));
    exit(1);
}

/* Checks that neither run gets more than its share, whatever the other run's workers do. */
static void keep(const char *text, tcc_crew *first, int32_t asks, int32_t max_seats, tcc_crew *second,
                 int32_t other_asks, int32_t other_max_seats) {
    for (int turn = 0; turn < KEPT; turn++, sched_yield()) {
        launch(first, asks);
        launch(second, other_asks);
        if (seats(first) > max_seats || seats(second) > other_max_seats) fail(text, first, second);
    }
}

/* Lets both runs launch alternately, until they have this many seats. */
static void divide(const char *text, tcc_crew *first, int32_t asks, tcc_crew *second,
                   int32_t other_asks, int32_t expected, int32_t other_expected) {
    for (int turn = 0; turn < TURNS; turn++) {
        launch(first, asks);
        launch(second, other_asks);
        int workers = expected - 1 + other_expected - 1; /* once all workers that were told to leave
                                                            have left */
        if (seats(first) == expected && seats(second) == other_expected && hired(first) == workers)
            return;
        sched_yield();
    }
    fail(text, first, second);
}

static void alone(const char *text, tcc_crew *first, int32_t expected) {
    for (int turn = 0; turn < TURNS && seats(first) != expected; turn++, sched_yield())
        launch(first, CPUS);
    if (seats(first) != expected) fail(text, first, first);
}

int main(void) {
    tcc_crew first, second, third;
    tcc_crew_enter(&first);
    alone("a run without others", &first, CPUS);
    tcc_crew_enter(&second);
    divide("runs that ask for the same", &first, CPUS, &second, CPUS, 4, 4);
    keep("shares of runs that ask for the same", &first, CPUS, 4, &second, CPUS, 4);
    tcc_crew_leave(&second);
    alone("a run after others", &first, CPUS);
    tcc_crew_enter(&second);
    divide("runs that ask for eight and two", &first, CPUS, &second, 2, 7, 1);
    keep("shares of runs that ask for eight and two", &first, CPUS, 7, &second, 2, 2);
    tcc_crew_leave(&second);
    tcc_crew_enter(&second);
    tcc_crew_enter(&third); /* it only has its caller, and asks for no worker */
    divide("runs beside a third", &first, CPUS, &second, CPUS, 4, 3);
    tcc_crew_leave(&third);
    tcc_crew_leave(&second);
    tcc_crew_leave(&first);
    puts("ok");
    return 0;
}
