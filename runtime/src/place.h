/* Arenas whose buffers have sizes that inputs decide: each run plans them, greedily. */
#ifndef TCC_PLACE_H
#define TCC_PLACE_H

#include "plan/plan.h"

/* Offsets are multiples of a cache line; so are sizes, an empty one too. */
enum { TCC_PLACER_ALIGN = 64 };

/* Of a program: a plan instruction and the lives of its buffers, with sizes of 1. */
typedef struct tcc_planned {
    tcc_lives lives;
    const tcc_code *code;
    struct tcc_planned *next;
} tcc_planned;

/* Frees the list of a program. */
void tcc_plans_free(tcc_program *program);

typedef struct tcc_placer tcc_placer;

/* What an instance needs to plan: room for a plan, and the last 16 by their sizes.  Where `proved`
 * every plan is checked before it is used. */
tcc_status tcc_placer_make(const tcc_planned *planned, bool proved, tcc_placer **out_placer);
void tcc_placer_free(tcc_placer *placer);
/* Executes the instruction on registers.  Allocates nothing, unless it is proved.  Fails with
 * TCC_INVALID_ARGUMENT where sizes are negative or sum to more than 2^62. */
tcc_status tcc_placer_run(tcc_placer *placer, int64_t *registers);

#endif
