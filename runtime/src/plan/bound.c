/* Computes a lower bound for all plans: the bytes that live at one time, and the ends of fixed
 * blocks. */
#include "plan.h"

int64_t tcc_plan_bound(const tcc_lives *lives, int64_t *out_by_section) {
    for (int32_t s = 0; s < lives->sections; s++) out_by_section[s] = 0;
    for (int32_t b = 0; b < lives->count; b++) {
        out_by_section[lives->first[b]] += lives->sizes[b];
        if (lives->last[b] < lives->sections) out_by_section[lives->last[b]] -= lives->sizes[b];
    }
    int64_t live = 0, peak = 0;
    for (int32_t s = 0; s < lives->sections; s++) {
        live += out_by_section[s];
        out_by_section[s] = live;
        if (live > peak) peak = live;
    }
    for (int32_t b = 0; b < lives->count; b++) {
        int64_t at = lives->fixed[lives->block[b]];
        if (at >= 0 && at + lives->sizes[b] > peak) peak = at + lives->sizes[b];
    }
    return peak;
}
