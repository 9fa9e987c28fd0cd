/* The constant data behind the ELF file.  Included by runtime.h. */
#ifndef TCC_WEIGHTS_H
#define TCC_WEIGHTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tcc.h"

/* ---- weight_source.c ---------------------------------------------------------------------------------- */

/* Where a part of the section lies: in memory of the program, else at `offset` of a file. */
typedef struct tcc_weight_source {
    const char *memory;
    int file;
    int64_t offset;
    bool from_file; /* the pages of `memory` are those of the program's file, which nobody wrote */
} tcc_weight_source;

enum { TCC_WEIGHT_BLOCK = 256 << 10 };

/* Reads `size` bytes from byte `at` of the part on: blocks, and what is left.  A file is read and not mapped,
 * and the pages of blocks of a program's file leave the process again.  False on failure: errno is 0 where
 * the file is cut short. */
TCC_RARE bool tcc_weights_read(const tcc_weight_source *from, size_t at, char *to, size_t size);

/* ---- weights.c ---------------------------------------------------------------------------------------- */

typedef struct tcc_weights {
    const char *base;
    size_t size;
    void *mapping;
    size_t mapped;
    int shared; /* the memory file that is mapped, kept open for others to find; 0: none */
    size_t counted; /* bytes that this process added, and not a file or another process */
} tcc_weights;

/* A part of the weight section; it begins at a multiple of 64 KiB. */
typedef struct tcc_range {
    uint64_t offset, bytes;
} tcc_range;

/* Maps `part`, if not empty, of the weight section of `size` bytes and the hash `sha256`: from the program's
 * memory, this object's file or its side file; on huge pages where it is to be read again and again.  A
 * copy is made block by block, so that the process never holds two. */
TCC_RARE tcc_status tcc_weights_map(uint64_t size, const uint8_t sha256[32], tcc_range part, bool huge,
                           tcc_weights *out_weights);
void tcc_weights_unmap(tcc_weights *weights);

/* ---- shared_weights.c --------------------------------------------------------------------------------- */

/* Maps the memory file `name` with the first `size` bytes of `from`, on huge pages, and makes it where no
 * process of this user has it: then all of it is `counted`.  What is found is used only if it is sealed and
 * equal byte by byte.  False, and nothing is held, where that cannot be. */
TCC_RARE bool tcc_weights_share(const char *name, const tcc_weight_source *from, size_t size,
                                tcc_weights *out_weights);

#endif
