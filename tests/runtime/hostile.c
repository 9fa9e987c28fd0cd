/* Reads a file of records (size, program bytes), decodes each, and runs each that decodes on zeroed
 * inputs (strings and lists have contents) with kernels that do nothing.  Prints "<decoded> <ran> <of>".  Built with sanitizers.
 * With a third argument each record is tried again and again while the first, second, ... allocation
 * fails, until none does; every failure must be reported as such, and runs after it go well. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

const tcc_artifact tcc_artifact_info = {.name = "hostile"};

extern int64_t tcc_test_fail_after;

/* What runs on some threads has scratch for all of them. */
static tcc_status run_on(tcc_instance *instance, const tcc_tensor *inputs, int32_t threads) {
    void *kept = NULL;
    tcc_allocator allocator = {&kept, allocate};
    instance->threads_own = threads;
    tcc_status status = tcc_instance_run(instance, inputs, instance->model->program.n_inputs, NULL, 0,
                                         &allocator, NULL);
    free_all(kept);
    int64_t room = threads * instance->model->program.scratch;
    if (status == TCC_OK && (int64_t)instance->scratch.size < room) abort();
    return status;
}

static tcc_status run(tcc_model *model, bool again) {
    tcc_instance *instance = NULL;
    tcc_status status = tcc_instance_create(model, 0, &instance);
    if (status != TCC_OK) return status;
    tcc_tensor *inputs = make_inputs(model);
    status = run_on(instance, inputs, 1);
    if (again && status == TCC_OK) {
        status = run_on(instance, inputs, 3);
        tcc_status last = run_on(instance, inputs, 1);
        if (status != TCC_OK && last != TCC_OK) abort();
        if (status == TCC_OK) status = last;
    }
    free_inputs(model, inputs);
    tcc_instance_destroy(instance);
    return status;
}

static tcc_status decode_and_run(const char *bytes, int64_t size, int64_t n_kernels, bool again,
                                 int *decoded) {
    tcc_model model;
    tcc_status status = decode(bytes, size, n_kernels, &model);
    if (status != TCC_OK) {
        if (!*tcc_last_error()) abort();
        return status;
    }
    ++*decoded;
    status = run(&model, again);
    tcc_program_free(&model.program);
    return status;
}

int main(int argc, char **argv) {
    int decoded = 0, ran = 0, of = 0;
    int64_t size, n_kernels = argc > 2 ? atoll(argv[2]) : 0;
    FILE *file = fopen(argv[1], "rb");
    while (file && fread(&size, 8, 1, file) == 1) {
        char *bytes = malloc(size ? (size_t)size : 1); /* exact, so that reads beyond it are seen */
        if (!bytes || fread(bytes, 1, (size_t)size, file) != (size_t)size) return 1;
        tcc_status status = TCC_OUT_OF_MEMORY;
        for (int n = 1; argc > 3 && status == TCC_OUT_OF_MEMORY; n++, of++) {
            tcc_test_fail_after = n;
            status = decode_and_run(bytes, size, n_kernels, true, &decoded);
            if (tcc_test_fail_after <= 0 && status != TCC_OUT_OF_MEMORY) return 2;
        }
        tcc_test_fail_after = -1;
        if (argc <= 3) status = decode_and_run(bytes, size, n_kernels, false, &decoded);
        ran += status == TCC_OK;
        of++;
        free(bytes);
    }
    if (file) fclose(file);
    printf("%d %d %d\n", decoded, ran, of);
    return 0;
}
