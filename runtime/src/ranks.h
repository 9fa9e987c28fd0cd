/* ranks.c: for which rank of how many a model is loaded. */
#ifndef TCC_RANKS_H
#define TCC_RANKS_H

#include "runtime.h"

/* Whether the variant runs on that number of ranks; 0: of an artifact that has one plan for all. */
static inline bool tcc_ranks_serve(const tcc_variant *variant, int32_t ranks) {
    return !ranks || variant->ranks == ranks;
}
/* Sets `ranks` and `rank` of a model that is about to be loaded: those of `comm`, else those of the
 * process's comm, else what a launcher says, else one rank.  Zeros where the artifact has one plan, for
 * any number of ranks.  TCC_UNSUPPORTED: the artifact has no plan for that number. */
TCC_RARE tcc_status tcc_ranks_choose(const tcc_artifact *artifact, const tcc_comm *comm,
                                     tcc_model *model);
/* TCC_UNSUPPORTED: the model is loaded for another rank, or another number of ranks, than the comm's. */
tcc_status tcc_ranks_check(const tcc_model *model, const tcc_comm *comm);

#endif
