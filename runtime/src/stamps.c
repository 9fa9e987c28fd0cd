/* Stamps of runs: the time of each thread's part in each step, in a ring that the caller owns. */
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"
#include "runtime.h"

/* Returns the system's number of the thread. It asks once per thread, because a system call takes
 * longer than a short kernel. */
static int32_t thread_number(void) {
    static _Thread_local int32_t number;
    if (!number) number = (int32_t)syscall(SYS_gettid);
    return number;
}

void tcc_stamp(const tcc_instance *instance, int32_t step, int64_t execution, int64_t begin) {
    const tcc_ring *ring = &instance->ring;
    if (!ring->stamps) return;
    const uint64_t place = __atomic_fetch_add(ring->count, 1, __ATOMIC_RELAXED) % ring->room;
    ring->stamps[place] = (tcc_stamp_record){begin, tcc_now(), step, thread_number(), execution};
}

tcc_status tcc_instance_set_stamps(tcc_instance *instance, tcc_stamp_record *stamps, uint64_t room,
                                   uint64_t *count) {
    if (!instance) return tcc_fail(TCC_INVALID_ARGUMENT, "no instance");
    if (stamps && (room < TCC_LEAST_STAMPS || !count))
        return tcc_fail(TCC_INVALID_ARGUMENT,
                        "the ring for stamps needs a count and room for at least %d stamps, got %llu",
                        TCC_LEAST_STAMPS, (unsigned long long)room);
    instance->ring = stamps ? (tcc_ring){stamps, room, count} : (tcc_ring){0};
    if (stamps) *count = 0;
    return TCC_OK;
}
