/* Scenarios of faults.c with comms of some ranks. */
#ifndef SUBGROUPS_H
#define SUBGROUPS_H

static const int32_t EVERY_RANK[] = {0, 1, 2, 3};

/* A rank ends before the first operation of a comm that was split, or during the split. */
static void dies_in_split(const setup *ranks) {
    tcc_comm *comm = open_comm(ranks), *half = NULL;
    if (ranks->rank == 3) {
        int32_t color[3] = {1, 0, 3}, all[12];
        CHECK_OK(tcc_comm_all_gather(comm, color, all, 3, i32)); /* when the split begins */
        raise(SIGKILL);
    }
    tcc_status status = tcc_comm_split(comm, ranks->rank % 2, 0, &half);
    if (status == TCC_OK) { /* the even ranks may have met before they learned it */
        CHECK(ranks->rank % 2 == 0, "a comm with a dead rank was made");
        status = tcc_comm_barrier(half);
        tcc_comm_close(half);
    }
    CHECK(status == TCC_OK || status == TCC_PEER_DEAD, "status %d: %s", (int)status,
          tcc_comm_last_error());
    CHECK_FAILS(tcc_comm_barrier(comm), TCC_PEER_DEAD, "rank 3 (pid");
    tcc_comm_close(comm);
}

static void sums_in(tcc_comm *comm, int32_t value, int32_t expected) {
    int32_t sum = 0;
    CHECK_OK(tcc_comm_all_reduce(comm, &value, &sum, 1, i32, TCC_COMM_SUM));
    CHECK(sum == expected, "the sum is %d, not %d", sum, expected);
}

/* Four ranks form rows and columns. Lists keep their order, and equal lists have one comm. */
static void keeps_subgroups(const setup *ranks) {
    static const int32_t rows[2][2] = {{0, 1}, {3, 2}}, columns[2][2] = {{0, 2}, {3, 1}};
    leaks before = {0}, after;
    for (int round = 0; round < 3; round++) {
        tcc_comm *comm = open_comm(ranks), *row, *column, *again;
        int32_t rank = ranks->rank, value = 1 << rank;
        const int32_t *list = rows[rank / 2], *other = columns[rank % 2];
        CHECK_OK(tcc_comm_subgroup(comm, list, 2, &row));
        CHECK_OK(tcc_comm_subgroup(comm, other, 2, &column));
        CHECK_OK(tcc_comm_subgroup(comm, list, 2, &again));
        CHECK(row == again && row != column, "a list has no comm, or two");
        CHECK(tcc_comm_size(row) == 2 && list[tcc_comm_rank(row)] == rank, "another order");
        CHECK(other[tcc_comm_rank(column)] == rank, "another order");
        sums_in(row, value, (1 << list[0]) + (1 << list[1]));
        sums_in(column, value, (1 << other[0]) + (1 << other[1]));
        sums_in(comm, value, 15);
        const int32_t wrong[2] = {rank, 4}, foreign[1] = {(rank + 1) % 4};
        CHECK_FAILS(tcc_comm_subgroup(comm, wrong, 2, &again), TCC_INVALID_ARGUMENT, "rank 4 of a");
        CHECK_FAILS(tcc_comm_subgroup(comm, foreign, 1, &again), TCC_INVALID_ARGUMENT, "own list");
        CHECK_FAILS(tcc_comm_subgroup(comm, NULL, 0, &again), TCC_INVALID_ARGUMENT, "NULL");
        sums_in(comm, value, 15);
        __atomic_add_fetch(reached, 1, __ATOMIC_SEQ_CST);
        while (rank == 3 && __atomic_load_n(reached, __ATOMIC_SEQ_CST) < 4 * (round + 1))
            usleep(100); /* the abort ends the sum of a rank that is still in it */
        if (rank == 3) CHECK_OK(tcc_comm_abort(comm, "no more")); /* rank 3 is not in every list */
        int32_t sum;
        tcc_status status = TCC_OK;
        if (rank != 0) /* each waits for a rank that knows of the abort */
            status = tcc_comm_all_reduce(rank == 1 ? column : row, &value, &sum, 1, i32, TCC_COMM_SUM);
        CHECK(rank == 0 || (status == TCC_CANCELLED && strstr(tcc_comm_last_error(), "no more")),
              "status %d: %s", (int)status, tcc_comm_last_error());
        tcc_comm_close(comm);
        if (round == 0) before = count_leaks();
    }
    after = count_leaks();
    CHECK(after.descriptors == before.descriptors && after.mappings == before.mappings,
          "%d descriptors and %d mappings, then %d and %d", before.descriptors, before.mappings,
          after.descriptors, after.mappings);
}

/* Rank 0 gives a list that differs from those of the other ranks in it. All ranks learn of it,
 * whatever list they gave. */
static void differs_in_subgroup(const setup *ranks) {
    static const int32_t lists[4][2] = {{0, 2}, {0, 1}, {2, 3}, {2, 3}};
    tcc_comm *comm = open_comm(ranks), *group;
    int32_t value = 1, sum;
    tcc_status status = tcc_comm_subgroup(comm, lists[ranks->rank], 2, &group);
    if (status == TCC_OK) { /* ranks 2 and 3 may have met before they learned it */
        CHECK(ranks->rank > 1, "lists that differ met");
        status = tcc_comm_all_reduce(comm, &value, &sum, 1, i32, TCC_COMM_SUM);
    }
    CHECK(status == TCC_MISMATCH && strstr(tcc_comm_last_error(), "gives a subgroup of ranks"),
          "status %d: %s", (int)status, tcc_comm_last_error());
    tcc_comm_close(comm);
}

#endif
