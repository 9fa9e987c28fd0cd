/* Plans partitions: small problems by complete search, all others by the dual problem and by
 * regions. */
#include "partition.h"

#include <string.h>

#include "branch.h"
#include "improve.h"

static const int64_t branch_steps = INT64_C(1) << 27;

static tcc_halves halves(tcc_wide value) {
    return (tcc_halves){(uint64_t)value, (int64_t)(value >> 64)};
}

/* Returns the smallest whole number that is not below a bound. No cost is below 0. */
static tcc_halves total_bound(double bound) {
    if (!(bound > 0) || bound > 0x1p126) return halves(0);
    tcc_wide below = (tcc_wide)bound;
    return halves(below + ((double)below < bound));
}

static tcc_wide wide(tcc_halves value) {
    return (tcc_wide)((unsigned __int128)(uint64_t)value.high << 64 | value.low);
}

static tcc_status improve(const tcc_partition_problem *problem, tcc_improvement *i,
                          int32_t *strategies, tcc_partition *partition) {
    tcc_improve(i);
    const tcc_network *network = i->network;
    for (int32_t k = 0; k < network->nodes; k++)
        strategies[k] = network->origin[network->start[k] + i->best.strategies[k]];
    partition->steps += tcc_improvement_steps(i);
    partition->bound = total_bound(i->bound);
    return tcc_partition_check(problem, strategies, &partition->cost, &partition->valid);
}

static tcc_status search(const tcc_partition_problem *problem, const tcc_effort *effort,
                         int32_t *strategies, tcc_partition *partition) {
    tcc_network network;
    tcc_improvement improvement = {0};
    tcc_status status = tcc_network_make(problem, &network);
    if (status == TCC_OK) status = tcc_improvement_make(&network, effort, &improvement);
    if (status == TCC_OK) status = improve(problem, &improvement, strategies, partition);
    tcc_improvement_free(&improvement);
    tcc_network_free(&network);
    return status;
}

/* Takes the plan of an unfinished complete search where it is better. */
static tcc_status join(const tcc_partition_problem *problem, const int32_t *other,
                       int32_t *strategies, tcc_partition *partition) {
    tcc_halves cost;
    int32_t valid;
    TCC_RETURN_IF_ERROR(tcc_partition_check(problem, other, &cost, &valid));
    if (!valid || (partition->valid && wide(cost) >= wide(partition->cost))) return TCC_OK;
    memcpy(strategies, other, (size_t)problem->nodes * sizeof *strategies);
    partition->cost = cost;
    partition->valid = 1;
    return TCC_OK;
}

static tcc_status plan(const tcc_partition_problem *problem, tcc_effort effort, int32_t *other,
                       int32_t *strategies, tcc_partition *partition) {
    int64_t steps = effort.steps < branch_steps ? effort.steps : branch_steps;
    tcc_branch branch;
    TCC_RETURN_IF_ERROR(tcc_partition_branch(problem, steps, other, &branch));
    partition->steps = branch.steps;
    partition->impossible = branch.done && !branch.has_plan;
    effort.steps = branch.done ? 0 : effort.steps - branch.steps;
    if (!branch.done || !branch.has_plan)
        TCC_RETURN_IF_ERROR(search(problem, &effort, strategies, partition));
    if (branch.has_plan) TCC_RETURN_IF_ERROR(join(problem, other, strategies, partition));
    if (branch.done && branch.has_plan) partition->bound = partition->cost;
    return TCC_OK;
}

tcc_status tcc_plan_partition(const tcc_partition_problem *problem, int64_t steps,
                              int32_t (*go_on)(void *context, int64_t steps), void *context,
                              int32_t *out_strategies, tcc_partition *out_partition) {
    memset(out_partition, 0, sizeof *out_partition);
    TCC_RETURN_IF_ERROR(tcc_partition_verify(problem));
    int32_t *other = tcc_allocate_zero((size_t)problem->nodes, sizeof *other);
    if (!other) return TCC_OUT_OF_MEMORY;
    tcc_status status = plan(problem, (tcc_effort){steps, go_on, context}, other, out_strategies,
                             out_partition);
    tcc_free(other);
    return status;
}
