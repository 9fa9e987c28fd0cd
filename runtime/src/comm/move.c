/* Moves the bytes and elements of an operation over the segment: decides which rank moves which
 * part, and to where. */
#include <string.h>

#include "shared.h"

enum {
    BLOCK = 16 << 10, /* bytes that stay in the first-level cache */
    APART = 64,       /* bytes of a cache line: parts of two ranks share none */
};

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

void tcc_shared_copy(void *to, const void *from, int64_t count, size_t element) {
    if (count > 0 && to != from) memcpy(to, from, (size_t)count * element);
}

void tcc_shared_hand(const tcc_shared *shared, void *to, const void *from, int64_t count,
                     size_t element) {
    if (shared->past && count > 0 && to != from)
        tcc_comm_copy_past(to, from, (size_t)count * element);
    else
        tcc_shared_copy(to, from, count, element);
}

void tcc_shared_reduce(const tcc_shared *shared, const tcc_comm_work *work,
                       const char *const *inputs, int64_t count, char *slot, char *const *outs,
                       int32_t n) {
    _Alignas(APART) char block[BLOCK];
    int64_t element = (int64_t)work->element, block_elements = BLOCK / element;
    for (int64_t begin = 0, some; begin < count; begin += some) {
        some = smaller(block_elements, count - begin);
        const void *from[TCC_COMM_MOST_LOCAL];
        for (int32_t i = 0; i < shared->size; i++) from[i] = inputs[i] + begin * element;
        char *sums = (slot ? slot : outs[0]) + begin * element;
        if (!slot && shared->past) sums = block;
        tcc_comm_reduce(sums, from, shared->size, some, work->type, work->call.reduction);
        for (int32_t i = 0; i < n; i++)
            tcc_shared_hand(shared, outs[i] + begin * element, sums, some, work->element);
    }
}

int64_t tcc_shared_part(const tcc_shared *shared, const tcc_comm_work *work, int64_t count,
                        int32_t rank) {
    int64_t lines = (int64_t)(APART / work->element), all = (count + lines - 1) / lines;
    return smaller(count, all * rank / shared->size * lines);
}

int64_t tcc_shared_price(const tcc_shared *shared, int64_t steps, int64_t bytes) {
    enum { AWAKE = 300, ASLEEP = 20000, BYTES_A_NANOSECOND = 8 };
    return steps * (shared->spin ? AWAKE : ASLEEP) + bytes / BYTES_A_NANOSECOND;
}
