/* Makes a comm of the ranks that remain after failures. */
#include "comm.h"

tcc_status tcc_comm_failed(tcc_comm *comm, int32_t *out_ranks, int32_t room, int32_t *out_count) {
    TCC_RETURN_IF_ERROR(tcc_comm_usable(comm));
    if (!out_count || room < 0 || (room > 0 && !out_ranks))
        return tcc_fail(TCC_INVALID_ARGUMENT, "failed: a pointer is NULL, or room is negative");
    if (!comm->backend->failed)
        return tcc_fail(TCC_UNSUPPORTED,
                        "the backend %s cannot tell which ranks are dead: ask what started them",
                        comm->backend->name);
    bool *gone = tcc_allocate_zero((size_t)comm->size, sizeof *gone);
    if (!gone) return TCC_OUT_OF_MEMORY;
    if (!tcc_comm_visit(comm)) {
        tcc_free(gone);
        return tcc_comm_refuse_closed(comm);
    }
    comm->backend->failed(comm, gone);
    tcc_comm_visit_end(comm);
    int32_t count = 0;
    for (int32_t i = 0; i < comm->size; i++) {
        if (!gone[i]) continue;
        if (count < room) out_ranks[count] = i;
        count++;
    }
    tcc_free(gone);
    *out_count = count;
    return TCC_OK;
}

/* Sets flags by rank from the list `excluded`. */
static tcc_status read_excluded(const tcc_comm *comm, const int32_t *excluded, int32_t n,
                                bool *out) {
    for (int32_t i = 0; i < n; i++) {
        if (excluded[i] < 0 || excluded[i] >= comm->size)
            return tcc_fail(TCC_INVALID_ARGUMENT, "shrink: rank %d of a comm of %d ranks",
                            excluded[i], comm->size);
        out[excluded[i]] = true;
    }
    if (out[comm->rank])
        return tcc_fail(TCC_INVALID_ARGUMENT, "shrink: rank %d excludes itself", comm->rank);
    return TCC_OK;
}

static tcc_status make_child(tcc_comm *comm, const bool *excluded, tcc_comm **out_comm) {
    tcc_comm *child = tcc_comm_make(&comm->settings, comm->rank, comm->size);
    if (!child) return TCC_OUT_OF_MEMORY;
    child->backend = comm->backend;
    tcc_status status = comm->backend->shrink(comm, excluded, child);
    if (status != TCC_OK)
        tcc_comm_drop(child);
    else
        *out_comm = child;
    return status;
}

static tcc_status shrink(tcc_comm *comm, const int32_t *excluded, int32_t n, tcc_comm **out_comm) {
    if (!comm->backend->shrink)
        return tcc_fail(TCC_UNSUPPORTED,
                        "the backend %s cannot shrink a comm: start the job again, or open a comm "
                        "of the ranks that are left with a higher epoch",
                        comm->backend->name);
    bool *out = tcc_allocate_zero((size_t)comm->size, sizeof *out);
    if (!out) return TCC_OUT_OF_MEMORY;
    tcc_status status = read_excluded(comm, excluded, n, out);
    if (status == TCC_OK) status = make_child(comm, out, out_comm);
    tcc_free(out);
    return status;
}

tcc_status tcc_comm_shrink(tcc_comm *comm, const int32_t *excluded, int32_t n,
                           tcc_comm **out_comm) {
    if (!out_comm || n < 0 || (n > 0 && !excluded))
        return tcc_fail(TCC_INVALID_ARGUMENT, "shrink: a pointer is NULL, or n is negative");
    *out_comm = NULL;
    TCC_RETURN_IF_ERROR(tcc_comm_enter(comm));
    return tcc_comm_leave_with(comm, shrink(comm, excluded, n, out_comm), out_comm);
}
