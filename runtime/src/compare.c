/* Compares the files and plans of a job's ranks. Ranks with different plans would wait for one
 * another, or add arrays that do not belong together. */
#include <string.h>

#include "collective.h"
#include "ranks.h"

/* A rank's message to the others: its file's hash, and one bit per plan that it can run. */
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

tcc_status tcc_plans_exchange(const tcc_artifact *artifact, tcc_comm *comm, uint64_t own_plans, int32_t ranks,
                              uint64_t *out_common) {
    const tcc_comm_table *table = tcc_collective_table(comm);
    claim mine = {.plans = own_plans}, all[TCC_MAX_RANKS];
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
    *out_common = own_plans;
    for (int32_t rank = 0; rank < ranks; rank++) {
        if (memcmp(all[rank].sha256, all[0].sha256, sizeof all->sha256)) return differ(all, rank);
        *out_common &= all[rank].plans;
    }
    return *out_common ? TCC_OK : none_in_common(artifact, all, ranks);
}

tcc_status tcc_plans_compare(const tcc_artifact *artifact, const tcc_model *model, tcc_comm *comm) {
    uint64_t common;
    return tcc_plans_exchange(artifact, comm, UINT64_C(1) << model->plan, model->ranks, &common);
}
