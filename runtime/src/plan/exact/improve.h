/* Declares the search for a better plan. */
#ifndef TCC_PLAN_IMPROVE_H
#define TCC_PLAN_IMPROVE_H

#include "dual.h"
#include "eliminate.h"
#include "plan_state.h"

/* The limits of a search: it ends after about `steps` steps, or where `go_on` (NULL: none) returns
 * 0. */
typedef struct tcc_effort {
    int64_t steps;
    int32_t (*go_on)(void *context, int64_t steps);
    void *context;
} tcc_effort;

typedef struct tcc_improvement {
    const tcc_network *network;
    tcc_dual dual;
    tcc_elimination elimination;
    tcc_state best, trial;
    int32_t *all, *region, *seen; /* nodes; `seen`, by node: the last region that contains it */
    int32_t n_region, regions;
    uint64_t random;
    int32_t turns;
    int64_t passes_since; /* passes since prices changed fast */
    double min_price, bound;
    int64_t hopeless; /* excess of a plan that could not be made to fit */
    tcc_effort effort;
    bool ended;
} tcc_improvement;

tcc_status tcc_improvement_make(const tcc_network *network, const tcc_effort *effort,
                                tcc_improvement *out_improvement);
void tcc_improvement_free(tcc_improvement *improvement);
/* Improves `best` until the steps or `go_on` end the search, or `best` meets the bound. */
void tcc_improve(tcc_improvement *improvement);
int64_t tcc_improvement_steps(const tcc_improvement *improvement);

#endif
