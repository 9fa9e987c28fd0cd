/* UCC as an engine of tcc_comm_plugin.h, on CPUs.  It is built where it is used, with that machine's
 * UCC (1.1 or later):
 *
 *     cc -std=c11 -O2 -fPIC -shared -I../include ucc.c -lucc -o tcc_ucc.so
 *     TCC_COMM_PLUGIN=$PWD/tcc_ucc.so TCC_RENDEZVOUS=host0:29400 TCC_RANK=0 TCC_SIZE=2 program
 *
 * UCX_NET_DEVICES and UCX_TLS name the network.
 *
 * A group is a team; all teams share one context.  A message is a broadcast in the set of its two
 * ranks, which has a tag.  Ranks meet for a new team by messages of the team that it comes from. */
#define _POSIX_C_SOURCE 200809L
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <ucc/api/ucc.h>

#include "tcc_comm_plugin.h"

enum { MEETING_TAG = 3 }; /* beside those of tcc_comm_plugin.h */

typedef struct world {
    ucc_lib_h library;
    ucc_context_h context;
    _Atomic int32_t groups;
} world;

typedef struct group {
    tcc_status (*fail)(tcc_status status, const char *reason);
    world *world;
    ucc_team_h team;
    int32_t size, self, milliseconds; /* in which a group is made */
} group;

typedef struct operation {
    const group *group;
    int32_t n, done;
    ucc_coll_req_h *requests;
    uint64_t *sizes; /* UCC reads them until the operation is done */
} operation;

/* The ranks that meet for a new team. */
typedef struct meeting {
    const group *parent;
    const int32_t *members;
    int32_t n, self;
} meeting;

static tcc_status fail(const group *of, const char *what, ucc_status_t code) {
    char reason[256];
    snprintf(reason, sizeof reason, "UCC: %s: %s", what, ucc_status_string(code));
    return of->fail(code == UCC_ERR_NO_MEMORY   ? TCC_OUT_OF_MEMORY
                    : code == UCC_ERR_TIMED_OUT ? TCC_TIMEOUT
                                                : TCC_SYSTEM,
                    reason);
}

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

/* ---- operations ------------------------------------------------------------------------------ */

/* Room for `n` requests and `sizes` sizes; NULL: there is no memory. */
static operation *make_operation(const group *of, int32_t n, int32_t sizes) {
    size_t requests = (size_t)n * sizeof(ucc_coll_req_h);
    operation *made =
        calloc(1, sizeof *made + requests + (size_t)sizes * sizeof *made->sizes);
    if (!made) return NULL;
    made->group = of;
    made->requests = (ucc_coll_req_h *)(made + 1);
    made->sizes = (uint64_t *)(made->requests + n);
    return made;
}

static ucc_status_t begin(operation *of, ucc_coll_args_t *args) {
    ucc_coll_req_h *request = &of->requests[of->n];
    ucc_status_t code = ucc_collective_init(args, request, of->group->team);
    if (code != UCC_OK) return code;
    of->n++;
    return ucc_collective_post(*request);
}

/* UCC_OK: all requests are done. */
static ucc_status_t test_all(operation *of) {
    (void)ucc_context_progress(of->group->world->context);
    for (; of->done < of->n; of->done++) {
        ucc_status_t code = ucc_collective_test(of->requests[of->done]);
        if (code != UCC_OK) return code;
        code = ucc_collective_finalize(of->requests[of->done]);
        if (code != UCC_OK) return code;
    }
    return UCC_OK;
}

static ucc_status_t begin_message(operation *of, void *data, size_t bytes, int32_t from, int32_t to,
                                  uint16_t tag) {
    ucc_coll_args_t args = {
        .mask = UCC_COLL_ARGS_FIELD_ACTIVE_SET | UCC_COLL_ARGS_FIELD_TAG,
        .coll_type = UCC_COLL_TYPE_BCAST,
        .src.info = {data, bytes, UCC_DT_UINT8, UCC_MEMORY_TYPE_HOST},
        .root = (uint64_t)from,
        .tag = tag,
        .active_set = {.start = (uint64_t)from, .stride = to - from, .size = 2},
    };
    return begin(of, &args);
}

/* Begins one collective and hands its operation to the caller. */
static tcc_status hand_over(operation *of, ucc_coll_args_t *args, const char *what,
                            uintptr_t *out_request) {
    ucc_status_t code = begin(of, args);
    if (code != UCC_OK) return fail(of->group, what, code); /* UCC may use the operation's memory */
    *out_request = (uintptr_t)of;
    return TCC_OK;
}

static tcc_status out_of_memory(const group *of) {
    return of->fail(TCC_OUT_OF_MEMORY, "UCC: out of memory");
}

/* Buffers of all ranks, one behind another; `sizes` gets counts and places. */
static ucc_coll_buffer_info_v_t line_up(void *data, const size_t *bytes, int32_t n,
                                        uint64_t *sizes) {
    uint64_t place = 0;
    for (int32_t i = 0; i < n; place += bytes[i++]) {
        sizes[i] = bytes[i];
        sizes[n + i] = place;
    }
    return (ucc_coll_buffer_info_v_t){.buffer = data,
                                      .counts = sizes,
                                      .displacements = sizes + n,
                                      .datatype = UCC_DT_UINT8,
                                      .mem_type = UCC_MEMORY_TYPE_HOST};
}

enum { WIDE = UCC_COLL_ARGS_FLAG_COUNT_64BIT | UCC_COLL_ARGS_FLAG_DISPLACEMENTS_64BIT };

static tcc_status all_gather(void *of, void *data, const size_t *bytes, uintptr_t *out_request) {
    const group *g = of;
    operation *made = make_operation(g, 1, 2 * g->size);
    if (!made) return out_of_memory(g);
    ucc_coll_args_t args = {
        .mask = UCC_COLL_ARGS_FIELD_FLAGS,
        .flags = WIDE | UCC_COLL_ARGS_FLAG_IN_PLACE,
        .coll_type = UCC_COLL_TYPE_ALLGATHERV,
        .dst.info_v = line_up(data, bytes, g->size, made->sizes),
    };
    return hand_over(made, &args, "allgatherv", out_request);
}

static tcc_status all_to_all(void *of, const void *send, const size_t *send_bytes,
                             const size_t *send_places, void *receive, const size_t *receive_bytes,
                             uintptr_t *out_request) {
    const group *g = of;
    operation *made = make_operation(g, 1, 4 * g->size);
    if (!made) return out_of_memory(g);
    ucc_coll_args_t args = {
        .mask = UCC_COLL_ARGS_FIELD_FLAGS,
        .flags = WIDE,
        .coll_type = UCC_COLL_TYPE_ALLTOALLV,
        .src.info_v = line_up((void *)send, send_bytes, g->size, made->sizes),
        .dst.info_v = line_up(receive, receive_bytes, g->size, made->sizes + 2 * g->size),
    };
    for (int32_t i = 0; i < g->size; i++) made->sizes[g->size + i] = send_places[i];
    return hand_over(made, &args, "alltoallv", out_request);
}

static tcc_status broadcast(void *of, void *data, size_t bytes, int32_t root,
                            uintptr_t *out_request) {
    const group *g = of;
    operation *made = make_operation(g, 1, 0);
    if (!made) return out_of_memory(g);
    ucc_coll_args_t args = {
        .coll_type = UCC_COLL_TYPE_BCAST,
        .src.info = {data, bytes, UCC_DT_UINT8, UCC_MEMORY_TYPE_HOST},
        .root = (uint64_t)root,
    };
    return hand_over(made, &args, "bcast", out_request);
}

static tcc_status transfer(const group *g, void *data, size_t bytes, int32_t from, int32_t to,
                           int32_t tag, uintptr_t *out_request) {
    operation *made = make_operation(g, 1, 0);
    if (!made) return out_of_memory(g);
    ucc_status_t code = begin_message(made, data, bytes, from, to, (uint16_t)tag);
    if (code != UCC_OK) return fail(g, "bcast between two ranks", code);
    *out_request = (uintptr_t)made;
    return TCC_OK;
}

static tcc_status send(void *of, const void *data, size_t bytes, int32_t peer, int32_t tag,
                       uintptr_t *out_request) {
    const group *g = of;
    return transfer(g, (void *)data, bytes, g->self, peer, tag, out_request);
}

static tcc_status receive(void *of, void *data, size_t bytes, int32_t peer, int32_t tag,
                          uintptr_t *out_request) {
    const group *g = of;
    return transfer(g, data, bytes, peer, g->self, tag, out_request);
}

static tcc_status test(void *of, uintptr_t *request, int32_t *out_done) {
    operation *its = (operation *)*request;
    ucc_status_t code = test_all(its);
    *out_done = code == UCC_OK;
    if (code == UCC_INPROGRESS) return TCC_OK;
    if (code != UCC_OK) return fail(of, "an operation", code);
    free(its);
    return TCC_OK;
}

/* ---- meeting for a new team ------------------------------------------------------------------ */

/* What each rank sends to all, by messages between each two. */
static ucc_status_t meet_members(void *send, void *receive, size_t bytes, void *of,
                                 void **out_request) {
    const meeting *m = of;
    operation *made = make_operation(m->parent, 2 * m->n, 0);
    ucc_status_t code = made ? UCC_OK : UCC_ERR_NO_MEMORY;
    char *to = receive;
    memcpy(to + (size_t)m->self * bytes, send, bytes);
    for (int32_t i = 0; i < m->n && code == UCC_OK; i++) {
        int32_t peer = m->members[i], own = m->members[m->self];
        if (i == m->self) continue;
        code = begin_message(made, to + (size_t)i * bytes, bytes, peer, own, MEETING_TAG);
        if (code == UCC_OK)
            code = begin_message(made, to + (size_t)m->self * bytes, bytes, own, peer, MEETING_TAG);
    }
    *out_request = made;
    return code;
}

static ucc_status_t test_members(void *request) { return test_all(request); }

static ucc_status_t end_members(void *request) {
    free(request);
    return UCC_OK;
}

/* The same by the host's exchange, which is done when it returns. */
static ucc_status_t meet_all(void *send, void *receive, size_t bytes, void *of,
                             void **out_request) {
    const tcc_comm_engine_host *host = of;
    *out_request = receive;
    return host->exchange(host, send, bytes, receive) == TCC_OK ? UCC_OK : UCC_ERR_NO_MESSAGE;
}

static ucc_status_t done_at_once(void *request) {
    (void)request;
    return UCC_OK;
}

static ucc_oob_coll_t meeting_of_all(const tcc_comm_engine_host *host) {
    return (ucc_oob_coll_t){.allgather = meet_all,
                            .req_test = done_at_once,
                            .req_free = done_at_once,
                            .coll_info = (void *)host,
                            .n_oob_eps = (uint32_t)host->size,
                            .oob_ep = (uint32_t)host->rank};
}

/* ---- groups ---------------------------------------------------------------------------------- */

static void leave_world(world *of) {
    if (atomic_fetch_sub(&of->groups, 1) > 1) return;
    if (of->context) (void)ucc_context_destroy(of->context);
    if (of->library) (void)ucc_finalize(of->library);
    free(of);
}

static void close_group(void *of) {
    group *g = of;
    while (g->team && ucc_team_destroy(g->team) == UCC_INPROGRESS)
        (void)ucc_context_progress(g->world->context);
    leave_world(g->world);
    free(g);
}

/* Makes the group's team with the ranks that `oob` reaches. */
static tcc_status make_team(group *g, ucc_oob_coll_t oob) {
    ucc_team_params_t params = {
        .mask = UCC_TEAM_PARAM_FIELD_OOB | UCC_TEAM_PARAM_FIELD_EP | UCC_TEAM_PARAM_FIELD_EP_RANGE,
        .oob = oob,
        .ep = (uint64_t)g->self,
        .ep_range = UCC_COLLECTIVE_EP_RANGE_CONTIG,
    };
    int64_t deadline = now() + g->milliseconds;
    ucc_team_h team = NULL;
    ucc_status_t code = ucc_team_create_post(&g->world->context, 1, &params, &team);
    if (code == UCC_OK) code = ucc_team_create_test(team);
    while (code == UCC_INPROGRESS && now() < deadline) {
        (void)ucc_context_progress(g->world->context);
        code = ucc_team_create_test(team);
    }
    if (code == UCC_INPROGRESS) code = UCC_ERR_TIMED_OUT;
    if (code != UCC_OK) return fail(g, "a new team", code);
    g->team = team;
    return TCC_OK;
}

static ucc_status_t make_context(world *of, const tcc_comm_engine_host *host) {
    ucc_lib_params_t params = {.mask = UCC_LIB_PARAM_FIELD_THREAD_MODE,
                               .thread_mode = UCC_THREAD_MULTIPLE};
    ucc_context_params_t context = {.mask = UCC_CONTEXT_PARAM_FIELD_OOB,
                                    .oob = meeting_of_all(host)};
    ucc_lib_config_h library_config;
    ucc_context_config_h config;
    ucc_status_t code = ucc_lib_config_read(NULL, NULL, &library_config);
    if (code != UCC_OK) return code;
    code = ucc_init(&params, library_config, &of->library);
    ucc_lib_config_release(library_config);
    if (code == UCC_OK) code = ucc_context_config_read(of->library, NULL, &config);
    if (code != UCC_OK) return code;
    /* Teams that are made at once by several threads must not share a meeting place. */
    code = ucc_context_config_modify(config, NULL, "INTERNAL_OOB", "0");
    if (code == UCC_OK) code = ucc_context_create(of->library, &context, config, &of->context);
    ucc_context_config_release(config);
    return code;
}

static tcc_status open_group(const tcc_comm_engine_host *host, void **out_group) {
    group *g = calloc(1, sizeof *g);
    world *all = calloc(1, sizeof *all);
    if (!g || !all) {
        free(g);
        free(all);
        return host->fail(TCC_OUT_OF_MEMORY, "UCC: out of memory");
    }
    *g = (group){host->fail, all, NULL, host->size, host->rank, host->open_milliseconds};
    atomic_init(&all->groups, 1);
    ucc_status_t code = make_context(all, host);
    if (code != UCC_OK) {
        tcc_status status = fail(g, "a context", code);
        close_group(g);
        return status;
    }
    *out_group = g;
    return make_team(g, meeting_of_all(host)); /* one that fails stays, for UCC may use it */
}

static tcc_status split(void *of, const int32_t *members, int32_t n, int32_t self, const char *name,
                        void **out_group) {
    (void)name; /* a meeting's messages are the parent's */
    const group *parent = of;
    meeting m = {parent, members, n, self};
    ucc_oob_coll_t oob = {.allgather = meet_members,
                          .req_test = test_members,
                          .req_free = end_members,
                          .coll_info = &m,
                          .n_oob_eps = (uint32_t)n,
                          .oob_ep = (uint32_t)self};
    group *g = malloc(sizeof *g);
    if (!g) return out_of_memory(parent);
    *g = (group){parent->fail, parent->world, NULL, n, self, parent->milliseconds};
    atomic_fetch_add(&g->world->groups, 1);
    *out_group = g;
    return make_team(g, oob);
}

static const tcc_comm_engine engine = {
    .struct_size = sizeof engine,
    .version = TCC_COMM_PLUGIN_VERSION,
    .name = "ucc",
    .open = open_group,
    .split = split,
    .close = close_group,
    .all_gather = all_gather,
    .all_to_all = all_to_all,
    .broadcast = broadcast,
    .send = send,
    .receive = receive,
    .test = test,
};

const tcc_comm_engine *tcc_comm_plugin_get(uint32_t version) {
    return version == TCC_COMM_PLUGIN_VERSION ? &engine : NULL;
}
