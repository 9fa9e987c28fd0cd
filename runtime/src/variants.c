/* Chooses which of an artifact's variants runs here: one for a GPU of this machine, else the one
 * for the CPU. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "needs.h"
#include "ranks.h"
#include "runtime.h"

/* ---- the choice ---------------------------------------------------------------------------------------- */

static bool is_for_gpus(const tcc_variant *variant) { return variant->images.bytes > 0; }

static bool serves(const tcc_variant *variant, int32_t ranks, int32_t plan, bool for_gpus) {
    return is_for_gpus(variant) == for_gpus && tcc_ranks_serve(variant, ranks, plan);
}

static bool has_some(const tcc_artifact *artifact, int32_t ranks, int32_t plan, bool for_gpus) {
    for (int32_t i = 0; i < artifact->n_variants; i++)
        if (serves(&artifact->variants[i], ranks, plan, for_gpus)) return true;
    return false;
}

/* Returns the value of TCC_DEVICE (the CPU, or the number of a GPU), or NULL. */
static const char *told_device(void) {
    const char *device = secure_getenv("TCC_DEVICE");
    return device && *device ? device : NULL;
}

static bool is_cpu(const char *device) { return device && !strcmp(device, "cpu"); }

static tcc_status check_features(const tcc_artifact *artifact, const tcc_variant *variant) {
    return tcc_features_check(variant->features, variant->n_features, artifact->name);
}

/* Finds the first variant whose CPU features are there. */
static tcc_status find_for_cpu(const tcc_artifact *artifact, int32_t ranks, int32_t plan,
                               const tcc_variant **out_variant) {
    tcc_status status =
        tcc_fail(TCC_UNSUPPORTED,
                 "TCC_DEVICE is cpu, and model '%s' was compiled for GPUs only: compile it with +cpu "
                 "behind its --target",
                 artifact->name);
    for (int32_t i = 0; i < artifact->n_variants; i++) {
        if (!serves(&artifact->variants[i], ranks, plan, false)) continue;
        status = check_features(artifact, &artifact->variants[i]);
        if (status == TCC_OK) {
            *out_variant = &artifact->variants[i];
            return TCC_OK;
        }
    }
    return status;
}

/* ---- one variant --------------------------------------------------------------------------------------- */

static tcc_status decode(const tcc_variant *variant, tcc_program *out_program) {
    TCC_RETURN_IF_ERROR(
        tcc_program_decode(variant->program, (size_t)(variant->program_end - variant->program),
                           is_for_gpus(variant) ? NULL : variant->kernels, variant->n_kernels,
                           (int64_t)variant->weights->bytes, out_program));
    if (!variant->needs) return TCC_OK;
    tcc_status status = tcc_needs_read(variant->needs, variant->needs_end, out_program);
    if (status != TCC_OK) tcc_program_free(out_program);
    return status;
}

static bool same_port(const tcc_port *a, const tcc_port *b, bool sizes) {
    return !strcmp(a->name, b->name) && !memcmp(&a->dtype, &b->dtype, sizeof a->dtype) &&
           a->ndim == b->ndim && a->state == b->state &&
           (!sizes || !a->ndim || !memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape));
}

/* Returns true if both programs have the same ports. With `with_states` the states have equal sizes, too;
 * the states of another plan need not. */
static bool same_ports(const tcc_program *program, const tcc_program *other, bool with_states) {
    bool same = program->n_inputs == other->n_inputs && program->n_outputs == other->n_outputs;
    for (int32_t i = 0; same && i < program->n_inputs; i++)
        same = same_port(&program->inputs[i].port, &other->inputs[i].port,
                         with_states || !tcc_ports_feeds_state(program, i));
    for (int32_t i = 0; same && i < program->n_outputs; i++)
        same = same_port(&program->outputs[i].port, &other->outputs[i].port,
                         with_states || program->outputs[i].port.state < 0);
    return same;
}

/* Fails unless all variants have the same ports: callers know the ports from the manifest, whatever
 * variant runs. */
static tcc_status check_ports(const tcc_artifact *artifact, const tcc_model *model) {
    for (int32_t i = 0; i < artifact->n_variants; i++) {
        tcc_program other = {0};
        if (&artifact->variants[i] == model->variant) continue;
        TCC_RETURN_IF_ERROR(decode(&artifact->variants[i], &other));
        bool with_states = tcc_ranks_serve(&artifact->variants[i], model->variant->ranks, model->variant->plan);
        bool same = same_ports(&model->program, &other, with_states);
        tcc_program_free(&other);
        if (!same)
            return tcc_fail(TCC_CORRUPT,
                            "the artifact is damaged: its variants for %.128s and %.128s have "
                            "different inputs or outputs",
                            model->variant->target, artifact->variants[i].target);
    }
    return TCC_OK;
}

static tcc_status open_program(const tcc_artifact *artifact, tcc_model *model) {
    TCC_RETURN_IF_ERROR(decode(model->variant, &model->program));
    tcc_status status = check_ports(artifact, model);
    if (status != TCC_OK) tcc_program_free(&model->program);
    return status;
}

/* ---- memory -------------------------------------------------------------------------------------------- */

static int64_t symmetric_bytes(const tcc_program *program) {
    int64_t peak = 0, end;
    for (int64_t i = 0; i < program->n_arena_buffers; i++) {
        const tcc_buffer *buffer = &program->buffers[program->arena_buffers[i]];
        if (buffer->place == TCC_PLACE_SYMMETRIC && program->fixed[buffer->a] && program->fixed[buffer->b] &&
            !__builtin_add_overflow(program->constants[buffer->a], program->constants[buffer->b], &end) &&
            end > peak)
            peak = end;
    }
    return peak;
}

tcc_status tcc_variant_bytes(const tcc_artifact *artifact, int32_t ranks, int32_t plan,
                             uint64_t *out_bytes) {
    const tcc_variant *variant = NULL;
    tcc_program program;
    *out_bytes = 0;
    if (has_some(artifact, ranks, plan, true) && !is_cpu(told_device())) return TCC_OK;
    TCC_RETURN_IF_ERROR(find_for_cpu(artifact, ranks, plan, &variant));
    TCC_RETURN_IF_ERROR(decode(variant, &program));
    const int64_t parts[] = {(int64_t)variant->weights->bytes, program.fixed_arena, program.state_bytes,
                             program.scratch, symmetric_bytes(&program)};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (__builtin_add_overflow(*out_bytes, parts[i], out_bytes)) *out_bytes = UINT64_MAX;
    tcc_program_free(&program);
    return TCC_OK;
}

/* ---- opening ------------------------------------------------------------------------------------------- */

static tcc_status open_on_gpu(const tcc_artifact *artifact, tcc_model *model) {
    const tcc_range all = {0, artifact->section_bytes};
    TCC_RETURN_IF_ERROR(tcc_weights_map(artifact->section_bytes, artifact->section_sha256, all, false,
                                        &model->weights));
    const char *section = model->weights.base;
    tcc_status status = tcc_gpu_find(artifact, model->ranks, model->plan, section, &model->variant, &model->gpu);
    if (status == TCC_OK) status = check_features(artifact, model->variant);
    if (status == TCC_OK) status = open_program(artifact, model);
    if (status == TCC_OK) {
        tcc_range weights = model->variant->weights[model->rank];
        status = tcc_gpu_open(model->gpu, &model->program, section + weights.offset,
                              (size_t)weights.bytes, artifact->name);
        if (status != TCC_OK) tcc_program_free(&model->program);
    }
    if (status != TCC_OK) {
        tcc_gpu_close(model->gpu);
        model->gpu = NULL;
    }
    tcc_weights_unmap(&model->weights); /* the device holds the weights now */
    return status;
}

static tcc_status open_on_cpu(const tcc_artifact *artifact, tcc_model *model) {
    TCC_RETURN_IF_ERROR(find_for_cpu(artifact, model->ranks, model->plan, &model->variant));
    TCC_RETURN_IF_ERROR(open_program(artifact, model));
    tcc_status status = tcc_weights_map(artifact->section_bytes, artifact->section_sha256,
                                        model->variant->weights[model->rank], true, &model->weights);
    if (status != TCC_OK) tcc_program_free(&model->program);
    return status;
}

tcc_status tcc_variant_open(const tcc_artifact *artifact, tcc_model *model) {
    const char *device = told_device();
    bool number = device && !is_cpu(device);
    if (!has_some(artifact, model->ranks, model->plan, true) || is_cpu(device))
        return open_on_cpu(artifact, model);
    tcc_status status = open_on_gpu(artifact, model);
    if (status == TCC_OK || !has_some(artifact, model->ranks, model->plan, false)) return status;
    char reason[640];
    snprintf(reason, sizeof reason, "%s", tcc_last_error());
    /* a caller that names a GPU wants that GPU, and a GPU that fails must be reported */
    if (status != TCC_UNSUPPORTED || number)
        return tcc_fail(status, "%s (the model runs on the CPU too: TCC_DEVICE=cpu)", reason);
    status = open_on_cpu(artifact, model);
    if (status != TCC_UNSUPPORTED) return status;
    char other[320];
    snprintf(other, sizeof other, "%s", tcc_last_error());
    return tcc_fail(status, "%s; %s", other, reason);
}
