/* A scenario of faults.c with symmetric memory for runs of artifacts. */
#ifndef SCRATCH_H
#define SCRATCH_H

/* Sums in memory that grows, over the sent data and beside it, and compares with the results
 * through slots. */
static void reduces_in_scratch(const setup *ranks) {
    static const size_t rooms[] = {40000, 30000, 1 << 20, 100000, 3 << 20, 1};
    static int32_t x[1 << 16], expected[1 << 16];
    tcc_comm *comm = open_comm(ranks);
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++) {
        void *memory;
        CHECK_OK(tcc_comm_scratch(comm, rooms[i], &memory));
        memset(memory, 0x55, rooms[i]);
        int32_t *send = memory, max_count = (int32_t)(rooms[i] / 8);
        for (int32_t count = max_count / 64; count && count <= max_count && count < 1 << 16; count *= 7) {
            int32_t *receive = send + (count % 2 ? 0 : count);
            for (int32_t k = 0; k < count; k++) x[k] = send[k] = k * (ranks->rank + 1) + count;
            CHECK_OK(tcc_comm_all_reduce(comm, x, expected, count, i32, TCC_COMM_SUM));
            CHECK_OK(tcc_comm_all_reduce(comm, send, receive, count, i32, TCC_COMM_SUM));
            CHECK(memcmp(receive, expected, (size_t)count * 4) == 0, "a wrong sum of %d", count);
            if (receive != send) CHECK(memcmp(send, x, (size_t)count * 4) == 0, "an operand changed");
        }
    }
    void *memory;
    CHECK_FAILS(tcc_comm_scratch(comm, 0, &memory), TCC_INVALID_ARGUMENT, "no bytes");
    CHECK_FAILS(tcc_comm_scratch(comm, SIZE_MAX, &memory), TCC_INVALID_ARGUMENT, "too many");
    tcc_status status = tcc_comm_scratch(comm, ranks->rank ? 5 << 20 : 1, &memory);
    if (!ranks->rank) status = tcc_comm_all_reduce(comm, memory, memory, 1, i32, TCC_COMM_SUM);
    CHECK(status == TCC_MISMATCH && strstr(tcc_comm_last_error(), "all_gather of 1 i64"),
          "status %d: %s", (int)status, tcc_comm_last_error());
    tcc_comm_close(comm);
}

#endif
