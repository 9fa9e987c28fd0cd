/* The workers' constants for the explorer: loops have few turns, which the explorer sees. */
#ifndef TRIAL_H
#define TRIAL_H

enum { STEAL_AFTER = 1, HELP_AFTER = 1, LOOK_AT_CLOCK = 2, YIELD_AFTER = 1 << 30 };

#define TCC_OWN_TURNS
void spin_turn(void);
static inline void tcc_relax(void) { spin_turn(); }

#endif
