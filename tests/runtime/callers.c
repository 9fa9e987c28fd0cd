/* Several threads run one program at the same time, each on its own instance, and all must get the
 * same results.  Then a forked child does the same, and the parent again.  Built with sanitizers.
 *
 *     callers FILE KERNELS CALLERS RUNS FORK
 *
 * The file is one record as for hostile.c. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"

const tcc_artifact tcc_artifact_info = {.name = "callers"};

static tcc_model model;
static int runs;

static uint64_t mix(uint64_t state, const void *data, size_t size) {
    for (size_t i = 0; i < size; i++) state = (state ^ ((const uint8_t *)data)[i]) * 1099511628211u;
    return state;
}

/* Hashes all contents of an output. */
static uint64_t hash(uint64_t state, const tcc_tensor *value) {
    int64_t bytes = tcc_byte_count(value->shape, value->ndim, value->dtype);
    state = mix(state, value->shape, (size_t)value->ndim * sizeof *value->shape);
    if (value->dtype.code != TCC_OPAQUE) return mix(state, value->data, (size_t)bytes);
    if (value->dtype.bits == 128) {
        const tcc_string *texts = value->data;
        for (int64_t i = 0; i < bytes / 16; i++)
            state = mix(mix(state, &texts[i].size, 8), texts[i].data, (size_t)texts[i].size);
        return state;
    }
    const tcc_list *list = *(const tcc_list *const *)value->data;
    for (int64_t i = 0; i < list->count; i++) state = hash(state, &list->items[i]);
    return mix(state, &list->count, 8);
}

static void *caller(void *argument) {
    uint64_t *result = argument;
    int32_t n = model.program.n_outputs;
    tcc_instance *instance = NULL;
    if (tcc_instance_create(&model, 0, &instance) != TCC_OK) return NULL;
    tcc_tensor *inputs = make_inputs(&model), *outputs = calloc((size_t)n, sizeof *outputs);
    for (int i = 0; i < runs; i++) {
        void *blocks = NULL;
        uint64_t state = 1;
        tcc_allocator allocator = {&blocks, allocate};
        memset(outputs, 0, (size_t)n * sizeof *outputs);
        tcc_status status = tcc_instance_run(instance, inputs, model.program.n_inputs, outputs, n,
                                             &allocator, NULL);
        for (int32_t output = 0; status == TCC_OK && output < n; output++)
            state = hash(state, &outputs[output]);
        free_all(blocks);
        *result = status == TCC_OK && (i == 0 || *result == state) ? state : 0;
    }
    free(outputs);
    free_inputs(&model, inputs);
    tcc_instance_destroy(instance);
    return NULL;
}

/* Returns the hash of all callers' results; 0 if they differ. */
static uint64_t call(int callers) {
    pthread_t handles[16];
    uint64_t results[16] = {0};
    for (int i = 0; i < callers; i++)
        if (pthread_create(&handles[i], NULL, caller, &results[i])) return 0;
    for (int i = 0; i < callers; i++) pthread_join(handles[i], NULL);
    for (int i = 1; i < callers; i++)
        if (results[i] != results[0]) return 0;
    return results[0];
}

int main(int argc, char **argv) {
    static char bytes[1 << 20];
    int64_t size = 0;
    if (argc != 6 || !read_program(argv[1], bytes, sizeof bytes, &size)) return 2;
    if (decode(bytes, size, atoll(argv[2]), &model) != TCC_OK) return 3;
    int callers = atoi(argv[3]), status = 0;
    runs = atoi(argv[4]);
    uint64_t first = call(callers);
    if (!first) return 4;
    if (atoi(argv[5])) {
        pid_t child = fork();
        if (child == 0) _exit(call(callers) != first);
        if (waitpid(child, &status, 0) != child || status || call(callers) != first) return 5;
    }
    tcc_program_free(&model.program);
    puts("ok");
    return 0;
}
