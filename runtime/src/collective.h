/* collective.c: what the ranks of a comm do together. */
#ifndef TCC_COLLECTIVE_H
#define TCC_COLLECTIVE_H

#include "runtime.h"
#include "tcc_comm.h"

/* The functions that a comm begins with. */
static inline const tcc_comm_table *tcc_collective_table(const tcc_comm *comm) {
    return *(const tcc_comm_table *const *)(const void *)comm;
}
/* Lists of ranks that have collectives of their own, one behind another, each of `length` ranks. */
typedef struct tcc_rank_group {
    const char *name;
    int64_t lists, length;
    const int32_t *ranks;
} tcc_rank_group;

tcc_status tcc_collective_fits(const tcc_comm *comm); /* TCC_UNSUPPORTED: of another version */
/* It fits, and has this process as the rank that the model is loaded for. */
tcc_status tcc_collective_suits(const tcc_comm *comm, const tcc_model *model);
/* Which rank of how many this process is: of `comm`, else of the process's comm, else as a launcher says,
 * else the only one. */
TCC_RARE tcc_status tcc_collective_place(const tcc_comm *comm, int32_t *out_rank, int32_t *out_ranks);
/* The comm is there until the drop, also where it is closed: its calls are refused then. */
tcc_status tcc_collective_keep(tcc_comm *comm);
void tcc_collective_drop(tcc_comm *comm);
/* The process's comm, kept, or NULL: it may be closed, and another opened. */
tcc_comm *tcc_collective_shared(void);
/* Aborts the comm with the calling thread's message, for ranks that would wait for this one. */
TCC_RARE void tcc_collective_leave(tcc_comm *comm);
/* Compares the plan with those of the other ranks, once a model and comm, and finds the comms of the
 * model's groups of ranks.
 * `comm` makes those that it has not, together with all its ranks, and is aborted where that fails. */
tcc_status tcc_collective_groups(tcc_instance *instance, tcc_comm *comm);
/* The model is closed: the next one compares its plan anew. */
void tcc_collective_forget(void);
/* Finds the comm of a run of a model with collectives; fails where it does not suit the model. */
tcc_status tcc_collective_begin(tcc_run *run);
/* The run is over, and needs its comm no more. */
void tcc_collective_end(tcc_run *run);
/* The comm's failure, with the rank that it failed on, and its group unless that is -1. */
tcc_status tcc_collective_failed(const tcc_run *run, int64_t group, tcc_status status) TCC_COLD;
/* Revokes the comm of a run that failed, if it has one: other ranks are no longer in step with it. */
void tcc_collective_abort(const tcc_run *run);
/* A collective under way.  The comm counts its tickets on; 0: there is none. */
typedef struct tcc_flight {
    uint64_t ticket;
    int64_t group; /* whose comm has it; -1: the run's */
    const char *send, *receive;
} tcc_flight;
/* Symmetric memory for `memory->size` bytes, which it sets: of the comm of the group that all
 * collectives are of, else of the run's, which keeps it.  TCC_UNSUPPORTED where the comm has none. */
tcc_status tcc_collective_memory(tcc_run *run, tcc_span *memory);
/* All earlier launches are done. */
tcc_status tcc_collective_start(tcc_run *run, const tcc_code *code);
tcc_status tcc_collective_wait(tcc_run *run, const tcc_code *code);
tcc_status tcc_collective_none(const tcc_run *run); /* TCC_INTERNAL: one is under way at the end */
/* Fails where a collective under way has a buffer in this memory. */
tcc_status tcc_collective_spares(const tcc_run *run, const tcc_span *memory);
int32_t tcc_collective_rank(const tcc_run *run); /* of this process in the run's comm */

#endif
