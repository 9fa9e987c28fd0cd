/* A host program of the communication library, compiled with a header of any version.
 *
 *     comm_host [later|later_call] with LATER a field that this version lacks is set; prints why
 *                                     the library refuses it
 *
 * Two ranks open a comm and use every call that the first header has. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tcc_comm.h"

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "line %d: %s; %s\n", __LINE__, #condition, tcc_comm_last_error());     \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static const tcc_dtype i32 = {0, 32, 1};

static tcc_comm_config config_of(const char *name, int32_t rank) {
    tcc_comm_config config = TCC_COMM_CONFIG;
    config.rank = rank;
    config.size = 2;
    config.rendezvous = name;
    config.token = "of the job";
    config.backends = "shared";
    config.open_milliseconds = config.operation_milliseconds = 30000;
    return config;
}

static void use(tcc_comm *comm, int32_t rank) {
    int32_t mine[2] = {rank + 1, 10 * (rank + 1)}, both[4] = {0};
    tcc_comm_call call = {.struct_size = sizeof call, .kind = TCC_COMM_ALL_REDUCE, .dtype = i32,
                          .count = 2};
    tcc_comm_plan *plan = NULL;
    CHECK(tcc_comm_rank(comm) == rank && tcc_comm_size(comm) == 2);
    CHECK(strcmp(tcc_comm_backend_name(comm), "shared") == 0);
    CHECK(tcc_comm_plan_make(comm, &call, &plan) == TCC_OK);
    for (int i = 0; i < 3; i++) {
        CHECK(tcc_comm_plan_post(plan, mine, both) == TCC_OK);
        CHECK(both[0] == 3 && both[1] == 30);
    }
    tcc_comm_plan_free(plan);
    const int64_t counts[2] = {1, 1};
    call = (tcc_comm_call){.struct_size = sizeof call, .kind = TCC_COMM_ALL_TO_ALL_V, .dtype = i32,
                           .send_counts = counts, .receive_counts = counts};
    CHECK(tcc_comm_plan_make(comm, &call, &plan) == TCC_OK);
    CHECK(tcc_comm_plan_post(plan, mine, both) == TCC_OK);
    CHECK(both[0] == (rank ? 10 : 1) && both[1] == (rank ? 20 : 2));
    tcc_comm_plan_free(plan);
    CHECK(tcc_comm_all_gather(comm, mine, both, 2, i32) == TCC_OK);
    CHECK(both[0] == 1 && both[1] == 10 && both[2] == 2 && both[3] == 20);
    tcc_comm *twin = NULL;
    CHECK(tcc_comm_split(comm, 0, -rank, &twin) == TCC_OK && tcc_comm_rank(twin) == 1 - rank);
    CHECK(tcc_comm_barrier(twin) == TCC_OK);
    tcc_comm_close(twin);
}

#ifdef LATER
/* A call that the caller's version makes invalid is refused on each rank by itself. */
static int refused(const char *reason) {
    tcc_comm *comm = NULL;
    tcc_comm_plan *plan = NULL;
    tcc_comm_config config = config_of("alone", 0);
    config.size = 1;
    config.later = strcmp(reason, "later") == 0;
    tcc_status status = tcc_comm_open(&config, &comm);
    if (!config.later) {
        CHECK(status == TCC_OK);
        const tcc_comm_call call = {.struct_size = sizeof call, .kind = TCC_COMM_BARRIER,
                                    .later = 1};
        status = tcc_comm_plan_make(comm, &call, &plan);
        CHECK(!plan);
    }
    printf("%d: %s\n", (int)status, tcc_comm_last_error());
    tcc_comm_close(comm);
    return 0;
}
#endif

int main(int argc, char **argv) {
#ifdef LATER
    if (argc > 1) return refused(argv[1]);
#endif
    (void)argc, (void)argv;
    char name[64];
    snprintf(name, sizeof name, "versions-%d", (int)getpid());
    pid_t child = fork();
    tcc_comm *comm = NULL;
    tcc_comm_config config = config_of(name, child == 0);
    CHECK(child >= 0 && tcc_comm_open(&config, &comm) == TCC_OK);
    use(comm, child == 0);
    tcc_comm_close(comm);
    int status = 0;
    if (child == 0) return 0;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    puts("ok");
    return 0;
}
