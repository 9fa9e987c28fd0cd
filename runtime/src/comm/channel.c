/* Sends and receives. Each pair of ranks has a channel of two places in each direction. */
#include <string.h>

#include "shared.h"

/* The sends and receives of one call or group. */
typedef struct transfers {
    const tcc_comm_work *works;
    int64_t *moved; /* bytes moved of each; -1: nothing yet, not even an empty message's place */
    int32_t n;
    tcc_status status;
} transfers;

static int64_t bytes_of(const tcc_comm_work *work) {
    return work->call.count * (int64_t)work->element;
}

static bool is_done(const transfers *all, int32_t index) {
    return all->moved[index] >= bytes_of(&all->works[index]);
}

/* Returns true if an earlier message of the same channel is not done: a channel's messages go one
 * after another. */
static bool must_queue(const transfers *all, int32_t index) {
    const tcc_comm_call *call = &all->works[index].call;
    for (int32_t i = 0; i < index; i++)
        if (all->works[i].call.kind == call->kind && all->works[i].call.root == call->root &&
            !is_done(all, i))
            return true;
    return false;
}

static bool fill(tcc_shared *shared, const tcc_comm_work *work, int64_t *moved) {
    tcc_shared_channel *channel = &shared->channels[shared->rank * shared->size + work->call.root];
    uint32_t filled = atomic_load_explicit(&channel->filled, memory_order_relaxed);
    if (filled - atomic_load(&channel->emptied) >= TCC_SHARED_PLACES) return false;
    int64_t begin = *moved < 0 ? 0 : *moved, remaining = bytes_of(work) - begin;
    struct tcc_shared_place *place = &channel->places[filled % TCC_SHARED_PLACES];
    place->count = work->call.count;
    place->type = work->type;
    place->bytes = remaining < TCC_SHARED_CHUNK ? (uint32_t)remaining : TCC_SHARED_CHUNK;
    if (place->bytes) memcpy(place->data, work->send + begin, place->bytes);
    (void)atomic_exchange(&channel->filled, filled + 1); /* a full barrier: see tcc_shared_ring */
    *moved = begin + place->bytes;
    return true;
}

static tcc_status differ(tcc_shared *shared, const tcc_comm_work *work,
                         const struct tcc_shared_place *place) {
    int32_t from = work->call.root;
    tcc_comm_descriptor its = work->descriptor;
    its.kind = TCC_COMM_SEND;
    its.type = (uint8_t)place->type;
    its.count = place->count;
    its.root = shared->rank;
    char own_text[TCC_COMM_TEXT], other_text[TCC_COMM_TEXT];
    tcc_shared_revoke(
        shared, TCC_MISMATCH, "ranks differ: rank %d (pid %d) is in %s, rank %d (pid %d) in %s",
        shared->rank, shared->met.pids[shared->rank], tcc_comm_text(&work->descriptor, own_text), from,
        shared->met.pids[from], tcc_comm_text(&its, other_text));
    return tcc_shared_state(shared);
}

static bool empty(tcc_shared *shared, const tcc_comm_work *work, int64_t *moved,
                  tcc_status *status) {
    tcc_shared_channel *channel = &shared->channels[work->call.root * shared->size + shared->rank];
    uint32_t emptied = atomic_load_explicit(&channel->emptied, memory_order_relaxed);
    if (atomic_load(&channel->filled) == emptied) return false;
    const struct tcc_shared_place *place = &channel->places[emptied % TCC_SHARED_PLACES];
    int64_t begin = *moved < 0 ? 0 : *moved;
    if (place->count != work->call.count || place->type != (uint32_t)work->type ||
        place->bytes > bytes_of(work) - begin) {
        *status = differ(shared, work, place);
        return true;
    }
    if (place->bytes) memcpy(work->receive + begin, place->data, place->bytes);
    *moved = begin + place->bytes;
    (void)atomic_exchange(&channel->emptied, emptied + 1); /* a full barrier: see tcc_shared_ring */
    return true;
}

/* Moves what can be moved without waiting. Returns true if data moved, a transfer failed, or all
 * are done. */
static bool go_on(tcc_shared *shared, void *object, int32_t *awaited) {
    transfers *all = object;
    bool moved = false, done = true;
    shared->pending = 0;
    for (int32_t i = 0; i < all->n; i++) {
        if (is_done(all, i) || must_queue(all, i)) continue;
        const tcc_comm_work *work = &all->works[i];
        done = false;
        shared->pending |= UINT64_C(1) << work->call.root;
        moved |= work->call.kind == TCC_COMM_SEND
                     ? fill(shared, work, &all->moved[i])
                     : empty(shared, work, &all->moved[i], &all->status);
        if (all->status != TCC_OK) return true;
        *awaited = all->n == 1 ? work->call.root : TCC_SHARED_ANY;
        shared->work = work;
    }
    if (moved) tcc_shared_ring(shared);
    return moved || done;
}

static bool all_done(const transfers *all) {
    for (int32_t i = 0; i < all->n; i++)
        if (!is_done(all, i)) return false;
    return true;
}

tcc_status tcc_shared_transfer(tcc_comm *comm, const tcc_comm_work *works, int32_t n) {
    tcc_shared *shared = comm->state;
    TCC_RETURN_IF_ERROR(tcc_shared_state(shared));
    int64_t first_moved = -1, *moved = &first_moved;
    if (n > 1 && !(moved = tcc_allocate((size_t)n * sizeof *moved))) return TCC_OUT_OF_MEMORY;
    for (int32_t i = 0; i < n; i++) moved[i] = -1;
    transfers all = {works, moved, n, TCC_OK};
    tcc_status status = TCC_OK;
    while (status == TCC_OK && !all_done(&all)) {
        status = tcc_shared_wait(shared, go_on, &all);
        if (status == TCC_OK) status = all.status;
    }
    shared->work = NULL;
    if (moved != &first_moved) tcc_free(moved);
    return status;
}
