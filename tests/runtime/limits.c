/* What the process may use, of the system below $FAKE_ROOT: CPUs and bytes of its control groups, then
 * threads and bytes of a run. */
#include <stdio.h>

#include <stdlib.h>

#include "runtime.h"

/* All of this is compiled with fopen named open_below. */
#undef fopen
FILE *fopen(const char *path, const char *how);

FILE *open_below(const char *path, const char *how) {
    char below[1 << 14];
    snprintf(below, sizeof below, "%s%s", getenv("FAKE_ROOT"), path);
    return fopen(below, how);
}

int main(void) {
    int32_t threads = 0;
    size_t bytes = 0;
    if (tcc_threads_resolve(0, &threads) || tcc_memory_limit(&bytes)) {
        puts(tcc_last_error());
        return 1;
    }
    printf("%lld %lld %d %zu\n", (long long)tcc_group_cpus(), (long long)tcc_group_bytes(), threads,
           bytes);
    return 0;
}
