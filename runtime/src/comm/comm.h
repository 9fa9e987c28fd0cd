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

/* Bytes of the last cache that this machine reports, which its cores share; 0: not known. */
int64_t tcc_comm_last_cache(void);
/* As memcpy, but what it writes stays in no cache where the processor can do so; others see it only
 * behind tcc_comm_copied. */
void tcc_comm_copy_past(void *to, const void *from, size_t bytes);
void tcc_comm_copied(void);

/* ---- call.c: what a call asks for ------------------------------------------------------------ */

/* What all ranks of a comm must agree on in an operation.  It has no padding: bytes are compared. */
typedef struct tcc_comm_descriptor {
    uint8_t kind, type, reduction, place; /* place: 1 + the symmetric arena's number; 0: none */
    int32_t root;
    int64_t count;  /* elements; of all_gather_v the hash of the counts */
    uint64_t where; /* in the symmetric arena: the buffers' offsets, mixed */
} tcc_comm_descriptor;

/* A checked call with its buffers. */
typedef struct tcc_comm_work {
    tcc_comm_call call;
    tcc_comm_type type;
    size_t element; /* bytes */
    const char *send;
    char *receive;
    size_t sent, received; /* bytes of the buffers */
    tcc_comm_descriptor descriptor;
} tcc_comm_work;

size_t tcc_comm_type_bytes(tcc_comm_type type);
/* Checks a call of a rank of a comm of `size`, and fills the work but for its buffers. */
tcc_status tcc_comm_check_call(const tcc_comm_call *call, int32_t rank, int32_t size,
                               tcc_comm_work *out_work);
/* Adds the buffers; fails where one is missing or where they overlap in another way than stated. */
tcc_status tcc_comm_check_buffers(tcc_comm_work *work, int32_t rank, int32_t size, const void *send,
                                  void *receive);
bool tcc_comm_is_transfer(tcc_comm_kind kind);
/* Elements that the call sends to, or gets from, all ranks before `peer`. */
int64_t tcc_comm_elements_before(const int64_t *counts, int32_t peer);
enum { TCC_COMM_TEXT = 256 };
/* "all_reduce of 8 f32 by sum", for messages. */
const char *tcc_comm_text(const tcc_comm_descriptor *descriptor, char text[TCC_COMM_TEXT]);

/* ---- environment.c: what the launcher says --------------------------------------------------- */

/* A config without gaps; its texts are its own. */
typedef struct tcc_comm_settings {
    int32_t rank, size, local_rank, local_size; /* the last two may stay -1: not known */
    int32_t epoch;
    char rendezvous[201], token[65], backends[64];
    bool unguarded; /* there is no token, and that is an explicit choice */
    char address[201];   /* where ranks of several hosts meet: the rendezvous, or the launcher's */
    int32_t port_offset; /* from its port to one that the launcher does not have */
    int32_t open_milliseconds, operation_milliseconds;
} tcc_comm_settings;

/* Fills the settings from the config and, where it has gaps, from environment variables. */
tcc_status tcc_comm_settle(const tcc_comm_config *config, tcc_comm_settings *out_settings);

/* ---- hosts.c: which ranks run on one host ---------------------------------------------------- */

/* Equal for processes of one host and one network namespace, which `shared` needs. */
typedef struct tcc_comm_host {
    char name[104];
} tcc_comm_host;

void tcc_comm_this_host(tcc_comm_host *out);
/* The number of a rank among those of its host, and how many these are. */
void tcc_comm_count_local(const tcc_comm_host *all, int32_t n, int32_t rank,
                          int32_t *out_local_rank, int32_t *out_local_size);

/* ---- functions.c: tables of a library's functions -------------------------------------------- */

typedef struct tcc_comm_function {
    const char *name;
    size_t place; /* in the table */
} tcc_comm_function;

/* NULL, or the name of a function that the library lacks. */
const char *tcc_comm_fill(void *library, const tcc_comm_function *rows, size_t n, void *table);

/* ---- proof.c: a secret is known, and shown to nobody ----------------------------------------- */

enum { TCC_COMM_HASH = TCC_SHA256_BYTES };

/* HMAC-SHA-256: who knows the key has seen what was added.  A proof holds for one meeting where the
 * other side's fresh number is added, and for one direction where a word for it is. */
typedef struct tcc_comm_proof {
    tcc_hash inner, outer;
} tcc_comm_proof;

void tcc_comm_proof_begin(tcc_comm_proof *proof, const void *key, size_t n);
void tcc_comm_proof_add(tcc_comm_proof *proof, const void *bytes, size_t n);
void tcc_comm_proof_end(tcc_comm_proof *proof, uint8_t out[TCC_COMM_HASH]);
/* Takes equally long for all. */
bool tcc_comm_same_hash(const uint8_t a[TCC_COMM_HASH], const uint8_t b[TCC_COMM_HASH]);
/* A number that nobody can guess; TCC_SYSTEM where the kernel gives none. */
tcc_status tcc_comm_fresh(uint8_t out[TCC_COMM_HASH]);

/* ---- rendezvous.c: processes of one host meet ------------------------------------------------ */

enum { TCC_COMM_MOST_LOCAL = 64 };

typedef struct tcc_comm_meeting {
    const char *name; /* equal on all ranks */
    const char *token;
    int32_t rank, size, epoch;
    int64_t deadline;            /* of tcc_comm_now */
    tcc_status (*alive)(void *); /* asked every few milliseconds; NULL: nothing to ask */
    void *alive_of;
    size_t memory; /* bytes of the memory file that rank 0 makes; equal on all ranks */
} tcc_comm_meeting;

/* What ranks get of one another: a sealed memory file, and every process as a pidfd and its number.
 * The caller closes the descriptors. */
typedef struct tcc_comm_met {
    int memory;
    int processes[TCC_COMM_MOST_LOCAL];
    int32_t pids[TCC_COMM_MOST_LOCAL];
    int32_t cpus; /* that the processes may use together */
} tcc_comm_met;

/* Returns when all ranks have come, or with the reason why not: equal names, tokens, sizes and
 * epochs belong together.  Nothing is left in a file system. */
tcc_status tcc_comm_meet(const tcc_comm_meeting *meeting, tcc_comm_met *out_met);
/* Closes all descriptors of `met`; nothing is left to close. */
void tcc_comm_part(tcc_comm_met *met);
/* Fills in that nobody was met. */
void tcc_comm_alone(tcc_comm_met *out_met);

/* ---- exchange.c: ranks of several hosts meet ------------------------------------------------- */

enum { TCC_COMM_MOST_BLOB = 64 << 10 }; /* bytes that one rank tells */

typedef struct tcc_comm_exchange {
    const char *address; /* "host:port" or "[host]:port", of rank 0's host */
    int32_t port_offset; /* added to the port */
    const char *token;   /* it never crosses the network */
    bool unguarded;      /* without a token; it is "" then */
    int32_t rank, size, epoch;
    int64_t deadline; /* of tcc_comm_now */
    size_t bytes;     /* of each rank's blob; equal on all ranks */
} tcc_comm_exchange;

/* Gives every rank the blobs of all, one behind another by rank.  Fails on every rank by the
 * deadline, with the names of both that differ: equal sizes, epochs and bytes belong together.
 * Who does not prove the token is a stranger, harms nobody, and is waited out by a rank that finds
 * it in rank 0's place.  TCC_INVALID_ARGUMENT: there is no token, and it is not unguarded. */
tcc_status tcc_comm_exchange_blobs(const tcc_comm_exchange *about, const void *blob, void *out_all);

/* What ranks with these settings exchange `bytes` bytes of each about. */
tcc_comm_exchange tcc_comm_exchange_of(const tcc_comm_settings *settings, int64_t deadline,
                                       size_t bytes);
/* The port of "host:port" or "[host]:port"; 0: the text is none. */
int32_t tcc_comm_address_port(const char *address);

/* ---- clock.c: time and deadlines ------------------------------------------------------------- */

/* Nanoseconds of the monotonic clock. */
int64_t tcc_comm_now(void);
void tcc_comm_pause(int64_t nanoseconds);

/* ---- ask.c: waits that their thread's caller ends -------------------------------------------- */

/* `ask` of tcc_comm_table. */
void tcc_comm_ask(int (*ends)(void *of), void *of);
/* Whether a wait of the calling thread is to end. */
bool tcc_comm_ends(void);

/* ---- fork.c: forks of the process ------------------------------------------------------------ */

/* How often this process is a fork's child, counted from the first call on: a comm refuses where
 * the number is another than when it was made. */
uint32_t tcc_comm_forks(void);
/* TCC_OK where this process may use the comm. */
tcc_status tcc_comm_usable(const tcc_comm *comm);

/* ---- comm.c: comms and what they share ------------------------------------------------------- */

/* The caller's, and what runs of artifacts use by turns. */
typedef enum tcc_comm_arena { TCC_COMM_OWN, TCC_COMM_SCRATCH, TCC_COMM_ARENAS } tcc_comm_arena;

/* What carries out operations.  All functions but `revoke`, `error` and `failed` are called by
 * the thread that uses the comm. */
typedef struct tcc_comm_backend {
    const char *name;
    /* Whether these settings are for it: a reason where not. */
    const char *(*unfit)(const tcc_comm_settings *settings);
    tcc_status (*open)(tcc_comm *comm, const tcc_comm_settings *settings);
    /* A comm of the parent's ranks `members`, of which this process is one; `name` tells it apart.
     * It fails where the parent does. */
    tcc_status (*group)(tcc_comm *parent, const int32_t *members, const char *name,
                        tcc_comm *child);
    /* Which ranks are gone, by rank: their processes have ended, or they have closed the comm.  From
     * any thread.  NULL where the backend cannot tell: then it does not shrink. */
    void (*failed)(tcc_comm *comm, bool *out_gone);
    /* A comm of the parent's ranks that are neither gone nor `excluded` by one of them, also where
     * the parent has failed; sets the child's rank and size. */
    tcc_status (*shrink)(tcc_comm *parent, const bool *excluded, tcc_comm *child);
    /* Begins a collective, without waiting for ranks: one at a time, and no transfer before its
     * end.  The work is copied. */
    tcc_status (*begin)(tcc_comm *comm, const tcc_comm_work *work);
    /* Carries on what has begun; to its end with `wait`, else as far as it need not wait. */
    tcc_status (*advance)(tcc_comm *comm, bool wait, bool *out_done);
    /* Sends and receives that go on together. */
    tcc_status (*transfer)(tcc_comm *comm, const tcc_comm_work *works, int32_t n);
    /* Makes the symmetric arena, in place of the one that is there, which stays mapped; may be NULL.
     * `out_memory` is this rank's part of `out_held`. */
    tcc_status (*symmetric)(tcc_comm *comm, tcc_comm_arena arena, size_t bytes, void **out_memory,
                            tcc_comm_memory **out_held);
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
    const tcc_comm_table *table; /* first, as tcc_comm.h says */
    _Atomic uint32_t users;      /* who keeps it: who opened it, until it is closed, and others */
    _Atomic bool lasting;        /* it or a subgroup was shared: never freed */
    _Atomic(tcc_comm *) keeper;  /* of a subgroup: that comm */
    /* what follows is zero in a new comm */
    const tcc_comm_backend *backend;
    void *state; /* of the backend */
    const char *name; /* of what the backend uses; NULL: the backend's */
    int32_t rank, size;
    uint32_t forks; /* of this process when the comm was made */
    uint32_t children;
    tcc_comm_settings settings;
    tcc_comm_group group;
    tcc_comm_queue started; /* and not done; the first has begun */
    void *memory[TCC_COMM_ARENAS]; /* this rank's parts */
    size_t bytes[TCC_COMM_ARENAS];
    tcc_comm_memory *held[TCC_COMM_ARENAS]; /* what they are parts of */
    _Atomic uint32_t turn;     /* of the thread in it: turn.c */
    _Atomic uint32_t visitors; /* threads in calls that take no turn */
    _Atomic bool ending, gone; /* it is being closed; what it had is about to be freed */
    uint64_t tickets, done; /* given out; of operations that are done */
    _Atomic bool dropped;   /* started operations go on no more: the comm is revoked */
    _Atomic(tcc_comm *) subgroups; /* a list of those it keeps */
    tcc_comm *next;                /* in the list of the comm that keeps this one */
    int32_t *members;              /* of a subgroup: their ranks in the keeper */
    tcc_comm_device *device; /* NULL: none was opened */
};

/* A comm without a backend; NULL where there is no memory. */
tcc_comm *tcc_comm_make(const tcc_comm_settings *settings, int32_t rank, int32_t size);
/* Leaves with a new comm, which nobody gets where two threads met. */
tcc_status tcc_comm_leave_with(tcc_comm *comm, tcc_status status, tcc_comm **made);

/* Revokes the comm for all ranks; also from a thread that only watches. */
static inline void tcc_comm_revoke(tcc_comm *comm, tcc_status status, const char *reason) {
    comm->backend->revoke(comm, status, reason);
    atomic_store(&comm->dropped, true);
}

/* ---- turn.c: one thread at a time ------------------------------------------------------------ */

/* Values of a turn, or-ed; 0: nobody has it. */
enum { TCC_TURN_TAKEN = 1, TCC_TURN_CROSSED = 2, TCC_TURN_ENDED = 4 };
typedef enum tcc_turn_answer {
    TCC_TURN_OWN,    /* the caller has it */
    TCC_TURN_SECOND, /* another thread has it, and learns of this one as it leaves */
    TCC_TURN_CLOSED
} tcc_turn_answer;

tcc_turn_answer tcc_turn_ask(_Atomic uint32_t *turn) TCC_COLD;
tcc_status tcc_comm_enter_again(tcc_comm *comm) TCC_COLD;
tcc_status tcc_comm_leave_marked(tcc_comm *comm, tcc_status status) TCC_COLD;
/* TCC_INVALID_ARGUMENT: the comm is closed. */
tcc_status tcc_comm_refuse_closed(const tcc_comm *comm) TCC_COLD;

/* Begins a call of a comm: TCC_INVALID_ARGUMENT where it is closed, is another process's, or where
 * another thread is in a call of it, which fails the comm. */
static inline tcc_status tcc_comm_enter(tcc_comm *comm) {
    uint32_t nobody = 0;
    TCC_RETURN_IF_ERROR(tcc_comm_usable(comm));
    if (TCC_UNLIKELY(!atomic_compare_exchange_strong(&comm->turn, &nobody, TCC_TURN_TAKEN)))
        return tcc_comm_enter_again(comm);
    return TCC_OK;
}

/* Ends the call, which has this status: returns it, or that another thread came meanwhile. */
static inline tcc_status tcc_comm_leave(tcc_comm *comm, tcc_status status) {
    uint32_t taken = TCC_TURN_TAKEN;
    if (TCC_UNLIKELY(!atomic_compare_exchange_strong(&comm->turn, &taken, 0)))
        return tcc_comm_leave_marked(comm, status);
    return status;
}

/* The same for an operation, in two steps, which cost 0.5 ns and not 4.  Where another thread comes
 * between these the operation was done before, and the next one finds the comm revoked. */
static inline tcc_status tcc_comm_leave_operation(tcc_comm *comm, tcc_status status) {
    uint32_t seen = atomic_load_explicit(&comm->turn, memory_order_relaxed);
    if (TCC_UNLIKELY(seen != TCC_TURN_TAKEN || status != TCC_OK))
        return tcc_comm_leave(comm, status);
    atomic_store_explicit(&comm->turn, 0, memory_order_release);
    return status;
}

/* Begins a call that any thread may make at any time; false: the comm is closed. */
bool tcc_comm_visit(tcc_comm *comm);
void tcc_comm_visit_end(tcc_comm *comm);
/* No call begins any more, and none is under way; false: another thread ends it, or did. */
bool tcc_comm_end(tcc_comm *comm);

/* ---- keep.c: who keeps a comm, and its memory -------------------------------------------------- */

/* A comm of zeros that nobody keeps; NULL: out of memory. */
tcc_comm *tcc_comm_allocate(const tcc_comm_table *table);
/* A mapping with one user; NULL: out of memory. */
tcc_comm_memory *tcc_comm_memory_make(void *base, size_t bytes);

/* ---- operate.c: operations ------------------------------------------------------------------- */

/* The call's operation, for who has entered the comm. */
tcc_status tcc_comm_perform(tcc_comm *comm, const tcc_comm_call *asked, const void *send,
                            void *receive);
/* The same with a turn of its own: of the comm's table. */
tcc_status tcc_comm_issue(tcc_comm *comm, const tcc_comm_call *asked, const void *send,
                          void *receive);
/* Nothing is done any more with the buffers of started operations; other ranks learn why. */
tcc_status tcc_comm_give_up(tcc_comm *comm, tcc_status status) TCC_COLD;

/* ---- device.c: operations on GPUs ------------------------------------------------------------ */

/* The comm is about to be freed: its device goes on without it. */
void tcc_comm_device_leave(tcc_comm *comm);

/* ---- choose.c: the list of backends ---------------------------------------------------------- */

/* The first backend of the settings' list that fits; with the reasons of all if none does.  Where
 * that depends on the ranks' hosts, which no launcher says, ranks that have an address meet there:
 * the settings get the local rank and size, and what is left of the time for opening. */
tcc_status tcc_comm_choose(tcc_comm_settings *settings, const tcc_comm_backend **out_backend);

/* ---- process.c: the process's comm ----------------------------------------------------------- */

/* No longer the process's comm, if it was. */
void tcc_comm_withdraw(tcc_comm *comm);

extern const tcc_comm_backend tcc_comm_backend_shared, tcc_comm_backend_plugin,
    tcc_comm_backend_mpi;

#endif
