/* Runs a program while calls of the runtime to the system fail; linked with failing.c, and built
 * with sanitizers.
 *
 *     broken FILE KERNELS
 *
 * The file is one record as for hostile.c.  The n-th call fails, for each n, or it and all after
 * it, with each of its errors.  In each trial an instance is made, runs twice on two threads, and
 * is destroyed.  Every failure must have a status and a reason, and the next instance must work.
 * Prints how many trials there were. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "driver.h"
#include "failing.h"

const tcc_artifact tcc_artifact_info = {.name = "broken"};

static tcc_model model;
static tcc_tensor *inputs;

static tcc_status run(tcc_instance *instance) {
    int32_t n = model.program.n_outputs;
    void *blocks = NULL;
    tcc_allocator allocator = {&blocks, allocate};
    tcc_tensor outputs[8];
    memset(outputs, 0, sizeof outputs);
    tcc_status status =
        tcc_instance_run(instance, inputs, model.program.n_inputs, outputs, n, &allocator, NULL);
    free_all(blocks);
    return status;
}

static tcc_status attempt(void) {
    tcc_instance *instance = NULL;
    tcc_status status = tcc_instance_create(&model, 0, &instance);
    if (status == TCC_OK) instance->threads_own = 2;
    for (int i = 0; status == TCC_OK && i < 2; i++) status = run(instance);
    tcc_instance_destroy(instance);
    return status;
}

int main(int argc, char **argv) {
    static char bytes[1 << 20];
    int64_t size = 0;
    if (argc != 3 || !read_program(argv[1], bytes, sizeof bytes, &size)) return 2;
    if (decode(bytes, size, atoll(argv[2]), &model) != TCC_OK) return 3;
    model.threads = 2;
    inputs = make_inputs(&model);
    long trials = 0, failures = 0;
    for (fail_on = 0; fail_on < 2; fail_on++)
        for (fail_error = 0; fail_error < 3; fail_error++)
            for (long i = 1, more = 1; more; i++, trials++) {
                fail_at = i;
                fail_calls = 0;
                tcc_status status = attempt();
                more = fail_calls >= i;
                fail_at = 0;
                failures += status != TCC_OK;
                if (status != TCC_OK && !*tcc_last_error()) return puts("no reason"), 4;
                if (attempt() != TCC_OK) return puts(tcc_last_error()), 5;
                if (i > 5000) return puts("no end"), 6;
            }
    free_inputs(&model, inputs);
    tcc_program_free(&model.program);
    printf("%ld trials, %ld failures\n", trials, failures);
    return 0;
}
