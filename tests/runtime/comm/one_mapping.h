/* Included before every file of the library by -include: a memory file is mapped once in a process,
 * so that ThreadSanitizer, which knows memory by its address, sees what ranks as threads share. */
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
