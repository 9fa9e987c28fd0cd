/* Computes the cost and the memory of a plan from the original problem. */
#include <string.h>

#include "partition.h"

static const int64_t max_cost = INT64_C(1) << 62;
static const int64_t max_nodes = INT64_C(1) << 24, max_cells = INT64_C(1) << 28;

static bool in_range(const int64_t *values, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (values[i] < 0 || values[i] > max_cost) return false;
    return true;
}

static tcc_status verify_nodes(const tcc_partition_problem *p) {
    int64_t total = 0;
    if (p->nodes < 0 || p->nodes > max_nodes || p->edges < 0 || p->edges > max_nodes)
        return tcc_fail(TCC_UNSUPPORTED, "more than 2^24 nodes or edges");
    for (int64_t i = 0; i < p->nodes; i++) {
        int64_t count = p->strategies[i];
        if (count < 1)
            return tcc_fail(TCC_INVALID_ARGUMENT, "node %lld has no strategy", (long long)i);
        if (count > max_cells - total)
            return tcc_fail(TCC_UNSUPPORTED, "the nodes have more than 2^28 strategies");
        if (!in_range(p->costs + total, count) || !in_range(p->usages + total, count))
            return tcc_fail(TCC_INVALID_ARGUMENT,
                            "node %lld has a cost or usage that is not from 0 to 2^62",
                            (long long)i);
        total += count;
    }
    return TCC_OK;
}

static tcc_status verify_edges(const tcc_partition_problem *p) {
    int64_t total = 0;
    for (int64_t e = 0; e < p->edges; e++) {
        int64_t a = p->ends[2 * e], b = p->ends[2 * e + 1];
        if (a < 0 || b < 0 || a >= p->nodes || b >= p->nodes)
            return tcc_fail(TCC_INVALID_ARGUMENT, "edge %lld has a node that is none",
                            (long long)e);
        int64_t rows = p->strategies[a], cols = p->strategies[b];
        if (rows > (max_cells - total) / cols)
            return tcc_fail(TCC_UNSUPPORTED, "the edges have more than 2^28 costs");
        if (!in_range(p->edge_costs + total, rows * cols))
            return tcc_fail(TCC_INVALID_ARGUMENT,
                            "edge %lld has a cost that is not from 0 to 2^62", (long long)e);
        total += rows * cols;
    }
    return TCC_OK;
}

tcc_status tcc_partition_verify(const tcc_partition_problem *problem) {
    TCC_RETURN_IF_ERROR(verify_nodes(problem));
    return verify_edges(problem);
}

static tcc_wide cost_of(const tcc_partition_problem *p, const int32_t *strategies) {
    tcc_wide cost = 0;
    const int64_t *costs = p->costs, *cells = p->edge_costs;
    for (int64_t i = 0; i < p->nodes; costs += p->strategies[i++]) cost += costs[strategies[i]];
    for (int64_t e = 0; e < p->edges; e++) {
        int64_t a = p->ends[2 * e], b = p->ends[2 * e + 1], cols = p->strategies[b];
        cost += cells[strategies[a] * cols + strategies[b]];
        cells += p->strategies[a] * cols;
    }
    return cost;
}

/* A change in the use of memory. */
typedef struct event {
    int64_t time, change;
} event;

static int by_time(const void *left, const void *right) {
    const event *a = left, *b = right;
    if (a->time != b->time) return a->time < b->time ? -1 : 1;
    return a->change < b->change ? -1 : a->change > b->change; /* ends before begins */
}

static tcc_status check_memory(const tcc_partition_problem *p, const int32_t *strategies,
                               int32_t *out_valid) {
    *out_valid = 1;
    if (p->limit < 0) return TCC_OK;
    event *events = tcc_allocate(2 * (size_t)p->nodes * sizeof *events);
    if (!events) return TCC_OUT_OF_MEMORY;
    int64_t count = 0;
    const int64_t *usages = p->usages;
    for (int64_t i = 0; i < p->nodes; usages += p->strategies[i++]) {
        int64_t usage = usages[strategies[i]];
        if (p->lives[2 * i] >= p->lives[2 * i + 1] || !usage) continue;
        events[count++] = (event){p->lives[2 * i], usage};
        events[count++] = (event){p->lives[2 * i + 1], -usage};
    }
    qsort(events, (size_t)count, sizeof *events, by_time);
    tcc_wide sum = 0;
    for (int64_t k = 0; k < count; k++)
        if ((sum += events[k].change) > p->limit) *out_valid = 0;
    tcc_free(events);
    return TCC_OK;
}

tcc_status tcc_partition_check(const tcc_partition_problem *problem, const int32_t *strategies,
                               tcc_halves *out_cost, int32_t *out_valid) {
    for (int64_t i = 0; i < problem->nodes; i++)
        if (strategies[i] < 0 || strategies[i] >= problem->strategies[i])
            return tcc_fail(TCC_INVALID_ARGUMENT, "node %lld has no strategy %d", (long long)i,
                            strategies[i]);
    tcc_wide cost = cost_of(problem, strategies);
    *out_cost = (tcc_halves){(uint64_t)cost, (int64_t)(cost >> 64)};
    return check_memory(problem, strategies, out_valid);
}
