/* Makes a process map each memory file once. ThreadSanitizer knows memory by its address, so it
 * then sees the memory that ranks as threads share. The compiler option -include puts it before
 * every file of the library. */
#ifndef ONE_MAPPING_H
#define ONE_MAPPING_H
#define _GNU_SOURCE
#include <sys/mman.h>
#include <sys/types.h>

void *map_once(void *address, size_t bytes, int protection, int flags, int file, off_t offset);
int unmap_once(void *address, size_t bytes);

#define mmap map_once
#define munmap unmap_once

#endif
