/* Shared by the programs that exercise pools. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

const tcc_artifact tcc_artifact_info = {.name = "pool"};

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "line %d: %s; %s\n", __LINE__, #condition, tcc_last_error());          \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static uint64_t state = 1;
static uint64_t draw(void) { /* SplitMix64 */
    uint64_t z = (state += UINT64_C(0x9E3779B97F4A7C15));
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

static tcc_pool *make_pool(tcc_pool_config config) {
    tcc_pool *pool = NULL;
    config.struct_size = sizeof config;
    CHECK(tcc_pool_create(&config, &pool) == TCC_OK);
    return pool;
}

typedef struct mode {
    const char *name;
    int (*run)(int argc, char **argv);
} mode;

/* Runs the mode that the first argument names; returns the exit code. */
static int run_mode(const mode *modes, size_t count, int argc, char **argv) {
    for (size_t i = 0; argc > 1 && i < count; i++)
        if (strcmp(argv[1], modes[i].name) == 0) return modes[i].run(argc - 2, argv + 2);
    return 2;
}
