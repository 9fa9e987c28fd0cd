/* Small problems, in full. */
#ifndef TCC_PLAN_BRANCH_H
#define TCC_PLAN_BRANCH_H

#include "partition.h"

typedef struct tcc_branch {
    bool done;  /* the plan is the best, or none is valid */
    bool found; /* a valid plan */
    int64_t steps;
} tcc_branch;

/* The best plan by search in full, within about `steps` steps; does nothing for larger problems. */
tcc_status tcc_partition_branch(const tcc_partition_problem *problem, int64_t steps,
                                int32_t *out_strategies, tcc_branch *out_branch);

#endif
