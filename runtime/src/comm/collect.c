/* Collectives over the segment. */
#include <string.h>

#include "shared.h"

enum {
    SLICE = 64 << 10, /* bytes that a step moves where all ranks read all of it */
    BLOCK = 16 << 10, /* bytes that stay in the first cache */
    APART = 64,       /* bytes of a cache line, of which two ranks write no parts */
};

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static char *slot_of(const tcc_shared *shared, int32_t rank) {
    size_t which = (size_t)rank * 2 + (shared->steps & 1);
    return shared->slots + which * TCC_SHARED_SLOT;
}

static void copy(void *to, const void *from, int64_t count, size_t element) {
    if (count > 0 && to != from) memcpy(to, from, (size_t)count * element);
}

/* ---- agreement ------------------------------------------------------------------------------- */

static tcc_status compare(tcc_shared *shared) {
    uint32_t turn = shared->operations & 1;
    const tcc_comm_descriptor *mine = &shared->work->descriptor;
    for (int32_t i = 0; i < shared->size; i++) {
        tcc_comm_descriptor its = shared->segment->ranks[i].descriptors[turn];
        if (TCC_UNLIKELY(memcmp(mine, &its, sizeof its) != 0)) {
            char own[TCC_COMM_TEXT], other[TCC_COMM_TEXT];
            tcc_shared_revoke(shared, TCC_MISMATCH,
                              "ranks differ: rank %d (pid %d) is in %s, rank %d (pid %d) in %s",
                              shared->rank, shared->met.pids[shared->rank],
                              tcc_comm_text(mine, own), i, shared->met.pids[i],
                              tcc_comm_text(&its, other));
            return tcc_shared_state(shared);
        }
    }
    shared->agreed = true;
    return TCC_OK;
}

/* Waits until all ranks have filled their slots of this step. */
static tcc_status step(tcc_shared *shared) {
    TCC_RETURN_IF_ERROR(tcc_shared_step(shared));
    return shared->agreed ? TCC_OK : compare(shared);
}

/* ---- all_reduce ------------------------------------------------------------------------------ */

/* Elements before a rank's part of `count`, at a border of cache lines. */
static int64_t part_begin(int64_t count, int32_t rank, int32_t size, size_t element) {
    int64_t lines = (int64_t)(APART / element), all = (count + lines - 1) / lines;
    return least(count, all * rank / size * lines);
}

/* Every rank reads all of all slots. */
static tcc_status reduce_one_shot(tcc_shared *shared, const tcc_comm_work *work) {
    int64_t most = SLICE / (int64_t)work->element, total = work->call.count;
    for (int64_t begin = 0; begin == 0 || begin < total; begin += most, shared->steps++) {
        int64_t count = least(most, total - begin);
        const char *own = work->send + begin * (int64_t)work->element;
        copy(slot_of(shared, shared->rank), own, count, work->element);
        TCC_RETURN_IF_ERROR(step(shared));
        const void *inputs[TCC_COMM_MOST_LOCAL];
        for (int32_t i = 0; i < shared->size; i++) inputs[i] = slot_of(shared, i);
        inputs[shared->rank] = own;
        tcc_comm_reduce(work->receive + begin * (int64_t)work->element, inputs, shared->size, count,
                        work->type, work->call.reduction);
    }
    return TCC_OK;
}

/* Every rank reduces its part of all slots, then reads all parts. */
static tcc_status reduce_by_parts(tcc_shared *shared, const tcc_comm_work *work) {
    int64_t element = (int64_t)work->element, most = TCC_SHARED_SLOT / element;
    int64_t total = work->call.count;
    for (int64_t begin = 0; begin < total; begin += most, shared->steps++) {
        int64_t count = least(most, total - begin), bounds[TCC_COMM_MOST_LOCAL + 1];
        for (int32_t i = 0; i <= shared->size; i++)
            bounds[i] = part_begin(count, i, shared->size, work->element);
        int64_t first = bounds[shared->rank], last = bounds[shared->rank + 1];
        const char *own = work->send + begin * element;
        char *out = work->receive + begin * element, *slot = slot_of(shared, shared->rank);
        copy(slot, own, first, work->element);
        copy(slot + last * element, own + last * element, count - last, work->element);
        TCC_RETURN_IF_ERROR(step(shared));
        const void *inputs[TCC_COMM_MOST_LOCAL];
        for (int32_t i = 0; i < shared->size; i++) inputs[i] = slot_of(shared, i) + first * element;
        inputs[shared->rank] = own + first * element;
        tcc_comm_reduce(slot + first * element, inputs, shared->size, last - first, work->type,
                        work->call.reduction);
        TCC_RETURN_IF_ERROR(step(shared));
        for (int32_t i = 0; i < shared->size; i++)
            copy(out + bounds[i] * element, slot_of(shared, i) + bounds[i] * element,
                 bounds[i + 1] - bounds[i], work->element);
    }
    return TCC_OK;
}

/* Every rank reduces its part of all arenas, and writes it to all of them. */
static tcc_status reduce_in_place(tcc_shared *shared, const tcc_comm_work *work) {
    int64_t element = (int64_t)work->element, most = BLOCK / element, total = work->call.count;
    int64_t last = part_begin(total, shared->rank + 1, shared->size, work->element);
    ptrdiff_t stride = (ptrdiff_t)shared->arena_bytes;
    TCC_RETURN_IF_ERROR(step(shared));
    int64_t begin = part_begin(total, shared->rank, shared->size, work->element);
    for (int64_t count; begin < last; begin += count) {
        count = least(most, last - begin);
        const void *inputs[TCC_COMM_MOST_LOCAL];
        for (int32_t i = 0; i < shared->size; i++)
            inputs[i] = work->send + (i - shared->rank) * stride + begin * element;
        char *out = work->receive + begin * element;
        tcc_comm_reduce(out, inputs, shared->size, count, work->type, work->call.reduction);
        for (int32_t i = 0; i < shared->size; i++)
            copy(out + (i - shared->rank) * stride, out, count, work->element);
    }
    return step(shared);
}

/* What a rank pays for an all_reduce of its slots: steps, and bytes that it reads from others. */
static int64_t price(const tcc_shared *shared, int64_t steps, int64_t bytes) {
    enum { AWAKE = 300, ASLEEP = 20000, BYTES_A_NANOSECOND = 8 };
    return steps * (shared->spin ? AWAKE : ASLEEP) + bytes / BYTES_A_NANOSECOND;
}

static tcc_status all_reduce(tcc_shared *shared, const tcc_comm_work *work) {
    if (work->descriptor.place) return reduce_in_place(shared, work);
    int64_t bytes = work->call.count * (int64_t)work->element, others = shared->size - 1;
    int64_t one_shot = price(shared, bytes / SLICE + 1, others * bytes);
    int64_t by_parts =
        price(shared, 2 * (bytes / TCC_SHARED_SLOT + 1), 2 * others * (bytes / shared->size));
    return one_shot <= by_parts ? reduce_one_shot(shared, work) : reduce_by_parts(shared, work);
}

/* ---- the other collectives ------------------------------------------------------------------- */

static tcc_status reduce_scatter(tcc_shared *shared, const tcc_comm_work *work) {
    int64_t element = (int64_t)work->element, part = TCC_SHARED_SLOT / shared->size / element;
    int64_t total = work->call.count;
    for (int64_t begin = 0; begin == 0 || begin < total; begin += part, shared->steps++) {
        int64_t count = least(part, total - begin);
        char *slot = slot_of(shared, shared->rank);
        for (int32_t i = 0; i < shared->size; i++)
            if (i != shared->rank)
                copy(slot + i * part * element, work->send + (i * total + begin) * element, count,
                     work->element);
        TCC_RETURN_IF_ERROR(step(shared));
        const void *inputs[TCC_COMM_MOST_LOCAL];
        for (int32_t i = 0; i < shared->size; i++)
            inputs[i] = slot_of(shared, i) + shared->rank * part * element;
        inputs[shared->rank] = work->send + (shared->rank * total + begin) * element;
        tcc_comm_reduce(work->receive + begin * element, inputs, shared->size, count, work->type,
                        work->call.reduction);
    }
    return TCC_OK;
}

/* `counts` NULL: the call's count of every rank. */
static tcc_status all_gather(tcc_shared *shared, const tcc_comm_work *work, const int64_t *counts) {
    int64_t element = (int64_t)work->element, slice = SLICE / element, longest = work->call.count;
    int64_t sizes[TCC_COMM_MOST_LOCAL], places[TCC_COMM_MOST_LOCAL], place = 0;
    for (int32_t i = 0; i < shared->size; i++) {
        sizes[i] = counts ? counts[i] : work->call.count;
        places[i] = place;
        place += sizes[i];
        if (sizes[i] > longest) longest = sizes[i];
    }
    for (int64_t begin = 0; begin == 0 || begin < longest; begin += slice, shared->steps++) {
        const char *own = work->send + begin * element;
        int64_t count = least(slice, sizes[shared->rank] - begin);
        copy(slot_of(shared, shared->rank), own, count, work->element);
        TCC_RETURN_IF_ERROR(step(shared));
        for (int32_t i = 0; i < shared->size; i++)
            copy(work->receive + (places[i] + begin) * element,
                 i == shared->rank ? own : slot_of(shared, i), least(slice, sizes[i] - begin),
                 work->element);
    }
    return TCC_OK;
}

/* One rank's exchange with all others; `longest` is the longest part of any two ranks. */
static tcc_status exchange(tcc_shared *shared, const tcc_comm_work *work, const int64_t *sent,
                           const int64_t *received, int64_t longest) {
    int64_t element = (int64_t)work->element, part = TCC_SHARED_SLOT / shared->size / element;
    for (int64_t begin = 0; begin == 0 || begin < longest; begin += part, shared->steps++) {
        char *slot = slot_of(shared, shared->rank);
        const char *from = work->send;
        for (int32_t i = 0; i < shared->size; from += sent[i++] * element)
            copy(slot + i * part * element, from + begin * element, least(part, sent[i] - begin),
                 work->element);
        TCC_RETURN_IF_ERROR(step(shared));
        char *to = work->receive;
        for (int32_t i = 0; i < shared->size; to += received[i++] * element)
            copy(to + begin * element, slot_of(shared, i) + shared->rank * part * element,
                 least(part, received[i] - begin), work->element);
    }
    return TCC_OK;
}

static tcc_status all_to_all(tcc_shared *shared, const tcc_comm_work *work) {
    int64_t counts[TCC_COMM_MOST_LOCAL];
    for (int32_t i = 0; i < shared->size; i++) counts[i] = work->call.count;
    return exchange(shared, work, counts, counts, work->call.count);
}

static tcc_status all_to_all_v(tcc_shared *shared, const tcc_comm_work *work) {
    const int64_t *sent = work->call.send_counts, *received = work->call.receive_counts;
    memcpy(slot_of(shared, shared->rank), sent, (size_t)shared->size * sizeof *sent);
    TCC_RETURN_IF_ERROR(step(shared));
    int64_t longest = 0;
    for (int32_t i = 0; i < shared->size; i++) {
        const int64_t *its = (const int64_t *)(const void *)slot_of(shared, i);
        for (int32_t to = 0; to < shared->size; to++)
            if (its[to] > longest) longest = its[to];
        if (its[shared->rank] == received[i]) continue;
        tcc_shared_revoke(shared, TCC_MISMATCH,
                          "all_to_all_v: rank %d (pid %d) sends %lld elements to rank %d (pid %d), "
                          "which expects %lld",
                          i, shared->met.pids[i], (long long)its[shared->rank], shared->rank,
                          shared->met.pids[shared->rank], (long long)received[i]);
        return tcc_shared_state(shared);
    }
    shared->steps++;
    return longest ? exchange(shared, work, sent, received, longest) : TCC_OK;
}

static tcc_status broadcast(tcc_shared *shared, const tcc_comm_work *work) {
    int64_t element = (int64_t)work->element, slice = SLICE / element, total = work->call.count;
    bool root = work->call.root == shared->rank;
    for (int64_t begin = 0; begin == 0 || begin < total; begin += slice, shared->steps++) {
        int64_t count = least(slice, total - begin);
        char *slot = slot_of(shared, work->call.root), *to = work->receive + begin * element;
        const char *from = work->send + begin * element;
        if (root) copy(slot, from, count, work->element);
        TCC_RETURN_IF_ERROR(step(shared));
        copy(to, root ? from : slot, count, work->element);
    }
    return TCC_OK;
}

/* ---- dispatch -------------------------------------------------------------------------------- */

static bool in_arena(const tcc_shared *shared, const char *buffer, size_t bytes) {
    const char *own = shared->arena + (size_t)shared->rank * shared->arena_bytes;
    return shared->arena && buffer >= own && buffer + bytes <= own + shared->arena_bytes;
}

static void place(const tcc_shared *shared, tcc_comm_work *work) {
    size_t bytes = (size_t)work->call.count * work->element;
    if (work->call.kind != TCC_COMM_ALL_REDUCE || !in_arena(shared, work->send, bytes) ||
        !in_arena(shared, work->receive, bytes))
        return;
    const char *own = shared->arena + (size_t)shared->rank * shared->arena_bytes;
    work->descriptor.place = 1;
    work->descriptor.where = (uint64_t)(work->send - own) * UINT64_C(0x9e3779b97f4a7c15) +
                             (uint64_t)(work->receive - own);
}

static tcc_status carry_out(tcc_shared *shared, const tcc_comm_work *work) {
    switch (work->call.kind) {
    case TCC_COMM_ALL_REDUCE: return all_reduce(shared, work);
    case TCC_COMM_REDUCE_SCATTER: return reduce_scatter(shared, work);
    case TCC_COMM_ALL_GATHER: return all_gather(shared, work, NULL);
    case TCC_COMM_ALL_GATHER_V: return all_gather(shared, work, work->call.send_counts);
    case TCC_COMM_ALL_TO_ALL: return all_to_all(shared, work);
    case TCC_COMM_ALL_TO_ALL_V: return all_to_all_v(shared, work);
    case TCC_COMM_BROADCAST: return broadcast(shared, work);
    default:
        TCC_RETURN_IF_ERROR(step(shared));
        shared->steps++;
        return TCC_OK;
    }
}

tcc_status tcc_shared_run(tcc_comm *comm, const tcc_comm_work *asked) {
    tcc_shared *shared = comm->state;
    TCC_RETURN_IF_ERROR(tcc_shared_state(shared));
    tcc_comm_work work = *asked;
    place(shared, &work);
    shared->work = &work;
    shared->agreed = false;
    shared->segment->ranks[shared->rank].descriptors[++shared->operations & 1] = work.descriptor;
    tcc_status status = carry_out(shared, &work);
    shared->work = NULL;
    return status;
}
