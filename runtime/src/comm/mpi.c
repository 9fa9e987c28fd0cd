/* Comms over MPI, which moves bytes only: reductions are done here, in the order of ranks. */
#define _GNU_SOURCE
#include <limits.h>
#include <sched.h>
#include <string.h>

#include "mpi.h"

enum {
    SMALL = 8 << 10,  /* bytes of an all_reduce up to which all ranks get all data */
    CHUNK = 32 << 20, /* bytes of a reduction at once, which bounds its memory */
    HEADER_TAG = 1,
    DATA_TAG = 2,
};

typedef struct mpi_comm {
    const tcc_mpi *mpi;
    tcc_mpi_handle handle;
    int32_t size, rank;
    int64_t patience;         /* nanoseconds */
    _Atomic uint32_t revoked; /* 0, 1 while the reason is written, or 2 + status */
    char reason[512];
    int *counts, *places, *send_counts, *send_places; /* bytes, by rank */
    tcc_comm_descriptor *all;                         /* of an operation, by rank */
    int64_t *matrix; /* of an all_to_all_v: what each rank sends, then what it expects */
    tcc_comm_work work;         /* that has begun: ranks say what they are in */
    tcc_mpi_handle saying;
    bool begun;
    char *scratch;
    size_t room;
} mpi_comm;

/* ---- failure --------------------------------------------------------------------------------- */

static tcc_status state(mpi_comm *comm) {
    uint32_t revoked = atomic_load(&comm->revoked);
    if (revoked < 2) return TCC_OK;
    return tcc_fail((tcc_status)(revoked - 2), "%s", comm->reason);
}

/* What is on its way cannot be called back: memory that it needs stays. */
static tcc_status give_up(mpi_comm *comm, tcc_status status, const char *reason) {
    uint32_t before = 0;
    if (atomic_compare_exchange_strong(&comm->revoked, &before, 1)) {
        snprintf(comm->reason, sizeof comm->reason, "%s", reason);
        atomic_store(&comm->revoked, 2 + (uint32_t)status);
        tcc_mpi_stay();
    }
    return state(comm);
}

static tcc_status failed(mpi_comm *comm, const char *what, int code) {
    tcc_status status = tcc_mpi_fail(comm->mpi, what, code);
    char reason[sizeof comm->reason];
    snprintf(reason, sizeof reason, "%s", tcc_last_error());
    return give_up(comm, status, reason);
}

/* Waits for requests; in time, or the comm is revoked. */
static tcc_status await(mpi_comm *comm, tcc_mpi_handle *requests, int32_t n, const char *what) {
    int64_t deadline = tcc_comm_now() + comm->patience;
    for (int32_t first = 0, looks = 1; first < n; looks++) {
        int done = 0, code = comm->mpi->Test(&requests[first], &done, comm->mpi->ignore);
        if (code) return failed(comm, what, code);
        if (done) {
            first++;
            continue;
        }
        if (looks % 64) continue;
        TCC_RETURN_IF_ERROR(state(comm));
        if (tcc_comm_now() > deadline) {
            char reason[160];
            snprintf(reason, sizeof reason, "%s: rank %d waited %lld ms in vain for other ranks",
                     what, comm->rank, (long long)(comm->patience / 1000000));
            return give_up(comm, TCC_TIMEOUT, reason);
        }
        sched_yield(); /* there may be more ranks than CPUs */
    }
    return TCC_OK;
}

static tcc_status await_one(mpi_comm *comm, int code, tcc_mpi_handle *request, const char *what) {
    return code ? failed(comm, what, code) : await(comm, request, 1, what);
}

/* ---- movement -------------------------------------------------------------------------------- */

/* `places` from `counts`, both of bytes. */
static void line_up(const int *counts, int *places, int32_t n) {
    for (int32_t i = 0, place = 0; i < n; place += counts[i++]) places[i] = place;
}

/* At least `bytes` bytes, valid until the next call. */
static char *scratch(mpi_comm *comm, size_t bytes) {
    if (bytes <= comm->room && comm->scratch) return comm->scratch;
    tcc_free(comm->scratch);
    comm->scratch = tcc_allocate(bytes);
    comm->room = comm->scratch ? bytes : 0;
    return comm->scratch;
}

/* Every rank's part of `receive`, by `counts`; this rank's own is there already. */
static int begin_gather(mpi_comm *comm, void *receive, tcc_mpi_handle *request) {
    const tcc_mpi *mpi = comm->mpi;
    line_up(comm->counts, comm->places, comm->size);
    return mpi->Iallgatherv(mpi->in_place, 0, mpi->byte, receive, comm->counts, comm->places,
                            mpi->byte, comm->handle, request);
}

static tcc_status gather(mpi_comm *comm, void *receive) {
    tcc_mpi_handle request = 0;
    int code = begin_gather(comm, receive, &request);
    return await_one(comm, code, &request, "all_gather");
}

static void count_equal(mpi_comm *comm, size_t bytes) {
    for (int32_t i = 0; i < comm->size; i++) comm->counts[i] = (int)bytes;
}

/* Equal parts of all ranks. */
static tcc_status gather_equal(mpi_comm *comm, void *receive, size_t bytes) {
    count_equal(comm, bytes);
    return gather(comm, receive);
}

/* By `send_counts`, `send_places` and `counts`; what is received lies one behind another. */
static tcc_status exchange(mpi_comm *comm, const void *send, void *receive) {
    const tcc_mpi *mpi = comm->mpi;
    tcc_mpi_handle request = 0;
    line_up(comm->counts, comm->places, comm->size);
    int code = mpi->Ialltoallv(send, comm->send_counts, comm->send_places, mpi->byte, receive,
                               comm->counts, comm->places, mpi->byte, comm->handle, &request);
    return await_one(comm, code, &request, "all_to_all");
}

/* ---- agreement ------------------------------------------------------------------------------- */

/* Whether all ranks have said that they are in the same operation. */
static tcc_status agree(mpi_comm *comm) {
    for (int32_t i = 1; i < comm->size; i++) {
        if (memcmp(&comm->all[0], &comm->all[i], sizeof comm->all[0]) == 0) continue;
        char first[TCC_COMM_TEXT], other[TCC_COMM_TEXT], reason[sizeof comm->reason];
        snprintf(reason, sizeof reason, "ranks differ: rank 0 is in %s, rank %d in %s",
                 tcc_comm_text(&comm->all[0], first), i, tcc_comm_text(&comm->all[i], other));
        return give_up(comm, TCC_MISMATCH, reason);
    }
    return TCC_OK;
}

/* All ranks look at all counts, so that all of them fail where two do not fit. */
static tcc_status agree_on_counts(mpi_comm *comm, const tcc_comm_call *call) {
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
static void reduce_pieces(const mpi_comm *comm, const tcc_comm_work *work, const char *pieces,
                          int64_t count, void *out, const void **inputs) {
    for (int32_t i = 0; i < comm->size; i++)
        inputs[i] = pieces + (size_t)i * (size_t)count * work->element;
    tcc_comm_reduce(out, inputs, comm->size, count, work->type, work->call.reduction);
}

/* All data to all ranks. */
static tcc_status reduce_small(mpi_comm *comm, const tcc_comm_work *work, const void **inputs) {
    size_t bytes = (size_t)work->call.count * work->element;
    char *pieces = scratch(comm, bytes * (size_t)comm->size);
    if (!pieces) return TCC_OUT_OF_MEMORY;
    if (bytes) memcpy(pieces + (size_t)comm->rank * bytes, work->send, bytes);
    TCC_RETURN_IF_ERROR(gather_equal(comm, pieces, bytes));
    reduce_pieces(comm, work, pieces, work->call.count, work->receive, inputs);
    return TCC_OK;
}

/* Every rank reduces its part of a chunk, then gets all parts. */
static tcc_status reduce_chunk(mpi_comm *comm, const tcc_comm_work *work, int64_t begin,
                               int64_t count, const void **inputs) {
    size_t element = work->element, n = (size_t)comm->size;
    int64_t part = (count + comm->size - 1) / comm->size, own = 0;
    char *pieces = scratch(comm, (size_t)part * element * n), *out = work->receive;
    if (!pieces) return TCC_OUT_OF_MEMORY;
    for (int32_t i = 0; i < comm->size; i++) {
        int64_t first = i * part < count ? i * part : count;
        int64_t last = first + part < count ? first + part : count;
        comm->send_counts[i] = (int)((size_t)(last - first) * element);
        if (i == comm->rank) own = last - first;
    }
    for (int32_t i = 0; i < comm->size; i++) comm->counts[i] = comm->send_counts[comm->rank];
    line_up(comm->send_counts, comm->send_places, comm->size);
    TCC_RETURN_IF_ERROR(exchange(comm, work->send + (size_t)begin * element, pieces));
    out += (size_t)begin * element;
    reduce_pieces(comm, work, pieces, own, out + comm->send_places[comm->rank], inputs);
    memcpy(comm->counts, comm->send_counts, n * sizeof *comm->counts);
    return gather(comm, out);
}

static tcc_status all_reduce(mpi_comm *comm, const tcc_comm_work *work, const void **inputs) {
    int64_t total = work->call.count, most = CHUNK / (int64_t)work->element;
    if ((size_t)total * work->element <= SMALL) return reduce_small(comm, work, inputs);
    for (int64_t begin = 0; begin < total; begin += most) {
        int64_t count = total - begin < most ? total - begin : most;
        TCC_RETURN_IF_ERROR(reduce_chunk(comm, work, begin, count, inputs));
    }
    return TCC_OK;
}

static tcc_status reduce_scatter(mpi_comm *comm, const tcc_comm_work *work, const void **inputs) {
    int64_t total = work->call.count, most = CHUNK / (int64_t)work->element / comm->size + 1;
    for (int64_t begin = 0; begin < total; begin += most) {
        int64_t count = total - begin < most ? total - begin : most;
        size_t bytes = (size_t)count * work->element;
        char *pieces = scratch(comm, bytes * (size_t)comm->size);
        if (!pieces) return TCC_OUT_OF_MEMORY;
        for (int32_t i = 0; i < comm->size; i++) {
            comm->send_counts[i] = comm->counts[i] = (int)bytes;
            comm->send_places[i] = (int)((size_t)(i * total) * work->element);
        }
        TCC_RETURN_IF_ERROR(exchange(comm, work->send + (size_t)begin * work->element, pieces));
        reduce_pieces(comm, work, pieces, count, work->receive + (size_t)begin * work->element,
                      inputs);
    }
    return TCC_OK;
}

static tcc_status run_reduction(mpi_comm *comm, const tcc_comm_work *work) {
    const void **inputs = tcc_allocate((size_t)comm->size * sizeof *inputs);
    if (!inputs) return TCC_OUT_OF_MEMORY;
    tcc_status status = work->call.kind == TCC_COMM_ALL_REDUCE ? all_reduce(comm, work, inputs)
                                                               : reduce_scatter(comm, work, inputs);
    tcc_free((void *)inputs);
    return status;
}

/* ---- the other operations -------------------------------------------------------------------- */

static tcc_status all_gather(mpi_comm *comm, const tcc_comm_work *work) {
    bool ragged = work->call.kind == TCC_COMM_ALL_GATHER_V;
    for (int32_t i = 0; i < comm->size; i++) {
        int64_t count = ragged ? work->call.send_counts[i] : work->call.count;
        comm->counts[i] = (int)((size_t)count * work->element);
    }
    line_up(comm->counts, comm->places, comm->size);
    char *own = work->receive + comm->places[comm->rank];
    if (comm->counts[comm->rank] && own != work->send)
        memcpy(own, work->send, (size_t)comm->counts[comm->rank]);
    return gather(comm, work->receive);
}

static tcc_status all_to_all(mpi_comm *comm, const tcc_comm_work *work) {
    bool ragged = work->call.kind == TCC_COMM_ALL_TO_ALL_V;
    if (ragged) TCC_RETURN_IF_ERROR(agree_on_counts(comm, &work->call));
    for (int32_t i = 0; i < comm->size; i++) {
        int64_t sent = ragged ? work->call.send_counts[i] : work->call.count;
        int64_t received = ragged ? work->call.receive_counts[i] : work->call.count;
        comm->send_counts[i] = (int)((size_t)sent * work->element);
        comm->counts[i] = (int)((size_t)received * work->element);
    }
    line_up(comm->send_counts, comm->send_places, comm->size);
    if (work->send != work->receive) return exchange(comm, work->send, work->receive);
    size_t bytes = (size_t)work->call.count * work->element * (size_t)comm->size;
    char *copy = scratch(comm, bytes);
    if (!copy) return TCC_OUT_OF_MEMORY;
    if (bytes) memcpy(copy, work->send, bytes);
    return exchange(comm, copy, work->receive);
}

static tcc_status broadcast(mpi_comm *comm, const tcc_comm_work *work) {
    size_t bytes = (size_t)work->call.count * work->element;
    tcc_mpi_handle request = 0;
    if (work->call.root == comm->rank && bytes && work->send != work->receive)
        memcpy(work->receive, work->send, bytes);
    int code = comm->mpi->Ibcast(work->receive, (int)bytes, comm->mpi->byte, work->call.root,
                                 comm->handle, &request);
    return await_one(comm, code, &request, "broadcast");
}

/* MPI's functions that every library has count bytes in an int. */
static tcc_status check_size(const mpi_comm *comm, const tcc_comm_work *work) {
    int64_t elements = work->call.count, most = INT_MAX / (int64_t)work->element;
    if (work->call.kind != TCC_COMM_ALL_REDUCE && work->call.kind != TCC_COMM_BROADCAST &&
        !tcc_comm_is_transfer(work->call.kind))
        elements = elements > most ? most + 1 : elements * comm->size;
    if (work->call.kind == TCC_COMM_ALL_REDUCE) elements = 0; /* it goes by chunks */
    for (int32_t i = 0; work->call.send_counts && i < comm->size; i++) {
        elements += work->call.send_counts[i];
        if (work->call.receive_counts && work->call.receive_counts[i] > most - elements)
            elements = most + 1;
    }
    if (elements <= most) return TCC_OK;
    return tcc_fail(TCC_UNSUPPORTED, "more than 2 GiB in one operation over MPI: divide it");
}

/* Ranks say what they are in; data move when all have. */
static tcc_status mpi_begin(tcc_comm *of, const tcc_comm_work *work) {
    mpi_comm *comm = of->state;
    TCC_RETURN_IF_ERROR(state(comm));
    TCC_RETURN_IF_ERROR(check_size(comm, work));
    comm->work = *work;
    comm->all[comm->rank] = work->descriptor;
    count_equal(comm, sizeof work->descriptor);
    int code = begin_gather(comm, comm->all, &comm->saying);
    if (code) return failed(comm, "all_gather", code);
    comm->begun = true;
    return TCC_OK;
}

static tcc_status mpi_advance(tcc_comm *of, bool wait, bool *out_done) {
    mpi_comm *comm = of->state;
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
    default: return TCC_OK; /* to agree on a barrier is one */
    }
}

/* ---- sends and receives ---------------------------------------------------------------------- */

/* Each message is its descriptor and its data. */
typedef struct letter {
    tcc_comm_descriptor said;
    tcc_mpi_handle requests[2];
} letter;

static int post_letter(mpi_comm *comm, const tcc_comm_work *work, letter *out) {
    const tcc_mpi *mpi = comm->mpi;
    int bytes = (int)((size_t)work->call.count * work->element), peer = work->call.root, code;
    out->said = work->descriptor;
    if (work->call.kind == TCC_COMM_SEND) {
        code = mpi->Isend(&out->said, sizeof out->said, mpi->byte, peer, HEADER_TAG, comm->handle,
                          &out->requests[0]);
        return code ? code
                    : mpi->Isend(work->send, bytes, mpi->byte, peer, DATA_TAG, comm->handle,
                                 &out->requests[1]);
    }
    code = mpi->Irecv(&out->said, sizeof out->said, mpi->byte, peer, HEADER_TAG, comm->handle,
                      &out->requests[0]);
    return code ? code
                : mpi->Irecv(work->receive, bytes, mpi->byte, peer, DATA_TAG, comm->handle,
                             &out->requests[1]);
}

static tcc_status end_letter(mpi_comm *comm, const tcc_comm_work *work, letter *of) {
    TCC_RETURN_IF_ERROR(await(comm, of->requests, 1, "a message"));
    if (work->call.kind == TCC_COMM_RECEIVE &&
        (of->said.count != work->call.count || of->said.type != work->type)) {
        char own[TCC_COMM_TEXT], other[TCC_COMM_TEXT], reason[sizeof comm->reason];
        snprintf(reason, sizeof reason, "ranks differ: rank %d is in %s, rank %d in %s", comm->rank,
                 tcc_comm_text(&work->descriptor, own), work->call.root,
                 tcc_comm_text(&of->said, other));
        return give_up(comm, TCC_MISMATCH, reason);
    }
    return await(comm, &of->requests[1], 1, "a message");
}

static tcc_status mpi_transfer(tcc_comm *of, const tcc_comm_work *works, int32_t n) {
    mpi_comm *comm = of->state;
    TCC_RETURN_IF_ERROR(state(comm));
    for (int32_t i = 0; i < n; i++) TCC_RETURN_IF_ERROR(check_size(comm, &works[i]));
    letter *letters = tcc_allocate_zero((size_t)n, sizeof *letters);
    if (!letters) return TCC_OUT_OF_MEMORY;
    tcc_status status = TCC_OK;
    for (int32_t i = 0; i < n && status == TCC_OK; i++) {
        int code = post_letter(comm, &works[i], &letters[i]);
        if (code) status = failed(comm, "a message", code);
    }
    for (int32_t i = 0; i < n && status == TCC_OK; i++)
        status = end_letter(comm, &works[i], &letters[i]);
    if (status == TCC_OK) tcc_free(letters); /* else some are on their way */
    return status;
}

/* ---- opening and closing --------------------------------------------------------------------- */

static void mpi_close(tcc_comm *of) {
    mpi_comm *comm = of->state;
    if (comm->begun) (void)give_up(comm, TCC_CANCELLED, "the comm was closed");
    if (!atomic_load(&comm->revoked)) { /* else memory and communicator are in use */
        if (comm->handle && of->forks == tcc_comm_forks())
            (void)comm->mpi->Comm_free(&comm->handle);
        tcc_free(comm->scratch);
        tcc_free(comm->counts);
        tcc_free(comm->all);
        tcc_free(comm->matrix);
        tcc_free(comm);
    }
    of->state = NULL;
}

static tcc_status make(tcc_comm *of, const tcc_mpi *mpi, mpi_comm **out_comm) {
    mpi_comm *comm = tcc_allocate_zero(1, sizeof *comm);
    if (!comm) return TCC_OUT_OF_MEMORY;
    size_t n = (size_t)of->size;
    of->state = comm;
    comm->mpi = mpi;
    comm->size = of->size;
    comm->rank = of->rank;
    comm->patience = of->settings.operation_milliseconds * INT64_C(1000000);
    comm->counts = tcc_allocate_zero(4 * n, sizeof *comm->counts);
    comm->all = tcc_allocate_zero(n, sizeof *comm->all);
    comm->matrix = tcc_allocate_zero(2 * n * n, sizeof *comm->matrix);
    if (!comm->counts || !comm->all || !comm->matrix) {
        mpi_close(of);
        return TCC_OUT_OF_MEMORY;
    }
    comm->places = comm->counts + n;
    comm->send_counts = comm->places + n;
    comm->send_places = comm->send_counts + n;
    *out_comm = comm;
    return TCC_OK;
}

static const char *mpi_unfit(const tcc_comm_settings *settings) {
    (void)settings;
    return tcc_mpi_library() ? NULL : tcc_last_error();
}

static tcc_status check_world(tcc_comm *comm, const tcc_mpi *mpi) {
    int rank = -1, size = -1, code = mpi->Comm_rank(mpi->world, &rank);
    if (!code) code = mpi->Comm_size(mpi->world, &size);
    if (code) return tcc_mpi_fail(mpi, "MPI_Comm_size", code);
    if (rank == comm->rank && size == comm->size) return TCC_OK;
    return tcc_fail(
        TCC_INVALID_ARGUMENT,
        "this process is rank %d of %d, but rank %d of %d in the world of %s: start it by "
        "that library's mpirun",
        comm->rank, comm->size, rank, size, mpi->name);
}

static tcc_status mpi_open(tcc_comm *of, const tcc_comm_settings *settings) {
    (void)settings;
    mpi_comm *comm;
    const tcc_mpi *mpi = tcc_mpi_library();
    if (!mpi) return TCC_UNSUPPORTED;
    TCC_RETURN_IF_ERROR(tcc_mpi_start(mpi));
    TCC_RETURN_IF_ERROR(check_world(of, mpi));
    TCC_RETURN_IF_ERROR(make(of, mpi, &comm));
    int code = mpi->Comm_dup(mpi->world, &comm->handle);
    if (!code) code = mpi->Comm_set_errhandler(comm->handle, mpi->errors_return);
    if (!code) return TCC_OK;
    tcc_status status = tcc_mpi_fail(mpi, "MPI_Comm_dup", code);
    mpi_close(of);
    return status;
}

/* A tag of MPI, which tells groups apart that are made at once. */
static int tag_of(const char *name) {
    uint32_t state = 2166136261u;
    for (; *name; name++) state = (state ^ (uint8_t)*name) * 16777619u;
    return (int)(state & 0x7fff);
}

static tcc_status mpi_group(tcc_comm *above, const int32_t *members, bool left, const char *name,
                            tcc_comm *child) {
    (void)left;
    mpi_comm *parent = above->state, *comm;
    const tcc_mpi *mpi = parent->mpi;
    TCC_RETURN_IF_ERROR(state(parent));
    TCC_RETURN_IF_ERROR(make(child, mpi, &comm));
    tcc_mpi_handle all = 0, some = 0;
    int code = mpi->Comm_group(parent->handle, &all);
    if (!code) code = mpi->Group_incl(all, child->size, members, &some);
    if (!code) code = mpi->Comm_create_group(parent->handle, some, tag_of(name), &comm->handle);
    if (!code) code = mpi->Comm_set_errhandler(comm->handle, mpi->errors_return);
    if (some) (void)mpi->Group_free(&some);
    if (all) (void)mpi->Group_free(&all);
    if (!code) return TCC_OK;
    tcc_status status = failed(parent, "MPI_Comm_create_group", code);
    mpi_close(child);
    return status;
}

static tcc_status mpi_error(tcc_comm *comm) { return state(comm->state); }

static void mpi_revoke(tcc_comm *comm, tcc_status status, const char *reason) {
    (void)give_up(comm->state, status, reason);
}

const tcc_comm_backend tcc_comm_backend_mpi = {
    .name = "mpi",
    .unfit = mpi_unfit,
    .open = mpi_open,
    .group = mpi_group,
    .begin = mpi_begin,
    .advance = mpi_advance,
    .transfer = mpi_transfer,
    .error = mpi_error,
    .revoke = mpi_revoke,
    .close = mpi_close,
};
