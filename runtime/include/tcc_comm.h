/* tcc_comm.h: collective operations between processes, version 1.
 *
 * A comm joins `size` processes, its ranks.  Link libtcc_comm.so, or compile src/comm/ into the
 * program.  Started by mpirun, torchrun, srun or with TCC_RANK, TCC_SIZE and TCC_RENDEZVOUS set:
 *
 *     tcc_comm_config config = TCC_COMM_CONFIG;
 *     tcc_comm *comm;
 *     if (tcc_comm_open(&config, &comm) != TCC_OK) { puts(tcc_comm_last_error()); return 1; }
 *     tcc_comm_all_reduce(comm, x, x, 1024, (tcc_dtype){2, 32, 1}, TCC_COMM_SUM);
 *     tcc_comm_close(comm);
 *
 * Operations.  All ranks of a comm issue the same operations in the same order; `send` and
 * `receive` concern two ranks.  An operation returns when the calling rank's buffers may be used
 * again.  Every operation except send and receive also waits until all ranks have begun it.
 * tcc_comm_start returns earlier, and tcc_comm_wait returns when the operation is done.  Element
 * types are f16, bf16, f32, f64, i8, u8, i32 and i64.  Buffers need no alignment.  Send and receive
 * buffers must not overlap, except where a function says that they may be the same.
 *
 * Results.  Reductions combine the ranks in the order 0, 1, 2, ...; f16 and bf16 are combined in
 * f32 and rounded once.  Results are bitwise equal on all ranks, in all runs, for every size of
 * message, on one host and between hosts, for a given number of ranks; only which of several NaNs
 * is kept is not specified.  Minimum and maximum are NaN where an operand is.  Sums and products of
 * integers wrap around.  An average is the sum divided by the number of ranks; for i8, u8 and i32
 * the sum is exact, for i64 it wraps around, and the quotient is rounded toward zero.
 *
 * Ownership.  The caller owns all buffers, and the comm keeps no pointer to them when an operation
 * is done.  The symmetric arena belongs to its comm.  Close the comms of a process before it ends.
 * A closed comm exists, and refuses every call with TCC_INVALID_ARGUMENT, as long as it is kept: by
 * plans and instances of artifacts, or by tcc_comm_keep.  Its memory exists as long as it is kept
 * (tcc_comm_memory_keep).
 *
 * Threads.  A comm serves one thread at a time, and so does its device.  If two threads call a comm
 * at the same time, both get TCC_INVALID_ARGUMENT, and the comm is revoked with that status on all
 * ranks.  The later call returns it at once.  The earlier call returns it too, or, if its operation
 * was just done, the next call of its thread does.  An operation that was started and not waited
 * for does not count as a call.  tcc_comm_abort, tcc_comm_error, tcc_comm_failed, tcc_comm_rank and
 * tcc_comm_size may be called from any thread at any time before tcc_comm_close.
 *
 * Failure.  Functions return a tcc_status, and tcc_comm_last_error holds the reason for the calling
 * thread.  A rank that ends, stops, comes too late or issues another operation revokes the comm:
 * every rank that waits in an operation returns an error, and every later operation returns the
 * same error at once.  Buffers of the failed operation hold unspecified values.  The deadline of an
 * operation bounds the time that it waits without progress.  The end of a process is seen within 20
 * ms by ranks that wait for it.  tcc_comm_failed tells which ranks are gone, and tcc_comm_shrink
 * makes a comm of the remaining ranks.  After fork the child's comms refuse every operation; the
 * parent's go on.  TCC_INVALID_ARGUMENT, TCC_OUT_OF_MEMORY and TCC_UNSUPPORTED on one rank leave
 * the comm usable, but the other ranks wait for the operation that this rank did not begin. */
#ifndef TCC_COMM_H
#define TCC_COMM_H

#include "tcc.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TCC_COMM_VERSION 1
#define TCC_COMM_API __attribute__((visibility("default")))

typedef struct tcc_comm tcc_comm;
typedef struct tcc_comm_plan tcc_comm_plan;
typedef struct tcc_comm_memory tcc_comm_memory; /* one arena, for callers that keep it */

typedef enum tcc_comm_reduction {
    TCC_COMM_SUM = 0,
    TCC_COMM_PROD = 1,
    TCC_COMM_MIN = 2,
    TCC_COMM_MAX = 3,
    TCC_COMM_AVG = 4
} tcc_comm_reduction;

typedef enum tcc_comm_kind {
    TCC_COMM_BARRIER = 0,
    TCC_COMM_ALL_REDUCE = 1,
    TCC_COMM_REDUCE_SCATTER = 2,
    TCC_COMM_ALL_GATHER = 3,
    TCC_COMM_ALL_GATHER_V = 4,
    TCC_COMM_ALL_TO_ALL = 5,
    TCC_COMM_ALL_TO_ALL_V = 6,
    TCC_COMM_BROADCAST = 7,
    TCC_COMM_SEND = 8,
    TCC_COMM_RECEIVE = 9
} tcc_comm_kind;

/* ---- opening and closing --------------------------------------------------------------------- */

/* The settings of tcc_comm_open.  Start from TCC_COMM_CONFIG and set the known fields.  For -1 and
 * NULL the launcher's environment variables are read: TCC_RANK, TCC_SIZE, TCC_LOCAL_RANK,
 * TCC_LOCAL_SIZE, TCC_RENDEZVOUS, TCC_TOKEN, TCC_EPOCH, or those of torchrun, Open MPI, Hydra,
 * Slurm and Kubernetes.  A program with raised privileges (set-user-ID, set-group-ID, file
 * capabilities) reads no environment variable. */
typedef struct tcc_comm_config {
    uint32_t struct_size; /* sizeof(tcc_comm_config); of another version: see tcc.h */
    int32_t rank, size;
    int32_t local_rank, local_size; /* number and count among the ranks of this host */
    int32_t epoch;             /* counts restarts of the job; ranks of another epoch are refused */
    /* a name that all ranks of one job share, 1 to 200 bytes; HOST:PORT of rank 0's host if the
     * ranks may be on several hosts: rank 0 listens on all addresses of its host if HOST is a name,
     * else on that address */
    const char *rendezvous;
    const char *token;         /* a secret of the job, up to 64 bytes, better random; "": no secret;
                                  "none" is the explicit choice of no secret between hosts, which is
                                  printed */
    const char *backends;      /* names by preference, "shared,plugin,mpi" if NULL */
    int32_t open_milliseconds; /* deadline of open, split, shrink and symmetric; 0: 60,000 */
    int32_t operation_milliseconds; /* deadline of an operation; 0: 300,000 */
} tcc_comm_config;

#define TCC_COMM_CONFIG {sizeof(tcc_comm_config), -1, -1, -1, -1, -1, NULL, NULL, NULL, 0, 0}

/* Joins this process to the job as one rank; returns when all ranks have come.  The first backend
 * of the list that fits is used: `shared` where all ranks, at most 64, are on one host (ranks find
 * that out at HOST:PORT if neither the config nor a launcher gives the local size); `plugin` where
 * TCC_COMM_PLUGIN names an engine (tcc_comm_plugin.h); `mpi` where an MPI library is found.
 * Processes of `shared` find one another by an abstract socket whose name depends on the token,
 * have the same user, and share one network namespace.  Ranks that meet at HOST:PORT need a token.
 * Both sides prove that they know it by hashes of fresh numbers, and never send it.  A process
 * without that proof is a stranger: a rank that finds a stranger in another rank's place tries
 * again until its deadline.  Every open ends by its deadline, except for time in calls of MPI and
 * plugins.  TCC_INVALID_ARGUMENT: a field or an environment variable is wrong, two of them
 * contradict, the epoch is not the job's, or a needed token is missing.  TCC_MISMATCH: ranks give
 * different sizes.  TCC_TIMEOUT: a rank did not come, or has another token; the reason has the
 * addresses that were listened on and called. */
TCC_COMM_API tcc_status tcc_comm_open(const tcc_comm_config *config, tcc_comm **out_comm);

/* Leaves the comm and gives it back.  It does not wait for other ranks.  It waits for a call of
 * another thread, which ends by its deadline or by tcc_comm_abort.  Ranks that still need this one
 * get TCC_MISMATCH.  `comm` may be NULL. */
TCC_COMM_API void tcc_comm_close(tcc_comm *comm);

/* Keeps a comm, or the comm that a subgroup belongs to, so that it outlives a close: its calls are
 * then refused.  Any thread may call it.  Pair each keep with a drop after the last use. */
TCC_COMM_API tcc_status tcc_comm_keep(tcc_comm *comm);
TCC_COMM_API void tcc_comm_drop(tcc_comm *comm); /* `comm` may be NULL */

TCC_COMM_API int32_t tcc_comm_rank(const tcc_comm *comm);
TCC_COMM_API int32_t tcc_comm_size(const tcc_comm *comm);
/* tcc_comm_local_rank returns this process's number among the job's processes on its host, and
 * tcc_comm_local_size their count.  Both come from the config or a launcher, else from the ranks'
 * meeting.  They also work on comms made from this one. */
TCC_COMM_API int32_t tcc_comm_local_rank(const tcc_comm *comm);
TCC_COMM_API int32_t tcc_comm_local_size(const tcc_comm *comm);
/* Returns "shared", "mpi", or the name of the plugin's engine. */
TCC_COMM_API const char *tcc_comm_backend_name(const tcc_comm *comm);

/* Makes one new comm for each color.  Its ranks are ordered by key, then by old rank.  The result
 * is NULL for a negative color. */
TCC_COMM_API tcc_status tcc_comm_split(tcc_comm *comm, int32_t color, int32_t key,
                                       tcc_comm **out_comm);

/* Makes the comm of `n` ranks of `comm`, in the order of the list, with this process among them.
 * It belongs to `comm`, which keeps it until `comm` is closed: later calls with the same ranks give
 * the same comm, and tcc_comm_abort aborts it too.  All ranks of `comm` call it in the same order
 * as operations, each with the list that contains it.  Do not close `out_comm`.  TCC_MISMATCH,
 * which revokes `comm`: ranks of one list give different lists. */
TCC_COMM_API tcc_status tcc_comm_subgroup(tcc_comm *comm, const int32_t *ranks, int32_t n,
                                          tcc_comm **out_comm);

/* Finds the ranks that are gone, in rank order: their processes have ended, or they have closed the
 * comm.  Stores the first `room` of them in `out_ranks`, which may be NULL if `room` is 0, and
 * their number in `out_count`.  Any thread may call it, also on a revoked comm; it neither waits
 * nor revokes.  A process that writes a core dump has not ended before the dump is written.  A
 * stopped process has not ended.  TCC_UNSUPPORTED on the backends `plugin` and `mpi`: engines
 * report a failed operation, but not the failed ranks. */
TCC_COMM_API tcc_status tcc_comm_failed(tcc_comm *comm, int32_t *out_ranks, int32_t room,
                                        int32_t *out_count);

/* Makes a new comm of the remaining ranks, in rank order.  All of them call it, also on a revoked
 * comm.  They agree on the set of remaining ranks, and leave out the ranks that are gone (see
 * tcc_comm_failed), also ranks that end during the call: `excluded` may be NULL and `n` 0.  At
 * least one of them names in `excluded` each rank that lives and will not come, for example a
 * stopped one.  Either all remaining ranks get the comm or none does.  Another rank may be gone by
 * then; the first operation reports it, and the new comm can be shrunk again.  If all ranks of the
 * old comm live, it stays usable; otherwise it is revoked.  TCC_TIMEOUT: a rank that lives did not
 * come by the deadline of opening; its number is in the reason.  TCC_MISMATCH: another rank has
 * named this one in `excluded`, which is permanent.  TCC_UNSUPPORTED on the backends `plugin` and
 * `mpi`: their engines cannot make a group from a failed one.  There the launcher knows the
 * remaining ranks: they close the comm and open a new one with new ranks, a new size and a higher
 * epoch, or the job is started again. */
TCC_COMM_API tcc_status tcc_comm_shrink(tcc_comm *comm, const int32_t *excluded, int32_t n,
                                        tcc_comm **out_comm);

/* Revokes the comm on all ranks with TCC_CANCELLED and this reason.  Also revokes its subgroups
 * that this process is in, on their ranks.  On the backends `plugin` and `mpi` other ranks learn of
 * it by their deadline. */
TCC_COMM_API tcc_status tcc_comm_abort(tcc_comm *comm, const char *reason);

/* Returns TCC_OK, or the error that revoked the comm.  On the backend `shared` it returns
 * TCC_PEER_DEAD, and revokes the comm, if a rank's process has ended without closing the comm. */
TCC_COMM_API tcc_status tcc_comm_error(tcc_comm *comm);

/* Returns the reason of the calling thread's last error. */
TCC_COMM_API const char *tcc_comm_last_error(void);

/* ---- operations ------------------------------------------------------------------------------ */

/* receive[i] = the reduction of all ranks' send[i], i < count.  receive may be send. */
TCC_COMM_API tcc_status tcc_comm_all_reduce(tcc_comm *comm, const void *send, void *receive,
                                            int64_t count, tcc_dtype dtype,
                                            tcc_comm_reduction reduction);

/* send has size * count elements, receive count: receive[i] = the reduction of all ranks'
 * send[rank * count + i].  receive may be send + rank * count elements. */
TCC_COMM_API tcc_status tcc_comm_reduce_scatter(tcc_comm *comm, const void *send, void *receive,
                                                int64_t count, tcc_dtype dtype,
                                                tcc_comm_reduction reduction);

/* send has count elements, receive size * count: receive[r * count + i] = rank r's send[i].  send
 * may be receive + rank * count elements. */
TCC_COMM_API tcc_status tcc_comm_all_gather(tcc_comm *comm, const void *send, void *receive,
                                            int64_t count, tcc_dtype dtype);

/* Like all_gather, with counts[r] elements from rank r, one behind another; counts are equal on all
 * ranks.  send may be this rank's place in receive. */
TCC_COMM_API tcc_status tcc_comm_all_gather_v(tcc_comm *comm, const void *send, void *receive,
                                              const int64_t *counts, tcc_dtype dtype);

/* receive[r * count + i] = rank r's send[rank * count + i]; both have size * count elements.
 * receive may be send. */
TCC_COMM_API tcc_status tcc_comm_all_to_all(tcc_comm *comm, const void *send, void *receive,
                                            int64_t count, tcc_dtype dtype);

/* Like all_to_all, with send_counts[r] elements for rank r and receive_counts[r] from it, one
 * behind another.  receive_counts[r] is rank r's send_counts[rank]. */
TCC_COMM_API tcc_status tcc_comm_all_to_all_v(tcc_comm *comm, const void *send, void *receive,
                                              const int64_t *send_counts,
                                              const int64_t *receive_counts, tcc_dtype dtype);

/* receive[i] = rank root's send[i].  send is read on the root alone and may be NULL elsewhere;
 * receive may be send. */
TCC_COMM_API tcc_status tcc_comm_broadcast(tcc_comm *comm, const void *send, void *receive,
                                           int64_t count, tcc_dtype dtype, int32_t root);

/* Messages from one rank to another arrive in order and match in count and dtype.  A send of more
 * than 64 KiB waits for the receiver. */
TCC_COMM_API tcc_status tcc_comm_send(tcc_comm *comm, const void *send, int64_t count,
                                      tcc_dtype dtype, int32_t peer);
TCC_COMM_API tcc_status tcc_comm_receive(tcc_comm *comm, void *receive, int64_t count,
                                         tcc_dtype dtype, int32_t peer);

/* Returns when all ranks have called it. */
TCC_COMM_API tcc_status tcc_comm_barrier(tcc_comm *comm);

/* Operations between group_start and group_end begin at group_end: collectives one after another,
 * then sends and receives together, so that every rank may send before it receives.  Arrays of
 * counts must stay valid until group_end.  Groups do not nest. */
TCC_COMM_API tcc_status tcc_comm_group_start(tcc_comm *comm);
TCC_COMM_API tcc_status tcc_comm_group_end(tcc_comm *comm);

/* ---- plans ----------------------------------------------------------------------------------- */

/* One operation without its buffers.  `root` is the root of a broadcast or the peer of a send or
 * receive.  all_gather_v takes send_counts. */
typedef struct tcc_comm_call {
    uint32_t struct_size; /* sizeof(tcc_comm_call); of another version: see tcc.h */
    tcc_comm_kind kind;
    tcc_comm_reduction reduction;
    tcc_dtype dtype;
    int32_t root;
    int64_t count;
    const int64_t *send_counts, *receive_counts;
} tcc_comm_call;

/* Checks and copies the call, counts included.  Ranks need not make plans together.  A post issues
 * the call's operation. */
TCC_COMM_API tcc_status tcc_comm_plan_make(tcc_comm *comm, const tcc_comm_call *call,
                                           tcc_comm_plan **out_plan);
TCC_COMM_API tcc_status tcc_comm_plan_post(tcc_comm_plan *plan, const void *send, void *receive);
TCC_COMM_API void tcc_comm_plan_free(tcc_comm_plan *plan);

/* ---- started operations ---------------------------------------------------------------------- */

/* Starts a collective and gives it a ticket, a number above 0.  The buffers and arrays of counts
 * belong to the operation until tcc_comm_wait.  Operations begin and end in the order of the calls:
 * an operation begins when all earlier ones of this rank are done, and every blocking call first
 * waits for all started operations.  On the backend `shared` a rank that has begun an operation has
 * handed over its first slice (at most 256 KiB), which others read without its help; further slices
 * move in tcc_comm_wait and later calls of tcc_comm_start.  On `plugin` and `mpi` the ranks compare
 * their operations in the background, and data moves in tcc_comm_wait.  A started operation that
 * fails revokes the comm.  TCC_INVALID_ARGUMENT also for send and receive, and while a group is
 * open. */
TCC_COMM_API tcc_status tcc_comm_start(tcc_comm *comm, const tcc_comm_call *call, const void *send,
                                       void *receive, uint64_t *out_ticket);
/* Does the same for the plan's operation.  The plan must not be freed before the wait. */
TCC_COMM_API tcc_status tcc_comm_plan_start(tcc_comm_plan *plan, const void *send, void *receive,
                                            uint64_t *out_ticket);
/* Returns when the operation with this ticket, and all operations started before it, are done.  A
 * ticket may be waited for more than once. */
TCC_COMM_API tcc_status tcc_comm_wait(tcc_comm *comm, uint64_t ticket);

/* ---- operations on GPUs ---------------------------------------------------------------------- */

/* The GPUs of ranks whose buffers lie there, one GPU per rank.  NCCL (CUDA) or RCCL (ROCm) carries
 * out the operations on the caller's streams; the comm tells the ranks where they meet, and watches
 * them.  These libraries choose the order of a reduction: its rounding may depend on the size, sums
 * of f16 and bf16 may be rounded at every step, minimum and maximum may drop a NaN, and ranks have
 * equal bits only if the library guarantees that. */
typedef struct tcc_comm_device tcc_comm_device;

/* Joins the GPU that is current in the calling thread; all ranks call it as an operation.  The
 * library is the file TCC_NCCL_LIBRARY or TCC_RCCL_LIBRARY, else libnccl.so.2 or librccl.so.1, from
 * version 2.14 on.  `device_type` is DLPack's: 2 for CUDA, 10 for ROCm.  Later calls give the same
 * device, and each is closed.  The device outlives its comm, but refuses operations then.
 * TCC_UNSUPPORTED: a rank has no library; the comm stays usable.  TCC_MISMATCH: ranks have
 * different libraries.  Any other failure revokes the comm. */
TCC_COMM_API tcc_status tcc_comm_device_open(tcc_comm *comm, int32_t device_type,
                                             tcc_comm_device **out_device);

/* Closes a device.  Graphs with operations of it must be gone before its last user closes it;
 * otherwise that call waits for them.  `device` may be NULL. */
TCC_COMM_API void tcc_comm_device_close(tcc_comm_device *device);

/* Puts the operation into `stream`, which may be recorded, and returns.  The buffers belong to the
 * operation until the stream has passed it.  The operation of one rank waits on its GPU for the
 * operations of the others.  Ranks with different operations are not told so, but end by their
 * deadline.  TCC_UNSUPPORTED: barrier, avg of integers, and all_to_all in place. */
TCC_COMM_API tcc_status tcc_comm_device_start(tcc_comm_device *device, const tcc_comm_call *call,
                                              const void *send, void *receive, void *stream);

/* Operations between group_start and group_end begin together at group_end, in no order among sends
 * and receives.  Arrays of counts must stay valid until group_end.  Groups do not nest. */
TCC_COMM_API tcc_status tcc_comm_device_group_start(tcc_comm_device *device);
TCC_COMM_API tcc_status tcc_comm_device_group_end(tcc_comm_device *device);

/* Calls wait(of), which waits for a stream with operations in it, and stores its result.  The wait
 * ends by the deadline of operations at the latest.  At the deadline, or when the comm is revoked
 * at any time, operations on all ranks' GPUs are aborted (within 20 ms where the backend `shared`
 * tells the ranks), and the function returns the error that revoked the comm. */
TCC_COMM_API tcc_status tcc_comm_device_wait(tcc_comm_device *device, int (*wait)(void *of),
                                             void *of, int *out_result);

/* ---- for code that is not linked with this library ------------------------------------------- */

/* A comm begins with the address of its table, so that artifacts use it through the comm alone. */
typedef struct tcc_comm_table {
    uint32_t struct_size; /* bytes of this table: later versions append, never change */
    uint32_t version;     /* TCC_COMM_VERSION */
    int32_t (*rank)(const tcc_comm *comm);
    int32_t (*size)(const tcc_comm *comm);
    /* Issues the call's operation. */
    tcc_status (*issue)(tcc_comm *comm, const tcc_comm_call *call, const void *send, void *receive);
    tcc_status (*abort)(tcc_comm *comm, const char *reason);
    const char *(*last_error)(void);
    tcc_status (*start)(tcc_comm *comm, const tcc_comm_call *call, const void *send, void *receive,
                        uint64_t *out_ticket);
    tcc_status (*wait)(tcc_comm *comm, uint64_t ticket);
    tcc_status (*scratch)(tcc_comm *comm, size_t bytes, void **out_memory);
    tcc_status (*subgroup)(tcc_comm *comm, const int32_t *ranks, int32_t n, tcc_comm **out_comm);
    tcc_status (*device_open)(tcc_comm *comm, int32_t device_type, tcc_comm_device **out_device);
    void (*device_close)(tcc_comm_device *device);
    tcc_status (*device_start)(tcc_comm_device *device, const tcc_comm_call *call, const void *send,
                               void *receive, void *stream);
    tcc_status (*device_wait)(tcc_comm_device *device, int (*wait)(void *of), void *of,
                              int *out_result);
    int32_t (*local_rank)(const tcc_comm *comm);
    int32_t (*local_size)(const tcc_comm *comm);
    tcc_status (*keep)(tcc_comm *comm);
    void (*drop)(tcc_comm *comm);
    tcc_status (*memory_keep)(tcc_comm *comm, const void *memory, tcc_comm_memory **out_kept);
    void (*memory_drop)(tcc_comm_memory *kept);
    /* Sets a function that waits of the calling thread for other ranks, on any comm, call as
     * ends(of) every few milliseconds.  If it returns a value other than 0, the wait revokes its
     * comm with TCC_CANCELLED.  NULL, the initial value, means no function. */
    void (*ask)(int (*ends)(void *of), void *of);
} tcc_comm_table;

/* ---- symmetric arena ------------------------------------------------------------------------- */

/* Makes the comm's symmetric arena: `bytes` zero bytes on every rank, page-aligned, valid until the
 * close, or until the last keeper's drop.  All ranks call it with equal sizes, once per comm.  A
 * collective of the comm or of a subgroup of it is done in the arena without staging, where that is
 * faster, if the following buffers lie at the same places in the arena on all ranks: both of
 * all_reduce and of all_to_all (not in place), send of reduce_scatter, receive of all_gather and
 * all_gather_v.  It is a mismatch if only some ranks have one of the buffers in the arena, or have
 * it at different places.  TCC_UNSUPPORTED on the backends `plugin` and `mpi`. */
TCC_COMM_API tcc_status tcc_comm_symmetric(tcc_comm *comm, size_t bytes, void **out_memory);

/* Returns at least `bytes` bytes on every rank for an artifact's current run, in a separate
 * symmetric arena.  The memory is valid until a call that needs more.  All ranks call it in the
 * same order as operations.  If one rank needs a larger arena and another does not, the comm
 * reports a mismatch.  TCC_UNSUPPORTED on the backends `plugin` and `mpi`. */
TCC_COMM_API tcc_status tcc_comm_scratch(tcc_comm *comm, size_t bytes, void **out_memory);

/* Keeps the arena that has the address `memory`: it stays mapped until the drop, also after a call
 * that needs more and after tcc_comm_close.  TCC_INVALID_ARGUMENT: the comm has no such arena. */
TCC_COMM_API tcc_status tcc_comm_memory_keep(tcc_comm *comm, const void *memory,
                                             tcc_comm_memory **out_kept);
/* Drops a kept arena.  Any thread may call it; `kept` may be NULL. */
TCC_COMM_API void tcc_comm_memory_drop(tcc_comm_memory *kept);

/* ---- the process's comm ---------------------------------------------------------------------- */

/* Returns the comm that artifacts of this process use, or NULL.  All copies of this library in a
 * process share it.  The comm that was first passed to tcc_comm_share stays the process's until it
 * is closed. */
TCC_COMM_API tcc_comm *tcc_comm_shared(void);
/* Makes `comm` the process's comm.  TCC_INVALID_ARGUMENT if there is another. */
TCC_COMM_API tcc_status tcc_comm_share(tcc_comm *comm);

#ifdef __cplusplus
}
#endif

#endif
