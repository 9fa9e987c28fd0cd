/* Lets several threads of a rank use one comm each at the same time: operations, messages, and
 * comms made from them.
 *
 *     beside BACKEND started as a rank */
#include <pthread.h>

#include "ranks.h"

enum { THREADS = 3, ROUNDS = 30, MOST = 5000 };

static const tcc_dtype i32 = {0, 32, 1};

/* Sums `value` + i at place i over the ranks. */
static void sums(tcc_comm *comm, int32_t value, int32_t expected, int32_t count) {
    int32_t x[MOST] = {0}, sum[MOST];
    for (int32_t i = 0; i < count; i++) x[i] = value + i;
    CHECK_OK(tcc_comm_all_reduce(comm, x, sum, count, i32, TCC_COMM_SUM));
    for (int32_t i = 0; i < count; i++)
        CHECK(sum[i] == expected + i * tcc_comm_size(comm), "sum %d is %d", i, sum[i]);
}

static void pass_on(tcc_comm *comm, int32_t base, int32_t count) {
    int32_t rank = tcc_comm_rank(comm), size = tcc_comm_size(comm);
    int32_t before = (rank + size - 1) % size;
    int32_t sent[MOST] = {0}, got[MOST];
    for (int32_t i = 0; i < count; i++) sent[i] = base + 10 * i + rank;
    CHECK_OK(tcc_comm_group_start(comm));
    CHECK_OK(tcc_comm_send(comm, sent, count, i32, (rank + 1) % size));
    CHECK_OK(tcc_comm_receive(comm, got, count, i32, before));
    CHECK_OK(tcc_comm_group_end(comm));
    for (int32_t i = 0; i < count; i++)
        CHECK(got[i] == base + 10 * i + before, "element %d is %d", i, got[i]);
}

typedef struct job {
    tcc_comm *comm;
    int32_t number;
} job;

static void *work(void *argument) {
    const job *mine = argument;
    int32_t rank = tcc_comm_rank(mine->comm), size = tcc_comm_size(mine->comm);
    for (int32_t round = 0; round < ROUNDS; round++) {
        int32_t base = 1000 * mine->number + 100 * round, count = round % 3 ? 7 : MOST;
        sums(mine->comm, base + rank, size * base + size * (size - 1) / 2, count);
        pass_on(mine->comm, base, count);
        tcc_comm *part;
        CHECK_OK(tcc_comm_split(mine->comm, 0, -rank, &part));
        sums(part, base, size * base, count);
        tcc_comm_close(part);
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    tcc_comm *all;
    job jobs[THREADS];
    pthread_t threads[THREADS];
    tcc_comm_config config = TCC_COMM_CONFIG;
    config.backends = argv[1];
    config.operation_milliseconds = 20000;
    CHECK_OK(tcc_comm_open(&config, &all));
    for (int32_t i = 0; i < THREADS; i++) {
        jobs[i].number = i;
        CHECK_OK(tcc_comm_split(all, 0, i % 2 ? -tcc_comm_rank(all) : 0, &jobs[i].comm));
    }
    for (int i = 0; i < THREADS; i++)
        CHECK(!pthread_create(&threads[i], NULL, work, &jobs[i]), "no thread");
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++) tcc_comm_close(jobs[i].comm);
    tcc_comm_close(all);
    puts("ok");
    return 0;
}
