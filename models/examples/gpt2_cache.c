/* Continues a text of token numbers with GPT-2, one token per run, with a cache of keys and values.
 *
 *   tcc compile gpt2_decode.onnx -o gpt2.so # past_k.N and past_v.N have a symbolic length
 *   cc models/examples/gpt2_cache.c -I. ./gpt2.so -Wl,-rpath,'$ORIGIN' -o gpt2
 *   ./gpt2 8 464 3290 # 8 tokens after 464 3290
 *
 * The model's inputs are the token, its position and the caches [1, heads, length, width] of f32;
 * its outputs are the logits and the caches with one more row. */
#include <stdio.h>
#include <stdlib.h>
#include "gpt2.h"

enum { PORTS = GPT2_INPUTS, CACHES = GPT2_INPUTS - 2 };
_Static_assert(GPT2_OUTPUTS == CACHES + 1, "an output for each cache, and the logits");

static const tcc_api *api;
static tcc_model *model;
static float *cache[2][CACHES], *logits; /* read and written alternately */

static int64_t best(int64_t count) {
    int64_t index = 0;
    for (int64_t n = 1; n < count; n++)
        if (logits[n] > logits[index]) index = n;
    return index;
}

/* Runs the model on `token` at `position`; returns the likeliest next token, or -1. */
static int64_t next(int64_t token, int64_t position) {
    static int64_t narrow[2] = {1, 1}, wide[3] = {1, 1, GPT2_OUTPUT_0_DIM_2};
    static int64_t past[4] = {1, GPT2_INPUT_2_DIM_1, 0, GPT2_INPUT_2_DIM_3}, present[4];
    tcc_tensor in[PORTS] = {0}, out[GPT2_OUTPUTS] = {0};
    in[0] = (tcc_tensor){.data = &token, .device = {1, 0}, .ndim = 2, .dtype = {0, 64, 1}, .shape = narrow};
    in[1] = in[0], in[1].data = &position;
    out[0] = (tcc_tensor){.data = logits, .device = {1, 0}, .ndim = 3, .dtype = {2, 32, 1}, .shape = wide};
    past[2] = position, present[2] = position + 1;
    present[0] = past[0], present[1] = past[1], present[3] = past[3];
    for (int n = 0; n < CACHES; n++) {
        in[2 + n] = out[1 + n] = out[0], in[2 + n].ndim = out[1 + n].ndim = 4;
        in[2 + n].data = cache[position % 2][n], in[2 + n].shape = past;
        out[1 + n].data = cache[(position + 1) % 2][n], out[1 + n].shape = present;
    }
    if (api->call(model, in, PORTS, out, GPT2_OUTPUTS, NULL, NULL)) return -1;
    return best(wide[2]);
}

int main(int argc, char **argv) {
    int64_t count = argc > 2 ? atoi(argv[1]) : 0, prompt = argc - 2, token = 0;
    size_t row = sizeof(float) * GPT2_INPUT_2_DIM_1 * GPT2_INPUT_2_DIM_3;
    api = gpt2_api(), logits = malloc(sizeof(float) * GPT2_OUTPUT_0_DIM_2);
    for (int n = 0; n < 2 * CACHES; n++) cache[n % 2][n / 2] = malloc(row * (size_t)(prompt + count + 1));
    if (count < 1 || api->model_get(&model)) return puts(api->last_error()), 1;
    for (int64_t n = 0; n < prompt + count - 1; n++) {
        token = next(n < prompt ? atoi(argv[2 + n]) : token, n);
        if (token < 0) return puts(api->last_error()), 1;
        if (n >= prompt - 1) printf("%lld\n", (long long)token);
    }
    return 0;
}
