/* Waits for events at set times, and counts how often the thread slept meanwhile. */
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/resource.h>

#include "../../../runtime/src/comm/shared.h"

enum { MICROSECOND = 1000, SHORT = 300 * MICROSECOND, LONG = 8000 * MICROSECOND };

static bool has_come(tcc_shared *shared, void *event, int32_t *awaited) {
    (void)shared, (void)awaited;
    return tcc_comm_now() >= *(int64_t *)event;
}

static long sleeps(void) {
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw;
}

/* Returns how often the thread slept in a wait of `nanoseconds`; -1 if the wait failed. */
static long wait_for(tcc_shared *shared, int64_t nanoseconds) {
    long before = sleeps();
    int64_t event = tcc_comm_now() + nanoseconds;
    if (tcc_shared_wait(shared, has_come, &event) != TCC_OK) return -1;
    return sleeps() - before;
}

/* Returns true if the thread slept in one of several waits.  A thread that had lost its CPU when the event
 * came finds it without a sleep. */
static bool sleeps_in(tcc_shared *shared, int64_t nanoseconds) {
    enum { TRIALS = 50 };
    for (int i = 0; i < TRIALS; i++) {
        long count = wait_for(shared, nanoseconds);
        if (count) return count > 0;
    }
    return false;
}

#define CHECK(condition) \
    if (!(condition)) return printf("line %d: %s\n", __LINE__, #condition), 1

int main(void) {
    static _Alignas(TCC_SHARED_LINE) char memory[sizeof(tcc_shared_segment) + sizeof(tcc_shared_rank)];
    tcc_shared shared = {.segment = (tcc_shared_segment *)(void *)memory, .size = 1, .refused_by = -1};
    shared.patience = INT64_C(60000000000);
    shared.spin = TCC_SHARED_MOST_SPIN;
    CHECK(wait_for(&shared, SHORT) == 0);
    CHECK(sleeps_in(&shared, LONG));
    CHECK(shared.spin < SHORT); /* the next wait leaves its CPU soon */
    shared.spin = 0;            /* ranks share CPUs */
    CHECK(sleeps_in(&shared, SHORT));
    CHECK(shared.spin == 0);
    puts("ok");
    return 0;
}
