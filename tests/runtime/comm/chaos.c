/* Does random operations on random comms, while one rank is killed or stopped at a random moment.
 * Every other rank must get an error in time, all results before it must be right, and nothing may
 * be left behind.
 *
 *     chaos SEED TRIALS RANKS
 *
 * Prints how many trials there were, and the longest times from a strike to the end of the last
 * rank.  The second time includes a deadline: 250 ms of an operation, or 500 ms of opening. */
#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>

#include "leaks.h"
#include "operations.h"
#include "ranks.h"

/* Milliseconds.  A stop is seen at the deadline, a death long before.  LONG is longer than the time
 * that a hanging trial may take. */
enum { PATIENCE = 250, LONG = 60000, MOST = 20000 };

static uint64_t trial_seed;
static bool must_see;       /* the victim had opened the comm and was killed */
static _Atomic int *n_open; /* ranks of all processes that have opened the comm */

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

/* Strikes one rank.  Notes the milliseconds from then until the last other rank has ended, by the
 * kind of strike. */
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
    double *maximum = &longest[must_see ? 0 : 1];
    if (took > *maximum) *maximum = took;
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
