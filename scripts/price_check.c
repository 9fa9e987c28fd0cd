/* Times single kernels on the runtime's threads: see scripts/price_check. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include "runtime.h"

const tcc_artifact tcc_artifact_info = {.name = "price_check"};

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* The least nanoseconds of `repeats` launches; launch r has the buffers of set r % sets, so that
 * weights that come from memory in a model come from there here. */
int64_t least(tcc_kernel kernel, void *const *const *buffers, int64_t sets, const int64_t *ints,
              int64_t units, char *scratch, int64_t stride, int32_t threads, int64_t repeats) {
    static int64_t turn;
    int64_t found = INT64_MAX;
    tcc_crew crew;
    tcc_crew_enter(&crew);
    for (int64_t r = 0; r < repeats; r++) {
        tcc_job job = {kernel, buffers[turn++ % sets], ints, units, scratch, (size_t)stride, threads};
        int64_t start = now();
        tcc_crew_launch(&crew, &job);
        tcc_crew_settle(&crew);
        int64_t taken = now() - start;
        if (taken < found) found = taken;
    }
    tcc_crew_leave(&crew);
    return found;
}
