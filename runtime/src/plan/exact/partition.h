/* The partition planner: one strategy for each node, so that the sum of the costs of nodes and edges
 * is small and the memory in use at any time stays within a limit.  One paragraph a file.
 *
 * Results are functions of the arguments alone, unless a callback ends the search. */
#ifndef TCC_PLAN_PARTITION_H
#define TCC_PLAN_PARTITION_H

#include "../plan.h"

/* A node lives at lower <= time < upper, at no time where that is empty.  Edge e has a cost for each
 * pair of its nodes' strategies, the first node's strategies in rows.  Costs and usages are from 0 to
 * 2^62; `limit` is negative where memory is not limited. */
typedef struct tcc_partition_problem {
    int64_t nodes, edges;
    const int64_t *strategies;      /* how many each node has: at least one */
    const int64_t *lives;           /* lower and upper of each node */
    const int64_t *costs, *usages;  /* of all strategies, node after node */
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
    tcc_halves cost, bound; /* no valid plan costs less than the bound */
    int64_t steps;
    int32_t valid;
    int32_t impossible; /* no valid plan exists */
} tcc_partition;

/* ---- evaluate.c: the meaning of a plan, from the problem alone ----------------------------------- */

/* TCC_INVALID_ARGUMENT, which names the node or edge, for a problem that is none. */
tcc_status tcc_partition_verify(const tcc_partition_problem *problem);
/* The cost of one strategy for each node, and whether memory stays within the limit.  Shares no code
 * with the planner.  TCC_INVALID_ARGUMENT for a strategy that a node does not have. */
tcc_status tcc_partition_check(const tcc_partition_problem *problem, const int32_t *strategies,
                               tcc_halves *out_cost, int32_t *out_valid);

/* ---- partition.c: the planner ---------------------------------------------------------------------- */

/* Searches for about `steps` steps, which count cells of cost tables.  Calls `go_on` between parts of
 * the search, and ends where that returns 0. */
tcc_status tcc_plan_partition(const tcc_partition_problem *problem, int64_t steps,
                              int32_t (*go_on)(void *context, int64_t steps), void *context,
                              int32_t *out_strategies, tcc_partition *out_partition);

#endif
