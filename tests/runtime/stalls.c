/* When a wait shows that a worker has lost its CPU: the rule of threads.c under a clock of its own. */
#define _GNU_SOURCE
#define tcc_now system_now
#include "workers.h"
#undef tcc_now

#include <stdio.h>
#include <stdlib.h>

static int64_t clock_now;

static int64_t tcc_now(void) { return clock_now; }

#include "threads.c"

void tcc_workers_start(tcc_workers *w, int32_t wanted, tcc_worker *f) { (void)w, (void)wanted, (void)f; }
void tcc_workers_wake(tcc_workers *w, int32_t threads) { (void)w, (void)threads; }
uint64_t tcc_workers_next(const tcc_workers *w, uint64_t last) { return (void)w, last; }
void tcc_workers_sleep(tcc_workers *w, int32_t self, uint64_t last) { (void)w, (void)self, (void)last; }

static tcc_workers workers;

/* For how long the caller works alone after a launch whose own range took it `own` nanoseconds, and
 * which it then waited for. */
static int64_t alone(int64_t own, int64_t waited) {
    workers.alone_until = 0;
    workers.began = 1000;
    clock_now = workers.began + own + waited;
    note_stall(&workers, workers.began + own);
    return workers.alone_until ? workers.alone_until - clock_now : 0;
}

static void expect(int64_t own, int64_t waited, int64_t expected) {
    int64_t found = alone(own, waited);
    if (found == expected) return;
    printf("own %lld waited %lld: alone for %lld, not %lld\n", (long long)own, (long long)waited,
           (long long)found, (long long)expected);
    exit(1);
}

int main(void) {
    expect(50000, 299999, 0);
    expect(50000, 300000, 600000);
    expect(5000000, 400000, 0); /* the other one's last piece */
    expect(5000000, 4999999, 0);
    expect(5000000, 5000000, 10000000);
    expect(50000, 60000000, 20000000); /* no longer than that */
    puts("ok");
    return 0;
}
