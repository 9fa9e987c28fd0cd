/* Holds the process's comm. Artifacts find it as they find the process's workers: every copy of
 * this library has a note with the distance to its slot (notes.c). */
#include "comm.h"

__attribute__((visibility("hidden"))) _Atomic(tcc_comm *) tcc_comm_slot = NULL;

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
__asm__(".pushsection .note.tcc,\"a\",%note\n"
        ".balign 4\n"
        ".long 4, 8, " TEXT(TCC_COMM_NOTE) "\n"
        ".asciz \"tcc\"\n"
        ".quad tcc_comm_slot - .\n"
        ".popsection\n");

static _Atomic(tcc_comm *) *the_slot(void) {
    _Atomic(tcc_comm *) *slot = tcc_note_slot(TCC_COMM_NOTE);
    return slot ? slot : &tcc_comm_slot;
}

tcc_comm *tcc_comm_shared(void) { return atomic_load(the_slot()); }

tcc_status tcc_comm_share(tcc_comm *comm) {
    tcc_comm *before = NULL;
    if (!comm) return tcc_fail(TCC_INVALID_ARGUMENT, "tcc_comm_share: the comm is NULL");
    if (!tcc_comm_visit(comm)) return tcc_comm_refuse_closed(comm);
    for (tcc_comm *of = comm; of; of = atomic_load(&of->keeper)) atomic_store(&of->lasting, true);
    bool shared = atomic_compare_exchange_strong(the_slot(), &before, comm) || before == comm;
    tcc_comm_visit_end(comm); /* a thread that closes the comm withdraws it after the last visit */
    if (shared) return TCC_OK;
    return tcc_fail(TCC_INVALID_ARGUMENT,
                    "this process shares another comm already: close it first");
}

void tcc_comm_withdraw(tcc_comm *comm) {
    tcc_comm *before = comm;
    (void)atomic_compare_exchange_strong(the_slot(), &before, NULL);
}
