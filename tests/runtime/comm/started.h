/* Scenarios of faults.c with operations that were started and not waited for. */
#ifndef STARTED_H
#define STARTED_H

static tcc_status try_to_start(tcc_comm *comm, const int32_t *x, int32_t *sum, int64_t count,
                               uint64_t *out_ticket) {
    const tcc_comm_call call = {.struct_size = sizeof call, .kind = TCC_COMM_ALL_REDUCE,
                                .dtype = i32, .count = count};
    return tcc_comm_start(comm, &call, x, sum, out_ticket);
}

static uint64_t start_sum(tcc_comm *comm, const int32_t *x, int32_t *sum, int64_t count) {
    uint64_t ticket = 0;
    CHECK_OK(try_to_start(comm, x, sum, count, &ticket));
    return ticket;
}

/* Rank 0 continues after its start, and the others end the operation without it. */
static void starts(const setup *ranks) {
    tcc_comm *comm = open_comm(ranks), *beside;
    static int32_t x[2][1 << 17], sum[2][1 << 17];
    CHECK_OK(tcc_comm_split(comm, 0, 0, &beside));
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 1 << 17; k++) x[i][k] = i + k + ranks->rank;
    if (ranks->rank == 0) {
        uint64_t small = start_sum(comm, x[0], sum[0], 100), large;
        CHECK_OK(tcc_comm_barrier(beside)); /* the others have passed the first operation */
        large = start_sum(comm, x[1], sum[1], 1 << 17);
        CHECK(sum[0][99] == 2 * 99 + 1, "what can be done was not done");
        CHECK_OK(tcc_comm_barrier(beside)); /* the others have begun the second operation, or
                                               will */
        CHECK_OK(tcc_comm_wait(comm, large));
        CHECK_OK(tcc_comm_wait(comm, small));
    } else {
        CHECK_OK(tcc_comm_all_reduce(comm, x[0], sum[0], 100, i32, TCC_COMM_SUM));
        CHECK_OK(tcc_comm_barrier(beside));
        CHECK_OK(tcc_comm_barrier(beside));
        CHECK_OK(tcc_comm_all_reduce(comm, x[1], sum[1], 1 << 17, i32, TCC_COMM_SUM));
    }
    for (int k = 0; k < 100; k++) CHECK(sum[0][k] == 2 * k + 1, "a wrong sum");
    for (int k = 0; k < 1 << 17; k++) CHECK(sum[1][k] == 2 * k + 3, "a wrong sum");
    tcc_comm_close(beside);
    tcc_comm_close(comm);
}

static void dies_after_start(const setup *ranks) {
    tcc_comm *comm = open_comm(ranks);
    static int32_t x[1 << 18], sum[1 << 18];
    uint64_t small = start_sum(comm, x, sum, 100);
    if (ranks->rank == 1) raise(SIGKILL);
    uint64_t large = 0;
    tcc_status status = try_to_start(comm, x, sum + 100, (1 << 18) - 100, &large);
    CHECK_OK(tcc_comm_wait(comm, small)); /* its part was handed over */
    /* otherwise another rank saw it first */
    if (status == TCC_OK) status = tcc_comm_wait(comm, large);
    CHECK(status == TCC_PEER_DEAD, "status %d: %s", (int)status, tcc_comm_last_error());
    if (large) CHECK_FAILS(tcc_comm_wait(comm, large), TCC_PEER_DEAD, "rank 1 (pid");
    CHECK_FAILS(tcc_comm_barrier(comm), TCC_PEER_DEAD, "rank 1 (pid");
    tcc_comm_close(comm);
}

/* After an abort the buffers are the caller's again, even if all ranks have come. */
static void aborts_after_start(const setup *ranks) {
    tcc_comm *comm = open_comm(ranks);
    int32_t *x = calloc(100, sizeof *x), *sum = malloc(100 * sizeof *sum);
    uint64_t ticket;
    tcc_status status = try_to_start(comm, x, sum, 100, &ticket);
    if (ranks->rank) { /* rank 0 may have aborted before */
        if (status == TCC_OK) status = tcc_comm_wait(comm, ticket);
        CHECK(status == TCC_OK || status == TCC_CANCELLED, "status %d", (int)status);
        CHECK_FAILS(tcc_comm_barrier(comm), TCC_CANCELLED, "enough");
    } else {
        CHECK_OK(status);
        CHECK_OK(tcc_comm_abort(comm, "enough"));
    }
    free(x);
    free(sum);
    if (!ranks->rank) CHECK_FAILS(tcc_comm_wait(comm, ticket), TCC_CANCELLED, "enough");
    CHECK_FAILS(tcc_comm_barrier(comm), TCC_CANCELLED, "enough");
    tcc_comm_close(comm);
}

/* A rank that started an operation leaves. Operations that all ranks have begun still end. */
static void closes_after_start(const setup *ranks) {
    tcc_comm *comm = open_comm(ranks);
    int32_t x = ranks->rank + 1, sum = 0, gathered[4] = {0};
    uint64_t ticket = start_sum(comm, &x, &sum, 1);
    if (ranks->rank) {
        CHECK_OK(tcc_comm_wait(comm, ticket));
        CHECK(sum == 6, "the sum is %d", sum);
        CHECK_FAILS(tcc_comm_all_gather(comm, &x, gathered, 1, i32), TCC_MISMATCH, "rank 0 (pid");
    }
    tcc_comm_close(comm);
}

#endif
