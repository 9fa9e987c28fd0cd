/* Counts how often this process is a fork's child, to tell whether a comm belongs to it. */
#define _GNU_SOURCE
#include <pthread.h>

#include "comm.h"

static _Atomic uint32_t forks;

static void count_fork(void) { atomic_fetch_add(&forks, 1); }

static void watch_forks(void) { (void)pthread_atfork(NULL, NULL, count_fork); }

uint32_t tcc_comm_forks(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    return atomic_load_explicit(&forks, memory_order_relaxed);
}

tcc_status tcc_comm_usable(const tcc_comm *comm) {
    if (!comm) return tcc_fail(TCC_INVALID_ARGUMENT, "the comm is NULL");
    if (TCC_UNLIKELY(comm->forks != tcc_comm_forks()))
        return tcc_fail(TCC_INVALID_ARGUMENT,
                        "this process was forked from rank %d, to which the comm belongs: open one "
                        "of its own",
                        comm->rank);
    return TCC_OK;
}
