/* Declares where the loaded code comes from, and its function names for profilers. */
#ifndef TCC_IMAGE_H
#define TCC_IMAGE_H

#include "runtime.h"

/* Returns the path of the file that this object was loaded from, or "" if it is not known.  The
 * path may name another file by now, but code and data are in memory from the beginning. */
const char *tcc_image_path(void);

/* Returns true if all `size` bytes from `begin` on are pages of one file that this process cannot
 * write to. */
bool tcc_image_is_file(const void *begin, size_t size);

/* Appends this object's functions to /tmp/perf-PID.map if TCC_PERF_MAP=1 is set.  `path` is the
 * file that the object was loaded from. */
TCC_RARE void tcc_symbols_tell(const char *path);

#endif
