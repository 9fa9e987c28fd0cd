/* UCC as an engine of tcc_comm_plugin.h, on CPUs.  It is built where it is used, with that
 * machine's UCC (tested: 1.10 over UCX 1.22):
 *
 *     cc -std=c11 -O2 -fPIC -shared -I../include ucc.c -lucc -lpthread -o tcc_ucc.so
 *     TCC_COMM_PLUGIN=$PWD/tcc_ucc.so TCC_RENDEZVOUS=host0:29400 TCC_TOKEN=... \
 *         TCC_RANK=0 TCC_SIZE=2 program
 *
 * UCX_NET_DEVICES and UCX_TLS name the network.  UCC logs to the standard output when a peer has
 * left early, unless UCC_LOG_LEVEL=fatal or UCC_LOG_FILE is set.
 *
 * A group is a team; all teams share one context.  The context knows no other ranks, so that UCX
 * reports a peer that has died and leaving waits for no rank; a team knows its ranks.  A message is
 * a broadcast with a tag in the set of its two ranks.  Ranks meet for a new team by messages of its
 * parent team.  UCC tells teams apart by numbers below 2^15, which the ranks divide among
 * themselves: the first rank of a team gives one of its own numbers, and gets it back later. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <ucc/api/ucc.h>

#include "tcc_comm_plugin.h"

enum {
    MEETING_TAG = 3, /* tags besides those of tcc_comm_plugin.h */
    NUMBERS = 1 << 15,
};

typedef struct world {
    pthread_mutex_t mutex; /* guards all fields below and UCC, whose table of peers has no lock */
    ucc_lib_h library;
    ucc_context_h context;
    int32_t groups;
    int32_t first, n, next; /* range of this rank's numbers for teams; the next to look at */
    bool in_use[];          /* true: the number is in use */
} world;

typedef struct group {
    tcc_status (*fail)(tcc_status status, const char *reason);
    world *world;
    ucc_team_h team;
    int32_t size, self, milliseconds; /* deadline for making a group */
    int32_t number;
} group;

typedef struct operation {
    const group *group;
    int32_t n, done;
    ucc_coll_req_h *requests;
    uint64_t *sizes; /* UCC reads them until the operation is done */
} operation;

/* Fails with the status that fits UCC's `code`.  `otherwise` is the status for UCC's general
 * error. */
static tcc_status fail(const group *of, const char *call, ucc_status_t code, tcc_status otherwise) {
    char reason[256];
    snprintf(reason, sizeof reason, "UCC: %s: %s", call, ucc_status_string(code));
    return of->fail(code == UCC_ERR_NO_MEMORY   ? TCC_OUT_OF_MEMORY
                    : code == UCC_ERR_TIMED_OUT ? TCC_TIMEOUT
                                                : otherwise,
                    reason);
}

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

/* ---- operations ------------------------------------------------------------------------------ */

/* Makes an operation with room for `n` requests and `sizes` sizes; NULL where there is no
 * memory. */
static operation *make_operation(const group *of, int32_t n, int32_t sizes) {
    size_t requests = (size_t)n * sizeof(ucc_coll_req_h);
    operation *operates = calloc(1, sizeof *operates + requests + (size_t)sizes * sizeof *operates->sizes);
    if (!operates) return NULL;
    operates->group = of;
    operates->requests = (ucc_coll_req_h *)(operates + 1);
    operates->sizes = (uint64_t *)(operates->requests + n);
    return operates;
}

static ucc_status_t begin(operation *of, ucc_coll_args_t *args) {
    ucc_coll_req_h *request = &of->requests[of->n];
    ucc_status_t code = ucc_collective_init(args, request, of->group->team);
    if (code != UCC_OK) return code;
    of->n++;
    return ucc_collective_post(*request);
}

/* Returns UCC_OK where all requests are done. */
static ucc_status_t test_all(void *operation_of) {
    operation *of = operation_of;
    (void)ucc_context_progress(of->group->world->context);
    for (; of->done < of->n; of->done++) {
        ucc_status_t code = ucc_collective_test(of->requests[of->done]);
        if (code != UCC_OK) return code;
        code = ucc_collective_finalize(of->requests[of->done]);
        if (code != UCC_OK) return code;
    }
    return UCC_OK;
}

static ucc_coll_args_t message(void *data, size_t bytes, int32_t from, int32_t to, int32_t tag) {
    return (ucc_coll_args_t){
        .mask = UCC_COLL_ARGS_FIELD_ACTIVE_SET | UCC_COLL_ARGS_FIELD_TAG,
        .coll_type = UCC_COLL_TYPE_BCAST,
        .src.info = {data, bytes, UCC_DT_UINT8, UCC_MEMORY_TYPE_HOST},
        .root = (uint64_t)from,
        .tag = (uint16_t)tag,
        .active_set = {.start = (uint64_t)from, .stride = to - from, .size = 2},
    };
}

/* Begins one collective and hands its operation to the caller. */
static tcc_status hand_over(operation *of, ucc_coll_args_t *args, const char *call,
                            uintptr_t *out_request) {
    pthread_mutex_lock(&of->group->world->mutex);
    ucc_status_t code = begin(of, args);
    pthread_mutex_unlock(&of->group->world->mutex);
    if (code != UCC_OK) /* UCC may use the operation's memory */
        return fail(of->group, call, code, TCC_PEER_DEAD);
    *out_request = (uintptr_t)of;
    return TCC_OK;
}

static tcc_status out_of_memory(const group *of) {
    return of->fail(TCC_OUT_OF_MEMORY, "UCC: out of memory");
}

/* Describes a buffer with a part for each rank.  `sizes` receives counts and places: `places`, or
 * where it is NULL, one part behind another. */
static ucc_coll_buffer_info_v_t parts(const void *data, const size_t *bytes, const size_t *places,
                                      int32_t n, uint64_t *sizes) {
    uint64_t place = 0;
    for (int32_t i = 0; i < n; place += bytes[i++]) {
        sizes[i] = bytes[i];
        sizes[n + i] = places ? places[i] : place;
    }
    return (ucc_coll_buffer_info_v_t){.buffer = (void *)data, /* a sender's buffer is only read */
                                      .counts = sizes,
                                      .displacements = sizes + n,
                                      .datatype = UCC_DT_UINT8,
                                      .mem_type = UCC_MEMORY_TYPE_HOST};
}

static ucc_coll_args_t exchange_of(const ucc_coll_buffer_info_v_t *send,
                                   const ucc_coll_buffer_info_v_t *receive) {
    return (ucc_coll_args_t){
        .mask = UCC_COLL_ARGS_FIELD_FLAGS,
        .flags = UCC_COLL_ARGS_FLAG_COUNT_64BIT | UCC_COLL_ARGS_FLAG_DISPLACEMENTS_64BIT,
        .coll_type = UCC_COLL_TYPE_ALLTOALLV,
        .src.info_v = *send,
        .dst.info_v = *receive,
    };
}

static tcc_status all_to_all(void *of, const void *send, const size_t *send_bytes,
                             const size_t *send_places, void *receive, const size_t *receive_bytes,
                             uintptr_t *out_request) {
    const group *g = of;
    operation *exchange = make_operation(g, 1, 4 * g->size);
    if (!exchange) return out_of_memory(g);
    uint64_t *sizes = exchange->sizes;
    ucc_coll_buffer_info_v_t from = parts(send, send_bytes, send_places, g->size, sizes);
    sizes += 2 * g->size;
    ucc_coll_buffer_info_v_t to = parts(receive, receive_bytes, NULL, g->size, sizes);
    ucc_coll_args_t args = exchange_of(&from, &to);
    return hand_over(exchange, &args, "alltoallv", out_request);
}

/* Each rank sends its part to all others, because the allgatherv of UCC 1.10 needs a context that
 * knows its ranks. */
static tcc_status all_gather(void *of, void *data, const size_t *bytes, uintptr_t *out_request) {
    const group *g = of;
    operation *exchange = make_operation(g, 1, 4 * g->size);
    if (!exchange) return out_of_memory(g);
    uint64_t *sent = exchange->sizes, *got = sent + 2 * g->size;
    ucc_coll_buffer_info_v_t to = parts(data, bytes, NULL, g->size, got), from = to;
    for (int32_t i = 0; i < g->size; i++) {
        sent[i] = bytes[g->self];
        sent[g->size + i] = got[g->size + g->self];
    }
    sent[g->self] = got[g->self] = 0; /* this rank's own part is in place */
    from.counts = sent;
    from.displacements = sent + g->size;
    ucc_coll_args_t args = exchange_of(&from, &to);
    return hand_over(exchange, &args, "alltoallv", out_request);
}

static tcc_status broadcast(void *of, void *data, size_t bytes, int32_t root,
                            uintptr_t *out_request) {
    const group *g = of;
    operation *exchange = make_operation(g, 1, 0);
    if (!exchange) return out_of_memory(g);
    ucc_coll_args_t args = {
        .coll_type = UCC_COLL_TYPE_BCAST,
        .src.info = {data, bytes, UCC_DT_UINT8, UCC_MEMORY_TYPE_HOST},
        .root = (uint64_t)root,
    };
    return hand_over(exchange, &args, "bcast", out_request);
}

static tcc_status transfer(const group *g, void *data, size_t bytes, int32_t from, int32_t to,
                           int32_t tag, uintptr_t *out_request) {
    operation *exchange = make_operation(g, 1, 0);
    if (!exchange) return out_of_memory(g);
    ucc_coll_args_t args = message(data, bytes, from, to, tag);
    return hand_over(exchange, &args, "bcast between two ranks", out_request);
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
    const group *g = of;
    pthread_mutex_lock(&g->world->mutex);
    ucc_status_t code = test_all(its);
    pthread_mutex_unlock(&g->world->mutex);
    *out_done = code == UCC_OK;
    if (code == UCC_INPROGRESS) return TCC_OK;
    if (code != UCC_OK) return fail(g, "an operation", code, TCC_PEER_DEAD);
    free(its);
    return TCC_OK;
}

/* ---- meeting for a new team ------------------------------------------------------------------ */

/* The ranks that meet for a new team. */
typedef struct meeting {
    const group *parent;
    const int32_t *members;
    int32_t n, self;
} meeting;

/* Gives every rank the `bytes` bytes of all members, by a message between each two. */
static ucc_status_t meet_members(void *send, void *receive, size_t bytes, void *of,
                                 void **out_request) {
    const meeting *m = of;
    operation *round = make_operation(m->parent, 2 * m->n, 0);
    ucc_status_t code = round ? UCC_OK : UCC_ERR_NO_MEMORY;
    char *to = receive, *own_part = to + (size_t)m->self * bytes;
    int32_t self = m->members[m->self];
    memcpy(own_part, send, bytes);
    for (int32_t i = 0; i < m->n && code == UCC_OK; i++) {
        if (i == m->self) continue;
        int32_t peer = m->members[i];
        ucc_coll_args_t in = message(to + (size_t)i * bytes, bytes, peer, self, MEETING_TAG);
        ucc_coll_args_t out = message(own_part, bytes, self, peer, MEETING_TAG);
        code = begin(round, &in);
        if (code == UCC_OK) code = begin(round, &out);
    }
    *out_request = round;
    return code;
}

static ucc_status_t end_members(void *request) {
    free(request);
    return UCC_OK;
}

/* All ranks of the job, which meet by the host's exchange. */
typedef struct assembly {
    const tcc_comm_engine_host *host;
    tcc_status status; /* status of the exchange, which has set the reason */
} assembly;

static ucc_status_t meet_all(void *send, void *receive, size_t bytes, void *of,
                             void **out_request) {
    assembly *all = of;
    *out_request = receive;
    all->status = all->host->exchange(all->host, send, bytes, receive);
    return all->status == TCC_OK ? UCC_OK : UCC_ERR_NO_MESSAGE;
}

static ucc_status_t done_at_once(void *request) {
    (void)request;
    return UCC_OK;
}

/* ---- groups ---------------------------------------------------------------------------------- */

/* Returns one of this rank's numbers, first those that have been free for longest; -1 where all are
 * in use. */
static int32_t give_number(world *of) {
    for (int32_t i = 0; i < of->n; i++) {
        int32_t number = (of->next + i) % of->n;
        if (of->in_use[number]) continue;
        of->in_use[number] = true;
        of->next = number + 1;
        return of->first + number;
    }
    return -1;
}

static void leave_world(world *of) {
    pthread_mutex_lock(&of->mutex);
    bool last = --of->groups == 0;
    pthread_mutex_unlock(&of->mutex);
    if (!last) return;
    if (of->context) (void)ucc_context_destroy(of->context);
    if (of->library) (void)ucc_finalize(of->library);
    (void)pthread_mutex_destroy(&of->mutex);
    free(of);
}

static void close_group(void *of) {
    group *g = of;
    pthread_mutex_lock(&g->world->mutex);
    while (g->team && ucc_team_destroy(g->team) == UCC_INPROGRESS)
        (void)ucc_context_progress(g->world->context);
    if (g->self == 0) g->world->in_use[g->number - g->world->first] = false;
    pthread_mutex_unlock(&g->world->mutex);
    leave_world(g->world);
    free(g);
}

/* Makes a group without its team; NULL where there is no memory. */
static group *make_group(const group *like, int32_t size, int32_t self) {
    group *subgroup = malloc(sizeof *subgroup);
    if (!subgroup) return NULL;
    *subgroup = *like;
    subgroup->team = NULL;
    subgroup->size = size;
    subgroup->self = self;
    pthread_mutex_lock(&subgroup->world->mutex);
    subgroup->world->groups++;
    pthread_mutex_unlock(&subgroup->world->mutex);
    return subgroup;
}

/* Calls `test` until it is done or fails, or the deadline has passed. */
static ucc_status_t await(world *of, int64_t deadline, ucc_status_t (*test)(void *), void *object) {
    for (;;) {
        pthread_mutex_lock(&of->mutex);
        (void)ucc_context_progress(of->context);
        ucc_status_t code = test(object);
        pthread_mutex_unlock(&of->mutex);
        if (code != UCC_INPROGRESS) return code;
        if (now() > deadline) return UCC_ERR_TIMED_OUT;
        sched_yield();
    }
}

static ucc_status_t test_team(void *team) { return ucc_team_create_test(team); }

/* Makes the group's team with the ranks that `oob` reaches. */
static ucc_status_t make_team(group *g, ucc_oob_coll_t oob, int64_t deadline) {
    ucc_team_params_t params = {
        .mask = UCC_TEAM_PARAM_FIELD_OOB | UCC_TEAM_PARAM_FIELD_EP |
                UCC_TEAM_PARAM_FIELD_EP_RANGE | UCC_TEAM_PARAM_FIELD_ID,
        .oob = oob,
        .ep = (uint64_t)g->self,
        .ep_range = UCC_COLLECTIVE_EP_RANGE_CONTIG,
        .id = (uint64_t)g->number,
    };
    ucc_team_h team = NULL;
    pthread_mutex_lock(&g->world->mutex);
    ucc_status_t code = ucc_team_create_post(&g->world->context, 1, &params, &team);
    pthread_mutex_unlock(&g->world->mutex);
    if (code == UCC_OK) code = await(g->world, deadline, test_team, team);
    if (code == UCC_OK) g->team = team;
    return code;
}

static ucc_status_t make_context(world *of) {
    ucc_lib_params_t params = {.mask = UCC_LIB_PARAM_FIELD_THREAD_MODE,
                               .thread_mode = UCC_THREAD_MULTIPLE};
    ucc_context_params_t none = {.mask = 0};
    ucc_lib_config_h library_config;
    ucc_context_config_h config;
    ucc_status_t code = ucc_lib_config_read(NULL, NULL, &library_config);
    if (code != UCC_OK) return code;
    /* other layers may use messages that teams which are made at once take from one another */
    code = ucc_lib_config_modify(library_config, "CLS", "basic");
    if (code == UCC_OK) code = ucc_init(&params, library_config, &of->library);
    ucc_lib_config_release(library_config);
    if (code == UCC_OK) code = ucc_context_config_read(of->library, NULL, &config);
    if (code != UCC_OK) return code;
    code = ucc_context_create(of->library, &none, config, &of->context);
    ucc_context_config_release(config);
    return code;
}

/* Makes a rank's world with its numbers for teams; NULL where there is no memory. */
static world *make_world(int32_t rank, int32_t size) {
    int32_t n = NUMBERS / size;
    world *all = calloc(1, sizeof *all + (size_t)n);
    if (!all) return NULL;
    (void)pthread_mutex_init(&all->mutex, NULL);
    all->n = n;
    all->first = rank * n;
    return all;
}

static tcc_status open_group(const tcc_comm_engine_host *host, void **out_group) {
    int64_t deadline = now() + host->open_milliseconds;
    if (host->size > NUMBERS)
        return host->fail(TCC_UNSUPPORTED, "UCC: more ranks than it has numbers for teams");
    group like = {.fail = host->fail, .milliseconds = host->open_milliseconds};
    like.world = make_world(host->rank, host->size);
    group *g = like.world ? make_group(&like, host->size, host->rank) : NULL;
    if (!g) {
        free(like.world);
        return out_of_memory(&like);
    }
    if (host->rank == 0) g->number = give_number(g->world); /* number 0, as on all ranks */
    ucc_status_t code = make_context(g->world);
    if (code != UCC_OK) {
        tcc_status status = fail(g, "a context", code, TCC_SYSTEM);
        close_group(g);
        return status;
    }
    assembly all = {host, TCC_OK};
    ucc_oob_coll_t oob = {.allgather = meet_all,
                          .req_test = done_at_once,
                          .req_free = done_at_once,
                          .coll_info = &all,
                          .n_oob_eps = (uint32_t)host->size,
                          .oob_ep = (uint32_t)host->rank};
    code = make_team(g, oob, deadline); /* a group that fails is not freed, for UCC may use it */
    if (all.status != TCC_OK) return all.status;
    if (code != UCC_OK) return fail(g, "a team", code, TCC_SYSTEM);
    *out_group = g;
    return TCC_OK;
}

/* Agrees on the number of a new team, which its first rank gives; -1 where it has none left. */
static ucc_status_t agree_on_number(meeting *m, int64_t deadline, int32_t *out_number) {
    world *in = m->parent->world;
    int32_t *all = calloc((size_t)m->n, sizeof *all), mine = 0;
    void *request = NULL;
    if (!all) return UCC_ERR_NO_MEMORY;
    pthread_mutex_lock(&in->mutex);
    if (m->self == 0) mine = give_number(in);
    ucc_status_t code = meet_members(&mine, all, sizeof mine, m, &request);
    pthread_mutex_unlock(&in->mutex);
    if (code == UCC_OK) code = await(in, deadline, test_all, request);
    if (code != UCC_OK) return code; /* messages may be in transit */
    *out_number = all[0];
    free(request);
    free(all);
    return UCC_OK;
}

static tcc_status split(void *of, const int32_t *members, int32_t n, int32_t self, const char *name,
                        void **out_group) {
    (void)name; /* the meeting uses the parent's messages */
    const group *parent = of;
    int64_t deadline = now() + parent->milliseconds;
    meeting m = {parent, members, n, self};
    ucc_oob_coll_t oob = {.allgather = meet_members,
                          .req_test = test_all,
                          .req_free = end_members,
                          .coll_info = &m,
                          .n_oob_eps = (uint32_t)n,
                          .oob_ep = (uint32_t)self};
    group *g = make_group(parent, n, self);
    if (!g) return out_of_memory(parent);
    ucc_status_t code = agree_on_number(&m, deadline, &g->number);
    if (code == UCC_OK && g->number < 0)
        return parent->fail(TCC_UNSUPPORTED, "UCC: a rank has no number left for another team");
    if (code == UCC_OK) code = make_team(g, oob, deadline);
    if (code != UCC_OK) return fail(g, "a team", code, TCC_SYSTEM);
    *out_group = g;
    return TCC_OK;
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
