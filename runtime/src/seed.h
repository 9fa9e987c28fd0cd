/* ---- seed.c: what random nodes draw with ------------------------------------------------------------ */
#ifndef TCC_SEED_H
#define TCC_SEED_H

#include "runtime.h"

/* Computes the run's seed: the instance's, else TCC_SEED, else one that no other run has
 * (`run->fresh` is then true).  Every call in a run gives the same seed.  Fails if TCC_SEED is no
 * number of 64 bits. */
tcc_status tcc_run_seed(tcc_run *run, int64_t *out_seed);

#endif
