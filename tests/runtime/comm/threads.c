/* Runs ranks as threads of one process, for ThreadSanitizer: all operations, a split, an arena,
 * comms of the remaining ranks, and an abort from another thread. */
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "../../../runtime/src/comm/shared.h"
#include "oracle.h"
#include "ranks.h"

enum { RANKS = 3, FILES = 64, ROUNDS = 6 };

/* ---- one mapping of a file ------------------------------------------------------------------- */

#undef mmap /* this file uses the system's own */
#undef munmap

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    ino_t file;
    void *memory;
    int users;
} mapped[FILES];

void *map_once(void *address, size_t bytes, int protection, int flags, int file, off_t offset) {
    struct stat facts;
    int free_row = -1;
    void *memory = MAP_FAILED;
    pthread_mutex_lock(&lock);
    fstat(file, &facts);
    for (int i = 0; i < FILES; i++) {
        if (!mapped[i].users)
            free_row = i;
        else if (mapped[i].file == facts.st_ino) {
            mapped[i].users++;
            memory = mapped[i].memory;
        }
    }
    if (memory == MAP_FAILED) {
        memory = mmap(address, bytes, protection, flags, file, offset);
        mapped[free_row].file = facts.st_ino;
        mapped[free_row].memory = memory;
        mapped[free_row].users = 1;
    }
    pthread_mutex_unlock(&lock);
    return memory;
}

int unmap_once(void *address, size_t bytes) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < FILES; i++)
        if (mapped[i].users && mapped[i].memory == address && --mapped[i].users == 0)
            munmap(address, bytes);
    pthread_mutex_unlock(&lock);
    return 0;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

static const char *name;

static void operate(tcc_comm *comm, float *x, float *y, int64_t count, uint64_t seed) {
    int rank = tcc_comm_rank(comm), size = tcc_comm_size(comm);
    tcc_dtype f32 = dtypes[F32];
    fill(F32, seed, rank, 0, count, (char *)x);
    CHECK_OK(tcc_comm_all_reduce(comm, x, y, count, f32, TCC_COMM_SUM));
    for (int64_t i = 0; i < count; i += 1 + count / 64) {
        uint32_t bits;
        memcpy(&bits, &y[i], 4);
        CHECK(agrees(F32, bits, reduced(F32, TCC_COMM_SUM, seed, size, i)), "a wrong result");
    }
    int64_t part = count / size;
    CHECK_OK(tcc_comm_reduce_scatter(comm, x, y, part, f32, TCC_COMM_MAX));
    CHECK_OK(tcc_comm_all_gather(comm, x, y, part, f32));
    CHECK_OK(tcc_comm_all_to_all(comm, x, y, part, f32));
    CHECK_OK(tcc_comm_broadcast(comm, x, y, count, f32, size - 1));
    const tcc_comm_call calls[] = {
        {.struct_size = sizeof *calls, .kind = TCC_COMM_ALL_REDUCE, .dtype = f32, .count = count},
        {.struct_size = sizeof *calls, .kind = TCC_COMM_BROADCAST, .dtype = f32, .count = part}};
    uint64_t tickets[2];
    for (int i = 0; i < 2; i++)
        CHECK_OK(tcc_comm_start(comm, &calls[i], x, i ? y + count : y, &tickets[i]));
    CHECK_OK(tcc_comm_wait(comm, tickets[1]));
    CHECK_OK(tcc_comm_group_start(comm));
    CHECK_OK(tcc_comm_send(comm, x, count, f32, (rank + 1) % size));
    CHECK_OK(tcc_comm_receive(comm, y, count, f32, (rank + size - 1) % size));
    CHECK_OK(tcc_comm_group_end(comm));
}

/* Shrinks with all ranks, then without a rank that closes the comm. */
static void shrink_twice(tcc_comm *comm, float *x, float *y) {
    tcc_comm *all, *remainder;
    CHECK_OK(tcc_comm_shrink(comm, NULL, 0, &all));
    operate(all, x, y, 3000, 100);
    if (tcc_comm_rank(comm) == 0) {
        tcc_comm_close(all);
        return;
    }
    CHECK_OK(tcc_comm_shrink(all, NULL, 0, &remainder)); /* rank 0 may close the comm before or now */
    CHECK(tcc_comm_size(remainder) == RANKS - 1, "%d ranks are left", tcc_comm_size(remainder));
    operate(remainder, x, y, 3000, 101);
    tcc_comm_close(remainder);
    tcc_comm_close(all);
}

static void *run(void *argument) {
    setup ranks = {.rank = *(int *)argument, .size = RANKS, .name = name};
    tcc_comm_config config = config_of(&ranks);
    tcc_comm *comm, *pair;
    void *arena;
    CHECK_OK(tcc_comm_open(&config, &comm));
    float *x = malloc(200000 * sizeof *x), *y = malloc(300000 * sizeof *y);
    CHECK(x && y, "out of memory");
    for (int i = 0; i < ROUNDS; i++) operate(comm, x, y, i % 2 ? 200000 : 1000, (uint64_t)i);
    CHECK_OK(tcc_comm_symmetric(comm, 500000 * sizeof *x, &arena));
    CHECK_OK(tcc_comm_all_reduce(comm, arena, arena, 100000, dtypes[F32], TCC_COMM_SUM));
    float *there = arena;
    operate(comm, there, there + 200000, 90000, 7);
    int32_t members[RANKS], n = 0;
    for (int32_t i = RANKS - 1; i >= 0; i--)
        if (!i == !ranks.rank) members[n++] = i;
    CHECK_OK(tcc_comm_subgroup(comm, members, n, &pair));
    if (ranks.rank) operate(pair, there, there + 200000, 90000, 8);
    CHECK_OK(tcc_comm_barrier(comm));
    for (size_t bytes = 1000; bytes < 1 << 20; bytes *= 30) {
        CHECK_OK(tcc_comm_scratch(comm, bytes, &arena));
        memset(arena, 0, bytes);
        CHECK_OK(tcc_comm_all_reduce(comm, arena, arena, (int64_t)bytes / 4, dtypes[F32],
                                     TCC_COMM_SUM));
    }
    CHECK_OK(tcc_comm_split(comm, ranks.rank > 0, 0, &pair));
    if (ranks.rank) operate(pair, x, y, 3000, 99);
    tcc_comm_close(pair);
    shrink_twice(comm, x, y);
    CHECK_OK(tcc_comm_barrier(comm));
    if (ranks.rank == 0)
        CHECK_OK(tcc_comm_abort(comm, "enough"));
    else
        CHECK(tcc_comm_barrier(comm) == TCC_CANCELLED, "the barrier ended");
    tcc_comm_close(comm);
    free(x);
    free(y);
    return NULL;
}

/* ---- one decision for all -------------------------------------------------------------------- */

enum { DECISIONS = 2000 };

typedef struct voter {
    tcc_shared *comms; /* DECISIONS comms */
    tcc_status thinks, decided[DECISIONS];
} voter;

static void *decide(void *argument) {
    voter *of = argument;
    for (int i = 0; i < DECISIONS; i++)
        of->decided[i] = tcc_shared_decide(&of->comms[i], of->thinks);
    return NULL;
}

/* One rank has seen all others, another gives up: the comm is made for both or for neither. */
static void check_decisions(void) {
    tcc_shared *comms = calloc(DECISIONS, sizeof *comms);
    size_t bytes = (sizeof(tcc_shared_segment) + TCC_SHARED_LINE - 1) & ~(TCC_SHARED_LINE - 1ul);
    char *segments = aligned_alloc(TCC_SHARED_LINE, DECISIONS * bytes);
    CHECK(comms && segments, "out of memory");
    memset(segments, 0, DECISIONS * bytes);
    for (int i = 0; i < DECISIONS; i++)
        comms[i].segment = (tcc_shared_segment *)(void *)(segments + (size_t)i * bytes);
    static voter voters[2];
    voters[0] = (voter){.comms = comms, .thinks = TCC_OK};
    voters[1] = (voter){.comms = comms, .thinks = TCC_TIMEOUT};
    pthread_t other;
    pthread_create(&other, NULL, decide, &voters[1]);
    decide(&voters[0]);
    pthread_join(other, NULL);
    for (int i = 0; i < DECISIONS; i++) {
        tcc_status seen = voters[0].decided[i], gave_up = voters[1].decided[i];
        CHECK((seen == TCC_OK && gave_up == TCC_OK) ||
                  (seen == TCC_PEER_DEAD && gave_up == TCC_TIMEOUT),
              "status %d on the one, %d on the other", (int)seen, (int)gave_up);
    }
    free(segments);
    free(comms);
}

int main(void) {
    check_decisions();
    pthread_t threads[RANKS];
    int numbers[RANKS];
    name = own_name("threads");
    for (int i = 0; i < RANKS; i++) {
        numbers[i] = i;
        pthread_create(&threads[i], NULL, run, &numbers[i]);
    }
    for (int i = 0; i < RANKS; i++) pthread_join(threads[i], NULL);
    puts("ok");
    return 0;
}
