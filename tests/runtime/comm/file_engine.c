/* An engine whose messages are files, for tests of plugins. Rank 0 makes a folder, and tells the
 * other ranks its path.
 *
 * -DVERSION=N makes it an engine of version N; -DWITHOUT=name makes that function NULL. */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tcc_comm_plugin.h"

#ifndef VERSION
#define VERSION TCC_COMM_PLUGIN_VERSION
#endif

enum { TAGS = 3, MOST = 16, FOLDER = 200 };

typedef struct group {
    tcc_status (*fail)(tcc_status status, const char *reason);
    char folder[FOLDER + 64]; /* also holds a prefix of names */
    int32_t size, self;
    uint64_t sent[MOST][TAGS], received[MOST][TAGS]; /* numbers of messages, by rank and tag */
} group;

/* A message that is awaited. */
typedef struct expected_message {
    char path[FOLDER + 300];
    char *data;
    size_t bytes;
} expected_message;

typedef struct request {
    expected_message messages[MOST];
    int32_t n;
} request;

static void name_of(const group *g, int32_t from, int32_t to, int32_t tag, uint64_t number,
                    char path[FOLDER + 300]) {
    snprintf(path, FOLDER + 300, "%s.%d-%d.%d.%llu", g->folder, from, to, tag,
             (unsigned long long)number);
}

static tcc_status put(group *g, const void *data, size_t bytes, int32_t peer, int32_t tag) {
    char path[FOLDER + 300], new_path[FOLDER + 308];
    name_of(g, g->self, peer, tag, g->sent[peer][tag]++, path);
    snprintf(new_path, sizeof new_path, "%s.new", path);
    FILE *file = fopen(new_path, "w");
    if (!file || fwrite(data, 1, bytes, file) != bytes || fclose(file) || rename(new_path, path))
        return g->fail(TCC_SYSTEM, strerror(errno));
    return TCC_OK;
}

static void want(group *g, request *of, void *data, size_t bytes, int32_t peer, int32_t tag) {
    expected_message *next = &of->messages[of->n++];
    name_of(g, peer, g->self, tag, g->received[peer][tag]++, next->path);
    next->data = data;
    next->bytes = bytes;
}

static tcc_status file_open(const tcc_comm_engine_host *host, void **out_group) {
    char mine[FOLDER], all[MOST * FOLDER];
    const char *above = getenv("TMPDIR");
    int length = snprintf(mine, sizeof mine, "%s/XXXXXX", above ? above : "/tmp");
    if (host->size > MOST || length >= FOLDER)
        return host->fail(TCC_UNSUPPORTED, "too many ranks, or a long TMPDIR");
    if (host->rank == 0 && !mkdtemp(mine)) return host->fail(TCC_SYSTEM, strerror(errno));
    tcc_status status = host->exchange(host, mine, FOLDER, all);
    if (status != TCC_OK) return status;
    group *g = calloc(1, sizeof *g);
    if (!g) return host->fail(TCC_OUT_OF_MEMORY, "out of memory");
    g->fail = host->fail;
    g->size = host->size;
    g->self = host->rank;
    /* the path that rank 0 made */
    snprintf(g->folder, sizeof g->folder, "%.*s/m", FOLDER - 1, all);
    *out_group = g;
    return TCC_OK;
}

static tcc_status file_split(void *of, const int32_t *members, int32_t n, int32_t self,
                             const char *name, void **out_group) {
    group *parent = of, *g = calloc(1, sizeof *g);
    (void)members;
    if (!g) return parent->fail(TCC_OUT_OF_MEMORY, "out of memory");
    g->fail = parent->fail;
    g->size = n;
    g->self = self;
    int length = snprintf(g->folder, sizeof g->folder, "%s_%s", parent->folder, name + 1);
    if (length >= (int)sizeof g->folder) return parent->fail(TCC_UNSUPPORTED, "a long name");
    *out_group = g;
    return TCC_OK;
}

static void file_close(void *of) { free(of); }

static tcc_status file_all_to_all(void *of, const void *send, const size_t *send_bytes,
                                  const size_t *send_places, void *receive,
                                  const size_t *receive_bytes, uintptr_t *out_request) {
    group *g = of;
    request *created = calloc(1, sizeof *created);
    char *to = receive;
    for (int32_t peer = 0; peer < g->size; to += receive_bytes[peer++]) {
        const char *from = (const char *)send + send_places[peer];
        if (peer == g->self) {
            if (receive_bytes[peer]) memcpy(to, from, receive_bytes[peer]);
            continue;
        }
        tcc_status status = put(g, from, send_bytes[peer], peer, 0);
        if (status != TCC_OK) return status;
        want(g, created, to, receive_bytes[peer], peer, 0);
    }
    *out_request = (uintptr_t)created;
    return TCC_OK;
}

static tcc_status file_all_gather(void *of, void *data, const size_t *bytes,
                                  uintptr_t *out_request) {
    group *g = of;
    size_t places[MOST] = {0}, sent[MOST], own_place = 0;
    for (int32_t i = 0; i < g->self; i++) own_place += bytes[i];
    for (int32_t i = 0; i < g->size; i++) sent[i] = bytes[g->self];
    char *copy = malloc(sent[0] + 1);
    memcpy(copy, (char *)data + own_place, sent[0]);
    tcc_status status = file_all_to_all(of, copy, sent, places, data, bytes, out_request);
    free(copy);
    return status;
}

static tcc_status file_broadcast(void *of, void *data, size_t bytes, int32_t root,
                                 uintptr_t *out_request) {
    group *g = of;
    request *created = calloc(1, sizeof *created);
    *out_request = (uintptr_t)created;
    if (g->self != root) want(g, created, data, bytes, root, 0);
    for (int32_t peer = 0; g->self == root && peer < g->size; peer++)
        if (peer != root) {
            tcc_status status = put(g, data, bytes, peer, 0);
            if (status != TCC_OK) return status;
        }
    return TCC_OK;
}

static tcc_status file_send(void *of, const void *data, size_t bytes, int32_t peer, int32_t tag,
                            uintptr_t *out_request) {
    *out_request = (uintptr_t)calloc(1, sizeof(request));
    return put(of, data, bytes, peer, tag);
}

static tcc_status file_receive(void *of, void *data, size_t bytes, int32_t peer, int32_t tag,
                               uintptr_t *out_request) {
    request *created = calloc(1, sizeof *created);
    *out_request = (uintptr_t)created;
    want(of, created, data, bytes, peer, tag);
    return TCC_OK;
}

static tcc_status file_test(void *of, uintptr_t *handle, int32_t *out_done) {
    group *g = of;
    request *its = (request *)*handle;
    *out_done = 0;
    while (its->n) {
        expected_message *last = &its->messages[its->n - 1];
        FILE *file = fopen(last->path, "r");
        if (!file) return TCC_OK;
        size_t got = fread(last->data, 1, last->bytes, file);
        bool is_more = fgetc(file) != EOF;
        fclose(file);
        unlink(last->path);
        if (got != last->bytes || is_more) return g->fail(TCC_SYSTEM, "a message of another size");
        its->n--;
    }
    free(its);
    *out_done = 1;
    return TCC_OK;
}

static tcc_comm_engine engine = {
    .struct_size = sizeof engine,
    .version = VERSION,
    .name = "files",
    .open = file_open,
    .split = file_split,
    .close = file_close,
    .all_gather = file_all_gather,
    .all_to_all = file_all_to_all,
    .broadcast = file_broadcast,
    .send = file_send,
    .receive = file_receive,
    .test = file_test,
};

const tcc_comm_engine *tcc_comm_plugin_get(uint32_t version) {
#ifdef WITHOUT
    engine.WITHOUT = NULL;
#endif
#ifdef BYTES
    engine.struct_size = BYTES; /* the size of another version */
#endif
    return version == VERSION ? &engine : NULL;
}
