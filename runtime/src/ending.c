/* Ends runs early: handles requests to end a run, and the run's own checks for them. */
#define _GNU_SOURCE
#include <string.h>
#include <time.h>

#include "runtime.h"

enum {
    PAUSE = 20000000, /* nanoseconds between two polls, at least */
    SHARE = 10,       /* and at least this many times the duration of the last poll */
    LATE = 8000000,   /* nanoseconds above which a chunk was too large */
    GROWTH = 2,
    PIECE = 1 << 26,  /* bytes of a copy between two checks */
};

/* Reads the coarse clock in a few ns; the precise clock takes tens. */
__attribute__((noinline)) static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* ---- who ends a run ------------------------------------------------------------------------------ */

TCC_COLD static void end_up_to(tcc_ending *ending, uint64_t run) {
    uint64_t last = __atomic_load_n(&ending->last, __ATOMIC_RELAXED);
    while (last < run && !__atomic_compare_exchange_n(&ending->last, &last, run, true, __ATOMIC_RELEASE,
                                                      __ATOMIC_RELAXED))
        continue;
}

uint64_t tcc_ending_next(const tcc_ending *ending) {
    return (__atomic_load_n(&ending->run, __ATOMIC_ACQUIRE) + 1) / 2 + 1;
}

tcc_status tcc_ending_cancel(tcc_ending *ending) {
    uint64_t run = __atomic_load_n(&ending->run, __ATOMIC_ACQUIRE);
    if (run % 2 == 0) return tcc_fail(TCC_INVALID_ARGUMENT, "the instance has no run in progress");
    end_up_to(ending, run);
    return TCC_OK;
}

tcc_status tcc_ending_cancel_run(tcc_ending *ending, uint64_t number) {
    if (number == 0 || number > tcc_ending_next(ending))
        return tcc_fail(TCC_INVALID_ARGUMENT, "no run of the instance has that number, nor will the next");
    end_up_to(ending, 2 * number - 1);
    return TCC_OK;
}

tcc_status tcc_cancelled(const tcc_ending *ending) {
    return tcc_fail(TCC_CANCELLED, ending->polled ? "the caller ended the run" : "the run was cancelled");
}

/* ---- where a run looks ---------------------------------------------------------------------------- */

TCC_COLD static bool poll(tcc_ending *ending, int64_t time) {
    ending->polled = ending->poll(ending->poll_context) != 0;
    const int64_t after = now(), pause = SHARE * (after - time);
    ending->ask_at = after + (pause > PAUSE ? pause : PAUSE);
    if (ending->polled) end_up_to(ending, ending->run);
    return ending->polled;
}

bool tcc_run_ends(tcc_ending *ending) {
    if (!ending) return false;
    if (tcc_is_cancelled(ending)) return true;
    if (!ending->poll || ending->thread != (uintptr_t)pthread_self()) return false;
    const int64_t time = now();
    if (!ending->ask_at) ending->ask_at = time + PAUSE;
    return time >= ending->ask_at && poll(ending, time);
}

int tcc_run_asks(void *ending) { return tcc_run_ends(ending); }

void tcc_by_chunks(tcc_ending *ending, const tcc_chunked *work, int64_t begin, int64_t end, void *room,
                   int64_t *chunk) {
    int64_t size = __atomic_load_n(chunk, __ATOMIC_RELAXED);
    size += size < 1;
    if (end - begin <= size) {
        if (!ending || !tcc_is_cancelled(ending)) work->part(work->of, begin, end, room);
        return;
    }
    int64_t before = now();
    do {
        if (tcc_run_ends(ending)) return;
        const int64_t stop = end - begin > size ? begin + size : end;
        work->part(work->of, begin, stop, room);
        begin = stop;
        const int64_t took = now() - before;
        before += took;
        if (!took && size < end) size *= GROWTH;
        if (took > LATE) size = size / GROWTH + 1;
    } while (begin < end);
    __atomic_store_n(chunk, size, __ATOMIC_RELAXED);
}

tcc_status tcc_copy(tcc_ending *ending, void *to, const void *from, size_t bytes) {
    for (size_t done = 0, part; done < bytes; done += part) {
        if (done && tcc_run_ends(ending)) return tcc_cancelled(ending);
        part = bytes - done < PIECE ? bytes - done : PIECE;
        memcpy((char *)to + done, (const char *)from + done, part);
    }
    return TCC_OK;
}
