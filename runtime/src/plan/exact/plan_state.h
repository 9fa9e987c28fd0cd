/* A plan that the search holds, and its changes. */
#ifndef TCC_PLAN_STATE_H
#define TCC_PLAN_STATE_H

#include "network.h"

/* A set of nodes that change together: nodes[first] .. nodes[last-1]. */
typedef struct tcc_move {
    double change; /* of the cost */
    int32_t first, last;
    bool applied;
} tcc_move;

typedef struct tcc_state {
    const tcc_network *network;
    int32_t *strategies;
    int64_t *usage; /* by section */
    int64_t excess; /* above the limit, summed over sections */
    double cost;
    int32_t *proposed, *nodes;
    int32_t *mark; /* by node: whether its change is looked at */
    tcc_move *moves;
    int32_t n_moves;
    int64_t steps;
} tcc_state;

tcc_status tcc_state_make(const tcc_network *network, tcc_state *out_state);
void tcc_state_free(tcc_state *state);
/* Takes the strategies as they are. */
void tcc_state_set(tcc_state *state, const int32_t *strategies);
double tcc_network_cost(const tcc_network *network, const int32_t *strategies);
/* Takes what is worth it of the differences of `proposed` to the plan: the excess of memory never
 * grows, and where it does not shrink the cost does not grow.  Says whether the plan changed. */
bool tcc_state_accept(tcc_state *state, const int32_t *among, int32_t count);
/* Exchanges strategies for others of less memory, whatever they cost, until the plan fits or none is
 * left where memory is short, in about `steps` steps at most. */
void tcc_state_fit(tcc_state *state, int64_t steps);

#endif
