/* How often this process is a fork's child. */
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
