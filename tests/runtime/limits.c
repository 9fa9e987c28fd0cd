/* Prints what the process may use of the system below $FAKE_ROOT: CPUs of its control groups and
 * threads of a run; then its memory: bytes left, the limit, bytes in use, and the group with that
 * limit.
 *
 *     limits [BYTES]...
 *
 * Then takes each BYTES of the process's budget, and prints a line for each: "taken" or the reason,
 * and how many files were opened. */
#include <stdio.h>
#include <stdlib.h>

#include "workers.h"

/* The whole file is compiled with fopen named open_below. */
#undef fopen
FILE *fopen(const char *path, const char *how);

static int opened;
static tcc_workers workers = {.memory = {.name = "the process"}};

tcc_workers *tcc_workers_find(void) { return &workers; }

FILE *open_below(const char *path, const char *how) {
    char below[1 << 14];
    opened++;
    snprintf(below, sizeof below, "%s%s", getenv("FAKE_ROOT"), path);
    return fopen(below, how);
}

int main(int argc, char **argv) {
    int32_t threads = 0;
    tcc_room room;
    if (tcc_threads_resolve(0, &threads)) return puts(tcc_last_error()), 1;
    tcc_memory_room(&room);
    printf("%lld %d\n%lld %lld %lld %s\n", (long long)tcc_group_cpus(), threads, (long long)room.remaining,
           (long long)room.limit, (long long)room.used, room.holder);
    for (int i = 1; i < argc; i++) {
        size_t bytes = strtoull(argv[i], NULL, 10);
        opened = 0;
        bool is_granted = tcc_budget_take(&workers.memory, bytes);
        int files = opened;
        if (!is_granted) tcc_budget_refuse(&workers.memory, bytes);
        printf("%d %s\n", files, is_granted ? "taken" : tcc_last_error());
        if (is_granted) tcc_budget_settle(&workers.memory, bytes);
    }
    return 0;
}
