/* Runs an artifact of fixed sizes once: its inputs come from standard input, outputs go to standard output.
 *
 *   cc -O2 models/examples/container/run.c -Iruntime/include -ldl -o run
 *   ./run ./mobilenet.so <x.f32 >y.f32           # arrays as raw bytes, in the order of the ports
 *
 * The Dockerfile beside it puts the program and an artifact into an image without anything else. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include "tcc.h"

enum { MOST = 64 };

static int fail(const char *call, const char *why) {
    fprintf(stderr, "%s: %s\n", call, why);
    return 1;
}

/* Describes a port as an array of its own memory; returns its bytes, or 0 if only a run knows them. */
static size_t array_of(const tcc_port *port, tcc_tensor *array) {
    size_t bytes = (size_t)port->dtype.bits * port->dtype.lanes / 8;
    for (int n = 0; n < port->ndim; n++)
        if (port->shape[n] < 0 || __builtin_mul_overflow(bytes, (size_t)port->shape[n], &bytes)) return 0;
    *array = (tcc_tensor){.data = malloc(bytes), .device = {1, 0}, .ndim = port->ndim, .dtype = port->dtype};
    array->shape = (int64_t *)port->shape;
    return array->data ? bytes : 0;
}

int main(int argc, char **argv) {
    static tcc_port ports[2][MOST];
    static tcc_tensor arrays[2][MOST];
    size_t bytes[2][MOST];
    if (argc != 2) return fail("usage", "run ARTIFACT <inputs >outputs");
    void *file = dlopen(argv[1], RTLD_NOW);
    if (!file) return fail(argv[1], dlerror());
    const tcc_api *(*entry)(void) = (const tcc_api *(*)(void))dlsym(file, "tcc_artifact_api");
    if (!entry) return fail(argv[1], "it is no artifact of tcc");
    const tcc_api *api = entry();
    tcc_model *model;
    if (api->model_get(&model)) return fail(argv[1], api->last_error());
    int counts[2] = {api->input_count(model), api->output_count(model)};
    for (int kind = 0; kind < 2; kind++) {
        if (counts[kind] > MOST) return fail(argv[1], "it has too many inputs or outputs");
        for (int n = 0; n < counts[kind]; n++) {
            if ((kind ? api->output_port : api->input_port)(model, n, &ports[kind][n]))
                return fail(argv[1], api->last_error());
            bytes[kind][n] = array_of(&ports[kind][n], &arrays[kind][n]);
            if (!bytes[kind][n]) return fail(ports[kind][n].name, "its size is not fixed, or memory is short");
            if (!kind && fread(arrays[0][n].data, 1, bytes[0][n], stdin) != bytes[0][n])
                return fail(ports[0][n].name, "standard input is too short");
        }
    }
    if (api->call(model, arrays[0], counts[0], arrays[1], counts[1], NULL, NULL))
        return fail(argv[1], api->last_error());
    for (int n = 0; n < counts[1]; n++)
        if (fwrite(arrays[1][n].data, 1, bytes[1][n], stdout) != bytes[1][n]) return fail("output", "not written");
    return fflush(stdout) ? fail("output", "not written") : 0;
}
