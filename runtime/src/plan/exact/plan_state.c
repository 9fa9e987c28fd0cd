/* Changes a plan without exceeding its memory.
 *
 * Changed nodes are independent unless an edge joins them.  Changes that raise the cost are made
 * first, for the memory that they free.  Then changes that lower the cost are made, as far as
 * memory allows.  At last changes of the first kind are undone where their memory is not needed
 * after all. */
#include "plan_state.h"

#include <string.h>

#include "vectors.h"

static const double max_exact_steps = 0x1p50; /* larger sums of changes are rounded */

static void change_usage(tcc_state *st, int32_t node, int64_t change) {
    const tcc_network *m = st->network;
    if (!change) return;
    int64_t excess = 0, limit = m->limit;
    for (int32_t t = m->first[node]; t < m->last[node]; t++) {
        int64_t before = st->usage[t], after = before + change;
        excess += (after > limit ? after - limit : 0) - (before > limit ? before - limit : 0);
        st->usage[t] = after;
    }
    st->excess += excess;
    st->steps += m->last[node] - m->first[node];
}

/* Exchanges the present and the proposed strategies of a move's nodes. */
static void exchange(tcc_state *st, tcc_move *move) {
    const tcc_network *m = st->network;
    for (int32_t k = move->first; k < move->last; k++) {
        int32_t node = st->nodes[k], current = st->strategies[node], new = st->proposed[node];
        const int64_t *usages = m->usages + m->start[node];
        change_usage(st, node, usages[new] - usages[current]);
        st->strategies[node] = new;
        st->proposed[node] = current;
    }
    st->cost += move->applied ? -move->change : move->change;
    move->applied = !move->applied;
}

/* Exchanges them if the excess does not grow. */
static bool try(tcc_state *st, tcc_move *move) {
    int64_t excess = st->excess;
    exchange(st, move);
    if (st->excess <= excess) return true;
    exchange(st, move);
    return false;
}

/* ---- moves -------------------------------------------------------------------------------------------- */

/* Returns by how much the costs of a node and its edges change.  An edge between two changed nodes
 * counts half. */
static double change_of(const tcc_state *st, int32_t node) {
    const tcc_network *m = st->network;
    int32_t current = st->strategies[node], new = st->proposed[node];
    double change = m->costs[m->start[node] + new] - m->costs[m->start[node] + current], shared = 0;
    for (int64_t k = m->half_start[node]; k < m->half_start[node + 1]; k++) {
        int32_t half = m->halves[k], other = m->ends[half ^ 1], cols = tcc_width(m, other);
        const double *cells = tcc_cells(m, half);
        double before = cells[(int64_t)current * cols + st->strategies[other]];
        if (st->mark[other])
            shared += cells[(int64_t)new * cols + st->proposed[other]] - before;
        else
            change += cells[(int64_t)new * cols + st->strategies[other]] - before;
    }
    return change + shared / 2;
}

/* Gathers the changed nodes that edges connect with `nodes[first]`. */
static int32_t gather(tcc_state *st, int32_t first) {
    const tcc_network *m = st->network;
    int32_t last = first + 1;
    for (int32_t k = first; k < last; k++) {
        int32_t node = st->nodes[k];
        for (int64_t h = m->half_start[node]; h < m->half_start[node + 1]; h++) {
            int32_t other = m->ends[m->halves[h] ^ 1];
            if (st->mark[other] != 1) continue;
            st->mark[other] = 2;
            st->nodes[last++] = other;
        }
        st->steps += m->half_start[node + 1] - m->half_start[node];
    }
    return last;
}

static int by_worth(const void *left, const void *right) {
    const tcc_move *a = left, *b = right;
    if ((a->change > 0) != (b->change > 0)) return a->change > 0 ? -1 : 1;
    if (a->change != b->change) return a->change < b->change ? -1 : 1;
    return a->first < b->first ? -1 : a->first > b->first;
}

static void find_moves(tcc_state *st, const int32_t *among, int32_t count) {
    int32_t last = 0;
    st->n_moves = 0;
    for (int32_t k = 0; k < count; k++)
        st->mark[among[k]] = st->proposed[among[k]] != st->strategies[among[k]];
    for (int32_t k = 0; k < count; k++) {
        if (st->mark[among[k]] != 1) continue;
        int32_t first = last;
        st->mark[among[k]] = 2;
        st->nodes[first] = among[k];
        last = gather(st, first);
        double change = 0;
        for (int32_t i = first; i < last; i++) change += change_of(st, st->nodes[i]);
        st->moves[st->n_moves++] = (tcc_move){change, first, last, false};
    }
    for (int32_t k = 0; k < count; k++) st->mark[among[k]] = 0;
    qsort(st->moves, (size_t)st->n_moves, sizeof *st->moves, by_worth);
}

bool tcc_state_accept(tcc_state *st, const int32_t *among, int32_t count) {
    find_moves(st, among, count);
    int64_t excess = st->excess;
    double cost = st->cost;
    bool changed = false;
    for (int32_t k = 0; k < st->n_moves; k++) (void)try(st, &st->moves[k]);
    for (int32_t k = st->n_moves - 1; k >= 0; k--)
        if (st->moves[k].change > 0 && st->moves[k].applied) (void)try(st, &st->moves[k]);
    if (st->excess == excess && st->cost > cost) { /* not worth it: keep only the changes that lower
                                                      the cost */
        for (int32_t k = st->n_moves - 1; k >= 0; k--)
            if (st->moves[k].applied) exchange(st, &st->moves[k]);
        st->cost = cost;
        for (int32_t k = 0; k < st->n_moves; k++)
            if (st->moves[k].change <= 0) (void)try(st, &st->moves[k]);
    }
    bool exact = true;
    for (int32_t k = 0; k < st->n_moves; k++) {
        changed |= st->moves[k].applied;
        exact &= tcc_size(st->moves[k].change) < max_exact_steps;
    }
    if (!exact) st->cost = tcc_network_cost(st->network, st->strategies);
    return changed;
}

/* ---- plans that must fit ------------------------------------------------------------------------------- */

/* Finds the change of one node with the least cost per byte that it frees in a section. */
static tcc_move cheapest(tcc_state *st, int32_t section) {
    const tcc_network *m = st->network;
    tcc_move best = {.first = -1};
    double lowest_worth = 0;
    for (int32_t i = 0; i < m->nodes; i++) {
        if (section < m->first[i] || section >= m->last[i]) continue;
        const int64_t *usages = m->usages + m->start[i];
        int64_t usage = usages[st->strategies[i]], over = st->usage[section] - m->limit;
        for (int32_t s = 0; s < tcc_width(m, i); s++) {
            if (usages[s] >= usage) continue;
            int64_t freed = usage - usages[s] < over ? usage - usages[s] : over;
            st->proposed[i] = s;
            double change = change_of(st, i), worth = change / (double)freed;
            st->steps += 1 + m->half_start[i + 1] - m->half_start[i];
            if (best.first >= 0 && worth >= lowest_worth) continue;
            lowest_worth = worth;
            best = (tcc_move){.change = change, .first = i, .last = s};
        }
    }
    st->steps += m->nodes + m->sections;
    return best;
}

void tcc_state_fit(tcc_state *st, int64_t steps) {
    const tcc_network *m = st->network;
    int64_t end = st->steps + steps;
    while (st->excess && st->steps < end) {
        int32_t fullest = 0;
        for (int32_t t = 1; t < m->sections; t++)
            if (st->usage[t] > st->usage[fullest]) fullest = t;
        tcc_move move = cheapest(st, fullest);
        if (move.first < 0) break;
        const int64_t *usages = m->usages + m->start[move.first];
        change_usage(st, move.first, usages[move.last] - usages[st->strategies[move.first]]);
        st->strategies[move.first] = move.last;
    }
    st->cost = tcc_network_cost(m, st->strategies);
}

/* ---- the state --------------------------------------------------------------------------------------- */

double tcc_network_cost(const tcc_network *m, const int32_t *strategies) {
    double cost = 0;
    for (int32_t i = 0; i < m->nodes; i++) cost += m->costs[m->start[i] + strategies[i]];
    for (int32_t e = 0; e < m->edges; e++) {
        int32_t a = m->ends[2 * e], b = m->ends[2 * e + 1];
        cost += tcc_cells(m, 2 * e)[(int64_t)strategies[a] * tcc_width(m, b) + strategies[b]];
    }
    return cost;
}

void tcc_state_set(tcc_state *st, const int32_t *strategies) {
    const tcc_network *m = st->network;
    memset(st->usage, 0, ((size_t)m->sections + 1) * sizeof *st->usage);
    for (int32_t i = 0; i < m->nodes; i++) {
        int64_t usage = m->usages[m->start[i] + strategies[i]];
        st->strategies[i] = strategies[i];
        st->usage[m->first[i]] += usage;
        st->usage[m->last[i]] -= usage;
    }
    st->excess = 0;
    for (int32_t t = 0; t < m->sections; t++) {
        if (t) st->usage[t] += st->usage[t - 1];
        if (st->usage[t] > m->limit) st->excess += st->usage[t] - m->limit;
    }
    st->cost = tcc_network_cost(m, strategies);
}

tcc_status tcc_state_make(const tcc_network *m, tcc_state *out_state) {
    size_t n = (size_t)m->nodes;
    *out_state = (tcc_state){.network = m};
    out_state->strategies = tcc_allocate_zero(4 * n, sizeof(int32_t));
    out_state->usage = tcc_allocate_zero((size_t)m->sections + 1, sizeof *out_state->usage);
    out_state->moves = tcc_allocate(n * sizeof *out_state->moves);
    if (!out_state->strategies || !out_state->usage || !out_state->moves) return TCC_OUT_OF_MEMORY;
    out_state->proposed = out_state->strategies + n;
    out_state->nodes = out_state->proposed + n;
    out_state->mark = out_state->nodes + n;
    return TCC_OK;
}

void tcc_state_free(tcc_state *state) {
    tcc_free(state->strategies);
    tcc_free(state->usage);
    tcc_free(state->moves);
}
