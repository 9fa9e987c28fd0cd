/* Arenas whose buffers have sizes that inputs decide: each run plans them, greedily. */
#ifndef TCC_PLACE_H
#define TCC_PLACE_H

#include "runtime.h"

typedef struct tcc_placer tcc_placer;

/* What an instance needs to execute a plan instruction: room for a plan, and the last 16 by their
 * sizes.  Where `proved` every plan is checked before it is used.  TCC_CORRUPT for lives that are
 * none. */
tcc_status tcc_placer_make(const tcc_code *code, bool proved, tcc_placer **out_placer);
void tcc_placer_free(tcc_placer *placer);
/* Executes the instruction on registers.  Allocates nothing, unless it is proved.  Fails with
 * TCC_INVALID_ARGUMENT where sizes are negative or sum to more than 2^62. */
tcc_status tcc_placer_run(tcc_placer *placer, int64_t *registers);

#endif
