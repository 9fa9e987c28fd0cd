/* Declares the problem as the search sees it, without the parts that cannot matter. */
#ifndef TCC_PLAN_NETWORK_H
#define TCC_PLAN_NETWORK_H

#include "partition.h"

/* The costs of an edge.  Edges with equal costs share one table, so that equal blocks of a model
 * are read into caches and reduced once. */
typedef struct tcc_table {
    int32_t rows, cols;
    uint64_t hash;
    double *cells, *flipped; /* row by row, and column by column */
} tcc_table;

/* Edge e joins nodes ends[2 * e] < ends[2 * e + 1]; half h of edge h / 2 belongs to ends[h].  A
 * node lives in sections first .. last-1.  Only sections in which memory can exceed the limit are
 * counted. */
typedef struct tcc_network {
    int32_t nodes, edges, sections, tables;
    int32_t widest; /* the largest number of strategies of a node */
    int64_t *start; /* strategies start[i] .. start[i + 1]-1 are node i's */
    int32_t *origin; /* a strategy's number in the problem */
    double *costs;
    int64_t *usages, *bytes; /* in units of 2^shift, and in bytes as the problem has them */
    int32_t shift;
    int32_t *first, *last;
    int64_t limit;
    int32_t *ends, *table_of;
    int64_t *half_start; /* the halves of node i begin at halves[half_start[i]] */
    int32_t *halves;
    tcc_table *table;
    int64_t room; /* room for tables */
    int32_t *slots;
    int64_t n_slots;
    int64_t steps; /* steps taken to build it */
} tcc_network;

tcc_status tcc_network_make(const tcc_partition_problem *problem, tcc_network *out_network);
void tcc_network_free(tcc_network *network);

static inline int32_t tcc_width(const tcc_network *m, int32_t node) {
    return (int32_t)(m->start[node + 1] - m->start[node]);
}

/* Returns the costs of half `half`'s edge; rows are the strategies of the half's own node. */
static inline const double *tcc_cells(const tcc_network *m, int32_t half) {
    const tcc_table *table = &m->table[m->table_of[half / 2]];
    return half & 1 ? table->flipped : table->cells;
}

/* ---- tables.c: tables, each once ------------------------------------------------------------------- */

/* Returns the number of the table with these cells, which it copies if it is new; -1 without
 * memory. */
int32_t tcc_network_table(tcc_network *network, int32_t rows, int32_t cols, const double *cells);
void tcc_network_free_tables(tcc_network *network);

/* ---- sections.c: the times that matter -------------------------------------------------------------- */

tcc_status tcc_network_sections(const tcc_partition_problem *problem, tcc_network *network);

/* ---- dominated.c: strategies that no plan needs ------------------------------------------------------ */

/* Removes strategies for which another strategy of the node is never worse.  Stores how many. */
tcc_status tcc_network_reduce(tcc_network *network, int64_t *out_count);

#endif
