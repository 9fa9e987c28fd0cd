/* The clock that waits, stamps and limits of time share. */
#ifndef TCC_CLOCK_H
#define TCC_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Returns nanoseconds of CLOCK_MONOTONIC. */
static inline int64_t tcc_now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

#endif
