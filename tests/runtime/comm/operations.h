/* Random operations whose results are checked. */
#ifndef OPERATIONS_H
#define OPERATIONS_H

#include <time.h>

#include "oracle.h"
#include "ranks.h"

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void nap(double seconds) {
    struct timespec time = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&time, NULL);
}

/* Computes the sum in two operations that are in progress together. */
static tcc_status reduce_started(tcc_comm *comm, const float *send, float *receive, int64_t count) {
    tcc_comm_call call = {.struct_size = sizeof call, .kind = TCC_COMM_ALL_REDUCE,
                          .dtype = dtypes[F32], .count = count / 3};
    uint64_t ticket;
    tcc_status status = tcc_comm_start(comm, &call, send, receive, &ticket);
    call.count = count - count / 3;
    send += count / 3;
    receive += count / 3;
    if (status == TCC_OK) status = tcc_comm_start(comm, &call, send, receive, &ticket);
    return status == TCC_OK ? tcc_comm_wait(comm, ticket) : status;
}

/* Does one random operation; all ranks draw the same.  An error ends the trial. */
static tcc_status operate(tcc_comm *comm, uint64_t draw) {
    int rank = tcc_comm_rank(comm), size = tcc_comm_size(comm), root = (int)(draw % (uint64_t)size);
    int64_t count = (int64_t)(draw >> 8) % (draw & 16 ? 60000 : 500) + 1;
    static float send[8 * 60000], receive[8 * 60000];
    tcc_dtype f32 = dtypes[F32];
    tcc_status status = TCC_OK;
    fill(F32, draw, rank, 0, count, (char *)send);
    switch (draw >> 32 & 3) {
    case 0:
        status = draw & 32 ? reduce_started(comm, send, receive, count)
                           : tcc_comm_all_reduce(comm, send, receive, count, f32, TCC_COMM_SUM);
        break;
    case 1: status = tcc_comm_all_gather(comm, send, receive, count, f32); break;
    case 2: status = tcc_comm_broadcast(comm, send, receive, count, f32, root); break;
    default:
        if (size == 1) return TCC_OK;
        CHECK_OK(tcc_comm_group_start(comm));
        CHECK_OK(tcc_comm_send(comm, send, count, f32, (rank + 1) % size));
        CHECK_OK(tcc_comm_receive(comm, receive, count, f32, (rank + size - 1) % size));
        status = tcc_comm_group_end(comm);
    }
    if (status != TCC_OK) return status;
    for (int64_t i = 0; i < count; i += 1 + count / 50) {
        uint32_t result;
        int from = (draw >> 32 & 3) == 1   ? 0
                   : (draw >> 32 & 3) == 2 ? root
                                           : (rank + size - 1) % size;
        uint64_t expected = (draw >> 32 & 3) == 0 ? reduced(F32, TCC_COMM_SUM, draw, size, i)
                                                  : element_bits(F32, draw, from, i);
        memcpy(&result, &receive[i], 4);
        CHECK(agrees(F32, result, expected), "a wrong result");
    }
    return TCC_OK;
}

#endif
