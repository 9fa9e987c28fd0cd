/* Runs RANKS ranks as a user without privileges and with a system's usual limits.
 *
 *     crowded RANKS [USER]
 *
 * All open a comm, sum, split in halves and sum there, take symmetric memory and sum in it.  Every
 * rank becomes USER first.  Prints "ok". */
#define _GNU_SOURCE
#include <grp.h>
#include <sys/resource.h>

#define MOST_RANKS 64
#include "ranks.h"

static const tcc_dtype i32 = {0, 32, 1};

static void check_sum(tcc_comm *comm, int32_t *send, int32_t *sum) {
    int32_t n = tcc_comm_size(comm);
    *send = tcc_comm_rank(comm) + 1;
    CHECK_OK(tcc_comm_all_reduce(comm, send, sum, 1, i32, TCC_COMM_SUM));
    CHECK(*sum == n * (n + 1) / 2, "the sum of %d ranks is %d", n, *sum);
}

static void meet(const setup *ranks) {
    tcc_comm *comm, *half;
    tcc_comm_config config = config_of(ranks);
    int32_t send, sum;
    void *memory;
    CHECK_OK(tcc_comm_open(&config, &comm));
    check_sum(comm, &send, &sum);
    CHECK_OK(tcc_comm_split(comm, ranks->rank % 2, 0, &half));
    check_sum(half, &send, &sum);
    CHECK_OK(tcc_comm_symmetric(comm, 1 << 16, &memory));
    check_sum(comm, memory, (int32_t *)memory + 64);
    tcc_comm_close(half);
    tcc_comm_close(comm);
}

static void limit(__rlimit_resource_t resource, rlim_t maximum) {
    struct rlimit both = {maximum, maximum};
    CHECK(!setrlimit(resource, &both), "setrlimit: %s", strerror(errno));
}

int main(int argc, char **argv) {
    setup ranks = {.name = own_name("crowded"), .open_milliseconds = 60000};
    ranks.size = argc > 1 ? atoi(argv[1]) : 2;
    CHECK(ranks.size <= MOST_RANKS, "at most %d ranks", MOST_RANKS);
    /* fewer ranks send fewer descriptors, so a lower limit makes them reach the limit of untaken
     * descriptors, too */
    limit(RLIMIT_NOFILE, ranks.size < MOST_RANKS ? 64 : 1024);
    limit(RLIMIT_MEMLOCK, 8 << 20);
    limit(RLIMIT_STACK, 8 << 20);
    if (argc > 2) {
        gid_t group = (gid_t)atoi(argv[2]);
        limit(RLIMIT_NPROC, 256);
        CHECK(!setgroups(0, NULL) && !setresgid(group, group, group) && !setresuid(group, group, group),
              "no other user: %s", strerror(errno));
    }
    run_ranks(ranks, meet);
    puts("ok");
    return 0;
}
