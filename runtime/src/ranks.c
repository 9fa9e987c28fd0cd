/* For which rank of how many a model is loaded.  An artifact may have a plan, which is a variant, for each
 * of several numbers of ranks; each rank has weights of its own. */
#include <string.h>

#include "collective.h"
#include "launchers.h"
#include "ranks.h"

static bool has_plans(const tcc_artifact *artifact) {
    for (int32_t i = 0; i < artifact->n_variants; i++)
        if (artifact->variants[i].ranks > 1) return true;
    return false;
}

static bool has_plan(const tcc_artifact *artifact, int32_t ranks) {
    for (int32_t i = 0; i < artifact->n_variants; i++)
        if (artifact->variants[i].ranks == ranks) return true;
    return false;
}

/* `1, 2, 4`: the numbers of ranks that the artifact has plans for, in order. */
static const char *plans_text(const tcc_artifact *artifact, char text[320]) {
    size_t used = 0;
    *text = 0;
    for (int32_t ranks = 1; ranks <= TCC_MAX_RANKS; ranks++)
        if (has_plan(artifact, ranks))
            used += (size_t)snprintf(text + used, 320 - used, used ? ", %d" : "%d", ranks);
    return text;
}

static tcc_status read_comm(const tcc_comm *comm, tcc_model *model) {
    TCC_RETURN_IF_ERROR(tcc_collective_fits(comm));
    model->ranks = tcc_collective_table(comm)->size(comm);
    model->rank = tcc_collective_table(comm)->rank(comm);
    return TCC_OK;
}

static tcc_status find_ranks(const tcc_comm *comm, tcc_model *model) {
    if (comm) return read_comm(comm, model);
    tcc_comm *shared = tcc_collective_shared();
    if (shared) {
        tcc_status status = read_comm(shared, model);
        tcc_collective_drop(shared);
        return status;
    }
    tcc_launch launch;
    bool found = false;
    TCC_RETURN_IF_ERROR(tcc_launch_read(&launch, &found));
    model->ranks = found ? launch.size : 1;
    model->rank = found ? launch.rank : 0;
    return TCC_OK;
}

tcc_status tcc_ranks_choose(const tcc_artifact *artifact, const tcc_comm *comm, tcc_model *model) {
    char text[320];
    model->ranks = model->rank = 0;
    if (!has_plans(artifact)) return TCC_OK;
    TCC_RETURN_IF_ERROR(find_ranks(comm, model));
    int32_t ranks = model->ranks;
    if (!has_plan(artifact, ranks))
        return tcc_fail(TCC_UNSUPPORTED,
                        "the job has %d rank%s, and model '%s' was compiled for these numbers of ranks: "
                        "%s: start as many, as with tcc run --nproc, or compile it with --ranks %d",
                        ranks, ranks == 1 ? "" : "s", artifact->name, plans_text(artifact, text), ranks);
    if (model->rank >= 0 && model->rank < ranks) return TCC_OK;
    return tcc_fail(TCC_INVALID_ARGUMENT, "rank %d of %d ranks: ranks count from 0", model->rank, ranks);
}

tcc_status tcc_ranks_check(const tcc_model *model, const tcc_comm *comm) {
    const tcc_comm_table *table = tcc_collective_table(comm);
    char text[320];
    if (!model->ranks) return TCC_OK;
    TCC_RETURN_IF_ERROR(tcc_collective_fits(comm));
    int32_t ranks = table->size(comm), rank = table->rank(comm);
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
