/* Plans random lives while every allocation fails once. Prints how many plans were proved. */
#include <stdio.h>
#include <string.h>

#include "plan/plan.h"

extern int64_t tcc_test_fail_after;

enum { MOST = 24 };

static uint64_t state = 1;

static int64_t below(int64_t end) {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int64_t)((state >> 33) % (uint64_t)end);
}

static int64_t draw(tcc_life *lives) {
    int64_t count = below(MOST + 1);
    bool is_taken[MOST] = {false};
    for (int64_t b = 0; b < count; b++) {
        int64_t lower = below(20);
        lives[b] = (tcc_life){lower, lower + 1 + below(6), below(9), 1 << below(3), -1, -1};
        int64_t under = below(count);
        if (under < b && !is_taken[under] && lives[under].upper <= lower) {
            lives[b].over = under;
            is_taken[under] = true;
        } else if (!below(8)) {
            lives[b].fixed = below(8) * lives[b].alignment;
        }
    }
    return count;
}

static int32_t some_steps(void *context, int64_t steps, int64_t peak) {
    (void)steps, (void)peak;
    return --*(int64_t *)context > 0;
}

int main(void) {
    int64_t proved = 0, refused = 0, failed = 0;
    for (int64_t round = 0; round < 160; round++) {
        tcc_life lives[MOST];
        int64_t offsets[MOST] = {0}, count = draw(lives), alignment_steps = 4;
        tcc_plan plan = {0};
        tcc_status status = TCC_OUT_OF_MEMORY;
        for (int64_t fails = 1; status == TCC_OUT_OF_MEMORY; fails++) {
            tcc_test_fail_after = round % 4 ? -1 : fails;
            status = tcc_plan_arena(lives, count, 0, 1 << 20, some_steps, &alignment_steps, offsets, &plan);
            failed += status == TCC_OUT_OF_MEMORY;
        }
        tcc_test_fail_after = -1;
        if (status == TCC_INVALID_ARGUMENT) {
            refused++; /* fixed buffers that overlap */
            continue;
        }
        if (status != TCC_OK || plan.peak < plan.bound ||
            tcc_plan_check(lives, count, offsets, plan.peak) != TCC_OK) {
            printf("round %lld: %s\n", (long long)round, tcc_last_error());
            return 1;
        }
        proved++;
    }
    printf("%lld proved, %lld refused, %s\n", (long long)proved, (long long)refused,
           failed > 100 ? "many failed" : "too few failed");
    return 0;
}
