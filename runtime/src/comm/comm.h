/* Internal types of the communication library.  One paragraph per file of src/comm/. */
#ifndef TCC_COMM_INTERNAL_H
#define TCC_COMM_INTERNAL_H

#include <stdatomic.h>
#include <sys/types.h>

#include "../runtime.h"
#include "../sha256.h"
#include "tcc_comm.h"

typedef enum tcc_comm_type {
    TCC_COMM_F16,
    TCC_COMM_BF16,
    TCC_COMM_F32,
    TCC_COMM_F64,
    TCC_COMM_I8,
    TCC_COMM_U8,
    TCC_COMM_I32,
    TCC_COMM_I64,
    TCC_COMM_TYPES
} tcc_comm_type;

/* ---- reduce.c: local reductions -------------------------------------------------------------- */

/* out[i] = the reduction of inputs[0][i], inputs[1][i], ... in this order.  `out` may be one of the
 * inputs; otherwise they do not overlap. */
void tcc_comm_reduce(void *out, const void *const *inputs, int32_t n, int64_t count,
                     tcc_comm_type type, tcc_comm_reduction reduction);

/* ---- copy.c: copies past the caches ---------------------------------------------------------- */

/* Returns the bytes of the last cache, which the machine's cores share; 0 where they are not
 * known. */
int64_t tcc_comm_last_cache(void);
/* Copies as memcpy does.  Where the processor can, the written data bypasses the caches.  Other
 * processes see the data only after tcc_comm_copied. */
void tcc_comm_copy_past(void *to, const void *from, size_t bytes);
void tcc_comm_copied(void);

/* ---- call.c: what a call asks for ------------------------------------------------------------ */

/* The facts on which all ranks of a comm must agree in an operation.  It has no padding, because
 * its bytes are compared. */
typedef struct tcc_comm_descriptor {
    uint8_t kind, type, reduction, place; /* place: 1 + the symmetric arena's number; 0: none */
    int32_t root;
    int64_t count;  /* elements; for all_gather_v a hash of the counts */
    uint64_t where; /* in a symmetric arena: a mix of the buffers' offsets */
} tcc_comm_descriptor;

/* A checked call with its buffers. */
typedef struct tcc_comm_work {
    tcc_comm_call call;
    tcc_comm_type type;
    size_t element; /* bytes */
    const char *send;
    char *receive;
    size_t sent, received; /* bytes of the two buffers */
    tcc_comm_descriptor descriptor;
} tcc_comm_work;

size_t tcc_comm_type_bytes(tcc_comm_type type);
/* Checks a call of one rank of a comm of `size`, and fills all of the work but its buffers. */
tcc_status tcc_comm_check_call(const tcc_comm_call *call, int32_t rank, int32_t size,
                               tcc_comm_work *out_work);
/* Adds the buffers to the work.  Fails where one is missing or they overlap in a way that is not
 * allowed. */
tcc_status tcc_comm_check_buffers(tcc_comm_work *work, int32_t rank, int32_t size, const void *send,
                                  void *receive);
bool tcc_comm_is_transfer(tcc_comm_kind kind);
/* Returns the elements that the call sends to, or receives from, the ranks before `peer`. */
int64_t tcc_comm_elements_before(const int64_t *counts, int32_t peer);
enum { TCC_COMM_TEXT = 256 };
/* Writes the operation for messages, as in "all_reduce of 8 f32 by sum". */
const char *tcc_comm_text(const tcc_comm_descriptor *descriptor, char text[TCC_COMM_TEXT]);

/* ---- environment.c: what the launcher says --------------------------------------------------- */

/* A config without gaps; it owns its texts. */
typedef struct tcc_comm_settings {
    int32_t rank, size, local_rank, local_size; /* the last two may stay -1, if they are not
                                                   known */
    int32_t epoch;
    char rendezvous[201], token[65], backends[64];
    bool unguarded; /* the caller has explicitly chosen to have no token */
    char address[201];   /* where ranks of several hosts meet: the rendezvous, or the launcher's
                            address */
    int32_t port_offset; /* distance from its port to a port that the launcher does not use */
    int32_t open_milliseconds, operation_milliseconds;
} tcc_comm_settings;

/* Fills the settings from the config and, where it has gaps, from environment variables. */
tcc_status tcc_comm_settle(const tcc_comm_config *config, tcc_comm_settings *out_settings);

/* ---- hosts.c: which ranks run on one host ---------------------------------------------------- */

/* The identity of a host and its network namespace.  Processes with equal values can use
 * `shared`. */
typedef struct tcc_comm_host {
    char name[104];
} tcc_comm_host;

void tcc_comm_this_host(tcc_comm_host *out);
/* Counts the ranks of the host of rank `rank`, and that rank's number among them. */
void tcc_comm_count_local(const tcc_comm_host *all, int32_t n, int32_t rank,
                          int32_t *out_local_rank, int32_t *out_local_size);

/* ---- functions.c: tables of a library's functions -------------------------------------------- */

typedef struct tcc_comm_function {
    const char *name;
    size_t place; /* offset in the table */
} tcc_comm_function;

/* Fills a table of functions.  Returns NULL, or the name of a function that the library lacks. */
const char *tcc_comm_fill(void *library, const tcc_comm_function *rows, size_t n, void *table);

/* ---- proof.c: a secret is known, and shown to nobody ----------------------------------------- */

enum { TCC_COMM_HASH = TCC_SHA256_BYTES };

/* An HMAC-SHA-256 in progress.  Only a holder of the key can make the proof of the added bytes.
 * Adding the other side's fresh number limits a proof to one meeting; adding a word limits it to
 * one direction. */
typedef struct tcc_comm_proof {
    tcc_hash inner, outer;
} tcc_comm_proof;

void tcc_comm_proof_begin(tcc_comm_proof *proof, const void *key, size_t n);
void tcc_comm_proof_add(tcc_comm_proof *proof, const void *bytes, size_t n);
void tcc_comm_proof_end(tcc_comm_proof *proof, uint8_t out[TCC_COMM_HASH]);
/* Compares two hashes in constant time. */
bool tcc_comm_same_hash(const uint8_t a[TCC_COMM_HASH], const uint8_t b[TCC_COMM_HASH]);
/* Draws a number that cannot be guessed.  Fails with TCC_SYSTEM where the kernel gives none. */
tcc_status tcc_comm_fresh(uint8_t out[TCC_COMM_HASH]);

/* ---- rendezvous.c: processes of one host meet ------------------------------------------------ */

enum { TCC_COMM_MOST_LOCAL = 64 };

typedef struct tcc_comm_meeting {
    const char *name; /* equal on all ranks */
    const char *token;
    int32_t rank, size, epoch;
    int64_t deadline;            /* as tcc_comm_now */
    tcc_status (*alive)(void *); /* called every few milliseconds; NULL: not called */
    void *alive_of;
    size_t memory; /* bytes of the memory file that rank 0 makes; equal on all ranks */
} tcc_comm_meeting;

/* The result of a meeting: a sealed memory file, and the pidfd and number of every process.  The
 * caller closes the descriptors. */
typedef struct tcc_comm_met {
    int memory;
    int processes[TCC_COMM_MOST_LOCAL];
    int32_t pids[TCC_COMM_MOST_LOCAL];
    int32_t cpus; /* number that the processes may use together */
} tcc_comm_met;

/* Returns when all ranks have come, or fails with the reason.  Ranks belong together if names,
 * tokens, sizes and epochs are equal.  The meeting leaves no file behind. */
tcc_status tcc_comm_meet(const tcc_comm_meeting *meeting, tcc_comm_met *out_met);
/* Closes all descriptors of `met` and marks them as closed. */
void tcc_comm_part(tcc_comm_met *met);
/* Fills `out_met` with no descriptors. */
void tcc_comm_alone(tcc_comm_met *out_met);

/* ---- exchange.c: ranks of several hosts meet ------------------------------------------------- */

enum { TCC_COMM_MOST_BLOB = 64 << 10 }; /* bytes of one rank's blob at most */

typedef struct tcc_comm_exchange {
    const char *address; /* "host:port" or "[host]:port", of rank 0's host */
    int32_t port_offset; /* added to the port */
    const char *token;   /* it never crosses the network */
    bool unguarded;      /* there is no token (it is ""), by explicit choice */
    int32_t rank, size, epoch;
    int64_t deadline; /* as tcc_comm_now */
    size_t bytes;     /* bytes of each rank's blob; equal on all ranks */
} tcc_comm_exchange;

/* Gives every rank the blobs of all ranks, one behind another in rank order.  Sizes, epochs and
 * bytes must be equal on all ranks; otherwise the call fails on every rank by the deadline, with
 * the names of two ranks that differ.  A caller without proof of the token is a stranger and is
 * ignored; a rank that finds a stranger in rank 0's place waits for rank 0.  Fails with
 * TCC_INVALID_ARGUMENT where there is no token and `unguarded` is false. */
tcc_status tcc_comm_exchange_blobs(const tcc_comm_exchange *about, const void *blob, void *out_all);

/* Returns the exchange for ranks with these settings, with blobs of `bytes` bytes. */
tcc_comm_exchange tcc_comm_exchange_of(const tcc_comm_settings *settings, int64_t deadline,
                                       size_t bytes);
/* Returns the port of "host:port" or "[host]:port"; 0 where the text has none. */
int32_t tcc_comm_address_port(const char *address);

/* ---- clock.c: time and deadlines ------------------------------------------------------------- */

/* Returns nanoseconds of the monotonic clock. */
int64_t tcc_comm_now(void);
void tcc_comm_pause(int64_t nanoseconds);

/* ---- ask.c: waits that their thread's caller ends -------------------------------------------- */

/* Implements `ask` of tcc_comm_table. */
void tcc_comm_ask(int (*ends)(void *of), void *of);
/* Returns true if a wait of the calling thread must end. */
bool tcc_comm_ends(void);

/* ---- fork.c: forks of the process ------------------------------------------------------------ */

/* Returns how often this process is a fork's child, counted from the first call on.  A comm whose
 * `forks` differs belongs to a parent and refuses calls. */
uint32_t tcc_comm_forks(void);
/* Returns TCC_OK where this process may use the comm. */
tcc_status tcc_comm_usable(const tcc_comm *comm);

/* ---- comm.c: comms and what they share ------------------------------------------------------- */

/* The symmetric arenas: the caller's, and the one that runs of artifacts use in turn. */
typedef enum tcc_comm_arena { TCC_COMM_OWN, TCC_COMM_SCRATCH, TCC_COMM_ARENAS } tcc_comm_arena;

/* The functions that carry out operations.  Only the thread that uses the comm calls them; any
 * thread may call `revoke`, `error` and `failed`. */
typedef struct tcc_comm_backend {
    const char *name;
    /* Returns NULL if the backend fits these settings, else the reason why not. */
    const char *(*unfit)(const tcc_comm_settings *settings);
    tcc_status (*open)(tcc_comm *comm, const tcc_comm_settings *settings);
    /* Makes a comm of the parent's ranks `members`, this process among them.  `name` distinguishes
     * it from other groups.  It fails where the parent fails. */
    tcc_status (*group)(tcc_comm *parent, const int32_t *members, const char *name,
                        tcc_comm *child);
    /* Sets flags by rank: the rank's process has ended, or it has closed the comm.  Any thread may
     * call it.  NULL where the backend cannot tell; then it cannot shrink either. */
    void (*failed)(tcc_comm *comm, bool *out_gone);
    /* Makes a comm of the parent's ranks that are neither gone nor `excluded` by any of them, also
     * where the parent has failed.  Sets the child's rank and size. */
    tcc_status (*shrink)(tcc_comm *parent, const bool *excluded, tcc_comm *child);
    /* Begins a collective without waiting for other ranks.  At most one is in progress, and no
     * transfer begins before its end.  The work is copied. */
    tcc_status (*begin)(tcc_comm *comm, const tcc_comm_work *work);
    /* Continues the collective that has begun: to its end with `wait`, else as far as possible
     * without waiting. */
    tcc_status (*advance)(tcc_comm *comm, bool wait, bool *out_done);
    /* Carries out sends and receives together. */
    tcc_status (*transfer)(tcc_comm *comm, const tcc_comm_work *works, int32_t n);
    /* Makes the symmetric arena.  An arena that it replaces stays mapped.  May be NULL.
     * `out_memory` is this rank's part of `out_mapping`. */
    tcc_status (*symmetric)(tcc_comm *comm, tcc_comm_arena arena, size_t bytes, void **out_memory,
                            tcc_comm_memory **out_mapping);
    tcc_status (*error)(tcc_comm *comm);
    void (*revoke)(tcc_comm *comm, tcc_status status, const char *reason);
    void (*close)(tcc_comm *comm);
} tcc_comm_backend;

typedef struct tcc_comm_queue {
    tcc_comm_work *works;
    int32_t n, room;
} tcc_comm_queue;

typedef struct tcc_comm_group {
    tcc_comm_queue queue;
    bool open;
} tcc_comm_group;

struct tcc_comm {
    const tcc_comm_table *table; /* first, as tcc_comm.h documents */
    _Atomic uint32_t users;      /* number of keepers: the opener, until it closes the comm, and
                                    others */
    _Atomic bool lasting;        /* the comm or a subgroup was shared, so it is never freed */
    _Atomic(tcc_comm *) keeper;  /* a subgroup's keeper: the comm that keeps it */
    /* the fields from here on are zero in a new comm */
    const tcc_comm_backend *backend;
    void *state; /* owned by the backend */
    const char *name; /* name of the backend's engine; NULL: the backend's name */
    int32_t rank, size;
    uint32_t forks; /* the process's fork count when the comm was made */
    uint32_t children;
    tcc_comm_settings settings;
    tcc_comm_group group;
    tcc_comm_queue started; /* not done yet; the first has begun */
    void *memory[TCC_COMM_ARENAS]; /* this rank's parts */
    size_t bytes[TCC_COMM_ARENAS];
    tcc_comm_memory *mappings[TCC_COMM_ARENAS]; /* the mappings that they are parts of */
    _Atomic uint32_t turn;     /* word of the thread in the comm: see turn.c */
    _Atomic uint32_t visitors; /* threads in calls that take no turn */
    _Atomic bool ending, gone; /* ending: it is being closed; gone: its contents are about to be
                                  freed */
    uint64_t tickets, done; /* tickets given out; tickets of operations that are done */
    _Atomic bool dropped;   /* the comm is revoked, so started operations do not continue */
    _Atomic(tcc_comm *) subgroups; /* list of the subgroups that it keeps */
    tcc_comm *next;                /* next in the list of the comm that keeps this one */
    int32_t *members;              /* a subgroup's ranks in the keeper */
    tcc_comm_device *device; /* NULL: none was opened */
};

/* Makes a comm without a backend; NULL where there is no memory. */
tcc_comm *tcc_comm_make(const tcc_comm_settings *settings, int32_t rank, int32_t size);
/* Leaves the call and hands out a new comm.  If two threads met in the call, the comm is closed and
 * not handed out. */
tcc_status tcc_comm_leave_with(tcc_comm *comm, tcc_status status, tcc_comm **out_comm);

/* Revokes the comm for all ranks.  A thread that only watches may call it, too. */
static inline void tcc_comm_revoke(tcc_comm *comm, tcc_status status, const char *reason) {
    comm->backend->revoke(comm, status, reason);
    atomic_store(&comm->dropped, true);
}

/* ---- turn.c: one thread at a time ------------------------------------------------------------ */

/* Flags of a turn, or-ed; 0: no thread has the turn. */
enum { TCC_TURN_TAKEN = 1, TCC_TURN_CROSSED = 2, TCC_TURN_ENDED = 4 };
typedef enum tcc_turn_answer {
    TCC_TURN_OWN,    /* the caller has the turn */
    TCC_TURN_SECOND, /* another thread has the turn, and sees this call's mark when it leaves */
    TCC_TURN_CLOSED
} tcc_turn_answer;

tcc_turn_answer tcc_turn_ask(_Atomic uint32_t *turn) TCC_COLD;
tcc_status tcc_comm_enter_again(tcc_comm *comm) TCC_COLD;
tcc_status tcc_comm_leave_marked(tcc_comm *comm, tcc_status status) TCC_COLD;
/* Returns TCC_INVALID_ARGUMENT: the comm is closed. */
tcc_status tcc_comm_refuse_closed(const tcc_comm *comm) TCC_COLD;

/* Begins a call on a comm.  Fails with TCC_INVALID_ARGUMENT where the comm is closed or belongs to
 * another process, or where another thread is in a call; the last case also fails the comm. */
static inline tcc_status tcc_comm_enter(tcc_comm *comm) {
    uint32_t nobody = 0;
    TCC_RETURN_IF_ERROR(tcc_comm_usable(comm));
    if (TCC_UNLIKELY(!atomic_compare_exchange_strong(&comm->turn, &nobody, TCC_TURN_TAKEN)))
        return tcc_comm_enter_again(comm);
    return TCC_OK;
}

/* Ends the call, whose status is `status`.  Returns it, or an error if another thread came
 * meanwhile. */
static inline tcc_status tcc_comm_leave(tcc_comm *comm, tcc_status status) {
    uint32_t turn = TCC_TURN_TAKEN;
    if (TCC_UNLIKELY(!atomic_compare_exchange_strong(&comm->turn, &turn, 0)))
        return tcc_comm_leave_marked(comm, status);
    return status;
}

/* Ends the call of an operation as tcc_comm_leave does, in two steps that cost 0.5 ns instead of 4.
 * If another thread comes between the steps, the operation was done before, and the next call finds
 * the comm revoked. */
static inline tcc_status tcc_comm_leave_operation(tcc_comm *comm, tcc_status status) {
    uint32_t seen = atomic_load_explicit(&comm->turn, memory_order_relaxed);
    if (TCC_UNLIKELY(seen != TCC_TURN_TAKEN || status != TCC_OK))
        return tcc_comm_leave(comm, status);
    atomic_store_explicit(&comm->turn, 0, memory_order_release);
    return status;
}

/* Begins a call that any thread may make at any time.  Returns false where the comm is closed. */
bool tcc_comm_visit(tcc_comm *comm);
void tcc_comm_visit_end(tcc_comm *comm);
/* Waits until no call is in progress and none can begin.  Returns false where another thread ends
 * the comm, or did. */
bool tcc_comm_end(tcc_comm *comm);

/* ---- keep.c: who keeps a comm, and its memory -------------------------------------------------- */

/* Returns a comm of zeros without keepers; NULL where there is no memory. */
tcc_comm *tcc_comm_allocate(const tcc_comm_table *table);
/* Makes the record of a mapping with one user; NULL where there is no memory. */
tcc_comm_memory *tcc_comm_memory_make(void *base, size_t bytes);

/* ---- operate.c: operations ------------------------------------------------------------------- */

/* Carries out the call's operation.  The caller has entered the comm. */
tcc_status tcc_comm_perform(tcc_comm *comm, const tcc_comm_call *call, const void *send,
                            void *receive);
/* Does the same and takes its own turn; an entry of the comm's table. */
tcc_status tcc_comm_issue(tcc_comm *comm, const tcc_comm_call *call, const void *send,
                          void *receive);
/* Drops started operations, so that their buffers are no longer used, and tells the other ranks the
 * reason. */
tcc_status tcc_comm_give_up(tcc_comm *comm, tcc_status status) TCC_COLD;

/* ---- device.c: operations on GPUs ------------------------------------------------------------ */

/* Separates the device from the comm, which is about to be freed. */
void tcc_comm_device_leave(tcc_comm *comm);

/* ---- choose.c: the list of backends ---------------------------------------------------------- */

/* Chooses the first backend of the settings' list that fits.  Fails with the reasons of all if none
 * does.  Where the choice depends on the ranks' hosts, and no launcher names them, ranks that have
 * an address meet there first.  Then the settings receive the local rank and size, and the time
 * left for opening. */
tcc_status tcc_comm_choose(tcc_comm_settings *settings, const tcc_comm_backend **out_backend);

/* ---- process.c: the process's comm ----------------------------------------------------------- */

/* Withdraws the comm if it is the process's comm. */
void tcc_comm_withdraw(tcc_comm *comm);

extern const tcc_comm_backend tcc_comm_backend_shared, tcc_comm_backend_plugin,
    tcc_comm_backend_mpi;

#endif
