/* Carries out collectives whose buffers lie in symmetric memory: ranks read and write one another's
 * buffers. */
#include "shared.h"

enum { STEPS = 2 }; /* one step to begin, one to end */

/* Returns the distance in bytes from this rank's part of the arena to another rank's part. */
static ptrdiff_t away(const tcc_shared *shared, int32_t rank) {
    const int32_t *members = shared->members;
    ptrdiff_t parts = members ? members[rank] - members[shared->rank] : rank - shared->rank;
    return parts * (ptrdiff_t)shared->arena->bytes;
}

static void fill_nothing(tcc_shared *shared, const tcc_comm_work *work) {
    (void)shared;
    (void)work;
}

/* Reduces this rank's part of all ranks' operands to `n` places. */
static void reduce(tcc_shared *shared, const tcc_comm_work *work, int64_t begin, int64_t count,
                   char *const *outs, int32_t n) {
    const char *inputs[TCC_COMM_MOST_LOCAL];
    for (int32_t i = 0; i < shared->size; i++)
        inputs[i] = work->send + away(shared, i) + begin * (int64_t)work->element;
    tcc_shared_reduce(shared, work, inputs, count, NULL, outs, n);
}

static tcc_status reduce_for_all(tcc_shared *shared, const tcc_comm_work *work) {
    if (shared->round) return TCC_OK;
    int64_t begin = tcc_shared_part(shared, work, work->call.count, shared->rank);
    int64_t end = tcc_shared_part(shared, work, work->call.count, shared->rank + 1);
    char *outs[TCC_COMM_MOST_LOCAL]; /* this rank's place comes first: the part is computed there */
    for (int32_t i = 0; i < shared->size; i++)
        outs[i] = work->receive + begin * (int64_t)work->element +
                  away(shared, (shared->rank + i) % shared->size);
    reduce(shared, work, begin, end - begin, outs, shared->size);
    return TCC_OK;
}

static tcc_status reduce_part(tcc_shared *shared, const tcc_comm_work *work) {
    if (shared->round) return TCC_OK;
    reduce(shared, work, shared->rank * work->call.count, work->call.count,
           (char *[]){work->receive}, 1);
    return TCC_OK;
}

static tcc_status hand_to_all(tcc_shared *shared, const tcc_comm_work *work) {
    if (shared->round) return TCC_OK;
    const int64_t *counts = work->call.send_counts;
    int64_t count = counts ? counts[shared->rank] : work->call.count;
    int64_t before = counts ? tcc_comm_elements_before(counts, shared->rank) : count * shared->rank;
    for (int32_t i = 0; i < shared->size; i++)
        tcc_shared_hand(shared, work->receive + before * (int64_t)work->element + away(shared, i),
                        work->send, count, work->element);
    return TCC_OK;
}

static tcc_status take_from_all(tcc_shared *shared, const tcc_comm_work *work) {
    int64_t bytes = work->call.count * (int64_t)work->element;
    for (int32_t i = 0; i < shared->size && !shared->round; i++)
        tcc_shared_hand(shared, work->receive + i * bytes,
                        work->send + away(shared, i) + shared->rank * bytes, work->call.count,
                        work->element);
    return TCC_OK;
}

/* For each kind: the buffers that must lie in the arena, at the same places on all ranks, and the
 * method without slots. A kind without a method needs slots: a broadcast moves slices while its
 * root reads the next slice. */
typedef struct kind_row {
    bool send, receive;
    tcc_shared_method method;
} kind_row;

#define ROW(send, receive, read) {send, receive, {STEPS, INT64_MAX, fill_nothing, read}}

static const kind_row kinds[TCC_COMM_SEND] = {
    [TCC_COMM_ALL_REDUCE] = ROW(true, true, reduce_for_all),
    [TCC_COMM_REDUCE_SCATTER] = ROW(true, false, reduce_part),
    [TCC_COMM_ALL_GATHER] = ROW(false, true, hand_to_all),
    [TCC_COMM_ALL_GATHER_V] = ROW(false, true, hand_to_all),
    [TCC_COMM_ALL_TO_ALL] = ROW(true, true, take_from_all),
};

/* ---- where buffers lie ----------------------------------------------------------------------- */

/* Sets `where` to the place of the kind's buffers in a rank's part of an arena. Returns false where
 * they do not lie in it. */
static bool lies_in(const tcc_shared_arena *arena, int32_t part, const tcc_comm_work *work,
                    const kind_row *kind, uint64_t *where) {
    const char *begin = arena->memory + (size_t)part * arena->bytes;
    const char *buffers[] = {work->send, work->receive};
    size_t sizes[] = {work->sent, work->received};
    *where = 0;
    for (int i = 0; arena->memory && i < 2; i++) {
        if (!(i ? kind->receive : kind->send)) continue;
        if (!buffers[i] || buffers[i] < begin || buffers[i] + sizes[i] > begin + arena->bytes)
            return false;
        *where = *where * UINT64_C(0x9e3779b97f4a7c15) + (uint64_t)(buffers[i] - begin);
    }
    return arena->memory;
}

/* Returns how many more bytes a method with slots moves. */
static int64_t staged(const tcc_shared *shared, const tcc_comm_work *work) {
    int64_t bytes = work->call.count * (int64_t)work->element, peers = shared->size - 1;
    switch (work->call.kind) {
    /* a method with slots fills the slot and writes all results; one without reads and writes
     * parts */
    case TCC_COMM_ALL_REDUCE: return (peers + 2) * bytes - 2 * peers * (bytes / shared->size);
    case TCC_COMM_REDUCE_SCATTER:
    case TCC_COMM_ALL_TO_ALL: return peers * bytes;
    case TCC_COMM_ALL_GATHER_V: return (int64_t)work->received / shared->size;
    default: return bytes; /* all_gather */
    }
}

const tcc_shared_method *tcc_shared_in_place(tcc_comm *comm, tcc_comm_work *work, int64_t steps) {
    tcc_shared *shared = comm->state;
    const kind_row *kind = &kinds[work->call.kind];
    shared->arena = NULL;
    if (!kind->method.read) return NULL;
    /* in place, a rank would receive data where others have not read yet */
    if (work->call.kind == TCC_COMM_ALL_TO_ALL && work->send == work->receive) return NULL;
    for (int i = 0; i < 2 * TCC_COMM_ARENAS; i++) {
        bool is_keeper = i >= TCC_COMM_ARENAS;
        if (is_keeper && !comm->keeper) break;
        tcc_shared *owner = is_keeper ? comm->keeper->state : shared;
        const tcc_shared_arena *arena = &owner->arenas[i % TCC_COMM_ARENAS];
        uint64_t where;
        if (!lies_in(arena, owner->rank, work, kind, &where)) continue;
        shared->arena = arena;
        shared->members = is_keeper ? comm->members : NULL;
        work->descriptor.place = (uint8_t)(1 + i);
        work->descriptor.where = where;
    }
    if (!shared->arena) return NULL;
    int64_t saved = tcc_shared_price(shared, steps, staged(shared, work));
    return tcc_shared_price(shared, STEPS, 0) <= saved ? &kind->method : NULL;
}
