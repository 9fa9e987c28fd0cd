/* A lower bound by reparametrisation, which also says where good plans are. */
#ifndef TCC_PLAN_DUAL_H
#define TCC_PLAN_DUAL_H

#include "network.h"

typedef struct tcc_dual {
    const tcc_network *network;
    double *prices; /* of memory, by section: no less than 0 */
    double *sums;   /* of prices before each section */
    double *costs;  /* by strategy: with the price of its memory and what the node's branches cost */
    double *messages;       /* of halves, by strategies of their nodes */
    int64_t *message_start; /* by half */
    int64_t *usage;         /* by section, of the last pass */
    int32_t *core, *branches; /* nodes; halves of nodes of one neighbour, the outermost first */
    int32_t *best;          /* by node, its best strategy at the last pass */
    bool *outer;            /* by node: whether it is of a branch */
    int32_t n_core, n_branches;
    double *row;
    int64_t steps;
} tcc_dual;

tcc_status tcc_dual_make(const tcc_network *network, tcc_dual *out_dual);
void tcc_dual_free(tcc_dual *dual);
/* Sets the costs after a change of prices. */
void tcc_dual_price(tcc_dual *dual);
/* One pass over all nodes, in order or against it; `strategies` (NULL: not asked for) is a plan that
 * follows it.  Sets the strategies `best`. */
void tcc_dual_pass(tcc_dual *dual, bool backward, int32_t *strategies);
/* Raises the prices of sections where the plan `best` of the last pass uses more than the limit, by at
 * most `rate` of them, and lowers the others'.  `least` is the least price that rises. */
void tcc_dual_reprice(tcc_dual *dual, double rate, double least);
/* A lower bound of the network's cost. */
double tcc_dual_bound(tcc_dual *dual);

#endif
