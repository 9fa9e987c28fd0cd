/* Opens and closes comms, and makes groups of ranks and shared memory. */
#define _GNU_SOURCE
#include <string.h>

#include "../sized.h"
#include "packet.h"

/* ---- opening and closing --------------------------------------------------------------------- */

static const tcc_comm_table functions = {
    .struct_size = sizeof functions,
    .version = TCC_COMM_VERSION,
    .rank = tcc_comm_rank,
    .size = tcc_comm_size,
    .issue = tcc_comm_issue,
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
    .keep = tcc_comm_keep,
    .drop = tcc_comm_drop,
    .memory_keep = tcc_comm_memory_keep,
    .memory_drop = tcc_comm_memory_drop,
    .ask = tcc_comm_ask,
};

tcc_comm *tcc_comm_make(const tcc_comm_settings *settings, int32_t rank, int32_t size) {
    tcc_comm *comm = tcc_comm_allocate(&functions);
    if (!comm) return NULL;
    comm->settings = *settings;
    comm->rank = rank;
    comm->size = size;
    comm->forks = tcc_comm_forks();
    atomic_store(&comm->users, 1);
    return comm;
}

#define ENDS(field) TCC_ENDS(tcc_comm_config, field)

static const tcc_sized config_kind = {
    "tcc_comm_config", sizeof(tcc_comm_config), TCC_END(tcc_comm_config, size),
    ENDS(size) | ENDS(local_rank) | ENDS(local_size) | ENDS(epoch) | ENDS(rendezvous) |
        ENDS(token) | ENDS(backends) | ENDS(open_milliseconds) | ENDS(operation_milliseconds)};

tcc_status tcc_comm_open(const tcc_comm_config *config, tcc_comm **out_comm) {
    if (!out_comm) return tcc_fail(TCC_INVALID_ARGUMENT, "tcc_comm_open: out_comm is NULL");
    *out_comm = NULL;
    tcc_comm_config filled = TCC_COMM_CONFIG;
    tcc_comm_settings settings;
    const tcc_comm_backend *backend = NULL;
    TCC_RETURN_IF_ERROR(tcc_sized_read(&config_kind, config, &filled));
    TCC_RETURN_IF_ERROR(tcc_comm_settle(&filled, &settings));
    int32_t patience = settings.open_milliseconds;
    TCC_RETURN_IF_ERROR(tcc_comm_choose(&settings, &backend));
    tcc_comm *comm = tcc_comm_make(&settings, settings.rank, settings.size);
    if (!comm) return TCC_OUT_OF_MEMORY;
    comm->backend = backend;
    tcc_status status = backend->open(comm, &settings);
    comm->settings.open_milliseconds = patience;
    if (status != TCC_OK)
        tcc_comm_drop(comm);
    else
        *out_comm = comm;
    return status;
}

/* Frees the backend's part of a comm, when no call is in progress. */
static void leave_ranks(tcc_comm *comm) {
    tcc_comm_withdraw(comm);
    tcc_comm_device_leave(comm);
    comm->backend->close(comm);
    for (int i = 0; i < TCC_COMM_ARENAS; i++) {
        tcc_comm_memory_drop(comm->mappings[i]);
        comm->mappings[i] = NULL;
    }
}

/* Ends all calls on the comm and its subgroups first, because a subgroup uses memory of the comm
 * that keeps it. */
static bool end_all(tcc_comm *comm) {
    if (!tcc_comm_end(comm)) return false;
    for (tcc_comm *child = atomic_load(&comm->subgroups); child; child = child->next)
        (void)end_all(child);
    return true;
}

static void leave_all(tcc_comm *comm) {
    for (tcc_comm *child = atomic_load(&comm->subgroups); child; child = child->next)
        leave_all(child);
    leave_ranks(comm);
}

void tcc_comm_close(tcc_comm *comm) {
    if (!comm || !end_all(comm)) return;
    leave_all(comm);
    tcc_comm_drop(comm);
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
    if (!tcc_comm_visit(comm)) return tcc_comm_refuse_closed(comm);
    tcc_comm_revoke(comm, TCC_CANCELLED, reason ? reason : "the comm was aborted");
    for (tcc_comm *child = atomic_load(&comm->subgroups); child; child = child->next)
        (void)tcc_comm_abort(child, reason);
    tcc_comm_visit_end(comm);
    return TCC_OK;
}

tcc_status tcc_comm_error(tcc_comm *comm) {
    TCC_RETURN_IF_ERROR(tcc_comm_usable(comm));
    if (!tcc_comm_visit(comm)) return tcc_comm_refuse_closed(comm);
    tcc_status status = comm->backend->error(comm);
    tcc_comm_visit_end(comm);
    return status;
}

/* ---- groups of ranks ------------------------------------------------------------------------- */

/* Makes a comm of `n` members of the parent; this process is number `self`. */
static tcc_status make_child(tcc_comm *parent, const int32_t *members, int32_t n, int32_t self,
                             const char *name, tcc_comm **out_comm) {
    tcc_comm *child = tcc_comm_make(&parent->settings, self, n);
    if (!child) return TCC_OUT_OF_MEMORY;
    child->backend = parent->backend;
    tcc_status status = parent->backend->group(parent, members, name, child);
    if (status != TCC_OK)
        tcc_comm_drop(child);
    else
        *out_comm = child;
    return status;
}

typedef struct choice {
    int32_t color, key, rank;
} choice;

static int by_key(const void *a_item, const void *b_item) {
    const choice *a = a_item, *b = b_item;
    if (a->key != b->key) return a->key < b->key ? -1 : 1;
    return a->rank < b->rank ? -1 : a->rank > b->rank;
}

/* Gathers all ranks' choices in rank order. */
static tcc_status gather_choices(tcc_comm *comm, choice mine, choice *all) {
    const tcc_comm_call call = {.struct_size = sizeof call, .kind = TCC_COMM_ALL_GATHER,
                                .dtype = {0, 32, 1}, .count = sizeof mine / 4};
    return tcc_comm_perform(comm, &call, &mine, all);
}

/* The ranks of a new comm; this process is number `self`. */
typedef struct party {
    int32_t *members; /* room for all ranks */
    int32_t n, self;
} party;

/* Finds the ranks that give this color, ordered by key and then by rank. */
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
    return make_child(comm, party->members, party->n, party->self, name, out_comm);
}

tcc_status tcc_comm_leave_with(tcc_comm *comm, tcc_status status, tcc_comm **out_comm) {
    status = tcc_comm_leave(comm, status);
    if (status == TCC_OK || !out_comm) return status;
    tcc_comm_close(*out_comm);
    *out_comm = NULL;
    return status;
}

static tcc_status split(tcc_comm *comm, int32_t color, int32_t key, tcc_comm **out_comm) {
    if (!out_comm || comm->group.open)
        return tcc_fail(TCC_INVALID_ARGUMENT, "split: out_comm is NULL, or a group is open");
    *out_comm = NULL;
    party party;
    tcc_status status = gather_party(comm, color, key, &party);
    if (status == TCC_OK && color >= 0) status = make_party(comm, color, &party, out_comm);
    tcc_free(party.members);
    return status;
}

tcc_status tcc_comm_split(tcc_comm *comm, int32_t color, int32_t key, tcc_comm **out_comm) {
    TCC_RETURN_IF_ERROR(tcc_comm_enter(comm));
    return tcc_comm_leave_with(comm, split(comm, color, key, out_comm), out_comm);
}

/* Reports a failure to the other ranks, which would wait for a comm that is never made. */
TCC_COLD static tcc_status refuse_party(tcc_comm *comm, const int32_t *ranks, int32_t n) {
    char list[128] = "";
    size_t used = 0;
    for (int32_t i = 0; i < n && used < 100; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, " %d", ranks[i]);
    (void)tcc_fail(TCC_MISMATCH, "rank %d gives a subgroup of ranks%s, and one of these gives another",
                   comm->rank, list);
    return tcc_comm_give_up(comm, TCC_MISMATCH);
}

/* Makes a comm of these ranks, with this process as number `key`, for `comm` to keep. */
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
    atomic_store(&(*out_comm)->keeper, comm);
    (*out_comm)->members = party.members;
    (*out_comm)->next = atomic_load(&comm->subgroups);
    atomic_store(&comm->subgroups, *out_comm);
    return TCC_OK;
}

static tcc_status find_subgroup(tcc_comm *comm, const int32_t *ranks, int32_t n,
                                tcc_comm **out_comm) {
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

tcc_status tcc_comm_subgroup(tcc_comm *comm, const int32_t *ranks, int32_t n,
                             tcc_comm **out_comm) {
    TCC_RETURN_IF_ERROR(tcc_comm_enter(comm));
    return tcc_comm_leave(comm, find_subgroup(comm, ranks, n, out_comm));
}

/* ---- symmetric memory ------------------------------------------------------------------------ */

#define LEAST_SCRATCH ((size_t)1 << 16)
#define MOST_SCRATCH ((size_t)1 << 40)

static tcc_status replace_arena(tcc_comm *comm, tcc_comm_arena arena, size_t bytes) {
    if (!comm->backend->symmetric)
        return tcc_fail(TCC_UNSUPPORTED, "the backend %s has no symmetric arena",
                        comm->backend->name);
    void *memory;
    tcc_comm_memory *mapping;
    TCC_RETURN_IF_ERROR(comm->backend->symmetric(comm, arena, bytes, &memory, &mapping));
    tcc_comm_memory_drop(comm->mappings[arena]);
    comm->mappings[arena] = mapping;
    comm->memory[arena] = memory;
    comm->bytes[arena] = bytes;
    return TCC_OK;
}

/* Makes an arena. The caller holds the turns of `child` and the subgroups after it, because they
 * use the arena too. */
static tcc_status make_arena(tcc_comm *comm, tcc_comm *child, tcc_comm_arena arena, size_t bytes) {
    if (!child) return replace_arena(comm, arena, bytes);
    TCC_RETURN_IF_ERROR(tcc_comm_enter(child));
    return tcc_comm_leave(child, make_arena(comm, child->next, arena, bytes));
}

static tcc_status make_private_arena(tcc_comm *comm, size_t bytes, void **out_memory) {
    bytes = tcc_memory_round(bytes);
    if (!out_memory || !bytes || bytes > SIZE_MAX / 2 / (size_t)comm->size)
        return tcc_fail(TCC_INVALID_ARGUMENT,
                        "symmetric: out_memory is NULL, or there are no bytes or too many");
    if (comm->bytes[TCC_COMM_OWN])
        return tcc_fail(TCC_INVALID_ARGUMENT, "the comm has a symmetric arena of %zu bytes already",
                        comm->bytes[TCC_COMM_OWN]);
    TCC_RETURN_IF_ERROR(make_arena(comm, atomic_load(&comm->subgroups), TCC_COMM_OWN, bytes));
    *out_memory = comm->memory[TCC_COMM_OWN];
    return TCC_OK;
}

tcc_status tcc_comm_symmetric(tcc_comm *comm, size_t bytes, void **out_memory) {
    TCC_RETURN_IF_ERROR(tcc_comm_enter(comm));
    return tcc_comm_leave(comm, make_private_arena(comm, bytes, out_memory));
}

/* Sets `*bytes` to the largest request of any rank. */
static tcc_status agree_on_bytes(tcc_comm *comm, int64_t *bytes) {
    int64_t *all = tcc_allocate_zero((size_t)comm->size, sizeof *all);
    if (!all) return TCC_OUT_OF_MEMORY;
    const tcc_comm_call call = {.struct_size = sizeof call, .kind = TCC_COMM_ALL_GATHER,
                                .dtype = {0, 64, 1}, .count = 1};
    tcc_status status = tcc_comm_perform(comm, &call, bytes, all);
    for (int32_t i = 0; status == TCC_OK && i < comm->size; i++)
        if (all[i] > *bytes) *bytes = all[i];
    tcc_free(all);
    return status;
}

static tcc_status find_scratch(tcc_comm *comm, size_t bytes, void **out_memory) {
    int64_t most_bytes = (int64_t)bytes;
    if (!out_memory || !bytes || bytes > MOST_SCRATCH)
        return tcc_fail(TCC_INVALID_ARGUMENT,
                        "scratch: out_memory is NULL, or there are no bytes or too many");
    if (bytes > comm->bytes[TCC_COMM_SCRATCH]) {
        if (comm->backend->symmetric) TCC_RETURN_IF_ERROR(agree_on_bytes(comm, &most_bytes));
        size_t room = LEAST_SCRATCH;
        while (room < (size_t)most_bytes) room *= 2; /* doubled, so that growing sizes need few new
                                                        arenas */
        tcc_comm *children = atomic_load(&comm->subgroups);
        TCC_RETURN_IF_ERROR(make_arena(comm, children, TCC_COMM_SCRATCH, room));
    }
    *out_memory = comm->memory[TCC_COMM_SCRATCH];
    return TCC_OK;
}

tcc_status tcc_comm_scratch(tcc_comm *comm, size_t bytes, void **out_memory) {
    TCC_RETURN_IF_ERROR(tcc_comm_enter(comm));
    return tcc_comm_leave(comm, find_scratch(comm, bytes, out_memory));
}
