/* Finds the slots that libraries of one process share. Each library has an ELF note of name "tcc"
 * with the distance to its slot; the slot of the first library in load order is used. */
#define _GNU_SOURCE
#include <link.h>
#include <string.h>

#include "runtime.h"

enum { HEADER = 12, BYTES = 24 };

typedef struct search {
    uint32_t type;
    char *slot;
} search;

/* Returns the slot that a segment of notes names, or NULL. */
static char *slot_in(char *note, const char *end, uint32_t type) {
    while (end - note >= BYTES) {
        uint32_t header[3];
        memcpy(header, note, sizeof header);
        char *content = note + HEADER + 4;
        if (header[0] == 4 && header[1] == 8 && header[2] == type &&
            memcmp(note + HEADER, "tcc", 4) == 0) {
            int64_t distance;
            memcpy(&distance, content, sizeof distance);
            return content + distance;
        }
        size_t name = (header[0] + 3u) & ~(size_t)3, padded = (header[1] + 3u) & ~(size_t)3;
        if (name + padded > (size_t)(end - note) - HEADER) break;
        note += HEADER + name + padded;
    }
    return NULL;
}

static int look_at(struct dl_phdr_info *object, size_t size, void *context) {
    search *its = context;
    (void)size;
    for (int i = 0; i < object->dlpi_phnum && !its->slot; i++) {
        if (object->dlpi_phdr[i].p_type != PT_NOTE) continue;
        char *notes = (char *)object->dlpi_addr + object->dlpi_phdr[i].p_vaddr;
        its->slot = slot_in(notes, notes + object->dlpi_phdr[i].p_memsz, its->type);
    }
    return its->slot != NULL;
}

void *tcc_note_slot(uint32_t type) {
    search its = {type, NULL};
    (void)dl_iterate_phdr(look_at, &its);
    return its.slot;
}
