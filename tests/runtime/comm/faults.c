/* Makes ranks fail, one scenario per run.  Every living rank must get a status with a reason, in
 * time, and nothing may be left behind.
 *
 *     faults SCENARIO
 *
 * With failing.c, and -DWRAPPED, system calls can be made to fail. */
#include <pthread.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

#include "leaks.h"
#include "ranks.h"

static const tcc_dtype f32 = {2, 32, 1}, i32 = {0, 32, 1};

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Checks that the call fails with this status, and that its reason contains this text. */
#define CHECK_FAILS(call, expected, text)                                                          \
    do {                                                                                           \
        tcc_status status_of_call = (call);                                                        \
        CHECK(status_of_call == (expected) && strstr(tcc_comm_last_error(), text),                 \
              "%s: status %d: %s, not %d: ...%s...", #call, (int)status_of_call,                   \
              tcc_comm_last_error(), (int)(expected), text);                                       \
    } while (0)

static tcc_comm *open_comm(const setup *ranks) {
    tcc_comm *comm;
    tcc_comm_config config = config_of(ranks);
    CHECK_OK(tcc_comm_open(&config, &comm));
    return comm;
}

static void check_sum(tcc_comm *comm) {
    int32_t value = tcc_comm_rank(comm) + 1, n = tcc_comm_size(comm), sum = 0;
    CHECK_OK(tcc_comm_all_reduce(comm, &value, &sum, 1, i32, TCC_COMM_SUM));
    CHECK(sum == n * (n + 1) / 2, "the sum is %d", sum);
}

/* Runs the ranks.  Those in the bit set `dead` end by a signal. */
static void run_with_deaths(setup ranks, rank_main *run, int dead) {
    pid_t pids[MOST_RANKS];
    int status, bad = 0;
    start_ranks(ranks, run, pids);
    for (int i = 0; i < ranks.size; i++) {
        waitpid(pids[i], &status, 0);
        bad |= dead >> i & 1 ? !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL : status != 0;
    }
    if (bad) exit(1);
}

/* ---- deaths ---------------------------------------------------------------------------------- */

static void dies_in_operation(const setup *ranks) {
    tcc_comm *comm = open_comm(ranks);
    check_sum(comm);
    if (ranks->rank == 1) raise(SIGKILL);
    double began = now();
    CHECK_FAILS(tcc_comm_barrier(comm), TCC_PEER_DEAD, "rank 1 (pid");
    CHECK(now() - began < 5, "it took %f s", now() - began);
    CHECK_FAILS(tcc_comm_barrier(comm), TCC_PEER_DEAD, "rank 1 (pid");
    CHECK_FAILS(tcc_comm_error(comm), TCC_PEER_DEAD, "rank 1 (pid");
    tcc_comm *remainder = NULL;
    int32_t dead = 1;
    CHECK_OK(tcc_comm_shrink(comm, &dead, 1, &remainder));
    tcc_comm_close(comm);
    CHECK(tcc_comm_size(remainder) == 3 && tcc_comm_rank(remainder) == (ranks->rank ? ranks->rank - 1 : 0),
          "rank %d of %d", tcc_comm_rank(remainder), tcc_comm_size(remainder));
    check_sum(remainder);
    tcc_comm_close(remainder);
}

static void dies_before_open(const setup *ranks) {
    if (ranks->rank == 2) {
        struct timespec moment = {0, 30000000};
        nanosleep(&moment, NULL);
        raise(SIGKILL);
    }
    tcc_comm *comm;
    tcc_comm_config config = config_of(ranks);
    config.open_milliseconds = ranks->rank ? 20000 : 400;
    CHECK_FAILS(tcc_comm_open(&config, &comm), TCC_TIMEOUT, "in time: 2");
}

static void *kill_soon(void *unused) {
    struct timespec moment = {0, 150000000};
    nanosleep(&moment, NULL);
    raise(SIGKILL);
    return unused;
}

/* Rank 1 greets, and ends. */
static void dies_while_opening(const setup *ranks) {
    tcc_comm *comm;
    tcc_comm_config config = config_of(ranks);
    if (ranks->rank == 2) return; /* it never comes, and the others do not wait for it */
    if (ranks->rank == 1) {
        pthread_t thread;
        pthread_create(&thread, NULL, kill_soon, NULL);
    }
    CHECK_FAILS(tcc_comm_open(&config, &comm), TCC_PEER_DEAD, "rank 1 (pid");
}

static void dies_in_group(const setup *ranks) {
    tcc_comm *comm = open_comm(ranks), *half = NULL;
    CHECK_OK(tcc_comm_split(comm, ranks->rank % 2, 0, &half));
    check_sum(comm);
    if (ranks->rank == 3) raise(SIGKILL);
    if (ranks->rank == 1)
        CHECK_FAILS(tcc_comm_barrier(half), TCC_PEER_DEAD, "rank 1 (pid");
    else
        check_sum(half);
    tcc_comm_close(half);
    tcc_comm_close(comm);
}

static void dies_sending(const setup *ranks) {
    tcc_comm *comm = open_comm(ranks);
    static char data[1 << 20];
    tcc_dtype u8 = {1, 8, 1};
    if (ranks->rank == 1) raise(SIGKILL);
    if (ranks->rank == 0)
        CHECK_FAILS(tcc_comm_send(comm, data, sizeof data, u8, 1), TCC_PEER_DEAD, "rank 1 (pid");
    else
        CHECK_FAILS(tcc_comm_receive(comm, data, sizeof data, u8, 1), TCC_PEER_DEAD, "rank 1 (pid");
    tcc_comm_close(comm);
}

static long *reached; /* shared by all processes: whether, or how often, a rank reached a certain
                         point */

static void stops(const setup *ranks) {
    tcc_comm *comm = open_comm(ranks);
    check_sum(comm);
    if (ranks->rank == 1) {
        raise(SIGSTOP);
        __atomic_store_n(reached, 1, __ATOMIC_SEQ_CST);
        CHECK_FAILS(tcc_comm_barrier(comm), TCC_TIMEOUT, "rank 1 (pid");
    } else {
        CHECK_FAILS(tcc_comm_barrier(comm), TCC_TIMEOUT, "did not come within 200 ms");
        while (!ranks->rank && !__atomic_load_n(reached, __ATOMIC_SEQ_CST))
            kill(0, SIGCONT), usleep(1000); /* it may stop late */
    }
    tcc_comm_close(comm);
}

static void closes_early(const setup *ranks) {
    tcc_comm *comm = open_comm(ranks);
    if (ranks->rank != 1) CHECK_FAILS(tcc_comm_barrier(comm), TCC_MISMATCH, "rank 1 (pid");
    tcc_comm_close(comm);
}

static void *abort_soon(void *comm) {
    struct timespec moment = {0, 20000000};
    nanosleep(&moment, NULL);
    CHECK_OK(tcc_comm_abort(comm, "the request was withdrawn"));
    return NULL;
}

static void aborts(const setup *ranks) {
    tcc_comm *comm = open_comm(ranks);
    pthread_t thread;
    if (ranks->rank == 0) {
        pthread_create(&thread, NULL, abort_soon, comm);
        pthread_join(thread, NULL);
    } else {
        CHECK_FAILS(tcc_comm_barrier(comm), TCC_CANCELLED, "the request was withdrawn");
    }
    CHECK_FAILS(tcc_comm_error(comm), TCC_CANCELLED, "the request was withdrawn");
    tcc_comm_close(comm);
}

#include "scratch.h"
#include "kept.h"
#include "shrinks.h"
#include "started.h"
#include "subgroups.h"
#include "differ.h"
#ifdef WRAPPED
#include "broken.h"
#endif

/* ---- opening --------------------------------------------------------------------------------- */

static void refused(const setup *ranks) {
    tcc_comm *comm;
    tcc_comm_config config = config_of(ranks);
    config.epoch = 4;
    config.token = "secret";
    if (ranks->rank == 1) {
        tcc_comm_config wrong = config;
        wrong.token = "secreT"; /* ranks with another secret meet elsewhere */
        wrong.open_milliseconds = 50;
        CHECK_FAILS(tcc_comm_open(&wrong, &comm), TCC_TIMEOUT, "is the TCC_TOKEN of all ranks");
        wrong = config;
        wrong.epoch = 3;
        CHECK_FAILS(tcc_comm_open(&wrong, &comm), TCC_INVALID_ARGUMENT,
                    "epoch 3 is over: rank 0 (pid");
    }
    CHECK_OK(tcc_comm_open(&config, &comm)); /* the strangers did not disturb the others */
    check_sum(comm);
    tcc_comm_close(comm);
}

/* Rank 0 has an old epoch; the others wait for the new one.  It is repeated many times, because a
 * rank may have greeted rank 0 and sent nothing more when it learns that its epoch is over. */
static void outlived(const setup *ranks) {
    for (int32_t epoch = 8; epoch < 100; epoch += 2) {
        tcc_comm *comm;
        tcc_comm_config config = config_of(ranks);
        config.epoch = epoch;
        if (ranks->rank == 0) {
            tcc_comm_config old = config;
            old.epoch = epoch - 1;
            CHECK_FAILS(tcc_comm_open(&old, &comm), TCC_INVALID_ARGUMENT, "is over: rank");
        }
        CHECK_OK(tcc_comm_open(&config, &comm));
        check_sum(comm);
        tcc_comm_close(comm);
    }
}

static void wrong_size(const setup *ranks) {
    tcc_comm *comm;
    tcc_comm_config config = config_of(ranks);
    config.open_milliseconds = 400;
    if (ranks->rank == 3) config.size = 5;
    tcc_status status = tcc_comm_open(&config, &comm);
    bool late = ranks->rank % 3 && status == TCC_TIMEOUT; /* rank 0 knew before this rank came */
    CHECK(late || (status == TCC_MISMATCH && strstr(tcc_comm_last_error(), "rank 3 (pid")),
          "status %d: %s", (int)status, tcc_comm_last_error());
}

static void same_rank(const setup *ranks) {
    tcc_comm *comm;
    tcc_comm_config config = config_of(ranks);
    config.open_milliseconds = 400;
    if (ranks->rank == 3) config.rank = 2; /* two ranks 2 and no rank 3 */
    tcc_status status = tcc_comm_open(&config, &comm);
    const char *text = tcc_comm_last_error();
    bool is_refused = status == TCC_INVALID_ARGUMENT && strstr(text, "another process has it");
    bool gone = status == TCC_TIMEOUT || status == TCC_PEER_DEAD;
    CHECK(is_refused || (gone && (ranks->rank || strstr(text, ": 3"))), "status %d: %s", (int)status,
          text);
}

static void forks(const setup *ranks) {
    tcc_comm *comm = open_comm(ranks);
    check_sum(comm);
    pid_t child = fork();
    if (child == 0) {
        CHECK_FAILS(tcc_comm_barrier(comm), TCC_INVALID_ARGUMENT, "this process was forked");
        tcc_comm_close(comm);
        setup setting = *ranks;
        char name[64];
        snprintf(name, sizeof name, "%s-of-children", ranks->name);
        setting.name = name;
        comm = open_comm(&setting);
        check_sum(comm);
        tcc_comm_close(comm);
        exit(0);
    }
    int status;
    check_sum(comm);
    waitpid(child, &status, 0);
    CHECK(status == 0, "the child failed");
    check_sum(comm);
    tcc_comm_close(comm);
}

static void cycles(const setup *ranks) {
    leaks before = {0}, after;
    for (int i = 0; i < 60; i++) {
        tcc_comm *comm = open_comm(ranks), *half;
        void *memory;
        check_sum(comm);
        if (i % 8 == 0) {
            CHECK_OK(tcc_comm_split(comm, ranks->rank / 2, -ranks->rank, &half));
            CHECK_OK(tcc_comm_symmetric(half, 5000, &memory));
            check_sum(half);
            tcc_comm_close(half);
        }
        tcc_comm_close(comm);
        if (i == 0) before = count_leaks();
    }
    after = count_leaks();
    CHECK(after.descriptors == before.descriptors && after.mappings == before.mappings,
          "%d descriptors and %d mappings, then %d and %d", before.descriptors, before.mappings,
          after.descriptors, after.mappings);
}

static void small_files(const setup *ranks) {
    struct rlimit limit = {4096, 4096}, old;
    tcc_comm *comm;
    getrlimit(RLIMIT_FSIZE, &old);
    limit.rlim_max = old.rlim_max;
    tcc_comm_config config = config_of(ranks);
    setrlimit(RLIMIT_FSIZE, &limit);
    CHECK_FAILS(tcc_comm_open(&config, &comm), TCC_SYSTEM, "a memory file of");
    setrlimit(RLIMIT_FSIZE, &old);
    CHECK_OK(tcc_comm_open(&config, &comm));
    check_sum(comm);
    tcc_comm_close(comm);
}

/* Does all operations with a few bytes, for sanitizers; `matrix` checks the results. */
static void operates(const setup *ranks) {
    tcc_comm *comm = open_comm(ranks);
    enum { COUNT = 100000 };
    static char x[3 * COUNT], y[3 * COUNT];
    int64_t counts[3] = {COUNT, 1, 0}, own_count = counts[ranks->rank];
    int64_t sent[3] = {own_count, own_count, own_count};
    static const tcc_dtype dtypes[] = {{2, 16, 1}, {4, 16, 1}, {0, 8, 1}, {1, 8, 1}};
    for (int type = 0; type < 4; type++)
        for (int by = 0; by < 5; by++) {
            tcc_comm_reduction reduction = (tcc_comm_reduction)by;
            int64_t count = COUNT / 2 - by;
            CHECK_OK(tcc_comm_all_reduce(comm, x + 1, y, count, dtypes[type], reduction));
            CHECK_OK(tcc_comm_reduce_scatter(comm, x, y + 1, count / 3, dtypes[type], reduction));
        }
    tcc_dtype u8 = {1, 8, 1};
    CHECK_OK(tcc_comm_all_gather(comm, x, y, COUNT, u8));
    CHECK_OK(tcc_comm_all_gather_v(comm, x, y, counts, u8));
    CHECK_OK(tcc_comm_all_to_all(comm, x, x, COUNT, u8));
    CHECK_OK(tcc_comm_all_to_all_v(comm, x, y, sent, counts, u8));
    CHECK_OK(tcc_comm_broadcast(comm, x, y, COUNT, u8, 2));
    CHECK_OK(tcc_comm_group_start(comm));
    for (int i = 0; i < 20; i++) {
        CHECK_OK(tcc_comm_send(comm, x, COUNT, u8, (ranks->rank + 1) % 3));
        CHECK_OK(tcc_comm_receive(comm, y, COUNT, u8, (ranks->rank + 2) % 3));
    }
    CHECK_OK(tcc_comm_group_end(comm));
    tcc_comm_close(comm);
}

static void unfit(const setup *ranks) {
    tcc_comm *comm;
    tcc_comm_config config = config_of(ranks);
    config.rendezvous = "";
    CHECK_FAILS(tcc_comm_open(&config, &comm), TCC_UNSUPPORTED, "set TCC_RENDEZVOUS");
    config = config_of(ranks);
    config.size = 65;
    CHECK_FAILS(tcc_comm_open(&config, &comm), TCC_UNSUPPORTED, "at most 64 ranks");
    config.local_rank = 0;
    config.local_size = config.size = 2;
    config.size = 3;
    CHECK_FAILS(tcc_comm_open(&config, &comm), TCC_UNSUPPORTED, "not all of one host");
    config.backends = "shared,gloo";
    CHECK_FAILS(tcc_comm_open(&config, &comm), TCC_INVALID_ARGUMENT, "no backend 'gloo'");
    config = config_of(ranks);
    config.struct_size--;
    CHECK_FAILS(tcc_comm_open(&config, &comm), TCC_INVALID_ARGUMENT, "another version");
}

/* Invalid arguments are refused without the other ranks. */
static void wrong_arguments(const setup *ranks) {
    tcc_comm *comm = open_comm(ranks), *half;
    float x[16];
    void *memory;
    int64_t counts[2] = {1, -1};
    int32_t self = ranks->rank;
    CHECK_FAILS(tcc_comm_all_reduce(comm, x, x + 1, 8, f32, TCC_COMM_SUM), TCC_INVALID_ARGUMENT,
                "all_reduce: the send and receive buffers overlap");
    CHECK_FAILS(tcc_comm_all_reduce(comm, NULL, x, 8, f32, TCC_COMM_SUM), TCC_INVALID_ARGUMENT,
                "a buffer is NULL");
    CHECK_FAILS(tcc_comm_all_gather(comm, x, x, INT64_MAX / 4, f32), TCC_INVALID_ARGUMENT,
                "more bytes than a size can hold");
    CHECK_FAILS(tcc_comm_all_reduce(comm, x, x, -1, f32, TCC_COMM_SUM), TCC_INVALID_ARGUMENT,
                "a count is negative");
    CHECK_FAILS(tcc_comm_all_gather_v(comm, x, x, counts, f32), TCC_INVALID_ARGUMENT,
                "a count is negative");
    CHECK_FAILS(tcc_comm_all_gather_v(comm, x, x, NULL, f32), TCC_INVALID_ARGUMENT,
                "the counts are NULL");
    CHECK_FAILS(tcc_comm_all_reduce(comm, x, x, 1, (tcc_dtype){2, 8, 1}, TCC_COMM_SUM),
                TCC_UNSUPPORTED, "element type (code 2, 8 bits");
    CHECK_FAILS(tcc_comm_all_reduce(comm, x, x, 1, f32, (tcc_comm_reduction)9),
                TCC_INVALID_ARGUMENT, "no reduction 9");
    CHECK_FAILS(tcc_comm_send(comm, x, 1, f32, self), TCC_INVALID_ARGUMENT, "the calling rank");
    CHECK_FAILS(tcc_comm_shrink(comm, &self, 1, &half), TCC_INVALID_ARGUMENT, "excludes itself");
    const int32_t none = 2;
    CHECK_FAILS(tcc_comm_shrink(comm, &none, 1, &half), TCC_INVALID_ARGUMENT, "rank 2 of a comm");
    CHECK_FAILS(tcc_comm_shrink(comm, NULL, 1, &half), TCC_INVALID_ARGUMENT, "pointer is NULL");
    CHECK_FAILS(tcc_comm_failed(comm, NULL, 1, &self), TCC_INVALID_ARGUMENT, "pointer is NULL");
    CHECK_FAILS(tcc_comm_failed(comm, &self, 1, NULL), TCC_INVALID_ARGUMENT, "pointer is NULL");
    CHECK_FAILS(tcc_comm_failed(comm, &self, -1, &self), TCC_INVALID_ARGUMENT, "room is negative");
    CHECK_FAILS(tcc_comm_group_end(comm), TCC_INVALID_ARGUMENT, "no group is open");
    CHECK_FAILS(tcc_comm_symmetric(comm, 0, &memory), TCC_INVALID_ARGUMENT, "no bytes");
    CHECK_FAILS(tcc_comm_barrier(NULL), TCC_INVALID_ARGUMENT, "the comm is NULL");
    CHECK_OK(tcc_comm_symmetric(comm, 64, &memory));
    CHECK_FAILS(tcc_comm_symmetric(comm, 64, &memory), TCC_INVALID_ARGUMENT, "already");
    tcc_comm_call call = {.struct_size = sizeof call, .kind = TCC_COMM_SEND, .dtype = f32,
                          .root = 1 - self, .count = 1};
    uint64_t ticket;
    CHECK_FAILS(tcc_comm_start(comm, NULL, x, x, &ticket), TCC_INVALID_ARGUMENT, "call is NULL");
    CHECK_FAILS(tcc_comm_start(comm, &call, x, x, &ticket), TCC_INVALID_ARGUMENT, "no collective");
    call.kind = TCC_COMM_BARRIER;
    CHECK_FAILS(tcc_comm_start(comm, &call, x, x, NULL), TCC_INVALID_ARGUMENT, "is NULL");
    CHECK_FAILS(tcc_comm_wait(comm, 0), TCC_INVALID_ARGUMENT, "no ticket 0");
    CHECK_OK(tcc_comm_start(comm, &call, NULL, NULL, &ticket));
    CHECK_FAILS(tcc_comm_wait(comm, ticket + 1), TCC_INVALID_ARGUMENT, "no ticket 2");
    check_sum(comm);
    tcc_comm_close(comm);
}

/* ---- scenarios ------------------------------------------------------------------------------- */

typedef struct scenario {
    const char *name;
    rank_main *run;
    int ranks, dead, operation_milliseconds; /* `dead`: bit set of the ranks that end by a signal */
} scenario;

static const scenario scenarios[] = {
    {"dies_in_operation", dies_in_operation, 4, 1 << 1, 0},
    {"dies_before_open", dies_before_open, 3, 1 << 2, 0},
    {"dies_while_opening", dies_while_opening, 3, 1 << 1, 0},
    {"dies_in_split", dies_in_split, 4, 1 << 3, 0},
    {"dies_in_group", dies_in_group, 4, 1 << 3, 0},
    {"dies_sending", dies_sending, 3, 1 << 1, 0},
    {"stops", stops, 2, 0, 200},
    {"closes_early", closes_early, 3, 0, 0},
    {"aborts", aborts, 3, 0, 0},
    {"starts", starts, 2, 0, 10000},
    {"dies_after_start", dies_after_start, 3, 1 << 1, 0},
    {"aborts_after_start", aborts_after_start, 3, 0, 0},
    {"closes_after_start", closes_after_start, 3, 0, 0},
    {"differ_in_place", differ_in_place, 2, 0, 0},
    {"reduces_in_scratch", reduces_in_scratch, 3, 0, 0},
    {"outlives_close", outlives_close, 2, 0, 0},
    {"closes_in_call", closes_in_call, 2, 0, 500},
    {"refused", refused, 3, 0, 0},
    {"outlived", outlived, 3, 0, 0},
    {"wrong_size", wrong_size, 4, 0, 0},
    {"same_rank", same_rank, 4, 0, 0},
    {"forks", forks, 2, 0, 0},
    {"cycles", cycles, 4, 0, 0},
    {"keeps_subgroups", keeps_subgroups, 4, 0, 0},
    {"differs_in_subgroup", differs_in_subgroup, 4, 0, 0},
    {"small_files", small_files, 1, 0, 0},
    {"operates", operates, 3, 0, 0},
    {"unfit", unfit, 1, 0, 0},
    {"wrong_arguments", wrong_arguments, 2, 0, 0},
    {"two_die", two_die, 5, 1 << 0 | 1 << 3, 0},
    {"dies_in_shrink", dies_in_shrink, 4, 1 << 1 | 1 << 3, 0},
    {"dies_again_and_again", dies_again_and_again, 6, 31, 0},
    {"shrinks_whole", shrinks_whole, 4, 0, 0},
    {"closes_and_shrinks", closes_and_shrinks, 3, 0, 0},
    {"leaves_out", leaves_out, 3, 0, 0},
    {"comes_left_out", comes_left_out, 3, 0, 0},
    {"shrinks_late", shrinks_late, 3, 0, 0},
};

int main(int argc, char **argv) {
    const char *argument = argc > 1 ? argv[1] : "";
    setup ranks = {.name = own_name(argument)};
    reached = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(reached != MAP_FAILED, "out of memory");
    if (strcmp(argument, "differ") == 0) {
        ranks.size = 4;
        for (difference_name = 0; difference_name < 8; difference_name++)
            run_ranks(ranks, differ);
        puts("ok");
        return 0;
    }
#ifdef WRAPPED
    if (strcmp(argument, "fails_somewhere") == 0) { /* ERROR ON EVERY */
        ranks.size = 2;
        ranks.open_milliseconds = 300;
        if (argc > 4) fail_error = atoi(argv[2]), fail_on = atoi(argv[3]), every = atoi(argv[4]);
        for (failing_rank = 0; failing_rank < 2; failing_rank++) run_ranks(ranks, fails_somewhere);
        puts("ok");
        return 0;
    }
#endif
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
        const scenario *selected = &scenarios[i];
        if (strcmp(selected->name, argument)) continue;
        ranks.size = selected->ranks;
        ranks.operation_milliseconds = selected->operation_milliseconds;
        run_with_deaths(ranks, selected->run, selected->dead);
        puts("ok");
        return 0;
    }
    fprintf(stderr, "no scenario '%s'\n", argument);
    return 2;
}
