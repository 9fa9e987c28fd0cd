/* tcc-perf: times of collectives between processes.  `tcc-perf --help` says how it is used.
 *
 * Compile it with cc -O2 -Iinclude bench/perf.c -Llib -ltcc_comm -o tcc-perf in the runtime's
 * folder. */
#define _GNU_SOURCE
#include <getopt.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tcc_comm.h"

static const char help[] =
    "tcc-perf [KIND] [OPTION ...]: times a collective between processes, size by size.\n"
    "\n"
    "KIND: all_reduce (if not given), reduce_scatter, all_gather, all_gather_v, all_to_all,\n"
    "all_to_all_v, broadcast, sendrecv or barrier.  In sendrecv each rank sends to the next and\n"
    "receives from the one before.  Ranks have unequal parts in the kinds with _v: rank r has r + 1\n"
    "shares of all_gather_v, and of all_to_all_v rank i sends (i + j) % n + 1 shares to rank j.\n"
    "A barrier has one size, 0.\n"
    "\n"
    "Options of nccl-tests:\n"
    "  -b, --minbytes N     the first size, as in 8, 4K, 32M (8)\n"
    "  -e, --maxbytes N     the last size (32M)\n"
    "  -f, --stepfactor N   the next size is N times the last (2)\n"
    "  -i, --stepbytes N    the next size is N bytes more\n"
    "  -n, --iters N        timed operations of a size (20)\n"
    "  -w, --warmup_iters N operations before them (5)\n"
    "  -m, --agg_iters N    operations in one group; times are of one (1)\n"
    "  -c, --check 0|1      whether results are checked (1)\n"
    "  -o, --op NAME        sum, prod, min, max, avg or all (sum)\n"
    "  -d, --datatype NAME  f32 (float), f64 (double), f16 (half), bf16 (bfloat16), i8 (int8),\n"
    "                       u8 (uint8), i32 (int32), i64 (int64) or all (f32)\n"
    "  -r, --root RANK      of a broadcast (0)\n"
    "  -a, --average N      times are 0: rank 0's, 1: the mean of all ranks', 2: the least,\n"
    "                       3: the most (1)\n"
    "  -T, --timeout N      seconds that an operation waits without progress (300)\n"
    "  -g, --ngpus N        processes, one a rank, which this program starts; without it a\n"
    "                       launcher says which rank this process is\n"
    "Others:\n"
    "  --symmetric          buffers lie in the symmetric arena\n"
    "  --rewrite            before every operation each rank writes all that it sends, as a\n"
    "                       kernel would, and waits for the others\n"
    "  --pin                each rank runs on one CPU\n"
    "  --backend NAMES      as in tcc_comm_config\n"
    "\n"
    "A size is that of all ranks' data together where an operation gathers or scatters.\n"
    "algbw is bytes over the mean time; busbw is algbw times 2 (n - 1) / n for all_reduce,\n"
    "(n - 1) / n for those that gather or scatter, 1 for broadcast and sendrecv (as in\n"
    "doc/PERFORMANCE.md of nccl-tests).  copy is the median time of a memcpy of as many bytes in\n"
    "all ranks at once, taken behind the operations of that size, and copies is p50 over copy.\n"
    "Times are microseconds, bandwidths GB/s (10^9).\n"
    "Exit code: 1 where a result is wrong or an operation fails, 2 for a wrong option.\n"
    "\n"
    "  tcc-perf all_reduce -g 2 --pin -b 4K -e 32M\n"
    "  mpiexec -n 4 tcc-perf all_to_all -d bf16 --backend mpi\n";

typedef struct options {
    int kind, first_type, last_type, first_op, last_op, average;
    int64_t min_bytes, max_bytes, factor, step, runs, warmup, group, root, seconds;
    int32_t ranks; /* 0: as the launcher says */
    bool check, symmetric, rewrites, pinned;
    const char *backend, *name;
} options;

typedef struct kind_row {
    const char *name;
    tcc_comm_kind kind;
    bool parts;  /* the size counts all ranks' data together */
    bool ragged; /* the ranks' parts have different sizes */
    double bus;  /* busbw is algbw times `bus` times (n - 1) / n; 0: busbw is algbw */
} kind_row;

static const kind_row kinds[] = {
    {"all_reduce", TCC_COMM_ALL_REDUCE, false, false, 2},
    {"reduce_scatter", TCC_COMM_REDUCE_SCATTER, true, false, 1},
    {"all_gather", TCC_COMM_ALL_GATHER, true, false, 1},
    {"all_gather_v", TCC_COMM_ALL_GATHER_V, true, true, 1},
    {"all_to_all", TCC_COMM_ALL_TO_ALL, true, false, 1},
    {"all_to_all_v", TCC_COMM_ALL_TO_ALL_V, true, true, 1},
    {"broadcast", TCC_COMM_BROADCAST, false, false, 0},
    {"sendrecv", TCC_COMM_SEND, false, false, 0},
    {"barrier", TCC_COMM_BARRIER, false, false, 0},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

typedef struct type_row {
    const char *name, *other; /* the name that nccl-tests uses */
    tcc_dtype dtype;
} type_row;

static const type_row types[] = {
    {"f32", "float", {2, 32, 1}},     {"f64", "double", {2, 64, 1}}, {"f16", "half", {2, 16, 1}},
    {"bf16", "bfloat16", {4, 16, 1}}, {"i8", "int8", {0, 8, 1}},     {"u8", "uint8", {1, 8, 1}},
    {"i32", "int32", {0, 32, 1}},     {"i64", "int64", {0, 64, 1}},
};
enum { TYPES = sizeof types / sizeof *types };

/* values of tcc_comm_reduction */
static const char *const ops[] = {"sum", "prod", "min", "max", "avg"};
enum { OPS = sizeof ops / sizeof *ops };

static void fail(const char *problem) {
    fprintf(stderr, "tcc-perf: %s\n", problem);
    exit(1);
}

static void misuse(const char *option, const char *expected) {
    fprintf(stderr, "tcc-perf: %s: expected %s; see tcc-perf --help\n", option, expected);
    exit(2);
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
    int64_t index = (int64_t)(share * (double)n);
    return times[index < n ? index : n - 1];
}

/* ---- values, which are exact in every type --------------------------------------------------- */

/* Returns rank r's element `index`.  The values are small enough that a product over all ranks is
 * at most 128, and the mean is a whole number. */
static int64_t value_of(int op, int32_t rank, int32_t size, int64_t index) {
    int64_t draw = index * 7 + rank * 3 + index / 5;
    if (op == TCC_COMM_PROD) return rank < 7 ? 1 + draw % 2 : 1;
    if (op != TCC_COMM_AVG) return draw % 4;
    bool paired = rank % 2 || rank + 1 < size; /* ranks 2k and 2k + 1 deviate by opposite amounts */
    return index % 5 + 1 + (paired ? 1 - rank % 2 * 2 : 0);
}

/* Stores a whole number from 0 to 255 as `type`; a bf16 holds it exactly. */
static void store(const type_row *type, int64_t value, char *out) {
    float number = (float)value;
    double wide = (double)value;
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    if (type->dtype.code == 4)
        bits >>= 16;
    else if (type->dtype.code == 2 && type->dtype.bits == 16)
        bits = bits ? (bits - ((127 - 15) << 23)) >> 13 : 0;
    else if (type->dtype.code == 2 && type->dtype.bits == 64)
        memcpy(&value, &wide, sizeof value);
    else if (type->dtype.code != 2)
        bits = (uint32_t)value;
    memcpy(out, type->dtype.bits == 64 ? (const void *)&value : &bits, type->dtype.bits / 8);
}

static int64_t reduced(int op, int32_t size, int64_t index) {
    int64_t result = value_of(op, 0, size, index);
    for (int32_t rank = 1; rank < size; rank++) {
        int64_t next = value_of(op, rank, size, index);
        switch (op) {
        case TCC_COMM_PROD: result *= next; break;
        case TCC_COMM_MIN: result = next < result ? next : result; break;
        case TCC_COMM_MAX: result = next > result ? next : result; break;
        default: result += next; break;
        }
    }
    return op == TCC_COMM_AVG ? result / size : result;
}

/* ---- one size -------------------------------------------------------------------------------- */

typedef struct bench {
    const options *options;
    tcc_comm *comm;
    const type_row *type;
    int op;
    tcc_comm_plan *plans[2]; /* plans of one operation; sendrecv has two */
    int64_t *counts;         /* elements from each rank, where an operation gathers */
    char *send, *receive;    /* `max_bytes` bytes each */
    double *times, *copies;
    int64_t wrong; /* wrong elements of all sizes */
} bench;

/* Returns the number of elements that rank `from` has for rank `to`, if it has `all` elements for
 * all ranks together. */
static int64_t part_of(const kind_row *kind, int64_t all, int32_t size, int32_t from, int32_t to) {
    if (!kind->ragged) return all / size;
    int64_t turn = kind->kind == TCC_COMM_ALL_TO_ALL_V ? (from + to) % size : from;
    int64_t share = all * 2 / ((int64_t)size * (size + 1)), remainder = all;
    for (int64_t i = 1; i < size; i++) remainder -= i * share;
    return turn + 1 < size ? (turn + 1) * share : remainder;
}

/* Returns where the elements for rank `to` begin in the data that rank `from` sends. */
static int64_t place_of_part(const kind_row *kind, int64_t all, int32_t size, int32_t from,
                             int32_t to) {
    int64_t place = 0;
    for (int32_t i = 0; i < to; i++) place += part_of(kind, all, size, from, i);
    return place;
}

/* Returns the expected element at `index` of the received data.  `all` counts the elements of all
 * ranks together. */
static int64_t expected(const bench *b, int64_t all, int64_t index) {
    const kind_row *kind = &kinds[b->options->kind];
    int32_t rank = tcc_comm_rank(b->comm), size = tcc_comm_size(b->comm), from = 0;
    switch (kind->kind) {
    case TCC_COMM_ALL_GATHER:
    case TCC_COMM_ALL_GATHER_V:
        while (index >= b->counts[from]) index -= b->counts[from++];
        return value_of(b->op, from, size, index);
    case TCC_COMM_ALL_TO_ALL:
    case TCC_COMM_ALL_TO_ALL_V:
        while (index >= b->counts[from]) index -= b->counts[from++];
        return value_of(b->op, from, size, place_of_part(kind, all, size, from, rank) + index);
    case TCC_COMM_BROADCAST: return value_of(b->op, (int32_t)b->options->root, size, index);
    case TCC_COMM_SEND: return value_of(b->op, (rank + size - 1) % size, size, index);
    case TCC_COMM_REDUCE_SCATTER: return reduced(b->op, size, rank * (all / size) + index);
    default: return reduced(b->op, size, index);
    }
}

/* Posts operations that begin together, or a single operation. */
static void post(const bench *b, int64_t n) {
    bool grouped = n > 1 || b->plans[1];
    if (grouped) must(tcc_comm_group_start(b->comm));
    for (int64_t i = 0; i < n; i++)
        for (int index = 0; index < 2 && b->plans[index]; index++)
            must(tcc_comm_plan_post(b->plans[index], b->send, b->receive));
    if (grouped) must(tcc_comm_group_end(b->comm));
}

static int64_t count_wrong(const bench *b, int64_t all, int64_t sent, int64_t out) {
    size_t width = b->type->dtype.bits / 8;
    int32_t rank = tcc_comm_rank(b->comm), size = tcc_comm_size(b->comm);
    for (int64_t i = 0; i < sent; i++)
        store(b->type, value_of(b->op, rank, size, i), b->send + (size_t)i * width);
    memset(b->receive, 0xa5, (size_t)out * width);
    post(b, 1);
    int64_t wrong = 0;
    for (int64_t i = 0; i < out; i++) {
        char right[8];
        store(b->type, expected(b, all, i), right);
        wrong += memcmp(right, b->receive + (size_t)i * width, width) != 0;
    }
    int64_t total = 0;
    must(tcc_comm_all_reduce(b->comm, &wrong, &total, 1, (tcc_dtype){0, 64, 1}, TCC_COMM_SUM));
    return total;
}

/* Returns the mean microseconds of one operation. */
static double time_runs(bench *b, size_t bytes) {
    int64_t runs = b->options->runs;
    double total = 0;
    for (int64_t i = -b->options->warmup; i < runs; i++) {
        if (b->options->rewrites) {
            memset(b->send, (int)(i & 31), bytes);
            must(tcc_comm_barrier(b->comm));
        }
        double began = now();
        post(b, b->options->group);
        double took = (now() - began) / (double)b->options->group;
        if (i < 0) continue;
        b->times[i] = took;
        total += took;
    }
    for (int64_t i = 0; i < runs; i++) {
        must(tcc_comm_barrier(b->comm));
        double began = now();
        memcpy(b->receive, b->send, bytes);
        b->copies[i] = now() - began;
    }
    return total / (double)runs;
}

enum { MEAN, P50, P99, MOST, COPY, FIGURES };

/* Combines the ranks' measurements. */
static void combine(const bench *b, double figures[FIGURES]) {
    static const tcc_comm_reduction ways[] = {0, TCC_COMM_AVG, TCC_COMM_MIN, TCC_COMM_MAX};
    if (b->options->average)
        must(tcc_comm_all_reduce(b->comm, figures, figures, FIGURES, (tcc_dtype){2, 64, 1},
                                 ways[b->options->average]));
}

/* Makes the plans of one operation with this many elements. */
static void make_plans(bench *b, int64_t count) {
    const kind_row *kind = &kinds[b->options->kind];
    int32_t rank = tcc_comm_rank(b->comm), n = tcc_comm_size(b->comm);
    tcc_comm_call call = {.struct_size = sizeof call,
                          .kind = kind->kind,
                          .dtype = b->type->dtype,
                          .count = count,
                          .reduction = (tcc_comm_reduction)b->op,
                          .root = (int32_t)b->options->root};
    if (kind->ragged) call.send_counts = call.receive_counts = b->counts;
    if (kind->kind == TCC_COMM_SEND) call.root = (rank + 1) % n;
    must(tcc_comm_plan_make(b->comm, &call, &b->plans[0]));
    b->plans[1] = NULL;
    if (kind->kind != TCC_COMM_SEND) return;
    call.kind = TCC_COMM_RECEIVE;
    call.root = (rank + n - 1) % n;
    must(tcc_comm_plan_make(b->comm, &call, &b->plans[1]));
}

static void run_size(bench *b, int64_t bytes) {
    const kind_row *kind = &kinds[b->options->kind];
    int32_t rank = tcc_comm_rank(b->comm), n = tcc_comm_size(b->comm);
    int64_t width = b->type->dtype.bits / 8, runs = b->options->runs;
    int64_t count = bytes / width / (kind->parts ? n : 1);
    int64_t all = kind->ragged ? bytes / width : kind->parts ? count * n : count;
    for (int32_t i = 0; i < n; i++) b->counts[i] = part_of(kind, all, n, i, rank);
    bool gathers = kind->kind == TCC_COMM_ALL_GATHER || kind->kind == TCC_COMM_ALL_GATHER_V;
    int64_t sent = gathers ? b->counts[rank] : all;
    int64_t out = kind->kind == TCC_COMM_REDUCE_SCATTER ? count : all;
    make_plans(b, kind->ragged ? 0 : count);
    int64_t wrong = b->options->check ? count_wrong(b, all, sent, out) : 0;
    double figures[FIGURES] = {time_runs(b, (size_t)(all * width))};
    for (int index = 0; index < 2; index++)
        if (b->plans[index]) tcc_comm_plan_free(b->plans[index]);
    figures[P50] = share_of(b->times, runs, 0.5);
    figures[P99] = share_of(b->times, runs, 0.99);
    figures[MOST] = share_of(b->times, runs, 1);
    figures[COPY] = share_of(b->copies, runs, 0.5);
    combine(b, figures);
    b->wrong += wrong;
    if (rank) return;
    double algorithm = (double)(all * width) / figures[MEAN] * 1e-3;
    double bus = kind->bus > 0 ? algorithm * kind->bus * (n - 1) / n : algorithm;
    printf("%12lld %12lld %5s %5s %9.2f %9.2f %9.2f %9.2f %8.2f %8.2f %9.2f %7.2f ",
           (long long)(all * width), (long long)count, b->type->name, ops[b->op], figures[MEAN],
           figures[P50], figures[P99], figures[MOST], algorithm, bus, figures[COPY],
           all ? figures[P50] / figures[COPY] : 0);
    if (b->options->check)
        printf("%6lld\n", (long long)wrong);
    else
        printf("%6s\n", "-");
    fflush(stdout);
}

/* ---- one rank -------------------------------------------------------------------------------- */

static void print_head(const bench *b) {
    const options *its = b->options;
    if (tcc_comm_rank(b->comm)) return;
    printf("# %s, %d ranks, backend %s%s%s\n"
           "# %10s %12s %5s %5s %9s %9s %9s %9s %8s %8s %9s %7s %6s\n",
           kinds[its->kind].name, tcc_comm_size(b->comm), tcc_comm_backend_name(b->comm),
           its->symmetric ? ", symmetric" : "", its->pinned ? ", pinned" : "", "bytes", "count",
           "type", "op", "mean", "p50", "p99", "max", "algbw", "busbw", "copy", "copies", "wrong");
}

static void open_comm(bench *b, int32_t rank) {
    const options *its = b->options;
    tcc_comm_config config = TCC_COMM_CONFIG;
    if (its->ranks) {
        config.rank = rank;
        config.size = its->ranks;
        config.rendezvous = its->name;
    }
    config.backends = its->backend;
    config.operation_milliseconds = (int32_t)its->seconds * 1000;
    must(tcc_comm_open(&config, &b->comm));
    if (its->root >= tcc_comm_size(b->comm)) misuse("--root", "a rank");
    if (kinds[its->kind].kind == TCC_COMM_SEND && tcc_comm_size(b->comm) < 2)
        misuse("sendrecv", "2 or more ranks");
    if (!its->pinned) return;
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET((size_t)(tcc_comm_rank(b->comm) % sysconf(_SC_NPROCESSORS_ONLN)), &cpus);
    if (sched_setaffinity(0, sizeof cpus, &cpus)) fail("a CPU to pin to");
}

/* Runs one rank; returns true if all results are right. */
static bool run_rank(const options *its, int32_t rank) {
    bench b = {.options = its};
    open_comm(&b, rank);
    size_t bytes = (size_t)its->max_bytes + 4096;
    void *arena = NULL;
    if (its->symmetric)
        must(tcc_comm_symmetric(b.comm, 2 * bytes, &arena));
    else if (posix_memalign(&arena, 4096, 2 * bytes))
        fail("out of memory");
    memset(arena, 0, 2 * bytes);
    b.send = arena;
    b.receive = b.send + bytes;
    b.times = calloc((size_t)its->runs, sizeof *b.times);
    b.copies = calloc((size_t)its->runs, sizeof *b.copies);
    b.counts = calloc((size_t)tcc_comm_size(b.comm), sizeof *b.counts);
    if (!b.times || !b.copies || !b.counts) fail("out of memory");
    print_head(&b);
    for (int type = its->first_type; type <= its->last_type; type++)
        for (b.op = its->first_op; b.op <= its->last_op; b.op++) {
            b.type = &types[type];
            bool sized = kinds[its->kind].kind != TCC_COMM_BARRIER;
            if (!sized) run_size(&b, 0);
            for (int64_t size = its->min_bytes; sized && size <= its->max_bytes;
                 size = its->step ? size + its->step : size * its->factor)
                run_size(&b, size);
        }
    free(b.times);
    free(b.copies);
    free(b.counts);
    tcc_comm_close(b.comm);
    if (!its->symmetric) free(arena);
    return b.wrong == 0;
}

/* ---- options --------------------------------------------------------------------------------- */

static int64_t number_of(const char *text) {
    char *end;
    long long number = strtoll(text, &end, 10);
    const char *units = "KMG", *unit = *end ? strchr(units, *end & ~32) : NULL;
    int shift = unit ? 10 * (int)(unit - units + 1) : 0;
    if (unit) end++;
    if (*end || number < 0 || end == text || number > INT64_MAX >> shift)
        misuse(text, "a number such as 8, 4K or 32M");
    return number << shift;
}

static void name_type(options *out, const char *name) {
    out->first_type = 0;
    out->last_type = TYPES - 1;
    if (strcmp(name, "all") == 0) return;
    for (int i = 0; i < TYPES; i++)
        if (strcmp(types[i].name, name) == 0 || strcmp(types[i].other, name) == 0) {
            out->first_type = out->last_type = i;
            return;
        }
    misuse(name, "a datatype");
}

static void name_op(options *out, const char *name) {
    out->first_op = 0;
    out->last_op = OPS - 1;
    if (strcmp(name, "all") == 0) return;
    for (int i = 0; i < OPS; i++)
        if (strcmp(ops[i], name) == 0) {
            out->first_op = out->last_op = i;
            return;
        }
    misuse(name, "sum, prod, min, max, avg or all");
}

enum { SYMMETRIC = 256, REWRITE, PIN, BACKEND };

static const struct option long_options[] = {
    {"minbytes", 1, NULL, 'b'},    {"maxbytes", 1, NULL, 'e'},
    {"stepfactor", 1, NULL, 'f'},  {"stepbytes", 1, NULL, 'i'},
    {"iters", 1, NULL, 'n'},       {"warmup_iters", 1, NULL, 'w'},
    {"agg_iters", 1, NULL, 'm'},   {"check", 1, NULL, 'c'},
    {"op", 1, NULL, 'o'},          {"datatype", 1, NULL, 'd'},
    {"root", 1, NULL, 'r'},        {"average", 1, NULL, 'a'},
    {"timeout", 1, NULL, 'T'},     {"ngpus", 1, NULL, 'g'},
    {"help", 0, NULL, 'h'},        {"symmetric", 0, NULL, SYMMETRIC},
    {"rewrite", 0, NULL, REWRITE}, {"pin", 0, NULL, PIN},
    {"backend", 1, NULL, BACKEND}, {NULL, 0, NULL, 0},
};

/* Returns the place of an option's number, or NULL. */
static int64_t *place_of(options *out, int flag) {
    switch (flag) {
    case 'b': return &out->min_bytes;
    case 'e': return &out->max_bytes;
    case 'f': return &out->factor;
    case 'i': return &out->step;
    case 'n': return &out->runs;
    case 'w': return &out->warmup;
    case 'm': return &out->group;
    case 'r': return &out->root;
    case 'T': return &out->seconds;
    default: return NULL;
    }
}

static void take_option(options *out, int flag) {
    int64_t *place = place_of(out, flag);
    if (place) {
        *place = number_of(optarg);
        return;
    }
    switch (flag) {
    case 'c': out->check = number_of(optarg) != 0; break;
    case 'g': out->ranks = (int32_t)number_of(optarg); break;
    case 'a': out->average = (int)number_of(optarg); break;
    case 'o': name_op(out, optarg); break;
    case 'd': name_type(out, optarg); break;
    case SYMMETRIC: out->symmetric = true; break;
    case REWRITE: out->rewrites = true; break;
    case PIN: out->pinned = true; break;
    case BACKEND: out->backend = optarg; break;
    case 'h': fputs(help, stdout); exit(0);
    default: exit(2);
    }
}

static options read_options(int argc, char **argv) {
    options out = {.min_bytes = 8,
                   .max_bytes = 32 << 20,
                   .factor = 2,
                   .runs = 20,
                   .warmup = 5,
                   .group = 1,
                   .average = 1,
                   .check = true,
                   .seconds = 300};
    if (argc > 1 && argv[1][0] != '-') {
        while (out.kind < KINDS && strcmp(kinds[out.kind].name, argv[1])) out.kind++;
        if (out.kind == KINDS) misuse(argv[1], "a KIND");
        argc--;
        argv++;
    }
    for (int flag; (flag = getopt_long(argc, argv, "b:e:f:i:n:w:m:c:o:d:r:a:T:g:h", long_options,
                                       NULL)) != -1;)
        take_option(&out, flag);
    if (optind < argc) misuse(argv[optind], "options alone after KIND");
    if (out.factor < 2 || out.runs < 1 || out.group < 1 || out.min_bytes < 8 || out.max_bytes < out.min_bytes ||
        out.max_bytes > INT64_C(1) << 40)
        misuse("sizes", "a factor of 2 or more, operations, and 8 <= MIN <= MAX <= 1024G");
    if (out.average > 3 || out.ranks > 1024 || out.seconds > 1000000)
        misuse("--average, --ngpus, --timeout", "0 to 3, at most 1024, at most 1000000");
    return out;
}

int main(int argc, char **argv) {
    options its = read_options(argc, argv);
    char name[64];
    snprintf(name, sizeof name, "tcc-perf-%d", (int)getpid());
    its.name = name;
    for (int32_t i = 1; i < its.ranks; i++) {
        pid_t child = fork();
        if (child < 0) fail("fork failed");
        if (child == 0) return !run_rank(&its, i);
    }
    bool bad = !run_rank(&its, 0);
    for (int status; wait(&status) > 0;) bad |= status != 0;
    return bad;
}
