/* Does random operations on a comm, while some of its ranks end at random moments: killed by a
 * signal, by leaving without closing, or by abort, in the middle of operations and while the others
 * shrink the comm.  The others shrink it until all ended ranks are gone.  They must learn which
 * ranks are gone, get right results, and all be in the last comm, and nothing may be left behind.
 *
 *     survivors SEED TRIALS RANKS
 *
 * Prints how many ranks ended, and the time from a trial's last end until all others had a right
 * sum of the remaining ranks: the median of the trials, and the longest. */
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>

#include "leaks.h"
#include "operations.h"

/* Milliseconds.  LONG is longer than the time that a hanging trial may take. */
enum { LONG = 60000, MOST = 20000, MOST_VICTIMS = 4, COUNT = 300 };

typedef enum ending { KILLED, EXITS, ABORTS, EXITS_IN_SHRINK, ABORTS_IN_SHRINK, ENDINGS } ending;

/* The fate of a trial's ranks. */
typedef struct plan {
    uint64_t victims; /* a bit set */
    ending endings[MOST_RANKS];
    double moments[MOST_RANKS]; /* seconds from the meeting of all ranks, or from the call of
                                   shrink */
} plan;

/* Shared by all processes. */
typedef struct board {
    _Atomic int n_open;
    _Atomic bool done; /* all victims have ended, and the others know */
    _Atomic double ended[MOST_RANKS], right[MOST_RANKS]; /* times; 0: not yet */
} board;

static board *the_board;
static uint64_t trial_seed;
static plan the_plan;
static int self; /* this process's rank in the first comm */

static plan draw_plan(int size) {
    plan drawn = {0};
    uint64_t draw = scramble(trial_seed);
    int n = 1 + (int)(draw % MOST_VICTIMS);
    for (int i = 0; i < n && i < size - 1;) {
        draw = scramble(draw + 1);
        int rank = (int)(draw % (uint64_t)size);
        if (drawn.victims >> rank & 1) continue;
        /* a rank must end before the comm is shrunk */
        ending how = (ending)((draw >> 8) % (i ? ENDINGS : EXITS_IN_SHRINK));
        double max_moment = how >= EXITS_IN_SHRINK ? 0.003 : 0.03;
        drawn.victims |= UINT64_C(1) << rank;
        drawn.endings[rank] = how;
        drawn.moments[rank] = (double)(draw >> 20 & 1023) / 1023 * max_moment + 1e-6;
        i++;
    }
    return drawn;
}

/* ---- one rank -------------------------------------------------------------------------------- */

static void end_here(int signal) {
    (void)signal;
    atomic_store(&the_board->ended[self], now());
    if (the_plan.endings[self] == ABORTS || the_plan.endings[self] == ABORTS_IN_SHRINK) abort();
    _exit(3);
}

/* Makes this rank end in a moment, wherever it is then. */
static void end_soon(void) {
    long microseconds = (long)(the_plan.moments[self] * 1e6) + 1;
    struct itimerval timer = {.it_value = {0, microseconds}};
    signal(SIGALRM, end_here);
    setitimer(ITIMER_REAL, &timer, NULL);
}

/* Sums a bit for each member, times 1, 2, ..., and whether the members know that the trial is done.
 * `*members` receives the bit set of the members' ranks in the first comm; `*done` is true if all
 * know. */
static tcc_status check_members(tcc_comm *comm, uint64_t *members, bool *done) {
    int64_t send[COUNT + 1], sums[COUNT + 1];
    for (int64_t i = 0; i < COUNT; i++) send[i] = (i + 1) << self;
    send[COUNT] = atomic_load(&the_board->done);
    tcc_status status = tcc_comm_all_reduce(comm, send, sums, COUNT + 1, dtypes[I64], TCC_COMM_SUM);
    if (status != TCC_OK) return status;
    uint64_t survivors = ((UINT64_C(1) << MOST_RANKS) - 1) & ~the_plan.victims;
    int64_t bits = sums[0];
    *members = (uint64_t)bits;
    *done = sums[COUNT] == tcc_comm_size(comm);
    for (int64_t i = 0; i < COUNT; i++)
        CHECK(sums[i] == bits * (i + 1), "sum %d is %lld of bits %llx", (int)i, (long long)sums[i],
              (unsigned long long)bits);
    CHECK(__builtin_popcountll(*members) == tcc_comm_size(comm), "members %llx of %d",
          (unsigned long long)bits, tcc_comm_size(comm));
    if (!(*members & the_plan.victims) && !atomic_load(&the_board->right[self]))
        atomic_store(&the_board->right[self], now());
    CHECK(!(*members & ~survivors & ~the_plan.victims), "members %llx", (unsigned long long)bits);
    return TCC_OK;
}

/* Checks which ranks of a comm are gone.  `members` is the bit set of its ranks; 0: not known. */
static void check_failed(tcc_comm *comm, uint64_t members) {
    int32_t ranks[MOST_RANKS], count = -1, number = 0;
    CHECK_OK(tcc_comm_failed(comm, ranks, MOST_RANKS, &count));
    CHECK(count >= 0 && count < tcc_comm_size(comm), "%d ranks are gone", count);
    for (int rank = 0, next = 0; rank < MOST_RANKS && next < count; rank++) {
        if (!(members >> rank & 1) || ranks[next] != number++) continue;
        CHECK(the_plan.victims >> rank & 1, "rank %d is said to be gone", rank);
        next++;
    }
}

static void live(const setup *ranks) {
    leaks before = count_leaks(), after;
    tcc_comm_config config = config_of(ranks);
    tcc_comm *comm, *next;
    self = ranks->rank;
    bool ends = the_plan.victims >> self & 1;
    CHECK_OK(tcc_comm_open(&config, &comm));
    atomic_fetch_add(&the_board->n_open, 1);
    if (ends && the_plan.endings[self] > KILLED && the_plan.endings[self] < EXITS_IN_SHRINK) {
        while (atomic_load(&the_board->n_open) < ranks->size) nap(0.0005);
        end_soon();
    }
    bool done = false;
    for (uint64_t generation = 1; !done; generation++) {
        uint64_t draw = scramble(trial_seed + generation), members = 0;
        tcc_status status = TCC_OK;
        while (status == TCC_OK && !done) {
            status = check_members(comm, &members, &done);
            for (int i = 0; i < 4 && status == TCC_OK && !done; i++)
                status = operate(comm, draw = scramble(draw + 1));
        }
        if (done) break;
        CHECK(status == TCC_PEER_DEAD, "status %d: %s", (int)status, tcc_comm_last_error());
        check_failed(comm, members);
        if (ends && the_plan.endings[self] >= EXITS_IN_SHRINK) end_soon();
        CHECK_OK(tcc_comm_shrink(comm, NULL, 0, &next));
        tcc_comm_close(comm);
        comm = next;
    }
    tcc_comm_close(comm);
    after = count_leaks();
    CHECK(after.descriptors == before.descriptors && after.mappings == before.mappings,
          "%d descriptors and %d mappings, then %d and %d", before.descriptors, before.mappings,
          after.descriptors, after.mappings);
}

/* ---- trials ---------------------------------------------------------------------------------- */

static void fail_trial(int size, const char *problem) {
    fprintf(stderr, "trial of seed %llu, %d ranks of which %llx end: %s\n",
            (unsigned long long)trial_seed, size, (unsigned long long)the_plan.victims, problem);
    exit(1); /* which ends the ranks */
}

/* Kills the victims, each at its moment. */
static void kill_victims(int size, const pid_t *pids) {
    double began = now();
    for (uint64_t remaining = the_plan.victims; remaining;) {
        int first = -1;
        for (int i = 0; i < size; i++)
            if (remaining >> i & 1 && (first < 0 || the_plan.moments[i] < the_plan.moments[first]))
                first = i;
        remaining &= ~(UINT64_C(1) << first);
        if (the_plan.endings[first] != KILLED) continue;
        double delay = the_plan.moments[first] - (now() - began);
        if (delay > 0) nap(delay);
        atomic_store(&the_board->ended[first], now());
        kill(pids[first], SIGKILL);
    }
}

/* The seconds from the last end of a rank until all others had a right sum of those left. */
static double await_others(int size) {
    double last = 0, right = 0, began = now();
    for (int i = 0; i < size; i++)
        if (atomic_load(&the_board->ended[i]) > last) last = atomic_load(&the_board->ended[i]);
    for (int i = 0; i < size; i++) {
        if (the_plan.victims >> i & 1) continue;
        while (!atomic_load(&the_board->right[i])) {
            siginfo_t ended = {0};
            if (waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid)
                fail_trial(size, "a rank failed");
            if (now() - began > MOST / 1000.0) fail_trial(size, "the others do not go on");
            nap(0.0005);
        }
        if (atomic_load(&the_board->right[i]) > right) right = atomic_load(&the_board->right[i]);
    }
    return right - last;
}

static double run_trial(setup ranks) {
    pid_t pids[MOST_RANKS];
    int status;
    memset(the_board, 0, sizeof *the_board);
    the_plan = draw_plan(ranks.size);
    start_ranks(ranks, live, pids);
    while (atomic_load(&the_board->n_open) < ranks.size) nap(0.0005);
    kill_victims(ranks.size, pids);
    for (int i = 0; i < ranks.size; i++)
        if (the_plan.victims >> i & 1) waitpid(pids[i], &status, 0);
    double seconds = await_others(ranks.size);
    atomic_store(&the_board->done, true);
    for (int i = 0; i < ranks.size; i++) {
        if (the_plan.victims >> i & 1) continue;
        waitpid(pids[i], &status, 0);
        if (status) fail_trial(ranks.size, "a rank failed at the end");
    }
    return seconds;
}

static int by_size(const void *left, const void *right) {
    const double *a = left, *b = right;
    return *a < *b ? -1 : *a > *b;
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    int trials = atoi(argv[2]), n_ended = 0;
    const struct rlimit none = {0, 0}; /* a rank that writes a core dump has not ended yet */
    double *seconds = calloc((size_t)trials + 1, sizeof *seconds);
    setup ranks = {.size = atoi(argv[3]), .name = own_name("survivors"),
                   .open_milliseconds = LONG, .operation_milliseconds = LONG};
    the_board = mmap(NULL, sizeof *the_board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                     -1, 0);
    CHECK(seconds && the_board != MAP_FAILED && ranks.size <= 8, "out of memory, or many ranks");
    setrlimit(RLIMIT_CORE, &none);
    for (int i = 0; i < trials; i++) {
        trial_seed = scramble((uint64_t)atoll(argv[1]) * 1000003 + (uint64_t)i);
        seconds[i] = run_trial(ranks);
        n_ended += __builtin_popcountll(the_plan.victims);
    }
    qsort(seconds, (size_t)trials, sizeof *seconds, by_size);
    printf("%d trials, %d ranks ended; the others had a right sum after %.1f ms, at most %.1f ms\n",
           trials, n_ended, 1000 * seconds[trials / 2], 1000 * seconds[trials ? trials - 1 : 0]);
    free(seconds);
    return 0;
}
