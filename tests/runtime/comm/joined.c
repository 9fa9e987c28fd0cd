/* A program that initialises MPI itself. The library must use it and leave it initialised.
 *
 *     joined LIBRARY started by that library's mpiexec */
#define _GNU_SOURCE
#include <dlfcn.h>

#include "ranks.h"

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL);
    CHECK(library, "%s", dlerror());
    int (*init)(int *, char ***) = (int (*)(int *, char ***))dlsym(library, "MPI_Init");
    int (*finalize)(void) = (int (*)(void))dlsym(library, "MPI_Finalize");
    int (*finalized)(int *) = (int (*)(int *))dlsym(library, "MPI_Finalized");
    CHECK(init && finalize && finalized, "%s", dlerror());
    CHECK(!init(NULL, NULL), "MPI_Init failed");
    for (int i = 0; i < 2; i++) {
        tcc_comm *comm, *half;
        tcc_comm_config config = TCC_COMM_CONFIG;
        config.backends = "mpi";
        CHECK_OK(tcc_comm_open(&config, &comm));
        int32_t value = tcc_comm_rank(comm), sum = 0, size = tcc_comm_size(comm);
        tcc_dtype i32 = {0, 32, 1};
        CHECK_OK(tcc_comm_all_reduce(comm, &value, &sum, 1, i32, TCC_COMM_SUM));
        CHECK(sum == size * (size - 1) / 2, "the sum is %d", sum);
        CHECK_OK(tcc_comm_split(comm, value % 2, -value, &half));
        CHECK_OK(tcc_comm_barrier(half));
        tcc_comm_close(half);
        /* the error names the ranks that differ, on all ranks */
        tcc_status status = tcc_comm_broadcast(comm, &value, &sum, 1, i32, value == 1);
        CHECK(size == 1 ||
                  (status == TCC_MISMATCH &&
                   strstr(tcc_comm_last_error(), "rank 1 in broadcast of 1 i32 from rank 1")),
              "status %d: %s", (int)status, tcc_comm_last_error());
        tcc_comm_close(comm);
    }
    int ended = 1;
    CHECK(!finalized(&ended) && !ended, "MPI was finalised");
    CHECK(!finalize(), "MPI_Finalize failed");
    puts("ok");
    return 0;
}
