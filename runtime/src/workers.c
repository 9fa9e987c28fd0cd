/* The threads behind a launch: they are started, sleep where nothing happens, and are woken. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "workers.h"

uint64_t tcc_workers_next(const tcc_workers *workers, uint64_t last) {
    const tcc_slot *slot = &workers->slots[(last + 1) & 1];
    return atomic_load_explicit(&slot->word, memory_order_acquire);
}

void tcc_workers_sleep(tcc_workers *workers, int32_t self, uint64_t last) {
    uint64_t bit = UINT64_C(1) << (self % 64);
    uint32_t bell = atomic_load(&workers->bell[self]);
    TCC_BETWEEN();
    atomic_fetch_or(&workers->asleep[self / 64], bit);
    /* A launch that goes out at this moment may miss the bit; its caller looks again as it works. */
    while (tcc_workers_next(workers, last) >> WORD_TICKET <= last &&
           atomic_load(&workers->bell[self]) == bell)
        syscall(SYS_futex, &workers->bell[self], FUTEX_WAIT_PRIVATE, bell, NULL, NULL, 0);
    atomic_fetch_and(&workers->asleep[self / 64], ~bit);
}

typedef struct worker_start {
    tcc_worker *worker;
    tcc_workers *workers;
    int32_t self;
    uint64_t last;
} worker_start;

static void *begin(void *argument) {
    worker_start start = *(worker_start *)argument;
    free(argument);
    start.worker(start.workers, start.self, start.last);
    return NULL;
}

/* Signals sent to the process stay with the program's own threads.  Those that a thread's own
 * instructions raise must reach a handler, or the kernel kills the process without asking it; and
 * profilers want to interrupt whoever uses the CPU. */
static void signals_to_block(sigset_t *out_set) {
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGPROF};
    sigfillset(out_set);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) sigdelset(out_set, own[i]);
}

void tcc_workers_start(tcc_workers *workers, int32_t wanted, tcc_worker *worker) {
    sigset_t blocked, old;
    signals_to_block(&blocked);
    pthread_sigmask(SIG_SETMASK, &blocked, &old);
    pthread_attr_t attributes;
    bool ready = pthread_attr_init(&attributes) == 0;
    if (ready) pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    int32_t started = atomic_load_explicit(&workers->started, memory_order_relaxed);
    while (ready && started < wanted) {
        worker_start *start = malloc(sizeof *start);
        pthread_t thread;
        if (!start) break;
        *start = (worker_start){worker, workers, started + 1, workers->ticket};
        if (pthread_create(&thread, &attributes, begin, start)) {
            free(start);
            break;
        }
        atomic_store_explicit(&workers->started, ++started, memory_order_relaxed);
    }
    if (started < wanted) workers->refused = true;
    if (ready) pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

void tcc_workers_wake(tcc_workers *workers, int32_t threads) {
    for (int32_t group = 0; group * 64 < threads; group++) {
        uint64_t asleep = atomic_load_explicit(&workers->asleep[group], memory_order_relaxed);
        if (threads - group * 64 < 64) asleep &= (UINT64_C(1) << (threads - group * 64)) - 1;
        while (TCC_UNLIKELY(asleep != 0)) {
            int32_t self = group * 64 + __builtin_ctzll(asleep);
            asleep &= asleep - 1;
            atomic_fetch_and(&workers->asleep[group], ~(UINT64_C(1) << (self % 64)));
            atomic_fetch_add(&workers->bell[self], 1);
            syscall(SYS_futex, &workers->bell[self], FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
        }
    }
}
