/* Declares the complete search for small problems. */
#ifndef TCC_PLAN_BRANCH_H
#define TCC_PLAN_BRANCH_H

#include "partition.h"

typedef struct tcc_branch {
    bool done;  /* the plan is optimal, or no valid plan exists */
    bool has_plan; /* a valid plan */
    int64_t steps;
} tcc_branch;

/* Finds the best plan by complete search, within about `steps` steps. Does nothing for larger
 * problems. */
tcc_status tcc_partition_branch(const tcc_partition_problem *problem, int64_t steps,
                                int32_t *out_strategies, tcc_branch *out_branch);

#endif
