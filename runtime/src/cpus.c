/* How many threads a process should use: what it is told, else what it may. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime.h"

/* CPUs that the quota in `folder` keeps busy, rounded up; 0 where it sets none. */
static int64_t quota_of(const char *folder) {
    char path[4096 + 64], text[64];
    long long quota = 0, period = 0;
    snprintf(path, sizeof path, "/sys/fs/cgroup%s/cpu.max", folder);
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    bool limited = fgets(text, sizeof text, file) && sscanf(text, "%lld %lld", &quota, &period) == 2;
    fclose(file);
    return limited && quota > 0 && period > 0 ? (quota + period - 1) / period : 0;
}

/* The least quota of the process's control group and those around it (version 2 groups); 0 without
 * one. */
static int64_t quota(void) {
    char line[4096];
    FILE *file = fopen("/proc/self/cgroup", "re");
    bool found = false;
    while (file && !found && fgets(line, sizeof line, file)) found = strncmp(line, "0::/", 4) == 0;
    if (file) fclose(file);
    if (!found) return 0;
    char *folder = line + 3;
    folder[strcspn(folder, "\n")] = 0;
    int64_t least = 0;
    for (char *end = folder + strlen(folder); end; end = strrchr(folder, '/')) {
        *end = 0;
        int64_t here = quota_of(folder);
        if (here > 0 && (least == 0 || here < least)) least = here;
    }
    return least;
}

static int64_t usable_cpus(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
    return sysconf(_SC_NPROCESSORS_ONLN); /* more CPUs than the mask has room for */
}

int32_t tcc_threads_resolve(int32_t wanted) {
    int64_t threads = wanted;
    if (wanted <= 0) {
        const char *text = getenv("TCC_NUM_THREADS");
        threads = text ? strtol(text, NULL, 10) : 0;
        if (threads <= 0) {
            int64_t limit = quota();
            threads = usable_cpus();
            if (limit > 0 && limit < threads) threads = limit;
        }
    }
    return threads < 1 ? 1 : threads > TCC_MAX_THREADS ? TCC_MAX_THREADS : (int32_t)threads;
}
