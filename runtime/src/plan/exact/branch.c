/* Branches and bounds in integers of 128 bits.
 *
 * Nodes get their strategies in order.  The remaining cost is bounded by the sum of two parts: for
 * each node without a strategy its least cost, with its edges to nodes that have one; and the least
 * cost of each other edge.  The remaining memory is bounded by the least memory of each node. */
#include "branch.h"

#include <string.h>

enum { MOST_NODES = 256, MOST_CHOICES = 40, MOST_STRATEGIES = 1024 };

typedef struct branching {
    const tcc_partition_problem *problem;
    const int64_t **costs, **usages; /* by node */
    const int64_t **cells;           /* by edge */
    int64_t *start;
    tcc_wide *reduced; /* by depth and strategy: the cost with the edges to earlier nodes */
    tcc_wide *tail_costs; /* by depth: the least cost of the edges among nodes from it on */
    tcc_wide *usage;   /* where a node begins: memory of nodes with a strategy, and the least memory
                          of the others */
    tcc_wide best;
    int32_t *strategies, *out;
    int64_t steps_end;
    tcc_branch *result;
} branching;

static bool lives_at(const tcc_partition_problem *p, int64_t node, int64_t time) {
    return p->lives[2 * node] <= time && time < p->lives[2 * node + 1];
}

static int64_t minimum(const int64_t *values, int64_t count) {
    int64_t minimum = values[0];
    for (int64_t k = 1; k < count; k++)
        if (values[k] < minimum) minimum = values[k];
    return minimum;
}

/* Adds memory to all times of a node's life.  Returns true if the sums stay within the limit. */
static bool use(branching *b, int64_t node, int64_t change) {
    const tcc_partition_problem *p = b->problem;
    bool fits = true;
    for (int64_t k = 0; k < p->nodes && p->limit >= 0; k++) {
        if (!lives_at(p, k, p->lives[2 * k]) || !lives_at(p, node, p->lives[2 * k])) continue;
        b->usage[k] += change;
        fits &= b->usage[k] <= p->limit;
    }
    return fits;
}

/* Computes the costs of later nodes once `node` has its strategy.  Returns the bound of the
 * remaining cost. */
static tcc_wide reduce(branching *b, int64_t node, int32_t strategy) {
    const tcc_partition_problem *p = b->problem;
    int64_t count = b->start[p->nodes];
    const tcc_wide *from = b->reduced + node * count;
    tcc_wide *to = b->reduced + (node + 1) * count, bound = b->tail_costs[node + 1];
    memcpy(to, from, (size_t)count * sizeof *to);
    for (int64_t e = 0; e < p->edges; e++) {
        int64_t i = p->ends[2 * e], j = p->ends[2 * e + 1], cols = p->strategies[j];
        if (i == node && j > node)
            for (int64_t s = 0; s < cols; s++) to[b->start[j] + s] += b->cells[e][strategy * cols + s];
        if (j == node && i > node)
            for (int64_t s = 0; s < p->strategies[i]; s++)
                to[b->start[i] + s] += b->cells[e][s * cols + strategy];
    }
    for (int64_t i = node + 1; i < p->nodes; i++) {
        tcc_wide low = to[b->start[i]];
        for (int64_t s = b->start[i]; s < b->start[i + 1]; s++)
            if (to[s] < low) low = to[s];
        bound += low;
    }
    b->result->steps += count + p->edges;
    return bound;
}

static void search(branching *b, int64_t node, tcc_wide cost) {
    const tcc_partition_problem *p = b->problem;
    if (node == p->nodes) {
        b->best = cost;
        b->result->has_plan = true;
        memcpy(b->out, b->strategies, (size_t)p->nodes * sizeof *b->out);
        return;
    }
    int64_t count = b->start[p->nodes], low = minimum(b->usages[node], p->strategies[node]);
    for (int32_t s = 0; s < p->strategies[node]; s++) {
        if (b->result->steps >= b->steps_end) b->result->done = false;
        if (!b->result->done) return;
        tcc_wide here = cost + b->reduced[node * count + b->start[node] + s];
        tcc_wide bound = here + reduce(b, node, s);
        b->strategies[node] = s;
        int64_t change = b->usages[node][s] - low;
        if (b->result->has_plan && bound >= b->best) continue;
        if (use(b, node, change)) search(b, node + 1, here);
        (void)use(b, node, -change);
    }
}

/* Sets the search up.  An edge between a node and itself becomes a cost of the node. */
static void begin(branching *b) {
    const tcc_partition_problem *p = b->problem;
    const int64_t *costs = p->costs, *usages = p->usages, *cells = p->edge_costs;
    for (int64_t i = 0; i < p->nodes; i++) {
        b->costs[i] = costs;
        b->usages[i] = usages;
        b->start[i + 1] = b->start[i] + p->strategies[i];
        for (int64_t s = 0; s < p->strategies[i]; s++) b->reduced[b->start[i] + s] = costs[s];
        costs += p->strategies[i];
        usages += p->strategies[i];
    }
    for (int64_t e = 0; e < p->edges; e++) {
        int64_t i = p->ends[2 * e], j = p->ends[2 * e + 1];
        b->cells[e] = cells;
        for (int64_t s = 0; s < p->strategies[i] && i == j; s++)
            b->reduced[b->start[i] + s] += cells[s * (p->strategies[i] + 1)];
        int64_t low = minimum(cells, p->strategies[i] * p->strategies[j]);
        for (int64_t k = 0; k <= (i < j ? i : j) && i != j; k++) b->tail_costs[k] += low;
        cells += p->strategies[i] * p->strategies[j];
    }
    for (int64_t i = 0; i < p->nodes; i++)
        (void)use(b, i, minimum(b->usages[i], p->strategies[i]));
}

static tcc_status run(branching *b) {
    const tcc_partition_problem *p = b->problem;
    size_t n = (size_t)p->nodes, count = 0;
    for (size_t i = 0; i < n; i++) count += (size_t)p->strategies[i];
    b->costs = tcc_allocate_zero(n, sizeof *b->costs);
    b->usages = tcc_allocate_zero(n, sizeof *b->usages);
    b->cells = tcc_allocate_zero((size_t)p->edges, sizeof *b->cells);
    b->start = tcc_allocate_zero(n + 1, sizeof *b->start);
    b->reduced = tcc_allocate_zero((n + 1) * count, sizeof *b->reduced);
    b->tail_costs = tcc_allocate_zero(n + 1, sizeof *b->tail_costs);
    b->usage = tcc_allocate_zero(n, sizeof *b->usage);
    b->strategies = tcc_allocate_zero(n, sizeof *b->strategies);
    if (!b->costs || !b->usages || !b->cells || !b->start || !b->reduced || !b->tail_costs || !b->usage ||
        !b->strategies)
        return TCC_OUT_OF_MEMORY;
    begin(b);
    b->result->done = true;
    bool fits = true;
    for (int64_t k = 0; k < p->nodes; k++) fits &= p->limit < 0 || b->usage[k] <= p->limit;
    if (fits) search(b, 0, 0);
    return TCC_OK;
}

tcc_status tcc_partition_branch(const tcc_partition_problem *problem, int64_t steps,
                                int32_t *out_strategies, tcc_branch *out_branch) {
    *out_branch = (tcc_branch){0};
    int64_t count = 0, choices = 0;
    for (int64_t i = 0; i < problem->nodes && count <= MOST_STRATEGIES; i++) {
        count += problem->strategies[i];
        choices += problem->strategies[i] > 1;
    }
    if (problem->nodes > MOST_NODES || choices > MOST_CHOICES || count > MOST_STRATEGIES)
        return TCC_OK;
    branching b = {
        .problem = problem, .out = out_strategies, .steps_end = steps, .result = out_branch};
    tcc_status status = run(&b);
    tcc_free(b.costs);
    tcc_free(b.usages);
    tcc_free(b.cells);
    tcc_free(b.start);
    tcc_free(b.reduced);
    tcc_free(b.tail_costs);
    tcc_free(b.usage);
    tcc_free(b.strategies);
    return status;
}
