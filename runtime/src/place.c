/* Places buffers in an arena when a run knows their sizes. Equal sizes have equal plans. */
#include "place.h"

#include <string.h>

#include "plan/plan.h"

/* KEPT: number of plans that are kept. LINE: bytes of a cache line; offsets are multiples of it. */
enum { PLANS = 16, LINE = 64 };

typedef struct placed {
    int64_t *sizes, *offsets;
    int64_t end; /* bytes of the plan; -1: no plan yet */
} placed;

struct tcc_placer {
    const tcc_code *code;
    bool proved;
    tcc_life *buffers; /* the buffers with this run's sizes, like `lives` */
    tcc_lives lives;
    tcc_greedy greedy;
    int64_t *sizes; /* in the order of the registers */
    int64_t *live;  /* bytes per section */
    placed plans[PLANS];
    int32_t last, next; /* the plan used last, and the plan that a new one replaces */
};

/* Sets the lifetimes. Until the first run every buffer has one byte, as empty buffers always do, so
 * that each has an address. */
static tcc_status set_lives(tcc_placer *placer, int64_t count) {
    const int64_t *spans = placer->code->as.plan.lives.numbers;
    placer->buffers = tcc_allocate((size_t)count * sizeof *placer->buffers);
    if (!placer->buffers) return TCC_OUT_OF_MEMORY;
    for (int64_t b = 0; b < count; b++) {
        int64_t last = spans[3 * b + 1];
        /* INT64_MIN makes an invalid lifetime */
        int64_t upper = last < INT64_MAX ? last + 1 : INT64_MIN;
        placer->buffers[b] = (tcc_life){spans[3 * b], upper, 1, LINE, spans[3 * b + 2], -1};
    }
    tcc_status status = tcc_lives_make(placer->buffers, count, &placer->lives);
    if (status == TCC_OK || status == TCC_OUT_OF_MEMORY) return status;
    return tcc_fail(TCC_CORRUPT, "the artifact is damaged: a plan has buffers that do not live");
}

static tcc_status allocate(tcc_placer *placer) {
    size_t count = (size_t)placer->lives.count, sections = (size_t)placer->lives.sections;
    placer->sizes = tcc_allocate_zero((1 + 2 * PLANS) * count + sections, sizeof *placer->sizes);
    if (!placer->sizes) return TCC_OUT_OF_MEMORY;
    int64_t *room = placer->sizes + count;
    for (size_t i = 0; i < PLANS; i++, room += 2 * count)
        placer->plans[i] = (placed){room, room + count, -1};
    placer->live = room;
    return tcc_greedy_make(&placer->lives, &placer->greedy);
}

tcc_status tcc_placer_make(const tcc_code *code, bool proved, tcc_placer **out_placer) {
    tcc_placer *placer = tcc_allocate_zero(1, sizeof *placer);
    *out_placer = placer; /* freed with the instance, also if it is incomplete */
    if (!placer) return TCC_OUT_OF_MEMORY;
    placer->code = code;
    placer->proved = proved;
    TCC_RETURN_IF_ERROR(set_lives(placer, code->as.plan.sizes.count));
    return allocate(placer);
}

void tcc_placer_free(tcc_placer *placer) {
    if (!placer) return;
    tcc_greedy_free(&placer->greedy);
    tcc_lives_free(&placer->lives);
    tcc_free(placer->buffers);
    tcc_free(placer->sizes);
    tcc_free(placer);
}

static tcc_status set_sizes(tcc_placer *placer) {
    int64_t remaining = INT64_C(1) << 62;
    for (int32_t b = 0; b < placer->lives.count; b++) {
        int64_t size = placer->sizes[b];
        if (size < 0 || size > remaining - LINE)
            return tcc_fail(TCC_INVALID_ARGUMENT, "a size is too large (%lld bytes of the arena)",
                            (long long)size);
        placer->buffers[b].size = size ? size : 1;
        placer->lives.sizes[b] = tcc_aligned(placer->buffers[b].size, LINE);
        remaining -= placer->lives.sizes[b];
    }
    return TCC_OK;
}

/* Makes a plan for sizes without a kept plan. It replaces the oldest plan. */
static tcc_status plan_anew(tcc_placer *placer) {
    TCC_RETURN_IF_ERROR(set_sizes(placer));
    placed *plan = &placer->plans[placer->next];
    int64_t end = 0, bound = tcc_plan_bound(&placer->lives, placer->live);
    plan->end = -1;
    TCC_RETURN_IF_ERROR(tcc_greedy_run(&placer->greedy, bound, plan->offsets, &end));
    if (placer->proved)
        TCC_RETURN_IF_ERROR(
            tcc_plan_check(placer->buffers, placer->lives.count, plan->offsets, end));
    memcpy(plan->sizes, placer->sizes, (size_t)placer->lives.count * sizeof *plan->sizes);
    plan->end = end;
    placer->last = placer->next;
    placer->next = (placer->next + 1) % PLANS;
    return TCC_OK;
}

static bool has_plan(tcc_placer *placer) {
    size_t bytes = (size_t)placer->lives.count * sizeof *placer->sizes;
    for (int32_t i = 0; i < PLANS; i++) {
        int32_t at = (placer->last + i) % PLANS;
        if (placer->plans[at].end < 0 || memcmp(placer->plans[at].sizes, placer->sizes, bytes))
            continue;
        placer->last = at;
        return true;
    }
    return false;
}

tcc_status tcc_placer_run(tcc_placer *placer, int64_t *registers) {
    const tcc_code *code = placer->code;
    const int64_t *sizes = code->as.plan.sizes.numbers;
    const int64_t *targets = code->as.plan.offsets.numbers;
    for (int32_t b = 0; b < placer->lives.count; b++) placer->sizes[b] = registers[sizes[b]];
    if (!has_plan(placer)) TCC_RETURN_IF_ERROR(plan_anew(placer));
    const placed *plan = &placer->plans[placer->last];
    for (int32_t b = 0; b < placer->lives.count; b++) registers[targets[b]] = plan->offsets[b];
    registers[code->as.plan.end] = plan->end;
    return TCC_OK;
}
