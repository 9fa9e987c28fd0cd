/* Places buffers in an arena when a run knows their sizes; equal sizes have equal plans. */
#include "place.h"

#include <string.h>

enum { KEPT = 16 };

typedef struct placed {
    int64_t *sizes, *offsets;
    int64_t end; /* -1: none yet */
} placed;

struct tcc_placer {
    const tcc_planned *planned;
    bool proved;
    tcc_lives lives; /* those of the program, with this run's sizes */
    tcc_greedy greedy;
    int64_t *sizes; /* as the registers have them */
    int64_t *live;  /* bytes by section */
    placed kept[KEPT];
    int32_t last, next; /* the plan used last, and the one that a new plan replaces */
};

void tcc_plans_free(tcc_program *program) {
    while (program->plans) {
        tcc_planned *planned = program->plans;
        program->plans = planned->next;
        tcc_lives_free(&planned->lives);
        tcc_free(planned);
    }
}

tcc_status tcc_placer_make(const tcc_planned *planned, bool proved, tcc_placer **out_placer) {
    size_t count = (size_t)planned->lives.count, sections = (size_t)planned->lives.sections;
    *out_placer = NULL;
    tcc_placer *placer = tcc_allocate_zero(1, sizeof *placer);
    if (!placer) return TCC_OUT_OF_MEMORY;
    placer->planned = planned;
    placer->proved = proved;
    placer->lives = planned->lives;
    int64_t *numbers =
        tcc_allocate_zero((2 + 2 * KEPT) * count + sections, sizeof *placer->sizes);
    tcc_status status = TCC_OUT_OF_MEMORY;
    if (numbers) status = tcc_greedy_make(&placer->lives, &placer->greedy);
    placer->sizes = numbers;
    if (status != TCC_OK) {
        tcc_placer_free(placer);
        return status;
    }
    placer->lives.sizes = numbers + count;
    placer->live = numbers + 2 * count;
    for (size_t i = 0; i < KEPT; i++) {
        placer->kept[i].sizes = placer->live + sections + 2 * i * count;
        placer->kept[i].offsets = placer->kept[i].sizes + count;
        placer->kept[i].end = -1;
    }
    *out_placer = placer;
    return TCC_OK;
}

void tcc_placer_free(tcc_placer *placer) {
    if (!placer) return;
    tcc_greedy_free(&placer->greedy);
    tcc_free(placer->sizes);
    tcc_free(placer);
}

static tcc_status set_sizes(tcc_placer *placer) {
    int64_t left = INT64_C(1) << 62;
    for (int32_t b = 0; b < placer->lives.count; b++) {
        int64_t size = placer->sizes[b];
        if (size < 0 || size > left - TCC_PLACER_ALIGN)
            return tcc_fail(TCC_INVALID_ARGUMENT, "a size is too large (%lld bytes of the arena)",
                            (long long)size);
        placer->lives.sizes[b] = tcc_aligned(size ? size : 1, TCC_PLACER_ALIGN);
        left -= placer->lives.sizes[b];
    }
    return TCC_OK;
}

static tcc_status prove(const tcc_placer *placer, const int64_t *offsets, int64_t end) {
    const int64_t *spans = placer->planned->code->as.plan.lives.numbers;
    size_t count = (size_t)placer->lives.count;
    tcc_life *lives = tcc_allocate(count * sizeof *lives);
    if (!lives) return TCC_OUT_OF_MEMORY;
    for (size_t b = 0; b < count; b++)
        lives[b] = (tcc_life){spans[3 * b], spans[3 * b + 1] + 1, placer->sizes[b],
                              TCC_PLACER_ALIGN, spans[3 * b + 2], -1};
    tcc_status status = tcc_plan_check(lives, (int64_t)count, offsets, end);
    tcc_free(lives);
    return status;
}

/* A plan for sizes that are not kept replaces the oldest. */
static tcc_status plan_anew(tcc_placer *placer) {
    TCC_RETURN_IF_ERROR(set_sizes(placer));
    placed *plan = &placer->kept[placer->next];
    int64_t end = 0, bound = tcc_plan_bound(&placer->lives, placer->live);
    plan->end = -1;
    TCC_RETURN_IF_ERROR(tcc_greedy_run(&placer->greedy, bound, plan->offsets, &end));
    if (placer->proved) TCC_RETURN_IF_ERROR(prove(placer, plan->offsets, end));
    memcpy(plan->sizes, placer->sizes, (size_t)placer->lives.count * sizeof *plan->sizes);
    plan->end = end;
    placer->last = placer->next;
    placer->next = (placer->next + 1) % KEPT;
    return TCC_OK;
}

static bool is_kept(tcc_placer *placer) {
    size_t bytes = (size_t)placer->lives.count * sizeof *placer->sizes;
    for (int32_t i = 0; i < KEPT; i++) {
        int32_t at = (placer->last + i) % KEPT;
        if (placer->kept[at].end < 0 || memcmp(placer->kept[at].sizes, placer->sizes, bytes))
            continue;
        placer->last = at;
        return true;
    }
    return false;
}

tcc_status tcc_placer_run(tcc_placer *placer, int64_t *registers) {
    const tcc_code *code = placer->planned->code;
    const int64_t *sizes = code->as.plan.sizes.numbers, *targets = code->as.plan.offsets.numbers;
    for (int32_t b = 0; b < placer->lives.count; b++) placer->sizes[b] = registers[sizes[b]];
    if (!is_kept(placer)) TCC_RETURN_IF_ERROR(plan_anew(placer));
    const placed *plan = &placer->kept[placer->last];
    for (int32_t b = 0; b < placer->lives.count; b++) registers[targets[b]] = plan->offsets[b];
    registers[code->as.plan.end] = plan->end;
    return TCC_OK;
}
