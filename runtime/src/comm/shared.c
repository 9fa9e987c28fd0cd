/* Opens and closes comms of one host. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>

#include "packet.h"
#include "shared.h"

static size_t slots_at(int32_t size) {
    return tcc_memory_round(sizeof(tcc_shared_segment) + (size_t)size * sizeof(tcc_shared_rank));
}

static size_t channels_at(int32_t size) {
    return slots_at(size) + (size_t)size * 2 * TCC_SHARED_SLOT;
}

static size_t segment_bytes(int32_t size) {
    size_t channels = (size_t)size * (size_t)size * sizeof(tcc_shared_channel);
    return tcc_memory_round(channels_at(size) + channels);
}

/* Maps the segment.  The pages of this rank's slots come from the memory next to its CPU. */
static tcc_status map_segment(tcc_shared *shared) {
    void *memory;
    shared->bytes = segment_bytes(shared->size);
    TCC_RETURN_IF_ERROR(tcc_memory_map(shared->met.memory, shared->bytes, &memory));
    shared->segment = memory;
    shared->slots = (char *)memory + slots_at(shared->size);
    shared->channels = (tcc_shared_channel *)(void *)((char *)memory + channels_at(shared->size));
    size_t slot_bytes = 2 * TCC_SHARED_SLOT;
    return tcc_memory_populate(shared->slots + (size_t)shared->rank * slot_bytes, slot_bytes);
}

static void release(tcc_shared *shared) {
    if (shared->segment) munmap(shared->segment, shared->bytes);
    tcc_comm_part(&shared->met);
    tcc_free(shared);
}

static int64_t deadline_of(const tcc_comm *comm) {
    return tcc_comm_now() + comm->settings.open_milliseconds * INT64_C(1000000);
}

static tcc_status parent_alive(void *parent) { return tcc_shared_alive(parent); }

static tcc_status is_parent_alive(tcc_shared *self) { return tcc_shared_alive(self->parent); }
static tcc_status are_survivors_alive(tcc_shared *self) { return tcc_shared_gathers(self->parent); }

/* The origin of a comm. */
typedef struct origin {
    tcc_shared *parent; /* NULL: the comm is opened, not made from another */
    bool shrinks;       /* the comm has the parent's remaining ranks */
    int64_t deadline;
} origin;

/* Meets the ranks of `comm` under `shared->name`, and waits until all have mapped the segment. */
static tcc_status join(tcc_comm *comm, tcc_shared *shared, origin of) {
    tcc_comm_meeting meeting = {
        .name = shared->name,
        .token = comm->settings.token,
        .rank = comm->rank,
        .size = comm->size,
        .epoch = comm->settings.epoch,
        .deadline = of.deadline,
        .alive = !of.parent ? NULL : of.shrinks ? tcc_shared_gathers : parent_alive,
        .alive_of = of.parent,
        .memory = segment_bytes(comm->size),
    };
    TCC_RETURN_IF_ERROR(tcc_comm_meet(&meeting, &shared->met));
    TCC_RETURN_IF_ERROR(map_segment(shared));
    tcc_packet_close(&shared->met.memory, 1);
    shared->met.memory = -1;
    bool may_spin = !of.parent || of.shrinks || of.parent->spin;
    shared->spin = comm->size <= shared->met.cpus && may_spin ? TCC_SHARED_MOST_SPIN : 0;
    int64_t patience = of.deadline - tcc_comm_now();
    shared->patience = patience > 0 ? patience : 1;
    shared->parent = of.parent;
    shared->alive = !of.parent ? NULL : of.shrinks ? are_survivors_alive : is_parent_alive;
    tcc_shared_publish(shared);
    tcc_status status = tcc_shared_arrive(shared);
    TCC_RETURN_IF_ERROR(of.shrinks ? tcc_shared_decide(shared, status) : status);
    shared->parent = NULL;
    shared->alive = NULL;
    shared->patience = comm->settings.operation_milliseconds * INT64_C(1000000);
    return TCC_OK;
}

static tcc_status make(tcc_comm *comm, const char *name, origin of) {
    tcc_shared *shared = tcc_allocate_zero(1, sizeof *shared);
    if (!shared) return TCC_OUT_OF_MEMORY;
    shared->rank = comm->rank;
    shared->size = comm->size;
    shared->refused_by = -1;
    tcc_comm_alone(&shared->met);
    snprintf(shared->name, sizeof shared->name, "%s", name);
    tcc_status status = join(comm, shared, of);
    if (status != TCC_OK) {
        if (shared->segment) tcc_shared_revoke(shared, status, "%s", tcc_last_error());
        release(shared);
        return status;
    }
    comm->state = shared;
    return TCC_OK;
}

static const char *shared_unfit(const tcc_comm_settings *settings) {
    if (!*settings->rendezvous) return "there is no name to meet at: set TCC_RENDEZVOUS";
    if (settings->size > TCC_COMM_MOST_LOCAL) return "it has at most 64 ranks";
    if (settings->local_size >= 0 && settings->local_size != settings->size)
        return "the ranks are not all of one host";
    return NULL;
}

static tcc_status shared_open(tcc_comm *comm, const tcc_comm_settings *settings) {
    tcc_status status =
        make(comm, settings->rendezvous, (origin){.deadline = deadline_of(comm)});
    if (status == TCC_TIMEOUT && settings->local_size < 0) {
        char reason[512];
        snprintf(reason, sizeof reason, "%s", tcc_last_error());
        return tcc_fail(status, "%s; ranks of several hosts meet at HOST:PORT", reason);
    }
    TCC_RETURN_IF_ERROR(status);
    if (comm->settings.local_rank < 0) comm->settings.local_rank = comm->rank;
    comm->settings.local_size = comm->size;
    return TCC_OK;
}

typedef char meeting_name[sizeof((tcc_shared *)0)->name];

/* Returns a name that no other meeting of this job has.  A long name, which nested comms have, is
 * replaced by a hash. */
static const char *name_below(const tcc_shared *above, const char *name, meeting_name out) {
    if ((size_t)snprintf(out, sizeof(meeting_name), "%s%s", above->name, name) <
        sizeof(meeting_name) / 2 + strlen(name))
        return out;
    tcc_hash hash;
    uint8_t digest[TCC_SHA256_BYTES];
    tcc_hash_begin(&hash);
    tcc_hash_add(&hash, above->name, strlen(above->name) + 1);
    tcc_hash_add(&hash, name, strlen(name));
    tcc_hash_end(&hash, digest);
    char *end = out + sprintf(out, "%.60s...", above->name);
    for (int i = 0; i < 16; i++) end += sprintf(end, "%02x", digest[i]);
    return out;
}

static tcc_status shared_group(tcc_comm *parent, const int32_t *members, const char *name,
                               tcc_comm *child) {
    (void)members; /* the ranks meet by name */
    meeting_name full;
    origin of = {.parent = parent->state, .deadline = deadline_of(child)};
    return make(child, name_below(of.parent, name, full), of);
}

/* ---- shrinking ------------------------------------------------------------------------------- */

static void shared_failed(tcc_comm *comm, bool *out_gone) {
    uint64_t gone = tcc_shared_gone(comm->state);
    for (int32_t i = 0; i < comm->size; i++) out_gone[i] = gone >> i & 1;
}

/* Numbers the remaining ranks, and makes their comm. */
static tcc_status make_shrunk(tcc_comm *child, origin of) {
    const tcc_shared *above = of.parent;
    char name[48];
    meeting_name full;
    child->size = 0;
    for (int32_t i = 0; i < above->size; i++) {
        if (above->without >> i & 1) continue;
        if (i == above->rank) child->rank = child->size;
        child->size++;
    }
    snprintf(name, sizeof name, "/left.%x.%llx", above->turn, (unsigned long long)above->without);
    return make(child, name_below(above, name, full), of);
}

static tcc_status shared_shrink(tcc_comm *parent, const bool *excluded, tcc_comm *child) {
    tcc_shared *above = parent->state;
    origin of = {.parent = above, .shrinks = true, .deadline = deadline_of(parent)};
    (void)tcc_shared_alive(above); /* the end of a process ends what other ranks still wait for */
    tcc_shared_enter(above, excluded);
    tcc_status status = tcc_shared_agree(above, of.deadline);
    while (status == TCC_OK) {
        status = make_shrunk(child, of);
        if (status != TCC_PEER_DEAD || tcc_comm_now() > of.deadline) break;
        tcc_shared_again(above);
        status = tcc_shared_agree(above, of.deadline);
    }
    tcc_shared_depart(above);
    return status;
}

static tcc_status shared_symmetric(tcc_comm *comm, tcc_comm_arena arena, size_t bytes,
                                   void **out_memory, tcc_comm_memory **out_mapping) {
    tcc_shared *shared = comm->state;
    char name[sizeof shared->name + 32];
    snprintf(name, sizeof name, "%s/arena%d.%zu", shared->name, (int)arena, bytes);
    tcc_comm_meeting meeting = {
        .name = name,
        .token = comm->settings.token,
        .rank = comm->rank,
        .size = comm->size,
        .epoch = comm->settings.epoch,
        .deadline = deadline_of(comm),
        .alive = parent_alive,
        .alive_of = shared,
        .memory = bytes * (size_t)comm->size,
    };
    tcc_comm_met met;
    TCC_RETURN_IF_ERROR(tcc_comm_meet(&meeting, &met));
    void *memory = NULL;
    tcc_status status = tcc_memory_map(met.memory, meeting.memory, &memory);
    tcc_comm_part(&met);
    TCC_RETURN_IF_ERROR(status);
    char *own_part = (char *)memory + (size_t)comm->rank * bytes;
    status = tcc_memory_populate(own_part, bytes);
    *out_mapping = status == TCC_OK ? tcc_comm_memory_make(memory, meeting.memory) : NULL;
    if (!*out_mapping) {
        munmap(memory, meeting.memory);
        return status == TCC_OK ? TCC_OUT_OF_MEMORY : status;
    }
    shared->arenas[arena] = (tcc_shared_arena){memory, bytes};
    *out_memory = own_part;
    return TCC_OK;
}

static tcc_status shared_error(tcc_comm *comm) { return tcc_shared_alive(comm->state); }

static void shared_revoke(tcc_comm *comm, tcc_status status, const char *reason) {
    tcc_shared_revoke(comm->state, status, "%s", reason);
}

static void shared_close(tcc_comm *comm) {
    tcc_shared *shared = comm->state;
    if (comm->forks == tcc_comm_forks()) { /* not in a fork's child, which only has a copy */
        atomic_store(&shared->segment->ranks[shared->rank].closed, 1);
        tcc_shared_ring(shared);
    }
    release(shared);
}

const tcc_comm_backend tcc_comm_backend_shared = {
    .name = "shared",
    .unfit = shared_unfit,
    .open = shared_open,
    .group = shared_group,
    .failed = shared_failed,
    .shrink = shared_shrink,
    .begin = tcc_shared_begin,
    .advance = tcc_shared_advance,
    .transfer = tcc_shared_transfer,
    .symmetric = shared_symmetric,
    .error = shared_error,
    .revoke = shared_revoke,
    .close = shared_close,
};
