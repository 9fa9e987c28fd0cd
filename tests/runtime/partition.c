/* Plans random problems while every allocation fails once. Prints how many plans were checked. */
#include <stdio.h>
#include <string.h>

#include "plan/exact/partition.h"

extern int64_t tcc_test_fail_after;

enum { MOST_NODES = 60, MOST_WIDTH = 5, MOST_EDGES = 120 };

static uint64_t state = 1;

static int64_t below(int64_t end) {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int64_t)((state >> 33) % (uint64_t)end);
}

typedef struct arrays {
    int64_t strategies[MOST_NODES], lives[2 * MOST_NODES], ends[2 * MOST_EDGES];
    int64_t costs[MOST_NODES * MOST_WIDTH], usages[MOST_NODES * MOST_WIDTH];
    int64_t edge_costs[MOST_EDGES * MOST_WIDTH * MOST_WIDTH];
} arrays;

static const int64_t huge = INT64_C(1000000000000000000);

static int64_t draw_cost(int64_t round) {
    if (!below(8)) return huge;
    return round % 5 ? below(100) : below(huge);
}

static tcc_partition_problem draw(arrays *a, int64_t round) {
    int64_t nodes = 1 + below(round % 2 ? MOST_NODES : 8), edges = below(2 * nodes), total = 0;
    for (int64_t i = 0; i < nodes; i++) {
        a->strategies[i] = 1 + below(MOST_WIDTH);
        a->lives[2 * i] = below(20);
        a->lives[2 * i + 1] = a->lives[2 * i] + below(8);
        for (int64_t s = 0; s < a->strategies[i]; s++, total++) {
            a->costs[total] = draw_cost(round);
            a->usages[total] = round % 7 ? below(10) : below(INT64_C(1) << 62);
        }
    }
    total = 0;
    for (int64_t e = 0; e < edges; e++) {
        a->ends[2 * e] = below(nodes);
        a->ends[2 * e + 1] = below(nodes);
        int64_t cells = a->strategies[a->ends[2 * e]] * a->strategies[a->ends[2 * e + 1]];
        for (int64_t k = 0; k < cells; k++) a->edge_costs[total++] = draw_cost(round);
    }
    int64_t limit = round % 7 ? below(nodes * 3 + 8) : INT64_C(1) << 61;
    return (tcc_partition_problem){nodes,     edges,     a->strategies, a->lives,
                                   a->costs,  a->usages, a->ends,       a->edge_costs,
                                   round % 3 ? limit : -1};
}

static int32_t some_turns(void *context, int64_t steps) {
    (void)steps;
    return --*(int64_t *)context > 0;
}

int main(void) {
    static arrays a;
    int64_t valid = 0, none = 0, failed = 0;
    for (int64_t round = 0; round < 120; round++) {
        tcc_partition_problem problem = draw(&a, round);
        int32_t strategies[MOST_NODES] = {0}, is_valid = 0;
        tcc_partition plan = {0};
        tcc_halves cost;
        tcc_status status = TCC_OUT_OF_MEMORY;
        for (int64_t fails = 1; status == TCC_OUT_OF_MEMORY; fails++) {
            int64_t turns = 40;
            tcc_test_fail_after = round % 4 ? -1 : fails;
            status = tcc_plan_partition(&problem, 1 << 18, some_turns, &turns, strategies, &plan);
            failed += status == TCC_OUT_OF_MEMORY;
        }
        tcc_test_fail_after = -1;
        if (status != TCC_OK ||
            tcc_partition_check(&problem, strategies, &cost, &is_valid) != TCC_OK ||
            is_valid != plan.valid || memcmp(&cost, &plan.cost, sizeof cost) ||
            (is_valid && (plan.impossible || plan.bound.high > cost.high ||
                          (plan.bound.high == cost.high && plan.bound.low > cost.low)))) {
            printf("round %lld: %s\n", (long long)round, tcc_last_error());
            return 1;
        }
        valid += is_valid;
        none += !is_valid;
    }
    printf("%lld valid, %lld without a plan, %s failed\n", (long long)valid, (long long)none,
           failed > 100 ? "many" : "few");
    return 0;
}
