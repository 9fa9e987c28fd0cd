/* sized.c: structs of the public headers that begin with their size, so that a library and its
 * callers need not have one version.  Later versions append fields, and no version ends in padding:
 * each ends where a field does. */
#ifndef TCC_SIZED_H
#define TCC_SIZED_H

#include "runtime.h"

/* What this library knows of such a struct. */
typedef struct tcc_sized {
    char name[20];
    uint32_t size;  /* bytes */
    uint32_t least; /* bytes up to the end of the last field that every caller sets */
    uint64_t ends;  /* bit n: a field ends at byte 4 * n */
} tcc_sized;

#define TCC_END(type, field) (offsetof(type, field) + sizeof(((type *)0)->field))
#define TCC_ENDS(type, field) (UINT64_C(1) << TCC_END(type, field) / 4)

/* Fills `out`, which holds the defaults, with as many fields as the caller's struct has.
 * TCC_INVALID_ARGUMENT, with the struct's name and both sizes: `given` is NULL or too short, ends
 * inside of a field, or has something other than zero behind what this library knows. */
TCC_RARE tcc_status tcc_sized_read(const tcc_sized *kind, const void *given, void *out);
/* Fills as many fields of the caller's struct as it has, but for its size, from `known`; fields
 * that this library does not know stay as they are.  It fails where `out` is NULL or too short, or
 * ends inside of a field. */
TCC_RARE tcc_status tcc_sized_write(const tcc_sized *kind, const void *known, void *out);

/* Whether a table of functions, of another version perhaps, reaches to this one's end. */
#define TCC_HAS(table, function)                                                                   \
    ((table)->struct_size >= (size_t)((const char *)(&(table)->function + 1) - (const char *)(table)))

#endif
