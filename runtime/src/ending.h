/* ending.c: runs that end before their time.  Included by runtime.h. */
#ifndef TCC_ENDING_H
#define TCC_ENDING_H

#include <pthread.h>

/* Of an instance.  A run's word is odd: it counts up as a run begins, and as it ends. */
typedef struct tcc_ending {
    uint64_t run;  /* of the run in progress; else of the next, less 1 */
    uint64_t last; /* runs up to this word are cancelled */
    int (*poll)(void *context); /* what the thread that runs asks; NULL: nothing */
    void *poll_context;
    int64_t ask_at;   /* when it asks next; 0: it has not looked yet */
    uintptr_t thread; /* that one */
    bool polled;      /* the answer was to end the run */
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
/* The number of the next run, and what cancels one: for any thread; tcc.h says what they promise. */
uint64_t tcc_ending_next(const tcc_ending *ending) TCC_RARE;
tcc_status tcc_ending_cancel(tcc_ending *ending) TCC_RARE;
tcc_status tcc_ending_cancel_run(tcc_ending *ending, uint64_t number) TCC_RARE;
/* TCC_CANCELLED, and why. */
tcc_status tcc_cancelled(const tcc_ending *ending) TCC_COLD;
/* Whether the run in progress is cancelled: two loads. */
static inline bool tcc_is_cancelled(const tcc_ending *ending) {
    return TCC_UNLIKELY(__atomic_load_n(&ending->last, __ATOMIC_ACQUIRE) >=
                        __atomic_load_n(&ending->run, __ATOMIC_RELAXED));
}
/* The same, and the run's own thread polls when it is time: some nanoseconds, to be called at most 10 ms
 * apart.  Once it is true it stays so until the run is over.  NULL: nobody ends the run. */
bool tcc_run_ends(tcc_ending *ending);
int tcc_run_asks(void *ending); /* the same */

/* Words ahead of a launch's buffers: at -1 its code, at -2 the instance, at -3 its tcc_ending, and at -4
 * tcc_run_asks, which kernels call whose units take long.  At -5 and -6 are
 * the kernel and the number of a launch that is stamped. */
enum { TCC_LAUNCH_HEAD = 8 };

/* Work that its units divide. */
typedef struct tcc_chunked {
    void (*part)(const void *of, int64_t begin, int64_t end, void *room);
    const void *of;
} tcc_chunked;

/* Does units begin to end - 1 in parts of `*chunk`, which begins at 0 and is adjusted to some
 * milliseconds, and looks before each whether the run ends: then the rest is not done. */
void tcc_by_chunks(tcc_ending *ending, const tcc_chunked *work, int64_t begin, int64_t end, void *room,
                   int64_t *chunk);

/* As memcpy; TCC_CANCELLED where the run ends before. */
tcc_status tcc_copy(tcc_ending *ending, void *to, const void *from, size_t bytes);

#endif
