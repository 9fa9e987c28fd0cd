/* tcc_comm_plugin.h: an engine that moves bytes between ranks, for comms (tcc_comm.h); version 1.
 *
 * A plugin is a shared object with the function tcc_comm_plugin_get.  The environment variable
 * TCC_COMM_PLUGIN names its file, and comms whose backends list `plugin` (as they do by default)
 * use it where the backends before it do not fit.
 *
 * An engine moves bytes.  The library does the rest: reductions, checks of calls and of the ranks'
 * operations, deadlines, failures.
 *
 * A group is the set of a comm's ranks.  One collective of a group is in progress at a time, and no
 * transfer beside it.  Transfers of a group may be in progress together.  Groups do not wait for
 * one another.  Functions that take `out_request` begin an operation and return before it is done:
 * the plugin may store what it needs in *out_request, and `test` is called with its address until
 * the operation is done or the comm fails.  Arrays of sizes may change when the function returns;
 * buffers belong to the operation until it is done.  Ranks begin a group's collectives in one order
 * with sizes that fit.
 *
 * Failure.  Functions return a tcc_status and, where it is not TCC_OK, call the host's `fail` in
 * the same thread.  A failed group gets no further call, not even `close`, because operations in
 * progress cannot be cancelled: its memory stays.
 *
 * Threads.  One thread at a time calls the functions of a group; only `leave` may come from any
 * thread. */
#ifndef TCC_COMM_PLUGIN_H
#define TCC_COMM_PLUGIN_H

#include "tcc.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TCC_COMM_PLUGIN_VERSION 1

/* The library's interface for engines.  The struct is valid during `open`, and its function `fail`
 * as long as the process lives. */
typedef struct tcc_comm_engine_host {
    uint32_t struct_size; /* bytes of this struct: later versions append, never change */
    int32_t rank, size;
    int32_t open_milliseconds, operation_milliseconds; /* deadlines */
    /* Gives every rank the `bytes` bytes of all ranks, at most 65,536 of each, one behind another
     * in rank order.  It uses TCP at the address HOST:PORT where ranks meet.  It may be called in
     * `open` only; all ranks call it in one order with equal sizes. */
    tcc_status (*exchange)(const struct tcc_comm_engine_host *host, const void *blob, size_t bytes,
                           void *out_all);
    /* Sets the reason of the calling thread's error, and returns `status`. */
    tcc_status (*fail)(tcc_status status, const char *reason);
} tcc_comm_engine_host;

typedef struct tcc_comm_engine {
    uint32_t struct_size; /* sizeof(tcc_comm_engine): later versions append, never change */
    uint32_t version;     /* TCC_COMM_PLUGIN_VERSION */
    const char *name;
    int64_t most_bytes; /* limit of one operation, with all ranks' data together; 0: no limit */
    /* Joins the host's rank to all other ranks.  Returns when all have come, or by the deadline. */
    tcc_status (*open)(const tcc_comm_engine_host *host, void **out_group);
    /* Makes a group of the `n` ranks `members`, of which this rank is number `self`.  The members
     * call it with one `name`, which no other group made from `group` has. */
    tcc_status (*split)(void *group, const int32_t *members, int32_t n, int32_t self,
                        const char *name, void **out_group);
    void (*close)(void *group);
    /* Sends rank r's `bytes[r]` bytes of `data` to all ranks.  The parts lie one behind another;
     * this rank's part is in place. */
    tcc_status (*all_gather)(void *group, void *data, const size_t *bytes, uintptr_t *out_request);
    /* Sends send_bytes[r] bytes from send + send_places[r] to rank r, and receives receive_bytes[r]
     * bytes from it, one behind another in `receive`. */
    tcc_status (*all_to_all)(void *group, const void *send, const size_t *send_bytes,
                             const size_t *send_places, void *receive, const size_t *receive_bytes,
                             uintptr_t *out_request);
    tcc_status (*broadcast)(void *group, void *data, size_t bytes, int32_t root,
                            uintptr_t *out_request);
    /* Sends a message.  Messages to one rank arrive in order for each tag, which is 1 or 2. */
    tcc_status (*send)(void *group, const void *data, size_t bytes, int32_t peer, int32_t tag,
                       uintptr_t *out_request);
    tcc_status (*receive)(void *group, void *data, size_t bytes, int32_t peer, int32_t tag,
                          uintptr_t *out_request);
    /* Continues the operation without waiting.  Sets `*out_done` if the request is done. */
    tcc_status (*test)(void *group, uintptr_t *request, int32_t *out_done);
    /* Tells the group that the comm has failed: from now on it may not wait for other ranks.  Any
     * thread may call it.  May be NULL. */
    void (*leave)(void *group);
} tcc_comm_engine;

/* Returns the plugin's engine for this version of the interface; NULL where it has none. */
__attribute__((visibility("default"))) const tcc_comm_engine *tcc_comm_plugin_get(uint32_t version);

#ifdef __cplusplus
}
#endif

#endif
