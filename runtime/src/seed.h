/* ---- seed.c: what random nodes draw with ------------------------------------------------------------ */
#ifndef TCC_SEED_H
#define TCC_SEED_H

#include "runtime.h"

/* The run's seed, the same whenever it is asked for: that of the instance, else TCC_SEED, else one that
 * no other run has (`run->fresh` is true then).  Fails if TCC_SEED is no number of 64 bits. */
tcc_status tcc_run_seed(tcc_run *run, int64_t *out_seed);

#endif
