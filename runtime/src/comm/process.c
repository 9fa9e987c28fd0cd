/* The process's comm, which artifacts find as they find the process's workers: every copy of this
 * library has an ELF note with the distance to its slot, and the slot of the first object in load
 * order counts (crew.c). */
#define _GNU_SOURCE
#include <link.h>
#include <string.h>

#include "comm.h"

#define SLOT_VERSION 1001 /* the note's type: of the slot's layout and of what it points to */

__attribute__((visibility("hidden"))) _Atomic(tcc_comm *) tcc_comm_slot = NULL;

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
__asm__(".pushsection .note.tcc,\"a\",%note\n"
        ".balign 4\n"
        ".long 4, 8, " TEXT(SLOT_VERSION) "\n"
        ".asciz \"tcc\"\n"
        ".quad tcc_comm_slot - .\n"
        ".popsection\n");

enum { HEADER = 12, BYTES = 24 };

/* The place of the slot in a segment of notes, or NULL. */
static char *slot_in(char *note, const char *end) {
    while (end - note >= BYTES) {
        uint32_t header[3];
        memcpy(header, note, sizeof header);
        char *content = note + HEADER + 4;
        if (header[0] == 4 && header[1] == 8 && header[2] == SLOT_VERSION &&
            memcmp(note + HEADER, "tcc", 4) == 0) {
            int64_t distance;
            memcpy(&distance, content, sizeof distance);
            return content + distance;
        }
        size_t name = (header[0] + 3u) & ~(size_t)3, rest = (header[1] + 3u) & ~(size_t)3;
        if (name + rest > (size_t)(end - note) - HEADER) break;
        note += HEADER + name + rest;
    }
    return NULL;
}

static int find_slot(struct dl_phdr_info *object, size_t size, void *out_slot) {
    (void)size;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        if (object->dlpi_phdr[i].p_type != PT_NOTE) continue;
        char *notes = (char *)object->dlpi_addr + object->dlpi_phdr[i].p_vaddr;
        char *slot = slot_in(notes, notes + object->dlpi_phdr[i].p_memsz);
        if (!slot) continue;
        *(char **)out_slot = slot;
        return 1;
    }
    return 0;
}

static _Atomic(tcc_comm *) *the_slot(void) {
    _Atomic(tcc_comm *) *slot = NULL;
    return dl_iterate_phdr(find_slot, &slot) ? slot : &tcc_comm_slot;
}

tcc_comm *tcc_comm_shared(void) { return atomic_load(the_slot()); }

tcc_status tcc_comm_share(tcc_comm *comm) {
    tcc_comm *before = NULL;
    if (!comm) return tcc_fail(TCC_INVALID_ARGUMENT, "tcc_comm_share: the comm is NULL");
    if (atomic_compare_exchange_strong(the_slot(), &before, comm) || before == comm) return TCC_OK;
    return tcc_fail(TCC_INVALID_ARGUMENT,
                    "this process shares another comm already: close it first");
}

void tcc_comm_withdraw(tcc_comm *comm) {
    tcc_comm *before = comm;
    (void)atomic_compare_exchange_strong(the_slot(), &before, NULL);
}
