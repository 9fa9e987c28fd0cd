/* Scenarios of faults.c in which ranks make different calls. */
#ifndef DIFFER_H
#define DIFFER_H

static int difference_name;

static tcc_status differing(tcc_comm *comm, bool other) {
    static float x[64], y[64];
    int64_t counts[4] = {1, 2, 3, other ? 5 : 4}, sent[4] = {1, 1, 1, 1},
            received[4] = {1, 1, 1, 1};
    int rank = tcc_comm_rank(comm);
    switch (difference_name) {
    case 0: return tcc_comm_all_reduce(comm, x, y, other ? 9 : 8, f32, TCC_COMM_SUM);
    case 1: return tcc_comm_all_reduce(comm, x, y, 8, other ? i32 : f32, TCC_COMM_SUM);
    case 2: return tcc_comm_all_reduce(comm, x, y, 8, f32, other ? TCC_COMM_MAX : TCC_COMM_SUM);
    case 3: return tcc_comm_broadcast(comm, x, y, 8, f32, other ? 1 : 0);
    case 4:
        return other ? tcc_comm_barrier(comm)
                     : tcc_comm_all_reduce(comm, x, y, 8, f32, TCC_COMM_SUM);
    case 5: return tcc_comm_all_gather_v(comm, x, y, counts, f32);
    case 6:
        if (other) sent[1] = 2;
        return tcc_comm_all_to_all_v(comm, x, y, sent, received, f32);
    default: {
        tcc_status status = TCC_OK;
        if (rank == 1) status = tcc_comm_receive(comm, y, 8, f32, 2);
        if (rank == 2) status = tcc_comm_send(comm, x, 7, f32, 1);
        return status == TCC_OK ? tcc_comm_barrier(comm) : status;
    }
    }
}

static void differ(const setup *ranks) {
    static const char *const texts[][2] = {
        {"all_reduce of 9 f32 by sum", "all_reduce of 8 f32 by sum"},
        {"all_reduce of 8 i32 by sum", "all_reduce of 8 f32 by sum"},
        {"all_reduce of 8 f32 by max", "all_reduce of 8 f32 by sum"},
        {"broadcast of 8 f32 from rank 1", "broadcast of 8 f32 from rank 0"},
        {"in barrier", "all_reduce of 8 f32 by sum"},
        {"all_gather_v of f32 with counts", "rank 2 (pid"},
        {"rank 2 (pid", "sends 2 elements to rank 1 (pid"},
        {"send of 7 f32 to rank 1", "receive of 8 f32 from rank 2"},
    };
    tcc_comm *comm = open_comm(ranks);
    check_sum(comm);
    tcc_status status = differing(comm, ranks->rank == 2);
    const char *text = tcc_comm_last_error();
    bool is_named =
        strstr(text, texts[difference_name][0]) && strstr(text, texts[difference_name][1]);
    CHECK(status == TCC_MISMATCH && is_named && strstr(text, "rank 2 (pid"),
          "difference %d: status %d: %s", difference_name, (int)status, text);
    tcc_comm_close(comm);
}

static void differ_in_place(const setup *ranks) {
    tcc_comm *comm = open_comm(ranks);
    void *memory;
    float other[64] = {0};
    CHECK_OK(tcc_comm_symmetric(comm, 1 << 16, &memory));
    float *x = ranks->rank == 1 ? other : memory;
    CHECK_FAILS(tcc_comm_all_reduce(comm, x, x, 64, f32, TCC_COMM_SUM), TCC_MISMATCH,
                "in the symmetric arena");
    tcc_comm_close(comm);
}

#endif
