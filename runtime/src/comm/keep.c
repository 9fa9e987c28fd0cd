/* Counts the keepers of a comm and of its memory.  Both exist until the last keeper drops them.
 *
 * A pointer in a slot names the process's comm (process.c), and a thread that finds it may come too
 * late to keep it.  So a comm that was ever shared is never freed: its memory is reused for the
 * next comm. */
#include <string.h>
#include <sys/mman.h>

#include "comm.h"

/* ---- comms ----------------------------------------------------------------------------------- */

static _Atomic(tcc_comm *) waiting; /* list of comms that were shared once and have no keeper */

static void set_aside(tcc_comm *comm) {
    comm->next = atomic_load(&waiting);
    while (!atomic_compare_exchange_weak(&waiting, &comm->next, comm)) continue;
}

/* Takes one comm off the list; NULL if it is empty. */
static tcc_comm *take_waiting(void) {
    tcc_comm *first = atomic_exchange(&waiting, NULL);
    for (tcc_comm *comm = first ? first->next : NULL, *next; comm; comm = next) {
        next = comm->next;
        set_aside(comm);
    }
    return first;
}

tcc_comm *tcc_comm_allocate(const tcc_comm_table *table) {
    tcc_comm *comm = take_waiting();
    if (comm) { /* other threads may read the fields before */
        atomic_store(&comm->keeper, NULL);
        size_t before = offsetof(tcc_comm, backend);
        memset((char *)comm + before, 0, sizeof *comm - before);
    } else if ((comm = tcc_allocate_zero(1, sizeof *comm)) != NULL) {
        comm->table = table;
    }
    return comm;
}

/* Returns the comm that keeps a subgroup: the subgroup exists as long as that comm. */
static tcc_comm *root_of(tcc_comm *comm) {
    for (tcc_comm *keeper = comm; keeper; keeper = atomic_load(&comm->keeper)) comm = keeper;
    return comm;
}

tcc_status tcc_comm_keep(tcc_comm *comm) {
    if (!comm) return tcc_fail(TCC_INVALID_ARGUMENT, "the comm is NULL");
    comm = root_of(comm);
    uint32_t users = atomic_load(&comm->users);
    while (users)
        if (atomic_compare_exchange_weak(&comm->users, &users, users + 1)) return TCC_OK;
    return tcc_fail(TCC_INVALID_ARGUMENT, "the comm is closed");
}

static void release(tcc_comm *comm) {
    for (tcc_comm *child = atomic_load(&comm->subgroups), *next; child; child = next) {
        next = child->next;
        release(child);
    }
    tcc_free(comm->members);
    tcc_free(comm->group.queue.works);
    tcc_free(comm->started.works);
    if (atomic_load(&comm->lasting))
        set_aside(comm);
    else
        tcc_free(comm);
}

void tcc_comm_drop(tcc_comm *comm) {
    if (!comm) return;
    comm = root_of(comm);
    if (atomic_fetch_sub(&comm->users, 1) == 1) release(comm);
}

/* ---- memory ---------------------------------------------------------------------------------- */

struct tcc_comm_memory {
    _Atomic uint32_t users;
    void *base;
    size_t bytes;
};

tcc_comm_memory *tcc_comm_memory_make(void *base, size_t bytes) {
    tcc_comm_memory *memory = tcc_allocate_zero(1, sizeof *memory);
    if (!memory) return NULL;
    memory->base = base;
    memory->bytes = bytes;
    atomic_store(&memory->users, 1);
    return memory;
}

void tcc_comm_memory_drop(tcc_comm_memory *memory) {
    if (!memory || atomic_fetch_sub(&memory->users, 1) > 1) return;
    munmap(memory->base, memory->bytes);
    tcc_free(memory);
}

static tcc_status keep_memory(tcc_comm *comm, const void *memory, tcc_comm_memory **out_kept) {
    uintptr_t place = (uintptr_t)memory;
    for (int i = 0; i < TCC_COMM_ARENAS; i++) {
        uintptr_t begin = (uintptr_t)comm->memory[i];
        if (!comm->mappings[i] || place < begin || place >= begin + comm->bytes[i]) continue;
        atomic_fetch_add(&comm->mappings[i]->users, 1);
        *out_kept = comm->mappings[i];
        return TCC_OK;
    }
    return tcc_fail(TCC_INVALID_ARGUMENT, "memory_keep: the comm has no memory at this address");
}

tcc_status tcc_comm_memory_keep(tcc_comm *comm, const void *memory, tcc_comm_memory **out_kept) {
    if (!out_kept) return tcc_fail(TCC_INVALID_ARGUMENT, "memory_keep: out_kept is NULL");
    *out_kept = NULL;
    TCC_RETURN_IF_ERROR(tcc_comm_enter(comm));
    tcc_status status = tcc_comm_leave(comm, keep_memory(comm, memory, out_kept));
    if (status == TCC_OK) return TCC_OK;
    tcc_comm_memory_drop(*out_kept); /* two threads met in the call */
    *out_kept = NULL;
    return status;
}

