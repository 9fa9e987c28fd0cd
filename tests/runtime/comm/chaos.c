/* Random operations on random comms, while one rank is killed or stopped at a random moment: every
 * other rank gets an error in time, all results before it are right, and nothing is left.
 *
 *     chaos SEED TRIALS RANKS
 *
 * Prints how many trials there were, and the longest times from a strike to the end of the last
 * rank. A deadline is in the second: of an operation, 250 ms, or of opening, 500 ms. */
#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>

#include "leaks.h"
#include "oracle.h"
#include "ranks.h"

/* Milliseconds.  A stop is seen by the deadline, a death long before it: LONG is more than a trial
 * that hangs is given. */
enum { PATIENCE = 250, LONG = 60000, MOST = 20000 };

static uint64_t trial_seed;
static bool must_see;       /* the victim had opened the comm and was killed */
static _Atomic int *n_open; /* ranks that have opened the comm, of all processes */

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void nap(double seconds) {
    struct timespec time = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&time, NULL);
}

/* The sum in two operations, which are under way together. */
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

/* One random operation; all ranks draw the same.  An error ends the trial. */
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
        uint32_t found;
        int from = (draw >> 32 & 3) == 1   ? 0
                   : (draw >> 32 & 3) == 2 ? root
                                           : (rank + size - 1) % size;
        uint64_t expected = (draw >> 32 & 3) == 0 ? reduced(F32, TCC_COMM_SUM, draw, size, i)
                                                  : element_bits(F32, draw, from, i);
        memcpy(&found, &receive[i], 4);
        CHECK(agrees(F32, found, expected), "a wrong result");
    }
    return TCC_OK;
}

static void trial(const setup *ranks) {
    leaks before = count_leaks(), after;
    tcc_comm *comm = NULL, *half = NULL;
    tcc_comm_config config = config_of(ranks);
    uint64_t draw = trial_seed;
    tcc_status status = tcc_comm_open(&config, &comm);
    if (status == TCC_OK) atomic_fetch_add(n_open, 1);
    while (status == TCC_OK) {
        draw = scramble(draw + 1);
        if (draw % 16 == 0) {
            tcc_comm_close(half);
            half = NULL;
            status = tcc_comm_split(comm, ranks->rank % 2, 0, &half);
        } else {
            status = operate(half && draw % 3 ? half : comm, draw);
        }
    }
    bool late = status == TCC_TIMEOUT && !must_see;
    CHECK(status == TCC_PEER_DEAD || late || status == TCC_MISMATCH, "status %d: %s", (int)status,
          tcc_comm_last_error());
    CHECK(status != TCC_MISMATCH || strstr(tcc_comm_last_error(), "closed the comm"), "%s",
          tcc_comm_last_error());
    tcc_comm_close(half);
    tcc_comm_close(comm);
    after = count_leaks();
    CHECK(after.descriptors == before.descriptors && after.mappings == before.mappings,
          "%d descriptors and %d mappings, then %d and %d", before.descriptors, before.mappings,
          after.descriptors, after.mappings);
}

/* Strikes one rank; milliseconds from then until the last other rank has ended, by how it was
 * struck. */
static void strike(setup ranks, uint64_t draw, double longest[2]) {
    pid_t pids[MOST_RANKS];
    int victim = (int)(draw % (uint64_t)ranks.size), status, bad = 0;
    bool stop = draw & 64, early = (draw >> 20) % 4 == 0; /* perhaps before all ranks have met */
    must_see = !stop && !early;
    ranks.open_milliseconds = must_see ? LONG : 2 * PATIENCE;
    ranks.operation_milliseconds = stop ? PATIENCE : LONG;
    atomic_store(n_open, 0);
    start_ranks(ranks, trial, pids);
    while (!early && atomic_load(n_open) < ranks.size) nap(0.0005);
    nap((double)(draw >> 8 & 1023) / 1023 * 0.03);
    double struck = now();
    kill(pids[victim], stop ? SIGSTOP : SIGKILL);
    for (int i = 0; i < ranks.size; i++) {
        if (i == victim) continue;
        waitpid(pids[i], &status, 0);
        bad |= status;
    }
    double took = 1000 * (now() - struck);
    if (stop) kill(pids[victim], SIGCONT);
    waitpid(pids[victim], &status, 0);
    bad |= stop ? status : !WIFSIGNALED(status);
    if (bad || took > MOST) {
        fprintf(stderr, "trial of seed %llu, rank %d %s: status %x, %.0f ms\n",
                (unsigned long long)trial_seed, victim, stop ? "stopped" : "killed", (unsigned)bad,
                took);
        exit(1);
    }
    double *most = &longest[must_see ? 0 : 1];
    if (took > *most) *most = took;
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    int trials = atoi(argv[2]);
    double longest[2] = {0, 0};
    setup ranks = {.size = atoi(argv[3]), .name = own_name("chaos")};
    n_open = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(n_open != MAP_FAILED, "out of memory");
    for (int i = 0; i < trials; i++) {
        trial_seed = scramble((uint64_t)atoll(argv[1]) * 1000003 + (uint64_t)i);
        strike(ranks, scramble(trial_seed), longest);
    }
    printf("%d trials; all ranks had an error %.0f ms after a kill, %.0f ms after a stop or a kill "
           "before ranks had met\n",
           trials, longest[0], longest[1]);
    return 0;
}
