/* Where the loaded code is from, and its names for profilers. */
#ifndef TCC_IMAGE_H
#define TCC_IMAGE_H

#include "runtime.h"

/* The file that this object was loaded from; "" where it is not known.  It may be another by now:
 * code and data are in memory from the beginning. */
const char *tcc_image_path(void);

/* Whether all `size` bytes from `begin` on are pages of one file that this process cannot write. */
bool tcc_image_is_file(const void *begin, size_t size);

/* Appends this object's functions to /tmp/perf-PID.map where TCC_PERF_MAP=1 asks for it; `path` is
 * the file that it was loaded from. */
TCC_RARE void tcc_symbols_tell(const char *path);

#endif
