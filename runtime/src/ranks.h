/* ranks.c: for which rank of how many a model is loaded; plans.c: by which plan; compare.c: whether all
 * ranks have that plan. */
#ifndef TCC_RANKS_H
#define TCC_RANKS_H

#include "runtime.h"

/* Whether the variant is of that plan for that number of ranks; 0 ranks: of an artifact that has one plan
 * for all. */
static inline bool tcc_ranks_serve(const tcc_variant *variant, int32_t ranks, int32_t plan) {
    return !ranks || (variant->ranks == ranks && variant->plan == plan);
}
/* Whether the artifact has a plan for several ranks; else any number runs its only one. */
TCC_RARE bool tcc_ranks_matter(const tcc_artifact *artifact);
/* Sets `ranks` and `rank` of a model that is about to be loaded.  TCC_UNSUPPORTED: the artifact has no
 * plan for that number. */
TCC_RARE tcc_status tcc_ranks_set(const tcc_artifact *artifact, int32_t rank, int32_t ranks,
                                  tcc_model *model);
/* TCC_UNSUPPORTED: the model is loaded for another rank or another number of ranks. */
tcc_status tcc_ranks_check(const tcc_model *model, int32_t rank, int32_t ranks);
/* Bytes of this process's memory that a rank needs at least for a plan: its weights, and what an instance of
 * one thread holds of sizes that inputs do not change.  0: the plan may run on a GPU, whose memory nobody
 * counts here. */
TCC_RARE tcc_status tcc_variant_bytes(const tcc_artifact *artifact, int32_t ranks, int32_t plan,
                                      uint64_t *out_bytes);
/* Sets `plan` of a model whose rank is set: the first that fits the memory of this process.  With `comm`,
 * or else the process's comm, and several plans for its number of ranks, this is an operation of the comm,
 * and the first that fits all ranks.  TCC_OUT_OF_MEMORY: none fits, and the comm, if any, is aborted. */
TCC_RARE tcc_status tcc_plans_choose(const tcc_artifact *artifact, tcc_comm *comm, tcc_model *model);
/* An operation of the comm: the plans that all its ranks can run, a bit each, of the `plans` that this one
 * can.  TCC_MISMATCH on all ranks: they have other files, or no plan in common. */
TCC_RARE tcc_status tcc_plans_exchange(const tcc_artifact *artifact, tcc_comm *comm, uint64_t plans,
                                       int32_t ranks, uint64_t *out_common);
/* An operation of the comm.  TCC_MISMATCH on all ranks: they have loaded other files or other plans. */
TCC_RARE tcc_status tcc_plans_compare(const tcc_artifact *artifact, const tcc_model *model, tcc_comm *comm);

#endif
