/* Plans an arena: makes greedy plans, then searches for a smaller plan as long as steps are
 * left. */
#include <string.h>

#include "../plan.h"

/* Steps of the first try of the smallest capacity. A try of another capacity gets a part of
 * them. */
static const int64_t first_steps = INT64_C(1) << 22;
enum { OTHERS_PART = 16 };

typedef struct descent {
    tcc_search *search;
    tcc_progress *progress;
    int64_t unit, low; /* no plan is known that needs less than `low` */
    int64_t steps_end;
    int64_t *offsets, *best;
    size_t bytes;
} descent;

static tcc_outcome try_capacity(descent *d, int64_t capacity, int64_t steps) {
    int64_t remaining = d->steps_end - d->progress->steps;
    if (remaining <= 0 || d->progress->ended) return TCC_SPENT;
    tcc_outcome outcome =
        tcc_search_run(d->search, capacity, steps < remaining ? steps : remaining, d->offsets);
    if (outcome == TCC_FOUND) {
        memcpy(d->best, d->offsets, d->bytes);
        d->progress->peak = capacity;
    }
    if (outcome == TCC_REFUTED && capacity >= d->low) d->low = capacity + d->unit;
    return outcome;
}

/* Tries the smallest capacity first, then capacities halfway to the best plan, which may be easier.
 * Repeats with twice the steps, until no capacity is left between. */
static bool descend(descent *d) {
    for (int64_t steps = first_steps; d->low < d->progress->peak;) {
        int64_t part = steps;
        for (int64_t capacity = d->low; capacity < d->progress->peak;) {
            tcc_outcome outcome = try_capacity(d, capacity, part);
            if (outcome == TCC_NO_MEMORY) return false;
            if (d->progress->ended || d->progress->steps >= d->steps_end) return true;
            if (outcome == TCC_FOUND) break;
            int64_t half = (d->progress->peak - capacity) / 2 / d->unit * d->unit;
            capacity += half > d->unit ? half : d->unit;
            part = steps / OTHERS_PART;
        }
        if (steps < INT64_MAX / 2) steps *= 2;
    }
    return true;
}

static tcc_status improve(const tcc_lives *lives, int64_t target, int64_t steps,
                          tcc_progress *progress, int64_t *offsets) {
    size_t bytes = (size_t)lives->count * sizeof *offsets;
    descent d = {.progress = progress,
                 .unit = lives->unit,
                 .low = target,
                 .steps_end = steps,
                 .best = offsets,
                 .bytes = bytes};
    TCC_RETURN_IF_ERROR(tcc_search_make(lives, progress, &d.search));
    if (!d.search) return TCC_OK; /* the greedy plan is the result */
    d.offsets = tcc_allocate(bytes);
    bool is_complete = d.offsets && descend(&d);
    tcc_free(d.offsets);
    tcc_search_free(d.search);
    return is_complete ? TCC_OK : TCC_OUT_OF_MEMORY;
}

static tcc_status plan_greedily(const tcc_lives *lives, int64_t target, int64_t *out_offsets,
                                int64_t *out_peak) {
    tcc_greedy greedy;
    TCC_RETURN_IF_ERROR(tcc_greedy_make(lives, &greedy));
    tcc_status status = tcc_greedy_run(&greedy, target, out_offsets, out_peak);
    tcc_greedy_free(&greedy);
    return status;
}

static tcc_status plan(const tcc_lives *lives, int64_t capacity, int64_t steps,
                       tcc_progress *progress, int64_t *offsets, tcc_plan *out_plan) {
    int64_t *live = tcc_allocate((size_t)lives->sections * sizeof *live);
    if (!live) return TCC_OUT_OF_MEMORY;
    out_plan->bound = tcc_plan_bound(lives, live);
    tcc_free(live);
    int64_t target = capacity / lives->unit * lives->unit;
    if (target < out_plan->bound) target = out_plan->bound;
    TCC_RETURN_IF_ERROR(plan_greedily(lives, target, offsets, &progress->peak));
    if (progress->peak > target && steps > 0)
        TCC_RETURN_IF_ERROR(improve(lives, target, steps, progress, offsets));
    out_plan->steps = progress->steps;
    out_plan->peak = 0; /* a plan within a capacity may use less than it */
    for (int32_t b = 0; b < lives->count; b++) {
        offsets[b] = offsets[lives->block[b]];
        if (offsets[b] + lives->sizes[b] > out_plan->peak)
            out_plan->peak = offsets[b] + lives->sizes[b];
    }
    return TCC_OK;
}

tcc_status tcc_plan_arena(const tcc_life *buffers, int64_t count, int64_t capacity, int64_t steps,
                          int32_t (*go_on)(void *context, int64_t steps, int64_t peak),
                          void *context, int64_t *out_offsets, tcc_plan *out_plan) {
    tcc_progress progress = {.go_on = go_on, .context = context};
    tcc_lives lives;
    memset(out_plan, 0, sizeof *out_plan);
    TCC_RETURN_IF_ERROR(tcc_lives_make(buffers, count, &lives));
    tcc_status status = TCC_OK;
    if (count) status = plan(&lives, capacity, steps, &progress, out_offsets, out_plan);
    tcc_lives_free(&lives);
    return status;
}
