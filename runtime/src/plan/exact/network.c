/* Builds the network of a problem: edges between the same nodes become one edge, and strategies
 * that no plan needs are removed repeatedly until none is left. */
#include "network.h"

#include <string.h>

typedef struct grouped {
    int32_t low, high, edge;
} grouped;

static int by_ends(const void *left, const void *right) {
    const grouped *a = left, *b = right;
    if (a->low != b->low) return a->low < b->low ? -1 : 1;
    if (a->high != b->high) return a->high < b->high ? -1 : 1;
    return a->edge < b->edge ? -1 : a->edge > b->edge;
}

static bool allocate(const tcc_partition_problem *p, tcc_network *m) {
    size_t n = (size_t)p->nodes, edges = (size_t)p->edges, strategies = 0;
    for (size_t i = 0; i < n; i++) strategies += (size_t)p->strategies[i];
    m->start = tcc_allocate_zero(n + 1, sizeof *m->start);
    m->origin = tcc_allocate_zero(strategies, sizeof *m->origin);
    m->costs = tcc_allocate_zero(strategies, sizeof *m->costs);
    m->usages = tcc_allocate_zero(strategies, sizeof *m->usages);
    m->bytes = tcc_allocate_zero(strategies, sizeof *m->bytes);
    m->first = tcc_allocate_zero(n, sizeof *m->first);
    m->last = tcc_allocate_zero(n, sizeof *m->last);
    m->ends = tcc_allocate_zero(2 * edges, sizeof *m->ends);
    m->table_of = tcc_allocate_zero(edges, sizeof *m->table_of);
    m->half_start = tcc_allocate_zero(n + 1, sizeof *m->half_start);
    m->halves = tcc_allocate_zero(2 * edges, sizeof *m->halves);
    return m->start && m->origin && m->costs && m->usages && m->bytes && m->first && m->last && m->ends &&
           m->table_of && m->half_start && m->halves;
}

static void set_strategies(const tcc_partition_problem *p, tcc_network *m) {
    int64_t total = 0;
    m->nodes = (int32_t)p->nodes;
    for (int32_t i = 0; i < m->nodes; i++) {
        int32_t count = (int32_t)p->strategies[i];
        if (count > m->widest) m->widest = count;
        for (int32_t s = 0; s < count; s++) {
            m->origin[total + s] = s;
            m->costs[total + s] = (double)p->costs[total + s];
            m->bytes[total + s] = p->usages[total + s];
        }
        m->start[i + 1] = total += count;
    }
}

/* Adds the costs of an edge to `cells`.  Rows are the strategies of the node with the smaller
 * number. */
static void add_edge(const tcc_partition_problem *p, int32_t edge, const int64_t *costs,
                     double *cells) {
    int64_t a = p->ends[2 * edge], b = p->ends[2 * edge + 1];
    int64_t rows = p->strategies[a], cols = p->strategies[b];
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            cells[a <= b ? r * cols + c : c * rows + r] += (double)costs[r * cols + c];
}

static int64_t max_cells(const tcc_partition_problem *p) {
    int64_t maximum = 1;
    for (int64_t e = 0; e < p->edges; e++) {
        int64_t cells = p->strategies[p->ends[2 * e]] * p->strategies[p->ends[2 * e + 1]];
        if (cells > maximum) maximum = cells;
    }
    return maximum;
}

/* Adds an edge between a node and itself to the costs of the node. */
static void add_loop(tcc_network *m, int32_t node, const double *cells) {
    int32_t width = tcc_width(m, node);
    for (int32_t s = 0; s < width; s++)
        m->costs[m->start[node] + s] += cells[(int64_t)s * width + s];
}

static bool merge_edges(const tcc_partition_problem *p, tcc_network *m, grouped *edges,
                        const int64_t *offsets, double *cells) {
    for (int64_t k = 0, next; k < p->edges; k = next) {
        int32_t low = edges[k].low, high = edges[k].high;
        int32_t rows = tcc_width(m, low), cols = tcc_width(m, high);
        memset(cells, 0, (size_t)rows * (size_t)cols * sizeof *cells);
        for (next = k; next < p->edges && edges[next].low == low && edges[next].high == high; next++)
            add_edge(p, edges[next].edge, p->edge_costs + offsets[edges[next].edge], cells);
        m->steps += (next - k) * rows * cols;
        if (low == high) {
            add_loop(m, low, cells);
            continue;
        }
        int32_t table = tcc_network_table(m, rows, cols, cells);
        if (table < 0) return false;
        m->ends[2 * m->edges] = low;
        m->ends[2 * m->edges + 1] = high;
        m->table_of[m->edges++] = table;
    }
    return true;
}

static const int64_t forbidding = INT64_C(1) << 50;
enum { ABOVE = 1 << 10 };

/* The value `forbidding`, from which on a cost forbids a strategy or pair, and the largest cost
 * below it. */
typedef struct range {
    int64_t forbidden, below;
    bool mixed; /* several different costs are that large, so none forbids */
} range;

static void widen(range *r, const int64_t *costs, int64_t count) {
    for (int64_t k = 0; k < count; k++) {
        if (costs[k] < forbidding && costs[k] > r->below) r->below = costs[k];
        if (costs[k] < forbidding) continue;
        r->mixed |= r->forbidden && r->forbidden != costs[k];
        r->forbidden = costs[k];
    }
}

/* Lowers forbidding costs to a large multiple of the largest other cost, so that sums with them
 * stay precise.  No plan becomes more expensive, so bounds stay valid. */
static bool lower_forbidding(const tcc_partition_problem *p, tcc_network *m) {
    tcc_network old = *m;
    range r = {0};
    const int64_t *cells = p->edge_costs;
    widen(&r, p->costs, m->start[m->nodes]);
    for (int64_t e = 0; e < p->edges; e++) {
        int64_t size = p->strategies[p->ends[2 * e]] * p->strategies[p->ends[2 * e + 1]];
        widen(&r, cells, size);
        cells += size;
    }
    double forbidden = (double)r.forbidden, cap = (double)r.below * ABOVE;
    if (r.mixed || !r.below || cap >= forbidden) return true;
    for (int64_t s = 0; s < m->start[m->nodes]; s++)
        if (m->costs[s] >= forbidden) m->costs[s] = cap;
    m->table = NULL;
    m->slots = NULL;
    m->tables = 0;
    m->room = m->n_slots = 0;
    bool has_memory = true;
    for (int32_t e = 0; has_memory && e < m->edges; e++) {
        const tcc_table *table = &old.table[m->table_of[e]];
        for (int64_t k = 0; k < (int64_t)table->rows * table->cols; k++)
            if (table->cells[k] >= forbidden) table->cells[k] = cap;
        int32_t number = tcc_network_table(m, table->rows, table->cols, table->cells);
        has_memory = number >= 0;
        m->table_of[e] = number;
    }
    tcc_network_free_tables(&old);
    return has_memory;
}

static bool set_edges(const tcc_partition_problem *p, tcc_network *m) {
    size_t count = (size_t)p->edges;
    grouped *edges = tcc_allocate(count * sizeof *edges);
    int64_t *offsets = tcc_allocate(count * sizeof *offsets), offset = 0;
    double *cells = tcc_allocate((size_t)max_cells(p) * sizeof *cells);
    bool has_memory = edges && offsets && cells;
    for (int64_t e = 0; has_memory && e < p->edges; e++) {
        int64_t a = p->ends[2 * e], b = p->ends[2 * e + 1];
        edges[e] = (grouped){(int32_t)(a < b ? a : b), (int32_t)(a < b ? b : a), (int32_t)e};
        offsets[e] = offset;
        offset += p->strategies[a] * p->strategies[b];
    }
    if (has_memory) {
        qsort(edges, count, sizeof *edges, by_ends);
        has_memory = merge_edges(p, m, edges, offsets, cells);
    }
    tcc_free(edges);
    tcc_free(offsets);
    tcc_free(cells);
    return has_memory;
}

static void set_halves(tcc_network *m) {
    for (int32_t h = 0; h < 2 * m->edges; h++) m->half_start[m->ends[h] + 1]++;
    for (int32_t i = 0; i < m->nodes; i++) m->half_start[i + 1] += m->half_start[i];
    for (int32_t h = 0; h < 2 * m->edges; h++) m->halves[m->half_start[m->ends[h]]++] = h;
    for (int32_t i = m->nodes; i > 0; i--) m->half_start[i] = m->half_start[i - 1];
    m->half_start[0] = 0;
}

tcc_status tcc_network_make(const tcc_partition_problem *problem, tcc_network *out_network) {
    tcc_network *m = out_network;
    *m = (tcc_network){0};
    if (!allocate(problem, m)) return TCC_OUT_OF_MEMORY;
    set_strategies(problem, m);
    if (!set_edges(problem, m) || !lower_forbidding(problem, m)) return TCC_OUT_OF_MEMORY;
    set_halves(m);
    for (int64_t dropped = 1; dropped;) {
        TCC_RETURN_IF_ERROR(tcc_network_sections(problem, m));
        TCC_RETURN_IF_ERROR(tcc_network_reduce(m, &dropped));
    }
    return TCC_OK;
}

void tcc_network_free(tcc_network *network) {
    tcc_network_free_tables(network);
    tcc_free(network->start);
    tcc_free(network->origin);
    tcc_free(network->costs);
    tcc_free(network->usages);
    tcc_free(network->bytes);
    tcc_free(network->first);
    tcc_free(network->last);
    tcc_free(network->ends);
    tcc_free(network->table_of);
    tcc_free(network->half_start);
    tcc_free(network->halves);
}
