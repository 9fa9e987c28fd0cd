/* Finds how many threads and how much memory a process may use: from environment variables, else
 * from the machine and its control groups. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime.h"

/* ---- threads ----------------------------------------------------------------------------------------- */

static int64_t usable_cpus(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
    return sysconf(_SC_NPROCESSORS_ONLN); /* more CPUs than the mask has room for */
}

static int64_t default_threads(void) {
    int64_t limit = tcc_group_cpus(), threads = usable_cpus();
    return limit > 0 && limit < threads ? limit : threads;
}

/* Reads the number in an environment variable, or the largest int64 where it is larger; `otherwise`
 * where the variable is empty or not set. */
static tcc_status told(const char *variable, const char *expected, int64_t otherwise,
                       int64_t *out_number) {
    const char *text = secure_getenv(variable);
    char *end = NULL;
    *out_number = otherwise;
    if (!text || !*text) return TCC_OK;
    int64_t number = strtoll(text, &end, 10);
    if (*text < '0' || *text > '9' || *end)
        return tcc_fail(TCC_INVALID_ARGUMENT, "%s is '%.64s': expected %s", variable, text, expected);
    *out_number = number;
    return TCC_OK;
}

tcc_status tcc_threads_resolve(int32_t request, int32_t *out_threads) {
    int64_t threads = request;
    if (threads <= 0)
        TCC_RETURN_IF_ERROR(
            told("TCC_NUM_THREADS", "a number of threads, as in 4", 0, &threads));
    if (threads <= 0) threads = default_threads();
    *out_threads = threads < 1 ? 1 : threads > TCC_MAX_THREADS ? TCC_MAX_THREADS : (int32_t)threads;
    return TCC_OK;
}

tcc_status tcc_spin_resolve(int64_t *out_nanoseconds) {
    int64_t limit = 60000000, number = 0;
    tcc_status status =
        told("TCC_SPIN_MICROSECONDS", "a number of microseconds, as in 2000", 2000, &number);
    *out_nanoseconds = (number < limit ? number : limit) * 1000;
    return status;
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
    const char *text = secure_getenv("TCC_MEMORY");
    *out_bytes = 0;
    return text && *text ? told_memory(text, out_bytes) : TCC_OK;
}
