/* Passes invalid arguments to a comm of one rank, also in a child of a fork. */
#include "ranks.h"

#define CHECK_REFUSED(call, words)                                                                 \
    do {                                                                                           \
        tcc_status status_of_call = (call);                                                        \
        CHECK(status_of_call == TCC_INVALID_ARGUMENT && strstr(tcc_comm_last_error(), words),      \
              "%s: status %d: %s", #call, (int)status_of_call, tcc_comm_last_error());             \
    } while (0)

static const tcc_dtype f32 = {2, 32, 1};
static const tcc_comm_call sums = {.struct_size = sizeof sums, .kind = TCC_COMM_ALL_REDUCE,
                                   .dtype = {2, 32, 1}, .count = 2};

static tcc_comm_config alone(void) {
    const setup single = {0, 1, 20000, 20000, own_name("refusals"), NULL};
    return config_of(&single);
}

static void refuses_configs(void) {
    tcc_comm *comm = NULL;
    char longer[300];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    const struct {
        int32_t rank, size, local_rank, local_size, epoch, open, operation;
        const char *words;
    } rows[] = {
        {-1, 2, -1, -1, -1, 0, 0, "give both or none"}, {0, -1, -1, -1, -1, 0, 0, "give both or none"},
        {0, 0, -1, -1, -1, 0, 0, "ranks count from 0"}, {3, 3, -1, -1, -1, 0, 0, "rank 3 of 3 ranks"},
        {0, 1, 0, 2, -1, 0, 0, "local rank 0 of 2"},    {0, 2, 1, 1, -1, 0, 0, "local rank 1 of 1"},
        {0, 1, -1, -1, 0, -1, 0, "is negative"},        {0, 1, -1, -1, 0, 0, -1, "is negative"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tcc_comm_config config = alone();
        config.rank = rows[i].rank, config.size = rows[i].size;
        config.local_rank = rows[i].local_rank, config.local_size = rows[i].local_size;
        config.epoch = rows[i].epoch;
        config.open_milliseconds = rows[i].open;
        config.operation_milliseconds = rows[i].operation;
        CHECK_REFUSED(tcc_comm_open(&config, &comm), rows[i].words);
    }
    tcc_comm_config config = alone();
    CHECK_REFUSED(tcc_comm_open(&config, NULL), "out_comm is NULL");
    CHECK_REFUSED(tcc_comm_open(NULL, &comm), "the tcc_comm_config is NULL");
    config.rendezvous = longer;
    CHECK_REFUSED(tcc_comm_open(&config, &comm), "rendezvous: more than 200 bytes");
    config = alone(), config.token = longer;
    CHECK_REFUSED(tcc_comm_open(&config, &comm), "token: more than 64 bytes");
    config = alone(), config.backends = longer;
    CHECK_REFUSED(tcc_comm_open(&config, &comm), "backends: more than 63 bytes");
    config.backends = "shared?";
    CHECK_REFUSED(tcc_comm_open(&config, &comm), "no backend 'shared?'");
    config.backends = ",";
    CHECK(tcc_comm_open(&config, &comm) == TCC_UNSUPPORTED && !comm, "%s", tcc_comm_last_error());
}

static void refuses_pointers_and_numbers(tcc_comm *comm) {
    tcc_comm *other = NULL;
    tcc_comm_plan *plan = NULL;
    void *memory = NULL;
    uint64_t ticket = 0;
    const int32_t ranks[] = {0, 1}, below[] = {-1};
    float x[4] = {1, 2, 3, 4}, y[4];
    int64_t count[] = {1};
    CHECK_REFUSED(tcc_comm_split(comm, 0, 0, NULL), "out_comm is NULL");
    CHECK_REFUSED(tcc_comm_subgroup(comm, NULL, 1, &other), "a pointer is NULL");
    CHECK_REFUSED(tcc_comm_subgroup(comm, ranks, 1, NULL), "a pointer is NULL");
    CHECK_REFUSED(tcc_comm_subgroup(comm, ranks, 2, &other), "rank 1 of a comm of 1 ranks");
    CHECK_REFUSED(tcc_comm_subgroup(comm, below, 1, &other), "rank -1 of a comm of 1 ranks");
    CHECK_REFUSED(tcc_comm_subgroup(comm, ranks, 0, &other), "is not of its own list");
    CHECK_REFUSED(tcc_comm_symmetric(comm, 8, NULL), "out_memory is NULL");
    CHECK_REFUSED(tcc_comm_symmetric(comm, SIZE_MAX, &memory), "too many");
    CHECK_REFUSED(tcc_comm_symmetric(comm, SIZE_MAX / 2 + 1, &memory), "too many");
    CHECK_REFUSED(tcc_comm_scratch(comm, 8, NULL), "out_memory is NULL");
    CHECK_REFUSED(tcc_comm_scratch(comm, 0, &memory), "no bytes");
    CHECK_REFUSED(tcc_comm_scratch(comm, SIZE_MAX, &memory), "too many");
    CHECK_REFUSED(tcc_comm_share(NULL), "the comm is NULL");
    CHECK_REFUSED(tcc_comm_plan_make(comm, &sums, NULL), "out_plan is NULL");
    CHECK_REFUSED(tcc_comm_plan_make(comm, NULL, &plan), "call is NULL");
    CHECK_REFUSED(tcc_comm_start(comm, &sums, x, y, NULL), "out_ticket is NULL");
    CHECK_REFUSED(tcc_comm_start(comm, &sums, x, NULL, &ticket), "a buffer is NULL");
    CHECK_REFUSED(tcc_comm_broadcast(comm, x, y, 1, f32, 1), "rank 1 of a comm of 1 ranks");
    CHECK_REFUSED(tcc_comm_broadcast(comm, x, y, 1, f32, -1), "rank -1 of a comm of 1 ranks");
    CHECK_REFUSED(tcc_comm_all_to_all_v(comm, x, y, count, NULL, f32), "the counts are NULL");
    CHECK_REFUSED(tcc_comm_all_to_all_v(comm, x, y, NULL, count, f32), "the counts are NULL");
    tcc_comm_call call = sums;
    call.kind = (tcc_comm_kind)-1;
    CHECK_REFUSED(tcc_comm_start(comm, &call, x, y, &ticket), "no operation -1");
    call.kind = (tcc_comm_kind)10;
    CHECK_REFUSED(tcc_comm_plan_make(comm, &call, &plan), "no operation 10");
    CHECK_OK(tcc_comm_group_start(comm));
    CHECK_REFUSED(tcc_comm_group_start(comm), "open already");
    CHECK_REFUSED(tcc_comm_split(comm, 0, 0, &other), "a group is open");
    CHECK_REFUSED(tcc_comm_subgroup(comm, ranks, 1, &other), "a group is open");
    CHECK_REFUSED(tcc_comm_start(comm, &sums, x, y, &ticket), "a group is open");
    CHECK_OK(tcc_comm_group_end(comm));
    tcc_comm *group = NULL;
    CHECK_OK(tcc_comm_subgroup(comm, ranks, 1, &group));
    CHECK_OK(tcc_comm_subgroup(comm, ranks, 1, &other));
    CHECK(group == other, "a list has one comm");
    CHECK_OK(tcc_comm_share(comm));
    CHECK_OK(tcc_comm_share(comm));
    CHECK_REFUSED(tcc_comm_share(group), "shares another comm already");
    CHECK(tcc_comm_shared() == comm, "the process's comm");
    CHECK_OK(tcc_comm_all_reduce(comm, x, y, 4, f32, TCC_COMM_SUM));
    CHECK(memcmp(x, y, sizeof x) == 0, "a sum of one rank");
    tcc_comm_close(NULL);
}

/* Checks that every function that takes a comm refuses an unusable comm with these words. */
static void refuses_all(tcc_comm *comm, tcc_comm_plan *plan, const char *words) {
    tcc_comm *other = NULL;
    tcc_comm_plan *sums_plan = NULL;
    void *memory = NULL;
    uint64_t ticket = 0;
    const int32_t ranks[] = {0};
    float x[4] = {0}, y[4];
    CHECK_REFUSED(tcc_comm_abort(comm, "no"), words);
    CHECK_REFUSED(tcc_comm_error(comm), words);
    CHECK_REFUSED(tcc_comm_split(comm, 0, 0, &other), words);
    CHECK_REFUSED(tcc_comm_subgroup(comm, ranks, 1, &other), words);
    CHECK_REFUSED(tcc_comm_shrink(comm, NULL, 0, &other), words);
    CHECK_REFUSED(tcc_comm_symmetric(comm, 8, &memory), words);
    CHECK_REFUSED(tcc_comm_scratch(comm, 8, &memory), words);
    CHECK_REFUSED(tcc_comm_group_start(comm), words);
    CHECK_REFUSED(tcc_comm_group_end(comm), words);
    CHECK_REFUSED(tcc_comm_barrier(comm), words);
    CHECK_REFUSED(tcc_comm_all_reduce(comm, x, y, 4, f32, TCC_COMM_SUM), words);
    CHECK_REFUSED(tcc_comm_start(comm, &sums, x, y, &ticket), words);
    CHECK_REFUSED(tcc_comm_wait(comm, 1), words);
    CHECK_REFUSED(tcc_comm_plan_make(comm, &sums, &sums_plan), words);
    if (!plan) return;
    CHECK_REFUSED(tcc_comm_plan_post(plan, x, y), words);
    CHECK_REFUSED(tcc_comm_plan_start(plan, x, y, &ticket), words);
}

int main(void) {
    refuses_configs();
    tcc_comm *comm = NULL;
    tcc_comm_plan *plan = NULL;
    tcc_comm_config config = alone();
    CHECK_OK(tcc_comm_open(&config, &comm));
    refuses_pointers_and_numbers(comm);
    refuses_all(NULL, NULL, "the comm is NULL");
    CHECK_OK(tcc_comm_plan_make(comm, &sums, &plan));
    pid_t child = fork();
    if (child == 0) {
        refuses_all(comm, plan, "this process was forked from rank 0");
        exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "the child: %d", status);
    tcc_comm_plan_free(plan);
    tcc_comm_plan_free(NULL);
    CHECK_OK(tcc_comm_abort(comm, NULL));
    CHECK(tcc_comm_error(comm) == TCC_CANCELLED, "%s", tcc_comm_last_error());
    tcc_comm_close(comm);
    CHECK(!tcc_comm_shared(), "it is closed");
    puts("ok");
    return 0;
}
