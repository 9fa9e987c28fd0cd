/* Reads and writes structs of callers that were compiled with an older or a newer header. */
#include "sized.h"

#include <string.h>

/* Returns the bytes that both sides know; 0, with a reason, where the caller's struct is
 * invalid. */
static uint32_t common(const tcc_sized *kind, const void *theirs, bool read) {
    enum { MOST = 4096 }; /* bytes of the largest struct of any version */
    uint32_t size = 0, known = kind->size;
    if (theirs) memcpy(&size, theirs, sizeof size);
    bool good = size % 4 == 0 && size >= kind->least && size <= MOST &&
                (size >= known || kind->ends >> size / 4 & 1);
    for (uint32_t i = known; good && read && i < size; i++) good = !((const char *)theirs)[i];
    if (good) return size < known ? size : known;
    tcc_fail(TCC_INVALID_ARGUMENT,
             "the %s is NULL or of another version: it has %u bytes, this library takes whole "
             "fields of %u to %u bytes, and zeros behind them",
             kind->name, size, kind->least, known);
    return 0;
}

tcc_status tcc_sized_read(const tcc_sized *kind, const void *given, void *out) {
    uint32_t bytes = common(kind, given, true);
    if (!bytes) return TCC_INVALID_ARGUMENT;
    memcpy(out, given, bytes);
    memcpy(out, &kind->size, sizeof kind->size);
    return TCC_OK;
}

tcc_status tcc_sized_write(const tcc_sized *kind, const void *known, void *out) {
    uint32_t bytes = common(kind, out, false);
    if (!bytes) return TCC_INVALID_ARGUMENT;
    memcpy((char *)out + 4, (const char *)known + 4, bytes - 4);
    return TCC_OK;
}
