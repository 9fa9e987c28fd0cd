/* Carries out collectives over the segment, one step at a time. */
#include <string.h>

#include "shared.h"

enum {
    SLICE = 64 << 10, /* bytes of a step in which all ranks read the whole slice */
    EACH = 0,         /* a slice has a part of the slot for each rank */
};

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static char *slot_of(const tcc_shared *shared, int32_t rank) {
    size_t slot = (size_t)rank * 2 + (shared->slices & 1);
    return shared->slots + slot * TCC_SHARED_SLOT;
}

/* Returns the elements of the current slice. */
static int64_t slice_count(const tcc_shared *shared) {
    return smaller(shared->slice, shared->length - shared->begin);
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
            char own_text[TCC_COMM_TEXT], other_text[TCC_COMM_TEXT];
            tcc_shared_revoke(shared, TCC_MISMATCH,
                              "ranks differ: rank %d (pid %d) is in %s, rank %d (pid %d) in %s",
                              shared->rank, shared->met.pids[shared->rank],
                              tcc_comm_text(mine, own_text), i, shared->met.pids[i],
                              tcc_comm_text(&its, other_text));
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

/* Fills the slot with the slice, for all ranks to read. */
static void fill_slice(tcc_shared *shared, const tcc_comm_work *work) {
    const char *own_slice = work->send + shared->begin * (int64_t)work->element;
    tcc_shared_copy(slot_of(shared, shared->rank), own_slice, slice_count(shared), work->element);
}

/* Reduces a part of all slots' slices. This rank's own slice is read from its send buffer. */
static void reduce_slices(const tcc_shared *shared, const tcc_comm_work *work, int64_t begin,
                          int64_t count, char *slot) {
    int64_t element = (int64_t)work->element, at = (shared->begin + begin) * element;
    const char *inputs[TCC_COMM_MOST_LOCAL];
    for (int32_t i = 0; i < shared->size; i++)
        inputs[i] = i == shared->rank ? work->send + at : slot_of(shared, i) + begin * element;
    tcc_shared_reduce(shared, work, inputs, count, slot, (char *[]){work->receive + at}, 1);
}

/* Lets every rank reduce the whole of all slots. */
static tcc_status reduce_slots(tcc_shared *shared, const tcc_comm_work *work) {
    reduce_slices(shared, work, 0, slice_count(shared), NULL);
    return TCC_OK;
}

/* Returns the elements of the slice before a rank's part. */
static int64_t bound(const tcc_shared *shared, const tcc_comm_work *work, int32_t rank) {
    return tcc_shared_part(shared, work, slice_count(shared), rank);
}

/* Fills the slot with all parts of the slice but this rank's. */
static void fill_parts(tcc_shared *shared, const tcc_comm_work *work) {
    int64_t element = (int64_t)work->element;
    int64_t first = bound(shared, work, shared->rank), last = bound(shared, work, shared->rank + 1);
    const char *own_slice = work->send + shared->begin * element;
    char *slot = slot_of(shared, shared->rank);
    tcc_shared_copy(slot, own_slice, first, work->element);
    tcc_shared_copy(slot + last * element, own_slice + last * element, slice_count(shared) - last,
                    work->element);
}

/* Lets every rank reduce its part of all slots, then read the other ranks' parts. */
static tcc_status reduce_parts(tcc_shared *shared, const tcc_comm_work *work) {
    int64_t element = (int64_t)work->element;
    for (int32_t i = 0; i < shared->size; i++) {
        int64_t first = bound(shared, work, i), count = bound(shared, work, i + 1) - first;
        char *part = slot_of(shared, i) + first * element;
        if (i == shared->rank && shared->round == 0)
            reduce_slices(shared, work, first, count, part);
        if (i != shared->rank && shared->round == 1)
            tcc_shared_hand(shared, work->receive + (shared->begin + first) * element, part, count,
                            work->element);
    }
    return TCC_OK;
}

/* ---- the other collectives ------------------------------------------------------------------- */

/* Fills each part of the slot with a slice of one rank's block. */
static void fill_blocks(tcc_shared *shared, const tcc_comm_work *work) {
    int64_t element = (int64_t)work->element;
    for (int32_t i = 0; i < shared->size; i++)
        if (i != shared->rank)
            tcc_shared_copy(slot_of(shared, shared->rank) + i * shared->slice * element,
                 work->send + (i * shared->length + shared->begin) * element, slice_count(shared),
                 work->element);
}

static tcc_status reduce_blocks(tcc_shared *shared, const tcc_comm_work *work) {
    int64_t element = (int64_t)work->element;
    const char *inputs[TCC_COMM_MOST_LOCAL];
    for (int32_t i = 0; i < shared->size; i++)
        inputs[i] = slot_of(shared, i) + shared->rank * shared->slice * element;
    inputs[shared->rank] =
        work->send + (shared->rank * shared->length + shared->begin) * element;
    tcc_shared_reduce(shared, work, inputs, slice_count(shared), NULL,
                      (char *[]){work->receive + shared->begin * element}, 1);
    return TCC_OK;
}

/* Returns a rank's count; `counts` is NULL where all ranks have the call's count. */
static int64_t count_of(const tcc_comm_work *work, const int64_t *counts, int32_t rank) {
    return counts ? counts[rank] : work->call.count;
}

/* Returns the elements of a rank's part in the current slice; 0 or less behind the part's end. */
static int64_t in_slice(const tcc_shared *shared, const tcc_comm_work *work, const int64_t *counts,
                        int32_t rank) {
    return smaller(shared->slice, count_of(work, counts, rank) - shared->begin);
}

static void fill_own_part(tcc_shared *shared, const tcc_comm_work *work) {
    tcc_shared_copy(slot_of(shared, shared->rank),
                    work->send + shared->begin * (int64_t)work->element,
                    in_slice(shared, work, work->call.send_counts, shared->rank), work->element);
}

static tcc_status gather_slots(tcc_shared *shared, const tcc_comm_work *work) {
    int64_t element = (int64_t)work->element, at = shared->begin * element;
    const int64_t *counts = work->call.send_counts;
    char *to = work->receive;
    for (int32_t i = 0; i < shared->size; to += count_of(work, counts, i++) * element)
        tcc_shared_hand(shared, to + at, i == shared->rank ? work->send + at : slot_of(shared, i),
                        in_slice(shared, work, counts, i), work->element);
    return TCC_OK;
}

static void fill_for_each(tcc_shared *shared, const tcc_comm_work *work) {
    int64_t element = (int64_t)work->element;
    const int64_t *counts = work->call.send_counts;
    const char *from = work->send + shared->begin * element;
    for (int32_t i = 0; i < shared->size; from += count_of(work, counts, i++) * element)
        tcc_shared_copy(slot_of(shared, shared->rank) + i * shared->slice * element, from,
             in_slice(shared, work, counts, i), work->element);
}

static tcc_status read_from_each(tcc_shared *shared, const tcc_comm_work *work) {
    int64_t element = (int64_t)work->element;
    const int64_t *counts = work->call.receive_counts;
    char *to = work->receive + shared->begin * element;
    for (int32_t i = 0; i < shared->size; to += count_of(work, counts, i++) * element)
        tcc_shared_hand(shared, to, slot_of(shared, i) + shared->rank * shared->slice * element,
                        in_slice(shared, work, counts, i), work->element);
    return TCC_OK;
}

static const tcc_shared_method exchange = {1, EACH, fill_for_each, read_from_each};

static void fill_counts(tcc_shared *shared, const tcc_comm_work *work) {
    const int64_t *sent = work->call.send_counts;
    memcpy(slot_of(shared, shared->rank), sent, (size_t)shared->size * sizeof *sent);
}

/* Exchanges counts. Afterwards all ranks know the longest part between any two ranks, and exchange
 * data behind this slice. */
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
    tcc_shared_hand(shared, work->receive + at,
                    root ? work->send + at : slot_of(shared, work->call.root), slice_count(shared),
                    work->element);
    return TCC_OK;
}

/* ---- dispatch -------------------------------------------------------------------------------- */

static const tcc_shared_method one_shot = {1, SLICE, fill_slice, reduce_slots},
                               by_parts = {2, TCC_SHARED_SLOT, fill_parts, reduce_parts};

static const tcc_shared_method *all_reduce(const tcc_shared *shared, const tcc_comm_work *work) {
    int64_t bytes = work->call.count * (int64_t)work->element, peers = shared->size - 1;
    int64_t parts = 2 * peers * (bytes / shared->size);
    int64_t at_once = tcc_shared_price(shared, bytes / SLICE + 1, peers * bytes);
    int64_t by_slots = tcc_shared_price(shared, 2 * (bytes / by_parts.bytes + 1), parts);
    return at_once <= by_slots ? &one_shot : &by_parts;
}

static const tcc_shared_method scatter = {1, EACH, fill_blocks, reduce_blocks},
                               gather = {1, SLICE, fill_own_part, gather_slots},
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

/* Goes to the operation's next step; false after the last. */
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

/* Returns the elements of the longest part of any rank. */
static int64_t length_of(const tcc_shared *shared, const tcc_comm_work *work) {
    int64_t length = work->call.count;
    for (int32_t i = 0; work->call.kind == TCC_COMM_ALL_GATHER_V && i < shared->size; i++)
        if (work->call.send_counts[i] > length) length = work->call.send_counts[i];
    return length;
}

tcc_status tcc_shared_begin(tcc_comm *comm, const tcc_comm_work *work) {
    tcc_shared *shared = comm->state;
    TCC_RETURN_IF_ERROR(tcc_shared_state(shared));
    shared->begun = *work;
    shared->work = &shared->begun;
    shared->agreed = false;
    shared->begin = shared->round = 0;
    /* three quarters of the last cache stay for other data */
    int64_t touched = (int64_t)(work->sent + work->received) * shared->size;
    shared->past = touched > tcc_comm_last_cache() / 4 && tcc_comm_last_cache();
    int64_t length = length_of(shared, work);
    use(shared, method_of(shared, work), length);
    const tcc_shared_method *in_place = tcc_shared_in_place(
        comm, &shared->begun, shared->method->steps * (length / shared->slice + 1));
    if (in_place) use(shared, in_place, length);
    shared->segment->ranks[shared->rank].descriptors[++shared->operations & 1] =
        shared->begun.descriptor;
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
        if (shared->past) tcc_comm_copied();
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
