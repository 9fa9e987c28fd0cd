/* Comms: opening, checks of every call, groups and plans. */
#define _GNU_SOURCE
#include <string.h>

#include "packet.h"

/* ---- opening and closing --------------------------------------------------------------------- */

static tcc_status issue_call(tcc_comm *comm, const tcc_comm_call *asked, const void *send,
                             void *receive);
static tcc_status drop(tcc_comm *comm, tcc_status status);

static const tcc_comm_table functions = {
    .struct_size = sizeof functions,
    .version = TCC_COMM_VERSION,
    .rank = tcc_comm_rank,
    .size = tcc_comm_size,
    .issue = issue_call,
    .abort = tcc_comm_abort,
    .last_error = tcc_comm_last_error,
    .start = tcc_comm_start,
    .wait = tcc_comm_wait,
    .scratch = tcc_comm_scratch,
    .subgroup = tcc_comm_subgroup,
    .device_open = tcc_comm_device_open,
    .device_close = tcc_comm_device_close,
    .device_start = tcc_comm_device_start,
    .device_wait = tcc_comm_device_wait,
    .local_rank = tcc_comm_local_rank,
    .local_size = tcc_comm_local_size,
    .ask = tcc_comm_ask,
};

static tcc_comm *make(const tcc_comm_settings *settings, int32_t rank, int32_t size) {
    tcc_comm *comm = tcc_allocate_zero(1, sizeof *comm);
    if (!comm) return NULL;
    comm->table = &functions;
    comm->settings = *settings;
    comm->rank = rank;
    comm->size = size;
    comm->forks = tcc_comm_forks();
    return comm;
}

tcc_status tcc_comm_open(const tcc_comm_config *config, tcc_comm **out_comm) {
    if (!config || !out_comm || config->struct_size != sizeof *config)
        return tcc_fail(TCC_INVALID_ARGUMENT,
                        "tcc_comm_open: a pointer is NULL, or the config is of another version");
    *out_comm = NULL;
    tcc_comm_settings settings;
    const tcc_comm_backend *backend = NULL;
    TCC_RETURN_IF_ERROR(tcc_comm_settle(config, &settings));
    int32_t patience = settings.open_milliseconds;
    TCC_RETURN_IF_ERROR(tcc_comm_choose(&settings, &backend));
    tcc_comm *comm = make(&settings, settings.rank, settings.size);
    if (!comm) return TCC_OUT_OF_MEMORY;
    comm->backend = backend;
    tcc_status status = backend->open(comm, &settings);
    comm->settings.open_milliseconds = patience;
    if (status != TCC_OK)
        tcc_free(comm);
    else
        *out_comm = comm;
    return status;
}

void tcc_comm_close(tcc_comm *comm) {
    if (!comm) return;
    for (tcc_comm *child = atomic_load(&comm->subgroups), *next; child; child = next) {
        next = child->next;
        tcc_comm_close(child);
    }
    tcc_free(comm->members);
    tcc_comm_withdraw(comm);
    tcc_comm_device_leave(comm);
    comm->backend->close(comm);
    tcc_free(comm->group.queue.works);
    tcc_free(comm->started.works);
    tcc_free(comm);
}

int32_t tcc_comm_rank(const tcc_comm *comm) { return comm->rank; }
int32_t tcc_comm_size(const tcc_comm *comm) { return comm->size; }
int32_t tcc_comm_local_rank(const tcc_comm *comm) { return comm->settings.local_rank; }
int32_t tcc_comm_local_size(const tcc_comm *comm) { return comm->settings.local_size; }
const char *tcc_comm_backend_name(const tcc_comm *comm) {
    return comm->name ? comm->name : comm->backend->name;
}
const char *tcc_comm_last_error(void) { return tcc_last_error(); }

tcc_status tcc_comm_abort(tcc_comm *comm, const char *reason) {
    TCC_RETURN_IF_ERROR(tcc_comm_usable(comm));
    tcc_comm_revoke(comm, TCC_CANCELLED, reason ? reason : "the comm was aborted");
    for (tcc_comm *child = atomic_load(&comm->subgroups); child; child = child->next)
        (void)tcc_comm_abort(child, reason);
    return TCC_OK;
}

tcc_status tcc_comm_error(tcc_comm *comm) {
    TCC_RETURN_IF_ERROR(tcc_comm_usable(comm));
    return comm->backend->error(comm);
}

/* ---- groups of ranks ------------------------------------------------------------------------- */

/* A comm of `n` members of the parent, of which this process is number `self`. */
static tcc_status make_child(tcc_comm *parent, const int32_t *members, int32_t n, int32_t self,
                             bool left, const char *name, tcc_comm **out_comm) {
    tcc_comm *child = make(&parent->settings, self, n);
    if (!child) return TCC_OUT_OF_MEMORY;
    child->backend = parent->backend;
    tcc_status status = parent->backend->group(parent, members, left, name, child);
    if (status != TCC_OK)
        tcc_free(child);
    else
        *out_comm = child;
    return status;
}

typedef struct choice {
    int32_t color, key, rank;
} choice;

static int by_key(const void *left, const void *right) {
    const choice *a = left, *b = right;
    if (a->key != b->key) return a->key < b->key ? -1 : 1;
    return a->rank < b->rank ? -1 : a->rank > b->rank;
}

/* All ranks' choices in the order of their ranks. */
static tcc_status gather_choices(tcc_comm *comm, choice mine, choice *all) {
    tcc_dtype word = {0, 32, 1};
    return tcc_comm_all_gather(comm, &mine, all, sizeof mine / 4, word);
}

/* Ranks that are together in a new comm; this process is number `self`. */
typedef struct party {
    int32_t *members; /* room for all ranks */
    int32_t n, self;
} party;

/* The ranks that give this color, in the order of keys and then of ranks. */
static tcc_status gather_party(tcc_comm *comm, int32_t color, int32_t key, party *out_party) {
    size_t size = (size_t)comm->size;
    choice *all = tcc_allocate_zero(size, sizeof *all);
    *out_party = (party){.members = tcc_allocate_zero(size, sizeof *out_party->members)};
    tcc_status status = all && out_party->members ? TCC_OK : TCC_OUT_OF_MEMORY;
    if (status == TCC_OK) status = gather_choices(comm, (choice){color, key, comm->rank}, all);
    comm->children++;
    if (status == TCC_OK) qsort(all, size, sizeof *all, by_key);
    for (size_t i = 0; status == TCC_OK && i < size; i++) {
        if (all[i].color != color) continue;
        if (all[i].rank == comm->rank) out_party->self = out_party->n;
        out_party->members[out_party->n++] = all[i].rank;
    }
    tcc_free(all);
    return status;
}

static tcc_status make_party(tcc_comm *comm, int32_t color, const party *party,
                             tcc_comm **out_comm) {
    char name[48];
    snprintf(name, sizeof name, "/%u.%d", comm->children, color);
    return make_child(comm, party->members, party->n, party->self, false, name, out_comm);
}

tcc_status tcc_comm_split(tcc_comm *comm, int32_t color, int32_t key, tcc_comm **out_comm) {
    TCC_RETURN_IF_ERROR(tcc_comm_usable(comm));
    if (!out_comm || comm->group.open)
        return tcc_fail(TCC_INVALID_ARGUMENT, "split: out_comm is NULL, or a group is open");
    *out_comm = NULL;
    party party;
    tcc_status status = gather_party(comm, color, key, &party);
    if (status == TCC_OK && color >= 0) status = make_party(comm, color, &party, out_comm);
    tcc_free(party.members);
    return status;
}

/* Other ranks wait for a comm that will not be. */
TCC_COLD static tcc_status refuse_party(tcc_comm *comm, const int32_t *ranks, int32_t n) {
    char list[128] = "";
    size_t used = 0;
    for (int32_t i = 0; i < n && used < 100; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, " %d", ranks[i]);
    (void)tcc_fail(TCC_MISMATCH, "rank %d gives a subgroup of ranks%s, and one of these gives another",
                   comm->rank, list);
    return drop(comm, TCC_MISMATCH);
}

/* A comm of these ranks, of which this process is number `key`, for `comm` to keep. */
static tcc_status make_subgroup(tcc_comm *comm, const int32_t *ranks, int32_t n, int32_t key,
                                tcc_comm **out_comm) {
    party party;
    tcc_status status = gather_party(comm, ranks[0], key, &party);
    if (status == TCC_OK &&
        (party.n != n || memcmp(party.members, ranks, (size_t)n * sizeof *ranks) != 0))
        status = refuse_party(comm, ranks, n);
    if (status == TCC_OK) status = make_party(comm, ranks[0], &party, out_comm);
    if (status != TCC_OK) {
        tcc_free(party.members);
        return status;
    }
    (*out_comm)->keeper = comm;
    (*out_comm)->members = party.members;
    (*out_comm)->next = atomic_load(&comm->subgroups);
    atomic_store(&comm->subgroups, *out_comm);
    return TCC_OK;
}

tcc_status tcc_comm_subgroup(tcc_comm *comm, const int32_t *ranks, int32_t n,
                             tcc_comm **out_comm) {
    TCC_RETURN_IF_ERROR(tcc_comm_usable(comm));
    if (!ranks || !out_comm || comm->group.open)
        return tcc_fail(TCC_INVALID_ARGUMENT, "subgroup: a pointer is NULL, or a group is open");
    *out_comm = NULL;
    int32_t self = -1;
    for (int32_t i = 0; i < n; i++) {
        if (ranks[i] < 0 || ranks[i] >= comm->size)
            return tcc_fail(TCC_INVALID_ARGUMENT, "subgroup: rank %d of a comm of %d ranks", ranks[i],
                            comm->size);
        if (ranks[i] == comm->rank) self = i;
    }
    if (self < 0)
        return tcc_fail(TCC_INVALID_ARGUMENT, "subgroup: rank %d is not of its own list", comm->rank);
    for (tcc_comm *child = atomic_load(&comm->subgroups); child; child = child->next)
        if (child->size == n && memcmp(child->members, ranks, (size_t)n * sizeof *ranks) == 0) {
            *out_comm = child;
            return TCC_OK;
        }
    return make_subgroup(comm, ranks, n, self, out_comm);
}

tcc_status tcc_comm_shrink(tcc_comm *comm, const int32_t *excluded, int32_t n,
                           tcc_comm **out_comm) {
    TCC_RETURN_IF_ERROR(tcc_comm_usable(comm));
    if (!out_comm || n < 0 || (n > 0 && !excluded))
        return tcc_fail(TCC_INVALID_ARGUMENT, "shrink: a pointer is NULL, or n is negative");
    *out_comm = NULL;
    if (!comm->backend->shrinks)
        return tcc_fail(TCC_UNSUPPORTED, "the backend %s cannot shrink a comm: start the job again",
                        comm->backend->name);
    int32_t *members = tcc_allocate_zero((size_t)comm->size, sizeof *members);
    if (!members) return TCC_OUT_OF_MEMORY;
    int32_t left = 0, self = -1;
    uint64_t state = 0; /* of the members, so that ranks with other lists do not meet */
    for (int32_t i = 0; i < comm->size; i++) {
        bool out = false;
        for (int32_t k = 0; k < n; k++) out |= excluded[k] == i;
        if (out) continue;
        if (i == comm->rank) self = left;
        members[left++] = i;
        state = (state ^ (uint64_t)(i + 1)) * UINT64_C(0x9e3779b97f4a7c15);
    }
    char name[48];
    snprintf(name, sizeof name, "/without.%llx", (unsigned long long)state);
    tcc_status status =
        self < 0 ? tcc_fail(TCC_INVALID_ARGUMENT, "shrink: rank %d excludes itself", comm->rank)
                 : make_child(comm, members, left, self, true, name, out_comm);
    tcc_free(members);
    return status;
}

/* ---- symmetric memory ------------------------------------------------------------------------ */

#define LEAST_SCRATCH ((size_t)1 << 16)
#define MOST_SCRATCH ((size_t)1 << 40)

static tcc_status make_arena(tcc_comm *comm, tcc_comm_arena arena, size_t bytes) {
    if (!comm->backend->symmetric)
        return tcc_fail(TCC_UNSUPPORTED, "the backend %s has no symmetric arena",
                        comm->backend->name);
    void *memory;
    TCC_RETURN_IF_ERROR(comm->backend->symmetric(comm, arena, bytes, &memory));
    comm->memory[arena] = memory;
    comm->bytes[arena] = bytes;
    return TCC_OK;
}

tcc_status tcc_comm_symmetric(tcc_comm *comm, size_t bytes, void **out_memory) {
    TCC_RETURN_IF_ERROR(tcc_comm_usable(comm));
    bytes = tcc_memory_round(bytes);
    if (!out_memory || !bytes || bytes > SIZE_MAX / 2 / (size_t)comm->size)
        return tcc_fail(TCC_INVALID_ARGUMENT,
                        "symmetric: out_memory is NULL, or there are no bytes or too many");
    if (comm->bytes[TCC_COMM_OWN])
        return tcc_fail(TCC_INVALID_ARGUMENT, "the comm has a symmetric arena of %zu bytes already",
                        comm->bytes[TCC_COMM_OWN]);
    TCC_RETURN_IF_ERROR(make_arena(comm, TCC_COMM_OWN, bytes));
    *out_memory = comm->memory[TCC_COMM_OWN];
    return TCC_OK;
}

/* What the rank that asks for most asks for. */
static tcc_status agree_on_bytes(tcc_comm *comm, int64_t *bytes) {
    int64_t *all = tcc_allocate_zero((size_t)comm->size, sizeof *all);
    if (!all) return TCC_OUT_OF_MEMORY;
    tcc_status status = tcc_comm_all_gather(comm, bytes, all, 1, (tcc_dtype){0, 64, 1});
    for (int32_t i = 0; status == TCC_OK && i < comm->size; i++)
        if (all[i] > *bytes) *bytes = all[i];
    tcc_free(all);
    return status;
}

tcc_status tcc_comm_scratch(tcc_comm *comm, size_t bytes, void **out_memory) {
    TCC_RETURN_IF_ERROR(tcc_comm_usable(comm));
    int64_t most = (int64_t)bytes;
    if (!out_memory || !bytes || bytes > MOST_SCRATCH)
        return tcc_fail(TCC_INVALID_ARGUMENT,
                        "scratch: out_memory is NULL, or there are no bytes or too many");
    if (bytes > comm->bytes[TCC_COMM_SCRATCH]) {
        if (comm->backend->symmetric) TCC_RETURN_IF_ERROR(agree_on_bytes(comm, &most));
        size_t room = LEAST_SCRATCH;
        while (room < (size_t)most) room *= 2; /* sizes that grow need few new arenas */
        TCC_RETURN_IF_ERROR(make_arena(comm, TCC_COMM_SCRATCH, room));
    }
    *out_memory = comm->memory[TCC_COMM_SCRATCH];
    return TCC_OK;
}

/* ---- operations ------------------------------------------------------------------------------ */

static tcc_status append(tcc_comm_queue *queue, const tcc_comm_work *work) {
    if (queue->n == queue->room) {
        int32_t room = queue->room ? 2 * queue->room : 16;
        tcc_comm_work *more = tcc_allocate((size_t)room * sizeof *more);
        if (!more) return TCC_OUT_OF_MEMORY;
        if (queue->n) memcpy(more, queue->works, (size_t)queue->n * sizeof *more);
        tcc_free(queue->works);
        queue->works = more;
        queue->room = room;
    }
    queue->works[queue->n++] = *work;
    return TCC_OK;
}

/* Nothing is done any more with the buffers of started operations; other ranks learn why. */
TCC_COLD static tcc_status drop(tcc_comm *comm, tcc_status status) {
    char reason[512];
    snprintf(reason, sizeof reason, "%s", tcc_last_error());
    tcc_comm_revoke(comm, status, reason);
    return comm->backend->error(comm);
}

/* Carries out started operations in their order up to the one with `ticket`; without `wait` as far
 * as it need not wait. */
static tcc_status carry_on(tcc_comm *comm, uint64_t ticket, bool wait) {
    tcc_comm_queue *started = &comm->started;
    for (bool done = true; done && comm->done < ticket;) {
        if (atomic_load(&comm->dropped)) return comm->backend->error(comm);
        tcc_status status = comm->backend->advance(comm, wait, &done);
        if (status != TCC_OK) return drop(comm, status);
        if (!done) continue;
        comm->done++;
        if (!--started->n) continue;
        memmove(started->works, started->works + 1, (size_t)started->n * sizeof(tcc_comm_work));
        status = comm->backend->begin(comm, started->works);
        if (status != TCC_OK) (void)drop(comm, status); /* the next look finds it */
    }
    return TCC_OK;
}

/* All that was started is done before. */
static tcc_status run(tcc_comm *comm, const tcc_comm_work *works, int32_t n) {
    if (TCC_UNLIKELY(comm->done < comm->tickets))
        TCC_RETURN_IF_ERROR(carry_on(comm, comm->tickets, true));
    if (tcc_comm_is_transfer(works->call.kind)) return comm->backend->transfer(comm, works, n);
    bool done;
    TCC_RETURN_IF_ERROR(comm->backend->begin(comm, works));
    return comm->backend->advance(comm, true, &done);
}

static tcc_status issue(tcc_comm *comm, tcc_comm_work *work, const void *send, void *receive) {
    TCC_RETURN_IF_ERROR(tcc_comm_check_buffers(work, comm->rank, comm->size, send, receive));
    return comm->group.open ? append(&comm->group.queue, work) : run(comm, work, 1);
}

static tcc_status call(tcc_comm *comm, const tcc_comm_call *asked, const void *send,
                       void *receive) {
    tcc_comm_work work;
    TCC_RETURN_IF_ERROR(tcc_comm_usable(comm));
    TCC_RETURN_IF_ERROR(tcc_comm_check_call(asked, comm->rank, comm->size, &work));
    return issue(comm, &work, send, receive);
}

static tcc_status issue_call(tcc_comm *comm, const tcc_comm_call *asked, const void *send,
                             void *receive) {
    if (!asked || asked->struct_size != sizeof *asked)
        return tcc_fail(TCC_INVALID_ARGUMENT, "issue: the call is NULL, or of another version");
    return call(comm, asked, send, receive);
}

#define CALL(...) (&(tcc_comm_call){.struct_size = sizeof(tcc_comm_call), __VA_ARGS__})

tcc_status tcc_comm_all_reduce(tcc_comm *comm, const void *send, void *receive, int64_t count,
                               tcc_dtype dtype, tcc_comm_reduction reduction) {
    return call(
        comm,
        CALL(.kind = TCC_COMM_ALL_REDUCE, .reduction = reduction, .dtype = dtype, .count = count),
        send, receive);
}

tcc_status tcc_comm_reduce_scatter(tcc_comm *comm, const void *send, void *receive, int64_t count,
                                   tcc_dtype dtype, tcc_comm_reduction reduction) {
    return call(comm,
                CALL(.kind = TCC_COMM_REDUCE_SCATTER, .reduction = reduction, .dtype = dtype,
                     .count = count),
                send, receive);
}

tcc_status tcc_comm_all_gather(tcc_comm *comm, const void *send, void *receive, int64_t count,
                               tcc_dtype dtype) {
    return call(comm, CALL(.kind = TCC_COMM_ALL_GATHER, .dtype = dtype, .count = count), send,
                receive);
}

tcc_status tcc_comm_all_gather_v(tcc_comm *comm, const void *send, void *receive,
                                 const int64_t *counts, tcc_dtype dtype) {
    return call(comm, CALL(.kind = TCC_COMM_ALL_GATHER_V, .dtype = dtype, .send_counts = counts),
                send, receive);
}

tcc_status tcc_comm_all_to_all(tcc_comm *comm, const void *send, void *receive, int64_t count,
                               tcc_dtype dtype) {
    return call(comm, CALL(.kind = TCC_COMM_ALL_TO_ALL, .dtype = dtype, .count = count), send,
                receive);
}

tcc_status tcc_comm_all_to_all_v(tcc_comm *comm, const void *send, void *receive,
                                 const int64_t *send_counts, const int64_t *receive_counts,
                                 tcc_dtype dtype) {
    return call(comm,
                CALL(.kind = TCC_COMM_ALL_TO_ALL_V, .dtype = dtype, .send_counts = send_counts,
                     .receive_counts = receive_counts),
                send, receive);
}

tcc_status tcc_comm_broadcast(tcc_comm *comm, const void *send, void *receive, int64_t count,
                              tcc_dtype dtype, int32_t root) {
    return call(comm,
                CALL(.kind = TCC_COMM_BROADCAST, .dtype = dtype, .count = count, .root = root),
                send, receive);
}

tcc_status tcc_comm_send(tcc_comm *comm, const void *send, int64_t count, tcc_dtype dtype,
                         int32_t peer) {
    return call(comm, CALL(.kind = TCC_COMM_SEND, .dtype = dtype, .count = count, .root = peer),
                send, NULL);
}

tcc_status tcc_comm_receive(tcc_comm *comm, void *receive, int64_t count, tcc_dtype dtype,
                            int32_t peer) {
    return call(comm, CALL(.kind = TCC_COMM_RECEIVE, .dtype = dtype, .count = count, .root = peer),
                NULL, receive);
}

tcc_status tcc_comm_barrier(tcc_comm *comm) {
    return call(comm, CALL(.kind = TCC_COMM_BARRIER), NULL, NULL);
}

/* ---- groups of operations -------------------------------------------------------------------- */

tcc_status tcc_comm_group_start(tcc_comm *comm) {
    TCC_RETURN_IF_ERROR(tcc_comm_usable(comm));
    if (comm->group.open) return tcc_fail(TCC_INVALID_ARGUMENT, "a group is open already");
    comm->group.open = true;
    comm->group.queue.n = 0;
    return TCC_OK;
}

tcc_status tcc_comm_group_end(tcc_comm *comm) {
    TCC_RETURN_IF_ERROR(tcc_comm_usable(comm));
    if (!comm->group.open) return tcc_fail(TCC_INVALID_ARGUMENT, "no group is open");
    comm->group.open = false;
    const tcc_comm_queue *queue = &comm->group.queue;
    int32_t transfers = 0; /* moved to the front of the queue once the collectives are done */
    for (int32_t i = 0; i < queue->n; i++) {
        if (tcc_comm_is_transfer(queue->works[i].call.kind))
            queue->works[transfers++] = queue->works[i];
        else
            TCC_RETURN_IF_ERROR(run(comm, &queue->works[i], 1));
    }
    return transfers ? run(comm, queue->works, transfers) : TCC_OK;
}

/* ---- started operations ---------------------------------------------------------------------- */

static tcc_status start(tcc_comm *comm, tcc_comm_work *work, const void *send, void *receive,
                        uint64_t *out_ticket) {
    if (!out_ticket || comm->group.open || tcc_comm_is_transfer(work->call.kind))
        return tcc_fail(TCC_INVALID_ARGUMENT,
                        "start: out_ticket is NULL, a group is open, or it is no collective");
    TCC_RETURN_IF_ERROR(tcc_comm_check_buffers(work, comm->rank, comm->size, send, receive));
    TCC_RETURN_IF_ERROR(carry_on(comm, comm->tickets, false));
    TCC_RETURN_IF_ERROR(append(&comm->started, work));
    tcc_status status =
        comm->started.n > 1 ? TCC_OK : comm->backend->begin(comm, comm->started.works);
    if (status != TCC_OK) {
        comm->started.n = 0;
        return status;
    }
    *out_ticket = ++comm->tickets;
    return TCC_OK;
}

tcc_status tcc_comm_start(tcc_comm *comm, const tcc_comm_call *asked, const void *send,
                          void *receive, uint64_t *out_ticket) {
    TCC_RETURN_IF_ERROR(tcc_comm_usable(comm));
    if (!asked || asked->struct_size != sizeof *asked)
        return tcc_fail(TCC_INVALID_ARGUMENT, "start: the call is NULL, or of another version");
    tcc_comm_work work;
    TCC_RETURN_IF_ERROR(tcc_comm_check_call(asked, comm->rank, comm->size, &work));
    return start(comm, &work, send, receive, out_ticket);
}

tcc_status tcc_comm_wait(tcc_comm *comm, uint64_t ticket) {
    TCC_RETURN_IF_ERROR(tcc_comm_usable(comm));
    if (ticket == 0 || ticket > comm->tickets)
        return tcc_fail(TCC_INVALID_ARGUMENT, "wait: there is no ticket %llu",
                        (unsigned long long)ticket);
    return carry_on(comm, ticket, true);
}

/* ---- plans ----------------------------------------------------------------------------------- */

struct tcc_comm_plan {
    tcc_comm *comm;
    tcc_comm_work work;
    int64_t counts[]; /* to send, then to receive */
};

tcc_status tcc_comm_plan_make(tcc_comm *comm, const tcc_comm_call *asked,
                              tcc_comm_plan **out_plan) {
    TCC_RETURN_IF_ERROR(tcc_comm_usable(comm));
    if (!asked || !out_plan || asked->struct_size != sizeof *asked)
        return tcc_fail(TCC_INVALID_ARGUMENT,
                        "tcc_comm_plan_make: a pointer is NULL, or the call is of another version");
    tcc_comm_work work;
    TCC_RETURN_IF_ERROR(tcc_comm_check_call(asked, comm->rank, comm->size, &work));
    size_t n = (size_t)comm->size, bytes = n * sizeof(int64_t);
    tcc_comm_plan *plan = tcc_allocate_zero(1, sizeof *plan + 2 * bytes);
    if (!plan) return TCC_OUT_OF_MEMORY;
    plan->comm = comm;
    plan->work = work;
    if (work.call.send_counts) {
        memcpy(plan->counts, work.call.send_counts, bytes);
        plan->work.call.send_counts = plan->counts;
    }
    if (work.call.receive_counts) {
        memcpy(plan->counts + n, work.call.receive_counts, bytes);
        plan->work.call.receive_counts = plan->counts + n;
    }
    *out_plan = plan;
    return TCC_OK;
}

tcc_status tcc_comm_plan_post(tcc_comm_plan *plan, const void *send, void *receive) {
    TCC_RETURN_IF_ERROR(tcc_comm_usable(plan->comm));
    return issue(plan->comm, &plan->work, send, receive);
}

tcc_status tcc_comm_plan_start(tcc_comm_plan *plan, const void *send, void *receive,
                               uint64_t *out_ticket) {
    TCC_RETURN_IF_ERROR(tcc_comm_usable(plan->comm));
    return start(plan->comm, &plan->work, send, receive, out_ticket);
}

void tcc_comm_plan_free(tcc_comm_plan *plan) { tcc_free(plan); }
