/* Times single kernels on the runtime's threads: see scripts/price_times.py. */
#define _GNU_SOURCE
#include <stdint.h>
#include <time.h>

#include "runtime.h"

/* The symbol that the runtime expects of the library that it is linked into. */
const tcc_artifact tcc_artifact_info = {.name = "price_check"};

enum { WARM = 200000 }; /* nanoseconds of warm-up, until code is loaded and workers are awake */

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* A kernel, and `sets` rows of `width` buffers.  Each launch takes the next row, so that weights
 * that a model reads from memory are read from memory here, too. */
typedef struct {
    tcc_kernel kernel;
    void *const *table;
    int64_t width, sets, units;
    char *scratch;
    int64_t stride, threads;
} work;

static int64_t launch(tcc_crew *crew, const work *w) {
    static const int64_t none[1];
    static int64_t turn;
    tcc_job job = {.kernel = w->kernel,
                   .buffers = w->table + turn++ % w->sets * w->width,
                   .ints = none,
                   .units = w->units,
                   .scratch = w->scratch,
                   .scratch_stride = (size_t)w->stride,
                   .threads = (int32_t)w->threads};
    int64_t start = now();
    tcc_crew_launch(crew, &job);
    tcc_crew_settle(crew);
    return now() - start;
}

/* Times launches until they take `budget` nanoseconds in all, at least `min_count` and at most `max_count`
 * launches.  Writes the nanoseconds of each and returns how many there are.  A few launches before
 * them are not counted. */
__attribute__((visibility("default"))) int64_t times(const work *w, int64_t min_count, int64_t max_count,
                                                     int64_t budget, int64_t *out) {
    int64_t count = 0;
    tcc_crew crew;
    tcc_crew_enter(&crew);
    for (int64_t spent = 0; spent < WARM;) spent += launch(&crew, w);
    while (count < min_count || (count < max_count && budget > 0)) {
        out[count] = launch(&crew, w);
        budget -= out[count++];
    }
    tcc_crew_leave(&crew);
    return count;
}
