/* Declares how runs end early, by a cancellation or by the caller's poll (ending.c).  Included by
 * runtime.h. */
#ifndef TCC_ENDING_H
#define TCC_ENDING_H

#include <pthread.h>

/* The state of one instance for cancelling runs.  `run` counts up when a run begins and when it
 * ends, so it is odd during a run. */
typedef struct tcc_ending {
    uint64_t run;  /* the run in progress; between runs, the next run less 1 */
    uint64_t last; /* runs up to this value of `run` are cancelled */
    int (*poll)(void *context); /* the caller's poll, which the running thread calls; NULL: none */
    void *poll_context;
    int64_t ask_at;   /* nanoseconds (CLOCK_MONOTONIC) of the next poll; 0: the run has not looked
                         yet */
    uintptr_t thread; /* the running thread */
    bool polled;      /* the poll asked to end the run */
} tcc_ending;

static inline void tcc_ending_begin(tcc_ending *ending) {
    ending->ask_at = 0;
    ending->polled = false;
    ending->thread = (uintptr_t)pthread_self();
    __atomic_store_n(&ending->run, ending->run + 1, __ATOMIC_RELEASE);
}
static inline void tcc_ending_over(tcc_ending *ending) {
    __atomic_store_n(&ending->run, ending->run + 1, __ATOMIC_RELEASE);
}
/* tcc_ending_next returns the number of the next run.  The other two functions cancel a run.  Any
 * thread may call them; tcc.h specifies all three. */
uint64_t tcc_ending_next(const tcc_ending *ending) TCC_RARE;
tcc_status tcc_ending_cancel(tcc_ending *ending) TCC_RARE;
tcc_status tcc_ending_cancel_run(tcc_ending *ending, uint64_t number) TCC_RARE;
/* Returns TCC_CANCELLED, and sets the reason. */
tcc_status tcc_cancelled(const tcc_ending *ending) TCC_COLD;
/* Returns true if the run in progress is cancelled.  Costs two loads. */
static inline bool tcc_is_cancelled(const tcc_ending *ending) {
    return TCC_UNLIKELY(__atomic_load_n(&ending->last, __ATOMIC_ACQUIRE) >=
                        __atomic_load_n(&ending->run, __ATOMIC_RELAXED));
}
/* Returns true if the run in progress is cancelled, and calls the poll when it is due and the
 * caller is the running thread.  Costs some nanoseconds; a run calls it at least every 10 ms.  A
 * true result stays true until the run is over.  `ending` may be NULL: the result is false. */
bool tcc_run_ends(tcc_ending *ending);
int tcc_run_asks(void *ending); /* tcc_run_ends as a kernel calls it */

/* The number of words ahead of a launch's buffers.  Word -1 is the launch's code, -2 the instance,
 * -3 its tcc_ending, and -4 the address of tcc_run_asks, which kernels with long tiles call.  A
 * launch that is stamped has its kernel at -5 and the number of its execution at -6. */
enum { TCC_LAUNCH_HEAD = 8 };

/* Work that can be divided into ranges of units. */
typedef struct tcc_chunked {
    void (*part)(const void *of, int64_t begin, int64_t end, void *room);
    const void *of;
} tcc_chunked;

/* Runs units begin to end - 1 in chunks of `*chunk` units, and returns early if the run ends before
 * a chunk.  `*chunk` begins at 0; the function adjusts it so that a chunk takes some
 * milliseconds. */
void tcc_by_chunks(tcc_ending *ending, const tcc_chunked *work, int64_t begin, int64_t end, void *room,
                   int64_t *chunk);

/* Copies as memcpy does.  Returns TCC_CANCELLED where the run ends before the copy is done. */
tcc_status tcc_copy(tcc_ending *ending, void *to, const void *from, size_t bytes);

#endif
