/* Searches for better plans by three kinds of work, in turns of about equal numbers of steps.
 *
 * The first is the dual problem: passes of messages, between which the prices of memory follow the
 * plan that the messages favour.  A plan that follows the messages is polished, at first at the
 * same prices, then at higher ones until it fits.  The second tries the plan's differences to the
 * best plan one by one.  The third solves regions of the best plan exactly at varying prices, so
 * that some nodes can take memory that others free. */
#include "improve.h"

#include <string.h>

#include "vectors.h"

/* In this order: passes before memory has prices; the fewest and the most passes of a turn; passes
 * until prices change fast again; sweeps that polish a plan; sweeps that make it fit; turns after
 * which distant plans are tried too. */
enum {
    FIRST_PASSES = 50,
    TURN_PASSES = 8,
    MOST_PASSES = 100,
    REHEAT = 400,
    POLISHES = 3,
    REPAIRS = 40,
    FAR_TURNS = 16,
    SMALLEST = 48 /* nodes of the smallest region */
};
static const int64_t max_fit_steps = INT64_C(1) << 28; /* takes less than a second */
static const double first_rate = 0.3, cooling = 0.02;
static const double near = 0.02; /* largest excess, as a part of the limit, of a plan that may be
                                    made to fit */

int64_t tcc_improvement_steps(const tcc_improvement *i) {
    return i->network->steps + i->dual.steps + i->elimination.steps + i->best.steps +
           i->trial.steps;
}

static bool is_over(tcc_improvement *i) {
    int64_t steps = tcc_improvement_steps(i);
    const tcc_effort *effort = &i->effort;
    if (!i->ended && effort->go_on) i->ended = !effort->go_on(effort->context, steps);
    /* costs are whole numbers, so a smaller gap is none */
    bool met = !i->best.excess && i->best.cost < i->bound + 1;
    return i->ended || steps >= effort->steps || met;
}

/* ---- regions -------------------------------------------------------------------------------------------- */

/* Sets the costs of a region's nodes with memory at `scale` times its prices. */
static void price(tcc_improvement *i, const int32_t *nodes, int32_t count, double scale) {
    const tcc_network *m = i->network;
    const double *sums = i->dual.sums;
    for (int32_t k = 0; k < count; k++) {
        int32_t node = nodes[k];
        double price = scale * (sums[m->last[node]] - sums[m->first[node]]);
        for (int64_t s = m->start[node]; s < m->start[node + 1]; s++)
            i->elimination.costs[s] = m->costs[s] + price * (double)m->usages[s];
    }
}

/* Draws a node and collects the nodes near it, up to a drawn number. */
static void draw_region(tcc_improvement *i) {
    const tcc_network *m = i->network;
    int32_t max_nodes = m->nodes >> tcc_random_below(&i->random, 8);
    if (max_nodes < SMALLEST) max_nodes = SMALLEST;
    int32_t number = ++i->regions, node = tcc_random_below(&i->random, m->nodes);
    i->n_region = 0;
    i->seen[node] = number;
    i->region[i->n_region++] = node;
    for (int32_t k = 0; k < i->n_region && i->n_region < max_nodes; k++) {
        int64_t end = m->half_start[i->region[k] + 1];
        for (int64_t h = m->half_start[i->region[k]]; h < end && i->n_region < max_nodes; h++) {
            int32_t other = m->ends[m->halves[h] ^ 1];
            if (i->seen[other] == number) continue;
            i->seen[other] = number;
            i->region[i->n_region++] = other;
        }
    }
}

/* Solves a region exactly at `scale` times the prices, and accepts the changes that improve the
 * plan. */
static void solve(tcc_improvement *i, tcc_state *state, const int32_t *nodes, int32_t count,
                  double scale) {
    price(i, nodes, count, scale);
    for (int32_t k = 0; k < count; k++) state->proposed[nodes[k]] = state->strategies[nodes[k]];
    tcc_eliminate(&i->elimination, nodes, count, state->proposed);
    (void)tcc_state_accept(state, nodes, count);
}

static double fraction(tcc_improvement *i) { return tcc_random(&i->random) * 0x1p-32; }

static void solve_region(tcc_improvement *i, tcc_state *state, double scale) {
    draw_region(i);
    solve(i, state, i->region, i->n_region, scale);
}

/* ---- turns ---------------------------------------------------------------------------------------------- */

static void raise_bound(tcc_improvement *i) {
    if (i->network->shift && i->turns) return; /* usages are rounded up, so only prices of 0 are
                                                  exact */
    double bound = tcc_dual_bound(&i->dual);
    if (bound > i->bound) i->bound = bound;
}

/* Leaves a plan that follows the messages in `trial`, after about `steps` steps of passes. */
static void turn_dual(tcc_improvement *i, int64_t steps) {
    bool has_prices = i->network->sections && i->turns;
    int32_t passes = i->turns ? TURN_PASSES : FIRST_PASSES;
    int64_t end = i->dual.steps + steps;
    for (int32_t k = 1;; k++) {
        bool last = (k >= passes && i->dual.steps >= end) || k == MOST_PASSES || is_over(i);
        tcc_dual_pass(&i->dual, false, NULL);
        tcc_dual_pass(&i->dual, true, last ? i->trial.proposed : NULL);
        if (last) break;
        if (!has_prices) continue;
        tcc_dual_reprice(&i->dual, first_rate / (1 + cooling * (double)i->passes_since), 
                         i->min_price);
        tcc_dual_price(&i->dual);
        i->passes_since += 2;
    }
    raise_bound(i);
    if (!i->turns)
        i->min_price = tcc_size(i->bound) * 1e-1 / ((double)i->network->limit + 1) /
                         (i->network->sections + 1);
    if (i->passes_since > REHEAT) i->passes_since = REHEAT / 8;
}

/* Polishes the plan in `trial.proposed`, and makes it fit if it nearly does. */
static void turn_trial(tcc_improvement *i) {
    const tcc_network *m = i->network;
    for (int32_t k = 0; k < POLISHES; k++) {
        price(i, i->all, m->nodes, 1);
        tcc_eliminate(&i->elimination, i->all, m->nodes, i->trial.proposed);
    }
    tcc_state_set(&i->trial, i->trial.proposed);
    int64_t excess = i->trial.excess;
    double share = (double)excess / ((double)m->limit + 1) / (m->sections + 1), scale = 1;
    bool is_far = share > near || excess > i->hopeless - i->hopeless / 4;
    if (is_far && i->turns % FAR_TURNS) return;
    for (int32_t k = 0; k < REPAIRS && i->trial.excess && !is_over(i); k++) {
        int64_t before = i->trial.excess;
        scale *= 1.1;
        solve(i, &i->trial, i->all, m->nodes, scale);
        if (k > 4 && i->trial.excess > before - before / 64) break;
    }
    i->hopeless = i->trial.excess ? excess : INT64_MAX;
}

static bool is_better(const tcc_state *state, const tcc_state *than) {
    return state->excess != than->excess ? state->excess < than->excess : state->cost < than->cost;
}

/* Tries the differences of `trial` to the best plan. */
static void turn_join(tcc_improvement *i) {
    const tcc_network *m = i->network;
    if (is_better(&i->trial, &i->best) || !i->turns) {
        tcc_state better = i->best;
        better.steps = 0;
        i->trial.steps += i->best.steps;
        i->best = i->trial;
        i->trial = better;
    }
    memcpy(i->best.proposed, i->trial.strategies, (size_t)m->nodes * sizeof *i->best.proposed);
    (void)tcc_state_accept(&i->best, i->all, m->nodes);
}

static void turn_regions(tcc_improvement *i, int64_t steps) {
    int64_t end = tcc_improvement_steps(i) + steps;
    do {
        double scale = i->best.excess ? 1 + fraction(i) : 0.5 + 1.5 * fraction(i);
        solve_region(i, &i->best, scale);
    } while (tcc_improvement_steps(i) < end && !is_over(i));
}

/* Makes the best plan fit at any cost, where no turn did, and polishes the result. */
static void fit(tcc_improvement *i) {
    tcc_state_fit(&i->best, max_fit_steps);
    for (int32_t k = 0; k < POLISHES && !i->best.excess; k++)
        solve(i, &i->best, i->all, i->network->nodes, 1);
}

void tcc_improve(tcc_improvement *i) {
    if (!i->network->nodes) return;
    int64_t steps = 0; /* steps on the previous turn's plans */
    while (!is_over(i)) {
        int64_t start = tcc_improvement_steps(i);
        turn_dual(i, i->hopeless < INT64_MAX ? steps : steps / 4);
        int64_t middle = tcc_improvement_steps(i);
        turn_trial(i);
        turn_join(i);
        i->turns++;
        steps = tcc_improvement_steps(i) - middle;
        if (!i->best.excess) turn_regions(i, tcc_improvement_steps(i) - start);
    }
    if (i->best.excess) fit(i);
}

/* ---- the state --------------------------------------------------------------------------------------- */

tcc_status tcc_improvement_make(const tcc_network *m, const tcc_effort *effort,
                                tcc_improvement *out_improvement) {
    tcc_improvement *i = out_improvement;
    size_t n = (size_t)m->nodes;
    *i = (tcc_improvement){
        .network = m, .effort = *effort, .random = 1, .bound = -TCC_INFINITY, .hopeless = INT64_MAX};
    TCC_RETURN_IF_ERROR(tcc_dual_make(m, &i->dual));
    TCC_RETURN_IF_ERROR(tcc_elimination_make(m, &i->elimination));
    TCC_RETURN_IF_ERROR(tcc_state_make(m, &i->best));
    TCC_RETURN_IF_ERROR(tcc_state_make(m, &i->trial));
    i->all = tcc_allocate_zero(3 * n, sizeof *i->all);
    if (!i->all) return TCC_OUT_OF_MEMORY;
    i->region = i->all + n;
    i->seen = i->region + n;
    for (int32_t k = 0; k < m->nodes; k++) i->all[k] = k;
    tcc_state_set(&i->best, i->best.strategies);
    return TCC_OK;
}

void tcc_improvement_free(tcc_improvement *i) {
    tcc_dual_free(&i->dual);
    tcc_elimination_free(&i->elimination);
    tcc_state_free(&i->best);
    tcc_state_free(&i->trial);
    tcc_free(i->all);
}
