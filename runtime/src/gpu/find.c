/* Finds the GPU of this machine, and the variant of the artifact for it. */
#include <stdio.h>
#include <string.h>

#include "../ranks.h"
#include "gpu.h"

static const char *const kinds[TCC_PLATFORM_COUNT] = {"cuda", "rocm"};

/* The tables of kernels, by variant. A variant for the CPU has no kernels (n_variants is 0). */
typedef struct search {
    const tcc_artifact *artifact;
    int32_t ranks, plan;
    tcc_gpu_images *tables;
} search;

static tcc_status read_tables(search *in, const char *section) {
    for (int32_t i = 0; i < in->artifact->n_variants; i++) {
        const tcc_variant *variant = &in->artifact->variants[i];
        tcc_range images = variant->images;
        uint64_t size = in->artifact->section_bytes;
        if (!images.bytes || !tcc_ranks_serve(variant, in->ranks, in->plan)) continue;
        bool fits = images.offset <= size && images.bytes <= size - images.offset && images.offset % 64 == 0;
        for (int32_t rank = 0; rank < variant->ranks; rank++) {
            tcc_range weights = variant->weights[rank];
            fits = fits && weights.offset <= size && weights.bytes <= size - weights.offset;
        }
        if (!fits)
            return tcc_fail(TCC_CORRUPT,
                            "the artifact is damaged: its GPU kernels or their weights are not in it");
        TCC_RETURN_IF_ERROR(tcc_gpu_images_decode(section + images.offset, images.bytes,
                                                  variant->n_kernels, &in->tables[i]));
    }
    return TCC_OK;
}

static bool is_of(const search *in, int32_t i, int32_t platform) {
    const tcc_variant *variant = &in->artifact->variants[i];
    return variant->images.bytes && tcc_ranks_serve(variant, in->ranks, in->plan) &&
           in->tables[i].platform == platform;
}

static tcc_status no_variant(const search *in, const tcc_gpu *gpu) {
    const tcc_gpu_driver *driver = gpu->driver;
    char list[512] = "";
    size_t used = 0;
    for (int32_t i = 0; i < in->artifact->n_variants; i++)
        for (int64_t v = 0; is_of(in, i, driver->platform) && v < in->tables[i].n_variants; v++) {
            const tcc_gpu_variant *variant = &in->tables[i].variants[v];
            if (used < sizeof list)
                used += (size_t)snprintf(list + used, sizeof list - used, "%s%s%s",
                                         used ? ", " : "", variant->arch,
                                         variant->form == TCC_FORM_PTX ? " (PTX)" : "");
        }
    return tcc_fail(TCC_UNSUPPORTED,
                    "%s is a %s, and the model was compiled for %s: compile it with --target %s:%.*s",
                    gpu->name, gpu->arch, used ? list : "nothing", kinds[driver->platform],
                    (int)strcspn(gpu->arch, ":"), gpu->arch);
}

/* Finds a platform's device and the best variant for it in all tables; `out_index` is the table's
 * index. */
static tcc_status choose(const search *in, int32_t platform, tcc_gpu *gpu, int32_t *out_index) {
    TCC_RETURN_IF_ERROR(tcc_gpu_driver_get(platform, &gpu->driver));
    TCC_RETURN_IF_ERROR(tcc_gpu_find_device(gpu));
    long best_rank = 0;
    for (int32_t i = 0; i < in->artifact->n_variants; i++) {
        long rank = 0;
        if (!is_of(in, i, platform)) continue;
        const tcc_gpu_variant *variant = tcc_gpu_images_choose(&in->tables[i], gpu->arch, false, &rank);
        if (rank > best_rank) {
            best_rank = rank;
            gpu->variant = variant;
            *out_index = i;
        }
    }
    return best_rank ? TCC_OK : no_variant(in, gpu);
}

/* Tries the platforms in the order of the file. Fails with all reasons where none will do. */
static tcc_status choose_platform(const search *in, tcc_gpu *gpu, int32_t *out_index) {
    char reasons[960] = "";
    size_t used = 0;
    bool tried[TCC_PLATFORM_COUNT] = {false};
    for (int32_t i = 0; i < in->artifact->n_variants; i++) {
        int32_t platform = in->tables[i].platform;
        if (!is_of(in, i, platform) || tried[platform]) continue;
        tried[platform] = true;
        memset(gpu, 0, sizeof *gpu);
        tcc_status status = choose(in, platform, gpu, out_index);
        if (status != TCC_UNSUPPORTED) return status;
        if (used < sizeof reasons)
            used += (size_t)snprintf(reasons + used, sizeof reasons - used, "%s%s", used ? "; " : "",
                                     tcc_last_error());
    }
    return tcc_fail(TCC_UNSUPPORTED, "%s", reasons);
}

tcc_status tcc_gpu_find(const tcc_artifact *artifact, int32_t ranks, int32_t plan, const char *section,
                        const tcc_variant **out_variant, tcc_gpu **out_gpu) {
    size_t count = (size_t)artifact->n_variants;
    search in = {artifact, ranks, plan, tcc_allocate_zero(count, sizeof *in.tables)};
    tcc_gpu *gpu = tcc_allocate_zero(1, sizeof *gpu);
    int32_t index = 0;
    tcc_status status = in.tables && gpu ? read_tables(&in, section) : TCC_OUT_OF_MEMORY;
    if (status == TCC_OK) status = choose_platform(&in, gpu, &index);
    if (status == TCC_OK) {
        gpu->images = in.tables[index]; /* the table with the variant */
        in.tables[index] = (tcc_gpu_images){0};
        *out_variant = &artifact->variants[index];
        *out_gpu = gpu;
    } else {
        tcc_free(gpu);
    }
    for (size_t i = 0; in.tables && i < count; i++) tcc_gpu_images_free(&in.tables[i]);
    tcc_free(in.tables);
    return status;
}
