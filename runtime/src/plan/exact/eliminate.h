/* Declares exact minimisation over a part of a network, while the rest keeps its strategies. */
#ifndef TCC_PLAN_ELIMINATE_H
#define TCC_PLAN_ELIMINATE_H

#include "network.h"

/* A half of an edge between remaining nodes.  Its other half is number ^ 1. */
typedef struct tcc_link {
    int32_t node, other, next, previous;
    const double *cells; /* rows are strategies of `node` */
} tcc_link;

typedef struct tcc_elimination {
    const tcc_network *network;
    uint64_t random;
    int64_t steps;
    double *costs; /* by strategy: set by the caller; run() changes them */
    int32_t *degree, *head, *order, *remaining, *place, *few, *two;
    int8_t *state; /* by node: a value of enum place */
    tcc_link *links;
    double *cells; /* cells of the edges that elimination adds */
    int64_t n_cells, cells_room;
    int32_t n_links, n_order, n_remaining, n_few, n_two;
    double *row;
} tcc_elimination;

tcc_status tcc_elimination_make(const tcc_network *network, tcc_elimination *out_elimination);
void tcc_elimination_free(tcc_elimination *elimination);

/* Sets `strategies` of the `count` nodes so that costs and edges have a minimum.  A few of the
 * nodes keep their strategies, as do all nodes outside.  The sum never grows. */
void tcc_eliminate(tcc_elimination *elimination, const int32_t *nodes, int32_t count,
                   int32_t *strategies);

static inline uint32_t tcc_random(uint64_t *state) {
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 32);
}

static inline int32_t tcc_random_below(uint64_t *state, int32_t end) {
    return (int32_t)((uint64_t)tcc_random(state) * (uint64_t)end >> 32);
}

#endif
