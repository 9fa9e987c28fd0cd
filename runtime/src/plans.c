/* Which of the plans for a job's number of ranks is loaded: the first that fits the memory of all ranks.
 * Nothing is measured, so equal jobs run equal plans.  Ranks compare what they have loaded before they run
 * it. */
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

/* Bytes that this process may still take for a model, and who says so. */
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

/* The plans for a number of ranks that fit, a bit each, and the bytes of the smallest of all.  A plan that
 * this machine cannot run has no bit; where it can run none, the first has one, and opening it says why. */
typedef struct fit {
    uint64_t plans, least;
} fit;

static fit find_fitting(const tcc_artifact *artifact, int32_t ranks, size_t room) {
    fit all = {0, UINT64_MAX};
    uint64_t bytes;
    for (int32_t plan = 0, count = plan_count(artifact, ranks); plan < count; plan++) {
        if (tcc_variant_bytes(artifact, ranks, plan, &bytes) != TCC_OK) continue;
        if (bytes <= room) all.plans |= UINT64_C(1) << plan;
        if (bytes < all.least) all.least = bytes;
    }
    if (all.least == UINT64_MAX) all.plans = 1;
    return all;
}

/* Names the plan that would fit: for the fewest ranks; else the one that needs least. */
static tcc_status refuse(const tcc_artifact *artifact, int32_t ranks, uint64_t bytes, const room *room) {
    int32_t best = ranks;
    uint64_t least = bytes;
    for (int32_t other = 1; other <= TCC_MAX_RANKS && least > room->bytes; other++) {
        fit its = find_fitting(artifact, other, room->bytes);
        if (its.least >= least) continue;
        least = its.least;
        best = other;
    }
    bool fits = least <= room->bytes;
    return tcc_fail(TCC_OUT_OF_MEMORY,
                    "model '%s' needs %llu bytes a rank on %d rank%s, for weights and a run, and %s %zu: %s "
                    "%d rank%s needs %llu bytes a rank: %s",
                    artifact->name, (unsigned long long)bytes, ranks, ranks == 1 ? "" : "s", room->source,
                    room->bytes, fits ? "its plan for" : "no plan in the file fits; that for", best,
                    best == 1 ? "" : "s", (unsigned long long)least,
                    fits ? "start as many, as with tcc run --nproc"
                         : "allow more memory, or compile the model with --ranks for more ranks");
}

/* ---- all ranks ----------------------------------------------------------------------------------------- */

/* What a rank tells the others: its file, and the plans that it can run, a bit each. */
typedef struct claim {
    uint8_t sha256[32];
    uint64_t plans;
    char name[24];
} claim;
_Static_assert(sizeof(claim) == 64, "ranks with other files exchange as many bytes");

static tcc_status differ(const claim *all, int32_t rank) {
    char hashes[2][17];
    for (int i = 0; i < 16; i += 2) {
        snprintf(hashes[0] + i, 3, "%02x", all[0].sha256[i / 2]);
        snprintf(hashes[1] + i, 3, "%02x", all[rank].sha256[i / 2]);
    }
    return tcc_fail(TCC_MISMATCH,
                    "ranks have loaded different files: rank 0 has model '%.23s' with the hash %s, rank %d "
                    "model '%.23s' with the hash %s: load one file on all ranks",
                    all[0].name, hashes[0], rank, all[rank].name, hashes[1]);
}

static tcc_status none_in_common(const tcc_artifact *artifact, const claim *all, int32_t ranks) {
    char text[512] = "";
    size_t used = 0;
    for (int32_t rank = 0; rank < ranks && used < sizeof text - 64; rank++) {
        used += (size_t)snprintf(text + used, sizeof text - used, "%srank %d:%s", rank ? ", " : "", rank,
                                 all[rank].plans ? "" : " none");
        for (int32_t plan = 0; plan < TCC_MAX_PLANS && used < sizeof text - 16; plan++)
            if (all[rank].plans >> plan & 1)
                used += (size_t)snprintf(text + used, sizeof text - used, " %d", plan + 1);
    }
    return tcc_fail(TCC_MISMATCH,
                    "ranks have loaded, or have memory for, different plans of model '%s' for %d ranks (%s): "
                    "open the comm before the model is loaded, and give the ranks equal memory",
                    artifact->name, ranks, text);
}

/* The plans that all ranks can run. */
static tcc_status exchange(const tcc_artifact *artifact, tcc_comm *comm, uint64_t own, int32_t ranks,
                           uint64_t *out_common) {
    const tcc_comm_table *table = tcc_collective_table(comm);
    claim mine = {.plans = own}, all[TCC_MAX_RANKS];
    const tcc_comm_call call = {.struct_size = sizeof call,
                                .kind = TCC_COMM_ALL_GATHER,
                                .dtype = {1, 8, 1},
                                .count = sizeof mine};
    memcpy(mine.sha256, artifact->sha256, sizeof mine.sha256);
    snprintf(mine.name, sizeof mine.name, "%s", artifact->name);
    tcc_status status = table->issue(comm, &call, &mine, all);
    if (status != TCC_OK)
        return tcc_fail(status, "rank %d, while ranks compare their models: %.600s", table->rank(comm),
                        table->last_error());
    *out_common = own;
    for (int32_t rank = 0; rank < ranks; rank++) {
        if (memcmp(all[rank].sha256, all[0].sha256, sizeof all->sha256)) return differ(all, rank);
        *out_common &= all[rank].plans;
    }
    return *out_common ? TCC_OK : none_in_common(artifact, all, ranks);
}

tcc_status tcc_plans_compare(const tcc_artifact *artifact, const tcc_model *model, tcc_comm *comm) {
    uint64_t common;
    return exchange(artifact, comm, UINT64_C(1) << model->plan, model->ranks, &common);
}

static tcc_status choose(const tcc_artifact *artifact, tcc_comm *comm, tcc_model *model) {
    room room;
    TCC_RETURN_IF_ERROR(read_room(&room));
    fit its = find_fitting(artifact, model->ranks, room.bytes);
    uint64_t common = its.plans;
    if (comm && plan_count(artifact, model->ranks) > 1) {
        tcc_status status = exchange(artifact, comm, its.plans, model->ranks, &common);
        if (status != TCC_OK && its.plans) return status;
    }
    if (!its.plans) return refuse(artifact, model->ranks, its.least, &room);
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
