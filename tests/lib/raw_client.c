/* Runs an artifact on arrays in files, for machines without Python.
 *
 *     raw_client ./model.so FOLDER
 *
 * Input i is FOLDER/in<i>: its sizes as 64-bit integers (one per dimension of the port), then its
 * elements. Outputs are written in the same format to FOLDER/out<i>. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "tcc.h"

static size_t bytes_of(const tcc_dtype *type, int32_t ndim, const int64_t *shape) {
    size_t count = 1;
    for (int32_t i = 0; i < ndim; i++) count *= (size_t)shape[i];
    return count * type->bits / 8;
}

static FILE *opened(const char *folder, const char *kind, int32_t number, const char *mode) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s%d", folder, kind, number);
    FILE *file = fopen(path, mode);
    if (!file) perror(path), exit(1);
    return file;
}

typedef struct record {
    void *data;
    size_t bytes;
    int32_t ndim;
    int64_t shape[16];
} record;

static int allocate(void *context, int32_t output, const tcc_tensor *tensor, void **out_data) {
    record *its = (record *)context + output;
    its->ndim = tensor->ndim;
    for (int32_t i = 0; i < tensor->ndim; i++) its->shape[i] = tensor->shape[i];
    its->bytes = bytes_of(&tensor->dtype, tensor->ndim, tensor->shape);
    its->data = *out_data = aligned_alloc(64, (its->bytes / 64 + 1) * 64);
    return *out_data == NULL;
}

static void read_input(const tcc_port *port, FILE *file, tcc_tensor *out_tensor) {
    int64_t *shape = calloc((size_t)port->ndim + 1, sizeof *shape);
    if (fread(shape, sizeof *shape, (size_t)port->ndim, file) != (size_t)port->ndim) exit(1);
    size_t bytes = bytes_of(&port->dtype, port->ndim, shape);
    void *data = aligned_alloc(64, (bytes / 64 + 1) * 64);
    if (fread(data, 1, bytes, file) != bytes) exit(1);
    *out_tensor = (tcc_tensor){data, {1, 0}, port->ndim, port->dtype, shape, NULL, 0};
    fclose(file);
}

int main(int argc, char **argv) {
    void *library = argc == 3 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    const tcc_api *(*get_api)(void) = NULL;
    if (library) *(void **)&get_api = dlsym(library, "tcc_artifact_api");
    if (!get_api) return fprintf(stderr, "%s\n", argc == 3 ? dlerror() : "bad arguments"), 1;
    const tcc_api *api = get_api();
    tcc_model *model = NULL;
    if (api->model_get(&model) != TCC_OK) return fprintf(stderr, "%s\n", api->last_error()), 1;
    int32_t n = api->input_count(model), m = api->output_count(model);
    tcc_tensor *inputs = calloc((size_t)n + 1, sizeof *inputs);
    record *outputs = calloc((size_t)m + 1, sizeof *outputs);
    for (int32_t i = 0; i < n; i++) {
        tcc_port port;
        api->input_port(model, i, &port);
        read_input(&port, opened(argv[2], "in", i, "rb"), &inputs[i]);
    }
    tcc_allocator allocator = {outputs, allocate};
    if (api->call(model, inputs, n, NULL, 0, &allocator, NULL) != TCC_OK)
        return fprintf(stderr, "%s\n", api->last_error()), 1;
    for (int32_t i = 0; i < m; i++) {
        FILE *file = opened(argv[2], "out", i, "wb");
        fwrite(outputs[i].shape, sizeof(int64_t), (size_t)outputs[i].ndim, file);
        fwrite(outputs[i].data, 1, outputs[i].bytes, file);
        if (fclose(file)) return perror("out"), 1;
    }
    api->model_release(model);
    return 0;
}
