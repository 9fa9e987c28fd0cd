/* Declares the backend `shared`: one segment of memory for the ranks of one host.  One paragraph
 * per file.
 *
 * Every rank has a line in the segment.  Its stage counts up: an operation is one or more steps, in
 * each of which a rank writes to its own slot, counts its stage up, waits until all others have the
 * same stage, and reads their slots.  An operation that has begun has counted up for its first
 * step.  Each rank has two slots.  A rank that counts up for the next step has read all slots of
 * this step, so the step after the next may overwrite them. */
#ifndef TCC_COMM_SHARED_H
#define TCC_COMM_SHARED_H

#include "comm.h"

enum {
    TCC_SHARED_MOST_SPIN = 1000000, /* nanoseconds */
    TCC_SHARED_LINE = 128,       /* two cache lines, which processors fetch together */
    TCC_SHARED_SLOT = 256 << 10, /* bytes of one slot */
    TCC_SHARED_CHUNK = 32 << 10, /* bytes of one place of a channel */
    TCC_SHARED_PLACES = 2,       /* places of a channel */
    TCC_SHARED_ANY = -1,         /* `awaited` of a sleeper that any rank may wake */
};

/* The values that one rank publishes to the others. */
typedef struct tcc_shared_rank {
    _Alignas(TCC_SHARED_LINE) _Atomic uint32_t stage;
    _Atomic uint32_t closed;
    tcc_comm_descriptor descriptors[2];              /* its operations, alternating */
    _Alignas(TCC_SHARED_LINE) _Atomic uint32_t bell; /* the word that the rank sleeps on; a rank
                                                        that wakes it counts it up */
    _Atomic int32_t awaited;                         /* the rank that it waits for while asleep */
    _Atomic uint32_t turn;    /* odd while it shrinks the comm; each attempt has another number */
    _Atomic uint64_t without; /* bit set of the ranks that it then leaves out */
} tcc_shared_rank;

/* Messages from one rank to another.  Places are filled and taken alternately. */
typedef struct tcc_shared_channel {
    _Alignas(TCC_SHARED_LINE) _Atomic uint32_t filled;
    _Alignas(TCC_SHARED_LINE) _Atomic uint32_t emptied;
    struct tcc_shared_place {
        _Alignas(TCC_SHARED_LINE) int64_t count; /* elements of the whole message */
        uint32_t type, bytes;                    /* in this place */
        char data[TCC_SHARED_CHUNK];
    } places[TCC_SHARED_PLACES];
} tcc_shared_channel;

typedef struct tcc_shared_segment {
    _Alignas(TCC_SHARED_LINE) _Atomic uint64_t asleep; /* a bit for each rank */
    _Alignas(TCC_SHARED_LINE) _Atomic uint32_t
        revoked; /* 0, 1 while the reason is being written, or 2 + status */
    char reason[512];
    _Atomic uint32_t decided; /* for a comm made by shrinking: whether it is made */
    tcc_shared_rank ranks[]; /* followed by all slots, then all channels */
} tcc_shared_segment;

typedef struct tcc_shared tcc_shared;

/* How an operation is done: in slices, each of which takes the same number of steps.  In a slice's
 * first step every rank fills its slot.  In each step it reads when all ranks have come. */
typedef struct tcc_shared_method {
    int steps;
    int64_t bytes; /* bytes of a slice */
    void (*fill)(tcc_shared *shared, const tcc_comm_work *work);
    tcc_status (*read)(tcc_shared *shared, const tcc_comm_work *work);
} tcc_shared_method;

/* Symmetric memory: all ranks' parts, one behind another. */
typedef struct tcc_shared_arena {
    char *memory;
    size_t bytes; /* bytes of one part */
} tcc_shared_arena;

struct tcc_shared {
    tcc_shared_segment *segment;
    size_t bytes;
    char *slots;                  /* two for each rank */
    tcc_shared_channel *channels; /* [from][to] */
    int32_t rank, size;
    tcc_comm_met met;
    char name[256];            /* the meeting's name */
    uint64_t pending;          /* bit set of the ranks whose part of a transfer is outstanding */
    uint32_t stage;            /* this rank's stage */
    uint32_t operations;       /* count; its parity chooses the descriptor */
    uint32_t slices;           /* count; its parity chooses the slot */
    int64_t spin;              /* nanoseconds of spinning before a sleep; 0 where ranks share
                                  CPUs */
    int64_t deadline;          /* for the current operation, measured from its last progress */
    int64_t patience;          /* nanoseconds */
    struct tcc_shared *parent; /* the comm that this one is made from, while it opens */
    tcc_status (*alive)(struct tcc_shared *self); /* called while the comm opens; NULL: not
                                                     called */
    uint32_t turn, entered;    /* numbers of the current attempt to shrink, and of the first */
    uint64_t without;          /* bit set of the ranks that it leaves out */
    int32_t refused_by;        /* the rank that shrank the comm without this one; -1: none */
    const tcc_comm_work *work; /* the current work */
    tcc_comm_work begun;       /* the current collective, and its method below */
    const tcc_shared_method *method;
    int64_t slice, length, begin; /* elements of a slice, of all slices, and before the current
                                     slice */
    int round;                    /* steps of the current slice that are done */
    bool agreed;                  /* all ranks were seen to do this work */
    bool past;                    /* received data goes past the caches */
    tcc_shared_arena arenas[TCC_COMM_ARENAS];
    const tcc_shared_arena *arena; /* the current collective's arena; NULL: none */
    const int32_t *members;        /* the ranks' parts in it; NULL: part i belongs to rank i */
};

/* ---- wait.c: what ranks wait for, and how that fails ----------------------------------------- */

/* Returns true if the awaited condition holds.  Otherwise `awaited` is the first rank that it still
 * needs. */
typedef bool tcc_shared_ready(tcc_shared *shared, void *object, int32_t *awaited);

/* Returns when `ready` returns true, or with the error that revoked the comm.  Revokes the comm
 * where a needed rank has ended or closed the comm, or the deadline has passed. */
tcc_status tcc_shared_wait(tcc_shared *shared, tcc_shared_ready *ready, void *object);
/* Wakes the ranks that sleep until this rank has made a change.  Called after each change that
 * others may wait for. */
void tcc_shared_ring(tcc_shared *shared);
/* Counts this rank's stage up. */
void tcc_shared_publish(tcc_shared *shared);
/* Returns true if all other ranks have this rank's stage. */
bool tcc_shared_arrived(tcc_shared *shared);
/* Waits until all other ranks have this rank's stage. */
tcc_status tcc_shared_arrive(tcc_shared *shared);
/* Revokes the comm.  The first error counts; all ranks' operations return it. */
void tcc_shared_revoke(tcc_shared *shared, tcc_status status, const char *format, ...)
    TCC_PRINTF(3, 4) TCC_COLD;
/* Returns TCC_OK, or the error that revoked the comm, with its reason as the thread's message. */
tcc_status tcc_shared_state(tcc_shared *shared);
/* Returns the same, and also checks that all ranks' processes live.  A rank that has closed the
 * comm may end. */
tcc_status tcc_shared_alive(tcc_shared *shared);

/* Returns the bit set of the other ranks whose processes have ended or that have closed the
 * comm. */
uint64_t tcc_shared_gone(const tcc_shared *shared);

/* ---- agree.c: ranks that are left of a comm agree on who they are ---------------------------- */

/* Begins to shrink, without the ranks in `excluded`. */
void tcc_shared_enter(tcc_shared *shared, const bool *excluded);
/* Returns when all ranks outside `shared->without` have published the same set in one turn.  Fails
 * at the deadline, or where another rank leaves this one out. */
tcc_status tcc_shared_agree(tcc_shared *shared, int64_t deadline);
/* Starts the next turn, because the meeting after the agreement failed.  The other ranks of the
 * turn see it. */
void tcc_shared_again(tcc_shared *shared);
/* Ends shrinking, successful or not. */
void tcc_shared_depart(tcc_shared *shared);
/* Checks ranks that meet after an agreement.  Fails where one of them is gone or is in another
 * turn. */
tcc_status tcc_shared_gathers(void *shared);
/* Decides whether the comm `shared` is made: TCC_OK on all ranks or on none.  `status` is the outcome
 * of this rank's wait for the others. */
tcc_status tcc_shared_decide(tcc_shared *shared, tcc_status status);

/* ---- move.c: bytes and elements of the operation at hand ------------------------------------- */

/* Copies within memory of this rank, or from another rank's. */
void tcc_shared_copy(void *to, const void *from, int64_t count, size_t element);
/* Copies as tcc_shared_copy to a buffer that this rank receives. */
void tcc_shared_hand(const tcc_shared *shared, void *to, const void *from, int64_t count,
                     size_t element);
/* Reduces `count` elements of all ranks' `inputs` to `slot`, unless it is NULL, and to the `n`
 * receive buffers `outs`. */
void tcc_shared_reduce(const tcc_shared *shared, const tcc_comm_work *work,
                       const char *const *inputs, int64_t count, char *slot, char *const *outs,
                       int32_t n);
/* Returns the elements before a rank's part of `count`, at a cache line's border. */
int64_t tcc_shared_part(const tcc_shared *shared, const tcc_comm_work *work, int64_t count,
                        int32_t rank);
/* Returns the estimated nanoseconds of a rank for steps and for bytes moved. */
int64_t tcc_shared_price(const tcc_shared *shared, int64_t steps, int64_t bytes);

/* ---- in_place.c: collectives in symmetric memory --------------------------------------------- */

/* Finds the arena that holds the buffers, and notes it in the work's descriptor.  Returns the
 * method without slots, or NULL where the method with slots, which has `steps` steps, takes less
 * time. */
const tcc_shared_method *tcc_shared_in_place(tcc_comm *comm, tcc_comm_work *work, int64_t steps);

/* ---- collect.c: collectives ------------------------------------------------------------------ */

tcc_status tcc_shared_begin(tcc_comm *comm, const tcc_comm_work *work);
tcc_status tcc_shared_advance(tcc_comm *comm, bool wait, bool *out_done);

/* ---- channel.c: sends and receives ----------------------------------------------------------- */

tcc_status tcc_shared_transfer(tcc_comm *comm, const tcc_comm_work *works, int32_t n);

#endif
