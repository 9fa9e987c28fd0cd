/* Scenarios of faults.c with comms and memory that are kept beyond a close. */
#ifndef KEPT_H
#define KEPT_H

#define CHECK_CLOSED(call) CHECK_FAILS(call, TCC_INVALID_ARGUMENT, "the comm is closed")

static void check_closed(tcc_comm *comm) {
    int32_t x[4] = {0}, self = 0;
    void *memory;
    tcc_comm *other;
    tcc_comm_memory *mapping;
    tcc_comm_device *device;
    uint64_t ticket;
    tcc_comm_plan *plan;
    const tcc_comm_call call = {.struct_size = sizeof call, .kind = TCC_COMM_ALL_REDUCE,
                                .dtype = i32, .count = 1};
    CHECK_CLOSED(tcc_comm_all_reduce(comm, x, x, 1, i32, TCC_COMM_SUM));
    CHECK_CLOSED(tcc_comm_send(comm, x, 1, i32, 0));
    CHECK_CLOSED(tcc_comm_group_start(comm));
    CHECK_CLOSED(tcc_comm_group_end(comm));
    CHECK_CLOSED(tcc_comm_start(comm, &call, x, x, &ticket));
    CHECK_CLOSED(tcc_comm_wait(comm, 1));
    CHECK_CLOSED(tcc_comm_plan_make(comm, &call, &plan));
    CHECK_CLOSED(tcc_comm_split(comm, 0, 0, &other));
    CHECK_CLOSED(tcc_comm_subgroup(comm, &self, 1, &other));
    CHECK_CLOSED(tcc_comm_shrink(comm, &self, 0, &other));
    CHECK_CLOSED(tcc_comm_symmetric(comm, 1, &memory));
    CHECK_CLOSED(tcc_comm_scratch(comm, 1, &memory));
    CHECK_CLOSED(tcc_comm_memory_keep(comm, x, &mapping));
    CHECK_CLOSED(tcc_comm_device_open(comm, 2, &device));
    CHECK_CLOSED(tcc_comm_abort(comm, "late"));
    CHECK_CLOSED(tcc_comm_error(comm));
    CHECK_CLOSED(tcc_comm_share(comm));
    CHECK(tcc_comm_size(comm) == 2 && tcc_comm_rank(comm) >= 0, "the comm is another");
    tcc_comm_close(comm); /* a second close does nothing */
}

/* Keeps a shared comm, its subgroup, a plan, and memory that was replaced by a larger one. */
static void outlives_close(const setup *ranks) {
    for (int round = 0; round < 2; round++) { /* the second comm may have the first comm's
                                                 address */
        tcc_comm *comm = open_comm(ranks), *group;
        const int32_t members[] = {0, 1};
        int32_t x = ranks->rank + 1, sum = 0;
        const tcc_comm_call call = {.struct_size = sizeof call, .kind = TCC_COMM_ALL_REDUCE,
                                    .dtype = i32, .count = 1};
        void *first, *small, *large;
        tcc_comm_memory *memories[3], *none;
        tcc_comm_plan *plan;
        CHECK_OK(tcc_comm_share(comm));
        CHECK_OK(tcc_comm_subgroup(comm, members, 2, &group));
        CHECK_OK(tcc_comm_plan_make(group, &call, &plan));
        CHECK_OK(tcc_comm_plan_post(plan, &x, &sum));
        CHECK(sum == 3, "the sum is %d", sum);
        CHECK_OK(tcc_comm_symmetric(comm, 1000, &first));
        CHECK_OK(tcc_comm_memory_keep(comm, (char *)first + 999, &memories[0]));
        CHECK_OK(tcc_comm_scratch(comm, 1000, &small));
        CHECK_OK(tcc_comm_memory_keep(comm, small, &memories[1]));
        CHECK_OK(tcc_comm_scratch(comm, 1 << 20, &large));
        CHECK_OK(tcc_comm_memory_keep(comm, large, &memories[2]));
        CHECK_FAILS(tcc_comm_memory_keep(comm, small, &none), TCC_INVALID_ARGUMENT, "no memory");
        CHECK_OK(tcc_comm_memory_keep(comm, large, &none)); /* kept twice */
        CHECK_OK(tcc_comm_keep(group));
        tcc_comm_close(comm);
        CHECK(tcc_comm_shared() == NULL, "a closed comm is shared");
        check_closed(comm);
        check_closed(group);
        CHECK_CLOSED(tcc_comm_plan_post(plan, &x, &sum));
        memset(first, round, 1000);
        memset(small, round, 1000);
        memset(large, round, 1 << 20);
        tcc_comm_memory_drop(memories[0]);
        tcc_comm_memory_drop(memories[1]);
        tcc_comm_memory_drop(memories[2]);
        memset(large, round, 1 << 20);
        tcc_comm_memory_drop(none);
        tcc_comm_drop(group);
        CHECK_CLOSED(tcc_comm_plan_post(plan, &x, &sum));
        tcc_comm_plan_free(plan);
    }
}

typedef struct waiter {
    tcc_comm *comm;
    _Atomic int begun, ended;
    tcc_status status;
} waiter;

static void *wait_in_vain(void *of) {
    waiter *self = of;
    self->begun = 1;
    self->status = tcc_comm_barrier(self->comm);
    self->ended = 1;
    return NULL;
}

/* Rank 0 closes while another of its threads waits for rank 1 in an operation, until its
 * deadline. */
static void closes_in_call(const setup *ranks) {
    tcc_comm *comm = open_comm(ranks);
    check_sum(comm);
    if (ranks->rank == 0) {
        waiter other_caller = {.comm = comm};
        pthread_t thread;
        CHECK_OK(tcc_comm_keep(comm));
        pthread_create(&thread, NULL, wait_in_vain, &other_caller);
        while (!other_caller.begun) usleep(100);
        tcc_comm_close(comm);
        int ended = other_caller.ended; /* or it was refused, and has not reported it yet */
        pthread_join(thread, NULL);
        CHECK((ended && other_caller.status == TCC_TIMEOUT) || other_caller.status == TCC_INVALID_ARGUMENT,
              "status %d", (int)other_caller.status);
        tcc_comm_drop(comm);
        __atomic_store_n(reached, 1, __ATOMIC_SEQ_CST);
    } else {
        while (!__atomic_load_n(reached, __ATOMIC_SEQ_CST)) usleep(1000);
        tcc_comm_close(comm);
    }
}

#endif
