/* A C program that runs an artifact with no Python in the process.
 *
 *     cc client.c -o client -ldl && ./client ./mlp.so
 *
 * Feeds every f32 input with ones (unknown sizes are 4) and prints the sum of each output. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "tcc.h"

static int allocate(void *arrays, int32_t output, const tcc_tensor *tensor, void **out_data) {
    size_t bytes = tensor->dtype.bits / 8;
    for (int32_t i = 0; i < tensor->ndim; i++) bytes *= (size_t)tensor->shape[i];
    printf("output %d: %zu bytes\n", output, bytes);
    ((void **)arrays)[output] = *out_data = calloc(1, bytes ? bytes : 1);
    ((size_t *)arrays)[8 + output] = bytes / sizeof(float);
    return *out_data == NULL;
}

int main(int argc, char **argv) {
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    const tcc_api *(*get_api)(void) = NULL;
    if (library) *(void **)&get_api = dlsym(library, "tcc_artifact_api");
    if (!get_api) return fprintf(stderr, "%s\n", argc > 1 ? dlerror() : "no artifact"), 1;
    const tcc_api *api = get_api();
    tcc_model *model = NULL;
    if (api->model_get(&model) != TCC_OK) return fprintf(stderr, "%s\n", api->last_error()), 1;
    tcc_tensor inputs[8] = {{0}};
    int32_t n = api->input_count(model);
    for (int32_t i = 0; i < n && i < 8; i++) {
        tcc_port port;
        api->input_port(model, i, &port);
        size_t count = 1;
        int64_t *shape = calloc((size_t)port.ndim + 1, sizeof *shape);
        for (int32_t dim = 0; dim < port.ndim; dim++)
            count *= (size_t)(shape[dim] = port.shape[dim] < 0 ? 4 : port.shape[dim]);
        float *data = calloc(count + 1, sizeof *data);
        for (size_t k = 0; k < count; k++) data[k] = 1;
        inputs[i] = (tcc_tensor){data, {1, 0}, port.ndim, port.dtype, shape, NULL, 0};
    }
    void *arrays[16] = {NULL};
    tcc_allocator allocator = {arrays, allocate};
    tcc_status status = api->call(model, inputs, n, NULL, 0, &allocator, NULL);
    if (status != TCC_OK) fprintf(stderr, "%s\n", api->last_error());
    for (int32_t i = 0; i < api->output_count(model) && i < 8; i++) {
        double sum = 0;
        for (size_t k = 0; k < (size_t)arrays[8 + i]; k++) sum += ((float *)arrays[i])[k];
        printf("%g\n", sum);
        free(arrays[i]);
    }
    for (int32_t i = 0; i < n && i < 8; i++) free(inputs[i].data), free(inputs[i].shape);
    api->model_release(model);
    return status != TCC_OK;
}
