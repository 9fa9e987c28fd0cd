/* Scenarios of faults.c in which the remaining ranks of a comm go on. */
#ifndef SHRINKS_H
#define SHRINKS_H

static void check_gone(tcc_comm *comm, const int32_t *expected, int32_t n) {
    int32_t ranks[MOST_RANKS], count = -1;
    CHECK_OK(tcc_comm_failed(comm, ranks, MOST_RANKS, &count));
    CHECK(count == n && (!n || !memcmp(ranks, expected, (size_t)n * sizeof *ranks)),
          "%d are gone, not %d", count, n);
    CHECK_OK(tcc_comm_failed(comm, NULL, 0, &count));
    CHECK(count == n, "%d are gone, not %d", count, n);
}

/* Returns the comm of the remaining ranks of `comm`, which it closes. This process must be `rank`
 * of `size` there. */
static tcc_comm *shrunk(tcc_comm *comm, int32_t rank, int32_t size) {
    tcc_comm *remainder = NULL;
    CHECK_OK(tcc_comm_shrink(comm, NULL, 0, &remainder));
    tcc_comm_close(comm);
    CHECK(tcc_comm_rank(remainder) == rank && tcc_comm_size(remainder) == size, "rank %d of %d",
          tcc_comm_rank(remainder), tcc_comm_size(remainder));
    check_sum(remainder);
    return remainder;
}

static void wait_for(long count) {
    while (__atomic_load_n(reached, __ATOMIC_SEQ_CST) < count) usleep(100);
}

static void reach(void) { __atomic_add_fetch(reached, 1, __ATOMIC_SEQ_CST); }

/* Rank 0 and another rank end at once. The others need not know of both before. */
static void two_die(const setup *ranks) {
    static const int32_t dead[] = {0, 3};
    tcc_comm *comm = open_comm(ranks);
    check_gone(comm, NULL, 0);
    check_sum(comm);
    if (ranks->rank == 0 || ranks->rank == 3) raise(SIGKILL);
    CHECK_FAILS(tcc_comm_barrier(comm), TCC_PEER_DEAD, "ended; seen by rank");
    tcc_comm *remainder = NULL;
    CHECK_OK(tcc_comm_shrink(comm, NULL, 0, &remainder));
    check_gone(comm, dead, 2);
    check_gone(remainder, NULL, 0);
    int32_t rank = ranks->rank < 3 ? ranks->rank - 1 : ranks->rank - 2;
    CHECK(tcc_comm_size(remainder) == 3 && tcc_comm_rank(remainder) == rank, "rank %d of %d",
          tcc_comm_rank(remainder), tcc_comm_size(remainder));
    check_sum(remainder);
    tcc_comm_close(remainder);
    CHECK_FAILS(tcc_comm_barrier(comm), TCC_PEER_DEAD, "ended; seen by rank");
    tcc_comm_close(comm);
}

/* The second rank ends while the others wait for it in shrink. */
static void dies_in_shrink(const setup *ranks) {
    tcc_comm *comm = open_comm(ranks);
    check_sum(comm);
    if (ranks->rank == 1) raise(SIGKILL);
    CHECK_FAILS(tcc_comm_barrier(comm), TCC_PEER_DEAD, "rank 1 (pid");
    if (ranks->rank == 3) wait_for(2), raise(SIGKILL);
    reach();
    tcc_comm_close(shrunk(comm, ranks->rank ? 1 : 0, 2));
}

/* Ranks end one after another, until one is left. Names do not grow with the number of comms. */
static void dies_again_and_again(const setup *ranks) {
    tcc_comm *comm = open_comm(ranks);
    for (int32_t next = 0; next < ranks->size - 1; next++) {
        check_sum(comm);
        if (ranks->rank == next) raise(SIGKILL);
        CHECK_FAILS(tcc_comm_barrier(comm), TCC_PEER_DEAD, "rank 0 (pid");
        comm = shrunk(comm, ranks->rank - next - 1, ranks->size - next - 1);
    }
    tcc_comm_close(comm);
}

/* No rank is gone: both comms can be used, and so can comms made from the new one. */
static void shrinks_whole(const setup *ranks) {
    tcc_comm *comm = open_comm(ranks), *all = NULL, *half = NULL;
    for (int i = 0; i < 3; i++) {
        CHECK_OK(tcc_comm_shrink(comm, NULL, 0, &all));
        check_sum(comm);
        check_sum(all);
        for (int k = 0; k < 12; k++) all = shrunk(all, ranks->rank, ranks->size);
        CHECK_OK(tcc_comm_split(all, ranks->rank % 2, 0, &half));
        check_sum(half);
        tcc_comm_close(half);
        tcc_comm_close(all);
    }
    tcc_comm_close(comm);
}

/* A rank that has closed the comm counts as gone, and lives on. */
static void closes_and_shrinks(const setup *ranks) {
    static const int32_t gone[] = {1};
    tcc_comm *comm = open_comm(ranks);
    check_sum(comm);
    if (ranks->rank == 1) {
        tcc_comm_close(comm);
        wait_for(2);
        return;
    }
    CHECK_FAILS(tcc_comm_barrier(comm), TCC_MISMATCH, "rank 1 (pid");
    check_gone(comm, gone, 1);
    comm = shrunk(comm, ranks->rank / 2, 2);
    reach();
    tcc_comm_close(comm);
}

/* Opens a comm whose ranks wait for one another only a moment. */
static tcc_comm *open_impatient(setup ranks) {
    ranks.open_milliseconds = 500;
    return open_comm(&ranks);
}

/* Rank 2 lives, and one rank leaves it out. Then two ranks leave out each other, and at most one of
 * them goes on. */
static void leaves_out(const setup *ranks) {
    const int32_t rank = ranks->rank, two = 2, other = 1 - rank;
    tcc_comm *comm = open_impatient(*ranks), *remainder = NULL, *alone = NULL;
    check_sum(comm);
    if (rank == 2) {
        CHECK_FAILS(tcc_comm_shrink(comm, NULL, 0, &remainder), TCC_MISMATCH, "leaves out rank 2");
        wait_for(2);
        CHECK_FAILS(tcc_comm_shrink(comm, NULL, 0, &remainder), TCC_MISMATCH, "leaves out rank 2");
        tcc_comm_close(comm);
        return;
    }
    CHECK_OK(tcc_comm_shrink(comm, &two, rank == 0, &remainder));
    CHECK(tcc_comm_size(remainder) == 2 && tcc_comm_rank(remainder) == rank, "another comm");
    check_sum(remainder);
    reach();
    tcc_status status = tcc_comm_shrink(remainder, &other, 1, &alone);
    if (status != TCC_OK)
        CHECK(status == TCC_MISMATCH && strstr(tcc_comm_last_error(), "leaves out rank"), "%s",
              tcc_comm_last_error());
    if (status == TCC_OK) reach();
    check_sum(remainder);
    CHECK(__atomic_load_n(reached, __ATOMIC_SEQ_CST) <= 3, "both ranks go on, each alone");
    tcc_comm_close(alone);
    tcc_comm_close(remainder);
    tcc_comm_close(comm);
}

/* A rank that was left out comes after the others have gone on and closed the comm. */
static void comes_left_out(const setup *ranks) {
    const int32_t two = 2;
    tcc_comm *comm = open_comm(ranks), *remainder = NULL;
    check_sum(comm);
    if (ranks->rank == 2) {
        wait_for(2);
        CHECK_FAILS(tcc_comm_shrink(comm, NULL, 0, &remainder), TCC_MISMATCH, "leaves out rank 2");
    } else {
        CHECK_OK(tcc_comm_shrink(comm, &two, 1, &remainder));
        check_sum(remainder);
        tcc_comm_close(remainder);
    }
    tcc_comm_close(comm);
    reach();
}

/* A rank comes too late. The others report it, and try again with it. */
static void shrinks_late(const setup *ranks) {
    tcc_comm *comm = open_impatient(*ranks), *remainder = NULL;
    check_sum(comm);
    if (ranks->rank == 2) {
        wait_for(2);
    } else {
        CHECK_FAILS(tcc_comm_shrink(comm, NULL, 0, &remainder), TCC_TIMEOUT, "did not come in time: ");
        CHECK(strstr(tcc_comm_last_error(), "rank 2 (pid"), "%s", tcc_comm_last_error());
        reach();
        wait_for(2);
    }
    CHECK(!remainder, "a comm is made");
    tcc_comm_close(shrunk(comm, ranks->rank, 3));
}

#endif
