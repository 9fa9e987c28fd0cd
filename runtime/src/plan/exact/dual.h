/* Declares a lower bound by reparametrisation, which also guides the search to good plans. */
#ifndef TCC_PLAN_DUAL_H
#define TCC_PLAN_DUAL_H

#include "network.h"

typedef struct tcc_dual {
    const tcc_network *network;
    double *prices; /* prices of memory, by section: never below 0 */
    double *sums;   /* sums of the prices before each section */
    double *costs;  /* by strategy: with the price of its memory and the cost of the node's
                       branches */
    double *messages;       /* by half, for each strategy of its node */
    int64_t *message_start; /* first message of each half */
    int64_t *usage;         /* memory by section in the last pass */
    int32_t *core, *branches; /* core nodes; halves of nodes with one neighbour, the outermost
                                 first */
    int32_t *best;          /* by node: its best strategy in the last pass */
    bool *outer;            /* by node: it belongs to a branch */
    int32_t n_core, n_branches;
    double *row;
    int64_t steps;
} tcc_dual;

tcc_status tcc_dual_make(const tcc_network *network, tcc_dual *out_dual);
void tcc_dual_free(tcc_dual *dual);
/* Recomputes the costs after a change of prices. */
void tcc_dual_price(tcc_dual *dual);
/* Makes one pass over all nodes, in order or in reverse.  Sets the strategies `best`.
 * `strategies`, if not NULL, receives a plan that follows the messages. */
void tcc_dual_pass(tcc_dual *dual, bool backward, int32_t *strategies);
/* Raises the prices of sections where the plan `best` of the last pass uses more memory than the
 * limit, by at most the factor `rate`, and lowers the other sections' prices.  `min_price` is the
 * smallest price from which one rises. */
void tcc_dual_reprice(tcc_dual *dual, double rate, double min_price);
/* Returns a lower bound of the network's cost. */
double tcc_dual_bound(tcc_dual *dual);

#endif
