/* tcc-perf: times of collectives between the processes of this host, with the flags of nccl-tests.
 *
 *     tcc-perf [KIND] [-b MIN] [-e MAX] [-f FACTOR] [-n RUNS] [-w WARMUP] [-g RANKS] [-c 0|1]
 *              [-s] [-r] [-p] [-k BACKEND]
 *
 * Compile it with cc -O2 -Iinclude bench/perf.c -Llib -ltcc_comm -o tcc-perf in the runtime's
 * folder.
 *
 * KIND: all_reduce (if not given), reduce_scatter, all_gather, all_to_all or broadcast, of f32 by
 * sum. -b, -e: bytes, as in 8, 4K, 32M.  -f: the next size is FACTOR times the last.  -g:
 * processes, which this program starts; without it a launcher's environment says which rank this
 * one is.  -c 1 checks all results.  -s: buffers in the symmetric arena.  -r: before every run each
 * rank writes all that it sends, as a kernel would, and waits for the others.  -p: each rank is
 * pinned to one CPU.
 *
 * A size is that of all ranks' data together where an operation gathers or scatters, as in
 * nccl-tests. algbw is bytes over mean time; busbw is algbw times 2 (n - 1) / n for all_reduce, (n
 * - 1) / n for the three that gather or scatter, 1 for broadcast.  copy is the median time of a
 * memcpy of as many bytes in all ranks at once, measured between the runs of that size; copies is
 * p50 over copy. Times are microseconds, bandwidths GB/s (10^9), both of rank 0. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tcc_comm.h"

typedef struct options {
    int kind;
    int64_t least, most, factor, runs, warmup;
    int32_t ranks; /* 0: the launcher's */
    bool check, symmetric, rewrites, pinned;
    const char *backend, *name;
} options;

typedef struct kind_row {
    const char *name;
    tcc_comm_kind kind;
    bool parts; /* the size is that of all ranks together */
    double bus; /* busbw is algbw times this times (n - 1) / n */
} kind_row;

static const kind_row kinds[] = {
    {"all_reduce", TCC_COMM_ALL_REDUCE, false, 2},
    {"reduce_scatter", TCC_COMM_REDUCE_SCATTER, true, 1},
    {"all_gather", TCC_COMM_ALL_GATHER, true, 1},
    {"all_to_all", TCC_COMM_ALL_TO_ALL, true, 1},
    {"broadcast", TCC_COMM_BROADCAST, false, 0},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static void fail(const char *what) {
    fprintf(stderr, "tcc-perf: %s\n", what);
    exit(1);
}

static void must(tcc_status status) {
    if (status != TCC_OK) fail(tcc_comm_last_error());
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec * 1e-3;
}

static int by_time(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return left < right ? -1 : left > right;
}

static double share_of(double *times, int64_t n, double share) {
    qsort(times, (size_t)n, sizeof *times, by_time);
    int64_t which = (int64_t)(share * (double)n);
    return times[which < n ? which : n - 1];
}

/* ---- one size -------------------------------------------------------------------------------- */

typedef struct bench {
    const options *asked;
    tcc_comm *comm;
    char *send, *receive; /* `most` bytes each */
    double *times, *copies;
} bench;

/* Whole numbers, so that any order of additions gives the same. */
static float value_of(int32_t rank, int64_t index) {
    return (float)((index * 7 + rank * 3) % 1024);
}

static float expected(const bench *b, int64_t count, int64_t index) {
    int32_t rank = tcc_comm_rank(b->comm), size = tcc_comm_size(b->comm);
    int64_t part = count > 0 ? index / count : 0;
    float sum = 0;
    switch (kinds[b->asked->kind].kind) {
    case TCC_COMM_ALL_GATHER: return value_of((int32_t)part, index % count);
    case TCC_COMM_ALL_TO_ALL: return value_of((int32_t)part, rank * count + index % count);
    case TCC_COMM_BROADCAST: return value_of(0, index);
    case TCC_COMM_REDUCE_SCATTER: index += rank * count; break;
    default: break;
    }
    for (int32_t i = 0; i < size; i++) sum += value_of(i, index);
    return sum;
}

static int64_t count_wrong(const bench *b, tcc_comm_plan *plan, int64_t count, int64_t out) {
    int64_t wrong = 0, all = b->asked->most / 4;
    for (int64_t i = 0; i < all; i++)
        ((float *)(void *)b->send)[i] = value_of(tcc_comm_rank(b->comm), i);
    must(tcc_comm_plan_post(plan, b->send, b->receive));
    const float *found = (const float *)(const void *)b->receive;
    for (int64_t i = 0; i < out; i++) wrong += found[i] != expected(b, count, i);
    return wrong;
}

static void run_size(bench *b, int64_t bytes) {
    const kind_row *kind = &kinds[b->asked->kind];
    int32_t n = tcc_comm_size(b->comm), rank = tcc_comm_rank(b->comm);
    int64_t count = bytes / 4 / (kind->parts ? n : 1), all = kind->parts ? count * n : count;
    int64_t out = kind->kind == TCC_COMM_REDUCE_SCATTER ? count : all, runs = b->asked->runs;
    tcc_comm_call call = {
        .struct_size = sizeof call, .kind = kind->kind, .dtype = {2, 32, 1}, .count = count};
    tcc_comm_plan *plan;
    must(tcc_comm_plan_make(b->comm, &call, &plan));
    int64_t wrong = b->asked->check ? count_wrong(b, plan, count, out) : 0;
    double total = 0;
    for (int64_t i = -b->asked->warmup; i < runs; i++) {
        if (b->asked->rewrites) {
            memset(b->send, (int)(i & 31), (size_t)(all * 4));
            must(tcc_comm_barrier(b->comm));
        }
        double began = now();
        must(tcc_comm_plan_post(plan, b->send, b->receive));
        double ended = now();
        if (i < 0) continue;
        b->times[i] = ended - began;
        total += ended - began;
    }
    for (int64_t i = 0; i < runs; i++) {
        must(tcc_comm_barrier(b->comm));
        double began = now();
        memcpy(b->receive, b->send, (size_t)(all * 4));
        b->copies[i] = now() - began;
    }
    tcc_comm_plan_free(plan);
    if (rank) return;
    double p50 = share_of(b->times, runs, 0.5), p99 = share_of(b->times, runs, 0.99);
    double mean = total / (double)runs, copy = share_of(b->copies, runs, 0.5);
    double algorithm = (double)(all * 4) / mean * 1e-3;
    double bus = kind->bus > 0 ? algorithm * kind->bus * (n - 1) / n : algorithm;
    printf("%12lld %12lld %9.2f %9.2f %9.2f %8.2f %8.2f %9.2f %7.2f ", (long long)(all * 4),
           (long long)count, mean, p50, p99, algorithm, bus, copy, p50 / copy);
    if (b->asked->check)
        printf("%6lld\n", (long long)wrong);
    else
        printf("%6s\n", "-");
    fflush(stdout);
}

/* ---- one rank -------------------------------------------------------------------------------- */

static void run_rank(const options *asked, int32_t rank) {
    bench b = {.asked = asked};
    tcc_comm_config config = TCC_COMM_CONFIG;
    if (asked->ranks) {
        config.rank = rank;
        config.size = asked->ranks;
        config.rendezvous = asked->name;
    }
    config.backends = asked->backend;
    must(tcc_comm_open(&config, &b.comm));
    if (asked->pinned) {
        cpu_set_t cpus;
        CPU_ZERO(&cpus);
        CPU_SET((size_t)(tcc_comm_rank(b.comm) % sysconf(_SC_NPROCESSORS_ONLN)), &cpus);
        if (sched_setaffinity(0, sizeof cpus, &cpus)) fail("a CPU to pin to");
    }
    size_t bytes = (size_t)asked->most + 4096;
    void *arena = NULL;
    if (asked->symmetric) {
        must(tcc_comm_symmetric(b.comm, 2 * bytes, &arena));
    } else if (posix_memalign(&arena, 4096, 2 * bytes)) {
        fail("out of memory");
    }
    memset(arena, 0, 2 * bytes);
    b.send = arena;
    b.receive = b.send + bytes;
    b.times = calloc((size_t)asked->runs, sizeof *b.times);
    b.copies = calloc((size_t)asked->runs, sizeof *b.copies);
    if (!b.times || !b.copies) fail("out of memory");
    if (tcc_comm_rank(b.comm) == 0)
        printf("# %s of f32 by sum, %d ranks, backend %s%s%s\n"
               "# %10s %12s %9s %9s %9s %8s %8s %9s %7s %6s\n",
               kinds[asked->kind].name, tcc_comm_size(b.comm), tcc_comm_backend_name(b.comm),
               asked->symmetric ? ", symmetric" : "", asked->pinned ? ", pinned" : "", "bytes",
               "count", "mean us", "p50 us", "p99 us", "algbw", "busbw", "copy us", "copies",
               "wrong");
    for (int64_t size = asked->least; size <= asked->most; size *= asked->factor)
        run_size(&b, size);
    free(b.times);
    free(b.copies);
    tcc_comm_close(b.comm);
    if (!asked->symmetric) free(arena);
}

/* ---- options --------------------------------------------------------------------------------- */

static int64_t number_of(const char *text) {
    char *end;
    long long number = strtoll(text, &end, 10);
    if (*end == 'K' || *end == 'k')
        number <<= 10, end++;
    else if (*end == 'M' || *end == 'm')
        number <<= 20, end++;
    else if (*end == 'G' || *end == 'g')
        number <<= 30, end++;
    if (*end || number < 0 || end == text) fail("expected a number such as 8, 4K or 32M");
    return number;
}

static void take_option(options *out, int flag) {
    switch (flag) {
    case 'b': out->least = number_of(optarg); break;
    case 'e': out->most = number_of(optarg); break;
    case 'f': out->factor = number_of(optarg); break;
    case 'n': out->runs = number_of(optarg); break;
    case 'w': out->warmup = number_of(optarg); break;
    case 'g': out->ranks = (int32_t)number_of(optarg); break;
    case 'c': out->check = number_of(optarg) != 0; break;
    case 's': out->symmetric = true; break;
    case 'r': out->rewrites = true; break;
    case 'p': out->pinned = true; break;
    case 'k': out->backend = optarg; break;
    default: exit(2);
    }
}

static options read_options(int argc, char **argv) {
    options out = {.least = 8, .most = 32 << 20, .factor = 2, .runs = 20, .warmup = 5};
    if (argc > 1 && argv[1][0] != '-') {
        for (out.kind = 0; out.kind < KINDS && strcmp(kinds[out.kind].name, argv[1]); out.kind++) {
        }
        if (out.kind == KINDS)
            fail("KIND is all_reduce, reduce_scatter, all_gather, all_to_all or broadcast");
        argc--;
        argv++;
    }
    for (int flag; (flag = getopt(argc, argv, "b:e:f:n:w:g:c:srpk:")) != -1;)
        take_option(&out, flag);
    if (out.factor < 2 || out.runs < 1 || out.least < 4 || out.most < out.least || optind < argc)
        fail("expected FACTOR > 1, RUNS > 0 and 4 <= MIN <= MAX");
    return out;
}

int main(int argc, char **argv) {
    options asked = read_options(argc, argv);
    char name[64];
    snprintf(name, sizeof name, "tcc-perf-%d", (int)getpid());
    asked.name = name;
    for (int32_t i = 1; i < asked.ranks; i++) {
        pid_t child = fork();
        if (child < 0) fail("fork failed");
        if (child) continue;
        run_rank(&asked, i);
        return 0;
    }
    run_rank(&asked, 0);
    int status, bad = 0;
    while (wait(&status) > 0) bad |= status;
    return bad != 0;
}
