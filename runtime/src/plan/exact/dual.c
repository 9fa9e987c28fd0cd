/* Sequential reweighted message passing (Kolmogorov, "Convergent tree-reweighted message passing
 * for energy minimization", 2006, and "A new look at reweighted message passing", 2015).
 *
 * A message moves cost between an edge and one of its nodes: the sum stays the same for every plan.
 * So the least cost of each node and of each edge, summed, is a bound, whatever the messages are.
 * A pass takes each node in order.  It moves to the node the least cost of each edge to earlier
 * nodes, and moves an equal part of the node's whole cost to each edge to later nodes.  That never
 * lowers the bound. */
#include "dual.h"

#include <string.h>

#include "vectors.h"

/* Computes messages[half] = the least over t of cells(s, t) - messages[other half](t) */
static void pull(tcc_dual *d, int32_t half) {
    const tcc_network *m = d->network;
    int32_t width = tcc_width(m, m->ends[half]), count = tcc_width(m, m->ends[half ^ 1]);
    const double *cells = tcc_cells(m, half ^ 1), *other = d->messages + d->message_start[half ^ 1];
    double *row = d->messages + d->message_start[half];
    tcc_fill(row, TCC_INFINITY, width);
    for (int32_t t = 0; t < count; t++)
        tcc_least_row(row, cells + (int64_t)t * width, -other[t], width);
    d->steps += (int64_t)width * count;
}

static int32_t best_of(const double *costs, int32_t width) {
    int32_t best = 0;
    for (int32_t s = 1; s < width; s++)
        if (costs[s] < costs[best]) best = s;
    return best;
}

/* Returns a node's best strategy, by the strategies of earlier nodes and the messages of later
 * ones. */
static int32_t decide(const tcc_dual *d, int32_t node, bool backward, const int32_t *strategies) {
    const tcc_network *m = d->network;
    int32_t width = tcc_width(m, node);
    for (int32_t s = 0; s < width; s++) d->row[s] = d->costs[m->start[node] + s];
    for (int64_t k = m->half_start[node]; k < m->half_start[node + 1]; k++) {
        int32_t half = m->halves[k], other = m->ends[half ^ 1];
        if (d->outer[other]) continue;
        bool decided = backward ? other > node : other < node;
        tcc_add_row(d->row,
                    decided ? tcc_cells(m, half ^ 1) + (int64_t)strategies[other] * width
                            : d->messages + d->message_start[half],
                    width);
    }
    return best_of(d->row, width);
}

static void pass_node(tcc_dual *d, int32_t node, bool backward) {
    const tcc_network *m = d->network;
    int32_t width = tcc_width(m, node), before = 0, behind = 0;
    for (int32_t s = 0; s < width; s++) d->row[s] = d->costs[m->start[node] + s];
    for (int64_t k = m->half_start[node]; k < m->half_start[node + 1]; k++) {
        int32_t half = m->halves[k], other = m->ends[half ^ 1];
        if (d->outer[other]) continue;
        if (backward ? other > node : other < node) {
            before++;
            pull(d, half);
        } else {
            behind++;
        }
        tcc_add_row(d->row, d->messages + d->message_start[half], width);
    }
    d->best[node] = best_of(d->row, width);
    double part = -1.0 / (before > behind ? before : behind);
    for (int64_t k = m->half_start[node]; k < m->half_start[node + 1]; k++) {
        int32_t half = m->halves[k], other = m->ends[half ^ 1];
        if (d->outer[other] || (backward ? other > node : other < node)) continue;
        double *message = d->messages + d->message_start[half];
        for (int32_t s = 0; s < width; s++) message[s] += part * d->row[s];
    }
}

/* Chooses strategies for the nodes of branches, the innermost first. */
static void decide_branches(tcc_dual *d, int32_t *strategies) {
    const tcc_network *m = d->network;
    for (int32_t k = d->n_branches - 1; k >= 0; k--) {
        int32_t half = d->branches[k], node = m->ends[half], other = m->ends[half ^ 1];
        int32_t width = tcc_width(m, node);
        const double *cells = tcc_cells(m, half ^ 1) + (int64_t)strategies[other] * width;
        for (int32_t s = 0; s < width; s++)
            d->row[s] = d->costs[m->start[node] + s] + cells[s];
        strategies[node] = best_of(d->row, width);
    }
}

void tcc_dual_pass(tcc_dual *d, bool backward, int32_t *strategies) {
    for (int32_t i = 0; i < d->n_core; i++) {
        int32_t node = d->core[backward ? d->n_core - 1 - i : i];
        if (strategies) strategies[node] = decide(d, node, backward, strategies);
        pass_node(d, node, backward);
    }
    if (strategies) decide_branches(d, strategies);
    decide_branches(d, d->best);
}

/* Returns a lower bound of the least sum in a row.  The terms of each sum have sizes that add up to
 * `sizes`. */
static double minimum_of(const double *row, const double *sizes, int64_t count) {
    double minimum = TCC_INFINITY;
    for (int64_t k = 0; k < count; k++) {
        double low = row[k] - sizes[k] * 0x1p-44;
        if (low < minimum) minimum = low;
    }
    return minimum;
}

static double bound_node(tcc_dual *d, int32_t node) {
    const tcc_network *m = d->network;
    int32_t width = tcc_width(m, node);
    double *row = d->row, *sizes = d->row + m->widest;
    double price = d->sums[m->last[node]] - d->sums[m->first[node]];
    for (int32_t s = 0; s < width; s++) {
        row[s] = m->costs[m->start[node] + s] + price * (double)m->usages[m->start[node] + s];
        sizes[s] = row[s];
    }
    for (int64_t k = m->half_start[node]; k < m->half_start[node + 1]; k++) {
        const double *message = d->messages + d->message_start[m->halves[k]];
        for (int32_t s = 0; s < width; s++) {
            row[s] += message[s];
            sizes[s] += tcc_size(message[s]);
        }
    }
    return minimum_of(row, sizes, width);
}

static double bound_edge(const tcc_dual *d, int32_t edge) {
    const tcc_network *m = d->network;
    int32_t rows = tcc_width(m, m->ends[2 * edge]), cols = tcc_width(m, m->ends[2 * edge + 1]);
    const double *cells = tcc_cells(m, 2 * edge), *left = d->messages + d->message_start[2 * edge];
    const double *right = d->messages + d->message_start[2 * edge + 1];
    double minimum = TCC_INFINITY;
    for (int32_t r = 0; r < rows; r++)
        for (int32_t c = 0; c < cols; c++) {
            double cell = cells[(int64_t)r * cols + c];
            double low = cell - left[r] - right[c] -
                         (cell + tcc_size(left[r]) + tcc_size(right[c])) * 0x1p-48;
            if (low < minimum) minimum = low;
        }
    return minimum;
}

double tcc_dual_bound(tcc_dual *d) {
    const tcc_network *m = d->network;
    double bound = 0, sizes = 0;
    for (int32_t t = 0; t < m->sections; t++) bound -= d->prices[t] * (double)m->limit;
    sizes = -bound;
    for (int32_t i = 0; i < m->nodes; i++) {
        double part = bound_node(d, i);
        bound += part;
        sizes += tcc_size(part);
    }
    for (int32_t e = 0; e < m->edges; e++) {
        double part = bound_edge(d, e);
        bound += part;
        sizes += tcc_size(part);
        d->steps += m->table[m->table_of[e]].rows * m->table[m->table_of[e]].cols;
    }
    return bound - sizes * 0x1p-36;
}

/* Returns an approximate square root of a number from 0 to 1, equal on all machines. */
static double root(double square) {
    double root = (1 + square) / 2;
    for (int k = 0; k < 4; k++) root = (root + square / root) / 2;
    return root;
}

void tcc_dual_reprice(tcc_dual *d, double rate, double min_price) {
    const tcc_network *m = d->network;
    memset(d->usage, 0, ((size_t)m->sections + 1) * sizeof *d->usage);
    for (int32_t i = 0; i < m->nodes; i++) {
        int64_t usage = m->usages[m->start[i] + d->best[i]];
        d->usage[m->first[i]] += usage;
        d->usage[m->last[i]] -= usage;
    }
    int64_t sum = 0;
    for (int32_t t = 0; t < m->sections; t++) {
        sum += d->usage[t];
        double over = (double)(sum - m->limit) / ((double)m->limit + 1);
        if (over > 1) over = 1;
        if (over >= 0)
            d->prices[t] *= 1 + rate * root(over);
        else
            d->prices[t] /= 1 + rate * root(-over);
        if (over > 0 && d->prices[t] < min_price) d->prices[t] = min_price;
    }
}

void tcc_dual_price(tcc_dual *d) {
    const tcc_network *m = d->network;
    d->sums[0] = 0;
    for (int32_t t = 0; t < m->sections; t++) d->sums[t + 1] = d->sums[t] + d->prices[t];
    for (int32_t i = 0; i < m->nodes; i++) {
        double price = d->sums[m->last[i]] - d->sums[m->first[i]];
        for (int64_t s = m->start[i]; s < m->start[i + 1]; s++)
            d->costs[s] = m->costs[s] + price * (double)m->usages[s];
    }
    for (int32_t k = 0; k < d->n_branches; k++) {
        int32_t half = d->branches[k], node = m->ends[half], other = m->ends[half ^ 1];
        double *message = d->messages + d->message_start[half];
        for (int32_t s = 0; s < tcc_width(m, node); s++) message[s] = -d->costs[m->start[node] + s];
        pull(d, half ^ 1);
        tcc_add_row(d->costs + m->start[other], d->messages + d->message_start[half ^ 1],
                    tcc_width(m, other));
    }
}

/* Removes nodes with one neighbour repeatedly, which makes branches. */
static void set_branches(tcc_dual *d, int32_t *degree) {
    const tcc_network *m = d->network;
    int32_t waiting = 0;
    for (int32_t i = 0; i < m->nodes; i++) {
        degree[i] = (int32_t)(m->half_start[i + 1] - m->half_start[i]);
        if (degree[i] == 1) d->core[waiting++] = i;
    }
    while (waiting) {
        int32_t node = d->core[--waiting];
        if (degree[node] != 1) continue; /* the last node of a tree */
        d->outer[node] = true;
        for (int64_t k = m->half_start[node]; k < m->half_start[node + 1]; k++) {
            int32_t half = m->halves[k], other = m->ends[half ^ 1];
            if (d->outer[other]) continue;
            d->branches[d->n_branches++] = half;
            if (--degree[other] == 1) d->core[waiting++] = other;
        }
    }
    for (int32_t i = 0; i < m->nodes; i++)
        if (!d->outer[i]) d->core[d->n_core++] = i;
}

tcc_status tcc_dual_make(const tcc_network *m, tcc_dual *out_dual) {
    tcc_dual *d = out_dual;
    size_t n = (size_t)m->nodes, sections = (size_t)m->sections;
    *d = (tcc_dual){.network = m};
    d->message_start = tcc_allocate((2 * (size_t)m->edges + 1) * sizeof *d->message_start);
    if (!d->message_start) return TCC_OUT_OF_MEMORY;
    int64_t count = 0;
    for (int32_t h = 0; h < 2 * m->edges; h++) {
        d->message_start[h] = count;
        count += tcc_width(m, m->ends[h]);
    }
    d->prices = tcc_allocate_zero(2 * sections + 1, sizeof *d->prices);
    d->usage = tcc_allocate_zero(sections + 1, sizeof *d->usage);
    d->costs = tcc_allocate((size_t)m->start[m->nodes] * sizeof *d->costs);
    d->messages = tcc_allocate_zero((size_t)count, sizeof *d->messages);
    d->row = tcc_allocate(2 * (size_t)m->widest * sizeof *d->row);
    d->core = tcc_allocate_zero(3 * n, sizeof *d->core);
    d->outer = tcc_allocate_zero(n, sizeof *d->outer);
    if (!d->prices || !d->usage || !d->costs || !d->messages || !d->row || !d->core || !d->outer)
        return TCC_OUT_OF_MEMORY;
    d->sums = d->prices + sections;
    d->branches = d->core + n;
    d->best = d->branches + n;
    set_branches(d, d->best);
    memset(d->best, 0, n * sizeof *d->best);
    tcc_dual_price(d);
    return TCC_OK;
}

void tcc_dual_free(tcc_dual *d) {
    tcc_free(d->message_start);
    tcc_free(d->prices);
    tcc_free(d->usage);
    tcc_free(d->costs);
    tcc_free(d->messages);
    tcc_free(d->row);
    tcc_free(d->core);
    tcc_free(d->outer);
}
