/* Declares a plan that the search holds, and its changes. */
#ifndef TCC_PLAN_STATE_H
#define TCC_PLAN_STATE_H

#include "network.h"

/* A set of nodes that change together: nodes[first] .. nodes[last-1]. */
typedef struct tcc_move {
    double change; /* change of the cost */
    int32_t first, last;
    bool applied;
} tcc_move;

typedef struct tcc_state {
    const tcc_network *network;
    int32_t *strategies;
    int64_t *usage; /* by section */
    int64_t excess; /* bytes above the limit, summed over sections */
    double cost;
    int32_t *proposed, *nodes;
    int32_t *mark; /* by node: its change is being considered */
    tcc_move *moves;
    int32_t n_moves;
    int64_t steps;
} tcc_state;

tcc_status tcc_state_make(const tcc_network *network, tcc_state *out_state);
void tcc_state_free(tcc_state *state);
/* Sets the plan to `strategies`. */
void tcc_state_set(tcc_state *state, const int32_t *strategies);
double tcc_network_cost(const tcc_network *network, const int32_t *strategies);
/* Accepts differences of `proposed` to the plan that improve it.  The excess of memory never grows,
 * and where it does not shrink, the cost does not grow.  Returns true if the plan changed. */
bool tcc_state_accept(tcc_state *state, const int32_t *among, int32_t count);
/* Exchanges strategies for others with less memory at any cost, until the plan fits or no exchange
 * is left in sections that exceed the limit.  Takes about `steps` steps at most. */
void tcc_state_fit(tcc_state *state, int64_t steps);

#endif
