/* Times MPI_Allreduce of f32 by sum, for scripts/comm_check: compiled by an MPI library's own
 * mpicc.
 *
 *     mpi_peer MIN MAX FACTOR RUNS
 *
 * It prints one line per size: bytes and the median microseconds of rank 0.  Ranks are pinned to
 * CPUs in turn. */
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int by_time(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return left < right ? -1 : left > right;
}

int main(int argc, char **argv) {
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (argc != 5) MPI_Abort(MPI_COMM_WORLD, 2);
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET((size_t)(rank % sysconf(_SC_NPROCESSORS_ONLN)), &cpus);
    sched_setaffinity(0, sizeof cpus, &cpus);
    size_t min_bytes = (size_t)atoll(argv[1]), max_bytes = (size_t)atoll(argv[2]);
    int factor = atoi(argv[3]), runs = atoi(argv[4]);
    float *send = malloc(max_bytes), *receive = malloc(max_bytes);
    double *times = calloc((size_t)runs, sizeof *times);
    if (!send || !receive || !times) MPI_Abort(MPI_COMM_WORLD, 1);
    memset(send, 0, max_bytes);
    memset(receive, 0, max_bytes);
    for (size_t bytes = min_bytes; bytes <= max_bytes; bytes *= (size_t)factor) {
        for (int i = -5; i < runs; i++) {
            double began = MPI_Wtime();
            MPI_Allreduce(send, receive, (int)(bytes / 4), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
            if (i >= 0) times[i] = 1e6 * (MPI_Wtime() - began);
        }
        qsort(times, (size_t)runs, sizeof *times, by_time);
        if (rank == 0) printf("%zu %.2f\n", bytes, times[runs / 2]);
    }
    MPI_Finalize();
    return 0;
}
