/* Implements an engine with MPI. */
#include <limits.h>
#include <string.h>

#include "engine.h"
#include "mpi.h"

/* A communicator, with the arrays of a collective, which MPI reads until it is done. */
typedef struct mpi_group {
    const tcc_mpi *mpi;
    tcc_mpi_handle handle;
    int32_t size;
    int *counts, *places, *send_counts, *send_places; /* bytes, by rank */
} mpi_group;

static tcc_status check(const mpi_group *group, const char *call, int code) {
    return code ? tcc_mpi_fail(group->mpi, call, code) : TCC_OK;
}

static void to_int(const size_t *from, int *out, int32_t n) {
    for (int32_t i = 0; i < n; i++) out[i] = (int)from[i];
}

/* Fills `counts`, and `places` one behind another. */
static void line_up(mpi_group *group, const size_t *bytes) {
    to_int(bytes, group->counts, group->size);
    for (int32_t i = 0, place = 0; i < group->size; place += group->counts[i++])
        group->places[i] = place;
}

static tcc_status mpi_all_gather(void *of, void *data, const size_t *bytes,
                                 uintptr_t *out_request) {
    mpi_group *group = of;
    const tcc_mpi *mpi = group->mpi;
    line_up(group, bytes);
    return check(group, "MPI_Iallgatherv",
                 mpi->Iallgatherv(mpi->in_place, 0, mpi->byte, data, group->counts, group->places,
                                  mpi->byte, group->handle, out_request));
}

static tcc_status mpi_all_to_all(void *of, const void *send, const size_t *send_bytes,
                                 const size_t *send_places, void *receive,
                                 const size_t *receive_bytes, uintptr_t *out_request) {
    mpi_group *group = of;
    const tcc_mpi *mpi = group->mpi;
    line_up(group, receive_bytes);
    to_int(send_bytes, group->send_counts, group->size);
    to_int(send_places, group->send_places, group->size);
    return check(group, "MPI_Ialltoallv",
                 mpi->Ialltoallv(send, group->send_counts, group->send_places, mpi->byte, receive,
                                 group->counts, group->places, mpi->byte, group->handle,
                                 out_request));
}

static tcc_status mpi_broadcast(void *of, void *data, size_t bytes, int32_t root,
                                uintptr_t *out_request) {
    const mpi_group *group = of;
    const tcc_mpi *mpi = group->mpi;
    return check(group, "MPI_Ibcast",
                 mpi->Ibcast(data, (int)bytes, mpi->byte, root, group->handle, out_request));
}

static tcc_status mpi_send(void *of, const void *data, size_t bytes, int32_t peer, int32_t tag,
                           uintptr_t *out_request) {
    const mpi_group *group = of;
    const tcc_mpi *mpi = group->mpi;
    return check(group, "MPI_Isend",
                 mpi->Isend(data, (int)bytes, mpi->byte, peer, tag, group->handle, out_request));
}

static tcc_status mpi_receive(void *of, void *data, size_t bytes, int32_t peer, int32_t tag,
                              uintptr_t *out_request) {
    const mpi_group *group = of;
    const tcc_mpi *mpi = group->mpi;
    return check(group, "MPI_Irecv",
                 mpi->Irecv(data, (int)bytes, mpi->byte, peer, tag, group->handle, out_request));
}

static tcc_status mpi_test(void *of, uintptr_t *request, int32_t *out_done) {
    const mpi_group *group = of;
    return check(group, "MPI_Test", group->mpi->Test(request, out_done, group->mpi->ignore));
}

/* ---- groups ---------------------------------------------------------------------------------- */

static void mpi_close(void *of) {
    mpi_group *group = of;
    if (group->handle) (void)group->mpi->Comm_free(&group->handle);
    tcc_free(group->counts);
    tcc_free(group);
}

static void mpi_leave(void *of) {
    (void)of;
    tcc_mpi_stay();
}

static mpi_group *make(const tcc_mpi *mpi, int32_t size) {
    size_t n = (size_t)size;
    mpi_group *group = tcc_allocate_zero(1, sizeof *group);
    if (!group) return NULL;
    *group = (mpi_group){
        .mpi = mpi, .size = size, .counts = tcc_allocate_zero(4 * n, sizeof *group->counts)};
    if (!group->counts) {
        tcc_free(group);
        return NULL;
    }
    group->places = group->counts + n;
    group->send_counts = group->places + n;
    group->send_places = group->send_counts + n;
    return group;
}

/* Keeps a group whose communicator was made with return code `code`, else closes it. */
static tcc_status keep(mpi_group *group, const char *call, int code, void **out_group) {
    if (!code) code = group->mpi->Comm_set_errhandler(group->handle, group->mpi->errors_return);
    if (code) {
        tcc_status status = tcc_mpi_fail(group->mpi, call, code);
        mpi_close(group);
        return status;
    }
    *out_group = group;
    return TCC_OK;
}

static tcc_status check_world(const tcc_comm_engine_host *host, const tcc_mpi *mpi) {
    int rank = -1, size = -1, code = mpi->Comm_rank(mpi->world, &rank);
    if (!code) code = mpi->Comm_size(mpi->world, &size);
    if (code) return tcc_mpi_fail(mpi, "MPI_Comm_size", code);
    if (rank == host->rank && size == host->size) return TCC_OK;
    return tcc_fail(
        TCC_INVALID_ARGUMENT,
        "this process is rank %d of %d, but rank %d of %d in the world of %s: start it by "
        "that library's mpirun",
        host->rank, host->size, rank, size, mpi->name);
}

static tcc_status mpi_open(const tcc_comm_engine_host *host, void **out_group) {
    const tcc_mpi *mpi = tcc_mpi_library();
    if (!mpi) return TCC_UNSUPPORTED;
    TCC_RETURN_IF_ERROR(tcc_mpi_start(mpi));
    TCC_RETURN_IF_ERROR(check_world(host, mpi));
    mpi_group *group = make(mpi, host->size);
    if (!group) return TCC_OUT_OF_MEMORY;
    return keep(group, "MPI_Comm_dup", mpi->Comm_dup(mpi->world, &group->handle), out_group);
}

/* Returns a tag of MPI, which tells apart groups that are made at once. */
static int tag_of(const char *name) {
    uint32_t state = 2166136261u;
    for (; *name; name++) state = (state ^ (uint8_t)*name) * 16777619u;
    return (int)(state & 0x7fff);
}

static tcc_status mpi_split(void *of, const int32_t *members, int32_t n, int32_t self,
                            const char *name, void **out_group) {
    (void)self; /* the communicator's rank order is that of the members */
    const mpi_group *parent = of;
    const tcc_mpi *mpi = parent->mpi;
    mpi_group *group = make(mpi, n);
    if (!group) return TCC_OUT_OF_MEMORY;
    tcc_mpi_handle all = 0, some = 0;
    int code = mpi->Comm_group(parent->handle, &all);
    if (!code) code = mpi->Group_incl(all, n, members, &some);
    if (!code) code = mpi->Comm_create_group(parent->handle, some, tag_of(name), &group->handle);
    if (some) (void)mpi->Group_free(&some);
    if (all) (void)mpi->Group_free(&all);
    return keep(group, "MPI_Comm_create_group", code, out_group);
}

static const tcc_comm_engine engine = {
    .struct_size = sizeof engine,
    .version = TCC_COMM_PLUGIN_VERSION,
    .name = "mpi",
    .most_bytes = INT_MAX, /* the functions that every library has take counts as int */
    .open = mpi_open,
    .split = mpi_split,
    .close = mpi_close,
    .all_gather = mpi_all_gather,
    .all_to_all = mpi_all_to_all,
    .broadcast = mpi_broadcast,
    .send = mpi_send,
    .receive = mpi_receive,
    .test = mpi_test,
    .leave = mpi_leave,
};

static const char *unfit(const tcc_comm_settings *settings) {
    (void)settings;
    return tcc_mpi_library() ? NULL : tcc_last_error();
}

static tcc_status open_comm(tcc_comm *comm, const tcc_comm_settings *settings) {
    (void)settings; /* the comm uses them */
    return tcc_engine_open(comm, &engine);
}

const tcc_comm_backend tcc_comm_backend_mpi = {
    .name = "mpi", .unfit = unfit, .open = open_comm, TCC_ENGINE_FUNCTIONS};
