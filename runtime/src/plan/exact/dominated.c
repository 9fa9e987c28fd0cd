/* Removes strategies that no plan needs.
 *
 * Strategy q dominates s where q uses no more memory and costs no more, whatever the neighbours
 * have: cost(q) - cost(s) + the most of cost(q, t) - cost(s, t) over t, summed over edges, is at
 * most 0 (Goldstein, "Efficient rotamer elimination applied to protein side-chains", 1994).  A
 * strategy is impossible where the others' least memory leaves it no room. */
#include <string.h>

#include "network.h"

static const int64_t max_work = INT64_C(1) << 25; /* cells that are compared for one table, at
                                                     most */

typedef struct reduction {
    tcc_network *network;
    double **differences; /* by table and side, computed when first needed */
    double *sums;
    bool *dropped; /* by strategy */
} reduction;

/* Computes for rows s and q the least of cells(s, t) - cells(q, t). */
static double *compare_rows(tcc_network *m, int32_t rows, int32_t cols, const double *cells) {
    double *out = tcc_allocate((size_t)rows * (size_t)rows * sizeof *out);
    if (!out) return NULL;
    m->steps += (int64_t)rows * rows * cols;
    for (int32_t s = 0; s < rows; s++) {
        for (int32_t q = 0; q < rows; q++) {
            const double *left = cells + (int64_t)s * cols, *right = cells + (int64_t)q * cols;
            double difference = left[0] - right[0];
            for (int32_t t = 1; t < cols; t++)
                if (left[t] - right[t] < difference) difference = left[t] - right[t];
            out[(int64_t)s * rows + q] = difference;
        }
    }
    return out;
}

static tcc_status drop_dominated(reduction *r, int32_t node) {
    tcc_network *m = r->network;
    int32_t width = tcc_width(m, node);
    const double *costs = m->costs + m->start[node];
    const int64_t *bytes = m->bytes + m->start[node];
    bool needs_memory = m->first[node] < m->last[node], *dropped = r->dropped + m->start[node];
    for (int64_t k = m->half_start[node]; k < m->half_start[node + 1]; k++) {
        const tcc_table *table = &m->table[m->table_of[m->halves[k] / 2]];
        if ((int64_t)width * table->rows * table->cols > max_work) return TCC_OK;
    }
    for (int32_t s = 0; s < width; s++)
        for (int32_t q = 0; q < width; q++) r->sums[(int64_t)s * width + q] = costs[s] - costs[q];
    for (int64_t k = m->half_start[node]; k < m->half_start[node + 1]; k++) {
        int32_t half = m->halves[k], side = half & 1, number = m->table_of[half / 2];
        const tcc_table *table = &m->table[number];
        double **difference = &r->differences[2 * number + side];
        if (!*difference)
            *difference = compare_rows(m, width, side ? table->rows : table->cols,
                                       side ? table->flipped : table->cells);
        if (!*difference) return TCC_OUT_OF_MEMORY;
        for (int64_t c = 0; c < (int64_t)width * width; c++) r->sums[c] += (*difference)[c];
    }
    m->steps += (m->half_start[node + 1] - m->half_start[node] + 1) * width * width;
    for (int32_t s = 0; s < width; s++)
        for (int32_t q = 0; q < width && !dropped[s]; q++)
            dropped[s] = q != s && !dropped[q] && (!needs_memory || bytes[q] <= bytes[s]) &&
                         r->sums[(int64_t)s * width + q] >= 0;
    return TCC_OK;
}

static int64_t smallest_usage(const tcc_network *m, int32_t node) {
    int64_t usage = m->usages[m->start[node]];
    for (int64_t s = m->start[node]; s < m->start[node + 1]; s++)
        if (m->usages[s] < usage) usage = m->usages[s];
    return usage;
}

/* Drops impossible strategies, but leaves each node at least one, even if the least memory of all
 * nodes exceeds the limit. */
static tcc_status drop_impossible(reduction *r) {
    tcc_network *m = r->network;
    int64_t *usages = tcc_allocate_zero((size_t)m->sections + 1, sizeof *usages);
    if (!usages) return TCC_OUT_OF_MEMORY;
    for (int32_t i = 0; i < m->nodes; i++)
        for (int32_t t = m->first[i]; t < m->last[i]; t++) usages[t] += smallest_usage(m, i);
    for (int32_t i = 0; i < m->nodes; i++) {
        int64_t peak = 0, usage = smallest_usage(m, i);
        for (int32_t t = m->first[i]; t < m->last[i]; t++)
            if (usages[t] > peak) peak = usages[t];
        for (int64_t s = m->start[i]; s < m->start[i + 1] && m->first[i] < m->last[i]; s++)
            if (m->usages[s] != usage && peak - usage + m->usages[s] > m->limit) r->dropped[s] = true;
    }
    tcc_free(usages);
    return TCC_OK;
}

/* Copies a table without the dropped rows and columns. */
static int32_t shrink(reduction *r, const tcc_table *tables, int32_t edge) {
    tcc_network *m = r->network;
    const tcc_table *table = &tables[m->table_of[edge]];
    int32_t a = m->ends[2 * edge], b = m->ends[2 * edge + 1], rows = 0, cols = 0;
    int64_t count = 0;
    for (int32_t c = 0; c < table->cols; c++) cols += !r->dropped[m->start[b] + c];
    for (int32_t row = 0; row < table->rows; row++) {
        if (r->dropped[m->start[a] + row]) continue;
        rows++;
        for (int32_t c = 0; c < table->cols; c++)
            if (!r->dropped[m->start[b] + c])
                r->sums[count++] = table->cells[(int64_t)row * table->cols + c];
    }
    m->steps += (int64_t)table->rows * table->cols;
    return tcc_network_table(m, rows, cols, r->sums);
}

static tcc_status shrink_tables(reduction *r) {
    tcc_network *m = r->network;
    tcc_network old = *m;
    m->table = NULL;
    m->slots = NULL;
    m->tables = 0;
    m->room = m->n_slots = 0;
    bool has_memory = true;
    for (int32_t e = 0; has_memory && e < m->edges; e++) {
        int32_t table = shrink(r, old.table, e);
        has_memory = table >= 0;
        m->table_of[e] = table;
    }
    tcc_network_free_tables(&old);
    return has_memory ? TCC_OK : TCC_OUT_OF_MEMORY;
}

static int64_t shrink_nodes(reduction *r) {
    tcc_network *m = r->network;
    int64_t to = 0, from = 0;
    m->widest = 1;
    for (int32_t i = 0; i < m->nodes; i++) {
        for (; from < m->start[i + 1]; from++) {
            if (r->dropped[from]) continue;
            m->origin[to] = m->origin[from];
            m->costs[to] = m->costs[from];
            m->usages[to] = m->usages[from];
            m->bytes[to++] = m->bytes[from];
        }
        m->start[i + 1] = to;
        if (tcc_width(m, i) > m->widest) m->widest = tcc_width(m, i);
    }
    return from - to;
}

static tcc_status reduce(reduction *r, int64_t *out_count) {
    tcc_network *m = r->network;
    int64_t strategies = m->start[m->nodes], count = 0, cells = (int64_t)m->widest * m->widest;
    r->differences = tcc_allocate_zero(2 * (size_t)m->tables, sizeof *r->differences);
    r->dropped = tcc_allocate_zero((size_t)strategies, sizeof *r->dropped);
    r->sums = tcc_allocate((size_t)cells * sizeof *r->sums);
    if (!r->differences || !r->dropped || !r->sums) return TCC_OUT_OF_MEMORY;
    if (m->sections && !m->shift) TCC_RETURN_IF_ERROR(drop_impossible(r));
    for (int32_t i = 0; i < m->nodes; i++) TCC_RETURN_IF_ERROR(drop_dominated(r, i));
    for (int64_t s = 0; s < strategies; s++) count += r->dropped[s];
    *out_count = count;
    if (!count) return TCC_OK;
    TCC_RETURN_IF_ERROR(shrink_tables(r));
    (void)shrink_nodes(r);
    return TCC_OK;
}

tcc_status tcc_network_reduce(tcc_network *network, int64_t *out_count) {
    reduction r = {.network = network};
    int32_t tables = network->tables;
    tcc_status status = reduce(&r, out_count);
    for (int32_t t = 0; r.differences && t < 2 * tables; t++) tcc_free(r.differences[t]);
    tcc_free(r.differences);
    tcc_free(r.dropped);
    tcc_free(r.sums);
    return status;
}
