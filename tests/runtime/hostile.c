/* Reads a file of records (size, program bytes), decodes each, and runs each that decodes on zeroed
 * inputs (strings and lists have contents) with kernels that do nothing.  Prints "<decoded> <ran> <of>".  Built with sanitizers.
 * With a third argument each record is tried again and again while the first, second, ... allocation
 * fails, until none does; every failure must be reported as such. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

const tcc_artifact tcc_artifact_info = {.name = "hostile"};

extern int64_t tcc_test_fail_after;

static void nothing(void *const *b, const int64_t *n, int64_t begin, int64_t end, void *scratch) {
    (void)b, (void)n, (void)begin, (void)end, (void)scratch;
}

static int allocate(void *context, int32_t output, const tcc_tensor *wanted, void **out_data) {
    void **kept = context;
    int64_t bytes = 8;
    (void)output;
    for (int32_t i = 0; i < wanted->ndim; i++) {
        if (wanted->shape[i] > 1 << 20 || bytes > 1 << 24) return 1;
        bytes *= wanted->shape[i];
    }
    void **block = NULL;
    if (posix_memalign((void **)&block, 64, (size_t)bytes + 64)) return 1;
    block[0] = *kept;
    *kept = block;
    *out_data = (char *)block + 64;
    return 0;
}

static void free_all(void *kept) {
    while (kept) {
        void *next = *(void **)kept;
        free(kept);
        kept = next;
    }
}

/* "a", "" and "bc", and a list of these and of three numbers. */
static const tcc_string strings[3] = {{"a", 1}, {NULL, 0}, {"bc", 2}};
static const int64_t numbers[3] = {1, 2, 3};
static int64_t three[1] = {3};
static const tcc_tensor items[2] = {
    {(void *)strings, {1, 0}, 1, {3, 128, 1}, three, NULL, 0},
    {(void *)numbers, {1, 0}, 1, {0, 64, 1}, three, NULL, 0},
};
static const tcc_list list = {2, items};
static const tcc_list *const listed = &list;

static tcc_status run(tcc_model *model) {
    static int64_t data[1 << 16];
    tcc_instance *instance = NULL;
    tcc_status status = tcc_instance_create(model, 0, &instance);
    if (status != TCC_OK) return status;
    int32_t n = model->program.n_inputs;
    tcc_tensor *inputs = calloc((size_t)n + 1, sizeof *inputs);
    for (int32_t i = 0; i < n; i++) {
        const tcc_port *port = &model->program.inputs[i].port;
        void *contents = data;
        if (port->dtype.code == TCC_OPAQUE)
            contents = port->dtype.bits == 128 ? (void *)strings : (void *)&listed;
        inputs[i] = (tcc_tensor){contents, {1, 0}, port->ndim, port->dtype, calloc(64, 8), NULL, 0};
        for (int32_t dim = 0; dim < port->ndim; dim++)
            inputs[i].shape[dim] = port->shape[dim] < 0 || port->shape[dim] > 3 ? 3 : port->shape[dim];
    }
    void *kept = NULL;
    tcc_allocator allocator = {&kept, allocate};
    status = tcc_instance_run(instance, inputs, n, NULL, 0, &allocator, NULL);
    free_all(kept);
    for (int32_t i = 0; i < n; i++) free(inputs[i].shape);
    free(inputs);
    tcc_instance_destroy(instance);
    return status;
}

static tcc_status decode_and_run(const char *bytes, int64_t size, const tcc_kernel *kernels,
                                 int64_t n_kernels, int *decoded) {
    static char weights[64 << 10];
    tcc_model model = {.threads = 1};
    model.weights = (tcc_weights){weights, sizeof weights, NULL, 0};
    tcc_status status = tcc_program_decode(bytes, (size_t)size, kernels, n_kernels, sizeof weights,
                                           &model.program);
    if (status != TCC_OK) {
        if (!*tcc_last_error()) abort();
        return status;
    }
    ++*decoded;
    status = run(&model);
    tcc_program_free(&model.program);
    return status;
}

int main(int argc, char **argv) {
    tcc_kernel kernels[64];
    int decoded = 0, ran = 0, of = 0;
    int64_t size, n_kernels = argc > 2 ? atoll(argv[2]) : 0;
    for (int i = 0; i < 64; i++) kernels[i] = nothing;
    FILE *file = fopen(argv[1], "rb");
    while (file && fread(&size, 8, 1, file) == 1) {
        char *bytes = malloc(size ? (size_t)size : 1); /* exact, so that reads beyond it are seen */
        if (!bytes || fread(bytes, 1, (size_t)size, file) != (size_t)size) return 1;
        tcc_status status = TCC_OUT_OF_MEMORY;
        for (int n = 1; argc > 3 && status == TCC_OUT_OF_MEMORY; n++, of++) {
            tcc_test_fail_after = n;
            status = decode_and_run(bytes, size, kernels, n_kernels, &decoded);
            if (tcc_test_fail_after <= 0 && status != TCC_OUT_OF_MEMORY) return 2;
        }
        tcc_test_fail_after = -1;
        if (argc <= 3) status = decode_and_run(bytes, size, kernels, n_kernels, &decoded);
        ran += status == TCC_OK;
        of++;
        free(bytes);
    }
    if (file) fclose(file);
    printf("%d %d %d\n", decoded, ran, of);
    return 0;
}
