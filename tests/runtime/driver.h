/* Shared by the programs that run whole programs: generated inputs for any port, outputs that are
 * freed together, and kernels that do nothing. */
#ifndef DRIVER_H
#define DRIVER_H

#include <stdio.h>
#include <stdlib.h>

#include "runtime.h"

static void nothing(void *const *b, const int64_t *n, int64_t begin, int64_t end, void *scratch) {
    (void)b, (void)n, (void)begin, (void)end, (void)scratch;
}

/* Reads a program's size (8 bytes) and its bytes. Returns false where the file is no program of
 * that form. */
static inline bool read_program(const char *path, char *bytes, size_t room, int64_t *out_size) {
    FILE *file = fopen(path, "rb");
    if (!file) return false;
    bool is_complete = fread(out_size, 8, 1, file) == 1 && *out_size <= (int64_t)room &&
                 fread(bytes, 1, (size_t)*out_size, file) == (size_t)*out_size;
    fclose(file);
    return is_complete;
}

static int allocate(void *context, int32_t output, const tcc_tensor *tensor, void **out_data) {
    void **blocks = context;
    int64_t bytes = 16; /* bytes of the widest element */
    (void)output;
    for (int32_t i = 0; i < tensor->ndim; i++) {
        if (tensor->shape[i] > 1 << 20 || bytes > 1 << 24) return 1;
        bytes *= tensor->shape[i];
    }
    void **block = NULL;
    if (posix_memalign((void **)&block, 64, (size_t)bytes + 64)) return 1;
    block[0] = *blocks;
    *blocks = block;
    *out_data = (char *)block + 64;
    return 0;
}

static void free_all(void *blocks) {
    while (blocks) {
        void *next = *(void **)blocks;
        free(blocks);
        blocks = next;
    }
}

/* "a", "" and "bc", and a list of the three strings and of three numbers. */
static const tcc_string strings[3] = {{"a", 1}, {NULL, 0}, {"bc", 2}};
static const int64_t numbers[3] = {1, 2, 3};
static int64_t three[1] = {3};
static const tcc_tensor items[2] = {
    {(void *)strings, {1, 0}, 1, {3, 128, 1}, three, NULL, 0},
    {(void *)numbers, {1, 0}, 1, {0, 64, 1}, three, NULL, 0},
};
static const tcc_list list = {2, items};
static const tcc_list *const listed = &list;

/* Makes inputs of zeros, the three strings and the list. Sizes are the port's, or 3 where a run
 * decides. */
static tcc_tensor *make_inputs(const tcc_model *model) {
    static int64_t data[1 << 16];
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
    return inputs;
}

static void free_inputs(const tcc_model *model, tcc_tensor *inputs) {
    for (int32_t i = 0; i < model->program.n_inputs; i++) free(inputs[i].shape);
    free(inputs);
}

/* Decodes a program with `n_kernels` kernels that do nothing and 64 KiB of zeros as weights. */
static tcc_status decode(const char *bytes, int64_t size, int64_t n_kernels, tcc_model *out_model) {
    static char weights[64 << 10];
    tcc_kernel kernels[64];
    for (int i = 0; i < 64; i++) kernels[i] = nothing;
    *out_model = (tcc_model){.threads = 1, .weights = {weights, sizeof weights, NULL, 0}};
    return tcc_program_decode(bytes, (size_t)size, kernels, n_kernels, sizeof weights,
                              &out_model->program);
}

#endif
