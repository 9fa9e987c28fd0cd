/* Scenarios of faults.c in which calls to the system fail. */
#ifndef BROKEN_H
#define BROKEN_H

#include <stdbool.h>

#include "../failing.h"

static int failing_rank, every = 1;
static bool is_smaller; /* the last try ended because a comm lost a rank */

/* Does the ranks' common work: opens a comm, makes memory, splits, shrinks, and reduces. */
static tcc_status try_all(const setup *ranks, int epoch) {
    tcc_comm *comm = NULL, *half = NULL, *group = NULL, *remainder = NULL;
    void *memory;
    tcc_comm_config config = config_of(ranks);
    config.epoch = epoch;
    tcc_status status = tcc_comm_open(&config, &comm);
    int32_t value = 1, sum = 0;
    if (status == TCC_OK) status = tcc_comm_symmetric(comm, 8192, &memory);
    if (status == TCC_OK) status = tcc_comm_split(comm, 0, 0, &half);
    if (status == TCC_OK) status = tcc_comm_subgroup(comm, EVERY_RANK, ranks->size, &group);
    if (status == TCC_OK) status = tcc_comm_shrink(comm, NULL, 0, &remainder);
    /* A rank closed the comm before: no call failed, so there is no reason. */
    is_smaller = remainder && tcc_comm_size(remainder) < ranks->size;
    if (is_smaller) status = TCC_PEER_DEAD;
    if (status == TCC_OK)
        status = tcc_comm_all_reduce(epoch % 2 ? half : group, &value, &sum, 1, i32, TCC_COMM_SUM);
    if (status == TCC_OK)
        CHECK(sum == ranks->size, "the sum is %d", sum);
    else if (comm)
        (void)tcc_comm_abort(comm, "another try");
    tcc_comm_close(remainder);
    tcc_comm_close(half);
    tcc_comm_close(comm);
    return status;
}

/* Tries until it works. In the first try the n-th call of one rank fails, with `fail_on` also all
 * calls after it. */
static void fails_somewhere(const setup *ranks) {
    for (int i = 1; i < 4000; i += every) {
        leaks before = count_leaks(), after;
        long calls = 0;
        bool fails = ranks->rank == failing_rank;
        for (int tries = 0;; tries++) {
            CHECK(tries < 100, "call %d of rank %d: no open works: %s", i, failing_rank,
                  tcc_comm_last_error());
            fail_calls = 0;
            fail_at = fails && !tries ? i : 0;
            tcc_status status = try_all(ranks, i);
            if (fail_at) calls = fail_calls;
            fail_at = 0;
            if (status == TCC_OK) break;
            CHECK(is_smaller || *tcc_comm_last_error(), "no reason");
        }
        if (fails) *reached = calls >= i;
        tcc_comm *comm = open_comm(ranks); /* all ranks see the flag */
        check_sum(comm);
        bool ends = !*reached;
        check_sum(comm);
        tcc_comm_close(comm);
        after = count_leaks();
        CHECK(after.descriptors == before.descriptors &&
                  (i == 1 || after.mappings == before.mappings),
              "call %d of rank %d: %d descriptors and %d mappings, then %d and %d", i, failing_rank,
              before.descriptors, before.mappings, after.descriptors, after.mappings);
        if (ends) {
            CHECK(i > 20, "only %d calls were tried", i);
            if (fails) printf("rank %d: %d calls\n", failing_rank, i - 1);
            fflush(stdout);
            return;
        }
    }
    CHECK(false, "there is no end of calls");
}

#endif
