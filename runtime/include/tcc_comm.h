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
 * tcc_comm_start returns before, and tcc_comm_wait when the operation is done.
 * Element types are f16, bf16, f32, f64, i8, u8, i32 and i64.  Buffers need no alignment.  Send and
 * receive buffers must not overlap, except where a function says that they may be the same.
 *
 * Results.  Reductions combine the ranks in the order 0, 1, 2, ...; f16 and bf16 are combined in
 * f32 and rounded once.  Results are bitwise equal on all ranks, in all runs, for every size of
 * message, on one host and between hosts, for a given number of ranks; only which of several NaNs
 * is kept is not specified.  Minimum and maximum are NaN where an operand is.  Sums and products of
 * integers wrap around.  An average is the sum divided by the number of ranks; of i8, u8 and i32
 * the sum is exact, of i64 it wraps around, and the quotient is rounded toward zero.
 *
 * Ownership.  The caller owns all buffers, and nothing of them is kept when an operation is done.
 * The symmetric arena belongs to its comm.  Close comms of a process before it ends.  A comm that is
 * closed is there, and refuses every call with TCC_INVALID_ARGUMENT, until nobody keeps it: plans and
 * instances of artifacts do, and tcc_comm_keep.  Its memory is there until nobody keeps that
 * (tcc_comm_memory_keep).
 *
 * Threads.  A comm serves one thread at a time, and so does its device.  Where two threads are in
 * calls of one at once, both get TCC_INVALID_ARGUMENT and the comm is revoked with it on all ranks.
 * The later call returns it at once, the earlier one too, or the next call of its thread where the
 * operation was done just then.  An operation that was started and not waited for is no such call.
 * tcc_comm_abort, tcc_comm_error, tcc_comm_failed, tcc_comm_rank and tcc_comm_size may be called from
 * any thread at any time before tcc_comm_close.
 *
 * Failure.  Functions return a tcc_status, and tcc_comm_last_error holds the reason for the calling
 * thread.  A rank that ends, stops, comes too late or issues another operation revokes the comm:
 * every rank that waits in an operation returns an error, and every later operation returns the
 * same error at once.  Buffers of the failed operation hold unspecified values.  The deadline of an
 * operation bounds the time that it waits without progress.  The end of a process is seen within
 * 20 ms by ranks that wait for it.  tcc_comm_failed tells which ranks are gone, and tcc_comm_shrink
 * makes a comm of those that are left.  After fork the child's comms refuse every operation; the
 * parent's go on.
 * TCC_INVALID_ARGUMENT, TCC_OUT_OF_MEMORY and TCC_UNSUPPORTED on one rank leave the comm usable,
 * but the other ranks wait for the operation that this rank did not begin.
 */
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
typedef struct tcc_comm_memory tcc_comm_memory; /* of an arena, for who keeps it */

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

/* Start from TCC_COMM_CONFIG and set what is known.  -1 and NULL are taken from the launcher's
 * environment variables: TCC_RANK, TCC_SIZE, TCC_LOCAL_RANK, TCC_LOCAL_SIZE, TCC_RENDEZVOUS,
 * TCC_TOKEN, TCC_EPOCH, or those of torchrun, Open MPI, Hydra, Slurm and Kubernetes.  A program
 * with raised privileges (set-user-ID, set-group-ID, file capabilities) reads no environment
 * variable. */
typedef struct tcc_comm_config {
    uint32_t struct_size; /* sizeof(tcc_comm_config); of another version: see tcc.h */
    int32_t rank, size;
    int32_t local_rank, local_size; /* among the ranks of this host */
    int32_t epoch;             /* counts restarts of the job; ranks of another one are refused */
    const char *rendezvous;    /* a name that all ranks of one job share, 1 to 200 bytes; HOST:PORT
                                * of rank 0's host if they may be of several: rank 0 listens on all
                                * addresses of its host where HOST is a name, else on that one */
    const char *token;         /* a secret of the job, up to 64 bytes, better random; "" if there is
                                * none; "none" is the choice of none between hosts, and printed */
    const char *backends;      /* names by preference, "shared,plugin,mpi" if NULL */
    int32_t open_milliseconds; /* deadline of open, split, shrink and symmetric; 0: 60,000 */
    int32_t operation_milliseconds; /* deadline of an operation; 0: 300,000 */
} tcc_comm_config;

#define TCC_COMM_CONFIG {sizeof(tcc_comm_config), -1, -1, -1, -1, -1, NULL, NULL, NULL, 0, 0}

/* Joins this process to the job as one rank; returns when all ranks have come.  The first backend
 * of the list that fits is used: `shared` where all ranks are of one host, at most 64 of them,
 * which ranks find out at HOST:PORT where neither the config nor a launcher gives the local size;
 * `plugin` where TCC_COMM_PLUGIN names an engine (tcc_comm_plugin.h); `mpi` where an MPI library
 * is found.  Processes of `shared` find one another by an abstract socket whose name depends on
 * the token, have the same user, and share one network namespace.  Ranks that meet at HOST:PORT
 * need a token.  Both sides prove that they know it by hashes of fresh numbers, and never send
 * it.  Whoever does not prove it is a stranger: a rank that finds one in another's place tries
 * again until its deadline, by which every open ends (calls of MPI and of plugins apart).
 * TCC_INVALID_ARGUMENT: a field or an environment variable is wrong, two of them contradict, the
 * epoch is not the job's, or there is no token where one is needed.  TCC_MISMATCH: ranks give
 * different sizes.  TCC_TIMEOUT: a rank did not come, or has another token; the reason has the
 * addresses that were listened on and called. */
TCC_COMM_API tcc_status tcc_comm_open(const tcc_comm_config *config, tcc_comm **out_comm);

/* Leaves the comm and gives it back; does not wait for other ranks, but for a call of another thread,
 * which ends by its deadline, or by tcc_comm_abort.  Ranks that still need this one get
 * TCC_MISMATCH.  `comm` may be NULL. */
TCC_COMM_API void tcc_comm_close(tcc_comm *comm);

/* Keeps a comm, or the one that a subgroup belongs to, also where it is closed meanwhile: its calls
 * are refused then.  From any thread.  Every keep has its drop, behind the last use. */
TCC_COMM_API tcc_status tcc_comm_keep(tcc_comm *comm);
TCC_COMM_API void tcc_comm_drop(tcc_comm *comm); /* `comm` may be NULL */

TCC_COMM_API int32_t tcc_comm_rank(const tcc_comm *comm);
TCC_COMM_API int32_t tcc_comm_size(const tcc_comm *comm);
/* This process's number among the job's processes on its host, and how many these are: as the config
 * or a launcher says, else as the ranks find when they meet.  Also of comms made from this one. */
TCC_COMM_API int32_t tcc_comm_local_rank(const tcc_comm *comm);
TCC_COMM_API int32_t tcc_comm_local_size(const tcc_comm *comm);
/* "shared", "mpi", or the name of the plugin's engine. */
TCC_COMM_API const char *tcc_comm_backend_name(const tcc_comm *comm);

/* One new comm for each color, ranked by key and then by old rank; NULL for a negative color. */
TCC_COMM_API tcc_status tcc_comm_split(tcc_comm *comm, int32_t color, int32_t key,
                                       tcc_comm **out_comm);

/* The comm of `n` ranks of `comm`, in this order and this process among them.  It belongs to `comm`,
 * which keeps it until it is closed: later calls with these ranks give the same one, and
 * tcc_comm_abort aborts it too.  All ranks of `comm` call it in the same order as operations, each
 * with the list that has it, and `out_comm` is not closed.  TCC_MISMATCH, which revokes `comm`:
 * ranks of one list give different lists. */
TCC_COMM_API tcc_status tcc_comm_subgroup(tcc_comm *comm, const int32_t *ranks, int32_t n,
                                          tcc_comm **out_comm);

/* The ranks that are gone, in their order: their processes have ended, or they have closed the comm.
 * Stores the first `room` of them in `out_ranks`, which may be NULL where `room` is 0, and how many
 * there are in `out_count`.  Also on a revoked comm, from any thread; it neither waits nor revokes.  A
 * process that writes a core dump has not ended before the dump is written; one that is stopped has
 * not ended.  TCC_UNSUPPORTED on the backends `plugin` and `mpi`: engines report an operation that
 * failed, but not which ranks did. */
TCC_COMM_API tcc_status tcc_comm_failed(tcc_comm *comm, int32_t *out_ranks, int32_t room,
                                        int32_t *out_count);

/* A new comm of the ranks that are left, in the order of their ranks; called by all of them, also on a
 * revoked comm.  They agree by themselves on who they are, and leave out the ranks that are gone (see
 * tcc_comm_failed), also those that end during the call: `excluded` may be NULL and `n` 0.  A rank
 * that lives and will not come, a stopped one for example, is named in `excluded` by one of them or
 * more.  The comm is given to all ranks that are left or to none; one of them may be gone again by
 * then, which the first operation reports, and the new comm can be shrunk in turn.  A comm whose ranks
 * all live stays usable; else it is revoked.
 * TCC_TIMEOUT: a rank that lives did not come by the deadline of opening; its number is in the reason.
 * TCC_MISMATCH: another rank has named this one in `excluded`, which holds for good.
 * TCC_UNSUPPORTED on the backends `plugin` and `mpi`: their engines make no group of a failed one.
 * There whoever started the ranks knows which are left: these close the comm and open one with new
 * ranks, a new size and a higher epoch, or the job is started again. */
TCC_COMM_API tcc_status tcc_comm_shrink(tcc_comm *comm, const int32_t *excluded, int32_t n,
                                        tcc_comm **out_comm);

/* Revokes the comm on all ranks with TCC_CANCELLED and this reason, and its subgroups that this
 * process is in on their ranks.  On the backends `plugin` and `mpi` other ranks learn of it by their
 * deadline. */
TCC_COMM_API tcc_status tcc_comm_abort(tcc_comm *comm, const char *reason);

/* TCC_OK, or the error that revoked the comm; also TCC_PEER_DEAD if a rank's process has ended
 * without closing the comm (backend `shared`), which revokes it. */
TCC_COMM_API tcc_status tcc_comm_error(tcc_comm *comm);

/* The reason of the calling thread's last error. */
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

/* As all_gather with counts[r] elements of rank r, one behind another; counts are equal on all
 * ranks.  send may be this rank's place in receive. */
TCC_COMM_API tcc_status tcc_comm_all_gather_v(tcc_comm *comm, const void *send, void *receive,
                                              const int64_t *counts, tcc_dtype dtype);

/* receive[r * count + i] = rank r's send[rank * count + i]; both have size * count elements.
 * receive may be send. */
TCC_COMM_API tcc_status tcc_comm_all_to_all(tcc_comm *comm, const void *send, void *receive,
                                            int64_t count, tcc_dtype dtype);

/* As all_to_all with send_counts[r] elements for rank r and receive_counts[r] from it, one behind
 * another.  receive_counts[r] is rank r's send_counts[rank]. */
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
 * counts stay valid until then.  Groups do not nest. */
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

/* Checks and copies the call, counts included.  Ranks need not make plans together; a post is the
 * call's operation. */
TCC_COMM_API tcc_status tcc_comm_plan_make(tcc_comm *comm, const tcc_comm_call *call,
                                           tcc_comm_plan **out_plan);
TCC_COMM_API tcc_status tcc_comm_plan_post(tcc_comm_plan *plan, const void *send, void *receive);
TCC_COMM_API void tcc_comm_plan_free(tcc_comm_plan *plan);

/* ---- started operations ---------------------------------------------------------------------- */

/* Starts a collective and gives it a ticket, a number above 0.  The buffers and arrays of counts are
 * the operation's until tcc_comm_wait.  Operations begin and end in the order of the calls: one
 * begins when those before it on this rank are done, and every blocking call first waits for all
 * that was started.
 * On the backend `shared` a rank that has begun has handed over its first slice (at most 256 KiB),
 * which others read without it; further slices move in tcc_comm_wait and later calls of
 * tcc_comm_start.  On `plugin` and `mpi` the ranks compare their operations beside the caller,
 * and data move in tcc_comm_wait.  A started operation that fails revokes the comm.
 * TCC_INVALID_ARGUMENT: also for send and receive, and while a group is open. */
TCC_COMM_API tcc_status tcc_comm_start(tcc_comm *comm, const tcc_comm_call *call, const void *send,
                                       void *receive, uint64_t *out_ticket);
/* The same for the plan's operation.  The plan must not be freed before the wait. */
TCC_COMM_API tcc_status tcc_comm_plan_start(tcc_comm_plan *plan, const void *send, void *receive,
                                            uint64_t *out_ticket);
/* Returns when the operation with this ticket is done, and all that were started before it.  It may
 * be waited for more than once. */
TCC_COMM_API tcc_status tcc_comm_wait(tcc_comm *comm, uint64_t ticket);

/* ---- operations on GPUs ---------------------------------------------------------------------- */

/* Ranks whose buffers lie on GPUs, one GPU a rank.  NCCL (CUDA) or RCCL (ROCm) carries out the
 * operations on the caller's streams; the comm tells the ranks where they meet, and watches them.
 * These libraries choose the order of a reduction: its rounding may depend on the size, sums of f16
 * and bf16 may be rounded at every step, minimum and maximum may drop a NaN, and ranks have equal
 * bits where the library gives them. */
typedef struct tcc_comm_device tcc_comm_device;

/* Joins the GPU that is current in the calling thread; all ranks call it as an operation.  The
 * library is the file TCC_NCCL_LIBRARY or TCC_RCCL_LIBRARY, else libnccl.so.2 or librccl.so.1, from
 * version 2.14 on.  `device_type` is DLPack's: 2 for CUDA, 10 for ROCm.  Later calls give the same
 * device, and each is closed.  The device outlives its comm, but refuses operations then.
 * TCC_UNSUPPORTED: a rank has no library; the comm stays usable.  TCC_MISMATCH: ranks have
 * different libraries.  Any other failure revokes the comm. */
TCC_COMM_API tcc_status tcc_comm_device_open(tcc_comm *comm, int32_t device_type,
                                             tcc_comm_device **out_device);

/* What was recorded in graphs must be gone before the last of its users closes a device, else that
 * call waits for it.  `device` may be NULL. */
TCC_COMM_API void tcc_comm_device_close(tcc_comm_device *device);

/* Puts the operation into `stream`, which may be recorded, and returns; the buffers are the
 * operation's until the stream has come past it.  The operation of one rank waits on its GPU for
 * those of the others; ranks that differ are not told, but end by their deadline.
 * TCC_UNSUPPORTED: barrier, avg of integers, and all_to_all in place. */
TCC_COMM_API tcc_status tcc_comm_device_start(tcc_comm_device *device, const tcc_comm_call *call,
                                              const void *send, void *receive, void *stream);

/* Operations between group_start and group_end begin together at group_end, in no order among
 * sends and receives.  Arrays of counts stay valid until then.  Groups do not nest. */
TCC_COMM_API tcc_status tcc_comm_device_group_start(tcc_comm_device *device);
TCC_COMM_API tcc_status tcc_comm_device_group_end(tcc_comm_device *device);

/* Calls wait(of), which waits for a stream with operations in it, and stores its result.  The wait
 * ends by the deadline of operations at the latest: then, as where the comm is revoked at any other
 * time, operations on all ranks' GPUs are aborted, within 20 ms where the backend `shared` tells
 * the ranks, and this returns the error that revoked the comm. */
TCC_COMM_API tcc_status tcc_comm_device_wait(tcc_comm_device *device, int (*wait)(void *of),
                                             void *of, int *out_result);

/* ---- for code that is not linked with this library ------------------------------------------- */

/* A comm begins with the address of its table, so that artifacts use it through the comm alone. */
typedef struct tcc_comm_table {
    uint32_t struct_size; /* bytes of this table: later versions append, never change */
    uint32_t version;     /* TCC_COMM_VERSION */
    int32_t (*rank)(const tcc_comm *comm);
    int32_t (*size)(const tcc_comm *comm);
    /* The call's operation. */
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
    /* From now on waits of the calling thread for other ranks, on any comm, call ends(of) every few
     * milliseconds; where it returns anything but 0 they revoke their comm with TCC_CANCELLED.  NULL, as at
     * first: nothing is called. */
    void (*ask)(int (*ends)(void *of), void *of);
} tcc_comm_table;

/* ---- symmetric arena ------------------------------------------------------------------------- */

/* Makes the comm's symmetric arena: `bytes` zero bytes on every rank, page-aligned, valid until close
 * or the drop of who keeps it.  All ranks call it with equal sizes, once a comm.  A collective of the
 * comm or of a subgroup of it is done in the arena without staging, where that is faster, if these
 * buffers lie at the same places in it on all ranks: both of all_reduce and of all_to_all (not in
 * place), send of reduce_scatter, receive of all_gather and all_gather_v.  Such buffers that some
 * ranks have in the arena and others not, or elsewhere in it, are a mismatch.  TCC_UNSUPPORTED on the
 * backends `plugin` and `mpi`. */
TCC_COMM_API tcc_status tcc_comm_symmetric(tcc_comm *comm, size_t bytes, void **out_memory);

/* At least `bytes` bytes on every rank for the run at hand of an artifact, in a symmetric arena of
 * its own, valid until a call that needs more.  All ranks call it in the same order as operations;
 * where one rank needs more than there is and another does not, the comm reports a mismatch.
 * TCC_UNSUPPORTED on the backends `plugin` and `mpi`. */
TCC_COMM_API tcc_status tcc_comm_scratch(tcc_comm *comm, size_t bytes, void **out_memory);

/* Keeps the arena that has the address `memory`: it stays mapped until the drop, also behind a call
 * that needs more and behind tcc_comm_close.  TCC_INVALID_ARGUMENT: the comm has no such arena. */
TCC_COMM_API tcc_status tcc_comm_memory_keep(tcc_comm *comm, const void *memory,
                                             tcc_comm_memory **out_kept);
/* From any thread; `kept` may be NULL. */
TCC_COMM_API void tcc_comm_memory_drop(tcc_comm_memory *kept);

/* ---- the process's comm ---------------------------------------------------------------------- */

/* The comm that artifacts of this process use, or NULL.  All copies of this library in a process
 * share it; the one opened first with tcc_comm_share counts until it is closed. */
TCC_COMM_API tcc_comm *tcc_comm_shared(void);
/* Makes `comm` the process's comm.  TCC_INVALID_ARGUMENT if there is another. */
TCC_COMM_API tcc_status tcc_comm_share(tcc_comm *comm);

#ifdef __cplusplus
}
#endif

#endif
