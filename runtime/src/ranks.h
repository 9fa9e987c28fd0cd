/* Declares the choice of a rank (ranks.c) and of a plan (plans.c) for a model, and the check that
 * all ranks have the same plan (compare.c). */
#ifndef TCC_RANKS_H
#define TCC_RANKS_H

#include "runtime.h"

/* Returns true if the variant belongs to plan `plan` for `ranks` ranks.  `ranks` is 0 for an
 * artifact that has one plan for any number. */
static inline bool tcc_ranks_serve(const tcc_variant *variant, int32_t ranks, int32_t plan) {
    return !ranks || (variant->ranks == ranks && variant->plan == plan);
}
/* Returns true if the artifact has a plan for several ranks.  Otherwise any number of ranks runs
 * its only plan. */
TCC_RARE bool tcc_ranks_matter(const tcc_artifact *artifact);
/* Sets `ranks` and `rank` of a model that is about to be loaded.  Fails with TCC_UNSUPPORTED where
 * the artifact has no plan for that number of ranks. */
TCC_RARE tcc_status tcc_ranks_set(const tcc_artifact *artifact, int32_t rank, int32_t ranks,
                                  tcc_model *model);
/* Fails with TCC_UNSUPPORTED where the model is loaded for another rank or another number of
 * ranks. */
tcc_status tcc_ranks_check(const tcc_model *model, int32_t rank, int32_t ranks);
/* Computes the bytes of this process's memory that a rank needs at least for a plan: its weights,
 * and the part of a one-thread instance whose size does not depend on inputs.  The result is 0
 * where the plan may run on a GPU, whose memory is not counted here. */
TCC_RARE tcc_status tcc_variant_bytes(const tcc_artifact *artifact, int32_t ranks, int32_t plan,
                                      uint64_t *out_bytes);
/* Sets `plan` of a model whose rank is set, to the first plan that fits this process's memory.  If
 * there are several plans for the number of ranks and a comm (`comm`, else the process's), the call
 * is an operation of the comm, and the plan is the first that fits all ranks.  Fails with
 * TCC_OUT_OF_MEMORY where no plan fits, and then aborts the comm, if any. */
TCC_RARE tcc_status tcc_plans_choose(const tcc_artifact *artifact, tcc_comm *comm, tcc_model *model);
/* Finds the plans that all ranks can run, from `plans`, which this rank can run; both have one bit
 * per plan.  It is an operation of the comm.  Fails with TCC_MISMATCH on all ranks where they have
 * different files or no plan in common. */
TCC_RARE tcc_status tcc_plans_exchange(const tcc_artifact *artifact, tcc_comm *comm, uint64_t plans,
                                       int32_t ranks, uint64_t *out_common);
/* Compares the loaded files and plans of all ranks, as an operation of the comm.  Fails with
 * TCC_MISMATCH on all ranks where they differ. */
TCC_RARE tcc_status tcc_plans_compare(const tcc_artifact *artifact, const tcc_model *model, tcc_comm *comm);

#endif
