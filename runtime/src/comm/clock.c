/* Reads the monotonic clock. */
#define _GNU_SOURCE
#include <time.h>

#include "comm.h"

int64_t tcc_comm_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void tcc_comm_pause(int64_t nanoseconds) {
    struct timespec time = {nanoseconds / 1000000000, nanoseconds % 1000000000};
    nanosleep(&time, NULL);
}
