/* Reads and writes structs of callers that were compiled with an older or a newer header. */
#include "sized.h"

#include <string.h>

/* Returns the bytes that both sides know; 0, with a reason, where the caller's struct is
 * invalid. */
static uint32_t common(const tcc_sized *kind, const void *theirs, bool read) {
    enum { MOST = 4096 }; /* bytes of the largest struct of any version */
    uint32_t size = 0, known_size = kind->size;
    if (theirs) memcpy(&size, theirs, sizeof size);
    bool good = size % 4 == 0 && size >= kind->min_size && size <= MOST &&
                (size >= known_size || kind->ends >> size / 4 & 1);
    for (uint32_t i = known_size; good && read && i < size; i++) good = !((const char *)theirs)[i];
    if (good) return size < known_size ? size : known_size;
    tcc_fail(TCC_INVALID_ARGUMENT,
             "the %s is NULL or of another version: it has %u bytes, this library takes whole "
             "fields of %u to %u bytes, and zeros behind them",
             kind->name, size, kind->min_size, known_size);
    return 0;
}

tcc_status tcc_sized_read(const tcc_sized *kind, const void *theirs, void *out) {
    uint32_t bytes = common(kind, theirs, true);
    if (!bytes) return TCC_INVALID_ARGUMENT;
    memcpy(out, theirs, bytes);
    memcpy(out, &kind->size, sizeof kind->size);
    return TCC_OK;
}

tcc_status tcc_sized_write(const tcc_sized *kind, const void *ours, void *out) {
    uint32_t bytes = common(kind, out, false);
    if (!bytes) return TCC_INVALID_ARGUMENT;
    memcpy((char *)out + 4, (const char *)ours + 4, bytes - 4);
    return TCC_OK;
}
