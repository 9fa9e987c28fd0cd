/* ranks.c: for which rank of how many a model is loaded. */
#ifndef TCC_RANKS_H
#define TCC_RANKS_H

#include "runtime.h"

/* Whether the variant runs on that number of ranks; 0: of an artifact that has one plan for all. */
static inline bool tcc_ranks_serve(const tcc_variant *variant, int32_t ranks) {
    return !ranks || variant->ranks == ranks;
}
/* Whether the artifact has a plan for several ranks; else any number runs its only one. */
TCC_RARE bool tcc_ranks_matter(const tcc_artifact *artifact);
/* Sets `ranks` and `rank` of a model that is about to be loaded.  TCC_UNSUPPORTED: the artifact has no
 * plan for that number. */
TCC_RARE tcc_status tcc_ranks_set(const tcc_artifact *artifact, int32_t rank, int32_t ranks,
                                  tcc_model *model);
/* TCC_UNSUPPORTED: the model is loaded for another rank or another number of ranks. */
tcc_status tcc_ranks_check(const tcc_model *model, int32_t rank, int32_t ranks);

#endif
