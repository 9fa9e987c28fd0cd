/* Declares structs of the public headers that begin with their size, so that a library and its
 * callers may have different versions (sized.c).  Later versions append fields.  No version ends in
 * padding: each ends where a field ends. */
#ifndef TCC_SIZED_H
#define TCC_SIZED_H

#include "runtime.h"

/* The layout that this library knows for a sized struct. */
typedef struct tcc_sized {
    char name[20];
    uint32_t size;  /* size of the struct in bytes */
    uint32_t min_size; /* bytes up to the end of the last field that every caller sets */
    uint64_t ends;  /* bit n: a field ends at byte 4 * n */
} tcc_sized;

#define TCC_END(type, field) (offsetof(type, field) + sizeof(((type *)0)->field))
#define TCC_ENDS(type, field) (UINT64_C(1) << TCC_END(type, field) / 4)

/* Fills `out`, which holds the defaults, with the fields that the caller's struct has.  Fails with
 * TCC_INVALID_ARGUMENT, naming the struct and both sizes, where `theirs` is NULL or too short, ends
 * inside a field, or has bytes other than zero behind the fields that this library knows. */
TCC_RARE tcc_status tcc_sized_read(const tcc_sized *kind, const void *theirs, void *out);
/* Copies fields from `ours` to the caller's struct, as many as the struct has, except its size.
 * Fields that this library does not know stay unchanged.  Fails where `out` is NULL or too short,
 * or ends inside a field. */
TCC_RARE tcc_status tcc_sized_write(const tcc_sized *kind, const void *ours, void *out);

/* Tests whether a table of functions, perhaps of another version, is long enough to hold
 * `function`. */
#define TCC_HAS(table, function)                                                                   \
    ((table)->struct_size >= (size_t)((const char *)(&(table)->function + 1) - (const char *)(table)))

#endif
