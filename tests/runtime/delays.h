/* Makes threads take turns on a few CPUs, and waits between the steps of a launch: mostly not at
 * all, now and then a turn of the scheduler, rarely longer than several launches take. */
#ifndef DELAYS_H
#define DELAYS_H

#include <sched.h>
#include <stdint.h>
#include <unistd.h>

#define TCC_OWN_TURNS
enum { STEAL_AFTER = 2, HELP_AFTER = 4, LOOK_AT_CLOCK = 64, YIELD_AFTER = 16 };

static inline uint64_t draw(void) {
    static _Thread_local uint64_t state;
    if (!state) state = (uintptr_t)&state | 1;
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state >> 20;
}

static inline void wait_a_while(void) {
    uint64_t number = draw();
    if (number % 8 == 0) sched_yield();
    if (number % 1024 == 1) usleep(number >> 20 & 127);
}

static inline void tcc_relax(void) {
    if (draw() % 8 == 0) sched_yield();
}

#define TCC_BETWEEN() wait_a_while()

#endif
