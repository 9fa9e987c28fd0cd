/* Chooses which of the plans for a job's number of ranks is loaded: the first that fits the memory
 * of all ranks.  It measures nothing, so equal jobs run equal plans. */
#include <string.h>

#include "collective.h"
#include "ranks.h"

/* ---- memory -------------------------------------------------------------------------------------------- */

static int32_t plan_count(const tcc_artifact *artifact, int32_t ranks) {
    int32_t count = 0;
    for (int32_t i = 0; i < artifact->n_variants; i++) {
        const tcc_variant *variant = &artifact->variants[i];
        if (variant->ranks == ranks && variant->plan >= count) count = variant->plan + 1;
    }
    return count < TCC_MAX_PLANS ? count : TCC_MAX_PLANS;
}

/* The bytes that this process may still take for a model, and the name of the limit. */
typedef struct room {
    size_t bytes;
    const char *source;
} room;

static tcc_status read_room(room *out) {
    size_t limit = 0;
    TCC_RETURN_IF_ERROR(tcc_memory_limit(&limit));
    *out = (room){tcc_budget_left(tcc_process_budget()), "the system leaves this process"};
    if (limit && limit < out->bytes) *out = (room){limit, "TCC_MEMORY allows"};
    return TCC_OK;
}

/* The plans for a number of ranks that fit, one bit each, and the bytes of the smallest plan.  A
 * plan that this machine cannot run has no bit.  If it can run no plan, the first has a bit, and
 * opening it reports the reason. */
typedef struct fit {
    uint64_t plans, smallest;
} fit;

static fit find_fitting(const tcc_artifact *artifact, int32_t ranks, size_t room) {
    fit all = {0, UINT64_MAX};
    uint64_t bytes;
    for (int32_t plan = 0, count = plan_count(artifact, ranks); plan < count; plan++) {
        if (tcc_variant_bytes(artifact, ranks, plan, &bytes) != TCC_OK) continue;
        if (bytes <= room) all.plans |= UINT64_C(1) << plan;
        if (bytes < all.smallest) all.smallest = bytes;
    }
    if (all.smallest == UINT64_MAX) all.plans = 1;
    return all;
}

/* Refuses to load.  Names the plan that would fit with the fewest ranks, else the plan that needs
 * the least memory. */
static tcc_status refuse(const tcc_artifact *artifact, int32_t ranks, uint64_t bytes, const room *room) {
    int32_t best = ranks;
    uint64_t smallest = bytes;
    for (int32_t other = 1; other <= TCC_MAX_RANKS && smallest > room->bytes; other++) {
        fit its = find_fitting(artifact, other, room->bytes);
        if (its.smallest >= smallest) continue;
        smallest = its.smallest;
        best = other;
    }
    bool fits = smallest <= room->bytes;
    return tcc_fail(TCC_OUT_OF_MEMORY,
                    "model '%s' needs %llu bytes a rank on %d rank%s, for weights and a run, and %s %zu: %s "
                    "%d rank%s needs %llu bytes a rank: %s",
                    artifact->name, (unsigned long long)bytes, ranks, ranks == 1 ? "" : "s", room->source,
                    room->bytes, fits ? "its plan for" : "no plan in the file fits; that for", best,
                    best == 1 ? "" : "s", (unsigned long long)smallest,
                    fits ? "start as many, as with tcc run --nproc"
                         : "allow more memory, or compile the model with --ranks for more ranks");
}

/* ---- the choice ---------------------------------------------------------------------------------------- */

static tcc_status choose(const tcc_artifact *artifact, tcc_comm *comm, tcc_model *model) {
    room room;
    TCC_RETURN_IF_ERROR(read_room(&room));
    fit its = find_fitting(artifact, model->ranks, room.bytes);
    uint64_t common = its.plans;
    if (comm && plan_count(artifact, model->ranks) > 1) {
        tcc_status status = tcc_plans_exchange(artifact, comm, its.plans, model->ranks, &common);
        if (status != TCC_OK && its.plans) return status;
    }
    if (!its.plans) return refuse(artifact, model->ranks, its.smallest, &room);
    model->plan = __builtin_ctzll(common);
    return TCC_OK;
}

tcc_status tcc_plans_choose(const tcc_artifact *artifact, tcc_comm *comm, tcc_model *model) {
    tcc_comm *shared = comm ? NULL : tcc_collective_shared();
    if (shared) comm = shared;
    tcc_status status = choose(artifact, comm, model);
    if (status != TCC_OK && comm && model->ranks > 1) tcc_collective_leave(comm);
    tcc_collective_drop(shared);
    return status;
}
