/* Sets the rank and the number of ranks that a model is loaded for.  An artifact may have plans,
 * which are variants, for several numbers of ranks.  Each rank has its own weights. */
#include "ranks.h"

bool tcc_ranks_matter(const tcc_artifact *artifact) {
    for (int32_t i = 0; i < artifact->n_variants; i++)
        if (artifact->variants[i].ranks > 1) return true;
    return false;
}

static bool has_plan(const tcc_artifact *artifact, int32_t ranks) {
    for (int32_t i = 0; i < artifact->n_variants; i++)
        if (artifact->variants[i].ranks == ranks) return true;
    return false;
}

/* Returns `1, 2, 4`: the numbers of ranks that the artifact has plans for, in order. */
static const char *plans_text(const tcc_artifact *artifact, char text[320]) {
    size_t used = 0;
    *text = 0;
    for (int32_t ranks = 1; ranks <= TCC_MAX_RANKS; ranks++)
        if (has_plan(artifact, ranks))
            used += (size_t)snprintf(text + used, 320 - used, used ? ", %d" : "%d", ranks);
    return text;
}

tcc_status tcc_ranks_set(const tcc_artifact *artifact, int32_t rank, int32_t ranks, tcc_model *model) {
    char text[320];
    model->ranks = ranks;
    model->rank = rank;
    if (!has_plan(artifact, ranks))
        return tcc_fail(TCC_UNSUPPORTED,
                        "the job has %d rank%s, and model '%s' was compiled for these numbers of ranks: "
                        "%s: start as many, as with tcc run --nproc, or compile it with --ranks %d",
                        ranks, ranks == 1 ? "" : "s", artifact->name, plans_text(artifact, text), ranks);
    if (rank >= 0 && rank < ranks) return TCC_OK;
    return tcc_fail(TCC_INVALID_ARGUMENT, "rank %d of %d ranks: ranks count from 0", rank, ranks);
}

tcc_status tcc_ranks_check(const tcc_model *model, int32_t rank, int32_t ranks) {
    char text[320];
    if (!model->ranks) return TCC_OK;
    if (ranks != model->ranks)
        return tcc_fail(TCC_UNSUPPORTED,
                        "the model is loaded for %d rank%s, its comm has %d (the file has plans for %s): "
                        "load it with this comm, where no other module of the process holds it",
                        model->ranks, model->ranks == 1 ? "" : "s", ranks,
                        plans_text(&tcc_artifact_info, text));
    if (rank == model->rank) return TCC_OK;
    return tcc_fail(TCC_UNSUPPORTED,
                    "the model is loaded for rank %d of %d, whose weights it has; in its comm this "
                    "process is rank %d",
                    model->rank, ranks, rank);
}
