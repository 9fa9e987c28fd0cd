/* Draws the seeds of runs. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "seed.h"

/* Returns a random number of the kernel's generator, whose state forked processes do not share.
 * Where a sandbox forbids the call, the number mixes the time, the process's number and a
 * counter. */
static uint64_t fresh_seed(void) {
    static uint64_t count;
    uint64_t seed = 0;
#ifdef SYS_getrandom
    if (syscall(SYS_getrandom, &seed, sizeof seed, 1 /* GRND_NONBLOCK */) == (long)sizeof seed) return seed;
#endif
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    seed = __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED) << 48 ^ (uint64_t)getpid() << 32;
    return seed ^ ((uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec);
}

tcc_status tcc_run_seed(tcc_run *run, int64_t *out_seed) {
    const char *text = secure_getenv("TCC_SEED");
    char *end = NULL;
    if (run->seeded) {
    } else if (run->instance->seeded) {
        run->seed = run->instance->seed;
    } else if (text && *text) {
        errno = 0;
        run->seed = strtoull(text, &end, 10);
        if (*text < '0' || *text > '9' || *end || errno)
            return tcc_fail(TCC_INVALID_ARGUMENT,
                            "TCC_SEED is '%.64s': expected a whole number below 2^64, as in 7", text);
    } else {
        run->seed = fresh_seed();
        run->fresh = true;
    }
    run->seeded = true;
    *out_seed = (int64_t)run->seed;
    return TCC_OK;
}
