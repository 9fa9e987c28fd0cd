/* Makes one of several hosts' ranks, or the link between hosts, fail.  Every other rank must get an
 * error by its deadline, and the same error from then on.  A launcher started the ranks.
 *
 *     apart kill|stop|cut BACKEND REPORT
 *
 * The last rank is killed, stopped for twice the deadline, or cuts the link (SIGUSR1 to process
 * $LINK_PROCESS), in the middle of a series of operations.  Each living rank adds a line to the
 * file REPORT, because its launcher may have lost its connection.  Then it waits until the other
 * ranks' deadlines have passed: MPICH ends ranks that send to an ended rank. */
#include <time.h>

#include "ranks.h"

enum { PATIENCE = 2000, SLACK = 1000, OPERATIONS = 50, COUNT = 30000 };

static int64_t milliseconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

static void stop_for_a_while(void) {
    pid_t self = getpid();
    if (fork() == 0) {
        sleep(2 * PATIENCE / 1000);
        kill(self, SIGCONT);
        _exit(0);
    }
    raise(SIGSTOP);
}

static void strike(const char *how) {
    const char *link = getenv("LINK_PROCESS");
    if (strcmp(how, "kill") == 0) raise(SIGKILL);
    if (strcmp(how, "stop") == 0) stop_for_a_while();
    if (strcmp(how, "cut") == 0)
        CHECK(link && kill(atoi(link), SIGUSR1) == 0, "no process LINK_PROCESS");
}

static void report(const char *path, int rank, tcc_status status, int64_t took) {
    FILE *file = fopen(path, "a");
    CHECK(file, "%s: %s", path, strerror(errno));
    fprintf(file, "rank %d: status %d after %lld ms: %s\n", rank, (int)status, (long long)took,
            tcc_comm_last_error());
    fclose(file);
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    /* Hydra sends it when a rank has ended and the others may live */
    signal(SIGUSR1, SIG_IGN);
    static int32_t x[COUNT], sum[COUNT];
    tcc_dtype i32 = {0, 32, 1};
    tcc_comm *comm;
    tcc_comm_config config = TCC_COMM_CONFIG;
    config.backends = argv[2];
    config.operation_milliseconds = PATIENCE;
    CHECK_OK(tcc_comm_open(&config, &comm));
    int rank = tcc_comm_rank(comm), size = tcc_comm_size(comm);
    for (int i = 0; i < COUNT; i++) x[i] = i + rank;
    tcc_status status = TCC_OK;
    int64_t began = 0;
    for (int operation = 0; status == TCC_OK; operation++) {
        CHECK(operation < 100 * OPERATIONS, "nothing failed");
        if (rank == size - 1 && operation == OPERATIONS) strike(argv[1]);
        began = milliseconds();
        status = tcc_comm_all_reduce(comm, x, sum, COUNT, i32, TCC_COMM_SUM);
        for (int i = 0; status == TCC_OK && i < COUNT; i++)
            CHECK(sum[i] == size * i + size * (size - 1) / 2, "sum %d is %d", i, sum[i]);
    }
    int64_t took = milliseconds() - began;
    CHECK(took <= PATIENCE + SLACK, "%lld ms are more than the deadline", (long long)took);
    CHECK(tcc_comm_barrier(comm) == status, "another error: %s", tcc_comm_last_error());
    report(argv[3], rank, status, took);
    sleep((PATIENCE + SLACK) / 1000);
    tcc_comm_close(comm);
    return 0;
}
