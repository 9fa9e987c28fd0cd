/* Finds the times at which memory can exceed the limit, each set of live nodes once. */
#include "network.h"

typedef struct boundary {
    int64_t time;
    int32_t node;
    bool ends;
} boundary;

static int by_time(const void *left, const void *right) {
    const boundary *a = left, *b = right;
    if (a->time != b->time) return a->time < b->time ? -1 : 1;
    return (int)b->ends - (int)a->ends;
}

static int64_t peak_usage(const tcc_network *m, int32_t node) {
    int64_t peak = 0;
    for (int64_t s = m->start[node]; s < m->start[node + 1]; s++)
        if (m->bytes[s] > peak) peak = m->bytes[s];
    return peak;
}

/* Numbers the sections. A section is a set of live nodes that no later node joins before one of
 * them ends. */
static tcc_wide number(const tcc_partition_problem *p, tcc_network *m, const boundary *boundaries,
                       int64_t count) {
    tcc_wide sum = 0, largest = 0;
    bool began = false;
    m->sections = 0;
    for (int64_t k = 0; k < count; k++) {
        const boundary *b = &boundaries[k];
        if (b->ends) {
            if (began && sum > p->limit) m->sections++;
            began = false;
            m->last[b->node] = m->sections;
            sum -= peak_usage(m, b->node);
        } else {
            began = true;
            m->first[b->node] = m->sections;
            sum += peak_usage(m, b->node);
            if (sum > largest) largest = sum;
        }
    }
    return largest;
}

/* Scales usages and the limit to units of 2^k, so that sums over nodes and sections fit into 62
 * bits. */
static void scale(const tcc_partition_problem *p, tcc_network *m, tcc_wide largest) {
    int32_t shift = 0;
    while (largest * (m->sections + 1) >> shift > INT64_C(1) << 61) shift++;
    m->limit = p->limit >> shift;
    m->shift = shift;
    int64_t round = (INT64_C(1) << shift) - 1;
    for (int32_t i = 0; i < m->nodes; i++)
        for (int64_t s = m->start[i]; s < m->start[i + 1]; s++)
            m->usages[s] = m->first[i] < m->last[i] ? (m->bytes[s] + round) >> shift : 0;
}

tcc_status tcc_network_sections(const tcc_partition_problem *p, tcc_network *m) {
    size_t n = (size_t)m->nodes;
    boundary *boundaries = tcc_allocate(2 * n * sizeof *boundaries);
    int64_t count = 0;
    if (!boundaries) return TCC_OUT_OF_MEMORY;
    for (int32_t i = 0; i < m->nodes; i++) {
        m->first[i] = m->last[i] = 0;
        if (p->limit < 0 || p->lives[2 * i] >= p->lives[2 * i + 1]) continue;
        boundaries[count++] = (boundary){p->lives[2 * i], i, false};
        boundaries[count++] = (boundary){p->lives[2 * i + 1], i, true};
    }
    qsort(boundaries, (size_t)count, sizeof *boundaries, by_time);
    scale(p, m, number(p, m, boundaries, count));
    tcc_free(boundaries);
    return TCC_OK;
}
