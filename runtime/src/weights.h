/* Declares the weights: the constant data behind the ELF file.  Included by runtime.h. */
#ifndef TCC_WEIGHTS_H
#define TCC_WEIGHTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tcc.h"

/* ---- weight_source.c ---------------------------------------------------------------------------------- */

/* Where a part of the section lies: in the program's memory, else at `offset` of a file. */
typedef struct tcc_weight_source {
    const char *memory;
    int file;
    int64_t offset;
    bool from_file; /* the pages of `memory` are unmodified pages of the program's file */
} tcc_weight_source;

enum { TCC_WEIGHT_BLOCK = 256 << 10 };

/* Reads `size` bytes from byte `at` of the part to `to`.  A file is read, not mapped, and pages of
 * a program's file leave the process again block by block.  Returns false on failure; errno is 0
 * where the file is cut short. */
TCC_RARE bool tcc_weights_read(const tcc_weight_source *from, size_t at, char *to, size_t size);

/* ---- weights.c ---------------------------------------------------------------------------------------- */

typedef struct tcc_weights {
    const char *base;
    size_t size;
    void *mapping;
    size_t mapped;
    int shared; /* the mapped memory file, kept open for other processes to find; 0: none */
    size_t counted; /* bytes that this process added to memory, as opposed to a file or another
                       process */
} tcc_weights;

/* A part of the weight section.  It begins at a multiple of 64 KiB. */
typedef struct tcc_range {
    uint64_t offset, bytes;
} tcc_range;

/* Maps `part` (nothing if it is empty) of the weight section that has `size` bytes and the hash
 * `sha256`.  The section lies in the program's memory, in this object's file or in its side file.
 * With `huge`, for weights that runs read again and again, the part is mapped on huge pages.  A
 * copy is made block by block, so that the process never holds the weights twice. */
TCC_RARE tcc_status tcc_weights_map(uint64_t size, const uint8_t sha256[32], tcc_range part, bool huge,
                           tcc_weights *out_weights);
void tcc_weights_unmap(tcc_weights *weights);

/* ---- shared_weights.c --------------------------------------------------------------------------------- */

/* Maps the memory file `name`, which holds the first `size` bytes of `from`, on huge pages.  Makes
 * the file where no process of this user has it; then all its bytes are `counted`.  An existing
 * file is used only if it is sealed and equal byte by byte.  Returns false, and holds nothing,
 * where that is impossible. */
TCC_RARE bool tcc_weights_share(const char *name, const tcc_weight_source *from, size_t size,
                                tcc_weights *out_weights);

#endif
