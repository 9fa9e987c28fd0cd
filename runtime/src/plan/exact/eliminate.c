/* Eliminates nodes (Bertele and Brioschi, "Nonserial Dynamic Programming", 1972).
 *
 * A node with at most two neighbours is replaced by a table: the cost of its best strategy for each
 * choice of the neighbours.  If every remaining node has more neighbours, one with many neighbours
 * is held: it keeps its strategy and becomes a cost of its neighbours.  At the end the nodes choose
 * in reverse order. */
#include "eliminate.h"

#include <string.h>

#include "vectors.h"

enum place { OUTSIDE, REMAINING, ELIMINATED, HELD };
enum { SAMPLE = 4 };
static const int64_t max_product = INT64_C(1) << 18; /* cells times strategies, for a node with two
                                                        neighbours */
static const int64_t max_added = INT64_C(1) << 24;

/* ---- the graph that is left -------------------------------------------------------------------------- */

static void add_link(tcc_elimination *e, int32_t number, int32_t node, int32_t other,
                     const double *cells) {
    int32_t head = e->head[node];
    e->links[number] = (tcc_link){node, other, head, -1, cells};
    if (head >= 0) e->links[head].previous = number;
    e->head[node] = number;
    e->degree[node]++;
}

/* Removes a link from its node's list.  The node's degree may be small afterwards. */
static void cut(tcc_elimination *e, int32_t number) {
    tcc_link *link = &e->links[number];
    if (link->next >= 0) e->links[link->next].previous = link->previous;
    if (link->previous >= 0)
        e->links[link->previous].next = link->next;
    else
        e->head[link->node] = link->next;
    int32_t degree = --e->degree[link->node];
    if (degree == 1 || degree == 0) e->few[e->n_few++] = link->node;
    if (degree == 2) e->two[e->n_two++] = link->node;
}

static void leave(tcc_elimination *e, int32_t node, enum place state) {
    int32_t last = e->remaining[--e->n_remaining];
    e->remaining[e->place[node]] = last;
    e->place[last] = e->place[node];
    e->state[node] = (int8_t)state;
}

static double *costs_of(tcc_elimination *e, int32_t node) {
    return e->costs + e->network->start[node];
}

/* ---- steps ---------------------------------------------------------------------------------------------- */

/* Holds a node: it keeps its strategy. */
static void hold(tcc_elimination *e, int32_t node, const int32_t *strategies) {
    leave(e, node, HELD);
    for (int32_t k = e->head[node]; k >= 0; k = e->links[k].next) {
        int32_t other = e->links[k].other, width = tcc_width(e->network, other);
        tcc_add_row(costs_of(e, other), e->links[k].cells + (int64_t)strategies[node] * width, width);
        cut(e, k ^ 1);
    }
}

static void eliminate_one(tcc_elimination *e, int32_t node) {
    leave(e, node, ELIMINATED);
    e->order[e->n_order++] = node;
    int32_t k = e->head[node];
    if (k < 0) return;
    int32_t other = e->links[k].other, width = tcc_width(e->network, other);
    int32_t count = tcc_width(e->network, node);
    const double *costs = costs_of(e, node), *cells = e->links[k].cells;
    tcc_fill(e->row, TCC_INFINITY, width);
    for (int32_t s = 0; s < count; s++)
        tcc_least_row(e->row, cells + (int64_t)s * width, costs[s], width);
    tcc_add_row(costs_of(e, other), e->row, width);
    e->steps += (int64_t)count * width;
    cut(e, k ^ 1);
}

static int32_t find_link(const tcc_elimination *e, int32_t node, int32_t other) {
    if (e->degree[other] < e->degree[node]) {
        int32_t link = -1;
        for (int32_t k = e->head[other]; k >= 0; k = e->links[k].next)
            if (e->links[k].other == node) link = k ^ 1;
        return link;
    }
    for (int32_t k = e->head[node]; k >= 0; k = e->links[k].next)
        if (e->links[k].other == other) return k;
    return -1;
}

/* Eliminates a node with two neighbours.  Returns false, and does nothing, where the table would be
 * too large. */
static bool eliminate_two(tcc_elimination *e, int32_t node) {
    const tcc_network *m = e->network;
    int32_t k = e->head[node], l = e->links[k].next;
    int32_t a = e->links[k].other, b = e->links[l].other;
    int32_t count = tcc_width(m, node), rows = tcc_width(m, a), cols = tcc_width(m, b);
    int64_t size = (int64_t)rows * cols;
    if (size * count > max_product || e->n_cells + 2 * size > e->cells_room) return false;
    double *cells = e->cells + e->n_cells, *flipped = cells + size;
    e->n_cells += 2 * size;
    const double *costs = costs_of(e, node);
    const double *left = e->links[k ^ 1].cells, *right = e->links[l].cells; /* a x s, s x b */
    int32_t joined = find_link(e, a, b);
    tcc_fill(cells, TCC_INFINITY, size);
    for (int32_t r = 0; r < rows; r++)
        for (int32_t s = 0; s < count; s++)
            tcc_least_row(cells + (int64_t)r * cols, right + (int64_t)s * cols,
                          costs[s] + left[(int64_t)r * count + s], cols);
    if (joined >= 0) tcc_add_row(cells, e->links[joined].cells, size);
    for (int32_t r = 0; r < rows; r++)
        for (int32_t c = 0; c < cols; c++)
            flipped[(int64_t)c * rows + r] = cells[(int64_t)r * cols + c];
    e->steps += size * (count + 2);
    leave(e, node, ELIMINATED);
    e->order[e->n_order++] = node;
    if (joined >= 0) {
        e->links[joined].cells = cells;
        e->links[joined ^ 1].cells = flipped;
    } else {
        int32_t number = e->n_links;
        e->n_links += 2;
        add_link(e, number, a, b, cells);
        add_link(e, number + 1, b, a, flipped);
    }
    cut(e, k ^ 1);
    cut(e, l ^ 1);
    return true;
}

/* Draws a few nodes and returns the one with the most neighbours. */
static int32_t draw(tcc_elimination *e) {
    int32_t best = -1;
    for (int32_t k = 0; k < SAMPLE; k++) {
        int32_t node = e->remaining[tcc_random_below(&e->random, e->n_remaining)];
        if (best < 0 || e->degree[node] > e->degree[best]) best = node;
    }
    return best;
}

/* ---- a run ------------------------------------------------------------------------------------------------ */

static void begin(tcc_elimination *e, const int32_t *nodes, int32_t count,
                  const int32_t *strategies) {
    const tcc_network *m = e->network;
    e->n_links = 2 * m->edges;
    e->n_order = e->n_remaining = e->n_few = e->n_two = 0;
    e->n_cells = 0;
    for (int32_t i = 0; i < count; i++) {
        int32_t node = nodes[i];
        e->state[node] = REMAINING;
        e->degree[node] = 0;
        e->head[node] = -1;
        e->place[node] = e->n_remaining;
        e->remaining[e->n_remaining++] = node;
    }
    for (int32_t i = 0; i < count; i++) {
        int32_t node = nodes[i], width = tcc_width(m, node);
        for (int64_t k = m->half_start[node]; k < m->half_start[node + 1]; k++) {
            int32_t half = m->halves[k], other = m->ends[half ^ 1];
            if (e->state[other] == REMAINING) {
                add_link(e, half, node, other, tcc_cells(m, half));
                continue;
            }
            tcc_add_row(costs_of(e, node),
                        tcc_cells(m, half ^ 1) + (int64_t)strategies[other] * width, width);
        }
        e->steps += width;
    }
    for (int32_t i = 0; i < count; i++) {
        if (e->degree[nodes[i]] < 2) e->few[e->n_few++] = nodes[i];
        if (e->degree[nodes[i]] == 2) e->two[e->n_two++] = nodes[i];
    }
}

/* Returns the best strategy, now that all neighbours have theirs.  Among equals the present
 * strategy stays. */
static int32_t choose(tcc_elimination *e, int32_t node, const int32_t *strategies) {
    int32_t width = tcc_width(e->network, node), best = strategies[node];
    double *costs = costs_of(e, node);
    for (int32_t k = e->head[node]; k >= 0; k = e->links[k].next) {
        int32_t cols = tcc_width(e->network, e->links[k].other);
        const double *cells = e->links[k].cells + strategies[e->links[k].other];
        for (int32_t s = 0; s < width; s++) costs[s] += cells[(int64_t)s * cols];
    }
    double threshold = costs[best] - tcc_size(costs[best]) * 1e-12;
    for (int32_t s = 0; s < width; s++) {
        if (costs[s] >= threshold) continue;
        threshold = costs[s];
        best = s;
    }
    return best;
}

void tcc_eliminate(tcc_elimination *e, const int32_t *nodes, int32_t count, int32_t *strategies) {
    begin(e, nodes, count, strategies);
    while (e->n_remaining) {
        if (e->n_few) {
            int32_t node = e->few[--e->n_few];
            if (e->state[node] == REMAINING && e->degree[node] < 2) eliminate_one(e, node);
        } else if (e->n_two) {
            int32_t node = e->two[--e->n_two];
            if (e->state[node] == REMAINING && e->degree[node] == 2 && !eliminate_two(e, node))
                hold(e, node, strategies);
        } else {
            hold(e, draw(e), strategies);
        }
    }
    for (int32_t i = e->n_order - 1; i >= 0; i--)
        strategies[e->order[i]] = choose(e, e->order[i], strategies);
    for (int32_t i = 0; i < count; i++) e->state[nodes[i]] = OUTSIDE;
}

tcc_status tcc_elimination_make(const tcc_network *m, tcc_elimination *out_elimination) {
    tcc_elimination *e = out_elimination;
    size_t n = (size_t)m->nodes, links = 2 * ((size_t)m->edges + n);
    int64_t pairs = 0;
    for (int32_t i = 0; i < m->nodes; i++) pairs += 2 * (int64_t)m->widest * m->widest;
    *e = (tcc_elimination){.network = m, .random = 1};
    e->cells_room = pairs < max_added ? pairs : max_added;
    e->costs = tcc_allocate((size_t)m->start[m->nodes] * sizeof *e->costs);
    e->degree = tcc_allocate_zero(7 * n + 2 * links, sizeof *e->degree);
    e->state = tcc_allocate_zero(n, sizeof *e->state);
    e->links = tcc_allocate(links * sizeof *e->links);
    e->cells = tcc_allocate((size_t)e->cells_room * sizeof *e->cells);
    e->row = tcc_allocate((size_t)m->widest * sizeof *e->row);
    if (!e->costs || !e->degree || !e->state || !e->links || !e->cells || !e->row)
        return TCC_OUT_OF_MEMORY;
    e->head = e->degree + n;
    e->order = e->head + n;
    e->remaining = e->order + n;
    e->place = e->remaining + n;
    e->few = e->place + n;
    e->two = e->few + links + n;
    return TCC_OK;
}

void tcc_elimination_free(tcc_elimination *e) {
    tcc_free(e->costs);
    tcc_free(e->degree);
    tcc_free(e->state);
    tcc_free(e->links);
    tcc_free(e->cells);
    tcc_free(e->row);
}
