/* Declares the partition planner.  It chooses one strategy for each node, so that the sum of the
 * costs of nodes and edges is small and the memory in use at any time stays within a limit.  One
 * paragraph per file.
 *
 * Results are functions of the arguments alone, unless a callback ends the search. */
#ifndef TCC_PLAN_PARTITION_H
#define TCC_PLAN_PARTITION_H

#include "../plan.h"

/* A partition problem.  A node lives at lower <= time < upper; it never lives where that range is
 * empty.  Edge e has a cost for each pair of its nodes' strategies; rows are the first node's
 * strategies.  Costs and usages are from 0 to 2^62.  A negative `limit` means that memory is not
 * limited. */
typedef struct tcc_partition_problem {
    int64_t nodes, edges;
    const int64_t *strategies;      /* number of strategies of each node: at least one */
    const int64_t *lives;           /* lower and upper of each node */
    const int64_t *costs, *usages;  /* all strategies' numbers, node after node */
    const int64_t *ends;            /* the two nodes of each edge */
    const int64_t *edge_costs;      /* edge after edge */
    int64_t limit;
} tcc_partition_problem;

typedef __int128 tcc_wide;

/* A number of 128 bits: high * 2^64 + low. */
typedef struct tcc_halves {
    uint64_t low;
    int64_t high;
} tcc_halves;

typedef struct tcc_partition {
    tcc_halves cost, bound; /* no valid plan costs less than `bound` */
    int64_t steps;
    int32_t valid;
    int32_t impossible; /* no valid plan exists */
} tcc_partition;

/* ---- evaluate.c: the meaning of a plan, from the problem alone ----------------------------------- */

/* Fails with TCC_INVALID_ARGUMENT, naming the node or edge, where the problem is invalid. */
tcc_status tcc_partition_verify(const tcc_partition_problem *problem);
/* Computes the cost of a plan with one strategy for each node, and whether its memory stays within
 * the limit.  Shares no code with the planner.  Fails with TCC_INVALID_ARGUMENT for a strategy that
 * a node does not have. */
tcc_status tcc_partition_check(const tcc_partition_problem *problem, const int32_t *strategies,
                               tcc_halves *out_cost, int32_t *out_valid);

/* ---- partition.c: the planner ---------------------------------------------------------------------- */

/* Searches for about `steps` steps; a step is one cell of a cost table.  Calls `go_on` between
 * parts of the search, and ends where it returns 0. */
tcc_status tcc_plan_partition(const tcc_partition_problem *problem, int64_t steps,
                              int32_t (*go_on)(void *context, int64_t steps), void *context,
                              int32_t *out_strategies, tcc_partition *out_partition);

#endif
