/* Reads the environment variables that launchers set. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launchers.h"

/* One launcher's variables; NULL where it has no such variable.  Launchers nest: Slurm and
 * Kubernetes start other launchers, whose ranks are finer.  Their variables (`outer`) therefore
 * count only without an inner launcher's. */
typedef struct launcher {
    const char *rank, *size, *local_rank, *local_size, *epoch;
    const char *marker;     /* must be set, too */
    const char *meeting[3]; /* variables that together name the job */
    const char *node;       /* this host's number, where the local size is a list by host */
    const char *nodes;      /* the list of hosts: ranks meet at a port of the first host, derived
                               from the job */
    int32_t port_offset;    /* 1: the launcher itself listens at the meeting's port */
    bool outer;
} launcher;

static const launcher launchers[] = {
    {.rank = "TCC_RANK",
     .size = "TCC_SIZE",
     .local_rank = "TCC_LOCAL_RANK",
     .local_size = "TCC_LOCAL_SIZE",
     .epoch = "TCC_EPOCH",
     .meeting = {"TCC_RENDEZVOUS"}},
    /* torchrun */
    {.rank = "RANK",
     .size = "WORLD_SIZE",
     .local_rank = "LOCAL_RANK",
     .local_size = "LOCAL_WORLD_SIZE",
     .epoch = "TORCHELASTIC_RESTART_COUNT",
     .marker = "MASTER_ADDR",
     .meeting = {"MASTER_ADDR", "MASTER_PORT"},
     .port_offset = 1},
    /* Open MPI */
    {.rank = "OMPI_COMM_WORLD_RANK",
     .size = "OMPI_COMM_WORLD_SIZE",
     .local_rank = "OMPI_COMM_WORLD_LOCAL_RANK",
     .local_size = "OMPI_COMM_WORLD_LOCAL_SIZE",
     .meeting = {"PMIX_NAMESPACE"}},
    /* Hydra, of MPICH and Intel MPI */
    {.rank = "PMI_RANK",
     .size = "PMI_SIZE",
     .local_rank = "MPI_LOCALRANKID",
     .local_size = "MPI_LOCALNRANKS"},
    {.rank = "SLURM_PROCID",
     .size = "SLURM_STEP_NUM_TASKS",
     .local_rank = "SLURM_LOCALID",
     .local_size = "SLURM_STEP_TASKS_PER_NODE",
     .epoch = "SLURM_RESTART_COUNT",
     .marker = "SLURM_STEP_ID",
     .meeting = {"SLURM_JOB_ID", "SLURM_STEP_ID"},
     .node = "SLURM_NODEID",
     .nodes = "SLURM_STEP_NODELIST",
     .outer = true},
    /* Kubernetes' indexed jobs */
    {.rank = "JOB_COMPLETION_INDEX", .size = "TCC_SIZE", .outer = true},
};
enum { LAUNCHERS = sizeof launchers / sizeof *launchers };

static const tcc_launch nothing = {
    .rank = -1, .size = -1, .local_rank = -1, .local_size = -1, .epoch = -1};

/* ---- variables ------------------------------------------------------------------------------- */

const char *tcc_variable(const char *name) {
    const char *value = name ? secure_getenv(name) : NULL;
    return value && *value ? value : NULL;
}

/* Reads a number.  `*out` stays unchanged where the variable is not set. */
static tcc_status number_of(const char *name, int32_t *out) {
    const char *value = tcc_variable(name);
    if (!value) return TCC_OK;
    char *end;
    errno = 0;
    long number = strtol(value, &end, 10);
    if (errno || *end || end == value || number < 0 || number > INT32_MAX)
        return tcc_fail(TCC_INVALID_ARGUMENT, "%s=%s: expected a number from 0 on", name, value);
    *out = (int32_t)number;
    return TCC_OK;
}

static bool is_complete(const launcher *from) {
    return tcc_variable(from->rank) && tcc_variable(from->size) &&
           (!from->marker || tcc_variable(from->marker));
}

/* Reads this host's number from a list as in "2(x3),1"; -1 where the variable for this host is not
 * set. */
static tcc_status number_of_host(const launcher *from, int32_t *out) {
    const char *list = tcc_variable(from->local_size);
    int32_t node = -1;
    TCC_RETURN_IF_ERROR(number_of(from->node, &node));
    if (!list || node < 0) return TCC_OK;
    for (const char *at = list; *at; at += *at == ',') {
        int number, hosts = 1, length = 0, more = 0;
        if (sscanf(at, "%9d%n", &number, &length) < 1 || number < 0) break;
        if (at[length] == '(' && (sscanf(at + length, "(x%9d)%n", &hosts, &more), !more)) break;
        if (node < hosts) {
            *out = number;
            return TCC_OK;
        }
        at += length + more;
        node -= hosts;
        if (*at && *at != ',') break;
    }
    return tcc_fail(TCC_INVALID_ARGUMENT, "%s=%s says no number for %s=%s", from->local_size, list,
                    from->node, tcc_variable(from->node));
}

static tcc_status read_launcher(const launcher *from, tcc_launch *out) {
    TCC_RETURN_IF_ERROR(number_of(from->rank, &out->rank));
    TCC_RETURN_IF_ERROR(number_of(from->size, &out->size));
    TCC_RETURN_IF_ERROR(number_of(from->local_rank, &out->local_rank));
    TCC_RETURN_IF_ERROR(from->node ? number_of_host(from, &out->local_size)
                                   : number_of(from->local_size, &out->local_size));
    TCC_RETURN_IF_ERROR(number_of(from->epoch, &out->epoch));
    if (out->rank >= out->size)
        return tcc_fail(TCC_INVALID_ARGUMENT, "%s=%d and %s=%d contradict: ranks count from 0",
                        from->rank, out->rank, from->size, out->size);
    if (out->local_size > out->size)
        return tcc_fail(TCC_INVALID_ARGUMENT, "%s=%d and %s=%d contradict", from->local_size,
                        out->local_size, from->size, out->size);
    if (out->local_size >= 0 && out->local_rank >= out->local_size)
        return tcc_fail(TCC_INVALID_ARGUMENT, "%s=%d and %s=%d contradict: ranks count from 0",
                        from->local_rank, out->local_rank, from->local_size, out->local_size);
    return TCC_OK;
}

/* Copies the first host of Slurm's list, as in "a", "a,b" and "a[01-04,7],b". */
static void copy_first_host(const char *list, char *out, size_t room) {
    size_t used = 0;
    for (bool inside = false; *list && used + 1 < room; list++) {
        if (*list == ',' || *list == ']' || (inside && *list == '-')) break;
        inside |= *list == '[';
        if (*list != '[') out[used++] = *list;
    }
    out[used] = 0;
}

enum { FIRST_PORT = 61440, PORTS = 4096 }; /* above the ports that systems assign */

static tcc_status name_address(const launcher *from, tcc_launch *out) {
    const char *nodes = tcc_variable(from->nodes);
    char host[sizeof out->address - 8];
    uint32_t job = 0;
    if (!nodes) return TCC_OK;
    for (const char *c = out->rendezvous; *c; c++) job = job * 10 + (uint8_t)*c;
    copy_first_host(nodes, host, sizeof host);
    snprintf(out->address, sizeof out->address, "%s:%u", host, FIRST_PORT + job % PORTS);
    return TCC_OK;
}

static tcc_status name_meeting(const launcher *from, tcc_launch *out) {
    size_t used = 0, room = sizeof out->rendezvous;
    for (int i = 0; i < 3 && from->meeting[i]; i++) {
        const char *part = tcc_variable(from->meeting[i]);
        if (!part) continue;
        int length = snprintf(out->rendezvous + used, room - used, "%s%s", used ? ":" : "", part);
        if (length < 0 || (size_t)length >= room - used)
            return tcc_fail(TCC_INVALID_ARGUMENT, "%s: more than %zu bytes name the job",
                            from->meeting[i], room - 1);
        used += (size_t)length;
        out->port_offset = from->port_offset;
        *out->address = 0;
    }
    return name_address(from, out);
}

/* Fails where two variables give different numbers; -1 means not set. */
static tcc_status compare(const char *a, int32_t from_a, const char *b, int32_t from_b) {
    if (from_a < 0 || from_b < 0 || from_a == from_b) return TCC_OK;
    return tcc_fail(TCC_INVALID_ARGUMENT, "%s=%d and %s=%d contradict: unset one of them", a,
                    from_a, b, from_b);
}

static tcc_status compare_all(const launcher *a, const tcc_launch *from_a, const launcher *b,
                              const tcc_launch *from_b) {
    TCC_RETURN_IF_ERROR(compare(a->rank, from_a->rank, b->rank, from_b->rank));
    TCC_RETURN_IF_ERROR(compare(a->size, from_a->size, b->size, from_b->size));
    TCC_RETURN_IF_ERROR(
        compare(a->local_rank, from_a->local_rank, b->local_rank, from_b->local_rank));
    TCC_RETURN_IF_ERROR(
        compare(a->local_size, from_a->local_size, b->local_size, from_b->local_size));
    return compare(a->epoch, from_a->epoch, b->epoch, from_b->epoch);
}

/* Completes the launcher's settings with TCC's own variables. */
static tcc_status complete(const launcher *from, tcc_launch *settings) {
    const launcher *our = &launchers[0];
    tcc_launch its = nothing;
    TCC_RETURN_IF_ERROR(number_of(our->local_rank, &its.local_rank));
    TCC_RETURN_IF_ERROR(number_of(our->local_size, &its.local_size));
    TCC_RETURN_IF_ERROR(number_of(our->epoch, &its.epoch));
    TCC_RETURN_IF_ERROR(compare_all(our, &its, from, settings));
    if (its.local_rank >= 0) settings->local_rank = its.local_rank;
    if (its.local_size >= 0) settings->local_size = its.local_size;
    if (its.epoch >= 0) settings->epoch = its.epoch;
    return TCC_OK;
}

static tcc_status half_set(const launcher *from) {
    bool rank = tcc_variable(from->rank) != NULL;
    if (rank == (tcc_variable(from->size) != NULL)) return TCC_OK;
    if (!rank && tcc_variable("JOB_COMPLETION_INDEX")) return TCC_OK;
    return tcc_fail(TCC_INVALID_ARGUMENT, "%s is set and %s is not", rank ? from->rank : from->size,
                    rank ? from->size : from->rank);
}

/* The innermost launcher counts.  Two launchers at the same depth must agree. */
tcc_status tcc_launch_read(tcc_launch *out, bool *out_match) {
    const launcher *match = NULL;
    *out = nothing;
    *out_match = false;
    TCC_RETURN_IF_ERROR(half_set(&launchers[0]));
    for (int i = 0; i < LAUNCHERS; i++) {
        const launcher *next = &launchers[i];
        if (!is_complete(next) || (match && next->outer)) continue;
        tcc_launch its = nothing;
        TCC_RETURN_IF_ERROR(read_launcher(next, &its));
        if (match) {
            TCC_RETURN_IF_ERROR(compare_all(match, out, next, &its));
            continue;
        }
        TCC_RETURN_IF_ERROR(name_meeting(next, &its));
        match = next;
        *out = its;
    }
    if (!match) return TCC_OK;
    *out_match = true;
    TCC_RETURN_IF_ERROR(complete(match, out));
    if (out->local_size < 0 && match->outer && !match->marker)
        out->local_size = 1; /* each pod counts as a host */
    return name_meeting(&launchers[0], out);
}

tcc_status tcc_launch_name(tcc_launch *out) {
    *out = nothing;
    TCC_RETURN_IF_ERROR(name_meeting(&launchers[0], out));
    return number_of(launchers[0].epoch, &out->epoch);
}
