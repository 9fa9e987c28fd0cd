/* Continues a text of token numbers with a language model, always with the likeliest token.
 *
 *   tcc compile model.gguf -o lm.so
 *   cc models/examples/generate.c -I. ./lm.so -Wl,-rpath,'$ORIGIN' -o generate
 *   ./generate 8 464 3290                            # 8 tokens after 464 3290
 *
 * A run appends a row for each of its tokens to each cache, which holds `capacity` rows. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "lm.h"

static const tcc_api *api;
static tcc_model *model;
static tcc_tensor in[LM_INPUTS], out[LM_OUTPUTS];
static int64_t sizes[LM_INPUTS][8], past, *tokens, row, logit_sizes[2] = {1, LM_OUTPUT_0_DIM_1};
static float logits[LM_OUTPUT_0_DIM_1];

/* Allocates input `index`: the tokens, the number of the row whose logits are wanted, or a
 * cache. */
static void bind(int32_t index, int64_t capacity) {
    tcc_port port;
    api->input_port(model, index, &port);
    int64_t bytes = port.dtype.bits / 8 * capacity;
    sizes[index][0] = 1;
    for (int32_t n = 1; n < port.ndim; n++) bytes *= sizes[index][n] = port.shape[n];
    in[index] = (tcc_tensor){.device = {TCC_CPU, 0}, .ndim = port.ndim, .dtype = port.dtype, .shape = sizes[index]};
    in[index].data = !strcmp(port.name, "tokens") ? tokens : !strcmp(port.name, "rows") ? &row : malloc((size_t)bytes);
}

/* Appends `count` tokens; returns the likeliest next token, or -1. */
static int64_t next(int64_t count) {
    past += count, row = count - 1;
    for (int32_t n = 0; n < LM_INPUTS; n++) /* all inputs except `rows` have a size that grows */
        if (in[n].data != &row) sizes[n][0] = in[n].data == tokens ? count : past;
    if (api->call(model, in, LM_INPUTS, out, LM_OUTPUTS, NULL, NULL)) return -1;
    int64_t best = 0;
    for (int64_t n = 1; n < LM_OUTPUT_0_DIM_1; n++)
        if (logits[n] > logits[best]) best = n;
    return best;
}

int main(int argc, char **argv) {
    int64_t count = argc > 2 ? atoi(argv[1]) : 0, prompt = argc - 2;
    if (count < 1) return fputs("usage: generate COUNT TOKEN...\n", stderr), 2;
    api = lm_api();
    if (api->model_get(&model)) return fputs(api->last_error(), stderr), 1;
    tokens = malloc(sizeof *tokens * (size_t)prompt);
    for (int64_t n = 0; n < prompt; n++) tokens[n] = atoll(argv[2 + n]);
    for (int32_t n = 0; n < LM_INPUTS; n++) bind(n, prompt + count);
    out[0] = (tcc_tensor){logits, {TCC_CPU, 0}, 2, TCC_F32, logit_sizes, NULL, 0};
    tcc_port port; /* the other outputs are caches, updated in place */
    for (int32_t n = 1; n < LM_OUTPUTS; n++) api->output_port(model, n, &port), out[n] = in[port.state];
    for (int64_t n = 0; n < count; n++) {
        if ((tokens[0] = next(n ? 1 : prompt)) < 0) return fputs(api->last_error(), stderr), 1;
        printf("%lld\n", (long long)tokens[0]);
    }
    return 0;
}
