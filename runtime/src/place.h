/* Declares arenas whose buffers have sizes that depend on inputs: each run plans them greedily. */
#ifndef TCC_PLACE_H
#define TCC_PLACE_H

#include "runtime.h"

typedef struct tcc_placer tcc_placer;

/* Makes the data that an instance needs to execute a plan instruction: room for a plan, and the
 * last 16 plans with their sizes.  If `proved`, every plan is checked before use.  Fails with
 * TCC_CORRUPT where the lifetimes are invalid. */
tcc_status tcc_placer_make(const tcc_code *code, bool proved, tcc_placer **out_placer);
void tcc_placer_free(tcc_placer *placer);
/* Executes the instruction on `registers`.  Allocates nothing unless plans are proved.  Fails with
 * TCC_INVALID_ARGUMENT where sizes are negative or sum to more than 2^62 bytes. */
tcc_status tcc_placer_run(tcc_placer *placer, int64_t *registers);

#endif
