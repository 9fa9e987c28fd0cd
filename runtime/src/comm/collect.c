/* Collectives over the segment, a step at a time. */
#include <string.h>

#include "shared.h"

enum {
    SLICE = 64 << 10, /* bytes that a step moves where all ranks read all of it */
    BLOCK = 16 << 10, /* bytes that stay in the first cache */
    APART = 64,       /* bytes of a cache line, of which two ranks write no parts */
    EACH = 0,         /* a slice has a part of the slot for each rank */
};

/* How an operation is done: in slices, all of which take so many steps.  In a slice's first step
 * every rank fills its slot; in each it reads when all have come. */
struct tcc_shared_method {
    int steps;
    int64_t bytes; /* of a slice */
    void (*fill)(tcc_shared *shared, const tcc_comm_work *work);
    tcc_status (*read)(tcc_shared *shared, const tcc_comm_work *work);
};

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static char *slot_of(const tcc_shared *shared, int32_t rank) {
    size_t which = (size_t)rank * 2 + (shared->slices & 1);
    return shared->slots + which * TCC_SHARED_SLOT;
}

static void copy(void *to, const void *from, int64_t count, size_t element) {
    if (count > 0 && to != from) memcpy(to, from, (size_t)count * element);
}

/* Elements of the slice at hand. */
static int64_t slice_count(const tcc_shared *shared) {
    return least(shared->slice, shared->length - shared->begin);
}

static void use(tcc_shared *shared, const tcc_shared_method *method, int64_t length) {
    int64_t bytes = method->bytes == EACH ? TCC_SHARED_SLOT / shared->size : method->bytes;
    shared->method = method;
    shared->slice = bytes / (int64_t)shared->work->element;
    shared->length = length;
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

/* ---- all_reduce ------------------------------------------------------------------------------ */

static void fill_nothing(tcc_shared *shared, const tcc_comm_work *work) {
    (void)shared;
    (void)work;
}

static tcc_status read_nothing(tcc_shared *shared, const tcc_comm_work *work) {
    (void)shared;
    (void)work;
    return TCC_OK;
}

/* The slice, for all ranks to read. */
static void fill_slice(tcc_shared *shared, const tcc_comm_work *work) {
    const char *own = work->send + shared->begin * (int64_t)work->element;
    copy(slot_of(shared, shared->rank), own, slice_count(shared), work->element);
}

/* Every rank reads all of all slots. */
static tcc_status reduce_slots(tcc_shared *shared, const tcc_comm_work *work) {
    int64_t at = shared->begin * (int64_t)work->element;
    const void *inputs[TCC_COMM_MOST_LOCAL];
    for (int32_t i = 0; i < shared->size; i++) inputs[i] = slot_of(shared, i);
    inputs[shared->rank] = work->send + at;
    tcc_comm_reduce(work->receive + at, inputs, shared->size, slice_count(shared), work->type,
                    work->call.reduction);
    return TCC_OK;
}

/* Elements before a rank's part of `count`, at a border of cache lines. */
static int64_t part_begin(int64_t count, int32_t rank, int32_t size, size_t element) {
    int64_t lines = (int64_t)(APART / element), all = (count + lines - 1) / lines;
    return least(count, all * rank / size * lines);
}

/* Elements of the slice before a rank's part of it. */
static int64_t bound(const tcc_shared *shared, const tcc_comm_work *work, int32_t rank) {
    return part_begin(slice_count(shared), rank, shared->size, work->element);
}

/* All parts of the slice but this rank's. */
static void fill_parts(tcc_shared *shared, const tcc_comm_work *work) {
    int64_t element = (int64_t)work->element;
    int64_t first = bound(shared, work, shared->rank), last = bound(shared, work, shared->rank + 1);
    const char *own = work->send + shared->begin * element;
    char *slot = slot_of(shared, shared->rank);
    copy(slot, own, first, work->element);
    copy(slot + last * element, own + last * element, slice_count(shared) - last, work->element);
}

/* Every rank reduces its part of all slots, then reads all parts. */
static tcc_status reduce_parts(tcc_shared *shared, const tcc_comm_work *work) {
    int64_t element = (int64_t)work->element, at = shared->begin * element;
    if (shared->round == 0) {
        int64_t first = bound(shared, work, shared->rank);
        const void *inputs[TCC_COMM_MOST_LOCAL];
        for (int32_t i = 0; i < shared->size; i++) inputs[i] = slot_of(shared, i) + first * element;
        inputs[shared->rank] = work->send + at + first * element;
        tcc_comm_reduce(slot_of(shared, shared->rank) + first * element, inputs, shared->size,
                        bound(shared, work, shared->rank + 1) - first, work->type,
                        work->call.reduction);
        return TCC_OK;
    }
    for (int32_t i = 0; i < shared->size; i++) {
        int64_t first = bound(shared, work, i);
        copy(work->receive + at + first * element, slot_of(shared, i) + first * element,
             bound(shared, work, i + 1) - first, work->element);
    }
    return TCC_OK;
}

/* Every rank reduces its part of all arenas, and writes it to all of them. */
static tcc_status reduce_in_place(tcc_shared *shared, const tcc_comm_work *work) {
    if (shared->round) return TCC_OK;
    int64_t element = (int64_t)work->element, most = BLOCK / element;
    int64_t begin = bound(shared, work, shared->rank), last = bound(shared, work, shared->rank + 1);
    ptrdiff_t stride = (ptrdiff_t)shared->arena->bytes;
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
    return TCC_OK;
}

/* ---- the other collectives ------------------------------------------------------------------- */

/* A slice of every rank's block, each in a part of the slot. */
static void fill_blocks(tcc_shared *shared, const tcc_comm_work *work) {
    int64_t element = (int64_t)work->element;
    for (int32_t i = 0; i < shared->size; i++)
        if (i != shared->rank)
            copy(slot_of(shared, shared->rank) + i * shared->slice * element,
                 work->send + (i * shared->length + shared->begin) * element, slice_count(shared),
                 work->element);
}

static tcc_status reduce_blocks(tcc_shared *shared, const tcc_comm_work *work) {
    int64_t element = (int64_t)work->element;
    const void *inputs[TCC_COMM_MOST_LOCAL];
    for (int32_t i = 0; i < shared->size; i++)
        inputs[i] = slot_of(shared, i) + shared->rank * shared->slice * element;
    inputs[shared->rank] =
        work->send + (shared->rank * shared->length + shared->begin) * element;
    tcc_comm_reduce(work->receive + shared->begin * element, inputs, shared->size,
                    slice_count(shared), work->type, work->call.reduction);
    return TCC_OK;
}

/* `counts` NULL: the call's count of every rank. */
static int64_t count_of(const tcc_comm_work *work, const int64_t *counts, int32_t rank) {
    return counts ? counts[rank] : work->call.count;
}

/* Elements of a rank's part that are in the slice at hand; not above 0 behind its end. */
static int64_t in_slice(const tcc_shared *shared, const tcc_comm_work *work, const int64_t *counts,
                        int32_t rank) {
    return least(shared->slice, count_of(work, counts, rank) - shared->begin);
}

static void fill_own(tcc_shared *shared, const tcc_comm_work *work) {
    copy(slot_of(shared, shared->rank), work->send + shared->begin * (int64_t)work->element,
         in_slice(shared, work, work->call.send_counts, shared->rank), work->element);
}

static tcc_status gather_slots(tcc_shared *shared, const tcc_comm_work *work) {
    int64_t element = (int64_t)work->element, at = shared->begin * element;
    const int64_t *counts = work->call.send_counts;
    char *to = work->receive;
    for (int32_t i = 0; i < shared->size; to += count_of(work, counts, i++) * element)
        copy(to + at, i == shared->rank ? work->send + at : slot_of(shared, i),
             in_slice(shared, work, counts, i), work->element);
    return TCC_OK;
}

static void fill_for_each(tcc_shared *shared, const tcc_comm_work *work) {
    int64_t element = (int64_t)work->element;
    const int64_t *counts = work->call.send_counts;
    const char *from = work->send + shared->begin * element;
    for (int32_t i = 0; i < shared->size; from += count_of(work, counts, i++) * element)
        copy(slot_of(shared, shared->rank) + i * shared->slice * element, from,
             in_slice(shared, work, counts, i), work->element);
}

static tcc_status read_from_each(tcc_shared *shared, const tcc_comm_work *work) {
    int64_t element = (int64_t)work->element;
    const int64_t *counts = work->call.receive_counts;
    char *to = work->receive + shared->begin * element;
    for (int32_t i = 0; i < shared->size; to += count_of(work, counts, i++) * element)
        copy(to, slot_of(shared, i) + shared->rank * shared->slice * element,
             in_slice(shared, work, counts, i), work->element);
    return TCC_OK;
}

static const tcc_shared_method exchange = {1, EACH, fill_for_each, read_from_each};

static void fill_counts(tcc_shared *shared, const tcc_comm_work *work) {
    const int64_t *sent = work->call.send_counts;
    memcpy(slot_of(shared, shared->rank), sent, (size_t)shared->size * sizeof *sent);
}

/* All ranks know the longest part of any two then, and exchange behind this slice. */
static tcc_status read_counts(tcc_shared *shared, const tcc_comm_work *work) {
    const int64_t *received = work->call.receive_counts;
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
    use(shared, &exchange, longest);
    shared->begin = -shared->slice;
    return TCC_OK;
}

static void fill_root(tcc_shared *shared, const tcc_comm_work *work) {
    if (work->call.root == shared->rank) fill_slice(shared, work);
}

static tcc_status read_root(tcc_shared *shared, const tcc_comm_work *work) {
    int64_t at = shared->begin * (int64_t)work->element;
    bool root = work->call.root == shared->rank;
    copy(work->receive + at, root ? work->send + at : slot_of(shared, work->call.root),
         slice_count(shared), work->element);
    return TCC_OK;
}

/* ---- dispatch -------------------------------------------------------------------------------- */

/* A buffer's place in this rank's part of an arena; -1: it is not there. */
static int64_t place_in(const tcc_shared *shared, const tcc_shared_arena *arena, const char *buffer,
                        size_t bytes) {
    const char *own = arena->memory + (size_t)shared->rank * arena->bytes;
    bool there = arena->memory && buffer >= own && buffer + bytes <= own + arena->bytes;
    return there ? buffer - own : -1;
}

static void place(tcc_shared *shared, tcc_comm_work *work) {
    size_t bytes = (size_t)work->call.count * work->element;
    shared->arena = NULL;
    for (int i = 0; work->call.kind == TCC_COMM_ALL_REDUCE && i < TCC_COMM_ARENAS; i++) {
        int64_t send = place_in(shared, &shared->arenas[i], work->send, bytes);
        int64_t receive = place_in(shared, &shared->arenas[i], work->receive, bytes);
        if (send < 0 || receive < 0) continue;
        shared->arena = &shared->arenas[i];
        work->descriptor.place = (uint8_t)(1 + i);
        work->descriptor.where =
            (uint64_t)send * UINT64_C(0x9e3779b97f4a7c15) + (uint64_t)receive;
    }
}

/* What a rank pays for an all_reduce: steps, and bytes that it moves. */
static int64_t price(const tcc_shared *shared, int64_t steps, int64_t bytes) {
    enum { AWAKE = 300, ASLEEP = 20000, BYTES_A_NANOSECOND = 8 };
    return steps * (shared->spin ? AWAKE : ASLEEP) + bytes / BYTES_A_NANOSECOND;
}

static const tcc_shared_method one_shot = {1, SLICE, fill_slice, reduce_slots},
                               by_parts = {2, TCC_SHARED_SLOT, fill_parts, reduce_parts},
                               in_place = {2, INT64_MAX, fill_nothing, reduce_in_place};

static const tcc_shared_method *all_reduce(const tcc_shared *shared, const tcc_comm_work *work) {
    int64_t bytes = work->call.count * (int64_t)work->element, others = shared->size - 1;
    int64_t parts = 2 * others * (bytes / shared->size);
    int64_t shots = bytes / SLICE + 1, at_once = price(shared, shots, others * bytes);
    /* whoever uses slots fills its own, and writes all results */
    if (shared->arena && price(shared, 2, parts) <= price(shared, shots, (others + 2) * bytes))
        return &in_place;
    int64_t by_slots = price(shared, 2 * (bytes / TCC_SHARED_SLOT + 1), parts);
    return at_once <= by_slots ? &one_shot : &by_parts;
}

static const tcc_shared_method scatter = {1, EACH, fill_blocks, reduce_blocks},
                               gather = {1, SLICE, fill_own, gather_slots},
                               counts = {1, EACH, fill_counts, read_counts},
                               from_root = {1, SLICE, fill_root, read_root},
                               barrier = {1, SLICE, fill_nothing, read_nothing};

static const tcc_shared_method *method_of(const tcc_shared *shared, const tcc_comm_work *work) {
    switch (work->call.kind) {
    case TCC_COMM_ALL_REDUCE: return all_reduce(shared, work);
    case TCC_COMM_REDUCE_SCATTER: return &scatter;
    case TCC_COMM_ALL_GATHER:
    case TCC_COMM_ALL_GATHER_V: return &gather;
    case TCC_COMM_ALL_TO_ALL: return &exchange;
    case TCC_COMM_ALL_TO_ALL_V: return &counts;
    case TCC_COMM_BROADCAST: return &from_root;
    default: return &barrier;
    }
}

/* Goes to the next step of the operation; false behind its last. */
static bool next(tcc_shared *shared) {
    if (++shared->round < shared->method->steps) return true;
    shared->round = 0;
    shared->slices++;
    shared->begin += shared->slice;
    return shared->begin < shared->length;
}

static void publish(tcc_shared *shared) {
    if (shared->round == 0) shared->method->fill(shared, shared->work);
    tcc_shared_publish(shared);
}

tcc_status tcc_shared_begin(tcc_comm *comm, const tcc_comm_work *asked) {
    tcc_shared *shared = comm->state;
    TCC_RETURN_IF_ERROR(tcc_shared_state(shared));
    shared->begun = *asked;
    shared->work = &shared->begun;
    place(shared, &shared->begun);
    shared->agreed = false;
    shared->segment->ranks[shared->rank].descriptors[++shared->operations & 1] =
        shared->begun.descriptor;
    shared->begin = shared->round = 0;
    int64_t length = shared->work->call.count;
    for (int32_t i = 0; asked->call.kind == TCC_COMM_ALL_GATHER_V && i < shared->size; i++)
        if (asked->call.send_counts[i] > length) length = asked->call.send_counts[i];
    use(shared, method_of(shared, shared->work), length);
    publish(shared);
    return TCC_OK;
}

tcc_status tcc_shared_advance(tcc_comm *comm, bool wait, bool *out_done) {
    tcc_shared *shared = comm->state;
    *out_done = false;
    for (bool more = true; more;) {
        if (!wait && !tcc_shared_arrived(shared)) return TCC_OK;
        tcc_status status = wait ? tcc_shared_arrive(shared) : TCC_OK;
        if (status == TCC_OK && !shared->agreed) status = compare(shared);
        if (status == TCC_OK) status = shared->method->read(shared, shared->work);
        if (status != TCC_OK) {
            shared->work = NULL;
            return status;
        }
        more = next(shared);
        if (more) publish(shared);
    }
    shared->work = NULL;
    *out_done = true;
    return TCC_OK;
}
