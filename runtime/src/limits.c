/* What a process may use, threads and memory: what it is told, else what the machine and its control
 * group leave it. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime.h"

/* ---- control groups (version 2) ------------------------------------------------------------------- */

/* A limit in the text of a group's file; 0 where that sets none. */
typedef int64_t (*limit_in)(const char *text);

static int64_t cpus_in(const char *text) {
    long long quota = 0, period = 0;
    bool limited = sscanf(text, "%lld %lld", &quota, &period) == 2 && quota > 0 && period > 0;
    return limited ? quota / period + (quota % period != 0) : 0;
}

static int64_t bytes_in(const char *text) {
    long long bytes = 0;
    return sscanf(text, "%lld", &bytes) == 1 && bytes > 0 ? bytes : 0;
}

static int64_t limit_of(const char *folder, const char *name, limit_in read) {
    char path[4096 + 64], text[64];
    snprintf(path, sizeof path, "/sys/fs/cgroup%s/%s", folder, name);
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    int64_t limit = fgets(text, sizeof text, file) ? read(text) : 0;
    fclose(file);
    return limit;
}

/* The least limit in file `name` of the process's group and those around it; 0 without one. */
static int64_t least_limit(const char *name, limit_in read) {
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
        int64_t here = limit_of(folder, name, read);
        if (here > 0 && (least == 0 || here < least)) least = here;
    }
    return least;
}

/* ---- threads ----------------------------------------------------------------------------------------- */

static int64_t usable_cpus(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
    return sysconf(_SC_NPROCESSORS_ONLN); /* more CPUs than the mask has room for */
}

static int64_t default_threads(void) {
    int64_t limit = least_limit("cpu.max", cpus_in), threads = usable_cpus();
    return limit > 0 && limit < threads ? limit : threads;
}

/* 0 where nothing is told. */
static tcc_status told_threads(int64_t *out_threads) {
    const char *text = getenv("TCC_NUM_THREADS");
    char *end = NULL;
    *out_threads = 0;
    if (!text || !*text) return TCC_OK;
    *out_threads = strtol(text, &end, 10); /* the largest there is where it is larger */
    if (*text >= '0' && *text <= '9' && !*end) return TCC_OK;
    return tcc_fail(TCC_INVALID_ARGUMENT,
                    "TCC_NUM_THREADS is '%.64s': expected a number of threads, as in 4", text);
}

tcc_status tcc_threads_resolve(int32_t wanted, int32_t *out_threads) {
    int64_t threads = wanted;
    if (threads <= 0) TCC_RETURN_IF_ERROR(told_threads(&threads));
    if (threads <= 0) threads = default_threads();
    *out_threads = threads < 1 ? 1 : threads > TCC_MAX_THREADS ? TCC_MAX_THREADS : (int32_t)threads;
    return TCC_OK;
}

/* ---- memory ------------------------------------------------------------------------------------------ */

static tcc_status told_memory(const char *text, size_t *out_bytes) {
    char *end = NULL;
    unsigned long long number = strtoull(text, &end, 10);
    static const char units[] = "KMGT";
    const char *unit = *end ? strchr(units, *end) : NULL;
    int shift = unit ? 10 * (int)(unit - units + 1) : 0;
    if (*text < '0' || *text > '9' || number == 0 || (*end && (!unit || end[1])) ||
        number >= SIZE_MAX >> shift)
        return tcc_fail(TCC_INVALID_ARGUMENT,
                        "TCC_MEMORY is '%.64s': expected bytes, as in 512M or 4G", text);
    *out_bytes = (size_t)number << shift;
    return TCC_OK;
}

tcc_status tcc_memory_limit(size_t *out_bytes) {
    static size_t found; /* the machine's; it does not change */
    const char *text = getenv("TCC_MEMORY");
    if (text && *text) return told_memory(text, out_bytes);
    *out_bytes = __atomic_load_n(&found, __ATOMIC_RELAXED);
    if (*out_bytes) return TCC_OK;
    int64_t limit = least_limit("memory.max", bytes_in);
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    size_t bytes = pages > 0 && page > 0 ? (size_t)pages * (size_t)page : SIZE_MAX;
    if (limit > 0 && (size_t)limit < bytes) bytes = (size_t)limit;
    *out_bytes = bytes - bytes / 4;
    __atomic_store_n(&found, *out_bytes, __ATOMIC_RELAXED);
    return TCC_OK;
}
