/* Prints the nanoseconds of a barrier of one rank: the minimum of 1,000 rounds of 10,000
 * barriers. */
#include <time.h>

#include "ranks.h"

enum { ROUNDS = 1000, CALLS = 10000 };

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return 1e9 * (double)time.tv_sec + (double)time.tv_nsec;
}

int main(void) {
    setup ranks = {.size = 1, .name = own_name("turns")};
    tcc_comm_config config = config_of(&ranks);
    tcc_comm *comm;
    double shortest = 1e9;
    CHECK_OK(tcc_comm_open(&config, &comm));
    for (int round = 0; round < ROUNDS; round++) {
        double begin = now();
        for (int i = 0; i < CALLS; i++) CHECK_OK(tcc_comm_barrier(comm));
        double took = (now() - begin) / CALLS;
        if (took < shortest) shortest = took;
    }
    printf("%.2f\n", shortest);
    tcc_comm_close(comm);
    return 0;
}
