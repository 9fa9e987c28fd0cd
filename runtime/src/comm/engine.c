/* Carries out a comm over an engine that only moves bytes. Reductions are computed here, in rank
 * order. */
#define _GNU_SOURCE
#include <sched.h>
#include <string.h>

#include "engine.h"

enum {
    SMALL = 8 << 10,  /* bytes of an all_reduce up to which every rank gets all data */
    CHUNK = 32 << 20, /* bytes of a reduction at once, which bounds its memory */
    HEADER_TAG = 1,
    DATA_TAG = 2,
};

typedef struct engine_comm {
    const tcc_comm_engine *engine;
    tcc_engine_host host;
    void *group;
    int32_t size, rank;
    int64_t patience;         /* nanoseconds */
    _Atomic uint32_t revoked; /* 0, 1 while the reason is being written, or 2 + status */
    char reason[512];
    size_t *counts, *places, *send_counts, *send_places; /* bytes, by rank */
    tcc_comm_descriptor *all;                            /* by rank: the operation's descriptors */
    int64_t *matrix;    /* for an all_to_all_v: what each rank sends, then what it expects */
    tcc_comm_work work; /* the collective that has begun: ranks tell one another about it */
    uintptr_t saying;
    bool begun;
    char *scratch;
    size_t room;
} engine_comm;

/* ---- failure --------------------------------------------------------------------------------- */

static tcc_status state(engine_comm *comm) {
    uint32_t revoked = atomic_load(&comm->revoked);
    if (revoked < 2) return TCC_OK;
    return tcc_fail((tcc_status)(revoked - 2), "%s", comm->reason);
}

/* Revokes the comm. The engine cannot cancel operations in progress, so the memory that they need
 * is never freed. */
static tcc_status give_up(engine_comm *comm, tcc_status status, const char *reason) {
    uint32_t before = 0;
    if (atomic_compare_exchange_strong(&comm->revoked, &before, 1)) {
        snprintf(comm->reason, sizeof comm->reason, "%s", reason);
        atomic_store(&comm->revoked, 2 + (uint32_t)status);
        if (comm->engine->leave) comm->engine->leave(comm->group);
    }
    return state(comm);
}

/* Revokes the comm after a failure of the engine, which has set the thread's message. */
static tcc_status failed(engine_comm *comm, const char *call, tcc_status status) {
    char reason[sizeof comm->reason];
    snprintf(reason, sizeof reason, "%s: %s", call, tcc_last_error());
    return give_up(comm, status, reason);
}

/* Waits for requests. Revokes the comm where they are not done in time. */
static tcc_status await(engine_comm *comm, uintptr_t *requests, int32_t n, const char *call) {
    int64_t deadline = tcc_comm_now() + comm->patience;
    for (int32_t first = 0, looks = 1; first < n; looks++) {
        int32_t done = 0;
        tcc_status status = comm->engine->test(comm->group, &requests[first], &done);
        if (status != TCC_OK) return failed(comm, call, status);
        if (done) {
            first++;
            continue;
        }
        if (looks % 64) continue;
        TCC_RETURN_IF_ERROR(state(comm));
        char reason[160];
        if (tcc_comm_ends()) {
            snprintf(reason, sizeof reason, "%s: rank %d was told to end", call, comm->rank);
            return give_up(comm, TCC_CANCELLED, reason);
        }
        if (tcc_comm_now() > deadline) {
            snprintf(reason, sizeof reason, "%s: rank %d waited %lld ms in vain for other ranks",
                     call, comm->rank, (long long)(comm->patience / 1000000));
            return give_up(comm, TCC_TIMEOUT, reason);
        }
        sched_yield(); /* there may be more ranks than CPUs */
    }
    return TCC_OK;
}

static tcc_status await_request(engine_comm *comm, tcc_status begun, uintptr_t *request,
                                const char *call) {
    return begun == TCC_OK ? await(comm, request, 1, call) : failed(comm, call, begun);
}

/* ---- movement -------------------------------------------------------------------------------- */

/* Computes `places` from `counts`, both in bytes. */
static void line_up(const size_t *counts, size_t *places, int32_t n) {
    size_t place = 0;
    for (int32_t i = 0; i < n; place += counts[i++]) places[i] = place;
}

/* Returns at least `bytes` bytes of memory, valid until the next call. */
static char *scratch(engine_comm *comm, size_t bytes) {
    if (bytes <= comm->room && comm->scratch) return comm->scratch;
    tcc_free(comm->scratch);
    comm->scratch = tcc_allocate(bytes);
    comm->room = comm->scratch ? bytes : 0;
    return comm->scratch;
}

/* Gathers every rank's part into `receive`, with the sizes in `counts`. This rank's own part is in
 * place. */
static tcc_status gather(engine_comm *comm, void *receive) {
    uintptr_t request = 0;
    tcc_status begun = comm->engine->all_gather(comm->group, receive, comm->counts, &request);
    return await_request(comm, begun, &request, "all_gather");
}

static void count_equal(engine_comm *comm, size_t bytes) {
    for (int32_t i = 0; i < comm->size; i++) comm->counts[i] = bytes;
}

/* Gathers equal parts of all ranks. */
static tcc_status gather_equal(engine_comm *comm, void *receive, size_t bytes) {
    count_equal(comm, bytes);
    return gather(comm, receive);
}

/* Exchanges data by `send_counts`, `send_places` and `counts`. Received parts lie one behind
 * another. */
static tcc_status exchange(engine_comm *comm, const void *send, void *receive) {
    uintptr_t request = 0;
    tcc_status begun = comm->engine->all_to_all(comm->group, send, comm->send_counts,
                                                comm->send_places, receive, comm->counts, &request);
    return await_request(comm, begun, &request, "all_to_all");
}

/* ---- agreement ------------------------------------------------------------------------------- */

/* Checks that all ranks are in the same operation. */
static tcc_status agree(engine_comm *comm) {
    for (int32_t i = 1; i < comm->size; i++) {
        if (memcmp(&comm->all[0], &comm->all[i], sizeof comm->all[0]) == 0) continue;
        char first[TCC_COMM_TEXT], other[TCC_COMM_TEXT], reason[sizeof comm->reason];
        snprintf(reason, sizeof reason, "ranks differ: rank 0 is in %s, rank %d in %s",
                 tcc_comm_text(&comm->all[0], first), i, tcc_comm_text(&comm->all[i], other));
        return give_up(comm, TCC_MISMATCH, reason);
    }
    return TCC_OK;
}

/* Checks all counts on every rank, so that all ranks fail where two counts contradict. */
static tcc_status agree_on_counts(engine_comm *comm, const tcc_comm_call *call) {
    size_t n = (size_t)comm->size, row = 2 * n;
    memcpy(&comm->matrix[(size_t)comm->rank * row], call->send_counts, n * sizeof(int64_t));
    memcpy(&comm->matrix[(size_t)comm->rank * row + n], call->receive_counts, n * sizeof(int64_t));
    TCC_RETURN_IF_ERROR(gather_equal(comm, comm->matrix, row * sizeof(int64_t)));
    for (size_t from = 0; from < n; from++)
        for (size_t to = 0; to < n; to++) {
            int64_t sent = comm->matrix[from * row + to],
                    expected = comm->matrix[to * row + n + from];
            if (sent == expected) continue;
            char reason[160];
            snprintf(reason, sizeof reason,
                     "all_to_all_v: rank %zu sends %lld elements to rank %zu, which expects %lld",
                     from, (long long)sent, to, (long long)expected);
            return give_up(comm, TCC_MISMATCH, reason);
        }
    return TCC_OK;
}

/* ---- reductions ------------------------------------------------------------------------------ */

/* Reduces pieces of `count` elements, which lie one behind another. */
static void reduce_pieces(const engine_comm *comm, const tcc_comm_work *work, const char *pieces,
                          int64_t count, void *out, const void **inputs) {
    for (int32_t i = 0; i < comm->size; i++)
        inputs[i] = pieces + (size_t)i * (size_t)count * work->element;
    tcc_comm_reduce(out, inputs, comm->size, count, work->type, work->call.reduction);
}

/* Gathers all data on all ranks, and reduces there. */
static tcc_status reduce_small(engine_comm *comm, const tcc_comm_work *work, const void **inputs) {
    size_t bytes = (size_t)work->call.count * work->element;
    char *pieces = scratch(comm, bytes * (size_t)comm->size);
    if (!pieces) return TCC_OUT_OF_MEMORY;
    if (bytes) memcpy(pieces + (size_t)comm->rank * bytes, work->send, bytes);
    TCC_RETURN_IF_ERROR(gather_equal(comm, pieces, bytes));
    reduce_pieces(comm, work, pieces, work->call.count, work->receive, inputs);
    return TCC_OK;
}

/* Reduces a chunk: every rank reduces its part, then gathers all parts. */
static tcc_status reduce_chunk(engine_comm *comm, const tcc_comm_work *work, int64_t begin,
                               int64_t count, const void **inputs) {
    size_t element = work->element, n = (size_t)comm->size;
    int64_t part = (count + comm->size - 1) / comm->size, own_count = 0;
    char *pieces = scratch(comm, (size_t)part * element * n), *out = work->receive;
    if (!pieces) return TCC_OUT_OF_MEMORY;
    for (int32_t i = 0; i < comm->size; i++) {
        int64_t first = i * part < count ? i * part : count;
        int64_t last = first + part < count ? first + part : count;
        comm->send_counts[i] = (size_t)(last - first) * element;
        if (i == comm->rank) own_count = last - first;
    }
    for (int32_t i = 0; i < comm->size; i++) comm->counts[i] = comm->send_counts[comm->rank];
    line_up(comm->send_counts, comm->send_places, comm->size);
    TCC_RETURN_IF_ERROR(exchange(comm, work->send + (size_t)begin * element, pieces));
    out += (size_t)begin * element;
    reduce_pieces(comm, work, pieces, own_count, out + comm->send_places[comm->rank], inputs);
    memcpy(comm->counts, comm->send_counts, n * sizeof *comm->counts);
    return gather(comm, out);
}

static tcc_status all_reduce(engine_comm *comm, const tcc_comm_work *work, const void **inputs) {
    int64_t total = work->call.count, chunk = CHUNK / (int64_t)work->element;
    if ((size_t)total * work->element <= SMALL) return reduce_small(comm, work, inputs);
    for (int64_t begin = 0; begin < total; begin += chunk) {
        int64_t count = total - begin < chunk ? total - begin : chunk;
        TCC_RETURN_IF_ERROR(reduce_chunk(comm, work, begin, count, inputs));
    }
    return TCC_OK;
}

static tcc_status reduce_scatter(engine_comm *comm, const tcc_comm_work *work,
                                 const void **inputs) {
    int64_t total = work->call.count, chunk = CHUNK / (int64_t)work->element / comm->size + 1;
    for (int64_t begin = 0; begin < total; begin += chunk) {
        int64_t count = total - begin < chunk ? total - begin : chunk;
        size_t bytes = (size_t)count * work->element;
        char *pieces = scratch(comm, bytes * (size_t)comm->size);
        if (!pieces) return TCC_OUT_OF_MEMORY;
        for (int32_t i = 0; i < comm->size; i++) {
            comm->send_counts[i] = comm->counts[i] = bytes;
            comm->send_places[i] = (size_t)(i * total) * work->element;
        }
        TCC_RETURN_IF_ERROR(exchange(comm, work->send + (size_t)begin * work->element, pieces));
        reduce_pieces(comm, work, pieces, count, work->receive + (size_t)begin * work->element,
                      inputs);
    }
    return TCC_OK;
}

static tcc_status run_reduction(engine_comm *comm, const tcc_comm_work *work) {
    const void **inputs = tcc_allocate((size_t)comm->size * sizeof *inputs);
    if (!inputs) return TCC_OUT_OF_MEMORY;
    tcc_status status = work->call.kind == TCC_COMM_ALL_REDUCE ? all_reduce(comm, work, inputs)
                                                               : reduce_scatter(comm, work, inputs);
    tcc_free((void *)inputs);
    return status;
}

/* ---- the other operations -------------------------------------------------------------------- */

static tcc_status all_gather(engine_comm *comm, const tcc_comm_work *work) {
    bool ragged = work->call.kind == TCC_COMM_ALL_GATHER_V;
    for (int32_t i = 0; i < comm->size; i++) {
        int64_t count = ragged ? work->call.send_counts[i] : work->call.count;
        comm->counts[i] = (size_t)count * work->element;
    }
    line_up(comm->counts, comm->places, comm->size);
    char *own_part = work->receive + comm->places[comm->rank];
    if (comm->counts[comm->rank] && own_part != work->send)
        memcpy(own_part, work->send, comm->counts[comm->rank]);
    return gather(comm, work->receive);
}

static tcc_status all_to_all(engine_comm *comm, const tcc_comm_work *work) {
    bool ragged = work->call.kind == TCC_COMM_ALL_TO_ALL_V;
    if (ragged) TCC_RETURN_IF_ERROR(agree_on_counts(comm, &work->call));
    for (int32_t i = 0; i < comm->size; i++) {
        int64_t sent = ragged ? work->call.send_counts[i] : work->call.count;
        int64_t received = ragged ? work->call.receive_counts[i] : work->call.count;
        comm->send_counts[i] = (size_t)sent * work->element;
        comm->counts[i] = (size_t)received * work->element;
    }
    line_up(comm->send_counts, comm->send_places, comm->size);
    if (work->send != work->receive) return exchange(comm, work->send, work->receive);
    size_t bytes = (size_t)work->call.count * work->element * (size_t)comm->size;
    char *copy = scratch(comm, bytes);
    if (!copy) return TCC_OUT_OF_MEMORY;
    if (bytes) memcpy(copy, work->send, bytes);
    return exchange(comm, copy, work->receive);
}

static tcc_status broadcast(engine_comm *comm, const tcc_comm_work *work) {
    size_t bytes = (size_t)work->call.count * work->element;
    uintptr_t request = 0;
    if (work->call.root == comm->rank && bytes && work->send != work->receive)
        memcpy(work->receive, work->send, bytes);
    tcc_status begun =
        comm->engine->broadcast(comm->group, work->receive, bytes, work->call.root, &request);
    return await_request(comm, begun, &request, "broadcast");
}

/* Fails where the engine cannot move the operation's bytes. */
static tcc_status check_size(const engine_comm *comm, const tcc_comm_work *work) {
    int64_t elements = work->call.count, most_bytes = comm->engine->most_bytes;
    int64_t limit = (most_bytes ? most_bytes : INT64_MAX) / (int64_t)work->element;
    if (work->call.kind != TCC_COMM_ALL_REDUCE && work->call.kind != TCC_COMM_BROADCAST &&
        !tcc_comm_is_transfer(work->call.kind))
        elements = elements > limit / comm->size ? limit + 1 : elements * comm->size;
    if (work->call.kind == TCC_COMM_ALL_REDUCE) elements = 0; /* it goes in chunks */
    for (int32_t i = 0; work->call.send_counts && i < comm->size; i++) {
        elements += work->call.send_counts[i];
        if (work->call.receive_counts && work->call.receive_counts[i] > limit - elements)
            elements = limit + 1;
    }
    if (elements <= limit) return TCC_OK;
    return tcc_fail(TCC_UNSUPPORTED, "more than %lld bytes in one operation over %s: divide it",
                    (long long)most_bytes, comm->engine->name);
}

/* Begins the ranks' agreement on the operation. Data moves when all ranks agree. */
tcc_status tcc_engine_begin(tcc_comm *of, const tcc_comm_work *work) {
    engine_comm *comm = of->state;
    TCC_RETURN_IF_ERROR(state(comm));
    TCC_RETURN_IF_ERROR(check_size(comm, work));
    comm->work = *work;
    comm->all[comm->rank] = work->descriptor;
    count_equal(comm, sizeof work->descriptor);
    tcc_status begun =
        comm->engine->all_gather(comm->group, comm->all, comm->counts, &comm->saying);
    if (begun != TCC_OK) return failed(comm, "all_gather", begun);
    comm->begun = true;
    return TCC_OK;
}

tcc_status tcc_engine_advance(tcc_comm *of, bool wait, bool *out_done) {
    engine_comm *comm = of->state;
    const tcc_comm_work *work = &comm->work;
    *out_done = wait;
    if (!wait) return TCC_OK;
    TCC_RETURN_IF_ERROR(state(comm));
    TCC_RETURN_IF_ERROR(await(comm, &comm->saying, 1, "all_gather"));
    comm->begun = false;
    TCC_RETURN_IF_ERROR(agree(comm));
    switch (work->call.kind) {
    case TCC_COMM_ALL_REDUCE:
    case TCC_COMM_REDUCE_SCATTER: return run_reduction(comm, work);
    case TCC_COMM_ALL_GATHER:
    case TCC_COMM_ALL_GATHER_V: return all_gather(comm, work);
    case TCC_COMM_ALL_TO_ALL:
    case TCC_COMM_ALL_TO_ALL_V: return all_to_all(comm, work);
    case TCC_COMM_BROADCAST: return broadcast(comm, work);
    default: return TCC_OK; /* the agreement itself is a barrier */
    }
}

/* ---- sends and receives ---------------------------------------------------------------------- */

/* A message: its descriptor and its data. */
typedef struct letter {
    tcc_comm_descriptor descriptor;
    uintptr_t requests[2];
} letter;

static tcc_status post_letter(engine_comm *comm, const tcc_comm_work *work, letter *out) {
    const tcc_comm_engine *engine = comm->engine;
    size_t bytes = (size_t)work->call.count * work->element, header_bytes = sizeof out->descriptor;
    int32_t peer = work->call.root;
    out->descriptor = work->descriptor;
    if (work->call.kind == TCC_COMM_SEND) {
        TCC_RETURN_IF_ERROR(
            engine->send(comm->group, &out->descriptor, header_bytes, peer, HEADER_TAG, &out->requests[0]));
        return engine->send(comm->group, work->send, bytes, peer, DATA_TAG, &out->requests[1]);
    }
    TCC_RETURN_IF_ERROR(
        engine->receive(comm->group, &out->descriptor, header_bytes, peer, HEADER_TAG, &out->requests[0]));
    return engine->receive(comm->group, work->receive, bytes, peer, DATA_TAG, &out->requests[1]);
}

static tcc_status end_letter(engine_comm *comm, const tcc_comm_work *work, letter *of) {
    TCC_RETURN_IF_ERROR(await(comm, of->requests, 1, "a message"));
    if (work->call.kind == TCC_COMM_RECEIVE &&
        (of->descriptor.count != work->call.count || of->descriptor.type != work->type)) {
        char own_text[TCC_COMM_TEXT], other_text[TCC_COMM_TEXT], reason[sizeof comm->reason];
        snprintf(reason, sizeof reason, "ranks differ: rank %d is in %s, rank %d in %s", comm->rank,
                 tcc_comm_text(&work->descriptor, own_text), work->call.root,
                 tcc_comm_text(&of->descriptor, other_text));
        return give_up(comm, TCC_MISMATCH, reason);
    }
    return await(comm, &of->requests[1], 1, "a message");
}

tcc_status tcc_engine_transfer(tcc_comm *of, const tcc_comm_work *works, int32_t n) {
    engine_comm *comm = of->state;
    TCC_RETURN_IF_ERROR(state(comm));
    for (int32_t i = 0; i < n; i++) TCC_RETURN_IF_ERROR(check_size(comm, &works[i]));
    letter *letters = tcc_allocate_zero((size_t)n, sizeof *letters);
    if (!letters) return TCC_OUT_OF_MEMORY;
    tcc_status status = TCC_OK;
    for (int32_t i = 0; i < n && status == TCC_OK; i++) {
        status = post_letter(comm, &works[i], &letters[i]);
        if (status != TCC_OK) status = failed(comm, "a message", status);
    }
    for (int32_t i = 0; i < n && status == TCC_OK; i++)
        status = end_letter(comm, &works[i], &letters[i]);
    if (status == TCC_OK) tcc_free(letters); /* after a failure, some are in transit */
    return status;
}

/* ---- opening and closing --------------------------------------------------------------------- */

static void free_comm(engine_comm *comm) {
    tcc_free(comm->scratch);
    tcc_free(comm->counts);
    tcc_free(comm->all);
    tcc_free(comm->matrix);
    tcc_free(comm);
}

void tcc_engine_close(tcc_comm *of) {
    engine_comm *comm = of->state;
    if (comm->begun) (void)give_up(comm, TCC_CANCELLED, "the comm was closed");
    if (!atomic_load(&comm->revoked)) { /* memory and group are in use after a failure */
        if (of->forks == tcc_comm_forks()) comm->engine->close(comm->group);
        free_comm(comm);
    }
    of->state = NULL;
}

static tcc_status exchange_blobs(const tcc_comm_engine_host *of, const void *blob, size_t bytes,
                                 void *out_all) {
    const tcc_engine_host *host = (const tcc_engine_host *)(const void *)of;
    tcc_comm_exchange about = tcc_comm_exchange_of(&host->settings, host->deadline, bytes);
    return tcc_comm_exchange_blobs(&about, blob, out_all);
}

static tcc_status fail_with(tcc_status status, const char *reason) {
    return tcc_fail(status, "%s", reason);
}

/* Makes a comm without its group. */
static tcc_status make(tcc_comm *of, const tcc_comm_engine *engine, engine_comm **out_comm) {
    engine_comm *comm = tcc_allocate_zero(1, sizeof *comm);
    if (!comm) return TCC_OUT_OF_MEMORY;
    size_t n = (size_t)of->size;
    comm->engine = engine;
    comm->size = of->size;
    comm->rank = of->rank;
    comm->patience = of->settings.operation_milliseconds * INT64_C(1000000);
    comm->host = (tcc_engine_host){
        .seen = {sizeof comm->host.seen, of->rank, of->size, of->settings.open_milliseconds,
                 of->settings.operation_milliseconds, exchange_blobs, fail_with},
        .settings = of->settings,
        .deadline = tcc_comm_now() + of->settings.open_milliseconds * INT64_C(1000000),
    };
    comm->counts = tcc_allocate_zero(4 * n, sizeof *comm->counts);
    comm->all = tcc_allocate_zero(n, sizeof *comm->all);
    comm->matrix = tcc_allocate_zero(2 * n * n, sizeof *comm->matrix);
    if (!comm->counts || !comm->all || !comm->matrix) {
        free_comm(comm);
        return TCC_OUT_OF_MEMORY;
    }
    comm->places = comm->counts + n;
    comm->send_counts = comm->places + n;
    comm->send_places = comm->send_counts + n;
    *out_comm = comm;
    return TCC_OK;
}

/* Keeps a comm whose group was made; otherwise frees it. */
static tcc_status keep(tcc_comm *of, engine_comm *comm, tcc_status status) {
    if (status != TCC_OK) {
        free_comm(comm);
        return status;
    }
    of->state = comm;
    of->name = comm->engine->name;
    return TCC_OK;
}

/* Finds which ranks are on this host by asking all ranks, where no launcher says so. */
static tcc_status find_local(tcc_comm *of) {
    engine_comm *comm = of->state;
    tcc_comm_host *hosts = (void *)scratch(comm, (size_t)comm->size * sizeof *hosts);
    if (!hosts) return TCC_OUT_OF_MEMORY;
    tcc_comm_this_host(&hosts[comm->rank]);
    TCC_RETURN_IF_ERROR(gather_equal(comm, hosts, sizeof *hosts));
    int32_t rank, size;
    tcc_comm_count_local(hosts, comm->size, comm->rank, &rank, &size);
    if (of->settings.local_rank < 0) of->settings.local_rank = rank;
    if (of->settings.local_size < 0) of->settings.local_size = size;
    return TCC_OK;
}

tcc_status tcc_engine_open(tcc_comm *of, const tcc_comm_engine *engine) {
    engine_comm *comm;
    TCC_RETURN_IF_ERROR(make(of, engine, &comm));
    TCC_RETURN_IF_ERROR(keep(of, comm, engine->open(&comm->host.seen, &comm->group)));
    int64_t left = comm->host.deadline - tcc_comm_now(); /* time left for opening */
    comm->patience = left > 0 ? left : 1;
    tcc_status status = find_local(of);
    comm->patience = of->settings.operation_milliseconds * INT64_C(1000000);
    if (status != TCC_OK) tcc_engine_close(of);
    return status;
}

tcc_status tcc_engine_group(tcc_comm *above, const int32_t *members, const char *name,
                            tcc_comm *child) {
    engine_comm *parent = above->state, *comm;
    TCC_RETURN_IF_ERROR(state(parent));
    TCC_RETURN_IF_ERROR(make(child, parent->engine, &comm));
    tcc_status status =
        parent->engine->split(parent->group, members, child->size, child->rank, name, &comm->group);
    if (status != TCC_OK) status = failed(parent, "split", status);
    return keep(child, comm, status);
}

tcc_status tcc_engine_error(tcc_comm *comm) { return state(comm->state); }

void tcc_engine_revoke(tcc_comm *comm, tcc_status status, const char *reason) {
    (void)give_up(comm->state, status, reason);
}
